//! The backward pass over the op list.

use super::tape::{GradientTape, entering};
use super::{Cotangents, arrange, attention, experts, norms, pointwise, products, recurrence, weights};
use crate::backend::{Arena, KeptValues};
use crate::error::Result;
use crate::exec::Executor;
use crate::ids::IdVec;
use crate::job::{Job, Pass};
use crate::point::Point;
use crate::program::{EdgeId, OpKind, Program};
use crate::site::Site;
use crate::weights::{WeightId, Weights};
use pellucid_kernels::{Pool, elementwise};
use std::ops::Range;

/// A backward pass under way.
pub(super) struct Walk<'a> {
    pub program: &'a Program,
    pub weights: &'a Weights,
    pub pool: &'a Pool,
    pub pass: &'a Pass,
    tape: &'a GradientTape,
    cotangents: &'a mut dyn Cotangents,
    gradients: IdVec<EdgeId, Option<Vec<f32>>>,
    arena: Arena,
}

/// Walks the op list backward, from the last op of a tape to its first. An edge that has no gradient and that `cotangents` do not
/// touch is passed over, and so is everything that leads to it.
pub(crate) fn walk(
    executor: &mut Executor,
    job: &mut Job,
    tape: &GradientTape,
    cotangents: &mut dyn Cotangents,
) -> Result<()> {
    let model = executor.model().clone();
    let program = model.program();
    let mut walk = Walk {
        program,
        weights: model.weights(),
        pool: model.pool(),
        pass: tape.kept.pass(),
        tape,
        cotangents,
        gradients: program.edge_ids().map(|_| None).collect(),
        arena: executor.take_arena(),
    };
    // The values of the layer that ran again last, with its ops.
    let mut again: Option<(Range<usize>, KeptValues)> = None;
    let mut index = tape.ops().end;
    while index > tape.ops().start {
        index -= 1;
        executor.watch.check()?;
        let op = &program.ops()[index];
        if let Some(layer) = op.layer.filter(|&layer| job.compiled.skipped[layer]) {
            // A skipped layer copies its input to its output.
            index = program.layer_ops(layer).start;
            walk.pass_by(layer)?;
            continue;
        }
        let Some(gradient) = walk.arrived(&op.kind)? else { continue };
        let ops = op.layer.and_then(|layer| tape.runs_again(program, layer));
        if ops.as_ref() != again.as_ref().map(|(ops, _)| ops) {
            again
                .take()
                .into_iter()
                .flat_map(|(_, values)| values.into_values())
                .for_each(|value| walk.arena.give(value));
            if let Some(ops) = ops {
                let mut values = tape.values_of(program, ops.clone());
                let inputs = entering(program, &ops);
                executor.put_arena(std::mem::take(&mut walk.arena));
                executor.replay(job, ops.clone(), &tape.kept, &inputs, &mut values)?;
                walk.arena = executor.take_arena();
                again = Some((ops, values));
            }
        }
        back(&mut walk, again.as_ref().map_or(&tape.kept, |(_, values)| values), &op.kind, gradient)?;
    }
    executor.put_arena(walk.arena);
    Ok(())
}

/// From the gradient of what an op made to the gradients of what it read.
fn back(walk: &mut Walk, kept: &KeptValues, kind: &OpKind, gradient: Vec<f32>) -> Result<()> {
    use OpKind::*;
    weights::back(walk, kept, kind, &gradient);
    match kind {
        Input { .. } | Lookup { .. } | Sinusoids { .. } => walk.give(gradient),
        MatMul { .. } | BlockMatMul { .. } => products::back(walk, kind, gradient),
        Project { .. } => return products::project_back(walk, kept, kind, gradient),
        Norm { .. } => return norms::back(walk, kept, kind, gradient),
        Add { .. } | Scale { .. } | Gain { .. } | SoftCap { .. } | Clip { .. } | Rotate { .. } | Temper { .. } => {
            pointwise::back(walk, kept, kind, gradient)
        }
        KeyBias { .. } | Activate { .. } | Xielu { .. } | Gate { .. } | Step { .. } => {
            pointwise::back(walk, kept, kind, gradient)
        }
        Slice { .. } | Concat { .. } | JoinHeads { .. } | JoinNumber { .. } => arrange::back(walk, kind, gradient),
        PairValues { .. } | Differ { .. } | Select { .. } => arrange::back(walk, kind, gradient),
        Attention { .. } => return attention::back(walk, kept, kind, gradient),
        Route { .. } => experts::route_back(walk, kept, kind, gradient),
        Experts { .. } => experts::experts_back(walk, kept, kind, gradient),
        RoutedMatMul { .. } => experts::queries_back(walk, kept, kind, gradient),
        RoutedProject { .. } => experts::project_back(walk, kept, kind, gradient),
        Convolve { .. } => recurrence::convolve_back(walk, kept, kind, gradient),
        Recur { .. } => recurrence::recur_back(walk, kept, kind, gradient),
        Lru { .. } => recurrence::lru_back(walk, kept, kind, gradient),
        Shift { .. } => recurrence::shift_back(walk, kept, kind, gradient),
        Wkv { .. } => recurrence::wkv_back(walk, kept, kind, gradient),
    }
    Ok(())
}

