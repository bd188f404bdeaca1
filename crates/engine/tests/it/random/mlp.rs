//! Random MLPs.

use super::{activation, factor, maybe_norm};
use pellucid_engine::architecture::{
    Activation, Dense, ExpertGroups, ExpertWeights, Experts, LatentExperts, Mlp, Routing, Scores, Shared,
};
use proptest::prelude::*;

/// Neurons as experts can have them.
fn plain_dense() -> impl Strategy<Value = Dense> {
    let width = 1usize..30;
    // The clamped gate has a meaning for neurons only.
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
        // Norms of a few numbers are steps rather than functions.
        width: if inner_norm.is_some() { dense.width + 8 } else { dense.width },
        inner_norm,
        gate_scale,
        down_scale,
        xielu: xielu && !dense.gated,
        ..dense
    })
}

fn routing() -> impl Strategy<Value = Routing> {
    let shares = |eps: f32, least: f32| ExpertWeights::Shares { eps, least };
    let shared = prop::sample::select(vec![
        ExpertWeights::Scores,
        ExpertWeights::SHARES,
        shares(0.1, 0.0),
        shares(1e-6, 0.7),
        ExpertWeights::Normed { power: 1.0 },
        ExpertWeights::Normed { power: 2.0 },
        ExpertWeights::Softmax,
        ExpertWeights::Sigmoid { shares: false },
    ]);
    // Raw scores may add up to nothing, so nothing divides by their sum.
    let free = prop::sample::select(vec![
        ExpertWeights::Scores,
        ExpertWeights::Softmax,
        ExpertWeights::Sigmoid { shares: false },
        ExpertWeights::Sigmoid { shares: true },
    ]);
    let pair = prop_oneof![
        2 => free.prop_map(|weights| (Scores::Raw, weights)),
        2 => (prop::sample::select(vec![Scores::Softmax, Scores::Sigmoid]), shared),
        1 => (0.01f32..0.5).prop_map(|tolerance| (Scores::SparseMixer { tolerance }, ExpertWeights::Scores)),
    ];
    let rest = (prop::option::weighted(0.3, 0.5f32..4.0), prop::bool::ANY, prop::bool::ANY);
    (pair, prop::bool::ANY, prop::option::weighted(0.4, 0.3f32..2.5), rest).prop_map(
        |((scores, weights), bias, scale, (soft_cap, correction, on_input))| {
            // The sparse mixer's weights come out of its choices: nothing else is said about them.
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

/// Groups of at least two experts, of which as many are kept as the choice needs.
fn groups() -> impl Strategy<Value = Option<(usize, usize, usize, bool)>> {
    prop::option::weighted(0.4, (1usize..4, 2usize..4, 0usize..4, prop::bool::ANY))
}

pub fn experts() -> impl Strategy<Value = Experts> {
    let numbers = (1usize..6, 0usize..5, groups());
    let shared = (dense(), prop::bool::ANY).prop_map(|(mlp, gated)| Shared { mlp, gated });
    let latent = (3usize..20, prop::bool::ANY).prop_map(|(width, bias)| LatentExperts { width, bias });
    let besides = (prop::option::of(shared), prop::option::weighted(0.3, latent), prop::bool::weighted(0.3), factor());
    (numbers, plain_dense(), routing(), besides).prop_map(
        |((count, more, groups), expert, mut routing, (shared, latent, sum_bias, scale))| {
            let mixer = matches!(routing.scores, Scores::SparseMixer { .. });
            let (mut count, mut chosen) = (count, 1 + more % count);
            if mixer {
                (count, chosen) = (count.max(2), 2);
            } else if let Some((groups, size, kept, by_best_two)) = groups {
                let kept = 1 + kept % groups;
                (count, chosen) = (groups * size, 1 + more % (kept * size));
                routing.groups = Some(ExpertGroups { count: groups, kept, by_best_two });
            }
            Experts { count, chosen, expert, routing, shared, latent, sum_bias, scale }
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
