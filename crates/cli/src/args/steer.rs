//! Arguments of `pellucid steer`.

use super::ModelArgs;
use clap::{Args, Subcommand, ValueEnum};
use pellucid_analysis::steer::Method;
use pellucid_models::steer::LayerList;
use std::path::PathBuf;

#[derive(Subcommand)]
pub enum SteerCommand {
    /// Extract steering vectors from contrastive pairs of prompts, and report how well each layer
    /// separates them.
    Extract(ExtractArgs),
    /// Show the layers of a file of steering vectors, alone or compared with another file.
    Show(ShowArgs),
}

#[derive(Args)]
#[command(
    after_help = "The columns: length of the direction; mean length of the activations, for choosing a scale; share of the \
variance that the direction explains; distance of positive and negative examples along it, in standard deviations; \
share of pairs in the right order; the same for pairs that were held out (5-fold cross-validation).\n\n\
  pellucid steer extract pairs.jsonl --output happy.safetensors\n  \
  pellucid generate \"One day,\" --steer happy.safetensors@1.5:3-5\n\n\
A direction of the method `mean` is a difference of activations, so scale 1 is its natural strength. Directions of \
`pca_diff` and `pca_center` have length 1; scale them by some tenths of the activations' length."
)]
pub struct ExtractArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    /// Pairs, one per line: {"positive": …, "negative": …}. A prompt is a text, a list of messages
    /// for the model's chat template, or a list of token ids
    #[arg(value_name = "PAIRS.jsonl")]
    pub pairs: PathBuf,
    /// File to write: .safetensors, or .gguf for llama.cpp and repeng
    #[arg(long, short, value_name = "F")]
    pub output: PathBuf,
    /// How a layer's direction is computed
    #[arg(long, value_enum, default_value = "mean")]
    pub method: MethodArg,
    /// Layers, such as 5, 5-9 or 3,5,7 [default: all but layer 0, which llama.cpp cannot steer]
    #[arg(long, value_name = "LAYERS")]
    pub layers: Option<LayerList>,
    /// Positions to read: last, all (their mean), an index (-2), a slice (-4:) or the text of a
    /// token
    #[arg(long, value_name = "P", default_value = "last", allow_hyphen_values = true)]
    pub positions: String,
    /// Point to read, and later to steer, at each layer
    #[arg(long, value_name = "POINT", default_value = "resid_post")]
    pub point: String,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// How a direction is computed.
#[derive(Clone, Copy, ValueEnum)]
pub enum MethodArg {
    /// Difference of means: the mean positive minus the mean negative activation
    Mean,
    /// First principal component of the paired differences minus their mean (repeng's default)
    #[value(name = "pca_diff")]
    PcaDiff,
    /// First principal component of the activations minus the mean of each pair
    #[value(name = "pca_center")]
    PcaCenter,
}

impl From<MethodArg> for Method {
    fn from(method: MethodArg) -> Method {
        match method {
            MethodArg::Mean => Method::Mean,
            MethodArg::PcaDiff => Method::PcaDiff,
            MethodArg::PcaCenter => Method::PcaCenter,
        }
    }
}

#[derive(Args)]
pub struct ShowArgs {
    /// File of steering vectors: safetensors, or a GGUF control vector
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Also show the cosine of each layer's direction with this file's
    #[arg(value_name = "OTHER")]
    pub other: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}
