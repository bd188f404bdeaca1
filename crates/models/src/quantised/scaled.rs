//! A matrix of codes in rows, a scale for each tile of it, perhaps a zero point too: what most formats are.

use super::Layer;
use super::codes::{self, E2M1};
use super::keep::BLOCK;
use super::parts::{Fault, Floats, integers, shaped, word};
use crate::checkpoint::{Checkpoint, StoredType, Tensor};
use std::sync::LazyLock;

static E4M3: LazyLock<[f32; 256]> = LazyLock::new(|| codes::table(codes::e4m3));
static E5M2: LazyLock<[f32; 256]> = LazyLock::new(|| codes::table(codes::e5m2));

/// How the codes of a row are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Codes {
    /// Signed bytes.
    I8,
    /// 8-bit floats with 4 exponent bits.
    E4m3,
    /// 8-bit floats with 5 exponent bits.
    E5m2,
    /// 4-bit floats, two to a byte, the lower half first.
    E2m1,
    /// Whole numbers of so many bits from the lowest bit of a word up, each with half its range added.
    Packed(u32),
}

impl Codes {
    /// The codes that a stored type holds by itself.
    pub(super) fn of(dtype: StoredType) -> Option<Codes> {
        match dtype {
            StoredType::I8 => Some(Codes::I8),
            StoredType::F8E4M3 => Some(Codes::E4m3),
            StoredType::F8E5M2 => Some(Codes::E5m2),
            _ => None,
        }
    }

    /// Writes a row's codes as numbers.
    fn decode(self, bytes: &[u8], out: &mut [f32]) {
        let each = |out: &mut [f32], value: &dyn Fn(u8) -> f32| {
            out.iter_mut().zip(bytes).for_each(|(x, byte)| *x = value(*byte));
        };
        match self {
            Codes::I8 => each(out, &|byte| f32::from(byte as i8)),
            Codes::E4m3 => each(out, &|byte| E4M3[usize::from(byte)]),
            Codes::E5m2 => each(out, &|byte| E5M2[usize::from(byte)]),
            Codes::E2m1 => {
                for (pair, byte) in out.chunks_mut(2).zip(bytes) {
                    pair[0] = E2M1[usize::from(byte & 15)];
                    if let Some(second) = pair.get_mut(1) {
                        *second = E2M1[usize::from(byte >> 4)];
                    }
                }
            }
            Codes::Packed(bits) => {
                let per_word = (32 / bits) as usize;
                for (place, x) in out.iter_mut().enumerate() {
                    *x = packed(word(bytes, place / per_word), place % per_word, bits);
                }
            }
        }
    }
}

/// A whole number in a word, without the half range that was added to it.
fn packed(word: u32, place: usize, bits: u32) -> f32 {
    let code = word >> (place as u32 * bits) & ((1 << bits) - 1);
    code as f32 - (1u32 << (bits - 1)) as f32
}

/// The zero points beside the scales.
#[derive(Debug)]
pub(super) enum Zeros {
    /// One signed byte a scale.
    I8(Tensor),
    /// Of so many bits, packed along the rows.
    Packed(Tensor, u32),
}

/// A layer of this kind.
pub(super) struct Scaled {
    /// The codes, row after row.
    pub(super) codes: Tensor,
    pub(super) kind: Codes,
    /// The scales, row after row of tiles.
    pub(super) scales: Floats,
    /// Rows and columns of a tile.
    pub(super) tile: (usize, usize),
    /// How many tiles stand side by side.
    pub(super) across: usize,
    pub(super) zeros: Option<Zeros>,
    /// The tile of each column, where it is not by its place.
    pub(super) order: Option<Tensor>,
    /// What every scale is multiplied by.
    pub(super) factor: f32,
    /// A number that every scale is divided by.
    pub(super) divisor: Option<Floats>,
}

/// A tile's rows and columns, and how many tiles stand side by side, from the shape of the scales beside a matrix; `block` is the tile that
/// the configuration names.
pub(super) fn tiles(
    scales: &Tensor,
    (rows, cols): (usize, usize),
    block: Option<(usize, usize)>,
) -> Result<((usize, usize), usize), Fault> {
    let whole_rows = |groups: usize| ((1, cols.div_ceil(groups.max(1))), groups);
    let blocks = block.filter(|(high, wide)| *high > 0 && *wide > 0);
    match (&scales.shape[..], blocks) {
        ([] | [1] | [1, 1], None) => Ok(((rows, cols), 1)),
        (&[down, across], Some((high, wide))) if down == rows.div_ceil(high) && across == cols.div_ceil(wide) => {
            Ok(((high, wide), across))
        }
        ([] | [1], _) => Ok(((rows, cols), 1)),
        (&[length], _) if length == rows => Ok(whole_rows(1)),
        (&[down, groups], _) if down == rows && groups > 0 && cols.is_multiple_of(groups) => Ok(whole_rows(groups)),
        // A grid of equal tiles, whose size the configuration does not say.
        (&[down, across], None)
            if down > 0 && across > 0 && rows.is_multiple_of(down) && cols.is_multiple_of(across) =>
        {
            Ok(((rows / down, cols / across), across))
        }
        (shape, block) => {
            let tile = block.map(|(high, wide)| format!(", or one for each {high} x {wide}")).unwrap_or_default();
            Err(format!(
                "tensor {} is {shape:?} beside a weight of [{rows}, {cols}], where one scale, one for each row, for equal parts of each row{tile} is expected",
                scales.name
            ))
        }
    }
}

