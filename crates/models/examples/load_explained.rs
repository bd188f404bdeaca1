//! Loads a model and says how: which strategy took it, what was read under another name, where the tokenizer came from.
//!
//!     cargo run --release -p pellucid-models --example load_explained -- PATH

use pellucid_models::{LoadOptions, LoadedModel, load_tokenizer, strategies};
use std::path::PathBuf;

fn main() -> Result<(), pellucid_models::Error> {
    let path = PathBuf::from(std::env::args().nth(1).unwrap_or_else(|| "crates/models/builtin".into()));
    let options = LoadOptions::default();
    let mut said = String::new();
    for attempt in strategies(&path, &options) {
        said += &format!("{attempt}\n");
    }
    let loaded = LoadedModel::open(&path, &options, &mut |_| {})?;
    for repair in &loaded.repairs {
        said += &format!("{repair}\n");
    }
    let tokenizer = load_tokenizer(&path)?;
    said += &format!(
        "{} loaded by its {}, tokenizer from {}\n",
        loaded.name,
        loaded.strategy,
        tokenizer.origin().display()
    );
    std::io::Write::write_all(&mut std::io::stdout(), said.as_bytes()).map_err(pellucid_models::Error::io("stdout"))
}
