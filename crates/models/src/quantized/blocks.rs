//! Lossless conversion of quantized layers to GGUF blocks, so that they stay quantized in memory.
//!
//! If 32 adjacent weights share a scale that is exactly an f16, and each weight is that scale times
//! a small integer, they are one GGUF block: `Q4_0` for integers from −8 to 7, `Q8_0` for −128 to
//! 127. Such rows are repacked without rounding and multiplied like those of a GGUF file. MXFP4
//! blocks only need their nibbles reordered.

use super::DequantizedTensor;
use pellucid_kernels::Pool;
use pellucid_kernels::encoding::Encoding;
use pellucid_kernels::matrix::RowBytes;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};

/// Weights per block, which share a scale.
pub(super) const BLOCK_LEN: usize = 32;
/// Rows per work item of the thread pool.
const ROWS_PER_ITEM: usize = 64;

/// The encoded blocks of each row.
pub struct BlockRows(Vec<OnceLock<Vec<u8>>>);

impl RowBytes for BlockRows {
    fn row(&self, row: usize) -> &[u8] {
        self.0[row].get().map_or(&[], Vec::as_slice)
    }
}

impl DequantizedTensor<'_> {
    /// Converts rows to GGUF blocks with exactly the same values; `None` if that is not possible.
    /// `source_row` maps a row of the weight to a row of the layer.
    pub fn to_blocks(
        &self,
        pool: &Pool,
        rows: usize,
        cols: usize,
        source_row: &(dyn Fn(usize) -> usize + Sync),
    ) -> Option<(Encoding, BlockRows)> {
        if rows == 0 || !cols.is_multiple_of(BLOCK_LEN) {
            return None;
        }
        let encoding = if self.mxfp4_row(source_row(0), cols).is_some() {
            Encoding::MXFP4
        } else {
            // The first row rules out most layers without reading the others.
            let widest = AtomicU8::new(self.integer_bits(source_row(0), cols));
            if widest.load(Ordering::Relaxed) <= 8 {
                for_each_row(pool, rows, &|row| {
                    widest.fetch_max(self.integer_bits(source_row(row), cols), Ordering::Relaxed);
                });
            }
            match widest.into_inner() {
                4 => Encoding::Q4_0,
                8 => Encoding::Q8_0,
                _ => return None,
            }
        };
        let encoded: Vec<OnceLock<Vec<u8>>> = (0..rows).map(|_| OnceLock::new()).collect();
        for_each_row(pool, rows, &|row| {
            let bytes = if encoding == Encoding::MXFP4 {
                self.mxfp4_row(source_row(row), cols)
            } else {
                self.integer_row(source_row(row), cols)
                    .and_then(|(integers, scales)| encode(encoding, &integers, &scales))
            };
            if let Some(bytes) = bytes {
                let _ = encoded[row].set(bytes);
            }
        });
        encoded.iter().all(|row| row.get().is_some()).then_some((encoding, BlockRows(encoded)))
    }

    fn integer_row(&self, row: usize, cols: usize) -> Option<(Vec<i16>, Vec<f32>)> {
        let (mut integers, mut scales) = (vec![0; cols], vec![0.0; cols / BLOCK_LEN]);
        self.layer.decoder.integer_row(self.checkpoint, row, &mut integers, &mut scales).then_some((integers, scales))
    }

    fn mxfp4_row(&self, row: usize, cols: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0; Encoding::MXFP4.bytes_for(cols)?];
        self.layer.decoder.mxfp4_row(self.checkpoint, row, &mut bytes).then_some(bytes)
    }

    /// Bits of the row's integers, 4 or 8; `u8::MAX` if they, or their scales, do not fit.
    fn integer_bits(&self, row: usize, cols: usize) -> u8 {
        let Some((integers, scales)) = self.integer_row(row, cols) else { return u8::MAX };
        if !scales.iter().all(|scale| exact_f16(*scale).is_some()) {
            return u8::MAX;
        }
        let within = |low: i16, high: i16| integers.iter().all(|integer| (low..=high).contains(integer));
        if within(-8, 7) {
            4
        } else if within(-128, 127) {
            8
        } else {
            u8::MAX
        }
    }
}

