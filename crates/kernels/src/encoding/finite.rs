//! Checks that encoded weights are finite, looking only at the block scales where that suffices.

use super::Encoding::{self, *};
use super::decode;
use half::f16;

/// Whether every value of whole blocks is finite.
///
/// A quantized value is a small integer times its block's scale, so only the scales are checked.
/// This costs little more than reading the file.
///
/// # Panics
/// If `bytes` is not a whole number of blocks.
pub fn is_finite(encoding: Encoding, bytes: &[u8]) -> bool {
    assert!(bytes.len().is_multiple_of(encoding.block_bytes()), "whole blocks of {encoding}");
    // Byte offsets of the f16 scales in a block.
    let scales: &[usize] = match encoding {
        Q4_0 | Q5_0 | Q8_0 | IQ2_XXS | IQ2_XS | IQ2_S | IQ3_XXS | IQ3_S | IQ1_S | IQ4_NL | IQ4_XS => &[0],
        Q4_1 | Q5_1 | Q4_K | Q5_K => &[0, 2],
        Q2_K => &[80, 82],
        Q3_K => &[108],
        Q6_K => &[208],
        TQ1_0 => &[52],
        TQ2_0 => &[64],
        F32 | F16 | BF16 | IQ1_M | MXFP4 => {
            let mut values = vec![0.0; encoding.block_len()];
            return bytes.chunks_exact(encoding.block_bytes()).all(|block| {
                decode(encoding, block, &mut values);
                values.iter().all(|x| x.is_finite())
            });
        }
    };
    let finite = |block: &[u8], at: usize| f16::from_le_bytes([block[at], block[at + 1]]).is_finite();
    // No early exit: without it the loop vectorizes.
    let all_finite =
        |at: usize| bytes.chunks_exact(encoding.block_bytes()).fold(true, |all, block| all & finite(block, at));
    scales.iter().all(|&at| all_finite(at))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_reveal_every_non_finite_value() {
        for encoding in Encoding::ALL {
            let size = encoding.block_bytes();
            let mut block = vec![0u8; 2 * size];
            assert!(is_finite(encoding, &block), "{encoding}");
            // An infinite f16 at every offset: if decoding gives a non-finite value, `is_finite`
            // must report it.
            for at in 0..size - 1 {
                block[size..].fill(0);
                block[size + at..size + at + 2].copy_from_slice(&[0x00, 0x7C]);
                let mut values = vec![0.0; 2 * encoding.block_len()];
                decode(encoding, &block, &mut values);
                let truth = values.iter().all(|x| x.is_finite());
                assert!(is_finite(encoding, &block) <= truth, "{encoding}: an infinity at byte {at} was not detected");
            }
        }
    }
}
