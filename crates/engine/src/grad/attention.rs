//! Attention: fused for the rows that nobody looks into, step by step for the others.

use super::walk::Walk;
use super::weights::add_lines;
use crate::backend::KeptValues;
use crate::backend::cpu::attention::keep_largest;
use crate::error::Result;
use crate::job::Segment;
use crate::program::{EdgeId, OpKind};
use pellucid_kernels::attention::{
    Gradients, HeadTerms, KvFormat, KvStore, Queries, Run, Slopes, attend_back, mix_back, scores, scores_back,
    softmax_back,
};
use pellucid_kernels::elementwise::dot;
use pellucid_kernels::softmax::softmax;

pub(super) fn back(walk: &mut Walk, forward: &KeptValues, kind: &OpKind, gradient: Vec<f32>) -> Result<()> {
    let OpKind::Attention { q, k, v, shape, alibi, sinks, kept, scores: at_scores, probs: at_probs, .. } = kind else {
        unreachable!("dispatched on the kind")
    };
    let slopes = alibi.as_ref().map(|alibi| Slopes { each: &alibi.slopes, rounded: alibi.rounded });
    let terms = HeadTerms { slopes, sinks: sinks.map(|sinks| walk.weights.vector(sinks)) };
    let (queries, keys, values) = (forward.value(*q), forward.value(*k), forward.value(*v));
    // Whoever looked into a row on the way here may have changed it. What a sink drew is known only where the weights are.
    let sinks_wanted = sinks.is_some_and(|sinks| walk.weight(sinks).is_some());
    let looked_into = |walk: &Walk, segment: &Segment| {
        let looked =
            |&edge: &EdgeId| walk.touches_row(edge, segment.row) || forward.attention(edge, segment.row).is_some();
        sinks_wanted || [*at_scores, *at_probs].iter().any(looked)
    };
    let (mut apart, mut together) = (Vec::new(), Vec::new());
    for segment in &walk.pass.segments {
        let free = kept.map_or(segment.count, |kept| kept.min(segment.count));
        let free = if looked_into(walk, segment) { 0 } else { free };
        together.extend((free > 0).then_some(Run { token: segment.token, count: free }));
        apart.extend((free < segment.count).then(|| segment.part(free..segment.count)));
    }
    let (mut by_q, mut by_k, mut by_v) = (walk.zeros(*q), walk.zeros(*k), walk.zeros(*v));
    let gradients = Gradients { q: &mut by_q, k: &mut by_k, v: &mut by_v };
    attend_back(walk.pool, shape, terms, queries, keys, values, &gradient, &together, gradients);

    for segment in &apart {
        let first = segment.token - segment.position;
        let length = segment.position + segment.count;
        let mut store = KvStore::new(shape.kv_layout(KvFormat::F32), length);
        let (key_width, value_width) = (walk.width(*k), walk.width(*v));
        store.append(
            &keys[first * key_width..(first + length) * key_width],
            &values[first * value_width..(first + length) * value_width],
        );
        let run = Queries { kv: &store, position: segment.position, count: segment.count, token: segment.token };
        let mut raw = scores(shape, terms, queries, &run);
        if let Some(kept) = *kept {
            keep_largest(shape, &run, kept, &mut raw);
        }
        // The weights before anybody changed them, from the scores that the softmax has seen.
        let mut weights = forward.attention(*at_scores, segment.row).unwrap_or(&raw).to_vec();
        for (line, weights) in weights.chunks_exact_mut(length).enumerate() {
            softmax(weights, terms.sinks.map(|sinks| sinks[line / segment.count]));
        }
        let used = forward.attention(*at_probs, segment.row).unwrap_or(&weights);
        let mut gradient = mix_back(walk.pool, shape, used, &run, values, &gradient, &mut by_v);
        walk.meet_attention(segment, *at_probs, &mut gradient)?;
        let mut by_sink = vec![0.0; shape.heads];
        let lines = weights.chunks_exact(length).zip(gradient.chunks_exact_mut(length));
        for (line, (weights, gradient)) in lines.enumerate() {
            // A sink takes what the keys do not have, and takes it from each of them.
            let drawn = 1.0 - weights.iter().sum::<f32>();
            by_sink[line / segment.count] -= drawn * dot(weights, gradient);
            softmax_back(weights, gradient);
        }
        add_lines(walk, *sinks, &by_sink);
        walk.meet_attention(segment, *at_scores, &mut gradient)?;
        // A masked score is no function of anything.
        gradient.iter_mut().zip(&raw).filter(|(_, raw)| raw.is_infinite()).for_each(|(g, _)| *g = 0.0);
        scores_back(walk.pool, shape, &run, queries, keys, &gradient, &mut by_q, &mut by_k);
    }
    walk.give(gradient);
    walk.add(*q, by_q);
    walk.add(*k, by_k);
    walk.add(*v, by_v);
    Ok(())
}
