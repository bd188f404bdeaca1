//! Decoders of plain floats and of blocks of 32 values.

use super::{each_block, f16_at, f16_to_f32};

/// Levels of the non-uniform 4-bit formats (`kvalues_iq4nl` in ggml).
pub(super) const IQ4_LEVELS: [f32; 16] =
    [-127., -104., -83., -65., -49., -35., -22., -10., 1., 13., 25., 38., 53., 69., 89., 113.];

/// The 4-bit floats of MXFP4, doubled so that they are integers; the scale is halved to match.
const MXFP4_LEVELS: [f32; 16] = [0., 1., 2., 3., 4., 6., 8., 12., 0., -1., -2., -3., -4., -6., -8., -12.];

#[inline(always)]
pub(super) fn f32(bytes: &[u8], out: &mut [f32]) {
    each_block(bytes, out, |block, [value]| *value = f32::from_le_bytes(*block));
}

#[inline(always)]
pub(super) fn bf16(bytes: &[u8], out: &mut [f32]) {
    each_block(bytes, out, |&[low, high], [value]| *value = f32::from_le_bytes([0, 0, low, high]));
}

#[inline(always)]
pub(super) fn f16(bytes: &[u8], out: &mut [f32]) {
    each_block(bytes, out, |pair, [value]| *value = f16_to_f32(u16::from_le_bytes(*pair)));
}

/// Unpacks 16 bytes: the low nibbles, then the high nibbles. Done for a whole block before any
/// conversion to float, so that each step is a loop over bytes that vectorizes.
#[inline(always)]
fn nibbles(packed: &[u8]) -> [u8; 32] {
    let mut out = [0; 32];
    let (first, second) = out.split_at_mut(16);
    for ((byte, low), high) in packed.iter().zip(first).zip(second) {
        (*low, *high) = (byte & 15, byte >> 4);
    }
    out
}

#[inline(always)]
fn write_scaled(scale: f32, quants: [i8; 32], out: &mut [f32; 32]) {
    for (value, quant) in out.iter_mut().zip(quants) {
        *value = quant as f32 * scale;
    }
}

#[inline(always)]
fn write_scaled_plus_min(scale: f32, min: f32, quants: [u8; 32], out: &mut [f32; 32]) {
    for (value, quant) in out.iter_mut().zip(quants) {
        *value = quant as f32 * scale + min;
    }
}

#[inline(always)]
pub(super) fn q4_0(block: &[u8; 18], out: &mut [f32; 32]) {
    write_scaled(f16_at(block, 0), nibbles(&block[2..]).map(|nibble| nibble as i8 - 8), out);
}

#[inline(always)]
pub(super) fn q4_1(block: &[u8; 20], out: &mut [f32; 32]) {
    write_scaled_plus_min(f16_at(block, 0), f16_at(block, 2), nibbles(&block[4..]), out);
}

/// The fifth bit of each value as 16 or 0. Uses a mask per value: a shift per value would not
/// vectorize.
#[inline(always)]
fn fifth_bits(packed: &[u8]) -> [u8; 32] {
    std::array::from_fn(|i| if packed[i / 8] & (1 << (i % 8)) != 0 { 16 } else { 0 })
}

#[inline(always)]
pub(super) fn q5_0(block: &[u8; 22], out: &mut [f32; 32]) {
    let (fours, fifth) = (nibbles(&block[6..]), fifth_bits(&block[2..6]));
    write_scaled(f16_at(block, 0), std::array::from_fn(|i| (fours[i] | fifth[i]) as i8 - 16), out);
}

#[inline(always)]
pub(super) fn q5_1(block: &[u8; 24], out: &mut [f32; 32]) {
    let (fours, fifth) = (nibbles(&block[8..]), fifth_bits(&block[4..8]));
    write_scaled_plus_min(f16_at(block, 0), f16_at(block, 2), std::array::from_fn(|i| fours[i] | fifth[i]), out);
}

#[inline(always)]
pub(super) fn q8_0(block: &[u8; 34], out: &mut [f32; 32]) {
    let scale = f16_at(block, 0);
    for (value, byte) in out.iter_mut().zip(&block[2..]) {
        *value = *byte as i8 as f32 * scale;
    }
}

#[inline(always)]
pub(super) fn iq4_nl(block: &[u8; 18], out: &mut [f32; 32]) {
    write_levels(f16_at(block, 0), &IQ4_LEVELS, &block[2..], out);
}

#[inline(always)]
pub(super) fn mxfp4(block: &[u8; 17], out: &mut [f32; 32]) {
    // 2^(e−128): half of the shared power of two; subnormal for the two smallest exponents.
    let exponent = block[0] as u32;
    let scale = f32::from_bits(if exponent < 2 { 0x0020_0000 << exponent } else { (exponent - 1) << 23 });
    write_levels(scale, &MXFP4_LEVELS, &block[1..], out);
}

/// Writes the levels of packed nibbles times `scale`: the 16 low nibbles, then the 16 high ones.
#[inline(always)]
pub(super) fn write_levels(scale: f32, table: &[f32; 16], nibbles: &[u8], out: &mut [f32; 32]) {
    let (first, second) = out.split_at_mut(16);
    for ((byte, low), high) in nibbles.iter().zip(first).zip(second) {
        *low = scale * table[(byte & 15) as usize];
        *high = scale * table[(byte >> 4) as usize];
    }
}

/// Encodes blocks of 32 values as Q8_0: the largest magnitude becomes ±127, the others are rounded
/// to the nearest step, ties away from zero. Gives the same blocks as ggml's
/// `quantize_row_q8_0_ref`.
pub fn to_q8_0(values: &[f32]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(values.len() / 32 * 34);
    for block in values.as_chunks::<32>().0 {
        let largest = block.iter().fold(0f32, |most, x| most.max(x.abs()));
        let scale = largest / 127.0;
        let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
        bytes.extend(half::f16::from_f32(scale).to_le_bytes());
        bytes.extend(block.iter().map(|x| (x * inverse).round() as i8 as u8));
    }
    bytes
}
