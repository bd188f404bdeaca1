//! The backward pass over the op list.

use super::tape::{GradientTape, external_inputs};
use super::{Cotangents, arrange, attention, experts, norms, pointwise, products, recurrence, saes, weights};
use crate::adapter::Adapter;
use crate::backend::{Arena, RetainedValues, sae_tokens};
use crate::error::Result;
use crate::exec::Executor;
use crate::ids::IdVec;
use crate::job::{Job, Pass};
use crate::program::{EdgeId, OpKind, Program, TokenSet};
use crate::sae::{AttachedSae, LayerFeatures};
use crate::weights::{WeightId, Weights};
use pellucid_kernels::{Pool, elementwise};
use std::ops::Range;
use std::sync::Arc;

/// State of a backward pass: the gradients so far, one per edge.
pub(super) struct BackwardPass<'a> {
    pub program: &'a Program,
    pub weights: &'a Weights,
    pub saes: &'a [AttachedSae],
    pub adapters: &'a [Arc<Adapter>],
    pub pool: &'a Pool,
    pub pass: &'a Pass,
    tape: &'a GradientTape,
    cotangents: &'a mut dyn Cotangents,
    gradients: IdVec<EdgeId, Option<Vec<f32>>>,
    arena: Arena,
}

/// Runs the ops of a tape backward, from last to first. Ops whose outputs have no gradient, and
/// that `cotangents` does not want to visit, are skipped.
pub(crate) fn run_backward(
    executor: &mut Executor,
    job: &mut Job,
    tape: &GradientTape,
    cotangents: &mut dyn Cotangents,
) -> Result<()> {
    let model = executor.model().clone();
    let program = model.program();
    let mut ctx = BackwardPass {
        program,
        weights: model.weights(),
        saes: model.saes(),
        adapters: model.adapters(),
        pool: model.pool(),
        pass: tape.retained.pass(),
        tape,
        cotangents,
        gradients: program.edge_ids().map(|_| None).collect(),
        arena: executor.take_arena(),
    };
    // The most recently recomputed layer: its ops and their values.
    let mut recomputed: Option<(Range<usize>, RetainedValues)> = None;
    let mut index = tape.ops().end;
    while index > tape.ops().start {
        index -= 1;
        executor.watch.check()?;
        let op = &program.ops()[index];
        if let Some(layer) = op.layer.filter(|&layer| job.compiled.skipped[layer]) {
            // A skipped layer copies its input to its output.
            index = program.layer_ops(layer).start;
            ctx.skip_layer(layer)?;
            continue;
        }
        let Some(gradient) = ctx.take_output_gradient(&op.kind)? else { continue };
        let ops = op.layer.and_then(|layer| tape.recomputed_ops(program, layer));
        if ops.as_ref() != recomputed.as_ref().map(|(ops, _)| ops) {
            recomputed
                .take()
                .into_iter()
                .flat_map(|(_, values)| values.into_values())
                .for_each(|value| ctx.arena.give(value));
            if let Some(ops) = ops {
                let mut values = tape.retained_for(program, ops.clone());
                let inputs = external_inputs(program, &ops);
                executor.put_arena(std::mem::take(&mut ctx.arena));
                executor.replay(job, ops.clone(), &tape.retained, &inputs, &mut values)?;
                ctx.arena = executor.take_arena();
                recomputed = Some((ops, values));
            }
        }
        let retained = recomputed.as_ref().map_or(&tape.retained, |(_, values)| values);
        if let OpKind::Sae { .. } = &op.kind {
            let tokens = sae_tokens(program, ctx.pass, index, &|_| job);
            saes::backward(&mut ctx, retained, &op.kind, &tokens, gradient)?;
            continue;
        }
        op_backward(&mut ctx, retained, &op.kind, gradient)?;
    }
    executor.put_arena(ctx.arena);
    Ok(())
}

