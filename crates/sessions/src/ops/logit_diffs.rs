//! `logit_diffs` and `logit_diffs_cache`: scores of the labels, their difference and the loss.

use super::answers::{AnswerRow, Scores};
use super::batch::{AnalysisBatch, OpContext};
use super::spec::{BuiltinOp, Field, Needs, OpSpec};
use crate::table::{Column, DataType};
use pellucid_models::Result;
use std::borrow::Cow;

const INPUTS: &[Field] = &[
    Field::memory("input"),
    Field::example("label_ids", DataType::Int64),
    Field::example("orig_labels", DataType::Int64),
    Field::example("answer_logits", DataType::Float32List),
    Field::example("answer_indices", DataType::Int64),
];

/// The columns of [`store_scores`].
pub(super) const OUTPUTS: &[Field] = &[
    Field::example("loss", DataType::Float32),
    Field::example("logit_diffs", DataType::Float32),
    Field::example("preds", DataType::Int64),
    Field::example("answer_logits", DataType::Float32List),
];

pub(super) static PLAIN: BuiltinOp = BuiltinOp {
    spec: OpSpec {
        name: Cow::Borrowed("logit_diffs"),
        aliases: &[],
        version: Cow::Borrowed("1"),
        about: Cow::Borrowed("score of the correct label minus that of the other, prediction and cross-entropy"),
        inputs: Cow::Borrowed(INPUTS),
        outputs: Cow::Borrowed(OUTPUTS),
        needs: Needs { saes: false, gradients: false },
    },
    run: store_scores,
};

pub(super) static WITH_CACHE: BuiltinOp = BuiltinOp {
    spec: OpSpec {
        name: Cow::Borrowed("logit_diffs_cache"),
        aliases: &[],
        version: Cow::Borrowed("1"),
        about: Cow::Borrowed("logit_diffs after a forward pass that cached latents"),
        inputs: Cow::Borrowed(&[
            Field::memory("input"),
            Field::memory("cache"),
            Field::example("label_ids", DataType::Int64),
            Field::example("orig_labels", DataType::Int64),
            Field::example("answer_logits", DataType::Float32List),
            Field::example("answer_indices", DataType::Int64),
        ]),
        outputs: Cow::Borrowed(OUTPUTS),
        needs: Needs { saes: false, gradients: false },
    },
    run: store_scores,
};

/// Scores the labels of each example from the logits in memory and stores the results.
pub(super) fn store_scores(context: &OpContext<'_>, batch: &mut AnalysisBatch) -> Result<()> {
    let (rows, labels) = (AnswerRow::of_batch(context), context.labels()?);
    let scores: Vec<Scores> = context
        .examples
        .iter()
        .enumerate()
        .map(|(index, example)| {
            let own = rows.iter().zip(&batch.memory.logits).filter(|(row, _)| row.example == index);
            Scores::new(own.map(|(row, logits)| (row, logits.as_slice())), example, context.answer)
        })
        .collect();
    let pairs = || scores.iter().zip(&labels);
    batch.set_example("loss", Column::Float32(scores.iter().map(|scores| scores.loss).collect()))?;
    let differences = pairs().map(|(scores, &label)| scores.difference(label)).collect();
    batch.set_example("logit_diffs", Column::Float32(differences))?;
    batch.set_example("preds", Column::Int64(scores.iter().map(|scores| scores.prediction() as i64).collect()))?;
    batch.set_example("answer_logits", Column::Float32List(scores.into_iter().map(|scores| scores.labels).collect()))
}
