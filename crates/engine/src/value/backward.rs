//! Backward pass through the expressions of a plan: from a metric, and from values that edits have
//! written, to values that taps have read.

use super::{OpRunner, ValueStore, differentiate};
use crate::array::Array;
use crate::error::{Error, Result};
use crate::plan::{CompiledPlan, Expr, Map, ValueId};
use std::collections::HashMap;

/// Gradients of one metric with respect to plan values. A value's gradient is pending until the
/// gradient of a read that it depends on is taken: by then the backward pass has visited everything
/// that uses the value, so the gradient is complete.
pub(crate) struct ValueGradients {
    pending: HashMap<(ValueId, Option<usize>), Array>,
}

impl ValueGradients {
    /// Starts at a metric, with gradient 1.
    pub fn new(compiled: &CompiledPlan, metric: usize, value: &Array) -> ValueGradients {
        let id = compiled.values.metrics[metric];
        let key = (id, compiled.values.rows[id].for_reader(None));
        ValueGradients { pending: HashMap::from([(key, Array::new(value.shape().to_vec(), vec![1.0]))]) }
    }

    /// Adds to the gradient of a value that row `reader` has used.
    pub fn add(&mut self, compiled: &CompiledPlan, value: ValueId, reader: Option<usize>, gradient: Array) {
        if compiled.values.reads[value].is_empty() {
            return;
        }
        let key = (value, compiled.values.rows[value].for_reader(reader));
        let sum = match self.pending.remove(&key) {
            Some(other) => {
                let sum = other.values().iter().zip(gradient.values()).map(|(a, b)| a + b).collect();
                Array::new(gradient.shape().to_vec(), sum)
            }
            None => gradient,
        };
        self.pending.insert(key, sum);
    }

    /// Takes the gradient of the array that a tap has read from a row, if the metric depends on it.
    pub fn take(
        &mut self,
        ops: &dyn OpRunner,
        compiled: &CompiledPlan,
        store: &mut ValueStore,
        read: ValueId,
        row: usize,
    ) -> Result<Option<Array>> {
        let values = &compiled.values;
        for id in values.list.ids().rev().take_while(|&id| id > read) {
            if values.reads[id].binary_search(&read).is_err() {
                continue;
            }
            for row in values.rows[id].each() {
                if let Some(gradient) = self.pending.remove(&(id, row)) {
                    self.propagate(ops, compiled, store, id, row, gradient)?;
                }
            }
        }
        Ok(self.pending.remove(&(read, Some(row))))
    }

    /// Propagates a value's gradient to its inputs.
    fn propagate(
        &mut self,
        ops: &dyn OpRunner,
        compiled: &CompiledPlan,
        store: &mut ValueStore,
        id: ValueId,
        row: Option<usize>,
        gradient: Array,
    ) -> Result<()> {
        let values = &compiled.values;
        if matches!(values.list[id].expr, Expr::Map(Map::Detach, _)) {
            // The gradient ends here. Its zeros would still fail at a function of arrays before it.
            return Ok(());
        }
        let inputs = values.inputs(id, row);
        let of = inputs.iter().map(|&(of, row)| store.get(ops, compiled, of, row)).collect::<Result<Vec<Array>>>()?;
        let fail = |problem: String| Error::Value {
            value: values.name(id),
            problem,
            remedy: "a metric is built from recorded operations".into(),
        };
        let shares = match &values.op_ranges[id] {
            Some(span) => vec![Some(ops.backward(span, &of[0], &gradient)?)],
            None if matches!(values.list[id].expr, Expr::Call { .. }) => {
                return Err(fail("the gradient cannot pass through a function of arrays".into()));
            }
            None => {
                let result = store.get(ops, compiled, id, row)?;
                differentiate(&values.list[id].expr, &of, &result, &gradient).map_err(fail)?
            }
        };
        for ((of, row), share) in inputs.into_iter().zip(shares) {
            if let Some(share) = share {
                self.add(compiled, of, row, share);
            }
        }
        Ok(())
    }
}
