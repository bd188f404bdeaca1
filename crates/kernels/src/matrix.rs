//! Weight matrices, packed for the inner loop: panels of 16 output columns.
//!
//! A weight of `rows` outputs and `cols` inputs is stored as `[rows / 16][cols][16]`: panel after
//! panel, and in a panel, for each input, the weights of 16 adjacent outputs (a panel row). f32
//! panels are used as they are. 16-bit panels and GGUF block formats are widened to f32 a chunk at
//! a time. Widening is exact, so results do not depend on the number of rows that are multiplied.

use crate::dispatch;
use crate::encoding::{self, Encoding};
use crate::half_panels::{self, Bf16, F16, HalfFormat};
use crate::memory::{AlignedBuffer, DisjointMut};
use crate::pack_columns::pack_columns;
use crate::pool::Pool;
use crate::quant_panels::QuantPanels;
use crate::simd::{LANES, Simd};
use crate::sparse;
use crate::tile::{CHAIN, MAX_PANELS, PANEL, Right};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// Inner-dimension rows per chunk, one chain of fused multiply-adds: a chunk of an f32 panel is
/// 16 KiB, half of the L1 cache, and a whole number of blocks in every encoding.
pub(crate) const CHUNK: usize = CHAIN;

/// In-memory dtype of a packed weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DType {
    /// Four bytes per element.
    F32,
    /// Two bytes, eight bits of precision.
    Bf16,
    /// Two bytes, eleven bits of precision, small range.
    F16,
    /// One byte per element and a scale per 32 (Q8_0). Falls back to bf16 if `cols` is not a
    /// multiple of 32.
    Q8,
}

/// Encoded rows of a weight, usually a memory-mapped file.
pub trait RowBytes: Send + Sync {
    /// Bytes of one encoded row.
    fn row(&self, row: usize) -> &[u8];

    /// The file that holds the rows; `None` if they are in memory.
    fn file(&self) -> Option<Arc<dyn BackingFile>> {
        None
    }

    /// Copies a row. Mapped rows are read from the file, so that its pages do not become resident.
    fn copy_row(&self, row: usize, out: &mut [u8]) {
        out.copy_from_slice(self.row(row));
    }

    /// Releases resident pages of the file, if the rows are mapped.
    fn release_pages(&self) {}
}

/// A mapped file that must not change while a matrix reads it in place.
pub trait BackingFile: Send + Sync {
    /// Its path, for messages.
    fn path(&self) -> &Path;

    /// Checks that the file still has the length and contents that it had when it was opened, as
    /// far as its metadata show.
    fn check(&self) -> Result<(), String>;
}

enum Storage {
    F32(AlignedBuffer<f32>),
    Bf16(AlignedBuffer<u16>),
    F16(AlignedBuffer<u16>),
    Quant(QuantPanels),
    InPlace(Encoding, Box<dyn RowBytes>),
}

/// A weight matrix, ready to be multiplied.
pub struct Matrix {
    rows: usize,
    cols: usize,
    storage: Storage,
    /// Whether single rows in place are copied when they are used.
    on_demand: bool,
}

