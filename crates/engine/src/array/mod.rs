//! Arrays returned by the engine: shared, immutable, cheap to clone.

mod lines;
mod sparse;

pub use lines::CaptureDtype;
pub(crate) use lines::{LineStorage, SpillFile};
pub use sparse::SparseRows;

use half::bf16;
use half::slice::HalfFloatSliceExt;
use std::sync::{Arc, OnceLock};

/// An immutable f32 array; clones share its memory.
#[derive(Clone)]
pub struct Array {
    shape: Vec<usize>,
    data: Data,
    start: usize,
    integer: bool,
}

#[derive(Clone)]
enum Data {
    Floats(Arc<Vec<f32>>),
    Lines(Arc<FinishedLines>),
}

/// The finished lines at the start of a capture's memory.
struct FinishedLines {
    storage: Arc<LineStorage>,
    len: usize,
    /// The elements of a bf16 capture as f32, once they have been read as such.
    widened: OnceLock<Vec<f32>>,
}

impl FinishedLines {
    fn halves(&self) -> Option<&[bf16]> {
        // SAFETY: `Array::finished_lines` takes only lines that are never written again.
        unsafe { self.storage.halves(self.len) }
    }

    fn floats(&self) -> &[f32] {
        // SAFETY: as above.
        if let Some(floats) = unsafe { self.storage.floats(self.len) } {
            return floats;
        }
        let widen = |halves: &[bf16]| {
            let mut floats = vec![0.0; halves.len()];
            halves.convert_to_f32_slice(&mut floats);
            floats
        };
        self.widened.get_or_init(|| self.halves().map(widen).unwrap_or_default())
    }
}

impl Array {
    /// Returns an array that owns its elements; panics if their number does not match the shape.
    pub fn new(shape: Vec<usize>, data: Vec<f32>) -> Array {
        assert_eq!(shape.iter().product::<usize>(), data.len(), "number of elements for shape {shape:?}");
        Array { shape, data: Data::Floats(Arc::new(data)), start: 0, integer: false }
    }

    /// Returns an array of integers (indices), which owns its elements.
    pub fn integers(shape: Vec<usize>, data: Vec<f32>) -> Array {
        Array::new(shape, data).with_integer(true)
    }

    /// Returns an array that is stored as bf16, as a capture is; panics if the number of elements
    /// does not match the shape.
    pub fn from_bf16(shape: Vec<usize>, data: &[bf16]) -> Array {
        assert_eq!(shape.iter().product::<usize>(), data.len(), "number of elements for shape {shape:?}");
        let mut floats = vec![0.0; data.len()];
        data.convert_to_f32_slice(&mut floats);
        let storage = LineStorage::heap(data.len(), CaptureDtype::Bf16);
        // SAFETY: nothing else has this memory, and it is written here only.
        unsafe {
            storage.write(0, &floats);
            Array::finished_lines(shape, Arc::new(storage))
        }
    }

    /// Returns a view of part of a shared buffer.
    pub(crate) fn view(shape: Vec<usize>, data: Arc<Vec<f32>>, start: usize) -> Array {
        assert!(start + shape.iter().product::<usize>() <= data.len(), "a view past the end of its buffer");
        Array { shape, data: Data::Floats(data), start, integer: false }
    }

    /// Returns a view of the first elements of a capture's memory.
    ///
    /// # Safety
    /// These elements have been written and are never written again.
    pub(crate) unsafe fn finished_lines(shape: Vec<usize>, storage: Arc<LineStorage>) -> Array {
        let len = shape.iter().product();
        assert!(len <= storage.len(), "a view past the end of its capture");
        let lines = FinishedLines { storage, len, widened: OnceLock::new() };
        Array { shape, data: Data::Lines(Arc::new(lines)), start: 0, integer: false }
    }

    /// Marks the elements as integers.
    pub(crate) fn with_integer(mut self, integer: bool) -> Array {
        self.integer = integer;
        self
    }

    /// Returns a reshaped view; panics if the number of elements differs.
    pub fn reshaped(&self, shape: Vec<usize>) -> Array {
        assert_eq!(shape.iter().product::<usize>(), self.len(), "number of elements for shape {shape:?}");
        Array { shape, ..self.clone() }
    }

    /// Returns the lengths of its axes.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the elements in row-major order. Those of a bf16 capture are widened to f32 once, at
    /// the first call.
    pub fn values(&self) -> &[f32] {
        let all = match &self.data {
            Data::Floats(floats) => floats,
            Data::Lines(lines) => lines.floats(),
        };
        &all[self.start..self.start + self.len()]
    }

    /// Returns the elements of a bf16 capture as they are stored; `None` for f32.
    pub fn halves(&self) -> Option<&[bf16]> {
        match &self.data {
            Data::Floats(_) => None,
            Data::Lines(lines) => Some(&lines.halves()?[self.start..self.start + self.len()]),
        }
    }

    /// Element type in which it is stored.
    pub fn dtype(&self) -> CaptureDtype {
        match &self.data {
            Data::Floats(_) => CaptureDtype::F32,
            Data::Lines(lines) => lines.storage.dtype(),
        }
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
        let same_memory = match (&self.data, &other.data) {
            (Data::Floats(a), Data::Floats(b)) => Arc::ptr_eq(a, b) && self.start == other.start,
            (Data::Lines(a), Data::Lines(b)) => Arc::ptr_eq(a, b),
            (Data::Floats(_), Data::Lines(_)) | (Data::Lines(_), Data::Floats(_)) => false,
        };
        self.shape == other.shape && (same_memory || self.values() == other.values())
    }
}
