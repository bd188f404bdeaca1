//! Dense arrays of latents: one row per example, one column per latent.

use super::Store;
use crate::table::Column;
use pellucid_models::{Result, output};
use safetensors::{Dtype, View};
use std::borrow::Cow;
use std::path::Path;

/// A dense array `[examples, latents]`.
#[derive(Clone, Debug, PartialEq)]
pub struct DenseArray {
    /// Such as `attribution_values/layers.9.z`.
    pub name: String,
    /// Rows and columns.
    pub shape: [usize; 2],
    /// The elements; 0 for latents that are not active.
    pub values: Vec<f32>,
}

/// The columns that become dense arrays.
const COLUMNS: [&str; 3] = ["activation", "correct_activations", "attribution_values"];

/// Returns the dense arrays of a store, one for each autoencoder and column of latents.
/// `correct_activations` has one row for each example with a positive logit difference.
pub fn dense_arrays(store: &Store) -> Result<Vec<DenseArray>> {
    let mut arrays = Vec::new();
    for name in COLUMNS.iter().filter(|name| store.has("latents", name)) {
        let column = store.column("latents", name)?;
        for sae in &store.manifest().saes {
            arrays.push(dense(store, name, &column, &sae.site, sae.n_latents)?);
        }
    }
    Ok(arrays)
}

fn dense(store: &Store, name: &str, column: &Column, hook: &str, n_latents: usize) -> Result<DenseArray> {
    let read = |name| store.column("latents", name);
    let (examples, hooks, latents) = (read("example")?, read("hook")?, read("latent")?);
    let rows: Vec<Option<usize>> = if *name == *"correct_activations" {
        let differences = store.column("examples", "logit_diffs")?;
        let mut next = 0..;
        let number = |&difference: &f32| if difference > 0.0 { next.next() } else { None };
        differences.floats().unwrap_or_default().iter().map(number).collect()
    } else {
        (0..store.rows("examples")).map(Some).collect()
    };
    let count = rows.iter().flatten().count();
    let mut values = vec![0.0; count * n_latents];
    let keys = examples.integers().unwrap_or_default().iter().zip(hooks.texts().unwrap_or_default());
    for (index, ((&example, own), &latent)) in keys.zip(latents.integers().unwrap_or_default()).enumerate() {
        let value = match column {
            Column::Float32(all) => all.get(index).copied(),
            Column::OptionalFloat32(all) => all.get(index).copied().flatten(),
            _ => None,
        };
        let row = usize::try_from(example).ok().and_then(|example| rows.get(example).copied().flatten());
        let latent = usize::try_from(latent).ok().filter(|&latent| latent < n_latents);
        if let (true, Some(row), Some(latent), Some(value)) = (own == hook, row, latent, value) {
            values[row * n_latents + latent] = value;
        }
    }
    Ok(DenseArray { name: format!("{name}/{hook}"), shape: [count, n_latents], values })
}

/// Writes dense arrays as a safetensors file.
pub(super) fn write_arrays(path: &Path, arrays: &[DenseArray]) -> Result<()> {
    let views = arrays.iter().map(|array| (array.name.clone(), array));
    output::write_tensors(path, views.collect(), None).map_err(|error| output::error(path, &error))
}

impl View for &DenseArray {
    fn dtype(&self) -> Dtype {
        Dtype::F32
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Owned(self.values.iter().flat_map(|value| value.to_le_bytes()).collect())
    }

    fn data_len(&self) -> usize {
        4 * self.values.len()
    }
}
