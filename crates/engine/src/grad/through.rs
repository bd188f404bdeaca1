//! Ops of the model on given vectors, forward and backward: what the expressions `through` and `unembed` compute.

use super::{Cotangents, GradientTape, walk};
use crate::array::Array;
use crate::backend::KeptValues;
use crate::error::{Error, Result};
use crate::exec::Executor;
use crate::interrupt::Watch;
use crate::job::{Job, Pass, Segment};
use crate::model::Model;
use crate::plan::{Compiled, Stretch, stretched};
use crate::program::{EdgeId, Program};
use crate::value::OpRunner;
use std::collections::HashSet;
use std::sync::Arc;

impl OpRunner for Model {
    fn forward(&self, ops: &Stretch, of: &Array) -> Result<Array> {
        let mut executor = Executor::new(self, Watch::new(None));
        let (shape, made) = execute(&mut executor, &mut job(self), ops, of, None)?;
        Ok(Array::new(shape, made))
    }

    fn backward(&self, ops: &Stretch, of: &Array, gradient: &Array) -> Result<Array> {
        let (program, shape) = (self.program(), of.shape().to_vec());
        let last = ops.ops.last().copied().filter(|_| !of.values().is_empty());
        let Some(last) = last else { return Ok(gradient.reshaped(shape)) };
        let mut tape = GradientTape::new(program, &|edge| edge == ops.from, HashSet::new(), last, false);
        let (mut executor, mut job) = (Executor::new(self, Watch::new(None)), job(self));
        execute(&mut executor, &mut job, ops, of, Some(&mut tape.kept))?;
        let mut ends = Ends { ops, gradient: gradient.values(), arrived: Vec::new() };
        walk(&mut executor, &mut job, &tape, &mut ends)?;
        Ok(Array::new(shape, ends.arrived))
    }
}

/// A job without a plan, whose row is given by vectors.
fn job(model: &Model) -> Job {
    Job::without_plan(Arc::new(Compiled::empty(model.program())))
}

/// Runs the ops on vectors `[…, width]`; returns the shape and values at the last site.
fn execute(
    executor: &mut Executor,
    job: &mut Job,
    ops: &Stretch,
    of: &Array,
    kept: Option<&mut KeptValues>,
) -> Result<(Vec<usize>, Vec<f32>)> {
    let program = executor.model().program();
    let shape = stretched(program, ops, of.shape())
        .map_err(|problem| Error::input(problem, "give vectors of the first site's shape"))?;
    let count = of.values().len() / program.edge(ops.from).width;
    if count == 0 || ops.ops.is_empty() {
        let values = if ops.ops.is_empty() { of.values().to_vec() } else { Vec::new() };
        return Ok((shape, values));
    }
    let mut kept = kept;
    let pass = Pass::of_all(count);
    let made = executor.run_listed(job, pass, (ops.from, of.values()), &ops.ops, ops.to, kept.as_deref_mut())?;
    if let Some(kept) = kept {
        kept.move_to_host(executor.model().backend().memory())?;
    }
    Ok((shape, made))
}

/// Adds the given gradient at the last site and takes the one that arrives at the first.
struct Ends<'a> {
    ops: &'a Stretch,
    gradient: &'a [f32],
    arrived: Vec<f32>,
}

impl Cotangents for Ends<'_> {
    fn touches(&self, edge: EdgeId) -> bool {
        edge == self.ops.from || edge == self.ops.to
    }

    fn touches_row(&self, edge: EdgeId, _: usize) -> bool {
        self.touches(edge)
    }

    fn meet(&mut self, _: &Program, _: &Pass, edge: EdgeId, gradient: &mut [f32]) -> Result<()> {
        if edge == self.ops.to {
            gradient.iter_mut().zip(self.gradient).for_each(|(sum, g)| *sum += g);
        } else {
            self.arrived = gradient.to_vec();
        }
        Ok(())
    }

    fn meet_attention(&mut self, _: &Program, _: &Segment, _: EdgeId, _: &mut [f32]) -> Result<()> {
        Ok(())
    }
}
