//! Dequantization of GGUF super-blocks of 256 values: K-quants, IQ4_XS, ternary TQ1_0 and TQ2_0.

use super::small::{IQ4_LEVELS, write_levels};
use super::{f16_at, u16_at};

#[inline(always)]
pub(super) fn q2_k(block: &[u8; 84], out: &mut [f32; 256]) {
    let (scales, rest) = block.split_at(16);
    let (quants, halves) = rest.split_at(64);
    let (scale, min) = (f16_at(halves, 0), f16_at(halves, 2));
    // 32 bytes hold 128 values: the lowest two bits of each byte are the first 32 values, and so
    // on.
    for (group, values) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let (s, m) = (scale * (scales[group] & 15) as f32, min * (scales[group] >> 4) as f32);
        let shift = group % 8 / 2 * 2;
        let bytes = &quants[group / 8 * 32 + group % 2 * 16..][..16];
        for (value, byte) in values.iter_mut().zip(bytes) {
            *value = s * (byte >> shift & 3) as f32 - m;
        }
    }
}

#[inline(always)]
pub(super) fn q3_k(block: &[u8; 110], out: &mut [f32; 256]) {
    let (high_bits, rest) = block.split_at(32);
    let (quants, rest) = rest.split_at(64);
    let (packed, halves) = rest.split_at(12);
    let scale = f16_at(halves, 0);
    for (group, values) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        // A 6-bit scale: four bits from one of the first eight bytes, two from one of the last
        // four.
        let low = packed[group % 8] >> (group / 8 * 4) & 15;
        let high = packed[8 + group % 4] >> (group / 4 * 2) & 3;
        let s = scale * ((low | high << 4) as i32 - 32) as f32;
        let shift = group % 8 / 2 * 2;
        let bytes = &quants[group / 8 * 32 + group % 2 * 16..][..16];
        let highs = &high_bits[group % 2 * 16..][..16];
        for ((value, byte), high) in values.iter_mut().zip(bytes).zip(highs) {
            // If the high bit is clear, 4 is subtracted.
            let four = (high >> (group / 2) & 1 ^ 1) << 2;
            *value = s * ((byte >> shift & 3) as i32 - four as i32) as f32;
        }
    }
}

/// Unpacks the eight 6-bit scales and eight 6-bit minima of Q4_K and Q5_K from their twelve bytes.
#[inline(always)]
fn scales_and_minima(packed: &[u8]) -> [(f32, f32); 8] {
    std::array::from_fn(|i| {
        let (scale, min) = if i < 4 {
            (packed[i] & 63, packed[i + 4] & 63)
        } else {
            (packed[i + 4] & 15 | packed[i - 4] >> 6 << 4, packed[i + 4] >> 4 | packed[i] >> 6 << 4)
        };
        (scale as f32, min as f32)
    })
}

#[inline(always)]
pub(super) fn q4_k(block: &[u8; 144], out: &mut [f32; 256]) {
    let (scale, min) = (f16_at(block, 0), f16_at(block, 2));
    let groups = scales_and_minima(&block[4..16]);
    let quants = block[16..].as_chunks::<32>().0;
    // 64 values are stored in 32 bytes: the low nibbles, then the high nibbles, each with its own
    // scale and minimum.
    for (pair, (values, bytes)) in out.as_chunks_mut::<64>().0.iter_mut().zip(quants).enumerate() {
        let (s0, m0) = (scale * groups[2 * pair].0, min * groups[2 * pair].1);
        let (s1, m1) = (scale * groups[2 * pair + 1].0, min * groups[2 * pair + 1].1);
        let (first, second) = values.split_at_mut(32);
        for ((byte, low), high) in bytes.iter().zip(first).zip(second) {
            *low = s0 * (byte & 15) as f32 - m0;
            *high = s1 * (byte >> 4) as f32 - m1;
        }
    }
}

