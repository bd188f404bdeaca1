//! A row-major matrix of codes with a scale, and optionally a zero point, per tile. Most
//! quantization formats have this structure.

use super::RowDecoder;
use super::blocks::BLOCK_LEN;
use super::codes::{self, E2M1};
use super::parts::{FloatTensor, LayerFault, check_shape, read_integers, word};
use crate::checkpoint::{Checkpoint, StoredType, Tensor};
use std::sync::LazyLock;

static E4M3: LazyLock<[f32; 256]> = LazyLock::new(|| codes::table(codes::e4m3));
static E5M2: LazyLock<[f32; 256]> = LazyLock::new(|| codes::table(codes::e5m2));

/// The storage format of the codes of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CodeFormat {
    /// Signed bytes.
    I8,
    /// 8-bit floats with 4 exponent bits.
    E4m3,
    /// 8-bit floats with 5 exponent bits.
    E5m2,
    /// 4-bit floats, two per byte, low nibble first.
    E2m1,
    /// Unsigned integers of this many bits, packed into 32-bit words from the lowest bit up; the
    /// value is the code minus half the range.
    Packed(u32),
}

impl CodeFormat {
    /// The format of codes that are stored unpacked with this dtype.
    pub(super) fn from_dtype(dtype: StoredType) -> Option<CodeFormat> {
        match dtype {
            StoredType::I8 => Some(CodeFormat::I8),
            StoredType::F8E4M3 => Some(CodeFormat::E4m3),
            StoredType::F8E5M2 => Some(CodeFormat::E5m2),
            _ => None,
        }
    }

    /// Decodes a row of codes to floats, without scale and zero point.
    fn decode(self, bytes: &[u8], out: &mut [f32]) {
        let each = |out: &mut [f32], value: &dyn Fn(u8) -> f32| {
            out.iter_mut().zip(bytes).for_each(|(x, byte)| *x = value(*byte));
        };
        match self {
            CodeFormat::I8 => each(out, &|byte| f32::from(byte as i8)),
            CodeFormat::E4m3 => each(out, &|byte| E4M3[usize::from(byte)]),
            CodeFormat::E5m2 => each(out, &|byte| E5M2[usize::from(byte)]),
            CodeFormat::E2m1 => {
                for (pair, byte) in out.chunks_mut(2).zip(bytes) {
                    pair[0] = E2M1[usize::from(byte & 15)];
                    if let Some(second) = pair.get_mut(1) {
                        *second = E2M1[usize::from(byte >> 4)];
                    }
                }
            }
            CodeFormat::Packed(bits) => {
                let per_word = (32 / bits) as usize;
                for (col, x) in out.iter_mut().enumerate() {
                    *x = unpack(word(bytes, col / per_word), col % per_word, bits);
                }
            }
        }
    }
}

/// The `index`-th code of a word, minus half the range.
fn unpack(word: u32, index: usize, bits: u32) -> f32 {
    let code = word >> (index as u32 * bits) & ((1 << bits) - 1);
    code as f32 - (1u32 << (bits - 1)) as f32
}

/// The stored zero points, one per scale.
#[derive(Debug)]
pub(super) enum ZeroPoints {
    /// Signed bytes.
    I8(Tensor),
    /// Integers of this many bits, packed along the row dimension.
    Packed(Tensor, u32),
}

/// A weight matrix: `(code − zero) · scale · factor / divisor`.
pub(super) struct ScaledMatrix {
    /// The codes, row-major.
    pub(super) codes: Tensor,
    pub(super) kind: CodeFormat,
    /// The scales, row-major: `[tile rows, tiles_per_row]`.
    pub(super) scales: FloatTensor,
    /// Rows and columns of a tile.
    pub(super) tile: (usize, usize),
    /// Tiles along one row.
    pub(super) tiles_per_row: usize,
    pub(super) zeros: Option<ZeroPoints>,
    /// The tile index of each column, `[cols]` (`weight_g_idx`); `None` if tiles are contiguous.
    pub(super) column_tiles: Option<Tensor>,
    /// Constant factor of every scale.
    pub(super) factor: f32,
    /// A scalar that divides every scale (`weight_global_scale`).
    pub(super) divisor: Option<FloatTensor>,
}

/// Derives the tile size `(rows, cols)` and the number of tiles per row from the shape of the
/// scales. `block` is the tile size given by the configuration.
pub(super) fn tiles(
    scales: &Tensor,
    (rows, cols): (usize, usize),
    block: Option<(usize, usize)>,
) -> Result<((usize, usize), usize), LayerFault> {
    let whole_rows = |groups: usize| ((1, cols.div_ceil(groups.max(1))), groups);
    let blocks = block.filter(|(high, wide)| *high > 0 && *wide > 0);
    match (&scales.shape[..], blocks) {
        ([] | [1] | [1, 1], None) => Ok(((rows, cols), 1)),
        (&[down, tiles_per_row], Some((high, wide)))
            if down == rows.div_ceil(high) && tiles_per_row == cols.div_ceil(wide) =>
        {
            Ok(((high, wide), tiles_per_row))
        }
        ([] | [1], _) => Ok(((rows, cols), 1)),
        (&[length], _) if length == rows => Ok(whole_rows(1)),
        (&[down, groups], _) if down == rows && groups > 0 && cols.is_multiple_of(groups) => Ok(whole_rows(groups)),
        // A grid of equal tiles whose size is not in the configuration.
        (&[down, tiles_per_row], None)
            if down > 0 && tiles_per_row > 0 && rows.is_multiple_of(down) && cols.is_multiple_of(tiles_per_row) =>
        {
            Ok(((rows / down, cols / tiles_per_row), tiles_per_row))
        }
        (shape, block) => {
            let tile = block.map(|(high, wide)| format!(", or one for each {high} x {wide}")).unwrap_or_default();
            Err(format!(
                "tensor {} is {shape:?} for a weight of [{rows}, {cols}], where one scale, or one for each row, for equal parts of each row{tile} is expected",
                scales.name
            ))
        }
    }
}

