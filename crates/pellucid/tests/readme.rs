//! The README's Rust example is the example program, and prints what the README says.

use pellucid::{GenerateOptions, Model, Plan, Tap};

const README: &str = include_str!("../../../README.md");
const PROGRAM: &str = include_str!("../examples/look_and_change.rs");

#[test]
fn the_readme_shows_the_example_program() {
    let shown = &PROGRAM[PROGRAM.find("use pellucid::").expect("the first line")..];
    assert!(README.contains(shown), "README.md shows another program than examples/look_and_change.rs");
    assert!(shown.lines().count() <= 20 && !shown.contains("json"), "the example is short, and plans are built");
}

#[test]
fn the_readme_shows_what_the_example_program_prints() {
    let model = Model::builtin().expect("the built-in model");
    let prompts = ["Tom saw a dog. The", "Lily saw a bird. The"];
    let patch = Plan::of([Tap::set("layers.0.resid_post").from_row(0).rows([1]).positions(3)]);
    for plan in [Plan::default(), patch] {
        let options = GenerateOptions { max_new: 8, ..GenerateOptions::default() };
        let generation = model.generate(&prompts, &plan, options).expect("a generation");
        let line = format!("    {:?}\n", generation.rows[1].text);
        assert!(README.contains(&line), "README.md lacks {line}");
    }
}
