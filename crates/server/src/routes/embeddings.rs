//! `/v1/embeddings`: the mean or the last position of a site.

use super::Reply;
use super::direct::{PreparedCall, run_alone};
use crate::api_error::{ApiError, ApiResult, ErrorBody};
use crate::body::{Json, whole_body};
use crate::generation::PromptField;
use crate::state::AppState;
use axum::extract::State;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use pellucid_engine::{Action, Plan, Positions, Reduce, RunOptions, Tap};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The site of embeddings that name none: the residual stream after the last layer and its norm.
const DEFAULT_SITE: &str = "final_norm";

/// A request of `/v1/embeddings`.
#[derive(Debug, Deserialize, ToSchema)]
pub struct EmbeddingsRequest {
    /// The model, or an alias of it; the server's first model if absent. `MODEL:ADAPTER` names one
    /// of its adapters, too.
    model: Option<String>,
    /// The LoRA adapter that is applied, one of those that the server attached to the model.
    adapter: Option<String>,
    /// A text, a list of texts, token ids, or a list of lists of token ids.
    input: PromptField,
    /// `float`, or `base64` of little-endian f32.
    encoding_format: Option<EncodingFormat>,
    /// The site; the final norm's output if absent.
    site: Option<String>,
    /// The mean over positions, or the last position.
    pooling: Option<Pooling>,
    /// Scale each embedding to length 1; the default.
    normalize: Option<bool>,
    #[serde(default)]
    dimensions: Option<usize>,
}

whole_body!(EmbeddingsRequest);

/// The form of an embedding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum EncodingFormat {
    /// A list of numbers.
    #[default]
    Float,
    /// Base64 of little-endian f32.
    Base64,
}

/// How positions become one vector.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Pooling {
    /// Their mean.
    #[default]
    Mean,
    /// The last one.
    Last,
}

/// Embeddings.
#[derive(Debug, Serialize, ToSchema)]
pub struct EmbeddingList {
    /// `list`.
    object: &'static str,
    /// One for each input.
    data: Vec<Embedding>,
    /// The model.
    model: String,
    /// Numbers of tokens.
    usage: EmbeddingUsage,
    /// Fields of the request that were ignored.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
}

/// An embedding.
#[derive(Debug, Serialize, ToSchema)]
pub struct Embedding {
    /// `embedding`.
    object: &'static str,
    /// The number of its input.
    index: usize,
    /// The vector.
    embedding: EmbeddingValues,
}

/// A vector as numbers or as base64.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub enum EmbeddingValues {
    /// Numbers.
    Float(Vec<f32>),
    /// Base64 of little-endian f32.
    Base64(String),
}

/// Numbers of tokens.
#[derive(Debug, Serialize, ToSchema)]
pub struct EmbeddingUsage {
    /// Tokens of all inputs.
    prompt_tokens: usize,
    /// The same.
    total_tokens: usize,
}

/// Embed inputs.
#[utoipa::path(
    post, path = "/v1/embeddings", request_body = EmbeddingsRequest,
    responses((status = 200, body = EmbeddingList), (status = "default", body = ErrorBody))
)]
pub async fn create(
    State(state): State<AppState>,
    Json { value: request, warnings }: Json<EmbeddingsRequest>,
) -> ApiResult<Reply<EmbeddingList>> {
    let model = state.models.acquire(request.model.as_deref(), request.adapter.as_deref()).await?;
    let own = state.clone();
    run_alone(&state, move |interrupt| {
        if request.dimensions.is_some() {
            return Err(ApiError::refused("dimensions", "an embedding has the width of its site"));
        }
        let in_input = |error: ApiError| error.about("input");
        let prompts = request.input.encode(&model.loaded, true).map_err(in_input)?;
        if prompts.len() > own.options.limits.rows {
            let message = format!("the request has {} inputs; the limit is {}", prompts.len(), own.options.limits.rows);
            return Err(ApiError::field("input", message));
        }
        let prompt_tokens = prompts.iter().map(|prompt| prompt.tokens.len()).sum();
        let site = request.site.unwrap_or_else(|| DEFAULT_SITE.into());
        let tap = match request.pooling.unwrap_or_default() {
            Pooling::Mean => Tap::new(site, Action::Capture(Some(Reduce::Mean))),
            Pooling::Last => Tap::new(site, Action::Capture(None)).positions(Positions::Last),
        };
        let PreparedCall { model, rows, plan } =
            PreparedCall::of(&own, model, prompts, Plan::of([tap])).map_err(|error| {
                match error.detail.param.as_deref() {
                    Some("prompt") => in_input(error),
                    _ => error.about("site"),
                }
            })?;
        let options = RunOptions { interrupt: Some(interrupt), ..RunOptions::default() };
        let run = model.loaded.model.run(&rows, &plan, &options)?;
        if run.captures.len() != rows.len() {
            return Err(ApiError::field("site", "`site` must name one site, not several"));
        }
        let embedding = |(index, capture): (usize, &pellucid_engine::Capture)| {
            let mut values = capture.array.values().to_vec();
            if request.normalize.unwrap_or(true) {
                let norm = values.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt() as f32;
                values.iter_mut().for_each(|x| *x /= norm.max(f32::MIN_POSITIVE));
            }
            let embedding = match request.encoding_format.unwrap_or_default() {
                EncodingFormat::Float => EmbeddingValues::Float(values),
                EncodingFormat::Base64 => EmbeddingValues::Base64(
                    STANDARD.encode(values.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>()),
                ),
            };
            Embedding { object: "embedding", index, embedding }
        };
        Ok(Reply(EmbeddingList {
            object: "list",
            data: run.captures.iter().enumerate().map(embedding).collect(),
            model: model.id.clone(),
            usage: EmbeddingUsage { prompt_tokens, total_tokens: prompt_tokens },
            warnings,
        }))
    })
    .await
}