/// Propagates the gradient of an op's output to its inputs and weights.
fn op_backward(ctx: &mut BackwardPass, retained: &RetainedValues, kind: &OpKind, gradient: Vec<f32>) -> Result<()> {
    use OpKind::*;
    weights::accumulate(ctx, retained, kind, &gradient);
    match kind {
        Input { .. } | Embed { .. } | Sinusoids { .. } => ctx.release(gradient),
        MatMul { .. } | BlockMatMul { .. } => products::backward(ctx, kind, gradient),
        Project { .. } => return products::project_backward(ctx, retained, kind, gradient),
        Norm { .. } => return norms::backward(ctx, retained, kind, gradient),
        Add { .. }
        | Scale { .. }
        | Gain { .. }
        | SoftCap { .. }
        | Clip { .. }
        | Rotate { .. }
        | ScaleByPosition { .. } => pointwise::backward(ctx, retained, kind, gradient),
        KeyBias { .. } | Activate { .. } | Xielu { .. } | Gate { .. } | TimeStep { .. } => {
            pointwise::backward(ctx, retained, kind, gradient)
        }
        Slice { .. } | Concat { .. } | JoinHeads { .. } | JoinConstant { .. } => arrange::backward(ctx, kind, gradient),
        PairValues { .. } | HeadDifference { .. } | Select { .. } => arrange::backward(ctx, kind, gradient),
        Attention { .. } => return attention::backward(ctx, retained, kind, gradient),
        Sae { .. } => unreachable!("its backward pass also needs the taps of the job"),
        Route { .. } => experts::route_backward(ctx, retained, kind, gradient),
        Experts { .. } => return experts::experts_backward(ctx, retained, kind, gradient),
        RoutedMatMul { .. } => experts::queries_backward(ctx, retained, kind, gradient),
        RoutedProject { .. } => experts::project_backward(ctx, retained, kind, gradient),
        Convolve { .. } => recurrence::convolve_backward(ctx, retained, kind, gradient),
        Recur { .. } => recurrence::recur_backward(ctx, retained, kind, gradient),
        Lru { .. } => recurrence::lru_backward(ctx, retained, kind, gradient),
        Shift { .. } => recurrence::shift_backward(ctx, retained, kind, gradient),
        Wkv { .. } => recurrence::wkv_backward(ctx, retained, kind, gradient),
    }
    Ok(())
}

impl<'a> BackwardPass<'a> {
    pub fn width(&self, edge: EdgeId) -> usize {
        self.program.edge(edge).width
    }

    /// Whether the gradient of an edge is needed, for itself or for another gradient.
    pub fn requires_grad(&self, edge: EdgeId) -> bool {
        self.tape.requires_grad(edge)
    }

    /// Whether the gradient of the features of an attached autoencoder is needed: for itself, or
    /// for the input of its encoder. `acts` is the edge of its activations.
    pub fn differentiates_sae(&self, acts: EdgeId) -> bool {
        let index = self.program.edge(acts).producer;
        let kind = &self.program.ops()[index].kind;
        let mut edges = kind.inputs().into_iter().chain(kind.inner());
        self.tape.ops().contains(&index) && edges.any(|edge| self.requires_grad(edge))
    }

