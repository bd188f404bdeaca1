//! Command-line arguments.

mod adapter;
mod analyze;
mod batch;
mod eval;
mod lab;
mod lab_capture;
mod lab_sessions;
mod mcp;
mod sae;
mod serve;
mod server;
mod steer;

pub use adapter::AdapterArg;
pub use analyze::*;
pub use batch::{BatchArgs, SchedulerArgs};
use clap::{Args, Parser, Subcommand, ValueEnum};
pub use eval::EvalArgs;
pub use lab::*;
pub use lab_capture::LabCaptureArgs;
pub use lab_sessions::LabSessionsArgs;
pub use mcp::McpArgs;
use pellucid_engine::MemoryLimit;
pub use sae::*;
pub use serve::{LogArg, ServeArgs, ServedAdapter};
pub use server::ServerArgs;
use std::ffi::OsString;
use std::path::PathBuf;
pub use steer::*;

/// See through a language model: read or change any activation inside it, generate, and know what
/// it costs.
#[derive(Parser)]
#[command(
    version,
    about,
    max_term_width = 110,
    after_help = "Without --model every command uses the built-in model, so each works on a fresh machine.\n\n\
  pellucid lens \"Once upon a time\"                      the model's prediction after every layer\n  \
  pellucid run \"Tom saw a dog\" --capture 'layers.*.resid_post' --out acts.safetensors\n  \
  pellucid generate \"One day,\" --max-new 40 --plan steer.json\n  \
  pellucid steer extract pairs.jsonl --output happy.safetensors     then: generate --steer happy.safetensors@1.5\n\n\
Exit codes: 0 success; 1 negative answer (unsupported model, failed check, regression); 2 wrong usage or bad input; 3 internal error; `lab` also 4 inconclusive (with --gate) and 5 invalid measurement."
)]
pub struct Arguments {
    #[command(subcommand)]
    pub command: Command,
    /// TOML file that maps model types to a supported family (a table `[architectures]` with lines
    /// such as `acme_llm = "llama"`); PELLUCID_ARCHITECTURES also names one
    #[arg(long, global = true, value_name = "F.toml")]
    pub architectures: Option<PathBuf>,
    /// Memory that loading and running may take: a share of what is available (80%), a size of the
    /// whole process (12GB) or `none` [default: PELLUCID_MEMORY_LIMIT, or 90%]
    #[arg(long, global = true, value_name = "LIMIT")]
    pub memory_limit: Option<MemoryLimit>,
}

#[derive(Subcommand)]
pub enum Command {
    /// Describe a model directory or file: architecture, size, whether it can run and what it
    /// needs.
    Inspect(InspectArgs),
    /// List every site (named activation) of a model with its shape, meaning and aliases.
    Sites(SitesArgs),
    /// Run prompts once: capture and edit activations, or show the top next tokens.
    Run(RunArgs),
    /// Show the tokens of prompts; for a chat also the message, role and part of each token.
    Tokens(TokensArgs),
    /// Generate text, optionally with a plan of captures and edits active at every step.
    Generate(GenerateArgs),
    /// Serve models over HTTP: the OpenAI API, with plans, captures and steering on every request.
    Serve(ServeArgs),
    /// Offer tools for coding agents over stdio (MCP): run, capture, edit, steer, sweep.
    Mcp(McpArgs),
    /// Logit lens: the model's next-token prediction after each layer.
    Lens(LensArgs),
    /// Steering vectors: extract them from pairs of prompts, show files of them.
    #[command(subcommand)]
    Steer(SteerCommand),
    /// Sparse autoencoders and transcoders: show what they are and where they belong.
    #[command(subcommand)]
    Sae(SaeCommand),
    /// Evaluate a model on tasks, plain and under plans: accuracy, perplexity, minimal pairs.
    Eval(EvalArgs),
    /// Run an analysis session: a model, SAEs, a dataset and a chain of ops, from a file.
    Analyze(AnalyzeArgs),
    /// Stores of results that sessions wrote: show, compare, export.
    #[command(subcommand)]
    Store(StoreCommand),
    /// Repeat the session of a store and report whether every bit is the same.
    Replay(ReplayArgs),
    /// Profile a run or a generation: time, FLOP/s and bandwidth of every op.
    Profile(ProfileArgs),
    /// Download a model by name.
    Pull(PullArgs),
    /// Benchmarks: compare builds, settings and other libraries in fresh processes.
    #[command(subcommand)]
    Lab(LabCommand),
}

