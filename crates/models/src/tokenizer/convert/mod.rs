//! Converts older tokenizer files to the equivalent `tokenizer.json`.
//!
//! The conversion follows transformers and depends on the tokenizer class that the directory names
//! (`settings`): `vocab.json` and `merges.txt` (`bpe`), SentencePiece models (`sentencepiece`,
//! `sentencepiece_proto`), tiktoken and Mistral's tekken (`ranks`), BERT's `vocab.txt`
//! (`wordpiece`). An unknown class is refused by name, because its files do not define its
//! pre-tokenizer.

mod bpe;
mod ranks;
mod sentencepiece;
mod sentencepiece_proto;
mod settings;
mod wordpiece;

use super::{Sidecars, special};
use crate::files::{FETCH_LFS, LFS_POINTER, MAX_VOCABULARY_BYTES, read_small_if_exists};
use crate::{Error, Result};
use serde_json::{Value, json};
use settings::TokenizerSettings;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// The tokenizer files that can be read, in the order in which they are looked for.
pub const TOKENIZER_FILES: [&str; 9] = [
    super::TOKENIZER_JSON,
    "tekken.json",
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tiktoken.model",
    "*.tiktoken",
    "vocab.json with merges.txt",
    "vocab.txt",
];

/// The result of a conversion.
pub(super) struct ConvertedTokenizer {
    /// The file that was converted.
    pub file: PathBuf,
    /// The equivalent `tokenizer.json`.
    pub json: Vec<u8>,
    /// `tokenizer_config.json` with the defaults of its class filled in.
    pub tokenizer_config: Vec<u8>,
}

/// Converts the tokenizer of a directory without `tokenizer.json`; `None` if it has no tokenizer
/// files.
pub(super) fn from_dir(dir: &Path, sidecars: &Sidecars<'_>) -> Result<Option<ConvertedTokenizer>> {
    let Some((file, bytes)) = find_tokenizer_file(dir)? else { return Ok(None) };
    if bytes.starts_with(LFS_POINTER) {
        return Err(Error::invalid(file, "this is a Git LFS pointer, not the tokenizer", FETCH_LFS));
    }
    let settings = TokenizerSettings::read(dir, sidecars)?;
    let name = file.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let (json, settings) = match name.as_str() {
        "tekken.json" => ranks::tekken(&file, &bytes, settings)?,
        "vocab.json" => bpe::convert(&file, &bytes, settings)?,
        "vocab.txt" => wordpiece::convert(&file, &bytes, settings)?,
        // `tokenizer.model` may be either: 0x0A is the protobuf tag of a SentencePiece model's
        // first piece.
        _ if bytes.first() == Some(&0x0A) => sentencepiece::convert(&file, &bytes, settings)?,
        _ => ranks::tiktoken(&file, &bytes, settings)?,
    };
    let tokenizer_config = settings.values().to_string().into_bytes();
    Ok(Some(ConvertedTokenizer { file, json: json.to_string().into_bytes(), tokenizer_config }))
}

/// The first of [`TOKENIZER_FILES`] that exists, and its contents.
fn find_tokenizer_file(dir: &Path) -> Result<Option<(PathBuf, Vec<u8>)>> {
    let mut names: Vec<String> =
        TOKENIZER_FILES[1..6].iter().map(|name| name.to_string()).chain(files_with_suffix(dir, ".tiktoken")).collect();
    names.extend(["vocab.json", "vocab.txt"].map(str::to_owned));
    for name in names {
        // `vocab.json` without merges is not a supported tokenizer.
        if name == "vocab.json" && !dir.join("merges.txt").is_file() {
            continue;
        }
        if let Some(bytes) = read_small_if_exists(&dir.join(&name), MAX_VOCABULARY_BYTES)? {
            return Ok(Some((dir.join(name), bytes)));
        }
    }
    Ok(None)
}

fn files_with_suffix(dir: &Path, suffix: &str) -> Vec<String> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut names: Vec<String> = names.filter(|name| name.ends_with(suffix)).collect();
    names.sort();
    names
}

