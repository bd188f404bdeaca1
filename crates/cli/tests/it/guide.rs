//! The commands in the documentation print what the pages show.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Printed after the output of each command.
const END_OF_OUTPUT: &str = "--- end of output ---";

/// `cp -r A B` replaces `B`, so that several blocks of a page can reuse a name.
const PRELUDE: &str = r#"exec 2>&1
cp() { if [ "$1" = -r ]; then rm -rf "${@: -1}"; fi; command cp "$@"; }
"#;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The `console` blocks of a page, each a list of commands with the output that the page shows.
fn consoles(page: &str) -> Vec<Vec<(&str, String)>> {
    let blocks = page.split("```console\n").skip(1).filter_map(|rest| rest.split("```").next());
    blocks
        .map(|block| {
            let mut commands: Vec<(&str, String)> = Vec::new();
            for line in block.lines() {
                match (line.strip_prefix("$ "), commands.last_mut()) {
                    (Some(command), _) => commands.push((command, String::new())),
                    (None, Some((_, shown))) => *shown += &format!("{line}\n"),
                    (None, None) => panic!("a console block starts with a command: {line}"),
                }
            }
            commands
        })
        .collect()
}

/// Runs the commands of a block in one shell and returns the output of each, stdout and stderr
/// together.
fn run(dir: &Path, commands: &[(&str, String)]) -> Vec<String> {
    let mut script = PRELUDE.to_owned();
    for (command, _) in commands {
        // `(exit …)` restores the status of the command for a following `echo $?`.
        script += &format!("{command}\nstatus=$?\necho '{END_OF_OUTPUT}'\n(exit $status)\n");
    }
    let binaries = Path::new(env!("CARGO_BIN_EXE_pellucid")).parent().expect("the binary's directory");
    let path = format!("{}:{}", binaries.display(), std::env::var("PATH").unwrap_or_default());
    let mut bash = Command::new("bash");
    bash.arg("-c").arg(script).current_dir(dir).env("PATH", path).env("NO_COLOR", "1").env("PELLUCID_CACHE", dir);
    let output = bash.output().expect("bash");
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    printed.split(&format!("{END_OF_OUTPUT}\n")).map(String::from).collect()
}

/// Whether two lines have the same words, and numbers that agree up to rounding.
fn alike(shown: &str, printed: &str) -> bool {
    let number = |word: &str| word.trim_end_matches(['%', ',']).parse::<f64>().ok();
    let pairs = shown.split_whitespace().zip(printed.split_whitespace());
    let mut same = pairs.map(|(a, b)| match (number(a), number(b)) {
        (Some(x), Some(y)) => (x - y).abs() <= 2e-3 * x.abs().max(1.0),
        _ => a == b,
    });
    shown.split_whitespace().count() == printed.split_whitespace().count() && same.all(|same| same)
}

/// Runs every command of a page and compares its output with the page. The page has at least
/// `least` commands.
fn check_page(page: &str, least: usize) {
    let text = std::fs::read_to_string(root().join(page)).expect("the page");
    let consoles = consoles(&text);
    let count: usize = consoles.iter().map(Vec::len).sum();
    assert!(count >= least, "{page} has only {count} commands");
    // The commands of a page share a directory in which the repository's paths work and new files
    // may be written.
    let dir = tempfile::tempdir().expect("a directory");
    for name in ["crates", "docs", "examples", "tests"] {
        std::os::unix::fs::symlink(root().join(name).canonicalize().expect("a path"), dir.path().join(name))
            .expect("a link");
    }
    // The estimated time of a plan depends on the machine.
    let lines = |text: &str| -> Vec<String> {
        let lines = text.lines().map(|line| line.trim_end().to_owned());
        lines.filter(|line| !line.is_empty() && !line.starts_with("time:")).collect()
    };
    let mut problems = Vec::new();
    for commands in consoles {
        for ((command, shown), printed) in commands.iter().zip(run(dir.path(), &commands)) {
            let (shown, printed) = (lines(shown), lines(&printed));
            let same = shown.len() == printed.len() && shown.iter().zip(&printed).all(|(a, b)| alike(a, b));
            if !same {
                problems.push(format!("$ {command}\nshown: {shown:#?}\nprinted: {printed:#?}"));
            }
        }
    }
    assert!(problems.is_empty(), "{page} differs from the program's output:\n{}", problems.join("\n"));
}

#[test]
fn the_readme_shows_what_is_printed() {
    check_page("README.md", 6);
}

#[test]
fn the_guide_to_plans_shows_what_is_printed() {
    check_page("docs/plans.md", 25);
}

#[test]
fn the_page_for_coding_agents_shows_what_is_printed() {
    check_page("AGENTS.md", 5);
}

#[test]
fn the_guide_to_errors_shows_what_is_printed() {
    check_page("docs/errors.md", 40);
}

#[test]
fn the_guide_to_steering_shows_what_is_printed() {
    check_page("docs/steering.md", 8);
}

#[test]
fn the_guides_to_models_show_what_is_printed() {
    check_page("docs/models.md", 5);
    check_page("docs/inspect.md", 4);
    check_page("docs/loading.md", 3);
}

#[test]
fn the_guide_to_autoencoders_shows_what_is_printed() {
    check_page("docs/saes.md", 5);
}

#[test]
fn the_guide_to_evaluation_shows_what_is_printed() {
    check_page("docs/eval.md", 3);
}

#[test]
fn the_guide_to_batching_shows_what_is_printed() {
    check_page("docs/batching.md", 8);
}

#[test]
fn the_guide_to_sessions_shows_what_is_printed() {
    check_page("docs/sessions.md", 12);
}
