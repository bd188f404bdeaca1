//! The memory of a sparse capture of one row: the nonzero elements of each selected position.

use crate::array::{Array, SparseRows};
use crate::sae::ActiveFeatures;
use pellucid_kernels::sparse::indices_of_nonzero;
use std::ops::Range;

/// Nonzero elements in the order in which positions are computed.
pub(super) struct SparseBuffer {
    elements: ActiveFeatures,
    /// For each selected position its range in `elements`, once it has been computed.
    lines: Vec<Option<Range<usize>>>,
    /// Number of selected units.
    width: usize,
    /// A position was computed twice, which would be a fault of the engine.
    pub repeated: bool,
}

impl SparseBuffer {
    pub fn new(positions: usize, width: usize) -> SparseBuffer {
        SparseBuffer { elements: ActiveFeatures::default(), lines: vec![None; positions], width, repeated: false }
    }

    /// Number of positions that have been computed.
    pub fn captured(&self) -> usize {
        self.lines.iter().flatten().count()
    }

    /// Adds the nonzero elements of the `nth` selected position.
    pub fn add(&mut self, nth: usize, picked: &[f32]) {
        let start = self.elements.indices.len();
        indices_of_nonzero(picked, &mut self.elements.indices);
        let added = self.elements.indices[start..].iter().map(|&index| picked[index as usize]);
        self.elements.values.extend(added);
        self.end_line(nth, start);
    }

    /// Adds the active features of the `nth` selected position.
    pub fn add_active(&mut self, nth: usize, active: &ActiveFeatures) {
        let start = self.elements.indices.len();
        self.elements.indices.extend_from_slice(&active.indices);
        self.elements.values.extend_from_slice(&active.values);
        self.end_line(nth, start);
    }

    fn end_line(&mut self, nth: usize, start: usize) {
        self.repeated |= self.lines[nth].is_some();
        self.lines[nth] = Some(start..self.elements.indices.len());
    }

    /// Returns the elements of the computed positions, in the order of the selection.
    pub fn finish(self) -> (Array, SparseRows) {
        let ActiveFeatures { mut indices, mut values } = self.elements;
        let lines: Vec<Range<usize>> = self.lines.into_iter().flatten().collect();
        if !lines.is_sorted_by_key(|line| line.start) {
            // The plan lists positions in another order than they are computed.
            indices = lines.iter().flat_map(|line| &indices[line.clone()]).copied().collect();
            values = lines.iter().flat_map(|line| &values[line.clone()]).copied().collect();
        }
        indices.shrink_to_fit();
        values.shrink_to_fit();
        let ends = lines.iter().scan(0, |end, line| {
            *end += line.len();
            Some(*end)
        });
        let indptr = std::iter::once(0).chain(ends).collect();
        (Array::new(vec![values.len()], values), SparseRows { indptr, indices, width: self.width })
    }
}
