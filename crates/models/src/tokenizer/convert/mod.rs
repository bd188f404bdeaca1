//! Tokenizers in their older forms, made into what `tokenizer.json` would hold.
//!
//! Each form is converted as transformers converts it for the class that the directory names (`settings`): byte-level BPE as
//! `vocab.json` and `merges.txt` (`bpe`), SentencePiece models (`sentencepiece`, `pieces`), byte-level ranks of tiktoken and Mistral's tekken
//! (`ranks`), BERT's `vocab.txt` (`words`). A class that is not known is refused by name: its files do not tell how it cuts text.

mod bpe;
mod pieces;
mod ranks;
mod sentencepiece;
mod settings;
mod words;

use super::{Sidecars, read_optional, special};
use crate::checkpoint::{LFS_POINTER, LFS_REMEDY};
use crate::{Error, Result};
use serde_json::{Value, json};
use settings::Settings;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// The files that hold a tokenizer, by form; in the order in which they are looked for.
pub const FORMS: [&str; 9] = [
    super::FILE,
    "tekken.json",
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tiktoken.model",
    "*.tiktoken",
    "vocab.json with merges.txt",
    "vocab.txt",
];

/// The longest token that is believed: the work on a token grows with the square of its length.
const LONGEST: usize = 4096;

/// A converted tokenizer.
pub(super) struct Converted {
    /// The file that it was made of.
    pub file: PathBuf,
    /// What `tokenizer.json` would hold.
    pub json: Vec<u8>,
    /// `tokenizer_config.json` with what its class fills in.
    pub tokenizer_config: Vec<u8>,
}

/// Converts the tokenizer of a directory that has no `tokenizer.json`; `None` where there is none in any form.
pub(super) fn from_dir(dir: &Path, sidecars: &Sidecars<'_>) -> Result<Option<Converted>> {
    let Some((file, bytes)) = found(dir)? else { return Ok(None) };
    if bytes.starts_with(LFS_POINTER) {
        return Err(Error::invalid(file, "this is a Git LFS pointer, not the tokenizer", LFS_REMEDY));
    }
    let settings = Settings::read(dir, sidecars)?;
    let name = file.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let (json, settings) = match name.as_str() {
        "tekken.json" => ranks::tekken(&file, &bytes, settings)?,
        "vocab.json" => bpe::convert(&file, &bytes, settings)?,
        "vocab.txt" => words::convert(&file, &bytes, settings)?,
        // A SentencePiece model begins with its first piece; tiktoken's lines are text under the same names.
        _ if bytes.first() == Some(&0x0A) => pieces::convert(&file, &bytes, settings)?,
        _ => ranks::tiktoken(&file, &bytes, settings)?,
    };
    let tokenizer_config = settings.values().to_string().into_bytes();
    Ok(Some(Converted { file, json: json.to_string().into_bytes(), tokenizer_config }))
}

/// The first file of a known form, and its contents.
fn found(dir: &Path) -> Result<Option<(PathBuf, Vec<u8>)>> {
    let mut names: Vec<String> =
        FORMS[1..6].iter().map(|name| name.to_string()).chain(with_ending(dir, ".tiktoken")).collect();
    names.extend(["vocab.json", "vocab.txt"].map(str::to_owned));
    for name in names {
        // A vocabulary of words without merges is no tokenizer of a form that is known.
        if name == "vocab.json" && !dir.join("merges.txt").is_file() {
            continue;
        }
        if let Some(bytes) = read_optional(&dir.join(&name))? {
            return Ok(Some((dir.join(name), bytes)));
        }
    }
    Ok(None)
}

fn with_ending(dir: &Path, end: &str) -> Vec<String> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut names: Vec<String> = names.filter(|name| name.ends_with(end)).collect();
    names.sort();
    names
}

/// A tokenizer in parts.
struct Parts {
    model: Value,
    /// The ids of the model's vocabulary.
    ids: HashMap<String, u32>,
    normalizer: Value,
    pre_tokenizer: Value,
    decoder: Value,
    after: After,
    /// Tokens beyond those that the settings name: their text, and whether they are special.
    added: Vec<(String, bool)>,
}

/// What stands around a text.
enum After {
    /// `bos` and `eos`, where the settings say so.
    Flags,
    /// The tokens of these roles.
    Around(&'static [&'static str], &'static [&'static str]),
}

impl Parts {
    /// Puts the parts together, with the special tokens of the settings.
    fn assemble(mut self, file: &Path, settings: &Settings) -> Result<Value> {
        let added = settings.added(&mut self.ids, &self.added);
        let (first, last): (Vec<&str>, Vec<&str>) = match self.after {
            After::Around(first, last) => (first.to_vec(), last.to_vec()),
            After::Flags => {
                let wanted = |flag: &str, role: &'static str| settings.flag(flag, false).then_some(role);
                (
                    wanted("add_bos_token", "bos_token").into_iter().collect(),
                    wanted("add_eos_token", "eos_token").into_iter().collect(),
                )
            }
        };
        let token = |role: &&str| -> Result<Option<(String, u32)>> {
            // A role that no token has is left out, as transformers leaves it out.
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

/// Puts tokens around a text.
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

/// Cuts by a pattern and spells bytes as characters.
fn byte_level_cut(pattern: &str) -> Value {
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

/// What a directory says its tokenizer is cannot be read from these files.
fn unfit(file: &Path, settings: &Settings) -> Error {
    Error::unsupported(
        format!("{}: this file is not read as {}", file.display(), settings.class()),
        "save the tokenizer as tokenizer.json, where transformers can read it: \
         python -c \"from transformers import AutoTokenizer as A; A.from_pretrained('DIR').save_pretrained('DIR')\"",
    )
}
