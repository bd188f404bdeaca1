//! `generate`: continues prompts on the scheduler, under a plan.

use crate::api_error::ApiResult;
use crate::body::{RequestBody, Source};
use crate::generation::{Call, CommonFields, FinishedCall, GenerationFields, StopField, finish, submit};
use crate::mcp::input::{CaptureInput, EditInput, PromptInput};
use crate::mcp::progress::Progress;
use crate::mcp::summary::{ArraySummary, Bounds, list_results, summarize};
use crate::mcp::tool::Tool;
use crate::registry::ModelUse;
use crate::routes::blocking;
use crate::state::AppState;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::run::{MarkOutput, marks};

/// New tokens of a call that does not say.
const DEFAULT_NEW: usize = 64;
/// Most bytes of all generated texts.
const MAX_TEXT: usize = 100_000;

pub struct Generate;

/// The arguments of `generate`.
#[derive(Debug, JsonSchema)]
pub struct GenerateInput {
    #[schemars(flatten)]
    input: PromptInput,
    #[schemars(flatten)]
    edits: EditInput,
    #[schemars(flatten)]
    captures: CaptureInput,
    #[schemars(flatten)]
    own: GenerateFields,
}

#[derive(Debug, Deserialize, JsonSchema)]
struct GenerateFields {
    /// New tokens of each continuation [default: 64].
    max_new: Option<usize>,
    /// Softmax temperature, 0 to 2. 0, the default, always takes the most likely token.
    temperature: Option<f32>,
    /// Only the k most likely tokens.
    top_k: Option<i64>,
    /// Only the most likely tokens that together reach this probability, above 0 to 1.
    top_p: Option<f32>,
    /// Seed of sampling. The same seed gives the same tokens [default: 0].
    seed: Option<i64>,
    /// Continuations of each prompt, which differ if the temperature is above 0 [default: 1].
    n: Option<usize>,
    /// Texts that end a continuation; they are not part of it.
    stop: Option<Vec<String>>,
}

impl RequestBody for GenerateInput {
    fn read(source: &Source) -> ApiResult<GenerateInput> {
        let (input, edits) = (source.part()?, source.part()?);
        Ok(GenerateInput { input, edits, captures: source.part()?, own: source.part()? })
    }
}

/// Continuations of prompts.
#[derive(Debug, Serialize, JsonSchema)]
pub struct GenerateOutput {
    /// The model.
    model: String,
    /// The continuations, prompt by prompt, `n` each.
    continuations: Vec<Continuation>,
    /// Tokens of all prompts.
    prompt_tokens: usize,
    /// Generated tokens of all continuations.
    generated_tokens: usize,
    /// Captures of each prompt. A whole site has `prompt + generated − 1` positions: the last
    /// generated token is never an input.
    captures: Vec<PromptCaptures>,
    /// Positions at which marks of the plan held.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    marks: Vec<MarkOutput>,
    /// Sites of a pattern that the model does not have.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    skipped_sites: Vec<String>,
    /// The parts left out of the answer, and how to see them.
    cut: Vec<String>,
}

/// A continuation of a prompt.
#[derive(Debug, Serialize, JsonSchema)]
struct Continuation {
    /// The generated text, without the prompt.
    text: String,
    /// Generated token ids.
    ids: Vec<u32>,
    /// `stop`: end of text, a stop text, or a condition of the plan; `length`: `max_new` tokens.
    finish: Option<String>,
}

/// Captures of one prompt.
#[derive(Debug, Serialize, JsonSchema)]
struct PromptCaptures {
    /// The number of the prompt in the call.
    prompt: usize,
    /// Its captures and saved values.
    results: Vec<ArraySummary>,
}

impl Tool for Generate {
    const NAME: &'static str = "generate";
    const TITLE: &'static str = "Generate text";
    const DESCRIPTION: &'static str = "Continues prompts or a conversation, greedily unless a temperature is given, \
        optionally under a plan or steering that is active at every step, with summaries of captured activations. \
        Compare a call with and without an edit to see what the edit does to the text.";
    type Input = GenerateInput;
    type Output = GenerateOutput;

    fn example() -> Value {
        json!({
            "prompt": "One day, Lily went to the park.",
            "max_new": 12,
            "plan": {"taps": [{"site": "layers.3.mlp_out", "zero": true}]}
        })
    }

    async fn call(state: AppState, input: GenerateInput, _: Progress) -> ApiResult<GenerateOutput> {
        let bounds = input.captures.bounds()?;
        let (own, model) = (state.clone(), input.input.acquire(&state).await?);
        let call = blocking(move || start(&own, model, &input)).await?;
        let (model, prompt_tokens) = (call.model.id.clone(), call.prompt_tokens);
        let finished = finish(call, &[]).await?;
        blocking(move || Ok(output(&state, model, prompt_tokens, finished, &bounds))).await
    }

    fn text(output: &GenerateOutput) -> String {
        let texts = output.continuations.iter().map(|continuation| format!("{}\n", continuation.text));
        let captures = output.captures.iter().map(|captures| list_results(&captures.results, &[]));
        texts.chain(captures).collect::<String>() + &list_results(&[], &output.cut)
    }
}

/// Checks a call and submits it to the scheduler.
fn start(state: &AppState, model: ModelUse, input: &GenerateInput) -> ApiResult<Call> {
    let own = &input.own;
    let fields = input.input.fields()?;
    let prompts = fields.prompts(state, &model)?;
    let mut common = CommonFields::default();
    common.temperature = Some(own.temperature.unwrap_or(0.0));
    common.top_k = own.top_k;
    common.top_p = own.top_p;
    common.seed = Some(own.seed.unwrap_or(0));
    common.n = own.n;
    common.stop = own.stop.clone().map(StopField::Many);
    let plan = input.edits.fields(input.captures.capture.clone());
    let fields = GenerationFields {
        common: &common,
        plan: &plan,
        max_tokens: Some(own.max_new.unwrap_or(DEFAULT_NEW)),
        max_tokens_field: "max_new",
        logprobs: None,
        echo: false,
    };
    submit(state, model, prompts, &fields)
}

fn output(
    state: &AppState,
    model: String,
    prompt_tokens: usize,
    finished: FinishedCall,
    bounds: &Bounds,
) -> GenerateOutput {
    let mut cut = Vec::new();
    let inspection = finished.inspection;
    let mut captures = Vec::new();
    for info in &inspection.captures {
        // The answer has their summaries, so the arrays need not stay in memory.
        let Ok(stored) = state.captures.get(&info.id) else { continue };
        captures.push(PromptCaptures { prompt: info.prompt, results: summarize(&stored.results(), bounds, &mut cut) });
        let _ = state.captures.remove(&info.id);
    }
    let mut left = MAX_TEXT;
    let continuation = |choice: crate::generation::Choice| {
        let mut text = choice.text;
        if text.len() > left {
            let end = (0..=left).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
            text.truncate(end);
            cut.push(format!("texts after {MAX_TEXT} bytes are left out"));
        }
        left -= text.len();
        Continuation {
            text,
            ids: choice.tokens.iter().map(|token| token.token).collect(),
            finish: choice.finish.map(|finish| finish.name().to_owned()),
        }
    };
    let continuations = finished.choices.into_iter().map(continuation).collect();
    let marks = marks(&inspection.marks, &mut cut);
    cut.dedup();
    GenerateOutput {
        model,
        continuations,
        prompt_tokens,
        generated_tokens: finished.generated,
        captures,
        marks,
        skipped_sites: inspection.skipped_sites,
        cut,
    }
}
