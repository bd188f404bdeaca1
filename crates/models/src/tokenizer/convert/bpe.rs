//! BPE as GPT-2 stored it, over bytes, and the first GPT, over words: `vocab.json` and `merges.txt`.

use super::settings::{Kind, Settings};
use super::{After, Parts, byte_level, byte_level_cut, damaged, unfit};
use crate::{Error, Result};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::path::Path;

/// How Qwen cuts text before merging.
pub(super) const QWEN: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

pub(super) fn convert(file: &Path, vocab: &[u8], settings: Settings) -> Result<(Value, Settings)> {
    let ids: HashMap<String, u32> =
        serde_json::from_slice(vocab).map_err(|error| damaged(file, format!("not a vocabulary: {error}")))?;
    let merges = merges(&file.with_file_name("merges.txt"))?;
    if settings.kind == Some(Kind::OpenAiGpt) {
        let parts = first_gpt(ids, &merges, &settings);
        return Ok((parts.assemble(file, &settings)?, settings));
    }
    let add_prefix_space = settings.flag("add_prefix_space", false);
    let (normalizer, pre_tokenizer, after) = match settings.kind {
        Some(Kind::Gpt2) => (Value::Null, byte_level(add_prefix_space), After::Flags),
        Some(Kind::GptNeoX) => (json!({"type": "NFC"}), byte_level(add_prefix_space), After::Flags),
        Some(Kind::Roberta) => {
            (Value::Null, byte_level(add_prefix_space), After::Around(&["cls_token"], &["sep_token"]))
        }
        Some(Kind::Qwen2) => (json!({"type": "NFC"}), byte_level_cut(QWEN), After::Flags),
        _ => return Err(unfit(file, &settings)),
    };
    let model = json!({
        "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": "", "end_of_word_suffix": "",
        "fuse_unk": false, "byte_fallback": false, "ignore_merges": false, "vocab": ids, "merges": merges,
    });
    let parts = Parts { model, ids, normalizer, pre_tokenizer, decoder: byte_level(true), after, added: Vec::new() };
    Ok((parts.assemble(file, &settings)?, settings))
}

/// The first GPT's way: BERT's words in lower case, whose ends are marked.
fn first_gpt(ids: HashMap<String, u32>, merges: &[[String; 2]], settings: &Settings) -> Parts {
    const END: &str = "</w>";
    Parts {
        model: json!({
            "type": "BPE", "dropout": null, "unk_token": settings.token("unk_token"), "continuing_subword_prefix": "",
            "end_of_word_suffix": END, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false, "vocab": ids,
            "merges": merges,
        }),
        ids,
        normalizer: json!({"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
                           "strip_accents": null, "lowercase": true}),
        pre_tokenizer: json!({"type": "BertPreTokenizer"}),
        decoder: json!({"type": "BPEDecoder", "suffix": END}),
        after: After::Flags,
        added: Vec::new(),
    }
}

/// The merges: a pair of tokens a line, after a line that tells the version.
fn merges(path: &Path) -> Result<Vec<[String; 2]>> {
    let text = std::fs::read(path).map_err(Error::io(path))?;
    let text = String::from_utf8(text).map_err(|_| damaged(path, "not text in UTF-8"))?;
    let lines = text.lines().enumerate().filter(|(_, line)| !line.starts_with("#version") && !line.is_empty());
    let pair = |(number, line): (usize, &str)| match line.split_once(' ') {
        Some((left, right)) if !right.contains(' ') => Ok([left.to_owned(), right.to_owned()]),
        _ => Err(damaged(path, format!("line {} is not two tokens", number + 1))),
    };
    lines.map(pair).collect()
}
