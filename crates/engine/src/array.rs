//! Values that leave the engine: shared, immutable, cheap to clone.

use std::sync::Arc;

/// An immutable array of f32; clones and rows share its memory.
#[derive(Clone)]
pub struct Array {
    shape: Vec<usize>,
    data: Arc<Vec<f32>>,
    start: usize,
    integer: bool,
}

impl Array {
    /// An array that owns its values.
    pub fn new(shape: Vec<usize>, data: Vec<f32>) -> Array {
        assert_eq!(shape.iter().product::<usize>(), data.len(), "values for every place of {shape:?}");
        Array { shape, data: Arc::new(data), start: 0, integer: false }
    }

    /// A view of part of a shared buffer.
    pub(crate) fn view(shape: Vec<usize>, data: Arc<Vec<f32>>, start: usize) -> Array {
        assert!(start + shape.iter().product::<usize>() <= data.len(), "a view past the end of its buffer");
        Array { shape, data, start, integer: false }
    }

    /// Marks the values as whole numbers.
    pub(crate) fn with_integer(mut self, integer: bool) -> Array {
        self.integer = integer;
        self
    }

    /// The same numbers in another shape.
    pub fn reshaped(&self, shape: Vec<usize>) -> Array {
        assert_eq!(shape.iter().product::<usize>(), self.values().len(), "a shape for as many numbers");
        Array { shape, ..self.clone() }
    }

    /// The lengths of its axes.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The values, last axis fastest.
    pub fn values(&self) -> &[f32] {
        &self.data[self.start..self.start + self.shape.iter().product::<usize>()]
    }

    /// The values in a shape that this one broadcasts to, as numpy does; `None` where it does not.
    pub fn broadcast(&self, shape: &[usize]) -> Option<Vec<f32>> {
        if self.shape == shape {
            return Some(self.values().to_vec());
        }
        let view = ndarray::ArrayViewD::from_shape(self.shape.clone(), self.values()).ok()?;
        Some(view.broadcast(shape)?.iter().copied().collect())
    }

    /// Whether the values are whole numbers (indices).
    pub fn is_integer(&self) -> bool {
        self.integer
    }

    /// One entry of the first axis.
    pub fn row(&self, index: usize) -> &[f32] {
        let size: usize = self.shape[1..].iter().product();
        &self.values()[index * size..][..size]
    }
}

impl std::fmt::Debug for Array {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let some = &self.values()[..self.values().len().min(4)];
        write!(f, "Array{:?} {some:?}…", self.shape)
    }
}

impl PartialEq for Array {
    fn eq(&self, other: &Array) -> bool {
        let same_place = Arc::ptr_eq(&self.data, &other.data) && self.start == other.start;
        self.shape == other.shape && (same_place || self.values() == other.values())
    }
}
