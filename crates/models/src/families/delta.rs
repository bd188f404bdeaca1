//! Hybrids of attention and the gated delta rule: Qwen 3 Next, Qwen 3.5, OLMo Hybrid, Kimi Linear.

use super::deepseek::set_experts;
use super::experts::{correction_names, shared_names, sigmoid_routing, without_experts};
use super::latent::set_latent_attention;
use super::llama::llama_like;
use super::llama_variants::post_norms;
use super::mamba_hybrids::replace_attention;
use super::moe::set_gated_shared_experts;
use super::olmo::set_qk_norm_all_heads;
use super::{Family, activation};
use crate::config::Config;
use crate::error::Result;
use crate::names::{Names, StoredPart};
use pellucid_engine::architecture::{Activation, AttentionGate, Decay, DeltaRule, Gain, Norm, Recurrence, RopeStyle};
use serde_json::json;

/// Qwen 3 Next: gated attention in every fourth layer, experts with a gated shared expert.
pub(super) fn qwen3_next(config: &Config) -> Result<Family> {
    let config = &config.with_defaults([("num_key_value_heads", json!(2))]);
    let mut family = qwen_hybrid(config)?;
    let rule = read_rule(config)?;
    // Fused per key head: query, key, values, gates (z) of the values.
    let (key, values) = (rule.key_dim, rule.value_heads / rule.key_heads.max(1) * rule.value_dim);
    let group = 2 * key + 2 * values;
    let per_key_head = rule.value_heads / rule.key_heads.max(1);
    let (fused, pairs) = ("layers.{l}.linear_attn.in_proj_qkvz", "layers.{l}.linear_attn.in_proj_ba");
    family.names = std::mem::take(&mut family.names)
        .with_part("layers.{l}.mixer.q", fused, StoredPart::grouped(0, key, group))
        .with_part("layers.{l}.mixer.k", fused, StoredPart::grouped(key, key, group))
        .with_part("layers.{l}.mixer.v", fused, StoredPart::grouped(2 * key, values, group))
        .with_part("layers.{l}.mixer.gate", fused, StoredPart::grouped(2 * key + values, values, group))
        .with_part("layers.{l}.mixer.strength", pairs, StoredPart::grouped(0, per_key_head, 2 * per_key_head))
        .with_part("layers.{l}.mixer.step", pairs, StoredPart::grouped(per_key_head, per_key_head, 2 * per_key_head));
    let config = config.with_defaults([
        ("num_experts", json!(512)),
        ("num_experts_per_tok", json!(10)),
        ("moe_intermediate_size", json!(512)),
        ("shared_expert_intermediate_size", json!(512)),
        ("norm_topk_prob", json!(true)),
    ]);
    set_gated_shared_experts(&config, &mut family)?;
    Ok(family)
}

/// Qwen 3.5, language model: Qwen 3 Next with separate QKV, Z, B and A projections, dense MLPs.
pub(super) fn qwen3_5_text(config: &Config) -> Result<Family> {
    let config = &config.with_defaults([("num_key_value_heads", json!(4))]);
    let mut family = qwen_hybrid(config)?;
    let rule = read_rule(config)?;
    let (keys, values) = (rule.key_heads * rule.key_dim, rule.value_heads * rule.value_dim);
    let fused = "layers.{l}.linear_attn.in_proj_qkv";
    let part = |start: usize| StoredPart::rows(start, 2 * keys + values);
    family.names = std::mem::take(&mut family.names)
        .with_part("layers.{l}.mixer.q", fused, part(0))
        .with_part("layers.{l}.mixer.k", fused, part(keys))
        .with_part("layers.{l}.mixer.v", fused, part(2 * keys))
        .with(&[
            ("layers.{l}.mixer.gate", "layers.{l}.linear_attn.in_proj_z"),
            ("layers.{l}.mixer.strength", "layers.{l}.linear_attn.in_proj_b"),
            ("layers.{l}.mixer.step", "layers.{l}.linear_attn.in_proj_a"),
        ]);
    Ok(family)
}

/// Qwen 3.5 with experts.
pub(super) fn qwen3_5_moe_text(config: &Config) -> Result<Family> {
    let config = config.with_defaults([
        ("num_key_value_heads", json!(2)),
        ("num_experts", json!(256)),
        ("num_experts_per_tok", json!(8)),
        ("moe_intermediate_size", json!(512)),
        ("shared_expert_intermediate_size", json!(512)),
        // Every layer has experts, so configurations have no width of a dense MLP; any value does.
        ("intermediate_size", json!(512)),
    ]);
    let mut family = qwen3_5_text(&config)?;
    set_gated_shared_experts(&config.with("norm_topk_prob", true.into()), &mut family)?;
    Ok(family)
}

