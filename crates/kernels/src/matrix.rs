//! Weights as the inner loop wants them: panels of sixteen output columns.
//!
//! A weight of `rows` outputs and `cols` inputs is stored panel after panel; in a panel, step after step of
//! the inner dimension, sixteen adjacent outputs. f32 panels are multiplied as they lie. Narrower panels and the
//! block formats of GGUF are widened a chunk at a time into a scratch panel of f32, which is exact: so the numbers do not depend on the product's height.

use crate::dispatch;
use crate::encoding::{self, Encoding};
use crate::groups::Groups;
use crate::memory::{Aligned, Shared};
use crate::narrow::{self, Bf16, F16, Narrow};
use crate::pool::Pool;
use crate::simd::{LANES, Simd};
use crate::tile::{MOST_PANELS, PANEL, Right};
use std::ops::Range;

/// Steps of the inner dimension handled at once: a chunk of an f32 panel is 16 KiB, half of a level-one cache,
/// and 256 is a whole number of blocks in every encoding.
pub(crate) const CHUNK: usize = 256;

/// How a packed weight is kept in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DType {
    /// Four bytes a value.
    F32,
    /// Two bytes, eight bits of precision.
    Bf16,
    /// Two bytes, eleven bits of precision, small range.
    F16,
    /// One byte, and a scale for 32 values. A matrix whose rows are not whole blocks of 32 is kept in bf16.
    Q8,
}

/// The stored bytes of a weight's rows, for encodings that are kept as they are in the file.
pub trait RowBytes: Send + Sync {
    /// The encoded row.
    fn row(&self, row: usize) -> &[u8];
}

enum Store {
    F32(Aligned<f32>),
    Bf16(Aligned<u16>),
    F16(Aligned<u16>),
    Groups(Groups),
    Blocks(Encoding, Box<dyn RowBytes>),
}

/// A weight matrix, ready to be multiplied.
pub struct Matrix {
    rows: usize,
    cols: usize,
    store: Store,
}

impl Matrix {
    /// Packs a matrix whose rows `fill` writes as f32, in parallel.
    ///
    /// ```
    /// use pellucid_kernels::{DType, Matrix, Pool, matmul};
    /// let pool = Pool::new(1);
    /// let identity = Matrix::pack(&pool, 3, 3, DType::F32, &|row, out| { out.fill(0.0); out[row] = 1.0; });
    /// let mut y = [0.0; 3];
    /// matmul(&pool, &[5.0, 6.0, 7.0], &identity, None, &mut y);
    /// assert_eq!(y, [5.0, 6.0, 7.0]);
    /// ```
    pub fn pack(
        pool: &Pool,
        rows: usize,
        cols: usize,
        dtype: DType,
        fill: &(dyn Fn(usize, &mut [f32]) + Sync),
    ) -> Matrix {
        let size = rows.div_ceil(PANEL) * PANEL * cols;
        let store = match dtype {
            DType::F32 => Store::F32(pack_panels(pool, rows, cols, size, fill, interleave)),
            DType::Bf16 => Store::Bf16(pack_panels(pool, rows, cols, size, fill, narrow_panel::<Bf16>)),
            DType::F16 => Store::F16(pack_panels(pool, rows, cols, size, fill, narrow_panel::<F16>)),
            DType::Q8 => return Matrix::quantised(pool, rows, cols, fill),
        };
        Matrix { rows, cols, store }
    }

    /// A matrix in eight bits, made from rows of f32.
    fn quantised(pool: &Pool, rows: usize, cols: usize, fill: &(dyn Fn(usize, &mut [f32]) + Sync)) -> Matrix {
        let encode = |row: usize, show: &mut dyn FnMut(&[u8])| {
            let mut values = vec![0.0; cols];
            fill(row, &mut values);
            show(&encoding::to_q8_0(&values));
        };
        match fits_q8(cols).then(|| Groups::pack(pool, rows, cols, Encoding::Q8_0, &encode)).flatten() {
            Some(groups) => Matrix { rows, cols, store: Store::Groups(groups) },
            None => Matrix::pack(pool, rows, cols, DType::Bf16, fill),
        }
    }

