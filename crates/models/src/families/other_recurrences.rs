//! Families with other recurrences: RecurrentGemma (RG-LRU), RWKV 4, LFM 2 (short convolutions),
//! MiniMax (linear attention).

use super::delta::linear_layers;
use super::llama::{llama_like, mixtral};
use super::mamba_hybrids::replace_attention;
use super::{Family, activation, modules};
use crate::config::{Config, MAX_DIMENSION};
use crate::error::Result;
use crate::names::{Names, StoredPart};
use pellucid_engine::Architecture;
use pellucid_engine::architecture::{
    Dense, Embedding, ExpertWeights, Experts, Gain, Head, Layer, LinearAttention, Lru, Mlp, Modules, Norm, Recurrence,
    Routing, Scores, ShortConv, Skip,
};
use serde_json::json;

/// RecurrentGemma: RG-LRU layers, with sliding-window attention in every third layer.
pub(super) fn recurrent_gemma(config: &Config) -> Result<Family> {
    let width = config.size("hidden_size")?;
    let named = config
        .with("intermediate_size", (config.size("intermediate_size")? / 2).into())
        .with("hidden_act", config.text("hidden_activation").unwrap_or("gelu_pytorch_tanh").into())
        .with("partial_rotary_factor", config.number_or("partial_rotary_factor", 0.5)?.into())
        .with("tie_word_embeddings", config.flag_or("tie_word_embeddings", true)?.into());
    let mut family = llama_like(&named)?;
    let norm = Norm { gain: Gain::OnePlusWeight, ..Norm::rms(config.number_or("rms_norm_eps", 1e-6)?) };
    let window = config.size_or("attention_window_size", 2048)?;
    let bias = config.flag_or("attention_bias", false)?;
    family.set_norms(norm);
    family.each_attention(|a| (a.qkv_bias, a.out_bias, a.window) = (bias, true, Some(window)));
    family.each_dense(|dense| *dense = dense.with_bias(true));
    let lru = Lru {
        inner_width: config.size_or("lru_width", width)?,
        blocks: config.size("num_attention_heads")?,
        conv_kernel: config.size_or("conv1d_width", 4)?,
        activation: activation(&named, "hidden_act", "gelu_pytorch_tanh")?,
    };
    let kinds = config.texts("block_types")?.unwrap_or_else(|| vec!["recurrent", "recurrent", "attention"]);
    let pattern = kinds.iter().cycle();
    for (layer, kind) in family.architecture.layers.iter_mut().zip(pattern) {
        if *kind == "recurrent" {
            replace_attention(layer, Recurrence::Lru(lru));
        }
    }
    // transformers rounds the multiplier to bfloat16.
    let scale = (width as f32).sqrt();
    family.architecture.embedding.scale = Some(f32::from_bits((scale.to_bits() + 0x8000) & 0xffff_0000));
    let config = &config.with_defaults([("logits_soft_cap", json!(30.0))]);
    family.architecture.head.soft_cap = config.number_maybe("logits_soft_cap")?;
    family.architecture.context = None;
    let at = |name: &str| format!("layers.{{l}}.temporal_block.{name}");
    family.names = Names::new(&["model.", ""])
        .with(&[
            ("embed", "embed_tokens"),
            ("final_norm", "final_norm"),
            ("layers.{l}.attn.norm", "layers.{l}.temporal_pre_norm"),
            ("layers.{l}.mlp.norm", "layers.{l}.channel_pre_norm"),
            ("layers.{l}.mlp.gate", "layers.{l}.mlp_block.gate_proj"),
            ("layers.{l}.mlp.up", "layers.{l}.mlp_block.up_proj"),
            ("layers.{l}.mlp.down", "layers.{l}.mlp_block.down_proj"),
        ])
        .with(&[
            ("layers.{l}.attn.q", at("q_proj")),
            ("layers.{l}.attn.k", at("k_proj")),
            ("layers.{l}.attn.v", at("v_proj")),
            ("layers.{l}.attn.out", at("o_proj")),
            ("layers.{l}.mixer.gate", at("linear_y")),
            ("layers.{l}.mixer.in", at("linear_x")),
            ("layers.{l}.mixer.conv", at("conv_1d")),
            ("layers.{l}.mixer.out", at("linear_out")),
        ])
        .with_bare(&[
            ("layers.{l}.mixer.input_gate", at("rg_lru.input_gate_weight")),
            ("layers.{l}.mixer.input_gate.bias", at("rg_lru.input_gate_bias")),
            ("layers.{l}.mixer.recurrent_gate", at("rg_lru.recurrent_gate_weight")),
            ("layers.{l}.mixer.recurrent_gate.bias", at("rg_lru.recurrent_gate_bias")),
            ("layers.{l}.mixer.rate", at("rg_lru.recurrent_param")),
        ])
        .without_prefix("head", "lm_head");
    family.architecture.modules =
        modules("model", "layers", "temporal_block", "mlp_block", "embed_tokens", "final_norm", "lm_head");
    Ok(family)
}

