//! The stored tensors of a Hugging Face directory, memory-mapped.
//!
//! [`Checkpoint::open`] finds the weights (`model.safetensors` or the shards of its index; else
//! `pytorch_model.bin` or its shards), maps the files and validates every header (`header`,
//! `index`; `torch` and `pickle`, which execute no code). After that, reading a tensor is taking a
//! slice: nothing is converted or copied. After packing a tensor, the loader calls
//! [`Checkpoint::release_pages`], so that the mapped file does not stay resident next to the packed
//! weights.

mod header;
mod index;
mod pairs;
mod pickle;
mod stored;
#[cfg(test)]
mod tests;
mod torch;

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::mapped::MappedFile;
use crate::{Error, Result};
use header::TensorEntry;
use index::{Index, SAFETENSORS_INDEX, TORCH_INDEX};
pub use stored::StoredType;

/// The weights of an unsharded model.
const SAFETENSORS_FILE: &str = "model.safetensors";
/// The same in PyTorch's format (a zip file with a pickle).
const TORCH_FILE: &str = "pytorch_model.bin";

/// One tensor of a checkpoint: name, shape, dtype and location.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tensor {
    /// Name in the file.
    pub name: String,
    /// Dimensions, outermost first; empty for a scalar. A dimension may be zero.
    pub shape: Vec<usize>,
    /// Stored dtype.
    pub dtype: StoredType,
    file: usize,
    range: Range<usize>,
}

impl Tensor {
    /// Number of elements.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Size in the file in bytes.
    pub fn byte_len(&self) -> usize {
        self.range.len()
    }
}

/// The tensors of a model directory (or of embedded bytes), validated and readable from any thread.
#[derive(Debug)]
pub struct Checkpoint {
    files: Vec<Source>,
    /// In file order, so that reading them in sequence reads the disk sequentially.
    tensors: Vec<Tensor>,
    surplus: Vec<Tensor>,
    by_name: HashMap<String, usize>,
    /// Strides of the tensors that are not contiguous, by name; only with
    /// [`Checkpoint::open_strided`].
    strides: HashMap<String, Vec<usize>>,
}

#[derive(Debug)]
struct Source {
    path: PathBuf,
    data: Data,
}

#[derive(Debug)]
enum Data {
    Mapped(Arc<MappedFile>),
    Static(&'static [u8]),
}

impl Source {
    fn map(path: PathBuf) -> Result<Source> {
        let data = Data::Mapped(Arc::new(MappedFile::open(&path)?));
        Ok(Source { path, data })
    }

    fn bytes(&self) -> &[u8] {
        match &self.data {
            Data::Mapped(file) => file,
            Data::Static(bytes) => bytes,
        }
    }

    fn is_torch(&self) -> bool {
        let name = self.path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        torch::is_torch(&name, self.bytes())
    }

    /// The validated entries of this file's tensors.
    fn entries(&self) -> Result<Vec<TensorEntry>> {
        let read = if self.is_torch() { torch::read } else { header::read };
        read(self.bytes()).map_err(|fault| Error::invalid(&self.path, fault.problem, fault.remedy))
    }

    /// The validated tensors of this file, which has index `file` in the checkpoint. All must be
    /// contiguous.
    fn tensors(&self, file: usize) -> Result<Vec<Tensor>> {
        let entries = self.entries()?;
        if let Some((entry, strides)) = entries.iter().find_map(|entry| Some((entry, entry.strides.as_ref()?))) {
            let TensorEntry { name, shape, .. } = entry;
            let problem = format!("tensor `{name}`: it is not contiguous (strides {strides:?}, shape {shape:?})");
            return Err(Error::invalid(&self.path, problem, torch::CONVERT));
        }
        Ok(entries.into_iter().map(|entry| entry.into_tensor(file)).collect())
    }
}

impl TensorEntry {
    fn into_tensor(self, file: usize) -> Tensor {
        Tensor { name: self.name, shape: self.shape, dtype: self.dtype, file, range: self.range }
    }
}

impl Checkpoint {
    /// Opens the weights of a Hugging Face directory.
    ///
    /// ```no_run
    /// let checkpoint = pellucid_models::checkpoint::Checkpoint::open("path/to/model".as_ref())?;
    /// for tensor in checkpoint.tensors() {
    ///     let first = checkpoint.bytes(tensor).first();
    ///     checkpoint.release_pages(tensor);
    /// }
    /// # Ok::<(), pellucid_models::Error>(())
    /// ```
    pub fn open(dir: &Path) -> Result<Checkpoint> {
        // As in transformers, a single file takes precedence over an index.
        if dir.join(SAFETENSORS_FILE).is_file() {
            Checkpoint::single(Source::map(dir.join(SAFETENSORS_FILE))?)
        } else if dir.join(SAFETENSORS_INDEX).is_file() {
            Checkpoint::sharded(dir, &Index::open(dir, SAFETENSORS_INDEX)?)
        } else if dir.join(TORCH_FILE).is_file() {
            Checkpoint::single(Source::map(dir.join(TORCH_FILE))?)
        } else if dir.join(TORCH_INDEX).is_file() {
            Checkpoint::sharded(dir, &Index::open(dir, TORCH_INDEX)?)
        } else {
            Err(no_weights(dir))
        }
    }

