//! Plans: what a run captures and changes, as data.
//!
//! A [`Plan`] is a list of taps. A [`Tap`] (`tap.rs`) is a site or pattern, a selection and one
//! action (`action/`). Taps can read activations into values; values are expressions over other
//! values (`value.rs`); edits can write values. A plan serializes to JSON (`json.rs`,
//! `json_value.rs`, `strict_json.rs`). A tap can have a condition (`when.rs`). `steering.rs` reads
//! steering specs, which become taps.
//!
//! A plan is checked against a program and its inputs before anything runs: `compile.rs` checks
//! taps, `compile_value.rs` values, `check_gradients.rs` edited shapes and differentiability,
//! `row_groups.rs` dependencies between rows. The result is a `CompiledPlan` (`compiled.rs`), which
//! `cache.rs` caches.

mod action;
mod cache;
mod check_gradients;
mod compile;
mod compile_value;
mod compiled;
mod json;
mod json_value;
mod message_positions;
mod output_shapes;
mod row_groups;
mod sae_uses;
mod select;
mod select_experts;
mod steering;
mod strict_json;
mod tap;
mod value;
pub(crate) mod value_index;
pub(crate) mod value_shape;
mod when;

#[doc(hidden)]
pub use action::SelectedRow as Selected;
pub use action::{Action, Callback, CallbackFn, FromSite, Injection, Operand, Reduce, SelectedRow, Splice};
pub(crate) use action::{CompiledAction, CompiledReduce, Edit, EditInput, EditSource, TokenOperand, check_expert};
pub(crate) use cache::PlanCache;
pub(crate) use compile::compile;
pub(crate) use compile_value::{CompiledValues, OpRange, op_range_shape, to_logits};
pub(crate) use compiled::{CompiledPlan, CompiledTap, Lengths, SelectedPositions};
pub use message_positions::{MessagePart, MessagePositions, Messages};
pub use output_shapes::OutputShapes;
#[doc(hidden)]
pub use output_shapes::OutputShapes as Shapes;
pub(crate) use select::Columns;
pub use select::{Phase, Positions};
pub use steering::{SteeringOp, SteeringSpec};
pub use strict_json::parse_strict;
pub use tap::{AddTap, SetTap, Tap};
#[doc(hidden)]
pub use value::FunctionBody as Body;
pub use value::{Across, Combine, Expr, Fold, Function, FunctionBody, Map, Pick, Value, ValueId};

pub(crate) use when::{Condition, Consequence, refuse_conditions};
pub use when::{Mark, Probe, When};

use crate::array::{Array, SparseRows};
use crate::ids::IdVec;
use std::sync::Arc;

/// What a run captures and changes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Taps; those on the same site apply in this order.
    pub taps: Vec<Tap>,
    /// Values computed from what taps read; a value can use only earlier values.
    pub values: IdVec<ValueId, Value>,
    /// Values that the run returns.
    pub save: Vec<ValueId>,
    /// Scalar values that are differentiated.
    pub metrics: Vec<ValueId>,
    /// Allow edits to write NaN, which is an error otherwise.
    pub allow_nan: bool,
    /// Sparse autoencoders whose features the taps name, as `PATH[@SITE]`. The caller attaches them
    /// before the run: the engine reads no files.
    pub saes: Vec<String>,
}

/// A captured activation or gradient.
#[derive(Clone, Debug)]
pub struct Capture {
    /// The captured site.
    pub site: crate::Site,
    /// Index of the tap in the plan.
    pub tap: usize,
    /// Row of the call.
    pub row: usize,
    /// Absolute positions of the first axis (of the query axis for attention sites).
    pub positions: Vec<usize>,
    /// The captured values; of a sparse capture the nonzero elements only.
    pub array: Array,
    /// Unit indices of the values, for a top-k reduction.
    pub units: Option<Array>,
    /// Positions and units of the values, for a sparse capture.
    pub sparse: Option<Arc<SparseRows>>,
}

