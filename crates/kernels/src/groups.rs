//! Quantised panels: weights in the block formats of GGUF, rearranged as [`formats`](crate::formats) says, and multiplied without ever being
//! written down as f32 when there is one row.

use crate::dispatch;
use crate::encoding::Encoding;
use crate::formats::*;
use crate::memory::{Aligned, Shared};
use crate::pool::Pool;
use crate::simd::{Kernel, Lanes, Simd};
use crate::tile::{PANEL, store_step, vectors};
use std::marker::PhantomData;
use std::ops::Range;

/// Runs something for the format of an encoding, or something else where it has none.
macro_rules! with_format {
    ($encoding:expr, $format:ident => $do:expr, else $otherwise:expr) => {
        match $encoding {
            Encoding::Q4_0 => with_format!(@ Q4_0, $format, $do),
            Encoding::Q4_1 => with_format!(@ Q4_1, $format, $do),
            Encoding::Q5_0 => with_format!(@ Q5_0, $format, $do),
            Encoding::Q5_1 => with_format!(@ Q5_1, $format, $do),
            Encoding::Q8_0 => with_format!(@ Q8_0, $format, $do),
            Encoding::Q4_K => with_format!(@ Q4_K, $format, $do),
            Encoding::Q5_K => with_format!(@ Q5_K, $format, $do),
            Encoding::Q6_K => with_format!(@ Q6_K, $format, $do),
            _ => $otherwise,
        }
    };
    (@ $name:ident, $format:ident, $do:expr) => {{
        type $format = $name;
        $do
    }};
}

/// Runs something for every place of a part, written out one after the other: masks and powers of two are constants then.
macro_rules! for_each_place {
    ($format:ident, $part:expr, $place:ident => $do:expr) => {
        for_each_place!(@ $format, $part, $place => $do, 0 1 2 3 4 5 6 7)
    };
    (@ $format:ident, $part:expr, $place:ident => $do:expr, $($number:literal)*) => {$(
        if let Some($place) = Place::of_part::<$format>($part, $number) {
            $do
        }
    )*};
}

/// Shows the stored bytes of a row to a function.
pub(crate) type Visit<'a> = &'a (dyn Fn(usize, &mut dyn FnMut(&[u8])) + Sync);

/// A matrix of quantised panels.
pub(crate) struct Groups {
    encoding: Encoding,
    cols: usize,
    /// Panel after panel, block after block.
    data: Aligned<u8>,
}

impl Groups {
    /// Repacks rows of an encoding that has a format of panels; `None` for the others. `visit` shows the stored bytes of a row to a function.
    pub fn pack(pool: &Pool, rows: usize, cols: usize, encoding: Encoding, visit: Visit) -> Option<Groups> {
        let data = with_format!(encoding, F => pack::<F>(pool, rows, cols, visit), else return None);
        Some(Groups { encoding, cols, data })
    }

    /// Bytes that [`Groups::pack`] takes for a matrix; `None` for the encodings that have no format of panels.
    pub fn bytes_for(rows: usize, cols: usize, encoding: Encoding) -> Option<usize> {
        Some(with_format!(encoding, F => rows.div_ceil(PANEL) * panel_bytes::<F>(cols), else return None))
    }

    pub fn encoding(&self) -> Encoding {
        self.encoding
    }

    pub fn bytes(&self) -> usize {
        self.data.len()
    }

    /// Where the panels begin, and their bytes.
    pub fn place(&self) -> (*const u8, usize) {
        (self.data.as_ptr(), self.data.len())
    }

    /// Writes a row as f32: it is one lane of its panel.
    pub fn row(&self, row: usize, out: &mut [f32]) {
        let mut wide = [0.0; SPAN * PANEL];
        for (i, out) in out.chunks_exact_mut(SPAN).enumerate() {
            widen_span(self, row / PANEL, i * SPAN, &mut wide);
            out.iter_mut().zip(wide.chunks_exact(PANEL)).for_each(|(x, step)| *x = step[row % PANEL]);
        }
    }

    /// Widens steps `from..to` of a panel (whole spans) to f32.
    #[inline(always)]
    pub fn widen<L: Lanes>(&self, l: L, panel: usize, from: usize, to: usize, out: &mut [f32]) {
        with_format!(self.encoding, F => l.call(Widen { groups: self, panel, steps: from..to, out, format: PhantomData::<F> }), else unreachable!("only packed formats"))
    }

