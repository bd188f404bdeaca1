//! Weight encodings: plain floats and the ggml block formats, and their decoding to f32.
//!
//! A quantized row is a sequence of blocks. A block holds [`block_len`](Encoding::block_len) values
//! in [`block_bytes`](Encoding::block_bytes) bytes: small integers or codebook entries, and their
//! scales. [`decode`] uses the same formula, in the same order, as ggml's `dequantize_row_*`, so
//! the f32 values have the same bits. The decoders live in three files by kind: `small` (floats and
//! blocks of 32 values), `super_block` (blocks of 256 values with a scale per 16 or 32) and
//! `codebook` (the IQ formats).

mod codebook;
mod finite;
mod small;
mod super_block;

use crate::simd::f16_to_f32;
pub use finite::is_finite;
pub use small::to_q8_0;
use std::fmt;

/// Encoding of a stored tensor. The names are those of ggml.
#[allow(non_camel_case_types)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Encoding {
    /// IEEE single precision, little endian like all others.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper half of an f32.
    BF16,
    /// 4 bits and a scale for 32 values.
    Q4_0,
    /// 4 bits, a scale and a minimum for 32 values.
    Q4_1,
    /// 5 bits and a scale for 32 values.
    Q5_0,
    /// 5 bits, a scale and a minimum for 32 values.
    Q5_1,
    /// 8 bits and a scale for 32 values.
    Q8_0,
    /// 2 bits, with 4-bit scales and minima for each 16 values of 256.
    Q2_K,
    /// 3 bits, with 6-bit scales for each 16 values of 256.
    Q3_K,
    /// 4 bits, with 6-bit scales and minima for each 32 values of 256.
    Q4_K,
    /// 5 bits, with 6-bit scales and minima for each 32 values of 256.
    Q5_K,
    /// 6 bits, with 8-bit scales for each 16 values of 256.
    Q6_K,
    /// Codebook of 256 groups of eight values, about 2.06 bits per value.
    IQ2_XXS,
    /// Codebook of 512 groups of eight values, about 2.31 bits per value.
    IQ2_XS,
    /// Codebook of 1024 groups of eight values, about 2.56 bits per value.
    IQ2_S,
    /// Codebook of 256 groups of four values, about 3.06 bits per value.
    IQ3_XXS,
    /// Codebook of 512 groups of four values, about 3.44 bits per value.
    IQ3_S,
    /// Codebook of 2048 ternary groups of eight values, about 1.56 bits per value.
    IQ1_S,
    /// Like [`IQ1_S`](Self::IQ1_S) with finer scales, 1.75 bits per value.
    IQ1_M,
    /// 4-bit indices into a table of non-uniform levels, and a scale for 32 values.
    IQ4_NL,
    /// The levels of [`IQ4_NL`](Self::IQ4_NL), with 6-bit scales for each 32 values of 256.
    IQ4_XS,
    /// 4-bit floats with a shared power of two for 32 values (the OCP microscaling format).
    MXFP4,
    /// Ternary values, five per byte.
    TQ1_0,
    /// Ternary values, four per byte.
    TQ2_0,
}

use Encoding::*;

impl Encoding {
    /// All encodings.
    pub const ALL: [Encoding; 25] = [
        F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS,
        IQ3_S, IQ1_S, IQ1_M, IQ4_NL, IQ4_XS, MXFP4, TQ1_0, TQ2_0,
    ];

    /// The number of values in one block; a row of a tensor is always a whole number of blocks.
    pub fn block_len(self) -> usize {
        self.block().0
    }

    /// The number of bytes of one block.
    pub fn block_bytes(self) -> usize {
        self.block().1
    }

    /// Values and bytes of a block.
    fn block(self) -> (usize, usize) {
        match self {
            F32 => (1, 4),
            F16 | BF16 => (1, 2),
            Q4_0 | IQ4_NL => (32, 18),
            Q4_1 => (32, 20),
            Q5_0 => (32, 22),
            Q5_1 => (32, 24),
            Q8_0 => (32, 34),
            MXFP4 => (32, 17),
            Q2_K => (256, 84),
            Q3_K => (256, 110),
            Q4_K => (256, 144),
            Q5_K => (256, 176),
            Q6_K => (256, 210),
            IQ2_XXS => (256, 66),
            IQ2_XS => (256, 74),
            IQ2_S => (256, 82),
            IQ3_XXS => (256, 98),
            IQ3_S => (256, 110),
            IQ1_S => (256, 50),
            IQ1_M => (256, 56),
            IQ4_XS => (256, 136),
            TQ1_0 => (256, 54),
            TQ2_0 => (256, 66),
        }
    }

