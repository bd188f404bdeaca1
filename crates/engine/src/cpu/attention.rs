//! Attention and its output projection.

use super::in_parts;
use crate::error::Result;
use crate::exec::{Frame, RowState, Segment, Taps};
use crate::program::OpKind;
use pellucid_kernels::attention::{
    AttentionShape, HeadTerms, KvStore, Queries, attend as fused, mix, scores as explicit_scores,
};
use pellucid_kernels::elementwise::dot;
use pellucid_kernels::matmul;
use pellucid_kernels::softmax::softmax;

/// Appends keys and values, then attends: fused for rows that nobody looks into, step by step for the others.
pub(super) fn attend(index: usize, frame: &mut Frame, taps: &mut Taps) -> Result<()> {
    let op = &frame.program.ops()[index];
    let OpKind::Attention { q, k, v, shape, slopes, scores, probs, out } = &op.kind else {
        unreachable!("dispatched on the kind")
    };
    let layer = op.layer.unwrap_or_default();
    append(frame, layer, shape, *k, *v);

    let mut value = frame.make(*out);
    let terms = HeadTerms { slopes: slopes.as_deref(), sinks: None };
    let looked_into =
        |segment: &&Segment| taps.touches_row(*scores, segment.row) || taps.touches_row(*probs, segment.row);
    let (apart, together): (Vec<&Segment>, Vec<&Segment>) = frame.pass.segments.iter().partition(looked_into);
    let runs: Vec<Queries> = together.iter().filter_map(|segment| queries(frame.rows, layer, segment)).collect();
    fused(frame.pool, shape, terms, frame.value(*q), &runs, &mut value);
    for segment in apart {
        let Some(run) = queries(frame.rows, layer, segment) else { continue };
        let mut weights = explicit_scores(shape, terms, frame.value(*q), &run);
        taps.apply_attention(frame.program, segment, *scores, &mut weights)?;
        weights.chunks_exact_mut(segment.position + segment.count).for_each(|line| softmax(line, None));
        taps.apply_attention(frame.program, segment, *probs, &mut weights)?;
        mix(shape, &weights, &run, &mut value);
    }
    frame.put(*out, value, taps)
}

fn queries<'r>(rows: &'r [RowState], layer: usize, segment: &Segment) -> Option<Queries<'r>> {
    let kv = rows[segment.row].kv[layer].as_ref()?;
    Some(Queries { kv, position: segment.position, count: segment.count, token: segment.token })
}

fn append(frame: &mut Frame, layer: usize, shape: &AttentionShape, k: usize, v: usize) {
    let (k_width, v_width) = (shape.kv_heads * shape.key_dim, shape.kv_heads * shape.value_dim);
    let layers = frame.program.architecture().layers.len();
    for segment in &frame.pass.segments {
        let tokens = segment.token..segment.token + segment.count;
        let capacity = frame.rows[segment.row].capacity.max(segment.position + segment.count);
        let mut kv = std::mem::take(&mut frame.rows[segment.row].kv);
        kv.resize_with(layers, || None);
        let store =
            kv[layer].get_or_insert_with(|| KvStore::new(shape.kv_heads, shape.key_dim, shape.value_dim, capacity));
        store.append(
            &frame.value(k)[tokens.start * k_width..tokens.end * k_width],
            &frame.value(v)[tokens.start * v_width..tokens.end * v_width],
        );
        frame.rows[segment.row].kv = kv;
    }
}

/// The output projection; each head's share apart when somebody looks.
pub(super) fn project(index: usize, frame: &mut Frame, taps: &mut Taps) -> Result<()> {
    let OpKind::Project { z, weight, bias, heads, head_out, out } = &frame.program.ops()[index].kind else {
        unreachable!("dispatched on the kind")
    };
    let mut value = frame.make(*out);
    let (matrix, bias) = (frame.weights.matrix(*weight), bias.map(|bias| frame.weights.vector(bias)));
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
