//! A session as one web page.

use crate::result::SessionResult;

/// The whole session.
pub fn html(result: &SessionResult) -> String {
    let text = super::text(result).replace('&', "&amp;").replace('<', "&lt;");
    format!("<!doctype html><meta charset=\"utf-8\"><title>{}</title><pre>{text}</pre>", result.suite.name)
}
