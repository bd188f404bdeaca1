//! Plans: what to see and what to change, as data.
//!
//! A [`Plan`] is a list of taps; a [`Tap`] (`tap.rs`) is a site or pattern, a selection and one action (`action/`). Taps may
//! read values, values are computed from each other (`value.rs`), and edits write them back. It serializes to JSON (`json.rs`,
//! `json_value.rs`) and is checked against a program and its inputs before anything runs: `compile.rs` tap by tap,
//! `compile_value.rs` value by value, `passable.rs` and `order.rs` how they go together. The result is `compiled.rs`, which
//! `cache.rs` keeps.

mod action;
mod cache;
mod compile;
mod compile_value;
mod compiled;
mod json;
mod json_value;
mod order;
mod passable;
mod select;
mod shapes;
mod tap;
mod then;
mod value;
pub(crate) mod value_index;
pub(crate) mod value_shape;

pub use action::{Action, Callback, CallbackFn, FromSite, Operand, Reduce, Selected};
pub(crate) use action::{CompiledAction, CompiledReduce, Edit, Given, Resolved};
pub(crate) use cache::PlanCache;
pub(crate) use compile::compile;
pub(crate) use compile_value::{Stretch, Values, stretched, to_logits};
pub(crate) use compiled::{Chosen, Compiled, Entry, Lengths};
pub(crate) use select::Columns;
pub use select::{Phase, Positions};
pub use shapes::Shapes;
pub use tap::{AddTap, SetTap, Tap};
pub use value::{Across, Body, Combine, Expr, Fold, Function, Map, Pick, Value, ValueId};

use crate::array::Array;
use crate::ids::IdVec;

/// What to see and what to change in a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Taps on one site apply in this order.
    pub taps: Vec<Tap>,
    /// What is computed from what taps read; each from earlier ones.
    pub values: IdVec<ValueId, Value>,
    /// The values that come back.
    pub save: Vec<ValueId>,
    /// The values that gradients are of, each a single number.
    pub metrics: Vec<ValueId>,
    /// Edits may write NaN; otherwise that is an error.
    pub allow_nan: bool,
}

/// A value that a run handed over.
#[derive(Clone, Debug)]
pub struct Capture {
    /// Where it was.
    pub site: crate::Site,
    /// Index of the tap that asked for it.
    pub tap: usize,
    /// The row that it belongs to.
    pub row: usize,
    /// The absolute positions that its first axis runs over (for attention sites: its queries).
    pub positions: Vec<usize>,
    /// The values.
    pub array: Array,
    /// For a top-k reduction the units of the values.
    pub units: Option<Array>,
}

impl Plan {
    /// A plan that captures whole sites.
    ///
    /// ```
    /// use pellucid_engine::Plan;
    /// let plan = Plan::capture(["layers.*.resid_post", "logits"]);
    /// assert_eq!(plan.taps.len(), 2);
    /// ```
    pub fn capture<S: Into<String>>(sites: impl IntoIterator<Item = S>) -> Plan {
        Plan::of(sites.into_iter().map(Tap::capture))
    }

    /// A plan of taps alone.
    pub fn of(taps: impl IntoIterator<Item = Tap>) -> Plan {
        Plan { taps: taps.into_iter().collect(), ..Plan::default() }
    }

    /// The plan with one more tap.
    pub fn with(mut self, tap: Tap) -> Plan {
        self.taps.push(tap);
        self
    }

    /// Adds a tap that reads a site, and gives the value that it reads.
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

    /// Adds a value.
    pub fn value(&mut self, expr: Expr) -> ValueId {
        self.values.push(Value { name: None, expr })
    }

    /// Names a value: what it is called in JSON and in what comes back. Returns the value.
    pub fn name(&mut self, value: ValueId, name: impl Into<String>) -> ValueId {
        self.values[value].name = Some(name.into());
        value
    }

    /// Returns a value with the run.
    pub fn save_value(&mut self, value: ValueId) {
        self.save.push(value);
    }

    /// Makes a value, a single number, a metric that gradients are of; gives its index among the metrics.
    pub fn add_metric(&mut self, value: ValueId) -> usize {
        self.metrics.push(value);
        self.metrics.len() - 1
    }

    /// Adds a tap that captures the gradient of the plan's first metric.
    pub fn gradient(self, site: impl Into<String>) -> Plan {
        self.with(Tap::capture(site).of_gradient(0))
    }
}
