//! Values of a pass that are kept after their edges die.

use crate::job::Pass;
use crate::program::{EdgeId, Program};
use std::collections::HashMap;

/// Values that a backward pass or a branch will read: of some edges, as the taps left them, with the pass that computed them.
pub(crate) struct KeptValues {
    /// For each edge whether its value is kept.
    keeps: Vec<bool>,
    values: Vec<Option<Vec<f32>>>,
    /// Scores and probabilities of the rows whose attention was computed unfused, by edge and row.
    attention: HashMap<(EdgeId, usize), Vec<f32>>,
    pass: Pass,
    rotations: Vec<(Vec<f32>, Vec<f32>)>,
}

impl KeptValues {
    /// Nothing yet; the edges that `keeps` marks are to be kept.
    pub fn new(program: &Program, keeps: Vec<bool>) -> KeptValues {
        KeptValues {
            keeps,
            values: (0..program.edge_count()).map(|_| None).collect(),
            attention: HashMap::new(),
            pass: Pass::default(),
            rotations: Vec::new(),
        }
    }

    /// Notes the tokens that go through and their rotations.
    pub fn begin(&mut self, pass: &Pass, rotations: &[(Vec<f32>, Vec<f32>)]) {
        (self.pass, self.rotations) = (pass.clone(), rotations.to_vec());
    }

    /// Whether an edge's value is kept.
    pub fn keeps(&self, edge: EdgeId) -> bool {
        self.keeps[edge]
    }

    pub fn put(&mut self, edge: EdgeId, value: Vec<f32>) {
        self.values[edge] = Some(value);
    }

    pub fn put_attention(&mut self, edge: EdgeId, row: usize, value: Vec<f32>) {
        self.attention.insert((edge, row), value);
    }

    /// The tokens that went through.
    pub fn pass(&self) -> &Pass {
        &self.pass
    }

    /// The value of an edge; empty where it was not computed or not kept.
    pub fn value(&self, edge: EdgeId) -> &[f32] {
        self.values[edge].as_deref().unwrap_or_default()
    }

    /// Cosines and sines of a rotary embedding, `[tokens, frequencies]`.
    pub fn rotation(&self, rope: usize) -> (&[f32], &[f32]) {
        let (cos, sin) = &self.rotations[rope];
        (cos, sin)
    }

    /// A row's attention scores or probabilities as the taps left them, where they were computed.
    pub fn attention(&self, edge: EdgeId, row: usize) -> Option<&[f32]> {
        self.attention.get(&(edge, row)).map(Vec::as_slice)
    }

    /// The buffers that it held.
    pub fn into_values(self) -> impl Iterator<Item = Vec<f32>> {
        self.values.into_iter().flatten()
    }
}
