//! Coverage of the random architectures: each field has a non-default value in some of them.

use pellucid_engine::Architecture;
use pellucid_engine::architecture::{
    AbsolutePositions, Attention, Decay, Dense, ExpertWeights, Experts, Layer, LongRope, Mlp, NormSpan, Recurrence,
    Scores, Skip,
};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

type Check<T> = (&'static str, fn(&T) -> bool);

/// Draws 64 architectures, as many as a property test does, with a fixed seed.
fn drawn(strategy: impl Strategy<Value = Architecture>) -> Vec<Architecture> {
    let mut runner = TestRunner::deterministic();
    (0..64).map(|_| strategy.new_tree(&mut runner).expect("an architecture").current()).collect()
}

fn assert_all_drawn<T>(among: &[&T], checks: &[Check<T>]) {
    for (what, has) in checks {
        let count = among.iter().filter(|one| has(one)).count();
        assert!(count >= 2, "only {count} of {} have {what}", among.len());
        assert!(count < among.len(), "all {count} have {what}");
    }
}

#[test]
fn every_field_of_attention_is_drawn() {
    let drawn = drawn(super::architecture(crate::architectures::one_attention()));
    let attention: Vec<&Attention> =
        drawn.iter().flat_map(|a| &a.layers).filter_map(|l| l.attention.as_ref()).collect();
    let checks: &[Check<Attention>] = &[
        ("grouped heads", |a| a.heads > a.kv_heads),
        ("latent heads", |a| a.latent.is_some()),
        ("latent queries", |a| a.latent.is_some_and(|l| l.query_rank.is_some())),
        ("a latent scale", |a| a.latent.is_some_and(|l| l.query_scale.or(l.kv_scale).is_some())),
        ("experts", |a| a.experts.is_some()),
        ("several experts", |a| a.experts.is_some_and(|e| e.top_k > 1)),
        ("unbiased keys", |a| a.qkv_bias && a.no_key_bias),
        ("a value scale", |a| a.value_scale.is_some()),
        ("a clip", |a| a.clip.is_some()),
        ("a norm of each head", |a| a.qk_norm.is_some() && a.qk_norm_span == NormSpan::Head),
        ("gains for each head", |a| a.qk_norm.is_some() && a.qk_norm_span == NormSpan::HeadGains),
        ("a norm of all heads", |a| a.qk_norm.is_some() && a.qk_norm_span == NormSpan::All),
        ("a norm after rotation", |a| a.qk_norm.is_some() && a.qk_norm_after_rope && a.rope.is_some()),
        ("a position scale", |a| a.position_scale.is_some()),
        ("a window", |a| a.window.is_some()),
        ("chunks", |a| a.chunk.is_some()),
        ("exact slopes", |a| a.alibi.as_ref().is_some_and(|s| s.bf16_scale.is_none())),
        ("rounded slopes", |a| a.alibi.as_ref().is_some_and(|s| s.bf16_scale.is_some())),
        ("a mask that drops keys", |a| a.dynamic_mask.is_some_and(|m| m.max_keys < 15)),
        ("sinks", |a| a.sinks),
        ("pairs", |a| a.differential.is_some()),
        ("a norm of the outputs", |a| a.out_norm.is_some() && a.differential.is_none()),
        ("a gate for each head", |a| a.gate.is_some_and(|g| g.per_head)),
        ("a gate for each coordinate", |a| a.gate.is_some_and(|g| !g.per_head)),
    ];
    assert_all_drawn(&attention, checks);
}

#[test]
fn every_field_of_experts_is_drawn() {
    let drawn = drawn(super::architecture(crate::architectures::one_mixture()));
    let mlps = drawn.iter().flat_map(|a| &a.layers).filter_map(|l| l.mlp.as_ref());
    let experts: Vec<&Experts> = mlps.filter_map(|m| if let Mlp::Experts(e) = m { Some(e) } else { None }).collect();
    let checks: &[Check<Experts>] = &[
        ("raw scores", |e| e.routing.scores == Scores::Raw),
        ("softmax", |e| e.routing.scores == Scores::Softmax),
        ("sigmoid", |e| e.routing.scores == Scores::Sigmoid),
        ("the sparse mixer", |e| matches!(e.routing.scores, Scores::SparseMixer { .. })),
        ("scores as weights", |e| e.routing.weights == ExpertWeights::Scores),
        ("shares", |e| matches!(e.routing.weights, ExpertWeights::SumNormalized { .. })),
        ("a power", |e| matches!(e.routing.weights, ExpertWeights::PNormNormalized { .. })),
        ("softmax of the chosen", |e| e.routing.weights == ExpertWeights::Softmax),
        ("sigmoid of the chosen", |e| matches!(e.routing.weights, ExpertWeights::Sigmoid { .. })),
        ("groups", |e| e.routing.groups.is_some_and(|g| g.top_groups < g.count && !g.by_top_two)),
        ("groups by two", |e| e.routing.groups.is_some_and(|g| g.top_groups < g.count && g.by_top_two)),
        ("a correction", |e| e.routing.correction),
        ("a cap", |e| e.routing.soft_cap.is_some()),
        ("weights on the input", |e| e.routing.on_input && e.top_k > 1),
        ("a scale of the weights", |e| e.routing.scale != 1.0),
        ("a shared MLP", |e| e.shared.is_some_and(|s| !s.gated)),
        ("a gated shared MLP", |e| e.shared.is_some_and(|s| s.gated)),
        ("a latent stream", |e| e.latent.is_some()),
        ("a bias of the sum", |e| e.sum_bias),
        ("a scale of the whole", |e| e.scale.is_some()),
        ("experts without a gate", |e| !e.expert.gated),
    ];
    assert_all_drawn(&experts, checks);
}

#[test]
fn every_kind_of_recurrence_and_layer_is_drawn() {
    let of_recurrences = drawn(super::architecture(crate::architectures::one_recurrence()));
    let layers: Vec<&Layer> = of_recurrences.iter().flat_map(|a| &a.layers).collect();
    let checks: &[Check<Layer>] = &[
        ("Mamba", |l| matches!(l.recurrence, Some(Recurrence::Mamba(_)))),
        ("Mamba 2", |l| matches!(l.recurrence, Some(Recurrence::Mamba2(_)))),
        ("the delta rule", |l| matches!(&l.recurrence, Some(Recurrence::DeltaRule(d)) if d.decay == Decay::PerHead)),
        ("decays by key", |l| matches!(&l.recurrence, Some(Recurrence::DeltaRule(d)) if d.decay != Decay::PerHead)),
        ("linear attention", |l| matches!(l.recurrence, Some(Recurrence::LinearAttention(_)))),
        ("a short convolution", |l| matches!(l.recurrence, Some(Recurrence::ShortConv(_)))),
        ("an LRU", |l| matches!(l.recurrence, Some(Recurrence::Lru(_)))),
        ("RWKV", |l| matches!(l.recurrence, Some(Recurrence::Rwkv(_)))),
        ("attention in parallel", |l| l.attention.is_some()),
        ("no MLP", |l| l.mlp.is_none()),
        ("a multiplier", |l| l.mixer_multiplier.is_some()),
    ];
    assert_all_drawn(&layers, checks);

    let fed = drawn(super::architecture(crate::architectures::one_shared_block()));
    let checks: &[Check<Layer>] = &[
        ("a block of the first layer's", |l| l.shared.as_ref().is_some_and(|s| s.adapter == 1)),
        ("adapters of attention", |l| l.shared.as_ref().is_some_and(|s| s.attention.adapter.is_some())),
        ("adapters of the MLP", |l| l.shared.as_ref().is_some_and(|s| s.mlp.adapter.is_some())),
    ];
    assert_all_drawn(&fed.iter().flat_map(|a| &a.layers).collect::<Vec<_>>(), checks);

    let any = drawn(super::architecture(super::any_layer()));
    let layers: Vec<&Layer> = any.iter().flat_map(|a| &a.layers).collect();
    let checks: &[Check<Layer>] = &[
        ("no first sublayer", |l| l.attention.is_none() && l.recurrence.is_none()),
        ("a shared block", |l| l.shared.is_some()),
        ("a parallel block", |l| l.parallel && l.attention.is_some() && l.mlp.is_some()),
        ("a normed skip", |l| matches!(l.skip, Skip::Normed { attn, .. } if attn != 1.0)),
        ("a scaled MLP", |l| matches!(l.mlp, Some(Mlp::Dense(Dense { down_scale: Some(_), .. })))),
        ("a gained skip", |l| l.skip == Skip::LearnedGain),
        ("channel mixing", |l| matches!(l.mlp, Some(Mlp::ChannelMix { .. }))),
        ("xIELU", |l| matches!(l.mlp, Some(Mlp::Dense(Dense { xielu: true, .. })))),
        ("a norm of the neurons", |l| matches!(l.mlp, Some(Mlp::Dense(Dense { inner_norm: Some(_), .. })))),
        ("a scaled gate", |l| matches!(l.mlp, Some(Mlp::Dense(Dense { gate_scale: Some(_), .. })))),
        ("a scale on leaving", |l| l.out_scale.is_some()),
        ("a norm of the stream", |l| l.attn_post_residual_norm.is_some()),
    ];
    assert_all_drawn(&layers, checks);
    let checks: &[Check<Architecture>] = &[
        ("learned positions", |a| matches!(a.embedding.positions, Some(AbsolutePositions::Learned { .. }))),
        ("sinusoids", |a| matches!(a.embedding.positions, Some(AbsolutePositions::Sinusoidal { .. }))),
        ("segments", |a| a.embedding.segments.is_some()),
        ("a last projection", |a| a.embedding.projected_last && a.embedding.table_width.is_some()),
        ("a head transform", |a| a.head.transform.is_some()),
        ("rotations beyond a length", |a| matches!(a.ropes[0].long, Some(LongRope::Beyond { .. }))),
        ("growing rotations", |a| matches!(a.ropes[0].long, Some(LongRope::Dynamic { .. }))),
    ];
    assert_all_drawn(&any.iter().collect::<Vec<_>>(), checks);
}
