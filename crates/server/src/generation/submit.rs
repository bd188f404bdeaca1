//! Checks a completion request and submits it to the scheduler.

use super::fields::GenerationFields;
use super::prompt::Prompt;
use super::run::{PromptRun, RunContext};
use crate::api_error::{ApiError, ApiResult};
use crate::registry::ModelUse;
use crate::state::AppState;
use pellucid_engine::{GenerateOptions, LogprobOptions, Request};

/// Most speculative tokens per pass.
const MAX_LOOKUP: usize = 64;

/// A submitted completion request.
pub struct Call {
    pub model: ModelUse,
    /// One for each prompt. Choices are numbered prompt by prompt.
    pub runs: Vec<PromptRun>,
    pub prompt_tokens: usize,
}

/// Submits one request of the scheduler for each prompt. The work is a few milliseconds of
/// encoding and checking, so callers run it on a blocking thread.
pub fn submit(
    state: &AppState,
    model: ModelUse,
    prompts: Vec<Prompt>,
    fields: &GenerationFields<'_>,
) -> ApiResult<Call> {
    let (common, limits) = (fields.common, &state.options.limits);
    common.check_supported()?;
    let n = common.n(state.options.scheduler.max_rows)?;
    if prompts.len() * n > limits.rows {
        let message = format!("the request has {} prompts × {n} choices; the limit is {}", prompts.len(), limits.rows);
        return Err(ApiError::field(if n == 1 { "prompt" } else { "n" }, message));
    }
    let (sampling, stops) = (common.sampling()?, common.stops()?);
    let vocab = model.loaded.model.program().architecture().vocab;
    let biased = sampling.logit_bias.iter().map(|(token, _)| ("logit_bias", *token));
    let stopping = common.stop_token_ids.iter().flatten().map(|&token| ("stop_token_ids", token));
    let input = prompts.iter().flat_map(|prompt| &prompt.tokens).map(|&token| ("prompt", token));
    if let Some((field, token)) = biased.chain(stopping).chain(input).find(|(_, token)| *token as usize >= vocab) {
        let message = format!("`{field}` has token {token}, but the vocabulary has {vocab} tokens");
        return Err(ApiError::field(field, message));
    }
    if let Some(count) = common.prompt_lookup.filter(|count| *count > MAX_LOOKUP) {
        let message = format!("`prompt_lookup` is {count}; it must be from 0 to {MAX_LOOKUP}");
        return Err(ApiError::field("prompt_lookup", message));
    }
    for (name, count) in [("logprobs", fields.logprobs), ("prompt_logprobs", common.prompt_logprobs)] {
        if count.is_some_and(|count| count > limits.logprobs) {
            let message = format!("`{name}` asks for more than {} tokens, the limit of this server", limits.logprobs);
            return Err(ApiError::field(name, message));
        }
    }
    let loaded = &model.loaded;
    let mut eos = if common.ignore_eos.unwrap_or(false) { Vec::new() } else { loaded.eos.clone() };
    eos.extend(common.stop_token_ids.iter().flatten());
    let echoed = fields.logprobs.filter(|_| fields.echo);
    let plan = fields.plan.plan(&state.standing, loaded)?;
    let streams_captures = fields.plan.stream_captures.unwrap_or(false);
    if streams_captures && !common.streams()? {
        return Err(ApiError::field("stream_captures", "`stream_captures` needs `stream: true`"));
    }
    let mut runs = Vec::with_capacity(prompts.len());
    let mut prompt_tokens = 0;
    let prompts_count = prompts.len();
    for (index, prompt) in prompts.into_iter().enumerate() {
        let max_tokens = max_tokens(&model, fields, prompt.tokens.len(), limits.max_tokens)?;
        let options = GenerateOptions {
            // A request for no tokens still computes its prompt; the token is dropped.
            max_new: max_tokens.max(1),
            sampling: sampling.clone(),
            eos: eos.clone(),
            lookup: common.prompt_lookup.unwrap_or(0),
            captures: fields.plan.capture_options(),
            adapters: model.row_adapters(),
            logprobs: LogprobOptions { generated: fields.logprobs, prompt: echoed.max(common.prompt_logprobs) },
            ..GenerateOptions::default()
        };
        let inputs = vec![prompt.tokens.clone(); n];
        let plan = fields.plan.prepare(plan.clone(), loaded, &inputs, prompt.chat.as_ref())?;
        let mut request = Request { inputs, plan: plan.clone(), options, ..Request::default() };
        let texts = match loaded.tokenizer {
            Some(_) => Some(loaded.request_text(n, &stops)?),
            None if stops.is_empty() => None,
            None => return Err(ApiError::from(loaded.request_text(n, &stops).err().unwrap_or_else(no_tokenizer))),
        };
        if let Some(texts) = &texts {
            texts.end_rows_of(&mut request);
        }
        let handle = model.scheduler.submit(request).map_err(|error| {
            let error = fields.plan.locate(error);
            if prompts_count > 1 { error.within(&format!("prompt {index}")) } else { error }
        })?;
        prompt_tokens += prompt.tokens.len();
        let context = RunContext {
            state: state.clone(),
            model: model.clone(),
            prompt,
            plan,
            first_choice: index * n,
            max_tokens,
            eos: eos.clone(),
            echo: fields.echo,
            logprobs: fields.logprobs,
            prompt_logprobs: common.prompt_logprobs,
            streams_captures,
        };
        runs.push(PromptRun::new(context, handle, texts, n));
    }
    state.metrics.count_prompt(&model.id, prompt_tokens);
    Ok(Call { model, runs, prompt_tokens })
}

fn no_tokenizer() -> pellucid_models::Error {
    pellucid_models::Error::usage("the model has no tokenizer", "give no stop strings")
}

/// The number of new tokens: as asked for, or as many as context and server allow.
fn max_tokens(model: &ModelUse, fields: &GenerationFields<'_>, prompt: usize, limit: usize) -> ApiResult<usize> {
    // The last new token is not fed back, so a context of n leaves n + 1 − prompt new tokens.
    let left = model.context().map(|context| (context + 1).saturating_sub(prompt));
    let exceeded =
        |message: String, param: &str| Err(ApiError::field(param, message).with_code("context_length_exceeded"));
    let field = fields.max_tokens_field;
    if left == Some(0) {
        let context = model.context().unwrap_or(0);
        let message =
            format!("the prompt has {prompt} tokens, and the model's context has {context}; shorten the prompt");
        return exceeded(message, if field == "max_tokens" { "prompt" } else { "messages" });
    }
    match fields.max_tokens {
        None => Ok(left.unwrap_or(limit).min(limit)),
        Some(asked) if asked > limit => {
            let message = format!("`{field}` is {asked}; the limit of this server is {limit} (--max-tokens)");
            Err(ApiError::field(field, message))
        }
        Some(asked) if left.is_some_and(|left| asked > left) => {
            let context = model.context().unwrap_or(0);
            let message = format!(
                "the prompt has {prompt} tokens and `{field}` is {asked}; the model's context has {context} positions"
            );
            exceeded(message, field)
        }
        Some(asked) => Ok(asked),
    }
}
