//! Quantized panels: weights in GGUF block formats, rearranged as
//! [`quant_layout`](crate::quant_layout) describes. A product with one row (GEMV) dequantizes in
//! registers, without writing f32 weights to memory.

use crate::dispatch;
use crate::encoding::Encoding;
use crate::memory::{AlignedBuffer, DisjointMut};
use crate::pool::Pool;
use crate::quant_layout::*;
use crate::simd::{Kernel, Lanes, Simd};
use crate::tile::{CHAIN, PANEL, add_chain, vectors_per_row};
use std::marker::PhantomData;
use std::ops::Range;

/// Evaluates `$do` with `$format` as the panel format of an encoding, or `$fallback` if it has
/// none.
macro_rules! with_format {
    ($encoding:expr, $format:ident => $do:expr, else $fallback:expr) => {
        match $encoding {
            Encoding::Q4_0 => with_format!(@ Q4_0, $format, $do),
            Encoding::Q4_1 => with_format!(@ Q4_1, $format, $do),
            Encoding::Q5_0 => with_format!(@ Q5_0, $format, $do),
            Encoding::Q5_1 => with_format!(@ Q5_1, $format, $do),
            Encoding::Q8_0 => with_format!(@ Q8_0, $format, $do),
            Encoding::Q4_K => with_format!(@ Q4_K, $format, $do),
            Encoding::Q5_K => with_format!(@ Q5_K, $format, $do),
            Encoding::Q6_K => with_format!(@ Q6_K, $format, $do),
            _ => $fallback,
        }
    };
    (@ $name:ident, $format:ident, $do:expr) => {{
        type $format = $name;
        $do
    }};
}

/// Unrolls `$do` over the slots of a scale group, so that masks and powers of two are constants.
macro_rules! for_each_slot {
    ($format:ident, $group:expr, $slot:ident => $do:expr) => {
        for_each_slot!(@ $format, $group, $slot => $do, 0 1 2 3 4 5 6 7)
    };
    (@ $format:ident, $group:expr, $slot:ident => $do:expr, $($index:literal)*) => {$(
        if let Some($slot) = CodeSlot::in_group::<$format>($group, $index) {
            $do
        }
    )*};
}

/// Calls a function with the encoded bytes of a row.
pub(crate) type VisitRow<'a> = &'a (dyn Fn(usize, &mut dyn FnMut(&[u8])) + Sync);

/// A matrix of quantized panels.
pub(crate) struct QuantPanels {
    encoding: Encoding,
    cols: usize,
    /// `[panels][blocks]`, each block as in [`quant_layout`](crate::quant_layout).
    data: AlignedBuffer<u8>,
}

impl QuantPanels {
    /// Repacks encoded rows into panels; `None` if the encoding has no panel format.
    pub fn pack(pool: &Pool, rows: usize, cols: usize, encoding: Encoding, visit: VisitRow) -> Option<QuantPanels> {
        let data = with_format!(encoding, F => pack::<F>(pool, rows, cols, visit), else return None);
        Some(QuantPanels { encoding, cols, data })
    }

    /// Bytes that [`QuantPanels::pack`] allocates; `None` if the encoding has no panel format.
    pub fn bytes_for(rows: usize, cols: usize, encoding: Encoding) -> Option<usize> {
        Some(with_format!(encoding, F => rows.div_ceil(PANEL) * panel_bytes::<F>(cols), else return None))
    }

    pub fn encoding(&self) -> Encoding {
        self.encoding
    }

    pub fn bytes(&self) -> usize {
        self.data.len()
    }

    /// Address and size in bytes of all panels.
    pub fn memory(&self) -> (*const u8, usize) {
        (self.data.as_ptr(), self.data.len())
    }

    /// Writes a matrix row, which is one column of its panel, as f32.
    pub fn row(&self, row: usize, out: &mut [f32]) {
        let mut wide = [0.0; SPAN * PANEL];
        for (i, out) in out.chunks_exact_mut(SPAN).enumerate() {
            widen_span(self, row / PANEL, i * SPAN, &mut wide);
            out.iter_mut().zip(wide.chunks_exact(PANEL)).for_each(|(x, row_of_panel)| *x = row_of_panel[row % PANEL]);
        }
    }

    /// Widens rows `from..to` of a panel (whole spans) to f32.
    #[inline(always)]
    pub fn widen<L: Lanes>(&self, l: L, panel: usize, from: usize, to: usize, out: &mut [f32]) {
        with_format!(self.encoding, F => l.call(WidenQuantPanel { matrix: self, panel, rows: from..to, out, format: PhantomData::<F> }), else unreachable!("only encodings with a panel format"))
    }