    /// Bytes of `values` values; `None` if they are not a whole number of blocks or overflow a
    /// `usize`.
    pub fn bytes_for(self, values: usize) -> Option<usize> {
        let (len, bytes) = self.block();
        if !values.is_multiple_of(len) {
            return None;
        }
        (values / len).checked_mul(bytes)
    }

    /// Whether values share scales in blocks, that is, whether this is anything but a plain float.
    pub fn is_quantized(self) -> bool {
        !matches!(self, F32 | F16 | BF16)
    }

    /// Returns the encoding with this id in GGUF files (`enum ggml_type`); `None` for the integer
    /// types, for types that ggml removed and for those that exist only in memory.
    pub fn from_ggml(number: u32) -> Option<Encoding> {
        Self::ALL.into_iter().find(|encoding| encoding.ggml() == number)
    }

    /// This encoding's id in GGUF files (`enum ggml_type`).
    pub fn ggml(self) -> u32 {
        match self {
            F32 => 0,
            F16 => 1,
            Q4_0 => 2,
            Q4_1 => 3,
            Q5_0 => 6,
            Q5_1 => 7,
            Q8_0 => 8,
            Q2_K => 10,
            Q3_K => 11,
            Q4_K => 12,
            Q5_K => 13,
            Q6_K => 14,
            IQ2_XXS => 16,
            IQ2_XS => 17,
            IQ3_XXS => 18,
            IQ1_S => 19,
            IQ4_NL => 20,
            IQ3_S => 21,
            IQ2_S => 22,
            IQ4_XS => 23,
            IQ1_M => 29,
            BF16 => 30,
            TQ1_0 => 34,
            TQ2_0 => 35,
            MXFP4 => 39,
        }
    }
}

impl fmt::Display for Encoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The variants are spelled like the ggml types; `pad` honors a width.
        f.pad(&format!("{self:?}"))
    }
}

/// Decodes whole blocks to f32.
///
/// ```
/// use pellucid_kernels::encoding::{Encoding, decode};
///
/// // One Q8_0 block: the scale 0.5 as f16, then 32 signed bytes.
/// let mut block = vec![0x00, 0x38];
/// block.extend((0..32).map(|i| (i - 16) as u8));
/// let mut values = [0.0; 32];
/// decode(Encoding::Q8_0, &block, &mut values);
/// assert_eq!(values[0], -8.0);
/// ```
///
/// # Panics
/// If `bytes` is not exactly the size of `out.len()` values in this encoding.
pub fn decode(encoding: Encoding, bytes: &[u8], out: &mut [f32]) {
    assert_eq!(
        Some(bytes.len()),
        encoding.bytes_for(out.len()),
        "decode {encoding}: {} bytes do not hold {} values",
        bytes.len(),
        out.len()
    );
    #[cfg(target_arch = "x86_64")]
    if crate::simd::instruction_set() >= crate::simd::InstructionSet::Avx2 {
        #[target_feature(enable = "avx2")]
        fn with_avx2(encoding: Encoding, bytes: &[u8], out: &mut [f32]) {
            decode_inlined(encoding, bytes, out);
        }
        // SAFETY: the CPU has AVX2.
        return unsafe { with_avx2(encoding, bytes, out) };
    }
    decode_inlined(encoding, bytes, out);
}

/// Implementation of [`decode`], inlined with all that it calls, so that it is compiled with the
/// caller's target features. The bits are the same with any of them: nothing is summed, and no
/// multiplication is fused with an addition.
#[inline(always)]
fn decode_inlined(encoding: Encoding, bytes: &[u8], out: &mut [f32]) {
    match encoding {
        F32 => small::f32(bytes, out),
        F16 => small::f16(bytes, out),
        BF16 => small::bf16(bytes, out),
        Q4_0 => each_block(bytes, out, small::q4_0),
        Q4_1 => each_block(bytes, out, small::q4_1),
        Q5_0 => each_block(bytes, out, small::q5_0),
        Q5_1 => each_block(bytes, out, small::q5_1),
        Q8_0 => each_block(bytes, out, small::q8_0),
        IQ4_NL => each_block(bytes, out, small::iq4_nl),
        MXFP4 => each_block(bytes, out, small::mxfp4),
        Q2_K => each_block(bytes, out, super_block::q2_k),
        Q3_K => each_block(bytes, out, super_block::q3_k),
        Q4_K => each_block(bytes, out, super_block::q4_k),
        Q5_K => each_block(bytes, out, super_block::q5_k),
        Q6_K => each_block(bytes, out, super_block::q6_k),
        IQ4_XS => each_block(bytes, out, super_block::iq4_xs),
        TQ1_0 => each_block(bytes, out, super_block::tq1_0),
        TQ2_0 => each_block(bytes, out, super_block::tq2_0),
        IQ2_XXS => each_block(bytes, out, codebook::iq2_xxs),
        IQ2_XS => each_block(bytes, out, codebook::iq2_xs),
        IQ2_S => each_block(bytes, out, codebook::iq2_s),
        IQ3_XXS => each_block(bytes, out, codebook::iq3_xxs),
        IQ3_S => each_block(bytes, out, codebook::iq3_s),
        IQ1_S => each_block(bytes, out, codebook::iq1_s),
        IQ1_M => each_block(bytes, out, codebook::iq1_m),
    }
}

