//! `labels_to_ids`: the token of the correct label.

use super::batch::{AnalysisBatch, OpContext};
use super::spec::{BuiltinOp, Field, Needs, OpSpec};
use crate::table::{Column, DataType};
use pellucid_models::Result;
use std::borrow::Cow;

pub(super) static OP: BuiltinOp = BuiltinOp {
    spec: OpSpec {
        name: Cow::Borrowed("labels_to_ids"),
        aliases: &[],
        version: Cow::Borrowed("1"),
        about: Cow::Borrowed("token of the correct label, the first of several"),
        inputs: Cow::Borrowed(&[Field::memory("labels")]),
        outputs: Cow::Borrowed(&[
            Field::example("label_ids", DataType::Int64),
            Field::example("orig_labels", DataType::Int64),
        ]),
        needs: Needs { saes: false, gradients: false },
    },
    run,
};

fn run(context: &OpContext<'_>, batch: &mut AnalysisBatch) -> Result<()> {
    let labels = context.labels()?;
    let token = |(index, &label): (usize, &usize)| i64::from(context.examples[index].labels[label][0]);
    batch.set_example("label_ids", Column::Int64(labels.iter().enumerate().map(token).collect()))?;
    batch.set_example("orig_labels", Column::Int64(labels.iter().map(|&label| label as i64).collect()))
}
