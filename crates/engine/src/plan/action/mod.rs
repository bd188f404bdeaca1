//! Actions: what a tap does with the elements that it selects.
//!
//! Each action has a file (`add.rs`, `cap.rs`, …) with its JSON parser (`read`) and writer
//! (`write`), its check and compilation (`compile`), and for an edit the formulas of its forward
//! and backward pass (`apply`, `backward`, called by `edit.rs`). The `actions!` table below lists
//! them. To add an action, add its variant, its row and its file; the compiler reports what is
//! missing. `operand.rs` holds the operands of actions.

mod add;
mod add_scaled;
mod call;
mod cap;
mod capture;
mod edit;
mod grad;
mod inject;
mod mark;
mod mean_ablate;
mod norm_match;
mod operand;
mod orthogonal;
mod project_out;
mod read;
mod replace;
mod scale;
mod set;
mod skip;
mod splice;
mod stop;
mod swap;
mod zero;

pub use call::{Callback, CallbackFn, SelectedRow};
pub(crate) use capture::CompiledReduce;
pub use capture::Reduce;
pub(crate) use edit::{CompiledAction, Edit, EditInput, EditSource, TokenOperand};
pub use inject::Injection;
pub use operand::{FromSite, Operand};
pub(super) use operand::{read_operand, write_operand};
pub(crate) use replace::check_expert;
pub use splice::Splice;

use super::compile::{Compiler, TapSite};
use super::json_value::{ValueParser, ValueWriter};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// What a tap does with the elements that it selects.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Return the activation, whole or reduced.
    Capture(Option<Reduce>),
    /// Read the activation into a value of the plan, [`Expr::Read`](super::Expr::Read) of this tap.
    Read,
    /// Apply an action to the gradient of a metric at this site instead of to the activation:
    /// capture, read or edit it during the backward pass.
    Grad {
        /// Index of the plan's metric.
        metric: usize,
        /// The action.
        action: Box<Action>,
    },
    /// Replace it.
    Set(Operand),
    /// Add to it.
    Add {
        /// What to add.
        operand: Operand,
        /// Scale of the operand.
        scale: f32,
    },
    /// Multiply it.
    Scale(f32),
    /// Replace it by zeros.
    Zero,
    /// Run other experts in place of chosen ones, at `expert_indices`: from each chosen expert to
    /// the one that runs.
    Replace(BTreeMap<usize, usize>),
    /// Replace it by a mean supplied by the caller.
    MeanAblate(Operand),
    /// `h + (s − 1)(h·v)v` with `v` of unit length: 0 removes the direction, 1 changes nothing.
    ProjectOut {
        /// The direction.
        vector: Operand,
        /// Scale of the component along the direction.
        scale: f32,
    },
    /// `h + (clamp(h·v) − h·v)v` with `v` of unit length.
    Cap {
        /// The direction.
        vector: Operand,
        /// Minimum of `h·v`.
        min: Option<f32>,
        /// Maximum of `h·v`.
        max: Option<f32>,
    },
    /// `h + s‖h‖v/‖v‖`: adds a direction in proportion to the activation's norm.
    AddScaled {
        /// The direction.
        vector: Operand,
        /// Norm of the added vector as a multiple of the activation's.
        scale: f32,
    },
    /// `(h + sv)‖h‖/‖h + sv‖`: adds a vector and keeps the activation's norm.
    NormMatch {
        /// The vector.
        vector: Operand,
        /// Scale of the vector.
        scale: f32,
    },
    /// `h − (h·v)v/‖v‖² + sv`: removes the component along a direction, then adds the vector.
    Orthogonal {
        /// The vector.
        vector: Operand,
        /// Scale of the added vector.
        scale: f32,
    },
    /// Exchanges the components along two directions; everything orthogonal to both stays.
    Swap {
        /// One direction.
        first: Operand,
        /// The other direction.
        second: Operand,
    },
    /// Write or add a vector, usually at the positions of a placeholder token.
    Inject {
        /// The vector, or one for each selected position.
        operand: Operand,
        /// How to write it.
        how: Injection,
    },
    /// End the row's generation where the tap's condition holds.
    Stop,
    /// Report under a name each position where the tap's condition holds.
    Mark(String),
    /// Skip the layer: its output is the operand, or its input if there is none.
    Skip(Option<Operand>),
    /// Continue with the output of the attached autoencoder.
    Splice(Splice),
    /// Call a Rust closure that can change it.
    Call(Callback),
}

/// Properties of an action in the `actions!` table.
pub(super) struct ActionInfo {
    /// JSON key.
    key: &'static str,
    /// Whether it can be written in JSON.
    json: bool,
    /// Whether it changes the activation.
    edits: bool,
    /// Whether it is allowed at attention sites (scores and weights).
    attention: bool,
    /// Whether it is allowed on expert indices.
    indices: bool,
    /// Whether it is allowed on gradients.
    gradients: bool,
}

