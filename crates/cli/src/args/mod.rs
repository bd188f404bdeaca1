//! What can be typed.

mod lab;

use clap::{Args, Parser, Subcommand, ValueEnum};
pub use lab::*;
use std::path::PathBuf;

/// See through a language model: read or change any activation inside it, generate, and know what it costs.
#[derive(Parser)]
#[command(
    version,
    about,
    max_term_width = 110,
    after_help = "Without --model every command uses the built-in model, so each works on a fresh machine.\n\n\
  pellucid lens \"Once upon a time\"                      what the model would say at every layer\n  \
  pellucid run \"Tom saw a dog\" --capture 'layers.*.resid_post' --out acts.safetensors\n  \
  pellucid generate \"One day,\" --max-new 40 --plan steer.json\n\n\
Exit codes: 0 done; 1 the thing asked for is not so; 2 wrong usage or bad input; 3 a fault of ours."
)]
pub struct Arguments {
    #[command(subcommand)]
    pub command: Command,
    /// A TOML file of model types that stand for a native family (a table `[architectures]` with lines such as `acme_llm = "llama"`); also named by
    /// PELLUCID_ARCHITECTURES
    #[arg(long, global = true, value_name = "F.toml")]
    pub architectures: Option<PathBuf>,
}

#[derive(Subcommand)]
pub enum Command {
    /// What is this directory or file, can it run, and what would it need?
    Inspect(InspectArgs),
    /// Every site of a model: its shape, meaning and aliases.
    Sites(SitesArgs),
    /// Run prompts once: capture and edit activations, see the likeliest next tokens.
    Run(RunArgs),
    /// Continue a prompt, with a plan active at every step.
    Generate(GenerateArgs),
    /// The logit lens: what the model would answer from each layer.
    Lens(LensArgs),
    /// Where the time goes: every op of a run or a generation, measured.
    Profile(ProfileArgs),
    /// Fetch a model by name.
    Pull(PullArgs),
    /// The performance lab: measurements in fresh processes.
    #[command(subcommand)]
    Lab(LabCommand),
}

/// Which model, and how it is kept.
#[derive(Args)]
pub struct ModelArgs {
    /// A directory, a GGUF file, a hub id or a pulled name [default: the built-in model]
    #[arg(long, short, value_name = "M")]
    pub model: Option<String>,
    /// A LoRA adapter (PEFT's directory) to merge into the weights; may be repeated
    #[arg(long, value_name = "DIR")]
    pub adapter: Vec<PathBuf>,
    #[command(flatten)]
    pub assume: AssumeArg,
    /// How weights are kept in memory
    #[arg(long, value_enum, default_value = "auto")]
    pub dtype: DTypeArg,
    /// How keys and values are kept between tokens: bf16 halves their memory and changes numbers a little
    #[arg(long, value_enum, default_value = "f32")]
    pub kv: KvArg,
    /// Threads to use [default: PELLUCID_THREADS, RAYON_NUM_THREADS, OMP_NUM_THREADS or all cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub threads: Option<u16>,
}

/// What a model of an unknown type is taken for.
#[derive(Args, Clone)]
pub struct AssumeArg {
    /// Read a model whose own type is not native as one of FAMILY (such as llama), with a warning, and only if its
    /// configuration and tensors fit completely; an error for a model whose own type is native and another
    #[arg(long, value_name = "FAMILY")]
    pub assume: Option<String>,
}

#[derive(Clone, Copy, ValueEnum)]
pub enum DTypeArg {
    /// As in the file; quantised weights stay quantised
    Auto,
    F32,
    Bf16,
    F16,
    /// Eight bits and a scale for 32 values: half the memory of bf16, and other numbers in the third digit
    Q8,
}

#[derive(Clone, Copy, ValueEnum)]
pub enum KvArg {
    F32,
    Bf16,
}

