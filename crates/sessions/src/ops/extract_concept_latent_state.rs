//! `extract_concept_latent_state`: the state of each example at the answer position.

use super::answers::AnswerRow;
use super::batch::{AnalysisBatch, OpContext};
use super::forward::{first_rows, mask_pads};
use super::spec::{BuiltinOp, Field, Needs, OpSpec};
use crate::table::{Column, DataType};
use pellucid_engine::{Plan, Point, Tap};
use pellucid_models::{Error, Result};
use std::borrow::Cow;

pub(super) static OP: BuiltinOp = BuiltinOp {
    spec: OpSpec {
        name: Cow::Borrowed("extract_concept_latent_state"),
        aliases: &[],
        version: Cow::Borrowed("1"),
        about: Cow::Borrowed(
            "state at the answer position of `concept.site`, projected onto that of a context position",
        ),
        inputs: Cow::Borrowed(&[Field::memory("input")]),
        outputs: Cow::Borrowed(&[Field::example("concept_state", DataType::Float32List)]),
        needs: Needs { saes: false, gradients: false },
    },
    run,
};

fn run(context: &OpContext<'_>, batch: &mut AnalysisBatch) -> Result<()> {
    let config = context.options.concept.clone().unwrap_or_default();
    let site = config.site.clone().unwrap_or_else(|| default_site(context));
    let rows = AnswerRow::of_batch(context);
    let mut plan = Plan::of(mask_pads(&rows));
    for (index, row) in first_rows(&rows) {
        let capture = || Tap::capture(site.clone()).rows([index]);
        plan.taps.push(capture().positions(row.first as i64));
        if let Some(position) = config.context_position {
            let length = context.examples[row.example].tokens.len();
            let offset = if position < 0 { length as i64 } else { context.examples[row.example].pads as i64 };
            plan.taps.push(capture().positions(position + offset));
        }
    }
    let tokens: Vec<Vec<u32>> = rows.iter().map(|row| row.tokens.clone()).collect();
    let run = context.model.model.run(&tokens, &plan, &context.run_options())?;
    let each = if config.context_position.is_some() { 2 } else { 1 };
    if run.captures.len() != each * context.examples.len() {
        return Err(Error::usage(format!("`concept.site` {site:?} names several sites"), "name one site"));
    }
    let state = |captures: &[pellucid_engine::Capture]| match captures {
        [state, onto] => project(state.array.values(), onto.array.values()),
        [state, ..] => state.array.values().to_vec(),
        [] => Vec::new(),
    };
    let states = run.captures.chunks(each).map(state).collect();
    batch.set_example("concept_state", Column::Float32List(states))
}

/// The input of the unembedding.
fn default_site(context: &OpContext<'_>) -> String {
    let architecture = context.model.model.program().architecture();
    match architecture.final_norm {
        Some(_) => Point::FinalNorm.name().to_string(),
        None => format!("layers.{}.resid_post", architecture.layers.len() - 1),
    }
}

/// `(h·c / c·c) c`
fn project(state: &[f32], onto: &[f32]) -> Vec<f32> {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    let along = dot(state, onto) / dot(onto, onto).max(f64::MIN_POSITIVE);
    onto.iter().map(|x| (along * f64::from(*x)) as f32).collect()
}
