//! Byte-level BPE stored as ranked byte strings: tiktoken files and Mistral's `tekken.json`.
//!
//! Both merge the pair whose result has the lowest rank. The equivalent list of merges is every
//! split of a token into two tokens, in the order of the ranks.

use super::super::byte_to_char;
use super::super::merges::{MAX_TOKEN_BYTES, check_lengths};
use super::bpe::QWEN;
use super::settings::TokenizerSettings;
use super::{PostProcessor, TokenizerParts, byte_level, damaged, split_then_byte_level};
use crate::Result;
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::path::Path;

/// Llama 3's pre-tokenizer pattern, which transformers uses for all tiktoken files.
const LLAMA_3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// The rank of each token's bytes.
type Ranks = HashMap<Vec<u8>, u32>;

/// Converts a tiktoken file: a base64 token and its rank per line.
pub(super) fn tiktoken(
    file: &Path,
    bytes: &[u8],
    mut settings: TokenizerSettings,
) -> Result<(Value, TokenizerSettings)> {
    let text =
        std::str::from_utf8(bytes).map_err(|_| damaged(file, "neither a SentencePiece model nor a tiktoken file"))?;
    let mut ranks = Ranks::new();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.is_empty()) {
        let entry =
            line.split_once(' ').and_then(|(token, rank)| Some((BASE64.decode(token).ok()?, rank.parse().ok()?)));
        let Some((token, rank)) = entry.filter(|(token, _)| (1..=MAX_TOKEN_BYTES).contains(&token.len())) else {
            return Err(damaged(file, format!("line {} is not a base64 token and its rank", number + 1)));
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
        // Gaps between the fixed ids become reserved tokens.
        let fixed: HashMap<u32, String> = settings
            .fixed()
            .into_iter()
            .filter_map(|(id, token)| Some((id, super::special::token_text(token)?)))
            .collect();
        let last = fixed.keys().max().map_or(0, |last| last.saturating_add(1));
        if last > count + (1 << 16) {
            return Err(damaged(file, format!("token id {} is far beyond the {count} tokens of the file", last - 1)));
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

/// The special tokens of older files, which do not list them.
const DEFAULT_SPECIAL: [&str; 20] = [
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

/// Converts `tekken.json`: special tokens first, then byte tokens in the order of their ranks; adds
/// `<s>`.
pub(super) fn tekken(file: &Path, bytes: &[u8], mut settings: TokenizerSettings) -> Result<(Value, TokenizerSettings)> {
    let tekken: Tekken =
        serde_json::from_slice(bytes).map_err(|error| damaged(file, format!("not a tekken tokenizer: {error}")))?;
    let listed = match tekken.special_tokens {
        Some(mut special) => {
            special.sort_by_key(|token| token.rank);
            if special.iter().enumerate().any(|(index, token)| token.rank != index) {
                return Err(damaged(file, "the ranks of its special tokens have gaps"));
            }
            special.into_iter().map(|token| token.token_str).collect()
        }
        None => DEFAULT_SPECIAL.map(str::to_owned).to_vec(),
    };
    let count = tekken.config.default_num_special_tokens.unwrap_or(listed.len());
    if count > 1 << 20 || count < listed.len() {
        return Err(damaged(
            file,
            format!("it lists {} special tokens, and default_num_special_tokens is {count}", listed.len()),
        ));
    }
    let fill = (listed.len()..count).map(|id| format!("<SPECIAL_{id}>"));
    let special: Vec<String> = listed.iter().cloned().chain(fill).collect();
    // The file may contain more tokens than the model uses.
    let ordinary = tekken.config.default_vocab_size.map_or(usize::MAX, |size| size.saturating_sub(count));
    let mut ranks = Ranks::new();
    for (rank, token) in (0..).zip(tekken.vocab.iter().take(ordinary)) {
        let bytes = BASE64.decode(&token.token_bytes).ok().filter(|bytes| (1..=MAX_TOKEN_BYTES).contains(&bytes.len()));
        if bytes.is_none_or(|bytes| ranks.insert(bytes, rank).is_some()) {
            return Err(damaged(file, format!("token {rank} is not valid base64, or occurs twice")));
        }
    }
    let roles = [("bos_token", "<s>"), ("eos_token", "</s>"), ("unk_token", "<unk>"), ("pad_token", "<pad>")];
    let present = roles.into_iter().filter(|(_, text)| special.iter().any(|token| token == text));
    settings.fill(&present.collect::<Vec<_>>());
    let added = special.iter().map(|text| (text.clone(), true)).collect();
    let mut parts = parts(file, ranks, count as u32, &tekken.config.pattern, added)?;
    for (id, text) in (0..).zip(special) {
        parts.model["vocab"][&text] = json!(id);
        parts.ids.insert(text, id);
    }
    parts.post_processor = PostProcessor::Template(&["bos_token"], &[]);
    Ok((parts.assemble(file, &settings)?, settings))
}

/// The parts of a tokenizer whose ids are rank + `offset`.
fn parts(file: &Path, ranks: Ranks, offset: u32, pattern: &str, added: Vec<(String, bool)>) -> Result<TokenizerParts> {
    if (0..=255u8).any(|byte| !ranks.contains_key(&[byte][..])) {
        return Err(damaged(file, "not every byte has a token"));
    }
    check_lengths(ranks.keys().map(Vec::len)).map_err(|problem| damaged(file, problem))?;
    let to_chars = |bytes: &[u8]| bytes.iter().map(|byte| byte_to_char(*byte)).collect::<String>();
    let mut merges: Vec<(u32, (u32, u32), [String; 2])> = Vec::new();
    for (token, rank) in &ranks {
        for at in 1..token.len() {
            let (left, right) = token.split_at(at);
            if let (Some(first), Some(second)) = (ranks.get(left), ranks.get(right)) {
                merges.push((*rank, (*first, *second), [to_chars(left), to_chars(right)]));
            }
        }
    }
    merges.sort_by_key(|(rank, halves, _)| (*rank, *halves));
    let merges: Vec<[String; 2]> = merges.into_iter().map(|(.., pair)| pair).collect();
    let ids: HashMap<String, u32> = ranks.iter().map(|(token, rank)| (to_chars(token), rank + offset)).collect();
    let model = json!({
        "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null, "end_of_word_suffix": null,
        "fuse_unk": false, "byte_fallback": false, "ignore_merges": true, "vocab": ids, "merges": merges,
    });
    Ok(TokenizerParts {
        model,
        ids,
        normalizer: Value::Null,
        pre_tokenizer: split_then_byte_level(pattern),
        decoder: byte_level(true),
        post_processor: PostProcessor::BosEosFlags,
        added,
    })
}