impl ScaledMatrix {
    /// The stored codes of a row.
    fn row_codes<'a>(&self, checkpoint: &'a Checkpoint, row: usize) -> &'a [u8] {
        let all = checkpoint.bytes(&self.codes);
        let size = all.len() / self.codes.shape.first().copied().unwrap_or(1).max(1);
        &all[row * size..][..size]
    }

    /// Whether every block of 32 adjacent columns shares one scale.
    pub(super) fn blocks_share_scale(&self, cols: usize) -> bool {
        self.tile.1.is_multiple_of(BLOCK_LEN) || self.tile.1 >= cols
    }

    /// The zero point of a tile.
    fn zero(&self, checkpoint: &Checkpoint, tile_row: usize, tile: usize) -> f32 {
        match &self.zeros {
            None => 0.0,
            Some(ZeroPoints::I8(tensor)) => {
                f32::from(checkpoint.bytes(tensor)[tile_row * self.tiles_per_row + tile] as i8)
            }
            Some(ZeroPoints::Packed(tensor, bits)) => {
                let per_word = (32 / bits) as usize;
                let words = word(checkpoint.bytes(tensor), tile_row / per_word * self.tiles_per_row + tile);
                unpack(words, tile_row % per_word, *bits)
            }
        }
    }
}

impl RowDecoder for ScaledMatrix {
    fn check(&self, checkpoint: &Checkpoint) -> Result<(), LayerFault> {
        let Some(column_tiles) = &self.column_tiles else { return Ok(()) };
        match read_integers(checkpoint, column_tiles)?
            .iter()
            .find(|tile| usize::try_from(**tile).map_or(true, |t| t >= self.tiles_per_row))
        {
            None => Ok(()),
            Some(bad) => Err(format!(
                "tensor {} contains group {bad}, and there are only {}",
                column_tiles.name, self.tiles_per_row
            )),
        }
    }

    fn decode_row(&self, checkpoint: &Checkpoint, row: usize, out: &mut [f32]) {
        self.kind.decode(self.row_codes(checkpoint, row), out);
        let (scales, tile_row) = (self.scales.of(checkpoint), row / self.tile.0);
        let divisor = self.divisor.as_ref().map_or(1.0, |divisor| divisor.of(checkpoint).at(0));
        let tile = |tile: usize| {
            let scale = scales.at(tile_row * self.tiles_per_row + tile) * self.factor / divisor;
            (scale, self.zero(checkpoint, tile_row, tile))
        };
        if let Some(column_tiles) = &self.column_tiles {
            let tiles: Vec<(f32, f32)> = (0..self.tiles_per_row).map(tile).collect();
            let indices = read_integers(checkpoint, column_tiles).unwrap_or_default();
            for (x, index) in out.iter_mut().zip(indices) {
                let (scale, zero) = tiles[index as usize];
                *x = (*x - zero) * scale;
            }
            return;
        }
        for (index, columns) in out.chunks_mut(self.tile.1).enumerate() {
            let (scale, zero) = tile(index);
            columns.iter_mut().for_each(|x| *x = (*x - zero) * scale);
        }
    }

    fn integer_row(&self, checkpoint: &Checkpoint, row: usize, integers: &mut [i16], scales: &mut [f32]) -> bool {
        let integer_codes = matches!(self.kind, CodeFormat::I8 | CodeFormat::Packed(_)) && self.column_tiles.is_none();
        if !integer_codes || self.factor != 1.0 || self.divisor.is_some() || !self.blocks_share_scale(integers.len()) {
            return false;
        }
        let mut codes = vec![0.0; integers.len()];
        self.kind.decode(self.row_codes(checkpoint, row), &mut codes);
        let (stored, tile_row) = (self.scales.of(checkpoint), row / self.tile.0);
        for (block, (integers, block_scale)) in integers.chunks_mut(BLOCK_LEN).zip(scales).enumerate() {
            let tile = block * BLOCK_LEN / self.tile.1;
            let zero = self.zero(checkpoint, tile_row, tile);
            *block_scale = stored.at(tile_row * self.tiles_per_row + tile);
            let codes = &codes[block * BLOCK_LEN..];
            integers.iter_mut().zip(codes).for_each(|(integer, code)| *integer = (code - zero) as i16);
        }
        true
    }
}

/// Checks that the zero points match the scales in shape and dtype.
pub(super) fn zeros(
    tensor: Tensor,
    down: usize,
    tiles_per_row: usize,
    bits: Option<u32>,
) -> Result<ZeroPoints, LayerFault> {
    match (tensor.dtype, bits) {
        (StoredType::I32, Some(bits)) => {
            let words = down.div_ceil((32 / bits) as usize);
            check_shape(&tensor, &[words, tiles_per_row])?;
            Ok(ZeroPoints::Packed(tensor, bits))
        }
        (StoredType::I8, _) => {
            if tensor.elements() != down.saturating_mul(tiles_per_row) {
                check_shape(&tensor, &[down, tiles_per_row])?;
            }
            Ok(ZeroPoints::I8(tensor))
        }
        (other, _) => Err(format!("tensor {} is stored as {other} where packed I32 or I8 is expected", tensor.name)),
    }
}