impl Matrix {
    /// Packs a matrix in parallel; `fill(row, out)` writes one row as f32.
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
        let storage = match dtype {
            DType::F32 => Storage::F32(pack_panels(pool, rows, cols, size, fill, interleave)),
            DType::Bf16 => Storage::Bf16(pack_panels(pool, rows, cols, size, fill, pack_half_panel::<Bf16>)),
            DType::F16 => Storage::F16(pack_panels(pool, rows, cols, size, fill, pack_half_panel::<F16>)),
            DType::Q8 => return Matrix::quantized_q8(pool, rows, cols, fill),
        };
        Matrix { rows, cols, storage, on_demand: false }
    }

    /// Packs a matrix whose transpose is stored; `fill(col, row, out)` writes the elements of a
    /// column from `row` on as f32. The result is that of [`pack`](Self::pack), sooner.
    pub fn pack_columns(
        pool: &Pool,
        rows: usize,
        cols: usize,
        dtype: DType,
        fill: &(dyn Fn(usize, usize, &mut [f32]) + Sync),
    ) -> Matrix {
        let storage = match dtype {
            DType::F32 => Storage::F32(pack_columns(pool, rows, cols, fill, |wide, out| out.copy_from_slice(wide))),
            DType::Bf16 => Storage::Bf16(pack_columns(pool, rows, cols, fill, store_half_row::<Bf16>)),
            DType::F16 => Storage::F16(pack_columns(pool, rows, cols, fill, store_half_row::<F16>)),
            DType::Q8 => {
                return Matrix::quantized_q8(pool, rows, cols, &|row, out| {
                    out.chunks_exact_mut(1).enumerate().for_each(|(col, x)| fill(col, row, x));
                });
            }
        };
        Matrix { rows, cols, storage, on_demand: false }
    }

    /// Packs a matrix as Q8_0, or as bf16 if `cols` is not a multiple of 32.
    fn quantized_q8(pool: &Pool, rows: usize, cols: usize, fill: &(dyn Fn(usize, &mut [f32]) + Sync)) -> Matrix {
        let encode = |row: usize, show: &mut dyn FnMut(&[u8])| {
            let mut values = vec![0.0; cols];
            fill(row, &mut values);
            show(&encoding::to_q8_0(&values));
        };
        match fits_q8(cols).then(|| QuantPanels::pack(pool, rows, cols, Encoding::Q8_0, &encode)).flatten() {
            Some(quant) => Matrix { rows, cols, storage: Storage::Quant(quant), on_demand: false },
            None => Matrix::pack(pool, rows, cols, DType::Bf16, fill),
        }
    }

    /// Keeps a matrix in its file's encoding; `cols` must be a whole number of blocks. Encodings
    /// with a panel layout (`quant_layout.rs`) are repacked into panels of the
    /// same size. The others keep `bytes` and decode it during each product.
    pub fn encoded(pool: &Pool, rows: usize, cols: usize, encoding: Encoding, bytes: Box<dyn RowBytes>) -> Matrix {
        assert!(cols.is_multiple_of(encoding.block_len()), "{cols} columns are not whole blocks of {encoding}");
        let packed = QuantPanels::pack(pool, rows, cols, encoding, &|row, show| show(bytes.row(row)));
        let storage = match packed {
            Some(quant) => Storage::Quant(quant),
            None => Storage::InPlace(encoding, bytes),
        };
        Matrix { rows, cols, storage, on_demand: false }
    }

    /// Bytes that [`Matrix::pack`] allocates.
    pub fn packed_bytes(rows: usize, cols: usize, dtype: DType) -> usize {
        let elements = rows.div_ceil(PANEL) * PANEL * cols;
        match dtype {
            DType::F32 => elements * 4,
            DType::Bf16 | DType::F16 => elements * 2,
            DType::Q8 if fits_q8(cols) => Matrix::encoded_bytes(rows, cols, Encoding::Q8_0),
            DType::Q8 => elements * 2,
        }
    }

    /// Bytes that [`Matrix::encoded`] allocates: 0 for encodings that are not repacked.
    pub fn encoded_bytes(rows: usize, cols: usize, encoding: Encoding) -> usize {
        QuantPanels::bytes_for(rows, cols, encoding).unwrap_or(0)
    }

    /// Number of outputs.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of inputs.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Bytes of the weights, allocated or memory-mapped.
    pub fn bytes(&self) -> usize {
        match &self.storage {
            Storage::F32(data) => data.len() * 4,
            Storage::Bf16(data) | Storage::F16(data) => data.len() * 2,
            Storage::Quant(quant) => quant.bytes(),
            Storage::InPlace(encoding, _) => self.rows * (self.cols / encoding.block_len()) * encoding.block_bytes(),
        }
    }

    /// Display name of the storage format, such as `bf16` or `Q4_K`.
    pub fn format(&self) -> String {
        match &self.storage {
            Storage::F32(_) => "f32".into(),
            Storage::Bf16(_) => "bf16".into(),
            Storage::F16(_) => "f16".into(),
            Storage::Quant(quant) => quant.encoding().to_string(),
            Storage::InPlace(encoding, _) => encoding.to_string(),
        }
    }

    /// Writes row `row` (one output's weights; one token's embedding) as f32.
    pub fn row(&self, row: usize, out: &mut [f32]) {
        assert!(row < self.rows && out.len() == self.cols, "row {row} of a {}x{} matrix", self.rows, self.cols);
        let (panel, lane) = (row / PANEL, row % PANEL);
        let steps = panel * self.cols * PANEL..(panel + 1) * self.cols * PANEL;
        match &self.storage {
            Storage::F32(data) => {
                out.iter_mut().zip(data[steps].chunks_exact(PANEL)).for_each(|(x, step)| *x = step[lane]);
            }
            Storage::Bf16(data) => read_half_lane::<Bf16>(&data[steps], lane, out),
            Storage::F16(data) => read_half_lane::<F16>(&data[steps], lane, out),
            Storage::Quant(quant) => quant.row(row, out),
            Storage::InPlace(Encoding::F32, bytes) if self.on_demand && cfg!(target_endian = "little") => {
                // SAFETY: a float is four bytes, and every bit pattern is a float.
                let out = unsafe { std::slice::from_raw_parts_mut(out.as_mut_ptr().cast(), size_of_val(out)) };
                bytes.copy_row(row, out);
            }
            Storage::InPlace(encoding, bytes) if self.on_demand => {
                let mut copy = vec![0; out.len() / encoding.block_len() * encoding.block_bytes()];
                bytes.copy_row(row, &mut copy);
                encoding::decode(*encoding, &copy, out);
            }
            Storage::InPlace(encoding, bytes) => encoding::decode(*encoding, bytes.row(row), out),
        }
    }

    /// Reads single rows in place from their file when they are used, instead of through its
    /// mapping: rows take no resident memory, and about a microsecond more. Results do not change.
    pub fn read_on_demand(&mut self) {
        self.on_demand = self.is_in_place();
        self.release_pages();
    }

    /// Releases resident pages of rows in place.
    pub fn release_pages(&self) {
        if let Storage::InPlace(_, bytes) = &self.storage {
            bytes.release_pages();
        }
    }

    /// Whether rows are read when they are used.
    pub fn is_on_demand(&self) -> bool {
        self.on_demand
    }

    /// Computes `out += scale · row`; `scratch` holds a decoded row, `[cols]`.
    pub fn add_scaled_row(&self, row: usize, scale: f32, scratch: &mut [f32], out: &mut [f32]) {
        match self.stored_floats(row) {
            Some(floats) => sparse::add_scaled_floats(scale, floats, out),
            None => {
                self.row(row, scratch);
                sparse::add_scaled(scale, scratch, out);
            }
        }
    }

    /// Returns the dot product of a row and `x`; `scratch` holds a decoded row, `[cols]`.
    pub fn dot_row(&self, row: usize, x: &[f32], scratch: &mut [f32]) -> f32 {
        match self.stored_floats(row) {
            Some(floats) => sparse::fused_dot_floats(floats, x),
            None => {
                self.row(row, scratch);
                sparse::fused_dot(scratch, x)
            }
        }
    }

    /// The bytes of a row if they are its floats.
    fn stored_floats(&self, row: usize) -> Option<sparse::Floats<'_>> {
        match &self.storage {
            Storage::InPlace(Encoding::F32, bytes) if !self.on_demand => sparse::Floats::from_bytes(bytes.row(row)),
            _ => None,
        }
    }

    /// Whether products decode the rows of the [`RowBytes`] directly, so these must stay alive.
    pub fn is_in_place(&self) -> bool {
        matches!(self.storage, Storage::InPlace(..))
    }

    /// The file that products read; `None` if the weights are in memory.
    pub fn file(&self) -> Option<Arc<dyn BackingFile>> {
        match &self.storage {
            Storage::InPlace(_, bytes) => bytes.file(),
            _ => None,
        }
    }

    /// Whether panels are already f32 and need no widening.
    pub(crate) fn is_f32(&self) -> bool {
        matches!(self.storage, Storage::F32(_))
    }

    /// Address of the first panel and bytes per panel, for prefetching; `None` for rows that are
    /// decoded in place.
    pub(crate) fn panel_memory(&self) -> Option<(*const u8, usize)> {
        let (start, bytes) = match &self.storage {
            Storage::F32(data) => (data.as_ptr().cast(), data.len() * 4),
            Storage::Bf16(data) | Storage::F16(data) => (data.as_ptr().cast(), data.len() * 2),
            Storage::Quant(quant) => quant.memory(),
            Storage::InPlace(..) => return None,
        };
        Some((start, bytes / self.rows.div_ceil(PANEL)))
    }

    /// Rows `from..to` of adjacent panels as f32: the stored panels themselves, or widened into
    /// `scratch`.
    #[inline(always)]
    pub(crate) fn panels<S: Simd>(
        &self,
        s: S,
        panels: Range<usize>,
        from: usize,
        to: usize,
        scratch: &mut PanelScratch,
    ) -> Right {
        let first = (panels.start * self.cols + from) * PANEL;
        if let Storage::F32(data) = &self.storage {
            return Right { start: data[first..].as_ptr(), row_stride: PANEL, panel_stride: self.cols * PANEL };
        }
        let size = (to - from) * PANEL;
        for (panel, wide) in panels.clone().zip(scratch.wide.chunks_exact_mut(size)) {
            let range = (panel * self.cols + from) * PANEL..(panel * self.cols + to) * PANEL;
            match &self.storage {
                Storage::F32(_) => {}
                Storage::Bf16(data) => half_panels::widen::<S::Panel, Bf16>(s.panel(), &data[range], wide),
                Storage::F16(data) => half_panels::widen::<S::Panel, F16>(s.panel(), &data[range], wide),
                Storage::Quant(quant) => quant.widen(s.panel(), panel, from, to, wide),
                Storage::InPlace(encoding, bytes) => {
                    self.decode_panel(*encoding, bytes.as_ref(), panel, from, to, &mut scratch.rows);
                    interleave(&scratch.rows[..size], to - from, wide);
                }
            }
        }
        Right { start: scratch.wide.as_ptr(), row_stride: PANEL, panel_stride: size }
    }

    /// Multiplies one row by adjacent panels if the storage is widened in registers; returns
    /// `false` without computing anything otherwise.
    #[inline(always)]
    pub(crate) fn multiply_row<S: Simd>(&self, s: S, x: &[f32], panels: Range<usize>, out: &mut [f32]) -> bool {
        let range = panels.start * self.cols * PANEL..panels.end * self.cols * PANEL;
        match &self.storage {
            Storage::Bf16(data) => half_panels::multiply_row::<S::Panel, Bf16>(s.panel(), &data[range], x, out),
            Storage::F16(data) => half_panels::multiply_row::<S::Panel, F16>(s.panel(), &data[range], x, out),
            Storage::Quant(quant) => quant.multiply_row(s.panel(), x, panels.start, out),
            Storage::F32(_) | Storage::InPlace(..) => return false,
        }
        true
    }

    /// Decodes columns `from..to` of a panel's 16 matrix rows into `out`, `[16, to - from]`.
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

