//! Elementwise loops over whole activations: sums, scaling, soft caps.

use crate::activation::{SoftCap, map};
use crate::dispatch;
use crate::simd::Simd;

/// `a += b`
pub fn add(a: &mut [f32], b: &[f32]) {
    assert_eq!(a.len(), b.len(), "sums need equal lengths");
    a.iter_mut().zip(b).for_each(|(a, &b)| *a += b);
}

/// `out = a + b`
pub fn sum(a: &[f32], b: &[f32], out: &mut [f32]) {
    assert!(a.len() == b.len() && a.len() == out.len(), "sums need equal lengths");
    out.iter_mut().zip(a.iter().zip(b)).for_each(|(out, (&a, &b))| *out = a + b);
}

/// `x *= scale`
pub fn scale(x: &mut [f32], scale: f32) {
    x.iter_mut().for_each(|x| *x *= scale);
}

/// Dot product, summed in a fixed order.
pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len(), "inner products need equal lengths");
    let mut lanes = [0.0f32; 8];
    let (ours, theirs) = (a.chunks_exact(8), b.chunks_exact(8));
    let rest: f32 = ours.remainder().iter().zip(theirs.remainder()).map(|(a, b)| a * b).sum();
    for (a, b) in ours.zip(theirs) {
        (0..8).for_each(|i| lanes[i] += a[i] * b[i]);
    }
    lanes.iter().sum::<f32>() + rest
}

/// Product with a block-diagonal matrix: `x` is `[tokens, width]`, `weight` is `[blocks, dim, dim]`
/// (inputs, outputs) with `dim = width / blocks`.
pub fn block_diagonal(x: &[f32], weight: &[f32], bias: Option<&[f32]>, blocks: usize, width: usize, out: &mut [f32]) {
    let dim = width / blocks;
    for (x, out) in x.chunks_exact(width).zip(out.chunks_exact_mut(width)) {
        match bias {
            Some(bias) => out.copy_from_slice(bias),
            None => out.fill(0.0),
        }
        let parts = x.chunks_exact(dim).zip(out.chunks_exact_mut(dim)).zip(weight.chunks_exact(dim * dim));
        for ((x, out), weight) in parts {
            for (x, weights) in x.iter().zip(weight.chunks_exact(dim)) {
                out.iter_mut().zip(weights).for_each(|(y, w)| *y += x * w);
            }
        }
    }
}

#[inline(always)]
fn soft_cap_with<S: Simd>(s: S, x: &mut [f32], cap: f32) {
    map(s, &SoftCap(cap), x);
}

dispatch! {
    /// `x = cap · tanh(x / cap)`
    pub fn soft_cap(x: &mut [f32], cap: f32) = soft_cap_with
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_diagonal_agrees_with_the_full_matrix() {
        let sines = |count: usize, seed: usize| {
            (0..count).map(|i| ((i * 7 + seed * 13) as f32 * 0.37).sin()).collect::<Vec<f32>>()
        };
        for (blocks, dim) in [(1, 5), (3, 4), (4, 1), (2, 9)] {
            let (width, tokens) = (blocks * dim, 3);
            let (x, weight, bias) = (sines(tokens * width, 1), sines(blocks * dim * dim, 2), sines(width, 3));
            // The full matrix, `[inputs][outputs]`, with zeros outside the blocks.
            let mut whole = vec![vec![0.0f64; width]; width];
            for (i, &w) in weight.iter().enumerate() {
                let (block, input, output) = (i / (dim * dim), i / dim % dim, i % dim);
                whole[block * dim + input][block * dim + output] = w as f64;
            }
            for bias in [None, Some(&bias[..])] {
                let mut out = vec![f32::NAN; tokens * width];
                block_diagonal(&x, &weight, bias, blocks, width, &mut out);
                for (i, &ours) in out.iter().enumerate() {
                    let (token, output) = (i / width, i % width);
                    let products = (0..width).map(|input| x[token * width + input] as f64 * whole[input][output]);
                    let truth = products.sum::<f64>() + bias.map_or(0.0, |bias| bias[output] as f64);
                    assert!((ours as f64 - truth).abs() < 1e-5, "{blocks} blocks of {dim}: {ours} instead of {truth}");
                }
            }
        }
    }
}
