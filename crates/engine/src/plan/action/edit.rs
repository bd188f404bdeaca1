//! Compiled actions, and how edits change a value and its gradient.

use super::{Callback, CompiledReduce, add, cap, project_out, scale, set};
use crate::plan::ValueId;
use std::sync::Arc;

/// An action, checked at one site.
pub(crate) enum CompiledAction {
    Capture(CompiledReduce),
    Read,
    Grad { metric: usize, action: Box<CompiledAction> },
    Edit(Edit),
    Call(Callback),
}

/// A change of the selected values by a formula. The formulas are in the files of the actions.
pub(crate) enum Edit {
    Set(Given),
    Add(Given, f32),
    Scale(f32),
    /// A direction of unit length, and the share of it that is left.
    ProjectOut(Vec<f32>, f32),
    /// A direction of unit length, and the least and largest value along it.
    Cap(Vec<f32>, f32, f32),
}

/// What an edit writes.
pub(crate) enum Given {
    Number(f32),
    Vector(Arc<Vec<f32>>),
    Rows(Arc<Vec<Vec<f32>>>),
    Source(usize),
    Computed(ValueId),
}

/// What an edit writes at one token: nothing of its own, one number for all, or one for each.
#[derive(Clone, Copy)]
pub(crate) enum Resolved<'a> {
    Nothing,
    Number(f32),
    Each(&'a [f32]),
}

impl Resolved<'_> {
    /// Combines each selected number with what is written there.
    pub(super) fn zip(self, picked: &mut [f32], f: impl Fn(&mut f32, f32)) {
        match self {
            Resolved::Nothing => {}
            Resolved::Number(number) => picked.iter_mut().for_each(|x| f(x, number)),
            Resolved::Each(values) => picked.iter_mut().zip(values).for_each(|(x, &v)| f(x, v)),
        }
    }
}

impl CompiledAction {
    /// A short name for listings.
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

    /// What it writes into the value, if it writes something given.
    pub fn given(&self) -> Option<&Given> {
        match self {
            CompiledAction::Edit(edit) => edit.given(),
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

    /// Whether it leaves the value as it is.
    pub fn looks(&self) -> bool {
        match self {
            CompiledAction::Capture(_) | CompiledAction::Read => true,
            CompiledAction::Grad { .. } | CompiledAction::Edit(_) | CompiledAction::Call(_) => false,
        }
    }

    /// Whether its site has to be computed for its own sake: something comes back, or a closure sees it.
    pub fn must_run(&self) -> bool {
        match self {
            CompiledAction::Capture(_) | CompiledAction::Call(_) | CompiledAction::Grad { .. } => true,
            CompiledAction::Read | CompiledAction::Edit(_) => false,
        }
    }

    /// Whether the gradient before it follows from the gradient after it.
    pub fn passes_gradient(&self) -> bool {
        match self {
            CompiledAction::Capture(_) | CompiledAction::Read | CompiledAction::Grad { .. } => true,
            CompiledAction::Edit(edit) => edit.passes_gradient(),
            CompiledAction::Call(_) => false,
        }
    }
}

impl Edit {
    /// What it writes, if it writes something given.
    pub fn given(&self) -> Option<&Given> {
        match self {
            Edit::Set(given) | Edit::Add(given, _) => Some(given),
            Edit::Scale(_) | Edit::ProjectOut(..) | Edit::Cap(..) => None,
        }
    }

    fn passes_gradient(&self) -> bool {
        match self {
            Edit::Set(_) | Edit::Add(..) | Edit::Scale(_) | Edit::ProjectOut(..) => true,
            Edit::Cap(..) => false,
        }
    }

    /// Changes the selected numbers of one token; `written` is its [`Given`] there.
    pub fn apply(&self, picked: &mut [f32], written: Resolved) {
        match self {
            Edit::Set(_) => set::apply(picked, written),
            Edit::Add(_, by) => add::apply(picked, written, *by),
            Edit::Scale(by) => scale::apply(picked, *by),
            Edit::ProjectOut(direction, left) => project_out::apply(picked, direction, *left),
            Edit::Cap(direction, min, max) => cap::apply(picked, direction, *min, *max),
        }
    }

    /// Replaces the gradient after the edit, at the selected numbers, by the gradient before it. Returns the gradient of what the
    /// edit wrote, if it wrote something given; an error where no gradient passes.
    pub fn backward(&self, gradient: &mut [f32]) -> Result<Option<Vec<f32>>, String> {
        match self {
            Edit::Set(_) => Ok(Some(set::backward(gradient))),
            Edit::Add(_, by) => Ok(Some(add::backward(gradient, *by))),
            Edit::Scale(by) => {
                scale::backward(gradient, *by);
                Ok(None)
            }
            Edit::ProjectOut(direction, left) => {
                project_out::backward(gradient, direction, *left);
                Ok(None)
            }
            Edit::Cap(..) => Err("no gradient passes through `cap` and `call`".into()),
        }
    }
}
