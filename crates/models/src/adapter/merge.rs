//! What adapters do to one weight, in f32.

use super::Delta;
use super::settings::bad;
use crate::checkpoint::{Checkpoint, Tensor};
use crate::error::{Error, Result};
use crate::names::{Part, Source};
use crate::tensors::{Stored, plain};
use pellucid_engine::{WeightKind, WeightSpec};
use pellucid_kernels::encoding;
use std::path::Path;

/// The changes to one weight: perhaps another tensor in its place, then sums.
#[derive(Default)]
pub(crate) struct Changes<'a> {
    whole: Option<(&'a Checkpoint, &'a str, Source)>,
    steps: Vec<Step<'a>>,
}

/// A sum, with what is needed to read it.
struct Step<'a> {
    checkpoint: &'a Checkpoint,
    path: &'a Path,
    kind: Kind<'a>,
    /// Which part of the adapter's module the weight is.
    part: Part,
}

enum Kind<'a> {
    Factors(&'a Delta),
    Bias(&'a Tensor, f32),
}

impl<'a> Changes<'a> {
    /// Whether the weight stays as it is stored.
    pub(crate) fn is_none(&self) -> bool {
        self.whole.is_none() && self.steps.is_empty()
    }

    /// The tensor in the weight's place, and where in it the weight is.
    pub(crate) fn whole(&self) -> Option<(Stored<'a>, &Source)> {
        self.whole.as_ref().and_then(|(checkpoint, name, source)| Some((plain(checkpoint, name)?, source)))
    }

    pub(super) fn replace(
        &mut self,
        checkpoint: &'a Checkpoint,
        name: &'a str,
        spec: &WeightSpec,
        source: &Source,
    ) -> Result<()> {
        let Some(stored) = plain(checkpoint, name) else { return Ok(()) };
        let expected = source.part.stored_shape(&spec.shape, source.transposed);
        if stored.shape != expected {
            return Err(Error::invalid(
                stored.path,
                format!("tensor {name} is {:?} where the model has {expected:?}", stored.shape),
                "check that the adapter was made for this model; where tokens were added, merge it with PEFT and give the result",
            ));
        }
        // What earlier adapters added is replaced with the rest.
        let source = Source { tensor: name.to_owned(), ..source.clone() };
        (self.whole, self.steps) = (Some((checkpoint, name, source)), Vec::new());
        Ok(())
    }

    pub(super) fn add(
        &mut self,
        checkpoint: &'a Checkpoint,
        path: &'a Path,
        delta: &'a Delta,
        spec: &WeightSpec,
        source: &Source,
    ) -> Result<()> {
        if spec.kind == WeightKind::Vector || source.part.stack.is_some() {
            return Err(bad(
                path,
                &format!("tensor {} is for {}, which is no single matrix", delta.a.name, source.tensor),
            ));
        }
        let shape = source.part.stored_shape(&spec.shape, false);
        let rank = delta.a.shape.first().copied().unwrap_or_default();
        let (a, b) =
            if delta.is_table { ([rank, shape[0]], [shape[1], rank]) } else { ([rank, shape[1]], [shape[0], rank]) };
        expect(path, &delta.a, &a)?;
        expect(path, &delta.b, &b)?;
        if let Some(lengths) = &delta.lengths {
            expect(path, lengths, &[shape[0]])?;
        }
        // The lengths are of the sum with the base model's own weight.
        let dora = |step: &Step| matches!(step.kind, Kind::Factors(delta) if delta.lengths.is_some());
        if !self.steps.is_empty() && (delta.lengths.is_some() || self.steps.iter().any(dora)) {
            return Err(bad(
                path,
                &format!("tensor {}: a DoRA adapter cannot be merged with another one", delta.a.name),
            ));
        }
        self.steps.push(Step { checkpoint, path, kind: Kind::Factors(delta), part: source.part });
        Ok(())
    }

    pub(super) fn add_bias(
        &mut self,
        checkpoint: &'a Checkpoint,
        path: &'a Path,
        bias: &'a Tensor,
        scale: f32,
        spec: &WeightSpec,
        source: &Source,
    ) -> Result<()> {
        expect(path, bias, &source.part.stored_shape(&spec.shape, false))?;
        self.steps.push(Step { checkpoint, path, kind: Kind::Bias(bias, scale), part: source.part });
        Ok(())
    }

    /// Reads the factors.
    pub(crate) fn ready(&self) -> Result<Vec<Merged>> {
        self.steps.iter().map(Step::ready).collect()
    }
}

fn expect(path: &Path, tensor: &Tensor, shape: &[usize]) -> Result<()> {
    if tensor.shape == shape {
        return Ok(());
    }
    Err(Error::invalid(
        path,
        format!("tensor {} is {:?} where the model makes it {shape:?}", tensor.name, tensor.shape),
        "check that the adapter was made for this model",
    ))
}

impl Step<'_> {
    fn ready(&self) -> Result<Merged> {
        let read = |tensor: &Tensor| numbers(self.checkpoint, self.path, tensor);
        let part = self.part;
        match self.kind {
            Kind::Bias(bias, scale) => {
                Ok(Merged { left: read(bias)?, right: vec![1.0], rank: 1, scale, lengths: None, part })
            }
            Kind::Factors(delta) => {
                let (a, b, rank) = (read(&delta.a)?, read(&delta.b)?, delta.a.shape[0]);
                let lengths = delta.lengths.as_ref().map(read).transpose()?;
                let (left, right) =
                    if delta.is_table { (transposed(&a, rank), transposed(&b, b.len() / rank)) } else { (b, a) };
                Ok(Merged { left, right, rank, scale: delta.scale, lengths, part })
            }
        }
    }
}

