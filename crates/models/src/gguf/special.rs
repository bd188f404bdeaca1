//! The special token ids of a GGUF file, and whether encoding adds them.

use super::pre_tokenizer::pre_tokenizer;
use super::{GgufFile, Value};
use crate::Result;

/// Special token ids, and whether encoding adds them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GgufSpecialTokens {
    /// Beginning of text.
    pub bos: Option<u32>,
    /// End of text.
    pub eos: Option<u32>,
    /// End of a chat turn.
    pub eot: Option<u32>,
    /// Padding.
    pub pad: Option<u32>,
    /// Unknown token.
    pub unk: Option<u32>,
    /// Whether encoding prepends `bos`.
    pub add_bos: bool,
    /// Whether encoding appends `eos`.
    pub add_eos: bool,
    /// The Jinja chat template.
    pub chat_template: Option<String>,
}

/// Reads the special tokens of a file.
///
/// # Errors
/// If an id is outside the vocabulary, or a value has the wrong type.
pub fn special_tokens(file: &GgufFile) -> Result<GgufSpecialTokens> {
    let vocabulary = match file.value("tokenizer.ggml.tokens") {
        Some(Value::List(list)) => list.len,
        _ => usize::MAX,
    };
    let id = |name: &str| {
        let key = format!("tokenizer.ggml.{name}_token_id");
        // Some files write −1 for "none".
        if let Some(Value::Signed(..0)) = file.value(&key) {
            return Ok(None);
        }
        match file.number(&key)? {
            Some(id) if id >= vocabulary => {
                Err(file.damaged(format!("{key} is {id}, but the vocabulary has {vocabulary} tokens")))
            }
            id => Ok(id.and_then(|id| u32::try_from(id).ok())),
        }
    };
    // Default of `add_bos_token`: true for SentencePiece; for BPE it depends on the pre-tokenizer.
    let default_bos = match file.text("tokenizer.ggml.model")? {
        Some("llama") => true,
        Some("gpt2") => pre_tokenizer(file).is_ok_and(|pre| pre.add_bos),
        _ => false,
    };
    Ok(GgufSpecialTokens {
        bos: id("bos")?,
        eos: id("eos")?,
        eot: id("eot")?,
        pad: id("padding")?,
        unk: id("unknown")?,
        add_bos: file.flag("tokenizer.ggml.add_bos_token")?.unwrap_or(default_bos),
        add_eos: file.flag("tokenizer.ggml.add_eos_token")?.unwrap_or(false),
        chat_template: file.text("tokenizer.chat_template")?.map(str::to_owned),
    })
}
