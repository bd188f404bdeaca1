//! Networks that read vectors instead of tokens.

use super::{Run, RunOptions};
use crate::array::Array;
use crate::error::Result;
use crate::model::Model;
use crate::plan::{Action, Expr, Operand, Plan, Tap};

impl Model {
    /// Runs rows of vectors through a network with the given input: one array `[tokens, width]` per
    /// row.
    pub fn run_vectors(&self, input: &str, rows: &[Array], plan: &Plan, options: &RunOptions) -> Result<Run> {
        let mut given = Plan::default();
        for (row, array) in rows.iter().enumerate() {
            let value = given.value(Expr::Constant(array.clone()));
            given.taps.push(Tap::new(input, Action::Set(Operand::Value(value))).rows([row]));
        }
        let (taps, values) = (given.taps.len(), given.values.len());
        let tokens: Vec<Vec<u32>> =
            rows.iter().map(|array| vec![0; array.shape().first().copied().unwrap_or(0)]).collect();
        let mut run = self.run(&tokens, &given.then(plan.clone()), options)?;
        run.captures.iter_mut().for_each(|capture| capture.tap -= taps);
        run.saved.iter_mut().for_each(|saved| saved.value = saved.value.without(values));
        Ok(run)
    }
}
