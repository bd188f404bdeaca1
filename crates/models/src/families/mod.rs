//! Model families: for each `model_type`, a function from its configuration to an architecture and
//! a table of tensor names.
//!
//! A family is data. It has no forward pass; `pellucid_engine::program` builds the ops from its
//! architecture. To add one, write its function, add its row to `FAMILIES`, and add its golden case
//! (see CONTRIBUTING.md). `register` maps further model types to a native family.

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
mod hunyuan;
mod jetmoe;
mod latent;
mod limits;
mod llama;
mod llama4;
mod llama_attention_variants;
mod llama_variants;
mod mamba;
mod mamba_hybrids;
mod moe;
mod olmo;
mod opt;
mod other_recurrences;
mod register;
mod seq2seq;
mod sigmoid_moe;
mod values;
mod zamba;

pub(crate) use limits::MAX_LAYERS;
pub use register::{ARCHITECTURES_VARIABLE, family_of, register_architecture, register_file, registered_architectures};
pub(crate) use register::{mapped_family, register_environment};

use crate::config::Config;
use crate::error::{Error, Result};
use crate::names::Names;
use crate::quantized::Method;
use pellucid_engine::Architecture;
use pellucid_engine::architecture::{Activation, Attention, Dense, Experts, Layer, Mlp, Modules, Norm};

/// A family applied to a configuration: the architecture and the names of its weights.
#[derive(Debug)]
pub struct Family {
    /// The architecture.
    pub architecture: Architecture,
    /// Stored names of its weights.
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

    /// Changes every dense MLP.
    fn each_dense(&mut self, mut change: impl FnMut(&mut Dense)) {
        self.each(|layer| {
            if let Some(Mlp::Dense(dense)) = &mut layer.mlp {
                change(dense);
            }
        });
    }

    /// Changes every mixture of experts.
    fn each_experts(&mut self, mut change: impl FnMut(&mut Experts)) {
        self.each(|layer| {
            if let Some(Mlp::Experts(experts)) = &mut layer.mlp {
                change(experts);
            }
        });
    }

    /// Sets the pre-norms of the sublayers and the final norm.
    fn set_norms(&mut self, norm: Norm) {
        self.each(|layer| (layer.attn_norm, layer.mlp_norm) = (Some(norm), layer.mlp_norm.map(|_| norm)));
        self.architecture.final_norm = Some(norm);
    }

    /// Sets whether all attention projections have biases.
    fn set_attention_bias(&mut self, bias: bool) {
        self.each_attention(|a| (a.qkv_bias, a.out_bias) = (bias, bias));
    }

    /// Head dimension of the first attention layer; 0 if there is none.
    fn head_dim(&self) -> usize {
        self.architecture.layers.iter().find_map(|layer| layer.attention.as_ref()).map_or(0, |a| a.head_dim)
    }
}

type Reader = fn(&Config) -> Result<Family>;

