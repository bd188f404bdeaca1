//! The tensors of a Hugging Face directory, as they lie on the disk.
//!
//! [`Checkpoint::open`] finds the weights (`model.safetensors`, or the shards that `model.safetensors.index.json`
//! names; else `pytorch_model.bin` or its shards), maps them into memory and checks every header in full (`header`, `index`; `torch`
//! and `pickle`, which can execute nothing); after that, reading a tensor is taking a slice. Nothing is converted and nothing is copied here: whoever packs a tensor reads its bytes once and
//! then calls [`Checkpoint::forget`], so that the mapped file does not stay resident beside the packed weights.

mod header;
mod index;
mod pairs;
mod pickle;
mod stored;
#[cfg(test)]
mod tests;
mod torch;

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};

use memmap2::Mmap;

use crate::{Error, Result};
pub(crate) use header::{LFS_POINTER, LFS_REMEDY};
use index::{INDEX, Index, TORCH_INDEX};
pub use stored::StoredType;

/// The file of a model that is not sharded.
const SINGLE: &str = "model.safetensors";
/// The same in torch's own format.
const TORCH_SINGLE: &str = "pytorch_model.bin";

/// One tensor of a checkpoint: what it is, and where its bytes are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tensor {
    /// Its name in the file.
    pub name: String,
    /// Its sizes, outermost first; empty for a scalar, and any of them may be zero.
    pub shape: Vec<usize>,
    /// How its elements are stored.
    pub dtype: StoredType,
    file: usize,
    range: Range<usize>,
}

impl Tensor {
    /// How many elements it has.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// How many bytes it takes in the file.
    pub fn byte_len(&self) -> usize {
        self.range.len()
    }
}

/// The tensors of a model directory (or of bytes in the binary), checked and ready to be read from any thread.
#[derive(Debug)]
pub struct Checkpoint {
    files: Vec<Source>,
    /// In file order, so that reading them one after the other reads the disk forwards.
    tensors: Vec<Tensor>,
    surplus: Vec<Tensor>,
    by_name: HashMap<String, usize>,
}

#[derive(Debug)]
struct Source {
    path: PathBuf,
    data: Data,
}

#[derive(Debug)]
enum Data {
    Mapped(Mmap),
    Static(&'static [u8]),
}

impl Source {
    fn map(path: PathBuf) -> Result<Source> {
        let file = File::open(&path).map_err(Error::io(&path))?;
        // SAFETY: the map is private to reading. Should another program cut the file while it is mapped, reading it
        // ends the process; no program that reads models by mapping them can rule that out.
        let map = unsafe { Mmap::map(&file) }.map_err(Error::io(&path))?;
        Ok(Source { path, data: Data::Mapped(map) })
    }

    fn bytes(&self) -> &[u8] {
        match &self.data {
            Data::Mapped(map) => map,
            Data::Static(bytes) => bytes,
        }
    }

    /// The checked tensors of this file, which is number `file` of the checkpoint.
    fn tensors(&self, file: usize) -> Result<Vec<Tensor>> {
        let name = self.path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let read = if torch::is_torch(&name, self.bytes()) { torch::read } else { header::read };
        let entries = read(self.bytes())
            .map_err(|fault| Error::invalid(&self.path, fault.problem, fault.remedy))?
            .into_iter()
            .map(|entry| Tensor { name: entry.name, shape: entry.shape, dtype: entry.dtype, file, range: entry.range });
        Ok(entries.collect())
    }
}

impl Checkpoint {
    /// Opens the weights of a Hugging Face directory.
    ///
    /// ```no_run
    /// let checkpoint = pellucid_models::checkpoint::Checkpoint::open("path/to/model".as_ref())?;
    /// for tensor in checkpoint.tensors() {
    ///     let first = checkpoint.bytes(tensor).first();
    ///     checkpoint.forget(tensor);
    /// }
    /// # Ok::<(), pellucid_models::Error>(())
    /// ```
    pub fn open(dir: &Path) -> Result<Checkpoint> {
        // The order is that of transformers: a single file wins over an index.
        if dir.join(SINGLE).is_file() {
            Checkpoint::single(Source::map(dir.join(SINGLE))?)
        } else if dir.join(INDEX).is_file() {
            Checkpoint::sharded(dir, &Index::open(dir, INDEX)?)
        } else if dir.join(TORCH_SINGLE).is_file() {
            Checkpoint::single(Source::map(dir.join(TORCH_SINGLE))?)
        } else if dir.join(TORCH_INDEX).is_file() {
            Checkpoint::sharded(dir, &Index::open(dir, TORCH_INDEX)?)
        } else {
            Err(no_weights(dir))
        }
    }

    /// Opens a single file: safetensors, or torch's own.
    pub fn open_file(path: &Path) -> Result<Checkpoint> {
        Checkpoint::single(Source::map(path.to_path_buf())?)
    }

    /// A model embedded in the binary; `name` stands for the file in messages.
    pub fn from_static(bytes: &'static [u8], name: &str) -> Result<Checkpoint> {
        Checkpoint::single(Source { path: PathBuf::from(name), data: Data::Static(bytes) })
    }

    fn single(source: Source) -> Result<Checkpoint> {
        let tensors = source.tensors(0)?;
        let by_name = names(&tensors);
        Ok(Checkpoint { files: vec![source], tensors, surplus: Vec::new(), by_name })
    }

