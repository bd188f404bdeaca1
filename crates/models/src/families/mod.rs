//! The families: for each `model_type` a function from its configuration to an architecture and a table of names.
//!
//! A family is data. It has no forward pass; what it says here becomes ops in `pellucid_engine::program`. To add one, write its
//! function in a file named for it, add its row to `FAMILIES`, and add its golden case (see CONTRIBUTING.md).

mod bert;
mod bloom;
mod ctrl;
mod dbrx;
mod deepseek;
mod delta;
mod experts;
mod falcon;
mod gemma;
mod gpt2;
mod gpt_neox;
mod gpt_oss;
mod gptj;
mod granite_moe;
mod griffin;
mod hunyuan;
mod jetmoe;
mod latent;
mod limits;
mod llama;
mod llama4;
mod mamba;
mod mamba_hybrids;
mod moe;
mod offshoots;
mod olmo;
mod opt;
mod relatives;
mod seq2seq;
mod sigmoid_moe;
mod zamba;

pub(crate) use limits::MOST_LAYERS;

use crate::config::Config;
use crate::error::{Error, Result};
use crate::names::Names;
use crate::quantised::Method;
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
    ("apertus", offshoots::apertus),
    ("arcee", relatives::arcee),
    ("aria_text", moe::aria_text),
    ("axk1", deepseek::axk1),
    ("bamba", mamba_hybrids::bamba),
    ("bart", seq2seq::bart),
    ("bert", bert::bert),
    ("biogpt", seq2seq::biogpt),
    ("bitnet", offshoots::bitnet),
    ("blenderbot", seq2seq::blenderbot),
    ("bloom", bloom::bloom),
    ("camembert", bert::roberta),
    ("codegen", gptj::codegen),
    ("cohere", relatives::cohere),
    ("cohere2", relatives::cohere2),
    ("cohere2_moe", moe::cohere2_moe),
    ("ctrl", ctrl::ctrl),
    ("cwm", relatives::cwm),
    ("dbrx", dbrx::dbrx),
    ("deepseek_v2", deepseek::deepseek_v2),
    ("deepseek_v3", deepseek::deepseek_v3),
    ("diffllama", offshoots::diffllama),
    ("doge", offshoots::doge),
    ("dots1", sigmoid_moe::dots1),
    ("electra", bert::electra),
    ("ernie4_5", relatives::ernie4_5),
    ("ernie4_5_moe", moe::ernie4_5_moe),
    ("exaone4", relatives::exaone4),
    ("exaone_moe", sigmoid_moe::exaone_moe),
    ("falcon", falcon::falcon),
    ("falcon_h1", mamba_hybrids::falcon_h1),
    ("falcon_mamba", mamba::falcon_mamba),
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
    ("gpt_neox_japanese", gpt_neox::gpt_neox_japanese),
    ("gpt_oss", gpt_oss::gpt_oss),
    ("gptj", gptj::gptj),
    ("granite", relatives::granite),
    ("granite_swa", offshoots::granite_swa),
    ("granitemoe", granite_moe::granitemoe),
    ("granitemoe_swa", granite_moe::granitemoe_swa),
    ("granitemoehybrid", mamba_hybrids::granitemoehybrid),
    ("granitemoeshared", granite_moe::granitemoeshared),
    ("helium", relatives::helium),
    ("hunyuan_v1_dense", hunyuan::hunyuan_v1_dense),
    ("hunyuan_v1_moe", hunyuan::hunyuan_v1_moe),
    ("hy_v3", sigmoid_moe::hy_v3),
    ("hyperclovax", relatives::hyperclovax),
    ("jais2", relatives::jais2),
    ("jamba", mamba_hybrids::jamba),
    ("jetmoe", jetmoe::jetmoe),
    ("kimi_linear", delta::kimi_linear),
    ("laguna", sigmoid_moe::laguna),
    ("lfm2", griffin::lfm2),
    ("lfm2_moe", griffin::lfm2_moe),
    ("llama", llama::llama),
    ("llama4_text", llama4::llama4_text),
    ("mamba", mamba::mamba),
    ("mamba2", mamba::mamba2),
    ("marian", seq2seq::marian),
    ("mbart", seq2seq::mbart),
    ("mellum", moe::mellum),
    ("mimo_v2_flash", sigmoid_moe::mimo_v2_flash),
    ("minicpm3", deepseek::minicpm3),
    ("minimax", griffin::minimax),
    ("minimax_m2", sigmoid_moe::minimax_m2),
    ("ministral", relatives::ministral),
    ("ministral3", offshoots::ministral3),
    ("mistral", llama::mistral),
    ("mixtral", llama::mixtral),
    ("modernbert-decoder", bert::modernbert_decoder),
    ("mpt", falcon::mpt),
    ("nanochat", offshoots::nanochat),
    ("nemotron", relatives::nemotron),
    ("nemotron_h", mamba_hybrids::nemotron_h),
    ("olmo", olmo::olmo),
    ("olmo2", olmo::olmo2),
    ("olmo3", olmo::olmo3),
    ("olmo_hybrid", delta::olmo_hybrid),
    ("olmoe", olmo::olmoe),
    ("openai-gpt", gpt2::openai_gpt),
    ("opt", opt::opt),
    ("pegasus", seq2seq::pegasus),
    ("persimmon", gpt_neox::persimmon),
    ("phi", gptj::phi),
    ("phi3", relatives::phi3),
    ("phimoe", moe::phimoe),
    ("qwen2", llama::qwen2),
    ("qwen2_moe", moe::qwen2_moe),
    ("qwen3", llama::qwen3),
    ("qwen3_5_moe_text", delta::qwen3_5_moe_text),
    ("qwen3_5_text", delta::qwen3_5_text),
    ("qwen3_moe", moe::qwen3_moe),
    ("qwen3_next", delta::qwen3_next),
    ("recurrent_gemma", griffin::recurrent_gemma),
    ("roberta", bert::roberta),
    ("rwkv", griffin::rwkv),
    ("seed_oss", relatives::seed_oss),
    ("smollm3", relatives::smollm3),
    ("solar_open", sigmoid_moe::solar_open),
    ("stablelm", relatives::stablelm),
    ("starcoder2", relatives::starcoder2),
    ("trocr", seq2seq::trocr),
    ("vaultgemma", gemma::vaultgemma),
    ("whisper", seq2seq::whisper),
    ("xglm", seq2seq::xglm),
    ("xlm-roberta", bert::roberta),
    ("youtu", deepseek::youtu),
    ("zamba2", zamba::zamba2),
];

