//! Arrays returned by the engine: shared, immutable, cheap to clone.

use std::sync::Arc;

/// An immutable f32 array; clones share its memory.
#[derive(Clone)]
pub struct Array {
    shape: Vec<usize>,
    data: Arc<Vec<f32>>,
    start: usize,
    integer: bool,
}

impl Array {
    /// Returns an array that owns its elements; panics if their number does not match the shape.
    pub fn new(shape: Vec<usize>, data: Vec<f32>) -> Array {
        assert_eq!(shape.iter().product::<usize>(), data.len(), "number of elements for shape {shape:?}");
        Array { shape, data: Arc::new(data), start: 0, integer: false }
    }

    /// Returns a view of part of a shared buffer.
    pub(crate) fn view(shape: Vec<usize>, data: Arc<Vec<f32>>, start: usize) -> Array {
        assert!(start + shape.iter().product::<usize>() <= data.len(), "a view past the end of its buffer");
        Array { shape, data, start, integer: false }
    }

    /// Marks the elements as integers.
    pub(crate) fn with_integer(mut self, integer: bool) -> Array {
        self.integer = integer;
        self
    }

    /// Returns a reshaped view; panics if the number of elements differs.
    pub fn reshaped(&self, shape: Vec<usize>) -> Array {
        assert_eq!(shape.iter().product::<usize>(), self.values().len(), "number of elements for shape {shape:?}");
        Array { shape, ..self.clone() }
    }

    /// Returns the lengths of its axes.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Returns the elements in row-major order.
    pub fn values(&self) -> &[f32] {
        &self.data[self.start..self.start + self.shape.iter().product::<usize>()]
    }

    /// Returns the elements broadcast to a shape, as numpy does; `None` if the shapes do not match.
    pub fn broadcast(&self, shape: &[usize]) -> Option<Vec<f32>> {
        if self.shape == shape {
            return Some(self.values().to_vec());
        }
        let view = ndarray::ArrayViewD::from_shape(self.shape.clone(), self.values()).ok()?;
        Some(view.broadcast(shape)?.iter().copied().collect())
    }

    /// Whether the elements are integers (indices).
    pub fn is_integer(&self) -> bool {
        self.integer
    }

    /// Returns the elements at one index of the first axis.
    pub fn row(&self, index: usize) -> &[f32] {
        let size: usize = self.shape[1..].iter().product();
        &self.values()[index * size..][..size]
    }
}

impl std::fmt::Debug for Array {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let first = &self.values()[..self.values().len().min(4)];
        write!(f, "Array{:?} {first:?}…", self.shape)
    }
}

impl PartialEq for Array {
    fn eq(&self, other: &Array) -> bool {
        let same_memory = Arc::ptr_eq(&self.data, &other.data) && self.start == other.start;
        self.shape == other.shape && (same_memory || self.values() == other.values())
    }
}
