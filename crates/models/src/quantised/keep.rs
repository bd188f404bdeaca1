//! Layers that stay quantised in memory.
//!
//! Where 32 weights side by side share a scale that f16 holds exactly and are that scale times small whole numbers, the layer is a GGUF layer
//! in other clothes: `Q4_0` for numbers from −8 to 7, `Q8_0` for bytes. Its rows are put into such blocks, without rounding anything, and
//! multiplied as those of a GGUF file. MXFP4 blocks only change the order of their nibbles.

use super::Made;
use pellucid_kernels::Pool;
use pellucid_kernels::encoding::Encoding;
use pellucid_kernels::matrix::RowBytes;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};

/// Weights that share a scale.
pub(super) const BLOCK: usize = 32;
/// Rows that a thread takes at once.
const ROWS: usize = 64;

/// Rows in blocks, owned.
pub struct Rows(Vec<OnceLock<Vec<u8>>>);

impl RowBytes for Rows {
    fn row(&self, row: usize) -> &[u8] {
        self.0[row].get().map_or(&[], Vec::as_slice)
    }
}

impl Made<'_> {
    /// The rows in blocks that mean exactly the same, if there are such blocks. `place` tells where each row of the weight is among the layer's.
    pub fn blocks(
        &self,
        pool: &Pool,
        rows: usize,
        cols: usize,
        place: &(dyn Fn(usize) -> usize + Sync),
    ) -> Option<(Encoding, Rows)> {
        if rows == 0 || !cols.is_multiple_of(BLOCK) {
            return None;
        }
        let encoding = if self.mxfp4(place(0), cols).is_some() {
            Encoding::MXFP4
        } else {
            // A layer that has no such rows at all shows it in its first, a single one that does not fit is found below.
            let widest = AtomicU8::new(self.bits(place(0), cols));
            if widest.load(Ordering::Relaxed) <= 8 {
                each(pool, rows, &|row| {
                    widest.fetch_max(self.bits(place(row), cols), Ordering::Relaxed);
                });
            }
            match widest.into_inner() {
                4 => Encoding::Q4_0,
                8 => Encoding::Q8_0,
                _ => return None,
            }
        };
        let made: Vec<OnceLock<Vec<u8>>> = (0..rows).map(|_| OnceLock::new()).collect();
        each(pool, rows, &|row| {
            let bytes = if encoding == Encoding::MXFP4 {
                self.mxfp4(place(row), cols)
            } else {
                self.whole_numbers(place(row), cols).and_then(|(numbers, scales)| encode(encoding, &numbers, &scales))
            };
            if let Some(bytes) = bytes {
                let _ = made[row].set(bytes);
            }
        });
        made.iter().all(|row| row.get().is_some()).then_some((encoding, Rows(made)))
    }

    fn whole_numbers(&self, row: usize, cols: usize) -> Option<(Vec<i16>, Vec<f32>)> {
        let (mut numbers, mut scales) = (vec![0; cols], vec![0.0; cols / BLOCK]);
        self.entry.layer.whole_numbers(self.checkpoint, row, &mut numbers, &mut scales).then_some((numbers, scales))
    }

    fn mxfp4(&self, row: usize, cols: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0; Encoding::MXFP4.bytes_for(cols)?];
        self.entry.layer.mxfp4(self.checkpoint, row, &mut bytes).then_some(bytes)
    }

    /// Bits that the row's whole numbers need, 4 or 8; more where they, or their scales, do not fit.
    fn bits(&self, row: usize, cols: usize) -> u8 {
        let Some((numbers, scales)) = self.whole_numbers(row, cols) else { return u8::MAX };
        if !scales.iter().all(|scale| half(*scale).is_some()) {
            return u8::MAX;
        }
        let within = |low: i16, high: i16| numbers.iter().all(|number| (low..=high).contains(number));
        if within(-8, 7) {
            4
        } else if within(-128, 127) {
            8
        } else {
            u8::MAX
        }
    }
}

fn each(pool: &Pool, rows: usize, job: &(dyn Fn(usize) + Sync)) {
    pool.run(rows.div_ceil(ROWS), &|part| (part * ROWS..((part + 1) * ROWS).min(rows)).for_each(job));
}

/// Whole numbers and their scales as blocks of `Q4_0` or `Q8_0`.
fn encode(encoding: Encoding, numbers: &[i16], scales: &[f32]) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(encoding.bytes_for(numbers.len())?);
    for (block, scale) in numbers.as_chunks::<BLOCK>().0.iter().zip(scales) {
        bytes.extend(half(*scale)?.to_le_bytes());
        if encoding == Encoding::Q4_0 {
            let (low, high) = block.split_at(BLOCK / 2);
            bytes.extend(low.iter().zip(high).map(|(low, high)| (low + 8) as u8 | ((high + 8) as u8) << 4));
        } else {
            bytes.extend(block.iter().map(|number| *number as u8));
        }
    }
    Some(bytes)
}

