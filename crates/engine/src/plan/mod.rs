//! Plans: what to see and what to change, as data.
//!
//! A [`Plan`] is a list of taps; a [`Tap`] is a site (or pattern), a selection and one action. Taps may read values, values are
//! computed from each other (`value.rs`), and edits write them back. It serialises to JSON (`json.rs`, `json_value.rs`) and is checked
//! against a program and its inputs before anything runs: `compile.rs` tap by tap (`operand.rs` what edits write), `compile_value.rs`
//! value by value, `passable.rs` and `order.rs` how they go together. The result is `compiled.rs`, which `cache.rs` keeps and
//! `explain.rs` describes.

mod cache;
mod compile;
mod compile_value;
mod compiled;
mod json;
mod json_value;

mod operand;
mod order;
mod passable;
mod select;
mod shapes;
mod then;
mod value;

pub(crate) use cache::PlanCache;
pub(crate) use compile::compile;
pub(crate) use compile_value::{Stretch, Values, stretched, to_logits};
pub(crate) use compiled::{Chosen, Compiled, CompiledAction, CompiledReduce, Entry, Given, Lengths};
pub(crate) use select::Columns;
pub use select::{Phase, Positions};
pub use shapes::Shapes;
pub use value::{Across, Body, Combine, Expr, Fold, Function, Map, Pick, Value, ValueId};

use crate::array::Array;
use std::sync::Arc;

/// What to see and what to change in a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Taps on one site apply in this order.
    pub taps: Vec<Tap>,
    /// What is computed from what taps read; each from earlier ones.
    pub values: Vec<Value>,
    /// The values that come back.
    pub save: Vec<ValueId>,
    /// The values that gradients are of, each a single number.
    pub metrics: Vec<ValueId>,
    /// Edits may write NaN; otherwise that is an error.
    pub allow_nan: bool,
}

/// A site, a selection and an action.
#[derive(Clone, Debug, PartialEq)]
pub struct Tap {
    /// Address, pattern or alias.
    pub site: String,
    /// Which inputs of the call; all where absent.
    pub rows: Option<Vec<usize>>,
    /// Which positions.
    pub positions: Positions,
    /// Which phase of a generation.
    pub phase: Phase,
    /// Which steps of a generation: step 0 is the last prompt position.
    pub steps: Option<Positions>,
    /// Which heads, for sites that have them.
    pub heads: Option<Vec<usize>>,
    /// Which units (columns).
    pub units: Option<Vec<usize>>,
    /// Which key positions, for attention sites.
    pub keys: Option<Positions>,
    /// What to do there.
    pub action: Action,
}

/// What a tap does with the values that it selects.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Hand the value over, whole or reduced.
    Capture(Option<Reduce>),
    /// Make it a value: the plan's [`Expr::Read`] of this tap.
    Read,
    /// Do this to the gradient of a metric there, instead of to the value: capture, read or change it on its way.
    Grad {
        /// Which of the plan's metrics.
        metric: usize,
        /// What to do.
        action: Box<Action>,
    },
    /// Replace it.
    Set(Operand),
    /// Add to it.
    Add {
        /// What to add, as given.
        operand: Operand,
        /// What it is multiplied by first.
        scale: f32,
    },
    /// Multiply it.
    Scale(f32),
    /// Replace it by zeros.
    Zero,
    /// Replace it by a given mean.
    MeanAblate(Operand),
    /// `h + (s − 1)(h·v)v` with `v` of unit length: 0 removes the direction, 1 changes nothing.
    ProjectOut {
        /// The direction.
        vector: Operand,
        /// What is left of it.
        scale: f32,
    },
    /// `h + (clamp(h·v) − h·v)v` with `v` of unit length.
    Cap {
        /// The direction.
        vector: Operand,
        /// Least value of `h·v`.
        min: Option<f32>,
        /// Largest value of `h·v`.
        max: Option<f32>,
    },
    /// The layer is passed over: what leaves it is this, or what entered it.
    Skip(Option<Operand>),
    /// A Rust closure changes the value.
    Call(Callback),
}

/// How a captured value is reduced before it is handed over.
#[derive(Clone, Debug, PartialEq)]
pub enum Reduce {
    /// The mean over the selected positions.
    Mean,
    /// The length of each position's vector.
    Norm,
    /// The largest values of each position, with their units.
    TopK(usize),
    /// The inner product of each position with a vector.
    Dot(Operand),
}

