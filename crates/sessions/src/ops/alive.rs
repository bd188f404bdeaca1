//! `get_alive_latents`: the latents that are active at the answer position.

use super::batch::{AnalysisBatch, OpContext};
use super::spec::{BuiltinOp, Field, Needs, OpSpec};
use crate::table::{Column, DataType, Table};
use pellucid_models::Result;
use std::borrow::Cow;

pub(super) static OP: BuiltinOp = BuiltinOp {
    spec: OpSpec {
        name: Cow::Borrowed("get_alive_latents"),
        aliases: &["get_alive_features"],
        version: Cow::Borrowed("1"),
        about: Cow::Borrowed("latents with a positive activation at the answer position, ascending"),
        inputs: Cow::Borrowed(&[Field::memory("cache")]),
        outputs: Cow::Borrowed(&[Field::latent("activation", DataType::Float32)]),
        needs: Needs { saes: true, gradients: false },
    },
    run: store_alive,
};

/// Makes the table of latents: one row for each example, autoencoder and latent whose activation is
/// positive.
pub(super) fn store_alive(context: &OpContext<'_>, batch: &mut AnalysisBatch) -> Result<()> {
    let (mut examples, mut batches, mut hooks, mut latents, mut values) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for (index, example) in context.examples.iter().enumerate() {
        for (hook, cache) in context.hooks.iter().zip(&batch.memory.cache) {
            let name = hook.name();
            for (latent, &value) in cache[index].iter().enumerate().filter(|(_, value)| **value > 0.0) {
                examples.push(example.index as i64);
                batches.push(example.batch as i64);
                hooks.push(name.clone());
                latents.push(latent as i64);
                values.push(value);
            }
        }
    }
    batch.latents = Table::default();
    batch.set_latent("example", Column::Int64(examples))?;
    batch.set_latent("batch", Column::Int64(batches))?;
    batch.set_latent("hook", Column::Text(hooks))?;
    batch.set_latent("latent", Column::Int64(latents))?;
    batch.set_latent("activation", Column::Float32(values))
}
