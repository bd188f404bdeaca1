//! Checks the language of comments, messages and pages: words that the style rules of
//! CONTRIBUTING.md replace, and comments wider than 100 columns.

use std::path::Path;

/// Widest comment line.
const MAX_COLUMNS: usize = 100;

/// Words to avoid, each with its replacement. Compared without regard to case, as whole words.
const WORDS: &[(&str, &str)] = &[
    ("somebody", "name the actor: the caller, the plan, a tap, an op, a thread"),
    ("nobody", "name the actor: no tap, no caller"),
    ("whoever", "name the actor"),
    ("anew", "again"),
    ("rightly", "correctly"),
    ("elsehow", "otherwise"),
    ("no number", "NaN"),
    ("taken apart", "unfused"),
    ("way back", "backward pass"),
    ("walk back", "backward pass"),
    ("likeliest", "most likely, top"),
    ("quantised", "quantized"),
    ("normalise", "normalize"),
    ("normalised", "normalized"),
    ("colour", "color"),
    ("behaviour", "behavior"),
    ("neighbour", "neighbor"),
    ("recognise", "recognize"),
    ("optimise", "optimize"),
];

/// Files that quote the words: the style rules, this list, and names of golden cases.
const EXEMPT: &[&str] = &["CONTRIBUTING.md", "xtask/src/check/words.rs", "tests/golden/more.py"];

/// Reports avoided words in a file, and comments that are too wide.
pub fn check(file: &Path, text: &str) -> Vec<String> {
    if EXEMPT.iter().any(|exempt| file.ends_with(exempt)) {
        return Vec::new();
    }
    let is_rust = file.extension().is_some_and(|extension| extension == "rs");
    let (mut problems, mut in_code) = (Vec::new(), false);
    for (index, line) in text.lines().enumerate() {
        let mut report = |problem: String| problems.push(format!("{}:{}: {problem}", file.display(), index + 1));
        let lower = line.to_lowercase();
        for (word, instead) in WORDS.iter().filter(|(word, _)| contains_word(&lower, word)) {
            report(format!("`{word}`: write {instead}"));
        }
        let comment = line.trim_start().trim_start_matches(['/', '!']).trim_start();
        in_code ^= comment.starts_with("```");
        // Code examples, tables and addresses cannot be wrapped.
        let is_prose = !in_code && !comment.starts_with(['|', '#']) && !line.contains("://");
        let columns = line.chars().count();
        if is_rust && is_prose && line.trim_start().starts_with("//") && columns > MAX_COLUMNS {
            report(format!("a comment of {columns} columns, more than {MAX_COLUMNS}"));
        }
    }
    problems
}

/// Whether a text contains a word or phrase. Parts of identifiers, paths and hyphenated names do
/// not count: they may be fixed by data.
fn contains_word(text: &str, word: &str) -> bool {
    let is_part = |character: Option<char>| character.is_some_and(|c| c.is_alphanumeric() || "_/-".contains(c));
    text.match_indices(word)
        .any(|(at, _)| !is_part(text[..at].chars().next_back()) && !is_part(text[at + word.len()..].chars().next()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(file: &str, text: &str) -> usize {
        check(Path::new(file), text).len()
    }

    #[test]
    fn avoided_words_are_found_as_whole_words() {
        assert_eq!(found("a.md", "Nobody reads it.\nWhat is no number stays."), 2);
        assert_eq!(found("a.rs", "// it is renewed"), 0, "`anew` is not a word of it");
        assert_eq!(found("a.py", "cases = 'tests/golden/quantised'"), 0, "paths keep their names");
        assert_eq!(found("CONTRIBUTING.md", "not: nobody"), 0);
    }

    #[test]
    fn wide_comments_are_found_in_rust() {
        let wide = format!("    /// {}", "word ".repeat(20));
        assert_eq!((found("a.rs", &wide), found("a.md", &wide)), (1, 0));
        assert_eq!(found("a.rs", &format!("let x = \"{}\";", "a".repeat(110))), 0, "code may be wider");
    }
}
