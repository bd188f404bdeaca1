//! Makes tokens visible: on one line, with their spaces, and with a known width in the terminal.
//!
//! A token is any byte sequence that the tokenizer learned: possibly a line break, an escape
//! sequence that recolors the terminal, or a mark that reverses the direction of text. All of these
//! are spelled out here, so that the result can be printed as it is.

use unicode_width::UnicodeWidthStr;

/// Returns the token with spaces as `·`, line breaks as `⏎`, and other invisible characters spelled
/// out.
pub(crate) fn visible(token: &str) -> String {
    if token.is_empty() { "∅".into() } else { spell(token, '·') }
}

/// Returns a name (of a model or a row) on one line: like [`visible`], but spaces are kept.
pub(crate) fn one_line(name: &str) -> String {
    spell(name, ' ')
}

fn spell(text: &str, space: char) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    // A leading combining mark would attach to the previous character; give it a circle to attach
    // to.
    if text.chars().next().is_some_and(|first| !is_format(first) && !first.is_control() && is_zero_width(first)) {
        out.push('◌');
    }
    for c in text.chars() {
        match c {
            ' ' => out.push(space),
            '\n' => out.push('⏎'),
            '\t' => out.push('⇥'),
            // Unicode has a symbol for each ASCII control character, in the same order.
            '\0'..='\x1f' => out.extend(char::from_u32(0x2400 + c as u32)),
            '\x7f' => out.push('␡'),
            c if c.is_control() || c.is_whitespace() || is_format(c) => out.push_str(&format!("‹{:x}›", c as u32)),
            c => out.push(c),
        }
    }
    out
}

/// Invisible format characters: joiners, direction marks, byte-order marks, tags.
fn is_format(c: char) -> bool {
    matches!(c,
        '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

fn is_zero_width(c: char) -> bool {
    width(c.encode_utf8(&mut [0; 4])) == 0
}

/// Returns the number of terminal columns of a text.
pub(crate) fn width(text: &str) -> usize {
    UnicodeWidthStr::width(text)
}

/// Truncates the text to `columns` columns, ending in `…` if it was cut.
pub(crate) fn cut(text: &str, columns: usize) -> String {
    if width(text) <= columns {
        return text.into();
    }
    if columns == 0 {
        return String::new();
    }
    // The width depends on context (accents, ligatures, emoji sequences), so whole prefixes are
    // measured.
    let fits = |end: &usize| width(&text[..*end]) < columns;
    let end = text.char_indices().map(|(at, c)| at + c.len_utf8()).take_while(fits).last().unwrap_or(0);
    format!("{}…", &text[..end])
}

/// Truncates or pads the text to exactly `columns` columns.
pub(crate) fn fit(text: &str, columns: usize) -> String {
    let mut out = cut(text, columns);
    out.extend(std::iter::repeat_n(' ', columns.saturating_sub(width(&out))));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whitespace_and_controls_are_spelled_out() {
        assert_eq!(visible(" the"), "·the");
        assert_eq!(visible("\n\n\t"), "⏎⏎⇥");
        assert_eq!(visible("\r\x1b[31m\x7f"), "␍␛[31m␡");
        assert_eq!(visible("a\u{a0}b\u{202e}c\u{2028}"), "a‹a0›b‹202e›c‹2028›");
        assert_eq!(visible("\u{301}"), "◌\u{301}");
        assert_eq!(visible("\u{feff}"), "‹feff›");
        assert_eq!(visible(""), "∅");
        assert_eq!(one_line("My model\n"), "My model⏎");
    }

    #[test]
    fn text_is_cut_by_columns_not_by_characters() {
        assert_eq!(cut("abcdef", 6), "abcdef");
        assert_eq!(cut("abcdef", 4), "abc…");
        assert_eq!(cut("東京都", 6), "東京都");
        assert_eq!(cut("東京都", 5), "東京…");
        // The second ideograph would exceed the width by one column; a space fills the cell.
        assert_eq!(fit("東京都", 4), "東… ");
        assert_eq!(cut("e\u{301}e\u{301}e\u{301}", 2), "e\u{301}…");
        assert_eq!((cut("東京", 1), cut("ab", 0), fit("", 2)), ("…".into(), String::new(), "  ".into()));
    }
}