impl Plan {
    /// Returns a plan that captures whole sites.
    ///
    /// ```
    /// use pellucid_engine::Plan;
    /// let plan = Plan::capture(["layers.*.resid_post", "logits"]);
    /// assert_eq!(plan.taps.len(), 2);
    /// ```
    pub fn capture<S: Into<String>>(sites: impl IntoIterator<Item = S>) -> Plan {
        Plan::of(sites.into_iter().map(Tap::capture))
    }

    /// Returns a plan of taps without values.
    pub fn of(taps: impl IntoIterator<Item = Tap>) -> Plan {
        Plan { taps: taps.into_iter().collect(), ..Plan::default() }
    }

    /// Whether a run under it returns captures, gradients or saved values.
    pub fn returns_tensors(&self) -> bool {
        !self.save.is_empty() || self.taps.iter().any(|tap| tap.action.captures())
    }

    /// Appends a tap.
    pub fn with(mut self, tap: Tap) -> Plan {
        self.taps.push(tap);
        self
    }

    /// Appends a tap that reads a site; returns the value that it reads.
    ///
    /// ```
    /// use pellucid_engine::plan::{Expr, Map};
    /// use pellucid_engine::{Operand, Plan, Tap};
    /// // The square of the residual stream after layer 3, written after layer 5.
    /// let mut plan = Plan::default();
    /// let stream = plan.read(Tap::read("layers.3.resid_post"));
    /// let squared = plan.value(Expr::Map(Map::Square, stream));
    /// let plan = plan.with(Tap::set("layers.5.resid_post").with(Operand::Value(squared)));
    /// assert_eq!(plan.taps.len(), 2);
    /// ```
    pub fn read(&mut self, tap: Tap) -> ValueId {
        self.taps.push(tap);
        self.value(Expr::Read(self.taps.len() - 1))
    }

    /// Appends a value; returns its id.
    pub fn value(&mut self, expr: Expr) -> ValueId {
        self.values.push(Value { name: None, expr })
    }

    /// Names a value, for JSON and for the results; returns its id.
    pub fn name(&mut self, value: ValueId, name: impl Into<String>) -> ValueId {
        self.values[value].name = Some(name.into());
        value
    }

    /// Makes the run return a value.
    pub fn save_value(&mut self, value: ValueId) {
        self.save.push(value);
    }

    /// Makes a scalar value a metric to differentiate; returns its index among the metrics.
    pub fn add_metric(&mut self, value: ValueId) -> usize {
        self.metrics.push(value);
        self.metrics.len() - 1
    }

    /// Appends a tap that captures the gradient of the plan's first metric.
    pub fn gradient(self, site: impl Into<String>) -> Plan {
        self.with(Tap::capture(site).of_gradient(0))
    }

    /// Concatenates two plans; the taps of this one apply first.
    ///
    /// The later plan's taps, values and metrics keep their order: its tap `i` becomes tap
    /// `self.taps.len() + i`, and so on.
    ///
    /// ```
    /// use pellucid_engine::{Action, Plan, Tap};
    /// let edits = Plan::default().with(Tap::new("layers.0.z", Action::Zero));
    /// let both = edits.then(Plan::capture(["logits"]));
    /// assert_eq!(both.taps[1].site, "logits");
    /// ```
    pub fn then(mut self, later: Plan) -> Plan {
        let (taps, values, metrics) = (self.taps.len(), self.values.len(), self.metrics.len());
        self.taps.extend(later.taps.into_iter().map(|tap| {
            let mut tap = tap.with_values_after(values);
            if let Action::Grad { metric, .. } = &mut tap.action {
                *metric += metrics;
            }
            tap
        }));
        self.values.extend(later.values.into_iter().map(|value| value.after(taps, values, metrics)));
        self.save.extend(later.save.iter().map(|id| id.after(values)));
        self.metrics.extend(later.metrics.iter().map(|id| id.after(values)));
        self.allow_nan |= later.allow_nan;
        self.saes.extend(later.saes);
        self
    }
}
