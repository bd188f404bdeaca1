//! Weights by what they make.

use super::Model;
use crate::array::Array;
use crate::error::{Error, Result};
use crate::program::{OpKind, WeightId};
use crate::site::Site;
use pellucid_kernels::Matrix;

impl Model {
    /// The weight of the op that makes a site, and its bias: a projection's matrix `[outputs, inputs]`, a table, or a norm's gain.
    pub fn weight_of(&self, site: Site) -> Result<(Array, Option<Array>)> {
        let none = || {
            Error::site(
                format!("no weight makes `{site}`"),
                "ask for a site that a projection, a table or a norm makes",
            )
        };
        let edge = self.program.edge_of(site).ok_or_else(none)?;
        let whole = |matrix: &Matrix| {
            let mut values = vec![0.0; matrix.rows() * matrix.cols()];
            values.chunks_exact_mut(matrix.cols()).enumerate().for_each(|(row, line)| matrix.row(row, line));
            Array::new(vec![matrix.rows(), matrix.cols()], values)
        };
        let vector = |id: WeightId| Array::new(vec![self.weights.vector(id).len()], self.weights.vector(id).to_vec());
        match &self.program.ops()[self.program.edge(edge).made_by].kind {
            OpKind::MatMul { linear, .. } | OpKind::Project { linear, .. } => {
                Ok((whole(self.weights.matrix(linear.weight)), linear.bias.map(vector)))
            }
            OpKind::Lookup { table, .. } => Ok((whole(self.weights.matrix(*table)), None)),
            OpKind::Norm { gain: Some(gain), bias, .. } => Ok((vector(*gain), bias.map(vector))),
            _ => Err(none()),
        }
    }
}
