//! SentencePiece models: pieces with scores in a protocol buffer, of type BPE or unigram.

use super::super::merges::{check_lengths, merges_by_score};
use super::sentencepiece_proto::SentencePieceModel;
use super::settings::{TokenizerClass, TokenizerSettings};
use super::{PostProcessor, TokenizerParts, class_mismatch, damaged};
use crate::{Error, Result};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::path::Path;

/// The metaspace, which replaces the space inside pieces.
const METASPACE: &str = "\u{2581}";
/// The languages of mBART-50, in the order of their ids.
const LANGUAGES: &str = "ar_AR cs_CZ de_DE en_XX es_XX et_EE fi_FI fr_XX gu_IN hi_IN it_IT ja_XX kk_KZ ko_KR lt_LT lv_LV my_MM \
    ne_NP nl_XX ro_RO ru_RU si_LK tr_TR vi_VN zh_CN af_ZA az_AZ bn_IN fa_IR he_IL hr_HR id_ID ka_GE km_KH mk_MK ml_IN mn_MN \
    mr_IN pl_PL ps_AF pt_XX sv_SE sw_KE ta_IN te_IN th_TH tl_XX uk_UA ur_PK xh_ZA gl_ES sl_SI";

pub(super) fn convert(
    file: &Path,
    bytes: &[u8],
    mut settings: TokenizerSettings,
) -> Result<(Value, TokenizerSettings)> {
    let broken = || damaged(file, "not a SentencePiece model, or a truncated one");
    let model = SentencePieceModel::read(bytes).ok_or_else(broken)?;
    check_lengths(model.pieces.iter().map(|piece| piece.text.len())).map_err(|problem| damaged(file, problem))?;
    let is_bpe = match model.algorithm {
        1 => false,
        2 => true,
        _ => {
            let what = format!("{}: a SentencePiece model of type word or char", file.display());
            return Err(Error::unsupported(what, "unigram and BPE models are supported; run the model on token ids"));
        }
    };
    let parts = match (settings.class, is_bpe) {
        (Some(TokenizerClass::Llama), true) => llama(&model, &settings),
        (Some(TokenizerClass::CodeLlama), true) => code_llama(&model, &settings),
        (Some(TokenizerClass::Gemma), true) => gemma(&model, &settings),
        (Some(TokenizerClass::T5), false) => t5(&model, &settings),
        (Some(TokenizerClass::XlmRoberta), false) => xlm_roberta(&model, &settings),
        (Some(TokenizerClass::Camembert), false) => camembert(&model, &settings),
        (Some(TokenizerClass::MBart50), false) => mbart50(&model, &settings),
        (Some(TokenizerClass::Pegasus), false) => pegasus(&model, &settings),
        (Some(TokenizerClass::Plain), _) => {
            let named = [("bos_token", &model.bos), ("eos_token", &model.eos), ("unk_token", &model.unk)];
            let named = named.into_iter().filter(|(_, (id, _))| *id >= 0);
            settings.fill(&named.map(|(role, (_, text))| (role, text.as_str())).collect::<Vec<_>>());
            plain(&model, is_bpe, &settings)
        }
        _ => return Err(class_mismatch(file, &settings)),
    };
    Ok((parts.assemble(file, &settings)?, settings))
}

/// Llama: a metaspace before the first word, byte fallback.
fn llama(model: &SentencePieceModel, settings: &TokenizerSettings) -> TokenizerParts {
    let prefix = settings.flag("add_prefix_space", true);
    // With `legacy`, transformers prepends the space to every section between special tokens.
    let scheme = match (prefix, settings.flag("legacy", false)) {
        (false, _) => "never",
        (true, false) => "first",
        (true, true) => "always",
    };
    let mut decoders = fallback_decoders();
    if prefix {
        decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }
    TokenizerParts {
        pre_tokenizer: json!({"type": "Metaspace", "replacement": METASPACE, "prepend_scheme": scheme, "split": false}),
        decoder: json!({"type": "Sequence", "decoders": decoders}),
        ..TokenizerParts::bpe(model, model.ids(), Value::Null, true)
    }
}

/// Code Llama: like Llama, with infilling tokens. A text is not split at `<FILL_ME>`.
fn code_llama(model: &SentencePieceModel, settings: &TokenizerSettings) -> TokenizerParts {
    let scheme = if settings.flag("add_prefix_space", true) { "first" } else { "never" };
    let mut decoders = fallback_decoders();
    decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    let infilling = ["prefix_token", "middle_token", "suffix_token", "eot_token", "fill_token"];
    let infilling = infilling.iter().filter_map(|role| settings.token(role)).map(|text| (text, true));
    let parts = TokenizerParts::bpe(model, model.ids(), json!(settings.token("unk_token")), true);
    TokenizerParts {
        pre_tokenizer: json!({"type": "Metaspace", "replacement": METASPACE, "prepend_scheme": scheme, "split": false}),
        decoder: json!({"type": "Sequence", "decoders": decoders}),
        added: model.added().into_iter().chain(infilling).collect(),
        ..parts
    }
}

