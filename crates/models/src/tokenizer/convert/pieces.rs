//! SentencePiece models: pieces with scores in a protocol buffer, joined by merges (BPE) or by the likeliest path (unigram).

use super::settings::{Kind, Settings};
use super::{After, LONGEST, Parts, damaged, unfit};
use crate::{Error, Result};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::path::Path;

/// What stands for a space inside pieces.
const SPACE: &str = "\u{2581}";

/// A SentencePiece model, as far as a tokenizer needs it.
#[derive(Debug, Default)]
struct Model {
    pieces: Vec<Piece>,
    /// 1 is unigram, 2 is BPE.
    algorithm: u64,
    byte_fallback: bool,
    /// Number and text of `<unk>`, `<s>` and `</s>`; a negative number says that there is none.
    unk: (i64, String),
    bos: (i64, String),
    eos: (i64, String),
    /// Rules for characters, compiled by SentencePiece.
    rules: Vec<u8>,
}

#[derive(Debug, Default)]
struct Piece {
    text: String,
    score: f32,
    /// 3 is a control token, 4 one that the user defined.
    kind: u64,
}

pub(super) fn convert(file: &Path, bytes: &[u8], mut settings: Settings) -> Result<(Value, Settings)> {
    let broken = || damaged(file, "not a SentencePiece model, or one that breaks off");
    let model = Model::read(bytes).ok_or_else(broken)?;
    if model.pieces.iter().any(|piece| piece.text.len() > LONGEST) {
        return Err(damaged(file, format!("a piece has more than {LONGEST} bytes")));
    }
    let is_bpe = match model.algorithm {
        1 => false,
        2 => true,
        _ => {
            let what = format!("{}: a SentencePiece model of whole words or characters", file.display());
            return Err(Error::unsupported(what, "known are its unigram and BPE models; run the model on token ids"));
        }
    };
    let parts = match (settings.kind, is_bpe) {
        (Some(Kind::Llama), true) => llama(&model, &settings),
        (Some(Kind::Gemma), true) => gemma(&model, &settings),
        (Some(Kind::T5), false) => t5(&model, &settings),
        (Some(Kind::XlmRoberta), false) => xlm_roberta(&model, &settings),
        (Some(Kind::Plain), _) => {
            let named = [("bos_token", &model.bos), ("eos_token", &model.eos), ("unk_token", &model.unk)];
            let named = named.into_iter().filter(|(_, (id, _))| *id >= 0);
            settings.fill(&named.map(|(role, (_, text))| (role, text.as_str())).collect::<Vec<_>>());
            plain(&model, is_bpe, &settings)
        }
        _ => return Err(unfit(file, &settings)),
    };
    Ok((parts.assemble(file, &settings)?, settings))
}

/// Llama's way: a space before the first word, and what no piece spells as bytes.
fn llama(model: &Model, settings: &Settings) -> Parts {
    let prefix = settings.flag("add_prefix_space", true);
    // transformers once put the space before every part of a text; its old files still say so.
    let scheme = match (prefix, settings.flag("legacy", false)) {
        (false, _) => "never",
        (true, false) => "first",
        (true, true) => "always",
    };
    let mut decoders = fallback_decoders();
    if prefix {
        decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }
    Parts {
        pre_tokenizer: json!({"type": "Metaspace", "replacement": SPACE, "prepend_scheme": scheme, "split": false}),
        decoder: json!({"type": "Sequence", "decoders": decoders}),
        ..Parts::bpe(model, model.ids(), Value::Null, true)
    }
}

/// Gemma's way: spaces as they are, and what no piece spells as bytes.
fn gemma(model: &Model, settings: &Settings) -> Parts {
    Parts {
        normalizer: replace(" ", SPACE),
        pre_tokenizer: json!({"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": false}),
        ..Parts::bpe(model, model.ids(), json!(settings.token("unk_token")), true)
    }
}

/// T5's way: words, each after a space; the sentinels follow the vocabulary, the last first.
fn t5(model: &Model, settings: &Settings) -> Parts {
    let extra = settings.number("extra_ids", 100).min(1 << 16);
    let sentinels: Vec<String> = (0..extra).rev().map(|i| format!("<extra_id_{i}>")).collect();
    let vocab = model.scored().chain(sentinels.iter().map(|text| (text.clone(), 0.0))).collect();
    let added = sentinels.into_iter().map(|text| (text, true));
    let parts = Parts { after: After::Around(&[], &["eos_token"]), ..Parts::words(model, vocab, 2) };
    Parts { added: model.added().into_iter().chain(added).collect(), ..parts }
}

