//! `inject`: writes or adds a vector at the selected positions, usually those of a placeholder
//! token: `h' = sw` or `h' = h + sw`. With `norm_match`, `w` is first rescaled to `‖h‖`.
//!
//! Replacing is the injection of Patchscopes; adding with `norm_match` is that of Activation
//! Oracles, `h + s‖h‖w/‖w‖`.

use super::operand::{read_form, read_operand, write_operand};
use super::{Action, ActionWriter, CompiledAction, Edit, Operand, TokenOperand};
use crate::plan::compile::{Compiler, TapSite};
use crate::plan::json_value::ValueParser;
use pellucid_kernels::elementwise::dot;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// How [`Action::Inject`] writes its vector.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Injection {
    /// Scale of the vector.
    #[serde(default = "one")]
    pub scale: f32,
    /// Add the vector to the activation instead of replacing it.
    #[serde(default)]
    pub add: bool,
    /// Rescale the vector to the activation's norm first.
    #[serde(default)]
    pub norm_match: bool,
}

impl Default for Injection {
    fn default() -> Injection {
        Injection { scale: 1.0, add: false, norm_match: false }
    }
}

fn one() -> f32 {
    1.0
}

const HOW: [&str; 3] = ["scale", "add", "norm_match"];

pub(super) fn read(mut value: Value, names: &ValueParser) -> Result<Action, String> {
    let mut how = serde_json::Map::new();
    if let Some(object) = value.as_object_mut() {
        for key in HOW {
            how.extend(object.remove(key).map(|setting| (key.to_string(), setting)));
        }
    }
    Ok(Action::Inject { operand: read_operand(value, names)?, how: read_form("inject", Value::Object(how))? })
}

pub(super) fn write(operand: &Operand, how: &Injection, to: &ActionWriter) -> Result<Value, String> {
    let mut value = match write_operand(operand, to.names) {
        Value::Object(object) => object,
        plain => serde_json::Map::from_iter([("vector".to_string(), plain)]),
    };
    for (key, setting) in HOW.into_iter().zip([json!(how.scale), json!(how.add), json!(how.norm_match)]) {
        value.insert(key.into(), setting);
    }
    Ok(Value::Object(value))
}

pub(super) fn compile(
    operand: &Operand,
    how: &Injection,
    compiler: &mut Compiler,
    target: TapSite,
) -> Result<CompiledAction, String> {
    match operand {
        Operand::Number(_) => return Err("`inject` takes a vector, not a number".into()),
        Operand::Vector(vector) => check_norms(std::slice::from_ref(vector), how)?,
        Operand::Rows(rows) => check_norms(rows, how)?,
        Operand::File(_) | Operand::From(_) | Operand::Value(_) => {}
    }
    Ok(CompiledAction::Edit(Edit::Inject(compiler.edit_source(operand, target)?, *how)))
}

fn check_norms(vectors: &[Vec<f32>], how: &Injection) -> Result<(), String> {
    match vectors.iter().find(|vector| how.norm_match && dot(vector, vector) == 0.0) {
        Some(_) => Err("`norm_match` cannot rescale a zero vector".into()),
        None => Ok(()),
    }
}

pub(super) fn apply(picked: &mut [f32], operand: TokenOperand, how: &Injection) {
    let TokenOperand::Each(vector) = operand else { return };
    let by = how.scale * if how.norm_match { norm_ratio(picked, vector) } else { 1.0 };
    match how.add {
        true => picked.iter_mut().zip(vector).for_each(|(x, w)| *x += by * w),
        false => picked.iter_mut().zip(vector).for_each(|(x, w)| *x = by * w),
    }
}

/// `‖h‖/‖w‖`; 0 for `w = 0`, which has no direction.
fn norm_ratio(activation: &[f32], vector: &[f32]) -> f32 {
    let length = dot(vector, vector).sqrt();
    if length > 0.0 { dot(activation, activation).sqrt() / length } else { 0.0 }
}

/// Returns the gradient of the vector `w`. With `norm_match` and `u = w/‖w‖`:
/// `∂L/∂h = s(g·u)h/‖h‖`, plus `g` if the vector is added, and
/// `∂L/∂w = s(‖h‖/‖w‖)(g − (g·u)u)`.
pub(super) fn backward(gradient: &mut [f32], input: &[f32], vector: &[f32], how: &Injection) -> Vec<f32> {
    let output = gradient.to_vec();
    if !how.add {
        gradient.fill(0.0);
    }
    if !how.norm_match {
        return output.iter().map(|g| how.scale * g).collect();
    }
    let (norm, length) = (dot(input, input).sqrt(), dot(vector, vector).sqrt());
    if norm == 0.0 || length == 0.0 {
        return vec![0.0; vector.len()];
    }
    let along = dot(&output, vector) / length;
    gradient.iter_mut().zip(input).for_each(|(g, h)| *g += how.scale * along * h / norm);
    let by = how.scale * norm / length;
    output.iter().zip(vector).map(|(g, w)| by * (g - along * w / length)).collect()
}
