//! MXFP4: stacked experts in 4-bit floats, with a power-of-two scale per 32 values.
//!
//! `<name>_blocks` is `[experts, outputs, inputs / 32, 16]` bytes, two values per byte, low nibble
//! first; `<name>_scales` is `[experts, outputs, inputs / 32]` exponents. Every value is exact in
//! bf16.

use super::codes::{E2M1, e8m0};
use super::parts::{LayerFault, bases, check_dtype, check_shape, checked_product, require};
use super::{LayerScan, QuantizedLayer, RowDecoder};
use crate::checkpoint::{Checkpoint, StoredType, Tensor};
use pellucid_kernels::encoding::Encoding;

/// Finds the MXFP4 layers of a checkpoint.
pub(super) fn find(checkpoint: &Checkpoint, scan: &mut LayerScan) {
    for base in bases(checkpoint, "_blocks") {
        scan.add(base.to_owned(), layer(checkpoint, base));
    }
}

fn layer(checkpoint: &Checkpoint, base: &str) -> Result<QuantizedLayer, LayerFault> {
    let blocks = require(checkpoint, &format!("{base}_blocks"), base)?;
    let scales = require(checkpoint, &format!("{base}_scales"), &blocks.name)?;
    check_dtype(&blocks, &[StoredType::U8])?;
    check_dtype(&scales, &[StoredType::U8, StoredType::F8E8M0])?;
    let [experts, outputs, groups, 16] = blocks.shape[..] else {
        return Err(format!(
            "tensor {} is {:?} where [experts, outputs, inputs / 32, 16] is expected",
            blocks.name, blocks.shape
        ));
    };
    check_shape(&scales, &[experts, outputs, groups])?;
    Ok(QuantizedLayer {
        shape: vec![experts, outputs, checked_product(&blocks, groups, 32)?],
        exact_encoding: Encoding::BF16,
        memory_encoding: Encoding::MXFP4,
        parts: [&blocks, &scales].map(|tensor| tensor.name.clone()).to_vec(),
        decoder: Box::new(Mxfp4 { blocks, scales, groups }),
    })
}

struct Mxfp4 {
    blocks: Tensor,
    scales: Tensor,
    /// Groups of 32 values per row.
    groups: usize,
}

impl RowDecoder for Mxfp4 {
    fn decode_row(&self, checkpoint: &Checkpoint, row: usize, out: &mut [f32]) {
        let blocks = &checkpoint.bytes(&self.blocks)[row * self.groups * 16..][..self.groups * 16];
        let scales = &checkpoint.bytes(&self.scales)[row * self.groups..][..self.groups];
        for ((values, block), scale) in
            out.as_chunks_mut::<32>().0.iter_mut().zip(blocks.as_chunks::<16>().0).zip(scales)
        {
            let scale = e8m0(*scale);
            for (pair, byte) in values.as_chunks_mut::<2>().0.iter_mut().zip(block) {
                *pair = [E2M1[usize::from(byte & 15)] * scale, E2M1[usize::from(byte >> 4)] * scale];
            }
        }
    }

    fn mxfp4_row(&self, checkpoint: &Checkpoint, row: usize, out: &mut [u8]) -> bool {
        /// From this exponent on, decoded values may overflow to infinity or be NaN. Such rows are
        /// not passed through as blocks, so that the loader sees the non-finite values.
        const MAYBE_NON_FINITE: u8 = 252;
        let blocks = &checkpoint.bytes(&self.blocks)[row * self.groups * 16..][..self.groups * 16];
        let scales = &checkpoint.bytes(&self.scales)[row * self.groups..][..self.groups];
        for ((out, block), scale) in out.as_chunks_mut::<17>().0.iter_mut().zip(blocks.as_chunks::<16>().0).zip(scales)
        {
            out[0] = *scale;
            // GGUF stores values 0-15 in the low nibbles and 16-31 in the high nibbles; here
            // adjacent values share a byte.
            let code = |index: usize| block[index / 2] >> (index % 2 * 4) & 15;
            for (index, byte) in out[1..].iter_mut().enumerate() {
                *byte = code(index) | code(index + 16) << 4;
            }
        }
        scales.iter().all(|scale| *scale < MAYBE_NON_FINITE)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Method;
    use super::super::testing::{self, Stored};
    use super::*;

    #[test]
    fn every_code_and_extreme_exponents_are_decoded() {
        // Two experts of one output and 64 inputs: codes 0 to 15 twice in each group.
        let block: Vec<u8> = (0..16).map(|byte| (byte * 2 % 16) | ((byte * 2 + 1) % 16) << 4).collect();
        let blocks = block.repeat(4);
        let open = |scales: &[u8]| {
            let tensors = [
                Stored::bytes("e.gate_up_proj_blocks", &[2, 1, 2, 16], &blocks),
                Stored::bytes("e.gate_up_proj_scales", &[2, 1, 2], scales),
            ];
            testing::open(&tensors, &Method::Mxfp4).expect("a layer")
        };
        let checkpoint = open(&[127, 128, 0, 255]);
        assert_eq!(checkpoint.dequantized("e.gate_up_proj").expect("a quantized layer").shape(), [2, 1, 64]);
        let row = testing::row(&checkpoint, "e.gate_up_proj", 0);
        assert_eq!(row[..16], E2M1);
        assert_eq!(row[32..48], E2M1.map(|x| x * 2.0));
        let last = testing::row(&checkpoint, "e.gate_up_proj", 1);
        // The smallest exponent gives a subnormal and is still exact; the largest is NaN.
        assert_eq!(f64::from(last[7]), 6.0 * 2f64.powi(-127));
        assert!(last[33].is_nan());
        // The first expert's row passes through; the second one's contains a NaN.
        let pool = pellucid_kernels::Pool::new(1);
        let tensor = checkpoint.dequantized("e.gate_up_proj").expect("a quantized layer");
        let (encoding, rows) = tensor.to_blocks(&pool, 1, 64, &|row| row).expect("blocks");
        let mut decoded = vec![0.0; 64];
        pellucid_kernels::encoding::decode(encoding, pellucid_kernels::matrix::RowBytes::row(&rows, 0), &mut decoded);
        assert_eq!(decoded, row);
        assert!(tensor.to_blocks(&pool, 1, 64, &|row| row + 1).is_none());
    }

    #[test]
    fn shapes_are_checked() {
        let open = |scales: &[usize]| {
            let tensors = [
                Stored::bytes("e.down_proj_blocks", &[1, 2, 1, 16], &[0; 32]),
                Stored::bytes("e.down_proj_scales", scales, &[0; 2]),
            ];
            testing::open(&tensors, &Method::Mxfp4).map(|_| ())
        };
        assert!(open(&[1, 2, 1]).is_ok());
        let error = open(&[2, 1, 1]).expect_err("another shape").to_string();
        assert!(error.contains("e.down_proj_scales is [2, 1, 1] where [1, 2, 1] is expected"), "{error}");
    }
}