    /// The products of one row with adjacent panels, sixteen numbers each.
    #[inline(always)]
    pub fn times_row<L: Lanes>(&self, l: L, x: &[f32], first_panel: usize, out: &mut [f32]) {
        with_format!(self.encoding, F => l.call(TimesRow { groups: self, x, first_panel, out, format: PhantomData::<F> }), else unreachable!("only packed formats"))
    }

    /// The blocks of a panel.
    #[inline(always)]
    fn panel<F: Format>(&self, panel: usize) -> &[u8] {
        let size = panel_bytes::<F>(self.cols);
        &self.data[panel * size..][..size]
    }
}

fn panel_bytes<F: Format>(cols: usize) -> usize {
    cols / (F::SPANS * SPAN) * block_bytes::<F>()
}

fn pack<F: Format>(pool: &Pool, rows: usize, cols: usize, visit: Visit) -> Aligned<u8> {
    let (panels, size) = (rows.div_ceil(PANEL), panel_bytes::<F>(cols));
    let mut data = Aligned::lasting(pool, panels * size);
    let shared = Shared::new(&mut data);
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
    /// Puts a stored row into its lane of a panel.
    fn pack_lane(encoding: Encoding, row: &[u8], lane: usize, panel: &mut [u8]) = pack_lane_with
}

#[inline(always)]
fn pack_lane_with<S: Simd>(_s: S, encoding: Encoding, row: &[u8], lane: usize, panel: &mut [u8]) {
    with_format!(encoding, F => pack_lane_of::<F>(row, lane, panel), else unreachable!("only packed formats"))
}

#[inline(always)]
fn pack_lane_of<F: Format>(row: &[u8], lane: usize, panel: &mut [u8]) {
    let blocks = row.chunks_exact(F::ENCODING.block_bytes()).zip(panel.chunks_exact_mut(block_bytes::<F>()));
    for (stored, block) in blocks {
        F::heads(stored, lane, block);
        for (i, span) in block[F::HEAD..].chunks_exact_mut(span_bytes::<F>()).enumerate() {
            let words = words::<F>(&F::codes(stored, i));
            for (columns, word) in span[F::SPAN_HEAD..].chunks_exact_mut(4 * PANEL).zip(words) {
                columns[4 * lane..][..4].copy_from_slice(&word.to_le_bytes());
            }
        }
    }
}

dispatch! { fn widen_span(groups: &Groups, panel: usize, from: usize, out: &mut [f32]) = widen_span_with }

#[inline(always)]
fn widen_span_with<S: Simd>(s: S, groups: &Groups, panel: usize, from: usize, out: &mut [f32]) {
    groups.widen(s.panel(), panel, from, from + SPAN, out);
}

/// Steps of a panel (whole spans) become f32.
struct Widen<'a, F> {
    groups: &'a Groups,
    panel: usize,
    steps: Range<usize>,
    out: &'a mut [f32],
    format: PhantomData<F>,
}

impl<F: Format> Kernel for Widen<'_, F> {
    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let Widen { groups, panel, steps, out, .. } = self;
        let blocks = groups.panel::<F>(panel);
        for (index, out) in (steps.start / SPAN..steps.end / SPAN).zip(out.chunks_exact_mut(SPAN * PANEL)) {
            let block = &blocks[index / F::SPANS * block_bytes::<F>()..][..block_bytes::<F>()];
            let span = &block[F::HEAD + index % F::SPANS * span_bytes::<F>()..][..span_bytes::<F>()];
            for column in (0..PANEL).step_by(L::COUNT) {
                for part in 0..SPAN / F::STEPS {
                    // SAFETY: block and span are whole; a part is a whole number of words, and `out` holds sixteen floats a step.
                    unsafe {
                        let scales = F::scales(l, block.as_ptr(), span.as_ptr(), column, part);
                        let codes = span.as_ptr().add(F::SPAN_HEAD);
                        for_each_place!(F, part, place => {
                            let scales = place.scales::<L, F>(l, scales);
                            for word in 0..abreast::<F>() {
                                let values = F::values(l, place.codes::<L, F>(l, codes, word, column), scales);
                                l.store(out.as_mut_ptr().add(place.step::<F>(word) * PANEL + column), values);
                            }
                        });
                    }
                }
            }
        }
    }
}

