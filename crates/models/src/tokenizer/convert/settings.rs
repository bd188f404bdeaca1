//! What a directory says about its tokenizer beside the vocabulary: its class, its special tokens, its flags.

use super::super::{Sidecars, special};
use crate::Result;
use serde_json::{Map, Value, json};
use std::collections::{HashMap, HashSet};
use std::path::Path;

/// The classes of transformers that are known, by the way in which they cut text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
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
    /// No class of its own: what the file itself says.
    Plain,
}

/// Classes by their names, without an ending `Fast`.
const CLASSES: &[(Kind, &[&str])] = &[
    (Kind::Gpt2, &["GPT2Tokenizer", "CodeGenTokenizer"]),
    (Kind::GptNeoX, &["GPTNeoXTokenizer"]),
    (Kind::OpenAiGpt, &["OpenAIGPTTokenizer"]),
    (Kind::Roberta, &["RobertaTokenizer", "BartTokenizer", "LongformerTokenizer", "LEDTokenizer", "MvpTokenizer"]),
    (Kind::Qwen2, &["Qwen2Tokenizer"]),
    (Kind::Llama, &["LlamaTokenizer"]),
    (Kind::CodeLlama, &["CodeLlamaTokenizer"]),
    (Kind::Gemma, &["GemmaTokenizer"]),
    (Kind::T5, &["T5Tokenizer"]),
    (Kind::XlmRoberta, &["XLMRobertaTokenizer"]),
    (Kind::Camembert, &["CamembertTokenizer"]),
    (Kind::MBart50, &["MBart50Tokenizer"]),
    (Kind::Pegasus, &["PegasusTokenizer"]),
    (
        Kind::Bert,
        &["BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer", "MobileBertTokenizer", "ConvBertTokenizer"],
    ),
    (Kind::Plain, &["PreTrainedTokenizer", "TokenizersBackend"]),
];

