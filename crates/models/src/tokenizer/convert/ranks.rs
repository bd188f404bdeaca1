//! Byte-level BPE as tokens of bytes by rank: tiktoken's files and Mistral's `tekken.json`.
//!
//! Merging the pair whose result has the lowest rank is what both do; as a list of merges, that is every way to put a token together
//! from two others, in the order of the ranks.

use super::super::level_char;
use super::bpe::QWEN;
use super::settings::Settings;
use super::{After, LONGEST, Parts, byte_level, byte_level_cut, damaged};
use crate::Result;
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::path::Path;

/// How Llama 3 cuts text before merging, which transformers takes for every file of this form.
const LLAMA_3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Tokens of bytes by rank.
type Ranks = HashMap<Vec<u8>, u32>;

/// tiktoken's form: a token in base64 and its rank, a line each.
pub(super) fn tiktoken(file: &Path, bytes: &[u8], mut settings: Settings) -> Result<(Value, Settings)> {
    let text =
        std::str::from_utf8(bytes).map_err(|_| damaged(file, "neither a SentencePiece model nor tiktoken's lines"))?;
    let mut ranks = Ranks::new();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.is_empty()) {
        let entry =
            line.split_once(' ').and_then(|(token, rank)| Some((BASE64.decode(token).ok()?, rank.parse().ok()?)));
        let Some((token, rank)) = entry.filter(|(token, _)| (1..=LONGEST).contains(&token.len())) else {
            return Err(damaged(file, format!("line {} is not a token in base64 and its rank", number + 1)));
        };
        if ranks.insert(token, rank).is_some() {
            return Err(damaged(file, format!("the token of line {} occurs twice", number + 1)));
        }
    }
    let count = ranks.len() as u32;
    let is_qwen = file.file_name().is_some_and(|name| name == "qwen.tiktoken");
    let (pattern, added) = if is_qwen {
        settings.fill(&[("eos_token", "<|endoftext|>")]);
        let named = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"].map(str::to_owned);
        (QWEN, named.into_iter().chain((0..205).map(|i| format!("<|extra_{i}|>"))).collect::<Vec<_>>())
    } else {
        // Ids that the files leave open between those that they fix are kept free.
        let fixed: HashMap<u32, String> = settings
            .fixed()
            .into_iter()
            .filter_map(|(id, token)| Some((id, super::special::token_text(token)?)))
            .collect();
        let last = fixed.keys().max().map_or(0, |last| last.saturating_add(1));
        if last > count + (1 << 16) {
            return Err(damaged(file, format!("token {} is far beyond the {count} of the file", last - 1)));
        }
        let token = |id: u32| fixed.get(&id).cloned().unwrap_or_else(|| format!("<|reserved_token_{id}|>"));
        (LLAMA_3, (count..last).map(token).collect())
    };
    let added = added.into_iter().map(|text| (text, true)).collect();
    let parts = parts(file, ranks, 0, pattern, added)?;
    Ok((parts.assemble(file, &settings)?, settings))
}

#[derive(Deserialize)]
struct Tekken {
    config: TekkenConfig,
    vocab: Vec<TekkenToken>,
    #[serde(default)]
    special_tokens: Option<Vec<TekkenSpecial>>,
}

#[derive(Deserialize)]
struct TekkenConfig {
    pattern: String,
    default_vocab_size: Option<usize>,
    default_num_special_tokens: Option<usize>,
}

#[derive(Deserialize)]
struct TekkenToken {
    token_bytes: String,
}

#[derive(Deserialize)]
struct TekkenSpecial {
    rank: usize,
    token_str: String,
}

/// The special tokens of files from before they listed them.
const OLD_SPECIAL: [&str; 20] = [
    "<unk>",
    "<s>",
    "</s>",
    "[INST]",
    "[/INST]",
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
    "[TOOL_CALLS]",
    "[IMG]",
    "<pad>",
    "[IMG_BREAK]",
    "[IMG_END]",
    "[PREFIX]",
    "[MIDDLE]",
    "[SUFFIX]",
    "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]",
    "[TOOL_CONTENT]",
];

