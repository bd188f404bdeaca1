//! Random attention.

use super::{ROTATED, activation, factor, maybe_norm, norm};
use pellucid_engine::architecture::{
    Alibi, Attention, AttentionExperts, AttentionGate, DynamicMask, Latent, NormSpan, PositionScale,
};
use proptest::prelude::*;

/// The projection of queries, keys and values.
#[derive(Clone, Debug)]
enum Source {
    Plain,
    Latent(Latent),
    Experts(AttentionExperts),
}

fn source() -> impl Strategy<Value = Source> {
    let latent = (prop::option::of(8usize..14), 8usize..14, norm(), prop::bool::ANY, factor(), factor()).prop_map(
        |(query_rank, kv_rank, norm, bias, query_scale, kv_scale)| {
            Source::Latent(Latent { query_rank, kv_rank, rope_dim: ROTATED, norm, bias, query_scale, kv_scale })
        },
    );
    let experts = (1usize..5, 0usize..3)
        .prop_map(|(count, more)| Source::Experts(AttentionExperts { count, top_k: 1 + more % count }));
    prop_oneof![3 => Just(Source::Plain), 1 => latent, 1 => experts]
}

fn position_scale() -> impl Strategy<Value = PositionScale> {
    (0.05f32..0.5, 2u8..9, 0u8..2).prop_map(|(scale, span, offset)| PositionScale {
        scale,
        span: span as f32,
        offset: offset as f32,
    })
}

fn gate() -> impl Strategy<Value = AttentionGate> {
    (prop::bool::ANY, activation(), prop::bool::ANY).prop_map(|(per_head, activation, bias)| AttentionGate {
        per_head,
        activation,
        bias,
    })
}

fn span() -> impl Strategy<Value = NormSpan> {
    prop_oneof![Just(NormSpan::Head), Just(NormSpan::HeadGains), Just(NormSpan::All)]
}

/// ALiBi slopes that are not powers of two, exact or rounded to bf16 as one family does.
fn alibi() -> impl Strategy<Value = Option<f32>> {
    prop_oneof![Just(None), Just(Some(1.0)), Just(Some(0.37))]
}

pub fn attention() -> impl Strategy<Value = Attention> {
    let heads = (1usize..4, 1usize..4, (8usize..17, 4usize..20), source());
    let made = (prop::bool::ANY, prop::bool::ANY, prop::bool::ANY, factor(), prop::option::weighted(0.3, 0.2f32..1.5));
    let norms = (maybe_norm(), span(), prop::bool::ANY, prop::option::of(0usize..3));
    let reach = (
        prop::option::weighted(0.3, 1usize..9),
        prop::option::weighted(0.3, 1usize..40),
        prop::option::weighted(0.3, alibi()),
        prop::option::weighted(0.2, (prop::bool::ANY, 1usize..20)),
    );
    let scores = (
        prop::option::weighted(0.3, position_scale()),
        prop::option::weighted(0.3, 0.5f32..4.0),
        prop::bool::weighted(0.3),
    );
    let ends = (
        prop::option::weighted(0.2, 0.2f32..0.9),
        prop::option::weighted(0.3, norm()),
        prop::option::weighted(0.4, gate()),
    );
    (heads, made, norms, reach, scores, ends).prop_map(|(heads, made, norms, reach, scores, ends)| {
        let (kv_heads, group, (head_dim, value_dim), source) = heads;
        let (qkv_bias, no_key_bias, out_bias, value_scale, clip) = made;
        let (qk_norm, qk_norm_span, qk_norm_after_rope, rope) = norms;
        let (window, chunk, alibi, mask) = reach;
        let (position_scale, soft_cap, sinks) = scores;
        let (differential, out_norm, gate) = ends;
        // Differential attention pairs KV heads, so their number must be even.
        let kv_heads = if differential.is_some() { 2 * kv_heads.div_ceil(2) } else { kv_heads };
        let (latent, experts) = match source {
            Source::Plain => (None, None),
            Source::Latent(latent) => (Some(latent), None),
            Source::Experts(experts) => (None, Some(experts)),
        };
        let heads = kv_heads * experts.map_or(group, |experts| experts.top_k);
        // These options do not apply to latent attention, whose heads are expanded.
        let plain = latent.is_none();
        Attention {
            heads,
            kv_heads,
            head_dim,
            value_dim,
            latent,
            experts,
            adapter: None,
            qkv_bias: qkv_bias && plain,
            no_key_bias,
            out_bias,
            value_scale: value_scale.filter(|_| plain),
            clip: clip.filter(|_| plain),
            qk_norm: qk_norm.filter(|_| plain),
            qk_norm_span,
            qk_norm_after_rope,
            rope: rope.map(|rope| if plain { rope } else { rope % 2 }),
            position_scale,
            scale: 0.4,
            // A dynamic mask is added to the scores before a soft cap, so the two are not combined.
            soft_cap: soft_cap.filter(|_| mask.is_none()),
            window,
            chunk,
            alibi: alibi.map(|bf16_scale| Alibi {
                slopes: (0..heads).map(|head| 0.83f32.powi(head as i32 + 4)).collect(),
                bf16_scale,
            }),
            dynamic_mask: mask.map(|(bias, max_keys)| DynamicMask { bias, max_keys }),
            sinks,
            differential,
            out_norm,
            gate,
        }
    })
}
