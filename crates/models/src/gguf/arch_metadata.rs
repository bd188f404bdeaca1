//! Access to the metadata keys that are prefixed with the architecture (`llama.block_count`).

use super::GgufFile;
use crate::{Error, Result};

/// The metadata under the architecture's prefix.
pub(super) struct ArchMetadata<'a> {
    pub(super) file: &'a GgufFile,
    pub(super) arch: &'a str,
}

impl ArchMetadata<'_> {
    pub(super) fn number(&self, key: &str) -> Result<Option<usize>> {
        self.file.number(&format!("{}.{key}", self.arch))
    }

    pub(super) fn float(&self, key: &str) -> Result<Option<f64>> {
        self.file.float(&format!("{}.{key}", self.arch))
    }

    pub(super) fn text(&self, key: &str) -> Result<Option<&str>> {
        self.file.text(&format!("{}.{key}", self.arch))
    }

    /// A required, non-zero integer.
    pub(super) fn size(&self, key: &str) -> Result<usize> {
        match self.number(key)? {
            Some(0) => Err(self.file.damaged(format!("the metadata value {}.{key} is zero", self.arch))),
            Some(number) => Ok(number),
            None => Err(self.missing(key)),
        }
    }

    pub(super) fn required_float(&self, key: &str) -> Result<f64> {
        self.float(key)?.ok_or_else(|| self.missing(key))
    }

    fn missing(&self, key: &str) -> Error {
        self.file.damaged(format!("the metadata value {}.{key} is missing", self.arch))
    }

    /// Vocabulary size: the rows of the embedding tensor, regardless of the metadata.
    pub(super) fn vocab(&self) -> Result<usize> {
        match self.file.tensor("token_embd.weight").map(|tensor| tensor.shape.as_slice()) {
            Some([rows, _]) => Ok(*rows),
            _ => Err(self.file.damaged("there is no matrix token_embd.weight (the token embedding)")),
        }
    }

    pub(super) fn heads(&self) -> Result<usize> {
        self.size("attention.head_count")
    }

    pub(super) fn kv_heads(&self) -> Result<usize> {
        Ok(self.number("attention.head_count_kv")?.filter(|heads| *heads > 0).unwrap_or(self.heads()?))
    }

    /// Head dimension; files contain it only if it is not `embedding_length / head_count`.
    pub(super) fn head_dim(&self) -> Result<usize> {
        if let Some(width) = self.number("attention.key_length")?.filter(|width| *width > 0) {
            return Ok(width);
        }
        Ok(self.size("embedding_length")? / self.heads()?)
    }

    /// The fraction of each head that RoPE rotates.
    pub(super) fn partial_rotary_factor(&self) -> Result<f64> {
        let head_dim = self.head_dim()?;
        let rotated = self.number("rope.dimension_count")?.unwrap_or(head_dim);
        Ok(rotated as f64 / head_dim.max(1) as f64)
    }
}
