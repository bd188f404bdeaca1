//! Results of a run: captures and saved values as Python objects that share the engine's memory.

use crate::array::Array;
use crate::plan::{Plan, Save, SaveSource};
use crate::run::PlanOffset;
use crate::sparse::SparseArray;
use pellucid_engine as engine;
use pellucid_engine::plan::ValueId;
use pyo3::prelude::*;
use std::collections::HashMap;

/// Captures and saved values of a run, with the plan that requested them.
pub struct RunResults {
    pub captures: Vec<engine::Capture>,
    pub saved: Vec<engine::Saved>,
    pub marks: Vec<engine::Mark>,
    pub passed_over: Vec<engine::Site>,
    /// The plan of the trace itself, without standing edits.
    pub plan: Py<Plan>,
    /// Offset of `plan` in the plan that ran (standing edits come first).
    pub offset: PlanOffset,
    /// The call has one row, so results need no row index.
    pub one_row: bool,
    /// The call is a generation, so values have a step index.
    pub steps: bool,
}

/// `(site, row, positions, array, units)`; `units` are the indices of a top-k reduction.
pub type CaptureTuple = (String, usize, Vec<usize>, ResultArray, Option<Array>);

/// An array of a result.
#[derive(IntoPyObject)]
pub enum ResultArray {
    Dense(Array),
    Sparse(SparseArray),
}

impl ResultArray {
    fn of(capture: &engine::Capture) -> ResultArray {
        match SparseArray::of(capture) {
            Some(sparse) => ResultArray::Sparse(sparse),
            None => ResultArray::Dense(Array(capture.array.clone())),
        }
    }
}

/// `(name, site, row, position, value)` of a mark.
pub type MarkTuple = (String, String, usize, usize, f32);

impl RunResults {
    /// The positions at which the plan's marks held.
    pub fn marks(&self) -> Vec<MarkTuple> {
        let mark =
            |mark: &engine::Mark| (mark.name.clone(), mark.site.to_string(), mark.row, mark.position, mark.value);
        self.marks.iter().map(mark).collect()
    }

    /// Takes the results out of a run.
    pub fn from_run(run: engine::Run, plan: Py<Plan>, offset: PlanOffset, one_row: bool) -> RunResults {
        let engine::Run { captures, saved, marks, passed_over, .. } = run;
        RunResults { captures, saved, marks, passed_over, plan, offset, one_row, steps: false }
    }

    /// Sets the result of each saved value: one array, or else a list of `(row, step, array)`.
    pub fn assign_saved(&self, py: Python<'_>) -> PyResult<()> {
        // Captures come in the order of their taps; saved values come step by step.
        debug_assert!(self.captures.is_sorted_by_key(|capture| capture.tap));
        let mut values: HashMap<ValueId, Vec<&engine::Saved>> = HashMap::new();
        self.saved.iter().for_each(|saved| values.entry(saved.value).or_default().push(saved));
        for save in &self.plan.get().saves {
            match self.offset.shift(save.source) {
                SaveSource::Capture(tap) => {
                    let first = self.captures.partition_point(|capture| capture.tap < tap);
                    let captures = self.captures[first..].iter().take_while(|capture| capture.tap == tap);
                    self.assign(py, save, captures.map(|capture| (Some(capture.row), None, ResultArray::of(capture))))?;
                }
                SaveSource::Value(id) => {
                    let saved = values.get(&id).map(Vec::as_slice).unwrap_or_default().iter();
                    let step = |saved: &engine::Saved| self.steps.then_some(saved.step);
                    self.assign(
                        py,
                        save,
                        saved.map(|saved| (saved.row, step(saved), ResultArray::Dense(Array(saved.array.clone())))),
                    )?;
                }
            }
        }
        Ok(())
    }

    fn assign(
        &self,
        py: Python<'_>,
        save: &Save,
        mut arrays: impl Iterator<Item = (Option<usize>, Option<usize>, ResultArray)>,
    ) -> PyResult<()> {
        let first = arrays.next();
        let is_single = matches!(first, Some((row, None, _)) if row.is_none() || self.one_row);
        let object = match first {
            Some((_, _, ResultArray::Dense(Array(array)))) if is_single => {
                save.value.borrow_mut(py).set_array(array);
                return Ok(());
            }
            Some((_, _, array)) if is_single => array.into_pyobject(py)?.into_any(),
            first => first.into_iter().chain(arrays).collect::<Vec<_>>().into_pyobject(py)?.into_any(),
        };
        save.value.borrow_mut(py).set_object(object.unbind());
        Ok(())
    }

    /// The captures of a recorded tap: one per row and, for a pattern, per site.
    pub fn captured(&self, tap: usize) -> Vec<CaptureTuple> {
        let index = self.plan.get().tap_indices.get(tap).map(|index| index + self.offset.taps);
        self.captures.iter().filter(|capture| Some(capture.tap) == index).map(to_tuple).collect()
    }

    /// All captures, in the order of the plan's taps.
    pub fn all(&self) -> Vec<CaptureTuple> {
        self.captures.iter().map(to_tuple).collect()
    }

    /// Sites that patterns skipped because their layer does not have the point.
    pub fn passed_over(&self) -> Vec<String> {
        self.passed_over.iter().map(|site| site.to_string()).collect()
    }
}

/// Converts a capture.
pub fn to_tuple(capture: &engine::Capture) -> CaptureTuple {
    let units = capture.units.clone().map(Array);
    (capture.site.to_string(), capture.row, capture.positions.clone(), ResultArray::of(capture), units)
}