    /// Opens a single safetensors or PyTorch file.
    pub fn open_file(path: &Path) -> Result<Checkpoint> {
        Checkpoint::single(Source::map(path.to_path_buf())?)
    }

    /// Like [`open_file`](Self::open_file), but accepts tensors that are not contiguous: the bytes
    /// of such a tensor go from its first to its last element, and its strides say how to read
    /// them.
    pub(crate) fn open_strided(path: &Path) -> Result<Checkpoint> {
        let source = Source::map(path.to_path_buf())?;
        let mut entries = source.entries()?;
        let strided = entries.iter_mut().filter_map(|entry| Some((entry.name.clone(), entry.strides.take()?)));
        let strides = strided.collect();
        let tensors = entries.into_iter().map(|entry| entry.into_tensor(0)).collect();
        Ok(Checkpoint { strides, ..Checkpoint::of_source(source, tensors) })
    }

    /// Strides of a tensor in elements; `None` if it is contiguous (row-major).
    pub(crate) fn strides(&self, tensor: &Tensor) -> Option<&[usize]> {
        self.strides.get(&tensor.name).map(Vec::as_slice)
    }

    /// Opens a safetensors file embedded in the binary; `name` replaces the path in messages.
    pub fn from_static(bytes: &'static [u8], name: &str) -> Result<Checkpoint> {
        Checkpoint::single(Source { path: PathBuf::from(name), data: Data::Static(bytes) })
    }

    fn single(source: Source) -> Result<Checkpoint> {
        let tensors = source.tensors(0)?;
        Ok(Checkpoint::of_source(source, tensors))
    }

    fn of_source(source: Source, tensors: Vec<Tensor>) -> Checkpoint {
        let by_name = index_by_name(&tensors);
        Checkpoint { files: vec![source], tensors, surplus: Vec::new(), by_name, strides: HashMap::new() }
    }

    fn sharded(dir: &Path, index: &Index) -> Result<Checkpoint> {
        let listed: HashSet<&str> = index.weight_map.iter().map(|(name, _)| name.as_str()).collect();
        let mut files = Vec::with_capacity(index.shards.len());
        let (mut tensors, mut surplus) = (Vec::with_capacity(listed.len()), Vec::new());
        for (file, shard) in index.shards.iter().enumerate() {
            let source = Source::map(dir.join(shard))?;
            let (named, others): (Vec<Tensor>, Vec<Tensor>) =
                source.tensors(file)?.into_iter().partition(|tensor| listed.contains(tensor.name.as_str()));
            tensors.extend(named);
            surplus.extend(others);
            files.push(source);
        }
        let by_name = index_by_name(&tensors);
        if by_name.len() < tensors.len() {
            check_no_duplicates(&tensors, &files)?;
        }
        check_no_duplicates(&surplus, &files)?;
        check_index(dir, index, |name| by_name.get(name).map(|&index| tensors[index].file))?;
        Ok(Checkpoint { files, tensors, surplus, by_name, strides: HashMap::new() })
    }

    /// All tensors, in the order of their data on disk.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = &Tensor> {
        self.tensors.iter()
    }

    /// Tensors in a shard that the index does not list; they are not among [`Checkpoint::tensors`].
    pub fn surplus(&self) -> impl ExactSizeIterator<Item = &Tensor> {
        self.surplus.iter()
    }

    /// The weight files with their sizes in bytes.
    pub(crate) fn files(&self) -> impl Iterator<Item = (&Path, usize)> {
        self.files.iter().map(|file| (file.path.as_path(), file.bytes().len()))
    }

    /// Returns the tensor of this name.
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        self.by_name.get(name).map(|&index| &self.tensors[index])
    }

    /// The bytes of a tensor of this checkpoint: little-endian, row-major, possibly unaligned.
    pub fn bytes(&self, tensor: &Tensor) -> &[u8] {
        &self.files[tensor.file].bytes()[tensor.range.clone()]
    }

    /// Copies part of a tensor's bytes, from byte `at` on: read from the file, so that mapped pages
    /// do not become resident.
    pub fn copy(&self, tensor: &Tensor, at: usize, out: &mut [u8]) {
        let start = tensor.range.start + at;
        match &self.files[tensor.file].data {
            Data::Mapped(file) if start + out.len() <= tensor.range.end => file.copy(start, out),
            _ => out.copy_from_slice(&self.files[tensor.file].bytes()[start..start + out.len()]),
        }
    }

    /// The file that holds a tensor of this checkpoint, for messages.
    pub fn path(&self, tensor: &Tensor) -> &Path {
        &self.files[tensor.file].path
    }

    /// Returns the `__metadata__` of the safetensors files, in file order; empty for PyTorch files.
    pub fn metadata(&self) -> Result<Vec<(String, String)>> {
        let mut pairs = Vec::new();
        for file in self.files.iter().filter(|file| !file.is_torch()) {
            let metadata = header::read_metadata(file.bytes());
            pairs.extend(metadata.map_err(|fault| Error::invalid(&file.path, fault.problem, fault.remedy))?);
        }
        Ok(pairs)
    }

    /// Releases the resident pages of a tensor (`madvise(MADV_DONTNEED)`); a later read loads them
    /// from disk again.
    pub fn release_pages(&self, tensor: &Tensor) {
        if let Some(file) = self.mapped(tensor) {
            file.release_pages(tensor.range.clone());
        }
    }

    /// The mapped file of a tensor; `None` if its bytes are in the program.
    pub(crate) fn mapped(&self, tensor: &Tensor) -> Option<&Arc<MappedFile>> {
        match &self.files[tensor.file].data {
            Data::Mapped(file) => Some(file),
            Data::Static(_) => None,
        }
    }

    /// Checks that no file has changed since it was opened.
    pub(crate) fn check_unchanged(&self) -> Result<()> {
        self.files.iter().try_for_each(|file| match &file.data {
            Data::Mapped(file) => file.check_loading(),
            Data::Static(_) => Ok(()),
        })
    }
}

