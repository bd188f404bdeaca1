//! Random recurrences. Normalized vectors have at least eight elements: with fewer, a norm is
//! nearly a step function.

use super::{activation, factor, maybe_norm, norm};
use pellucid_engine::architecture::{
    Decay, DeltaRule, GroupedNorm, LinearAttention, Lru, Mamba, Mamba2, Recurrence, ShortConv,
};
use proptest::prelude::*;

fn mamba() -> impl Strategy<Value = Mamba> {
    let sizes = (1usize..20, 8usize..12, 8usize..12, 1usize..5);
    (sizes, prop::bool::ANY, prop::bool::ANY, activation(), maybe_norm()).prop_map(
        |((inner_width, state, rank, conv_kernel), conv_bias, bias, activation, inner_norm)| Mamba {
            inner_width,
            // Without a norm, the state may be smaller.
            state_size: if inner_norm.is_some() { state } else { state - 7 },
            dt_rank: if inner_norm.is_some() { rank } else { rank - 7 },
            conv_kernel,
            conv_bias,
            bias,
            activation,
            inner_norm,
        },
    )
}

fn mamba2() -> impl Strategy<Value = Mamba2> {
    let sizes = (1usize..4, 1usize..4, 8usize..13, 1usize..9, 1usize..5);
    let biases = (prop::bool::ANY, prop::bool::ANY, prop::bool::ANY);
    let grouped = (norm(), prop::bool::ANY, prop::bool::ANY);
    let limits = prop_oneof![Just((0.0, f32::INFINITY)), Just((0.4, 0.9))];
    let factors = (factor(), prop::option::of(prop::array::uniform5(0.4f32..1.6)));
    (sizes, biases, activation(), limits, prop::option::of(grouped), factors).prop_map(
        |((groups, each, head_dim, state_size, conv_kernel), biases, activation, dt_limits, grouped, factors)| Mamba2 {
            heads: groups * each,
            head_dim,
            state_size,
            groups,
            conv_kernel,
            conv_bias: biases.0,
            bias: biases.1,
            out_bias: biases.2,
            activation,
            dt_limits,
            norm: grouped.map(|(norm, norm_before_gate, by_groups)| GroupedNorm {
                norm,
                groups: if by_groups { groups } else { 1 },
                norm_before_gate,
            }),
            in_scale: factors.0,
            in_proj_multipliers: factors.1,
        },
    )
}

fn delta_rule() -> impl Strategy<Value = DeltaRule> {
    let sizes = (1usize..4, 1usize..4, 8usize..11, 8usize..11, 1usize..5);
    let decay = prop_oneof![Just(Decay::PerHead), (1usize..6).prop_map(|rank| Decay::PerKeyChannel { rank })];
    let beta_scale = prop_oneof![Just(1.0f32), Just(2.0)];
    (sizes, activation(), decay, beta_scale, norm(), (activation(), prop::option::of(1usize..6))).prop_map(
        |((key_heads, each, key_dim, value_dim, conv_kernel), activation, decay, beta_scale, norm, gate)| DeltaRule {
            key_heads,
            // With per-key-channel decay, each value head has its own key head.
            value_heads: if decay == Decay::PerHead { key_heads * each } else { key_heads },
            key_dim,
            value_dim,
            conv_kernel,
            activation,
            decay,
            beta_scale,
            norm,
            gate_activation: gate.0,
            gate_rank: gate.1,
        },
    )
}

fn linear_attention() -> impl Strategy<Value = LinearAttention> {
    (1usize..5, 8usize..12, activation(), norm()).prop_map(|(heads, head_dim, activation, norm)| LinearAttention {
        heads,
        head_dim,
        activation,
        decay: (0..heads).map(|head| 1.0 - 0.6f32.powi(head as i32 + 1)).collect(),
        norm,
    })
}

fn lru() -> impl Strategy<Value = Lru> {
    (1usize..4, 1usize..8, 1usize..5, activation()).prop_map(|(blocks, each, conv_kernel, activation)| Lru {
        inner_width: blocks * each,
        blocks,
        conv_kernel,
        activation,
    })
}

pub fn recurrence() -> impl Strategy<Value = Recurrence> {
    prop_oneof![
        mamba().prop_map(Recurrence::Mamba),
        mamba2().prop_map(Recurrence::Mamba2),
        delta_rule().prop_map(Recurrence::DeltaRule),
        linear_attention().prop_map(Recurrence::LinearAttention),
        (1usize..5, prop::bool::ANY)
            .prop_map(|(conv_kernel, bias)| Recurrence::ShortConv(ShortConv { conv_kernel, bias })),
        lru().prop_map(Recurrence::Lru),
        (1usize..20).prop_map(Recurrence::Rwkv),
    ]
}
