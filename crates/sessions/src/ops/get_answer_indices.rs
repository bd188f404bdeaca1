//! `get_answer_indices`: the position whose logits answer a prompt.

use super::batch::{AnalysisBatch, OpContext};
use super::spec::{BuiltinOp, Field, Needs, OpSpec};
use crate::table::{Column, DataType};
use pellucid_models::Result;
use std::borrow::Cow;

pub(super) static OP: BuiltinOp = BuiltinOp {
    spec: OpSpec {
        name: Cow::Borrowed("get_answer_indices"),
        aliases: &[],
        version: Cow::Borrowed("1"),
        about: Cow::Borrowed("position of the last token of the prompt; rows are not padded"),
        inputs: Cow::Borrowed(&[Field::memory("input")]),
        outputs: Cow::Borrowed(&[Field::example("answer_indices", DataType::Int64)]),
        needs: Needs { saes: false, gradients: false },
    },
    run,
};

fn run(context: &OpContext<'_>, batch: &mut AnalysisBatch) -> Result<()> {
    let last = context.examples.iter().map(|example| example.tokens.len() as i64 - 1).collect();
    batch.set_example("answer_indices", Column::Int64(last))
}
