//! Forecast of a load, from configuration and headers alone.
//!
//! A server that loads models on demand lists them before they are loaded, and frees memory for
//! one that does not fit.

use crate::adapter::Adapter;
use crate::error::Result;
use crate::load::{LoadOptions, find_weights};
use crate::model::check_environment;
use crate::select_family::select_family;
use std::collections::BTreeMap;
use std::path::Path;

/// A model as its files describe it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forecast {
    /// The family that reads it.
    pub family: String,
    /// Number of layers.
    pub layers: usize,
    /// The most positions that a row may have.
    pub context: Option<usize>,
    /// Storage formats of the weights in memory that hold at least a tenth of their bytes, largest
    /// first, as in `Q4_K + Q6_K`.
    pub storage: String,
    /// Bytes of the weights in memory.
    pub weight_bytes: usize,
}

/// Predicts the load of a directory, an adapter's directory, a GGUF file or (if `path` is absent)
/// the built-in model.
///
/// # Errors
/// Those of the load, as far as configuration, tokenizer and headers show them.
pub fn forecast(path: Option<&Path>, options: &LoadOptions) -> Result<Forecast> {
    check_environment()?;
    let selected = select_family(path, options.assume.as_deref())?;
    let found = || {
        selected.read_text_parts()?;
        let (adapters, tensors) = (Adapter::open_all(&selected.adapters(&options.adapters))?, selected.tensors()?);
        Ok(find_weights(&selected.family, &tensors, &adapters, selected.source.origin())?
            .sizes(&tensors, options.storage))
    };
    let sizes = found().map_err(|error| selected.failure(error))?;
    let weight_bytes = sizes.iter().fold(0usize, |sum, (_, bytes)| sum.saturating_add(*bytes));
    let mut formats: BTreeMap<&str, usize> = BTreeMap::new();
    sizes.iter().for_each(|(format, bytes)| *formats.entry(format).or_default() += bytes);
    let mut formats: Vec<(&str, usize)> =
        formats.into_iter().filter(|(_, bytes)| bytes.saturating_mul(10) >= weight_bytes).collect();
    formats.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    let architecture = &selected.family.architecture;
    Ok(Forecast {
        family: architecture.family.clone(),
        layers: architecture.layers.len(),
        context: architecture.context,
        storage: formats.into_iter().map(|(format, _)| format).collect::<Vec<_>>().join(" + "),
        weight_bytes,
    })
}
