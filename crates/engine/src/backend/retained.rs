//! Edge values that outlive their pass: input of a backward pass, starting points of branches.

use crate::error::Result;
use crate::ids::IdVec;
use crate::job::Pass;
use crate::memory::{DeviceMemory, DeviceValue, Selection, TapWork, Value};
use crate::program::{EdgeId, Program};
use crate::sae::LayerFeatures;
use std::collections::HashMap;

/// Values of selected edges, after their taps, together with the pass that computed them. A
/// backward pass or a branch reads them.
pub(crate) struct RetainedValues {
    /// For each edge whether its value is retained.
    retains: IdVec<EdgeId, bool>,
    values: IdVec<EdgeId, Option<Value>>,
    /// Scores and probabilities of the rows whose attention ran unfused, by edge and row: `[heads,
    /// queries, keys]`.
    attention: HashMap<(EdgeId, usize), Vec<f32>>,
    /// Features of the layers of cross-layer transcoders, by the edge of their activations.
    pub features: HashMap<EdgeId, LayerFeatures>,
    pass: Pass,
    rotations: Vec<(Vec<f32>, Vec<f32>)>,
}

impl RetainedValues {
    /// Creates an empty set that will retain the edges marked in `retains`.
    pub fn new(program: &Program, retains: IdVec<EdgeId, bool>) -> RetainedValues {
        RetainedValues {
            retains,
            values: program.edge_ids().map(|_| None).collect(),
            attention: HashMap::new(),
            features: HashMap::new(),
            pass: Pass::default(),
            rotations: Vec::new(),
        }
    }

    /// Records the pass and its rotary tables.
    pub fn begin(&mut self, pass: &Pass, rotations: &[(Vec<f32>, Vec<f32>)]) {
        (self.pass, self.rotations) = (pass.clone(), rotations.to_vec());
    }

    /// Whether an edge's value is retained.
    pub fn retains(&self, edge: EdgeId) -> bool {
        self.retains[edge]
    }

    pub fn put(&mut self, edge: EdgeId, value: Value) {
        self.values[edge] = Some(value);
    }

    /// Downloads all values at once; backward passes run on the host.
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

    /// The pass that computed the values.
    pub fn pass(&self) -> &Pass {
        &self.pass
    }

    /// The value of an edge, `[tokens, width]`; empty if it was not computed or not retained.
    pub fn value(&self, edge: EdgeId) -> &[f32] {
        match &self.values[edge] {
            Some(Value::Host(value)) => value,
            Some(Value::Device(_)) => unreachable!("a backward pass moves retained values to the host first"),
            None => &[],
        }
    }

    /// Copies some tokens of an edge's value, on the device if the value is there.
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

    /// A row's attention scores or probabilities after their taps, if its attention ran unfused.
    pub fn attention(&self, edge: EdgeId, row: usize) -> Option<&[f32]> {
        self.attention.get(&(edge, row)).map(Vec::as_slice)
    }

    /// The host buffers, for reuse.
    pub fn into_values(self) -> impl Iterator<Item = Vec<f32>> {
        self.values.into_iter().filter_map(|value| match value {
            Some(Value::Host(value)) => Some(value),
            _ => None,
        })
    }
}
