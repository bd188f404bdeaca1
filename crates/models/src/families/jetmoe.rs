//! JetMoE: experts in attention, too.

use super::Family;
use super::experts::{Mixture, without_experts};
use super::llama::llama_like;
use crate::config::Config;
use crate::error::Result;
use crate::names::{Names, Part};
use pellucid_engine::architecture::{Attention, AttentionExperts, ExpertWeights, Norm, Routing, Scores};
use serde_json::json;

/// JetMoE: the chosen attention experts make queries and outputs, one bias is added to the sum of either sublayer's experts.
pub(super) fn jetmoe(config: &Config) -> Result<Family> {
    let config = &config.with_defaults([
        ("num_key_value_heads", json!(16)),
        ("num_local_experts", json!(8)),
        ("num_experts_per_tok", json!(2)),
        ("tie_word_embeddings", json!(true)),
    ]);
    let (count, chosen) = (config.size("num_local_experts")?, config.size("num_experts_per_tok")?);
    let (head_dim, kv_heads) = (config.size_or("kv_channels", 128)?, config.size("num_key_value_heads")?);
    let config = &config
        .with("head_dim", head_dim.into())
        .with("num_attention_heads", kv_heads.saturating_mul(chosen).into())
        .with("hidden_act", config.text("activation_function").unwrap_or("silu").into());
    let mut family = llama_like(config)?;
    // The class's own default, whatever the final norm has.
    let norm = Some(Norm::rms(1e-6));
    family.each(|layer| (layer.attn_norm, layer.mlp_norm) = (norm, norm));
    family.each_attention(|a| {
        let experts = Some(AttentionExperts { count, chosen });
        *a = Attention { experts, rope: Some(0), ..Attention::plain(kv_heads * chosen, kv_heads, head_dim) };
    });
    let mixture = Mixture {
        count,
        chosen,
        width: config.size("intermediate_size")?,
        routing: Routing::new(Scores::Raw, ExpertWeights::Softmax),
        shared: 0,
    };
    mixture.put_everywhere(&mut family);
    family.each_experts(|experts| experts.sum_bias = true);
    family.architecture.modules.attention = Some("self_attention".into());
    family.names = names(family.names, mixture, kv_heads * head_dim);
    Ok(family)
}

/// The names: keys and values as one, all experts of a layer as two tensors.
fn names(names: Names, mixture: Mixture, keys: usize) -> Names {
    let (kv, stacked) = ("layers.{l}.self_attention.kv_proj", Part::stacked(mixture.count));
    let names = without_experts(names)
        .without(&["layers.{l}.attn.q", "layers.{l}.attn.k", "layers.{l}.attn.v", "layers.{l}.attn.out"])
        .replacing("layers.{l}.mlp.router", "layers.{l}.mlp.router.layer")
        .with(&[("layers.{l}.attn.router", "layers.{l}.self_attention.experts.router.layer")])
        .with_bare(&[
            ("layers.{l}.attn.out.bias", "layers.{l}.self_attention.experts.bias"),
            ("layers.{l}.mlp.sum_bias", "layers.{l}.mlp.bias"),
        ])
        .with_part("layers.{l}.attn.k", kv, Part::rows(0, 2 * keys), false)
        .with_part("layers.{l}.attn.v", kv, Part::rows(keys, 2 * keys), false);
    let at = "layers.{l}.self_attention.experts";
    let names = names
        .with_part("layers.{l}.attn.experts.{e}.q", &format!("{at}.input_linear"), stacked, false)
        .with_part("layers.{l}.attn.experts.{e}.out", &format!("{at}.output_linear"), stacked, false);
    mixture.fused_names(names, "layers.{l}.mlp.input_linear", "layers.{l}.mlp.output_linear", false, false)
}