/// OLMo Hybrid: OLMo 2's attention layers (post-norms), delta-rule layers with pre-norms.
pub(super) fn olmo_hybrid(config: &Config) -> Result<Family> {
    let config = &olmo_hybrid_defaults(config)?;
    let mut family = llama_like(config)?;
    family.set_attention_bias(config.flag_or("attention_bias", false)?);
    set_qk_norm_all_heads(&mut family);
    // A `rope_theta` of null means no RoPE.
    let inside = config.get("rope_parameters").and_then(|part| part.get("rope_theta"));
    if inside.map_or(config.get("rope_theta").is_none(), serde_json::Value::is_null) {
        family.each_attention(|a| a.rope = None);
        family.architecture.ropes.clear();
    }
    let beta_scale = if config.flag_or("linear_allow_neg_eigval", true)? { 2.0 } else { 1.0 };
    let rule = DeltaRule { beta_scale, norm: Norm::rms(1e-5), ..read_rule(config)? };
    let linear = linear_layers(config, family.architecture.layers.len())?;
    for (layer, linear) in family.architecture.layers.iter_mut().zip(linear) {
        if linear {
            replace_attention(layer, Recurrence::DeltaRule(rule.clone()));
        } else {
            (layer.attn_post_norm, layer.mlp_post_norm) = (layer.attn_norm.take(), layer.mlp_norm.take());
        }
    }
    let at = |name: &str| format!("layers.{{l}}.linear_attn.{name}");
    family.names = std::mem::take(&mut family.names)
        .removing(&["layers.{l}.attn.norm", "layers.{l}.mlp.norm"])
        .with(&[
            ("layers.{l}.attn.norm", "layers.{l}.attention_layer_norm"),
            ("layers.{l}.attn.norm", "layers.{l}.input_layernorm"),
            ("layers.{l}.mlp.norm", "layers.{l}.feedforward_layer_norm"),
            ("layers.{l}.mlp.norm", "layers.{l}.post_attention_layernorm"),
        ])
        .with(&post_norms("post_attention_layernorm", "post_feedforward_layernorm"))
        // transformers saves the attention post-norm under this name.
        .with(&[("layers.{l}.attn.post_norm", "layers.{l}.feedforward_layer_norm")]);
    family.names = unfused_names(std::mem::take(&mut family.names), "layers.{l}.linear_attn").with(&[
        ("layers.{l}.mixer.step", at("a_proj")),
        ("layers.{l}.mixer.strength", at("b_proj")),
        ("layers.{l}.mixer.gate", at("g_proj")),
    ]);
    Ok(family)
}

/// Fills in OLMo Hybrid's default sizes, as the class of transformers does.
fn olmo_hybrid_defaults(config: &Config) -> Result<Config> {
    let (width, heads) = (config.size("hidden_size")?, config.size("num_attention_heads")?);
    let key_heads = config.size_or("linear_num_key_heads", heads)?;
    let key_dim = config.size_or("linear_key_head_dim", (0.75 * width as f32 / key_heads.max(1) as f32) as usize)?;
    let depth = config.size("num_hidden_layers")?;
    // At least the last layer has attention.
    let interval = if depth < 4 { depth.max(1) } else { 4 };
    Ok(config
        .with_defaults([("rope_theta", json!(10_000.0)), ("full_attention_interval", json!(interval))])
        .with("linear_num_key_heads", key_heads.into())
        .with("linear_num_value_heads", config.size_or("linear_num_value_heads", heads)?.into())
        .with("linear_key_head_dim", key_dim.into())
        .with("linear_value_head_dim", config.size_or("linear_value_head_dim", 2 * key_dim)?.into()))
}

