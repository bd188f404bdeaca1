//! `extract_concept_latent_examples`: the group and weight of each state.

use super::batch::{AnalysisBatch, OpContext};
use super::spec::{BuiltinOp, Field, Needs, OpSpec};
use crate::config::ConceptWeight;
use crate::table::{Column, DataType};
use pellucid_models::Result;
use std::borrow::Cow;

pub(super) static OP: BuiltinOp = BuiltinOp {
    spec: OpSpec {
        name: Cow::Borrowed("extract_concept_latent_examples"),
        aliases: &[],
        version: Cow::Borrowed("1"),
        about: Cow::Borrowed(
            "group (the label) and weight of each state; −1 and 0 where the logit difference is not positive",
        ),
        inputs: Cow::Borrowed(&[
            Field::example("concept_state", DataType::Float32List),
            Field::example("logit_diffs", DataType::Float32),
            Field::example("orig_labels", DataType::Int64),
        ]),
        outputs: Cow::Borrowed(&[
            Field::example("concept_group", DataType::Int64),
            Field::example("concept_weight", DataType::Float32),
        ]),
        needs: Needs { saes: false, gradients: false },
    },
    run,
};

fn run(context: &OpContext<'_>, batch: &mut AnalysisBatch) -> Result<()> {
    let weight = context.options.concept.as_ref().and_then(|concept| concept.weight).unwrap_or_default();
    let (labels, differences) = (context.labels()?, batch.example_floats("logit_diffs")?.to_vec());
    let group = |(&label, &difference): (&usize, &f32)| if difference > 0.0 { label as i64 } else { -1 };
    let groups = labels.iter().zip(&differences).map(group).collect();
    let weigh = |&difference: &f32| match weight {
        _ if difference <= 0.0 => 0.0,
        ConceptWeight::One => 1.0,
        ConceptWeight::LogitDiff => difference.abs(),
    };
    let weights = differences.iter().map(weigh).collect();
    batch.set_example("concept_group", Column::Int64(groups))?;
    batch.set_example("concept_weight", Column::Float32(weights))
}