/// Panels that one row is multiplied with at once: four chains of sums keep the arithmetic busy; where codes are put together from two words,
/// AVX2's registers are enough for two.
const fn panels_at_once<L: Lanes, F: Format>() -> usize {
    match place_bits::<F>() == F::BITS {
        true => 4 / vectors::<L>(),
        false => 2 / vectors::<L>(),
    }
}

/// The products of one row with adjacent panels from `first_panel` on.
struct TimesRow<'a, F> {
    groups: &'a Groups,
    x: &'a [f32],
    first_panel: usize,
    out: &'a mut [f32],
    format: PhantomData<F>,
}

impl<F: Format> Kernel for TimesRow<'_, F> {
    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let TimesRow { groups, x, first_panel, out, .. } = self;
        let at_once = panels_at_once::<L, F>();
        for (i, out) in out.chunks_mut(at_once * PANEL).enumerate() {
            let panel = first_panel + i * at_once;
            match out.len() / PANEL {
                4 if at_once == 4 => times_panels::<L, F, 4>(l, groups, x, panel, out),
                2 if at_once == 2 => times_panels::<L, F, 2>(l, groups, x, panel, out),
                _ => {
                    for (i, out) in out.chunks_mut(PANEL).enumerate() {
                        times_panels::<L, F, 1>(l, groups, x, panel + i, out);
                    }
                }
            }
        }
    }
}

/// One row times `P` panels: codes become numbers in registers and go straight into the sums.
#[expect(clippy::needless_range_loop, reason = "indices over panels and vectors keep the loops plain enough to unroll")]
#[inline(always)]
fn times_panels<L: Lanes, F: Format, const P: usize>(l: L, groups: &Groups, x: &[f32], panel: usize, out: &mut [f32]) {
    assert!(x.len() == groups.cols && out.len() == P * PANEL, "a row of inputs and {P} panels of outputs");
    let panels: [&[u8]; P] = std::array::from_fn(|p| groups.panel::<F>(panel + p));
    let mut sums = [[l.splat(0.0); 2]; P];
    let mut x = x.as_ptr();
    for block in 0..groups.cols / (F::SPANS * SPAN) {
        let blocks = panels.map(|panel| panel[block * block_bytes::<F>()..][..block_bytes::<F>()].as_ptr());
        for span in 0..F::SPANS {
            for part in 0..SPAN / F::STEPS {
                // SAFETY: blocks are whole, and so are the spans in them; a span takes as many inputs as it has steps.
                unsafe {
                    let mut scales = [[[l.splat(0.0); 2]; 2]; P];
                    let mut codes = [std::ptr::null(); P];
                    for p in 0..P {
                        let span = blocks[p].add(F::HEAD + span * span_bytes::<F>());
                        for line in 0..span_bytes::<F>().div_ceil(64) {
                            l.prefetch(span.wrapping_add(P * panels[0].len() + line * 64).cast());
                        }
                        for v in 0..vectors::<L>() {
                            scales[p][v] = F::scales(l, blocks[p], span, v * L::COUNT, part);
                        }
                        codes[p] = span.add(F::SPAN_HEAD);
                    }
                    for_each_place!(F, part, place => {
                        let mut here = scales;
                        for p in 0..P {
                            for v in 0..vectors::<L>() {
                                here[p][v] = place.scales::<L, F>(l, scales[p][v]);
                            }
                        }
                        for word in 0..abreast::<F>() {
                            let input = l.splat(*x.add(place.step::<F>(word)));
                            for p in 0..P {
                                for v in 0..vectors::<L>() {
                                    let codes = place.codes::<L, F>(l, codes[p], word, v * L::COUNT);
                                    sums[p][v] = l.fma(input, F::values(l, codes, here[p][v]), sums[p][v]);
                                }
                            }
                        }
                    });
                }
            }
            x = x.wrapping_add(SPAN);
        }
    }
    for (sum, out) in sums.into_iter().zip(out.chunks_exact_mut(PANEL)) {
        // SAFETY: the chunk holds sixteen floats.
        unsafe { store_step(l, out.as_mut_ptr(), sum) };
    }
}
