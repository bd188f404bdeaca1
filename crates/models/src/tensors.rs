//! The stored tensors of a model under their Hugging Face names: safetensors, torch or GGUF, plain
//! or quantized.

use crate::checkpoint::{Checkpoint, StoredType};
use crate::config::Config;
use crate::error::Result;
use crate::gguf::{self, GgufFile, RowOrder};
use crate::mapped::MappedFile;
use crate::quantized::{DequantizedTensor, Method, QuantizedCheckpoint};
use pellucid_kernels::encoding::Encoding;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A stored tensor.
pub struct StoredTensor<'a> {
    /// Its shape in the checkpoint.
    pub shape: &'a [usize],
    /// Encoding of its elements; the name of the format if it is not supported.
    pub encoding: std::result::Result<Encoding, &'static str>,
    /// Its bytes.
    pub bytes: &'a [u8],
    /// The order of its rows in the file.
    pub order: RowOrder,
    /// The file that holds it.
    pub path: &'a Path,
    /// Set for a quantized layer, whose rows are dequantized on demand from several stored tensors.
    /// `bytes` is empty then, and `encoding` is the format that holds the dequantized values
    /// exactly.
    pub dequantized: Option<DequantizedTensor<'a>>,
}

/// The tensors of a model.
pub enum Tensors {
    /// A directory of safetensors files.
    Checkpoint(Checkpoint),
    /// A GGUF file, with its tensors under their Hugging Face names.
    Gguf(Box<GgufTensors>),
    /// A directory of safetensors files with quantized layers.
    Quantized(Box<QuantizedCheckpoint>),
}

/// A GGUF file's tensors under their Hugging Face names.
pub struct GgufTensors {
    file: Arc<GgufFile>,
    names: HashMap<String, (usize, RowOrder)>,
    path: PathBuf,
}

impl Tensors {
    /// Returns the tensors of a directory. `config` gives the quantization method, if any.
    pub fn from_checkpoint(checkpoint: Checkpoint, config: &Config, origin: &Path) -> Result<Tensors> {
        Ok(match Method::read(config)? {
            None => Tensors::Checkpoint(checkpoint),
            Some(method) => Tensors::Quantized(Box::new(QuantizedCheckpoint::new(checkpoint, &method, origin)?)),
        })
    }

    /// Returns the tensors of a GGUF file.
    pub fn from_gguf(file: impl Into<Arc<GgufFile>>) -> Result<Tensors> {
        let file = file.into();
        let names = gguf::hf_names(file.architecture()?, &file)?;
        let names = names.into_iter().map(|(name, index, order)| (name, (index, order))).collect();
        let path = file.path().to_path_buf();
        Ok(Tensors::Gguf(Box::new(GgufTensors { file, names, path })))
    }

    /// The files of a directory; `None` for a GGUF file.
    pub(crate) fn checkpoint(&self) -> Option<&Checkpoint> {
        match self {
            Tensors::Checkpoint(checkpoint) => Some(checkpoint),
            Tensors::Quantized(quantized) => Some(quantized.checkpoint()),
            Tensors::Gguf(_) => None,
        }
    }

    /// Returns a tensor by name.
    pub fn get(&self, name: &str) -> Option<StoredTensor<'_>> {
        match self {
            Tensors::Checkpoint(checkpoint) => plain(checkpoint, name),
            Tensors::Gguf(gguf) => {
                let (index, order) = *gguf.names.get(name)?;
                let tensor = &gguf.file.tensors()[index];
                Some(StoredTensor {
                    shape: &tensor.shape,
                    encoding: Ok(tensor.encoding),
                    bytes: gguf.file.bytes(tensor),
                    order,
                    path: &gguf.path,
                    dequantized: None,
                })
            }
            Tensors::Quantized(quantized) => match quantized.dequantized(name) {
                Some(tensor) => Some(StoredTensor {
                    shape: tensor.shape(),
                    encoding: Ok(tensor.exact_encoding()),
                    bytes: &[],
                    // Quantized layers are [outputs, inputs] even in families that store [inputs,
                    // outputs].
                    order: RowOrder::Transposed,
                    path: tensor.path(),
                    dequantized: Some(tensor),
                }),
                None if quantized.hides(name) => None,
                None => plain(quantized.checkpoint(), name),
            },
        }
    }

    /// Returns all names, in no particular order.
    pub fn names(&self) -> Vec<&str> {
        match self {
            Tensors::Checkpoint(checkpoint) => checkpoint.tensors().map(|tensor| tensor.name.as_str()).collect(),
            Tensors::Gguf(gguf) => gguf.names.keys().map(String::as_str).collect(),
            Tensors::Quantized(quantized) => quantized.names(),
        }
    }

    /// Checks that no file has changed since it was opened.
    pub(crate) fn check_unchanged(&self) -> Result<()> {
        match (self.checkpoint(), self) {
            (Some(checkpoint), _) => checkpoint.check_unchanged(),
            (None, Tensors::Gguf(gguf)) => gguf.file.mapped().map_or(Ok(()), |file| file.check_loading()),
            (None, _) => Ok(()),
        }
    }

    /// The mapped GGUF file, whose rows may be read in place.
    pub(crate) fn mapped(&self) -> Option<Arc<MappedFile>> {
        match self {
            Tensors::Gguf(gguf) => gguf.file.mapped().cloned(),
            // Their matrices are packed or dequantized.
            Tensors::Checkpoint(_) | Tensors::Quantized(_) => None,
        }
    }

    /// Tells the OS that a tensor's mapped pages may be dropped (`madvise`); it will not be read
    /// again.
    pub fn forget(&self, name: &str) {
        match self {
            Tensors::Checkpoint(checkpoint) => {
                if let Some(tensor) = checkpoint.get(name) {
                    checkpoint.release_pages(tensor);
                }
            }
            Tensors::Gguf(gguf) => {
                if let Some(&(index, _)) = gguf.names.get(name) {
                    gguf.file.release_pages(&gguf.file.tensors()[index]);
                }
            }
            Tensors::Quantized(quantized) => match quantized.checkpoint().get(name) {
                Some(tensor) if quantized.dequantized(name).is_none() => quantized.checkpoint().release_pages(tensor),
                _ => quantized.release_pages(name),
            },
        }
    }
}

/// Returns a tensor of a checkpoint that is not quantized.
pub(crate) fn plain<'a>(checkpoint: &'a Checkpoint, name: &str) -> Option<StoredTensor<'a>> {
    let tensor = checkpoint.get(name)?;
    let encoding = match tensor.dtype {
        StoredType::F32 => Ok(Encoding::F32),
        StoredType::F16 => Ok(Encoding::F16),
        StoredType::Bf16 => Ok(Encoding::BF16),
        other => Err(other.name()),
    };
    let (bytes, path) = (checkpoint.bytes(tensor), checkpoint.path(tensor));
    Some(StoredTensor { shape: &tensor.shape, encoding, bytes, order: RowOrder::AsIs, path, dequantized: None })
}