/// A tensor's numbers, all of them finite.
fn numbers(checkpoint: &Checkpoint, path: &Path, tensor: &Tensor) -> Result<Vec<f32>> {
    let encoding = plain(checkpoint, &tensor.name).and_then(|stored| stored.encoding.ok());
    let encoding = encoding.ok_or_else(|| {
        Error::unsupported(
            format!("{}: tensor {} is stored as {}", path.display(), tensor.name, tensor.dtype),
            "save the adapter in F32, F16 or BF16",
        )
    })?;
    let mut numbers = vec![0.0; tensor.elements()];
    encoding::decode(encoding, checkpoint.bytes(tensor), &mut numbers);
    if numbers.iter().all(|x| x.is_finite()) {
        return Ok(numbers);
    }
    Err(bad(path, &format!("tensor {} holds a number that is not finite", tensor.name)))
}

/// The transpose of a matrix with so many rows.
fn transposed(matrix: &[f32], rows: usize) -> Vec<f32> {
    let cols = matrix.len() / rows.max(1);
    (0..cols).flat_map(|col| (0..rows).map(move |row| matrix[row * cols + col])).collect()
}

/// A sum that is ready to be added, row by row.
pub(crate) struct Merged {
    /// `[outputs, rank]`.
    left: Vec<f32>,
    /// `[rank, inputs]`.
    right: Vec<f32>,
    rank: usize,
    scale: f32,
    lengths: Option<Vec<f32>>,
    part: Part,
}

impl Merged {
    /// Adds to a row of the weight. The sum over the rank is taken first, from its first term to its last, then scaled, then added: the
    /// order of a merge beforehand.
    pub(crate) fn apply(&self, row: usize, out: &mut [f32]) {
        let row = self.part.stored_row(row);
        let factors = &self.left[row * self.rank..][..self.rank];
        let mut sum = vec![0.0f32; out.len()];
        for (factor, line) in factors.iter().zip(self.right.chunks_exact(out.len())) {
            sum.iter_mut().zip(line).for_each(|(sum, x)| *sum += factor * x);
        }
        out.iter_mut().zip(&sum).for_each(|(out, sum)| *out += sum * self.scale);
        if let Some(lengths) = &self.lengths {
            let length = out.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt() as f32;
            let factor = lengths[row] / length;
            out.iter_mut().for_each(|x| *x *= factor);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_gets_its_sum_and_its_length() {
        let mut merged = Merged {
            left: vec![1.0, 2.0, 0.0, -1.0],
            right: vec![1.0, 0.0, 3.0, 4.0],
            rank: 2,
            scale: 0.5,
            lengths: None,
            part: Part::default(),
        };
        let mut row = [10.0, 20.0];
        merged.apply(0, &mut row);
        assert_eq!(row, [10.0 + 0.5 * 7.0, 20.0 + 0.5 * 8.0]);
        merged.lengths = Some(vec![1.0, 10.0]);
        let mut row = [4.5, 6.0];
        merged.apply(1, &mut row);
        assert_eq!(row, [6.0, 8.0]);
        assert_eq!(transposed(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 2), [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
    }
}
