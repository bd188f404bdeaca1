//! The result of an inspection as plain data with stable JSON keys; [`Report::card`] is the text
//! form.

use std::collections::BTreeMap;
use std::path::Path;

use pellucid_engine::Remedy;
use schemars::JsonSchema;
use serde::{Serialize, Serializer};

use super::kinds::Component;
use super::parts::Modalities;
use crate::Error;
use crate::attempt::{Attempt, Strategy};
use crate::category::{Category, sae};
use crate::select_family::Suggestion;

/// Schema name and version of JSON reports.
pub const SCHEMA: &str = "pellucid/inspect-report/v1";

/// The JSON schema of reports.
pub fn schema() -> serde_json::Value {
    let settings = schemars::generate::SchemaSettings::draft2020_12().for_serialize();
    settings.into_generator().into_root_schema_for::<Report>().to_value()
}

/// The result of an inspection: what a directory or file is, whether it runs, and what it needs.
///
/// In JSON every field is present; an unknown value is `null`, an empty list or an empty map.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Report {
    /// Schema of this report, [`SCHEMA`].
    pub schema: String,
    /// The inspected path.
    pub path: String,
    /// Storage format.
    pub format: Format,
    /// Category.
    pub category: Category,
    /// The `model_type` in `config.json`.
    pub model_type: Option<String>,
    /// The class in `config.json`: `LlamaForCausalLM`.
    pub architecture: Option<String>,
    /// Level of support in this build.
    pub support: Support,
    /// Why it will not run; `null` if it will. The text of the error that loading gives.
    pub reason: Option<String>,
    /// The native family that reads it; `null` if none does.
    pub family: Option<String>,
    /// The strategy that selects the family; `null` if none applies.
    pub strategy: Option<Strategy>,
    /// Warnings that loading gives.
    pub warnings: Vec<String>,
    /// The native family that its type is registered as, if the type is not native itself.
    pub registered_as: Option<String>,
    /// The most similar native family, for a language model that is not native itself.
    pub nearest: Option<String>,
    /// The native family that fits a model of a non-native type, for `assume`.
    pub assume: Option<Suggestion>,
    /// Number of parameters: tied weights count once, packed weights individually.
    pub parameters: u64,
    /// Number of tensors in all files.
    pub tensors: usize,
    /// The dtype in `config.json`.
    pub dtype: Option<String>,
    /// Number of parameters by stored dtype.
    pub dtypes: BTreeMap<String, u64>,
    /// Quantization of the weights, if any.
    #[serde(rename = "quantisation")]
    pub quantization: Option<Quantization>,
    /// Number of layers.
    pub layers: Option<usize>,
    /// Width of the residual stream (hidden size).
    pub width: Option<usize>,
    /// Number of query heads.
    pub heads: Option<usize>,
    /// Number of KV heads.
    pub kv_heads: Option<usize>,
    /// Head dimension.
    pub head_dim: Option<usize>,
    /// Maximum context length in tokens.
    pub context: Option<usize>,
    /// Vocabulary size.
    pub vocab: Option<usize>,
    /// Size of the weight files in bytes.
    pub file_bytes: u64,
    /// Memory estimate; `null` without weights.
    pub memory: Option<Memory>,
    /// The tokenizer.
    pub tokenizer: TokenizerReport,
    /// Whether it has a chat template.
    pub chat_template: bool,
    /// Python files in the directory or named by `auto_map`. None is ever executed.
    pub custom_code: Vec<String>,
    /// The weight files.
    pub shards: Shards,
    /// Modalities besides text, and the parts of a multimodal model.
    pub modalities: Modalities,
    /// Description of sparse autoencoders, if the category is `sae`.
    pub sae: Option<sae::SaeDescription>,
    /// The components of an image pipeline.
    pub components: Vec<Component>,
    /// The outcome of each loading strategy, in order; `null` in a quick report.
    pub strategies: Option<Vec<Attempt>>,
    /// Everything that keeps it from running; empty if and only if it runs.
    pub problems: Vec<Problem>,
    /// The license in the model card.
    #[serde(rename = "licence")]
    pub license: Option<String>,
    /// The models that it is based on.
    pub base_model: Vec<String>,
}

/// Storage format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// A directory of files.
    Directory,
    /// One GGUF file.
    Gguf,
    /// One safetensors file.
    Safetensors,
    /// Something else.
    Other,
}

/// Level of support in this build.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Support {
    /// The family runs here. `problems` may still list faults of this copy, such as a missing file.
    Native,
    /// Recognized and described, but cannot run.
    InspectOnly,
    /// Not recognized, or damaged.
    Unsupported,
}

/// Quantization of the weights.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[schemars(rename = "Quantisation")]
pub struct Quantization {
    /// `gguf`, or the `quant_method` of the configuration: `gptq`, `awq`, `bitsandbytes`…
    pub method: String,
    /// Bits per weight, if the configuration states them.
    pub bits: Option<u64>,
    /// The quantized encodings of a GGUF file.
    pub types: Vec<String>,
}

/// Estimated memory in bytes, from headers.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Memory {
    /// Weights as loaded by default: quantized, bf16 and f16 weights keep their encoding.
    pub as_stored: u64,
    /// Weights in f32.
    pub f32: u64,
    /// Weights in bf16.
    pub bf16: u64,
    /// Weights in f16.
    pub f16: u64,
    /// KV cache per token of one sequence.
    pub kv_per_token: Option<u64>,
    /// KV cache of one sequence at full context length.
    pub kv_at_context: Option<u64>,
    /// These values as a sentence.
    pub statement: String,
}

