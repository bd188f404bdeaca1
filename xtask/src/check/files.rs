//! Checks source files: at most 600 lines, and declared by a module. A test file that `main.rs`
//! does not declare would never run.

use std::path::{Path, PathBuf};
use std::process::Command;

const MAX_LINES: usize = 600;

/// Reports source files that are too long or not declared by a module.
pub fn check(root: &Path) -> Result<Vec<String>, String> {
    let mut problems = Vec::new();
    for file in tracked(root, &["*.rs", "*.py"])? {
        let text = std::fs::read_to_string(root.join(&file)).map_err(|error| format!("{}: {error}", file.display()))?;
        problems.extend(too_long(&file, &text));
        if file.extension().is_some_and(|extension| extension == "rs") {
            problems.extend(not_declared(root, &file));
        }
    }
    Ok(problems)
}

/// Reports avoided words in sources and pages (see `words.rs`).
pub fn check_language(root: &Path) -> Result<Vec<String>, String> {
    let mut problems = Vec::new();
    for file in tracked(root, &["*.rs", "*.py", "*.pyi", "*.md"])? {
        let text = std::fs::read_to_string(root.join(&file)).map_err(|error| format!("{}: {error}", file.display()))?;
        problems.extend(super::words::check(&file, &text));
    }
    Ok(problems)
}

/// Returns the files of some patterns that git tracks or would add, relative to the root.
fn tracked(root: &Path, patterns: &[&str]) -> Result<Vec<PathBuf>, String> {
    let arguments = ["ls-files", "--cached", "--others", "--exclude-standard", "--"];
    let output = Command::new("git").args(arguments).args(patterns).current_dir(root).output();
    let output = output.map_err(|error| format!("git: {error}"))?;
    if !output.status.success() {
        return Err(format!("git ls-files: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    let files = String::from_utf8_lossy(&output.stdout).lines().map(PathBuf::from).collect::<Vec<_>>();
    // A removed file stays listed until the removal is committed.
    Ok(files.into_iter().filter(|file| root.join(file).exists()).collect())
}

fn too_long(file: &Path, text: &str) -> Option<String> {
    let lines = text.lines().count();
    (lines > MAX_LINES).then(|| format!("{}: {lines} lines, more than {MAX_LINES}; split it", file.display()))
}

/// Reports a file below `src/`, or below a directory of `tests/`, that no module declares.
fn not_declared(root: &Path, file: &Path) -> Option<String> {
    let parts: Vec<String> = file.iter().map(|part| part.to_string_lossy().into_owned()).collect();
    // Files directly in `tests/`, `examples/`, `benches/` and `src/bin/` are separate programs.
    let tops = |top: &String| top == "src" || top == "tests";
    let top = parts.iter().position(tops)?;
    let inside = &parts[top + 1..];
    let programs = parts[top] == "tests" && inside.len() == 1 || inside[0] == "bin";
    let stem = file.file_stem()?.to_string_lossy().into_owned();
    let in_root = inside.len() == if parts[top] == "tests" { 2 } else { 1 };
    if programs || in_root && ["lib", "main"].contains(&stem.as_str()) {
        return None;
    }
    // `plan/mod.rs` is declared next to `plan/`, other files in their own directory.
    let directory = file.parent()?;
    let (name, directory) = match stem.as_str() {
        "mod" => (directory.file_name()?.to_string_lossy().into_owned(), directory.parent()?),
        _ => (stem, directory),
    };
    let sibling = directory.with_extension("rs");
    let parents = ["mod.rs", "lib.rs", "main.rs"].map(|parent| directory.join(parent)).into_iter().chain([sibling]);
    let names = |parent: PathBuf| {
        let text = std::fs::read_to_string(root.join(parent)).unwrap_or_default();
        let text = super::source::without_comments(&text);
        text.contains(&format!("mod {name};"))
    };
    (!parents.into_iter().any(names))
        .then(|| format!("{}: no module declares it, so it is never compiled", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_files_are_refused() {
        let file = Path::new("crates/a/src/lib.rs");
        assert_eq!(too_long(file, &"a\n".repeat(600)), None);
        assert!(too_long(file, &"a\n".repeat(601)).is_some_and(|problem| problem.contains("601 lines")));
    }

    #[test]
    fn a_file_that_no_module_declares_is_found() {
        let root = std::env::temp_dir().join(format!("xtask-files-{}", std::process::id()));
        let write = |file: &str, text: &str| {
            std::fs::create_dir_all(root.join(file).parent().expect("a parent")).expect("created");
            std::fs::write(root.join(file), text).expect("written");
        };
        write("a/src/lib.rs", "mod plan;\n// mod lost;\n");
        write("a/src/plan/mod.rs", "mod json;");
        write("a/tests/it/main.rs", "mod rows;");
        let lost = |file: &str| not_declared(&root, Path::new(file)).is_some();
        for named in
            ["a/src/lib.rs", "a/src/plan/mod.rs", "a/src/plan/json.rs", "a/tests/it/main.rs", "a/tests/it/rows.rs"]
        {
            assert!(!lost(named), "{named}");
        }
        for program in ["a/tests/alone.rs", "a/src/bin/tool.rs", "a/examples/show.rs"] {
            assert!(!lost(program), "{program}");
        }
        for forgotten in ["a/src/lost.rs", "a/src/plan/lost.rs", "a/tests/it/lost.rs"] {
            assert!(lost(forgotten), "{forgotten}");
        }
        std::fs::remove_dir_all(root).expect("removed");
    }
}
