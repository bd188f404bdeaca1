//! Compiled actions, and the dispatch of edits to their forward and backward formulas.

use super::{
    Callback, CompiledReduce, Injection, Splice, add, add_scaled, cap, inject, norm_match, orthogonal, project_out,
    replace, scale, set, swap,
};
use crate::plan::ValueId;
use crate::plan::when::{Condition, Consequence};
use std::collections::BTreeMap;
use std::sync::Arc;

/// An action compiled for one site.
pub(crate) enum CompiledAction {
    Capture(CompiledReduce),
    Read,
    Grad {
        metric: usize,
        action: Box<CompiledAction>,
    },
    Edit(Edit),
    Call(Callback),
    /// Tests a condition: of a later tap, or of `stop` or `mark`.
    Condition(Condition),
    /// Puts the output of an autoencoder into the forward pass; its op applies it.
    Splice(Splice),
}

/// An edit of the selected elements. Its formula is in the file of its action.
pub(crate) enum Edit {
    Set(EditSource),
    Add(EditSource, f32),
    Scale(f32),
    /// From each chosen expert to the one that runs in its place.
    Replace(BTreeMap<usize, usize>),
    /// Unit direction, scale of the component along it.
    ProjectOut(Vec<f32>, f32),
    /// Unit direction, minimum and maximum of the component along it.
    Cap(Vec<f32>, f32, f32),
    /// Unit direction, scale relative to the activation's norm.
    AddScaled(Vec<f32>, f32),
    /// The vector that is added before the norm is restored.
    NormMatch(Vec<f32>),
    /// Unit direction, new component along it.
    Orthogonal(Vec<f32>, f32),
    /// Unit normal of the mirror that exchanges the two directions.
    Swap(Vec<f32>),
    Inject(EditSource, Injection),
}

/// The input and operand of an edit at one token, recorded in the forward pass for the backward
/// pass of an edit that is not linear.
pub(crate) struct EditInput {
    pub input: Vec<f32>,
    /// Empty if the edit has no operand.
    pub operand: Vec<f32>,
}

/// The operand of an edit.
pub(crate) enum EditSource {
    Number(f32),
    /// One element per selected column.
    Vector(Arc<Vec<f32>>),
    /// One vector per selected position.
    Rows(Arc<Vec<Vec<f32>>>),
    /// Index into `CompiledPlan::sources`.
    Site(usize),
    Value(ValueId),
}

/// The operand of an edit at one token: none, one number for all elements, or one per element.
#[derive(Clone, Copy)]
pub(crate) enum TokenOperand<'a> {
    None,
    Number(f32),
    Each(&'a [f32]),
}

impl TokenOperand<'_> {
    /// Calls `f` with each selected element and its operand.
    pub(super) fn zip(self, picked: &mut [f32], f: impl Fn(&mut f32, f32)) {
        match self {
            TokenOperand::None => {}
            TokenOperand::Number(number) => picked.iter_mut().for_each(|x| f(x, number)),
            TokenOperand::Each(values) => picked.iter_mut().zip(values).for_each(|(x, &v)| f(x, v)),
        }
    }
}

impl CompiledAction {
    /// Returns a short name for listings.
    pub fn name(&self) -> &'static str {
        match self {
            CompiledAction::Capture(_) => "capture",
            CompiledAction::Read => "read",
            CompiledAction::Grad { .. } => "gradient",
            CompiledAction::Edit(Edit::Set(_)) => "set",
            CompiledAction::Edit(Edit::Add(..)) => "add",
            CompiledAction::Edit(Edit::Scale(_)) => "scale",
            CompiledAction::Edit(Edit::Replace(_)) => "replace",
            CompiledAction::Edit(Edit::ProjectOut(..)) => "project_out",
            CompiledAction::Edit(Edit::Cap(..)) => "cap",
            CompiledAction::Edit(Edit::AddScaled(..)) => "add_scaled",
            CompiledAction::Edit(Edit::NormMatch(_)) => "norm_match",
            CompiledAction::Edit(Edit::Orthogonal(..)) => "orthogonal",
            CompiledAction::Edit(Edit::Swap(_)) => "swap",
            CompiledAction::Edit(Edit::Inject(..)) => "inject",
            CompiledAction::Call(_) => "call",
            CompiledAction::Splice(_) => "splice",
            CompiledAction::Condition(condition) => match condition.then {
                Consequence::Apply => "when",
                Consequence::Stop => "stop",
                Consequence::Mark(_) => "mark",
            },
        }
    }

    /// Returns the operand that it writes, if it has one.
    pub fn edit_source(&self) -> Option<&EditSource> {
        match self {
            CompiledAction::Edit(edit) => edit.edit_source(),
            CompiledAction::Capture(_)
            | CompiledAction::Read
            | CompiledAction::Grad { .. }
            | CompiledAction::Condition(_)
            | CompiledAction::Splice(_)
            | CompiledAction::Call(_) => None,
        }
    }

    /// Whether it returns a capture, of the value or of a gradient.
    pub fn captures(&self) -> bool {
        match self {
            CompiledAction::Capture(_) => true,
            CompiledAction::Grad { action, .. } => action.captures(),
            CompiledAction::Read
            | CompiledAction::Edit(_)
            | CompiledAction::Call(_)
            | CompiledAction::Condition(_)
            | CompiledAction::Splice(_) => false,
        }
    }

    /// Whether it leaves the activation unchanged.
    pub fn is_read_only(&self) -> bool {
        match self {
            CompiledAction::Capture(_) | CompiledAction::Read | CompiledAction::Condition(_) => true,
            CompiledAction::Grad { .. }
            | CompiledAction::Edit(_)
            | CompiledAction::Call(_)
            | CompiledAction::Splice(_) => false,
        }
    }

    /// Whether its site must be computed even if nothing depends on it: it returns a capture or
    /// marks, or calls a closure.
    pub fn must_run(&self) -> bool {
        match self {
            CompiledAction::Condition(condition) => condition.then != Consequence::Apply,
            CompiledAction::Capture(_) | CompiledAction::Call(_) | CompiledAction::Grad { .. } => true,
            CompiledAction::Read | CompiledAction::Edit(_) | CompiledAction::Splice(_) => false,
        }
    }

    /// Whether gradients can flow through it.
    pub fn is_differentiable(&self) -> bool {
        match self {
            CompiledAction::Capture(_)
            | CompiledAction::Read
            | CompiledAction::Grad { .. }
            | CompiledAction::Splice(_)
            | CompiledAction::Condition(_) => true,
            CompiledAction::Edit(edit) => edit.is_differentiable(),
            CompiledAction::Call(_) => false,
        }
    }
}

