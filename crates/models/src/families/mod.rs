//! The families: for each `model_type` a function from its configuration to an architecture and a table of names.
//!
//! A family is data. It has no forward pass; what it says here becomes ops in `pellucid_engine::program`. To add one, write its
//! function in a file named for it, add its row to `FAMILIES`, and add its golden case (see CONTRIBUTING.md).

mod bloom;
mod dbrx;
mod deepseek;
mod experts;
mod gemma;
mod gpt2;
mod gpt_neox;
mod gpt_oss;
mod gptj;
mod granite_moe;
mod jetmoe;
mod latent;
mod limits;
mod llama;
mod llama4;
mod moe;
mod olmo;
mod opt;
mod relatives;
mod sigmoid_moe;

pub(crate) use limits::MOST_LAYERS;

use crate::config::Config;
use crate::error::{Error, Result};
use crate::names::Names;
use pellucid_engine::Architecture;
use pellucid_engine::architecture::{Activation, Attention, Dense, Experts, Layer, Mlp, Modules, Norm};

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

    /// Changes every attention.
    fn each_attention(&mut self, change: impl FnMut(&mut Attention)) {
        self.architecture.layers.iter_mut().filter_map(|layer| layer.attention.as_mut()).for_each(change);
    }

    /// Changes every MLP that is not made of experts.
    fn each_dense(&mut self, mut change: impl FnMut(&mut Dense)) {
        self.each(|layer| {
            if let Some(Mlp::Dense(dense)) = &mut layer.mlp {
                change(dense);
            }
        });
    }

    /// Changes every MLP that is made of experts.
    fn each_experts(&mut self, mut change: impl FnMut(&mut Experts)) {
        self.each(|layer| {
            if let Some(Mlp::Experts(experts)) = &mut layer.mlp {
                change(experts);
            }
        });
    }

    /// Changes the norms that the sublayers and the head read through.
    fn set_norms(&mut self, norm: Norm) {
        self.each(|layer| (layer.attn_norm, layer.mlp_norm) = (Some(norm), layer.mlp_norm.map(|_| norm)));
        self.architecture.final_norm = Some(norm);
    }

    /// Sets whether all of attention's projections have biases.
    fn set_attention_bias(&mut self, bias: bool) {
        self.each_attention(|a| (a.qkv_bias, a.out_bias) = (bias, bias));
    }

    /// Width of a head's query; that of the first attention, where several differ.
    fn head_dim(&self) -> usize {
        self.architecture.layers.iter().find_map(|layer| layer.attention.as_ref()).map_or(0, |a| a.head_dim)
    }
}

type Reader = fn(&Config) -> Result<Family>;

/// Every family that runs natively, by `model_type`.
const FAMILIES: &[(&str, Reader)] = &[
    ("afmoe", sigmoid_moe::afmoe),
    ("arcee", relatives::arcee),
    ("aria_text", moe::aria_text),
    ("axk1", deepseek::axk1),
    ("bloom", bloom::bloom),
    ("cohere", relatives::cohere),
    ("cohere2", relatives::cohere2),
    ("cohere2_moe", moe::cohere2_moe),
    ("cwm", relatives::cwm),
    ("dbrx", dbrx::dbrx),
    ("deepseek_v2", deepseek::deepseek_v2),
    ("deepseek_v3", deepseek::deepseek_v3),
    ("dots1", sigmoid_moe::dots1),
    ("ernie4_5", relatives::ernie4_5),
    ("ernie4_5_moe", moe::ernie4_5_moe),
    ("exaone4", relatives::exaone4),
    ("exaone_moe", sigmoid_moe::exaone_moe),
    ("flex_olmo", olmo::flex_olmo),
    ("gemma", gemma::gemma1),
    ("gemma2", gemma::gemma2),
    ("gemma3", gemma::gemma3),
    ("gemma3_text", gemma::gemma3_text),
    ("glm", relatives::glm),
    ("glm4", relatives::glm4),
    ("glm4_moe", sigmoid_moe::glm4_moe),
    ("glm4_moe_lite", deepseek::glm4_moe_lite),
    ("gpt2", gpt2::gpt2),
    ("gpt_bigcode", gpt2::gpt_bigcode),
    ("gpt_neo", gpt2::gpt_neo),
    ("gpt_neox", gpt_neox::gpt_neox),
    ("gpt_oss", gpt_oss::gpt_oss),
    ("gptj", gptj::gptj),
    ("granite", relatives::granite),
    ("granitemoe", granite_moe::granitemoe),
    ("granitemoe_swa", granite_moe::granitemoe_swa),
    ("granitemoeshared", granite_moe::granitemoeshared),
    ("helium", relatives::helium),
    ("hunyuan_v1_moe", moe::hunyuan_v1_moe),
    ("hy_v3", sigmoid_moe::hy_v3),
    ("hyperclovax", relatives::hyperclovax),
    ("jais2", relatives::jais2),
    ("jetmoe", jetmoe::jetmoe),
    ("laguna", sigmoid_moe::laguna),
    ("llama", llama::llama),
    ("llama4_text", llama4::llama4_text),
    ("mellum", moe::mellum),
    ("mimo_v2_flash", sigmoid_moe::mimo_v2_flash),
    ("minimax_m2", sigmoid_moe::minimax_m2),
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
    ("phimoe", moe::phimoe),
    ("qwen2", llama::qwen2),
    ("qwen2_moe", moe::qwen2_moe),
    ("qwen3", llama::qwen3),
    ("qwen3_moe", moe::qwen3_moe),
    ("seed_oss", relatives::seed_oss),
    ("smollm3", relatives::smollm3),
    ("solar_open", sigmoid_moe::solar_open),
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
    if let Some(method) = config.part("quantization_config").as_ref().and_then(|part| part.text("quant_method")) {
        return Err(Error::unsupported(
            format!("the weights are quantised by `{method}`, which this build does not read"),
            "use the model's unquantised weights or a GGUF file",
        ));
    }
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