fn for_each_row(pool: &Pool, rows: usize, job: &(dyn Fn(usize) + Sync)) {
    pool.run(rows.div_ceil(ROWS_PER_ITEM), &|item| {
        (item * ROWS_PER_ITEM..((item + 1) * ROWS_PER_ITEM).min(rows)).for_each(job)
    });
}

/// Encodes integers and their block scales as `Q4_0` or `Q8_0`.
fn encode(encoding: Encoding, integers: &[i16], scales: &[f32]) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(encoding.bytes_for(integers.len())?);
    for (block, scale) in integers.as_chunks::<BLOCK_LEN>().0.iter().zip(scales) {
        bytes.extend(exact_f16(*scale)?.to_le_bytes());
        if encoding == Encoding::Q4_0 {
            let (low, high) = block.split_at(BLOCK_LEN / 2);
            bytes.extend(low.iter().zip(high).map(|(low, high)| (low + 8) as u8 | ((high + 8) as u8) << 4));
        } else {
            bytes.extend(block.iter().map(|integer| *integer as u8));
        }
    }
    Some(bytes)
}

/// The bits of the f16 equal to `x`, if there is one and it is finite.
fn exact_f16(x: f32) -> Option<u16> {
    let bits = x.to_bits();
    let (sign, exponent, fraction) = ((bits >> 16 & 0x8000) as u16, (bits >> 23 & 255) as i32 - 127, bits & 0x7f_ffff);
    match exponent {
        -127 if fraction == 0 => Some(sign),
        -14..=15 if fraction & 0x1fff == 0 => Some(sign | ((exponent + 15) as u16) << 10 | (fraction >> 13) as u16),
        // Subnormal: a multiple of 2⁻²⁴.
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
    fn exactly_the_finite_f16_values_have_an_f16() {
        for bits in 0..=u16::MAX {
            let mut x = [0.0];
            decode(Encoding::F16, &bits.to_le_bytes(), &mut x);
            assert_eq!(exact_f16(x[0]), x[0].is_finite().then_some(bits), "{bits:#x}");
        }
        assert!([0.1, 65536.0, 1e-8, 2f32.powi(-25), f32::from_bits(1)].iter().all(|x| exact_f16(*x).is_none()));
    }

    /// A GPTQ layer of 32 outputs and 64 inputs with this zero point and scale.
    fn layer(zero: u32, scale: f32, groups: Option<&[u32]>) -> super::super::QuantizedCheckpoint {
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
        testing::open(&tensors, &Method::Gptq(gptq::GptqSettings::read(&config).expect("settings"))).expect("a layer")
    }

    #[test]
    fn blocks_decode_to_exactly_the_rows() {
        let pool = Pool::new(1);
        for (zero, encoding) in [(8, Encoding::Q4_0), (3, Encoding::Q8_0)] {
            let layer = layer(zero, 0.0625, None);
            let tensor = layer.dequantized("m.weight").expect("a quantized layer");
            let (chosen, rows) = tensor.to_blocks(&pool, 32, 64, &|row| row).expect("blocks");
            assert_eq!(chosen, encoding);
            for row in 0..32 {
                let mut decoded = [0.0; 64];
                decode(encoding, rows.row(row), &mut decoded);
                assert_eq!(decoded.to_vec(), testing::row(&layer, "m.weight", row), "row {row}");
            }
        }
    }

    #[test]
    fn rows_that_would_be_rounded_are_not_converted() {
        let (pool, same_row) = (Pool::new(1), |row: usize| row);
        let encoding = |layer: super::super::QuantizedCheckpoint| {
            layer.dequantized("m.weight").expect("a quantized layer").to_blocks(&pool, 32, 64, &same_row).map(|b| b.0)
        };
        assert_eq!(encoding(layer(8, 0.1, None)), None, "0.1 is not an f16");
        let mixed: Vec<u32> = (0..64).map(|i| i % 2).collect();
        assert_eq!(encoding(layer(8, 0.5, Some(&mixed))), None, "neighbors have different scales");
        let ordered: Vec<u32> = (0..64).map(|i| 1 - i / 32).collect();
        assert_eq!(encoding(layer(8, 0.5, Some(&ordered))), Some(Encoding::Q4_0), "each block of 32 has one scale");
    }
}
