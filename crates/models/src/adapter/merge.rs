//! The changes of adapters to one weight, computed in f32.

use super::Delta;
use super::settings::bad;
use crate::checkpoint::{Checkpoint, Tensor};
use crate::error::{Error, Result};
use crate::names::{StoredPart, WeightSource};
use crate::tensors::{StoredTensor, plain};
use pellucid_engine::{WeightKind, WeightSpec};
use pellucid_kernels::encoding;
use std::path::Path;

/// The changes to one weight: an optional replacement, then updates that are added.
#[derive(Default)]
pub(crate) struct Changes<'a> {
    replacement: Option<(&'a Checkpoint, &'a str, WeightSource)>,
    updates: Vec<PendingUpdate<'a>>,
}

/// An update whose tensors are not read yet.
struct PendingUpdate<'a> {
    checkpoint: &'a Checkpoint,
    path: &'a Path,
    kind: UpdateKind<'a>,
    /// The part of the adapter's module that the weight is.
    part: StoredPart,
}

enum UpdateKind<'a> {
    /// `scale · B A`.
    LowRank(&'a Delta),
    /// `scale · bias`.
    Bias(&'a Tensor, f32),
}

impl<'a> Changes<'a> {
    /// Whether the weight is unchanged.
    pub(crate) fn is_none(&self) -> bool {
        self.replacement.is_none() && self.updates.is_empty()
    }

    /// The tensor that replaces the weight's, and the location of the weight in it.
    pub(crate) fn replacement(&self) -> Option<(StoredTensor<'a>, &WeightSource)> {
        self.replacement.as_ref().and_then(|(checkpoint, name, source)| Some((plain(checkpoint, name)?, source)))
    }

    pub(super) fn replace(
        &mut self,
        checkpoint: &'a Checkpoint,
        name: &'a str,
        spec: &WeightSpec,
        source: &WeightSource,
    ) -> Result<()> {
        let Some(stored) = plain(checkpoint, name) else { return Ok(()) };
        let expected = source.part.stored_shape(&spec.shape, source.transposed);
        if stored.shape != expected {
            return Err(Error::invalid(
                stored.path,
                format!("tensor {name} is {:?} where the model has {expected:?}", stored.shape),
                "check that the adapter was trained for this model; if it adds tokens, merge it with PEFT and give the result",
            ));
        }
        // The updates of earlier adapters are replaced, too.
        let source = WeightSource { tensor: name.to_owned(), ..source.clone() };
        (self.replacement, self.updates) = (Some((checkpoint, name, source)), Vec::new());
        Ok(())
    }

    pub(super) fn add(
        &mut self,
        checkpoint: &'a Checkpoint,
        path: &'a Path,
        delta: &'a Delta,
        spec: &WeightSpec,
        source: &WeightSource,
    ) -> Result<()> {
        if spec.kind == WeightKind::Vector || source.part.stack.is_some() {
            return Err(bad(
                path,
                &format!("tensor {} is for {}, which is not a single matrix", delta.a.name, source.tensor),
            ));
        }
        let shape = source.part.stored_shape(&spec.shape, false);
        let rank = delta.a.shape.first().copied().unwrap_or_default();
        let (a, b) = if delta.is_embedding {
            ([rank, shape[0]], [shape[1], rank])
        } else {
            ([rank, shape[1]], [shape[0], rank])
        };
        expect_shape(path, &delta.a, &a)?;
        expect_shape(path, &delta.b, &b)?;
        if let Some(magnitudes) = &delta.magnitudes {
            expect_shape(path, magnitudes, &[shape[0]])?;
        }
        // DoRA's magnitudes are those of the base weight plus this update alone.
        let dora =
            |update: &PendingUpdate| matches!(update.kind, UpdateKind::LowRank(delta) if delta.magnitudes.is_some());
        if !self.updates.is_empty() && (delta.magnitudes.is_some() || self.updates.iter().any(dora)) {
            return Err(bad(
                path,
                &format!("tensor {}: a DoRA adapter cannot be merged with another one", delta.a.name),
            ));
        }
        self.updates.push(PendingUpdate { checkpoint, path, kind: UpdateKind::LowRank(delta), part: source.part });
        Ok(())
    }

    pub(super) fn add_bias(
        &mut self,
        checkpoint: &'a Checkpoint,
        path: &'a Path,
        bias: &'a Tensor,
        scale: f32,
        spec: &WeightSpec,
        source: &WeightSource,
    ) -> Result<()> {
        expect_shape(path, bias, &source.part.stored_shape(&spec.shape, false))?;
        self.updates.push(PendingUpdate { checkpoint, path, kind: UpdateKind::Bias(bias, scale), part: source.part });
        Ok(())
    }

    /// Reads the tensors of the updates.
    pub(crate) fn read_updates(&self) -> Result<Vec<LowRankUpdate>> {
        self.updates.iter().map(PendingUpdate::read).collect()
    }

    /// Reads the replacement of a vector, `[rows]`.
    pub(super) fn read_replacement(&self, rows: usize) -> Result<Option<Vec<f32>>> {
        let Some((checkpoint, name, source)) = &self.replacement else { return Ok(None) };
        let Some(tensor) = checkpoint.tensors().find(|tensor| tensor.name == *name) else { return Ok(None) };
        let path = plain(checkpoint, name).map(|stored| stored.path.to_owned()).unwrap_or_default();
        let stored = read_floats(checkpoint, &path, tensor)?;
        Ok(Some((0..rows).map(|row| stored[source.part.stored_row(row)]).collect()))
    }
}

fn expect_shape(path: &Path, tensor: &Tensor, shape: &[usize]) -> Result<()> {
    if tensor.shape == shape {
        return Ok(());
    }
    Err(Error::invalid(
        path,
        format!("tensor {} is {:?} where the model expects {shape:?}", tensor.name, tensor.shape),
        "check that the adapter was trained for this model",
    ))
}

impl PendingUpdate<'_> {
    fn read(&self) -> Result<LowRankUpdate> {
        let read = |tensor: &Tensor| read_floats(self.checkpoint, self.path, tensor);
        let part = self.part;
        match self.kind {
            UpdateKind::Bias(bias, scale) => {
                Ok(LowRankUpdate { left: read(bias)?, right: vec![1.0], rank: 1, scale, magnitudes: None, part })
            }
            UpdateKind::LowRank(delta) => {
                let (a, b, rank) = (read(&delta.a)?, read(&delta.b)?, delta.a.shape[0]);
                let magnitudes = delta.magnitudes.as_ref().map(read).transpose()?;
                let (left, right) =
                    if delta.is_embedding { (transpose(&a, rank), transpose(&b, b.len() / rank)) } else { (b, a) };
                Ok(LowRankUpdate { left, right, rank, scale: delta.scale, magnitudes, part })
            }
        }
    }
}