impl Walk<'_> {
    pub fn width(&self, edge: EdgeId) -> usize {
        self.program.edge(edge).width
    }

    /// Whether anybody wants to know an edge's gradient, or one that it leads to.
    pub fn flows(&self, edge: EdgeId) -> bool {
        self.tape.flows(edge)
    }

    /// The gradient of a weight so far, if it is wanted.
    pub fn weight(&mut self, id: WeightId) -> Option<&mut Vec<f32>> {
        self.cotangents.weight(id)
    }

    pub fn touches(&self, edge: EdgeId) -> bool {
        self.cotangents.touches(edge)
    }

    pub fn touches_row(&self, edge: EdgeId, row: usize) -> bool {
        self.cotangents.touches_row(edge, row)
    }

    /// Shows an edge's gradient to those who touch it.
    pub fn meet(&mut self, edge: EdgeId, gradient: &mut [f32]) -> Result<()> {
        if self.cotangents.touches(edge) {
            self.cotangents.meet(self.program, self.pass, edge, gradient)?;
        }
        Ok(())
    }

    /// Shows one row's gradient of an attention edge, `[heads, queries, keys]`, to those who touch it.
    pub fn meet_attention(&mut self, segment: &crate::job::Segment, edge: EdgeId, gradient: &mut [f32]) -> Result<()> {
        if self.cotangents.touches_row(edge, segment.row) {
            self.cotangents.meet_attention(self.program, segment, edge, gradient)?;
        }
        Ok(())
    }

    fn len(&self, edge: EdgeId) -> usize {
        self.pass.len(self.program.edge(edge).domain) * self.width(edge)
    }

    /// A buffer for an edge's gradient, whatever is in it.
    pub fn make(&mut self, edge: EdgeId) -> Vec<f32> {
        let len = self.len(edge);
        self.arena.take(len)
    }

    /// A buffer of zeros for an edge's gradient.
    pub fn zeros(&mut self, edge: EdgeId) -> Vec<f32> {
        let mut zeros = self.make(edge);
        zeros.fill(0.0);
        zeros
    }

    /// A copy of numbers.
    pub fn copy(&mut self, numbers: &[f32]) -> Vec<f32> {
        let mut copy = self.arena.take(numbers.len());
        copy.copy_from_slice(numbers);
        copy
    }

    /// A buffer that nobody needs any more.
    pub fn give(&mut self, buffer: Vec<f32>) {
        self.arena.give(buffer);
    }

    /// What an edge has been given so far, to be added to; `None` where it is nothing.
    pub fn given(&mut self, edge: EdgeId) -> Option<Vec<f32>> {
        self.gradients[edge].take()
    }

    /// What an edge has been given so far, zeros where it is nothing.
    pub fn given_or_zeros(&mut self, edge: EdgeId) -> Vec<f32> {
        self.given(edge).unwrap_or_else(|| self.zeros(edge))
    }

    /// Puts back what was taken by `given`, with what was added.
    pub fn put(&mut self, edge: EdgeId, gradient: Vec<f32>) {
        self.gradients[edge] = Some(gradient);
    }

    /// Adds to an edge's gradient, if anybody wants to know it.
    pub fn add(&mut self, edge: EdgeId, gradient: Vec<f32>) {
        if !self.flows(edge) {
            return self.give(gradient);
        }
        let sum = match self.given(edge) {
            Some(mut sum) => {
                elementwise::add(&mut sum, &gradient);
                self.give(gradient);
                sum
            }
            None => gradient,
        };
        self.put(edge, sum);
    }

    /// The gradient of what an op made, complete and met, if there is one and it leads on.
    fn arrived(&mut self, kind: &OpKind) -> Result<Option<Vec<f32>>> {
        let (edge, inner) = (kind.output(), kind.inner());
        let inside = inner.iter().any(|&edge| self.touches(edge));
        if self.gradients[edge].is_none() && !self.touches(edge) && !inside {
            return Ok(None);
        }
        let mut gradient = self.given_or_zeros(edge);
        self.meet(edge, &mut gradient)?;
        // An edit inside an op whose inputs nobody asks about leads nowhere, and nothing was kept for it.
        if self.tape.wants_any(kind) || kind.inputs().iter().chain(&inner).any(|&edge| self.flows(edge)) {
            return Ok(Some(gradient));
        }
        self.give(gradient);
        Ok(None)
    }

    /// Hands the stream's gradient past a layer that nobody entered.
    /// The gradient of an edge of which another has some tokens: zero for the rest.
    pub fn unselect(&mut self, from: EdgeId, to: EdgeId, gradient: &[f32]) -> Vec<f32> {
        let mut whole = self.zeros(from);
        let picks = self.pass.picks(self.program.edge(from).domain, self.program.edge(to).domain);
        for (place, g) in picks.zip(gradient.chunks_exact(self.width(to))) {
            whole[place * g.len()..][..g.len()].copy_from_slice(g);
        }
        whole
    }

    fn pass_by(&mut self, layer: usize) -> Result<()> {
        let site =
            |point| self.program.edge_of(Site::layer(layer, point)).expect("every layer has both ends of its stream");
        let (before, after) = (site(Point::ResidPre), site(Point::ResidPost));
        if self.gradients[after].is_some() || self.touches(after) {
            let mut gradient = self.given_or_zeros(after);
            self.meet(after, &mut gradient)?;
            let whole = self.unselect(before, after, &gradient);
            self.give(gradient);
            self.add(before, whole);
        }
        Ok(())
    }
}
