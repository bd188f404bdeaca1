//! The tokenizer settings of a directory: its class, special tokens and flags.

use super::super::{Sidecars, special};
use crate::Result;
use serde_json::{Map, Value, json};
use std::collections::{HashMap, HashSet};
use std::path::Path;

/// Supported tokenizer classes of transformers, grouped by behavior.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TokenizerClass {
    Gpt2,
    GptNeoX,
    OpenAiGpt,
    Roberta,
    Qwen2,
    Llama,
    CodeLlama,
    Gemma,
    T5,
    XlmRoberta,
    Camembert,
    MBart50,
    Pegasus,
    Bert,
    /// No specific class: the settings in the file itself apply.
    Plain,
}

/// Class names, without the suffix `Fast`.
const CLASSES: &[(TokenizerClass, &[&str])] = &[
    (TokenizerClass::Gpt2, &["GPT2Tokenizer", "CodeGenTokenizer"]),
    (TokenizerClass::GptNeoX, &["GPTNeoXTokenizer"]),
    (TokenizerClass::OpenAiGpt, &["OpenAIGPTTokenizer"]),
    (
        TokenizerClass::Roberta,
        &["RobertaTokenizer", "BartTokenizer", "LongformerTokenizer", "LEDTokenizer", "MvpTokenizer"],
    ),
    (TokenizerClass::Qwen2, &["Qwen2Tokenizer"]),
    (TokenizerClass::Llama, &["LlamaTokenizer"]),
    (TokenizerClass::CodeLlama, &["CodeLlamaTokenizer"]),
    (TokenizerClass::Gemma, &["GemmaTokenizer"]),
    (TokenizerClass::T5, &["T5Tokenizer"]),
    (TokenizerClass::XlmRoberta, &["XLMRobertaTokenizer"]),
    (TokenizerClass::Camembert, &["CamembertTokenizer"]),
    (TokenizerClass::MBart50, &["MBart50Tokenizer"]),
    (TokenizerClass::Pegasus, &["PegasusTokenizer"]),
    (
        TokenizerClass::Bert,
        &["BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer", "MobileBertTokenizer", "ConvBertTokenizer"],
    ),
    (TokenizerClass::Plain, &["PreTrainedTokenizer", "TokenizersBackend"]),
];

