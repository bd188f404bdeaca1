//! Finds dependency cycles between the top-level modules of a crate, except those in `allowed.rs`.
//!
//! A module depends on another if one of its files names it: by `crate::other`, by a `super::` path
//! that reaches the root, or by a name that the crate root re-exports from it. Comments and tests
//! do not count.

use super::allowed::{ALLOWED, Allowed};
use super::imports::{reexports, root_names};
use super::source::{Token, tokens, without_comments, without_tests};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Module dependencies of a crate: `(from, to)` and the first location that names it.
type Graph = BTreeMap<(String, String), String>;

/// Reports the cycles of all crates.
pub fn check(root: &Path) -> Result<Vec<String>, String> {
    let mut problems = Vec::new();
    for source in crates(root)? {
        let name = crate_name(root, &source);
        let allowed: Vec<&Allowed> = ALLOWED.iter().filter(|allowed| allowed.crate_name == name).collect();
        problems.extend(problems_of(&name, &graph(&source)?, &allowed));
    }
    Ok(problems)
}

/// Returns the source directories of the crates.
fn crates(root: &Path) -> Result<Vec<PathBuf>, String> {
    let mut found = vec![root.join("python"), root.join("xtask")];
    let entries = std::fs::read_dir(root.join("crates")).map_err(|error| format!("crates: {error}"))?;
    found.extend(entries.flatten().map(|entry| entry.path()));
    let mut found: Vec<PathBuf> = found.iter().map(|path| path.join("src")).filter(|path| path.is_dir()).collect();
    found.sort();
    Ok(found)
}

/// Returns the crate's name: `engine` for `crates/engine/src`.
fn crate_name(root: &Path, source: &Path) -> String {
    let path = source.parent().unwrap_or(source);
    let path = path.strip_prefix(root).unwrap_or(path);
    path.strip_prefix("crates").unwrap_or(path).display().to_string()
}

fn problems_of(name: &str, graph: &Graph, allowed: &[&Allowed]) -> Vec<String> {
    let edge = |allowed: &Allowed| (allowed.from.to_owned(), allowed.to.to_owned());
    let graph_without = |left_out: &[(String, String)]| -> Graph {
        graph.iter().filter(|(edge, _)| !left_out.contains(edge)).map(|(a, b)| (a.clone(), b.clone())).collect()
    };
    let edges: Vec<(String, String)> = allowed.iter().map(|allowed| edge(allowed)).collect();
    let mut problems: Vec<String> =
        cycles(&graph_without(&edges)).iter().map(|cycle| describe(name, graph, cycle)).collect();
    for ((from, to), because) in edges.iter().zip(allowed.iter().map(|allowed| allowed.because)) {
        let others: Vec<(String, String)> = edges.iter().filter(|(a, b)| (a, b) != (from, to)).cloned().collect();
        let rest = graph_without(&others);
        if !rest.contains_key(&(from.clone(), to.clone())) || path_between(&rest, to, from).is_none() {
            problems.push(format!(
                "{name}: `{from}` → `{to}` no longer closes a cycle ({because}); remove it from xtask/src/check/allowed.rs"
            ));
        }
    }
    problems
}

fn describe(name: &str, graph: &Graph, cycle: &[String]) -> String {
    let mut text = format!("{name}: module cycle:");
    for (from, to) in cycle.iter().zip(cycle.iter().cycle().skip(1)) {
        text += &format!("\n    `{from}` → `{to}` ({})", graph[&(from.clone(), to.clone())]);
    }
    text
}

/// Returns the dependencies between the top-level modules of a crate.
fn graph(source: &Path) -> Result<Graph, String> {
    let files = rust_files(source)?;
    let module_of = |file: &Path| module_path(source, file).first().cloned();
    let modules: BTreeSet<String> = files.iter().filter_map(|file| module_of(file)).collect();
    let modules: Vec<String> = modules.into_iter().collect();
    let mut read: Vec<(PathBuf, Vec<Token>)> = Vec::new();
    let mut tests: Vec<Vec<String>> = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
        let (tokens, of_tests) = without_tests(tokens(&without_comments(&text)));
        let own = module_path(source, &file);
        tests.extend(of_tests.into_iter().map(|name| [own.clone(), vec![name]].concat()));
        read.push((file, tokens));
    }
    let mut reexported = BTreeMap::new();
    for (_, tokens) in read.iter().filter(|(file, _)| module_path(source, file).is_empty()) {
        reexported.extend(reexports(tokens, &modules));
    }
    let mut graph = Graph::new();
    for (file, tokens) in &read {
        let own = module_path(source, file);
        let Some(from) = own.first() else { continue };
        if tests.iter().any(|test| own.starts_with(test)) {
            continue;
        }
        for named in root_names(tokens, own.len()) {
            let to = if modules.contains(&named.name) { Some(&named.name) } else { reexported.get(&named.name) };
            if let Some(to) = to.filter(|to| *to != from) {
                let location = file.strip_prefix(source).unwrap_or(file);
                let location = format!("{}:{} names `{}`", location.display(), named.line, named.name);
                graph.entry((from.clone(), to.clone())).or_insert(location);
            }
        }
    }
    Ok(graph)
}

