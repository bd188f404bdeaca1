//! Loads a model and prints the strategy, the name variants of its weights, and the origin of its
//! tokenizer.
//!
//!     cargo run --release -p pellucid-models --example load_explained -- PATH

use pellucid_models::{LoadOptions, LoadedModel, load_tokenizer, strategies};
use std::path::PathBuf;

fn main() -> Result<(), pellucid_models::Error> {
    let path = PathBuf::from(std::env::args().nth(1).unwrap_or_else(|| "crates/models/builtin".into()));
    let options = LoadOptions::default();
    let mut report = String::new();
    for attempt in strategies(&path, &options) {
        report += &format!("{attempt}\n");
    }
    let loaded = LoadedModel::open(&path, &options, &mut |_| {})?;
    for variant in &loaded.name_variants {
        report += &format!("{variant}\n");
    }
    let tokenizer = load_tokenizer(&path)?;
    report += &format!(
        "{} loaded by its {}, tokenizer from {}\n",
        loaded.name,
        loaded.strategy,
        tokenizer.origin().display()
    );
    std::io::Write::write_all(&mut std::io::stdout(), report.as_bytes()).map_err(pellucid_models::Error::io("stdout"))
}
