//! `run`: runs prompts once; summaries of activations and the most likely next tokens.

use crate::api_error::ApiResult;
use crate::body::{RequestBody, Source};
use crate::generation::token_text;
use crate::mcp::input::{CaptureInput, EditInput, PromptInput};
use crate::mcp::progress::Progress;
use crate::mcp::summary::{ArraySummary, TokenProbability, at_most, list_results, list_tokens, summarize, top_tokens};
use crate::mcp::tool::Tool;
use crate::registry::ModelUse;
use crate::routes::direct::{PreparedCall, run_alone};
use crate::state::AppState;
use pellucid_engine::{Action, Interrupt, Mark, Plan, Positions, RunOptions, Tap};
use pellucid_models::results::Results;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Most tokens of a row that are listed.
const MAX_TOKENS: usize = 512;
/// Most marks that are listed.
const MAX_MARKS: usize = 256;

pub struct Run;

/// The arguments of `run`.
#[derive(Debug, JsonSchema)]
pub struct RunInput {
    #[schemars(flatten)]
    input: PromptInput,
    #[schemars(flatten)]
    edits: EditInput,
    #[schemars(flatten)]
    captures: CaptureInput,
    #[schemars(flatten)]
    own: RunFields,
}

#[derive(Debug, Deserialize, JsonSchema)]
struct RunFields {
    /// The number of most likely next tokens of each row [default: 5, at most 50]. 0 computes no
    /// logits: layers after the last captured site do not run.
    next_tokens: Option<usize>,
}

impl RequestBody for RunInput {
    fn read(source: &Source) -> ApiResult<RunInput> {
        Ok(RunInput { input: source.part()?, edits: source.part()?, captures: source.part()?, own: source.part()? })
    }
}

/// The result of a run.
#[derive(Debug, Serialize, JsonSchema)]
pub struct RunOutput {
    /// The model.
    model: String,
    /// The rows of the call.
    rows: Vec<RowOutput>,
    /// Captures, and values that the plan saves.
    results: Vec<ArraySummary>,
    /// Positions at which marks of the plan held.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    marks: Vec<MarkOutput>,
    /// Sites of a pattern that the model does not have.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    skipped_sites: Vec<String>,
    /// The parts left out of the answer, and how to see them.
    cut: Vec<String>,
}

/// A row.
#[derive(Debug, Serialize, JsonSchema)]
struct RowOutput {
    /// The text of each token; the index is the position.
    tokens: Vec<String>,
    /// Token ids.
    ids: Vec<u32>,
    /// The most likely next tokens after the last position.
    next: Vec<TokenProbability>,
}

/// A position at which a mark held.
#[derive(Debug, Serialize, JsonSchema)]
pub struct MarkOutput {
    /// Name of the mark.
    name: String,
    /// The site of the condition.
    site: String,
    /// The row.
    row: usize,
    /// The position.
    position: usize,
    /// The dot product or the unit; absent if not finite.
    value: Option<f32>,
}

impl Tool for Run {
    const NAME: &'static str = "run";
    const TITLE: &'static str = "Run prompts once";
    const DESCRIPTION: &'static str = "Runs one or several prompts through the model once, optionally under a plan that \
        changes activations, and returns the most likely next tokens of each prompt and summaries of the captured \
        activations: shape, mean, deviation, norm, largest elements, and all values of small ones. Rows can patch each \
        other: {\"site\": \"layers.2.resid_post\", \"rows\": [1], \"positions\": [3], \"set\": {\"from\": {\"rows\": [0]}}}.";
    type Input = RunInput;
    type Output = RunOutput;

    fn example() -> Value {
        json!({
            "prompt": "Tom saw a dog. The",
            "capture": [{"site": "layers.*.resid_post", "positions": "last"}],
            "plan": {"taps": [{"site": "layers.2.mlp_out", "positions": "last", "zero": true}]}
        })
    }

    async fn call(state: AppState, input: RunInput, _: Progress) -> ApiResult<RunOutput> {
        let (own, model) = (state.clone(), input.input.acquire(&state).await?);
        run_alone(&state, move |interrupt| run(&own, model, &input, interrupt)).await
    }

    fn text(output: &RunOutput) -> String {
        let row = |(index, row): (usize, &RowOutput)| match row.next.is_empty() {
            true => String::new(),
            false => format!("row {index} ({} tokens): next {}\n", row.ids.len(), list_tokens(&row.next)),
        };
        output.rows.iter().enumerate().map(row).collect::<String>() + &list_results(&output.results, &output.cut)
    }
}

fn run(state: &AppState, model: ModelUse, input: &RunInput, interrupt: Interrupt) -> ApiResult<RunOutput> {
    let bounds = input.captures.bounds()?;
    let next_tokens = at_most("next_tokens", input.own.next_tokens, 5, 50)?;
    let fields = input.edits.fields(input.captures.capture.clone());
    let PreparedCall { model, rows, plan } = PreparedCall::new(state, model, &input.input.fields()?, &fields)?;
    let loaded = &model.loaded;
    let first = plan.taps.len();
    let shows_next = next_tokens > 0 && loaded.model.program().logits_edge().is_some();
    let logits = Tap::new("logits", Action::Capture(None)).positions(Positions::Last);
    let plan = if shows_next { plan.then(Plan::of([logits])) } else { plan };
    let options = RunOptions { interrupt: Some(interrupt), ..RunOptions::default() };
    let mut run = loaded.model.run(&rows, &plan, &options)?;
    let (captures, logits): (Vec<_>, Vec<_>) = run.captures.drain(..).partition(|capture| capture.tap < first);
    let mut cut = Vec::new();
    let row = |(index, tokens): (usize, &Vec<u32>)| RowOutput {
        tokens: tokens.iter().take(MAX_TOKENS).map(|&token| token_text(loaded, token)).collect(),
        ids: tokens.iter().take(MAX_TOKENS).copied().collect(),
        next: logits
            .iter()
            .find(|capture| capture.row == index)
            .map_or_else(Vec::new, |capture| top_tokens(loaded, capture.array.values(), next_tokens)),
    };
    if rows.iter().any(|row| row.len() > MAX_TOKENS) {
        cut.push(format!("only the first {MAX_TOKENS} tokens of a row are listed"));
    }
    let results =
        Results { plan: &plan, captures: &captures, saved: &run.saved, rows: rows.len(), saes: loaded.saes() };
    let results = summarize(&results, &bounds, &mut cut);
    Ok(RunOutput {
        model: model.id.clone(),
        rows: rows.iter().enumerate().map(row).collect(),
        results,
        marks: marks(&run.marks, &mut cut),
        skipped_sites: run.passed_over.iter().map(ToString::to_string).collect(),
        cut,
    })
}

/// Lists marks.
pub fn marks(marks: &[Mark], cut: &mut Vec<String>) -> Vec<MarkOutput> {
    if marks.len() > MAX_MARKS {
        cut.push(format!("{MAX_MARKS} of {} marks are shown", marks.len()));
    }
    let mark = |mark: &Mark| MarkOutput {
        name: mark.name.clone(),
        site: mark.site.to_string(),
        row: mark.row,
        position: mark.position,
        value: mark.value.is_finite().then_some(mark.value),
    };
    marks.iter().take(MAX_MARKS).map(mark).collect()
}
