//! The arrays that taps have read in a call, and the values computed from them.

use super::{OpRunner, compute};
use crate::array::Array;
use crate::error::{Error, Result};
use crate::plan::{CompiledPlan, CompiledValues, EditInput, Expr, ValueId};
use crate::site::Site;
use std::collections::HashMap;

/// The plan values of a call. Each is computed on first use and cached until an array that it
/// depends on is read again.
#[derive(Default)]
pub(crate) struct ValueStore {
    /// For each read value and row: the array, and the step in which its tap read it.
    bound: HashMap<(ValueId, usize), (Array, usize)>,
    /// Cached values, by value and row (`None` if all rows share one array).
    computed: HashMap<(ValueId, Option<usize>), Array>,
    /// The current generation step; 0 is the prompt.
    step: usize,
    /// Rows that have ended.
    ended: Vec<usize>,
    /// Inputs of the edits that are not linear or select by expert, for the backward pass.
    edit_inputs: HashMap<EditedToken, EditInput>,
}

/// A token that a tap edits: tap of the plan, site, row, index in the selection, slot (0 unless the
/// tap selects by expert).
pub(crate) type EditedToken = (usize, Site, usize, usize, usize);

impl ValueStore {
    /// Stores the array that a tap has read from a row and invalidates the values that depend on
    /// it.
    pub fn bind(&mut self, values: &CompiledValues, read: ValueId, row: usize, array: Array) {
        if self.bound.insert((read, row), (array, self.step)).is_some() {
            self.computed.retain(|(value, _), _| values.reads[*value].binary_search(&read).is_err());
        }
    }

    /// Sets a value that is neither read by a tap nor computed from others (a weight gradient).
    pub fn insert(&mut self, value: ValueId, array: Array) {
        self.computed.insert((value, None), array);
    }

    /// Records the input of an edit for the backward pass.
    pub fn record_input(&mut self, token: EditedToken, input: EditInput) {
        self.edit_inputs.insert(token, input);
    }

    /// The recorded input of an edit.
    pub fn edit_input(&self, token: EditedToken) -> Option<&EditInput> {
        self.edit_inputs.get(&token)
    }

    /// Starts the next step, in which the rows `ended` take no part.
    pub fn next_step(&mut self, ended: &[usize]) {
        self.step += 1;
        self.ended.clear();
        self.ended.extend_from_slice(ended);
    }

    /// Whether a row takes part in the current step.
    pub fn is_alive(&self, row: usize) -> bool {
        !self.ended.contains(&row)
    }

    /// Returns a value for the row that uses it, computing it and its inputs if necessary.
    pub fn get(
        &mut self,
        ops: &dyn OpRunner,
        compiled: &CompiledPlan,
        value: ValueId,
        reader: Option<usize>,
    ) -> Result<Array> {
        let values = &compiled.values;
        let requested = (value, values.rows[value].for_reader(reader));
        let mut todo = vec![requested];
        while let Some(&(id, row)) = todo.last() {
            if self.computed.contains_key(&(id, row)) {
                todo.pop();
                continue;
            }
            let inputs: Vec<_> = values
                .inputs(id, row)
                .into_iter()
                .filter(|(_, row)| row.is_none_or(|row| self.is_alive(row)))
                .collect();
            let before = todo.len();
            todo.extend(inputs.iter().filter(|input| !self.computed.contains_key(input)));
            if todo.len() == before {
                let array = self.evaluate(ops, compiled, id, row, &inputs)?;
                self.computed.insert((id, row), array);
                todo.pop();
            }
        }
        Ok(self.computed[&requested].clone())
    }

    fn evaluate(
        &self,
        ops: &dyn OpRunner,
        compiled: &CompiledPlan,
        id: ValueId,
        row: Option<usize>,
        inputs: &[(ValueId, Option<usize>)],
    ) -> Result<Array> {
        let values = &compiled.values;
        let fail =
            |problem: String, remedy: &str| Error::Value { value: values.name(id), problem, remedy: remedy.into() };
        let inputs: Vec<Array> = inputs.iter().map(|input| self.computed[input].clone()).collect();
        match &values.list[id].expr {
            Expr::Read(tap) => {
                let row = row.unwrap_or_default();
                self.bound.get(&(id, row)).filter(|(_, step)| self.is_fresh(compiled, id, row, *step)).map(|(array, _)| array.clone()).ok_or_else(|| {
                    fail(
                        format!("row {row} has not computed the value that tap {tap} reads (it ended earlier, or reaches it later)"),
                        "read positions and steps that the row reaches before they are used",
                    )
                })
            }
            Expr::Constant(array) => Ok(array.clone()),
            Expr::WeightGrad { weight, .. } => Err(fail(
                format!("the gradient of `{weight}` is complete only after the backward pass"),
                "use it in saved values, not in edits of a gradient",
            )),
            Expr::Call { function, .. } => {
                (function.0)(&inputs).map_err(|problem| fail(problem, "correct the function that `call` was given"))
            }
            Expr::Through { .. } | Expr::Unembed(_) => {
                let stretch = values.op_ranges[id].as_ref().expect("every `through` has its ops since it was checked");
                ops.forward(stretch, &inputs[0])
                    .map_err(|problem| fail(problem.to_string(), "give vectors of the first site's shape"))
            }
            expr => compute(expr, &inputs)
                .map_err(|problem| fail(problem, "docs/plans.md describes the inputs of each operation")),
        }
    }

    /// Whether a stored array is up to date: if its tap selects the current step, it must have been
    /// read in this step.
    fn is_fresh(&self, compiled: &CompiledPlan, read: ValueId, row: usize, step: usize) -> bool {
        let entry = compiled.values.bound_by[read].map(|entry| &compiled.taps[entry]);
        let selects_this = entry
            .and_then(|entry| entry.rows[row].as_ref())
            .is_some_and(|chosen| self.step > 0 && chosen.index_of(compiled.prompts[row] + self.step - 1).is_some());
        step == self.step || !selects_this
    }

    /// Whether the current step has read an array that a value depends on; constants belong to step
    /// 0.
    pub fn is_new(&self, values: &CompiledValues, value: ValueId) -> bool {
        let reads = &values.reads[value];
        let now = |read: &ValueId| self.bound.iter().any(|((id, _), (_, step))| id == read && *step == self.step);
        reads.iter().any(now) || reads.is_empty() && self.step == 0
    }
}
