//! MXFP4: stacked experts in 4-bit floats, a power of two for 32 values.
//!
//! `<name>_blocks` is `[experts, outputs, inputs / 32, 16]` bytes, two values a byte, the lower half first; `<name>_scales` is
//! `[experts, outputs, inputs / 32]` exponents. Every value is exact in bf16.

use super::codes::{E2M1, e8m0};
use super::parts::{Fault, bases, need, shaped, stored_as, times};
use super::{Entry, Found, Layer};
use crate::checkpoint::{Checkpoint, StoredType, Tensor};
use pellucid_kernels::encoding::Encoding;

/// Finds the layers.
pub(super) fn find(checkpoint: &Checkpoint, found: &mut Found) {
    for base in bases(checkpoint, "_blocks") {
        found.add(base.to_owned(), entry(checkpoint, base));
    }
}

fn entry(checkpoint: &Checkpoint, base: &str) -> Result<Entry, Fault> {
    let blocks = need(checkpoint, &format!("{base}_blocks"), base)?;
    let scales = need(checkpoint, &format!("{base}_scales"), &blocks.name)?;
    stored_as(&blocks, &[StoredType::U8])?;
    stored_as(&scales, &[StoredType::U8, StoredType::F8E8M0])?;
    let [experts, outputs, groups, 16] = blocks.shape[..] else {
        return Err(format!(
            "tensor {} is {:?} where [experts, outputs, inputs / 32, 16] is expected",
            blocks.name, blocks.shape
        ));
    };
    shaped(&scales, &[experts, outputs, groups])?;
    Ok(Entry {
        shape: vec![experts, outputs, times(&blocks, groups, 32)?],
        exact: Encoding::BF16,
        kept: Encoding::MXFP4,
        parts: [&blocks, &scales].map(|tensor| tensor.name.clone()).to_vec(),
        layer: Box::new(Mxfp4 { blocks, scales, groups }),
    })
}

struct Mxfp4 {
    blocks: Tensor,
    scales: Tensor,
    /// Groups of a row.
    groups: usize,
}

impl Layer for Mxfp4 {
    fn row(&self, checkpoint: &Checkpoint, row: usize, out: &mut [f32]) {
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

    fn mxfp4(&self, checkpoint: &Checkpoint, row: usize, out: &mut [u8]) -> bool {
        /// From here on values may be infinite, or none, which only the numbers themselves show.
        const LARGE: u8 = 252;
        let blocks = &checkpoint.bytes(&self.blocks)[row * self.groups * 16..][..self.groups * 16];
        let scales = &checkpoint.bytes(&self.scales)[row * self.groups..][..self.groups];
        for ((out, block), scale) in out.as_chunks_mut::<17>().0.iter_mut().zip(blocks.as_chunks::<16>().0).zip(scales)
        {
            out[0] = *scale;
            // GGUF has the first sixteen values in the lower halves and the others in the upper ones; here neighbours share a byte.
            let value = |place: usize| block[place / 2] >> (place % 2 * 4) & 15;
            for (place, byte) in out[1..].iter_mut().enumerate() {
                *byte = value(place) | value(place + 16) << 4;
            }
        }
        scales.iter().all(|scale| *scale < LARGE)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Method;
    use super::super::testing::{self, Stored};
    use super::*;

    #[test]
    fn every_code_and_extreme_exponents() {
        // Two experts of one output and 64 inputs: codes 0 to 15 twice in each group.
        let block: Vec<u8> = (0..16).map(|byte| (byte * 2 % 16) | ((byte * 2 + 1) % 16) << 4).collect();
        let blocks = block.repeat(4);
        let made = |scales: &[u8]| {
            let tensors = [
                Stored::bytes("e.gate_up_proj_blocks", &[2, 1, 2, 16], &blocks),
                Stored::bytes("e.gate_up_proj_scales", &[2, 1, 2], scales),
            ];
            testing::open(&tensors, &Method::Mxfp4).expect("a layer")
        };
        let layer = made(&[127, 128, 0, 255]);
        assert_eq!(layer.made("e.gate_up_proj").expect("made").shape(), [2, 1, 64]);
        let row = testing::row(&layer, "e.gate_up_proj", 0);
        assert_eq!(row[..16], E2M1);
        assert_eq!(row[32..48], E2M1.map(|x| x * 2.0));
        let last = testing::row(&layer, "e.gate_up_proj", 1);
        // The least exponent is subnormal and still exact; the last is no number.
        assert_eq!(f64::from(last[7]), 6.0 * 2f64.powi(-127));
        assert!(last[33].is_nan());
        // The first expert's row stays as it is; the other has a value that is none.
        let pool = pellucid_kernels::Pool::new(1);
        let made = layer.made("e.gate_up_proj").expect("made");
        let (encoding, rows) = made.blocks(&pool, 1, 64, &|row| row).expect("blocks");
        let mut decoded = vec![0.0; 64];
        pellucid_kernels::encoding::decode(encoding, pellucid_kernels::matrix::RowBytes::row(&rows, 0), &mut decoded);
        assert_eq!(decoded, row);
        assert!(made.blocks(&pool, 1, 64, &|row| row + 1).is_none());
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
