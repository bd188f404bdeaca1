//! Runs ops of the model on given vectors, forward and backward, for the expressions `through` and
//! `unembed`.

use super::{Cotangents, GradientTape, run_backward};
use crate::array::Array;
use crate::backend::RetainedValues;
use crate::error::{Error, Result};
use crate::exec::Executor;
use crate::interrupt::InterruptPoller;
use crate::job::{Job, Pass, Segment};
use crate::model::Model;
use crate::plan::{OpRange, op_range_shape};
use crate::program::{EdgeId, Program};
use crate::value::OpRunner;
use pellucid_kernels::Pool;
use std::collections::HashSet;

impl OpRunner for Model {
    fn pool(&self) -> &Pool {
        Model::pool(self)
    }

    fn forward(&self, ops: &OpRange, of: &Array) -> Result<Array> {
        let mut executor = Executor::new(self, InterruptPoller::new(None));
        let (shape, result) = execute(&mut executor, &mut job(self, ops)?, ops, of, None)?;
        Ok(Array::new(shape, result))
    }

    fn backward(&self, ops: &OpRange, of: &Array, gradient: &Array) -> Result<Array> {
        let (program, shape) = (self.program(), of.shape().to_vec());
        let last = ops.ops.last().copied().filter(|_| !of.values().is_empty());
        let Some(last) = last else { return Ok(gradient.reshaped(shape)) };
        let mut tape = GradientTape::new(program, &|edge| edge == ops.from, HashSet::new(), last, false);
        let (mut executor, mut job) = (Executor::new(self, InterruptPoller::new(None)), job(self, ops)?);
        execute(&mut executor, &mut job, ops, of, Some(&mut tape.retained))?;
        let mut span_gradients = SpanGradients { ops, gradient: gradient.values(), input_gradient: Vec::new() };
        run_backward(&mut executor, &mut job, &tape, &mut span_gradients)?;
        Ok(Array::new(shape, span_gradients.input_gradient))
    }
}

/// A job without a plan, in which the last edge is computed even if only taps need it.
fn job(model: &Model, ops: &OpRange) -> Result<Job> {
    Job::observing(model.program(), ops.to)
}

/// Runs the ops on vectors `[…, width]`; returns the shape and values at the last site.
fn execute(
    executor: &mut Executor,
    job: &mut Job,
    ops: &OpRange,
    of: &Array,
    retained: Option<&mut RetainedValues>,
) -> Result<(Vec<usize>, Vec<f32>)> {
    let program = executor.model().program();
    let shape = op_range_shape(program, ops, of.shape())
        .map_err(|problem| Error::input(problem, "give vectors of the first site's shape"))?;
    let count = of.values().len() / program.edge(ops.from).width;
    if count == 0 || ops.ops.is_empty() {
        let values = if ops.ops.is_empty() { of.values().to_vec() } else { Vec::new() };
        return Ok((shape, values));
    }
    let mut retained = retained;
    let pass = Pass::of_all(count, executor.model().default_adapter());
    let result = executor.run_listed(job, pass, (ops.from, of.values()), &ops.ops, ops.to, retained.as_deref_mut())?;
    if let Some(retained) = retained {
        retained.move_to_host(executor.model().backend().memory())?;
    }
    Ok((shape, result))
}

/// Seeds the gradient at the last site and captures it at the first.
struct SpanGradients<'a> {
    ops: &'a OpRange,
    gradient: &'a [f32],
    input_gradient: Vec<f32>,
}

impl Cotangents for SpanGradients<'_> {
    fn wants(&self, edge: EdgeId) -> bool {
        edge == self.ops.from || edge == self.ops.to
    }

    fn wants_row(&self, edge: EdgeId, _: usize) -> bool {
        self.wants(edge)
    }

    fn visit(&mut self, _: &Program, _: &Pass, edge: EdgeId, gradient: &mut [f32]) -> Result<()> {
        if edge == self.ops.to {
            gradient.iter_mut().zip(self.gradient).for_each(|(sum, g)| *sum += g);
        } else {
            self.input_gradient = gradient.to_vec();
        }
        Ok(())
    }

    fn visit_attention(&mut self, _: &Program, _: &Segment, _: EdgeId, _: &mut [f32]) -> Result<()> {
        Ok(())
    }
}
