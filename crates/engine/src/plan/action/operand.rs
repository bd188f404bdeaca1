//! Operands of actions: numbers, vectors, activations of other sites, values of the plan. Their
//! JSON and their checks.

use super::EditSource;
use crate::plan::compile::{Compiler, TapSite, selected_positions};
use crate::plan::compiled::{SelectedPositions, Source};
use crate::plan::json_value::{ValueParser, ValueWriter};
use crate::plan::{Columns, Positions, ValueId};
use crate::program::{Edge, Layout};
use crate::site;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::sync::Arc;

/// Operand of an action.
#[derive(Clone, Debug, PartialEq)]
pub enum Operand {
    /// The same number everywhere.
    Number(f32),
    /// One element per selected unit, the same at every position.
    Vector(Vec<f32>),
    /// One vector per selected position.
    Rows(Vec<Vec<f32>>),
    /// A tensor in a safetensors file, `file.safetensors#name`; resolved before compilation.
    File(String),
    /// The activation of a site in this run.
    From(FromSite),
    /// A value of the plan; its shape broadcasts to the selection's.
    Value(ValueId),
}

impl From<f32> for Operand {
    fn from(number: f32) -> Operand {
        Operand::Number(number)
    }
}

impl From<Vec<f32>> for Operand {
    fn from(vector: Vec<f32>) -> Operand {
        Operand::Vector(vector)
    }
}

impl From<&[f32]> for Operand {
    fn from(vector: &[f32]) -> Operand {
        Operand::Vector(vector.to_vec())
    }
}

impl From<Vec<Vec<f32>>> for Operand {
    fn from(rows: Vec<Vec<f32>>) -> Operand {
        Operand::Rows(rows)
    }
}

impl From<FromSite> for Operand {
    fn from(source: FromSite) -> Operand {
        Operand::From(source)
    }
}

/// An activation of this run, given by site, rows and positions.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct FromSite {
    /// Source site; the tap's site if absent.
    pub site: Option<String>,
    /// Source rows, one or as many as the tap's; the tap's rows if absent.
    pub rows: Option<Vec<usize>>,
    /// Source positions; the tap's positions if absent.
    pub positions: Option<Positions>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FromForm {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    site: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    rows: Option<Vec<usize>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    positions: Option<Positions>,
}

/// Parses a number, `"-inf"`, a list, a list of lists, `"file#tensor"`, `{"vector": …}`, `{"from":
/// …}` or `{"value": "name"}`.
pub(in crate::plan) fn read_operand(value: Value, names: &ValueParser) -> Result<Operand, String> {
    match value {
        Value::Number(number) => Ok(Operand::Number(number.as_f64().unwrap_or(f64::NAN) as f32)),
        Value::String(text) if text == "-inf" => Ok(Operand::Number(f32::NEG_INFINITY)),
        Value::String(file) => Ok(Operand::File(file)),
        Value::Array(list) if list.first().is_some_and(Value::is_array) => {
            Ok(Operand::Rows(read_form("rows of numbers", Value::Array(list))?))
        }
        Value::Array(_) => Ok(Operand::Vector(read_form("a list of numbers", value)?)),
        Value::Object(mut object) => {
            let known = |key: &String| ["vector", "from", "value"].contains(&key.as_str());
            if let Some(key) = object.keys().find(|key| !known(key)) {
                return Err(format!(
                    "unknown key `{key}` in an operand; known keys are `vector`, `from` and `value`, and `scale` in `add`"
                ));
            }
            match (object.remove("vector"), object.remove("from"), object.remove("value")) {
                (Some(vector), None, None) => read_operand(vector, names),
                (None, None, Some(Value::String(name))) => names.find(&name).map(Operand::Value),
                (None, Some(from), None) => {
                    let FromForm { site, rows, positions } = read_form("from", from)?;
                    Ok(Operand::From(FromSite { site, rows, positions }))
                }
                _ => Err("an operand object has exactly one of `vector`, `from` and `value` (a name)".into()),
            }
        }
        Value::Bool(_) | Value::Null => {
            Err("an operand is a number, a list of numbers, \"file.safetensors#tensor\", {\"vector\": …}, {\"from\": …} or {\"value\": …}"
                .into())
        }
    }
}