/// Every family that runs natively, by `model_type`.
const FAMILIES: &[(&str, Reader)] = &[
    ("afmoe", sigmoid_moe::afmoe),
    ("apertus", llama_attention_variants::apertus),
    ("arcee", llama_variants::arcee),
    ("aria_text", moe::aria_text),
    ("axk1", deepseek::axk1),
    ("bamba", mamba_hybrids::bamba),
    ("bart", seq2seq::bart),
    ("bert", bert::bert),
    ("biogpt", seq2seq::biogpt),
    ("bitnet", llama_attention_variants::bitnet),
    ("blenderbot", seq2seq::blenderbot),
    ("bloom", bloom::bloom),
    ("camembert", bert::roberta),
    ("codegen", gptj::codegen),
    ("cohere", llama_variants::cohere),
    ("cohere2", llama_variants::cohere2),
    ("cohere2_moe", moe::cohere2_moe),
    ("ctrl", ctrl::ctrl),
    ("cwm", llama_variants::cwm),
    ("dbrx", dbrx::dbrx),
    ("deepseek_v2", deepseek::deepseek_v2),
    ("deepseek_v3", deepseek::deepseek_v3),
    ("diffllama", llama_attention_variants::diffllama),
    ("doge", llama_attention_variants::doge),
    ("dots1", sigmoid_moe::dots1),
    ("electra", bert::electra),
    ("ernie4_5", llama_variants::ernie4_5),
    ("ernie4_5_moe", moe::ernie4_5_moe),
    ("exaone4", llama_variants::exaone4),
    ("exaone_moe", sigmoid_moe::exaone_moe),
    ("falcon", falcon::falcon),
    ("falcon_h1", mamba_hybrids::falcon_h1),
    ("falcon_mamba", mamba::falcon_mamba),
    ("flex_olmo", olmo::flex_olmo),
    ("gemma", gemma::gemma1),
    ("gemma2", gemma::gemma2),
    ("gemma3", gemma::gemma3),
    ("gemma3_text", gemma::gemma3_text),
    ("glm", llama_variants::glm),
    ("glm4", llama_variants::glm4),
    ("glm4_moe", sigmoid_moe::glm4_moe),
    ("glm4_moe_lite", deepseek::glm4_moe_lite),
    ("gpt2", gpt2::gpt2),
    ("gpt_bigcode", gpt2::gpt_bigcode),
    ("gpt_neo", gpt2::gpt_neo),
    ("gpt_neox", gpt_neox::gpt_neox),
    ("gpt_neox_japanese", gpt_neox::gpt_neox_japanese),
    ("gpt_oss", gpt_oss::gpt_oss),
    ("gptj", gptj::gptj),
    ("granite", llama_variants::granite),
    ("granite_swa", llama_attention_variants::granite_swa),
    ("granitemoe", granite_moe::granitemoe),
    ("granitemoe_swa", granite_moe::granitemoe_swa),
    ("granitemoehybrid", mamba_hybrids::granitemoehybrid),
    ("granitemoeshared", granite_moe::granitemoeshared),
    ("helium", llama_variants::helium),
    ("hunyuan_v1_dense", hunyuan::hunyuan_v1_dense),
    ("hunyuan_v1_moe", hunyuan::hunyuan_v1_moe),
    ("hy_v3", sigmoid_moe::hy_v3),
    ("hyperclovax", llama_variants::hyperclovax),
    ("jais2", llama_variants::jais2),
    ("jamba", mamba_hybrids::jamba),
    ("jetmoe", jetmoe::jetmoe),
    ("kimi_linear", delta::kimi_linear),
    ("laguna", sigmoid_moe::laguna),
    ("lfm2", other_recurrences::lfm2),
    ("lfm2_moe", other_recurrences::lfm2_moe),
    ("llama", llama::llama),
    ("llama4_text", llama4::llama4_text),
    ("mamba", mamba::mamba),
    ("mamba2", mamba::mamba2),
    ("marian", seq2seq::marian),
    ("mbart", seq2seq::mbart),
    ("mellum", moe::mellum),
    ("mimo_v2_flash", sigmoid_moe::mimo_v2_flash),
    ("minicpm3", deepseek::minicpm3),
    ("minimax", other_recurrences::minimax),
    ("minimax_m2", sigmoid_moe::minimax_m2),
    ("ministral", llama_variants::ministral),
    ("ministral3", llama_attention_variants::ministral3),
    ("mistral", llama::mistral),
    ("mixtral", llama::mixtral),
    ("modernbert-decoder", bert::modernbert_decoder),
    ("mpt", falcon::mpt),
    ("nanochat", llama_attention_variants::nanochat),
    ("nemotron", llama_variants::nemotron),
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
    ("phi3", llama_variants::phi3),
    ("phimoe", moe::phimoe),
    ("qwen2", llama::qwen2),
    ("qwen2_moe", moe::qwen2_moe),
    ("qwen3", llama::qwen3),
    ("qwen3_5_moe_text", delta::qwen3_5_moe_text),
    ("qwen3_5_text", delta::qwen3_5_text),
    ("qwen3_moe", moe::qwen3_moe),
    ("qwen3_next", delta::qwen3_next),
    ("recurrent_gemma", other_recurrences::recurrent_gemma),
    ("roberta", bert::roberta),
    ("rwkv", other_recurrences::rwkv),
    ("seed_oss", llama_variants::seed_oss),
    ("smollm3", llama_variants::smollm3),
    ("solar_open", sigmoid_moe::solar_open),
    ("stablelm", llama_variants::stablelm),
    ("starcoder2", llama_variants::starcoder2),
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

/// Whether a model type runs natively.
pub(crate) fn is_native(model_type: &str) -> bool {
    native().any(|name| name == model_type)
}

/// Applies a family to a configuration, ignoring its `model_type`; also returns the keys that the
/// family did not read.
pub(crate) fn read_as(config: &Config, family: &str) -> Result<(Family, Vec<String>)> {
    check(config)?;
    let config = config.with("model_type", family.into()).track_reads();
    let (_, reader) = FAMILIES.iter().find(|(name, _)| *name == family).ok_or_else(|| unknown(family))?;
    let family = reader(&config)?;
    limits::check_architecture(&config, &family)?;
    Ok((family, config.unread_keys()))
}

/// Rejects configurations that no family supports: excessive sizes, values of a wrong type or out
/// of range, unknown quantization methods.
pub(crate) fn check(config: &Config) -> Result<()> {
    limits::check(config)?;
    values::check(config)?;
    // Rejects an unknown quantization method before any weight is read.
    Method::read(config)?;
    Ok(())
}

/// Applies the family of a configuration's own `model_type`.
pub fn read(config: &Config) -> Result<Family> {
    let model_type = config.model_type()?;
    check(config)?;
    let (_, reader) = FAMILIES.iter().find(|(name, _)| *name == model_type).ok_or_else(|| unknown(model_type))?;
    let family = reader(config)?;
    limits::check_architecture(config, &family)?;
    Ok(family)
}

/// The error for a model type that is not native.
fn unknown(model_type: &str) -> Error {
    Error::unsupported(format!("models of type `{model_type}` do not run natively in this build"), nearest(model_type))
}

/// Remedy that suggests the native types with the most similar names.
pub(crate) fn nearest(name: &str) -> String {
    let mut near: Vec<&str> = native().collect();
    near.sort_by(|a, b| strsim::jaro_winkler(b, name).total_cmp(&strsim::jaro_winkler(a, name)));
    format!(
        "native types with similar names are `{}`; docs/models.md lists all",
        near[..near.len().min(3)].join("`, `")
    )
}

/// Reads the activation function of a configuration.
fn activation(config: &Config, key: &str, default: &str) -> Result<Activation> {
    let name = config.text(key).unwrap_or(default);
    Activation::named(name).ok_or_else(|| {
        Error::unsupported(
            format!("the activation function `{name}` (`{key}`) is not supported"),
            "report the model's family",
        )
    })
}

/// Returns the sliding window of each layer, `None` for full attention: by `layer_types` if
/// present, else by the family's rule.
fn layer_windows(
    config: &Config,
    layers: usize,
    window: Option<usize>,
    slides: impl Fn(usize) -> bool,
) -> Result<Vec<Option<usize>>> {
    let types = config.texts("layer_types")?;
    if let Some(types) = &types {
        if types.len() != layers {
            return Err(config.bad("layer_types", "does not have one entry per layer"));
        }
        if let Some(other) = types.iter().find(|kind| !["full_attention", "sliding_attention"].contains(kind)) {
            return Err(Error::unsupported(
                format!("layers of type `{other}` are not supported by this family"),
                "report the model's family",
            ));
        }
    }
    let sliding =
        |layer: usize| types.as_ref().map_or_else(|| slides(layer), |types| types[layer] == "sliding_attention");
    Ok((0..layers).map(|layer| window.filter(|_| sliding(layer))).collect())
}

/// Hugging Face's module names for a backbone called `backbone`.
fn modules(
    backbone: &str,
    layers: &str,
    attention: &str,
    mlp: &str,
    embedding: &str,
    final_norm: &str,
    head: &str,
) -> Modules {
    Modules {
        layers: format!("{backbone}.{layers}"),
        attention: Some(attention.into()),
        mlp: Some(mlp.into()),
        embedding: Some(format!("{backbone}.{embedding}")),
        final_norm: Some(format!("{backbone}.{final_norm}")),
        head: Some(head.into()),
    }
}
