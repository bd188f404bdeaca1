//! `sweep`: many plans on one prompt, each reduced to one metric.

use super::template::{LabeledPlan, Template};
use crate::api_error::{ApiError, ApiResult};
use crate::body::{RequestBody, Source};
use crate::generation::token_text;
use crate::mcp::input::{EditInput, PromptInput};
use crate::mcp::progress::Progress;
use crate::mcp::summary::{list_cuts, softmax};
use crate::mcp::tool::Tool;
use crate::registry::ModelUse;
use crate::routes::branches;
use crate::routes::direct::run_alone;
use crate::state::AppState;
use pellucid_engine::Interrupt;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Most plans of a call.
const MAX_PLANS: usize = 4096;
/// Most results that are listed in order.
const MAX_RESULTS: usize = 512;
/// Results with the largest changes.
const LARGEST: usize = 10;

pub struct Sweep;

/// The arguments of `sweep`.
#[derive(Debug, JsonSchema)]
pub struct SweepInput {
    #[schemars(flatten)]
    input: PromptInput,
    #[schemars(flatten)]
    edits: EditInput,
    #[schemars(flatten)]
    own: SweepFields,
}

#[derive(Debug, Deserialize, JsonSchema)]
struct SweepFields {
    /// The plans: each is applied by itself, on top of `plan` and `steer`, which apply to all. Give
    /// `plans` or `template`.
    #[schemars(with = "Option<Vec<serde_json::Map<String, Value>>>")]
    plans: Option<Vec<Value>>,
    /// A plan with placeholders and their values, instead of `plans`.
    template: Option<Template>,
    /// What is measured.
    metric: Metric,
}

/// A number computed from the logits at one position.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
struct Metric {
    /// The token whose value is measured: its text with the leading space (" dog"), or its id.
    token: TokenName,
    /// Measure the difference to this token: value of `token` minus value of `minus`.
    minus: Option<TokenName>,
    /// What the value of a token is [default: logprob].
    of: Option<Quantity>,
    /// The position whose next token is measured: an index, negative from the end [default: the
    /// last].
    position: Option<i64>,
}

/// A token by text or by id.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "a token is its text or its id")]
enum TokenName {
    Id(u32),
    Text(String),
}

/// The value of a token.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Quantity {
    /// Its natural log-probability.
    #[default]
    Logprob,
    /// Its probability.
    Probability,
    /// Its logit.
    Logit,
}

impl RequestBody for SweepInput {
    fn read(source: &Source) -> ApiResult<SweepInput> {
        Ok(SweepInput { input: source.part()?, edits: source.part()?, own: source.part()? })
    }
}

/// The metric under each plan.
#[derive(Debug, Serialize, JsonSchema)]
pub struct SweepOutput {
    /// The model.
    model: String,
    /// The metric in words.
    metric: String,
    /// Its value without any of the plans; absent if not finite.
    baseline: Option<f64>,
    /// Its value under each plan, in the order of the plans.
    results: Vec<SweepResult>,
    /// The results with the largest change in magnitude, largest first.
    largest: Vec<SweepResult>,
    /// The parts left out of the answer.
    cut: Vec<String>,
}

/// The metric under one plan.
#[derive(Clone, Debug, Serialize, JsonSchema)]
struct SweepResult {
    /// The index of the plan.
    plan: usize,
    /// The values of the template's placeholders; of `plans` the index.
    label: String,
    /// The metric; absent if not finite.
    value: Option<f64>,
    /// The metric minus the baseline; absent if not finite.
    change: Option<f64>,
}

impl Tool for Sweep {
    const NAME: &'static str = "sweep";
    const TITLE: &'static str = "Measure many edits";
    const DESCRIPTION: &'static str = "Applies many plans to one prompt, one at a time, and measures a token's logit, \
        probability or log-probability (or a difference of two tokens) under each: ablations of every head, patches of \
        every position, several steering strengths. Each plan is computed only from the first layer and position that \
        it changes, so this is far cheaper than calls of `run`. With a `template` a whole grid is one small argument.";
    type Input = SweepInput;
    type Output = SweepOutput;

    fn example() -> Value {
        json!({
            "prompt": "Tom saw a dog. The",
            "template": {
                "plan": {"taps": [{"site": "layers.{layer}.z", "heads": ["{head}"], "zero": true}]},
                "over": {"layer": [0, 1, 2], "head": [0, 1]}
            },
            "metric": {"token": " dog", "minus": " cat", "of": "logit"}
        })
    }

    async fn call(state: AppState, input: SweepInput, progress: Progress) -> ApiResult<SweepOutput> {
        let (own, model) = (state.clone(), input.input.acquire(&state).await?);
        run_alone(&state, move |interrupt| sweep(&own, model, &input, &progress, interrupt)).await
    }

    fn text(output: &SweepOutput) -> String {
        let baseline = output.baseline.map_or_else(|| "not finite".into(), |value| format!("{value:.4}"));
        let result = |SweepResult { label, value, change, .. }: &SweepResult| match (value, change) {
            (Some(value), Some(change)) => format!("{label}  {value:.4} ({change:+.4})\n"),
            _ => format!("{label}  not finite\n"),
        };
        let largest: String = output.largest.iter().map(result).collect();
        format!("{}: {baseline} without edits. Largest changes:\n{largest}", output.metric) + &list_cuts(&output.cut)
    }
}

