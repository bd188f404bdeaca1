//! Text of files in messages: control characters escaped, length limited.
//!
//! Names of tensors, keys, dtypes and exceptions come from untrusted files, and messages go to
//! terminals, where control characters act.

/// Returns a text with control characters and Unicode's directional controls escaped, and at most
/// `limit` characters of the original.
pub fn text(text: &str, limit: usize) -> String {
    let mut result = String::with_capacity(text.len().min(limit));
    for (count, character) in text.chars().enumerate() {
        if count == limit {
            result.push('…');
            break;
        }
        if is_control(character) { result.extend(character.escape_unicode()) } else { result.push(character) }
    }
    result
}

/// Returns a text for a terminal: control characters except newline and tab are escaped. Borrows
/// the text if it has none.
pub fn for_terminal(text: &str) -> std::borrow::Cow<'_, str> {
    let acts = |character: char| is_control(character) && !matches!(character, '\n' | '\t');
    if !text.contains(acts) {
        return text.into();
    }
    let mut result = String::with_capacity(text.len() + 8);
    for character in text.chars() {
        if acts(character) { result.extend(character.escape_unicode()) } else { result.push(character) }
    }
    result.into()
}

/// C0 and C1 controls, and characters that reorder the text around them.
pub(crate) fn is_control(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{200E}' | '\u{200F}' | '\u{202A}'..='\u{202E}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped_and_long_texts_cut() {
        assert_eq!(text("a\u{1b}[31m\n€\u{202e}", 100), "a\\u{1b}[31m\\u{a}€\\u{202e}");
        assert_eq!(text("abcdef", 3), "abc…");
        assert_eq!(for_terminal("a\n\tb"), "a\n\tb");
        assert_eq!(for_terminal("a\u{1b}]0;x\u{7}\r\u{9b}"), "a\\u{1b}]0;x\\u{7}\\u{d}\\u{9b}");
    }
}
