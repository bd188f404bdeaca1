//! What a forward pass keeps for the backward pass.

use crate::backend::KeptValues;
use crate::error::{Error, Result};
use crate::ids::IdVec;
use crate::program::{EdgeId, OpKind, Program};
use crate::site::Site;
use crate::weights::WeightId;
use std::collections::HashSet;
use std::ops::Range;

/// How a backward pass goes: which ops it walks, which edges lead to the gradients that are wanted, and the values that it needs.
pub(crate) struct GradientTape {
    /// The ops that the backward pass walks.
    ops: Range<usize>,
    /// For each edge whether its gradient leads on to one that is wanted.
    flows: IdVec<EdgeId, bool>,
    /// The weights whose gradients are wanted.
    weights: HashSet<WeightId>,
    /// Gradient checkpointing: only the inputs of each layer are kept, and its ops run again in the backward pass.
    recompute: bool,
    /// The inputs that derivatives read, as the taps left them.
    pub kept: KeptValues,
}

impl GradientTape {
    /// An empty tape for gradients from the edges that `last_op` and earlier ops make to the edges that are `wanted`, and to some
    /// `weights`.
    pub fn new(
        program: &Program,
        wanted: &dyn Fn(EdgeId) -> bool,
        weights: HashSet<WeightId>,
        last_op: usize,
        recompute: bool,
    ) -> GradientTape {
        let ops = program.ops();
        let edges = program.edge_ids().filter(|&edge| wanted(edge)).map(|edge| program.edge(edge).made_by);
        let readers = (0..ops.len()).filter(|&index| reads_any(&ops[index].kind, &weights));
        let first = edges.chain(readers).min().unwrap_or(last_op + 1).min(last_op + 1);
        let range = first..last_op + 1;
        let mut flows: IdVec<EdgeId, bool> = program.edge_ids().map(wanted).collect();
        let mut keeps = program.list_by_edge(false);
        for index in range.clone() {
            let kind = &ops[index].kind;
            let on_the_way = kind.inputs().iter().chain(&kind.inner()).any(|&edge| flows[edge]);
            if on_the_way || reads_any(kind, &weights) {
                flows[kind.output()] = true;
                if !recompute || ops[index].layer.is_none() {
                    needed(kind, &weights).into_iter().for_each(|edge| keeps[edge] = true);
                }
            }
        }
        if recompute {
            // A layer that runs again needs its inputs.
            for layer in 0..program.architecture().layers.len() {
                let again = layer_ops(program, layer, &range);
                entering(program, &again).into_iter().for_each(|edge| keeps[edge] = true);
            }
        }
        GradientTape { ops: range, flows, weights, recompute, kept: KeptValues::new(program, keeps) }
    }

    /// The ops of a layer that run again in the backward pass, if they do.
    pub fn runs_again(&self, program: &Program, layer: usize) -> Option<Range<usize>> {
        self.recompute.then(|| layer_ops(program, layer, &self.ops))
    }

    /// Room for the values that the gradients of some ops need, when these run again.
    pub fn values_of(&self, program: &Program, ops: Range<usize>) -> KeptValues {
        let mut keeps = program.list_by_edge(false);
        for index in ops {
            needed(&program.ops()[index].kind, &self.weights).into_iter().for_each(|edge| keeps[edge] = true);
        }
        KeptValues::new(program, keeps)
    }

    /// Whether the gradient of one of an op's weights is wanted.
    pub fn wants_any(&self, kind: &OpKind) -> bool {
        reads_any(kind, &self.weights)
    }

    /// The ops that the backward pass walks.
    pub fn ops(&self) -> Range<usize> {
        self.ops.clone()
    }

    /// Whether a gradient on an edge leads on to one that is wanted.
    pub fn flows(&self, edge: EdgeId) -> bool {
        self.flows[edge]
    }
}

/// The ops of a layer that run again for the sake of some ops: all up to the last of them.
fn layer_ops(program: &Program, layer: usize, ops: &Range<usize>) -> Range<usize> {
    let own = program.layer_ops(layer);
    if own.end <= ops.start || own.start >= ops.end { 0..0 } else { own.start..own.end.min(ops.end) }
}

/// The edges that some ops read from earlier ones.
pub(super) fn entering(program: &Program, ops: &Range<usize>) -> Vec<EdgeId> {
    let mut edges: Vec<EdgeId> = ops.clone().flat_map(|index| program.ops()[index].kind.inputs()).collect();
    edges.sort_unstable();
    edges.dedup();
    edges.retain(|&edge| program.edge(edge).made_by < ops.start);
    edges
}

/// Whether an op reads one of these weights.
fn reads_any(kind: &OpKind, weights: &HashSet<WeightId>) -> bool {
    !weights.is_empty() && kind.weights().iter().any(|weight| weights.contains(weight))
}

/// The edges whose values an op's backward pass needs, for its inputs and for those of `weights` that it reads.
fn needed(kind: &OpKind, weights: &HashSet<WeightId>) -> Vec<EdgeId> {
    if reads_any(kind, weights) { kind.needed_for_weights() } else { kind.needed_for_inputs() }
}

/// Refuses a site at which a gradient has no meaning.
pub(crate) fn check_site(program: &Program, site: Site) -> Result<EdgeId> {
    let edge = program.edge_of(site).ok_or_else(|| {
        Error::site(format!("this model has no site `{site}`"), "`pellucid sites` lists those that it has")
    })?;
    let spec = program.edge(edge);
    if spec.integer {
        return Err(Error::site(
            format!("there is no gradient at `{site}`: a choice of experts is taken as it is"),
            "ask for the gradient of the weights of the chosen experts (expert_weights) or of the router_logits",
        ));
    }
    if spec.aside {
        return Err(Error::site(
            format!("there is no gradient at `{site}`: it is a copy of what the recurrence keeps to itself"),
            "ask for the gradient of what the recurrence reads or makes (mixer_in, conv_out, mixer_scan)",
        ));
    }
    Ok(edge)
}