#[inline(always)]
pub(super) fn q5_k(block: &[u8; 176], out: &mut [f32; 256]) {
    let (scale, min) = (f16_at(block, 0), f16_at(block, 2));
    let groups = scales_and_minima(&block[4..16]);
    let fifth = &block[16..48];
    let quants = &block[48..];
    for (group, values) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (s, m) = (scale * groups[group].0, min * groups[group].1);
        let bytes = &quants[group / 2 * 32..][..32];
        let shift = group % 2 * 4;
        for ((value, byte), five) in values.iter_mut().zip(bytes).zip(fifth) {
            *value = s * (byte >> shift & 15 | (five >> group & 1) << 4) as f32 - m;
        }
    }
}

#[inline(always)]
pub(super) fn q6_k(block: &[u8; 210], out: &mut [f32; 256]) {
    let (low_bits, rest) = block.split_at(128);
    let (high_bits, rest) = rest.split_at(64);
    let (scales, halves) = rest.split_at(16);
    let scale = f16_at(halves, 0);
    // 128 values are 64 bytes of low nibbles and 32 bytes of upper bit pairs; combined before any
    // conversion to float, so that the loops vectorize.
    let pieces = low_bits.as_chunks::<64>().0.iter().zip(high_bits.as_chunks::<32>().0).zip(scales.as_chunks::<8>().0);
    for (values, ((low, high), scales)) in out.as_chunks_mut::<128>().0.iter_mut().zip(pieces) {
        let mut quants = [0i8; 128];
        for i in 0..32 {
            quants[i] = (low[i] & 15 | (high[i] & 3) << 4) as i8 - 32;
            quants[i + 32] = (low[i + 32] & 15 | (high[i] >> 2 & 3) << 4) as i8 - 32;
            quants[i + 64] = (low[i] >> 4 | (high[i] >> 4 & 3) << 4) as i8 - 32;
            quants[i + 96] = (low[i + 32] >> 4 | (high[i] >> 6) << 4) as i8 - 32;
        }
        let groups = values.as_chunks_mut::<16>().0.iter_mut().zip(quants.as_chunks::<16>().0).zip(scales);
        for ((values, quants), group) in groups {
            let s = scale * *group as i8 as f32;
            for (value, quant) in values.iter_mut().zip(quants) {
                *value = s * *quant as f32;
            }
        }
    }
}

#[inline(always)]
pub(super) fn iq4_xs(block: &[u8; 136], out: &mut [f32; 256]) {
    let scale = f16_at(block, 0);
    let high_bits = u16_at(block, 2);
    let (low_bits, quants) = block[4..].split_at(4);
    for (group, values) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let low = (low_bits[group / 2] >> (group % 2 * 4) & 15) as i32;
        let high = (high_bits >> (2 * group) & 3) as i32;
        let s = scale * ((low | high << 4) - 32) as f32;
        write_levels(s, &IQ4_LEVELS, &quants[group * 16..][..16], values);
    }
}

#[inline(always)]
pub(super) fn tq1_0(block: &[u8; 54], out: &mut [f32; 256]) {
    let scale = f16_at(block, 52);
    // byte / 256 is a fraction with base-3 digits: a wrapping multiplication by 3^n drops the first
    // n digits, so that digit n comes first.
    let runs = [(&block[..32], 5), (&block[32..48], 5), (&block[48..52], 4)];
    let mut values = out.iter_mut();
    for (bytes, digits) in runs {
        for digit in 0..digits {
            for (byte, value) in bytes.iter().zip(&mut values) {
                let shifted = byte.wrapping_mul(3u8.pow(digit)) as i32;
                *value = (((shifted * 3) >> 8) - 1) as f32 * scale;
            }
        }
    }
}

#[inline(always)]
pub(super) fn tq2_0(block: &[u8; 66], out: &mut [f32; 256]) {
    let scale = f16_at(block, 64);
    for (group, values) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let shift = group % 4 * 2;
        for (value, byte) in values.iter_mut().zip(&block[group / 4 * 32..][..32]) {
            *value = ((byte >> shift & 3) as i32 - 1) as f32 * scale;
        }
    }
}