/// The model types that run natively.
pub fn native() -> impl Iterator<Item = &'static str> {
    FAMILIES.iter().map(|(name, _)| *name)
}

/// Reads a configuration as that of a family, whatever it calls itself; also gives the keys that the family never asked for.
pub(crate) fn read_as(config: &Config, family: &str) -> Result<(Family, Vec<String>)> {
    check(config)?;
    let config = config.with("model_type", family.into()).watched();
    let (_, reader) = FAMILIES.iter().find(|(name, _)| *name == family).ok_or_else(|| unknown(family))?;
    let family = reader(&config)?;
    limits::check_made(&config, &family)?;
    Ok((family, config.unread()))
}

/// Refuses what no family could read.
pub(crate) fn check(config: &Config) -> Result<()> {
    limits::check(config)?;
    // A way of quantising that is not known is refused before any weight is looked at.
    Method::read(config)?;
    Ok(())
}

/// Reads a configuration by its family.
pub fn read(config: &Config) -> Result<Family> {
    let model_type = config.model_type()?;
    check(config)?;
    let (_, reader) = FAMILIES.iter().find(|(name, _)| *name == model_type).ok_or_else(|| unknown(model_type))?;
    let family = reader(config)?;
    limits::check_made(config, &family)?;
    Ok(family)
}

/// Why a configuration of a type that is not native cannot be read.
pub(crate) fn unknown_type(config: &Config) -> Error {
    config.model_type().map_or_else(|error| error, unknown)
}

fn unknown(model_type: &str) -> Error {
    Error::unsupported(format!("models of type `{model_type}` do not run natively in this build"), nearest(model_type))
}

/// The native types with the nearest names, and where all are listed.
pub(crate) fn nearest(name: &str) -> String {
    let mut near: Vec<&str> = native().collect();
    near.sort_by(|a, b| strsim::jaro_winkler(b, name).total_cmp(&strsim::jaro_winkler(a, name)));
    format!(
        "the native types of the nearest names are `{}`; docs/models.md lists all",
        near[..near.len().min(3)].join("`, `")
    )
}

/// The activation function that a configuration names.
fn activation(config: &Config, key: &str, default: &str) -> Result<Activation> {
    let name = config.text(key).unwrap_or(default);
    Activation::named(name).ok_or_else(|| {
        Error::unsupported(
            format!("the activation function `{name}` (`{key}`) is not known to this build"),
            "report the model's family",
        )
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
