//! `add_scaled`: adds a direction in proportion to the activation's norm: `h + s‖h‖v/‖v‖`.

use super::operand::{read_scaled_vector, unit_vector, write_scaled_vector};
use super::{Action, ActionWriter, CompiledAction, Edit, Operand};
use crate::plan::compile::{Compiler, TapSite};
use crate::plan::json_value::ValueParser;
use pellucid_kernels::elementwise::dot;
use serde_json::Value;

pub(super) fn read(value: Value, names: &ValueParser) -> Result<Action, String> {
    let (vector, scale) = read_scaled_vector("add_scaled", value, None, names)?;
    Ok(Action::AddScaled { vector, scale })
}

pub(super) fn write(vector: &Operand, scale: &f32, to: &ActionWriter) -> Result<Value, String> {
    Ok(write_scaled_vector(vector, *scale, to.names))
}

pub(super) fn compile(
    vector: &Operand,
    scale: &f32,
    _: &mut Compiler,
    target: TapSite,
) -> Result<CompiledAction, String> {
    Ok(CompiledAction::Edit(Edit::AddScaled(unit_vector(vector, target.edge, target.columns)?, *scale)))
}

pub(super) fn apply(picked: &mut [f32], direction: &[f32], scale: f32) {
    // A direction of a head's width applies to each head, with the norm of that head.
    for part in picked.chunks_exact_mut(direction.len()) {
        let by = scale * dot(part, part).sqrt();
        part.iter_mut().zip(direction).for_each(|(x, v)| *x += by * v);
    }
}

/// `∂L/∂h = g + s(g·v)h/‖h‖` with `v` of unit length; the second term is 0 at `h = 0`.
pub(super) fn backward(gradient: &mut [f32], input: &[f32], direction: &[f32], scale: f32) {
    for (g, h) in gradient.chunks_exact_mut(direction.len()).zip(input.chunks_exact(direction.len())) {
        let norm = dot(h, h).sqrt();
        if norm > 0.0 {
            let by = scale * dot(g, direction) / norm;
            g.iter_mut().zip(h).for_each(|(g, h)| *g += by * h);
        }
    }
}
