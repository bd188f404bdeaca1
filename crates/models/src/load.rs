//! Loads the weights of a program: finds the stored tensors, decodes, checks and packs them.
//!
//! Loading is strict: a missing, surplus or wrongly shaped tensor or a non-finite element is an
//! error, and nothing is ever filled in. Matrices are decoded row by row into their packed form;
//! quantized ones keep their encoding.

use crate::adapter::{self, Adapter, Changes};
use crate::compare::find_sources;
use crate::error::{Error, Result};
use crate::families::Family;
use crate::gguf::RowOrder;
use crate::mapped::MappedFile;
use crate::name_variants::NameVariant;
use crate::names::{Names, StoredPart, WeightSource};
use crate::tensors::{StoredTensor, Tensors};
use pellucid_engine::{Program, Weight, WeightKind, WeightSpec, Weights, check_memory};
use pellucid_kernels::attention::KvFormat;
use pellucid_kernels::encoding::{self, Encoding};
use pellucid_kernels::matrix::{BackingFile, RowBytes};
use pellucid_kernels::memory::SlabReservation;
use pellucid_kernels::{DType, Matrix, Pool};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Time between two checks that the files are unchanged during a load.
const CHECK_INTERVAL: Duration = Duration::from_millis(5);

/// Format of matrices in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Storage {
    /// As in the file: quantized blocks stay quantized.
    #[default]
    AsStored,
    /// All converted to this dtype.
    As(DType),
}

/// Options of a load.
#[derive(Clone, Default)]
pub struct LoadOptions {
    /// Format of matrices in memory.
    pub storage: Storage,
    /// Threads that load and run the model; the global pool if absent.
    pub pool: Option<Arc<Pool>>,
    /// Format of the KV cache.
    pub kv: KvFormat,
    /// Directories of LoRA adapters (PEFT's layout) to merge into the weights, in this order.
    pub adapters: Vec<PathBuf>,
    /// Family to read a model as whose own type is not native. The model must fit it completely and
    /// gets a warning. An error if the model's own type is native and differs.
    pub assume: Option<String>,
}

/// A program with its weights.
pub struct LoadedWeights {
    /// The program.
    pub program: Program,
    /// Its weights, in the program's order.
    pub weights: Weights,
    /// Name variants under which some of them were found.
    pub name_variants: Vec<NameVariant>,
}

/// The stored tensors of a program's weights.
pub(crate) struct WeightSources<'a> {
    pub(crate) program: Program,
    /// The stored tensor of each weight, in the program's order.
    pub(crate) sources: Vec<WeightSource>,
    /// The adapters' changes to each weight, in the same order.
    changes: Vec<Changes<'a>>,
    /// Name variants under which some of them were found.
    pub(crate) name_variants: Vec<NameVariant>,
}

/// Finds the stored tensor of each weight and the weight of each adapter tensor, reading headers
/// only.
///
/// # Errors
/// Lists every missing, surplus and wrongly shaped tensor, or names one in an unsupported encoding.
pub(crate) fn find_weights<'a>(
    family: &Family,
    tensors: &Tensors,
    adapters: &'a [Adapter],
    origin: &Path,
) -> Result<WeightSources<'a>> {
    let (program, names, changes) = match_adapters(family, adapters)?;
    let (sources, name_variants) = find_sources(&program, &names, tensors, origin)?;
    for (source, changes) in sources.iter().zip(&changes) {
        match changes.replacement() {
            Some((stored, source)) => drop(encoding_of(&stored, &source.tensor)?),
            None => {
                for name in source.tensors() {
                    tensors.get(name).map_or(Ok(()), |stored| encoding_of(&stored, name).map(drop))?;
                }
            }
        }
    }
    Ok(WeightSources { program, sources, changes, name_variants })
}

/// Encoding of a stored tensor.
///
/// # Errors
/// If no kernel supports it.
fn encoding_of(stored: &StoredTensor, name: &str) -> Result<Encoding> {
    stored.encoding.map_err(|format| {
        Error::unsupported(
            format!("{}: tensor {name} is stored as {format}", stored.path.display()),
            "convert the weights to F32, F16 or BF16",
        )
    })
}

