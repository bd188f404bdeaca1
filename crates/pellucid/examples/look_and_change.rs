//! Look into a model and change what it computes:
//! `cargo run --release -p pellucid --example look_and_change`.
#![allow(clippy::print_stdout)] // printing is what an example is for

use pellucid::{GenerateOptions, Plan, Tap};

fn main() -> Result<(), pellucid::Error> {
    let model = pellucid::load("builtin")?;
    let prompts = ["Tom saw a dog. The", "Lily saw a bird. The"];
    // Look: the residual stream after every layer, at the last position of each row.
    let look = Plan::of([Tap::capture("layers.*.resid_post").last()]);
    for capture in &model.run(&prompts, &look)?.captures {
        println!("row {}, {}: {:?}", capture.row, capture.site, capture.array.shape());
    }
    // Change: at " bird" in row 1, write the residual stream that row 0 has at " dog".
    let patch = Plan::of([Tap::set("layers.0.resid_post").from_row(0).rows([1]).positions(3)]);
    for plan in [Plan::default(), patch] {
        let generation = model.generate(&prompts, &plan, GenerateOptions { max_new: 8, ..Default::default() })?;
        println!("{:?}", generation.rows[1].text);
    }
    Ok(())
}
