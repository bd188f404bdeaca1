//! BPE stored as `vocab.json` and `merges.txt`: byte-level (GPT-2) or over words (GPT-1).

use super::settings::{TokenizerClass, TokenizerSettings};
use super::{PostProcessor, TokenizerParts, byte_level, class_mismatch, damaged, split_then_byte_level};
use crate::Result;
use crate::files::{MAX_VOCABULARY_BYTES, read_small};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::path::Path;

/// Qwen's pre-tokenizer pattern.
pub(super) const QWEN: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

pub(super) fn convert(file: &Path, vocab: &[u8], settings: TokenizerSettings) -> Result<(Value, TokenizerSettings)> {
    let ids: HashMap<String, u32> =
        serde_json::from_slice(vocab).map_err(|error| damaged(file, format!("not a valid vocabulary: {error}")))?;
    let merges = merges(&file.with_file_name("merges.txt"))?;
    if settings.class == Some(TokenizerClass::OpenAiGpt) {
        let parts = gpt1(ids, &merges, &settings);
        return Ok((parts.assemble(file, &settings)?, settings));
    }
    let add_prefix_space = settings.flag("add_prefix_space", false);
    let (normalizer, pre_tokenizer, post_processor) = match settings.class {
        Some(TokenizerClass::Gpt2) => (Value::Null, byte_level(add_prefix_space), PostProcessor::BosEosFlags),
        Some(TokenizerClass::GptNeoX) => {
            (json!({"type": "NFC"}), byte_level(add_prefix_space), PostProcessor::BosEosFlags)
        }
        Some(TokenizerClass::Roberta) => {
            (Value::Null, byte_level(add_prefix_space), PostProcessor::Template(&["cls_token"], &["sep_token"]))
        }
        Some(TokenizerClass::Qwen2) => {
            (json!({"type": "NFC"}), split_then_byte_level(QWEN), PostProcessor::BosEosFlags)
        }
        _ => return Err(class_mismatch(file, &settings)),
    };
    let model = json!({
        "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": "", "end_of_word_suffix": "",
        "fuse_unk": false, "byte_fallback": false, "ignore_merges": false, "vocab": ids, "merges": merges,
    });
    let parts = TokenizerParts {
        model,
        ids,
        normalizer,
        pre_tokenizer,
        decoder: byte_level(true),
        post_processor,
        added: Vec::new(),
    };
    Ok((parts.assemble(file, &settings)?, settings))
}

/// GPT-1: BERT's normalizer and pre-tokenizer, with an end-of-word suffix.
fn gpt1(ids: HashMap<String, u32>, merges: &[[String; 2]], settings: &TokenizerSettings) -> TokenizerParts {
    const END_OF_WORD: &str = "</w>";
    TokenizerParts {
        model: json!({
            "type": "BPE", "dropout": null, "unk_token": settings.token("unk_token"), "continuing_subword_prefix": "",
            "end_of_word_suffix": END_OF_WORD, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false, "vocab": ids,
            "merges": merges,
        }),
        ids,
        normalizer: json!({"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
                           "strip_accents": null, "lowercase": true}),
        pre_tokenizer: json!({"type": "BertPreTokenizer"}),
        decoder: json!({"type": "BPEDecoder", "suffix": END_OF_WORD}),
        post_processor: PostProcessor::BosEosFlags,
        added: Vec::new(),
    }
}

/// Reads the merges: a pair of tokens per line, after an optional `#version` line.
fn merges(path: &Path) -> Result<Vec<[String; 2]>> {
    let text = read_small(path, MAX_VOCABULARY_BYTES)?;
    let text = String::from_utf8(text).map_err(|_| damaged(path, "not text in UTF-8"))?;
    let lines = text.lines().enumerate().filter(|(_, line)| !line.starts_with("#version") && !line.is_empty());
    let pair = |(number, line): (usize, &str)| match line.split_once(' ') {
        Some((left, right)) if !right.contains(' ') => Ok([left.to_owned(), right.to_owned()]),
        _ => Err(damaged(path, format!("line {} is not two tokens", number + 1))),
    };
    lines.map(pair).collect()
}