/// Selects a model and its storage formats.
#[derive(Args, Clone)]
pub struct ModelArgs {
    /// Model directory, GGUF file, Hugging Face id or pulled name [default: the built-in model]
    #[arg(long, short, value_name = "M")]
    pub model: Option<OsString>,
    /// LoRA adapter (a PEFT directory). DIR alone merges it into the weights; NAME=DIR attaches it
    /// unmerged, for --use-adapter NAME and for requests that name it; may be repeated
    #[arg(long, value_name = "[NAME=]DIR")]
    pub adapter: Vec<AdapterArg>,
    /// Use an adapter that --adapter NAME=DIR attaches, for every prompt or request that names none
    #[arg(long, value_name = "NAME")]
    pub use_adapter: Option<String>,
    /// Attach a sparse autoencoder or transcoder (a published format, or `builtin`), at SITE
    /// instead of where it says it belongs. Its features become sites: SITE/sae.acts; may be
    /// repeated
    #[arg(long, value_name = "PATH[@SITE]")]
    pub sae: Vec<String>,
    /// Attach SAEs without testing that they reconstruct the activations of their site
    #[arg(long)]
    pub unchecked: bool,
    #[command(flatten)]
    pub assume: AssumeArg,
    /// In-memory dtype of the weights
    #[arg(long, value_enum, default_value = "auto")]
    pub dtype: DTypeArg,
    /// KV cache dtype; bf16 halves its memory and rounds keys and values
    #[arg(long, alias = "kv", value_enum, default_value = "f32")]
    pub kv_dtype: KvArg,
    /// Number of threads [default: PELLUCID_THREADS, RAYON_NUM_THREADS, OMP_NUM_THREADS or all
    /// cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
}

/// Family to assume for a model of an unknown type.
#[derive(Args, Clone)]
pub struct AssumeArg {
    /// Load a model of an unsupported type as FAMILY (such as llama). Prints a warning, and fails
    /// unless the configuration and all tensors fit. An error if the model's own type is supported
    /// and differs
    #[arg(long, value_name = "FAMILY")]
    pub assume: Option<String>,
}

#[derive(Clone, Copy, ValueEnum)]
pub enum DTypeArg {
    /// As stored in the file; quantized weights stay quantized
    Auto,
    F32,
    Bf16,
    F16,
    /// 8-bit blocks of 32 values with one scale each: half the memory of bf16; outputs differ in
    /// about the third digit
    Q8,
}

#[derive(Clone, Copy, ValueEnum)]
pub enum KvArg {
    F32,
    Bf16,
}

#[derive(Args)]
pub struct InspectArgs {
    /// Model directory or file, or a pulled name
    #[arg(required_unless_present = "schema")]
    pub path: Option<PathBuf>,
    #[command(flatten)]
    pub assume: AssumeArg,
    /// Also list the loading strategies in order and the outcome of each
    #[arg(long)]
    pub explain: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    /// Print the JSON Schema of the --json output and exit
    #[arg(long, conflicts_with_all = ["json", "explain"])]
    pub schema: bool,
}

#[derive(Args)]
pub struct SitesArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    /// Print every site of every layer as JSON
    #[arg(long)]
    pub json: bool,
}

