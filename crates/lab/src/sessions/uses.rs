//! How often test sources refer to a fixture's registered identifier. Comments, texts and imports are no uses.

use super::Fixture;
use std::path::Path;

/// The uses of each fixture in the tests under a directory: files in folders called `tests`, files called `tests.rs`, and what follows
/// `#[cfg(test)]` elsewhere. None where there are no tests.
pub fn count(root: &Path, fixtures: &[&Fixture]) -> Option<Vec<usize>> {
    let mut sources = Vec::new();
    collect(root, false, &mut sources);
    if sources.is_empty() {
        return None;
    }
    let of = |fixture: &&Fixture| sources.iter().map(|code| references(code, fixture.identifier)).sum();
    Some(fixtures.iter().map(of).collect())
}

fn collect(dir: &Path, in_tests: bool, sources: &mut Vec<String>) {
    // A directory that cannot be read holds no tests that could be counted.
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        let name = name.to_string_lossy();
        // What a build leaves behind, and hidden folders, hold no sources of ours; a link could lead in a circle.
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) && !name.starts_with('.') && name != "target" {
            collect(&path, in_tests || name == "tests", sources);
        } else if name.ends_with(".rs")
            && let Ok(text) = std::fs::read_to_string(&path)
        {
            let whole = in_tests || name == "tests.rs";
            let tests = if whole { Some(text.as_str()) } else { text.find("#[cfg(test)]").map(|at| &text[at..]) };
            sources.extend(tests.map(code));
        }
    }
}

/// Rust source without comments, texts, imports and needless white space.
fn code(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(c) = rest.chars().next() {
        let skipped = skipped(rest, out.chars().last());
        if skipped > 0 {
            rest = &rest[skipped..];
            push_space(&mut out);
        } else {
            if c.is_whitespace() {
                push_space(&mut out)
            } else {
                out.push(c)
            }
            rest = &rest[c.len_utf8()..];
        }
    }
    let statements = out.split_inclusive([';', '{', '}']);
    // An import with braces is cut into pieces; what begins with `use` and its pieces end with the next semicolon.
    let (mut kept, mut importing) = (String::with_capacity(out.len()), false);
    for statement in statements {
        let begins = statement.trim_start();
        importing |= begins.starts_with("use ") || begins.starts_with("pub use ");
        if !importing {
            kept.push_str(statement);
        }
        importing &= !statement.ends_with(';');
    }
    tight(&kept)
}

fn push_space(out: &mut String) {
    if !out.ends_with(' ') {
        out.push(' ');
    }
}

/// Without the spaces that do not part two words.
fn tight(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let word = |at: Option<usize>| at.and_then(|at| chars.get(at)).is_some_and(|c| is_word(*c));
    let keeps = |(at, c): &(usize, &char)| **c != ' ' || (word(at.checked_sub(1)) && word(Some(at + 1)));
    chars.iter().enumerate().filter(keeps).map(|(_, c)| c).collect()
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The bytes of a comment, a text or a character that begins here; 0 where none does.
fn skipped(rest: &str, before: Option<char>) -> usize {
    let to = |end: Option<usize>| end.unwrap_or(rest.len());
    if rest.starts_with("//") {
        return to(rest.find('\n'));
    }
    if rest.starts_with("/*") {
        return block_comment(rest);
    }
    let word_before = before.is_some_and(is_word);
    let hashes = rest.strip_prefix('r').map(|raw| raw.len() - raw.trim_start_matches('#').len());
    if let Some(hashes) = hashes.filter(|hashes| !word_before && rest[1 + hashes..].starts_with('"')) {
        let close = format!("\"{}", "#".repeat(hashes));
        let open = 2 + hashes;
        return to(rest[open..].find(&close).map(|at| open + at + close.len()));
    }
    if rest.starts_with('"') {
        return quoted(rest, '"');
    }
    // A lifetime has no closing quote after its first character.
    let mut after = rest.chars().skip(1);
    match (rest.starts_with('\''), after.next(), after.next()) {
        (true, Some('\\'), _) | (true, Some(_), Some('\'')) => quoted(rest, '\''),
        _ => 0,
    }
}

fn block_comment(rest: &str) -> usize {
    let (mut depth, mut at) = (0usize, 0);
    while at < rest.len() {
        let here = &rest.as_bytes()[at..];
        if here.starts_with(b"/*") {
            (depth, at) = (depth + 1, at + 2);
        } else if here.starts_with(b"*/") {
            (depth, at) = (depth - 1, at + 2);
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    rest.len()
}

fn quoted(rest: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in rest.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            c if c == quote => return at + 1,
            _ => {}
        }
    }
    rest.len()
}

/// How often an identifier stands in code, as a whole.
fn references(code: &str, identifier: &str) -> usize {
    let edge =
        |inside: Option<char>, outside: Option<char>| !(inside.is_some_and(is_word) && outside.is_some_and(is_word));
    let whole = |(at, found): &(usize, &str)| {
        edge(found.chars().next(), code[..*at].chars().next_back())
            && edge(found.chars().next_back(), code[at + found.len()..].chars().next())
    };
    code.match_indices(identifier).filter(whole).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_code_counts() {
        let source = r##"
            use pellucid_models::{inspect, program_of};
            // program_of(None) in a comment, and /* program_of */ in another
            /* program_of /* nested */ program_of */
            fn a<'a>(x: &'a str) -> char {
                let text = "program_of(\" program_of"; let raw = r#"program_of "quoted" program_of"#;
                let quote = '"'; let byte = b'\'';
                program_of(None, None); not_program_of(); program_of_it();
                model
                    .generate(&[1]); inspect (path); self::program_of(Some(x));
                Storage::As( DType::F32 ); '"'
            }
        "##;
        let found = code(source);
        assert_eq!(references(&found, "program_of"), 2, "{found}");
        assert_eq!(references(&found, ".generate("), 1, "{found}");
        assert_eq!(references(&found, "inspect("), 1, "{found}");
        assert_eq!(references(&found, "Storage::As(DType::F32)"), 1, "{found}");
    }

    #[test]
    fn broken_sources_end() {
        for source in ["\"", "r#\"", "/*", "'", "'\\", "r", "use a::{b", "//", "é'é"] {
            let _ = code(source);
        }
    }

    #[test]
    fn tests_are_found_where_they_are_and_nowhere_else() {
        let dir = std::env::temp_dir().join(format!("pellucid-uses-{}", std::process::id()));
        let write = |path: &str, text: &str| {
            let path = dir.join(path);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            std::fs::write(path, text).expect("written");
        };
        let pool: Vec<&Fixture> = super::super::registry::FIXTURES.iter().filter(|f| f.name == "thread_pool").collect();
        assert_eq!(count(&dir, &pool), None);
        write("src/lib.rs", "fn f() { Pool::new(1); }\n#[cfg(test)]\nmod tests { fn g() { Pool::new(2); } }");
        write("src/plain.rs", "fn f() { Pool::new(1); }");
        write("src/x/tests.rs", "fn f() { Pool::new(1); }");
        write("tests/deep/mod.rs", "fn f() { Pool::new(1); Pool::new(2); }");
        write("target/tests/old.rs", "fn f() { Pool::new(1); }");
        assert_eq!(count(&dir, &pool), Some(vec![4]));
        std::fs::remove_dir_all(&dir).expect("removed");
    }
}