impl Edit {
    /// Returns the operand that it writes, if it has one.
    pub fn edit_source(&self) -> Option<&EditSource> {
        match self {
            Edit::Set(source) | Edit::Add(source, _) | Edit::Inject(source, _) => Some(source),
            Edit::Scale(_)
            | Edit::Replace(_)
            | Edit::ProjectOut(..)
            | Edit::Cap(..)
            | Edit::AddScaled(..)
            | Edit::NormMatch(_)
            | Edit::Orthogonal(..)
            | Edit::Swap(_) => None,
        }
    }

    fn is_differentiable(&self) -> bool {
        match self {
            Edit::Set(_)
            | Edit::Add(..)
            | Edit::Scale(_)
            | Edit::Replace(_)
            | Edit::ProjectOut(..)
            | Edit::AddScaled(..)
            | Edit::NormMatch(_)
            | Edit::Orthogonal(..)
            | Edit::Swap(_)
            | Edit::Inject(..) => true,
            Edit::Cap(..) => false,
        }
    }

    /// Whether its derivative depends on the activation, so that the forward pass records an
    /// [`EditInput`] for [`backward_at`](Self::backward_at).
    pub fn is_nonlinear(&self) -> bool {
        match self {
            Edit::AddScaled(..) | Edit::NormMatch(_) | Edit::Inject(..) => true,
            Edit::Set(_)
            | Edit::Add(..)
            | Edit::Scale(_)
            | Edit::Replace(_)
            | Edit::ProjectOut(..)
            | Edit::Cap(..)
            | Edit::Orthogonal(..)
            | Edit::Swap(_) => false,
        }
    }

    /// Edits the selected elements of one token; `operand` is its [`EditSource`] at this token.
    pub fn apply(&self, picked: &mut [f32], operand: TokenOperand) {
        match self {
            Edit::Set(_) => set::apply(picked, operand),
            Edit::Add(_, by) => add::apply(picked, operand, *by),
            Edit::Scale(by) => scale::apply(picked, *by),
            Edit::Replace(experts) => replace::apply(picked, experts),
            Edit::ProjectOut(direction, scale) => project_out::apply(picked, direction, *scale),
            Edit::Cap(direction, min, max) => cap::apply(picked, direction, *min, *max),
            Edit::AddScaled(direction, scale) => add_scaled::apply(picked, direction, *scale),
            Edit::NormMatch(shift) => norm_match::apply(picked, shift),
            Edit::Orthogonal(direction, component) => orthogonal::apply(picked, direction, *component),
            Edit::Swap(mirror) => swap::apply(picked, mirror),
            Edit::Inject(_, how) => inject::apply(picked, operand, how),
        }
    }

    /// Backward pass of [`apply`](Self::apply) at one token for an edit that is not linear. Returns
    /// the gradient of the operand, if there is one.
    pub fn backward_at(&self, gradient: &mut [f32], at: &EditInput) -> Option<Vec<f32>> {
        match self {
            Edit::AddScaled(direction, scale) => add_scaled::backward(gradient, &at.input, direction, *scale),
            Edit::NormMatch(shift) => norm_match::backward(gradient, &at.input, shift),
            Edit::Inject(_, how) => return Some(inject::backward(gradient, &at.input, &at.operand, how)),
            _ => {}
        }
        None
    }

    /// Backward pass of [`apply`](Self::apply) for a linear edit, at any number of tokens: turns
    /// the gradient of the edit's output into that of its input, in place. Returns the gradient of
    /// the operand, if there is one; fails if the edit is not differentiable.
    pub fn backward(&self, gradient: &mut [f32]) -> Result<Option<Vec<f32>>, String> {
        match self {
            Edit::Set(_) => Ok(Some(set::backward(gradient))),
            Edit::Add(_, by) => Ok(Some(add::backward(gradient, *by))),
            Edit::Scale(by) => {
                scale::backward(gradient, *by);
                Ok(None)
            }
            // Indices have no gradient; those of the weights and outputs do not depend on it.
            Edit::Replace(_) => Ok(None),
            Edit::ProjectOut(direction, scale) => {
                project_out::backward(gradient, direction, *scale);
                Ok(None)
            }
            Edit::Orthogonal(direction, _) => {
                orthogonal::backward(gradient, direction);
                Ok(None)
            }
            Edit::Swap(mirror) => {
                swap::backward(gradient, mirror);
                Ok(None)
            }
            Edit::AddScaled(..) | Edit::NormMatch(_) | Edit::Inject(..) => {
                Err("the gradient of this edit needs the activation that it edited".into())
            }
            Edit::Cap(..) => Err("gradients cannot flow through `cap` and `call`".into()),
        }
    }
}