/// Kimi Linear: MLA without RoPE, delta rule with decay per key channel, DeepSeek's
/// experts.
pub(super) fn kimi_linear(config: &Config) -> Result<Family> {
    let named = kimi_names(config)?.with_defaults([
        ("kv_lora_rank", json!(512)),
        ("qk_nope_head_dim", json!(128)),
        ("qk_rope_head_dim", json!(64)),
        ("v_head_dim", json!(128)),
        ("linear_num_heads", json!(32)),
        ("linear_head_dim", json!(128)),
        ("moe_intermediate_size", json!(1024)),
        ("rms_norm_eps", json!(1e-5)),
        ("routed_scaling_factor", json!(2.446)),
    ]);
    let mut family = llama_like(&named)?;
    let linear = linear_layers(&named, family.architecture.layers.len())?;
    set_latent_attention(&named, &mut family, RopeStyle::Halves)?;
    family.each_attention(|a| a.rope = None);
    family.architecture.ropes.clear();
    let (heads, dim) = (named.size("linear_num_heads")?, named.size("linear_head_dim")?);
    let rule = DeltaRule {
        key_heads: heads,
        value_heads: heads,
        key_dim: dim,
        value_dim: dim,
        decay: Decay::PerKeyChannel { rank: dim },
        gate_activation: Activation::Sigmoid,
        gate_rank: Some(dim),
        norm: Norm::rms(named.number_or("rms_norm_eps", 1e-5)?),
        ..read_rule(&named)?
    };
    for (layer, _) in family.architecture.layers.iter_mut().zip(linear).filter(|(_, linear)| *linear) {
        replace_attention(layer, Recurrence::DeltaRule(rule.clone()));
    }
    let normalize = named.flag_or("moe_renormalize", true)?;
    let routing = sigmoid_routing(&named, normalize, named.number_or("routed_scaling_factor", 1.0)?)?;
    set_experts(&named, &mut family, routing)?;
    // Dense MLPs may be stored under the experts' module name.
    let at = |name: &str| format!("layers.{{l}}.block_sparse_moe.{name}");
    let names = ["gate", "up", "down"].into_iter().fold(std::mem::take(&mut family.names), |names, part| {
        names.with(&[(&format!("layers.{{l}}.mlp.{part}"), at(&format!("{part}_proj")))])
    });
    let names = shared_names(without_experts(names), &["block_sparse_moe.shared_experts"])
        .replacing("layers.{l}.mlp.router", &at("gate"))
        .with(&[
            ("layers.{l}.mlp.experts.{e}.gate", at("experts.{e}.w1")),
            ("layers.{l}.mlp.experts.{e}.up", at("experts.{e}.w3")),
            ("layers.{l}.mlp.experts.{e}.down", at("experts.{e}.w2")),
        ]);
    let names = correction_names(names, &["block_sparse_moe.gate.e_score_correction_bias"]);
    let at = |name: &str| format!("layers.{{l}}.self_attn.{name}");
    family.names = unfused_names(names, "layers.{l}.self_attn").with(&[
        ("layers.{l}.mixer.step_down", at("f_a_proj")),
        ("layers.{l}.mixer.step", at("f_b_proj")),
        ("layers.{l}.mixer.strength", at("b_proj")),
        ("layers.{l}.mixer.gate_down", at("g_a_proj")),
        ("layers.{l}.mixer.gate", at("g_b_proj")),
    ]);
    family.architecture.modules.mlp = Some("block_sparse_moe".into());
    Ok(family)
}

/// Converts Kimi's keys to those of DeepSeek. Older configurations have `linear_attn_config`.
fn kimi_names(config: &Config) -> Result<Config> {
    let same = |ours: &str, theirs: &str, default: serde_json::Value| {
        let value = config.get(ours).or(config.get(theirs)).cloned().unwrap_or(default);
        (ours.to_string(), value)
    };
    let mut pairs = vec![
        same("n_routed_experts", "num_experts", json!(256)),
        same("n_shared_experts", "num_shared_experts", json!(1)),
        same("num_experts_per_tok", "num_experts_per_token", json!(8)),
        same("n_group", "num_expert_group", json!(1)),
        same("max_position_embeddings", "model_max_length", json!(null)),
        same("first_k_dense_replace", "first_k_dense_replace", json!(1)),
    ];
    if let Some(part) = config.part("linear_attn_config") {
        let (depth, full) = (config.size("num_hidden_layers")?, part.sizes("full_attn_layers")?);
        // These indices start at 1.
        let kind = |layer: usize| if full.contains(&(layer + 1)) { "full_attention" } else { "linear_attention" };
        pairs.push(("layer_types".into(), (0..depth).map(kind).collect::<Vec<_>>().into()));
        pairs.push(("linear_num_heads".into(), part.size("num_heads")?.into()));
        pairs.push(("linear_head_dim".into(), part.size("head_dim")?.into()));
        pairs.push(("linear_conv_kernel_dim".into(), part.size_or("short_conv_kernel_size", 4)?.into()));
    }
    Ok(pairs.into_iter().fold(config.clone(), |config, (key, value)| config.with(&key, value)))
}