/// RWKV 4: time mixing and channel mixing, each interpolating a token with the previous one (token
/// shift).
pub(super) fn rwkv(config: &Config) -> Result<Family> {
    let width = config.size("hidden_size")?;
    let norm = Norm::layer(config.number_or("layer_norm_epsilon", 1e-5)?);
    let channels = config.size_or("attention_hidden_size", width)?;
    let mlp = Mlp::ChannelMix { width: config.size_or("intermediate_size", 4 * width)? };
    let every = config.size_or("rescale_every", 6)?;
    // `rescale_every`: the residual stream is halved every few layers, and so are all later
    // additions to it.
    let layer = |index: usize| {
        let times = index.checked_div(every).unwrap_or(0);
        let by = (times > 0).then(|| 0.5f32.powi(times as i32));
        Layer {
            recurrence: Some(Recurrence::Rwkv(channels)),
            mlp_norm: Some(norm),
            mlp: Some(mlp.clone()),
            mixer_multiplier: by,
            mlp_multiplier: by,
            out_scale: (every > 0 && (index + 1).is_multiple_of(every)).then_some(0.5),
            ..Layer::empty(norm)
        }
    };
    let architecture = Architecture {
        family: config.model_type()?.into(),
        vocab: config.size("vocab_size")?,
        width,
        context: None,
        embedding: Embedding { norm: Some(norm), ..Embedding::default() },
        layers: (0..config.size("num_hidden_layers")?).map(layer).collect(),
        final_norm: Some(Norm::layer(1e-5)),
        head: Head { tied: config.flag_or("tie_word_embeddings", false)?, ..Head::default() },
        ropes: vec![],
        modules: Modules {
            layers: "rwkv.blocks".into(),
            embedding: Some("rwkv.embeddings".into()),
            final_norm: Some("rwkv.ln_out".into()),
            head: Some("head".into()),
            ..Modules::default()
        },
    };
    let names = Names::new(&["rwkv.", ""])
        .with(&[
            ("embed", "embeddings"),
            ("embed.norm", "blocks.0.pre_ln"),
            ("final_norm", "ln_out"),
            ("layers.{l}.attn.norm", "blocks.{l}.ln1"),
            ("layers.{l}.mlp.norm", "blocks.{l}.ln2"),
            ("layers.{l}.mixer.k", "blocks.{l}.attention.key"),
            ("layers.{l}.mixer.v", "blocks.{l}.attention.value"),
            ("layers.{l}.mixer.gate", "blocks.{l}.attention.receptance"),
            ("layers.{l}.mixer.out", "blocks.{l}.attention.output"),
            ("layers.{l}.mlp.up", "blocks.{l}.feed_forward.key"),
            ("layers.{l}.mlp.down", "blocks.{l}.feed_forward.value"),
            ("layers.{l}.mlp.out_gate", "blocks.{l}.feed_forward.receptance"),
        ])
        .with_bare(&[
            ("layers.{l}.mixer.mix_k", "blocks.{l}.attention.time_mix_key"),
            ("layers.{l}.mixer.mix_v", "blocks.{l}.attention.time_mix_value"),
            ("layers.{l}.mixer.mix_gate", "blocks.{l}.attention.time_mix_receptance"),
            ("layers.{l}.mixer.rate", "blocks.{l}.attention.time_decay"),
            ("layers.{l}.mixer.first", "blocks.{l}.attention.time_first"),
            ("layers.{l}.mlp.mix_up", "blocks.{l}.feed_forward.time_mix_key"),
            ("layers.{l}.mlp.mix_gate", "blocks.{l}.feed_forward.time_mix_receptance"),
        ])
        .without_prefix("head", "head");
    Ok(Family { architecture, names })
}

