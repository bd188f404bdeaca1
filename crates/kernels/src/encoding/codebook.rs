//! The IQ formats: a group of four or eight values is an entry of a codebook; signs and scale are
//! stored separately.
//!
//! The codebooks are ggml's, exported by `grids/make.py`.

use super::{f16_at, f16_to_f32, u16_at, u32_at};

const IQ1_S: &[u8; 2048 * 8] = include_bytes!("grids/iq1_s.bin");
const IQ2_XXS: &[u8; 256 * 8] = include_bytes!("grids/iq2_xxs.bin");
const IQ2_XS: &[u8; 512 * 8] = include_bytes!("grids/iq2_xs.bin");
const IQ2_S: &[u8; 1024 * 8] = include_bytes!("grids/iq2_s.bin");
const IQ3_XXS: &[u8; 256 * 4] = include_bytes!("grids/iq3_xxs.bin");
const IQ3_S: &[u8; 512 * 4] = include_bytes!("grids/iq3_s.bin");

/// Eight sign bits for each seven stored bits: the eighth makes the number of minus signs even.
const SIGNS: &[u8; 128] = include_bytes!("grids/signs.bin");

/// Added to or subtracted from an entry's values in the ternary formats.
const IQ1_SHIFT: f32 = 0.125;

/// Writes an entry's values times `scale`, negated where the value's bit in `signs` is set.
#[inline(always)]
fn write_signed(scale: f32, entry: &[u8], signs: u8, out: &mut [f32]) {
    for (i, (value, level)) in out.iter_mut().zip(entry).enumerate() {
        let sign = if signs >> i & 1 == 0 { 1.0 } else { -1.0 };
        *value = scale * *level as f32 * sign;
    }
}

/// Entry `index` of a codebook with eight values per entry.
#[inline(always)]
fn entry_of_eight<const N: usize>(book: &'static [u8; N], index: usize) -> &'static [u8; 8] {
    &book.as_chunks().0[index]
}

/// Two entries of a codebook with four values per entry, concatenated.
#[inline(always)]
fn two_entries_of_four<const N: usize>(book: &'static [u8; N], first: usize, second: usize) -> [u8; 8] {
    let fours = book.as_chunks::<4>().0;
    let ([a, b, c, d], [e, f, g, h]) = (fours[first], fours[second]);
    [a, b, c, d, e, f, g, h]
}

#[inline(always)]
pub(super) fn iq2_xxs(block: &[u8; 66], out: &mut [f32; 256]) {
    let scale = f16_at(block, 0);
    // Eight bytes for 32 values: four entries, then 4 × 7 sign bits and a 4-bit scale.
    for (stored, values) in block[2..].as_chunks::<8>().0.iter().zip(out.as_chunks_mut::<32>().0) {
        let packed = u32_at(stored, 4);
        let s = scale * (0.5 + (packed >> 28) as f32) * 0.25;
        for (i, group) in values.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let signs = SIGNS[(packed >> (7 * i) & 127) as usize];
            write_signed(s, entry_of_eight(IQ2_XXS, stored[i] as usize), signs, group);
        }
    }
}

#[inline(always)]
pub(super) fn iq2_xs(block: &[u8; 74], out: &mut [f32; 256]) {
    let scale = f16_at(block, 0);
    let (quants, scales) = block[2..].split_at(64);
    for (i, group) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let s = scale * (0.5 + nibble(scales, i / 2) as f32) * 0.25;
        let packed = u16_at(quants, 2 * i) as usize;
        write_signed(s, entry_of_eight(IQ2_XS, packed & 511), SIGNS[packed >> 9], group);
    }
}

