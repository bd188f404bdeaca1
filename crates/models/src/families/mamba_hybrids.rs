//! Hybrids of Mamba and attention: Jamba, Bamba, Falcon H1, Granite 4, Nemotron H.

use super::experts::sigmoid_routing;
use super::granite_moe::granitemoeshared;
use super::llama::llama_like;
use super::llama_variants::granite;
use super::mamba::{mamba_names, mamba2_names, min_time_step, step_limits};
use super::{Family, activation};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::names::{Names, StoredPart};
use pellucid_engine::architecture::{
    Dense, Experts, GroupedNorm, LatentExperts, Layer, Mamba, Mamba2, Mlp, Norm, Recurrence, Routing, Shared,
};
use serde_json::json;

/// Jamba: Mamba with inner norms; attention without positions and experts every few layers.
pub(super) fn jamba(config: &Config) -> Result<Family> {
    let config = &config.with_defaults([("num_key_value_heads", json!(8))]);
    let mut family = llama_like(config)?;
    let (width, norm) = (config.size("hidden_size")?, Norm::rms(config.number_or("rms_norm_eps", 1e-6)?));
    let spec = Mamba {
        inner_width: config.size_or("mamba_expand", 2)? * width,
        state_size: config.size_or("mamba_d_state", 16)?,
        // Some configurations have "auto".
        dt_rank: config.size_maybe("mamba_dt_rank").ok().flatten().unwrap_or(width.div_ceil(16)),
        conv_kernel: config.size_or("mamba_d_conv", 4)?,
        conv_bias: config.flag_or("mamba_conv_bias", true)?,
        bias: config.flag_or("mamba_proj_bias", false)?,
        activation: activation(config, "hidden_act", "silu")?,
        inner_norm: Some(norm),
    };
    let (experts, top_k) = (config.size_or("num_experts", 16)?, config.size_or("num_experts_per_tok", 2)?);
    let every = |period: &str, offset: &str, default: (usize, usize)| -> Result<(usize, usize)> {
        Ok((config.size_or(period, default.0)?.max(1), config.size_or(offset, default.1)?))
    };
    let attends = every("attn_layer_period", "attn_layer_offset", (8, 4))?;
    let sparse = every("expert_layer_period", "expert_layer_offset", (2, 1))?;
    family.each_attention(|a| a.rope = None);
    family.architecture.ropes.clear();
    for (index, layer) in family.architecture.layers.iter_mut().enumerate() {
        if index % attends.0 != attends.1 {
            replace_attention(layer, Recurrence::Mamba(spec.clone()));
        }
        if let Some(Mlp::Dense(expert)) = layer.mlp
            && index % sparse.0 == sparse.1
            && experts > 1
        {
            layer.mlp = Some(Mlp::Experts(Experts::new(experts, top_k, expert, Routing::softmax(false))));
        }
    }
    let names = std::mem::take(&mut family.names)
        .replacing("final_norm", "final_layernorm")
        .replacing("layers.{l}.mlp.norm", "layers.{l}.pre_ff_layernorm")
        .with(&[("layers.{l}.mlp.router", "layers.{l}.feed_forward.router")]);
    let names = per_expert_names(rename_mlp(names, "feed_forward"), "layers.{l}.feed_forward.experts.{e}");
    family.names = mamba_names(names, "layers.{l}.mamba", &spec);
    family.architecture.modules.mlp = Some("feed_forward".into());
    family.architecture.modules.final_norm = Some("model.final_layernorm".into());
    Ok(family)
}

