//! Arguments of `pellucid lab sessions`.

use clap::Args;
use std::path::PathBuf;

#[derive(Args)]
#[command(
    after_help = "Every session is run several times by `pellucid analyze`, each time in a fresh process. The report has the \
time and memory of its states (read, ready, run), their spread, the peak of each, and SAEs that no op reads.

--gpt2 measures the four workloads of Interpretune at their published size: GPT-2 small's shape with random weights, two SAEs of \
24,576 latents at z of layers 9 and 10, four prompts of RTE with 153 to 158 tokens. The model is written to the cache once (800 MB). \
With --python, TransformerLens with SAELens does the same work next to each run, and the results are compared.

Examples:
  pellucid lab sessions                                  the example sessions, as Markdown
  pellucid lab sessions mine.toml other.toml --runs 9 --md report.md
  pellucid lab sessions --gpt2 --threads 2 --python venv/bin/python

Exit codes: 0 reported; 1 with --gate, a bar is missed or the results differ from the peer's; 2 wrong usage; 5 a session failed."
)]
pub struct LabSessionsArgs {
    /// Session files [default: the examples, on the built-in model]
    #[arg(value_name = "S.toml", conflicts_with = "gpt2")]
    pub sessions: Vec<PathBuf>,
    /// Measure the four published workloads at GPT-2's size, and judge them by their bars
    #[arg(long)]
    pub gpt2: bool,
    /// With --gpt2: prompts start with a BOS token
    #[arg(long, requires = "gpt2")]
    pub bos: bool,
    /// With --gpt2: only these workloads
    #[arg(long, value_name = "W", num_args = 1.., requires = "gpt2")]
    pub only: Vec<String>,
    /// With --gpt2: Python interpreter with transformer-lens and sae-lens
    #[arg(long, value_name = "PYTHON", requires = "gpt2")]
    pub python: Option<PathBuf>,
    /// Number of processes per session
    #[arg(long, value_name = "K", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub runs: u32,
    /// Number of threads of each process [default: all cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub threads: Option<u32>,
    /// Seed of the random order
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Keep the session files and the stores of the last runs in this directory
    #[arg(long, value_name = "DIR")]
    pub keep: Option<PathBuf>,
    /// Write the result with every run as JSON
    #[arg(long, value_name = "F.json")]
    pub json: Option<PathBuf>,
    /// Write the report as Markdown instead of printing it
    #[arg(long, value_name = "F.md")]
    pub md: Option<PathBuf>,
    /// Exit with code 1 if a bar is missed or results differ from the peer's
    #[arg(long)]
    pub gate: bool,
}