/// Returns the program of a family with adapters, its table of names, and the adapters' changes to
/// each weight.
pub(crate) fn match_adapters<'a>(
    family: &Family,
    adapters: &'a [Adapter],
) -> Result<(Program, Names, Vec<Changes<'a>>)> {
    let (mut architecture, mut names) = (family.architecture.clone(), family.names.clone());
    let untied = architecture.head.tied && adapter::untie(adapters, &names);
    architecture.head.tied &= !untied;
    let program = Program::new(architecture)?;
    let changes = adapter::changes(adapters, &program, &names)?;
    if untied {
        // A tied head is stored as the embedding.
        names = names.with_alternative("head", "embed");
    }
    Ok((program, names, changes))
}

/// Loads all weights of a family's program and merges the adapters. `progress` receives the
/// fraction done.
pub fn load(
    family: &Family,
    tensors: Arc<Tensors>,
    adapters: &[Adapter],
    origin: &Path,
    storage: Storage,
    pool: &Pool,
    progress: &mut dyn FnMut(f32),
) -> Result<LoadedWeights> {
    let found = find_weights(family, &tensors, adapters, origin)?;
    check_load(&found, &tensors, origin, storage)?;
    let WeightSources { program, sources, changes, name_variants } = found;
    let mut pending: HashMap<&str, usize> = HashMap::new();
    sources.iter().for_each(|source| *pending.entry(source.tensor.as_str()).or_default() += 1);
    let unchanged = program.weights().iter().zip(&sources).zip(&changes).filter(|(_, changes)| changes.is_none());
    let bytes = unchanged.map(|((spec, source), _)| packed_bytes(spec, source, &tensors, storage)).sum();
    // While this guard lives, `Matrix::pack` and `Matrix::encoded` on this thread allocate from one
    // slab.
    let slab_of_weights = SlabReservation::new(bytes);
    let mut weights = Vec::with_capacity(sources.len());
    let mut checked = Instant::now();
    for (index, ((spec, source), changes)) in program.weights().iter().zip(&sources).zip(&changes).enumerate() {
        // A download or copy into the file may still be going on.
        if index == 0 || checked.elapsed() > CHECK_INTERVAL {
            tensors.check_unchanged()?;
            checked = Instant::now();
        }
        let weight = load_weight(spec, source, &tensors, changes, storage, pool)?;
        // Pages of a stored tensor are released after its last weight, unless a matrix reads them
        // in place.
        let in_place = matches!(&weight, Weight::Matrix(matrix) if matrix.is_in_place())
            && tensors.get(&source.tensor).is_some_and(|stored| stored.dequantized.is_none());
        if let Some(count) = pending.get_mut(source.tensor.as_str()) {
            *count -= 1;
            if *count == 0 && !in_place {
                tensors.forget(&source.tensor);
            }
        }
        weights.push(weight);
        progress((index + 1) as f32 / sources.len() as f32);
    }
    drop(slab_of_weights);
    tensors.check_unchanged()?;
    Ok(LoadedWeights { program, weights: Weights::new(weights), name_variants })
}

/// Refuses weights that would not fit into the memory that a call may take, from headers alone.
fn check_load(found: &WeightSources, tensors: &Tensors, origin: &Path, storage: Storage) -> Result<()> {
    let needed = found.sizes(tensors, storage).into_iter().fold(0, |sum: usize, (_, bytes)| sum.saturating_add(bytes));
    check_memory(needed, || format!("{}: loading {} weights", origin.display(), found.sources.len()))?;
    Ok(())
}

impl WeightSources<'_> {
    /// The format and the bytes of each weight in memory, from headers alone.
    pub(crate) fn sizes(&self, tensors: &Tensors, storage: Storage) -> Vec<(String, usize)> {
        let of = |((spec, source), changes): ((&WeightSpec, &WeightSource), &Changes)| {
            let packed = if changes.is_none() { packed_bytes(spec, source, tensors, storage) } else { 0 };
            let elements = spec.shape.iter().try_fold(4usize, |bytes, &length| bytes.checked_mul(length));
            // Vectors, dequantized and adapted weights are f32, or smaller.
            match packed {
                0 => ("f32".into(), elements.unwrap_or(usize::MAX)),
                packed => (packed_format(spec, source, tensors, storage), packed),
            }
        };
        self.program.weights().iter().zip(&self.sources).zip(&self.changes).map(of).collect()
    }
}

