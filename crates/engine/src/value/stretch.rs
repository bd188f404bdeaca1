//! A stretch of the model's own ops, run on values that somebody brings.

use crate::array::Array;
use crate::error::{Error, Result};
use crate::exec::{Arena, Buffers, Collector, Frame, Model, Pass, RowState, Segment, Taps};
use crate::plan::{Compiled, Stretch, stretched};

/// What the ops make of `[…, width]` at the first site, as it is at the second. The vectors are the tokens of one row, from
/// position 0 on.
pub(crate) fn run(model: &Model, stretch: &Stretch, of: &Array) -> Result<Array> {
    let program = model.program();
    let shape = stretched(program, stretch, of.shape())
        .map_err(|problem| Error::input(problem, "give vectors of the first site's shape"))?;
    let count = of.values().len() / program.edge(stretch.from).width;
    if count == 0 || stretch.ops.is_empty() {
        let numbers = if stretch.ops.is_empty() { of.values().to_vec() } else { Vec::new() };
        return Ok(Array::new(shape, numbers));
    }
    let pass = Pass {
        segments: vec![Segment { row: 0, position: 0, count, token: 0 }],
        tokens: vec![0; count],
        positions: (0..count).collect(),
        read: (0..count).collect(),
    };
    let compiled = Compiled::empty(program);
    let (mut arena, mut buffers) = (Arena::default(), Buffers::new(program));
    let mut rows = vec![RowState { prompt: count, ..RowState::default() }];
    let mut collector = Collector::new(&compiled, false);
    let mut taps = Taps { model, compiled: &compiled, collector: &mut collector, again: false };
    let mut frame = Frame::new(program, model.weights(), model.pool(), &pass, &mut rows, &mut arena, &mut buffers);
    frame.prepare(program.architecture());
    frame.put(stretch.from, of.values().to_vec(), &mut taps)?;
    let backend = model.backend();
    for &index in &stretch.ops {
        backend.execute(index, &mut frame, &mut taps)?;
        frame.release(index, &mut taps, Some(stretch.to));
    }
    Ok(Array::new(shape, frame.take(stretch.to)))
}
