//! The tokens of a pass whose rows use an adapter, and the updates of a projection for them.

use super::{Adapter, LinearUpdate, LowRank};
use crate::job::Pass;
use crate::program::{TokenSet, WeightId};
use pellucid_kernels::elementwise::{add, scale};
use pellucid_kernels::{Pool, matmul, matmul_transposed};
use std::ops::Range;
use std::sync::Arc;

/// The updates of a weight for the tokens of a pass, one for each adapter that changes the weight
/// and that a row of the pass uses.
pub(crate) fn updates<'a>(
    adapters: &'a [Arc<Adapter>],
    pass: &'a Pass,
    token_set: TokenSet,
    weight: WeightId,
) -> impl Iterator<Item = (&'a LinearUpdate, AdapterTokens<'a>)> {
    adapters.iter().enumerate().filter_map(move |(index, adapter)| {
        let update = adapter.update(weight)?;
        Some((update, AdapterTokens::of(pass, token_set, index)?))
    })
}

/// The tokens of an edge whose rows use one adapter.
///
/// An update is computed for all of them in one product, whatever lies between them: a row of a
/// product has the same bits in any company.
#[derive(Clone, Copy)]
pub(crate) struct AdapterTokens<'a> {
    pass: &'a Pass,
    token_set: TokenSet,
    /// Index of the adapter in the model.
    adapter: usize,
    /// Number of tokens.
    count: usize,
}

impl<'a> AdapterTokens<'a> {
    /// Finds the tokens of an adapter on edges with this token set; `None` if there are none.
    fn of(pass: &'a Pass, token_set: TokenSet, adapter: usize) -> Option<AdapterTokens<'a>> {
        let tokens = AdapterTokens { pass, token_set, adapter, count: 0 };
        let count = tokens.runs().map(|run| run.len()).sum();
        (count > 0).then_some(AdapterTokens { count, ..tokens })
    }

    /// Whether they are all tokens of the edge.
    fn are_all(&self) -> bool {
        self.count == self.pass.len(self.token_set)
    }

    /// Ranges of their indices on the edge, ascending, one for each segment.
    pub fn runs(&self) -> impl Iterator<Item = Range<usize>> + use<'a> {
        let AdapterTokens { pass, token_set, adapter, .. } = *self;
        let own = pass.segments.iter().filter(move |segment| segment.adapter == Some(adapter));
        own.map(move |segment| pass.range(token_set, segment))
    }

    /// Copies their lines of a value `[tokens, width]`.
    fn gather(&self, width: usize, value: &[f32], into: &mut [f32]) {
        let mut rest = into;
        for run in self.runs() {
            let (lines, after) = rest.split_at_mut(run.len() * width);
            lines.copy_from_slice(&value[run.start * width..run.end * width]);
            rest = after;
        }
    }

    /// Adds lines `[count, width]` to theirs.
    fn scatter_add(&self, width: usize, lines: &[f32], value: &mut [f32]) {
        let mut rest = lines;
        for run in self.runs() {
            let (own, after) = rest.split_at(run.len() * width);
            add(&mut value[run.start * width..run.end * width], own);
            rest = after;
        }
    }

    /// Adds an update to a projection's output: x `[tokens, inputs]`, y `[tokens, outputs]`.
    /// `scratch` has [`scratch_len`](Self::scratch_len) floats.
    pub fn add_update(&self, pool: &Pool, update: &LinearUpdate, x: &[f32], y: &mut [f32], scratch: &mut [f32]) {
        let bias = update.bias.as_deref();
        let Some(LowRank { a, b, scale: by }) = &update.low_rank else {
            let lines = bias.into_iter().flat_map(|bias| self.runs().flatten().map(move |line| (line, bias)));
            lines.for_each(|(line, bias)| add(&mut y[line * bias.len()..][..bias.len()], bias));
            return;
        };
        let (inner, rest) = scratch.split_at_mut(self.count * a.rows());
        let (delta, own) = rest.split_at_mut(self.count * b.rows());
        let own = match self.are_all() {
            true => x,
            false => {
                self.gather(a.cols(), x, own);
                &*own
            }
        };
        // x [count, inputs] · Aᵀ → inner [count, rank]; scale · inner · Bᵀ + Δb → [count, outputs]
        matmul(pool, own, a, None, inner);
        scale(inner, *by);
        matmul(pool, inner, b, bias, delta);
        self.scatter_add(b.rows(), delta, y);
    }

    /// Floats that [`add_update`](Self::add_update) needs for intermediate results.
    pub fn scratch_len(&self, update: &LinearUpdate) -> usize {
        let Some(LowRank { a, b, .. }) = &update.low_rank else { return 0 };
        self.count * (a.rows() + b.rows() + if self.are_all() { 0 } else { a.cols() })
    }

    /// Adds the gradient through an update to that of the projection's input: dy `[tokens,
    /// outputs]`, dx `[tokens, inputs]`.
    pub fn add_gradient(&self, pool: &Pool, update: &LinearUpdate, dy: &[f32], dx: &mut [f32]) {
        let Some(LowRank { a, b, scale: by }) = &update.low_rank else { return };
        let (rank, inputs, outputs) = (a.rows(), a.cols(), b.rows());
        let mut own = vec![0.0; self.count * outputs];
        self.gather(outputs, dy, &mut own);
        // dy [count, outputs] · B → [count, rank]; scale · that · A → [count, inputs]
        let mut inner = vec![0.0; self.count * rank];
        matmul_transposed(pool, &own, b, false, &mut inner);
        scale(&mut inner, *by);
        let mut delta = vec![0.0; self.count * inputs];
        matmul_transposed(pool, &inner, a, false, &mut delta);
        self.scatter_add(inputs, &delta, dx);
    }
}

impl LowRank {
    /// Adds `scale · B A` to the rows of a matrix, `[outputs, inputs]`.
    pub(crate) fn add_to_rows(&self, rows: &mut [f32]) {
        let (rank, inputs) = (self.a.rows(), self.a.cols());
        let mut factors = vec![0.0; rank];
        let mut scratch = vec![0.0; inputs];
        for (output, row) in rows.chunks_exact_mut(inputs).enumerate() {
            self.b.row(output, &mut factors);
            for (index, factor) in factors.iter().enumerate() {
                self.a.add_scaled_row(index, factor * self.scale, &mut scratch, row);
            }
        }
    }
}
