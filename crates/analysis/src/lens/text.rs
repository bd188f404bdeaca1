//! Tokens as a reader must see them: on one line, with their spaces, and of a known width on the screen.
//!
//! A token is whatever bytes the tokenizer learned. It may be a line break, an escape sequence that would recolour the
//! terminal, or a mark that reverses the direction of the text after it. All of these are spelled out here, so that
//! the renderings can print the result as it is.

use unicode_width::UnicodeWidthStr;

/// The token with its spaces as `·`, its line breaks as `⏎`, and every other invisible character spelled out.
pub(super) fn visible(token: &str) -> String {
    if token.is_empty() { "∅".into() } else { spell(token, '·') }
}

/// A name (of a model, of a row) on one line: as [`visible`], but with its spaces left alone.
pub(super) fn one_line(name: &str) -> String {
    spell(name, ' ')
}

fn spell(text: &str, space: char) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    // A leading accent would settle on whatever is printed before the token; give it a circle of its own.
    if text.chars().next().is_some_and(|first| !is_format(first) && !first.is_control() && is_zero_width(first)) {
        out.push('◌');
    }
    for c in text.chars() {
        match c {
            ' ' => out.push(space),
            '\n' => out.push('⏎'),
            '\t' => out.push('⇥'),
            // Unicode has a picture of each ASCII control character, in the same order.
            '\0'..='\x1f' => out.extend(char::from_u32(0x2400 + c as u32)),
            '\x7f' => out.push('␡'),
            c if c.is_control() || c.is_whitespace() || is_format(c) => out.push_str(&format!("‹{:x}›", c as u32)),
            c => out.push(c),
        }
    }
    out
}

/// Characters without a shape that steer the text around them: joiners, direction marks, byte-order marks, tags.
fn is_format(c: char) -> bool {
    matches!(c,
        '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

fn is_zero_width(c: char) -> bool {
    width(c.encode_utf8(&mut [0; 4])) == 0
}

/// The number of terminal columns that the text takes.
pub(super) fn width(text: &str) -> usize {
    UnicodeWidthStr::width(text)
}

/// The text in at most `columns` columns, with `…` where something was cut off.
pub(super) fn cut(text: &str, columns: usize) -> String {
    if width(text) <= columns {
        return text.into();
    }
    if columns == 0 {
        return String::new();
    }
    // Characters have no width of their own (accents, ligatures, emoji sequences), so whole prefixes are measured.
    let fits = |end: &usize| width(&text[..*end]) < columns;
    let end = text.char_indices().map(|(at, c)| at + c.len_utf8()).take_while(fits).last().unwrap_or(0);
    format!("{}…", &text[..end])
}

/// The text in exactly `columns` columns: cut, or filled with spaces.
pub(super) fn fit(text: &str, columns: usize) -> String {
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
        // The second ideograph would end one column too far; the cell is filled with a space instead.
        assert_eq!(fit("東京都", 4), "東… ");
        assert_eq!(cut("e\u{301}e\u{301}e\u{301}", 2), "e\u{301}…");
        assert_eq!((cut("東京", 1), cut("ab", 0), fit("", 2)), ("…".into(), String::new(), "  ".into()));
    }
}
