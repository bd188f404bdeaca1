//! Evaluation of a model on tasks: log-likelihoods of choices, of minimal pairs, of targets and of
//! texts, for the plain model and under plans.

mod lm_eval;
mod metrics;
mod score;
mod task;
mod template;
mod terminal;

pub use metrics::Metric;
pub use score::Score;
pub use task::{Choice, Item, Task, TaskKind};
pub use terminal::eval_text;

use pellucid_engine::Plan;
use pellucid_models::{LoadedModel, Result};
use serde::Serialize;
use std::path::PathBuf;

/// A plan under which a task is evaluated.
#[derive(Clone, Debug, Default)]
pub struct Variant {
    /// Its name in the result.
    pub name: String,
    /// Its edits; positions can be given as token texts.
    pub plan: Plan,
    /// The directory to which paths in the plan are relative.
    pub directory: PathBuf,
}

/// A task's results for all variants.
#[derive(Clone, Debug, Serialize)]
pub struct Evaluation {
    /// Name of the model.
    pub model: String,
    /// Name of the task.
    pub task: String,
    /// Its kind.
    pub kind: TaskKind,
    /// Number of items.
    pub items: usize,
    /// Results by variant; the first is the plain model.
    pub variants: Vec<VariantResult>,
}

/// The results of a task under one plan.
#[derive(Clone, Debug, Serialize)]
pub struct VariantResult {
    /// Name of the variant.
    pub name: String,
    /// Metrics with 95 % confidence intervals.
    pub metrics: Vec<Metric>,
    /// Differences to the plain model, with intervals of the paired items; empty for the plain
    /// model itself.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<Metric>,
    /// Scores of each item, one per choice.
    pub scores: Vec<Vec<Score>>,
}

/// Options of [`evaluate`].
#[derive(Clone, Copy, Debug)]
pub struct EvalOptions {
    /// Seed of the bootstrap.
    pub seed: u64,
    /// Put the BOS token before texts without a context, as lm-eval does. Without it their first
    /// token is not scored.
    pub prefix: bool,
}

/// Evaluates a task for the plain model (`clean`) and under each variant's plan. `progress`
/// receives the fraction done.
pub fn evaluate(
    loaded: &LoadedModel,
    task: &Task,
    variants: &[Variant],
    options: EvalOptions,
    progress: &mut dyn FnMut(f32),
) -> Result<Evaluation> {
    let clean = Variant { name: "clean".into(), ..Variant::default() };
    let all: Vec<&Variant> = std::iter::once(&clean).chain(variants).collect();
    let mut results: Vec<VariantResult> = Vec::with_capacity(all.len());
    for (index, variant) in all.iter().enumerate() {
        let scores = score::score_items(loaded, task, variant, options.prefix, &mut |done| {
            progress((index as f32 + done) / all.len() as f32);
        })?;
        let changes = match results.first() {
            Some(clean) => metrics::changes(task, &clean.scores, &scores, options.seed),
            None => Vec::new(),
        };
        let metrics = metrics::metrics(task, &scores, options.seed);
        results.push(VariantResult { name: variant.name.clone(), metrics, changes, scores });
    }
    Ok(Evaluation {
        model: loaded.name.clone(),
        task: task.name.clone(),
        kind: task.kind,
        items: task.items.len(),
        variants: results,
    })
}
