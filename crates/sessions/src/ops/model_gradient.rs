//! `model_gradient` and `gradient_attribution`: gradients of the logit difference at latents.

use super::alive::store_alive;
use super::answers::AnswerRow;
use super::batch::{AnalysisBatch, OpContext};
use super::forward::{capture_latents, first_rows, mask_pads, splices, store_logits};
use super::latent_correct_acts::store_correct_acts;
use super::logit_diffs::store_scores;
use super::spec::{BuiltinOp, Field, Needs, OpSpec};
use crate::table::{Column, DataType};
use pellucid_engine::plan::{Combine, Expr, ValueId};
use pellucid_engine::{Capture, Plan, Run, Tap};
use pellucid_models::Result;
use std::borrow::Cow;

/// Tokens of a pass: the backward pass keeps activations of all of them.
const PASS_TOKENS: usize = 256;

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
    let mut logits = Vec::with_capacity(rows.len());
    let mut cache: Vec<Vec<Vec<f32>>> = vec![Vec::new(); context.hooks.len()];
    let mut grad_cache = cache.clone();
    for rows in passes(&rows) {
        let mut captures = differentiate(context, rows, &labels)?.captures.into_iter();
        logits.extend(captures.by_ref().take(rows.len()));
        let examples = first_rows(rows).count();
        for own in &mut cache {
            own.extend(captures.by_ref().take(examples).map(|capture| capture.array.values().to_vec()));
        }
        for own in &mut grad_cache {
            let gradients: Vec<Capture> = captures.by_ref().take(rows.len()).collect();
            own.extend(first_rows(rows).map(|(_, row)| sum_of_example(rows, &gradients, row.example)));
        }
    }
    store_logits(batch, &rows, &logits)?;
    (batch.memory.cache, batch.memory.grad_cache) = (cache, grad_cache);
    store_scores(context, batch)
}

/// Splits the rows of a batch, between examples, into passes of at most [`PASS_TOKENS`] tokens.
fn passes(rows: &[AnswerRow]) -> impl Iterator<Item = &[AnswerRow]> {
    let mut rest = rows;
    std::iter::from_fn(move || {
        let (mut taken, mut tokens) = (0, 0);
        for example in rest.chunk_by(|a, b| a.example == b.example) {
            tokens += example.iter().map(|row| row.tokens.len()).sum::<usize>();
            if taken > 0 && tokens > PASS_TOKENS {
                break;
            }
            taken += example.len();
        }
        let (pass, others) = rest.split_at(taken);
        rest = others;
        (!pass.is_empty()).then_some(pass)
    })
}

/// Runs rows forward and backward. Captures the logits of each row, the latents of each
/// autoencoder and example, and the gradients of each autoencoder and row.
fn differentiate(context: &OpContext<'_>, rows: &[AnswerRow], labels: &[usize]) -> Result<Run> {
    let mut plan = splices(context);
    plan.taps.extend(mask_pads(rows));
    plan.taps.extend(rows.iter().enumerate().map(|(index, row)| row.capture_logits(index)));
    plan.taps.extend(capture_latents(context, rows));
    for hook in context.hooks {
        for (index, row) in rows.iter().enumerate() {
            plan.taps.push(Tap::capture(hook.acts()).rows([index]).positions(row.first as i64).of_gradient(0));
        }
    }
    add_metric(&mut plan, context, rows, labels);
    let tokens: Vec<Vec<u32>> = rows.iter().map(|row| row.tokens.clone()).collect();
    Ok(context.model.model.run(&tokens, &plan, &context.run_options())?)
}

/// Sums the gradients of an example's rows, which share the latents at its answer position.
fn sum_of_example(rows: &[AnswerRow], gradients: &[Capture], example: usize) -> Vec<f32> {
    let mut sum = Vec::new();
    for (_, gradient) in rows.iter().zip(gradients).filter(|(row, _)| row.example == example) {
        let values = gradient.array.values();
        sum.resize(values.len(), 0.0);
        sum.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
    }
    sum
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
