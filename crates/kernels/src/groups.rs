//! Quantised panels: the simplest block formats, repacked so that one step of the inner dimension is sixteen adjacent codes.
//!
//! A block of 32 values of one row has a half-precision scale and perhaps a minimum. Sixteen rows' blocks become 32 steps of sixteen codes, with
//! their scales and minima beside them: as many bytes as in the file, and widened without moving anything between lanes.

use crate::encoding::Encoding;
use crate::matrix::RowBytes;
use crate::memory::{Aligned, Shared};
use crate::pool::Pool;
use crate::simd::{LANES, Simd};
use crate::tile::PANEL;
use half::f16;
use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};

/// Values in a block.
const GROUP: usize = 32;

/// How a format stores its codes: `value = (code - centre) · scale + minimum`.
#[derive(Clone, Copy)]
struct Format {
    encoding: Encoding,
    bits: usize,
    centre: f32,
    /// Whether a minimum follows the scale.
    minimum: bool,
}

impl Format {
    fn of(encoding: Encoding) -> Option<Format> {
        let (bits, centre, minimum) = match encoding {
            Encoding::Q4_0 => (4, 8.0, false),
            Encoding::Q4_1 => (4, 0.0, true),
            Encoding::Q8_0 => (8, 128.0, false),
            _ => return None,
        };
        Some(Format { encoding, bits, centre, minimum })
    }

    /// Bytes of one step's sixteen codes.
    fn step(self) -> usize {
        PANEL * self.bits / 8
    }

    /// Code `k` of a block, made unsigned.
    fn code(self, block: &[u8], k: usize) -> u8 {
        let codes = &block[if self.minimum { 4 } else { 2 }..];
        match self.bits {
            8 => codes[k] ^ 0x80,
            _ if k < GROUP / 2 => codes[k] & 15,
            _ => codes[k - GROUP / 2] >> 4,
        }
    }
}

/// A matrix of quantised panels.
pub(crate) struct Groups {
    format: Format,
    cols: usize,
    /// `[panels][cols][step]`
    codes: Aligned<u8>,
    /// `[panels][cols / 32][16]`, half precision.
    scales: Aligned<u16>,
    minima: Aligned<u16>,
}

impl Groups {
    /// Repacks rows of an encoding that has this form; `None` for the others.
    pub fn pack(pool: &Pool, rows: usize, cols: usize, encoding: Encoding, bytes: &dyn RowBytes) -> Option<Groups> {
        let format = Format::of(encoding)?;
        let (panels, groups) = (rows.div_ceil(PANEL), cols / GROUP);
        let mut packed = Groups {
            format,
            cols,
            codes: Aligned::zeroed(panels * cols * format.step()),
            scales: Aligned::zeroed(panels * groups * PANEL),
            minima: Aligned::zeroed(if format.minimum { panels * groups * PANEL } else { 0 }),
        };
        let (codes, scales, minima) =
            (Shared::new(&mut packed.codes), Shared::new(&mut packed.scales), Shared::new(&mut packed.minima));
        pool.run(panels, &|panel| {
            // SAFETY: each task has its own panel's codes, scales and minima.
            let (codes, scales) = unsafe {
                (
                    codes.part(panel * cols * format.step(), cols * format.step()),
                    scales.part(panel * groups * PANEL, groups * PANEL),
                )
            };
            // SAFETY: as above; formats without minima have an empty part.
            let minima =
                unsafe { minima.part(panel * groups * PANEL, if format.minimum { groups * PANEL } else { 0 }) };
            for lane in 0..PANEL.min(rows - panel * PANEL) {
                let row = bytes.row(panel * PANEL + lane);
                for (group, block) in row.chunks_exact(encoding.block_bytes()).enumerate() {
                    scales[group * PANEL + lane] = u16::from_le_bytes([block[0], block[1]]);
                    if format.minimum {
                        minima[group * PANEL + lane] = u16::from_le_bytes([block[2], block[3]]);
                    }
                    for k in 0..GROUP {
                        let step = &mut codes[(group * GROUP + k) * format.step()..][..format.step()];
                        let code = format.code(block, k);
                        match format.bits {
                            8 => step[lane] = code,
                            // The first eight lanes are the low halves of a step's bytes, the others the high ones.
                            _ => step[lane % LANES] |= if lane < LANES { code } else { code << 4 },
                        }
                    }
                }
            }
        });
        Some(packed)
    }

