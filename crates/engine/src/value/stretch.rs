//! A stretch of the model's own ops, run on values that somebody brings.

use crate::array::Array;
use crate::error::{Error, Result};
use crate::exec::{Arena, Buffers, Collector, Frame, Model, Pass, RowState, Segment, Taps};
use crate::grad::{Cotangents, Tape, walk};
use crate::interrupt::Watch;
use crate::plan::{Compiled, Stretch, stretched};
use crate::program::{EdgeId, Program};
use std::collections::HashSet;
use std::ops::Range;

/// What the ops make of `[…, width]` at the first site, as it is at the second. The vectors are the tokens of one row, from
/// position 0 on.
pub(crate) fn run(model: &Model, stretch: &Stretch, of: &Array) -> Result<Array> {
    let (shape, made) = execute(model, stretch, of, None)?;
    Ok(Array::new(shape, made))
}

/// What a gradient at the second site means at the first.
pub(super) fn back(model: &Model, stretch: &Stretch, of: &Array, gradient: &Array) -> Result<Array> {
    let (program, shape) = (model.program(), of.shape().to_vec());
    let last = stretch.ops.last().copied().filter(|_| !of.values().is_empty());
    let Some(last) = last else { return Ok(gradient.reshaped(shape)) };
    let mut tape = Tape::new(program, &|edge| edge == stretch.from, HashSet::new(), last, false);
    execute(model, stretch, of, Some(&mut tape))?;
    let mut ends = Ends { stretch, gradient: gradient.values(), arrived: Vec::new() };
    let compiled = Compiled::empty(program);
    let mut never = |_: Range<usize>, _: &mut Arena, _: &mut Tape, _: &Tape| Ok(());
    walk(model, &compiled, &tape, Arena::default(), &Watch::new(None), &mut never, &mut ends)?;
    Ok(Array::new(shape, ends.arrived))
}

fn execute(
    model: &Model,
    stretch: &Stretch,
    of: &Array,
    mut tape: Option<&mut Tape>,
) -> Result<(Vec<usize>, Vec<f32>)> {
    let program = model.program();
    let shape = stretched(program, stretch, of.shape())
        .map_err(|problem| Error::input(problem, "give vectors of the first site's shape"))?;
    let count = of.values().len() / program.edge(stretch.from).width;
    if count == 0 || stretch.ops.is_empty() {
        let numbers = if stretch.ops.is_empty() { of.values().to_vec() } else { Vec::new() };
        return Ok((shape, numbers));
    }
    let pass = Pass {
        segments: vec![Segment { row: 0, position: 0, count, token: 0 }],
        tokens: vec![0; count],
        positions: (0..count).collect(),
        late: (0..count).collect(),
        read: (0..count).collect(),
    };
    let compiled = Compiled::empty(program);
    let (mut arena, mut buffers) = (Arena::default(), Buffers::new(program));
    let mut rows = vec![RowState::new(count, model.kv())];
    let mut collector = Collector::new(&compiled, false);
    let mut taps = Taps { model, compiled: &compiled, collector: &mut collector, again: false, first_tap: 0 };
    let mut frame = Frame::new(program, model.weights(), model.pool(), &pass, &mut rows, &mut arena, &mut buffers);
    frame.prepare(program.architecture());
    if let Some(tape) = &mut tape {
        tape.begin(&pass, frame.rotations());
    }
    let mut frame = frame.with_tape(tape);
    frame.put(stretch.from, of.values().to_vec(), &mut taps)?;
    let backend = model.backend();
    for &index in &stretch.ops {
        backend.execute(index, &mut frame, &mut taps)?;
        frame.release(index, &mut taps, Some(stretch.to));
    }
    let made = frame.take(stretch.to);
    frame.release_all(&mut taps);
    Ok((shape, made))
}

/// Brings the gradient in at the one end and takes it down at the other.
struct Ends<'a> {
    stretch: &'a Stretch,
    gradient: &'a [f32],
    arrived: Vec<f32>,
}

impl Cotangents for Ends<'_> {
    fn touches(&self, edge: EdgeId) -> bool {
        edge == self.stretch.from || edge == self.stretch.to
    }

    fn touches_row(&self, edge: EdgeId, _: usize) -> bool {
        self.touches(edge)
    }

    fn meet(&mut self, _: &Program, _: &Pass, edge: EdgeId, gradient: &mut [f32]) -> Result<()> {
        if edge == self.stretch.to {
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
