//! Actions: what a tap does with the values that it selects.
//!
//! Each action has a file (`add.rs`, `cap.rs`, …) with everything that belongs to it: how it is read from JSON (`read`) and
//! written (`write`), how it is checked and compiled (`compile`), and for an edit its formula and the formula of its gradient
//! (`apply`, `backward`, which `edit.rs` calls). The `actions!` table below lists them. To add an action, add its variant, its
//! row and its file; the compiler names what is missing. `operand.rs` holds what actions write.

mod add;
mod call;
mod cap;
mod capture;
mod edit;
mod grad;
mod mean_ablate;
mod operand;
mod project_out;
mod read;
mod scale;
mod set;
mod skip;
mod zero;

pub use call::{Callback, CallbackFn, Selected};
pub(crate) use capture::CompiledReduce;
pub use capture::Reduce;
pub(crate) use edit::{CompiledAction, Edit, Given, Resolved};
pub use operand::{FromSite, Operand};

use super::compile::{Compiler, Place};
use super::json_value::{Names, Written};
use serde_json::{Map, Value};

/// What a tap does with the values that it selects.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Return the value, whole or reduced.
    Capture(Option<Reduce>),
    /// Make it a value of the plan: the plan's [`Expr::Read`](super::Expr::Read) of this tap.
    Read,
    /// Do this to the gradient of a metric there, instead of to the value: capture, read or change it during the backward pass.
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
    /// The layer is skipped: its output is this, or its input.
    Skip(Option<Operand>),
    /// A Rust closure changes the value.
    Call(Callback),
}

/// What the table says about an action besides its functions.
pub(super) struct Facts {
    /// Its key in JSON.
    key: &'static str,
    /// Whether JSON can say it.
    json: bool,
    /// Whether it changes the value.
    edits: bool,
    /// Whether attention sites (scores and weights) take it.
    attention: bool,
    /// Whether gradients take it.
    gradients: bool,
}

/// Writes the functions that go over all actions. A row names the action's file with the fields that its functions take, its
/// pattern, the fields that hold operands, and its [`Facts`].
macro_rules! actions {
    ($($file:ident($($field:ident),*) = $action:pat, operands [$($operand:ident),*], $facts:expr;)+) => {
        const FACTS: &[Facts] = &[$($facts),+];

        #[allow(unused_variables, unused_mut)] // each function uses some of the fields that a row names
        impl Action {
            pub(super) fn facts(&self) -> &'static Facts {
                match self {
                    $($action => const { &$facts },)+
                }
            }

            /// The operands that it uses.
            pub fn operands(&self) -> Vec<&Operand> {
                let mut operands = Vec::new();
                match self {
                    $($action => { $($operand.add_operands(&mut operands);)* })+
                }
                operands
            }

            /// The operands that it uses, to be changed.
            pub fn operands_mut(&mut self) -> Vec<&mut Operand> {
                let mut operands = Vec::new();
                match self {
                    $($action => { $($operand.add_operands_mut(&mut operands);)* })+
                }
                operands
            }

            /// Reads the action of a key from its JSON value.
            fn read_key(key: &str, value: Value, names: &Names) -> Result<Action, String> {
                $(if key == const { $facts.key } {
                    return $file::read(value, names);
                })+
                Err(format!("unknown key `{key}`; a tap has one action, one of {}", keys(|facts| facts.json)))
            }

            /// Its JSON value, without its key.
            fn write_value(&self, to: &Writer) -> Result<Value, String> {
                match self {
                    $($action => $file::write($($field,)* to),)+
                }
            }

            /// Checks it at one site, for a selection there.
            pub(super) fn compile(&self, compiler: &mut Compiler, place: Place) -> Result<CompiledAction, String> {
                match self {
                    $($action => $file::compile($($field,)* compiler, place),)+
                }
            }
        }
    };
}

actions! {
    capture(reduce) = Action::Capture(reduce), operands [reduce],
        Facts { key: "capture", json: true, edits: false, attention: true, gradients: true };
    read() = Action::Read, operands [],
        Facts { key: "as", json: true, edits: false, attention: true, gradients: true };
    set(operand) = Action::Set(operand), operands [operand],
        Facts { key: "set", json: true, edits: true, attention: true, gradients: true };
    add(operand, scale) = Action::Add { operand, scale }, operands [operand],
        Facts { key: "add", json: true, edits: true, attention: true, gradients: true };
    scale(by) = Action::Scale(by), operands [],
        Facts { key: "scale", json: true, edits: true, attention: true, gradients: true };
    zero() = Action::Zero, operands [],
        Facts { key: "zero", json: true, edits: true, attention: true, gradients: true };
    mean_ablate(operand) = Action::MeanAblate(operand), operands [operand],
        Facts { key: "mean_ablate", json: true, edits: true, attention: false, gradients: false };
    project_out(vector, scale) = Action::ProjectOut { vector, scale }, operands [vector],
        Facts { key: "project_out", json: true, edits: true, attention: false, gradients: false };
    cap(vector, min, max) = Action::Cap { vector, min, max }, operands [vector],
        Facts { key: "cap", json: true, edits: true, attention: false, gradients: false };
    skip(operand) = Action::Skip(operand), operands [operand],
        Facts { key: "skip", json: true, edits: true, attention: false, gradients: false };
    grad(metric, action) = Action::Grad { metric, action }, operands [action],
        Facts { key: "grad", json: true, edits: false, attention: true, gradients: false };
    call(callback) = Action::Call(callback), operands [],
        Facts { key: "call", json: false, edits: true, attention: true, gradients: false };
}