/// Name of the format of a packed matrix, as [`Matrix::format`] gives it.
fn packed_format(spec: &WeightSpec, source: &WeightSource, tensors: &Tensors, storage: Storage) -> String {
    let Some(stored) = tensors.get(&source.tensor) else { return String::new() };
    let Ok(encoding) = stored.encoding else { return String::new() };
    let view = WeightView::new(spec, source, &stored, encoding);
    match view.matrix_form(storage, true, false) {
        // Blocks of 32 elements do not fit into such rows.
        MatrixForm::Packed(DType::Q8) if !view.cols.is_multiple_of(32) => "bf16".into(),
        MatrixForm::Packed(DType::F32) => "f32".into(),
        MatrixForm::Packed(DType::Bf16) => "bf16".into(),
        MatrixForm::Packed(DType::F16) => "f16".into(),
        MatrixForm::Packed(DType::Q8) => Encoding::Q8_0.to_string(),
        MatrixForm::Encoded => encoding.to_string(),
    }
}

/// Bytes of a packed matrix, from its header; 0 if they are not allocated from the slab.
fn packed_bytes(spec: &WeightSpec, source: &WeightSource, tensors: &Tensors, storage: Storage) -> usize {
    let Some(stored) = tensors.get(&source.tensor) else { return 0 };
    let Ok(encoding) = stored.encoding else { return 0 };
    if spec.kind == WeightKind::Vector || stored.dequantized.is_some() {
        return 0;
    }
    let view = WeightView::new(spec, source, &stored, encoding);
    match view.matrix_form(storage, true, false) {
        MatrixForm::Encoded => Matrix::encoded_bytes(view.rows, view.cols, encoding),
        MatrixForm::Packed(dtype) => Matrix::packed_bytes(view.rows, view.cols, dtype),
    }
}

/// Loads one weight: decoded row by row and packed, or left in its stored encoding.
fn load_weight(
    spec: &WeightSpec,
    source: &WeightSource,
    tensors: &Arc<Tensors>,
    changes: &Changes,
    storage: Storage,
    pool: &Pool,
) -> Result<Weight> {
    if !source.more_pieces.is_empty() {
        return load_pieces(spec, source, tensors);
    }
    let gone = || Error::usage(format!("{} disappeared while loading", source.tensor), "load the model again");
    let (stored, source) = match changes.replacement() {
        Some(replacement) => replacement,
        None => (tensors.get(&source.tensor).ok_or_else(gone)?, source),
    };
    let updates = changes.read_updates()?;
    let encoding = encoding_of(&stored, &source.tensor)?;
    let view = WeightView::new(spec, source, &stored, encoding);
    if let Some(tensor) = &stored.dequantized {
        tensor.check()?;
    }
    let bad = AtomicUsize::new(usize::MAX);
    let check = |row: usize, values: &[f32]| {
        // No early exit, so that the loop vectorizes.
        if values.iter().fold(false, |bad, x| bad | !x.is_finite()) {
            bad.fetch_min(row, Ordering::Relaxed);
        }
    };
    let blocks = match (&stored.dequantized, storage) {
        (Some(tensor), Storage::AsStored) if spec.kind != WeightKind::Vector && updates.is_empty() => {
            tensor.to_blocks(pool, view.rows, view.cols, &|row| view.tensor_row(row))
        }
        _ => None,
    };
    if let Some((encoding, rows)) = blocks {
        return Ok(Weight::Matrix(Matrix::encoded(pool, view.rows, view.cols, encoding, Box::new(rows))));
    }
    let weight = match (spec.kind, view.matrix_form(storage, changes.is_none(), !updates.is_empty())) {
        (WeightKind::Vector, _) => {
            let mut vector = view.vector(stored.bytes);
            for (row, x) in vector.iter_mut().enumerate() {
                updates.iter().for_each(|update| update.apply(row, std::slice::from_mut(x)));
            }
            check(0, &vector);
            Weight::Vector(vector)
        }
        (_, MatrixForm::Encoded) => {
            let rows = EncodedRows::new(tensors, &stored, view.clone());
            pool.run(view.rows.div_ceil(64), &|part| {
                for row in part * 64..((part + 1) * 64).min(view.rows) {
                    if !encoding::is_finite(encoding, view.row_bytes(stored.bytes, row)) {
                        bad.fetch_min(row, Ordering::Relaxed);
                    }
                }
            });
            Weight::Matrix(Matrix::encoded(pool, view.rows, view.cols, encoding, Box::new(rows)))
        }
        (_, MatrixForm::Packed(dtype)) if view.transposed && updates.is_empty() && stored.dequantized.is_none() => {
            Weight::Matrix(Matrix::pack_columns(pool, view.rows, view.cols, dtype, &|col, row, out| {
                view.column(stored.bytes, col, row, out);
                if out.iter().fold(false, |bad, x| bad | !x.is_finite()) {
                    let first = out.iter().position(|x| !x.is_finite()).unwrap_or(0);
                    bad.fetch_min(row + first, Ordering::Relaxed);
                }
            }))
        }
        (_, MatrixForm::Packed(dtype)) => {
            Weight::Matrix(Matrix::pack(pool, view.rows, view.cols, dtype, &|row, out| {
                view.row(&stored, row, out);
                updates.iter().for_each(|update| update.apply(row, out));
                check(row, out);
            }))
        }
    };
    match bad.into_inner() {
        usize::MAX => Ok(weight),
        row => Err(Error::invalid(
            stored.path,
            format!("tensor {} has a non-finite element (row {row} of {})", source.tensor, spec.name),
            "the file is damaged or the training diverged: download it again",
        )),
    }
}

