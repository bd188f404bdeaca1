//! Values of a pass that are kept after their edges die.

use crate::error::Result;
use crate::ids::IdVec;
use crate::job::Pass;
use crate::memory::{DeviceMemory, DeviceValue, Selection, TapWork, Value};
use crate::program::{EdgeId, Program};
use std::collections::HashMap;

/// Values that a backward pass or a branch will read: of some edges, as the taps left them, with the pass that computed them.
pub(crate) struct KeptValues {
    /// For each edge whether its value is kept.
    keeps: IdVec<EdgeId, bool>,
    values: IdVec<EdgeId, Option<Value>>,
    /// Scores and probabilities of the rows whose attention was computed unfused, by edge and row.
    attention: HashMap<(EdgeId, usize), Vec<f32>>,
    pass: Pass,
    rotations: Vec<(Vec<f32>, Vec<f32>)>,
}

impl KeptValues {
    /// Nothing yet; the edges that `keeps` marks are to be kept.
    pub fn new(program: &Program, keeps: IdVec<EdgeId, bool>) -> KeptValues {
        KeptValues {
            keeps,
            values: program.edge_ids().map(|_| None).collect(),
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

    pub fn put(&mut self, edge: EdgeId, value: Value) {
        self.values[edge] = Some(value);
    }

    /// Moves everything to the host, in one wait, for a backward pass.
    pub fn move_to_host(&mut self, memory: Option<&dyn DeviceMemory>) -> Result<()> {
        let Some(memory) = memory else { return Ok(()) };
        let on_device = |value: &&mut Option<Value>| matches!(value, Some(Value::Device(_)));
        let mut values: Vec<&mut Option<Value>> = self.values.iter_mut().filter(on_device).collect();
        let buffers: Vec<DeviceValue> = values
            .iter()
            .filter_map(|value| match value {
                Some(Value::Device(value)) => Some(value.clone()),
                _ => None,
            })
            .collect();
        let floats = memory.download(&buffers.iter().collect::<Vec<_>>())?;
        values.iter_mut().zip(floats).for_each(|(value, floats)| **value = Some(Value::Host(floats)));
        Ok(())
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
        match &self.values[edge] {
            Some(Value::Host(value)) => value,
            Some(Value::Device(_)) => unreachable!("a backward pass moves kept values to the host first"),
            None => &[],
        }
    }

    /// A copy of some tokens of an edge's value, where it is.
    pub fn select(
        &self,
        edge: EdgeId,
        width: usize,
        tokens: impl Iterator<Item = usize>,
        memory: Option<&dyn DeviceMemory>,
    ) -> Value {
        if let (Some(Value::Device(value)), Some(memory)) = (&self.values[edge], memory) {
            let tokens: Vec<usize> = tokens.collect();
            let columns = 0..width;
            let selection = Selection { width, tokens: &tokens, columns: std::slice::from_ref(&columns) };
            let copy = memory.tap(value, &selection, &TapWork::Gather);
            return copy.map_or_else(|| Value::Host(Vec::new()), Value::Device);
        }
        let value = self.value(edge);
        Value::Host(tokens.flat_map(|token| &value[token * width..][..width]).copied().collect())
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
        self.values.into_iter().filter_map(|value| match value {
            Some(Value::Host(value)) => Some(value),
            _ => None,
        })
    }
}
