//! `norm_match`: adds a vector, then rescales to the activation's norm before the edit:
//! `(h + sv)‖h‖/‖h + sv‖`. Equals repeng's control with `normalize=True`.

use super::operand::{direction_vector, read_scaled_vector, write_scaled_vector};
use super::{Action, ActionWriter, CompiledAction, Edit, Operand};
use crate::plan::compile::{Compiler, TapSite};
use crate::plan::json_value::ValueParser;
use pellucid_kernels::elementwise::dot;
use serde_json::Value;

pub(super) fn read(value: Value, names: &ValueParser) -> Result<Action, String> {
    let (vector, scale) = read_scaled_vector("norm_match", value, Some(1.0), names)?;
    Ok(Action::NormMatch { vector, scale })
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
    let mut shift = direction_vector(vector, target.edge, target.columns)?;
    shift.iter_mut().for_each(|x| *x *= scale);
    Ok(CompiledAction::Edit(Edit::NormMatch(shift)))
}

/// Applies the edit; `shift` is `sv`.
pub(super) fn apply(picked: &mut [f32], shift: &[f32]) {
    // A vector of a head's width applies to each head, with the norm of that head.
    for part in picked.chunks_exact_mut(shift.len()) {
        let before = dot(part, part).sqrt();
        part.iter_mut().zip(shift).for_each(|(x, v)| *x += v);
        let after = dot(part, part).sqrt();
        // A sum of zero has no direction, so it stays zero.
        if after > 0.0 {
            let by = before / after;
            part.iter_mut().for_each(|x| *x *= by);
        }
    }
}

/// With `y = h + sv` and `u = y/‖y‖`: `∂L/∂h = (‖h‖/‖y‖)(g − (g·u)u) + (g·u)h/‖h‖`.
pub(super) fn backward(gradient: &mut [f32], input: &[f32], shift: &[f32]) {
    for (g, h) in gradient.chunks_exact_mut(shift.len()).zip(input.chunks_exact(shift.len())) {
        let y: Vec<f32> = h.iter().zip(shift).map(|(h, v)| h + v).collect();
        let (before, after) = (dot(h, h).sqrt(), dot(&y, &y).sqrt());
        if after == 0.0 || before == 0.0 {
            g.fill(0.0);
            continue;
        }
        let (along, by) = (dot(g, &y) / after, before / after);
        for ((g, h), y) in g.iter_mut().zip(h).zip(&y) {
            *g = by * (*g - along * y / after) + along * h / before;
        }
    }
}
