//! Attention and its output projection.

use super::in_parts;
use crate::error::Result;
use crate::exec::{Frame, RowState, Segment, Taps};
use crate::program::OpKind;
use pellucid_kernels::attention::{
    AttentionShape, HeadTerms, Queries, Slopes, attend as fused, mix, scores as explicit_scores,
};
use pellucid_kernels::elementwise::dot;
use pellucid_kernels::matmul;
use pellucid_kernels::softmax::softmax;

/// Appends keys and values, then attends: fused for rows that nobody looks into, step by step for the others.
pub(super) fn attend(index: usize, frame: &mut Frame, taps: &mut Taps) -> Result<()> {
    let op = &frame.program.ops()[index];
    let OpKind::Attention { q, k, v, shape, alibi, sinks, kept, scores, probs, out } = &op.kind else {
        unreachable!("dispatched on the kind")
    };
    let layer = op.layer.unwrap_or_default();
    append(frame, layer, shape, *k, *v);

    let mut value = frame.make(*out);
    let slopes = alibi.as_ref().map(|alibi| Slopes { each: &alibi.slopes, rounded: alibi.rounded });
    let terms = HeadTerms { slopes, sinks: sinks.map(|sinks| frame.weights.vector(sinks)) };
    let looked_into = |taps: &Taps, segment: &Segment| {
        taps.touches_row(*scores, segment.row) || taps.touches_row(*probs, segment.row)
    };
    let (mut apart, mut together) = (Vec::new(), frame.take_segments());
    for segment in &frame.pass.segments {
        if looked_into(taps, segment) {
            apart.push(segment.clone());
            continue;
        }
        // Queries that have to choose among their keys are taken apart too: each by its position, whatever it runs with.
        let free = kept.map_or(segment.count, |kept| kept.saturating_sub(segment.position).min(segment.count));
        together.extend((free > 0).then(|| segment.part(0..free)));
        apart.extend((free < segment.count).then(|| segment.part(free..segment.count)));
    }
    let rows: &[RowState] = frame.rows;
    fused(
        frame.pool,
        shape,
        terms,
        frame.value(*q),
        together.len(),
        &|run| queries(rows, layer, &together[run]),
        &mut value,
    );
    frame.put_segments(together);
    let mut notes = Vec::new();
    for segment in &apart {
        // A gradient has to know what taps have made of these.
        let noted = frame.is_recorded() && looked_into(taps, segment);
        let run = queries(frame.rows, layer, segment);
        let mut weights = explicit_scores(shape, terms, frame.value(*q), &run);
        if let Some(kept) = *kept {
            keep_largest(shape, &run, kept, &mut weights);
        }
        taps.apply_attention(frame.program, segment, *scores, &mut weights)?;
        notes.extend(noted.then(|| (*scores, segment.row, weights.clone())));
        let keys = segment.position + segment.count;
        for (line, weights) in weights.chunks_exact_mut(keys).enumerate() {
            softmax(weights, terms.sinks.map(|sinks| sinks[line / segment.count]));
        }
        taps.apply_attention(frame.program, segment, *probs, &mut weights)?;
        notes.extend(noted.then(|| (*probs, segment.row, weights.clone())));
        mix(shape, &weights, &run, &mut value);
    }
    notes.into_iter().for_each(|(edge, row, value)| frame.note_attention(edge, row, value));
    frame.put(*out, value, taps)
}

/// Masks all but the `kept` keys with the largest last coordinate, of those that each query sees.
pub(crate) fn keep_largest(shape: &AttentionShape, run: &Queries, kept: usize, scores: &mut [f32]) {
    let keys = run.position + run.count;
    let group = shape.heads / shape.kv_heads;
    for (line, scores) in scores.chunks_exact_mut(keys).enumerate() {
        let head = line / run.count / group;
        let mut seen: Vec<(f32, usize)> = (0..keys)
            .filter(|&key| scores[key] > f32::NEG_INFINITY)
            .map(|key| (run.kv.key(head, key, shape.key_dim - 1), key))
            .collect();
        if seen.len() > kept {
            seen.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
            seen[kept..].iter().for_each(|&(_, key)| scores[key] = f32::NEG_INFINITY);
        }
    }
}

fn queries<'r>(rows: &'r [RowState], layer: usize, segment: &Segment) -> Queries<'r> {
    let kv = rows[segment.row].kv[layer].as_ref().expect("the segment's own keys were appended before");
    Queries { kv, position: segment.position, count: segment.count, token: segment.token }
}

fn append(frame: &mut Frame, layer: usize, shape: &AttentionShape, k: usize, v: usize) {
    let (k_width, v_width) = (shape.kv_heads * shape.key_dim, shape.kv_heads * shape.value_dim);
    for segment in &frame.pass.segments {
        let tokens = segment.token..segment.token + segment.count;
        let room = segment.position + segment.count;
        let mut store = frame.take_keys(segment.row, layer, shape, room);
        store.append(
            &frame.value(k)[tokens.start * k_width..tokens.end * k_width],
            &frame.value(v)[tokens.start * v_width..tokens.end * v_width],
        );
        frame.put_keys(segment.row, layer, store);
    }
}

/// The output projection; each head's share apart when somebody looks.
pub(super) fn project(index: usize, frame: &mut Frame, taps: &mut Taps) -> Result<()> {
    let OpKind::Project { z, linear, heads, head_out, out } = &frame.program.ops()[index].kind else {
        unreachable!("dispatched on the kind")
    };
    let mut value = frame.make(*out);
    let (matrix, bias) = frame.weights.linear(linear);
    matmul(frame.pool, frame.value(*z), matrix, bias, &mut value);
    if !taps.touches(*head_out) {
        return frame.put(*out, value, taps);
    }
    let (width, inner) = (matrix.rows(), matrix.cols());
    let dim = inner / heads;
    let mut rows = vec![0.0; width * inner];
    rows.chunks_exact_mut(inner).enumerate().for_each(|(row, out)| matrix.row(row, out));
    let mut shares = frame.make(*head_out);
    let z_value = frame.value(*z);
    in_parts(frame.pool, &mut shares, heads * width, &|tokens, part| {
        for (token, part) in tokens.zip(part.chunks_exact_mut(heads * width)) {
            for (head, share) in part.chunks_exact_mut(width).enumerate() {
                let z = &z_value[token * inner + head * dim..][..dim];
                share
                    .iter_mut()
                    .enumerate()
                    .for_each(|(unit, y)| *y = dot(z, &rows[unit * inner + head * dim..][..dim]));
            }
        }
    });
    let edited = frame.pass.segments.iter().any(|segment| taps.edits_row(*head_out, segment.row));
    let before = if edited { shares.clone() } else { Vec::new() };
    frame.put(*head_out, shares, taps)?;
    // Where a head's share was changed, the sublayer's output is the sum of the shares; every other token keeps its bits.
    let tokens = before.chunks_exact(heads * width).zip(frame.value(*head_out).chunks_exact(heads * width));
    for (token, (_, shares)) in tokens.enumerate().filter(|(_, (before, after))| before != after) {
        let out = &mut value[token * width..][..width];
        match bias {
            Some(bias) => out.copy_from_slice(bias),
            None => out.fill(0.0),
        }
        for share in shares.chunks_exact(width) {
            out.iter_mut().zip(share).for_each(|(y, x)| *y += x);
        }
    }
    frame.put(*out, value, taps)
}
