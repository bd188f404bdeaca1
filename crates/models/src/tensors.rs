//! Stored tensors under their Hugging Face names, whatever file they are in.

use crate::checkpoint::{Checkpoint, StoredType};
use crate::config::Config;
use crate::error::Result;
use crate::gguf::{self, GgufFile, RowOrder};
use crate::quantised::{Made, Method, Quantised};
use pellucid_kernels::encoding::Encoding;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A stored tensor.
pub struct Stored<'a> {
    /// Its shape in the checkpoint.
    pub shape: &'a [usize],
    /// How its numbers are stored; the name of the format where nothing can compute with it.
    pub encoding: std::result::Result<Encoding, &'static str>,
    /// Its bytes.
    pub bytes: &'a [u8],
    /// The order of its rows in the file.
    pub order: RowOrder,
    /// The file that it is in.
    pub path: &'a Path,
    /// Its rows on demand, where it is made from other tensors and so has no bytes of its own. `encoding` then is what holds them exactly.
    pub made: Option<Made<'a>>,
}

/// The tensors of a model.
pub enum Tensors {
    /// A directory of safetensors files.
    Checkpoint(Checkpoint),
    /// A GGUF file, with its tensors under their Hugging Face names.
    Gguf(Box<GgufTensors>),
    /// A directory of safetensors files with quantised layers.
    Quantised(Box<Quantised>),
}

/// A GGUF file's tensors under other names.
pub struct GgufTensors {
    file: Arc<GgufFile>,
    names: HashMap<String, (usize, RowOrder)>,
    path: PathBuf,
}

impl Tensors {
    /// The tensors of a directory, whose configuration says how they are quantised, if they are.
    pub fn from_checkpoint(checkpoint: Checkpoint, config: &Config, origin: &Path) -> Result<Tensors> {
        Ok(match Method::read(config)? {
            None => Tensors::Checkpoint(checkpoint),
            Some(method) => Tensors::Quantised(Box::new(Quantised::new(checkpoint, &method, origin)?)),
        })
    }

    /// The tensors of a GGUF file.
    pub fn from_gguf(file: impl Into<Arc<GgufFile>>) -> Result<Tensors> {
        let file = file.into();
        let names = gguf::hf_names(file.architecture()?, &file)?;
        let names = names.into_iter().map(|(name, index, order)| (name, (index, order))).collect();
        let path = file.path().to_path_buf();
        Ok(Tensors::Gguf(Box::new(GgufTensors { file, names, path })))
    }

    /// A tensor.
    pub fn get(&self, name: &str) -> Option<Stored<'_>> {
        match self {
            Tensors::Checkpoint(checkpoint) => plain(checkpoint, name),
            Tensors::Gguf(gguf) => {
                let (index, order) = *gguf.names.get(name)?;
                let tensor = &gguf.file.tensors()[index];
                Some(Stored {
                    shape: &tensor.shape,
                    encoding: Ok(tensor.encoding),
                    bytes: gguf.file.bytes(tensor),
                    order,
                    path: &gguf.path,
                    made: None,
                })
            }
            Tensors::Quantised(quantised) => match quantised.made(name) {
                Some(made) => Some(Stored {
                    shape: made.shape(),
                    encoding: Ok(made.exact()),
                    bytes: &[],
                    // Quantised layers lie as [outputs, inputs] also where a family's own are the other way round.
                    order: RowOrder::Transposed,
                    path: made.path(),
                    made: Some(made),
                }),
                None if quantised.hides(name) => None,
                None => plain(quantised.checkpoint(), name),
            },
        }
    }

    /// All names, in no order.
    pub fn names(&self) -> Vec<&str> {
        match self {
            Tensors::Checkpoint(checkpoint) => checkpoint.tensors().map(|tensor| tensor.name.as_str()).collect(),
            Tensors::Gguf(gguf) => gguf.names.keys().map(String::as_str).collect(),
            Tensors::Quantised(quantised) => quantised.names(),
        }
    }

    /// Lets the system drop a tensor's pages: it has been packed and will not be read again.
    pub fn forget(&self, name: &str) {
        match self {
            Tensors::Checkpoint(checkpoint) => {
                if let Some(tensor) = checkpoint.get(name) {
                    checkpoint.forget(tensor);
                }
            }
            Tensors::Gguf(gguf) => {
                if let Some(&(index, _)) = gguf.names.get(name) {
                    gguf.file.forget(&gguf.file.tensors()[index]);
                }
            }
            Tensors::Quantised(quantised) => match quantised.checkpoint().get(name) {
                Some(tensor) if quantised.made(name).is_none() => quantised.checkpoint().forget(tensor),
                _ => quantised.forget(name),
            },
        }
    }
}

/// A tensor that is stored as it is.
pub(crate) fn plain<'a>(checkpoint: &'a Checkpoint, name: &str) -> Option<Stored<'a>> {
    let tensor = checkpoint.get(name)?;
    let encoding = match tensor.dtype {
        StoredType::F32 => Ok(Encoding::F32),
        StoredType::F16 => Ok(Encoding::F16),
        StoredType::Bf16 => Ok(Encoding::BF16),
        other => Err(other.name()),
    };
    let (bytes, path) = (checkpoint.bytes(tensor), checkpoint.path(tensor));
    Some(Stored { shape: &tensor.shape, encoding, bytes, order: RowOrder::AsIs, path, made: None })
}
