//! Shapes of a plan's captures and saved values, computed without running it.

use super::compile::compile;
use super::compile_value::selection_shape;
use super::compiled::Lengths;
use super::{Plan, ValueId};
use crate::error::Result;
use crate::program::Program;

/// Shapes of a run's captures and saved values.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OutputShapes {
    /// Captures: tap, row, shape.
    pub captures: Vec<(usize, usize, Vec<usize>)>,
    /// Saved values: id, row (`None` if all rows share the value), shape (`None` if it depends on
    /// an opaque function).
    pub saved: Vec<(ValueId, Option<usize>, Option<Vec<usize>>)>,
}

impl Plan {
    /// Checks the plan against a program and prompts of these lengths, as a run would, and returns
    /// the shapes of its results. Needs no weights.
    pub fn shapes(&self, program: &Program, prompts: &[usize]) -> Result<OutputShapes> {
        let lengths = Lengths { prompts, limits: prompts };
        let compiled = compile(program, self, lengths, false)?;
        let mut shapes = OutputShapes::default();
        for entry in compiled.taps.iter().filter(|entry| entry.action.captures()) {
            let rows = (0..prompts.len())
                .filter_map(|row| selection_shape(program, entry, lengths, row).map(|shape| (entry.tap, row, shape)));
            shapes.captures.extend(rows);
        }
        let values = &compiled.values;
        for &id in &values.save {
            let rows = values.rows[id].each().into_iter().zip(&values.shapes[id]);
            shapes.saved.extend(rows.map(|(row, shape)| (id, row, shape.clone())));
        }
        Ok(shapes)
    }
}
