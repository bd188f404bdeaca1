//! Random attention.

use super::{ROTATED, activation, factor, maybe_norm, norm};
use pellucid_engine::architecture::{
    Alibi, Attention, AttentionExperts, AttentionGate, DynamicMask, Latent, NormSpan, Temperature,
};
use proptest::prelude::*;

/// How queries, keys and values come about.
#[derive(Clone, Debug)]
enum Source {
    Plain,
    Latent(Latent),
    Experts(AttentionExperts),
}

fn source() -> impl Strategy<Value = Source> {
    let latent = (prop::option::of(8usize..14), 8usize..14, norm(), prop::bool::ANY, factor(), factor()).prop_map(
        |(query_rank, kv_rank, norm, bias, query_scale, kv_scale)| {
            Source::Latent(Latent { query_rank, kv_rank, rotated: ROTATED, norm, bias, query_scale, kv_scale })
        },
    );
    let experts = (1usize..5, 0usize..3)
        .prop_map(|(count, more)| Source::Experts(AttentionExperts { count, chosen: 1 + more % count }));
    prop_oneof![3 => Just(Source::Plain), 1 => latent, 1 => experts]
}

fn temperature() -> impl Strategy<Value = Temperature> {
    (0.05f32..0.5, 2u8..9, 0u8..2).prop_map(|(scale, span, offset)| Temperature {
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

/// Slopes that no power of two makes exact, with and without the rounding of one family.
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
        prop::option::weighted(0.3, temperature()),
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
        let (qkv_bias, unbiased_keys, out_bias, value_scale, clip) = made;
        let (qk_norm, qk_norm_span, qk_norm_after_rope, rope) = norms;
        let (window, chunk, alibi, mask) = reach;
        let (temperature, soft_cap, sinks) = scores;
        let (differential, out_norm, gate) = ends;
        // Pairs need partners among the key heads.
        let kv_heads = if differential.is_some() { 2 * kv_heads.div_ceil(2) } else { kv_heads };
        let (latent, experts) = match source {
            Source::Plain => (None, None),
            Source::Latent(latent) => (Some(latent), None),
            Source::Experts(experts) => (None, Some(experts)),
        };
        let heads = kv_heads * experts.map_or(group, |experts| experts.chosen);
        // What belongs to projected heads has no meaning for expanded ones.
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
            unbiased_keys,
            out_bias,
            value_scale: value_scale.filter(|_| plain),
            clip: clip.filter(|_| plain),
            qk_norm: qk_norm.filter(|_| plain),
            qk_norm_span,
            qk_norm_after_rope,
            rope: rope.map(|rope| if plain { rope } else { rope % 2 }),
            temperature,
            scale: 0.4,
            // A mask's numbers join the scores before a cap would bend them.
            soft_cap: soft_cap.filter(|_| mask.is_none()),
            window,
            chunk,
            alibi: alibi.map(|rounded| Alibi {
                slopes: (0..heads).map(|head| 0.83f32.powi(head as i32 + 4)).collect(),
                rounded,
            }),
            dynamic_mask: mask.map(|(bias, kept)| DynamicMask { bias, kept }),
            sinks,
            differential,
            out_norm,
            gate,
        }
    })
}
