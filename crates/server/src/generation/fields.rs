//! The fields that both completion routes share.

use crate::api_error::{ApiError, ApiResult};
use crate::ids;
use crate::inspection::PlanFields;
use pellucid_engine::Sampling;
use pellucid_models::StopStrings;
use serde::Deserialize;
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// Sampling, stops and streaming.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub struct CommonFields {
    /// The model, or an alias of it; the server's first model if absent. `MODEL:ADAPTER` names one
    /// of its adapters, too.
    pub model: Option<String>,
    /// The LoRA adapter that is applied, one of those that the server attached to the model.
    #[schema(example = "german")]
    pub adapter: Option<String>,
    /// Softmax temperature, 0 to 2; 0 is greedy.
    pub temperature: Option<f32>,
    /// Nucleus sampling: only the most likely tokens that together reach this probability.
    pub top_p: Option<f32>,
    /// Only the k most likely tokens; 0 or -1 for all.
    pub top_k: Option<i64>,
    /// Only tokens with at least this fraction of the top token's probability.
    pub min_p: Option<f32>,
    /// Divides positive logits of tokens already in the row, and multiplies negative ones.
    pub repetition_penalty: Option<f32>,
    /// Subtracted from the logit of each generated token, -2 to 2.
    pub presence_penalty: Option<f32>,
    /// Subtracted from the logit of each generated token for each occurrence, -2 to 2.
    pub frequency_penalty: Option<f32>,
    /// Added to the logits of tokens: token ids as keys, -100 to 100.
    pub logit_bias: Option<BTreeMap<String, f32>>,
    /// Seed of the random numbers, also negative. The same seed gives the same tokens. Random if
    /// absent.
    pub seed: Option<i64>,
    /// Choices per prompt.
    pub n: Option<usize>,
    /// A text or a list of texts that end a choice.
    pub stop: Option<StopField>,
    /// Do not stop at the end-of-sequence token.
    pub ignore_eos: Option<bool>,
    /// Tokens that end a choice, besides the end-of-sequence tokens.
    pub stop_token_ids: Option<Vec<u32>>,
    /// Send server-sent events.
    pub stream: Option<bool>,
    /// Options of a stream.
    pub stream_options: Option<StreamOptions>,
    /// vLLM: log-probabilities of the prompt's tokens, with this many most likely ones each.
    pub prompt_logprobs: Option<usize>,
    /// vLLM: also return token ids.
    pub return_token_ids: Option<bool>,
    /// Speculative tokens per pass by prompt lookup; never changes the output.
    pub prompt_lookup: Option<usize>,
    #[serde(default)]
    tools: Option<serde_json::Value>,
    #[serde(default)]
    tool_choice: Option<serde_json::Value>,
    #[serde(default)]
    response_format: Option<serde_json::Value>,
    #[serde(default)]
    min_tokens: Option<usize>,
}

/// Options of a stream.
#[derive(Clone, Copy, Debug, Default, Deserialize, ToSchema)]
pub struct StreamOptions {
    /// End with a chunk that has no choices and the usage of the request.
    #[serde(default)]
    pub include_usage: Option<bool>,
}

/// A text or a list of texts.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(untagged, expecting = "`stop` is a text or a list of texts")]
pub enum StopField {
    /// One text.
    One(String),
    /// Several.
    Many(Vec<String>),
}

impl CommonFields {
    /// Refuses fields that would change the answer and are not supported.
    pub fn check_supported(&self) -> ApiResult<()> {
        let is_none = |value: &Option<serde_json::Value>| value.as_ref().is_none_or(|value| value.is_null());
        let chooses_none = self.tool_choice.as_ref().is_some_and(|choice| choice == "none");
        let has_tools = self.tools.as_ref().is_some_and(|tools| tools.as_array().is_none_or(|list| !list.is_empty()));
        if !is_none(&self.tools) && has_tools && !chooses_none {
            return Err(ApiError::refused("tools", "the model's calls are not parsed; set `tool_choice` to \"none\""));
        }
        if self.tool_choice.as_ref().is_some_and(|choice| choice != "none" && choice != "auto" && !choice.is_null()) {
            return Err(ApiError::refused("tool_choice", "only \"none\" is"));
        }
        if let Some(format) = self.response_format.as_ref().filter(|format| !format.is_null())
            && format.get("type").is_none_or(|kind| kind != "text")
        {
            return Err(ApiError::refused("response_format", "only {\"type\": \"text\"} is"));
        }
        match self.min_tokens {
            Some(1..) => Err(ApiError::refused("min_tokens", "use `ignore_eos` or `logit_bias`")),
            _ => Ok(()),
        }
    }

