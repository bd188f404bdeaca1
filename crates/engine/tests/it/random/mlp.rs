//! Random MLPs.

use super::{activation, factor, maybe_norm};
use pellucid_engine::architecture::{
    Activation, Dense, ExpertGroups, ExpertWeights, Experts, LatentExperts, Mlp, Routing, Scores, Shared,
};
use proptest::prelude::*;

/// An MLP with the options that experts allow.
fn plain_dense() -> impl Strategy<Value = Dense> {
    let width = 1usize..30;
    // The clamped GLU is defined for MLPs only.
    let activation = prop_oneof![9 => activation(), 1 => Just(Activation::ClampedGlu)];
    (width, activation, prop::bool::ANY, prop::bool::ANY, prop::bool::ANY).prop_map(
        |(width, activation, gated, bias, down_bias)| Dense {
            gated,
            bias,
            down_bias,
            ..Dense::plain(width, activation)
        },
    )
}

pub fn dense() -> impl Strategy<Value = Dense> {
    let inside = (maybe_norm(), factor(), factor(), prop::bool::weighted(0.3));
    (plain_dense(), inside).prop_map(|(dense, (inner_norm, gate_scale, down_scale, xielu))| Dense {
        // A norm over very few elements is nearly a step function.
        width: if inner_norm.is_some() { dense.width + 8 } else { dense.width },
        inner_norm,
        gate_scale,
        down_scale,
        xielu: xielu && !dense.gated,
        ..dense
    })
}

fn routing() -> impl Strategy<Value = Routing> {
    let shares = |eps: f32, min_divisor: f32| ExpertWeights::SumNormalized { eps, min_divisor };
    let shared = prop::sample::select(vec![
        ExpertWeights::Scores,
        ExpertWeights::SUM_NORMALIZED,
        shares(0.1, 0.0),
        shares(1e-6, 0.7),
        ExpertWeights::PNormNormalized { power: 1.0 },
        ExpertWeights::PNormNormalized { power: 2.0 },
        ExpertWeights::Softmax,
        ExpertWeights::Sigmoid { normalized: false },
    ]);
    // Raw scores may sum to zero, so their sum is not used as a divisor.
    let free = prop::sample::select(vec![
        ExpertWeights::Scores,
        ExpertWeights::Softmax,
        ExpertWeights::Sigmoid { normalized: false },
        ExpertWeights::Sigmoid { normalized: true },
    ]);
    let pair = prop_oneof![
        2 => free.prop_map(|weights| (Scores::Raw, weights)),
        2 => (prop::sample::select(vec![Scores::Softmax, Scores::Sigmoid]), shared),
        1 => (0.01f32..0.5).prop_map(|tolerance| (Scores::SparseMixer { tolerance }, ExpertWeights::Scores)),
    ];
    let rest = (prop::option::weighted(0.3, 0.5f32..4.0), prop::bool::ANY, prop::bool::ANY);
    (pair, prop::bool::ANY, prop::option::weighted(0.4, 0.3f32..2.5), rest).prop_map(
        |((scores, weights), bias, scale, (soft_cap, correction, on_input))| {
            // The sparse mixer defines its own weights: no correction, no scale.
            let mixer = matches!(scores, Scores::SparseMixer { .. });
            Routing {
                bias,
                soft_cap,
                scores,
                correction: correction && !mixer,
                groups: None,
                weights,
                scale: scale.filter(|_| !mixer).unwrap_or(1.0),
                on_input,
            }
        },
    )
}

/// `(groups, group size, kept groups, by_best_two)`; groups have at least two experts.
fn groups() -> impl Strategy<Value = Option<(usize, usize, usize, bool)>> {
    prop::option::weighted(0.4, (1usize..4, 2usize..4, 0usize..4, prop::bool::ANY))
}

pub fn experts() -> impl Strategy<Value = Experts> {
    let counts = (1usize..6, 0usize..5, groups());
    let shared = (dense(), prop::bool::ANY).prop_map(|(mlp, gated)| Shared { mlp, gated });
    let latent = (3usize..20, prop::bool::ANY).prop_map(|(width, bias)| LatentExperts { width, bias });
    let rest = (prop::option::of(shared), prop::option::weighted(0.3, latent), prop::bool::weighted(0.3), factor());
    (counts, plain_dense(), routing(), rest).prop_map(
        |((count, more, groups), expert, mut routing, (shared, latent, sum_bias, scale))| {
            let mixer = matches!(routing.scores, Scores::SparseMixer { .. });
            let (mut count, mut top_k) = (count, 1 + more % count);
            if mixer {
                (count, top_k) = (count.max(2), 2);
            } else if let Some((groups, size, top_groups, by_top_two)) = groups {
                let top_groups = 1 + top_groups % groups;
                (count, top_k) = (groups * size, 1 + more % (top_groups * size));
                routing.groups = Some(ExpertGroups { count: groups, top_groups, by_top_two });
            }
            Experts { count, top_k, expert, routing, shared, latent, sum_bias, scale }
        },
    )
}

pub fn mlp() -> impl Strategy<Value = Mlp> {
    prop_oneof![
        3 => dense().prop_map(Mlp::Dense),
        2 => experts().prop_map(Mlp::Experts),
        1 => (1usize..30).prop_map(|width| Mlp::ChannelMix { width }),
    ]
}
