//! Dtypes of the KV cache.

use crate::memory::AlignedBuffer;
use std::ops::Range;

/// Dtype of cached keys and values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KvFormat {
    /// No rounding.
    #[default]
    F32,
    /// Rounded to bfloat16: half the memory, slightly different results.
    Bf16,
}

impl KvFormat {
    /// Bytes per element.
    pub fn bytes(self) -> usize {
        match self {
            KvFormat::F32 => 4,
            KvFormat::Bf16 => 2,
        }
    }
}

/// Buffer of one of these dtypes. All arithmetic is f32.
pub(super) enum KvBuffer {
    F32(AlignedBuffer<f32>),
    Bf16(AlignedBuffer<u16>),
}

impl KvBuffer {
    pub fn zeroed(format: KvFormat, len: usize) -> KvBuffer {
        match format {
            KvFormat::F32 => KvBuffer::F32(AlignedBuffer::zeroed(len)),
            KvFormat::Bf16 => KvBuffer::Bf16(AlignedBuffer::zeroed(len)),
        }
    }

    pub fn bytes(&self) -> usize {
        match self {
            KvBuffer::F32(data) => data.len() * 4,
            KvBuffer::Bf16(data) => data.len() * 2,
        }
    }

    pub fn get(&self, at: usize) -> f32 {
        match self {
            KvBuffer::F32(data) => data[at],
            KvBuffer::Bf16(data) => bf16_to_f32(data[at]),
        }
    }

    /// Writes `from` to the elements from `at` on, `step` apart.
    pub fn write_strided(&mut self, at: usize, step: usize, from: &[f32]) {
        match self {
            KvBuffer::F32(to) => to[at..].iter_mut().step_by(step).zip(from).for_each(|(to, &x)| *to = x),
            KvBuffer::Bf16(to) => {
                to[at..].iter_mut().step_by(step).zip(from).for_each(|(to, &x)| *to = round_to_bf16(x))
            }
        }
    }

    /// Copies a range of another buffer of the same dtype to `at`.
    pub fn copy_range(&mut self, at: usize, from: &KvBuffer, range: Range<usize>) {
        match (self, from) {
            (KvBuffer::F32(to), KvBuffer::F32(from)) => to[at..at + range.len()].copy_from_slice(&from[range]),
            (KvBuffer::Bf16(to), KvBuffer::Bf16(from)) => to[at..at + range.len()].copy_from_slice(&from[range]),
            _ => unreachable!("both buffers have the same dtype"),
        }
    }

    /// Returns a range as f32; bf16 is widened into `wide`.
    pub fn read<'a>(&'a self, range: Range<usize>, wide: &'a mut Vec<f32>) -> &'a [f32] {
        match self {
            KvBuffer::F32(data) => &data[range],
            KvBuffer::Bf16(data) => {
                wide.clear();
                wide.extend(data[range].iter().map(|&x| bf16_to_f32(x)));
                wide
            }
        }
    }
}

fn bf16_to_f32(x: u16) -> f32 {
    f32::from_bits(u32::from(x) << 16)
}

/// Rounds to nearest even; NaN stays NaN.
pub(super) fn round_to_bf16(x: f32) -> u16 {
    let bits = x.to_bits();
    if x.is_nan() {
        return (bits >> 16) as u16 | 0x40;
    }
    ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16
}
