//! Operands: what actions write. Numbers, vectors, other sites' values, computed values; their JSON, and how they are checked.

use super::Given;
use crate::plan::compile::{Compiler, Place, selected};
use crate::plan::compiled::{Chosen, Source};
use crate::plan::json_value::{Names, Written};
use crate::plan::{Columns, Positions, ValueId};
use crate::program::{Edge, Layout};
use crate::site;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::sync::Arc;

/// A value that an action uses.
#[derive(Clone, Debug, PartialEq)]
pub enum Operand {
    /// The same number everywhere.
    Number(f32),
    /// One number for each selected unit, the same at every position.
    Vector(Vec<f32>),
    /// One vector for each selected position.
    Rows(Vec<Vec<f32>>),
    /// A tensor in a safetensors file, `file.safetensors#name`; resolved before compiling.
    File(String),
    /// The value of a site in this run.
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

/// Another site's value.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct FromSite {
    /// The source site; the tap's own where absent.
    pub site: Option<String>,
    /// The source row or rows; the tap's own row where absent.
    pub rows: Option<Vec<usize>>,
    /// The source positions; the tap's own where absent.
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

/// A number, `"-inf"`, a list, a list of lists, `"file#tensor"`, `{"vector": …}`, `{"from": …}` or `{"value": "name"}`.
pub(super) fn read_operand(value: Value, names: &Names) -> Result<Operand, String> {
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
                    "unknown key `{key}` in a value; it takes `vector`, `from` or `value`, and `scale` in `add`"
                ));
            }
            match (object.remove("vector"), object.remove("from"), object.remove("value")) {
                (Some(vector), None, None) => read_operand(vector, names),
                (None, None, Some(Value::String(name))) => names.find(&name).map(Operand::Value),
                (None, Some(from), None) => {
                    let FromForm { site, rows, positions } = read_form("from", from)?;
                    Ok(Operand::From(FromSite { site, rows, positions }))
                }
                _ => Err("a value takes one of `vector`, `from` and `value` (a name)".into()),
            }
        }
        Value::Bool(_) | Value::Null => {
            Err("a value is a number, a list of numbers, \"file.safetensors#tensor\", {\"vector\": …}, {\"from\": …} or {\"value\": …}"
                .into())
        }
    }
}

