//! Looks up the weight that computes a site.

use super::Model;
use crate::array::Array;
use crate::error::{Error, Result};
use crate::program::{OpKind, WeightId};
use crate::site::Site;

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
        let weight = |id: WeightId| Array::new(self.program.weight(id).shape.clone(), self.weights.floats(id));
        match &self.program.ops()[self.program.edge(edge).producer].kind {
            OpKind::MatMul { linear, .. } | OpKind::Project { linear, .. } => {
                Ok((weight(linear.weight), linear.bias.map(weight)))
            }
            OpKind::Embed { table, .. } => Ok((weight(*table), None)),
            OpKind::Norm { gain: Some(gain), bias, .. } => Ok((weight(*gain), bias.map(weight))),
            _ => Err(none()),
        }
    }
}