/// Reads a tensor as f32. A non-finite element is an error.
fn read_floats(checkpoint: &Checkpoint, path: &Path, tensor: &Tensor) -> Result<Vec<f32>> {
    let encoding = plain(checkpoint, &tensor.name).and_then(|stored| stored.encoding.ok());
    let encoding = encoding.ok_or_else(|| {
        Error::unsupported(
            format!("{}: tensor {} is stored as {}", path.display(), tensor.name, tensor.dtype),
            "save the adapter in F32, F16 or BF16",
        )
    })?;
    let mut floats = vec![0.0; tensor.elements()];
    encoding::decode(encoding, checkpoint.bytes(tensor), &mut floats);
    if floats.iter().all(|x| x.is_finite()) {
        return Ok(floats);
    }
    Err(bad(path, &format!("tensor {} has a non-finite element", tensor.name)))
}

/// Transposes a matrix with `rows` rows.
fn transpose(matrix: &[f32], rows: usize) -> Vec<f32> {
    let cols = matrix.len() / rows.max(1);
    (0..cols).flat_map(|col| (0..rows).map(move |row| matrix[row * cols + col])).collect()
}

/// An update `scale · left right` that is added to a weight row by row.
pub(crate) struct LowRankUpdate {
    /// `[outputs, rank]`.
    left: Vec<f32>,
    /// `[rank, inputs]`.
    right: Vec<f32>,
    rank: usize,
    scale: f32,
    /// DoRA: norm of each row after the update, `[outputs]`.
    magnitudes: Option<Vec<f32>>,
    part: StoredPart,
}

impl LowRankUpdate {
    /// The left factor B, `[stored outputs, rank]`.
    pub(super) fn left(&self) -> &[f32] {
        &self.left
    }

    /// The row of B that belongs to a row of the weight, `[rank]`.
    pub(super) fn left_row(&self, row: usize) -> &[f32] {
        &self.left[self.part.stored_row(row) * self.rank..][..self.rank]
    }

    /// The right factor A, `[rank, inputs]`.
    pub(super) fn right(&self) -> &[f32] {
        &self.right
    }

    /// The rank.
    pub(super) fn rank(&self) -> usize {
        self.rank
    }

    /// The factor of the product.
    pub(super) fn scale(&self) -> f32 {
        self.scale
    }

    /// Adds the update to a row of the weight. The product is summed over the rank in order, then
    /// scaled, then added, so the result has the same bits as a weight merged beforehand.
    pub(crate) fn apply(&self, row: usize, out: &mut [f32]) {
        let factors = self.left_row(row);
        let mut sum = vec![0.0f32; out.len()];
        for (factor, line) in factors.iter().zip(self.right.chunks_exact(out.len())) {
            sum.iter_mut().zip(line).for_each(|(sum, x)| *sum += factor * x);
        }
        out.iter_mut().zip(&sum).for_each(|(out, sum)| *out += sum * self.scale);
        if let Some(magnitudes) = &self.magnitudes {
            let norm = out.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt() as f32;
            let factor = magnitudes[self.part.stored_row(row)] / norm;
            out.iter_mut().for_each(|x| *x *= factor);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_update_adds_to_a_row_and_sets_its_norm() {
        let mut update = LowRankUpdate {
            left: vec![1.0, 2.0, 0.0, -1.0],
            right: vec![1.0, 0.0, 3.0, 4.0],
            rank: 2,
            scale: 0.5,
            magnitudes: None,
            part: StoredPart::default(),
        };
        let mut row = [10.0, 20.0];
        update.apply(0, &mut row);
        assert_eq!(row, [10.0 + 0.5 * 7.0, 20.0 + 0.5 * 8.0]);
        update.magnitudes = Some(vec![1.0, 10.0]);
        let mut row = [4.5, 6.0];
        update.apply(1, &mut row);
        assert_eq!(row, [6.0, 8.0]);
        assert_eq!(transpose(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 2), [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
    }
}