/// XLM-RoBERTa's way: fairseq's four special tokens in place of SentencePiece's three.
fn xlm_roberta(model: &Model, settings: &Settings) -> Parts {
    let role = |role: &str| (settings.token(role).unwrap_or_default(), 0.0);
    let first = ["bos_token", "pad_token", "eos_token", "unk_token"].map(role);
    let vocab = first.into_iter().chain(model.scored().skip(3)).chain([role("mask_token")]).collect();
    Parts { after: After::Around(&["cls_token"], &["sep_token"]), ..Parts::words(model, vocab, 3) }
}

/// What the file says by itself.
fn plain(model: &Model, is_bpe: bool, settings: &Settings) -> Parts {
    let rules = (!model.rules.is_empty()).then(|| rules(model));
    let normalizers: Vec<Value> = rules.into_iter().chain([replace(" ", SPACE)]).collect();
    let parts = if is_bpe {
        let mut ids = model.ids();
        // A placeholder takes the name that the settings give its id.
        for (id, token) in settings.fixed() {
            let Some(text) = super::special::token_text(token).filter(|text| !ids.contains_key(text)) else { continue };
            if let Some(old) = ids.iter().find(|(_, other)| **other == id).map(|(old, _)| old.clone()) {
                ids.remove(&old);
                ids.insert(text, id);
            }
        }
        Parts::bpe(model, ids, json!(model.unk.1), model.byte_fallback)
    } else {
        Parts::unigram(model, model.scored().collect(), model.unk.0, model.byte_fallback)
    };
    let decoders = if model.byte_fallback { fallback_decoders() } else { vec![replace(SPACE, " ")] };
    Parts {
        normalizer: json!({"type": "Sequence", "normalizers": normalizers}),
        decoder: json!({"type": "Sequence", "decoders": decoders}),
        ..parts
    }
}

impl Parts {
    fn bpe(model: &Model, ids: HashMap<String, u32>, unk: Value, byte_fallback: bool) -> Parts {
        let built = json!({
            "type": "BPE", "dropout": null, "unk_token": unk, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": byte_fallback, "ignore_merges": false,
            "vocab": ids, "merges": merges(&ids),
        });
        let decoder = json!({"type": "Sequence", "decoders": fallback_decoders()});
        let (normalizer, pre_tokenizer) = (Value::Null, Value::Null);
        Parts { model: built, ids, normalizer, pre_tokenizer, decoder, after: After::Flags, added: model.added() }
    }

    fn unigram(model: &Model, vocab: Vec<(String, f32)>, unk: i64, byte_fallback: bool) -> Parts {
        let ids = (0..).zip(&vocab).map(|(id, (text, _))| (text.clone(), id)).collect();
        let vocab: Vec<Value> = vocab.iter().map(|(text, score)| json!([text, f64::from(*score)])).collect();
        let unk = usize::try_from(unk).ok();
        Parts {
            model: json!({"type": "Unigram", "unk_id": unk, "byte_fallback": byte_fallback, "vocab": vocab}),
            ids,
            normalizer: Value::Null,
            pre_tokenizer: Value::Null,
            decoder: Value::Null,
            after: After::Flags,
            added: model.added(),
        }
    }

