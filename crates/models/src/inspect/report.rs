//! What an inspection says: plain data with stable names, for programs; [`Report::card`] is the same for people.

use std::collections::BTreeMap;
use std::path::Path;

use schemars::JsonSchema;
use serde::Serialize;

use super::kinds::Component;
use super::parts::Modalities;
use super::sae;
use crate::Error;
use crate::attempt::Attempt;
use crate::select_family::Suggestion;

/// The format of reports as JSON.
pub const SCHEMA: &str = "pellucid/inspect-report/v1";

/// The JSON schema of reports.
pub fn schema() -> serde_json::Value {
    let settings = schemars::generate::SchemaSettings::draft2020_12().for_serialize();
    settings.into_generator().into_root_schema_for::<Report>().to_value()
}

/// What a directory or file is, whether it runs, and what it would need.
///
/// As JSON every field is always there; what is not known is `null`, an empty list or an empty map.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Report {
    /// The format of this report, [`SCHEMA`].
    pub schema: String,
    /// What was looked at.
    pub path: String,
    /// How it is stored.
    pub format: Format,
    /// What kind of thing it is.
    pub category: Category,
    /// The family, as `config.json` names it.
    pub model_type: Option<String>,
    /// The class that `config.json` names: `LlamaForCausalLM`.
    pub architecture: Option<String>,
    /// What this build can do with it.
    pub support: Support,
    /// Why it will not run; nothing where it will.
    pub reason: Option<String>,
    /// The native family that its type is registered as, where it is not native itself; it runs as that, with a warning.
    pub registered_as: Option<String>,
    /// The native family that is most like it, for a language model that is not native itself.
    pub nearest: Option<String>,
    /// The native family that `--assume` would run it as, for a model whose own type is not native and that fits one.
    pub assume: Option<Suggestion>,
    /// Numbers in all tensors, a tied table counted once, packed numbers one by one.
    pub parameters: u64,
    /// Tensors in all files.
    pub tensors: usize,
    /// The number format that `config.json` names.
    pub dtype: Option<String>,
    /// Parameters by the format they are stored in.
    pub dtypes: BTreeMap<String, u64>,
    /// How the weights are quantised, if they are.
    pub quantisation: Option<Quantisation>,
    /// Blocks.
    pub layers: Option<usize>,
    /// Width of the residual stream.
    pub width: Option<usize>,
    /// Query heads.
    pub heads: Option<usize>,
    /// Key and value heads.
    pub kv_heads: Option<usize>,
    /// Width of a head.
    pub head_dim: Option<usize>,
    /// Positions that the model was made for.
    pub context: Option<usize>,
    /// Tokens in the vocabulary.
    pub vocab: Option<usize>,
    /// Bytes of the files of weights.
    pub file_bytes: u64,
    /// What running it takes; nothing where there are no weights to count.
    pub memory: Option<Memory>,
    /// Its tokenizer.
    pub tokenizer: TokenizerReport,
    /// Whether it has a chat template.
    pub chat_template: bool,
    /// Files of Python code that came with it, and those that `auto_map` names. None is ever executed.
    pub custom_code: Vec<String>,
    /// The files that its weights are spread over.
    pub shards: Shards,
    /// What it takes in and gives out besides text, with its parts.
    pub modalities: Modalities,
    /// What the autoencoders here are, if these are such.
    pub sae: Option<sae::Description>,
    /// The components of an image pipeline.
    pub components: Vec<Component>,
    /// What each way to load it would do, in their order; nothing where that was not asked ([`strategies`](crate::strategies) tells).
    pub strategies: Option<Vec<Attempt>>,
    /// Everything that keeps it from running; empty exactly where it runs.
    pub problems: Vec<Problem>,
    /// The licence that its model card names.
    pub licence: Option<String>,
    /// The models that it was made from or belongs to.
    pub base_model: Vec<String>,
}

/// How a thing is stored.
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

/// The kinds of things that people have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Category {
    /// A model of text, or of text with other inputs.
    Transformers,
    /// Sparse autoencoders or transcoders.
    Sae,
    /// Small weights that change a base model (LoRA).
    Adapter,
    /// An image pipeline of the `diffusers` library, or a part of one.
    Diffusers,
    /// A model that turns texts into vectors.
    Embedding,
    /// A model that looks at images.
    VisionEncoder,
    /// A model that listens.
    AudioEncoder,
    /// A model that writes down speech.
    Asr,
    /// Nothing that is recognised.
    Unknown,
}

/// What this build can do with a thing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Support {
    /// Its family runs here. `problems` may still name what keeps this copy of it from running, such as a missing file.
    Native,
    /// It is known what it is, and described; there is no way to run it.
    InspectOnly,
    /// It is not known what it is, or what would tell is damaged.
    Unsupported,
}

/// How weights are quantised.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Quantisation {
    /// `gguf`, or the `quant_method` of the configuration: `gptq`, `awq`, `bitsandbytes`…
    pub method: String,
    /// Bits of a weight, where the configuration says.
    pub bits: Option<u64>,
    /// The quantised formats of a GGUF file.
    pub types: Vec<String>,
}

