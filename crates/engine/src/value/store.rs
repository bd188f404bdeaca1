//! What taps have read in this call, and what follows from it.

use super::{OpRunner, compute};
use crate::array::Array;
use crate::error::{Error, Result};
use crate::plan::{Compiled, Expr, ValueId, Values};
use std::collections::HashMap;

/// Values of a call under way. Each is computed once, when somebody first needs it, and again when a read under it is bound anew.
#[derive(Default)]
pub(crate) struct Store {
    /// By read and row: the array, and the step that bound it.
    bound: HashMap<(ValueId, usize), (Array, usize)>,
    /// By value and row (none for values of all rows).
    known: HashMap<(ValueId, Option<usize>), Array>,
    /// The step under way; 0 is the prompts'.
    step: usize,
    /// Rows that have ended.
    ended: Vec<usize>,
}

impl Store {
    /// Binds what a tap has read of a row.
    pub fn bind(&mut self, values: &Values, read: ValueId, row: usize, array: Array) {
        if self.bound.insert((read, row), (array, self.step)).is_some() {
            self.known.retain(|(value, _), _| values.reads[*value].binary_search(&read).is_err());
        }
    }

    /// Gives a value that is neither read nor computed from others.
    pub fn know(&mut self, value: ValueId, array: Array) {
        self.known.insert((value, None), array);
    }

    /// Another step begins; these rows have ended before it.
    pub fn next_step(&mut self, ended: &[usize]) {
        self.step += 1;
        self.ended.clear();
        self.ended.extend_from_slice(ended);
    }

    /// Whether a row takes part in the step under way.
    pub fn is_alive(&self, row: usize) -> bool {
        !self.ended.contains(&row)
    }

    /// The value for a reader.
    pub fn get(
        &mut self,
        ops: &dyn OpRunner,
        compiled: &Compiled,
        value: ValueId,
        reader: Option<usize>,
    ) -> Result<Array> {
        let values = &compiled.values;
        let asked = (value, values.rows[value].for_reader(reader));
        let mut todo = vec![asked];
        while let Some(&(id, row)) = todo.last() {
            if self.known.contains_key(&(id, row)) {
                todo.pop();
                continue;
            }
            let inputs: Vec<_> = values
                .inputs(id, row)
                .into_iter()
                .filter(|(_, row)| row.is_none_or(|row| self.is_alive(row)))
                .collect();
            let before = todo.len();
            todo.extend(inputs.iter().filter(|input| !self.known.contains_key(input)));
            if todo.len() == before {
                let array = self.evaluate(ops, compiled, id, row, &inputs)?;
                self.known.insert((id, row), array);
                todo.pop();
            }
        }
        Ok(self.known[&asked].clone())
    }

    fn evaluate(
        &self,
        ops: &dyn OpRunner,
        compiled: &Compiled,
        id: ValueId,
        row: Option<usize>,
        inputs: &[(ValueId, Option<usize>)],
    ) -> Result<Array> {
        let values = &compiled.values;
        let fail =
            |problem: String, remedy: &str| Error::Value { value: values.name(id), problem, remedy: remedy.into() };
        let inputs: Vec<Array> = inputs.iter().map(|input| self.known[input].clone()).collect();
        match &values.list[id].expr {
            Expr::Read(tap) => {
                let row = row.unwrap_or_default();
                self.bound.get(&(id, row)).filter(|(_, step)| self.is_fresh(compiled, id, row, *step)).map(|(array, _)| array.clone()).ok_or_else(|| {
                    fail(
                        format!("row {row} has not computed what tap {tap} reads (it ended earlier, or comes to it later)"),
                        "read positions and steps that the row reaches before they are used",
                    )
                })
            }
            Expr::Constant(array) => Ok(array.clone()),
            Expr::WeightGrad { weight, .. } => Err(fail(
                format!("the gradient of `{weight}` is whole only when the way back has ended"),
                "use it in values that are saved, not in what changes a gradient on its way",
            )),
            Expr::Call { function, .. } => {
                (function.0)(&inputs).map_err(|problem| fail(problem, "correct the function that `call` was given"))
            }
            Expr::Through { .. } | Expr::Unembed(_) => {
                let stretch = values.stretches[id].as_ref().expect("every `through` has its ops since it was checked");
                ops.forward(stretch, &inputs[0])
                    .map_err(|problem| fail(problem.to_string(), "give vectors of the first site's shape"))
            }
            expr => {
                compute(expr, &inputs).map_err(|problem| fail(problem, "docs/plans.md says what each operation takes"))
            }
        }
    }

    /// Whether a read is still what its tap means: a tap that selects this step must have read in this step.
    fn is_fresh(&self, compiled: &Compiled, read: ValueId, row: usize, step: usize) -> bool {
        let entry = compiled.values.bound_by[read].map(|entry| &compiled.entries[entry]);
        let selects_this = entry
            .and_then(|entry| entry.rows[row].as_ref())
            .is_some_and(|chosen| self.step > 0 && chosen.place(compiled.prompts[row] + self.step - 1).is_some());
        step == self.step || !selects_this
    }

    /// Whether anything that a value depends on was read in the step under way; constants belong to step 0.
    pub fn is_new(&self, values: &Values, value: ValueId) -> bool {
        let reads = &values.reads[value];
        let now = |read: &ValueId| self.bound.iter().any(|((id, _), (_, step))| id == read && *step == self.step);
        reads.iter().any(now) || reads.is_empty() && self.step == 0
    }
}
