//! `model_gradient` and `gradient_attribution`: gradients of the logit difference at latents.

use super::alive::store_alive;
use super::answers::AnswerRow;
use super::batch::{AnalysisBatch, OpContext};
use super::forward::{by_hook, capture_latents, first_rows, mask_pads, splices, store_logits};
use super::latent_correct_acts::store_correct_acts;
use super::logit_diffs::store_scores;
use super::spec::{BuiltinOp, Field, Needs, OpSpec};
use crate::table::{Column, DataType};
use pellucid_engine::plan::{Combine, Expr, ValueId};
use pellucid_engine::{Plan, Tap};
use pellucid_models::Result;
use std::borrow::Cow;

pub(super) static GRADIENT: BuiltinOp = BuiltinOp {
    spec: OpSpec {
        name: Cow::Borrowed("model_gradient"),
        aliases: &[],
        version: Cow::Borrowed("1"),
        about: Cow::Borrowed("logit_diffs with autoencoders spliced in, and the gradient of their sum at each latent"),
        inputs: Cow::Borrowed(&[
            Field::memory("input"),
            Field::memory("labels"),
            Field::example("label_ids", DataType::Int64),
            Field::example("orig_labels", DataType::Int64),
        ]),
        outputs: Cow::Borrowed(&[
            Field::example("loss", DataType::Float32),
            Field::example("logit_diffs", DataType::Float32),
            Field::example("preds", DataType::Int64),
            Field::example("answer_logits", DataType::Float32List),
            Field::example("answer_indices", DataType::Int64),
            Field::memory("cache"),
            Field::memory("grad_cache"),
        ]),
        needs: Needs { saes: true, gradients: true },
    },
    run: run_gradient,
};

pub(super) static ATTRIBUTION: BuiltinOp = BuiltinOp {
    spec: OpSpec {
        name: Cow::Borrowed("gradient_attribution"),
        aliases: &[],
        version: Cow::Borrowed("1"),
        about: Cow::Borrowed("activation times gradient of each active latent (attribution patching against zero)"),
        inputs: Cow::Borrowed(&[
            Field::memory("cache"),
            Field::memory("grad_cache"),
            Field::example("logit_diffs", DataType::Float32),
        ]),
        outputs: Cow::Borrowed(&[
            Field::latent("activation", DataType::Float32),
            Field::latent("attribution_values", DataType::Float32),
            Field::latent("correct_activations", DataType::OptionalFloat32),
        ]),
        needs: Needs { saes: true, gradients: true },
    },
    run: run_attribution,
};

fn run_gradient(context: &OpContext<'_>, batch: &mut AnalysisBatch) -> Result<()> {
    let (rows, labels) = (AnswerRow::of_batch(context), context.labels()?);
    let mut plan = splices(context);
    plan.taps.extend(mask_pads(&rows));
    let own = plan.taps.len();
    plan.taps.extend(rows.iter().enumerate().map(|(index, row)| row.capture_logits(index)));
    plan.taps.extend(capture_latents(context, &rows));
    let captured = plan.taps.len() - own;
    for hook in context.hooks {
        for (index, row) in rows.iter().enumerate() {
            plan.taps.push(Tap::capture(hook.acts()).rows([index]).positions(row.first as i64).of_gradient(0));
        }
    }
    add_metric(&mut plan, context, &rows, &labels);
    let tokens: Vec<Vec<u32>> = rows.iter().map(|row| row.tokens.clone()).collect();
    let run = context.model.model.run(&tokens, &plan, &context.run_options())?;
    let (values, gradients) = run.captures.split_at(captured);
    let (logits, latents) = values.split_at(rows.len());
    store_logits(batch, &rows, logits)?;
    batch.memory.cache = by_hook(context, latents);
    // An example may have several rows, which share the latents at its answer position.
    let sum_of = |own: &[pellucid_engine::Capture], example: usize| {
        let mut sum = Vec::new();
        for (_, gradient) in rows.iter().zip(own).filter(|(row, _)| row.example == example) {
            let values = gradient.array.values();
            sum.resize(values.len(), 0.0);
            sum.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
        }
        sum
    };
    let examples = || first_rows(&rows).map(|(_, row)| row.example);
    batch.memory.grad_cache =
        gradients.chunks(rows.len()).map(|own| examples().map(|example| sum_of(own, example)).collect()).collect();
    store_scores(context, batch)
}

/// Adds the sum of the logit differences of all examples as the metric of a plan.
fn add_metric(plan: &mut Plan, context: &OpContext<'_>, rows: &[AnswerRow], labels: &[usize]) {
    let mut scores: Vec<Vec<(usize, ValueId)>> = vec![Vec::new(); context.examples.len()];
    for (index, row) in rows.iter().enumerate() {
        let more = row.add_scores(plan, index, context.answer);
        scores[row.example].extend(more);
    }
    let mut total: Option<ValueId> = None;
    for (scores, &label) in scores.iter().zip(labels) {
        let (mut correct, mut best): (Option<ValueId>, Option<ValueId>) = (None, None);
        for &(own, score) in scores {
            if own == label {
                correct = Some(score);
            } else {
                best = Some(best.map_or(score, |best| plan.value(Expr::Combine(Combine::Max, best, score))));
            }
        }
        let (Some(correct), Some(best)) = (correct, best) else { continue };
        let difference = plan.value(Expr::Combine(Combine::Sub, correct, best));
        total = Some(total.map_or(difference, |total| plan.value(Expr::Combine(Combine::Add, total, difference))));
    }
    if let Some(total) = total {
        plan.add_metric(total);
    }
}

fn run_attribution(context: &OpContext<'_>, batch: &mut AnalysisBatch) -> Result<()> {
    store_alive(context, batch)?;
    let memory = &batch.memory;
    let values = batch
        .latent_rows(context)?
        .into_iter()
        .map(|(example, hook, latent)| memory.grad_cache[hook][example][latent] * memory.cache[hook][example][latent]);
    let column = Column::Float32(values.collect());
    batch.set_latent("attribution_values", column)?;
    store_correct_acts(context, batch)
}