/// Bamba: Mamba 2, with rotary attention in the layers of `attn_layer_indices`.
pub(super) fn bamba(config: &Config) -> Result<Family> {
    let config = &config.with_defaults([
        ("num_key_value_heads", json!(8)),
        ("rms_norm_eps", json!(1e-5)),
        ("partial_rotary_factor", json!(0.5)),
    ]);
    let mut family = llama_like(config)?;
    let (attention, mlp) = (config.flag_or("attention_bias", false)?, config.flag_or("mlp_bias", false)?);
    family.set_attention_bias(attention);
    family.each_dense(|dense| *dense = dense.with_bias(mlp));
    let spec = mamba2_spec(config, config.size_or("mamba_n_groups", 1)?)?;
    let attends = config.sizes("attn_layer_indices")?;
    for (index, layer) in family.architecture.layers.iter_mut().enumerate() {
        if !attends.contains(&index) {
            replace_attention(layer, Recurrence::Mamba2(spec.clone()));
        }
    }
    let names = std::mem::take(&mut family.names)
        .replacing("final_norm", "final_layernorm")
        .replacing("layers.{l}.mlp.norm", "layers.{l}.pre_ff_layernorm");
    family.names = mamba2_names(rename_mlp(names, "feed_forward"), "layers.{l}.mamba", &spec);
    family.architecture.modules.mlp = Some("feed_forward".into());
    family.architecture.modules.final_norm = Some("model.final_layernorm".into());
    Ok(family)
}

/// Falcon H1: Mamba 2 and attention in parallel in every layer, with many multipliers (µP).
pub(super) fn falcon_h1(config: &Config) -> Result<Family> {
    let config = &config.with_defaults([("num_key_value_heads", json!(8)), ("rms_norm_eps", json!(1e-5))]);
    let mut family = llama_like(config)?;
    let (attention, mlp) = (config.flag_or("attention_bias", false)?, config.flag_or("mlp_bias", false)?);
    let by = |key: &str| config.number_or(key, 1.0);
    let (neurons, scores) = (read_pair(config, "mlp_multipliers")?, by("key_multiplier")?);
    let mut spec = mamba2_spec(config, config.size_or("mamba_n_groups", 1)?)?;
    spec.norm = if config.flag_or("mamba_rms_norm", false)? {
        spec.norm.map(|norm| GroupedNorm { groups: spec.groups, ..norm })
    } else {
        None
    };
    if let Some(norm) = &mut spec.norm {
        norm.norm_before_gate = config.flag_or("mamba_norm_before_gate", true)?;
    }
    spec.out_bias = config.flag_or("projectors_bias", false)?;
    spec.in_scale = Some(by("ssm_in_multiplier")?);
    if config.get("ssm_multipliers").is_some() {
        let list = config.numbers("ssm_multipliers")?;
        spec.in_proj_multipliers =
            Some(list.try_into().map_err(|_| config.bad("ssm_multipliers", "does not have five numbers"))?);
    }
    family.set_attention_bias(attention);
    family.each_attention(|a| a.scale *= scores);
    family.each_dense(|dense| {
        *dense = Dense { gate_scale: Some(neurons[0]), down_scale: Some(neurons[1]), ..dense.with_bias(mlp) };
    });
    let (attn_in, attn_out, mixer_out) =
        (by("attention_in_multiplier")?, by("attention_out_multiplier")?, by("ssm_out_multiplier")?);
    family.each(|layer| {
        layer.recurrence = Some(Recurrence::Mamba2(spec.clone()));
        (layer.attn_in_scale, layer.attn_multiplier, layer.mixer_multiplier) =
            (Some(attn_in), Some(attn_out), Some(mixer_out));
    });
    family.architecture.embedding.scale = Some(by("embedding_multiplier")?);
    family.architecture.head.scale = Some(by("lm_head_multiplier")?);
    let names = std::mem::take(&mut family.names)
        .replacing("final_norm", "final_layernorm")
        .replacing("layers.{l}.mlp.norm", "layers.{l}.pre_ff_layernorm");
    family.names = mamba2_names(rename_mlp(names, "feed_forward"), "layers.{l}.mamba", &spec);
    // The attention module's input and output are without multipliers, so it is not an alias of
    // these sites.
    family.architecture.modules.attention = None;
    family.architecture.modules.mlp = Some("feed_forward".into());
    family.architecture.modules.embedding = Some("model.embed_tokens".into());
    family.architecture.modules.final_norm = Some("model.final_layernorm".into());
    Ok(family)
}

