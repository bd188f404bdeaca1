//! The token ids with a meaning, and whether texts get them.

use super::pre::pre;
use super::{GgufFile, Value};
use crate::Result;

/// The ids with a meaning, and whether texts get them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpecialTokens {
    /// Begins a text.
    pub bos: Option<u32>,
    /// Ends a text.
    pub eos: Option<u32>,
    /// Ends a turn of a conversation.
    pub eot: Option<u32>,
    /// Fills up.
    pub pad: Option<u32>,
    /// Stands for what the vocabulary lacks.
    pub unk: Option<u32>,
    /// Whether encoding a text puts `bos` before it.
    pub add_bos: bool,
    /// Whether encoding a text puts `eos` after it.
    pub add_eos: bool,
    /// The Jinja template of conversations.
    pub chat_template: Option<String>,
}

/// The special tokens that the file names.
///
/// # Errors
/// If an id is not one of the vocabulary, or a value has the wrong type.
pub fn special_tokens(file: &GgufFile) -> Result<SpecialTokens> {
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
    // What holds where the file does not say: SentencePiece models begin texts with bos; the others only as their kind.
    let default_bos = match file.text("tokenizer.ggml.model")? {
        Some("llama") => true,
        Some("gpt2") => pre(file).is_ok_and(|pre| pre.add_bos),
        _ => false,
    };
    Ok(SpecialTokens {
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