/// The parts of a `tokenizer.json`.
struct TokenizerParts {
    model: Value,
    /// The ids of the model's vocabulary.
    ids: HashMap<String, u32>,
    normalizer: Value,
    pre_tokenizer: Value,
    decoder: Value,
    post_processor: PostProcessor,
    /// Added tokens that the settings do not name: text, and whether they are special.
    added: Vec<(String, bool)>,
}

/// The tokens that are added around a text.
enum PostProcessor {
    /// bos and eos, as `add_bos_token` and `add_eos_token` say.
    BosEosFlags,
    /// The tokens of these roles before and after the text.
    Template(&'static [&'static str], &'static [&'static str]),
}

impl TokenizerParts {
    /// Builds `tokenizer.json`, with the special tokens of the settings.
    fn assemble(mut self, file: &Path, settings: &TokenizerSettings) -> Result<Value> {
        let added = settings.added(&mut self.ids, &self.added);
        let (first, last): (Vec<&str>, Vec<&str>) = match self.post_processor {
            PostProcessor::Template(first, last) => (first.to_vec(), last.to_vec()),
            PostProcessor::BosEosFlags => {
                let wanted = |flag: &str, role: &'static str| settings.flag(flag, false).then_some(role);
                (
                    wanted("add_bos_token", "bos_token").into_iter().collect(),
                    wanted("add_eos_token", "eos_token").into_iter().collect(),
                )
            }
        };
        let token = |role: &&str| -> Result<Option<(String, u32)>> {
            // As in transformers, a role without a token is omitted.
            let Some(text) = settings.token(role) else { return Ok(None) };
            match self.ids.get(&text) {
                Some(id) => Ok(Some((text, *id))),
                None => Err(damaged(file, format!("the `{role}` {text:?} is not in the vocabulary"))),
            }
        };
        let tokens =
            |roles: &[&str]| roles.iter().filter_map(|role| token(role).transpose()).collect::<Result<Vec<_>>>();
        Ok(json!({
            "version": "1.0", "truncation": null, "padding": null,
            "added_tokens": added,
            "normalizer": self.normalizer,
            "pre_tokenizer": self.pre_tokenizer,
            "post_processor": template(&tokens(&first)?, &tokens(&last)?),
            "decoder": self.decoder,
            "model": self.model,
        }))
    }
}

/// A `TemplateProcessing` post-processor with tokens before and after the text.
fn template(first: &[(String, u32)], last: &[(String, u32)]) -> Value {
    let piece = |(text, _): &(String, u32)| json!({"SpecialToken": {"id": text, "type_id": 0}});
    let text = |id: &str| json!({"Sequence": {"id": id, "type_id": 0}});
    let around =
        |inner: Vec<Value>| first.iter().map(piece).chain(inner).chain(last.iter().map(piece)).collect::<Vec<Value>>();
    let all = first.iter().chain(last);
    let special: serde_json::Map<String, Value> =
        all.map(|(text, id)| (text.clone(), json!({"id": text, "ids": [id], "tokens": [text]}))).collect();
    json!({"type": "TemplateProcessing", "single": around(vec![text("A")]),
           "pair": around(vec![text("A"), text("B")]), "special_tokens": special})
}

/// A pre-tokenizer that splits by a pattern and then maps bytes to characters.
fn split_then_byte_level(pattern: &str) -> Value {
    json!({"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false},
        {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
    ]})
}

fn byte_level(add_prefix_space: bool) -> Value {
    json!({"type": "ByteLevel", "add_prefix_space": add_prefix_space, "trim_offsets": true, "use_regex": true})
}

fn damaged(file: &Path, problem: impl Into<String>) -> Error {
    Error::invalid(
        file,
        problem,
        "download the tokenizer's files again, or save them as tokenizer.json with transformers",
    )
}

/// The error for a file that does not match the tokenizer class of the directory.
fn class_mismatch(file: &Path, settings: &TokenizerSettings) -> Error {
    Error::unsupported(
        format!("{}: this file cannot be read as {}", file.display(), settings.class_description()),
        "save the tokenizer as tokenizer.json with transformers, if it supports it: \
         python -c \"from transformers import AutoTokenizer as A; A.from_pretrained('DIR').save_pretrained('DIR')\"",
    )
}
