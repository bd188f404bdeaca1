//! An open GGUF file: typed access to metadata and tensors by name.

use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pellucid_kernels::encoding::Encoding;

use super::header::{DAMAGED, GgufFault, Header};
use super::value::{Value, ValueKind};
use crate::mapped::MappedFile;
use crate::{Error, Result};

/// An open GGUF file: metadata, and tensors whose bytes stay in the mapped file.
///
/// ```no_run
/// # fn main() -> pellucid_models::Result<()> {
/// let file = pellucid_models::gguf::GgufFile::open("model.gguf")?;
/// for tensor in file.tensors() {
///     println!("{} {:?} {}", tensor.name, tensor.shape, tensor.encoding);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct GgufFile {
    path: PathBuf,
    bytes: Bytes,
    metadata: HashMap<String, Value>,
    tensors: Vec<Tensor>,
    by_name: HashMap<String, usize>,
}

/// The bytes of the file.
#[derive(Debug)]
enum Bytes {
    Mapped(Arc<MappedFile>),
    Owned(Vec<u8>),
}

impl std::ops::Deref for Bytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match self {
            Bytes::Mapped(file) => file,
            Bytes::Owned(bytes) => bytes,
        }
    }
}

/// One tensor of a GGUF file.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// Name in the file (`blk.0.attn_q.weight`).
    pub name: String,
    /// Shape as in Hugging Face checkpoints, rows first: ggml's dimensions reversed.
    pub shape: Vec<usize>,
    /// Storage format; a row (the last dimension) is a whole number of blocks.
    pub encoding: Encoding,
    /// Byte range in the file; in bounds, and disjoint from every other tensor's.
    pub range: Range<usize>,
}

impl GgufFile {
    /// Maps a file and validates everything but the tensor data.
    ///
    /// # Errors
    /// If the file cannot be read, is not GGUF version 2 or 3, or any count, length, type or offset
    /// in it is wrong.
    pub fn open(path: impl AsRef<Path>) -> Result<GgufFile> {
        let path = path.as_ref();
        Self::read(Bytes::Mapped(Arc::new(MappedFile::open(path)?)), path)
    }

