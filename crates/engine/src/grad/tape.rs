//! What a forward pass keeps for the way back.

use crate::error::{Error, Result};
use crate::exec::Pass;
use crate::program::{EdgeId, OpKind, Program};
use crate::site::Site;
use crate::weights::WeightId;
use std::collections::{HashMap, HashSet};
use std::ops::Range;

/// The values that gradients will need: what some ops have read, as the taps left it.
pub(crate) struct Tape {
    /// The ops that a walk back goes through.
    ops: Range<usize>,
    /// For each edge whether a gradient there leads on to one that is wanted.
    flows: Vec<bool>,
    /// The weights whose gradients are wanted.
    weights: HashSet<WeightId>,
    /// For each edge whether its value is kept.
    keeps: Vec<bool>,
    /// Only what enters a layer is kept, and the layer runs again on the way back.
    recompute: bool,
    /// Positions of rows at which the model's end has to be computed for the gradient's sake, in order.
    pub reads: Vec<(usize, usize)>,
    /// Positions of rows where what the last MLP makes is needed besides, in order.
    pub reads_late: Vec<(usize, usize)>,
    pass: Pass,
    rotations: Vec<(Vec<f32>, Vec<f32>)>,
    values: Vec<Option<Vec<f32>>>,
    /// Scores and weights of the rows whose attention was looked into, by edge and row.
    attention: HashMap<(EdgeId, usize), Vec<f32>>,
}

impl Tape {
    /// An empty tape for gradients from the edges that `last_op` and earlier ops make to the edges that are `wanted`, and to some
    /// `weights`.
    pub fn new(
        program: &Program,
        wanted: &dyn Fn(EdgeId) -> bool,
        weights: HashSet<WeightId>,
        last_op: usize,
        recompute: bool,
    ) -> Tape {
        let ops = program.ops();
        let edges = (0..program.edge_count()).filter(|&edge| wanted(edge)).map(|edge| program.edge(edge).made_by);
        let readers = (0..ops.len()).filter(|&index| reads_any(&ops[index].kind, &weights));
        let first = edges.chain(readers).min().unwrap_or(last_op + 1).min(last_op + 1);
        let range = first..last_op + 1;
        let mut flows: Vec<bool> = (0..program.edge_count()).map(wanted).collect();
        let mut keeps = vec![false; program.edge_count()];
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
            // A layer that runs again needs what enters it.
            for layer in 0..program.architecture().layers.len() {
                let again = layer_ops(program, layer, &range);
                entering(program, &again).into_iter().for_each(|edge| keeps[edge] = true);
            }
        }
        Tape { flows, weights, recompute, ..Tape::empty(program, range, keeps) }
    }

    fn empty(program: &Program, ops: Range<usize>, keeps: Vec<bool>) -> Tape {
        Tape {
            ops,
            flows: Vec::new(),
            weights: HashSet::new(),
            keeps,
            recompute: false,
            reads: Vec::new(),
            reads_late: Vec::new(),
            pass: Pass::default(),
            rotations: Vec::new(),
            values: (0..program.edge_count()).map(|_| None).collect(),
            attention: HashMap::new(),
        }
    }

    /// A tape that only keeps the values of some edges.
    pub fn keeping(program: &Program, keeps: Vec<bool>) -> Tape {
        Tape::empty(program, 0..0, keeps)
    }

    /// The value that an edge had, if it was kept.
    pub fn take(&mut self, edge: EdgeId) -> Option<Vec<f32>> {
        self.values[edge].take()
    }

    /// The ops of a layer that run again on the way back, if they do.
    pub fn runs_again(&self, program: &Program, layer: usize) -> Option<Range<usize>> {
        self.recompute.then(|| layer_ops(program, layer, &self.ops))
    }

    /// An empty tape for ops that run again, with what their gradients need.
    pub fn again(&self, program: &Program, ops: Range<usize>) -> Tape {
        let mut keeps = vec![false; program.edge_count()];
        for index in ops.clone() {
            needed(&program.ops()[index].kind, &self.weights).into_iter().for_each(|edge| keeps[edge] = true);
        }
        Tape::empty(program, ops, keeps)
    }

    /// Whether the gradient of one of an op's weights is wanted.
    pub fn wants_any(&self, kind: &OpKind) -> bool {
        reads_any(kind, &self.weights)
    }

    pub fn begin(&mut self, pass: &Pass, rotations: &[(Vec<f32>, Vec<f32>)]) {
        (self.pass, self.rotations) = (pass.clone(), rotations.to_vec());
    }

    pub fn keeps(&self, edge: EdgeId) -> bool {
        self.keeps[edge]
    }

    pub fn put(&mut self, edge: EdgeId, value: Vec<f32>) {
        self.values[edge] = Some(value);
    }

    pub fn note_attention(&mut self, edge: EdgeId, row: usize, value: Vec<f32>) {
        self.attention.insert((edge, row), value);
    }

    /// The ops that a walk back goes through.
    pub fn ops(&self) -> Range<usize> {
        self.ops.clone()
    }

    /// Whether a gradient on an edge leads on to one that is wanted.
    pub fn flows(&self, edge: EdgeId) -> bool {
        self.flows[edge]
    }

    /// The tokens that went through.
    pub fn pass(&self) -> &Pass {
        &self.pass
    }

    /// The value that ops have read from an edge; nothing where it was not made or not kept.
    pub fn value(&self, edge: EdgeId) -> &[f32] {
        self.values[edge].as_deref().unwrap_or_default()
    }

    /// Cosines and sines of a rotary embedding, `[tokens, frequencies]`.
    pub fn rotation(&self, rope: usize) -> (&[f32], &[f32]) {
        let (cos, sin) = &self.rotations[rope];
        (cos, sin)
    }

    /// A row's scores or weights of attention as the taps left them, where somebody looked.
    pub fn attention(&self, edge: EdgeId, row: usize) -> Option<&[f32]> {
        self.attention.get(&(edge, row)).map(Vec::as_slice)
    }

    /// The values that some ops read from earlier ones.
    pub fn entering<'a>(
        &'a self,
        program: &'a Program,
        ops: Range<usize>,
    ) -> impl Iterator<Item = (EdgeId, &'a [f32])> {
        entering(program, &ops).into_iter().map(|edge| (edge, self.value(edge)))
    }

    /// The buffers that it held.
    pub fn into_values(self) -> impl Iterator<Item = Vec<f32>> {
        self.values.into_iter().flatten()
    }
}

/// The ops of a layer that run again for the sake of some ops: all up to the last of them.
fn layer_ops(program: &Program, layer: usize, ops: &Range<usize>) -> Range<usize> {
    let own = program.layer_ops(layer);
    if own.end <= ops.start || own.start >= ops.end { 0..0 } else { own.start..own.end.min(ops.end) }
}

/// The edges that some ops read from earlier ones.
fn entering(program: &Program, ops: &Range<usize>) -> Vec<EdgeId> {
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