/// What running a model takes, by the format in which the weights are kept. Everything is in bytes and an estimate from headers.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Memory {
    /// Weights as they are loaded by default: quantised ones stay so, bf16 and f16 too.
    pub as_stored: u64,
    /// Weights in f32.
    pub f32: u64,
    /// Weights in bf16.
    pub bf16: u64,
    /// Weights in f16.
    pub f16: u64,
    /// Keys and values of one position of one sequence.
    pub kv_per_token: Option<u64>,
    /// Keys and values of one sequence as long as the context.
    pub kv_at_context: Option<u64>,
    /// The same in a sentence.
    pub statement: String,
}

/// A tokenizer, as far as its files tell.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct TokenizerReport {
    /// Whether there is one that can be used.
    pub state: TokenizerState,
    /// Its tokens, added ones included.
    pub vocab: Option<usize>,
    /// Whether it puts the start token before a text.
    pub adds_bos: Option<bool>,
    /// No token for filling up is named, so the one that ends a text is taken.
    pub pad_from_eos: Option<bool>,
    /// More about the state.
    pub note: Option<String>,
}

impl TokenizerReport {
    /// Of a tokenizer of which nothing but its state is known.
    pub(super) fn without(state: TokenizerState, note: Option<String>) -> TokenizerReport {
        TokenizerReport { state, vocab: None, adds_bos: None, pad_from_eos: None, note }
    }
}

/// Whether there is a tokenizer that can be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TokenizerState {
    /// `tokenizer.json` is there and fits.
    Present,
    /// It is in the GGUF file or in an older form, and rebuilt from it.
    Rebuilt,
    /// There is none; the model runs on token ids.
    Missing,
    /// It has tokens beyond the model's vocabulary: it belongs to another model.
    DoesNotFit,
    /// It is there and cannot be read.
    Damaged,
}

/// The files of weights.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
pub struct Shards {
    /// How many there should be.
    pub count: usize,
    /// Those that are not there.
    pub missing: Vec<String>,
    /// Files of weights beside them that nothing refers to.
    pub surplus: Vec<String>,
}

/// Something that keeps a model from running.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Problem {
    /// What is wrong, and where.
    pub what: String,
    /// What to do about it.
    pub remedy: String,
}

impl Report {
    /// What each way to load it would do, a line each; empty where that was not asked.
    pub fn explanation(&self) -> String {
        let Some(attempts) = &self.strategies else { return String::new() };
        attempts.iter().fold("\nways to load it, in order:\n".to_owned(), |text, attempt| {
            format!("{text}  {}\n", super::card::clean(&attempt.to_string()))
        })
    }

    /// A report that knows nothing yet.
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
            quantisation: None,
            layers: None,
            width: None,
            heads: None,
            kv_heads: None,
            head_dim: None,
            context: None,
            vocab: None,
            file_bytes: 0,
            memory: None,
            tokenizer: TokenizerReport::without(TokenizerState::Missing, None),
            chat_template: false,
            custom_code: Vec::new(),
            shards: Shards::default(),
            problems: Vec::new(),
            licence: None,
            base_model: Vec::new(),
        }
    }

    /// Whether the model will run as it is.
    pub fn runs(&self) -> bool {
        self.support == Support::Native && self.problems.is_empty()
    }

    /// Adds a problem, the first of which is the reason.
    pub(super) fn refuse(&mut self, what: impl Into<String>, remedy: impl Into<String>) {
        let problem = Problem { what: what.into(), remedy: remedy.into() };
        self.reason.get_or_insert_with(|| problem.what.clone());
        self.problems.push(problem);
    }

    /// Adds an error that loading would end with.
    pub(super) fn refuse_for(&mut self, error: &Error) {
        let remedy = error.remedy().unwrap_or("check that the file can be read, or get it anew");
        self.refuse(error.to_string(), remedy);
    }
}

impl Category {
    /// All of them.
    pub const ALL: [Category; 9] = [
        Category::Transformers,
        Category::Sae,
        Category::Adapter,
        Category::Diffusers,
        Category::Embedding,
        Category::VisionEncoder,
        Category::AudioEncoder,
        Category::Asr,
        Category::Unknown,
    ];

    /// The category of that name.
    pub fn from_name(name: &str) -> Option<Category> {
        Category::ALL.into_iter().find(|category| category.name() == name)
    }

    /// Its name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Category::Transformers => "transformers",
            Category::Sae => "sae",
            Category::Adapter => "adapter",
            Category::Diffusers => "diffusers",
            Category::Embedding => "embedding",
            Category::VisionEncoder => "vision_encoder",
            Category::AudioEncoder => "audio_encoder",
            Category::Asr => "asr",
            Category::Unknown => "unknown",
        }
    }
}

impl Support {
    /// Its name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Support::Native => "native",
            Support::InspectOnly => "inspect-only",
            Support::Unsupported => "unsupported",
        }
    }
}