    /// Multiplies one row `x` by adjacent panels; writes 16 outputs per panel.
    #[inline(always)]
    pub fn multiply_row<L: Lanes>(&self, l: L, x: &[f32], first_panel: usize, out: &mut [f32]) {
        with_format!(self.encoding, F => l.call(QuantRowProduct { matrix: self, x, first_panel, out, format: PhantomData::<F> }), else unreachable!("only encodings with a panel format"))
    }

    /// Blocks of a panel.
    #[inline(always)]
    fn panel<F: QuantFormat>(&self, panel: usize) -> &[u8] {
        let size = panel_bytes::<F>(self.cols);
        &self.data[panel * size..][..size]
    }
}

fn panel_bytes<F: QuantFormat>(cols: usize) -> usize {
    cols / (F::SPANS_PER_BLOCK * SPAN) * block_bytes::<F>()
}

fn pack<F: QuantFormat>(pool: &Pool, rows: usize, cols: usize, visit: VisitRow) -> AlignedBuffer<u8> {
    let (panels, size) = (rows.div_ceil(PANEL), panel_bytes::<F>(cols));
    let mut data = AlignedBuffer::zeroed_in_slab(pool, panels * size);
    let shared = DisjointMut::new(&mut data);
    pool.run(panels, &|panel| {
        // SAFETY: each task has its own panel.
        let out = unsafe { shared.part(panel * size, size) };
        for lane in 0..PANEL.min(rows - panel * PANEL) {
            visit(panel * PANEL + lane, &mut |row| pack_lane(F::ENCODING, row, lane, out));
        }
    });
    data
}

dispatch! {
    /// Packs an encoded row into its column of a panel.
    fn pack_lane(encoding: Encoding, row: &[u8], lane: usize, panel: &mut [u8]) = pack_lane_with
}

#[inline(always)]
fn pack_lane_with<S: Simd>(_s: S, encoding: Encoding, row: &[u8], lane: usize, panel: &mut [u8]) {
    with_format!(encoding, F => pack_lane_of::<F>(row, lane, panel), else unreachable!("only encodings with a panel format"))
}

#[inline(always)]
fn pack_lane_of<F: QuantFormat>(row: &[u8], lane: usize, panel: &mut [u8]) {
    let blocks = row.chunks_exact(F::ENCODING.block_bytes()).zip(panel.chunks_exact_mut(block_bytes::<F>()));
    for (stored, block) in blocks {
        F::write_headers(stored, lane, block);
        for (i, span) in block[F::BLOCK_HEADER..].chunks_exact_mut(span_bytes::<F>()).enumerate() {
            let words = pack_words::<F>(&F::unpack_codes(stored, i));
            for (columns, word) in span[F::SPAN_HEADER..].chunks_exact_mut(4 * PANEL).zip(words) {
                columns[4 * lane..][..4].copy_from_slice(&word.to_le_bytes());
            }
        }
    }
}

dispatch! { fn widen_span(matrix: &QuantPanels, panel: usize, from: usize, out: &mut [f32]) = widen_span_with }

#[inline(always)]
fn widen_span_with<S: Simd>(s: S, matrix: &QuantPanels, panel: usize, from: usize, out: &mut [f32]) {
    matrix.widen(s.panel(), panel, from, from + SPAN, out);
}

/// Widens rows of a panel (whole spans) to f32.
struct WidenQuantPanel<'a, F> {
    matrix: &'a QuantPanels,
    panel: usize,
    rows: Range<usize>,
    out: &'a mut [f32],
    format: PhantomData<F>,
}

impl<F: QuantFormat> Kernel for WidenQuantPanel<'_, F> {
    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let WidenQuantPanel { matrix, panel, rows, out, .. } = self;
        let blocks = matrix.panel::<F>(panel);
        for (index, out) in (rows.start / SPAN..rows.end / SPAN).zip(out.chunks_exact_mut(SPAN * PANEL)) {
            let block = &blocks[index / F::SPANS_PER_BLOCK * block_bytes::<F>()..][..block_bytes::<F>()];
            let span = &block[F::BLOCK_HEADER + index % F::SPANS_PER_BLOCK * span_bytes::<F>()..][..span_bytes::<F>()];
            for column in (0..PANEL).step_by(L::COUNT) {
                for group in 0..SPAN / F::ROWS_PER_SCALE {
                    // SAFETY: block and span are complete, a scale group is a whole number of
                    // words, and `out` holds 16 floats per row.
                    unsafe {
                        let scales = F::load_scales(l, block.as_ptr(), span.as_ptr(), column, group);
                        let codes = span.as_ptr().add(F::SPAN_HEADER);
                        for_each_slot!(F, group, slot => {
                            let scales = slot.adjust_scales::<L, F>(l, scales);
                            for word in 0..words_per_slot::<F>() {
                                let values = F::dequantize(l, slot.load_codes::<L, F>(l, codes, word, column), scales);
                                l.store(out.as_mut_ptr().add(slot.row::<F>(word) * PANEL + column), values);
                            }
                        });
                    }
                }
            }
        }
    }
}

