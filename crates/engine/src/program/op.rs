//! The ops: everything a model does, one variant for each kind of mathematics.

use super::EdgeId;
use crate::architecture::{Activation, Norm, Routing};
use crate::weights::WeightId;
use pellucid_kernels::attention::AttentionShape;

/// An op and where it stands.
#[derive(Clone, Debug, PartialEq)]
pub struct Op {
    /// What it does.
    pub kind: OpKind,
    /// The layer that it belongs to.
    pub layer: Option<usize>,
}

/// The weights of one expert.
#[derive(Clone, Debug, PartialEq)]
pub struct Expert {
    /// Gate projection.
    pub gate: WeightId,
    /// Up projection.
    pub up: WeightId,
    /// Down projection.
    pub down: WeightId,
}

/// What an op reads, what it does, and what it makes. Fields named `out` are its results; the edges besides are made
/// only when a plan touches them.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)] // the variants are documented, their fields are edges and weights named for their role
pub enum OpKind {
    /// Looks up the tokens' rows.
    Embed { table: WeightId, out: EdgeId },
    /// Looks up the positions' rows.
    Positions { table: WeightId, offset: usize, out: EdgeId },
    /// `out = x Wᵀ + b`
    MatMul { x: EdgeId, weight: WeightId, bias: Option<WeightId>, out: EdgeId },
    /// The output projection of attention: a product whose share of each head can be told apart.
    Project { z: EdgeId, weight: WeightId, bias: Option<WeightId>, heads: usize, head_out: EdgeId, out: EdgeId },
    /// Normalises each group of `group` values, then applies gain and bias.
    Norm {
        x: EdgeId,
        norm: Norm,
        gain: Option<WeightId>,
        bias: Option<WeightId>,
        group: usize,
        scale: EdgeId,
        normed: EdgeId,
        out: EdgeId,
    },
    /// `out = a + b`
    Add { a: EdgeId, b: EdgeId, out: EdgeId },
    /// `out = x · by`
    Scale { x: EdgeId, by: f32, out: EdgeId },
    /// `out = cap · tanh(x / cap)`
    SoftCap { x: EdgeId, cap: f32, out: EdgeId },
    /// Turns each head by its token's position.
    Rotate { x: EdgeId, rope: usize, heads: usize, out: EdgeId },
    /// Appends keys and values to the row's cache and attends.
    Attention {
        q: EdgeId,
        k: EdgeId,
        v: EdgeId,
        shape: AttentionShape,
        slopes: Option<Vec<f32>>,
        scores: EdgeId,
        probs: EdgeId,
        out: EdgeId,
    },
    /// `out = activation(x)`
    Activate { x: EdgeId, activation: Activation, out: EdgeId },
    /// `out = activation(gate) · linear`
    Gate { gate: EdgeId, linear: EdgeId, activation: Activation, out: EdgeId },
    /// Chooses experts from the router's scores.
    Route { logits: EdgeId, chosen: usize, routing: Routing, weights: EdgeId, indices: EdgeId },
    /// Runs each token through its chosen experts and adds up their weighted outputs.
    Experts { x: EdgeId, weights: EdgeId, indices: EdgeId, experts: Vec<Expert>, activation: Activation, out: EdgeId },
    /// Keeps only the tokens whose logits somebody reads.
    Select { x: EdgeId, out: EdgeId },
}

impl OpKind {
    /// The edges that it reads.
    pub fn inputs(&self) -> Vec<EdgeId> {
        use OpKind::*;
        match *self {
            Embed { .. } | Positions { .. } => vec![],
            MatMul { x, .. }
            | Norm { x, .. }
            | Scale { x, .. }
            | SoftCap { x, .. }
            | Rotate { x, .. }
            | Activate { x, .. }
            | Select { x, .. } => vec![x],
            Project { z, .. } => vec![z],
            Add { a, b, .. } => vec![a, b],
            Attention { q, k, v, .. } => vec![q, k, v],
            Gate { gate, linear, .. } => vec![gate, linear],
            Route { logits, .. } => vec![logits],
            Experts { x, weights, indices, .. } => vec![x, weights, indices],
        }
    }

    /// The edges that it always makes.
    pub fn outputs(&self) -> Vec<EdgeId> {
        use OpKind::*;
        match *self {
            Embed { out, .. }
            | Positions { out, .. }
            | MatMul { out, .. }
            | Project { out, .. }
            | Norm { out, .. }
            | Add { out, .. }
            | Scale { out, .. }
            | SoftCap { out, .. }
            | Rotate { out, .. }
            | Attention { out, .. }
            | Activate { out, .. }
            | Gate { out, .. }
            | Experts { out, .. }
            | Select { out, .. } => vec![out],
            Route { weights, indices, .. } => vec![weights, indices],
        }
    }

    /// A short name for listings and profiles.
    pub fn name(&self) -> &'static str {
        use OpKind::*;
        match self {
            Embed { .. } => "embed",
            Positions { .. } => "positions",
            MatMul { .. } => "matmul",
            Project { .. } => "project",
            Norm { .. } => "norm",
            Add { .. } => "add",
            Scale { .. } => "scale",
            SoftCap { .. } => "soft_cap",
            Rotate { .. } => "rotate",
            Attention { .. } => "attention",
            Activate { .. } => "activate",
            Gate { .. } => "gate",
            Route { .. } => "route",
            Experts { .. } => "experts",
            Select { .. } => "select",
        }
    }
}
