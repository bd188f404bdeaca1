//! The families: for each `model_type` a function from its configuration to an architecture and a table of names.
//!
//! A family is data. It has no forward pass; what it says here becomes ops in `pellucid_engine::program`. To add one, write its
//! function in a file named for it, add its row to `FAMILIES`, and add its golden case (see CONTRIBUTING.md).

mod bloom;
mod gemma;
mod gpt2;
mod gpt_neox;
mod gptj;
mod limits;
mod llama;
mod olmo;
mod opt;
mod relatives;

pub(crate) use limits::MOST_LAYERS;

use crate::config::Config;
use crate::error::{Error, Result};
use crate::names::Names;
use crate::quantised::Method;
use pellucid_engine::Architecture;
use pellucid_engine::architecture::{Activation, Layer, Modules};

/// What a family makes of a configuration.
#[derive(Debug)]
pub struct Family {
    /// The architecture.
    pub architecture: Architecture,
    /// Where its weights are found.
    pub names: Names,
}

impl Family {
    /// Changes every layer.
    fn each(&mut self, change: impl FnMut(&mut Layer)) {
        self.architecture.layers.iter_mut().for_each(change);
    }
}

type Reader = fn(&Config) -> Result<Family>;

/// Every family that runs natively, by `model_type`.
const FAMILIES: &[(&str, Reader)] = &[
    ("arcee", relatives::arcee),
    ("bloom", bloom::bloom),
    ("cohere", relatives::cohere),
    ("cohere2", relatives::cohere2),
    ("cwm", relatives::cwm),
    ("ernie4_5", relatives::ernie4_5),
    ("exaone4", relatives::exaone4),
    ("gemma", gemma::gemma1),
    ("gemma2", gemma::gemma2),
    ("gemma3", gemma::gemma3),
    ("gemma3_text", gemma::gemma3_text),
    ("glm", relatives::glm),
    ("glm4", relatives::glm4),
    ("gpt2", gpt2::gpt2),
    ("gpt_bigcode", gpt2::gpt_bigcode),
    ("gpt_neo", gpt2::gpt_neo),
    ("gpt_neox", gpt_neox::gpt_neox),
    ("gptj", gptj::gptj),
    ("granite", relatives::granite),
    ("helium", relatives::helium),
    ("hyperclovax", relatives::hyperclovax),
    ("jais2", relatives::jais2),
    ("llama", llama::llama),
    ("ministral", relatives::ministral),
    ("mistral", llama::mistral),
    ("mixtral", llama::mixtral),
    ("nemotron", relatives::nemotron),
    ("olmo", olmo::olmo),
    ("olmo2", olmo::olmo2),
    ("olmo3", olmo::olmo3),
    ("olmoe", olmo::olmoe),
    ("opt", opt::opt),
    ("phi", gptj::phi),
    ("phi3", relatives::phi3),
    ("qwen2", llama::qwen2),
    ("qwen3", llama::qwen3),
    ("qwen3_moe", relatives::qwen3_moe),
    ("seed_oss", relatives::seed_oss),
    ("smollm3", relatives::smollm3),
    ("stablelm", relatives::stablelm),
    ("starcoder2", relatives::starcoder2),
    ("vaultgemma", gemma::vaultgemma),
];

/// The model types that run natively.
pub fn native() -> impl Iterator<Item = &'static str> {
    FAMILIES.iter().map(|(name, _)| *name)
}

/// Reads a configuration by its family.
pub fn read(config: &Config) -> Result<Family> {
    let model_type = config.model_type()?;
    limits::check(config)?;
    // A way of quantising that is not known is refused before any weight is looked at.
    Method::read(config)?;
    match FAMILIES.iter().find(|(name, _)| *name == model_type) {
        Some((_, reader)) => reader(config),
        None => {
            let nearest = native()
                .max_by(|a, b| strsim::jaro_winkler(a, model_type).total_cmp(&strsim::jaro_winkler(b, model_type)));
            Err(Error::unsupported(
                format!("models of type `{model_type}` do not run natively in this build"),
                format!(
                    "native types are {}; the nearest name is `{}`",
                    native().collect::<Vec<_>>().join(", "),
                    nearest.unwrap_or_default()
                ),
            ))
        }
    }
}

/// The activation function that a configuration names.
fn activation(config: &Config, key: &str, default: &str) -> Result<Activation> {
    let name = config.text(key).unwrap_or(default);
    Ok(match name {
        "silu" | "swish" => Activation::Silu,
        "gelu" => Activation::Gelu,
        "gelu_new" | "gelu_pytorch_tanh" | "gelu_fast" | "gelu_python_tanh" => Activation::GeluTanh,
        "quick_gelu" => Activation::GeluQuick,
        "relu" => Activation::Relu,
        "relu2" => Activation::ReluSquared,
        "tanh" => Activation::Tanh,
        "linear" => Activation::Identity,
        _ => {
            return Err(Error::unsupported(
                format!("the activation function `{name}` (`{key}`) is not known to this build"),
                "report the model's family",
            ));
        }
    })
}

/// Which layers slide: by `layer_types` where the configuration has it, else by the family's own rule.
fn windows(
    config: &Config,
    layers: usize,
    window: Option<usize>,
    slides: impl Fn(usize) -> bool,
) -> Result<Vec<Option<usize>>> {
    let types = config.texts("layer_types")?;
    if let Some(types) = &types {
        if types.len() != layers {
            return Err(config.bad("layer_types", "does not have one entry a layer"));
        }
        if let Some(other) = types.iter().find(|kind| !["full_attention", "sliding_attention"].contains(kind)) {
            return Err(Error::unsupported(
                format!("layers of type `{other}` are not known to this family"),
                "report the model's family",
            ));
        }
    }
    let sliding =
        |layer: usize| types.as_ref().map_or_else(|| slides(layer), |types| types[layer] == "sliding_attention");
    Ok((0..layers).map(|layer| window.filter(|_| sliding(layer))).collect())
}

/// Hugging Face's module names for a trunk called `trunk`.
fn modules(
    trunk: &str,
    layers: &str,
    attention: &str,
    mlp: &str,
    embedding: &str,
    final_norm: &str,
    head: &str,
) -> Modules {
    Modules {
        layers: format!("{trunk}.{layers}"),
        attention: Some(attention.into()),
        mlp: Some(mlp.into()),
        embedding: Some(format!("{trunk}.{embedding}")),
        final_norm: Some(format!("{trunk}.{final_norm}")),
        head: Some(head.into()),
    }
}
