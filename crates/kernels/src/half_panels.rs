//! Panels of 16-bit floats (bf16 and f16).
//!
//! A product with one row (GEMV) widens them to f32 in registers. Products with more rows widen a
//! chunk of a panel into a scratch buffer first ([`widen`]).

use crate::simd::{Kernel, LANES, Lanes};
use crate::tile::{CHAIN, PANEL, PanelRow, add_chain, store_panel_row, vectors_per_row};
use half::{bf16, f16};
use std::marker::PhantomData;

/// Panels per GEMV block: four independent accumulators hide the FMA latency, four memory streams
/// saturate the bandwidth.
const PANELS_PER_BLOCK: usize = 4;
/// Panel rows per cache line.
const ROWS_PER_CACHE_LINE: usize = 64 / (2 * PANEL);

/// Storage format of one panel row: the weights of one input for 16 adjacent outputs, as 16-bit
/// floats.
pub(crate) trait HalfFormat {
    /// Rounds to the nearest 16-bit float and returns its bits.
    fn from_f32(x: f32) -> u16;
    /// Widens the bits of a 16-bit float; exact.
    fn to_f32(bits: u16) -> f32;
    /// Index within the panel row at which the weight of column `lane` is stored.
    fn storage_index(lane: usize) -> usize;
    /// Loads a panel row, widened to f32, in column order.
    ///
    /// # Safety
    /// `row` must be valid for reading 16 `u16`.
    unsafe fn load<L: Lanes>(l: L, row: *const u16) -> PanelRow<L>;
}

/// bfloat16, the upper half of an f32. Columns 0–7 are the low and 8–15 the high halves of eight
/// 32-bit words, so one shift or one mask widens eight columns to f32.
pub(crate) struct Bf16;

impl HalfFormat for Bf16 {
    fn from_f32(x: f32) -> u16 {
        bf16::from_f32(x).to_bits()
    }

    fn to_f32(bits: u16) -> f32 {
        bf16::from_bits(bits).to_f32()
    }

    fn storage_index(lane: usize) -> usize {
        lane % LANES * 2 + lane / LANES
    }

    #[inline(always)]
    unsafe fn load<L: Lanes>(l: L, row: *const u16) -> PanelRow<L> {
        // SAFETY: the caller guarantees 16 readable elements.
        unsafe { l.load_bf16_panel_row(row) }
    }
}

/// IEEE half precision, in column order.
pub(crate) struct F16;

impl HalfFormat for F16 {
    fn from_f32(x: f32) -> u16 {
        f16::from_f32(x).to_bits()
    }

    fn to_f32(bits: u16) -> f32 {
        f16::from_bits(bits).to_f32()
    }

    fn storage_index(lane: usize) -> usize {
        lane
    }

    #[inline(always)]
    unsafe fn load<L: Lanes>(l: L, row: *const u16) -> PanelRow<L> {
        // SAFETY: the caller guarantees 16 readable elements.
        unsafe {
            let first = l.load_f16(row);
            [first, if vectors_per_row::<L>() == 2 { l.load_f16(row.add(L::COUNT)) } else { first }]
        }
    }
}

/// Widens panel rows to f32.
#[inline(always)]
pub(crate) fn widen<L: Lanes, N: HalfFormat>(l: L, steps: &[u16], out: &mut [f32]) {
    l.call(WidenHalfPanel(steps, out, PhantomData::<N>));
}

struct WidenHalfPanel<'a, N>(&'a [u16], &'a mut [f32], PhantomData<N>);

impl<N: HalfFormat> Kernel for WidenHalfPanel<'_, N> {
    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        for (row, out) in self.0.chunks_exact(PANEL).zip(self.1.chunks_exact_mut(PANEL)) {
            // SAFETY: both chunks hold 16 elements.
            unsafe { store_panel_row(l, out.as_mut_ptr(), N::load(l, row.as_ptr())) };
        }
    }
}

/// Multiplies one row `x` by adjacent panels; writes 16 outputs per panel.
#[inline(always)]
pub(crate) fn multiply_row<L: Lanes, N: HalfFormat>(l: L, panels: &[u16], x: &[f32], out: &mut [f32]) {
    l.call(HalfRowProduct { panels, x, out, format: PhantomData::<N> });
}

struct HalfRowProduct<'a, N> {
    panels: &'a [u16],
    x: &'a [f32],
    out: &'a mut [f32],
    format: PhantomData<N>,
}

impl<N: HalfFormat> Kernel for HalfRowProduct<'_, N> {
    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let HalfRowProduct { panels, x, out, .. } = self;
        let panels = panels.chunks(PANELS_PER_BLOCK * PANEL * x.len().max(1));
        for (panels, out) in panels.zip(out.chunks_mut(PANELS_PER_BLOCK * PANEL)) {
            if out.len() == PANELS_PER_BLOCK * PANEL {
                multiply_panels::<L, N, PANELS_PER_BLOCK>(l, panels, x, out);
                continue;
            }
            for (panel, out) in panels.chunks(PANEL * x.len()).zip(out.chunks_mut(PANEL)) {
                multiply_panels::<L, N, 1>(l, panel, x, out);
            }
        }
    }
}

#[inline(always)]
fn multiply_panels<L: Lanes, N: HalfFormat, const P: usize>(l: L, panels: &[u16], x: &[f32], out: &mut [f32]) {
    assert!(panels.len() == P * PANEL * x.len() && out.len() == P * PANEL, "{P} panels and their outputs");
    let inner = x.len();
    for (chain, x) in x.chunks(CHAIN).enumerate() {
        let mut sums = [[l.splat(0.0); 2]; P];
        for (line, x) in x.chunks(ROWS_PER_CACHE_LINE).enumerate() {
            for (p, sums) in sums.iter_mut().enumerate() {
                let first = chain * CHAIN + line * ROWS_PER_CACHE_LINE;
                let start = panels[(p * inner + first) * PANEL..].as_ptr();
                // Prefetch the same offset of the next block of panels; past the end this is
                // harmless.
                l.prefetch(start.wrapping_add(panels.len()).cast());
                for (row, &x) in x.iter().enumerate() {
                    // SAFETY: each panel holds one row of 16 elements per input.
                    let weights = unsafe { N::load(l, start.add(row * PANEL)) };
                    for v in 0..vectors_per_row::<L>() {
                        sums[v] = l.fma(l.splat(x), weights[v], sums[v]);
                    }
                }
            }
        }
        add_chain(l, &sums, out, chain == 0);
    }
}