/// Mistral's form: special tokens first, then tokens of bytes in the order of their ranks. Texts begin with `<s>`.
pub(super) fn tekken(file: &Path, bytes: &[u8], mut settings: Settings) -> Result<(Value, Settings)> {
    let tekken: Tekken =
        serde_json::from_slice(bytes).map_err(|error| damaged(file, format!("not a tekken tokenizer: {error}")))?;
    let listed = match tekken.special_tokens {
        Some(mut special) => {
            special.sort_by_key(|token| token.rank);
            if special.iter().enumerate().any(|(place, token)| token.rank != place) {
                return Err(damaged(file, "the ranks of its special tokens have gaps"));
            }
            special.into_iter().map(|token| token.token_str).collect()
        }
        None => OLD_SPECIAL.map(str::to_owned).to_vec(),
    };
    let count = tekken.config.default_num_special_tokens.unwrap_or(listed.len());
    if count > 1 << 20 || count < listed.len() {
        return Err(damaged(file, format!("it has {} special tokens and says {count}", listed.len())));
    }
    let fill = (listed.len()..count).map(|id| format!("<SPECIAL_{id}>"));
    let special: Vec<String> = listed.iter().cloned().chain(fill).collect();
    // The file may hold more tokens than the model has.
    let ordinary = tekken.config.default_vocab_size.map_or(usize::MAX, |size| size.saturating_sub(count));
    let mut ranks = Ranks::new();
    for (rank, token) in (0..).zip(tekken.vocab.iter().take(ordinary)) {
        let bytes = BASE64.decode(&token.token_bytes).ok().filter(|bytes| (1..=LONGEST).contains(&bytes.len()));
        if bytes.is_none_or(|bytes| ranks.insert(bytes, rank).is_some()) {
            return Err(damaged(file, format!("token {rank} is not bytes in base64, or occurs twice")));
        }
    }
    let roles = [("bos_token", "<s>"), ("eos_token", "</s>"), ("unk_token", "<unk>"), ("pad_token", "<pad>")];
    let there = roles.into_iter().filter(|(_, text)| special.iter().any(|token| token == text));
    settings.fill(&there.collect::<Vec<_>>());
    let added = special.iter().map(|text| (text.clone(), true)).collect();
    let mut parts = parts(file, ranks, count as u32, &tekken.config.pattern, added)?;
    for (id, text) in (0..).zip(special) {
        parts.model["vocab"][&text] = json!(id);
        parts.ids.insert(text, id);
    }
    parts.after = After::Around(&["bos_token"], &[]);
    Ok((parts.assemble(file, &settings)?, settings))
}

/// The parts of a tokenizer whose ids are ranks after `offset` others.
fn parts(file: &Path, ranks: Ranks, offset: u32, pattern: &str, added: Vec<(String, bool)>) -> Result<Parts> {
    if (0..=255u8).any(|byte| !ranks.contains_key(&[byte][..])) {
        return Err(damaged(file, "not every byte has a token"));
    }
    let spelt = |bytes: &[u8]| bytes.iter().map(|byte| level_char(*byte)).collect::<String>();
    let mut merges: Vec<(u32, (u32, u32), [String; 2])> = Vec::new();
    for (token, rank) in &ranks {
        for at in 1..token.len() {
            let (left, right) = token.split_at(at);
            if let (Some(first), Some(second)) = (ranks.get(left), ranks.get(right)) {
                merges.push((*rank, (*first, *second), [spelt(left), spelt(right)]));
            }
        }
    }
    merges.sort_by_key(|(rank, halves, _)| (*rank, *halves));
    let merges: Vec<[String; 2]> = merges.into_iter().map(|(.., pair)| pair).collect();
    let ids: HashMap<String, u32> = ranks.iter().map(|(token, rank)| (spelt(token), rank + offset)).collect();
    let model = json!({
        "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null, "end_of_word_suffix": null,
        "fuse_unk": false, "byte_fallback": false, "ignore_merges": true, "vocab": ids, "merges": merges,
    });
    Ok(Parts {
        model,
        ids,
        normalizer: Value::Null,
        pre_tokenizer: byte_level_cut(pattern),
        decoder: byte_level(true),
        after: After::Flags,
        added,
    })
}