/// Generates the functions that dispatch over all actions. A row names the action's file with the
/// fields that its functions take, its pattern, the fields that hold operands, and its
/// [`ActionInfo`].
macro_rules! actions {
    ($($file:ident($($field:ident),*) = $action:pat, operands [$($operand:ident),*], $info:expr;)+) => {
        const ACTIONS: &[ActionInfo] = &[$($info),+];

        #[allow(unused_variables, unused_mut)] // each function uses some of a row's fields
        impl Action {
            pub(super) fn info(&self) -> &'static ActionInfo {
                match self {
                    $($action => const { &$info },)+
                }
            }

            /// Returns its operands.
            pub fn operands(&self) -> Vec<&Operand> {
                let mut operands = Vec::new();
                match self {
                    $($action => { $($operand.add_operands(&mut operands);)* })+
                }
                operands
            }

            /// Returns its operands, mutable.
            pub fn operands_mut(&mut self) -> Vec<&mut Operand> {
                let mut operands = Vec::new();
                match self {
                    $($action => { $($operand.add_operands_mut(&mut operands);)* })+
                }
                operands
            }

            /// Parses the action with JSON key `key`.
            fn read_key(key: &str, value: Value, names: &ValueParser) -> Result<Action, String> {
                $(if key == const { $info.key } {
                    return $file::read(value, names);
                })+
                Err(format!("unknown key `{key}`; a tap has one action, one of {}", keys(|info| info.json)))
            }

            /// Returns its JSON value, without its key.
            fn write_value(&self, to: &ActionWriter) -> Result<Value, String> {
                match self {
                    $($action => $file::write($($field,)* to),)+
                }
            }

            /// Compiles it for one site and selection.
            pub(super) fn compile(&self, compiler: &mut Compiler, target: TapSite) -> Result<CompiledAction, String> {
                match self {
                    $($action => $file::compile($($field,)* compiler, target),)+
                }
            }
        }
    };
}

actions! {
    capture(reduce) = Action::Capture(reduce), operands [reduce],
        ActionInfo { key: "capture", json: true, edits: false, attention: true, indices: true, gradients: true };
    read() = Action::Read, operands [],
        ActionInfo { key: "as", json: true, edits: false, attention: true, indices: true, gradients: true };
    set(operand) = Action::Set(operand), operands [operand],
        ActionInfo { key: "set", json: true, edits: true, attention: true, indices: true, gradients: true };
    add(operand, scale) = Action::Add { operand, scale }, operands [operand],
        ActionInfo { key: "add", json: true, edits: true, attention: true, indices: false, gradients: true };
    scale(by) = Action::Scale(by), operands [],
        ActionInfo { key: "scale", json: true, edits: true, attention: true, indices: false, gradients: true };
    zero() = Action::Zero, operands [],
        ActionInfo { key: "zero", json: true, edits: true, attention: true, indices: false, gradients: true };
    replace(experts) = Action::Replace(experts), operands [],
        ActionInfo { key: "replace", json: true, edits: true, attention: false, indices: true, gradients: false };
    mean_ablate(operand) = Action::MeanAblate(operand), operands [operand],
        ActionInfo { key: "mean_ablate", json: true, edits: true, attention: false, indices: false, gradients: false };
    project_out(vector, scale) = Action::ProjectOut { vector, scale }, operands [vector],
        ActionInfo { key: "project_out", json: true, edits: true, attention: false, indices: false, gradients: false };
    cap(vector, min, max) = Action::Cap { vector, min, max }, operands [vector],
        ActionInfo { key: "cap", json: true, edits: true, attention: false, indices: false, gradients: false };
    add_scaled(vector, scale) = Action::AddScaled { vector, scale }, operands [vector],
        ActionInfo { key: "add_scaled", json: true, edits: true, attention: false, indices: false, gradients: false };
    norm_match(vector, scale) = Action::NormMatch { vector, scale }, operands [vector],
        ActionInfo { key: "norm_match", json: true, edits: true, attention: false, indices: false, gradients: false };
    orthogonal(vector, scale) = Action::Orthogonal { vector, scale }, operands [vector],
        ActionInfo { key: "orthogonal", json: true, edits: true, attention: false, indices: false, gradients: false };
    swap(first, second) = Action::Swap { first, second }, operands [first, second],
        ActionInfo { key: "swap", json: true, edits: true, attention: false, indices: false, gradients: false };
    inject(operand, how) = Action::Inject { operand, how }, operands [operand],
        ActionInfo { key: "inject", json: true, edits: true, attention: false, indices: false, gradients: false };
    splice(how) = Action::Splice(how), operands [],
        ActionInfo { key: "splice", json: true, edits: true, attention: false, indices: false, gradients: false };
    skip(operand) = Action::Skip(operand), operands [operand],
        ActionInfo { key: "skip", json: true, edits: true, attention: false, indices: false, gradients: false };
    stop() = Action::Stop, operands [],
        ActionInfo { key: "stop", json: true, edits: false, attention: false, indices: false, gradients: false };
    mark(name) = Action::Mark(name), operands [],
        ActionInfo { key: "mark", json: true, edits: false, attention: false, indices: false, gradients: false };
    grad(metric, action) = Action::Grad { metric, action }, operands [action],
        ActionInfo { key: "grad", json: true, edits: false, attention: true, indices: false, gradients: false };
    call(callback) = Action::Call(callback), operands [],
        ActionInfo { key: "call", json: false, edits: true, attention: true, indices: false, gradients: false };
}

