//! Attention and its output projection.

use super::parallel_rows;
use crate::adapter::updates;
use crate::backend::{AttentionRow, Frame, Taps};
use crate::error::Result;
use crate::job::{RowState, Segment};
use crate::program::{EdgeId, OpKind};
use pellucid_kernels::attention::{
    AlibiSlopes, AttentionShape, HeadBiases, Queries, attend as fused, scores as explicit_scores, weighted_values,
};
use pellucid_kernels::elementwise::{add, dot};
use pellucid_kernels::softmax::softmax;
use pellucid_kernels::{Pool, matmul};

/// Appends k and v to the KV caches, then attends: fused, or unfused for rows whose scores or
/// probabilities a tap touches. q `[tokens, heads, head_dim]` · k `[keys, kv_heads, head_dim]` →
/// scores `[heads, tokens, keys]`
pub(super) fn attend(index: usize, frame: &mut Frame, taps: &mut Taps) -> Result<()> {
    let op = &frame.program.ops()[index];
    let OpKind::Attention { q, k, v, shape, alibi, sinks, max_keys, scores, probs, out } = &op.kind else {
        unreachable!("dispatched on the kind")
    };
    let layer = op.layer.unwrap_or_default();
    let width = frame.program.edge(*out).width;
    let mut value = frame.alloc(*out);
    let slopes = alibi.as_ref().map(|alibi| AlibiSlopes { per_head: &alibi.slopes, bf16_scale: alibi.bf16_scale });
    let terms = HeadBiases { slopes, sinks: sinks.map(|sinks| frame.weights.vector(sinks)) };
    let (mut unfused, mut fused_segments) = (Vec::new(), frame.take_segments());
    for segment in &frame.pass.segments {
        if frame.is_absent(segment) {
            // This row's job skips the layer or needs no op this late: its KV cache stays
            // unchanged.
            value[segment.token * width..(segment.token + segment.count) * width].fill(0.0);
            continue;
        }
        append(frame, layer, shape, *k, *v, segment);
        if taps.touches_row(*scores, segment) || taps.touches_row(*probs, segment) {
            unfused.push(segment.clone());
            continue;
        }
        // With a dynamic mask, queries past the first `max_keys` positions drop keys, which needs
        // unfused scores. This depends on the position only, so a row does not depend on its batch.
        let free =
            max_keys.map_or(segment.count, |max_keys| max_keys.saturating_sub(segment.position).min(segment.count));
        fused_segments.extend((free > 0).then(|| segment.part(0..free)));
        unfused.extend((free < segment.count).then(|| segment.part(free..segment.count)));
    }
    let rows: &[RowState] = frame.rows;
    fused(
        frame.pool,
        shape,
        terms,
        frame.value(*q),
        fused_segments.len(),
        &|run| queries(rows, layer, &fused_segments[run]),
        &mut value,
    );
    frame.put_segments(fused_segments);
    let unfused_op = Unfused { q: *q, shape, terms, max_keys: *max_keys, scores: *scores, probs: *probs, layer };
    // Rows that a tap needs together go through each step together, all others one by one,
    // to bound memory.
    let mut rest = &unfused[..];
    while let Some(first) = rest.first() {
        let joined = taps.needs_rows_together(*scores, first) || taps.needs_rows_together(*probs, first);
        let count = if joined { rest.iter().take_while(|segment| segment.job == first.job).count() } else { 1 };
        unfused_op.attend(frame, taps, &rest[..count], &mut value)?;
        rest = &rest[count..];
    }
    frame.put(*out, value, taps)
}

/// Unfused attention: scores, taps, softmax, taps, weighted sum of v.
struct Unfused<'a> {
    q: EdgeId,
    shape: &'a AttentionShape,
    terms: HeadBiases<'a>,
    max_keys: Option<usize>,
    scores: EdgeId,
    probs: EdgeId,
    layer: usize,
}

impl Unfused<'_> {
    fn attend(&self, frame: &mut Frame, taps: &mut Taps, segments: &[Segment], value: &mut [f32]) -> Result<()> {
        let mut rows: Vec<AttentionRow> = segments
            .iter()
            .map(|segment| {
                let run = queries(frame.rows, self.layer, segment);
                let mut values = explicit_scores(self.shape, self.terms, frame.value(self.q), &run);
                if let Some(max_keys) = self.max_keys {
                    keep_largest(self.shape, &run, max_keys, &mut values);
                }
                AttentionRow { segment: segment.clone(), values }
            })
            .collect();
        taps.apply_attention(frame.program, self.scores, &mut rows)?;
        self.keep_tapped(frame, taps, self.scores, &rows);
        for row in &mut rows {
            let (keys, count) = (row.keys(), row.segment.count);
            for (line, weights) in row.values.chunks_exact_mut(keys).enumerate() {
                softmax(weights, self.terms.sinks.map(|sinks| sinks[line / count]));
            }
        }
        taps.apply_attention(frame.program, self.probs, &mut rows)?;
        self.keep_tapped(frame, taps, self.probs, &rows);
        for row in &rows {
            weighted_values(self.shape, &row.values, &queries(frame.rows, self.layer, &row.segment), value);
        }
        Ok(())
    }

    /// Retains tapped attention for the backward pass, if there is one.
    fn keep_tapped(&self, frame: &mut Frame, taps: &Taps, edge: EdgeId, rows: &[AttentionRow]) {
        if frame.keeps_attention() {
            let is_tapped = |row: &&AttentionRow| {
                taps.touches_row(self.scores, &row.segment) || taps.touches_row(self.probs, &row.segment)
            };
            for row in rows.iter().filter(is_tapped) {
                frame.keep_attention(edge, row.segment.row, row.values.clone());
            }
        }
    }
}

