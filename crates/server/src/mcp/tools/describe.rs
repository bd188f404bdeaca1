//! `describe`: the model, its sizes, its tokenizer, and what the server has.

use crate::api_error::ApiResult;
use crate::body::whole_body;
use crate::mcp::progress::Progress;
use crate::mcp::tool::Tool;
use crate::registry::ModelUse;
use crate::routes::blocking;
use crate::state::AppState;
use pellucid_engine::Program;
use pellucid_engine::program::Layout;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

pub struct Describe;

/// The arguments of `describe`.
#[derive(Debug, Deserialize, JsonSchema)]
pub struct DescribeInput {
    /// Name of the model; the default model if absent.
    model: Option<String>,
}

whole_body!(DescribeInput);

/// A model.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Description {
    /// Its name.
    model: String,
    /// Family, layers, width and storage of the weights in one line.
    summary: String,
    /// The names of all models of this server, aliases included.
    models: Vec<String>,
    /// Architecture family, such as `llama`.
    family: String,
    /// Number of layers: `layers.0` to `layers.N-1`.
    n_layers: usize,
    /// Width of the residual stream.
    d_model: usize,
    /// Attention heads of the first layer that has some.
    n_heads: Option<usize>,
    /// Key and value heads; fewer than `n_heads` with grouped queries.
    n_key_heads: Option<usize>,
    /// Width of a head.
    d_head: Option<usize>,
    /// Width of the MLP's hidden activations (site `mlp_act`).
    d_mlp: Option<usize>,
    /// Size of the vocabulary: the width of `logits`.
    vocab_size: usize,
    /// Most positions of a row; absent if not limited.
    context: Option<usize>,
    /// The tokenizer; absent if the model has none, and prompts are token ids.
    tokenizer: Option<TokenizerInfo>,
    /// Whether `messages` work.
    has_chat_template: bool,
    /// Attached sparse autoencoders. Their features are sites: `SITE/sae.acts`.
    saes: Vec<SaeInfo>,
    /// Limits of calls.
    limits: LimitInfo,
}

/// A tokenizer.
#[derive(Debug, Serialize, JsonSchema)]
struct TokenizerInfo {
    /// Tokens, added ones included.
    vocab_size: usize,
    /// Whether texts get a beginning-of-text token, which then has position 0.
    adds_bos: bool,
    /// Text of the beginning-of-text token.
    bos_token: Option<String>,
    /// Text of the end-of-text token.
    eos_token: Option<String>,
}

/// A sparse autoencoder.
#[derive(Debug, Serialize, JsonSchema)]
struct SaeInfo {
    /// The site whose activations it reads.
    site: String,
    /// Its kind, such as `standard` or `topk`.
    kind: String,
    /// Number of features.
    features: usize,
}

/// Limits of calls.
#[derive(Debug, Serialize, JsonSchema)]
struct LimitInfo {
    /// New tokens of `generate`.
    max_new: usize,
    /// Rows of a call.
    rows: usize,
    /// Bytes of the captures of a call.
    capture_bytes: usize,
}

impl Tool for Describe {
    const NAME: &'static str = "describe";
    const TITLE: &'static str = "Describe the model";
    const DESCRIPTION: &'static str = "Describes the model: layers, widths, heads, vocabulary, tokenizer, chat template, \
        attached sparse autoencoders, limits, and the names of other models. Runs nothing. Call it first.";
    type Input = DescribeInput;
    type Output = Description;

    fn example() -> Value {
        json!({})
    }

    async fn call(state: AppState, input: DescribeInput, _: Progress) -> ApiResult<Description> {
        let model = state.models.acquire(input.model.as_deref(), None).await?;
        blocking(move || describe(&state, &model)).await
    }

    fn text(output: &Description) -> String {
        let Description { model, summary, n_layers, d_model, vocab_size, .. } = output;
        format!(
            "{model}: {summary}. Sites are layers.0 to layers.{}; d_model {d_model}, vocabulary {vocab_size}.",
            n_layers.saturating_sub(1)
        )
    }
}

fn describe(state: &AppState, model: &ModelUse) -> ApiResult<Description> {
    let loaded = &model.loaded;
    let program = loaded.model.program();
    let architecture = program.architecture();
    let limits = &state.options.limits;
    let (queries, keys) = (heads(program, "q"), heads(program, "k"));
    Ok(Description {
        model: model.id.clone(),
        summary: loaded.describe(),
        models: state.models.listed().iter().map(|listed| listed.name.to_owned()).collect(),
        family: architecture.family.clone(),
        n_layers: architecture.layers.len(),
        d_model: architecture.width,
        n_heads: queries.map(|(count, _)| count),
        n_key_heads: keys.map(|(count, _)| count),
        d_head: queries.map(|(_, width)| width),
        d_mlp: first(program, "mlp_act").map(|(_, width)| width),
        vocab_size: architecture.vocab,
        context: model.context(),
        tokenizer: loaded.tokenizer.as_ref().map(|tokenizer| {
            let special = tokenizer.special();
            let text = |id: Option<u32>| id.map(|id| tokenizer.token_text(id));
            TokenizerInfo {
                vocab_size: tokenizer.vocab_size(),
                adds_bos: tokenizer.adds_bos(),
                bos_token: text(special.bos),
                eos_token: text(special.eos.first().copied()),
            }
        }),
        has_chat_template: loaded.chat.is_some(),
        saes: loaded
            .saes()
            .into_iter()
            .map(|sae| SaeInfo { site: sae.site.to_string(), kind: sae.kind.into(), features: sae.features })
            .collect(),
        limits: LimitInfo { max_new: limits.max_tokens, rows: limits.rows, capture_bytes: limits.capture_bytes },
    })
}

/// Layout and width of a point in the first layer that has it.
fn first(program: &Program, point: &str) -> Option<(Layout, usize)> {
    let site =
        program.sites().find(|site| site.layer.is_some() && site.sae.is_none() && site.point.to_string() == point)?;
    let edge = program.edge(program.edge_of(site)?);
    Some((edge.layout, edge.width))
}

/// Number and width of the heads of a point.
fn heads(program: &Program, point: &str) -> Option<(usize, usize)> {
    match first(program, point)? {
        (Layout::Heads(heads), width) => Some((heads, width / heads)),
        _ => None,
    }
}