/// Returns every Rust file under a directory, sorted.
fn rust_files(directory: &Path) -> Result<Vec<PathBuf>, String> {
    let entries = std::fs::read_dir(directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    let mut found = Vec::new();
    for path in entries.flatten().map(|entry| entry.path()) {
        if path.is_dir() {
            found.extend(rust_files(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// Returns the module path of a file: `["plan", "json"]` for `src/plan/json.rs`, `["plan"]` for
/// `src/plan/mod.rs`, empty for the root.
fn module_path(source: &Path, file: &Path) -> Vec<String> {
    let path = file.strip_prefix(source).unwrap_or(file).with_extension("");
    let mut parts: Vec<String> = path.iter().map(|part| part.to_string_lossy().into_owned()).collect();
    let root = parts.len() == 1 && ["lib", "main"].contains(&parts[0].as_str());
    if root || parts.last().is_some_and(|last| last == "mod") {
        parts.pop();
    }
    parts
}

/// Finds a shortest cycle through each module that lies on one; modules of a cycle already found
/// are not repeated.
fn cycles(graph: &Graph) -> Vec<Vec<String>> {
    let nodes: BTreeSet<&String> = graph.keys().flat_map(|(from, to)| [from, to]).collect();
    let (mut found, mut done): (Vec<Vec<String>>, BTreeSet<String>) = (Vec::new(), BTreeSet::new());
    for node in nodes {
        if done.contains(node) {
            continue;
        }
        let next = graph.keys().filter(|(from, _)| from == node);
        let paths = next.filter_map(|(_, to)| path_between(graph, to, node));
        if let Some(shortest) = paths.min_by_key(Vec::len) {
            let cycle: Vec<String> = [vec![node.clone()], shortest[..shortest.len() - 1].to_vec()].concat();
            done.extend(cycle.iter().cloned());
            found.push(cycle);
        }
    }
    found
}

/// Returns a shortest dependency path between two modules, both included.
fn path_between(graph: &Graph, from: &str, to: &str) -> Option<Vec<String>> {
    let mut paths = vec![vec![from.to_owned()]];
    let mut seen = BTreeSet::from([from.to_owned()]);
    while !paths.is_empty() {
        let mut longer = Vec::new();
        for path in paths {
            let last = path.last()?;
            if last == to {
                return Some(path);
            }
            for (_, next) in graph.keys().filter(|(from, _)| from == last) {
                if seen.insert(next.clone()) {
                    longer.push([path.clone(), vec![next.clone()]].concat());
                }
            }
        }
        paths = longer;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A temporary crate, deleted on drop.
    struct TempCrate(PathBuf);

    impl TempCrate {
        fn new(name: &str, files: &[(&str, &str)]) -> TempCrate {
            let root = std::env::temp_dir().join(format!("xtask-cycles-{}-{name}", std::process::id()));
            for (file, text) in files {
                let file = root.join(file);
                std::fs::create_dir_all(file.parent().expect("a parent")).expect("created");
                std::fs::write(file, text).expect("written");
            }
            TempCrate(root)
        }

        fn problems(&self, allowed: &[&Allowed]) -> Vec<String> {
            problems_of("made", &graph(&self.0).expect("read"), allowed)
        }
    }

    impl Drop for TempCrate {
        fn drop(&mut self) {
            std::fs::remove_dir_all(&self.0).expect("removed");
        }
    }

    const BACK: Allowed = Allowed { crate_name: "made", from: "b", to: "a", because: "a test" };

    #[test]
    fn a_cycle_is_found_and_reported_with_file_and_line() {
        let krate = TempCrate::new(
            "cycle",
            &[
                ("lib.rs", "mod a; mod b; mod c; mod error; pub use error::Error;"),
                ("a.rs", "use crate::{b::B, Error};"),
                ("b/mod.rs", "mod inner;"),
                ("b/inner.rs", "\nfn f(x: super::super::c::C) {}"),
                ("c.rs", "use crate::a;"),
                ("error.rs", ""),
            ],
        );
        let problems = krate.problems(&[]);
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert!(problems[0].contains("`a` → `b` (a.rs:1 names `b`)"), "{problems:?}");
        assert!(problems[0].contains("`b` → `c` (b/inner.rs:2 names `c`)"), "{problems:?}");
    }

    #[test]
    fn a_name_reexported_by_the_root_counts_as_its_module() {
        let files = [
            ("lib.rs", "mod a; mod error; pub use error::Error;"),
            ("a.rs", "use crate::Error;"),
            ("error.rs", "use crate::a::A;"),
        ];
        assert_eq!(TempCrate::new("root", &files).problems(&[]).len(), 1);
    }

    #[test]
    fn comments_and_tests_are_no_dependencies() {
        let files = [
            ("lib.rs", "mod a; mod b;"),
            ("a.rs", "use crate::b::B;"),
            (
                "b/mod.rs",
                "// use crate::a;\n/* crate::a */ #[cfg(test)] mod tests; #[cfg(test)] mod more { use crate::a; }",
            ),
            ("b/tests.rs", "use crate::a;"),
        ];
        assert_eq!(TempCrate::new("comments", &files).problems(&[]), [""; 0]);
    }

    #[test]
    fn an_allowed_dependency_is_ignored_and_must_still_be_needed() {
        let cycle = [("lib.rs", "mod a; mod b;"), ("a.rs", "use crate::b;"), ("b.rs", "use crate::a;")];
        assert_eq!(TempCrate::new("allowed", &cycle).problems(&[&BACK]), [""; 0]);
        let straight = [("lib.rs", "mod a; mod b;"), ("a.rs", "use crate::b;"), ("b.rs", "")];
        let problems = TempCrate::new("stale", &straight).problems(&[&BACK]);
        assert!(problems.len() == 1 && problems[0].contains("remove it"), "{problems:?}");
    }
}
