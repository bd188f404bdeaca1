//! Zamba 2: Mamba 2 layers, some of which first run a transformer block whose weights they share.

use super::mamba::{mamba2_names, min_time_step};
use super::{Family, activation};
use crate::config::Config;
use crate::error::Result;
use crate::names::{Names, StoredPart};
use crate::rope::rope;
use pellucid_engine::Architecture;
use pellucid_engine::architecture::{
    Attention, Dense, Embedding, GroupedNorm, Head, Layer, Mamba2, Modules, Norm, Recurrence, RopeStyle, SharedBlock,
};

pub(super) fn zamba2(config: &Config) -> Result<Family> {
    let (width, depth) = (config.size("hidden_size")?, config.size("num_hidden_layers")?);
    let norm = Norm::rms(config.number_or("rms_norm_eps", 1e-5)?);
    let bias = config.flag_or("add_bias_linear", false)?;
    let (heads, head_dim) =
        (config.size("num_attention_heads")?, 2 * width / config.size("num_attention_heads")?.max(1));
    let head_dim = config.size_or("attention_head_dim", head_dim)?;
    let rotates = config.flag_or("use_mem_rope", false)?;
    let rank = config.size_or("adapter_rank", 128)?;
    let attention = Attention {
        rope: rotates.then_some(0),
        scale: 1.0 / (head_dim as f32 / 2.0).sqrt(),
        adapter: config.flag_or("use_shared_attention_adapter", false)?.then_some(rank),
        ..Attention::plain(heads, config.size_or("num_key_value_heads", heads)?, head_dim)
    };
    let neurons = config.size_or("intermediate_size", 4 * width)?;
    let mlp = Dense {
        adapter: Some(rank),
        ..Dense::gated(neurons, activation(config, "hidden_act", "gelu")?).with_bias(bias)
    };
    let mamba = mamba(config, width, norm, bias)?;
    let hybrid = hybrid_layers(config, depth)?;
    let blocks = config.size_or("num_mem_blocks", 1)?.max(1);
    let layer = |index: usize| {
        let shared = hybrid.iter().position(|&layer| layer == index).map(|adapter| SharedBlock {
            // A shared block is stored with the first layer that uses it.
            block: hybrid[adapter % blocks.min(hybrid.len())],
            adapter,
            norm,
            attention: attention.clone(),
            mlp_norm: norm,
            mlp,
        });
        Layer { recurrence: Some(Recurrence::Mamba2(mamba.clone())), shared, ..Layer::empty(norm) }
    };
    let architecture = Architecture {
        family: config.model_type()?.into(),
        vocab: config.size("vocab_size")?,
        width,
        context: config.size_maybe("max_position_embeddings")?,
        embedding: Embedding::default(),
        layers: (0..depth).map(layer).collect(),
        final_norm: Some(norm),
        head: Head { tied: config.flag_or("tie_word_embeddings", true)?, ..Head::default() },
        ropes: if rotates { vec![rope(config, head_dim, RopeStyle::Halves)?] } else { vec![] },
        modules: Modules {
            layers: "model.layers".into(),
            embedding: Some("model.embed_tokens".into()),
            final_norm: Some("model.final_layernorm".into()),
            head: Some("lm_head".into()),
            ..Modules::default()
        },
    };
    Ok(Family { architecture, names: names(&mamba, neurons) })
}

fn mamba(config: &Config, width: usize, norm: Norm, bias: bool) -> Result<Mamba2> {
    let channels = config.size_or("mamba_expand", 2)? * width;
    let heads = config.size_or("n_mamba_heads", 8)?;
    let groups = config.size_or("mamba_ngroups", 1)?;
    Ok(Mamba2 {
        heads,
        head_dim: config.size_or("mamba_headdim", channels / heads.max(1))?,
        state_size: config.size_or("mamba_d_state", 64)?,
        groups,
        conv_kernel: config.size_or("mamba_d_conv", 4)?,
        conv_bias: true, // transformers ignores `use_conv_bias`
        bias,
        out_bias: bias,
        activation: pellucid_engine::architecture::Activation::Silu,
        dt_limits: min_time_step(config)?,
        norm: Some(GroupedNorm { norm: Norm { eps: 1e-5, ..norm }, groups, norm_before_gate: false }),
        in_scale: None,
        in_proj_multipliers: None,
    })
}

/// Indices of the layers that run a shared block.
fn hybrid_layers(config: &Config, depth: usize) -> Result<Vec<usize>> {
    let hybrid = match config.texts("layers_block_type")? {
        Some(kinds) => (0..kinds.len()).filter(|&layer| kinds[layer] == "hybrid").collect(),
        None if config.get("hybrid_layer_ids").is_some() => config.sizes("hybrid_layer_ids")?,
        None => vec![6, 12, 18, 24, 30, 36, 42, 47, 51],
    };
    if hybrid.iter().any(|&layer| layer >= depth) {
        return Err(config.bad("hybrid_layer_ids", "names a layer that the model does not have"));
    }
    Ok(hybrid)
}

fn names(mamba: &Mamba2, neurons: usize) -> Names {
    let block = |name: &str| format!("layers.{{s}}.shared_transformer.{name}");
    let adapter = |name: &str, step: usize| block(&format!("{name}_adapter_list.{{a}}.{step}"));
    let (fused, total) = (block("feed_forward.gate_up_proj"), 2 * neurons);
    let second = adapter("feed_forward.gate_up_proj", 1);
    let mut names = Names::new(&["model.", ""])
        .with(&[
            ("embed", "embed_tokens"),
            ("final_norm", "final_layernorm"),
            ("layers.{l}.attn.norm", "layers.{l}.input_layernorm"),
            ("layers.{l}.attn.norm", "layers.{l}.mamba_decoder.input_layernorm"),
            ("layers.{l}.shared_out", "layers.{l}.linear"),
        ])
        .with(&[
            ("shared.{s}.attn.norm", block("input_layernorm")),
            ("shared.{s}.mlp.norm", block("pre_ff_layernorm")),
            ("shared.{s}.attn.out", block("self_attn.o_proj")),
            ("shared.{s}.mlp.down", block("feed_forward.down_proj")),
        ])
        .with_part("shared.{s}.mlp.gate", &fused, StoredPart::rows(0, total))
        .with_part("shared.{s}.mlp.up", &fused, StoredPart::rows(neurons, total))
        .with_part("shared.{s}.mlp.gate.adapters.{a}.up", &second, StoredPart::rows(0, total))
        .with_part("shared.{s}.mlp.up.adapters.{a}.up", &second, StoredPart::rows(neurons, total))
        .without_prefix("head", "lm_head");
    for part in ["gate", "up"] {
        let module = format!("shared.{{s}}.mlp.{part}.adapters.{{a}}.down");
        names = names.with(&[(&module, adapter("feed_forward.gate_up_proj", 0))]);
    }
    for part in ["q", "k", "v"] {
        let module = format!("shared.{{s}}.attn.{part}");
        let adapters = format!("self_attn.linear_{part}");
        names = names.with(&[
            (module.as_str(), block(&format!("self_attn.{part}_proj"))),
            (&format!("{module}.adapters.{{a}}.down"), adapter(&adapters, 0)),
            (&format!("{module}.adapters.{{a}}.up"), adapter(&adapters, 1)),
        ]);
    }
    // Other layers that use a shared block may store a copy of it.
    names.ignored_infixes = vec![".shared_transformer."];
    let names = mamba2_names(names, "layers.{l}.mamba", mamba);
    mamba2_names(names, "layers.{l}.mamba_decoder.mamba", mamba)
}
