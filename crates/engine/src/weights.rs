//! The weights of a model.

pub use crate::program::{WeightId, WeightKind, WeightSpec};

use crate::architecture::Gain;
use crate::ids::IdVec;
use crate::program::{Linear, OpKind, Program};
use pellucid_kernels::Matrix;
use pellucid_kernels::matrix::BackingFile;
use std::sync::Arc;

/// A weight in its runtime format.
pub enum Weight {
    /// A matrix or table.
    Matrix(Matrix),
    /// A vector.
    Vector(Vec<f32>),
}

/// All weights of a program, by [`WeightId`]. Each is shared with the models that were derived from
/// this one ([`Model::with_weights`](crate::Model::with_weights)).
pub struct Weights {
    by_id: IdVec<WeightId, Arc<Weight>>,
    /// The files that matrices read in place.
    files: Vec<Arc<dyn BackingFile>>,
}

/// The files that matrices read in place, each once.
pub(crate) fn files_of<'a>(matrices: impl Iterator<Item = &'a Matrix>) -> Vec<Arc<dyn BackingFile>> {
    let mut files: Vec<Arc<dyn BackingFile>> = Vec::new();
    for file in matrices.filter_map(Matrix::file) {
        if !files.iter().any(|known| std::ptr::addr_eq(Arc::as_ptr(known), Arc::as_ptr(&file))) {
            files.push(file);
        }
    }
    files
}

impl Weights {
    /// Wraps weights in the program's order. The loader has already checked their shapes.
    pub fn new(weights: Vec<Weight>) -> Weights {
        let matrices = weights.iter().filter_map(|weight| match weight {
            Weight::Matrix(matrix) => Some(matrix),
            Weight::Vector(_) => None,
        });
        let files = files_of(matrices);
        Weights { by_id: IdVec::from(weights.into_iter().map(Arc::new).collect::<Vec<_>>()), files }
    }

    /// Returns these weights with some of them replaced; the others are shared.
    pub(crate) fn replaced(&self, by: Vec<(WeightId, Weight)>) -> Weights {
        let mut by_id = self.by_id.clone();
        by.into_iter().for_each(|(id, weight)| by_id[id] = Arc::new(weight));
        Weights { by_id, files: self.files.clone() }
    }

    /// Returns a weight as f32, in row-major order.
    pub fn floats(&self, id: WeightId) -> Vec<f32> {
        match self.by_id[id].as_ref() {
            Weight::Vector(vector) => vector.clone(),
            Weight::Matrix(matrix) => {
                let mut floats = vec![0.0; matrix.rows() * matrix.cols()];
                let rows = floats.chunks_exact_mut(matrix.cols().max(1));
                rows.enumerate().for_each(|(row, out)| matrix.row(row, out));
                floats
            }
        }
    }

    /// The files that matrices read in place.
    pub(crate) fn files(&self) -> &[Arc<dyn BackingFile>] {
        &self.files
    }

    /// Whether a weight is the same memory in both.
    pub fn shares(&self, id: WeightId, other: &Weights) -> bool {
        Arc::ptr_eq(&self.by_id[id], &other.by_id[id])
    }

    /// Returns a matrix or table; panics if the weight is a vector.
    pub fn matrix(&self, id: WeightId) -> &Matrix {
        match self.by_id[id].as_ref() {
            Weight::Matrix(matrix) => matrix,
            Weight::Vector(_) => unreachable!("the program declared weight {id} a matrix"),
        }
    }

    /// Returns a vector; panics if the weight is a matrix.
    pub fn vector(&self, id: WeightId) -> &[f32] {
        match self.by_id[id].as_ref() {
            Weight::Vector(vector) => vector,
            Weight::Matrix(_) => unreachable!("the program declared weight {id} a vector"),
        }
    }

    /// Returns a projection's matrix and bias.
    pub fn linear(&self, linear: &Linear) -> (&Matrix, Option<&[f32]>) {
        (self.matrix(linear.weight), linear.bias.map(|bias| self.vector(bias)))
    }

    /// Adds 1 to gains stored as `1 + weight` (Gemma), so that norms only multiply.
    pub(crate) fn with_folded_gains(mut self, program: &Program) -> Weights {
        let mut folded = IdVec::filled(false, self.by_id.len());
        for op in program.ops() {
            if let OpKind::Norm { norm, gain: Some(gain), .. } = &op.kind
                && norm.gain == Gain::OnePlusWeight
                // Layers that share a block share its gains.
                && !std::mem::replace(&mut folded[*gain], true)
                // New weights are not shared yet.
                && let Some(Weight::Vector(vector)) = Arc::get_mut(&mut self.by_id[*gain])
            {
                vector.iter_mut().for_each(|x| *x += 1.0);
            }
        }
        self
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    /// Returns the size of all weights in bytes.
    pub fn bytes(&self) -> usize {
        let size = |weight: &Arc<Weight>| match weight.as_ref() {
            Weight::Matrix(matrix) => matrix.bytes(),
            Weight::Vector(vector) => vector.len() * 4,
        };
        self.by_id.iter().map(size).sum()
    }

    /// Returns the formats without fast kernels, whose rows are decoded in each product, with their
    /// total bytes, largest first.
    pub fn slow_formats(&self) -> Vec<(String, usize)> {
        let slow = |weight: &Weight| matches!(weight, Weight::Matrix(matrix) if matrix.is_in_place());
        self.formats_of(slow)
    }

    /// Returns the storage formats in use with their total bytes, largest first.
    pub fn formats(&self) -> Vec<(String, usize)> {
        self.formats_of(|_| true)
    }

    fn formats_of(&self, counts: impl Fn(&Weight) -> bool) -> Vec<(String, usize)> {
        let mut formats: Vec<(String, usize)> = Vec::new();
        for weight in self.by_id.iter().map(|weight| weight.as_ref()).filter(|weight| counts(weight)) {
            let (format, bytes) = match weight {
                Weight::Matrix(matrix) => (matrix.format(), matrix.bytes()),
                Weight::Vector(vector) => ("f32".into(), vector.len() * 4),
            };
            match formats.iter_mut().find(|(name, _)| *name == format) {
                Some(entry) => entry.1 += bytes,
                None => formats.push((format, bytes)),
            }
        }
        formats.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
        formats
    }
}