#[inline(always)]
pub(super) fn iq2_s(block: &[u8; 82], out: &mut [f32; 256]) {
    let scale = f16_at(block, 0);
    let (quants, rest) = block[2..].split_at(32);
    let (signs, rest) = rest.split_at(32);
    let (high_bits, scales) = rest.split_at(8);
    for (i, group) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let s = scale * (0.5 + nibble(scales, i / 2) as f32) * 0.25;
        let high = (high_bits[i / 4] >> (2 * (i % 4)) & 3) as usize;
        write_signed(s, entry_of_eight(IQ2_S, quants[i] as usize | high << 8), signs[i], group);
    }
}

#[inline(always)]
pub(super) fn iq3_xxs(block: &[u8; 98], out: &mut [f32; 256]) {
    let scale = f16_at(block, 0);
    let (quants, packed) = block[2..].split_at(64);
    for (i, group) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let packed = u32_at(packed, i / 4 * 4);
        let s = scale * (0.5 + (packed >> 28) as f32) * 0.5;
        let signs = SIGNS[(packed >> (7 * (i % 4)) & 127) as usize];
        let entries = two_entries_of_four(IQ3_XXS, quants[2 * i] as usize, quants[2 * i + 1] as usize);
        write_signed(s, &entries, signs, group);
    }
}

#[inline(always)]
pub(super) fn iq3_s(block: &[u8; 110], out: &mut [f32; 256]) {
    let scale = f16_at(block, 0);
    let (quants, rest) = block[2..].split_at(64);
    let (high_bits, rest) = rest.split_at(8);
    let (signs, scales) = rest.split_at(32);
    let entry = |at: usize| quants[at] as usize | (high_bits[at / 8] as usize >> (at % 8) & 1) << 8;
    for (i, group) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let s = scale * (1 + 2 * nibble(scales, i / 4) as i32) as f32;
        write_signed(s, &two_entries_of_four(IQ3_S, entry(2 * i), entry(2 * i + 1)), signs[i], group);
    }
}

#[inline(always)]
pub(super) fn iq1_s(block: &[u8; 50], out: &mut [f32; 256]) {
    let scale = f16_at(block, 0);
    let (quants, packed) = block[2..].split_at(32);
    for (i, group) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let packed = u16_at(packed, i / 4 * 2);
        let s = scale * (2 * (packed >> 12 & 7) + 1) as f32;
        let shift = if packed & 0x8000 == 0 { IQ1_SHIFT } else { -IQ1_SHIFT };
        let high = (packed >> (3 * (i % 4)) & 7) as usize;
        write_ternary(s, quants[i] as usize | high << 8, shift, group);
    }
}

#[inline(always)]
pub(super) fn iq1_m(block: &[u8; 56], out: &mut [f32; 256]) {
    let (quants, rest) = block.split_at(32);
    let (packed, scales) = rest.split_at(16);
    // The block's f16 scale is spread over the upper nibbles of the four words of scales.
    let words: [u16; 4] = std::array::from_fn(|i| u16_at(scales, 2 * i));
    let bits = words[0] >> 12 | words[1] >> 12 << 4 | words[2] >> 12 << 8 | words[3] >> 12 << 12;
    let scale = f16_to_f32(bits);
    for (i, group) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let s = scale * (2 * (words[i / 8] >> (3 * (i / 2 % 4)) & 7) + 1) as f32;
        let four = packed[i / 2] >> (4 * (i % 2)) & 15;
        let shift = if four & 8 == 0 { IQ1_SHIFT } else { -IQ1_SHIFT };
        write_ternary(s, quants[i] as usize | (four as usize & 7) << 8, shift, group);
    }
}

#[inline(always)]
fn write_ternary(scale: f32, index: usize, shift: f32, out: &mut [f32; 8]) {
    for (value, level) in out.iter_mut().zip(entry_of_eight(IQ1_S, index)) {
        *value = scale * (*level as i8 as f32 + shift);
    }
}

/// Element `i` of packed nibbles, low nibble first.
#[inline(always)]
fn nibble(packed: &[u8], i: usize) -> u8 {
    packed[i / 2] >> (i % 2 * 4) & 15
}