pub(super) fn write_operand(operand: &Operand, names: &Written) -> Value {
    match operand {
        Operand::Value(value) => json!({ "value": names.of(*value) }),
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

/// Reads the value of a key.
pub(super) fn read_form<T: serde::de::DeserializeOwned>(key: &str, value: Value) -> Result<T, String> {
    serde_json::from_value(value).map_err(|error| format!("`{key}`: {error}"))
}

impl Compiler<'_> {
    /// Checks an operand against the selection that it is written to.
    pub(super) fn given(&mut self, operand: &Operand, place: Place) -> Result<Given, String> {
        let Place { edge, columns, rows, .. } = place;
        if place.on_attention() {
            return match operand {
                Operand::Value(value) => Ok(Given::Computed(*value)),
                Operand::Number(x) => Ok(Given::Number(*x)),
                Operand::Vector(_) | Operand::Rows(_) | Operand::File(_) | Operand::From(_) => {
                    Err("attention sites take a number here".into())
                }
            };
        }
        match operand {
            Operand::Value(value) => Ok(Given::Computed(*value)),
            Operand::Number(x) => Ok(Given::Number(*x)),
            Operand::Vector(_) | Operand::File(_) => Ok(Given::Vector(Arc::new(repeated(operand, edge, columns)?))),
            Operand::Rows(list) => {
                if let Some(bad) = list.iter().find(|row| row.len() != columns.len()) {
                    return Err(format!("a row of {} numbers for {} selected units", bad.len(), columns.len()));
                }
                if let Some(bad) = rows.iter().flatten().find(|chosen| chosen.len() != list.len()) {
                    return Err(format!("{} rows of numbers for {} selected positions", list.len(), bad.len()));
                }
                Ok(Given::Rows(Arc::new(list.clone())))
            }
            Operand::From(from) => {
                let source = self.source(from, place)?;
                let width = self.sources[source].columns.len();
                if width != columns.len() {
                    return Err(format!("the source is {width} wide, this selection {}", columns.len()));
                }
                Ok(Given::Source(source))
            }
        }
    }

    /// Registers the site that `from` names and says which row reads which.
    pub(super) fn source(&mut self, from: &FromSite, place: Place) -> Result<usize, String> {
        let Place { tap, site, rows, .. } = place;
        let name = from.site.clone().unwrap_or_else(|| site.to_string());
        let found = site::find(self.program, &name).map_err(|error| error.to_string())?.sites;
        let origin = match found[..] {
            [one] => one,
            // A pattern in both places pairs layer with layer.
            _ => *found
                .iter()
                .find(|origin| origin.layer == site.layer)
                .ok_or("the source pattern has no site of this layer")?,
        };
        let edge_id = self.program.edge_of(origin).ok_or("the source is gone")?;
        let edge = self.program.edge(edge_id);
        if (edge.layout == Layout::QueryKey) != (place.edge.layout == Layout::QueryKey) {
            return Err("attention sites and others cannot feed each other".into());
        }
        let readers: Vec<usize> = (0..rows.len()).filter(|&row| rows[row].is_some()).collect();
        let mut read_by = vec![None; rows.len()];
        for (nth, &reader) in readers.iter().enumerate() {
            read_by[reader] = Some(match from.rows.as_deref() {
                None => reader,
                Some([one]) => *one,
                Some(several) if several.len() == readers.len() => several[nth],
                Some(several) => return Err(format!("{} source rows for {} rows", several.len(), readers.len())),
            });
        }
        let origins: Vec<usize> = read_by.iter().flatten().copied().collect();
        let chosen = self.choose(Some(&origins), |prompt, limit| match &from.positions {
            Some(positions) => positions.resolve(prompt, limit),
            None => selected(tap, prompt, limit),
        })?;
        for &reader in &readers {
            let (mine, theirs) = (
                rows[reader].as_ref().map_or(0, Chosen::len),
                read_by[reader].and_then(|row| chosen[row].as_ref()).map_or(0, Chosen::len),
            );
            if theirs != mine && theirs != 1 {
                return Err(format!(
                    "the source selects {theirs} positions for the {mine} of row {reader}; select as many, or one for all"
                ));
            }
        }
        let (columns, heads) =
            self.inner(edge, tap.heads.as_deref().filter(|_| edge.layout != Layout::Flat), tap.units.as_deref())?;
        self.sources.push(Source { site: origin, edge: edge_id, rows: chosen, columns, heads, read_by });
        Ok(self.sources.len() - 1)
    }
}

/// A vector of exactly this length.
pub(super) fn plain_vector(operand: &Operand, len: usize) -> Result<Vec<f32>, String> {
    match operand {
        Operand::Vector(vector) if vector.len() == len => Ok(vector.clone()),
        Operand::Vector(vector) => Err(format!("a vector of {} numbers for {len} selected units", vector.len())),
        Operand::File(file) => {
            Err(format!("the file {file:?} was not read; files are resolved before a plan is compiled"))
        }
        _ => Err("a direction is a list of numbers or a tensor in a file".into()),
    }
}

/// A vector for the selected units; one of a head's width is meant for each head.
fn repeated(operand: &Operand, edge: &Edge, columns: &Columns) -> Result<Vec<f32>, String> {
    if let (Operand::Vector(vector), Layout::Heads(heads)) = (operand, edge.layout) {
        let dim = edge.width / heads;
        if vector.len() == dim && columns.len().is_multiple_of(dim) {
            return Ok(vector.repeat(columns.len() / dim));
        }
    }
    plain_vector(operand, columns.len())
}

/// A direction of unit length for the selected units, or for each head.
pub(super) fn unit_vector(operand: &Operand, edge: &Edge, columns: &Columns) -> Result<Vec<f32>, String> {
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
        return Err(format!("a direction of length {length}"));
    }
    Ok(vector.iter().map(|x| x / length).collect())
}
