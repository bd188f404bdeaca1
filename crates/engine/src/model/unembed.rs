//! Unembeds residual stream vectors, for the logit lens.

use super::Model;
use crate::array::Array;
use crate::error::{Error, Result};
use crate::plan::to_logits;
use crate::value::OpRunner;

impl Model {
    /// Applies the model's final norm, unembedding, logit scale and soft cap to residual stream
    /// vectors: `[n, width]` → `[n, vocab]`.
    pub fn unembed(&self, stream: &[f32]) -> Result<Vec<f32>> {
        let width = self.program().architecture().width;
        if !stream.len().is_multiple_of(width) {
            return Err(Error::input(
                format!("{} values are not a multiple of the residual stream's width {width}", stream.len()),
                "give whole residual stream vectors",
            ));
        }
        let end = to_logits(self.program()).map_err(|problem| Error::input(problem, "there is nothing to unembed"))?;
        let stream = Array::new(vec![stream.len() / width, width], stream.to_vec());
        Ok(self.forward(&end, &stream)?.values().to_vec())
    }
}
