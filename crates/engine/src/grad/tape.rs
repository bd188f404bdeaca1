//! The values that a forward pass retains for the backward pass.

use crate::backend::RetainedValues;
use crate::error::{Error, Result};
use crate::ids::IdVec;
use crate::program::{EdgeId, OpKind, Program};
use crate::remedy::Remedy;
use crate::site::Site;
use crate::weights::WeightId;
use std::collections::HashSet;
use std::ops::Range;

/// Plan and data of a backward pass: its ops, the edges that require gradients, and the retained
/// values.
pub(crate) struct GradientTape {
    /// The ops of the backward pass.
    ops: Range<usize>,
    /// For each edge whether its gradient is needed, for itself or for another gradient.
    requires_grad: IdVec<EdgeId, bool>,
    /// The weights whose gradients are wanted.
    weights: HashSet<WeightId>,
    /// Gradient checkpointing: retain only the inputs of each layer and recompute the layer in the
    /// backward pass.
    recompute: bool,
    /// The values that derivatives read, after taps.
    pub retained: RetainedValues,
}

impl GradientTape {
    /// Creates an empty tape for the gradients of the `wanted` edges and of `weights`, seeded at
    /// outputs of ops up to `last_op`.
    pub fn new(
        program: &Program,
        wanted: &dyn Fn(EdgeId) -> bool,
        weights: HashSet<WeightId>,
        last_op: usize,
        recompute: bool,
    ) -> GradientTape {
        let ops = program.ops();
        let edges = program.edge_ids().filter(|&edge| wanted(edge)).map(|edge| program.edge(edge).producer);
        let readers = (0..ops.len()).filter(|&index| reads_any(&ops[index].kind, &weights));
        let first = edges.chain(readers).min().unwrap_or(last_op + 1).min(last_op + 1);
        let range = first..last_op + 1;
        let mut requires_grad: IdVec<EdgeId, bool> = program.edge_ids().map(wanted).collect();
        let mut retains = program.list_by_edge(false);
        for index in range.clone() {
            let kind = &ops[index].kind;
            let input_requires_grad = kind.inputs().iter().chain(&kind.inner()).any(|&edge| requires_grad[edge]);
            if input_requires_grad || reads_any(kind, &weights) {
                requires_grad[kind.output()] = true;
                if !recompute || ops[index].layer.is_none() {
                    needed_edges(kind, &weights).into_iter().for_each(|edge| retains[edge] = true);
                }
            }
        }
        if recompute {
            // A layer is recomputed from its inputs.
            for layer in 0..program.architecture().layers.len() {
                let again = layer_ops(program, layer, &range);
                external_inputs(program, &again).into_iter().for_each(|edge| retains[edge] = true);
            }
        }
        GradientTape { ops: range, requires_grad, weights, recompute, retained: RetainedValues::new(program, retains) }
    }

    /// The ops of a layer that the backward pass recomputes, with gradient checkpointing.
    pub fn recomputed_ops(&self, program: &Program, layer: usize) -> Option<Range<usize>> {
        self.recompute.then(|| layer_ops(program, layer, &self.ops))
    }

    /// An empty set for the values that the backward pass of recomputed ops reads.
    pub fn retained_for(&self, program: &Program, ops: Range<usize>) -> RetainedValues {
        let mut retains = program.list_by_edge(false);
        for index in ops {
            needed_edges(&program.ops()[index].kind, &self.weights).into_iter().for_each(|edge| retains[edge] = true);
        }
        RetainedValues::new(program, retains)
    }

    /// Whether the gradient of one of an op's weights is wanted.
    pub fn reads_wanted_weight(&self, kind: &OpKind) -> bool {
        reads_any(kind, &self.weights)
    }

    /// The ops of the backward pass.
    pub fn ops(&self) -> Range<usize> {
        self.ops.clone()
    }

    /// Whether the gradient of an edge is needed, for itself or for another gradient.
    pub fn requires_grad(&self, edge: EdgeId) -> bool {
        self.requires_grad[edge]
    }
}

/// The ops of a layer that must be recomputed for a backward pass over `ops`: from the layer's
/// first to the last one needed.
fn layer_ops(program: &Program, layer: usize, ops: &Range<usize>) -> Range<usize> {
    let own = program.layer_ops(layer);
    if own.end <= ops.start || own.start >= ops.end { 0..0 } else { own.start..own.end.min(ops.end) }
}

/// The edges that `ops` read and earlier ops compute.
pub(super) fn external_inputs(program: &Program, ops: &Range<usize>) -> Vec<EdgeId> {
    let mut edges: Vec<EdgeId> = ops.clone().flat_map(|index| program.ops()[index].kind.inputs()).collect();
    edges.sort_unstable();
    edges.dedup();
    edges.retain(|&edge| program.edge(edge).producer < ops.start);
    edges
}

/// Whether an op reads one of these weights.
fn reads_any(kind: &OpKind, weights: &HashSet<WeightId>) -> bool {
    !weights.is_empty() && kind.weights().iter().any(|weight| weights.contains(weight))
}

/// The edges whose values an op's backward pass needs, for its inputs and for those of `weights`
/// that it reads.
fn needed_edges(kind: &OpKind, weights: &HashSet<WeightId>) -> Vec<EdgeId> {
    if reads_any(kind, weights) { kind.needed_for_weights() } else { kind.needed_for_inputs() }
}

/// Resolves a site; an error if the model lacks it or it has no gradient.
pub(crate) fn check_site(program: &Program, site: Site) -> Result<EdgeId> {
    let edge = program
        .edge_of(site)
        .ok_or_else(|| Error::site(format!("this model has no site `{site}`"), Remedy::ListSites))?;
    let spec = program.edge(edge);
    if spec.integer {
        return Err(Error::site(
            format!("there is no gradient at `{site}`: the choice of experts is not differentiable"),
            "ask for the gradient of the weights of the chosen experts (expert_weights) or of the router_logits",
        ));
    }
    if spec.observe_only {
        return Err(Error::site(
            format!("there is no gradient at `{site}`: it is a copy of the recurrence's internal state"),
            "ask for the gradient of the recurrence's inputs or outputs (mixer_in, conv_out, mixer_scan)",
        ));
    }
    Ok(edge)
}
