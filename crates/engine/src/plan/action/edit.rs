//! Compiled actions, and the dispatch of edits to their forward and backward formulas.

use super::{Callback, CompiledReduce, add, cap, project_out, scale, set};
use crate::plan::ValueId;
use std::sync::Arc;

/// An action compiled for one site.
pub(crate) enum CompiledAction {
    Capture(CompiledReduce),
    Read,
    Grad { metric: usize, action: Box<CompiledAction> },
    Edit(Edit),
    Call(Callback),
}

/// An edit of the selected elements. Its formula is in the file of its action.
pub(crate) enum Edit {
    Set(EditSource),
    Add(EditSource, f32),
    Scale(f32),
    /// Unit direction, scale of the component along it.
    ProjectOut(Vec<f32>, f32),
    /// Unit direction, minimum and maximum of the component along it.
    Cap(Vec<f32>, f32, f32),
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
            CompiledAction::Edit(Edit::ProjectOut(..)) => "project_out",
            CompiledAction::Edit(Edit::Cap(..)) => "cap",
            CompiledAction::Call(_) => "call",
        }
    }

    /// Returns the operand that it writes, if it has one.
    pub fn edit_source(&self) -> Option<&EditSource> {
        match self {
            CompiledAction::Edit(edit) => edit.edit_source(),
            CompiledAction::Capture(_)
            | CompiledAction::Read
            | CompiledAction::Grad { .. }
            | CompiledAction::Call(_) => None,
        }
    }

    /// Whether it returns a capture, of the value or of a gradient.
    pub fn captures(&self) -> bool {
        match self {
            CompiledAction::Capture(_) => true,
            CompiledAction::Grad { action, .. } => action.captures(),
            CompiledAction::Read | CompiledAction::Edit(_) | CompiledAction::Call(_) => false,
        }
    }

    /// Whether it leaves the activation unchanged.
    pub fn is_read_only(&self) -> bool {
        match self {
            CompiledAction::Capture(_) | CompiledAction::Read => true,
            CompiledAction::Grad { .. } | CompiledAction::Edit(_) | CompiledAction::Call(_) => false,
        }
    }

    /// Whether its site must be computed even if nothing depends on it: it returns a capture or
    /// calls a closure.
    pub fn must_run(&self) -> bool {
        match self {
            CompiledAction::Capture(_) | CompiledAction::Call(_) | CompiledAction::Grad { .. } => true,
            CompiledAction::Read | CompiledAction::Edit(_) => false,
        }
    }

    /// Whether gradients can flow through it.
    pub fn is_differentiable(&self) -> bool {
        match self {
            CompiledAction::Capture(_) | CompiledAction::Read | CompiledAction::Grad { .. } => true,
            CompiledAction::Edit(edit) => edit.is_differentiable(),
            CompiledAction::Call(_) => false,
        }
    }
}

impl Edit {
    /// Returns the operand that it writes, if it has one.
    pub fn edit_source(&self) -> Option<&EditSource> {
        match self {
            Edit::Set(source) | Edit::Add(source, _) => Some(source),
            Edit::Scale(_) | Edit::ProjectOut(..) | Edit::Cap(..) => None,
        }
    }

    fn is_differentiable(&self) -> bool {
        match self {
            Edit::Set(_) | Edit::Add(..) | Edit::Scale(_) | Edit::ProjectOut(..) => true,
            Edit::Cap(..) => false,
        }
    }

    /// Edits the selected elements of one token; `operand` is its [`EditSource`] at this token.
    pub fn apply(&self, picked: &mut [f32], operand: TokenOperand) {
        match self {
            Edit::Set(_) => set::apply(picked, operand),
            Edit::Add(_, by) => add::apply(picked, operand, *by),
            Edit::Scale(by) => scale::apply(picked, *by),
            Edit::ProjectOut(direction, scale) => project_out::apply(picked, direction, *scale),
            Edit::Cap(direction, min, max) => cap::apply(picked, direction, *min, *max),
        }
    }

    /// Backward pass of [`apply`](Self::apply): turns the gradient of the edit's output into that
    /// of its input, in place. Returns the gradient of the operand, if there is one; fails if the
    /// edit is not differentiable.
    pub fn backward(&self, gradient: &mut [f32]) -> Result<Option<Vec<f32>>, String> {
        match self {
            Edit::Set(_) => Ok(Some(set::backward(gradient))),
            Edit::Add(_, by) => Ok(Some(add::backward(gradient, *by))),
            Edit::Scale(by) => {
                scale::backward(gradient, *by);
                Ok(None)
            }
            Edit::ProjectOut(direction, scale) => {
                project_out::backward(gradient, direction, *scale);
                Ok(None)
            }
            Edit::Cap(..) => Err("gradients cannot flow through `cap` and `call`".into()),
        }
    }
}
