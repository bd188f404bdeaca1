//! `explain`: what a plan does and costs; nothing runs.

use crate::api_error::ApiResult;
use crate::body::{RequestBody, Source};
use crate::mcp::input::{EditInput, PromptInput};
use crate::mcp::progress::Progress;
use crate::mcp::tool::Tool;
use crate::routes::blocking;
use crate::routes::direct::PreparedCall;
use crate::state::AppState;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Most taps that are listed.
const MAX_TAPS: usize = 200;

pub struct Explain;

/// The arguments of `explain`.
#[derive(Debug, JsonSchema)]
pub struct ExplainInput {
    #[schemars(flatten)]
    input: PromptInput,
    #[schemars(flatten)]
    edits: EditInput,
    #[schemars(flatten)]
    captures: ExplainedCaptures,
}

#[derive(Debug, Deserialize, JsonSchema)]
struct ExplainedCaptures {
    /// Sites to read, as the tool `run` takes them.
    capture: Option<Vec<Value>>,
}

impl RequestBody for ExplainInput {
    fn read(source: &Source) -> ApiResult<ExplainInput> {
        Ok(ExplainInput { input: source.part()?, edits: source.part()?, captures: source.part()? })
    }
}

/// The effects and the cost of a run.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ExplainOutput {
    /// The model.
    model: String,
    /// Number of input tokens.
    tokens: usize,
    /// Number of ops that would run.
    ops: usize,
    /// Number of ops of the model.
    all_ops: usize,
    /// Last layer that would run; absent if none does.
    last_layer: Option<usize>,
    /// Layers that all rows skip.
    skipped_layers: Vec<usize>,
    /// Floating-point operations of the forward pass.
    flops: f64,
    /// Estimated seconds on this machine.
    seconds: f64,
    /// Bytes of captures and saved values.
    capture_bytes: usize,
    /// Bytes of weights, KV cache, activations and captures together.
    peak_bytes: usize,
    /// Bytes that a call may take now, beside the weights; absent if not limited.
    allowed_bytes: Option<usize>,
    /// Whether a backward pass follows.
    gradients: bool,
    /// The taps at the sites that they match, in the order of the plan.
    taps: Vec<TapOutput>,
    /// The parts left out of the answer.
    cut: Vec<String>,
    /// The same as text.
    text: String,
}

/// A tap at one site.
#[derive(Debug, Serialize, JsonSchema)]
struct TapOutput {
    /// Index of the tap: first the taps of the plan, then steering, then captures.
    tap: usize,
    /// The site.
    site: String,
    /// Name of the action.
    action: String,
    /// Number of rows that it touches.
    rows: usize,
    /// Number of positions that it touches, over all rows.
    positions: usize,
}

impl Tool for Explain {
    const NAME: &'static str = "explain";
    const TITLE: &'static str = "Explain a plan";
    const DESCRIPTION: &'static str = "Checks a plan for prompts and estimates its cost: which sites and positions each \
        tap touches, which layers run, FLOPs, seconds, bytes. Nothing runs. Use it before expensive calls and to find \
        out why a plan does not match what you meant.";
    type Input = ExplainInput;
    type Output = ExplainOutput;

    fn example() -> Value {
        json!({"prompt": "Tom saw a dog. The", "capture": ["layers.0-2.attn_probs"]})
    }

    async fn call(state: AppState, input: ExplainInput, _: Progress) -> ApiResult<ExplainOutput> {
        let model = input.input.acquire(&state).await?;
        blocking(move || {
            let fields = input.edits.fields(input.captures.capture.clone());
            let PreparedCall { model, rows, plan } = PreparedCall::new(&state, model, &input.input.fields()?, &fields)?;
            let lengths: Vec<usize> = rows.iter().map(Vec::len).collect();
            let explained = plan.explain(&model.loaded.model, &lengths)?;
            let text = explained.to_string();
            let mut cut = Vec::new();
            if explained.taps.len() > MAX_TAPS {
                cut.push(format!("{MAX_TAPS} of {} matched sites are shown", explained.taps.len()));
            }
            let taps = explained.taps.into_iter().take(MAX_TAPS).map(|tap| TapOutput {
                tap: tap.tap,
                site: tap.site,
                action: tap.action,
                rows: tap.rows,
                positions: tap.positions,
            });
            Ok(ExplainOutput {
                model: model.id.clone(),
                tokens: explained.tokens,
                ops: explained.ops,
                all_ops: explained.all_ops,
                last_layer: explained.last_layer,
                skipped_layers: explained.skipped,
                flops: explained.flops,
                seconds: explained.seconds,
                capture_bytes: explained.capture_bytes,
                peak_bytes: explained.peak_bytes,
                allowed_bytes: explained.allowed_bytes,
                gradients: explained.gradients,
                taps: taps.collect(),
                // The text has a line for each tap.
                text: text.lines().take(MAX_TAPS + 50).collect::<Vec<_>>().join("\n"),
                cut,
            })
        })
        .await
    }

    fn text(output: &ExplainOutput) -> String {
        output.text.clone()
    }
}