    /// The features of a layer of a cross-layer transcoder in the forward pass.
    pub fn features(&self, acts: EdgeId) -> Option<&'a LayerFeatures> {
        self.tape.retained.features.get(&acts)
    }

    pub fn token_set(&self, edge: EdgeId) -> TokenSet {
        self.program.edge(edge).token_set
    }

    /// The accumulated gradient of a weight, if it is wanted.
    pub fn weight(&mut self, id: WeightId) -> Option<&mut Vec<f32>> {
        self.cotangents.weight(id)
    }

    pub fn wants(&self, edge: EdgeId) -> bool {
        self.cotangents.wants(edge)
    }

    pub fn wants_row(&self, edge: EdgeId, row: usize) -> bool {
        self.cotangents.wants_row(edge, row)
    }

    /// Lets the cotangents visit an edge's gradient, if they want to.
    pub fn visit(&mut self, edge: EdgeId, gradient: &mut [f32]) -> Result<()> {
        if self.cotangents.wants(edge) {
            self.cotangents.visit(self.program, self.pass, edge, gradient)?;
        }
        Ok(())
    }

    /// Like [`visit`](Self::visit) for one row of an attention edge, `[heads, queries, keys]`.
    pub fn visit_attention(&mut self, segment: &crate::job::Segment, edge: EdgeId, gradient: &mut [f32]) -> Result<()> {
        if self.cotangents.wants_row(edge, segment.row) {
            self.cotangents.visit_attention(self.program, segment, edge, gradient)?;
        }
        Ok(())
    }

    fn len(&self, edge: EdgeId) -> usize {
        self.pass.len(self.program.edge(edge).token_set) * self.width(edge)
    }

    /// Returns a buffer for an edge's gradient with unspecified contents.
    pub fn alloc(&mut self, edge: EdgeId) -> Vec<f32> {
        let len = self.len(edge);
        self.arena.take(len)
    }

    /// Returns a buffer of zeros for an edge's gradient.
    pub fn zeros(&mut self, edge: EdgeId) -> Vec<f32> {
        let mut zeros = self.alloc(edge);
        zeros.fill(0.0);
        zeros
    }

    /// Copies floats into a buffer of the arena.
    pub fn copy(&mut self, values: &[f32]) -> Vec<f32> {
        let mut copy = self.arena.take(values.len());
        copy.copy_from_slice(values);
        copy
    }

    /// Returns a buffer to the arena.
    pub fn release(&mut self, buffer: Vec<f32>) {
        self.arena.give(buffer);
    }

    /// Takes the accumulated gradient of an edge; `None` if there is none. Return it with
    /// `put_gradient`.
    pub fn take_gradient(&mut self, edge: EdgeId) -> Option<Vec<f32>> {
        self.gradients[edge].take()
    }

    /// Takes the accumulated gradient of an edge; zeros if there is none.
    pub fn take_gradient_or_zeros(&mut self, edge: EdgeId) -> Vec<f32> {
        self.take_gradient(edge).unwrap_or_else(|| self.zeros(edge))
    }

    /// Sets the accumulated gradient of an edge.
    pub fn put_gradient(&mut self, edge: EdgeId, gradient: Vec<f32>) {
        self.gradients[edge] = Some(gradient);
    }

    /// Adds to an edge's gradient, if it is needed.
    pub fn add_gradient(&mut self, edge: EdgeId, gradient: Vec<f32>) {
        if !self.requires_grad(edge) {
            return self.release(gradient);
        }
        let sum = match self.take_gradient(edge) {
            Some(mut sum) => {
                elementwise::add(&mut sum, &gradient);
                self.release(gradient);
                sum
            }
            None => gradient,
        };
        self.put_gradient(edge, sum);
    }

    /// Takes the complete gradient of an op's output, after the cotangents have visited it. `None`
    /// if there is none or no input needs it.
    fn take_output_gradient(&mut self, kind: &OpKind) -> Result<Option<Vec<f32>>> {
        let (edge, inner) = (kind.output(), kind.inner());
        let inside = inner.iter().any(|&edge| self.wants(edge) || self.gradients[edge].is_some());
        if self.gradients[edge].is_none() && !self.wants(edge) && !inside {
            return Ok(None);
        }
        let mut gradient = self.take_gradient_or_zeros(edge);
        self.visit(edge, &mut gradient)?;
        // No input requires a gradient, so the forward pass has retained nothing for this op.
        if self.tape.reads_wanted_weight(kind)
            || kind.inputs().iter().chain(&inner).any(|&edge| self.requires_grad(edge))
        {
            return Ok(Some(gradient));
        }
        self.release(gradient);
        Ok(None)
    }

    /// The gradient of an edge from the gradient of a selection of its tokens; zero for the others.
    pub fn scatter_selected(&mut self, from: EdgeId, to: EdgeId, gradient: &[f32]) -> Vec<f32> {
        let mut whole = self.zeros(from);
        let picks = self.pass.indices_in(self.program.edge(from).token_set, self.program.edge(to).token_set);
        for (index, g) in picks.zip(gradient.chunks_exact(self.width(from))) {
            whole[index * g.len()..][..g.len()].copy_from_slice(g);
        }
        whole
    }

    /// Passes the residual stream's gradient around a skipped layer.
    fn skip_layer(&mut self, layer: usize) -> Result<()> {
        let (before, after) = self.program.layer_ends(layer);
        if self.gradients[after].is_some() || self.wants(after) {
            let mut gradient = self.take_gradient_or_zeros(after);
            self.visit(after, &mut gradient)?;
            let whole = self.scatter_selected(before, after, &gradient);
            self.release(gradient);
            self.add_gradient(before, whole);
        }
        Ok(())
    }
}