#[derive(Args)]
pub struct InspectArgs {
    /// A directory or file, whatever is in it; or a pulled name
    #[arg(required_unless_present = "schema")]
    pub path: Option<PathBuf>,
    #[command(flatten)]
    pub assume: AssumeArg,
    /// Also say what each way to load it would do, in their order
    #[arg(long)]
    pub explain: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    /// Print the JSON schema of what --json prints, and look at nothing
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

/// What goes in.
#[derive(Args)]
pub struct InputArgs {
    /// Prompts; each is a row
    #[arg(value_name = "PROMPT")]
    pub prompts: Vec<String>,
    /// Token ids of a row, such as 1,2,3; may be repeated
    #[arg(long, value_name = "IDS")]
    pub tokens: Vec<String>,
}

/// What to see and change.
#[derive(Args)]
pub struct PlanArgs {
    /// Sites to capture: an address, a pattern (`layers.*.resid_post`, `layers.3-7.z`) or an alias; may be repeated
    #[arg(long, value_name = "PATTERN")]
    pub capture: Vec<String>,
    /// Positions to capture: all, last, prompt, generated, 3, -4:, 0,5,-1 or the text of a token
    #[arg(long, value_name = "P", default_value = "all", allow_hyphen_values = true)]
    pub positions: String,
    /// A plan of taps (JSON); see docs/plans.md
    #[arg(long, value_name = "F.json")]
    pub plan: Option<PathBuf>,
    /// Where captures are written (safetensors)
    #[arg(long, value_name = "F.safetensors")]
    pub out: Option<PathBuf>,
}

#[derive(Args)]
pub struct RunArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub input: InputArgs,
    /// Rows from a file, one JSON value a line: "text", {"text": …} or {"tokens": […]}
    #[arg(long = "input", value_name = "F.jsonl")]
    pub input_file: Option<PathBuf>,
    #[command(flatten)]
    pub plan: PlanArgs,
    /// Prompt tokens of a row that go through at once; bounds memory, never changes a number
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub chunk: Option<u32>,
    /// Say what the plan would do and cost, and run nothing
    #[arg(long)]
    pub explain: bool,
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
    /// At most this many new tokens [default: 64, or what the model's context leaves]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_new: Option<u32>,
    /// 0 takes the most likely token; higher is more varied
    #[arg(long, value_name = "T", default_value_t = 0.0, allow_negative_numbers = true)]
    pub temperature: f32,
    /// Only the K most likely tokens
    #[arg(long, value_name = "K", default_value_t = 0)]
    pub top_k: usize,
    /// Only the most likely tokens that together reach this probability
    #[arg(long, value_name = "P", default_value_t = 1.0, allow_negative_numbers = true)]
    pub top_p: f32,
    /// Only tokens at least this fraction as likely as the best
    #[arg(long, value_name = "P", default_value_t = 0.0, allow_negative_numbers = true)]
    pub min_p: f32,
    /// Divide the logits of tokens already seen by this
    #[arg(long, value_name = "R", default_value_t = 1.0, allow_negative_numbers = true)]
    pub repetition_penalty: f32,
    /// Same seed, same tokens
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Stop when this text appears; may be repeated
    #[arg(long, value_name = "S")]
    pub stop: Vec<String>,
    /// Draft up to N tokens from what the text has said before and check them in one pass: the same tokens, sooner
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub lookup: usize,
    /// Do not stop at the end-of-text token
    #[arg(long)]
    pub ignore_eos: bool,
    /// Put the prompt into the model's chat template as the user's message
    #[arg(long)]
    pub chat: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
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
    /// Write a page with a heat map instead of drawing in the terminal
    #[arg(long, value_name = "F.html")]
    pub html: Option<PathBuf>,
    /// Print the table as JSON
    #[arg(long, conflicts_with = "html")]
    pub json: bool,
    /// Guesses shown in each cell
    #[arg(long, value_name = "K", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=5))]
    pub top: u8,
}

#[derive(Args)]
pub struct ProfileArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub input: InputArgs,
    #[command(flatten)]
    pub plan: PlanArgs,
    /// Also generate this many tokens
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub max_new: u32,
    /// Group by kind of op, by weight, or by layer
    #[arg(long, value_enum, default_value = "kind")]
    pub by: ProfileBy,
    /// Print the table as JSON
    #[arg(long)]
    pub json: bool,
    /// Also run N pairs with and without the profile, to say what profiling costs [default: one warm-up and one profiled run]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..))]
    pub pairs: Option<u32>,
    /// Write every op as a Chrome trace (for chrome://tracing or Perfetto)
    #[arg(long, value_name = "F.json")]
    pub trace: Option<PathBuf>,
    /// Write a flame graph: phase, layer, op
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
    /// A known name (listed when omitted) or a hub id such as owner/name
    pub name: Option<String>,
}
