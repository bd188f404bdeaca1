//! Small tokenizers of every kind, for tests.

use super::{Result, Sidecars, Tokenizer, byte_to_char};
use serde_json::json;
use std::path::Path;

const METASPACE: char = '\u{2581}';

/// Byte-level BPE as in GPT-2: bytes as printable characters, no normalization.
pub fn byte_level_json() -> serde_json::Value {
    let mut vocab: Vec<String> = (0..=255u8).map(|byte| byte_to_char(byte).to_string()).collect();
    vocab.extend(["Ġthe", "th", "the", "Ġt"].map(String::from));
    let vocab: serde_json::Map<_, _> = vocab.into_iter().enumerate().map(|(id, token)| (token, json!(id))).collect();
    json!({
        "version": "1.0", "truncation": {"max_length": 3, "strategy": "LongestFirst", "stride": 0, "direction": "Right"},
        "padding": null, "normalizer": null,
        "added_tokens": [added(260, "<|end|>")],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "post_processor": null,
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "vocab": vocab, "merges": [["t", "h"], ["th", "e"], ["Ġ", "the"], ["Ġ", "t"]]},
    })
}

/// SentencePiece-style BPE as in Llama: prepended metaspace, byte fallback, bos from the
/// post-processor.
pub fn llama_json() -> serde_json::Value {
    let mut vocab = vec!["<unk>".to_owned(), "<s>".into(), "</s>".into()];
    vocab.extend((0..=255u8).map(|byte| format!("<0x{byte:02X}>")));
    vocab.extend(["▁", "a", "t", "h", "e", "th", "the", "▁the", "▁a", "."].map(String::from));
    let vocab: serde_json::Map<_, _> = vocab.into_iter().enumerate().map(|(id, token)| (token, json!(id))).collect();
    json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": [added(0, "<unk>"), added(1, "<s>"), added(2, "</s>")],
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": METASPACE}, {"type": "Replace", "pattern": {"String": " "}, "content": METASPACE}]},
        "pre_tokenizer": null,
        "post_processor": {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}},
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": METASPACE}, "content": " "}, {"type": "ByteFallback"},
            {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true, "vocab": vocab,
                  "merges": [["t", "h"], ["th", "e"], ["▁", "the"], ["▁", "a"]]},
    })
}

pub fn build(json: &serde_json::Value, sidecars: &Sidecars<'_>) -> Result<Tokenizer> {
    Tokenizer::from_bytes(Path::new("dir"), json.to_string().as_bytes(), sidecars)
}

pub fn byte_level() -> Tokenizer {
    build(&byte_level_json(), &Sidecars::default()).expect("a valid tokenizer")
}

pub fn llama() -> Tokenizer {
    let config = br#"{"bos_token":{"content":"<s>"},"eos_token":"</s>","unk_token":"<unk>","pad_token":null}"#;
    build(&llama_json(), &Sidecars { tokenizer_config: Some(config), ..Sidecars::default() })
        .expect("a valid tokenizer")
}

/// WordPiece as in BERT: pieces inside a word start with `##`, spaces come from the decoder.
pub fn wordpiece() -> Tokenizer {
    let mut vocab = vec!["[UNK]".to_owned(), "[SEP]".into()];
    vocab.extend(["the", "a", "t", "h", "e", ".", "do", "##g", "##the", "##a", "##t", "##h", "##e"].map(String::from));
    let vocab: serde_json::Map<_, _> = vocab.into_iter().enumerate().map(|(id, token)| (token, json!(id))).collect();
    let json = json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null,
        "added_tokens": [added(0, "[UNK]"), added(1, "[SEP]")],
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": true},
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                  "max_input_chars_per_word": 100, "vocab": vocab},
    });
    build(&json, &Sidecars::default()).expect("a valid tokenizer")
}

/// BPE as in GPT-1: pieces that end a word have the suffix `</w>`.
pub fn word_suffix() -> Tokenizer {
    let mut vocab = vec!["<unk>".to_owned()];
    vocab.extend(
        ["t", "h", "e", "a", ".", "th", "t</w>", "h</w>", "e</w>", "a</w>", ".</w>", "the</w>"].map(String::from),
    );
    let vocab: serde_json::Map<_, _> = vocab.into_iter().enumerate().map(|(id, token)| (token, json!(id))).collect();
    let json = json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null,
        "added_tokens": [added(0, "<unk>")],
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "decoder": {"type": "BPEDecoder", "suffix": "</w>"},
        "model": {"type": "BPE", "unk_token": "<unk>", "end_of_word_suffix": "</w>", "vocab": vocab,
                  "merges": [["t", "h"], ["th", "e</w>"]]},
    });
    build(&json, &Sidecars::default()).expect("a valid tokenizer")
}

/// SentencePiece's Unigram as in T5 and XLM-R: the metaspace comes from the pre-tokenizer and goes
/// in the decoder.
pub fn unigram() -> Tokenizer {
    let pieces = ["<unk>", "</s>", "▁", "▁the", "▁a", "the", "t", "h", "e", "a", ".", "é", "€", "th"];
    let vocab: Vec<_> = pieces.iter().zip(0..).map(|(piece, rank)| json!([piece, -f64::from(rank)])).collect();
    let metaspace = json!({"type": "Metaspace", "replacement": METASPACE, "prepend_scheme": "always", "split": true});
    let json = json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null,
        "added_tokens": [added(0, "<unk>"), added(1, "</s>")],
        "pre_tokenizer": metaspace, "decoder": metaspace,
        "model": {"type": "Unigram", "unk_id": 0, "byte_fallback": false, "vocab": vocab},
    });
    build(&json, &Sidecars::default()).expect("a valid tokenizer")
}

/// A special token of `added_tokens`.
pub fn added(id: u32, content: &str) -> serde_json::Value {
    json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
           "normalized": false, "special": true})
}
