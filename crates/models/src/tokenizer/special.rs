//! The special tokens of a model, collected from the sidecar files of its tokenizer.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::stages::Pipeline;
use crate::{Error, Result};

/// The special tokens of a model.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpecialTokens {
    /// Beginning of text.
    pub bos: Option<u32>,
    /// The tokens that end generation, the main one first.
    pub eos: Vec<u32>,
    /// Padding. Pellucid never pads, and never generates this token.
    pub pad: Option<u32>,
    /// The files name no padding token, so `pad` is eos.
    pub pad_from_eos: bool,
    /// Unknown token, for text that the vocabulary cannot represent.
    pub unk: Option<u32>,
    /// Texts by role, for chat templates: `bos_token`, `eos_token`, `pad_token`, `unk_token`.
    pub texts: BTreeMap<String, String>,
}

/// The files beside `tokenizer.json` that define special tokens; any of them may be missing.
#[derive(Debug, Clone, Copy, Default)]
pub struct Sidecars<'a> {
    /// `tokenizer_config.json`.
    pub tokenizer_config: Option<&'a [u8]>,
    /// `special_tokens_map.json`.
    pub special_tokens_map: Option<&'a [u8]>,
    /// `generation_config.json`.
    pub generation_config: Option<&'a [u8]>,
    /// `config.json`.
    pub config: Option<&'a [u8]>,
}

impl Sidecars<'_> {
    /// The names of the files, in the order of the fields.
    pub const NAMES: [&'static str; 4] =
        ["tokenizer_config.json", "special_tokens_map.json", "generation_config.json", "config.json"];
}

/// Keys of the special tokens' texts.
const ROLES: [&str; 4] = ["bos_token", "eos_token", "pad_token", "unk_token"];

impl SpecialTokens {
    /// Reads the special tokens from the files beside a tokenizer.
    pub(super) fn read(dir: &Path, files: &Sidecars<'_>, tokenizer: &Pipeline) -> Result<SpecialTokens> {
        let parsed = parse_sidecars(dir, files)?;
        let named: Vec<(&str, &Value)> = Sidecars::NAMES.into_iter().zip(&parsed).collect();
        let (texts_in, ids_in) = named.split_at(2);

        let mut texts = BTreeMap::new();
        for role in ROLES {
            // The first file that has the key wins, as in transformers.
            let text = texts_in.iter().find_map(|(_, json)| token_text(json.get(role)?));
            texts.extend(text.map(|text| (role.to_owned(), text)));
        }
        let ids = |role: &str| -> Result<Vec<u32>> {
            for (name, json) in ids_in {
                // Multimodal models keep the text model's settings in `text_config`.
                let stated = [json.get(role), json.get("text_config").and_then(|part| part.get(role))];
                for value in stated.into_iter().flatten() {
                    let ids = token_ids(value).ok_or_else(|| bad_ids(dir, name, role, value))?;
                    if !ids.is_empty() {
                        return Ok(ids);
                    }
                }
            }
            Ok(Vec::new())
        };
        let named = |role: &str| texts.get(role).and_then(|text| tokenizer.token_to_id(text));

        let bos = named("bos_token").or(ids("bos_token_id")?.first().copied());
        let pad = named("pad_token").or(ids("pad_token_id")?.first().copied());
        let unk = named("unk_token");
        // The ids in the configuration take precedence; the tokenizer's eos is only a fallback.
        let mut eos = ids("eos_token_id")?;
        if eos.is_empty() {
            eos.extend(named("eos_token"));
        }
        Ok(SpecialTokens { bos, eos, pad, pad_from_eos: false, unk, texts })
    }

    /// Uses eos as the padding token if none is named.
    pub(super) fn pad_as_eos(&mut self, tokenizer: &Pipeline) {
        if self.pad.is_none() {
            let named = self.texts.get("eos_token").and_then(|text| tokenizer.token_to_id(text));
            self.pad = named.or(self.eos.first().copied());
            self.pad_from_eos = self.pad.is_some();
        }
    }
}

/// Whether the files (in the order of [`Sidecars::NAMES`]) name an eos token and no padding token.
pub(crate) fn pads_with_eos(files: &[Option<Value>; 4]) -> bool {
    let named = |role: &str| files[..2].iter().flatten().any(|json| json.get(role).and_then(token_text).is_some());
    let has_id = |role: &str| {
        let stated = files[2..].iter().flatten().flat_map(|json| {
            [json.get(role), json.get("text_config").and_then(|part| part.get(role))].into_iter().flatten()
        });
        stated.filter_map(token_ids).any(|ids| !ids.is_empty())
    };
    !named("pad_token") && !has_id("pad_token_id") && (named("eos_token") || has_id("eos_token_id"))
}

/// Parses the files, in the order of [`Sidecars::NAMES`]; `null` for missing ones.
pub(super) fn parse_sidecars(dir: &Path, files: &Sidecars<'_>) -> Result<[Value; 4]> {
    let contents = [files.tokenizer_config, files.special_tokens_map, files.generation_config, files.config];
    let mut parsed = [Value::Null, Value::Null, Value::Null, Value::Null];
    for ((value, name), bytes) in parsed.iter_mut().zip(Sidecars::NAMES).zip(contents) {
        *value = parse(dir, name, bytes)?;
    }
    Ok(parsed)
}

fn parse(dir: &Path, name: &str, bytes: Option<&[u8]>) -> Result<Value> {
    let Some(bytes) = bytes else { return Ok(Value::Null) };
    let remedy = "download the file again";
    let value: Value = serde_json::from_slice(bytes)
        .map_err(|error| Error::invalid(dir.join(name), format!("not valid JSON: {error}"), remedy))?;
    if value.is_object() { Ok(value) } else { Err(Error::invalid(dir.join(name), "not a JSON object", remedy)) }
}

/// A token's text: a string, or an object with `content`.
pub(super) fn token_text(value: &Value) -> Option<String> {
    value.as_str().or_else(|| value.get("content")?.as_str()).map(str::to_owned)
}

/// One id or a list of them; null and −1 mean none. `None` for anything else.
fn token_ids(value: &Value) -> Option<Vec<u32>> {
    let one = |value: &Value| -> Option<Option<u32>> {
        match value {
            Value::Null => Some(None),
            Value::Number(number) if number.as_i64() == Some(-1) => Some(None),
            value => u32::try_from(value.as_u64()?).ok().map(Some),
        }
    };
    match value {
        Value::Array(list) => {
            list.iter().map(one).collect::<Option<Vec<_>>>().map(|ids| ids.into_iter().flatten().collect())
        }
        value => one(value).map(|id| id.into_iter().collect()),
    }
}

fn bad_ids(dir: &Path, file: &str, role: &str, value: &Value) -> Error {
    let problem = format!("`{role}` is {value}, which is neither a token id nor a list of them");
    Error::invalid(dir.join(file), problem, "correct the value or download the file again")
}
