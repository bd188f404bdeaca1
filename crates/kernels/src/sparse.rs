//! Vectors with few nonzero elements: finding the indices that matter, and scaled sums of rows.
//!
//! The activations of a sparse autoencoder are tens of nonzero elements among tens of thousands, so
//! scanning for them dominates. A scan tests whole blocks and looks closer only at those with a
//! hit. NaN is a hit for every threshold and the largest element, so it is never lost.

use crate::dispatch;
use crate::simd::{LANES, Lanes, Simd};

/// Elements that a scan tests at once.
const BLOCK: usize = 64;
/// Elements between two checks of whether [`top_k`] has too many candidates.
const TOP_K_BLOCK: usize = 512;

/// Appends `first + i` for each `i` with `hit(x[i], y[i])`, in ascending order.
#[inline(always)]
fn scan(x: &[f32], y: &[f32], first: usize, hit: impl Fn(f32, f32) -> bool, out: &mut Vec<u32>) {
    assert_eq!(x.len(), y.len(), "one threshold for each element");
    for (block, (x, y)) in x.chunks(BLOCK).zip(y.chunks(BLOCK)).enumerate() {
        // Counting has no branch, so this loop is vectorized.
        if x.iter().zip(y).map(|(&x, &y)| u32::from(hit(x, y))).sum::<u32>() > 0 {
            let hits = x.iter().zip(y).enumerate().filter(|&(_, (&x, &y))| hit(x, y));
            out.extend(hits.map(|(i, _)| (first + block * BLOCK + i) as u32));
        }
    }
}

#[inline(always)]
fn indices_above_with<S: Simd>(_: S, x: &[f32], threshold: f32, first: usize, out: &mut Vec<u32>) {
    scan(x, x, first, |x, _| (x > threshold) | x.is_nan(), out);
}

#[inline(always)]
fn indices_above_each_with<S: Simd>(_: S, x: &[f32], thresholds: &[f32], out: &mut Vec<u32>) {
    scan(x, thresholds, 0, |x, threshold| (x > threshold) | x.is_nan(), out);
}

#[inline(always)]
fn indices_of_positive_sums_with<S: Simd>(_: S, x: &[f32], y: &[f32], out: &mut Vec<u32>) {
    scan(x, y, 0, |x, y| (x + y > 0.0) | (x + y).is_nan(), out);
}

#[inline(always)]
fn indices_of_nonzero_with<S: Simd>(_: S, x: &[f32], out: &mut Vec<u32>) {
    scan(x, x, 0, |x, _| x != 0.0, out);
}

dispatch! {
    /// Appends `first + i` for each `x[i] > threshold` and each NaN.
    pub fn indices_above(x: &[f32], threshold: f32, first: usize, out: &mut Vec<u32>) = indices_above_with
}

dispatch! {
    /// Appends the index of each `x[i] > thresholds[i]` and each NaN.
    pub fn indices_above_each(x: &[f32], thresholds: &[f32], out: &mut Vec<u32>) = indices_above_each_with
}

dispatch! {
    /// Appends the index of each `x[i] + y[i]` that is positive or NaN.
    pub fn indices_of_positive_sums(x: &[f32], y: &[f32], out: &mut Vec<u32>) = indices_of_positive_sums_with
}

dispatch! {
    /// Appends the index of each element that is not zero.
    pub fn indices_of_nonzero(x: &[f32], out: &mut Vec<u32>) = indices_of_nonzero_with
}

/// Appends the indices of the `k` largest positive elements, or of all of them if there are fewer,
/// in ascending order. Among equal elements those of lower index come first. `out` must be empty.
///
/// One scan collects candidates above a threshold. Whenever they become many, only the best `k`
/// stay, and the worst of these becomes the threshold: after a few blocks almost nothing passes it,
/// so the cost is that of the scan.
pub fn top_k(x: &[f32], k: usize, out: &mut Vec<u32>) {
    assert!(out.is_empty(), "the candidates start empty");
    if k == 0 {
        return;
    }
    let mut threshold = 0.0;
    for (block, part) in x.chunks(TOP_K_BLOCK).enumerate() {
        // A later element that equals the threshold ranks below `k` earlier ones.
        indices_above(part, threshold, block * TOP_K_BLOCK, out);
        if out.len() > 2 * k {
            threshold = keep_best(x, k, out);
        }
    }
    if out.len() > k {
        keep_best(x, k, out);
    }
    out.sort_unstable();
}

