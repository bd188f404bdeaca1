//! JetMoE: experts in the MLPs and in attention.

use super::Family;
use super::experts::{Mixture, NameSuffix, without_experts};
use super::llama::llama_like;
use crate::config::Config;
use crate::error::Result;
use crate::names::{Layout, Names, StoredPart};
use pellucid_engine::architecture::{Attention, AttentionExperts, ExpertWeights, Norm, Routing, Scores};
use serde_json::json;

/// JetMoE: attention experts have their own Q and output projections and share K and V; one bias is
/// added to the sum of the experts of each sublayer.
pub(super) fn jetmoe(config: &Config) -> Result<Family> {
    let config = &config.with_defaults([
        ("num_key_value_heads", json!(16)),
        ("num_local_experts", json!(8)),
        ("num_experts_per_tok", json!(2)),
        ("tie_word_embeddings", json!(true)),
    ]);
    let (count, top_k) = (config.size("num_local_experts")?, config.size("num_experts_per_tok")?);
    let (head_dim, kv_heads) = (config.size_or("kv_channels", 128)?, config.size("num_key_value_heads")?);
    let config = &config
        .with("head_dim", head_dim.into())
        .with("num_attention_heads", kv_heads.saturating_mul(top_k).into())
        .with("hidden_act", config.text("activation_function").unwrap_or("silu").into());
    let mut family = llama_like(config)?;
    // transformers uses its default epsilon here; only the final norm reads the configuration.
    let norm = Some(Norm::rms(1e-6));
    family.each(|layer| (layer.attn_norm, layer.mlp_norm) = (norm, norm));
    family.each_attention(|a| {
        let experts = Some(AttentionExperts { count, top_k });
        *a = Attention { experts, rope: Some(0), ..Attention::plain(kv_heads * top_k, kv_heads, head_dim) };
    });
    let mixture = Mixture {
        count,
        top_k,
        width: config.size("intermediate_size")?,
        routing: Routing::new(Scores::Raw, ExpertWeights::Softmax),
        shared_width: 0,
    };
    mixture.apply_to_all_layers(&mut family);
    family.each_experts(|experts| experts.sum_bias = true);
    family.architecture.modules.attention = Some("self_attention".into());
    family.names = names(family.names, mixture, kv_heads * head_dim);
    Ok(family)
}

/// K and V are fused; the experts of a layer are two tensors.
fn names(names: Names, mixture: Mixture, keys: usize) -> Names {
    let (kv, stacked) = ("layers.{l}.self_attention.kv_proj", StoredPart::default().stacked(mixture.count));
    let names = without_experts(names)
        .removing(&["layers.{l}.attn.q", "layers.{l}.attn.k", "layers.{l}.attn.v", "layers.{l}.attn.out"])
        .replacing("layers.{l}.mlp.router", "layers.{l}.mlp.router.layer")
        .with(&[("layers.{l}.attn.router", "layers.{l}.self_attention.experts.router.layer")])
        .with_bare(&[
            ("layers.{l}.attn.out.bias", "layers.{l}.self_attention.experts.bias"),
            ("layers.{l}.mlp.sum_bias", "layers.{l}.mlp.bias"),
        ])
        .with_part("layers.{l}.attn.k", kv, StoredPart::rows(0, 2 * keys))
        .with_part("layers.{l}.attn.v", kv, StoredPart::rows(keys, 2 * keys));
    let at = "layers.{l}.self_attention.experts";
    let names = names.with_part("layers.{l}.attn.experts.{e}.q", &format!("{at}.input_linear"), stacked).with_part(
        "layers.{l}.attn.experts.{e}.out",
        &format!("{at}.output_linear"),
        stacked,
    );
    mixture.fused_names(
        names,
        "layers.{l}.mlp.input_linear",
        "layers.{l}.mlp.output_linear",
        Layout::OutIn,
        NameSuffix::Weight,
    )
}
