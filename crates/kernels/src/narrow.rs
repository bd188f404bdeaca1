//! Panels of two-byte floats: bf16 and f16, widened in registers when there is one row.

use crate::simd::{Kernel, LANES, Lanes};
use crate::tile::{PANEL, Step, store_step, vectors};
use half::{bf16, f16};
use std::marker::PhantomData;

/// Panels that one row is multiplied with at once: at least four chains of sums, and four streams of memory.
const AT_ONCE: usize = 4;
/// Steps of a panel that a cache line holds.
const LINE: usize = 64 / (2 * PANEL);

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
    unsafe fn load<L: Lanes>(l: L, step: *const u16) -> Step<L>;
}

/// The upper halves of f32. The first eight columns are the low halves of words, the others the high ones: so eight lanes are had by a shift or a
/// mask.
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
    unsafe fn load<L: Lanes>(l: L, step: *const u16) -> Step<L> {
        // SAFETY: the caller vouches for sixteen numbers.
        unsafe { l.load_upper_halves(step) }
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
    unsafe fn load<L: Lanes>(l: L, step: *const u16) -> Step<L> {
        // SAFETY: the caller vouches for sixteen numbers.
        unsafe {
            let first = l.load_halves(step);
            [first, if vectors::<L>() == 2 { l.load_halves(step.add(L::COUNT)) } else { first }]
        }
    }
}

/// Writes steps of a panel as f32.
#[inline(always)]
pub(crate) fn widen<L: Lanes, N: Narrow>(l: L, steps: &[u16], out: &mut [f32]) {
    l.call(Widen(steps, out, PhantomData::<N>));
}

struct Widen<'a, N>(&'a [u16], &'a mut [f32], PhantomData<N>);

impl<N: Narrow> Kernel for Widen<'_, N> {
    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        for (step, out) in self.0.chunks_exact(PANEL).zip(self.1.chunks_exact_mut(PANEL)) {
            // SAFETY: both hold sixteen numbers.
            unsafe { store_step(l, out.as_mut_ptr(), N::load(l, step.as_ptr())) };
        }
    }
}

/// The products of one row with adjacent panels, sixteen numbers each.
#[inline(always)]
pub(crate) fn times_row<L: Lanes, N: Narrow>(l: L, panels: &[u16], x: &[f32], out: &mut [f32]) {
    l.call(TimesRow { panels, x, out, format: PhantomData::<N> });
}

struct TimesRow<'a, N> {
    panels: &'a [u16],
    x: &'a [f32],
    out: &'a mut [f32],
    format: PhantomData<N>,
}

impl<N: Narrow> Kernel for TimesRow<'_, N> {
    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let TimesRow { panels, x, out, .. } = self;
        let panels = panels.chunks(AT_ONCE * PANEL * x.len().max(1));
        for (panels, out) in panels.zip(out.chunks_mut(AT_ONCE * PANEL)) {
            if out.len() == AT_ONCE * PANEL {
                times_panels::<L, N, AT_ONCE>(l, panels, x, out);
                continue;
            }
            for (panel, out) in panels.chunks(PANEL * x.len()).zip(out.chunks_mut(PANEL)) {
                times_panels::<L, N, 1>(l, panel, x, out);
            }
        }
    }
}

#[inline(always)]
fn times_panels<L: Lanes, N: Narrow, const P: usize>(l: L, panels: &[u16], x: &[f32], out: &mut [f32]) {
    assert!(panels.len() == P * PANEL * x.len() && out.len() == P * PANEL, "{P} panels and their outputs");
    let mut sums = [[l.splat(0.0); 2]; P];
    let steps = x.len();
    for (line, x) in x.chunks(LINE).enumerate() {
        for (p, sums) in sums.iter_mut().enumerate() {
            let start = panels[(p * steps + line * LINE) * PANEL..].as_ptr();
            // The same place of the panels that come next, where there are some.
            l.prefetch(start.wrapping_add(panels.len()).cast());
            for (step, &x) in x.iter().enumerate() {
                // SAFETY: each panel holds sixteen numbers for each of the inputs.
                let weights = unsafe { N::load(l, start.add(step * PANEL)) };
                for v in 0..vectors::<L>() {
                    sums[v] = l.fma(l.splat(x), weights[v], sums[v]);
                }
            }
        }
    }
    for (sum, out) in sums.into_iter().zip(out.chunks_exact_mut(PANEL)) {
        // SAFETY: the chunk holds sixteen floats.
        unsafe { store_step(l, out.as_mut_ptr(), sum) };
    }
}
