//! From stored tensors to a program's weights: found, checked, packed; nothing missing, nothing substituted.

use crate::adapter::{self, Adapter, Changes};
use crate::compare::find;
use crate::error::{Error, Result};
use crate::families::Family;
use crate::gguf::RowOrder;
use crate::names::{Names, Part, Source};
use crate::repair::Repair;
use crate::tensors::{Stored, Tensors};
use pellucid_engine::{Program, Weight, WeightKind, WeightSpec, Weights};
use pellucid_kernels::attention::KvFormat;
use pellucid_kernels::encoding::{self, Encoding};
use pellucid_kernels::matrix::RowBytes;
use pellucid_kernels::memory::Room;
use pellucid_kernels::{DType, Matrix, Pool};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How matrices are kept in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Storage {
    /// As in the file: quantised blocks stay quantised.
    #[default]
    AsStored,
    /// All in this format.
    As(DType),
}

/// How to load.
#[derive(Clone, Default)]
pub struct LoadOptions {
    /// How matrices are kept in memory.
    pub storage: Storage,
    /// The threads that load and run; the shared ones where absent.
    pub pool: Option<Arc<Pool>>,
    /// How keys and values are kept between tokens.
    pub kv: KvFormat,
    /// Directories of LoRA adapters (PEFT's layout) that are merged into the weights, one after the other.
    pub adapters: Vec<PathBuf>,
    /// The family that a model is read as when its own type is not native. It has to fit completely, and the loaded model
    /// carries a warning; for a model whose own type is native and another, it is an error.
    pub assume: Option<String>,
}

/// A program with its weights.
pub struct Loaded {
    /// The program.
    pub program: Program,
    /// Its weights, in its order.
    pub weights: Weights,
    /// The known variants of names by which some of them were found.
    pub repairs: Vec<Repair>,
}

/// Where the weights of a program are stored.
pub(crate) struct FoundWeights<'a> {
    program: Program,
    /// The stored tensor of each weight, in the program's order.
    sources: Vec<Source>,
    /// What adapters make of each weight, in the same order.
    changes: Vec<Changes<'a>>,
    /// The known variants of names by which some of them were found.
    pub(crate) repairs: Vec<Repair>,
}

/// Finds a stored tensor for each weight of a family's program, and the weight for each tensor of the adapters. It reads headers only, and
/// reports everything that is missing, surplus or mis-shaped at once.
pub(crate) fn find_weights<'a>(
    family: &Family,
    tensors: &Tensors,
    adapters: &'a [Adapter],
    origin: &Path,
) -> Result<FoundWeights<'a>> {
    let (program, names, changes) = match_adapters(family, adapters)?;
    let (sources, repairs) = find(&program, &names, tensors, origin)?;
    Ok(FoundWeights { program, sources, changes, repairs })
}

/// The program of a family with adapters, the table of its weights' names, and what the adapters make of each weight.
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
        // The head of a model that ties it is stored as the embedding.
        names = names.with_alternative("head", "embed");
    }
    Ok((program, names, changes))
}

/// Loads every weight of a family's program, with adapters merged into them. `progress` receives the fraction done.
pub fn load(
    family: &Family,
    tensors: Arc<Tensors>,
    adapters: &[Adapter],
    origin: &Path,
    storage: Storage,
    pool: &Pool,
    progress: &mut dyn FnMut(f32),
) -> Result<Loaded> {
    let FoundWeights { program, sources, changes, repairs } = find_weights(family, &tensors, adapters, origin)?;
    let mut left: HashMap<&str, usize> = HashMap::new();
    sources.iter().for_each(|source| *left.entry(source.tensor.as_str()).or_default() += 1);
    let unchanged = program.weights().iter().zip(&sources).zip(&changes).filter(|(_, changes)| changes.is_none());
    let bytes = unchanged.map(|((spec, source), _)| packed_bytes(spec, source, &tensors, storage)).sum();
    // While this guard lives, the matrices that this thread packs (`Matrix::pack`, `Matrix::encoded`) are allocated from one slab.
    let slab_of_weights = Room::new(bytes);
    let mut weights = Vec::with_capacity(sources.len());
    for (index, ((spec, source), changes)) in program.weights().iter().zip(&sources).zip(&changes).enumerate() {
        let weight = load_weight(spec, source, &tensors, changes, storage, pool)?;
        // A stored tensor that several weights share is dropped after the last of them; one that is used in place stays.
        let in_place = matches!(&weight, Weight::Matrix(matrix) if matrix.is_in_place())
            && tensors.get(&source.tensor).is_some_and(|stored| stored.made.is_none());
        if let Some(count) = left.get_mut(source.tensor.as_str()) {
            *count -= 1;
            if *count == 0 && !in_place {
                tensors.forget(&source.tensor);
            }
        }
        weights.push(weight);
        progress((index + 1) as f32 / sources.len() as f32);
    }
    drop(slab_of_weights);
    Ok(Loaded { program, weights: Weights::new(weights), repairs })
}