/// A value that an action uses.
#[derive(Clone, Debug, PartialEq)]
pub enum Operand {
    /// The same number everywhere.
    Number(f32),
    /// One number for each selected unit, the same at every position.
    Vector(Vec<f32>),
    /// One vector for each selected position.
    Rows(Vec<Vec<f32>>),
    /// A tensor in a safetensors file, `file.safetensors#name`; resolved before compiling.
    File(String),
    /// The value of a site in this run.
    From(FromSite),
    /// A value of the plan; its shape broadcasts to the selection's.
    Value(ValueId),
}

/// Another site's value.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct FromSite {
    /// The source site; the tap's own where absent.
    pub site: Option<String>,
    /// The source row or rows; the tap's own row where absent.
    pub rows: Option<Vec<usize>>,
    /// The source positions; the tap's own where absent.
    pub positions: Option<Positions>,
}

/// The selected values of one row, as a callback sees them.
pub struct Selected {
    /// The row of the call.
    pub row: usize,
    /// Absolute positions of the selected tokens.
    pub positions: Vec<usize>,
    /// Floats for each position; for attention sites keys for each head and position.
    pub width: usize,
    /// The values, to be read and changed in place: `[positions, width]`, for attention sites `[heads, positions, keys]`.
    pub values: Vec<f32>,
}

/// A closure that changes values. It is called once for each site and pass, with the selected rows that run together.
#[derive(Clone)]
pub struct Callback(pub Arc<dyn Fn(&mut [Selected]) + Send + Sync>);

impl std::fmt::Debug for Callback {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Callback")
    }
}

impl PartialEq for Callback {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
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
        Plan::of(sites.into_iter().map(|site| Tap::new(site, Action::Capture(None))))
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
    /// use pellucid_engine::{Action, Operand, Plan, Tap};
    /// // Twice what layer 3 writes, written at layer 5.
    /// let mut plan = Plan::default();
    /// let stream = plan.read(Tap::new("layers.3.resid_post", Action::Read));
    /// let squared = plan.value(Expr::Map(Map::Square, stream));
    /// let plan = plan.with(Tap::new("layers.5.resid_post", Action::Set(Operand::Value(squared))));
    /// assert_eq!(plan.taps.len(), 2);
    /// ```
    pub fn read(&mut self, tap: Tap) -> ValueId {
        self.taps.push(tap);
        self.value(Expr::Read(self.taps.len() - 1))
    }

    /// Adds a value.
    pub fn value(&mut self, expr: Expr) -> ValueId {
        self.values.push(Value { name: None, expr });
        self.values.len() - 1
    }

    /// Adds a tap that captures the gradient of the plan's first metric.
    pub fn gradient(self, site: impl Into<String>) -> Plan {
        self.with(Tap::new(site, Action::Grad { metric: 0, action: Box::new(Action::Capture(None)) }))
    }
}

impl Tap {
    /// A tap on all rows and positions.
    pub fn new(site: impl Into<String>, action: Action) -> Tap {
        Tap {
            site: site.into(),
            rows: None,
            positions: Positions::All,
            phase: Phase::All,
            steps: None,
            heads: None,
            units: None,
            keys: None,
            action,
        }
    }

    /// The same tap in a plan that has `values` values before its own.
    pub(crate) fn with_values_after(mut self, values: usize) -> Tap {
        fn shift(action: &mut Action, by: usize) {
            match action {
                Action::Set(operand)
                | Action::MeanAblate(operand)
                | Action::Add { operand, .. }
                | Action::Skip(Some(operand)) => {
                    if let Operand::Value(value) = operand {
                        *value += by;
                    }
                }
                Action::Grad { action, .. } => shift(action, by),
                _ => {}
            }
        }
        shift(&mut self.action, values);
        self
    }

    /// Only these rows.
    pub fn rows(mut self, rows: impl IntoIterator<Item = usize>) -> Tap {
        self.rows = Some(rows.into_iter().collect());
        self
    }

    /// Only these positions.
    pub fn positions(mut self, positions: Positions) -> Tap {
        self.positions = positions;
        self
    }

    /// Only these heads.
    pub fn heads(mut self, heads: impl IntoIterator<Item = usize>) -> Tap {
        self.heads = Some(heads.into_iter().collect());
        self
    }

    /// Only these units.
    pub fn units(mut self, units: impl IntoIterator<Item = usize>) -> Tap {
        self.units = Some(units.into_iter().collect());
        self
    }

    /// Only these key positions.
    pub fn keys(mut self, keys: Positions) -> Tap {
        self.keys = Some(keys);
        self
    }

    /// Only this phase of a generation.
    pub fn phase(mut self, phase: Phase) -> Tap {
        self.phase = phase;
        self
    }

    /// Only these steps of a generation.
    pub fn steps(mut self, steps: Positions) -> Tap {
        self.steps = Some(steps);
        self
    }
}
