//! Looks up the weight that computes a site.

use super::Model;
use crate::array::Array;
use crate::error::{Error, Result};
use crate::program::{OpKind, WeightId};
use crate::site::Site;
use pellucid_kernels::Matrix;

impl Model {
    /// The weight and bias of the op that computes a site: a projection's matrix `[outputs,
    /// inputs]`, an embedding table `[rows, width]`, or a norm's gain.
    pub fn weight_of(&self, site: Site) -> Result<(Array, Option<Array>)> {
        let none = || {
            Error::site(
                format!("no weight computes `{site}`"),
                "use a site that a projection, an embedding or a norm computes",
            )
        };
        let edge = self.program.edge_of(site).ok_or_else(none)?;
        let whole = |matrix: &Matrix| {
            let mut values = vec![0.0; matrix.rows() * matrix.cols()];
            values.chunks_exact_mut(matrix.cols()).enumerate().for_each(|(row, line)| matrix.row(row, line));
            Array::new(vec![matrix.rows(), matrix.cols()], values)
        };
        let vector = |id: WeightId| Array::new(vec![self.weights.vector(id).len()], self.weights.vector(id).to_vec());
        match &self.program.ops()[self.program.edge(edge).producer].kind {
            OpKind::MatMul { linear, .. } | OpKind::Project { linear, .. } => {
                Ok((whole(self.weights.matrix(linear.weight)), linear.bias.map(vector)))
            }
            OpKind::Embed { table, .. } => Ok((whole(self.weights.matrix(*table)), None)),
            OpKind::Norm { gain: Some(gain), bias, .. } => Ok((vector(*gain), bias.map(vector))),
            _ => Err(none()),
        }
    }
}