/// Panels per GEMV block: four independent accumulators hide the FMA latency. Codes split over two
/// words need more registers, so AVX2 has enough for only two.
const fn panels_per_block<L: Lanes, F: QuantFormat>() -> usize {
    match slot_bits::<F>() == F::BITS {
        true => 4 / vectors_per_row::<L>(),
        false => 2 / vectors_per_row::<L>(),
    }
}

/// Multiplies one row by adjacent panels, starting at `first_panel`.
struct QuantRowProduct<'a, F> {
    matrix: &'a QuantPanels,
    x: &'a [f32],
    first_panel: usize,
    out: &'a mut [f32],
    format: PhantomData<F>,
}

impl<F: QuantFormat> Kernel for QuantRowProduct<'_, F> {
    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let QuantRowProduct { matrix, x, first_panel, out, .. } = self;
        let panels_per_block = panels_per_block::<L, F>();
        for (i, out) in out.chunks_mut(panels_per_block * PANEL).enumerate() {
            let panel = first_panel + i * panels_per_block;
            match out.len() / PANEL {
                4 if panels_per_block == 4 => multiply_panels::<L, F, 4>(l, matrix, x, panel, out),
                2 if panels_per_block == 2 => multiply_panels::<L, F, 2>(l, matrix, x, panel, out),
                _ => {
                    for (i, out) in out.chunks_mut(PANEL).enumerate() {
                        multiply_panels::<L, F, 1>(l, matrix, x, panel + i, out);
                    }
                }
            }
        }
    }
}

/// Multiplies one row by `P` panels: codes are dequantized in registers and accumulated directly.
#[expect(clippy::needless_range_loop, reason = "indices over panels and vectors keep the loops plain enough to unroll")]
#[inline(always)]
fn multiply_panels<L: Lanes, F: QuantFormat, const P: usize>(
    l: L,
    matrix: &QuantPanels,
    x: &[f32],
    panel: usize,
    out: &mut [f32],
) {
    assert!(x.len() == matrix.cols && out.len() == P * PANEL, "a row of inputs and {P} panels of outputs");
    let panels: [&[u8]; P] = std::array::from_fn(|p| matrix.panel::<F>(panel + p));
    let mut sums = [[l.splat(0.0); 2]; P];
    let mut x = x.as_ptr();
    let blocks_per_chain = CHAIN / (F::SPANS_PER_BLOCK * SPAN);
    let block_count = matrix.cols / (F::SPANS_PER_BLOCK * SPAN);
    for block in 0..block_count {
        let blocks = panels.map(|panel| panel[block * block_bytes::<F>()..][..block_bytes::<F>()].as_ptr());
        for span in 0..F::SPANS_PER_BLOCK {
            for group in 0..SPAN / F::ROWS_PER_SCALE {
                // SAFETY: blocks are complete, and so are the spans in them; `x` has one input per
                // row of a span.
                unsafe {
                    let mut scales = [[[l.splat(0.0); 2]; 2]; P];
                    let mut codes = [std::ptr::null(); P];
                    for p in 0..P {
                        let span = blocks[p].add(F::BLOCK_HEADER + span * span_bytes::<F>());
                        for line in 0..span_bytes::<F>().div_ceil(64) {
                            l.prefetch(span.wrapping_add(P * panels[0].len() + line * 64).cast());
                        }
                        for v in 0..vectors_per_row::<L>() {
                            scales[p][v] = F::load_scales(l, blocks[p], span, v * L::COUNT, group);
                        }
                        codes[p] = span.add(F::SPAN_HEADER);
                    }
                    for_each_slot!(F, group, slot => {
                        let mut here = scales;
                        for p in 0..P {
                            for v in 0..vectors_per_row::<L>() {
                                here[p][v] = slot.adjust_scales::<L, F>(l, scales[p][v]);
                            }
                        }
                        for word in 0..words_per_slot::<F>() {
                            let input = l.splat(*x.add(slot.row::<F>(word)));
                            for p in 0..P {
                                for v in 0..vectors_per_row::<L>() {
                                    let codes = slot.load_codes::<L, F>(l, codes[p], word, v * L::COUNT);
                                    sums[p][v] = l.fma(input, F::dequantize(l, codes, here[p][v]), sums[p][v]);
                                }
                            }
                        }
                    });
                }
            }
            x = x.wrapping_add(SPAN);
        }
        if (block + 1) % blocks_per_chain == 0 || block + 1 == block_count {
            add_chain(l, &sums, out, block < blocks_per_chain);
            sums = [[l.splat(0.0); 2]; P];
        }
    }
}