/// Adds the names of a delta-rule module `at` with unfused projections.
pub(super) fn unfused_names(names: Names, at: &str) -> Names {
    let part = |name: &str| format!("{at}.{name}");
    names
        .with(&[
            ("layers.{l}.mixer.q", part("q_proj")),
            ("layers.{l}.mixer.k", part("k_proj")),
            ("layers.{l}.mixer.v", part("v_proj")),
            ("layers.{l}.mixer.norm", part("o_norm")),
            ("layers.{l}.mixer.out", part("o_proj")),
        ])
        // One convolution each for Q, K and V, or one for all.
        .with_pieces("layers.{l}.mixer.conv", &["q_conv1d", "k_conv1d", "v_conv1d"].map(part))
        .with(&[("layers.{l}.mixer.conv", part("conv1d"))])
        .with_bare(&[("layers.{l}.mixer.rate", part("A_log")), ("layers.{l}.mixer.step_bias", part("dt_bias"))])
}

/// Common part of Qwen's hybrids: norms that apply `1 + weight`, gated attention, delta rule in the
/// linear layers.
fn qwen_hybrid(config: &Config) -> Result<Family> {
    let config = &config.with_defaults([("head_dim", json!(256)), ("partial_rotary_factor", json!(0.25))]);
    let mut family = llama_like(config)?;
    let norm = Norm { gain: Gain::OnePlusWeight, ..Norm::rms(config.number_or("rms_norm_eps", 1e-6)?) };
    let bias = config.flag_or("attention_bias", false)?;
    let head_dim = family.head_dim();
    family.set_norms(norm);
    family.set_attention_bias(bias);
    family.each_attention(|a| {
        a.qk_norm = Some(norm);
        a.gate = Some(AttentionGate { per_head: false, activation: Activation::Sigmoid, bias });
    });
    let rule = read_rule(config)?;
    let linear = linear_layers(config, family.architecture.layers.len())?;
    for (layer, _) in family.architecture.layers.iter_mut().zip(linear).filter(|(_, linear)| *linear) {
        replace_attention(layer, Recurrence::DeltaRule(rule.clone()));
    }
    let queries = "layers.{l}.self_attn.q_proj";
    family.names = std::mem::take(&mut family.names)
        .removing(&["layers.{l}.attn.q"])
        .with_part("layers.{l}.attn.q", queries, StoredPart::per_head(0, 2, head_dim))
        .with_part("layers.{l}.attn.gate", queries, StoredPart::per_head(1, 2, head_dim))
        .with(&[
            ("layers.{l}.mixer.conv", "layers.{l}.linear_attn.conv1d"),
            ("layers.{l}.mixer.norm", "layers.{l}.linear_attn.norm"),
            ("layers.{l}.mixer.out", "layers.{l}.linear_attn.out_proj"),
        ])
        .with_bare(&[
            ("layers.{l}.mixer.rate", "layers.{l}.linear_attn.A_log"),
            ("layers.{l}.mixer.step_bias", "layers.{l}.linear_attn.dt_bias"),
        ]);
    // Multimodal checkpoints store the language model under this prefix. Their vision tower and the
    // multi-token-prediction layers are ignored.
    family.names.prefixes.push("model.language_model.");
    family.names.ignored_prefixes = vec!["mtp.", "model.visual."];
    Ok(family)
}

/// Reads the delta rule of a configuration.
fn read_rule(config: &Config) -> Result<DeltaRule> {
    Ok(DeltaRule {
        key_heads: config.size_or("linear_num_key_heads", 16)?,
        value_heads: config.size_or("linear_num_value_heads", 32)?,
        key_dim: config.size_or("linear_key_head_dim", 128)?,
        value_dim: config.size_or("linear_value_head_dim", 128)?,
        conv_kernel: config.size_or("linear_conv_kernel_dim", 4)?,
        activation: activation(config, "hidden_act", "silu")?,
        decay: Decay::PerHead,
        beta_scale: 1.0,
        norm: Norm::rms(config.number_or("rms_norm_eps", 1e-6)?),
        gate_activation: Activation::Silu,
        gate_rank: None,
    })
}

/// Returns which layers are linear: by `layer_types`, else all but every
/// `full_attention_interval`-th.
pub(super) fn linear_layers(config: &Config, depth: usize) -> Result<Vec<bool>> {
    let Some(kinds) = config.texts("layer_types")? else {
        let interval = config.size_or("full_attention_interval", 4)?.max(1);
        return Ok((0..depth).map(|layer| !(layer + 1).is_multiple_of(interval)).collect());
    };
    if kinds.len() != depth {
        return Err(config.bad("layer_types", "does not have one entry per layer"));
    }
    let one = |kind: &str| match kind {
        "linear_attention" => Ok(true),
        "full_attention" => Ok(false),
        other => Err(config.bad("layer_types", &format!("has a layer of unknown type `{other}`"))),
    };
    kinds.into_iter().map(one).collect()
}
