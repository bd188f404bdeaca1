//! A minimal Rust tokenizer for the checks: without comments, contents of literals, and tests.

/// Replaces comments and the contents of literals by blanks. Line breaks stay, so line numbers are
/// preserved.
pub fn without_comments(text: &str) -> String {
    let source: Vec<char> = text.chars().collect();
    let mut out: Vec<char> = Vec::with_capacity(source.len());
    let blank = |out: &mut Vec<char>, part: &[char]| out.extend(part.iter().map(|&c| if c == '\n' { c } else { ' ' }));
    let mut at = 0;
    while at < source.len() {
        let end = match (source[at], source.get(at + 1)) {
            ('/', Some('/')) => line_end(&source, at),
            ('/', Some('*')) => comment_end(&source, at),
            ('"', _) => string_end(&source, at),
            ('r', Some('"' | '#')) if !is_word(&source, at) => raw_string_end(&source, at).unwrap_or(at),
            ('\'', _) => char_end(&source, at).unwrap_or(at),
            _ => at,
        };
        if end > at {
            blank(&mut out, &source[at..end]);
            at = end;
        } else {
            out.push(source[at]);
            at += 1;
        }
    }
    out.into_iter().collect()
}

/// Whether the character continues a word.
fn is_word(source: &[char], at: usize) -> bool {
    // The prefix of a byte string does not count as a word.
    let byte = |before: usize| source[before] == 'b' && (before == 0 || !is_name(source[before - 1]));
    at > 0 && is_name(source[at - 1]) && !byte(at - 1)
}

fn is_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn line_end(source: &[char], at: usize) -> usize {
    source[at..].iter().position(|&c| c == '\n').map_or(source.len(), |length| at + length)
}

fn comment_end(source: &[char], mut at: usize) -> usize {
    let mut depth = 0;
    while at < source.len() {
        match (source[at], source.get(at + 1)) {
            ('/', Some('*')) => (depth, at) = (depth + 1, at + 2),
            ('*', Some('/')) => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at.min(source.len())
}

fn string_end(source: &[char], mut at: usize) -> usize {
    at += 1;
    while at < source.len() && source[at] != '"' {
        at += if source[at] == '\\' { 2 } else { 1 };
    }
    (at + 1).min(source.len())
}

fn raw_string_end(source: &[char], at: usize) -> Option<usize> {
    let hashes = source[at + 1..].iter().take_while(|&&c| c == '#').count();
    let open = at + 1 + hashes;
    (source.get(open) == Some(&'"')).then_some(())?;
    let mut end: Vec<char> = vec!['#'; hashes];
    end.insert(0, '"');
    let found = source[open + 1..].windows(end.len()).position(|window| window == end);
    Some(found.map_or(source.len(), |length| open + 1 + length + end.len()))
}

/// Returns the end of a character literal; `None` for a lifetime.
fn char_end(source: &[char], at: usize) -> Option<usize> {
    match source.get(at + 1)? {
        '\\' => source[at + 3..].iter().position(|&c| c == '\'').map(|length| at + 4 + length),
        _ => (source.get(at + 2) == Some(&'\'')).then_some(at + 3),
    }
}

/// A word or a punctuation character, with its line (from 1).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Token {
    pub text: String,
    pub line: usize,
}

/// Splits a text without comments into tokens. `::` is one token.
pub fn tokens(text: &str) -> Vec<Token> {
    let (mut found, mut line): (Vec<Token>, usize) = (Vec::new(), 1);
    let mut characters = text.chars().peekable();
    while let Some(c) = characters.next() {
        let mut token = String::from(c);
        if c == '\n' {
            line += 1;
        }
        if c.is_whitespace() {
            continue;
        }
        if is_name(c) {
            while let Some(next) = characters.next_if(|&next| is_name(next)) {
                token.push(next);
            }
        } else if c == ':' && characters.next_if_eq(&':').is_some() {
            token.push(':');
        }
        found.push(Token { text: token, line });
    }
    found
}

/// Removes items under `#[cfg(test)]`. Also returns the names of removed modules that have their
/// own files.
pub fn without_tests(tokens: Vec<Token>) -> (Vec<Token>, Vec<String>) {
    const ATTRIBUTE: [&str; 7] = ["#", "[", "cfg", "(", "test", ")", "]"];
    let text = |at: usize| tokens.get(at).map(|token: &Token| token.text.as_str());
    let (mut kept, mut files, mut at) = (Vec::new(), Vec::new(), 0);
    while at < tokens.len() {
        if !ATTRIBUTE.iter().enumerate().all(|(i, expected)| text(at + i) == Some(expected)) {
            kept.push(tokens[at].clone());
            at += 1;
            continue;
        }
        at += ATTRIBUTE.len();
        // The item ends at the first semicolon or block outside brackets.
        let (start, mut depth) = (at, 0);
        while let Some(token) = text(at) {
            at += 1;
            match token {
                "(" | "[" | "{" => depth += 1,
                ")" | "]" => depth -= 1,
                "}" => {
                    depth -= 1;
                    if depth == 0 {
                        // A `use` list in braces is followed by a semicolon.
                        at += usize::from(text(at) == Some(";"));
                        break;
                    }
                }
                ";" if depth == 0 => break,
                _ => {}
            }
        }
        let item: Vec<&str> = tokens[start..at].iter().map(|token| token.text.as_str()).collect();
        if let [.., "mod", name, ";"] = item[..] {
            files.push(name.to_owned());
        }
    }
    (kept, files)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        tokens(&without_comments(text)).into_iter().map(|token| token.text).collect()
    }

    #[test]
    fn comments_and_literals_are_left_out_and_lines_keep_their_numbers() {
        let text = "a // crate::b\n/* c /* d */\n e */ f \"g\\\" crate::h\" 'i' '\\'' r#\"j\" k\"# l<'m>(br\"n\")";
        assert_eq!(words(text), ["a", "f", "l", "<", "'", "m", ">", "(", "b", ")"]);
        let found = tokens(&without_comments(text));
        assert_eq!(found.iter().find(|token| token.text == "f").expect("f").line, 3);
    }

    #[test]
    fn items_of_tests_are_left_out() {
        let text = "a; #[cfg(test)] mod tests { mod b { } c } d; #[cfg(test)]\nmod helpers; #[cfg(test)] use e::{f}; g";
        let (kept, files) = without_tests(tokens(&without_comments(text)));
        let kept: Vec<String> = kept.into_iter().map(|token| token.text).collect();
        assert_eq!(kept, ["a", ";", "d", ";", "g"]);
        assert_eq!(files, ["helpers"]);
    }
}