/// Granite 4: Granite with Mamba 2 or attention layers; routed and shared experts, or only a dense
/// MLP.
pub(super) fn granitemoehybrid(config: &Config) -> Result<Family> {
    let config = &config.with_defaults([("num_local_experts", json!(8)), ("rms_norm_eps", json!(1e-6))]);
    let shared = config.size_or("shared_intermediate_size", 1024)?;
    let named = config.with("mlp_bias", false.into());
    let mut family = if config.size_or("num_local_experts", 0)? > 0 {
        granitemoeshared(&named.with("shared_intermediate_size", shared.into()))?
    } else {
        let mut family = granite(&named.with("intermediate_size", shared.into()))?;
        let fused = "layers.{l}.shared_mlp.input_linear";
        family.names = family
            .names
            .removing(&["layers.{l}.mlp.gate", "layers.{l}.mlp.up"])
            .with_part("layers.{l}.mlp.gate", fused, StoredPart::rows(0, 2 * shared))
            .with_part("layers.{l}.mlp.up", fused, StoredPart::rows(shared, 2 * shared))
            .replacing("layers.{l}.mlp.down", "layers.{l}.shared_mlp.output_linear");
        family
    };
    if config.text("position_embedding_type") != Some("rope") {
        family.each_attention(|a| a.rope = None);
        family.architecture.ropes.clear();
    }
    let depth = family.architecture.layers.len();
    let kinds = match config.texts("layer_types")? {
        Some(kinds) => Some(kinds),
        None => config.texts("layers_block_type")?,
    };
    let kinds = kinds.unwrap_or_else(|| vec!["mamba"; depth]);
    if kinds.len() != depth {
        return Err(config.bad("layer_types", "does not have one entry per layer"));
    }
    let spec = mamba2_spec(config, config.size_or("mamba_n_groups", 1)?)?;
    for (layer, kind) in family.architecture.layers.iter_mut().zip(kinds) {
        match kind {
            "attention" | "full_attention" => {}
            "mamba" | "linear_attention" => replace_attention(layer, Recurrence::Mamba2(spec.clone())),
            other => return Err(config.bad("layer_types", &format!("has a layer of unknown type `{other}`"))),
        }
        layer.mixer_multiplier = layer.attn_multiplier;
    }
    family.names = mamba2_names(std::mem::take(&mut family.names), "layers.{l}.mamba", &spec);
    family.architecture.modules.mlp = None;
    Ok(family)
}