    /// The sampling settings.
    pub fn sampling(&self) -> ApiResult<Sampling> {
        let within = |name: &str, value: Option<f32>, range: std::ops::RangeInclusive<f32>, default: f32| {
            let value = value.unwrap_or(default);
            match range.contains(&value) {
                true => Ok(value),
                false => {
                    let (low, high) = (range.start(), range.end());
                    Err(ApiError::field(name, format!("`{name}` is {value}; it must be from {low} to {high}")))
                }
            }
        };
        let top_k = self.top_k.unwrap_or(0);
        if top_k < -1 {
            return Err(ApiError::field("top_k", format!("`top_k` is {top_k}; it must be -1, 0 or more")));
        }
        let sampling = Sampling {
            temperature: within("temperature", self.temperature, 0.0..=2.0, 1.0)?,
            top_k: usize::try_from(top_k).unwrap_or(0),
            top_p: within("top_p", self.top_p, f32::MIN_POSITIVE..=1.0, 1.0)?,
            min_p: within("min_p", self.min_p, 0.0..=1.0, 0.0)?,
            repetition_penalty: within("repetition_penalty", self.repetition_penalty, 0.01..=100.0, 1.0)?,
            presence_penalty: within("presence_penalty", self.presence_penalty, -2.0..=2.0, 0.0)?,
            frequency_penalty: within("frequency_penalty", self.frequency_penalty, -2.0..=2.0, 0.0)?,
            logit_bias: self.logit_bias()?,
            // Clients send negative seeds; each is a seed of its own.
            seed: self.seed.map_or_else(ids::seed, |seed| seed as u64),
        };
        Ok(sampling)
    }

    fn logit_bias(&self) -> ApiResult<Vec<(u32, f32)>> {
        let bias = |(key, &bias): (&String, &f32)| {
            let token = key.parse::<u32>().map_err(|_| {
                ApiError::field("logit_bias", format!("`logit_bias` has the key {key:?}, which is not a token id"))
            })?;
            match (-100.0..=100.0).contains(&bias) {
                true => Ok((token, bias)),
                false => Err(ApiError::field(
                    "logit_bias",
                    format!("`logit_bias` of token {token} is {bias}; it must be from -100 to 100"),
                )),
            }
        };
        self.logit_bias.iter().flatten().map(bias).collect()
    }

    /// The stop strings.
    pub fn stops(&self) -> ApiResult<StopStrings> {
        let list = match &self.stop {
            None => Vec::new(),
            Some(StopField::One(text)) => vec![text.clone()],
            Some(StopField::Many(texts)) => texts.clone(),
        };
        StopStrings::new(list).map_err(|error| ApiError::from(error).with_param("stop"))
    }

    /// The number of choices per prompt.
    pub fn n(&self, most: usize) -> ApiResult<usize> {
        match self.n.unwrap_or(1) {
            n if (1..=most).contains(&n) => Ok(n),
            n => Err(ApiError::field("n", format!("`n` is {n}; it must be from 1 to {most}"))),
        }
    }

    /// Whether to stream.
    pub fn streams(&self) -> ApiResult<bool> {
        let streams = self.stream.unwrap_or(false);
        if self.stream_options.is_some() && !streams {
            return Err(ApiError::field("stream_options", "`stream_options` needs `stream: true`"));
        }
        if self.prompt_logprobs.is_some() && streams {
            return Err(ApiError::field("prompt_logprobs", "`prompt_logprobs` is not available in a stream"));
        }
        Ok(streams)
    }

    /// Whether a stream ends with its usage.
    pub fn includes_usage(&self) -> bool {
        self.stream_options.and_then(|options| options.include_usage).unwrap_or(false)
    }
}

/// A completion request as the scheduler needs it, apart from its prompts.
pub struct GenerationFields<'a> {
    pub common: &'a CommonFields,
    pub plan: &'a PlanFields,
    /// New tokens; as many as fit if absent.
    pub max_tokens: Option<usize>,
    /// The name of that field in the request.
    pub max_tokens_field: &'static str,
    /// Log-probabilities of generated tokens, with this many most likely ones.
    pub logprobs: Option<usize>,
    /// Also return the prompt.
    pub echo: bool,
}
