//! Evaluation of a model on tasks: log-likelihoods of choices, of minimal pairs, of targets and of
//! texts, for the plain model and under plans.

mod fewshot;
mod lm_eval;
mod metrics;
mod python_random;
mod score;
mod task;
mod template;
mod terminal;

pub use fewshot::{FEWSHOT_SEED, Fewshot};
pub use metrics::Metric;
pub use score::Score;
pub use task::{Choice, Item, Task, TaskKind, TaskOptions};
pub use terminal::eval_text;

use pellucid_engine::{Interrupt, Plan};
use pellucid_models::{LoadedModel, Result, builtin};
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

impl Variant {
    /// The plain model.
    pub fn clean() -> Variant {
        Variant { name: "clean".into(), ..Variant::default() }
    }
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
    /// Number of examples in the prompt of each item.
    pub num_fewshot: usize,
    /// Results by variant.
    pub variants: Vec<VariantResult>,
}

/// The results of a task under one plan.
#[derive(Clone, Debug, Serialize)]
pub struct VariantResult {
    /// Name of the variant.
    pub name: String,
    /// Metrics with 95 % confidence intervals.
    pub metrics: Vec<Metric>,
    /// Differences to the first variant, with intervals of the paired items; empty for that one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<Metric>,
    /// Scores of each item, one per choice.
    pub scores: Vec<Vec<Score>>,
}

/// Options of [`evaluate`].
#[derive(Clone, Default)]
pub struct EvalOptions {
    /// Seed of the bootstrap.
    pub seed: u64,
    /// Put no BOS token before texts without a context, which lm-eval does; their first token is
    /// then not scored. Always so for the built-in model, which was trained without a start token.
    pub no_prefix: bool,
    /// Ends the evaluation early.
    pub interrupt: Option<Interrupt>,
}

/// Evaluates a task under each variant's plan. The first variant is what the others are compared
/// with, usually the [plain model](Variant::clean). `progress` receives the fraction done.
pub fn evaluate(
    loaded: &LoadedModel,
    task: &Task,
    variants: &[Variant],
    options: &EvalOptions,
    progress: &mut dyn FnMut(f32),
) -> Result<Evaluation> {
    let prefix = !options.no_prefix && loaded.name != builtin::NAME;
    let mut results: Vec<VariantResult> = Vec::with_capacity(variants.len());
    for (index, variant) in variants.iter().enumerate() {
        let scores = score::score_items(loaded, task, variant, prefix, options.interrupt.as_ref(), &mut |done| {
            progress((index as f32 + done) / variants.len() as f32);
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
        num_fewshot: task.num_fewshot,
        variants: results,
    })
}