/// Nemotron H: each layer is a single sublayer: Mamba 2, attention without positions, an MLP or
/// experts.
pub(super) fn nemotron_h(config: &Config) -> Result<Family> {
    let config = &config.with_defaults([
        ("head_dim", json!(128)),
        ("num_key_value_heads", json!(8)),
        ("moe_intermediate_size", json!(7688)),
        ("moe_shared_expert_intermediate_size", json!(7688)),
    ]);
    let older = [
        ("n_groups", "mamba_n_groups"),
        ("conv_kernel", "mamba_d_conv"),
        ("time_step_min", "mamba_dt_min"),
        ("use_conv_bias", "mamba_conv_bias"),
    ];
    let config = &older.into_iter().fold(config.clone(), |config, (key, older)| match config.get(older).cloned() {
        Some(value) => config.with(key, value),
        None => config,
    });
    let kinds = nemotron_layers(config)?;
    let eps = config.number_or("layer_norm_epsilon", 1e-5)?;
    let named = config
        .with("num_hidden_layers", kinds.len().into())
        .with("rms_norm_eps", eps.into())
        .with("hidden_act", config.text("mlp_hidden_act").unwrap_or("relu2").into());
    let mut family = llama_like(&named)?;
    family.architecture.ropes.clear();
    let (norm, groups) = (Norm::rms(eps), config.size_or("n_groups", 8)?);
    let (bias, mlp_bias) = (config.flag_or("use_bias", false)?, config.flag_or("mlp_bias", false)?);
    let spec = Mamba2 {
        heads: config.size_or("mamba_num_heads", 128)?,
        head_dim: config.size_or("mamba_head_dim", 64)?,
        state_size: config.size_or("ssm_state_size", 128)?,
        groups,
        conv_kernel: config.size_or("conv_kernel", 4)?,
        conv_bias: config.flag_or("use_conv_bias", true)?,
        bias,
        out_bias: bias,
        activation: activation(config, "mamba_hidden_act", "silu")?,
        dt_limits: min_time_step(config)?,
        norm: Some(GroupedNorm { norm, groups, norm_before_gate: false }),
        in_scale: None,
        in_proj_multipliers: None,
    };
    for (layer, kind) in family.architecture.layers.iter_mut().zip(&kinds) {
        let Some(Mlp::Dense(dense)) = layer.mlp else { continue };
        let plain = Dense::plain(dense.width, dense.activation).with_bias(mlp_bias);
        let attention = layer.attention.take().map(|a| pellucid_engine::architecture::Attention { rope: None, ..a });
        *layer = Layer::empty(norm);
        match kind.as_str() {
            "mamba" | "linear_attention" => layer.recurrence = Some(Recurrence::Mamba2(spec.clone())),
            "attention" | "full_attention" => layer.attention = attention,
            "mlp" => (layer.mlp_norm, layer.mlp) = (Some(norm), Some(Mlp::Dense(plain))),
            "moe" => (layer.mlp_norm, layer.mlp) = (Some(norm), Some(nemotron_experts(config, plain)?)),
            other => return Err(config.bad("layers_block_type", &format!("has a layer of unknown type `{other}`"))),
        }
        if layer.mlp.is_some() {
            layer.attn_norm = None;
        }
    }
    let at = |name: &str| format!("layers.{{l}}.mixer.{name}");
    let names = Names::new(&["backbone.", "model."])
        .with(&[
            ("embed", "embeddings"),
            ("embed", "embed_tokens"),
            ("final_norm", "norm_f"),
            ("layers.{l}.attn.norm", "layers.{l}.norm"),
            ("layers.{l}.mlp.norm", "layers.{l}.norm"),
        ])
        .with(&[
            ("layers.{l}.attn.q", at("q_proj")),
            ("layers.{l}.attn.k", at("k_proj")),
            ("layers.{l}.attn.v", at("v_proj")),
            ("layers.{l}.attn.out", at("o_proj")),
            ("layers.{l}.mlp.up", at("up_proj")),
            ("layers.{l}.mlp.down", at("down_proj")),
            ("layers.{l}.mlp.router", at("gate")),
            ("layers.{l}.mlp.latent_in", at("fc1_latent_proj")),
            ("layers.{l}.mlp.latent_out", at("fc2_latent_proj")),
            ("layers.{l}.mlp.shared.up", at("shared_experts.up_proj")),
            ("layers.{l}.mlp.shared.down", at("shared_experts.down_proj")),
            ("layers.{l}.mlp.experts.{e}.up", at("experts.{e}.up_proj")),
            ("layers.{l}.mlp.experts.{e}.down", at("experts.{e}.down_proj")),
        ])
        .with_bare(&[("layers.{l}.mlp.correction", at("gate.e_score_correction_bias"))])
        .without_prefix("head", "lm_head");
    family.names = mamba2_names(names, "layers.{l}.mixer", &spec);
    family.names.ignored_prefixes = vec!["mtp."];
    family.architecture.modules = pellucid_engine::architecture::Modules {
        layers: "model.layers".into(),
        final_norm: Some("model.norm_f".into()),
        head: Some("lm_head".into()),
        ..Default::default()
    };
    Ok(family)
}

/// Reads the type of each layer of Nemotron H, from a list or the older `hybrid_override_pattern`.
fn nemotron_layers(config: &Config) -> Result<Vec<String>> {
    for key in ["layers_block_type", "layer_types"] {
        if let Some(kinds) = config.texts(key)? {
            return Ok(kinds.into_iter().map(String::from).collect());
        }
    }
    let pattern = config.text("hybrid_override_pattern").unwrap_or("ME*-");
    let kind = |letter: char| match letter {
        'M' => Ok("mamba"),
        '*' => Ok("attention"),
        '-' => Ok("mlp"),
        'E' => Ok("moe"),
        other => Err(config.bad("hybrid_override_pattern", &format!("has the unknown letter `{other}`"))),
    };
    pattern.chars().map(|letter| kind(letter).map(String::from)).collect()
}

