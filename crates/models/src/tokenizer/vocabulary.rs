//! Limits on the vocabulary of a `tokenizer.json`, checked before the `tokenizers` crate reads it.
//!
//! The crate keeps a Unigram vocabulary in a trie with a node for each byte of a token, and each
//! node owns its children. Cloning and dropping the trie is recursive, so a token of some 29 KB
//! overflows the stack of a thread, which ends the process; and a node takes some 340 bytes. The
//! vocabularies of the other models are maps and have no such limits.

use pellucid_engine::check_memory;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use std::borrow::Cow;

/// Limit of the length of a Unigram token. SentencePiece's own limit is 16 characters by default.
pub(crate) const MAX_UNIGRAM_BYTES: usize = 1024;
/// Memory of a node of the trie: a hash map with room for three children.
const NODE_BYTES: usize = 340;

#[derive(Deserialize)]
struct File<'a> {
    #[serde(borrow)]
    model: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Model<'a> {
    #[serde(borrow)]
    vocab: Option<&'a RawValue>,
}

/// Checks the syntax of a `tokenizer.json` and its vocabulary, if that is a list of pieces with
/// scores.
pub(crate) fn check(json: &[u8]) -> Result<(), String> {
    let text = |error: serde_json::Error| error.to_string();
    // Two fields of one name are an error here, so the checked vocabulary is the one that is read.
    let file: File = serde_json::from_slice(json).map_err(text)?;
    let Some(model) = file.model.map(RawValue::get).filter(|model| model.starts_with('{')) else { return Ok(()) };
    let model: Model = serde_json::from_str(model).map_err(text)?;
    let Some(pieces) = model.vocab.map(RawValue::get).filter(|vocab| vocab.starts_with('[')) else { return Ok(()) };
    let pieces: Vec<(Cow<'_, str>, IgnoredAny)> =
        serde_json::from_str(pieces).map_err(|error| format!("its vocabulary cannot be read: {error}"))?;
    check_pieces(pieces.iter().map(|(piece, _)| piece.as_ref()).collect())
}

/// Checks the lengths of Unigram pieces and the memory of their trie.
fn check_pieces(mut pieces: Vec<&str>) -> Result<(), String> {
    if let Some((id, piece)) = pieces.iter().enumerate().find(|(_, piece)| piece.len() > MAX_UNIGRAM_BYTES) {
        let length = piece.len();
        return Err(format!("token {id} is {length} bytes long; a Unigram token has at most {MAX_UNIGRAM_BYTES}"));
    }
    // Tokens share the nodes of their common start with a neighbor in sorted order.
    pieces.sort_unstable();
    let common = |a: &str, b: &str| a.bytes().zip(b.bytes()).take_while(|(a, b)| a == b).count();
    let shared: usize = pieces.windows(2).map(|pair| common(pair[0], pair[1])).sum();
    let nodes = pieces.iter().map(|piece| piece.len()).sum::<usize>() - shared;
    check_memory(nodes.saturating_mul(NODE_BYTES), || format!("its vocabulary of {} tokens", pieces.len()))
        .map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn unigram(pieces: &[String]) -> Value {
        let vocab: Vec<Value> = pieces.iter().map(|piece| json!([piece, -1.0])).collect();
        json!({"version": "1.0", "model": {"type": "Unigram", "unk_id": 0, "vocab": vocab}})
    }

    fn problem(file: &Value) -> Option<String> {
        check(file.to_string().as_bytes()).err()
    }

    #[test]
    fn lengths_are_limited_for_lists_of_pieces_only() {
        let long = |length: usize| ["<unk>".to_owned(), "é".repeat(length / 2)];
        assert_eq!(problem(&unigram(&long(MAX_UNIGRAM_BYTES))), None);
        let text = problem(&unigram(&long(MAX_UNIGRAM_BYTES + 2))).expect("too long");
        assert_eq!(text, "token 1 is 1026 bytes long; a Unigram token has at most 1024");
        // The model's type does not matter: the library guesses one if it is missing.
        let mut untyped = unigram(&long(30_000));
        untyped["model"].as_object_mut().expect("an object").remove("type");
        assert!(problem(&untyped).is_some());
        let map = json!({"model": {"type": "WordLevel", "unk_token": "a", "vocab": {"a".repeat(30_000): 0}}});
        assert_eq!(problem(&map), None);
    }

    #[test]
    fn a_second_vocabulary_cannot_hide_behind_a_checked_one() {
        let long = "a".repeat(30_000);
        for text in [
            format!(r#"{{"model": {{"vocab": [["a", 0.0]], "vocab": [["{long}", 0.0]]}}}}"#),
            format!(r#"{{"model": {{"vocab": [["a", 0.0]]}}, "model": {{"vocab": [["{long}", 0.0]]}}}}"#),
        ] {
            assert!(check(text.as_bytes()).expect_err("twice").contains("duplicate field"), "{text:.40}");
        }
    }
}