/// Class by model type, if the tokenizer's files name none.
const TYPES: &[(TokenizerClass, &[&str])] = &[
    (TokenizerClass::Gpt2, &["gpt2", "gpt_neo", "gptj", "opt", "codegen", "phi", "starcoder2", "dbrx"]),
    (TokenizerClass::GptNeoX, &["gpt_neox"]),
    (TokenizerClass::OpenAiGpt, &["openai-gpt"]),
    (TokenizerClass::Roberta, &["roberta", "bart", "longformer"]),
    (TokenizerClass::Qwen2, &["qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "qwen3_next"]),
    (TokenizerClass::Llama, &["llama", "mistral", "mixtral"]),
    (TokenizerClass::Gemma, &["gemma", "gemma2", "gemma3", "gemma3_text", "recurrent_gemma"]),
    (TokenizerClass::T5, &["t5", "mt5"]),
    (TokenizerClass::XlmRoberta, &["xlm-roberta", "trocr"]),
    (TokenizerClass::Camembert, &["camembert"]),
    (TokenizerClass::Pegasus, &["pegasus"]),
    (TokenizerClass::Bert, &["bert", "distilbert", "electra"]),
];

impl TokenizerClass {
    /// The default special tokens of a class.
    fn defaults(self) -> &'static [(&'static str, &'static str)] {
        match self {
            TokenizerClass::Gpt2 => {
                &[("bos_token", "<|endoftext|>"), ("eos_token", "<|endoftext|>"), ("unk_token", "<|endoftext|>")]
            }
            TokenizerClass::GptNeoX => &[
                ("bos_token", "<|endoftext|>"),
                ("eos_token", "<|endoftext|>"),
                ("unk_token", "<|endoftext|>"),
                ("pad_token", "<|padding|>"),
            ],
            TokenizerClass::OpenAiGpt => &[("unk_token", "<unk>")],
            TokenizerClass::Roberta | TokenizerClass::XlmRoberta | TokenizerClass::Camembert => &[
                ("bos_token", "<s>"),
                ("eos_token", "</s>"),
                ("unk_token", "<unk>"),
                ("sep_token", "</s>"),
                ("pad_token", "<pad>"),
                ("cls_token", "<s>"),
                ("mask_token", "<mask>"),
            ],
            TokenizerClass::Qwen2 => {
                &[("eos_token", "<|endoftext|>"), ("unk_token", "<|endoftext|>"), ("pad_token", "<|endoftext|>")]
            }
            TokenizerClass::Llama => &[("bos_token", "<s>"), ("eos_token", "</s>"), ("unk_token", "<unk>")],
            TokenizerClass::CodeLlama => &[
                ("bos_token", "<s>"),
                ("eos_token", "</s>"),
                ("unk_token", "<unk>"),
                ("prefix_token", "\u{2581}<PRE>"),
                ("middle_token", "\u{2581}<MID>"),
                ("suffix_token", "\u{2581}<SUF>"),
                ("eot_token", "\u{2581}<EOT>"),
                ("fill_token", "<FILL_ME>"),
            ],
            TokenizerClass::Gemma => &[
                ("bos_token", "<bos>"),
                ("eos_token", "<eos>"),
                ("unk_token", "<unk>"),
                ("pad_token", "<pad>"),
                ("mask_token", "<mask>"),
            ],
            TokenizerClass::MBart50 => &[
                ("eos_token", "</s>"),
                ("sep_token", "</s>"),
                ("cls_token", "<s>"),
                ("unk_token", "<unk>"),
                ("pad_token", "<pad>"),
                ("mask_token", "<mask>"),
                ("src_lang", "en_XX"),
            ],
            TokenizerClass::Pegasus => &[
                ("pad_token", "<pad>"),
                ("eos_token", "</s>"),
                ("unk_token", "<unk>"),
                ("mask_token", "<mask_2>"),
                ("mask_token_sent", "<mask_1>"),
            ],
            TokenizerClass::T5 => &[("eos_token", "</s>"), ("unk_token", "<unk>"), ("pad_token", "<pad>")],
            TokenizerClass::Bert => &[
                ("unk_token", "[UNK]"),
                ("sep_token", "[SEP]"),
                ("pad_token", "[PAD]"),
                ("cls_token", "[CLS]"),
                ("mask_token", "[MASK]"),
            ],
            TokenizerClass::Plain => &[],
        }
    }
}

/// Roles of special tokens, in the order in which transformers adds them.
const ROLES: [&str; 7] = ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// `tokenizer_config.json` and `special_tokens_map.json`, with the defaults of the class.
pub(super) struct TokenizerSettings {
    /// `None` if no class is named, or an unknown one.
    pub class: Option<TokenizerClass>,
    /// The class and where it comes from, for messages.
    class_description: String,
    values: Map<String, Value>,
}

impl TokenizerSettings {
    pub(super) fn read(dir: &Path, sidecars: &Sidecars<'_>) -> Result<TokenizerSettings> {
        let [config, map, _, model] = special::parse_sidecars(dir, sidecars)?;
        let mut values = config.as_object().cloned().unwrap_or_default();
        for (key, value) in map.as_object().into_iter().flatten() {
            values.entry(key).or_insert_with(|| value.clone());
        }
        let text = |value: Option<&Value>| value.and_then(Value::as_str).map(str::to_owned);
        let class = text(values.get("tokenizer_class")).or_else(|| text(model.get("tokenizer_class")));
        let model_type = text(model.get("model_type"));
        let in_table = |table: &[(TokenizerClass, &[&str])], name: &str| {
            table.iter().find(|(_, names)| names.contains(&name)).map(|(kind, _)| *kind)
        };
        let (kind, class) = match (class, model_type) {
            (Some(class), _) => (
                in_table(CLASSES, class.strip_suffix("Fast").unwrap_or(&class)),
                format!("a tokenizer of class `{class}`"),
            ),
            (None, Some(name)) => (in_table(TYPES, &name), format!("the tokenizer of a model of type `{name}`")),
            (None, None) => {
                (None, "a tokenizer of no known class: neither tokenizer_config.json nor config.json names one".into())
            }
        };
        let mut settings = TokenizerSettings { class: kind, class_description: class, values };
        settings.fill(kind.map(TokenizerClass::defaults).unwrap_or_default());
        match kind {
            // The mask token strips the space before it, unless the files define it as an object.
            Some(TokenizerClass::Camembert | TokenizerClass::MBart50) => {
                if let Some(mask) = settings.values.get_mut("mask_token").filter(|mask| mask.is_string()) {
                    *mask = json!({"content": mask, "lstrip": true});
                }
            }
            Some(TokenizerClass::CodeLlama) => {
                settings.values.entry("add_bos_token").or_insert(json!(true));
            }
            _ => {}
        }
        Ok(settings)
    }

    /// Sets values that the files do not contain.
    pub(super) fn fill(&mut self, defaults: &[(&str, &str)]) {
        for (role, text) in defaults {
            self.values.entry(*role).or_insert_with(|| json!(text));
        }
    }

    pub(super) fn class_description(&self) -> &str {
        &self.class_description
    }

    pub(super) fn values(&self) -> Value {
        Value::Object(self.values.clone())
    }

    pub(super) fn flag(&self, key: &str, default: bool) -> bool {
        self.values.get(key).and_then(Value::as_bool).unwrap_or(default)
    }

    pub(super) fn number(&self, key: &str, default: u64) -> u64 {
        self.values.get(key).and_then(Value::as_u64).unwrap_or(default)
    }

    /// The text of the token with this role.
    pub(super) fn token(&self, role: &str) -> Option<String> {
        self.values.get(role).and_then(special::token_text)
    }

    /// The tokens of `added_tokens_decoder`, sorted by id.
    pub(super) fn fixed(&self) -> Vec<(u32, &Value)> {
        let listed = self.values.get("added_tokens_decoder").and_then(Value::as_object).into_iter().flatten();
        let mut fixed: Vec<(u32, &Value)> = listed.filter_map(|(id, token)| Some((id.parse().ok()?, token))).collect();
        fixed.sort_by_key(|(id, _)| *id);
        fixed
    }

    /// Special tokens without a role (`additional_special_tokens`).
    pub(super) fn extra(&self) -> Vec<&Value> {
        let keys = ["extra_special_tokens", "additional_special_tokens"];
        keys.iter().filter_map(|key| self.values.get(*key)?.as_array()).flatten().collect()
    }

    /// The `added_tokens` of `tokenizer.json`. Tokens outside the vocabulary get the ids after it.
    pub(super) fn added(&self, ids: &mut HashMap<String, u32>, more: &[(String, bool)]) -> Vec<Value> {
        let named = ROLES.iter().filter_map(|role| self.values.get(*role));
        let all = self.fixed().into_iter().filter_map(|(_, token)| added_token(token, false));
        let all = all.chain(named.filter_map(|token| added_token(token, true)));
        let all = all.chain(
            more.iter()
                .filter_map(|(text, is_special)| added_token(&json!({"content": text, "special": is_special}), false)),
        );
        let all = all.chain(self.extra().into_iter().filter_map(|token| added_token(token, true)));
        // Tokens of the file itself get the first ids after the vocabulary, before those of the
        // settings.
        let mut next = ids.values().max().map_or(0, |last| last.saturating_add(1));
        let mut id_of = |text: &str| {
            *ids.entry(text.to_owned()).or_insert_with(|| {
                let id = next;
                next = next.saturating_add(1);
                id
            })
        };
        for (text, _) in more {
            id_of(text);
        }
        let (mut listed, mut seen): (Vec<Value>, HashSet<String>) = Default::default();
        for mut token in all {
            let text = token["content"].as_str().unwrap_or_default().to_owned();
            if !text.is_empty() && seen.insert(text.clone()) {
                token["id"] = json!(id_of(&text));
                listed.push(token);
            }
        }
        listed.sort_by_key(|token| token["id"].as_u64());
        listed
    }
}

/// An added token with all fields, from its text or a partial object.
fn added_token(token: &Value, special: bool) -> Option<Value> {
    let content = special::token_text(token)?;
    let flag = |key: &str, default: bool| token.get(key).and_then(Value::as_bool).unwrap_or(default);
    // A plain string is special; an object has a flag.
    let special = special || flag("special", token.is_string());
    Some(json!({
        "content": content, "special": special, "normalized": flag("normalized", !special),
        "single_word": flag("single_word", false), "lstrip": flag("lstrip", false), "rstrip": flag("rstrip", false),
    }))
}
