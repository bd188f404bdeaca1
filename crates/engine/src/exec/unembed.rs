//! The model's own end on any stream: what the logit lens asks.

use super::{Arena, Buffers, Collector, Frame, Model, Pass, Taps};
use crate::error::{Error, Result};
use crate::plan::Compiled;
use crate::point::Point;
use crate::site::Site;

impl Model {
    /// Logits of any vectors of the stream, `[n, width]` to `[n, vocab]`: final norm, unembedding, scale and soft cap, as this model has them.
    pub fn unembed(&self, stream: &[f32]) -> Result<Vec<f32>> {
        let (program, width) = (self.program(), self.program().architecture().width);
        if !stream.len().is_multiple_of(width) {
            return Err(Error::input(
                format!("{} numbers are not whole vectors of {width}", stream.len()),
                "give vectors of the stream's width",
            ));
        }
        let count = stream.len() / width;
        let depth = program.architecture().layers.len();
        let last = depth.checked_sub(1).map(|layer| Site::layer(layer, Point::ResidPost));
        let (first_op, edge) = match last.and_then(|site| program.edge_of(site)) {
            Some(edge) => (program.layer_ops(depth - 1).end, edge),
            None => return Err(Error::input("this model has no layers", "there is no stream to unembed")),
        };
        let pass = Pass {
            segments: Vec::new(),
            tokens: vec![0; count],
            positions: vec![0; count],
            read: (0..count).collect(),
        };
        let compiled = Compiled::empty(program);
        let (mut arena, mut buffers, mut rows) = (Arena::default(), Buffers::new(program), Vec::new());
        let mut collector = Collector::new(&compiled, false);
        let mut taps = Taps { compiled: &compiled, collector: &mut collector, again: false };
        let mut frame = Frame::new(program, &self.weights, &self.pool, &pass, &mut rows, &mut arena, &mut buffers);
        frame.put(edge, stream.to_vec(), &mut taps)?;
        let keep = self.logits_edge();
        for index in first_op..program.ops().len() {
            self.backend.execute(index, &mut frame, &mut taps)?;
            frame.release(index, &mut taps, Some(keep));
        }
        Ok(frame.take(keep))
    }
}
