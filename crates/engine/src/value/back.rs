//! Gradients of values: from a metric, and from what edits have written, to what taps have read.

use super::{OpRunner, Store, derive};
use crate::array::Array;
use crate::error::{Error, Result};
use crate::plan::{Compiled, Expr, ValueId};
use std::collections::HashMap;

/// Gradients of one metric under way. A value's gradient waits until a read under it is asked for: by then, on the way back,
/// everything that used the value has given its share.
pub(crate) struct Back {
    waiting: HashMap<(ValueId, Option<usize>), Array>,
}

impl Back {
    /// Begins at a metric.
    pub fn new(compiled: &Compiled, metric: usize, value: &Array) -> Back {
        let id = compiled.values.metrics[metric];
        let key = (id, compiled.values.rows[id].for_reader(None));
        Back { waiting: HashMap::from([(key, Array::new(value.shape().to_vec(), vec![1.0]))]) }
    }

    /// Adds to the gradient of a value that a reader has used.
    pub fn add(&mut self, compiled: &Compiled, value: ValueId, reader: Option<usize>, gradient: Array) {
        if compiled.values.reads[value].is_empty() {
            return;
        }
        let key = (value, compiled.values.rows[value].for_reader(reader));
        let sum = match self.waiting.remove(&key) {
            Some(other) => {
                let numbers = other.values().iter().zip(gradient.values()).map(|(a, b)| a + b).collect();
                Array::new(gradient.shape().to_vec(), numbers)
            }
            None => gradient,
        };
        self.waiting.insert(key, sum);
    }

    /// The gradient of what a tap has read of a row, if anything depends on it.
    pub fn take(
        &mut self,
        ops: &dyn OpRunner,
        compiled: &Compiled,
        store: &mut Store,
        read: ValueId,
        row: usize,
    ) -> Result<Option<Array>> {
        let values = &compiled.values;
        for id in values.list.ids().rev().take_while(|&id| id > read) {
            if values.reads[id].binary_search(&read).is_err() {
                continue;
            }
            for row in values.rows[id].each() {
                if let Some(gradient) = self.waiting.remove(&(id, row)) {
                    self.hand_on(ops, compiled, store, id, row, gradient)?;
                }
            }
        }
        Ok(self.waiting.remove(&(read, Some(row))))
    }

    /// Hands a value's gradient on to what it was computed from.
    fn hand_on(
        &mut self,
        ops: &dyn OpRunner,
        compiled: &Compiled,
        store: &mut Store,
        id: ValueId,
        row: Option<usize>,
        gradient: Array,
    ) -> Result<()> {
        let values = &compiled.values;
        let inputs = values.inputs(id, row);
        let of = inputs.iter().map(|&(of, row)| store.get(ops, compiled, of, row)).collect::<Result<Vec<Array>>>()?;
        let fail = |problem: String| Error::Value {
            value: values.name(id),
            problem,
            remedy: "a metric is built from recorded operations".into(),
        };
        let shares = match &values.stretches[id] {
            Some(span) => vec![Some(ops.backward(span, &of[0], &gradient)?)],
            None if matches!(values.list[id].expr, Expr::Call { .. }) => {
                return Err(fail("the gradient cannot pass through a function of arrays".into()));
            }
            None => {
                let made = store.get(ops, compiled, id, row)?;
                derive(&values.list[id].expr, &of, &made, &gradient).map_err(fail)?
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