    /// A matrix kept in its file's encoding; `cols` must be a whole number of blocks. The simple formats are repacked into panels
    /// of the same size, the others are read where they lie.
    pub fn encoded(pool: &Pool, rows: usize, cols: usize, encoding: Encoding, bytes: Box<dyn RowBytes>) -> Matrix {
        assert!(cols.is_multiple_of(encoding.block_len()), "{cols} columns are not whole blocks of {encoding}");
        let packed = Groups::pack(pool, rows, cols, encoding, &|row, show| show(bytes.row(row)));
        let store = match packed {
            Some(groups) => Store::Groups(groups),
            None => Store::Blocks(encoding, bytes),
        };
        Matrix { rows, cols, store }
    }

    /// Bytes of memory that [`Matrix::pack`] takes.
    pub fn packed_bytes(rows: usize, cols: usize, dtype: DType) -> usize {
        let numbers = rows.div_ceil(PANEL) * PANEL * cols;
        match dtype {
            DType::F32 => numbers * 4,
            DType::Bf16 | DType::F16 => numbers * 2,
            DType::Q8 if fits_q8(cols) => Matrix::encoded_bytes(rows, cols, Encoding::Q8_0),
            DType::Q8 => numbers * 2,
        }
    }

    /// Bytes of memory that [`Matrix::encoded`] takes: none where rows are read as they lie.
    pub fn encoded_bytes(rows: usize, cols: usize, encoding: Encoding) -> usize {
        Groups::bytes_for(rows, cols, encoding).unwrap_or(0)
    }

    /// Outputs.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Inputs.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Bytes that the weights take, in memory or mapped.
    pub fn bytes(&self) -> usize {
        match &self.store {
            Store::F32(data) => data.len() * 4,
            Store::Bf16(data) | Store::F16(data) => data.len() * 2,
            Store::Groups(groups) => groups.bytes(),
            Store::Blocks(encoding, _) => self.rows * (self.cols / encoding.block_len()) * encoding.block_bytes(),
        }
    }

    /// The name of the storage format, as people write it.
    pub fn format(&self) -> String {
        match &self.store {
            Store::F32(_) => "f32".into(),
            Store::Bf16(_) => "bf16".into(),
            Store::F16(_) => "f16".into(),
            Store::Groups(groups) => groups.encoding().to_string(),
            Store::Blocks(encoding, _) => encoding.to_string(),
        }
    }

    /// Writes row `row` (one output's weights; one token's embedding) as f32.
    pub fn row(&self, row: usize, out: &mut [f32]) {
        assert!(row < self.rows && out.len() == self.cols, "row {row} of a {}x{} matrix", self.rows, self.cols);
        let (panel, lane) = (row / PANEL, row % PANEL);
        let steps = panel * self.cols * PANEL..(panel + 1) * self.cols * PANEL;
        match &self.store {
            Store::F32(data) => {
                out.iter_mut().zip(data[steps].chunks_exact(PANEL)).for_each(|(x, step)| *x = step[lane]);
            }
            Store::Bf16(data) => lane_of::<Bf16>(&data[steps], lane, out),
            Store::F16(data) => lane_of::<F16>(&data[steps], lane, out),
            Store::Groups(groups) => groups.row(row, out),
            Store::Blocks(encoding, bytes) => encoding::decode(*encoding, bytes.row(row), out),
        }
    }

    /// Whether the rows are read where they lie in the file.
    pub fn is_in_place(&self) -> bool {
        matches!(self.store, Store::Blocks(..))
    }

    /// Whether panels are already f32 and need no widening.
    pub(crate) fn is_f32(&self) -> bool {
        matches!(self.store, Store::F32(_))
    }

    /// Where the panels lie, and the bytes from one to the next; nothing where rows are read as they lie in the file.
    pub(crate) fn place(&self) -> Option<(*const u8, usize)> {
        let (start, bytes) = match &self.store {
            Store::F32(data) => (data.as_ptr().cast(), data.len() * 4),
            Store::Bf16(data) | Store::F16(data) => (data.as_ptr().cast(), data.len() * 2),
            Store::Groups(groups) => groups.place(),
            Store::Blocks(..) => return None,
        };
        Some((start, bytes / self.rows.div_ceil(PANEL)))
    }

    /// The steps of the inner dimension to take at once when `panels` panels are widened together: whole blocks of the
    /// encoding, and otherwise what keeps the widened panels in the level-one cache.
    pub(crate) fn steps_at_once(&self, panels: usize) -> usize {
        if matches!(self.store, Store::Blocks(..)) { CHUNK } else { CHUNK / panels }
    }

