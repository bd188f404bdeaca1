//! `call`: a Rust closure reads and changes the selected elements. It has no JSON form and no
//! gradient.

use super::{Action, ActionWriter, CompiledAction};
use crate::plan::compile::{Compiler, TapSite};
use crate::plan::compiled::CompiledTap;
use crate::plan::json_value::ValueParser;
use serde_json::Value;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// The selected elements of one row, as a callback receives them.
pub struct SelectedRow {
    /// Row of the call.
    pub row: usize,
    /// Absolute positions of the selected tokens.
    pub positions: Vec<usize>,
    /// Elements per position; for attention sites the number of keys.
    pub width: usize,
    /// The elements, which the callback can change: `[positions, width]`, for attention sites
    /// `[heads, positions, keys]`.
    pub values: Vec<f32>,
}

/// A closure that can change activations. It is called once per site and pass, with the selected
/// rows of that pass.
#[derive(Clone)]
pub struct Callback(pub Arc<CallbackFn>);

/// Signature of a [`Callback`].
pub type CallbackFn = dyn Fn(&mut [SelectedRow]) + Send + Sync;

impl Callback {
    /// Calls the closure for a tap. A panic becomes the tap's error, so that it ends its own job
    /// and not the process or the other jobs of the pass.
    pub(crate) fn call(&self, tap: &CompiledTap, rows: &mut [SelectedRow]) -> crate::Result<()> {
        catch_unwind(AssertUnwindSafe(|| self.0(rows))).map_err(|_| crate::Error::Plan {
            tap: tap.tap,
            site: tap.site.to_string(),
            problem: "the callback panicked".into(),
            remedy: "correct the function of this tap".into(),
        })
    }
}

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

pub(super) fn read(_: Value, _: &ValueParser) -> Result<Action, String> {
    Err("`call` takes a closure and cannot be written in JSON".into())
}

pub(super) fn write(_: &Callback, _: &ActionWriter) -> Result<Value, String> {
    Err("a plan with a closure cannot be written as JSON".into())
}

pub(super) fn compile(callback: &Callback, _: &mut Compiler, _: TapSite) -> Result<CompiledAction, String> {
    Ok(CompiledAction::Call(callback.clone()))
}
