//! WordPiece (BERT): `vocab.txt`, one token per line.

use super::settings::{TokenizerClass, TokenizerSettings};
use super::{PostProcessor, TokenizerParts, class_mismatch, damaged};
use crate::Result;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::path::Path;

pub(super) fn convert(file: &Path, vocab: &[u8], settings: TokenizerSettings) -> Result<(Value, TokenizerSettings)> {
    if settings.class != Some(TokenizerClass::Bert) {
        return Err(class_mismatch(file, &settings));
    }
    let text = std::str::from_utf8(vocab).map_err(|_| damaged(file, "not text in UTF-8"))?;
    let ids: HashMap<String, u32> = (0..).zip(text.lines()).map(|(id, line)| (line.to_owned(), id)).collect();
    let unknown = settings.token("unk_token").unwrap_or_default();
    if !ids.contains_key(&unknown) {
        return Err(damaged(file, format!("the unknown token {unknown:?} is not in the vocabulary")));
    }
    let parts = TokenizerParts {
        model: json!({"type": "WordPiece", "unk_token": unknown, "continuing_subword_prefix": "##",
                      "max_input_chars_per_word": 100, "vocab": ids}),
        ids,
        normalizer: json!({"type": "BertNormalizer", "clean_text": true,
                           "handle_chinese_chars": settings.flag("tokenize_chinese_chars", true),
                           "strip_accents": settings.values().get("strip_accents"),
                           "lowercase": settings.flag("do_lower_case", true)}),
        pre_tokenizer: json!({"type": "BertPreTokenizer"}),
        decoder: json!({"type": "WordPiece", "prefix": "##", "cleanup": true}),
        post_processor: PostProcessor::Template(&["cls_token"], &["sep_token"]),
        added: Vec::new(),
    };
    Ok((parts.assemble(file, &settings)?, settings))
}
