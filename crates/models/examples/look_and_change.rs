//! Look into a model and change what it computes: `cargo run --release -p pellucid-models --example look_and_change`.
#![allow(clippy::print_stdout)] // printing is what an example is for

use pellucid_engine::{Action, GenerateOptions, Plan, Positions, RunOptions, Tap};
use pellucid_models::{LoadOptions, LoadedModel};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let loaded = LoadedModel::builtin(&LoadOptions::default())?;
    let rows = [loaded.encode("Tom saw a dog. The")?, loaded.encode("Lily saw a bird. The")?];

    // Look: the stream after every layer, at the last position of each row.
    let look = Tap::new("layers.*.resid_post", Action::Capture(None)).positions(Positions::Last);
    let run = loaded.model.run(&rows, &Plan::default().with(look), &RunOptions::default())?;
    for capture in &run.captures {
        let length = capture.array.values().iter().map(|x| x * x).sum::<f32>().sqrt();
        println!("row {} {} {:?} has length {length:.1}", capture.row, capture.site, capture.array.shape());
    }

    // Change: where row 1 reads " bird", it gets what row 0 made of " dog".
    let patch = Plan::from_json(
        r#"{"taps": [{"site": "layers.0.resid_post", "rows": [1], "positions": [3], "set": {"from": {"rows": [0]}}}]}"#,
    )?;
    let options = GenerateOptions { max_new: 8, eos: loaded.eos.clone(), ..GenerateOptions::default() };
    for plan in [Plan::default(), patch] {
        let generation = loaded.generate(&rows, &plan, &options, &[], &mut |_row, _token, _text| {})?;
        for row in &generation.rows {
            println!("{:?}", loaded.text(&row.tokens, row.finish, &[]).unwrap_or_default());
        }
    }
    Ok(())
}
