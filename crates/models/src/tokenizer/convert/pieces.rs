//! SentencePiece models: pieces with scores in a protocol buffer, joined by merges (BPE) or by the likeliest path (unigram).

use super::sentencepiece::Model;
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
/// The languages of mBART-50, in the order of their ids.
const LANGUAGES: &str = "ar_AR cs_CZ de_DE en_XX es_XX et_EE fi_FI fr_XX gu_IN hi_IN it_IT ja_XX kk_KZ ko_KR lt_LT lv_LV my_MM \
    ne_NP nl_XX ro_RO ru_RU si_LK tr_TR vi_VN zh_CN af_ZA az_AZ bn_IN fa_IR he_IL hr_HR id_ID ka_GE km_KH mk_MK ml_IN mn_MN \
    mr_IN pl_PL ps_AF pt_XX sv_SE sw_KE ta_IN te_IN th_TH tl_XX uk_UA ur_PK xh_ZA gl_ES sl_SI";

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
        (Some(Kind::CodeLlama), true) => code_llama(&model, &settings),
        (Some(Kind::Gemma), true) => gemma(&model, &settings),
        (Some(Kind::T5), false) => t5(&model, &settings),
        (Some(Kind::XlmRoberta), false) => xlm_roberta(&model, &settings),
        (Some(Kind::Camembert), false) => camembert(&model, &settings),
        (Some(Kind::MBart50), false) => mbart50(&model, &settings),
        (Some(Kind::Pegasus), false) => pegasus(&model, &settings),
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

/// Code Llama's way: Llama's, with the tokens between which code is filled in. They are written out: a text is not cut at `<FILL_ME>`.
fn code_llama(model: &Model, settings: &Settings) -> Parts {
    let scheme = if settings.flag("add_prefix_space", true) { "first" } else { "never" };
    let mut decoders = fallback_decoders();
    decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    let infilling = ["prefix_token", "middle_token", "suffix_token", "eot_token", "fill_token"];
    let infilling = infilling.iter().filter_map(|role| settings.token(role)).map(|text| (text, true));
    let parts = Parts::bpe(model, model.ids(), json!(settings.token("unk_token")), true);
    Parts {
        pre_tokenizer: json!({"type": "Metaspace", "replacement": SPACE, "prepend_scheme": scheme, "split": false}),
        decoder: json!({"type": "Sequence", "decoders": decoders}),
        added: model.added().into_iter().chain(infilling).collect(),
        ..parts
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

/// CamemBERT's way: fairseq's special tokens before SentencePiece's own, which stay.
fn camembert(model: &Model, settings: &Settings) -> Parts {
    let role = |role: &str| (settings.token(role).unwrap_or_default(), 0.0);
    let unused = |name: &str, score: f32| (format!("{name}NOTUSED"), score);
    let first =
        [unused("<s>", 0.0), role("pad_token"), unused("</s>", 0.0), role("unk_token"), unused("<unk>", -100.0)];
    let vocab = first.into_iter().chain(model.scored().skip(1)).chain([role("mask_token")]).collect();
    let parts = Parts::words(model, vocab, 3);
    // Its flag for the space is the only one that is asked for.
    let scheme = if settings.flag("add_prefix_space", true) { "always" } else { "never" };
    let spaces = json!({"type": "Metaspace", "replacement": SPACE, "prepend_scheme": scheme, "split": true});
    Parts {
        pre_tokenizer: json!({"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, spaces]}),
        decoder: spaces,
        after: After::Around(&["bos_token"], &["eos_token"]),
        ..parts
    }
}

/// mBART-50's way: fairseq's special tokens, languages behind the pieces, and a text after its language.
fn mbart50(model: &Model, settings: &Settings) -> Parts {
    let role = |role: &str| (settings.token(role).unwrap_or_default(), 0.0);
    let first = ["cls_token", "pad_token", "eos_token", "unk_token"].map(role);
    let languages = || LANGUAGES.split_whitespace().map(str::to_owned);
    let vocab = first.into_iter().chain(model.scored().skip(3)).chain(languages().map(|code| (code, 0.0)));
    let vocab = vocab.chain([role("mask_token")]).collect();
    let parts = Parts::running(model, vocab, 3);
    let added = model.added().into_iter().chain(languages().map(|code| (code, true))).collect();
    Parts { after: After::Around(&["src_lang"], &["eos_token"]), added, ..parts }
}

/// Pegasus' way: the masks and as many unused tokens as `offset` says before the pieces.
fn pegasus(model: &Model, settings: &Settings) -> Parts {
    let offset = settings.number("offset", 103).min(1 << 16);
    let role = |role: &str| settings.token(role).unwrap_or_default();
    let masks = [role("mask_token_sent"), role("mask_token")];
    let unused: Vec<String> = (2..offset).map(|i| format!("<unk_{i}>")).collect();
    let first = [role("pad_token"), role("eos_token")].into_iter().chain(masks.clone()).map(|text| (text, 0.0));
    let first = first.chain(unused.iter().map(|text| (text.clone(), -100.0)));
    let vocab = first.chain(model.scored().skip(2)).collect();
    let parts = Parts::running(model, vocab, model.unk.0.saturating_add(offset as i64));
    let special = masks.into_iter().chain(unused).map(|text| (text, true));
    let added = model.added().into_iter().chain(special).collect();
    Parts { after: After::Around(&[], &["eos_token"]), added, ..parts }
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

    /// Unigrams over a whole text, in which several spaces are one.
    fn running(model: &Model, vocab: Vec<(String, f32)>, unk: i64) -> Parts {
        let spaces = json!({"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "always", "split": true});
        let rules = (!model.rules.is_empty()).then(|| rules(model));
        let single = json!({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "});
        let normalizers: Vec<Value> = rules.into_iter().chain([single]).collect();
        Parts {
            normalizer: json!({"type": "Sequence", "normalizers": normalizers}),
            pre_tokenizer: spaces.clone(),
            decoder: spaces,
            ..Parts::unigram(model, vocab, unk, false)
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
