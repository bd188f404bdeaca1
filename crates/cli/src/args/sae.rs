//! Arguments of `pellucid sae`.

use super::ModelArgs;
use clap::{Args, Subcommand};
use std::path::PathBuf;

#[derive(Subcommand)]
pub enum SaeCommand {
    /// Show what a sparse autoencoder or transcoder is and where it belongs.
    Inspect(SaeInspectArgs),
    /// Evaluate an SAE on a corpus: reconstruction, sparsity, and the loss with it spliced in.
    Eval(SaeEvalArgs),
    /// List the features that fire at each token of a prompt.
    Features(SaeFeaturesArgs),
    /// Show the strongest examples of a feature in a corpus.
    Top(SaeTopArgs),
}

#[derive(Args)]
#[command(
    after_help = "The weights are read and checked: shapes and orientation, tensors and settings that could change the \
results, NaN. What is not understood is an error, never a guess.\n\n\
Formats: SAELens, Gemma Scope 1 and 2, Llama Scope, dictionary_learning, sparsify, circuit-tracer (per-layer and \
cross-layer transcoders), Qwen-Scope, the attention SAEs of GPT-2, Goodfire. docs/saes.md lists their files.\n\n  \
  pellucid sae inspect gpt2-small-res-jb/blocks.8.hook_resid_pre\n  \
  pellucid sae inspect gemma-scope-2b-pt-res                      a release: lists what it holds\n  \
  pellucid sae inspect transcoders/layer_7.safetensors            one layer of a set\n\n\
Releases encode the model and the site in the names of their directories, so keep these as published."
)]
pub struct SaeInspectArgs {
    /// Directory of an autoencoder, or its weights file
    pub path: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Model, autoencoder and output of an analysis.
#[derive(Args)]
pub struct SaeAnalysisArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    /// The site of the SAE, if several are attached
    #[arg(long, value_name = "SITE")]
    pub site: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
#[command(
    after_help = "Averages are over all tokens except special ones (BOS, end of text). \"Recovered\" compares the loss \
with the reconstruction spliced in with that of the plain model (100 %) and of zeros in its place (0 %).\n\n\
  pellucid sae eval --corpus texts.txt                              the built-in SAE of the built-in model\n  \
  pellucid sae eval --model gpt2 --sae res-jb/blocks.8.hook_resid_pre --corpus texts.jsonl --json"
)]
pub struct SaeEvalArgs {
    #[command(flatten)]
    pub analysis: SaeAnalysisArgs,
    /// Texts: paragraphs separated by empty lines, or JSONL with a string or a `text` per line
    #[arg(long, value_name = "F")]
    pub corpus: PathBuf,
    /// Maximum number of texts
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: u32,
    /// Maximum number of tokens of a text
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..))]
    pub context: u32,
}

#[derive(Args)]
#[command(
    after_help = "  pellucid sae features \"Tom saw a dog.\"                   the built-in SAE of the built-in model\n  \
pellucid sae features \"The Eiffel Tower\" --model gpt2 --sae DIR --html features.html"
)]
pub struct SaeFeaturesArgs {
    /// The prompt
    pub prompt: String,
    #[command(flatten)]
    pub analysis: SaeAnalysisArgs,
    /// Features per token
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub top: u32,
    /// Promoted and suppressed tokens per feature
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub tokens: usize,
    /// Write a page instead
    #[arg(long, value_name = "F.html")]
    pub html: Option<PathBuf>,
}

#[derive(Args)]
#[command(
    after_help = "  pellucid sae top 17 --corpus texts.txt                     the built-in SAE of the built-in model"
)]
pub struct SaeTopArgs {
    /// Index of the feature
    pub feature: usize,
    #[command(flatten)]
    pub analysis: SaeAnalysisArgs,
    /// Texts: paragraphs separated by empty lines, or JSONL with a string or a `text` per line
    #[arg(long, value_name = "F")]
    pub corpus: PathBuf,
    /// Maximum number of texts
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: u32,
    /// Maximum number of tokens of a text
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..))]
    pub context: u32,
    /// Number of examples
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    pub count: u32,
    /// Write a page instead
    #[arg(long, value_name = "F.html")]
    pub html: Option<PathBuf>,
}
