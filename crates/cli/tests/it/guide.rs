//! Pages show what the binary prints: the guide to plans, and the page for coding agents.

use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Every command of the guide's consoles, with what stands below it.
fn consoles(guide: &str) -> Vec<(String, String)> {
    let blocks = guide.split("```console\n").skip(1).filter_map(|rest| rest.split("```").next());
    let commands = blocks.flat_map(|block| block.split("$ ").skip(1));
    commands.filter_map(|part| part.split_once('\n')).map(|(line, shown)| (line.into(), shown.into())).collect()
}

/// The words of a command line, without quotes, and how many lines of its output are shown.
fn words(line: &str) -> (Vec<String>, usize) {
    let (command, shown) = line.split_once(" | head -").unwrap_or((line, "1000"));
    let quoted = command.split('"').enumerate();
    let words = quoted.flat_map(|(part, text)| match part % 2 {
        0 => text.split_whitespace().map(String::from).collect(),
        _ => vec![text.to_string()],
    });
    (words.collect(), shown.parse().expect("a number of lines"))
}

/// Whether two lines have the same words, and numbers that round alike on any processor.
fn alike(shown: &str, printed: &str) -> bool {
    let number = |word: &str| word.trim_end_matches(['%', ',']).parse::<f64>().ok();
    let pairs = shown.split_whitespace().zip(printed.split_whitespace());
    let mut same = pairs.map(|(a, b)| match (number(a), number(b)) {
        (Some(x), Some(y)) => (x - y).abs() <= 2e-3 * x.abs().max(1.0),
        _ => a == b,
    });
    shown.split_whitespace().count() == printed.split_whitespace().count() && same.all(|same| same)
}

/// Runs every command of a page, of which there are `least` at least, and compares its output with what the page shows.
fn check_page(page: &str, least: usize) {
    let text = std::fs::read_to_string(root().join(page)).expect("the page");
    let consoles = consoles(&text);
    assert!(consoles.len() >= least, "{page} has only {} commands", consoles.len());
    for (line, shown) in consoles {
        let (words, most) = words(&line);
        let mut command = Command::new(env!("CARGO_BIN_EXE_pellucid"));
        let output = command.args(&words[1..]).current_dir(root()).env("NO_COLOR", "1").output().expect("the binary");
        let printed = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        // How long a plan takes is this machine's own.
        let lines = |text: &str| -> Vec<String> {
            let lines = text.lines().take(most).map(|line| line.trim_end().to_string());
            lines.filter(|line| !line.is_empty() && !line.starts_with("time:")).collect()
        };
        let (shown, printed) = (lines(&shown), lines(&printed));
        let same = shown.len() == printed.len() && shown.iter().zip(&printed).all(|(a, b)| alike(a, b));
        assert!(same, "$ {line}\n{page} shows {shown:#?}\nand this is printed: {printed:#?}");
    }
}

#[test]
fn the_guide_to_plans_shows_what_is_printed() {
    check_page("docs/plans.md", 25);
}

#[test]
fn the_page_for_coding_agents_shows_what_is_printed() {
    check_page("AGENTS.md", 5);
}
