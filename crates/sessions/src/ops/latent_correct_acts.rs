//! `latent_correct_acts`: activations in examples that the model answers correctly.

use super::batch::{AnalysisBatch, OpContext};
use super::spec::{BuiltinOp, Field, Needs, OpSpec};
use crate::table::{Column, DataType};
use pellucid_models::Result;
use std::borrow::Cow;

pub(super) static OP: BuiltinOp = BuiltinOp {
    spec: OpSpec {
        name: Cow::Borrowed("latent_correct_acts"),
        aliases: &["sae_correct_acts"],
        version: Cow::Borrowed("1"),
        about: Cow::Borrowed("activation of each active latent where the logit difference is positive, else absent"),
        inputs: Cow::Borrowed(&[
            Field::example("logit_diffs", DataType::Float32),
            Field::memory("cache"),
            Field::latent("activation", DataType::Float32),
        ]),
        outputs: Cow::Borrowed(&[Field::latent("correct_activations", DataType::OptionalFloat32)]),
        needs: Needs { saes: true, gradients: false },
    },
    run: store_correct_acts,
};

/// Stores the activations of examples with a positive logit difference.
pub(super) fn store_correct_acts(context: &OpContext<'_>, batch: &mut AnalysisBatch) -> Result<()> {
    let differences = batch.example_floats("logit_diffs")?;
    let values = batch
        .latent_rows(context)?
        .into_iter()
        .map(|(example, hook, latent)| (differences[example] > 0.0).then(|| batch.memory.cache[hook][example][latent]));
    let column = Column::OptionalFloat32(values.collect());
    batch.set_latent("correct_activations", column)
}
