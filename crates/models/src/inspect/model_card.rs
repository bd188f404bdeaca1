//! License and base model from the YAML front matter of a model card (`README.md`).
//!
//! Only a key with a scalar or a list of scalars is parsed, without a YAML library; other forms are
//! ignored.

use super::report::Report;
use crate::files::first_bytes;
use crate::listing::Listing;

/// Limit of the front matter's size.
const MAX_BYTES: u64 = 64 << 10;

pub(super) fn read(listing: &Listing, report: &mut Report) {
    if !listing.has("README.md") {
        return;
    }
    let Ok(bytes) = first_bytes(&listing.dir.join("README.md"), MAX_BYTES) else { return };
    let text = String::from_utf8_lossy(&bytes);
    let licenses = values(&text, "license");
    // A license without an SPDX identifier is `other`, with its name in `license_name`.
    let named = if licenses == ["other"] { values(&text, "license_name") } else { Vec::new() };
    let license = if named.is_empty() { licenses } else { named };
    report.license = (!license.is_empty()).then(|| license.join(", "));
    report.base_model = values(&text, "base_model");
}

/// The values of a key in the front matter.
fn values(card: &str, key: &str) -> Vec<String> {
    let mut lines = card.lines();
    if lines.next().map(str::trim_end) != Some("---") {
        return Vec::new();
    }
    let mut head = lines.take_while(|line| line.trim_end() != "---");
    let after = |line: &str| line.strip_prefix(key)?.strip_prefix(':').map(|rest| rest.trim().to_owned());
    let Some(value) = head.by_ref().find_map(after) else { return Vec::new() };
    if let Some(list) = value.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        return list.split(',').filter_map(scalar).collect();
    }
    if !value.is_empty() && !value.starts_with('#') {
        return scalar(&value).into_iter().collect();
    }
    head.map_while(|line| line.trim_start().strip_prefix("- ").map(str::to_owned))
        .filter_map(|item| scalar(&item))
        .collect()
}

/// A scalar without quotes.
fn scalar(text: &str) -> Option<String> {
    let text = text.trim();
    let bare = ['"', '\''].into_iter().find_map(|quote| text.strip_prefix(quote)?.strip_suffix(quote));
    Some(bare.unwrap_or(text)).filter(|text| !text.is_empty()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::values;

    #[test]
    fn values_may_be_scalars_or_lists() {
        let card =
            "---\r\nlicense: 'apache-2.0'\nbase_model:\n  - a/b\n- \"c/d\"\ntags: [x, 'y']\nempty:\n---\nlicence: no\n";
        assert_eq!(values(card, "license"), ["apache-2.0"]);
        assert_eq!(values(card, "base_model"), ["a/b", "c/d"]);
        assert_eq!(values(card, "tags"), ["x", "y"]);
        assert!(values(card, "empty").is_empty() && values(card, "licence").is_empty());
        assert!(values("# A model\nlicense: mit", "license").is_empty());
        assert!(values("", "license").is_empty() && values("---\nlicense", "license").is_empty());
    }
}