    pub fn encoding(&self) -> Encoding {
        self.format.encoding
    }

    pub fn bytes(&self) -> usize {
        self.codes.len() + 2 * (self.scales.len() + self.minima.len())
    }

    /// Writes a row as f32.
    pub fn row(&self, row: usize, out: &mut [f32]) {
        let (panel, lane) = (row / PANEL, row % PANEL);
        for (k, x) in out.iter_mut().enumerate() {
            let step = &self.codes[(panel * self.cols + k) * self.format.step()..][..self.format.step()];
            let code = match self.format.bits {
                8 => step[lane],
                _ if lane < LANES => step[lane] & 15,
                _ => step[lane - LANES] >> 4,
            };
            let group = (panel * (self.cols / GROUP) + k / GROUP) * PANEL + lane;
            let value = (code as f32 - self.format.centre) * f16::from_bits(self.scales[group]).to_f32();
            *x = if self.format.minimum { value + f16::from_bits(self.minima[group]).to_f32() } else { value };
        }
    }

    /// Widens steps `from..to` of a panel (whole groups) to f32.
    #[inline(always)]
    pub fn widen<S: Simd>(&self, s: S, panel: usize, from: usize, to: usize, out: &mut [f32]) {
        let (step, centre) = (self.format.step(), s.splat(self.format.centre));
        for group in from / GROUP..to / GROUP {
            let at = (panel * (self.cols / GROUP) + group) * PANEL;
            let [scale_low, scale_high] = halves(s, &self.scales[at..at + PANEL]);
            let minima = self.format.minimum.then(|| halves(s, &self.minima[at..at + PANEL]));
            let codes = &self.codes[(panel * self.cols + group * GROUP) * step..][..GROUP * step];
            let out = &mut out[(group * GROUP - from) * PANEL..][..GROUP * PANEL];
            for (codes, out) in codes.chunks_exact(step).zip(out.chunks_exact_mut(PANEL)) {
                let word = |at: usize| {
                    let mut bytes = [0; 8];
                    bytes.copy_from_slice(&codes[at..at + 8]);
                    u64::from_le_bytes(bytes)
                };
                const LOW: u64 = 0x0f0f_0f0f_0f0f_0f0f;
                let (low, high) =
                    if self.format.bits == 4 { (word(0) & LOW, (word(0) >> 4) & LOW) } else { (word(0), word(8)) };
                let mut low = s.mul(s.sub(s.widen_bytes(low), centre), scale_low);
                let mut high = s.mul(s.sub(s.widen_bytes(high), centre), scale_high);
                if let Some([minimum_low, minimum_high]) = minima {
                    // Two roundings, as in the format's definition: the values have the same bits as decoded ones.
                    (low, high) = (s.add(low, minimum_low), s.add(high, minimum_high));
                }
                // SAFETY: `out` holds sixteen floats.
                unsafe {
                    s.store(out.as_mut_ptr(), low);
                    s.store(out.as_mut_ptr().add(LANES), high);
                }
            }
        }
    }
}

/// Sixteen half-precision numbers as two vectors.
#[inline(always)]
fn halves<S: Simd>(s: S, bits: &[u16]) -> [S::V; 2] {
    let mut wide = [0.0; PANEL];
    bits.reinterpret_cast::<f16>().convert_to_f32_slice(&mut wide);
    // SAFETY: the array holds sixteen floats.
    unsafe { [s.load(wide.as_ptr()), s.load(wide.as_ptr().add(LANES))] }
}