    fn sharded(dir: &Path, index: &Index) -> Result<Checkpoint> {
        let listed: HashSet<&str> = index.weight_map.iter().map(|(name, _)| name.as_str()).collect();
        let mut files = Vec::with_capacity(index.shards.len());
        let (mut tensors, mut surplus) = (Vec::with_capacity(listed.len()), Vec::new());
        for (number, shard) in index.shards.iter().enumerate() {
            let source = Source::map(dir.join(shard))?;
            let (named, others): (Vec<Tensor>, Vec<Tensor>) =
                source.tensors(number)?.into_iter().partition(|tensor| listed.contains(tensor.name.as_str()));
            tensors.extend(named);
            surplus.extend(others);
            files.push(source);
        }
        let by_name = names(&tensors);
        if by_name.len() < tensors.len() {
            check_once(&tensors, &files)?;
        }
        check_once(&surplus, &files)?;
        check_index(dir, index, |name| by_name.get(name).map(|&number| tensors[number].file))?;
        Ok(Checkpoint { files, tensors, surplus, by_name })
    }

    /// Every tensor, in the order in which the data lies on the disk.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = &Tensor> {
        self.tensors.iter()
    }

    /// Tensors that a shard holds although the index does not name them; they are not among [`Checkpoint::tensors`].
    pub fn surplus(&self) -> impl ExactSizeIterator<Item = &Tensor> {
        self.surplus.iter()
    }

    /// The files that hold them, with the bytes of each.
    pub(crate) fn files(&self) -> impl Iterator<Item = (&Path, usize)> {
        self.files.iter().map(|file| (file.path.as_path(), file.bytes().len()))
    }

    /// The tensor of that name.
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        self.by_name.get(name).map(|&number| &self.tensors[number])
    }

    /// The bytes of a tensor of this checkpoint, little-endian and row by row. They need not be aligned to the element.
    pub fn bytes(&self, tensor: &Tensor) -> &[u8] {
        &self.files[tensor.file].bytes()[tensor.range.clone()]
    }

    /// The file that holds a tensor of this checkpoint, for messages.
    pub fn path(&self, tensor: &Tensor) -> &Path {
        &self.files[tensor.file].path
    }

    /// Lets the system drop the memory that holds a tensor's mapped pages; reading it again reads the disk again.
    pub fn forget(&self, tensor: &Tensor) {
        #[cfg(unix)]
        if let Data::Mapped(map) = &self.files[tensor.file].data
            && !tensor.range.is_empty()
        {
            // SAFETY: the mapping is read-only and backed by the file, so dropped pages come back with the same bytes.
            // A failure only means that the pages stay, which is no error to anyone.
            let _ = unsafe {
                map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, tensor.range.start, tensor.range.len())
            };
        }
        #[cfg(not(unix))]
        let _ = tensor;
    }
}

fn names(tensors: &[Tensor]) -> HashMap<String, usize> {
    tensors.iter().enumerate().map(|(number, tensor)| (tensor.name.clone(), number)).collect()
}

/// No two shards may hold a tensor of the same name.
fn check_once(tensors: &[Tensor], files: &[Source]) -> Result<()> {
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

/// Every tensor of the index must be in the shard that the index says; `holder` says in which it is.
fn check_index(dir: &Path, index: &Index, holder: impl Fn(&str) -> Option<usize>) -> Result<()> {
    let mut wrong: Vec<String> = index
        .weight_map
        .iter()
        .filter_map(|(name, number)| match (holder(name), &index.shards[*number]) {
            (Some(found), _) if found == *number => None,
            (Some(found), shard) => {
                Some(format!("tensor `{name}` should be in {shard} and is in {}", index.shards[found]))
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

/// The directory has no weights to open; say what is there instead, because that decides what to do.
fn no_weights(dir: &Path) -> Error {
    if dir.is_file() {
        return Error::usage(
            format!("{} is a file; a checkpoint is the directory that holds it", dir.display()),
            "give the directory with config.json and model.safetensors",
        );
    }
    let mut names: Vec<String> = match std::fs::read_dir(dir) {
        // A link that leads nowhere is no file.
        Ok(entries) => {
            let there = entries.flatten().filter(|entry| entry.path().exists());
            there.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
        }
        Err(source) => return Error::io(dir)(source),
    };
    names.sort();
    let those = |wanted: &dyn Fn(&str) -> bool| {
        names.iter().filter(|name| wanted(name)).map(String::as_str).collect::<Vec<_>>().join(", ")
    };

    let unfinished = those(&|name| name.ends_with(".incomplete") || name.ends_with(".part"));
    if !unfinished.is_empty() {
        let problem = format!("{SINGLE} is missing and the download was not finished: {unfinished}");
        return Error::invalid(dir, problem, "run the download again");
    }
    let safetensors = those(&|name| name.ends_with(".safetensors"));
    if !safetensors.is_empty() {
        let problem = format!("neither {SINGLE} nor {INDEX} is there, only {safetensors}");
        return Error::invalid(dir, problem, format!("download {INDEX} too, or rename a single file to {SINGLE}"));
    }
    let pickles = those(&|name| {
        let pickled = [".bin", ".pt", ".pth", ".ckpt"].iter().any(|end| name.ends_with(end));
        pickled && name != "training_args.bin"
    });
    if !pickles.is_empty() {
        return Error::unsupported(
            format!(
                "{}: there are pickles ({pickles}), but neither {TORCH_SINGLE} nor its index among them",
                dir.display()
            ),
            torch::SAVE_ANEW,
        );
    }
    Error::invalid(
        dir,
        format!("there are no weights here: neither {SINGLE} nor {INDEX}"),
        "give a Hugging Face model directory with safetensors weights, or a .gguf file",
    )
}
