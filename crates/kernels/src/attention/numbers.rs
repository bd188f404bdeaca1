//! How cached numbers are kept.

use crate::memory::Aligned;
use std::ops::Range;

/// How cached keys and values are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KvFormat {
    /// As they were computed.
    #[default]
    F32,
    /// Rounded to bfloat16: half the memory, and other numbers.
    Bf16,
}

/// Numbers in one of the formats. Arithmetic is f32 in any case.
pub(super) enum Numbers {
    F32(Aligned<f32>),
    Bf16(Aligned<u16>),
}

impl Numbers {
    pub fn zeroed(format: KvFormat, len: usize) -> Numbers {
        match format {
            KvFormat::F32 => Numbers::F32(Aligned::zeroed(len)),
            KvFormat::Bf16 => Numbers::Bf16(Aligned::zeroed(len)),
        }
    }

    pub fn bytes(&self) -> usize {
        match self {
            Numbers::F32(numbers) => numbers.len() * 4,
            Numbers::Bf16(numbers) => numbers.len() * 2,
        }
    }

    pub fn get(&self, at: usize) -> f32 {
        match self {
            Numbers::F32(numbers) => numbers[at],
            Numbers::Bf16(numbers) => widened(numbers[at]),
        }
    }

    /// Writes numbers from `at` on, `step` apart.
    pub fn put(&mut self, at: usize, step: usize, from: &[f32]) {
        match self {
            Numbers::F32(to) => to[at..].iter_mut().step_by(step).zip(from).for_each(|(to, &x)| *to = x),
            Numbers::Bf16(to) => to[at..].iter_mut().step_by(step).zip(from).for_each(|(to, &x)| *to = rounded(x)),
        }
    }

    /// Copies some of another's numbers, which are of the same format, to `at`.
    pub fn copy(&mut self, at: usize, from: &Numbers, range: Range<usize>) {
        match (self, from) {
            (Numbers::F32(to), Numbers::F32(from)) => to[at..at + range.len()].copy_from_slice(&from[range]),
            (Numbers::Bf16(to), Numbers::Bf16(from)) => to[at..at + range.len()].copy_from_slice(&from[range]),
            _ => unreachable!("a copy keeps its format"),
        }
    }

    /// Some of the numbers: where they lie, or widened into `wide`.
    pub fn read<'a>(&'a self, range: Range<usize>, wide: &'a mut Vec<f32>) -> &'a [f32] {
        match self {
            Numbers::F32(numbers) => &numbers[range],
            Numbers::Bf16(numbers) => {
                wide.clear();
                wide.extend(numbers[range].iter().map(|&x| widened(x)));
                wide
            }
        }
    }
}

fn widened(x: u16) -> f32 {
    f32::from_bits(u32::from(x) << 16)
}

/// To nearest, ties to even; what is no number stays none.
pub(super) fn rounded(x: f32) -> u16 {
    let bits = x.to_bits();
    if x.is_nan() {
        return (bits >> 16) as u16 | 0x40;
    }
    ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16
}
