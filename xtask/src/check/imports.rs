//! Finds paths in a crate's files that start at its root: `crate::…`, and `super::…` that reaches
//! the root.

use super::source::Token;
use std::collections::BTreeMap;

/// A name directly under the crate root, and the line that uses it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RootName {
    pub name: String,
    pub line: usize,
}

/// Returns the names directly under the root that a file uses. `depth` is the length of the file's
/// module path.
pub fn root_names(tokens: &[Token], depth: usize) -> Vec<RootName> {
    let text = |at: usize| tokens.get(at).map_or("", |token| token.text.as_str());
    let mut found = Vec::new();
    // Brace depths at which inline modules start.
    let (mut braces, mut inner): (usize, Vec<usize>) = (0, Vec::new());
    let mut at = 0;
    while at < tokens.len() {
        match text(at) {
            "{" => {
                if at >= 2 && text(at - 2) == "mod" {
                    inner.push(braces);
                }
                braces += 1;
            }
            "}" => {
                braces = braces.saturating_sub(1);
                if inner.last() == Some(&braces) {
                    inner.pop();
                }
            }
            "crate" if text(at + 1) == "::" => found.extend(heads(tokens, at + 2)),
            "super" => {
                let mut up = 1;
                while text(at + 1) == "::" && text(at + 2) == "super" {
                    (up, at) = (up + 1, at + 2);
                }
                if text(at + 1) == "::" && up == depth + inner.len() {
                    found.extend(heads(tokens, at + 2));
                }
            }
            _ => {}
        }
        at += 1;
    }
    found
}

/// Returns the first names of the paths that start at a token: one, or those of a group in braces.
fn heads(tokens: &[Token], at: usize) -> Vec<RootName> {
    let name = |token: &Token| RootName { name: token.text.clone(), line: token.line };
    match tokens.get(at) {
        Some(token) if token.text == "{" => {
            let (mut found, mut depth, mut first) = (Vec::new(), 0, true);
            for token in &tokens[at..] {
                match token.text.as_str() {
                    "{" => depth += 1,
                    "}" => depth -= 1,
                    "," => {}
                    _ if depth == 1 && first => found.push(name(token)),
                    _ => {}
                }
                first = matches!(token.text.as_str(), "{" | ",") && depth == 1;
                if depth == 0 {
                    break;
                }
            }
            found
        }
        Some(token) => vec![name(token)],
        None => Vec::new(),
    }
}

/// Returns the names that a crate root re-exports from its modules: `pub use error::{Error, Result
/// as R};` gives `Error` and `R` of `error`.
pub fn reexports(root: &[Token], modules: &[String]) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut at = 0;
    while at < root.len() {
        if root[at].text == "use" {
            let length = root[at..].iter().position(|token| token.text == ";").unwrap_or(root.len() - at);
            tree(&root[at + 1..at + length], None, modules, &mut found);
            at += length;
        }
        at += 1;
    }
    found
}

/// Collects the last names of a use tree whose first name is a module.
fn tree(tokens: &[Token], module: Option<&str>, modules: &[String], found: &mut BTreeMap<String, String>) {
    let (mut depth, mut start) = (0, 0);
    let mut branches = Vec::new();
    for (at, token) in tokens.iter().enumerate() {
        match token.text.as_str() {
            "{" => depth += 1,
            "}" => depth -= 1,
            "," if depth == 0 => {
                branches.push(&tokens[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    branches.push(&tokens[start..]);
    for branch in branches {
        let mut path = branch.iter().position(|token| token.text == "{").map_or(branch, |at| &branch[..at]);
        while path.first().is_some_and(|token| ["crate", "self", "::"].contains(&token.text.as_str())) {
            path = &path[1..];
        }
        let head = path.first().map(|token| token.text.as_str());
        let module = module.or(head.filter(|head| modules.iter().any(|module| module == head)));
        match branch.iter().position(|token| token.text == "{") {
            Some(at) => tree(&branch[at + 1..branch.len() - 1], module, modules, found),
            None => {
                if let (Some(module), Some(last)) = (module, branch.last()) {
                    found.entry(last.text.clone()).or_insert_with(|| module.to_owned());
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::source::tokens;
    use super::*;

    fn named(text: &str, depth: usize) -> Vec<String> {
        root_names(&tokens(text), depth).into_iter().map(|named| named.name).collect()
    }

    #[test]
    fn paths_from_the_root_are_found() {
        assert_eq!(named("use crate::a::b; fn f() { crate::c::d() }", 1), ["a", "c"]);
        assert_eq!(named("use crate::{a::{b, c}, d, e::f as g};", 1), ["a", "d", "e"]);
        assert_eq!(named("pub(crate) fn f() {}", 1), [""; 0]);
    }

    #[test]
    fn super_paths_count_where_they_reach_the_root() {
        assert_eq!(named("use super::a; use super::super::b; use super::super::{c, d::e};", 2), ["b", "c", "d"]);
        assert_eq!(named("use super::a; mod inner { use super::b; use super::super::c; }", 1), ["a", "c"]);
    }

    #[test]
    fn reexported_names_map_to_their_modules() {
        let root = tokens("mod error; pub use error::{Error, Result as R}; pub use crate::plan::Plan; use std::fs;");
        let found = reexports(&root, &["error".into(), "plan".into()]);
        let expected = [("Error", "error"), ("Plan", "plan"), ("R", "error")];
        assert_eq!(found.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect::<Vec<_>>(), expected);
    }
}