pub(in crate::plan) fn write_operand(operand: &Operand, names: &ValueWriter) -> Value {
    match operand {
        Operand::Value(value) => json!({ "value": names.name(*value) }),
        Operand::Number(x) if *x == f32::NEG_INFINITY => json!("-inf"),
        Operand::Number(x) => json!(x),
        Operand::Vector(x) => json!(x),
        Operand::Rows(x) => json!(x),
        Operand::File(file) => json!(file),
        Operand::From(FromSite { site, rows, positions }) => {
            json!({ "from": FromForm { site: site.clone(), rows: rows.clone(), positions: positions.clone() } })
        }
    }
}

/// Form of an action with a vector and a scale.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ScaledVectorForm {
    vector: Value,
    scale: Option<f32>,
}

/// Parses the vector and the scale of the action `key`; without a default, the scale is required.
pub(super) fn read_scaled_vector(
    key: &str,
    value: Value,
    default: Option<f32>,
    names: &ValueParser,
) -> Result<(Operand, f32), String> {
    let form: ScaledVectorForm = read_form(key, value)?;
    let scale = form.scale.or(default).ok_or_else(|| format!("`{key}` has no `scale`"))?;
    Ok((read_operand(form.vector, names)?, scale))
}

/// The JSON of a vector and a scale.
pub(super) fn write_scaled_vector(vector: &Operand, scale: f32, names: &ValueWriter) -> Value {
    json!({ "vector": write_operand(vector, names), "scale": scale })
}

/// Deserializes the JSON value of a key.
pub(super) fn read_form<T: serde::de::DeserializeOwned>(key: &str, value: Value) -> Result<T, String> {
    serde_json::from_value(value).map_err(|error| format!("`{key}`: {error}"))
}

impl Compiler<'_> {
    /// Checks an operand against the selection that it is written to.
    pub(super) fn edit_source(&mut self, operand: &Operand, target: TapSite) -> Result<EditSource, String> {
        let TapSite { edge, columns, rows, .. } = target;
        if target.on_attention() {
            return match operand {
                Operand::Value(value) => Ok(EditSource::Value(*value)),
                Operand::Number(x) => Ok(EditSource::Number(*x)),
                Operand::Vector(_) | Operand::Rows(_) | Operand::File(_) | Operand::From(_) => {
                    Err("attention sites take only a number or a value here".into())
                }
            };
        }
        match operand {
            Operand::Value(value) => Ok(EditSource::Value(*value)),
            Operand::Number(x) => Ok(EditSource::Number(*x)),
            Operand::Vector(_) | Operand::File(_) => {
                Ok(EditSource::Vector(Arc::new(repeat_per_head(operand, edge, columns)?)))
            }
            Operand::Rows(list) => {
                if let Some(bad) = list.iter().find(|row| row.len() != columns.len()) {
                    return Err(format!("a row of {} elements for {} selected units", bad.len(), columns.len()));
                }
                if let Some(bad) = rows.iter().flatten().find(|positions| positions.len() != list.len()) {
                    return Err(format!("{} vectors for {} selected positions", list.len(), bad.len()));
                }
                Ok(EditSource::Rows(Arc::new(list.clone())))
            }
            Operand::From(from) => {
                let source = self.source(from, target)?;
                let width = self.sources[source].columns.len();
                if width != columns.len() {
                    return Err(format!("the source has width {width}, this selection {}", columns.len()));
                }
                Ok(EditSource::Site(source))
            }
        }
    }

    /// Registers the source that `from` describes; returns its index.
    pub(super) fn source(&mut self, from: &FromSite, target: TapSite) -> Result<usize, String> {
        let TapSite { tap, site, rows, .. } = target;
        let name = from.site.clone().unwrap_or_else(|| site.to_string());
        let found = site::find(self.program, &name).map_err(|error| error.to_string())?.sites;
        let origin = match found[..] {
            [only] => only,
            // A pattern as site and as source pairs the sites by layer.
            _ => *found
                .iter()
                .find(|origin| origin.layer == site.layer)
                .ok_or("the source pattern matches no site of this layer")?,
        };
        let edge_id = self.program.edge_of(origin).ok_or("the source site has no edge")?;
        let edge = self.program.edge(edge_id);
        if (edge.layout == Layout::QueryKey) != (target.edge.layout == Layout::QueryKey) {
            return Err("an attention site and another site cannot feed each other".into());
        }
        let readers: Vec<usize> = (0..rows.len()).filter(|&row| rows[row].is_some()).collect();
        let mut read_by = vec![None; rows.len()];
        for (index, &reader) in readers.iter().enumerate() {
            read_by[reader] = Some(match from.rows.as_deref() {
                None => reader,
                Some([only]) => *only,
                Some(several) if several.len() == readers.len() => several[index],
                Some(several) => return Err(format!("{} source rows for {} rows", several.len(), readers.len())),
            });
        }
        let origins: Vec<usize> = read_by.iter().flatten().copied().collect();
        let selected = self.select(Some(&origins), |prompt, limit| match &from.positions {
            Some(positions) => positions.resolve(prompt, limit),
            None => selected_positions(tap, prompt, limit),
        })?;
        for &reader in &readers {
            let (tap_positions, source_positions) = (
                rows[reader].as_ref().map_or(0, SelectedPositions::len),
                read_by[reader].and_then(|row| selected[row].as_ref()).map_or(0, SelectedPositions::len),
            );
            if source_positions != tap_positions && source_positions != 1 {
                return Err(format!(
                    "the source selects {source_positions} positions for the {tap_positions} of row {reader}; select the same number, or one for all"
                ));
            }
        }
        let (columns, heads) = self.columns_and_heads(
            edge,
            tap.heads.as_deref().filter(|_| edge.layout != Layout::Flat),
            tap.units.as_deref(),
        )?;
        self.sources.push(Source { site: origin, edge: edge_id, rows: selected, columns, heads, read_by });
        Ok(self.sources.len() - 1)
    }
}

