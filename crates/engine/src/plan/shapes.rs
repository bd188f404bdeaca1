//! What a plan will give back, known before anything runs.

use super::compile::compile;
use super::compile_value::selection_shape;
use super::compiled::Lengths;
use super::{Plan, ValueId};
use crate::error::Result;
use crate::program::Program;

/// The shapes of what a run of a plan gives back.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Shapes {
    /// For each whole capture its tap, row and shape.
    pub captures: Vec<(usize, usize, Vec<usize>)>,
    /// For each saved value its number, its row (none where it is one for all) and its shape, where that does not depend on a function.
    pub saved: Vec<(ValueId, Option<usize>, Option<Vec<usize>>)>,
}

impl Plan {
    /// Checks the plan against a program and prompts of these lengths as a run would, and says what shapes would come back. No weight
    /// is needed.
    pub fn shapes(&self, program: &Program, prompts: &[usize]) -> Result<Shapes> {
        let lengths = Lengths { prompts, limits: prompts };
        let compiled = compile(program, self, lengths, false)?;
        let mut shapes = Shapes::default();
        for entry in compiled.entries.iter().filter(|entry| entry.action.captures()) {
            let found = (0..prompts.len())
                .filter_map(|row| selection_shape(program, entry, lengths, row).map(|shape| (entry.tap, row, shape)));
            shapes.captures.extend(found);
        }
        let values = &compiled.values;
        for &id in &values.save {
            let rows = values.rows[id].each().into_iter().zip(&values.shapes[id]);
            shapes.saved.extend(rows.map(|(row, shape)| (id, row, shape.clone())));
        }
        Ok(shapes)
    }
}
