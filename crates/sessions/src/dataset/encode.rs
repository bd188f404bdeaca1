//! Tokens of prompts and labels.

use super::PromptExample;
use crate::config::{AnswerMode, DatasetConfig, LoadedConfig, Padding};
use pellucid_models::tokenizer::Tokenizer;
use pellucid_models::{Error, LoadedModel, Result};

/// An example as the ops see it.
#[derive(Clone, Debug, PartialEq)]
pub struct Example {
    /// Index in the session, from 0.
    pub index: usize,
    /// Number of its batch.
    pub batch: usize,
    /// The prompt.
    pub prompt: String,
    /// Its tokens, after `pads` pad tokens.
    pub tokens: Vec<u32>,
    /// Leading tokens that are padding, which no other token attends to.
    pub pads: usize,
    /// Tokens of each label.
    pub labels: Vec<Vec<u32>>,
    /// Index of the correct label; `None` without labels.
    pub label: Option<usize>,
}

/// Encodes prompts and labels with a model's tokenizer.
pub fn encode(loaded: &LoadedConfig, model: &LoadedModel, prompts: Vec<PromptExample>) -> Result<Vec<Example>> {
    let config = &loaded.config.dataset;
    let batch_size = config.batch_size.unwrap_or(2);
    if batch_size == 0 {
        return Err(loaded.error(&["dataset", "batch_size"], "`batch_size` is 0", "a batch has at least one example"));
    }
    let tokenizer = model.tokenizer()?;
    let architecture = model.model.program().architecture();
    let (context, vocab) = (architecture.context.unwrap_or(usize::MAX), architecture.vocab);
    let encoded = prompts.into_iter().enumerate().map(|(index, example)| {
        let tokens = encode_prompt(tokenizer, &example.prompt, config.bos).map_err(|error| at(&example, error))?;
        let labels = example.labels.iter().map(|label| encode_label(tokenizer, config, &example.prompt, label));
        let labels = labels.collect::<Result<Vec<_>>>().map_err(|error| at(&example, error))?;
        if let Some(&token) = labels.iter().flatten().find(|&&token| token as usize >= vocab) {
            return Err(Error::usage(
                format!("{}: a label has token {token}, but the model has logits for {vocab} tokens", example.place),
                "choose another label",
            ));
        }
        let longest = labels.iter().map(Vec::len).max().unwrap_or(0).saturating_sub(1);
        if tokens.is_empty() {
            return Err(Error::usage(
                format!("{}: the prompt is empty", example.place),
                "give it a text, let it start with BOS (`dataset.bos = true`), or leave the example out",
            ));
        }
        if tokens.len() + longest > context {
            return Err(Error::usage(
                format!("{}: the prompt has {} tokens; this model takes 1 to {context}", example.place, tokens.len()),
                "shorten the prompt or its template, or leave the example out with `offset` and `limit`",
            ));
        }
        let (prompt, label) = (example.prompt, example.label);
        Ok(Example { index, batch: index / batch_size, prompt, tokens, pads: 0, labels, label })
    });
    let mut examples = encoded.collect::<Result<Vec<Example>>>()?;
    pad(loaded, tokenizer, context, &mut examples)?;
    Ok(examples)
}

fn at(example: &PromptExample, error: Error) -> Error {
    let remedy = error.remedy().cloned().unwrap_or_else(|| "check the example".into());
    Error::usage(format!("{}: {error}", example.place), remedy)
}

fn encode_prompt(tokenizer: &Tokenizer, prompt: &str, bos: Option<bool>) -> Result<Vec<u32>> {
    match bos {
        None => tokenizer.encode(prompt, true),
        Some(false) => tokenizer.encode(prompt, false),
        Some(true) => {
            let Some(bos) = tokenizer.special().bos else {
                return Err(Error::usage("this tokenizer has no BOS token", "leave out `dataset.bos`"));
            };
            let tokens = tokenizer.encode(prompt, false)?;
            Ok(std::iter::once(bos).chain(tokens.into_iter().skip_while(|&token| token == bos)).collect())
        }
    }
}

/// Tokens of a label. A label of one token is looked up in the vocabulary; otherwise it is encoded
/// as a continuation of its prompt.
fn encode_label(tokenizer: &Tokenizer, config: &DatasetConfig, prompt: &str, label: &str) -> Result<Vec<u32>> {
    if let Some(token) = tokenizer.find(label) {
        return Ok(vec![token]);
    }
    let (whole, start) = (tokenizer.encode(&format!("{prompt}{label}"), false)?, tokenizer.encode(prompt, false)?);
    let tokens = whole.strip_prefix(&start[..]).filter(|tokens| !tokens.is_empty());
    let Some(tokens) = tokens else {
        return Err(Error::usage(
            format!("the label {label:?} is not a continuation of its prompt in tokens"),
            "start the label with a space, or end the prompt without one",
        ));
    };
    match config.answer.unwrap_or_default() {
        AnswerMode::SingleToken if tokens.len() > 1 => Err(Error::usage(
            format!("the label {label:?} is {} tokens, not one", tokens.len()),
            "check its leading space, or set `dataset.answer` to \"first_token\" or \"sequence\"",
        )),
        AnswerMode::SingleToken | AnswerMode::Sequence => Ok(tokens.to_vec()),
        AnswerMode::FirstToken => Ok(tokens[..1].to_vec()),
    }
}

/// Adds the pad tokens of the modes that reproduce numbers of other libraries.
fn pad(loaded: &LoadedConfig, tokenizer: &Tokenizer, context: usize, examples: &mut [Example]) -> Result<()> {
    let config = &loaded.config.dataset;
    let padding = config.padding.unwrap_or_default();
    if padding == Padding::Correct {
        return match config.pad_to {
            None => Ok(()),
            Some(_) => {
                let remedy = "set `dataset.padding` to hooked_transformer or hf_arange, or leave `pad_to` out";
                Err(loaded.error(&["dataset", "pad_to"], "rows are not padded in this mode", remedy))
            }
        };
    }
    let special = tokenizer.special();
    let Some(pad) = special.pad else {
        let problem = "this tokenizer has neither a pad token nor an end-of-text token";
        return Err(loaded.error(&["dataset", "padding"], problem, "leave `dataset.padding` out"));
    };
    let longest = examples.iter().map(|example| example.tokens.len()).max().unwrap_or(0);
    let length = config.pad_to.unwrap_or(longest);
    let answer = examples.iter().flat_map(|example| &example.labels).map(Vec::len).max().unwrap_or(1).max(1) - 1;
    if length + answer > context {
        let problem = format!("rows of {length} tokens do not fit the model's context of {context}");
        return Err(loaded.error(&["dataset", "pad_to"], problem, "pad to a smaller length"));
    }
    for example in examples {
        let missing = length.saturating_sub(example.tokens.len());
        let added = match padding {
            // All pads are masked but the last, which is taken for the BOS token.
            Padding::HookedTransformer if special.bos == Some(pad) => missing.min(1),
            Padding::HookedTransformer | Padding::Correct => 0,
            Padding::HfArange => missing,
        };
        example.tokens.splice(0..0, std::iter::repeat_n(pad, added));
        example.pads = if padding == Padding::HfArange { added } else { 0 };
    }
    Ok(())
}