    /// Like [`open`](Self::open), from bytes in memory; `path` only names the file in errors.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn parse(bytes: impl Into<Vec<u8>>, path: impl AsRef<Path>) -> Result<GgufFile> {
        Self::read(Bytes::Owned(bytes.into()), path.as_ref())
    }

    fn read(bytes: Bytes, path: &Path) -> Result<GgufFile> {
        let header =
            Header::read(&bytes).map_err(|GgufFault { problem, remedy }| Error::invalid(path, problem, remedy))?;
        let by_name = header.tensors.iter().enumerate().map(|(i, tensor)| (tensor.name.clone(), i)).collect();
        Ok(GgufFile { path: path.to_owned(), bytes, metadata: header.metadata, tensors: header.tensors, by_name })
    }

    /// The file's path, for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The tensors in the order of the file.
    pub fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// The tensor of this name.
    pub fn tensor(&self, name: &str) -> Option<&Tensor> {
        self.by_name.get(name).map(|i| &self.tensors[*i])
    }

    /// The stored bytes of a tensor of this file.
    ///
    /// # Panics
    /// If the tensor comes from another, larger file.
    pub fn bytes(&self, tensor: &Tensor) -> &[u8] {
        &self.bytes[tensor.range.clone()]
    }

    /// Releases the resident pages of a tensor (`madvise(MADV_DONTNEED)`); a later read loads them
    /// from disk again.
    pub fn release_pages(&self, tensor: &Tensor) {
        if let Bytes::Mapped(file) = &self.bytes {
            file.release_pages(tensor.range.clone());
        }
    }

    /// The mapped file; `None` if the bytes are in memory.
    pub(crate) fn mapped(&self) -> Option<&Arc<MappedFile>> {
        match &self.bytes {
            Bytes::Mapped(file) => Some(file),
            Bytes::Owned(_) => None,
        }
    }

    /// All metadata.
    pub fn metadata(&self) -> &HashMap<String, Value> {
        &self.metadata
    }

    /// The metadata value of this key.
    pub fn value(&self, key: &str) -> Option<&Value> {
        self.metadata.get(key)
    }

    /// The non-negative integer at a key; `None` if the key is absent. An array of equal elements
    /// counts as its element, because some files repeat a value for each layer.
    ///
    /// # Errors
    /// If the value is not a non-negative integer, or an array's elements differ.
    pub fn number(&self, key: &str) -> Result<Option<usize>> {
        let number = |value: &Value| match value {
            Value::Unsigned(number) => usize::try_from(*number).ok(),
            Value::Signed(number) => usize::try_from(*number).ok(),
            _ => None,
        };
        match self.value(key) {
            None => Ok(None),
            Some(Value::List(list)) => {
                let mut values = list.values(&self.bytes);
                let first = values.next();
                if !values.all(|value| Some(&value) == first.as_ref()) {
                    let what = format!("{}: {key} is not the same for all layers", self.path.display());
                    return Err(Error::unsupported(what, "use the model's Hugging Face directory, if it has one"));
                }
                first.as_ref().and_then(number).map(Some).ok_or_else(|| self.wrong_type(key, "a non-negative integer"))
            }
            Some(value) => number(value).map(Some).ok_or_else(|| self.wrong_type(key, "a non-negative integer")),
        }
    }

    /// The float at a key, as the shortest decimal: a stored f32 1e-5 gives the f64 1e-5, not
    /// 9.999999747e-6.
    ///
    /// # Errors
    /// If the value is not a finite number.
    pub fn float(&self, key: &str) -> Result<Option<f64>> {
        let Some(value) = self.value(key) else { return Ok(None) };
        let number = match value {
            Value::F32(number) => number.to_string().parse().ok(),
            Value::F64(number) => Some(*number),
            Value::Unsigned(number) => Some(*number as f64),
            Value::Signed(number) => Some(*number as f64),
            _ => None,
        };
        number.filter(|n| n.is_finite()).map(Some).ok_or_else(|| self.wrong_type(key, "a finite number"))
    }

    /// The boolean at a key.
    ///
    /// # Errors
    /// If the value is of another type.
    pub fn flag(&self, key: &str) -> Result<Option<bool>> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(*flag)),
            Some(_) => Err(self.wrong_type(key, "true or false")),
        }
    }

    /// The string at a key.
    ///
    /// # Errors
    /// If the value is of another type.
    pub fn text(&self, key: &str) -> Result<Option<&str>> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::Text(text)) => Ok(Some(text)),
            Some(_) => Err(self.wrong_type(key, "text")),
        }
    }

    /// The strings of the array at a key.
    ///
    /// # Errors
    /// If the value is not an array of UTF-8 strings.
    pub fn texts(&self, key: &str) -> Result<Option<Vec<&str>>> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::List(list)) => match list.texts(&self.bytes) {
                Some(Ok(texts)) => Ok(Some(texts)),
                Some(Err(problem)) => Err(self.damaged(format!("{key}: {problem}"))),
                None => Err(self.wrong_type(key, "an array of texts")),
            },
            Some(_) => Err(self.wrong_type(key, "an array of texts")),
        }
    }

    /// The `len` values of the array at a key.
    ///
    /// # Errors
    /// If the value is not an array of `len` elements, or is an array of arrays.
    pub fn list(&self, key: &str, len: usize) -> Result<Option<Vec<Value>>> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::List(list)) if list.len != len || list.kind == ValueKind::List => {
                Err(self.damaged(format!("{key} must hold {len} values; it holds {}", list.len)))
            }
            Some(Value::List(list)) => Ok(Some(list.values(&self.bytes).collect())),
            Some(_) => Err(self.wrong_type(key, "an array")),
        }
    }

    /// The name of the architecture (`llama`, `gemma3`…).
    ///
    /// # Errors
    /// If the key is missing, or the file is one part of a split model.
    pub fn architecture(&self) -> Result<&str> {
        if let Some(parts) = self.number("split.count")?.filter(|parts| *parts > 1) {
            let what = format!("{} is one of {parts} parts of a model", self.path.display());
            return Err(Error::unsupported(what, "join the parts with `llama-gguf-split --merge` and open the result"));
        }
        self.text("general.architecture")?
            .ok_or_else(|| self.damaged("general.architecture is missing, so this may not be a model"))
    }

    fn wrong_type(&self, key: &str, wanted: &str) -> Error {
        let found = self.value(key).map(|value| format!("{value:?}")).unwrap_or_default();
        let found: String = found.chars().take(80).collect();
        self.damaged(format!("the metadata value {key} must be {wanted}; it is {found}"))
    }

    /// An error whose remedy is a new copy of the file.
    pub(super) fn damaged(&self, problem: impl Into<String>) -> Error {
        Error::invalid(&self.path, problem, DAMAGED)
    }
}