    /// Steps `from..to` of adjacent panels as f32, as they lie or widened into `scratch`.
    #[inline(always)]
    pub(crate) fn panels<S: Simd>(
        &self,
        s: S,
        panels: Range<usize>,
        from: usize,
        to: usize,
        scratch: &mut Scratch,
    ) -> Right {
        let first = (panels.start * self.cols + from) * PANEL;
        if let Store::F32(data) = &self.store {
            return Right { start: data[first..].as_ptr(), step: PANEL, panel: self.cols * PANEL };
        }
        let size = (to - from) * PANEL;
        for (panel, wide) in panels.clone().zip(scratch.wide.chunks_exact_mut(size)) {
            let range = (panel * self.cols + from) * PANEL..(panel * self.cols + to) * PANEL;
            match &self.store {
                Store::F32(_) => {}
                Store::Bf16(data) => narrow::widen::<S::Panel, Bf16>(s.panel(), &data[range], wide),
                Store::F16(data) => narrow::widen::<S::Panel, F16>(s.panel(), &data[range], wide),
                Store::Groups(groups) => groups.widen(s.panel(), panel, from, to, wide),
                Store::Blocks(encoding, bytes) => {
                    self.decode_panel(*encoding, bytes.as_ref(), panel, from, to, &mut scratch.rows);
                    interleave(&scratch.rows[..size], to - from, wide);
                }
            }
        }
        Right { start: scratch.wide.as_ptr(), step: PANEL, panel: size }
    }

    /// The products of one row with adjacent panels, for the formats that are widened on the way; `false` for the others.
    #[inline(always)]
    pub(crate) fn times_row<S: Simd>(&self, s: S, x: &[f32], panels: Range<usize>, out: &mut [f32]) -> bool {
        let range = panels.start * self.cols * PANEL..panels.end * self.cols * PANEL;
        match &self.store {
            Store::Bf16(data) => narrow::times_row::<S::Panel, Bf16>(s.panel(), &data[range], x, out),
            Store::F16(data) => narrow::times_row::<S::Panel, F16>(s.panel(), &data[range], x, out),
            Store::Groups(groups) => groups.times_row(s.panel(), x, panels.start, out),
            Store::F32(_) | Store::Blocks(..) => return false,
        }
        true
    }

    /// Decodes part of a panel's sixteen rows, one after the other.
    fn decode_panel(
        &self,
        encoding: Encoding,
        bytes: &dyn RowBytes,
        panel: usize,
        from: usize,
        to: usize,
        out: &mut [f32],
    ) {
        let (len, size) = (encoding.block_len(), encoding.block_bytes());
        for (lane, out) in out.chunks_exact_mut(to - from).take(PANEL).enumerate() {
            let row = panel * PANEL + lane;
            if row < self.rows {
                encoding::decode(encoding, &bytes.row(row)[from / len * size..to / len * size], out);
            } else {
                out.fill(0.0);
            }
        }
    }
}

/// Whether rows are whole blocks of eight-bit numbers.
fn fits_q8(cols: usize) -> bool {
    cols.is_multiple_of(Encoding::Q8_0.block_len())
}

/// Room for widened chunks of a few panels.
pub(crate) struct Scratch {
    wide: Aligned<f32>,
    rows: Vec<f32>,
}

impl Scratch {
    pub(crate) fn new() -> Scratch {
        Scratch { wide: Aligned::zeroed(MOST_PANELS * CHUNK * PANEL), rows: vec![0.0; CHUNK * PANEL] }
    }
}

fn pack_panels<T: crate::memory::Plain>(
    pool: &Pool,
    rows: usize,
    cols: usize,
    size: usize,
    fill: &(dyn Fn(usize, &mut [f32]) + Sync),
    store: impl Fn(&[f32], usize, &mut [T]) + Sync,
) -> Aligned<T> {
    let mut data = Aligned::<T>::lasting(pool, size);
    let shared = Shared::new(&mut data);
    pool.run(rows.div_ceil(PANEL), &|panel| {
        let mut source = vec![0.0; PANEL * cols];
        for lane in 0..PANEL.min(rows - panel * PANEL) {
            fill(panel * PANEL + lane, &mut source[lane * cols..][..cols]);
        }
        // SAFETY: each task writes its own panel.
        store(&source, cols, unsafe { shared.part(panel * PANEL * cols, PANEL * cols) });
    });
    data
}