/// Returns the JSON keys of the actions that `of` accepts, for messages.
fn keys(of: impl Fn(&ActionInfo) -> bool) -> String {
    ACTIONS.iter().filter(|info| of(info)).map(|info| info.key).collect::<Vec<_>>().join(", ")
}

/// Context for writing an action as JSON.
pub(super) struct ActionWriter<'a> {
    /// Index of its tap.
    pub tap: usize,
    /// Names of the plan's values.
    pub names: &'a ValueWriter,
}

impl Action {
    /// Parses an action from the keys of a tap that are not its selection.
    pub(super) fn from_json(keys: Map<String, Value>, names: &ValueParser) -> Result<Action, String> {
        let found = keys.keys().map(|key| format!("`{key}`")).collect::<Vec<_>>().join(" and ");
        let mut entries = keys.into_iter();
        let (Some((key, value)), None) = (entries.next(), entries.next()) else {
            let found = if found.is_empty() { "found none".into() } else { format!("found {found}") };
            let known = self::keys(|info| info.json);
            return Err(format!("{found}; a tap has exactly one action, one of {known}"));
        };
        Action::read_key(&key, value, names)
    }

    /// Returns the action as a JSON object with one key.
    pub(super) fn to_json(&self, to: &ActionWriter) -> Result<Map<String, Value>, String> {
        Ok(Map::from_iter([(self.info().key.to_string(), self.write_value(to)?)]))
    }

    /// Rejects it at a site where it is not allowed.
    pub(super) fn check_site(&self, target: TapSite) -> Result<(), String> {
        let ActionInfo { edits, attention, indices, .. } = *self.info();
        if target.on_attention() && !attention {
            return Err(format!("attention sites take only {}", keys(|info| info.attention)));
        }
        if target.edge.integer && edits && !indices {
            let allowed = keys(|info| info.indices);
            return Err(format!("expert indices take only {allowed}; edit router_logits instead"));
        }
        if target.edge.observe_only && edits {
            return Err("a recurrent state can be captured, not edited: it is updated inside one op; edit mixer_in or conv_out, from which it is computed".into());
        }
        Ok(())
    }

    /// Whether it returns a capture, of the activation or of a gradient.
    pub fn captures(&self) -> bool {
        match self {
            Action::Capture(_) => true,
            Action::Grad { action, .. } => action.captures(),
            Action::Read
            | Action::Set(_)
            | Action::Add { .. }
            | Action::Scale(_)
            | Action::Zero
            | Action::Replace(_)
            | Action::MeanAblate(_)
            | Action::ProjectOut { .. }
            | Action::Cap { .. }
            | Action::AddScaled { .. }
            | Action::NormMatch { .. }
            | Action::Orthogonal { .. }
            | Action::Swap { .. }
            | Action::Inject { .. }
            | Action::Stop
            | Action::Mark(_)
            | Action::Skip(_)
            | Action::Splice(_)
            | Action::Call(_) => false,
        }
    }

    /// Whether it leaves gradients unchanged: it captures, or adds an operand that does not depend
    /// on the run.
    pub(crate) fn keeps_gradient(&self) -> bool {
        match self {
            Action::Capture(_) => true,
            Action::Add { operand, .. } => !matches!(operand, Operand::From(_)),
            Action::Read
            | Action::Grad { .. }
            | Action::Set(_)
            | Action::Scale(_)
            | Action::Zero
            | Action::Replace(_)
            | Action::MeanAblate(_)
            | Action::ProjectOut { .. }
            | Action::Cap { .. }
            | Action::AddScaled { .. }
            | Action::NormMatch { .. }
            | Action::Orthogonal { .. }
            | Action::Swap { .. }
            | Action::Inject { .. }
            | Action::Stop
            | Action::Mark(_)
            | Action::Skip(_)
            | Action::Splice(_)
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
        self.iter().for_each(|field| field.add_operands(operands));
    }

    fn add_operands_mut<'a>(&'a mut self, operands: &mut Vec<&'a mut Operand>) {
        self.iter_mut().for_each(|field| field.add_operands_mut(operands));
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
            Reduce::Dot(operand) | Reduce::Project(operand) => operands.push(operand),
            Reduce::Mean | Reduce::Norm | Reduce::TopK(_) | Reduce::Sparse => {}
        }
    }

    fn add_operands_mut<'a>(&'a mut self, operands: &mut Vec<&'a mut Operand>) {
        match self {
            Reduce::Dot(operand) | Reduce::Project(operand) => operands.push(operand),
            Reduce::Mean | Reduce::Norm | Reduce::TopK(_) | Reduce::Sparse => {}
        }
    }
}
