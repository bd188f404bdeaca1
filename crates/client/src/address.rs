//! URLs of servers.

use crate::error::{Error, Result};
use std::fmt;
use ureq::http::Uri;

/// The base URL of a server, with or without `/v1`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// Without a slash at the end, and without `/v1`.
    base: String,
}

impl Address {
    /// Parses `http://127.0.0.1:7117`, `http://127.0.0.1:7117/v1` or an https URL.
    ///
    /// ```
    /// use pellucid_client::Address;
    /// let address = Address::parse("http://127.0.0.1:7117/v1/").unwrap();
    /// assert_eq!(address.to_string(), "http://127.0.0.1:7117");
    /// assert!(Address::parse("127.0.0.1:7117").is_err() && Address::parse("file:///etc").is_err());
    /// ```
    pub fn parse(url: &str) -> Result<Address> {
        let wrong = |problem: &str| Error::Usage {
            problem: format!("{url:?} is not the URL of a server: {problem}"),
            hint: "`pellucid serve` prints its URL, such as http://127.0.0.1:7117/v1".into(),
        };
        let trimmed = url.trim().trim_end_matches('/');
        let uri: Uri = trimmed.parse().map_err(|_| wrong("it is malformed"))?;
        if !matches!(uri.scheme_str(), Some("http" | "https")) {
            return Err(wrong("it starts with neither http:// nor https://"));
        }
        let authority = uri.authority().filter(|authority| !authority.host().is_empty());
        let authority = authority.ok_or_else(|| wrong("it has no host"))?;
        if authority.as_str().contains('@') {
            return Err(wrong("it has a user name; give the token apart from the URL"));
        }
        if uri.query().is_some() {
            return Err(wrong("it has a query"));
        }
        let base = trimmed.strip_suffix("/v1").unwrap_or(trimmed);
        Ok(Address { base: base.trim_end_matches('/').to_owned() })
    }

    /// The URL of a path, which starts with a slash.
    pub(crate) fn path(&self, path: &str) -> String {
        format!("{}{path}", self.base)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.base)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_http_urls_without_user_or_query_are_addresses() {
        for (url, base) in [
            ("http://localhost:7117", "http://localhost:7117"),
            (" https://lab.example/pellucid/v1 ", "https://lab.example/pellucid"),
            ("http://[::1]:80/", "http://[::1]:80"),
        ] {
            assert_eq!(Address::parse(url).unwrap().to_string(), base);
        }
        for url in ["", "localhost", "ftp://a", "http://", "http://u:p@a", "http://a?x=1", "http://a b", "//a"] {
            assert!(Address::parse(url).is_err(), "{url}");
        }
    }
}