fn nemotron_experts(config: &Config, plain: Dense) -> Result<Mlp> {
    let count = config.size_or("n_routed_experts", 8)?;
    let (normalize, scale) = (config.flag_or("norm_topk_prob", true)?, config.number_or("routed_scaling_factor", 1.0)?);
    let routing = sigmoid_routing(config, normalize, scale)?;
    let expert = Dense { width: config.size("moe_intermediate_size")?, bias: false, down_bias: false, ..plain };
    let shared = Dense { width: config.size("moe_shared_expert_intermediate_size")?, ..plain };
    let latent = config.size_maybe("moe_latent_size")?;
    Ok(Mlp::Experts(Experts {
        shared: Some(Shared { mlp: shared, gated: false }),
        latent: latent.map(|width| LatentExperts { width, bias: plain.bias }),
        ..Experts::new(count, config.size_or("num_experts_per_tok", 2)?, expert, routing)
    }))
}

/// Reads Mamba 2 from a hybrid's configuration.
fn mamba2_spec(config: &Config, groups: usize) -> Result<Mamba2> {
    let width = config.size("hidden_size")?;
    let channels = match config.size_maybe("mamba_d_ssm")? {
        Some(channels) => channels,
        None => (config.number_or("mamba_expand", 2.0)? * width as f32) as usize,
    };
    let heads = config.size_or("mamba_n_heads", 128)?;
    // Some configurations have "auto".
    let head_dim = config.size_maybe("mamba_d_head").ok().flatten().unwrap_or(channels / heads.max(1));
    if heads * head_dim != channels {
        return Err(Error::unsupported(
            format!("{heads} heads of {head_dim} (`mamba_n_heads`, `mamba_d_head`) do not make {channels} channels"),
            "correct config.json",
        ));
    }
    let norm = Norm::rms(config.number_or("rms_norm_eps", 1e-5)?);
    let bias = config.flag_or("mamba_proj_bias", false)?;
    Ok(Mamba2 {
        heads,
        head_dim,
        state_size: config.size_or("mamba_d_state", 256)?,
        groups,
        conv_kernel: config.size_or("mamba_d_conv", 4)?,
        conv_bias: config.flag_or("mamba_conv_bias", true)?,
        bias,
        out_bias: bias,
        activation: activation(config, "hidden_act", "silu")?,
        dt_limits: step_limits(config)?,
        norm: Some(GroupedNorm { norm, groups: 1, norm_before_gate: false }),
        in_scale: None,
        in_proj_multipliers: None,
    })
}

/// Replaces the attention of a layer by a recurrence.
pub(super) fn replace_attention(layer: &mut Layer, recurrence: Recurrence) {
    (layer.attention, layer.recurrence) = (None, Some(recurrence));
}

fn read_pair(config: &Config, key: &str) -> Result<[f32; 2]> {
    if config.get(key).is_none() {
        return Ok([1.0, 1.0]);
    }
    config.numbers(key)?.try_into().map_err(|_| config.bad(key, "does not have two numbers"))
}

/// Replaces the module name of Llama's MLP.
pub(super) fn rename_mlp(names: Names, module: &str) -> Names {
    let at = |part: &str| format!("layers.{{l}}.{module}.{part}_proj");
    names
        .replacing("layers.{l}.mlp.gate", &at("gate"))
        .replacing("layers.{l}.mlp.up", &at("up"))
        .replacing("layers.{l}.mlp.down", &at("down"))
}

/// Adds the names of experts stored one by one, with Llama's projection names.
fn per_expert_names(names: Names, at: &str) -> Names {
    names.with(&[
        ("layers.{l}.mlp.experts.{e}.gate", format!("{at}.gate_proj")),
        ("layers.{l}.mlp.experts.{e}.up", format!("{at}.up_proj")),
        ("layers.{l}.mlp.experts.{e}.down", format!("{at}.down_proj")),
    ])
}