/// Loads a vector that is stored in pieces.
fn load_pieces(spec: &WeightSpec, source: &WeightSource, tensors: &Arc<Tensors>) -> Result<Weight> {
    let mut whole = Vec::with_capacity(spec.shape.iter().product());
    for name in source.tensors() {
        let Some(stored) = tensors.get(name) else { continue };
        let one = WeightSpec { shape: vec![stored.shape.iter().product()], ..spec.clone() };
        let piece = WeightSource { tensor: name.into(), more_pieces: Vec::new(), ..source.clone() };
        if let Weight::Vector(vector) =
            load_weight(&one, &piece, tensors, &Changes::default(), Storage::AsStored, &Pool::new(1))?
        {
            whole.extend(vector);
        }
    }
    Ok(Weight::Vector(whole))
}

/// Form of a matrix in memory.
enum MatrixForm {
    /// In its stored (quantized) encoding.
    Encoded,
    /// Packed into panels of this dtype.
    Packed(DType),
}

/// A weight as a view of its stored tensor: `[rows, cols]`, with the mapping to stored rows.
#[derive(Clone)]
struct WeightView {
    part: StoredPart,
    /// Stored as `[inputs, outputs]`.
    transposed: bool,
    encoding: Encoding,
    order: RowOrder,
    rows: usize,
    cols: usize,
    /// Rows of the stored matrix, or its length as a vector.
    stored_rows: usize,
}

impl WeightView {
    fn new(spec: &WeightSpec, source: &WeightSource, stored: &StoredTensor, encoding: Encoding) -> WeightView {
        let rows = spec.shape[0];
        WeightView {
            part: source.part,
            // GGUF files hold the transpose of such a checkpoint's matrix.
            transposed: source.transposed && stored.order != RowOrder::Transposed,
            encoding,
            order: stored.order,
            rows,
            cols: spec.shape[1..].iter().product(),
            stored_rows: source.part.stored_rows(rows),
        }
    }

    /// Whether the stored rows can be used in place: quantized, not transposed, whole blocks per
    /// row.
    fn in_place(&self) -> bool {
        self.encoding.is_quantized() && !self.transposed && self.cols.is_multiple_of(self.encoding.block_len())
    }

    /// Form of the matrix in memory. `unchanged`: no adapter touches it; `updated`: an adapter adds
    /// to it.
    fn matrix_form(&self, storage: Storage, unchanged: bool, updated: bool) -> MatrixForm {
        match (storage, self.encoding) {
            (Storage::As(dtype), _) => MatrixForm::Packed(dtype),
            _ if unchanged && self.in_place() => MatrixForm::Encoded,
            // A 16-bit format would round the sum of weight and update.
            _ if updated => MatrixForm::Packed(DType::F32),
            (_, Encoding::BF16) => MatrixForm::Packed(DType::Bf16),
            (_, Encoding::F16) => MatrixForm::Packed(DType::F16),
            _ => MatrixForm::Packed(DType::F32),
        }
    }

    /// Total rows of the matrices before this one in its stack.
    fn stack_offset(&self) -> usize {
        self.part.stack.map_or(0, |stack| stack.index * self.stored_rows)
    }

