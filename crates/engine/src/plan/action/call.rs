//! `call`: a Rust closure changes the selected values. JSON cannot say it, and no gradient passes through it.

use super::{Action, CompiledAction, Writer};
use crate::plan::compile::{Compiler, Place};
use crate::plan::json_value::Names;
use serde_json::Value;
use std::sync::Arc;

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
pub struct Callback(pub Arc<CallbackFn>);

/// A function that reads and changes the selected values of rows in place.
pub type CallbackFn = dyn Fn(&mut [Selected]) + Send + Sync;

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

pub(super) fn read(_: Value, _: &Names) -> Result<Action, String> {
    Err("`call` takes a closure and cannot be written in JSON".into())
}

pub(super) fn write(_: &Callback, _: &Writer) -> Result<Value, String> {
    Err("a plan with a closure cannot be written as JSON".into())
}

pub(super) fn compile(callback: &Callback, _: &mut Compiler, _: Place) -> Result<CompiledAction, String> {
    Ok(CompiledAction::Call(callback.clone()))
}
