//! Helpers for HTML reports that are one self-contained file.

/// Escapes JSON for use inside a `<script>` element, so that HTML does not see the end of the
/// element or a comment in it.
///
/// In JSON these characters occur only inside strings, where `\u` escapes mean the same.
///
/// ```
/// use pellucid_analysis::html::escape_json;
/// assert_eq!(escape_json(r#"{"a": "</script>"}"#), r#"{"a": "\u003c/script\u003e"}"#);
/// ```
pub fn escape_json(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for c in json.chars() {
        match c {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => out.push_str(&format!("\\u{:04x}", c as u32)),
            c => out.push(c),
        }
    }
    out
}

/// Escapes text for an element or a quoted attribute.
///
/// ```
/// use pellucid_analysis::html::escape_text;
/// assert_eq!(escape_text("a<b & \"c\""), "a&lt;b &amp; &quot;c&quot;");
/// ```
pub fn escape_text(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\n' | '\t' => out.push(c),
            // Control characters, such as terminal codes, are shown as their Unicode pictures.
            c if c < ' ' => out.push(char::from_u32(0x2400 + c as u32).unwrap_or('\u{fffd}')),
            c => out.push(c),
        }
    }
    out
}
