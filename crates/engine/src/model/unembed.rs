//! The model's own end on any stream: what the logit lens asks.

use super::Model;
use crate::array::Array;
use crate::error::{Error, Result};
use crate::plan::to_logits;
use crate::value::OpRunner;

impl Model {
    /// Logits of any vectors of the stream, `[n, width]` to `[n, vocab]`: final norm, unembedding, scale and soft cap, as this model has them.
    pub fn unembed(&self, stream: &[f32]) -> Result<Vec<f32>> {
        let width = self.program().architecture().width;
        if !stream.len().is_multiple_of(width) {
            return Err(Error::input(
                format!("{} numbers are not whole vectors of {width}", stream.len()),
                "give vectors of the stream's width",
            ));
        }
        let end = to_logits(self.program()).map_err(|problem| Error::input(problem, "there is nothing to unembed"))?;
        let stream = Array::new(vec![stream.len() / width, width], stream.to_vec());
        Ok(self.forward(&end, &stream)?.values().to_vec())
    }
}