/// Runs a block's decoder over all blocks. The sizes are constants, so the inner loops have known
/// lengths and no checks.
#[inline(always)]
fn each_block<const BYTES: usize, const LEN: usize>(
    bytes: &[u8],
    out: &mut [f32],
    block: impl Fn(&[u8; BYTES], &mut [f32; LEN]),
) {
    for (stored, values) in bytes.as_chunks().0.iter().zip(out.as_chunks_mut().0) {
        block(stored, values);
    }
}

/// Little-endian f16 at byte `at` of a block.
#[inline(always)]
fn f16_at(block: &[u8], at: usize) -> f32 {
    f16_to_f32(u16_at(block, at))
}

/// Little-endian u16 at byte `at` of a block.
#[inline(always)]
fn u16_at(block: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([block[at], block[at + 1]])
}

/// Little-endian u32 at byte `at` of a block.
#[inline(always)]
fn u32_at(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Blocks of every encoding, with the values that the Python package `gguf` decodes (file
    /// layout: `tests/golden/encodings.py`).
    const GOLDEN: &[u8] = include_bytes!("../../../../tests/golden/encodings/blocks.bin");

    fn take<'a>(rest: &mut &'a [u8], count: usize) -> &'a [u8] {
        let (head, tail) = rest.split_at(count);
        *rest = tail;
        head
    }

    #[test]
    fn every_encoding_decodes_to_the_bits_of_the_reference() {
        let mut rest = GOLDEN;
        let mut seen = Vec::new();
        while !rest.is_empty() {
            let number = u32_at(take(&mut rest, 4), 0);
            let blocks = u32_at(take(&mut rest, 4), 0) as usize;
            let encoding = Encoding::from_ggml(number).expect("the golden file holds known encodings");
            let stored = take(&mut rest, blocks * encoding.block_bytes());
            let mut values = vec![f32::NAN; blocks * encoding.block_len()];
            let mut portable = values.clone();
            decode(encoding, stored, &mut values);
            decode_inlined(encoding, stored, &mut portable);
            assert_eq!(values, portable, "{encoding}");
            for (i, value) in values.iter().enumerate() {
                let wanted = f32::from_bits(u32_at(take(&mut rest, 4), 0));
                assert_eq!(value.to_bits(), wanted.to_bits(), "{encoding} value {i}: {value} is not {wanted}");
            }
            seen.push(encoding);
        }
        assert_eq!(seen, Encoding::ALL);
    }

    #[test]
    fn every_f16_converts_exactly_to_f32() {
        for bits in 0..=u16::MAX {
            let (value, wanted) = (f16_to_f32(bits), half::f16::from_bits(bits).to_f32());
            let same = if wanted.is_nan() { value.is_nan() } else { value.to_bits() == wanted.to_bits() };
            assert!(same, "{bits:#06x} is {value}, not {wanted}");
        }
    }

    #[test]
    fn sizes_are_whole_blocks_or_none() {
        assert_eq!(Q4_K.bytes_for(512), Some(288));
        assert_eq!(Q4_K.bytes_for(0), Some(0));
        assert_eq!(Q4_K.bytes_for(255), None);
        assert_eq!(F32.bytes_for(usize::MAX), None);
        assert_eq!(BF16.bytes_for(3), Some(6));
    }

    #[test]
    fn ggml_ids_round_trip() {
        for encoding in Encoding::ALL {
            assert_eq!(Encoding::from_ggml(encoding.ggml()), Some(encoding));
        }
        for absent in [4, 5, 9, 15, 24, 28, 31, 1000] {
            assert_eq!(Encoding::from_ggml(absent), None);
        }
        assert_eq!(format!("{Q4_K:>6}|{IQ2_XXS}"), "  Q4_K|IQ2_XXS");
    }

    #[test]
    #[should_panic(expected = "decode Q4_0: 17 bytes do not hold 32 values")]
    fn a_wrong_length_panics() {
        decode(Q4_0, &[0; 17], &mut [0.0; 32]);
    }
}
