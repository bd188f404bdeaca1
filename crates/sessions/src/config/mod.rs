//! Session files: the structure of a session, and reading it from files and settings.
//!
//! Every key is optional while files are merged; [`crate::session`] reports the required ones that
//! are still missing. `read.rs` merges files and settings, `lines.rs` finds the line of a key for
//! errors that appear later.

mod lines;
mod op_options;
mod read;

pub use op_options::{
    ConceptConfig, ConceptMethod, ConceptWeight, FeatureBase, FeatureScore, FeaturesConfig, GraphConfig,
    InterventionConfig, InterventionMode, ScoreSign,
};
pub use read::{ConfigSource, LoadedConfig, read_config};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// A session: a model, autoencoders, a dataset, a chain of ops and an output.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SessionConfig {
    /// Name for display; the name of the file by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Seed of `dataset.shuffle`; 0 by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// The model.
    pub model: ModelConfig,
    /// Autoencoders to attach.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub saes: Vec<SaeConfig>,
    /// The examples.
    pub dataset: DatasetConfig,
    /// The chain of ops: one name, names joined by dots, or a list.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ops: Option<OpsConfig>,
    /// Options of the ops of concepts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub concept: Option<ConceptConfig>,
    /// Options of `model_fwd_intervention`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub intervention: Option<InterventionConfig>,
    /// Options of the ops of attribution graphs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub graph: Option<GraphConfig>,
    /// Options of `extract_top_features` and `feature_intervention_forward`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub features: Option<FeaturesConfig>,
    /// Checks of the model and the data before the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub debug: Option<DebugConfig>,
    /// Where the results go.
    pub output: OutputConfig,
}

/// The model of a session.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ModelConfig {
    /// Directory, GGUF file, Hugging Face id or pulled name; the built-in model by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// In-memory dtype of the weights; as stored by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dtype: Option<Dtype>,
    /// Dtype of the KV cache; f32 by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv_dtype: Option<KvDtype>,
    /// LoRA adapters (PEFT directories) to merge into the weights.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub adapters: Vec<PathBuf>,
    /// Family as which to load a model of an unsupported type.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub assume: Option<String>,
    /// The device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<Device>,
    /// Number of threads; all cores by default. Results do not depend on it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threads: Option<u16>,
}

/// Dtypes of weights in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)] // named for what they are
pub enum Dtype {
    /// As in the file.
    Auto,
    F32,
    Bf16,
    F16,
    /// 8-bit blocks.
    Q8,
}

/// Dtypes of the KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)] // named for what they are
pub enum KvDtype {
    F32,
    Bf16,
}

/// Devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Device {
    /// The CPU, the only device.
    Cpu,
}

/// An autoencoder of a session.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SaeConfig {
    /// Directory or file of a published format, or `builtin`.
    pub path: String,
    /// The site that it reconstructs, if not the one that its files name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub site: Option<String>,
    /// Add the error of the reconstruction, so that only edits of latents matter; false by default.
    #[serde(skip_serializing_if = "is_false")]
    pub error_term: bool,
    /// Attach it without testing that it reconstructs the activations of its site.
    #[serde(skip_serializing_if = "is_false")]
    pub unchecked: bool,
}

/// The examples of a session.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DatasetConfig {
    /// File (JSONL, CSV, Parquet, text), or a directory with one file per split.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<PathBuf>,
    /// Format of the file, if not by its extension.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub format: Option<DataFormat>,
    /// Template of the prompt, such as `"{premise} {hypothesis}"`; `{prompt}` by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
    /// Field with the label: an index into the labels, or one of their texts; `label` by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label_field: Option<String>,
    /// Texts of the labels in order, leading spaces included, such as `[" Yes", " No"]`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<String>,
    /// Field with a list of labels for each example, instead of `labels`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub labels_field: Option<String>,
    /// How labels are scored; `single_token` by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answer: Option<AnswerMode>,
    /// Whether prompts start with a BOS token; as the tokenizer does by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bos: Option<bool>,
    /// The split: the value of the field `split_field`, or the name of a file in a directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub split: Option<String>,
    /// Field that holds the split of an example; `split` by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub split_field: Option<String>,
    /// Shuffle the examples with the session's seed before `offset` and `limit`.
    #[serde(skip_serializing_if = "is_false")]
    pub shuffle: bool,
    /// Examples to leave out at the start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offset: Option<usize>,
    /// Maximum number of examples.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// Examples of a batch; 2 by default. Results do not depend on it; each row keeps its number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch_size: Option<usize>,
    /// Treatment of padding; `correct` by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub padding: Option<Padding>,
    /// Length to which rows are padded, for the modes of `padding` that pad; that of the longest
    /// prompt by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pad_to: Option<usize>,
}

/// Formats of datasets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DataFormat {
    /// One JSON object or string per line.
    Jsonl,
    /// Comma-separated values with a header.
    Csv,
    /// Tab-separated values with a header.
    Tsv,
    /// Parquet.
    Parquet,
    /// One example per line that is not empty, in the field `text`.
    Text,
}

/// How labels are scored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AnswerMode {
    /// By the logit of their token; a label of several tokens is an error.
    #[default]
    SingleToken,
    /// By the logit of their first token.
    FirstToken,
    /// By the sum of the log-probabilities of their tokens.
    Sequence,
}

/// Treatment of padding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Padding {
    /// As if there were none: rows are never padded, positions start at 0.
    #[default]
    Correct,
    /// Rows left-padded, the last pad kept as BOS, as HookedTransformer does: a row that is shorter
    /// than the padded length starts with the pad token, if that is also the BOS token.
    HookedTransformer,
    /// Rows left-padded, pads masked, but positions counted over the pads, as TransformerBridge up
    /// to 3.5 does.
    HfArange,
}

/// A chain of ops.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "`ops` is neither a chain, such as \"a.b\", nor a list of names")]
pub enum OpsConfig {
    /// One name, or names joined by dots.
    Chain(String),
    /// Names, each possibly a chain.
    List(Vec<String>),
}

impl OpsConfig {
    /// Returns the parts of the chain as written.
    pub fn parts(&self) -> Vec<&str> {
        match self {
            OpsConfig::Chain(chain) => vec![chain],
            OpsConfig::List(list) => list.iter().map(String::as_str).collect(),
        }
    }
}

/// Checks of the model and the data before the run: perplexity, sample generations, shapes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DebugConfig {
    /// Number of examples that are examined.
    pub examples: usize,
    /// Tokens generated after each of them.
    pub max_new: usize,
}

impl Default for DebugConfig {
    fn default() -> DebugConfig {
        DebugConfig { examples: 2, max_new: 12 }
    }
}

/// The output of a session.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct OutputConfig {
    /// Directory of the store, relative to the working directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<PathBuf>,
    /// Formats: `parquet` tables always, and `safetensors` for dense arrays.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub formats: Vec<OutputFormat>,
    /// Whether the examples' prompts are stored as text; true by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompts: Option<bool>,
    /// Examples of a part, the unit of saving and reuse; 32 by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub part_rows: Option<usize>,
}

/// Formats of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OutputFormat {
    /// Tables.
    Parquet,
    /// Dense arrays, one row per example and one column per latent.
    Safetensors,
}

fn is_false(value: &bool) -> bool {
    !value
}

/// Returns the JSON Schema of a session, for completion and validation in editors.
pub fn schema() -> serde_json::Value {
    schemars::schema_for!(SessionConfig).to_value()
}