/// Gemma: no prepended space, byte fallback.
fn gemma(model: &SentencePieceModel, settings: &TokenizerSettings) -> TokenizerParts {
    TokenizerParts {
        normalizer: replace(" ", METASPACE),
        pre_tokenizer: json!({"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": false}),
        ..TokenizerParts::bpe(model, model.ids(), json!(settings.token("unk_token")), true)
    }
}

/// T5: words with a metaspace each; the sentinels follow the vocabulary in descending order.
fn t5(model: &SentencePieceModel, settings: &TokenizerSettings) -> TokenizerParts {
    let extra = settings.number("extra_ids", 100).min(1 << 16);
    let sentinels: Vec<String> = (0..extra).rev().map(|i| format!("<extra_id_{i}>")).collect();
    let vocab = model.scored().chain(sentinels.iter().map(|text| (text.clone(), 0.0))).collect();
    let added = sentinels.into_iter().map(|text| (text, true));
    let parts = TokenizerParts {
        post_processor: PostProcessor::Template(&[], &["eos_token"]),
        ..TokenizerParts::unigram_over_words(model, vocab, 2)
    };
    TokenizerParts { added: model.added().into_iter().chain(added).collect(), ..parts }
}

/// XLM-RoBERTa: fairseq's four special tokens replace SentencePiece's three.
fn xlm_roberta(model: &SentencePieceModel, settings: &TokenizerSettings) -> TokenizerParts {
    let role = |role: &str| (settings.token(role).unwrap_or_default(), 0.0);
    let first = ["bos_token", "pad_token", "eos_token", "unk_token"].map(role);
    let vocab = first.into_iter().chain(model.scored().skip(3)).chain([role("mask_token")]).collect();
    TokenizerParts {
        post_processor: PostProcessor::Template(&["cls_token"], &["sep_token"]),
        ..TokenizerParts::unigram_over_words(model, vocab, 3)
    }
}