/// Masks all but `max_keys` of the keys that each query sees: those with the largest last
/// coordinate.
pub(crate) fn keep_largest(shape: &AttentionShape, run: &Queries, max_keys: usize, scores: &mut [f32]) {
    let keys = run.position + run.count;
    let group = shape.heads / shape.kv_heads;
    for (line, scores) in scores.chunks_exact_mut(keys).enumerate() {
        let head = line / run.count / group;
        let mut seen: Vec<(f32, usize)> = (0..keys)
            .filter(|&key| scores[key] > f32::NEG_INFINITY)
            .map(|key| (run.kv.key(head, key, shape.key_dim - 1), key))
            .collect();
        if seen.len() > max_keys {
            seen.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
            seen[max_keys..].iter().for_each(|&(_, key)| scores[key] = f32::NEG_INFINITY);
        }
    }
}

fn queries<'r>(rows: &'r [RowState], layer: usize, segment: &Segment) -> Queries<'r> {
    let kv = rows[segment.slot].kv[layer].as_ref().expect("the segment's own keys were appended before");
    Queries { kv, position: segment.position, count: segment.count, packed_offset: segment.token }
}

fn append(frame: &mut Frame, layer: usize, shape: &AttentionShape, k: EdgeId, v: EdgeId, segment: &Segment) {
    let (k_width, v_width) = (shape.kv_heads * shape.key_dim, shape.kv_heads * shape.value_dim);
    let tokens = segment.token..segment.token + segment.count;
    let mut kv = frame.take_kv(segment.slot, layer, shape, segment.position + segment.count);
    kv.append(
        &frame.value(k)[tokens.start * k_width..tokens.end * k_width],
        &frame.value(v)[tokens.start * v_width..tokens.end * v_width],
    );
    frame.put_kv(segment.slot, layer, kv);
}

/// The output projection. If a tap touches `head_out`, also each head's contribution to the output,
/// `[tokens, heads, width]`.
pub(super) fn project(index: usize, frame: &mut Frame, taps: &mut Taps) -> Result<()> {
    let OpKind::Project { z, linear, heads, head_out, out } = &frame.program.ops()[index].kind else {
        unreachable!("dispatched on the kind")
    };
    let mut value = frame.alloc(*out);
    let (matrix, bias) = frame.weights.linear(linear);
    matmul(frame.pool, frame.value(*z), matrix, bias, &mut value);
    frame.add_adapters(linear.weight, *z, &mut value);
    if !taps.touches(*head_out) {
        return frame.put(*out, value, taps);
    }
    let (width, inner) = (matrix.rows(), matrix.cols());
    let mut rows = vec![0.0; width * inner];
    rows.chunks_exact_mut(inner).enumerate().for_each(|(row, out)| matrix.row(row, out));
    let mut shares = frame.alloc(*head_out);
    let (pool, z_value, sizes) = (frame.pool, frame.value(*z), (*heads, width));
    head_shares(pool, z_value, &rows, sizes, &mut shares);
    let (adapters, pass, token_set) = (frame.adapters, frame.pass, frame.program.edge(*z).token_set);
    let updates = || updates(adapters, pass, token_set, linear.weight);
    for (update, tokens) in updates() {
        let Some(low_rank) = &update.low_rank else { continue };
        let mut merged = rows.clone();
        low_rank.add_to_rows(&mut merged);
        for run in tokens.runs() {
            let own = &mut shares[run.start * heads * width..run.end * heads * width];
            head_shares(pool, &z_value[run.start * inner..run.end * inner], &merged, sizes, own);
        }
    }
    let edited = frame.pass.segments.iter().any(|segment| taps.edits_row(*head_out, segment));
    let before = if edited { shares.clone() } else { Vec::new() };
    frame.put(*head_out, shares, taps)?;
    // For tokens with an edited head, the output is the sum of the heads' contributions; all
    // other tokens keep their exact bits.
    let tokens = before.chunks_exact(heads * width).zip(frame.value(*head_out).chunks_exact(heads * width));
    for (token, (_, shares)) in tokens.enumerate().filter(|(_, (before, after))| before != after) {
        let out = &mut value[token * width..][..width];
        match bias {
            Some(bias) => out.copy_from_slice(bias),
            None => out.fill(0.0),
        }
        for share in shares.chunks_exact(width) {
            add(out, share);
        }
        let changed = updates().filter(|(_, tokens)| tokens.runs().any(|run| run.contains(&token)));
        changed.filter_map(|(update, _)| update.bias.as_ref()).for_each(|bias| add(out, bias));
    }
    frame.put(*out, value, taps)
}

/// Computes each head's contribution to the output projection: z `[tokens, heads, dim]`, rows of
/// the matrix `[width, heads, dim]`, shares `[tokens, heads, width]`.
fn head_shares(pool: &Pool, z: &[f32], rows: &[f32], (heads, width): (usize, usize), shares: &mut [f32]) {
    let inner = rows.len() / width;
    let dim = inner / heads;
    parallel_rows(pool, shares, heads * width, &|tokens, part| {
        for (token, part) in tokens.zip(part.chunks_exact_mut(heads * width)) {
            for (head, share) in part.chunks_exact_mut(width).enumerate() {
                let z = &z[token * inner + head * dim..][..dim];
                share
                    .iter_mut()
                    .enumerate()
                    .for_each(|(unit, y)| *y = dot(z, &rows[unit * inner + head * dim..][..dim]));
            }
        }
    });
}
