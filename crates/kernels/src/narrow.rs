//! Panels of two-byte floats: bf16 and f16, widened in registers when there is one row.

use crate::simd::{LANES, Simd};
use crate::tile::PANEL;
use half::{bf16, f16};

/// Panels that one row is multiplied with at once: eight chains of sums, and four streams of memory.
const AT_ONCE: usize = 4;

/// How sixteen adjacent outputs of a step are kept in sixteen two-byte numbers.
pub(crate) trait Narrow {
    /// The bits of a number.
    fn narrow(x: f32) -> u16;
    /// The number of these bits.
    fn widen(bits: u16) -> f32;
    /// Where the number of lane `lane` is.
    fn place(lane: usize) -> usize;
    /// The sixteen numbers of a step.
    ///
    /// # Safety
    /// `step` must be valid for reading sixteen numbers.
    unsafe fn load<S: Simd>(s: S, step: *const u16) -> [S::V; 2];
}

/// The upper halves of f32. The lanes of the first vector are the low halves of words, those of the second the high ones: so both are had by
/// a shift and a mask.
pub(crate) struct Bf16;

impl Narrow for Bf16 {
    fn narrow(x: f32) -> u16 {
        bf16::from_f32(x).to_bits()
    }

    fn widen(bits: u16) -> f32 {
        bf16::from_bits(bits).to_f32()
    }

    fn place(lane: usize) -> usize {
        lane % LANES * 2 + lane / LANES
    }

    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, step: *const u16) -> [S::V; 2] {
        // SAFETY: the caller vouches for sixteen numbers, eight words.
        let words = unsafe { s.load_words(step.cast()) };
        [s.as_floats(s.shift_left(words, 16)), s.as_floats(s.mask(words, 0xffff_0000))]
    }
}

/// IEEE half precision.
pub(crate) struct F16;

impl Narrow for F16 {
    fn narrow(x: f32) -> u16 {
        f16::from_f32(x).to_bits()
    }

    fn widen(bits: u16) -> f32 {
        f16::from_bits(bits).to_f32()
    }

    fn place(lane: usize) -> usize {
        lane
    }

    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, step: *const u16) -> [S::V; 2] {
        // SAFETY: the caller vouches for sixteen numbers.
        unsafe { [s.load_halves(step), s.load_halves(step.add(LANES))] }
    }
}

/// Writes steps of a panel as f32.
#[inline(always)]
pub(crate) fn widen<S: Simd, N: Narrow>(s: S, steps: &[u16], out: &mut [f32]) {
    for (step, out) in steps.chunks_exact(PANEL).zip(out.chunks_exact_mut(PANEL)) {
        // SAFETY: both hold sixteen numbers.
        unsafe {
            let [low, high] = N::load(s, step.as_ptr());
            s.store(out.as_mut_ptr(), low);
            s.store(out.as_mut_ptr().add(LANES), high);
        }
    }
}

/// The products of one row with adjacent panels, sixteen numbers each.
#[inline(always)]
pub(crate) fn times_row<S: Simd, N: Narrow>(s: S, panels: &[u16], x: &[f32], out: &mut [f32]) {
    let panels = panels.chunks(AT_ONCE * PANEL * x.len().max(1));
    for (panels, out) in panels.zip(out.chunks_mut(AT_ONCE * PANEL)) {
        if out.len() == AT_ONCE * PANEL {
            times_panels::<S, N, AT_ONCE>(s, panels, x, out);
            continue;
        }
        for (panel, out) in panels.chunks(PANEL * x.len()).zip(out.chunks_mut(PANEL)) {
            times_panels::<S, N, 1>(s, panel, x, out);
        }
    }
}

#[inline(always)]
fn times_panels<S: Simd, N: Narrow, const P: usize>(s: S, panels: &[u16], x: &[f32], out: &mut [f32]) {
    assert!(panels.len() == P * PANEL * x.len() && out.len() == P * PANEL, "{P} panels and their outputs");
    let mut sums = [[s.splat(0.0); 2]; P];
    let steps = x.len();
    for (step, &x) in x.iter().enumerate() {
        let input = s.splat(x);
        for (p, sums) in sums.iter_mut().enumerate() {
            // SAFETY: each panel holds sixteen numbers for each of the inputs.
            let [low, high] = unsafe { N::load(s, panels.as_ptr().add((p * steps + step) * PANEL)) };
            sums[0] = s.fma(input, low, sums[0]);
            sums[1] = s.fma(input, high, sums[1]);
        }
    }
    for (sum, out) in sums.as_flattened().iter().zip(out.chunks_exact_mut(LANES)) {
        // SAFETY: the chunk holds eight floats.
        unsafe { s.store(out.as_mut_ptr(), *sum) };
    }
}