fn index_by_name(tensors: &[Tensor]) -> HashMap<String, usize> {
    tensors.iter().enumerate().map(|(index, tensor)| (tensor.name.clone(), index)).collect()
}

/// Checks that no two shards contain a tensor of the same name.
fn check_no_duplicates(tensors: &[Tensor], files: &[Source]) -> Result<()> {
    let mut holder: HashMap<&str, usize> = HashMap::with_capacity(tensors.len());
    for tensor in tensors {
        if let Some(first) = holder.insert(&tensor.name, tensor.file) {
            let first = files[first].path.file_name().unwrap_or_default().to_string_lossy();
            let problem = format!("tensor `{}` is also in {first}", tensor.name);
            return Err(Error::invalid(
                &files[tensor.file].path,
                problem,
                "download the shards again: they do not belong together",
            ));
        }
    }
    Ok(())
}

/// Checks that every tensor is in the shard that the index names; `holder` returns its actual
/// shard.
fn check_index(dir: &Path, index: &Index, holder: impl Fn(&str) -> Option<usize>) -> Result<()> {
    let mut wrong: Vec<String> = index
        .weight_map
        .iter()
        .filter_map(|(name, listed)| match (holder(name), &index.shards[*listed]) {
            (Some(actual), _) if actual == *listed => None,
            (Some(actual), shard) => {
                Some(format!("tensor `{name}` should be in {shard} and is in {}", index.shards[actual]))
            }
            (None, shard) => Some(format!("tensor `{name}` is not in {shard}")),
        })
        .collect();
    wrong.sort();
    let Some(first) = wrong.first() else { return Ok(()) };
    let others = match wrong.len() - 1 {
        0 => String::new(),
        more => format!(" (and {more} more)"),
    };
    Err(Error::invalid(
        dir.join(index.name),
        format!("{first}{others}"),
        "download the index and the shards again: they do not belong together",
    ))
}

/// The error for a directory without weights. It names the files that are there: they decide the
/// remedy.
fn no_weights(dir: &Path) -> Error {
    if dir.is_file() {
        return Error::usage(
            format!("{} is a file; a checkpoint is the directory that holds it", dir.display()),
            "give the directory with config.json and model.safetensors",
        );
    }
    let mut names: Vec<String> = match std::fs::read_dir(dir) {
        // Skip dangling symlinks.
        Ok(entries) => {
            let existing = entries.flatten().filter(|entry| entry.path().exists());
            existing.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
        }
        Err(source) => return Error::io(dir)(source),
    };
    names.sort();
    let matching = |wanted: &dyn Fn(&str) -> bool| {
        names.iter().filter(|name| wanted(name)).map(String::as_str).collect::<Vec<_>>().join(", ")
    };

    let unfinished = matching(&|name| name.ends_with(".incomplete") || name.ends_with(".part"));
    if !unfinished.is_empty() {
        let problem = format!("{SAFETENSORS_FILE} is missing and the download was not finished: {unfinished}");
        return Error::invalid(dir, problem, "run the download again");
    }
    let safetensors = matching(&|name| name.ends_with(".safetensors"));
    if !safetensors.is_empty() {
        let problem = format!("neither {SAFETENSORS_FILE} nor {SAFETENSORS_INDEX} is there, only {safetensors}");
        return Error::invalid(
            dir,
            problem,
            format!("download {SAFETENSORS_INDEX} too, or rename a single file to {SAFETENSORS_FILE}"),
        );
    }
    let pickles = matching(&|name| {
        let pickled = [".bin", ".pt", ".pth", ".ckpt"].iter().any(|end| name.ends_with(end));
        pickled && name != "training_args.bin"
    });
    if !pickles.is_empty() {
        return Error::unsupported(
            format!(
                "{}: there are pickles ({pickles}), but neither {TORCH_FILE} nor its index among them",
                dir.display()
            ),
            torch::RESAVE,
        );
    }
    Error::invalid(
        dir,
        format!("there are no weights here: neither {SAFETENSORS_FILE} nor {SAFETENSORS_INDEX}"),
        "give a Hugging Face model directory with safetensors weights, or a .gguf file",
    )
}