/// The tokenizer, as found in its files.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct TokenizerReport {
    /// Whether it is usable.
    pub state: TokenizerState,
    /// Number of tokens, including added ones.
    pub vocab: Option<usize>,
    /// Whether encoding prepends bos.
    pub adds_bos: Option<bool>,
    /// The special token that encoding prepends, such as `<s>` or `[CLS]`; `None` if it prepends
    /// none or the file does not say.
    pub prepends: Option<String>,
    /// Whether eos is used for padding because no padding token is named.
    pub pad_from_eos: Option<bool>,
    /// Details about the state.
    pub note: Option<String>,
}

impl TokenizerReport {
    /// A report with only a state.
    pub(super) fn with_state(state: TokenizerState, note: Option<String>) -> TokenizerReport {
        TokenizerReport { state, vocab: None, adds_bos: None, prepends: None, pad_from_eos: None, note }
    }
}

/// State of the tokenizer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TokenizerState {
    /// `tokenizer.json` exists and fits the model.
    Present,
    /// Rebuilt from a GGUF file or an older form.
    Rebuilt,
    /// No tokenizer; the model runs on token ids.
    Missing,
    /// Has tokens beyond the model's vocabulary: it belongs to another model.
    DoesNotFit,
    /// Exists but cannot be read.
    Damaged,
}

/// The weight files.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
pub struct Shards {
    /// Expected number of files.
    pub count: usize,
    /// Missing files.
    pub missing: Vec<String>,
    /// Weight files that are not used.
    pub surplus: Vec<String>,
}

/// A reason why a model does not run.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Problem {
    /// The problem, with its location.
    pub what: String,
    /// How to fix it.
    #[serde(serialize_with = "serialize_text")]
    #[schemars(with = "String")]
    pub remedy: Remedy,
}

fn serialize_text<S: Serializer>(remedy: &Remedy, serializer: S) -> std::result::Result<S::Ok, S::Error> {
    serializer.collect_str(remedy)
}

impl Report {
    /// Words the remedies of all problems, as the serialized report contains them.
    pub fn word_remedies(&mut self, word: &dyn Fn(&Remedy) -> String) {
        for problem in &mut self.problems {
            problem.remedy = Remedy::Text(word(&problem.remedy));
        }
    }

    /// The outcome of each loading strategy, one per line; empty in a quick report.
    pub fn explanation(&self) -> String {
        let Some(attempts) = &self.strategies else { return String::new() };
        attempts.iter().fold("\nloading strategies, in order:\n".to_owned(), |text, attempt| {
            format!("{text}  {}\n", super::card::clean(&attempt.to_string()))
        })
    }

    /// An empty report.
    pub(super) fn new(path: &Path, format: Format) -> Report {
        Report {
            schema: SCHEMA.into(),
            path: path.to_string_lossy().into_owned(),
            format,
            category: Category::Unknown,
            model_type: None,
            architecture: None,
            support: Support::Unsupported,
            reason: None,
            family: None,
            strategy: None,
            warnings: Vec::new(),
            registered_as: None,
            nearest: None,
            assume: None,
            parameters: 0,
            tensors: 0,
            dtype: None,
            dtypes: BTreeMap::new(),
            modalities: Modalities::default(),
            sae: None,
            components: Vec::new(),
            strategies: None,
            quantization: None,
            layers: None,
            width: None,
            heads: None,
            kv_heads: None,
            head_dim: None,
            context: None,
            vocab: None,
            file_bytes: 0,
            memory: None,
            tokenizer: TokenizerReport::with_state(TokenizerState::Missing, None),
            chat_template: false,
            custom_code: Vec::new(),
            shards: Shards::default(),
            problems: Vec::new(),
            license: None,
            base_model: Vec::new(),
        }
    }

    /// Takes the verdict of another report: family, strategy, warnings, attempts and problems.
    pub(super) fn take_verdict(&mut self, other: Report) {
        self.reason = other.reason;
        self.problems = other.problems;
        (self.family, self.strategy, self.warnings) = (other.family, other.strategy, other.warnings);
        self.strategies = other.strategies;
    }

    /// Whether the model will run as it is.
    pub fn runs(&self) -> bool {
        self.support == Support::Native && self.problems.is_empty()
    }

    /// Adds a problem; the first one becomes the reason.
    pub(super) fn refuse(&mut self, what: impl Into<String>, remedy: impl Into<Remedy>) {
        let problem = Problem { what: what.into(), remedy: remedy.into() };
        self.reason.get_or_insert_with(|| problem.what.clone());
        self.problems.push(problem);
    }

    /// Adds a loading error as a problem.
    pub(super) fn refuse_for(&mut self, error: &Error) {
        let unreadable = || "check that the file can be read, or download it again".into();
        let remedy = error.remedy().cloned().unwrap_or_else(unreadable);
        self.refuse(error.to_string(), remedy);
    }
}

impl Support {
    /// Name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Support::Native => "native",
            Support::InspectOnly => "inspect-only",
            Support::Unsupported => "unsupported",
        }
    }
}
