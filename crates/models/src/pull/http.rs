//! HTTP requests to a hub.
//!
//! Redirects are followed here, because the access token belongs to the hub: a request to another
//! host, such as the hub's file storage, goes without it.

use std::time::Duration;

use ureq::http::{HeaderMap, Response, StatusCode, Uri, header};
use ureq::{Agent, Body};

use super::Sources;

const DEFAULT_ENDPOINT: &str = "https://huggingface.co";
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(60);
const MOST_REDIRECTS: usize = 10;
/// Largest answer that is not a file.
const LARGEST_ANSWER: u64 = 64 << 20;

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum HttpError {
    /// Of the connection, or a status of 4xx or 5xx.
    #[error("{0}")]
    Request(#[from] Box<ureq::Error>),
    /// An answer that is not a hub's.
    #[error("{0}")]
    Answer(String),
}

impl HttpError {
    /// The status of the answer, if that is the failure.
    pub fn status(&self) -> Option<u16> {
        match self {
            HttpError::Request(error) => match **error {
                ureq::Error::StatusCode(code) => Some(code),
                _ => None,
            },
            HttpError::Answer(_) => None,
        }
    }
}

impl From<ureq::Error> for HttpError {
    fn from(error: ureq::Error) -> HttpError {
        HttpError::Request(Box::new(error))
    }
}

/// What the hub says about a file.
pub(super) struct FileInfo {
    /// Identifies the content; of large files its SHA-256.
    pub etag: String,
    pub size: u64,
}

/// A connection to a hub.
pub(super) struct Client {
    agent: Agent,
    /// Without a slash at the end.
    endpoint: String,
    token: Option<String>,
}

impl Client {
    pub fn new(sources: &Sources) -> Client {
        let timeout = Some(sources.timeout.unwrap_or(DEFAULT_TIMEOUT));
        let config = Agent::config_builder()
            .max_redirects(0)
            .timeout_connect(timeout)
            .timeout_recv_response(timeout)
            // For each read: a large file takes as long as it takes.
            .timeout_per_read(timeout)
            .user_agent(concat!("pellucid/", env!("CARGO_PKG_VERSION")));
        let endpoint = sources.endpoint.as_deref().unwrap_or(DEFAULT_ENDPOINT);
        let endpoint = endpoint.trim_end_matches('/').to_owned();
        Client { agent: config.build().into(), endpoint, token: sources.token.clone() }
    }

    /// Requests a path of the hub and returns the whole answer.
    pub fn answer(&self, path: &str) -> Result<Vec<u8>, HttpError> {
        let (_, mut response) = self.get(path, None)?;
        Ok(response.body_mut().with_config().limit(LARGEST_ANSWER).read_to_vec()?)
    }

    /// Requests size and hash of a file.
    pub fn file_info(&self, path: &str) -> Result<FileInfo, HttpError> {
        let (linked, response) = self.get(path, Some("bytes=0-0"))?;
        let text = |headers: &HeaderMap, name: &str| {
            headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned)
        };
        // The hub describes a file before it redirects to its storage.
        let etag = text(&linked, "x-linked-etag").or_else(|| text(&linked, "etag"));
        let etag = etag.ok_or_else(|| HttpError::Answer("the header ETag is missing".into()))?;
        let size = text(&linked, "x-linked-size").or_else(|| {
            let range = text(response.headers(), "content-range")?;
            range.rsplit('/').next().map(str::to_owned)
        });
        let size = size.and_then(|size| size.trim().parse().ok());
        let size = size.ok_or_else(|| HttpError::Answer("the size of the file is missing (Content-Range)".into()))?;
        Ok(FileInfo { etag: etag.trim_start_matches("W/").trim_matches('"').to_owned(), size })
    }

    /// Requests a file from a byte on; returns whether the answer starts there (and not at 0).
    pub fn file(&self, path: &str, start: u64) -> Result<(bool, Response<Body>), HttpError> {
        let (_, response) = self.get(path, Some(&format!("bytes={start}-")))?;
        Ok((response.status() == StatusCode::PARTIAL_CONTENT, response))
    }

    /// Requests a path of the hub and follows redirects. Returns the headers of the hub's last own
    /// answer, and the last answer.
    fn get(&self, path: &str, range: Option<&str>) -> Result<(HeaderMap, Response<Body>), HttpError> {
        let mut url = format!("{}{path}", self.endpoint);
        let mut own_headers = HeaderMap::new();
        for _ in 0..=MOST_REDIRECTS {
            let is_own = has_same_origin(&url, &self.endpoint);
            let mut request = self.agent.get(&url);
            if let Some(range) = range {
                request = request.header(header::RANGE, range);
            }
            if let Some(token) = self.token.as_ref().filter(|_| is_own) {
                request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
            }
            let response = request.call()?;
            if is_own {
                own_headers = response.headers().clone();
            }
            let location = response.headers().get(header::LOCATION).filter(|_| response.status().is_redirection());
            let Some(location) = location else { return Ok((own_headers, response)) };
            let next = location.to_str().ok().and_then(|location| join(&url, location));
            url =
                next.ok_or_else(|| HttpError::Answer("the hub redirects to an invalid or insecure address".into()))?;
        }
        Err(HttpError::Answer("the hub redirects in a circle".into()))
    }
}

/// Resolves the target of a redirect; `None` if it is not HTTP, or would leave HTTPS.
fn join(url: &str, location: &str) -> Option<String> {
    let base: Uri = url.parse().ok()?;
    let (scheme, authority) = (base.scheme_str()?, base.authority()?);
    let next = match location {
        _ if location.starts_with("//") => format!("{scheme}:{location}"),
        _ if location.starts_with('/') => format!("{scheme}://{authority}{location}"),
        _ => location.to_owned(),
    };
    let target: Uri = next.parse().ok()?;
    let is_allowed = match target.scheme_str()? {
        "https" => true,
        "http" => scheme == "http",
        _ => false,
    };
    is_allowed.then_some(next)
}

fn has_same_origin(a: &str, b: &str) -> bool {
    let origin = |url: &str| {
        let url: Uri = url.parse().ok()?;
        let scheme = url.scheme_str()?.to_owned();
        let port = url.port_u16().unwrap_or(if scheme == "https" { 443 } else { 80 });
        Some((scheme, url.host()?.to_ascii_lowercase(), port))
    };
    origin(a).is_some_and(|found| Some(found) == origin(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirects_are_resolved_and_insecure_ones_refused() {
        let from = "https://hub.example/a/b?c";
        let to = |location| join(from, location);
        assert_eq!(to("/x/y").as_deref(), Some("https://hub.example/x/y"));
        assert_eq!(to("//cdn.example/z").as_deref(), Some("https://cdn.example/z"));
        assert_eq!(to("https://cdn.example/z?q").as_deref(), Some("https://cdn.example/z?q"));
        for refused in ["http://cdn.example/z", "file:///etc/passwd", "relative", "", "https:// bad"] {
            assert_eq!(to(refused), None, "{refused}");
        }
        assert_eq!(join("http://127.0.0.1:1/a", "http://localhost:2/b").as_deref(), Some("http://localhost:2/b"));
    }

    #[test]
    fn an_origin_is_scheme_host_and_port() {
        let hub = "https://hub.example";
        assert!(has_same_origin("https://HUB.example:443/x", hub));
        for other in ["http://hub.example", "https://hub.example:444", "https://hub.example.evil", "https://x@y", ""] {
            assert!(!has_same_origin(other, hub), "{other}");
        }
    }
}