fn sweep(
    state: &AppState,
    model: ModelUse,
    input: &SweepInput,
    progress: &Progress,
    interrupt: Interrupt,
) -> ApiResult<SweepOutput> {
    let plans = plans(&input.own)?;
    let count = plans.len();
    let (labels, mut plans): (Vec<String>, Vec<Value>) = plans.into_iter().map(|plan| (plan.label, plan.plan)).unzip();
    // The baseline comes last, so that errors of plans have the indices of the call.
    plans.push(json!({ "taps": [] }));
    let metric = &input.own.metric;
    let position = metric.position.map_or_else(|| json!("last"), |position| json!([position]));
    let fields = input.edits.fields(Some(vec![json!({ "site": "logits", "positions": position })]));
    let input = input.input.fields()?;
    let measure = Measure::new(&model, metric)?;
    let sweep = branches::Sweep::new(state, model.clone(), &input, &fields, &plans, "plans").map_err(|error| {
        let index = error.detail.param.as_deref().and_then(index_of);
        match index.and_then(|index| labels.get(index)).filter(|label| label.contains('=')) {
            Some(label) => error.within(label),
            None => error,
        }
    })?;
    let mut values = vec![f64::NAN; count + 1];
    sweep.run(interrupt, |index, _, run| {
        // The capture of the logits is the last one; those of the plans themselves come before.
        if let Some(capture) = run.captures.last() {
            values[index] = measure.value(capture.array.values());
        }
        progress.report(index + 1, count + 1);
        true
    })?;
    let baseline = values.pop().unwrap_or(f64::NAN);
    let result = |(plan, (label, value)): (usize, (String, f64))| SweepResult {
        plan,
        label,
        value: finite(value),
        change: finite(value - baseline),
    };
    let mut results: Vec<SweepResult> = labels.into_iter().zip(values).enumerate().map(result).collect();
    let mut largest = results.clone();
    let magnitude = |result: &SweepResult| result.change.map_or(-1.0, f64::abs);
    largest.sort_by(|a, b| magnitude(b).total_cmp(&magnitude(a)));
    largest.truncate(LARGEST);
    let mut cut = Vec::new();
    if count > MAX_RESULTS {
        cut.push(format!("{MAX_RESULTS} of {count} results are listed in order; `largest` is over all of them"));
        results.truncate(MAX_RESULTS);
    }
    Ok(SweepOutput { model: model.id.clone(), metric: measure.name, baseline: finite(baseline), results, largest, cut })
}

/// The plans of a call with their labels.
fn plans(fields: &SweepFields) -> ApiResult<Vec<LabeledPlan>> {
    match (&fields.plans, &fields.template) {
        (Some(plans), None) if plans.len() > MAX_PLANS => {
            Err(ApiError::field("plans", format!("`plans` has {} plans; the limit is {MAX_PLANS}", plans.len())))
        }
        (Some(plans), None) if !plans.is_empty() => {
            let labeled = |(index, plan): (usize, &Value)| LabeledPlan { label: index.to_string(), plan: plan.clone() };
            Ok(plans.iter().enumerate().map(labeled).collect())
        }
        (None, Some(template)) => template.plans(MAX_PLANS),
        _ => Err(ApiError::field("plans", "give either `plans`, with at least one plan, or `template`")),
    }
}

/// The index in a field such as `plans[3]`.
fn index_of(field: &str) -> Option<usize> {
    field.strip_prefix("plans[")?.split(']').next()?.parse().ok()
}

fn finite(value: f64) -> Option<f64> {
    value.is_finite().then_some(value)
}

/// A metric with its tokens looked up.
struct Measure {
    token: usize,
    minus: Option<usize>,
    of: Quantity,
    name: String,
}

impl Measure {
    fn new(model: &ModelUse, metric: &Metric) -> ApiResult<Measure> {
        let token = find_token(model, &metric.token, "metric.token")?;
        let minus = metric.minus.as_ref().map(|minus| find_token(model, minus, "metric.minus")).transpose()?;
        let of = metric.of.unwrap_or_default();
        let quantity = match of {
            Quantity::Logprob => "logprob",
            Quantity::Probability => "probability",
            Quantity::Logit => "logit",
        };
        let text = |token: u32| format!("{quantity} of {:?}", token_text(&model.loaded, token));
        let name = minus.map_or_else(|| text(token), |minus| format!("{} minus {}", text(token), text(minus)));
        Ok(Measure { token: token as usize, minus: minus.map(|minus| minus as usize), of, name })
    }

    fn value(&self, logits: &[f32]) -> f64 {
        let of: Box<dyn Fn(usize) -> f64> = match self.of {
            Quantity::Logit => Box::new(|token| logits.get(token).map_or(f64::NAN, |&logit| logit.into())),
            Quantity::Probability | Quantity::Logprob => {
                let probabilities = softmax(logits);
                let is_log = matches!(self.of, Quantity::Logprob);
                Box::new(move |token| {
                    let probability = probabilities.get(token).copied().unwrap_or(f64::NAN);
                    if is_log { probability.ln() } else { probability }
                })
            }
        };
        of(self.token) - self.minus.map_or(0.0, of)
    }
}

fn find_token(model: &ModelUse, name: &TokenName, field: &str) -> ApiResult<u32> {
    let loaded = &model.loaded;
    let vocab = loaded.model.program().architecture().vocab;
    match name {
        TokenName::Id(id) if (*id as usize) < vocab => Ok(*id),
        TokenName::Id(id) => {
            Err(ApiError::field(field, format!("token {id} is not among the {vocab} of the vocabulary")))
        }
        TokenName::Text(text) => {
            let tokenizer = loaded.tokenizer().map_err(|error| ApiError::from(error).with_param(field))?;
            tokenizer.find(text).ok_or_else(|| {
                let parts = tokenizer.encode(text, false).unwrap_or_default();
                let parts: Vec<String> =
                    parts.iter().take(8).map(|&id| format!("{:?}", tokenizer.token_text(id))).collect();
                let message = format!(
                    "{text:?} is not one token but {}; choose one of them, mind the leading space, or give an id",
                    parts.join(", ")
                );
                ApiError::field(field, message)
            })
        }
    }
}
