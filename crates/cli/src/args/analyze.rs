//! Arguments of `pellucid analyze`, `store` and `replay`.

use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;

#[derive(Args)]
#[command(
    after_help = "A session is a TOML or YAML file: model, SAEs, dataset, ops and output (docs/sessions.md). Several files \
are merged, later ones win. Inputs are relative to their file, the output to the working directory.\n\n  \
  pellucid analyze examples/sessions/sae.toml                    runs it, or resumes it after a kill\n  \
  pellucid analyze base.toml more.yaml --set dataset.limit=8     merges files and settings\n  \
  pellucid analyze session.toml --check                          validates and estimates, runs nothing\n  \
  pellucid analyze --ops                                         lists the ops with their schemas\n\n\
A finished session is not computed again; a changed one computes the parts whose content key changed."
)]
pub struct AnalyzeArgs {
    /// Session files, merged in this order
    #[arg(value_name = "FILE", required_unless_present_any = ["schema", "ops", "config"])]
    pub files: Vec<PathBuf>,
    /// More session files, merged after the others; may be repeated
    #[arg(long, value_name = "FILE")]
    pub config: Vec<PathBuf>,
    /// Override a setting, such as dataset.limit=4; may be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Directory of the store, instead of `output.path`
    #[arg(long, short, value_name = "DIR")]
    pub output: Option<PathBuf>,
    /// Replace a store that holds other results
    #[arg(long)]
    pub replace: bool,
    /// Validate paths, fields, labels and ops, and estimate the cost, without running
    #[arg(long)]
    pub check: bool,
    /// Examine perplexity, sample generations and shapes before the run
    #[arg(long)]
    pub debug: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    /// Print the JSON Schema of session files and exit
    #[arg(long, conflicts_with_all = ["check", "ops"])]
    pub schema: bool,
    /// List the ops and exit
    #[arg(long, conflicts_with = "check")]
    pub ops: bool,
}

#[derive(Subcommand)]
pub enum StoreCommand {
    /// Show a store: provenance, correct answers, and the latents with the largest effects.
    Show(StoreShowArgs),
    /// Compare two stores column by column, bit by bit.
    Diff(StoreDiffArgs),
    /// Convert a store to CSV, JSONL, single Parquet files or dense arrays.
    Export(StoreExportArgs),
}

#[derive(Args)]
#[command(
    after_help = "Effects are sums over examples that are answered correctly. An effect is the logit difference before \
minus after the ablation of a latent, or the activation times its gradient; positive means that the latent supports the \
correct answer. \"clean diff\" is the mean logit difference of the examples in which the latent is active.\n\n  \
  pellucid store show runs/ablation --top 5\n  \
  pellucid store show runs/ablation --html ablation.html"
)]
pub struct StoreShowArgs {
    /// Directory of the store
    pub store: PathBuf,
    /// Latents per SAE
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub top: usize,
    /// Also list time and memory of each phase
    #[arg(long)]
    pub phases: bool,
    /// Write a page instead
    #[arg(long, value_name = "F.html", conflicts_with = "json")]
    pub html: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
#[command(after_help = "Exit code 0: equal; 1: different.")]
pub struct StoreDiffArgs {
    /// Directory of one store
    pub left: PathBuf,
    /// Directory of the other
    pub right: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct StoreExportArgs {
    /// Directory of the store
    pub store: PathBuf,
    /// Directory of the files, created if needed
    #[arg(long, short, value_name = "DIR")]
    pub output: PathBuf,
    /// Format of the files
    #[arg(long, value_enum, default_value = "csv")]
    pub format: ExportFormatArg,
}

#[derive(Clone, Copy, ValueEnum)]
pub enum ExportFormatArg {
    Csv,
    Jsonl,
    Parquet,
    /// Dense arrays, one row per example and one column per latent
    Safetensors,
}

#[derive(Args)]
#[command(
    after_help = "Uses the recorded tokens, not the dataset. Exit code 0: every bit is equal; 1: the first difference is \
printed, with what has changed since (weights, SAEs, versions of ops).\n\n  \
  pellucid replay runs/ablation\n  \
  pellucid replay runs/ablation --set model.path=/other/place/gpt2"
)]
pub struct ReplayArgs {
    /// Directory of the store
    pub store: PathBuf,
    /// Override a recorded setting, such as model.path=…; may be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}