/// The f16 that is exactly this number, if there is one and it is finite.
fn half(x: f32) -> Option<u16> {
    let bits = x.to_bits();
    let (sign, exponent, fraction) = ((bits >> 16 & 0x8000) as u16, (bits >> 23 & 255) as i32 - 127, bits & 0x7f_ffff);
    match exponent {
        -127 if fraction == 0 => Some(sign),
        -14..=15 if fraction & 0x1fff == 0 => Some(sign | ((exponent + 15) as u16) << 10 | (fraction >> 13) as u16),
        // Subnormal: a number of steps of 2⁻²⁴.
        -24..=-15 => {
            let (whole, shift) = (fraction | 0x80_0000, -1 - exponent);
            (whole & ((1 << shift) - 1) == 0).then(|| sign | (whole >> shift) as u16)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{self, Stored};
    use super::super::{Method, gptq};
    use super::*;
    use pellucid_kernels::encoding::decode;

    #[test]
    fn every_finite_half_is_found_and_nothing_else() {
        for bits in 0..=u16::MAX {
            let mut x = [0.0];
            decode(Encoding::F16, &bits.to_le_bytes(), &mut x);
            assert_eq!(half(x[0]), x[0].is_finite().then_some(bits), "{bits:#x}");
        }
        assert!([0.1, 65536.0, 1e-8, 2f32.powi(-25), f32::from_bits(1)].iter().all(|x| half(*x).is_none()));
    }

    /// A GPTQ layer of 32 outputs and 64 inputs with this zero point and scale.
    fn layer(zero: u32, scale: f32, groups: Option<&[u32]>) -> super::super::Quantised {
        let word = |shift: u32| (0..8).fold(0u32, |word, i| word | ((i * 2 + shift) % 16) << (i * 4));
        let codes: Vec<u32> = (0..8 * 32).map(|i| word(i % 7)).collect();
        let zeros = (0..8).fold(0u32, |word, i| word | zero << (i * 4));
        let mut tensors = vec![
            Stored::words("m.qweight", &[8, 32], &codes),
            Stored::words("m.qzeros", &[2, 4], &[zeros; 8]),
            Stored::floats("m.scales", &[2, 32], &[scale; 64]),
        ];
        if let Some(groups) = groups {
            tensors.push(Stored::words("m.g_idx", &[64], groups));
        }
        let config = serde_json::json!({"bits": 4, "group_size": 32, "checkpoint_format": "gptq_v2"});
        let config = crate::config::Config::new(config, std::path::Path::new("c")).expect("a config");
        testing::open(&tensors, &Method::Gptq(gptq::Settings::read(&config).expect("settings"))).expect("a layer")
    }

    #[test]
    fn blocks_mean_exactly_what_the_rows_do() {
        let pool = Pool::new(1);
        for (zero, encoding) in [(8, Encoding::Q4_0), (3, Encoding::Q8_0)] {
            let layer = layer(zero, 0.0625, None);
            let made = layer.made("m.weight").expect("made");
            let (kept, rows) = made.blocks(&pool, 32, 64, &|row| row).expect("blocks");
            assert_eq!(kept, encoding);
            for row in 0..32 {
                let mut decoded = [0.0; 64];
                decode(encoding, rows.row(row), &mut decoded);
                assert_eq!(decoded.to_vec(), testing::row(&layer, "m.weight", row), "row {row}");
            }
        }
    }

    #[test]
    fn what_would_be_rounded_is_not_kept() {
        let (pool, own) = (Pool::new(1), |row: usize| row);
        let kept = |layer: super::super::Quantised| {
            layer.made("m.weight").expect("made").blocks(&pool, 32, 64, &own).map(|b| b.0)
        };
        assert_eq!(kept(layer(8, 0.1, None)), None, "no f16 is 0.1");
        let mixed: Vec<u32> = (0..64).map(|i| i % 2).collect();
        assert_eq!(kept(layer(8, 0.5, Some(&mixed))), None, "neighbours have other scales");
        let ordered: Vec<u32> = (0..64).map(|i| 1 - i / 32).collect();
        assert_eq!(kept(layer(8, 0.5, Some(&ordered))), Some(Encoding::Q4_0), "blocks of 32 have one scale each");
    }
}