/// The keys of some of the actions, for messages.
fn keys(of: impl Fn(&Facts) -> bool) -> String {
    FACTS.iter().filter(|facts| of(facts)).map(|facts| facts.key).collect::<Vec<_>>().join(", ")
}

/// What writing an action as JSON needs to know.
pub(super) struct Writer<'a> {
    /// The tap that it belongs to.
    pub tap: usize,
    /// The names of the plan's values.
    pub names: &'a Written,
}

impl Action {
    /// Reads an action from the keys of a tap that are not its selection.
    pub(super) fn from_json(keys: Map<String, Value>, names: &Names) -> Result<Action, String> {
        let found = keys.keys().map(|key| format!("`{key}`")).collect::<Vec<_>>().join(" and ");
        let mut entries = keys.into_iter();
        let (Some((key, value)), None) = (entries.next(), entries.next()) else {
            let found = if found.is_empty() { "found none".into() } else { format!("found {found}") };
            let known = self::keys(|facts| facts.json);
            return Err(format!("{found}; a tap has exactly one action, one of {known}"));
        };
        Action::read_key(&key, value, names)
    }

    /// The action as the keys of a tap that are not its selection.
    pub(super) fn to_json(&self, to: &Writer) -> Result<Map<String, Value>, String> {
        Ok(Map::from_iter([(self.facts().key.to_string(), self.write_value(to)?)]))
    }

    /// Refuses it at a site that does not take it.
    pub(super) fn check_site(&self, place: Place) -> Result<(), String> {
        let Facts { edits, attention, .. } = *self.facts();
        if place.on_attention() && !attention {
            return Err(format!("attention sites take {}", keys(|facts| facts.attention)));
        }
        if place.edge.integer && edits {
            return Err("a choice of experts can be captured whole, not edited; edit router_logits instead".into());
        }
        if place.edge.aside && edits {
            return Err("a recurrent state can be captured, not edited: it flows from token to token inside one op; edit mixer_in or conv_out, which feed it".into());
        }
        Ok(())
    }

    /// Whether it returns a capture, of the value or of a gradient.
    pub fn captures(&self) -> bool {
        match self {
            Action::Capture(_) => true,
            Action::Grad { action, .. } => action.captures(),
            Action::Read
            | Action::Set(_)
            | Action::Add { .. }
            | Action::Scale(_)
            | Action::Zero
            | Action::MeanAblate(_)
            | Action::ProjectOut { .. }
            | Action::Cap { .. }
            | Action::Skip(_)
            | Action::Call(_) => false,
        }
    }

    /// Whether a gradient is the same before and after it: it captures, or adds what no site of the run feeds.
    pub(crate) fn keeps_gradient(&self) -> bool {
        match self {
            Action::Capture(_) => true,
            Action::Add { operand, .. } => !matches!(operand, Operand::From(_)),
            Action::Read
            | Action::Grad { .. }
            | Action::Set(_)
            | Action::Scale(_)
            | Action::Zero
            | Action::MeanAblate(_)
            | Action::ProjectOut { .. }
            | Action::Cap { .. }
            | Action::Skip(_)
            | Action::Call(_) => false,
        }
    }
}

/// A field of an action that holds operands.
trait HasOperands {
    fn add_operands<'a>(&'a self, operands: &mut Vec<&'a Operand>);
    fn add_operands_mut<'a>(&'a mut self, operands: &mut Vec<&'a mut Operand>);
}

impl HasOperands for Operand {
    fn add_operands<'a>(&'a self, operands: &mut Vec<&'a Operand>) {
        operands.push(self);
    }

    fn add_operands_mut<'a>(&'a mut self, operands: &mut Vec<&'a mut Operand>) {
        operands.push(self);
    }
}

impl<T: HasOperands> HasOperands for Option<T> {
    fn add_operands<'a>(&'a self, operands: &mut Vec<&'a Operand>) {
        self.iter().for_each(|one| one.add_operands(operands));
    }

    fn add_operands_mut<'a>(&'a mut self, operands: &mut Vec<&'a mut Operand>) {
        self.iter_mut().for_each(|one| one.add_operands_mut(operands));
    }
}

impl HasOperands for Box<Action> {
    fn add_operands<'a>(&'a self, operands: &mut Vec<&'a Operand>) {
        operands.extend(self.operands());
    }

    fn add_operands_mut<'a>(&'a mut self, operands: &mut Vec<&'a mut Operand>) {
        operands.extend(self.operands_mut());
    }
}

impl HasOperands for Reduce {
    fn add_operands<'a>(&'a self, operands: &mut Vec<&'a Operand>) {
        match self {
            Reduce::Dot(vector) => operands.push(vector),
            Reduce::Mean | Reduce::Norm | Reduce::TopK(_) => {}
        }
    }

    fn add_operands_mut<'a>(&'a mut self, operands: &mut Vec<&'a mut Operand>) {
        match self {
            Reduce::Dot(vector) => operands.push(vector),
            Reduce::Mean | Reduce::Norm | Reduce::TopK(_) => {}
        }
    }
}