/// Reduces `candidates` to the best `k`, in any order; returns the smallest of their elements.
fn keep_best(x: &[f32], k: usize, candidates: &mut Vec<u32>) -> f32 {
    // `total_cmp` orders a NaN by its sign.
    let rank = |i: u32| if x[i as usize].is_nan() { f32::NAN } else { x[i as usize] };
    let (_, &mut worst, _) =
        candidates.select_nth_unstable_by(k - 1, |&a, &b| rank(b).total_cmp(&rank(a)).then(a.cmp(&b)));
    candidates.truncate(k);
    x[worst as usize]
}

/// Floats that need not be aligned: a slice, or little-endian bytes of a file.
#[derive(Clone, Copy)]
pub(crate) struct Floats<'a> {
    bytes: &'a [u8],
}

impl<'a> Floats<'a> {
    /// Views bytes as floats; `None` on a big-endian machine.
    pub(crate) fn from_bytes(bytes: &'a [u8]) -> Option<Floats<'a>> {
        cfg!(target_endian = "little").then_some(Floats { bytes })
    }

    fn from_slice(x: &'a [f32]) -> Floats<'a> {
        // SAFETY: a float is four bytes, and every byte is a valid u8.
        Floats { bytes: unsafe { std::slice::from_raw_parts(x.as_ptr().cast(), size_of_val(x)) } }
    }

    fn len(self) -> usize {
        self.bytes.len() / 4
    }

    fn get(self, index: usize) -> f32 {
        let bytes = &self.bytes[index * 4..][..4];
        f32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
    }

    /// Loads a vector from element `index` on.
    ///
    /// # Safety
    /// As many elements as there are lanes must follow `index`.
    #[inline(always)]
    unsafe fn load<L: Lanes>(self, l: L, index: usize) -> L::V {
        // SAFETY: the caller guarantees the elements; loads need no alignment.
        unsafe { l.load(self.bytes.as_ptr().add(index * 4).cast()) }
    }
}

#[inline(always)]
fn add_scaled_with<S: Simd>(s: S, scale: f32, x: Floats, y: &mut [f32]) {
    assert_eq!(x.len(), y.len(), "sums need equal lengths");
    let l = s.panel();
    let (factor, lanes) = (l.splat(scale), <S::Panel as Lanes>::COUNT);
    let whole = y.len() / lanes * lanes;
    for i in (0..whole).step_by(lanes) {
        // SAFETY: `i + lanes` is at most the length of both.
        unsafe {
            let p = y.as_mut_ptr().add(i);
            l.store(p, l.fma(factor, x.load(l, i), l.load(p)));
        }
    }
    if whole < y.len() {
        // The remaining elements take part in a whole vector, so that they are fused too.
        let mut rest = [[0.0; 16]; 2];
        for i in whole..y.len() {
            (rest[0][i - whole], rest[1][i - whole]) = (x.get(i), y[i]);
        }
        // SAFETY: sixteen floats are at least as many as there are lanes.
        unsafe { l.store(rest[1].as_mut_ptr(), l.fma(factor, l.load(rest[0].as_ptr()), l.load(rest[1].as_ptr()))) };
        y[whole..].iter_mut().zip(rest[1]).for_each(|(y, sum)| *y = sum);
    }
}

dispatch! { pub(crate) fn add_scaled_floats(scale: f32, x: Floats, y: &mut [f32]) = add_scaled_with }

/// `y += scale · x`
pub fn add_scaled(scale: f32, x: &[f32], y: &mut [f32]) {
    add_scaled_floats(scale, Floats::from_slice(x), y);
}

#[inline(always)]
fn fused_dot_with<S: Simd>(s: S, a: Floats, b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len(), "inner products need equal lengths");
    // Four sums hide the latency of the additions.
    const SUMS: usize = 4;
    let mut sums = [s.splat(0.0); SUMS];
    let whole = b.len() / (SUMS * LANES) * (SUMS * LANES);
    for i in (0..whole).step_by(SUMS * LANES) {
        for (part, sum) in sums.iter_mut().enumerate() {
            let i = i + part * LANES;
            // SAFETY: `whole` elements exist.
            *sum = unsafe { s.fma(a.load(s, i), s.load(b.as_ptr().add(i)), *sum) };
        }
    }
    let rest: f32 = (whole..b.len()).map(|i| a.get(i) * b[i]).sum();
    s.sum(s.add(s.add(sums[0], sums[1]), s.add(sums[2], sums[3]))) + rest
}

dispatch! { pub(crate) fn fused_dot_floats(a: Floats, b: &[f32]) -> f32 = fused_dot_with }

/// Dot product with fused multiply-adds, summed in a fixed order.
pub fn fused_dot(a: &[f32], b: &[f32]) -> f32 {
    fused_dot_floats(Floats::from_slice(a), b)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sines(count: usize, seed: usize) -> Vec<f32> {
        (0..count).map(|i| ((i * 7 + seed * 13) as f32 * 0.37).sin()).collect()
    }

    #[test]
    fn scans_find_what_a_plain_filter_finds() {
        for len in [0, 1, 63, 64, 65, 1000] {
            let (mut x, y) = (sines(len, 1), sines(len, 2));
            if len > 3 {
                (x[1], x[2], x[3]) = (f32::NAN, 0.0, y[3]);
            }
            let expected =
                |hit: &dyn Fn(usize) -> bool| (0..len as u32).filter(|&i| hit(i as usize)).collect::<Vec<_>>();
            let mut found = Vec::new();
            indices_above(&x, 0.25, 10, &mut found);
            let shifted: Vec<u32> = found.iter().map(|i| i - 10).collect();
            assert_eq!(shifted, expected(&|i| x[i] > 0.25 || x[i].is_nan()));
            found.clear();
            indices_above_each(&x, &y, &mut found);
            assert_eq!(found, expected(&|i| x[i] > y[i] || x[i].is_nan()));
            found.clear();
            indices_of_positive_sums(&x, &y, &mut found);
            assert_eq!(found, expected(&|i| x[i] + y[i] > 0.0 || x[i].is_nan()));
            found.clear();
            indices_of_nonzero(&x, &mut found);
            assert_eq!(found, expected(&|i| x[i] != 0.0));
        }
    }

    /// Against a full sort, on elements with many ties and in orders that favor late candidates.
    #[test]
    fn top_k_agrees_with_sorting() {
        let ascending: Vec<f32> = (0..3000).map(|i| i as f32 - 100.0).collect();
        let descending: Vec<f32> = ascending.iter().rev().copied().collect();
        let ties: Vec<f32> = (0..3000).map(|i| (i * 7919 % 13) as f32 - 4.0).collect();
        let mut nan = sines(3000, 4);
        (nan[17], nan[2999]) = (f32::NAN, -f32::NAN);
        for x in [ascending, descending, ties, nan, sines(2500, 3), vec![1.0; 2000], vec![-1.0; 700]] {
            for k in [1, 2, 7, 64, 600, 4000] {
                let rank = |i: u32| if x[i as usize].is_nan() { f32::INFINITY } else { x[i as usize] };
                let mut sorted: Vec<u32> = (0..x.len() as u32).filter(|&i| rank(i) > 0.0).collect();
                sorted.sort_by(|&a, &b| rank(b).total_cmp(&rank(a)));
                sorted.truncate(k);
                sorted.sort_unstable();
                let mut found = Vec::new();
                top_k(&x, k, &mut found);
                assert_eq!(found, sorted, "k = {k}");
            }
        }
    }

    #[test]
    fn sums_and_products_agree_with_double_precision() {
        for len in [0, 1, 8, 31, 32, 33, 770] {
            let (x, before) = (sines(len, 1), sines(len, 2));
            let mut y = before.clone();
            add_scaled(0.7, &x, &mut y);
            for i in 0..len {
                assert!((y[i] as f64 - (before[i] as f64 + 0.7f32 as f64 * x[i] as f64)).abs() < 1e-6);
            }
            let truth: f64 = x.iter().zip(&before).map(|(&a, &b)| a as f64 * b as f64).sum();
            assert!((fused_dot(&x, &before) as f64 - truth).abs() < 1e-5, "{len}");
        }
    }
}
