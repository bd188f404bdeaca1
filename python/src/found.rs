//! What came back from a run, as Python objects that share the engine's memory.

use crate::array::Array;
use crate::record::{Kept, Plan, Save};
use crate::run::Before;
use pellucid_engine as engine;
use pellucid_engine::plan::ValueId;
use pyo3::prelude::*;
use std::collections::HashMap;

/// Captures and saved values, with what the record calls them.
pub struct Found {
    pub captures: Vec<engine::Capture>,
    pub saved: Vec<engine::Saved>,
    pub passed_over: Vec<engine::Site>,
    /// The block's own plan.
    pub plan: Py<Plan>,
    /// What came before it in the plan that ran.
    pub before: Before,
    /// The call had one row, so that its number need not be said.
    pub one_row: bool,
    /// The call had steps.
    pub steps: bool,
}

/// A captured value: its site, row, positions, numbers and (for a top-k reduction) their units.
pub type Captured = (String, usize, Vec<usize>, Array, Option<Array>);

impl Found {
    /// What a run gave back.
    pub fn of_run(run: engine::Run, plan: Py<Plan>, before: Before, one_row: bool) -> Found {
        let engine::Run { captures, saved, passed_over, .. } = run;
        Found { captures, saved, passed_over, plan, before, one_row, steps: false }
    }

    /// Gives each value that the block saved its result: an array where there is one, else a list of `(row, step, array)`.
    pub fn hand_out(&self, py: Python<'_>) -> PyResult<()> {
        // Captures come in the order of their taps; saved values come step by step.
        debug_assert!(self.captures.is_sorted_by_key(|capture| capture.tap));
        let mut values: HashMap<ValueId, Vec<&engine::Saved>> = HashMap::new();
        self.saved.iter().for_each(|saved| values.entry(saved.value).or_default().push(saved));
        for save in &self.plan.get().saves {
            match self.before.moved(save.kept) {
                Kept::Capture(tap) => {
                    let first = self.captures.partition_point(|capture| capture.tap < tap);
                    let found = self.captures[first..].iter().take_while(|capture| capture.tap == tap);
                    self.give(py, save, found.map(|capture| (Some(capture.row), None, &capture.array)))?;
                }
                Kept::Value(id) => {
                    let found = values.get(&id).map(Vec::as_slice).unwrap_or_default().iter();
                    let step = |saved: &engine::Saved| self.steps.then_some(saved.step);
                    self.give(py, save, found.map(|saved| (saved.row, step(saved), &saved.array)))?;
                }
            }
        }
        Ok(())
    }

    fn give<'a>(
        &self,
        py: Python<'_>,
        save: &Save,
        mut found: impl Iterator<Item = (Option<usize>, Option<usize>, &'a engine::Array)>,
    ) -> PyResult<()> {
        let first = found.next();
        if let Some((row, None, array)) = first
            && (row.is_none() || self.one_row)
        {
            save.value.borrow_mut(py).give(array.clone());
            return Ok(());
        }
        let all = first.into_iter().chain(found).map(|(row, step, array)| (row, step, Array(array.clone())));
        let all = all.collect::<Vec<_>>().into_pyobject(py)?;
        save.value.borrow_mut(py).give_object(all.unbind());
        Ok(())
    }

    /// What a recorded tap captured, row by row; of a pattern, site by site.
    pub fn captured(&self, tap: usize) -> Vec<Captured> {
        let place = self.plan.get().places.get(tap).map(|place| place + self.before.taps);
        self.captures.iter().filter(|capture| Some(capture.tap) == place).map(described).collect()
    }

    /// Everything that was captured, in the plan's order.
    pub fn all(&self) -> Vec<Captured> {
        self.captures.iter().map(described).collect()
    }

    /// Sites that patterns passed over.
    pub fn passed_over(&self) -> Vec<String> {
        self.passed_over.iter().map(|site| site.to_string()).collect()
    }
}

fn described(capture: &engine::Capture) -> Captured {
    let units = capture.units.clone().map(Array);
    (capture.site.to_string(), capture.row, capture.positions.clone(), Array(capture.array.clone()), units)
}
