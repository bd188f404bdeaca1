//! `model_ablation` and `ablation_attribution`: one active latent at the answer position set to
//! zero.
//!
//! Only the answer position changes, so each ablation is a branch: the pass starts at the
//! autoencoder, with one token and the KV cache of the spliced run before it. A latent that is not
//! active changes nothing, so only active ones run.

use super::answers::{AnswerRow, Scores};
use super::batch::{AnalysisBatch, OpContext};
use super::forward::spliced_base;
use super::spec::{BuiltinOp, Field, Needs, OpSpec};
use crate::table::{Column, DataType};
use pellucid_engine::{Base, Plan, Tap};
use pellucid_models::Result;
use std::borrow::Cow;

/// Ablations per call: bounds the memory of their logits.
const MAX_BRANCHES: usize = 128;

pub(super) static ABLATION: BuiltinOp = BuiltinOp {
    spec: OpSpec {
        name: Cow::Borrowed("model_ablation"),
        aliases: &[],
        version: Cow::Borrowed("1"),
        about: Cow::Borrowed("scores of the labels with one active latent at the answer position set to zero"),
        inputs: Cow::Borrowed(&[
            Field::memory("input"),
            Field::memory("labels"),
            Field::latent("activation", DataType::Float32),
        ]),
        outputs: Cow::Borrowed(&[
            Field::latent("answer_logits", DataType::Float32List),
            Field::latent("loss", DataType::Float32),
        ]),
        needs: Needs { saes: true, gradients: false },
    },
    run: run_ablation,
};

pub(super) static ATTRIBUTION: BuiltinOp = BuiltinOp {
    spec: OpSpec {
        name: Cow::Borrowed("ablation_attribution"),
        aliases: &[],
        version: Cow::Borrowed("1"),
        about: Cow::Borrowed("logit difference before minus after the ablation, where it is positive after; else 0"),
        inputs: Cow::Borrowed(&[
            Field::example("logit_diffs", DataType::Float32),
            Field::latent("activation", DataType::Float32),
            Field::latent("answer_logits", DataType::Float32List),
        ]),
        outputs: Cow::Borrowed(&[
            Field::latent("attribution_values", DataType::Float32),
            Field::latent("logit_diffs", DataType::Float32),
            Field::latent("preds", DataType::Int64),
        ]),
        needs: Needs { saes: true, gradients: false },
    },
    run: run_attribution,
};

fn run_ablation(context: &OpContext<'_>, batch: &mut AnalysisBatch) -> Result<()> {
    let (rows, ablations) = (AnswerRow::of_batch(context), batch.latent_rows(context)?);
    let mut bases = std::mem::take(&mut batch.memory.bases);
    if bases.len() != rows.len() {
        bases = rows.iter().map(|row| spliced_base(context, row)).collect::<Result<_>>()?;
    }
    let (mut scores, mut start) = (Vec::with_capacity(ablations.len()), 0);
    for (index, example) in context.examples.iter().enumerate() {
        let own = ablations[start..].iter().take_while(|(example, ..)| *example == index).count();
        let own = &ablations[start..start + own];
        start += own.len();
        let answers: Vec<(&AnswerRow, &Base)> =
            rows.iter().zip(&bases).filter(|(row, _)| row.example == index).collect();
        for chunk in own.chunks(MAX_BRANCHES) {
            let mut logits = Vec::with_capacity(answers.len());
            for (row, base) in &answers {
                let plans: Vec<Plan> =
                    chunk.iter().map(|&(_, hook, latent)| ablate(context, row, hook, latent)).collect();
                logits.push(base.branches(&plans)?);
            }
            for branch in 0..chunk.len() {
                let rows = answers.iter().zip(&logits);
                let rows = rows.map(|((row, _), runs)| (*row, runs[branch].captures[0].array.values()));
                scores.push(Scores::new(rows, example, context.answer));
            }
        }
    }
    batch.set_latent("loss", Column::Float32(scores.iter().map(|scores| scores.loss).collect()))?;
    batch.set_latent("answer_logits", Column::Float32List(scores.into_iter().map(|scores| scores.labels).collect()))
}

/// The plan of a branch: one latent at the answer position set to zero.
fn ablate(context: &OpContext<'_>, row: &AnswerRow, hook: usize, latent: usize) -> Plan {
    let zero = Tap::zero(context.hooks[hook].acts()).units([latent]).positions(row.first as i64);
    Plan::of([zero, row.capture_logits(0)])
}

fn run_attribution(context: &OpContext<'_>, batch: &mut AnalysisBatch) -> Result<()> {
    let (labels, before) = (context.labels()?, batch.example_floats("logit_diffs")?);
    let rows = batch.latent_rows(context)?;
    let Some(Column::Float32List(answers)) = batch.latents.get("answer_logits") else { return Ok(()) };
    let scores = answers.iter().map(|labels| Scores { labels: labels.clone(), loss: 0.0 });
    let (mut effects, mut differences, mut predictions) = (Vec::new(), Vec::new(), Vec::new());
    for ((example, ..), scores) in rows.into_iter().zip(scores) {
        let after = scores.difference(labels[example]);
        effects.push(if after > 0.0 { before[example] - after } else { 0.0 });
        differences.push(after);
        predictions.push(scores.prediction() as i64);
    }
    batch.set_latent("attribution_values", Column::Float32(effects))?;
    batch.set_latent("logit_diffs", Column::Float32(differences))?;
    batch.set_latent("preds", Column::Int64(predictions))
}