/// LFM 2: gated short convolutions, attention in some layers.
pub(super) fn lfm2(config: &Config) -> Result<Family> {
    let width = lfm2_width(config)?;
    lfm2_with(config, width)
}

fn lfm2_with(config: &Config, neurons: usize) -> Result<Family> {
    let config = &config.with_defaults([("num_key_value_heads", json!(8)), ("rope_theta", json!(1_000_000.0))]);
    let eps = config.number_or("norm_eps", 1e-5)?;
    let named = config.with("intermediate_size", neurons.into()).with("rms_norm_eps", eps.into()).with(
        "tie_word_embeddings",
        config.flag_or("tie_word_embeddings", config.flag_or("tie_embedding", true)?)?.into(),
    );
    let mut family = llama_like(&named)?;
    family.each_attention(|a| a.qk_norm = Some(Norm::rms(eps)));
    let conv = ShortConv { conv_kernel: config.size_or("conv_L_cache", 3)?, bias: config.flag_or("conv_bias", false)? };
    let (kinds, attends) = (config.texts("layer_types")?, config.sizes("full_attn_idxs")?);
    for (index, layer) in family.architecture.layers.iter_mut().enumerate() {
        let full = match &kinds {
            Some(kinds) => kinds.get(index) == Some(&"full_attention"),
            None => attends.is_empty() || attends.contains(&index),
        };
        if !full {
            replace_attention(layer, Recurrence::ShortConv(conv));
        }
    }
    let hidden = config.size("hidden_size")?;
    let fused = "layers.{l}.conv.in_proj";
    family.names = std::mem::take(&mut family.names)
        .replacing("final_norm", "embedding_norm")
        .replacing("layers.{l}.attn.norm", "layers.{l}.operator_norm")
        .replacing("layers.{l}.mlp.norm", "layers.{l}.ffn_norm")
        .replacing("layers.{l}.attn.q_norm", "layers.{l}.self_attn.q_layernorm")
        .replacing("layers.{l}.attn.k_norm", "layers.{l}.self_attn.k_layernorm")
        .replacing("layers.{l}.attn.out", "layers.{l}.self_attn.out_proj")
        .replacing("layers.{l}.mlp.gate", "layers.{l}.feed_forward.w1")
        .replacing("layers.{l}.mlp.up", "layers.{l}.feed_forward.w3")
        .replacing("layers.{l}.mlp.down", "layers.{l}.feed_forward.w2")
        .with_part("layers.{l}.mixer.in_gate", fused, StoredPart::rows(0, 3 * hidden))
        .with_part("layers.{l}.mixer.gate", fused, StoredPart::rows(hidden, 3 * hidden))
        .with_part("layers.{l}.mixer.in", fused, StoredPart::rows(2 * hidden, 3 * hidden))
        .with(&[
            ("layers.{l}.mixer.conv", "layers.{l}.conv.conv"),
            ("layers.{l}.mixer.out", "layers.{l}.conv.out_proj"),
        ]);
    family.architecture.modules =
        modules("model", "layers", "self_attn", "feed_forward", "embed_tokens", "embedding_norm", "lm_head");
    Ok(family)
}

/// Returns LFM 2's MLP width, with `block_auto_adjust_ff_dim` applied.
fn lfm2_width(config: &Config) -> Result<usize> {
    let given = config.size_maybe("intermediate_size")?.or(config.size_maybe("block_ff_dim")?);
    let given = given.ok_or_else(|| config.bad("intermediate_size", "is missing"))?;
    if !config.flag_or("block_auto_adjust_ff_dim", true)? {
        return Ok(given);
    }
    let third = 2 * given / 3;
    let scaled = (config.number_or("block_ffn_dim_multiplier", 1.0)? * third as f32) as usize;
    if scaled > MAX_DIMENSION {
        return Err(config.bad("block_ffn_dim_multiplier", "makes the MLP too wide"));
    }
    Ok(scaled.next_multiple_of(config.size_or("block_multiple_of", 256)?.max(1)))
}