/// Returns the operand as a vector of exactly `len` elements.
pub(super) fn plain_vector(operand: &Operand, len: usize) -> Result<Vec<f32>, String> {
    match operand {
        Operand::Vector(vector) if vector.len() == len => Ok(vector.clone()),
        Operand::Vector(vector) => Err(format!("a vector of {} elements for {len} selected units", vector.len())),
        Operand::File(file) => {
            Err(format!("the file {file:?} was not loaded; files must be resolved before the plan is compiled"))
        }
        _ => Err("a direction must be a list of numbers or a tensor in a file".into()),
    }
}

/// Returns the operand as a vector for the selected units; a vector of a head's width is repeated
/// for each head.
fn repeat_per_head(operand: &Operand, edge: &Edge, columns: &Columns) -> Result<Vec<f32>, String> {
    if let (Operand::Vector(vector), Layout::Heads(heads)) = (operand, edge.layout) {
        let dim = edge.width / heads;
        if vector.len() == dim && columns.len().is_multiple_of(dim) {
            return Ok(vector.repeat(columns.len() / dim));
        }
    }
    plain_vector(operand, columns.len())
}

/// Returns the operand as a unit vector for the selected units, or of a head's width.
pub(super) fn unit_vector(operand: &Operand, edge: &Edge, columns: &Columns) -> Result<Vec<f32>, String> {
    Ok(normalize(&direction_vector(operand, edge, columns)?).0)
}

/// Returns a vector scaled to unit length, and its length before.
pub(super) fn normalize(vector: &[f32]) -> (Vec<f32>, f32) {
    let length = vector.iter().map(|x| x * x).sum::<f32>().sqrt();
    (vector.iter().map(|x| x / length).collect(), length)
}

/// Returns the operand as a vector of finite length above 0, for the selected units or of a head's
/// width.
pub(super) fn direction_vector(operand: &Operand, edge: &Edge, columns: &Columns) -> Result<Vec<f32>, String> {
    let vector = match (operand, edge.layout) {
        (Operand::Vector(vector), Layout::Heads(heads))
            if vector.len() == edge.width / heads && columns.len().is_multiple_of(vector.len()) =>
        {
            vector.clone()
        }
        _ => plain_vector(operand, columns.len())?,
    };
    let length = vector.iter().map(|x| x * x).sum::<f32>().sqrt();
    if !(length.is_finite() && length > 0.0) {
        return Err(format!("a direction cannot have length {length}"));
    }
    Ok(vector)
}