/// Input rows.
#[derive(Args, Default)]
pub struct InputArgs {
    /// Prompts; each is one row of the batch
    #[arg(value_name = "PROMPT")]
    pub prompts: Vec<String>,
    /// Token ids of one row, such as 1,2,3; may be repeated
    #[arg(long, value_name = "IDS")]
    pub tokens: Vec<String>,
    /// JSON file with a conversation, rendered with the model's chat template: a list of
    /// {"role": …, "content": …}, or an object with `messages`, `continue_final_message`,
    /// `add_generation_prompt`, `chat_template` (Jinja, instead of the model's) and variables of
    /// the template; may be repeated
    #[arg(long, value_name = "F.json")]
    pub messages: Vec<PathBuf>,
    /// Wrap each prompt in the model's chat template as a user message
    #[arg(long)]
    pub chat: bool,
}

/// Captures and edits.
#[derive(Args)]
pub struct PlanArgs {
    /// Sites to capture: an address, a pattern (`layers.*.resid_post`, `layers.3-7.z`) or an alias;
    /// may be repeated
    #[arg(long, value_name = "PATTERN")]
    pub capture: Vec<String>,
    /// Positions to capture: all, last, prompt, generated, an index (3), a slice (-4:), a list
    /// (0,5,-1), the text of a token, or messages of a chat (message:2, role:user,
    /// message:-1.header)
    #[arg(long, value_name = "P", default_value = "all", allow_hyphen_values = true)]
    pub positions: String,
    /// Store only the nonzero elements of the sites of --capture, as a sparse matrix: for features
    /// of SAEs (SITE/sae.acts)
    #[arg(long, requires = "capture")]
    pub sparse: bool,
    /// JSON file with a plan of captures and edits; see docs/plans.md
    #[arg(long, value_name = "F.json")]
    pub plan: Option<PathBuf>,
    /// Add the steering vectors of a file (safetensors, or a GGUF control vector) times SCALE (1;
    /// may be negative) at LAYERS (5, 5-9 or 3,5,7; all of the file); may be repeated
    #[arg(long, value_name = "FILE[@SCALE][:LAYERS]")]
    pub steer: Vec<String>,
    #[command(flatten)]
    pub splice: SpliceArgs,
    /// Write the captures to this safetensors file
    #[arg(long, value_name = "F.safetensors")]
    pub out: Option<PathBuf>,
    /// Element type of captures of whole activations
    #[arg(long, value_enum, default_value = "f32")]
    pub capture_dtype: CaptureDtypeArg,
    /// Keep captures of more than MB megabytes in a temporary file instead of in memory
    #[arg(long, value_name = "MB")]
    pub capture_memory: Option<u32>,
    /// Folder of that file [default: the system's folder for temporary files]
    #[arg(long, value_name = "DIR", requires = "capture_memory")]
    pub capture_folder: Option<PathBuf>,
}

/// Reconstructions of attached autoencoders.
#[derive(Args)]
pub struct SpliceArgs {
    /// Continue with the reconstructions of the attached SAEs (`--sae`) instead of the activations
    #[arg(long)]
    pub splice: bool,
    /// With --splice: add the error of each reconstruction, so that only edits of features matter
    #[arg(long, requires = "splice")]
    pub error_term: bool,
}

#[derive(Clone, Copy, ValueEnum)]
pub enum CaptureDtypeArg {
    F32,
    /// Half the memory; the upper half of each f32, rounded
    Bf16,
}

#[derive(Args)]
pub struct RunArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub input: InputArgs,
    /// Read rows from a file, one JSON value per line: "text", {"text": …} or {"tokens": […]}
    #[arg(long = "input", value_name = "F.jsonl")]
    pub input_file: Option<PathBuf>,
    #[command(flatten)]
    pub plan: PlanArgs,
    /// Process prompts in chunks of N tokens: limits memory, results are identical
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub chunk: Option<u32>,
    /// Show what the plan would compute and its estimated cost, without running it
    #[arg(long)]
    pub explain: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub server: ServerArgs,
}

