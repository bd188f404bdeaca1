//! Backward pass of attention: fused, or unfused for rows whose scores or probabilities a tap
//! touches.

use super::backward::BackwardPass;
use super::weights::add_lines;
use crate::backend::RetainedValues;
use crate::backend::cpu::attention::keep_largest;
use crate::error::Result;
use crate::job::Segment;
use crate::program::{EdgeId, OpKind};
use pellucid_kernels::attention::{
    AlibiSlopes, AttentionGradients, HeadBiases, KvCache, KvFormat, Queries, TokenRun, attend_backward, scores,
    scores_backward, softmax_backward, weighted_values_backward,
};
use pellucid_kernels::elementwise::dot;
use pellucid_kernels::softmax::softmax;

pub(super) fn backward(
    ctx: &mut BackwardPass,
    retained: &RetainedValues,
    kind: &OpKind,
    gradient: Vec<f32>,
) -> Result<()> {
    let OpKind::Attention { q, k, v, shape, alibi, sinks, max_keys, scores: at_scores, probs: at_probs, .. } = kind
    else {
        unreachable!("dispatched on the kind")
    };
    let slopes = alibi.as_ref().map(|alibi| AlibiSlopes { per_head: &alibi.slopes, bf16_scale: alibi.bf16_scale });
    let terms = HeadBiases { slopes, sinks: sinks.map(|sinks| ctx.weights.vector(sinks)) };
    let (queries, keys, values) = (retained.value(*q), retained.value(*k), retained.value(*v));
    // A tap in the forward pass may have edited a row's attention, so its retained values are used.
    // The gradient of an attention sink needs the softmax weights, so it runs unfused too.
    let sinks_wanted = sinks.is_some_and(|sinks| ctx.weight(sinks).is_some());
    let is_tapped = |ctx: &BackwardPass, segment: &Segment| {
        let tapped =
            |&edge: &EdgeId| ctx.wants_row(edge, segment.row) || retained.attention(edge, segment.row).is_some();
        sinks_wanted || [*at_scores, *at_probs].iter().any(tapped)
    };
    let (mut unfused, mut fused) = (Vec::new(), Vec::new());
    for segment in &ctx.pass.segments {
        let free = max_keys.map_or(segment.count, |max_keys| max_keys.min(segment.count));
        let free = if is_tapped(ctx, segment) { 0 } else { free };
        fused.extend((free > 0).then_some(TokenRun { packed_offset: segment.token, count: free }));
        unfused.extend((free < segment.count).then(|| segment.part(free..segment.count)));
    }
    let (mut d_q, mut d_k, mut d_v) = (ctx.zeros(*q), ctx.zeros(*k), ctx.zeros(*v));
    let gradients = AttentionGradients { q: &mut d_q, k: &mut d_k, v: &mut d_v };
    attend_backward(ctx.pool, shape, terms, queries, keys, values, &gradient, &fused, gradients);

    for segment in &unfused {
        let first = segment.token - segment.position;
        let length = segment.position + segment.count;
        let mut store = KvCache::new(shape.kv_layout(KvFormat::F32), length);
        let (key_width, value_width) = (ctx.width(*k), ctx.width(*v));
        store.append(
            &keys[first * key_width..(first + length) * key_width],
            &values[first * value_width..(first + length) * value_width],
        );
        let run =
            Queries { kv: &store, position: segment.position, count: segment.count, packed_offset: segment.token };
        let mut raw = scores(shape, terms, queries, &run);
        if let Some(max_keys) = *max_keys {
            keep_largest(shape, &run, max_keys, &mut raw);
        }
        // The softmax output before taps, from the scores after taps.
        let mut weights = retained.attention(*at_scores, segment.row).unwrap_or(&raw).to_vec();
        for (line, weights) in weights.chunks_exact_mut(length).enumerate() {
            softmax(weights, terms.sinks.map(|sinks| sinks[line / segment.count]));
        }
        let used = retained.attention(*at_probs, segment.row).unwrap_or(&weights);
        let mut gradient = weighted_values_backward(ctx.pool, shape, used, &run, values, &gradient, &mut d_v);
        ctx.visit_attention(segment, *at_probs, &mut gradient)?;
        let mut d_sink = vec![0.0; shape.heads];
        let lines = weights.chunks_exact(length).zip(gradient.chunks_exact_mut(length));
        for (line, (weights, gradient)) in lines.enumerate() {
            // The sink's weight is the rest to 1, and it lowers every other weight.
            let sink_weight = 1.0 - weights.iter().sum::<f32>();
            d_sink[line / segment.count] -= sink_weight * dot(weights, gradient);
            softmax_backward(weights, gradient);
        }
        add_lines(ctx, *sinks, &d_sink);
        ctx.visit_attention(segment, *at_scores, &mut gradient)?;
        // Masked scores are constants.
        gradient.iter_mut().zip(&raw).filter(|(_, raw)| raw.is_infinite()).for_each(|(g, _)| *g = 0.0);
        scores_backward(ctx.pool, shape, &run, queries, keys, &gradient, &mut d_q, &mut d_k);
    }
    ctx.release(gradient);
    ctx.add_gradient(*q, d_q);
    ctx.add_gradient(*k, d_k);
    ctx.add_gradient(*v, d_v);
    Ok(())
}