dispatch! { fn interleave(rows: &[f32], len: usize, out: &mut [f32]) = interleave_with }

/// Turns sixteen rows of `len` values into `len` steps of sixteen values.
#[inline(always)]
fn interleave_with<S: Simd>(s: S, rows: &[f32], len: usize, out: &mut [f32]) {
    let whole = len / LANES * LANES;
    for step in (0..whole).step_by(LANES) {
        for half in [0, LANES] {
            let row = |lane: usize| rows[(half + lane) * len + step..][..LANES].as_ptr();
            // A loop, since what a closure does is not compiled for the instructions of the function around it.
            // SAFETY: each pointer starts a slice of eight floats.
            let mut block = [unsafe { s.load(row(0)) }; LANES];
            for (lane, eight) in block.iter_mut().enumerate().skip(1) {
                // SAFETY: as above.
                *eight = unsafe { s.load(row(lane)) };
            }
            for (offset, column) in s.transpose(block).into_iter().enumerate() {
                // SAFETY: the slice holds eight floats.
                unsafe { s.store(out[(step + offset) * PANEL + half..][..LANES].as_mut_ptr(), column) };
            }
        }
    }
    for step in whole..len {
        (0..PANEL).for_each(|lane| out[step * PANEL + lane] = rows[lane * len + step]);
    }
}

/// Turns sixteen rows of `len` values into a panel in two bytes a number.
fn narrow_panel<N: Narrow>(rows: &[f32], len: usize, out: &mut [u16]) {
    let mut wide = vec![0.0; PANEL * len];
    interleave(rows, len, &mut wide);
    for (wide, out) in wide.chunks_exact(PANEL).zip(out.chunks_exact_mut(PANEL)) {
        wide.iter().enumerate().for_each(|(lane, &x)| out[N::place(lane)] = N::narrow(x));
    }
}

/// One lane of a panel in two bytes a number.
fn lane_of<N: Narrow>(steps: &[u16], lane: usize, out: &mut [f32]) {
    out.iter_mut().zip(steps.chunks_exact(PANEL)).for_each(|(x, step)| *x = N::widen(step[N::place(lane)]));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_known_beforehand() {
        struct Zeros(Vec<u8>);
        impl RowBytes for Zeros {
            fn row(&self, _row: usize) -> &[u8] {
                &self.0
            }
        }
        let pool = Pool::new(2);
        for (rows, cols) in [(1, 32), (17, 5), (40, 512)] {
            for dtype in [DType::F32, DType::Bf16, DType::F16, DType::Q8] {
                let matrix = Matrix::pack(&pool, rows, cols, dtype, &|_, out| out.fill(1.0));
                assert_eq!(matrix.bytes(), Matrix::packed_bytes(rows, cols, dtype), "{rows}x{cols} {dtype:?}");
            }
        }
        for encoding in [Encoding::Q4_1, Encoding::Q8_0, Encoding::Q6_K] {
            let bytes = Zeros(vec![0; encoding.bytes_for(512).unwrap()]);
            let matrix = Matrix::encoded(&pool, 40, 512, encoding, Box::new(bytes));
            assert_eq!(matrix.bytes(), Matrix::encoded_bytes(40, 512, encoding), "{encoding}");
        }
    }

    #[test]
    fn rows_come_back_as_they_were_packed() {
        let pool = Pool::new(2);
        let value = |row: usize, col: usize| (row * 31 + col) as f32 * 0.25;
        for (rows, cols) in [(1, 1), (16, 8), (17, 5), (40, 300)] {
            for dtype in [DType::F32, DType::Bf16, DType::F16] {
                let matrix = Matrix::pack(&pool, rows, cols, dtype, &|row, out| {
                    out.iter_mut().enumerate().for_each(|(col, x)| *x = value(row, col) % 16.0);
                });
                let mut row = vec![0.0; cols];
                for r in 0..rows {
                    matrix.row(r, &mut row);
                    assert!(row.iter().enumerate().all(|(c, &x)| x == value(r, c) % 16.0), "{rows}x{cols} {dtype:?}");
                }
            }
        }
    }
}