/// Bytes that a matrix will take in memory, as far as its header tells.
fn packed_bytes(spec: &WeightSpec, source: &Source, tensors: &Tensors, storage: Storage) -> usize {
    let Some(stored) = tensors.get(&source.tensor) else { return 0 };
    let Ok(encoding) = stored.encoding else { return 0 };
    if spec.kind == WeightKind::Vector || stored.made.is_some() {
        return 0;
    }
    let view = View::new(spec, source, &stored, encoding);
    match view.kept(storage, true, false) {
        Kept::AsStored => Matrix::encoded_bytes(view.rows, view.cols, encoding),
        Kept::Packed(dtype) => Matrix::packed_bytes(view.rows, view.cols, dtype),
    }
}

/// Loads one weight: decoded row by row and packed, or kept as it is stored.
fn load_weight(
    spec: &WeightSpec,
    source: &Source,
    tensors: &Arc<Tensors>,
    changes: &Changes,
    storage: Storage,
    pool: &Pool,
) -> Result<Weight> {
    if !source.more.is_empty() {
        return in_pieces(spec, source, tensors);
    }
    let gone = || Error::usage(format!("{} disappeared while loading", source.tensor), "load the model again");
    let (stored, source) = match changes.whole() {
        Some(whole) => whole,
        None => (tensors.get(&source.tensor).ok_or_else(gone)?, source),
    };
    let sums = changes.ready()?;
    let encoding = stored.encoding.map_err(|format| {
        Error::unsupported(
            format!("{}: tensor {} is stored as {format}", stored.path.display(), source.tensor),
            "convert the weights to F32, F16 or BF16",
        )
    })?;
    let view = View::new(spec, source, &stored, encoding);
    if let Some(made) = &stored.made {
        made.check()?;
    }
    let bad = AtomicUsize::new(usize::MAX);
    let check = |row: usize, values: &[f32]| {
        // Without an early end the compiler looks at several numbers at a time.
        if values.iter().fold(false, |bad, x| bad | !x.is_finite()) {
            bad.fetch_min(row, Ordering::Relaxed);
        }
    };
    let kept = match (&stored.made, storage) {
        (Some(made), Storage::AsStored) if spec.kind != WeightKind::Vector && sums.is_empty() => {
            made.blocks(pool, view.rows, view.cols, &|row| view.place(row))
        }
        _ => None,
    };
    if let Some((encoding, rows)) = kept {
        return Ok(Weight::Matrix(Matrix::encoded(pool, view.rows, view.cols, encoding, Box::new(rows))));
    }
    let weight = match (spec.kind, view.kept(storage, changes.is_none(), !sums.is_empty())) {
        (WeightKind::Vector, _) => {
            let mut vector = view.vector(stored.bytes);
            for (row, x) in vector.iter_mut().enumerate() {
                sums.iter().for_each(|sum| sum.apply(row, std::slice::from_mut(x)));
            }
            check(0, &vector);
            Weight::Vector(vector)
        }
        (_, Kept::AsStored) => {
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
        (_, Kept::Packed(dtype)) => Weight::Matrix(Matrix::pack(pool, view.rows, view.cols, dtype, &|row, out| {
            view.row(&stored, row, out);
            sums.iter().for_each(|sum| sum.apply(row, out));
            check(row, out);
        })),
    };
    match bad.into_inner() {
        usize::MAX => Ok(weight),
        row => Err(Error::invalid(
            stored.path,
            format!("tensor {} holds a number that is not finite (row {row} of {})", source.tensor, spec.name),
            "the file is damaged or the training diverged: get it anew",
        )),
    }
}

/// A vector that is stored in pieces.
fn in_pieces(spec: &WeightSpec, source: &Source, tensors: &Arc<Tensors>) -> Result<Weight> {
    let mut whole = Vec::with_capacity(spec.shape.iter().product());
    for name in source.tensors() {
        let Some(stored) = tensors.get(name) else { continue };
        let one = WeightSpec { shape: vec![stored.shape.iter().product()], ..spec.clone() };
        let piece = Source { tensor: name.into(), more: Vec::new(), ..source.clone() };
        if let Weight::Vector(vector) =
            load_weight(&one, &piece, tensors, &Changes::default(), Storage::AsStored, &Pool::new(1))?
        {
            whole.extend(vector);
        }
    }
    Ok(Weight::Vector(whole))
}

/// How a matrix is kept.
enum Kept {
    AsStored,
    Packed(DType),
}

/// How a weight's rows lie in its stored tensor.
#[derive(Clone)]
struct View {
    part: Part,
    /// Stored as `[inputs, outputs]`.
    across: bool,
    encoding: Encoding,
    order: RowOrder,
    rows: usize,
    cols: usize,
    /// Rows of the stored matrix, or its length as a vector.
    stored_rows: usize,
}

impl View {
    fn new(spec: &WeightSpec, source: &Source, stored: &Stored, encoding: Encoding) -> View {
        let rows = spec.shape[0];
        View {
            part: source.part,
            // A GGUF file holds the transpose of what such a checkpoint holds.
            across: source.transposed && stored.order != RowOrder::Transposed,
            encoding,
            order: stored.order,
            rows,
            cols: spec.shape[1..].iter().product(),
            stored_rows: source.part.stored_rows(rows),
        }
    }

    /// Whether the stored rows can be multiplied as they are: quantised, whole blocks, and not across the rows.
    fn in_place(&self) -> bool {
        self.encoding.is_quantised() && !self.across && self.cols.is_multiple_of(self.encoding.block_len())
    }

    /// How the matrix is kept: `unchanged` if it is what is stored, `summed` if something is added to it.
    fn kept(&self, storage: Storage, unchanged: bool, summed: bool) -> Kept {
        match (storage, self.encoding) {
            (Storage::As(dtype), _) => Kept::Packed(dtype),
            _ if unchanged && self.in_place() => Kept::AsStored,
            // A sum is seldom exact in less.
            _ if summed => Kept::Packed(DType::F32),
            (_, Encoding::BF16) => Kept::Packed(DType::Bf16),
            (_, Encoding::F16) => Kept::Packed(DType::F16),
            _ => Kept::Packed(DType::F32),
        }
    }

    /// Rows of the matrices before this one in its stack.
    fn before(&self) -> usize {
        self.part.stack.map_or(0, |stack| stack.index * self.stored_rows)
    }

    fn stored_row(&self, row: usize) -> usize {
        self.order.source_row(self.part.stored_row(row), self.stored_rows)
    }

    /// The place of a row among all rows of the stored tensor, if it is stored along.
    fn place(&self, row: usize) -> usize {
        self.before() + self.stored_row(row)
    }

    /// The bytes of a row that is stored along.
    fn row_bytes<'a>(&self, bytes: &'a [u8], row: usize) -> &'a [u8] {
        let size = self.encoding.bytes_for(self.cols).unwrap_or(0);
        &bytes[self.place(row) * size..][..size]
    }

    /// Decodes a row.
    fn row(&self, stored: &Stored, row: usize, out: &mut [f32]) {
        if let Some(made) = &stored.made {
            return made.row(self.place(row), out);
        }
        let bytes = stored.bytes;
        if !self.across {
            return encoding::decode(self.encoding, self.row_bytes(bytes, row), out);
        }
        // Only plain number formats are ever stored across, so one number can be read at a time.
        let (size, column) = (self.encoding.block_bytes(), self.part.stored_row(row));
        let first = self.before() * self.cols;
        for (input, x) in out.iter_mut().enumerate() {
            encoding::decode(
                self.encoding,
                &bytes[(first + input * self.stored_rows + column) * size..][..size],
                std::slice::from_mut(x),
            );
        }
    }

    fn vector(&self, bytes: &[u8]) -> Vec<f32> {
        // A vector may have several axes: a row is what lies along all but the first.
        let mut all = vec![0.0; self.rows * self.cols];
        if self.encoding.is_quantised() {
            // Blocks run across rows: decode them all, then take the rows.
            let mut stored = vec![0.0; self.stored_rows * self.cols];
            encoding::decode(self.encoding, bytes, &mut stored);
            for (row, out) in all.chunks_exact_mut(self.cols).enumerate() {
                out.copy_from_slice(&stored[self.stored_row(row) * self.cols..][..self.cols]);
            }
            return all;
        }
        let size = self.encoding.bytes_for(self.cols).unwrap_or(0);
        for (row, out) in all.chunks_exact_mut(self.cols).enumerate() {
            let at = (self.before() + self.stored_row(row)) * size;
            encoding::decode(self.encoding, &bytes[at..at + size], out);
        }
        all
    }
}

/// Rows that are multiplied straight from the mapped file.
struct EncodedRows {
    /// Keeps the mapping alive that `bytes` points into.
    _tensors: Arc<Tensors>,
    bytes: &'static [u8],
    view: View,
}

impl EncodedRows {
    fn new(tensors: &Arc<Tensors>, stored: &Stored, view: View) -> EncodedRows {
        // SAFETY: the bytes belong to a mapping (or vector) inside `tensors`, which never moves nor changes while the `Arc` beside them lives;
        // they leave this struct only as borrows of it.
        let bytes = unsafe { std::slice::from_raw_parts(stored.bytes.as_ptr(), stored.bytes.len()) };
        EncodedRows { _tensors: tensors.clone(), bytes, view }
    }
}

impl RowBytes for EncodedRows {
    fn row(&self, row: usize) -> &[u8] {
        self.view.row_bytes(self.bytes, row)
    }
}
