//! `model_fwd_intervention`: a forward pass with the answer position edited along a concept.

use super::answers::AnswerRow;
use super::batch::{AnalysisBatch, OpContext};
use super::concept::Concept;
use super::forward::{mask_pads, store_logits};
use super::spec::{BuiltinOp, Field, Needs, OpSpec};
use crate::config::InterventionMode;
use crate::table::DataType;
use pellucid_engine::{Plan, Tap};
use pellucid_models::{Error, Result};
use std::borrow::Cow;

pub(super) static OP: BuiltinOp = BuiltinOp {
    spec: OpSpec {
        name: Cow::Borrowed("model_fwd_intervention"),
        aliases: &[],
        version: Cow::Borrowed("1"),
        about: Cow::Borrowed(
            "logits with the answer position edited along the concept: replace, add, project or patch",
        ),
        inputs: Cow::Borrowed(&[Field::memory("input"), Field::example("concept_direction", DataType::Float32List)]),
        outputs: Cow::Borrowed(&[
            Field::example("answer_logits", DataType::Float32List),
            Field::example("answer_indices", DataType::Int64),
        ]),
        needs: Needs { saes: false, gradients: false },
    },
    run,
};

fn run(context: &OpContext<'_>, batch: &mut AnalysisBatch) -> Result<()> {
    let rows = AnswerRow::of_batch(context);
    let mut plan = Plan::of(mask_pads(&rows));
    for (index, row) in rows.iter().enumerate() {
        let edits = edits(context)?;
        plan.taps.extend(edits.into_iter().map(|tap| tap.rows([index]).positions(row.first as i64)));
    }
    plan.taps.extend(rows.iter().enumerate().map(|(index, row)| row.capture_logits(index)));
    let tokens: Vec<Vec<u32>> = rows.iter().map(|row| row.tokens.clone()).collect();
    let run = context.model.model.run(&tokens, &plan, &context.run_options())?;
    store_logits(batch, &rows, &run.captures)
}

/// The edits of one row, without their selection.
fn edits(context: &OpContext<'_>) -> Result<Vec<Tap>> {
    let config = context.options.intervention.clone().unwrap_or_default();
    if config.sites.is_empty() {
        return Err(Error::usage(
            "the session names no sites to edit",
            "set `intervention.sites`, such as [\"layers.3.resid_post\"]",
        ));
    }
    let (concept, scale) = (context.concept()?, config.scale.unwrap_or(1.0));
    let vector = concept.direction.clone();
    let tap = |site: &String| match config.mode.unwrap_or_default() {
        InterventionMode::Replace => Ok(Tap::set(site).with(vector.clone())),
        InterventionMode::Add => Ok(Tap::add(site).times(scale).with(vector.clone())),
        InterventionMode::Project => Ok(project(site, vector.clone(), scale)),
        InterventionMode::Patch => patch(site, concept, scale),
    };
    config.sites.iter().map(tap).collect()
}

fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
}

/// `s (h·v / v·v) v`
fn project(site: &str, v: Vec<f32>, scale: f32) -> Tap {
    Tap::call(site, move |rows| {
        for h in rows.iter_mut().flat_map(|row| row.values.chunks_exact_mut(v.len())) {
            let along = f64::from(scale) * dot(h, &v) / dot(&v, &v);
            h.iter_mut().zip(&v).for_each(|(h, v)| *h = (along * f64::from(*v)) as f32);
        }
    })
}

/// `h + V (s swap(c) − c)` with `c = pinv(V) h`: the coefficients of both means are exchanged.
fn patch(site: &str, concept: &Concept, scale: f32) -> Result<Tap> {
    let [a, b] = &concept.means[..] else {
        return Err(Error::usage(
            "`patch` exchanges two groups, but the concept has one",
            "give group B of the concept",
        ));
    };
    let (a, b) = (a.clone(), b.clone());
    let (aa, ab, bb) = (dot(&a, &a), dot(&a, &b), dot(&b, &b));
    let determinant = aa * bb - ab * ab;
    if determinant < 1e-8 * aa * bb {
        return Err(Error::usage("the means of both groups have the same direction", "choose other groups"));
    }
    Ok(Tap::call(site, move |rows| {
        for h in rows.iter_mut().flat_map(|row| row.values.chunks_exact_mut(a.len())) {
            let (ha, hb) = (dot(h, &a), dot(h, &b));
            let (first, second) = ((bb * ha - ab * hb) / determinant, (aa * hb - ab * ha) / determinant);
            let s = f64::from(scale);
            let (to_a, to_b) = (s * second - first, s * first - second);
            for ((h, a), b) in h.iter_mut().zip(&a).zip(&b) {
                *h = (f64::from(*h) + to_a * f64::from(*a) + to_b * f64::from(*b)) as f32;
            }
        }
    }))
}