#[derive(Args)]
pub struct TokensArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub input: InputArgs,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct GenerateArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub input: InputArgs,
    #[command(flatten)]
    pub plan: PlanArgs,
    /// Maximum number of new tokens [default: 64, or what the model's context leaves]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_new: Option<u32>,
    /// Sampling temperature; 0 is greedy (argmax)
    #[arg(long, value_name = "T", default_value_t = 0.0, allow_negative_numbers = true)]
    pub temperature: f32,
    /// Sample from the K most likely tokens; 0 disables
    #[arg(long, value_name = "K", default_value_t = 0)]
    pub top_k: usize,
    /// Nucleus sampling: sample from the most likely tokens whose probabilities sum to P; 1
    /// disables
    #[arg(long, value_name = "P", default_value_t = 1.0, allow_negative_numbers = true)]
    pub top_p: f32,
    /// Sample from tokens at least this fraction as likely as the top token; 0 disables
    #[arg(long, value_name = "P", default_value_t = 0.0, allow_negative_numbers = true)]
    pub min_p: f32,
    /// Penalize tokens that already occurred: divide their positive logits by R, multiply negative
    /// ones; 1 disables
    #[arg(long, value_name = "R", default_value_t = 1.0, allow_negative_numbers = true)]
    pub repetition_penalty: f32,
    /// Seed of the sampler; the same seed gives the same tokens
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Stop when this text appears; may be repeated
    #[arg(long, value_name = "S")]
    pub stop: Vec<String>,
    /// Prompt lookup decoding: propose up to N tokens from earlier occurrences in the text and
    /// verify them in one pass; same tokens, usually faster; 0 disables
    #[arg(long, alias = "lookup", value_name = "N", default_value_t = 0)]
    pub prompt_lookup: usize,
    /// Do not stop at the end-of-sequence token
    #[arg(long)]
    pub ignore_eos: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub batch: BatchArgs,
    #[command(flatten)]
    pub server: ServerArgs,
}

#[derive(Args)]
pub struct LensArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    /// The prompt
    #[arg(required_unless_present = "tokens")]
    pub prompt: Option<String>,
    /// Token ids instead of a prompt, such as 1,2,3
    #[arg(long, value_name = "IDS", conflicts_with = "prompt")]
    pub tokens: Option<String>,
    /// Write a web page with a heat map instead of printing a table
    #[arg(long, value_name = "F.html")]
    pub html: Option<PathBuf>,
    /// Print the table as JSON
    #[arg(long, conflicts_with = "html")]
    pub json: bool,
    #[command(flatten)]
    pub splice: SpliceArgs,
    /// Predictions shown per cell
    #[arg(long, value_name = "K", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=5))]
    pub top: u8,
    #[command(flatten)]
    pub server: ServerArgs,
}

#[derive(Args)]
pub struct ProfileArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub input: InputArgs,
    #[command(flatten)]
    pub plan: PlanArgs,
    /// Profile a generation of N tokens instead of a single run
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub max_new: u32,
    /// Group the ops by kind, weight or layer
    #[arg(long, value_enum, default_value = "kind")]
    pub by: ProfileBy,
    /// Print the table as JSON
    #[arg(long)]
    pub json: bool,
    /// Measure the overhead of profiling with N pairs of runs [default: no overhead; one warm-up
    /// and one profiled run]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..))]
    pub pairs: Option<u32>,
    /// Write a Chrome trace of every op (for chrome://tracing or Perfetto)
    #[arg(long, value_name = "F.json")]
    pub trace: Option<PathBuf>,
    /// Write a flame graph of phase, layer and op
    #[arg(long, value_name = "F.svg")]
    pub flame: Option<PathBuf>,
}

/// How a profile is grouped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum ProfileBy {
    /// matmul, attention, norm, …
    Kind,
    /// attn.q, mlp.down, … over all layers
    Weight,
    /// layers.0, layers.1, …
    Layer,
}

#[derive(Args)]
pub struct PullArgs {
    /// Known name (listed if omitted) or Hugging Face id such as owner/name
    pub name: Option<String>,
}
