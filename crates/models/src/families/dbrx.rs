//! DBRX: layer norms without biases, clipped and fused QKV, experts with normalized weights.

use super::experts::{Mixture, expert};
use super::llama::llama_like;
use super::{Family, modules};
use crate::config::Config;
use crate::error::Result;
use crate::names::{Layout, Names, StoredPart};
use pellucid_engine::architecture::{ExpertWeights, Norm, Routing, Scores};
use serde_json::json;

/// DBRX.
pub(super) fn dbrx(config: &Config) -> Result<Family> {
    let filled = config.with_defaults([("attn_config", json!({})), ("ffn_config", json!({}))]);
    let part = |key: &str| filled.part(key).ok_or_else(|| config.bad(key, "is not an object"));
    let attention = part("attn_config")?.with_defaults([("kv_n_heads", json!(1))]);
    let ffn = part("ffn_config")?.with_defaults([
        ("ffn_hidden_size", json!(3584)),
        ("moe_num_experts", json!(4)),
        ("moe_top_k", json!(1)),
        ("moe_normalize_expert_weights", json!(1.0)),
    ]);
    let activation = ffn.part("ffn_act_fn").and_then(|act| act.text("name").map(String::from));
    let named = config
        .with("hidden_size", config.size("d_model")?.into())
        .with("num_hidden_layers", config.size("n_layers")?.into())
        .with("num_attention_heads", config.size("n_heads")?.into())
        .with("num_key_value_heads", attention.size("kv_n_heads")?.into())
        .with("max_position_embeddings", config.size_or("max_seq_len", 2048)?.into())
        .with("intermediate_size", ffn.size("ffn_hidden_size")?.into())
        .with("hidden_act", activation.unwrap_or_else(|| "silu".into()).into())
        .with_defaults([("rope_theta", json!(attention.number_or("rope_theta", 10_000.0)?))]);
    let mut family = llama_like(&named)?;
    family.set_norms(Norm { bias: false, ..Norm::layer(1e-5) });
    let clip = attention.number_maybe("clip_qkv")?;
    family.each_attention(|a| a.clip = clip);
    let weights = match ffn.number_maybe("moe_normalize_expert_weights")? {
        Some(power) => ExpertWeights::PNormNormalized { power },
        None => ExpertWeights::Scores,
    };
    let mixture = Mixture {
        count: ffn.size("moe_num_experts")?,
        top_k: ffn.size("moe_top_k")?,
        width: ffn.size("ffn_hidden_size")?,
        routing: Routing::new(Scores::Softmax, weights),
        shared_width: 0,
    };
    mixture.apply_to_all_layers(&mut family);
    family.architecture.modules =
        modules("transformer", "blocks", "norm_attn_norm.attn", "ffn", "wte", "norm_f", "lm_head");
    family.names = names(&family, mixture.count);
    Ok(family)
}

/// QKV are fused; the experts of a layer are concatenated along the rows.
fn names(family: &Family, count: usize) -> Names {
    let attention = family.architecture.layers.iter().find_map(|layer| layer.attention.as_ref());
    let (q, k) = attention.map_or((0, 0), |a| (a.heads * a.head_dim, a.kv_heads * a.head_dim));
    let (qkv, total) = ("blocks.{l}.norm_attn_norm.attn.Wqkv", q + 2 * k);
    let (experts, part) = ("blocks.{l}.ffn.experts.mlp", StoredPart::default().concatenated(count));
    Names::new(&["transformer.", ""])
        .with(&[
            ("embed", "wte"),
            ("final_norm", "norm_f"),
            ("layers.{l}.attn.norm", "blocks.{l}.norm_attn_norm.norm_1"),
            ("layers.{l}.attn.out", "blocks.{l}.norm_attn_norm.attn.out_proj"),
            ("layers.{l}.mlp.norm", "blocks.{l}.norm_attn_norm.norm_2"),
            ("layers.{l}.mlp.router", "blocks.{l}.ffn.router.layer"),
        ])
        .with_part("layers.{l}.attn.q", qkv, StoredPart::rows(0, total))
        .with_part("layers.{l}.attn.k", qkv, StoredPart::rows(q, total))
        .with_part("layers.{l}.attn.v", qkv, StoredPart::rows(q + k, total))
        .with_bare_part(&expert("gate"), &format!("{experts}.w1"), part, Layout::OutIn)
        .with_bare_part(&expert("up"), &format!("{experts}.v1"), part, Layout::OutIn)
        .with_bare_part(&expert("down"), &format!("{experts}.w2"), part, Layout::InOut)
        .without_prefix("head", "lm_head")
}
