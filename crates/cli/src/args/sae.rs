//! Arguments of `pellucid sae`.

use clap::{Args, Subcommand};
use std::path::PathBuf;

#[derive(Subcommand)]
pub enum SaeCommand {
    /// Show what a sparse autoencoder or transcoder is and where it belongs.
    Inspect(SaeInspectArgs),
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
