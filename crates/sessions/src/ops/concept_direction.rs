//! `concept_direction`: a unit vector for a concept, the same for every example.

use super::batch::{AnalysisBatch, OpContext};
use super::spec::{BuiltinOp, Field, Needs, OpSpec};
use crate::table::{Column, DataType};
use pellucid_models::Result;
use std::borrow::Cow;

/// Name of the op, by which a session knows that it needs a concept.
pub(crate) const NAME: &str = "concept_direction";

pub(super) static OP: BuiltinOp = BuiltinOp {
    spec: OpSpec {
        name: Cow::Borrowed(NAME),
        aliases: &[],
        version: Cow::Borrowed("1"),
        about: Cow::Borrowed("unit vector of the concept: mean_difference, paired_rejection or single_group"),
        inputs: Cow::Borrowed(&[Field::memory("input")]),
        outputs: Cow::Borrowed(&[Field::example(NAME, DataType::Float32List)]),
        needs: Needs { saes: false, gradients: false },
    },
    run,
};

fn run(context: &OpContext<'_>, batch: &mut AnalysisBatch) -> Result<()> {
    let direction = &context.concept()?.direction;
    batch.set_example(NAME, Column::Float32List(vec![direction.clone(); context.examples.len()]))
}