/// LFM 2 MoE: experts in all layers but the first `num_dense_layers`.
pub(super) fn lfm2_moe(config: &Config) -> Result<Family> {
    let mut family = lfm2_with(config, config.size("intermediate_size")?)?;
    let (experts, top_k) = (config.size_or("num_experts", 32)?, config.size_or("num_experts_per_tok", 4)?);
    let width = config.size_or("moe_intermediate_size", 1792)?;
    let shares = ExpertWeights::SumNormalized { eps: 1e-6, min_divisor: 0.0 };
    let weights = if config.flag_or("norm_topk_prob", true)? { shares } else { ExpertWeights::Scores };
    let routing = Routing {
        correction: config.flag_or("use_expert_bias", true)?,
        scale: config.number_or("routed_scaling_factor", 1.0)?,
        ..Routing::new(Scores::Sigmoid, weights)
    };
    let dense_layers = config.size_or("num_dense_layers", 2)?;
    for layer in family.architecture.layers.iter_mut().skip(dense_layers) {
        if let Some(Mlp::Dense(dense)) = layer.mlp {
            let expert = Dense { width, ..dense };
            layer.mlp = Some(Mlp::Experts(Experts::new(experts, top_k, expert, routing)));
        }
    }
    let at = |name: &str| format!("layers.{{l}}.feed_forward.{name}");
    family.names = std::mem::take(&mut family.names)
        .with(&[
            ("layers.{l}.mlp.router", at("gate")),
            ("layers.{l}.mlp.experts.{e}.gate", at("experts.{e}.w1")),
            ("layers.{l}.mlp.experts.{e}.up", at("experts.{e}.w3")),
            ("layers.{l}.mlp.experts.{e}.down", at("experts.{e}.w2")),
        ])
        .with_bare(&[("layers.{l}.mlp.correction", at("expert_bias"))]);
    Ok(family)
}

/// MiniMax: alternates linear attention with fixed decays and softmax attention; residual
/// connections start from the normed input.
pub(super) fn minimax(config: &Config) -> Result<Family> {
    let mut family = mixtral(&config.with("layer_types", serde_json::Value::Null))?;
    let (depth, heads) = (family.architecture.layers.len(), config.size("num_attention_heads")?);
    let head_dim = family.head_dim();
    let by = |key: &str| config.number_or(key, 1.0);
    let (full, linear, mlp) = (
        (by("full_attn_alpha_factor")?, by("full_attn_beta_factor")?),
        (by("linear_attn_alpha_factor")?, by("linear_attn_beta_factor")?),
        (by("mlp_alpha_factor")?, by("mlp_beta_factor")?),
    );
    let kinds = match config.get("layer_types") {
        Some(_) => linear_layers(config, depth)?,
        None => (0..depth).map(|layer| layer % 2 == 1).collect(),
    };
    let activation = activation(config, "hidden_act", "silu")?;
    for (index, (layer, is_linear)) in family.architecture.layers.iter_mut().zip(kinds).enumerate() {
        let (alpha, beta) = if is_linear { linear } else { full };
        layer.skip = Skip::Normed { attn: alpha, mlp: mlp.0 };
        (layer.attn_multiplier, layer.mixer_multiplier, layer.mlp_multiplier) = (Some(beta), Some(beta), Some(mlp.1));
        if is_linear {
            let factor = 1.0 - index as f32 / ((depth - 1) as f32 + 1e-5) + 1e-5;
            let base = 1.0 / 2f32.powf(8.0 / heads as f32);
            let decay = (0..heads).map(|head| (-base.powi(head as i32 + 1) * factor).exp()).collect();
            let spec = LinearAttention { heads, head_dim, activation, decay, norm: Norm::rms(1e-6) };
            replace_attention(layer, Recurrence::LinearAttention(spec));
        }
    }
    let fused = "layers.{l}.self_attn.qkv_proj";
    family.names = std::mem::take(&mut family.names)
        .with_part("layers.{l}.mixer.q", fused, StoredPart::per_head(0, 3, head_dim))
        .with_part("layers.{l}.mixer.k", fused, StoredPart::per_head(1, 3, head_dim))
        .with_part("layers.{l}.mixer.v", fused, StoredPart::per_head(2, 3, head_dim))
        .with(&[
            ("layers.{l}.mixer.norm", "layers.{l}.self_attn.norm"),
            ("layers.{l}.mixer.gate", "layers.{l}.self_attn.output_gate"),
            ("layers.{l}.mixer.out", "layers.{l}.self_attn.out_proj"),
        ])
        // Constants of the decay that checkpoints store.
        .ignoring(&[".slope_rate", ".query_decay", ".key_decay", ".diagonal_decay"]);
    Ok(family)
}