    fn stored_row(&self, row: usize) -> usize {
        self.order.source_row(self.part.stored_row(row), self.stored_rows)
    }

    /// Index of a row in the whole stored tensor. Only for tensors that are not transposed.
    fn tensor_row(&self, row: usize) -> usize {
        self.stack_offset() + self.stored_row(row)
    }

    /// Bytes of a row. Only for tensors that are not transposed.
    fn row_bytes<'a>(&self, bytes: &'a [u8], row: usize) -> &'a [u8] {
        let size = self.encoding.bytes_for(self.cols).unwrap_or(0);
        &bytes[self.tensor_row(row) * size..][..size]
    }

    /// Decodes a row.
    fn row(&self, stored: &StoredTensor, row: usize, out: &mut [f32]) {
        if let Some(tensor) = &stored.dequantized {
            return tensor.row(self.tensor_row(row), out);
        }
        let bytes = stored.bytes;
        if !self.transposed {
            return encoding::decode(self.encoding, self.row_bytes(bytes, row), out);
        }
        // Transposed tensors are never quantized, so single elements can be decoded.
        let (size, column) = (self.encoding.block_bytes(), self.part.stored_row(row));
        let first = self.stack_offset() * self.cols;
        for (input, x) in out.iter_mut().enumerate() {
            encoding::decode(
                self.encoding,
                &bytes[(first + input * self.stored_rows + column) * size..][..size],
                std::slice::from_mut(x),
            );
        }
    }

    /// Decodes elements of a column, from `row` on. Only for tensors that are transposed, which are
    /// never quantized: their columns are contiguous.
    fn column(&self, bytes: &[u8], col: usize, row: usize, out: &mut [f32]) {
        let size = self.encoding.block_bytes();
        let first = self.stack_offset() * self.cols + col * self.stored_rows;
        let mut done = 0;
        while done < out.len() {
            let len = self.part.adjacent_rows(row + done).min(out.len() - done);
            let at = (first + self.part.stored_row(row + done)) * size;
            encoding::decode(self.encoding, &bytes[at..at + len * size], &mut out[done..done + len]);
            done += len;
        }
    }

    fn vector(&self, bytes: &[u8]) -> Vec<f32> {
        // A vector may have several axes; `cols` is the product of all but the first.
        let mut all = vec![0.0; self.rows * self.cols];
        if self.encoding.is_quantized() {
            // Blocks may span rows: decode the whole tensor, then select the rows.
            let mut stored = vec![0.0; self.stored_rows * self.cols];
            encoding::decode(self.encoding, bytes, &mut stored);
            for (row, out) in all.chunks_exact_mut(self.cols).enumerate() {
                out.copy_from_slice(&stored[self.stored_row(row) * self.cols..][..self.cols]);
            }
            return all;
        }
        let size = self.encoding.bytes_for(self.cols).unwrap_or(0);
        for (row, out) in all.chunks_exact_mut(self.cols).enumerate() {
            let at = (self.stack_offset() + self.stored_row(row)) * size;
            encoding::decode(self.encoding, &bytes[at..at + size], out);
        }
        all
    }
}

/// Rows of an encoded matrix, read from the mapped file.
struct EncodedRows {
    /// Keeps the mapping alive that `bytes` points into.
    _tensors: Arc<Tensors>,
    file: Option<Arc<MappedFile>>,
    bytes: &'static [u8],
    view: WeightView,
}

impl EncodedRows {
    fn new(tensors: &Arc<Tensors>, stored: &StoredTensor, view: WeightView) -> EncodedRows {
        // SAFETY: the bytes belong to a mapping (or vector) inside `tensors`, which neither moves
        // nor changes while the `Arc` in this struct lives; they leave the struct only as borrows
        // of it.
        let bytes = unsafe { std::slice::from_raw_parts(stored.bytes.as_ptr(), stored.bytes.len()) };
        EncodedRows { _tensors: tensors.clone(), file: tensors.mapped(), bytes, view }
    }
}

impl RowBytes for EncodedRows {
    fn row(&self, row: usize) -> &[u8] {
        self.view.row_bytes(self.bytes, row)
    }

    fn file(&self) -> Option<Arc<dyn BackingFile>> {
        self.file.clone().map(|file| file as Arc<dyn BackingFile>)
    }
}