    /// Unigrams over words.
    fn words(model: &Model, vocab: Vec<(String, f32)>, unk: i64) -> Parts {
        let spaces = json!({"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "always", "split": true});
        Parts {
            normalizer: if model.rules.is_empty() { Value::Null } else { rules(model) },
            pre_tokenizer: json!({"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, spaces]}),
            decoder: spaces,
            ..Parts::unigram(model, vocab, unk, false)
        }
    }
}

fn rules(model: &Model) -> Value {
    json!({"type": "Precompiled", "precompiled_charsmap": BASE64.encode(&model.rules)})
}

fn replace(from: &str, to: &str) -> Value {
    json!({"type": "Replace", "pattern": {"String": from}, "content": to})
}

fn fallback_decoders() -> Vec<Value> {
    vec![replace(SPACE, " "), json!({"type": "ByteFallback"}), json!({"type": "Fuse"})]
}

/// Every way to put a piece together from two others, in the order of the pieces.
fn merges(ids: &HashMap<String, u32>) -> Vec<[&str; 2]> {
    // Of two ways to make one piece, the one with the shorter first half comes first.
    let mut merges: Vec<(u32, usize, [&str; 2])> = Vec::new();
    for (piece, id) in ids {
        for (at, _) in piece.char_indices().skip(1) {
            let (left, right) = piece.split_at(at);
            if ids.contains_key(left) && ids.contains_key(right) {
                merges.push((*id, at, [left, right]));
            }
        }
    }
    merges.sort_by_key(|(id, at, _)| (*id, *at));
    merges.into_iter().map(|(.., pair)| pair).collect()
}

impl Model {
    fn ids(&self) -> HashMap<String, u32> {
        (0..).zip(&self.pieces).map(|(id, piece)| (piece.text.clone(), id)).collect()
    }

    fn scored(&self) -> impl Iterator<Item = (String, f32)> + '_ {
        self.pieces.iter().map(|piece| (piece.text.clone(), piece.score))
    }

    /// The tokens that are found in a text before anything else is done to it.
    fn added(&self) -> Vec<(String, bool)> {
        let whole = self.pieces.iter().filter(|piece| matches!(piece.kind, 3 | 4));
        whole.map(|piece| (piece.text.clone(), piece.kind == 3)).collect()
    }

    /// Reads the fields that matter; the others are passed over.
    fn read(bytes: &[u8]) -> Option<Model> {
        let mut model = Model {
            algorithm: 1,
            unk: (0, "<unk>".into()),
            bos: (1, "<s>".into()),
            eos: (2, "</s>".into()),
            ..Model::default()
        };
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).ok();
        for field in Fields(bytes) {
            match field? {
                (1, Wire::Bytes(piece)) => {
                    let mut read = Piece { kind: 1, ..Piece::default() };
                    for field in Fields(piece) {
                        match field? {
                            (1, Wire::Bytes(bytes)) => read.text = text(bytes)?,
                            (2, Wire::Fixed32(bits)) => read.score = f32::from_bits(bits),
                            (3, Wire::Varint(kind)) => read.kind = kind,
                            _ => {}
                        }
                    }
                    model.pieces.push(read);
                }
                (2, Wire::Bytes(trainer)) => {
                    for field in Fields(trainer) {
                        match field? {
                            (3, Wire::Varint(algorithm)) => model.algorithm = algorithm,
                            (35, Wire::Varint(flag)) => model.byte_fallback = flag != 0,
                            (40, Wire::Varint(id)) => model.unk.0 = id as i64,
                            (41, Wire::Varint(id)) => model.bos.0 = id as i64,
                            (42, Wire::Varint(id)) => model.eos.0 = id as i64,
                            (45, Wire::Bytes(bytes)) => model.unk.1 = text(bytes)?,
                            (46, Wire::Bytes(bytes)) => model.bos.1 = text(bytes)?,
                            (47, Wire::Bytes(bytes)) => model.eos.1 = text(bytes)?,
                            _ => {}
                        }
                    }
                }
                (3, Wire::Bytes(normalizer)) => {
                    for field in Fields(normalizer) {
                        if let (2, Wire::Bytes(rules)) = field? {
                            model.rules = rules.to_vec();
                        }
                    }
                }
                _ => {}
            }
        }
        (!model.pieces.is_empty()).then_some(model)
    }
}

/// A value of a protocol buffer.
enum Wire<'a> {
    Varint(u64),
    Fixed32(u32),
    Fixed64,
    Bytes(&'a [u8]),
}

/// The fields of a message: number and value, or `None` where it breaks off.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn field(&mut self) -> Option<(u64, Wire<'a>)> {
        let tag = self.varint()?;
        let value = match tag & 7 {
            0 => Wire::Varint(self.varint()?),
            1 => self.take(8).map(|_| Wire::Fixed64)?,
            2 => {
                let length = usize::try_from(self.varint()?).ok()?;
                Wire::Bytes(self.take(length)?)
            }
            5 => Wire::Fixed32(u32::from_le_bytes(self.take(4)?.try_into().ok()?)),
            _ => return None,
        };
        Some((tag >> 3, value))
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = *self.take(1)?.first()?;
            value |= u64::from(byte & 0x7F) << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(head)
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Option<(u64, Wire<'a>)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_none() {
            self.0 = &[];
        }
        Some(field)
    }
}