/// The classes of model types, where the tokenizer's own files name none.
const TYPES: &[(Kind, &[&str])] = &[
    (Kind::Gpt2, &["gpt2", "gpt_neo", "gptj", "opt", "codegen", "phi", "starcoder2", "dbrx"]),
    (Kind::GptNeoX, &["gpt_neox"]),
    (Kind::OpenAiGpt, &["openai-gpt"]),
    (Kind::Roberta, &["roberta", "bart", "longformer"]),
    (Kind::Qwen2, &["qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "qwen3_next"]),
    (Kind::Llama, &["llama", "mistral", "mixtral"]),
    (Kind::Gemma, &["gemma", "gemma2", "gemma3", "gemma3_text", "recurrent_gemma"]),
    (Kind::T5, &["t5", "mt5"]),
    (Kind::XlmRoberta, &["xlm-roberta", "trocr"]),
    (Kind::Camembert, &["camembert"]),
    (Kind::Pegasus, &["pegasus"]),
    (Kind::Bert, &["bert", "distilbert", "electra"]),
];

impl Kind {
    /// The special tokens that a class has unless its files say otherwise.
    fn defaults(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Kind::Gpt2 => {
                &[("bos_token", "<|endoftext|>"), ("eos_token", "<|endoftext|>"), ("unk_token", "<|endoftext|>")]
            }
            Kind::GptNeoX => &[
                ("bos_token", "<|endoftext|>"),
                ("eos_token", "<|endoftext|>"),
                ("unk_token", "<|endoftext|>"),
                ("pad_token", "<|padding|>"),
            ],
            Kind::OpenAiGpt => &[("unk_token", "<unk>")],
            Kind::Roberta | Kind::XlmRoberta | Kind::Camembert => &[
                ("bos_token", "<s>"),
                ("eos_token", "</s>"),
                ("unk_token", "<unk>"),
                ("sep_token", "</s>"),
                ("pad_token", "<pad>"),
                ("cls_token", "<s>"),
                ("mask_token", "<mask>"),
            ],
            Kind::Qwen2 => {
                &[("eos_token", "<|endoftext|>"), ("unk_token", "<|endoftext|>"), ("pad_token", "<|endoftext|>")]
            }
            Kind::Llama => &[("bos_token", "<s>"), ("eos_token", "</s>"), ("unk_token", "<unk>")],
            Kind::CodeLlama => &[
                ("bos_token", "<s>"),
                ("eos_token", "</s>"),
                ("unk_token", "<unk>"),
                ("prefix_token", "\u{2581}<PRE>"),
                ("middle_token", "\u{2581}<MID>"),
                ("suffix_token", "\u{2581}<SUF>"),
                ("eot_token", "\u{2581}<EOT>"),
                ("fill_token", "<FILL_ME>"),
            ],
            Kind::Gemma => &[
                ("bos_token", "<bos>"),
                ("eos_token", "<eos>"),
                ("unk_token", "<unk>"),
                ("pad_token", "<pad>"),
                ("mask_token", "<mask>"),
            ],
            Kind::MBart50 => &[
                ("eos_token", "</s>"),
                ("sep_token", "</s>"),
                ("cls_token", "<s>"),
                ("unk_token", "<unk>"),
                ("pad_token", "<pad>"),
                ("mask_token", "<mask>"),
                ("src_lang", "en_XX"),
            ],
            Kind::Pegasus => &[
                ("pad_token", "<pad>"),
                ("eos_token", "</s>"),
                ("unk_token", "<unk>"),
                ("mask_token", "<mask_2>"),
                ("mask_token_sent", "<mask_1>"),
            ],
            Kind::T5 => &[("eos_token", "</s>"), ("unk_token", "<unk>"), ("pad_token", "<pad>")],
            Kind::Bert => &[
                ("unk_token", "[UNK]"),
                ("sep_token", "[SEP]"),
                ("pad_token", "[PAD]"),
                ("cls_token", "[CLS]"),
                ("mask_token", "[MASK]"),
            ],
            Kind::Plain => &[],
        }
    }
}

/// The roles that a token can have, in the order in which transformers adds them.
const ROLES: [&str; 7] = ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// The settings of a tokenizer.
pub(super) struct Settings {
    /// `None` where nothing says it, or a class that is not known does.
    pub kind: Option<Kind>,
    /// What says it, for messages.
    class: String,
    values: Map<String, Value>,
}

impl Settings {
    pub(super) fn read(dir: &Path, sidecars: &Sidecars<'_>) -> Result<Settings> {
        let [config, map, _, model] = special::parsed(dir, sidecars)?;
        let mut values = config.as_object().cloned().unwrap_or_default();
        for (key, value) in map.as_object().into_iter().flatten() {
            values.entry(key).or_insert_with(|| value.clone());
        }
        let text = |value: Option<&Value>| value.and_then(Value::as_str).map(str::to_owned);
        let class = text(values.get("tokenizer_class")).or_else(|| text(model.get("tokenizer_class")));
        let model_type = text(model.get("model_type"));
        let in_table = |table: &[(Kind, &[&str])], name: &str| {
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
        let mut settings = Settings { kind, class, values };
        settings.fill(kind.map(Kind::defaults).unwrap_or_default());
        match kind {
            // Their masks swallow the space before them, unless the files describe them in full.
            Some(Kind::Camembert | Kind::MBart50) => {
                if let Some(mask) = settings.values.get_mut("mask_token").filter(|mask| mask.is_string()) {
                    *mask = json!({"content": mask, "lstrip": true});
                }
            }
            Some(Kind::CodeLlama) => {
                settings.values.entry("add_bos_token").or_insert(json!(true));
            }
            _ => {}
        }
        Ok(settings)
    }

    /// Fills in what the files do not say.
    pub(super) fn fill(&mut self, defaults: &[(&str, &str)]) {
        for (role, text) in defaults {
            self.values.entry(*role).or_insert_with(|| json!(text));
        }
    }

    pub(super) fn class(&self) -> &str {
        &self.class
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

    /// The text of the token with a role.
    pub(super) fn token(&self, role: &str) -> Option<String> {
        self.values.get(role).and_then(special::token_text)
    }

    /// The tokens with ids that the files fix, in the order of these.
    pub(super) fn fixed(&self) -> Vec<(u32, &Value)> {
        let listed = self.values.get("added_tokens_decoder").and_then(Value::as_object).into_iter().flatten();
        let mut fixed: Vec<(u32, &Value)> = listed.filter_map(|(id, token)| Some((id.parse().ok()?, token))).collect();
        fixed.sort_by_key(|(id, _)| *id);
        fixed
    }

    /// Special tokens without a role.
    pub(super) fn extra(&self) -> Vec<&Value> {
        let keys = ["extra_special_tokens", "additional_special_tokens"];
        keys.iter().filter_map(|key| self.values.get(*key)?.as_array()).flatten().collect()
    }

    /// The added tokens as `tokenizer.json` lists them. Those that the vocabulary lacks follow it.
    pub(super) fn added(&self, ids: &mut HashMap<String, u32>, more: &[(String, bool)]) -> Vec<Value> {
        let named = ROLES.iter().filter_map(|role| self.values.get(*role));
        let all = self.fixed().into_iter().filter_map(|(_, token)| described(token, false));
        let all = all.chain(named.filter_map(|token| described(token, true)));
        let all = all.chain(
            more.iter()
                .filter_map(|(text, is_special)| described(&json!({"content": text, "special": is_special}), false)),
        );
        let all = all.chain(self.extra().into_iter().filter_map(|token| described(token, true)));
        // Those of the file itself come first after the vocabulary, whatever the settings list before them.
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

/// An added token with all its fields, from its text or from an object that leaves some of them out.
fn described(token: &Value, special: bool) -> Option<Value> {
    let content = special::token_text(token)?;
    let flag = |key: &str, default: bool| token.get(key).and_then(Value::as_bool).unwrap_or(default);
    // What stands for itself is special unless an object says that it is not.
    let special = special || flag("special", token.is_string());
    Some(json!({
        "content": content, "special": special, "normalized": flag("normalized", !special),
        "single_word": flag("single_word", false), "lstrip": flag("lstrip", false), "rstrip": flag("rstrip", false),
    }))
}