/// Whether a row is a whole number of Q8_0 blocks.
fn fits_q8(cols: usize) -> bool {
    cols.is_multiple_of(Encoding::Q8_0.block_len())
}

/// Per-thread buffers for widened chunks of a few panels.
pub(crate) struct PanelScratch {
    wide: AlignedBuffer<f32>,
    rows: Vec<f32>,
}

impl PanelScratch {
    pub(crate) fn new() -> PanelScratch {
        PanelScratch { wide: AlignedBuffer::zeroed(MAX_PANELS * CHUNK * PANEL), rows: vec![0.0; CHUNK * PANEL] }
    }
}

fn pack_panels<T: crate::memory::Pod>(
    pool: &Pool,
    rows: usize,
    cols: usize,
    size: usize,
    fill: &(dyn Fn(usize, &mut [f32]) + Sync),
    store: impl Fn(&[f32], usize, &mut [T]) + Sync,
) -> AlignedBuffer<T> {
    let mut data = AlignedBuffer::<T>::zeroed_in_slab(pool, size);
    let shared = DisjointMut::new(&mut data);
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

/// Transposes `rows`, `[16, len]`, into panel rows, `[len, 16]`.
#[inline(always)]
fn interleave_with<S: Simd>(s: S, rows: &[f32], len: usize, out: &mut [f32]) {
    let whole = len / LANES * LANES;
    for step in (0..whole).step_by(LANES) {
        for half in [0, LANES] {
            let row = |lane: usize| rows[(half + lane) * len + step..][..LANES].as_ptr();
            // A loop, because a closure is not compiled with the target features of the enclosing
            // function.
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

/// Packs `rows`, `[16, len]`, into a panel of 16-bit floats.
fn pack_half_panel<N: HalfFormat>(rows: &[f32], len: usize, out: &mut [u16]) {
    let mut wide = vec![0.0; PANEL * len];
    interleave(rows, len, &mut wide);
    for (wide, out) in wide.chunks_exact(PANEL).zip(out.chunks_exact_mut(PANEL)) {
        store_half_row::<N>(wide, out);
    }
}

/// Narrows one panel row.
fn store_half_row<N: HalfFormat>(wide: &[f32], out: &mut [u16]) {
    wide.iter().enumerate().for_each(|(lane, &x)| out[N::storage_index(lane)] = N::from_f32(x));
}

/// Reads one column of a panel of 16-bit floats.
fn read_half_lane<N: HalfFormat>(steps: &[u16], lane: usize, out: &mut [f32]) {
    out.iter_mut().zip(steps.chunks_exact(PANEL)).for_each(|(x, step)| *x = N::to_f32(step[N::storage_index(lane)]));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_match_the_prediction() {
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
    fn rows_read_on_demand_are_those_in_memory() {
        struct Rows(Vec<u8>);
        impl RowBytes for Rows {
            fn row(&self, row: usize) -> &[u8] {
                &self.0[row * 80..][..80]
            }
        }
        let pool = Pool::new(1);
        for (encoding, cols) in [(Encoding::F32, 20), (Encoding::BF16, 40)] {
            let rows = Rows((0..240).map(|index| (index * 37 % 64) as u8).collect());
            let mut matrix = Matrix::encoded(&pool, 3, cols, encoding, Box::new(rows));
            let results = |matrix: &Matrix| {
                let (mut row, mut scratch, x) = (vec![0.0; cols], vec![0.0; cols], vec![0.5; cols]);
                matrix.row(2, &mut row);
                let dot = matrix.dot_row(1, &x, &mut scratch);
                let mut sum = vec![1.0; cols];
                matrix.add_scaled_row(0, 2.0, &mut scratch, &mut sum);
                (row, dot, sum)
            };
            let in_memory = results(&matrix);
            matrix.read_on_demand();
            assert!(matrix.is_on_demand());
            assert_eq!(results(&matrix), in_memory, "{encoding}");
        }
    }

    #[test]
    fn rows_are_unpacked_exactly() {
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