/// CamemBERT: fairseq's special tokens precede SentencePiece's, which stay.
fn camembert(model: &SentencePieceModel, settings: &TokenizerSettings) -> TokenizerParts {
    let role = |role: &str| (settings.token(role).unwrap_or_default(), 0.0);
    let unused = |name: &str, score: f32| (format!("{name}NOTUSED"), score);
    let first =
        [unused("<s>", 0.0), role("pad_token"), unused("</s>", 0.0), role("unk_token"), unused("<unk>", -100.0)];
    let vocab = first.into_iter().chain(model.scored().skip(1)).chain([role("mask_token")]).collect();
    let parts = TokenizerParts::unigram_over_words(model, vocab, 3);
    // Only CamemBERT honors `add_prefix_space` here.
    let scheme = if settings.flag("add_prefix_space", true) { "always" } else { "never" };
    let spaces = json!({"type": "Metaspace", "replacement": METASPACE, "prepend_scheme": scheme, "split": true});
    TokenizerParts {
        pre_tokenizer: json!({"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, spaces]}),
        decoder: spaces,
        post_processor: PostProcessor::Template(&["bos_token"], &["eos_token"]),
        ..parts
    }
}

/// mBART-50: fairseq's special tokens, language codes after the pieces; a text starts with its
/// language.
fn mbart50(model: &SentencePieceModel, settings: &TokenizerSettings) -> TokenizerParts {
    let role = |role: &str| (settings.token(role).unwrap_or_default(), 0.0);
    let first = ["cls_token", "pad_token", "eos_token", "unk_token"].map(role);
    let languages = || LANGUAGES.split_whitespace().map(str::to_owned);
    let vocab = first.into_iter().chain(model.scored().skip(3)).chain(languages().map(|code| (code, 0.0)));
    let vocab = vocab.chain([role("mask_token")]).collect();
    let parts = TokenizerParts::unigram_over_text(model, vocab, 3);
    let added = model.added().into_iter().chain(languages().map(|code| (code, true))).collect();
    TokenizerParts { post_processor: PostProcessor::Template(&["src_lang"], &["eos_token"]), added, ..parts }
}

/// Pegasus: mask tokens and unused tokens precede the pieces, `offset` in all.
fn pegasus(model: &SentencePieceModel, settings: &TokenizerSettings) -> TokenizerParts {
    let offset = settings.number("offset", 103).min(1 << 16);
    let role = |role: &str| settings.token(role).unwrap_or_default();
    let masks = [role("mask_token_sent"), role("mask_token")];
    let unused: Vec<String> = (2..offset).map(|i| format!("<unk_{i}>")).collect();
    let first = [role("pad_token"), role("eos_token")].into_iter().chain(masks.clone()).map(|text| (text, 0.0));
    let first = first.chain(unused.iter().map(|text| (text.clone(), -100.0)));
    let vocab = first.chain(model.scored().skip(2)).collect();
    let parts = TokenizerParts::unigram_over_text(model, vocab, model.unk.0.saturating_add(offset as i64));
    let special = masks.into_iter().chain(unused).map(|text| (text, true));
    let added = model.added().into_iter().chain(special).collect();
    TokenizerParts { post_processor: PostProcessor::Template(&[], &["eos_token"]), added, ..parts }
}

/// No specific class: uses the settings in the SentencePiece model itself.
fn plain(model: &SentencePieceModel, is_bpe: bool, settings: &TokenizerSettings) -> TokenizerParts {
    let rules = (!model.charsmap.is_empty()).then(|| charsmap(model));
    let normalizers: Vec<Value> = rules.into_iter().chain([replace(" ", METASPACE)]).collect();
    let parts = if is_bpe {
        let mut ids = model.ids();
        // `added_tokens_decoder` may rename placeholder pieces.
        for (id, token) in settings.fixed() {
            let Some(text) = super::special::token_text(token).filter(|text| !ids.contains_key(text)) else { continue };
            if let Some(old) = ids.iter().find(|(_, other)| **other == id).map(|(old, _)| old.clone()) {
                ids.remove(&old);
                ids.insert(text, id);
            }
        }
        TokenizerParts::bpe(model, ids, json!(model.unk.1), model.byte_fallback)
    } else {
        TokenizerParts::unigram(model, model.scored().collect(), model.unk.0, model.byte_fallback)
    };
    let decoders = if model.byte_fallback { fallback_decoders() } else { vec![replace(METASPACE, " ")] };
    TokenizerParts {
        normalizer: json!({"type": "Sequence", "normalizers": normalizers}),
        decoder: json!({"type": "Sequence", "decoders": decoders}),
        ..parts
    }
}

impl TokenizerParts {
    fn bpe(model: &SentencePieceModel, ids: HashMap<String, u32>, unk: Value, byte_fallback: bool) -> TokenizerParts {
        let built = json!({
            "type": "BPE", "dropout": null, "unk_token": unk, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": byte_fallback, "ignore_merges": false,
            "vocab": ids, "merges": merges_by_score(model.mergeable(), |piece| ids.get(piece).copied()),
        });
        let decoder = json!({"type": "Sequence", "decoders": fallback_decoders()});
        let (normalizer, pre_tokenizer) = (Value::Null, Value::Null);
        TokenizerParts {
            model: built,
            ids,
            normalizer,
            pre_tokenizer,
            decoder,
            post_processor: PostProcessor::BosEosFlags,
            added: model.added(),
        }
    }

    fn unigram(model: &SentencePieceModel, vocab: Vec<(String, f32)>, unk: i64, byte_fallback: bool) -> TokenizerParts {
        let ids = (0..).zip(&vocab).map(|(id, (text, _))| (text.clone(), id)).collect();
        let vocab: Vec<Value> = vocab.iter().map(|(text, score)| json!([text, f64::from(*score)])).collect();
        let unk = usize::try_from(unk).ok();
        TokenizerParts {
            model: json!({"type": "Unigram", "unk_id": unk, "byte_fallback": byte_fallback, "vocab": vocab}),
            ids,
            normalizer: Value::Null,
            pre_tokenizer: Value::Null,
            decoder: Value::Null,
            post_processor: PostProcessor::BosEosFlags,
            added: model.added(),
        }
    }

    /// A unigram model over the whole text, with runs of spaces collapsed.
    fn unigram_over_text(model: &SentencePieceModel, vocab: Vec<(String, f32)>, unk: i64) -> TokenizerParts {
        let spaces = json!({"type": "Metaspace", "replacement": METASPACE, "prepend_scheme": "always", "split": true});
        let rules = (!model.charsmap.is_empty()).then(|| charsmap(model));
        let single = json!({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "});
        let normalizers: Vec<Value> = rules.into_iter().chain([single]).collect();
        TokenizerParts {
            normalizer: json!({"type": "Sequence", "normalizers": normalizers}),
            pre_tokenizer: spaces.clone(),
            decoder: spaces,
            ..TokenizerParts::unigram(model, vocab, unk, false)
        }
    }

    /// A unigram model over whitespace-separated words.
    fn unigram_over_words(model: &SentencePieceModel, vocab: Vec<(String, f32)>, unk: i64) -> TokenizerParts {
        let spaces = json!({"type": "Metaspace", "replacement": METASPACE, "prepend_scheme": "always", "split": true});
        TokenizerParts {
            normalizer: if model.charsmap.is_empty() { Value::Null } else { charsmap(model) },
            pre_tokenizer: json!({"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, spaces]}),
            decoder: spaces,
            ..TokenizerParts::unigram(model, vocab, unk, false)
        }
    }
}

fn charsmap(model: &SentencePieceModel) -> Value {
    json!({"type": "Precompiled", "precompiled_charsmap": BASE64.encode(&model.charsmap)})
}

fn replace(from: &str, to: &str) -> Value {
    json!({"type": "Replace", "pattern": {"String": from}, "content": to})
}

fn fallback_decoders() -> Vec<Value> {
    vec![replace(METASPACE, " "), json!({"type": "ByteFallback"}), json!({"type": "Fuse"})]
}