impl Scaled {
    /// The bytes of a row's codes.
    fn codes_of<'a>(&self, checkpoint: &'a Checkpoint, row: usize) -> &'a [u8] {
        let all = checkpoint.bytes(&self.codes);
        let size = all.len() / self.codes.shape.first().copied().unwrap_or(1).max(1);
        &all[row * size..][..size]
    }

    /// Whether 32 columns side by side always share a scale.
    pub(super) fn keeps_blocks(&self, cols: usize) -> bool {
        self.tile.1.is_multiple_of(BLOCK) || self.tile.1 >= cols
    }

    /// The zero point of a tile.
    fn zero(&self, checkpoint: &Checkpoint, tile_row: usize, tile: usize) -> f32 {
        match &self.zeros {
            None => 0.0,
            Some(Zeros::I8(tensor)) => f32::from(checkpoint.bytes(tensor)[tile_row * self.across + tile] as i8),
            Some(Zeros::Packed(tensor, bits)) => {
                let per_word = (32 / bits) as usize;
                let words = word(checkpoint.bytes(tensor), tile_row / per_word * self.across + tile);
                packed(words, tile_row % per_word, *bits)
            }
        }
    }
}

impl Layer for Scaled {
    fn check(&self, checkpoint: &Checkpoint) -> Result<(), Fault> {
        let Some(order) = &self.order else { return Ok(()) };
        match integers(checkpoint, order)?
            .iter()
            .find(|tile| usize::try_from(**tile).map_or(true, |t| t >= self.across))
        {
            None => Ok(()),
            Some(bad) => Err(format!("tensor {} names group {bad} of {}", order.name, self.across)),
        }
    }

    fn row(&self, checkpoint: &Checkpoint, row: usize, out: &mut [f32]) {
        self.kind.decode(self.codes_of(checkpoint, row), out);
        let (scales, tile_row) = (self.scales.of(checkpoint), row / self.tile.0);
        let divisor = self.divisor.as_ref().map_or(1.0, |divisor| divisor.of(checkpoint).at(0));
        let tile = |tile: usize| {
            let scale = scales.at(tile_row * self.across + tile) * self.factor / divisor;
            (scale, self.zero(checkpoint, tile_row, tile))
        };
        if let Some(order) = &self.order {
            let tiles: Vec<(f32, f32)> = (0..self.across).map(tile).collect();
            let places = integers(checkpoint, order).unwrap_or_default();
            for (x, place) in out.iter_mut().zip(places) {
                let (scale, zero) = tiles[place as usize];
                *x = (*x - zero) * scale;
            }
            return;
        }
        for (number, part) in out.chunks_mut(self.tile.1).enumerate() {
            let (scale, zero) = tile(number);
            part.iter_mut().for_each(|x| *x = (*x - zero) * scale);
        }
    }

    fn whole_numbers(&self, checkpoint: &Checkpoint, row: usize, numbers: &mut [i16], scales: &mut [f32]) -> bool {
        let whole = matches!(self.kind, Codes::I8 | Codes::Packed(_)) && self.order.is_none();
        if !whole || self.factor != 1.0 || self.divisor.is_some() || !self.keeps_blocks(numbers.len()) {
            return false;
        }
        let mut codes = vec![0.0; numbers.len()];
        self.kind.decode(self.codes_of(checkpoint, row), &mut codes);
        let (stored, tile_row) = (self.scales.of(checkpoint), row / self.tile.0);
        for (block, (numbers, kept)) in numbers.chunks_mut(BLOCK).zip(scales).enumerate() {
            let tile = block * BLOCK / self.tile.1;
            let zero = self.zero(checkpoint, tile_row, tile);
            *kept = stored.at(tile_row * self.across + tile);
            let codes = &codes[block * BLOCK..];
            numbers.iter_mut().zip(codes).for_each(|(number, code)| *number = (code - zero) as i16);
        }
        true
    }
}

/// Checks that a tensor of zero points fits the scales.
pub(super) fn zeros(tensor: Tensor, down: usize, across: usize, bits: Option<u32>) -> Result<Zeros, Fault> {
    match (tensor.dtype, bits) {
        (StoredType::I32, Some(bits)) => {
            let words = down.div_ceil((32 / bits) as usize);
            shaped(&tensor, &[words, across])?;
            Ok(Zeros::Packed(tensor, bits))
        }
        (StoredType::I8, _) => {
            if tensor.elements() != down.saturating_mul(across) {
                shaped(&tensor, &[down, across])?;
            }
            Ok(Zeros::I8(tensor))
        }
        (other, _) => {
            Err(format!("tensor {} is stored as {other} where packed numbers or I8 are expected", tensor.name))
        }
    }
}
