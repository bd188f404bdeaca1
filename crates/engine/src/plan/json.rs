//! Plans as JSON: one object a tap, one key for its action.

use super::{Action, FromSite, Operand, Phase, Plan, Positions, Reduce, Tap};
use serde::de::Error as _;
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value, json};

impl Plan {
    /// Reads a plan from JSON text.
    ///
    /// ```
    /// use pellucid_engine::Plan;
    /// let plan = Plan::from_json(r#"{"taps": [{"site": "layers.5.z", "heads": [3, 7], "zero": true}]}"#).unwrap();
    /// assert_eq!(Plan::from_json(&plan.to_json().unwrap()).unwrap(), plan);
    /// assert!(Plan::from_json(r#"{"taps": [{"site": "layers.5.z", "zreo": true}]}"#).is_err());
    /// ```
    pub fn from_json(text: &str) -> std::result::Result<Plan, String> {
        serde_json::from_str(text).map_err(|e| e.to_string())
    }

    /// The plan as JSON text; a plan with closures cannot be written.
    pub fn to_json(&self) -> std::result::Result<String, String> {
        serde_json::to_string_pretty(self).map_err(|e| e.to_string())
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a plan: an object with a list of `taps`")]
struct PlanForm {
    taps: Vec<Tap>,
}

impl<'de> Deserialize<'de> for Plan {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Plan, D::Error> {
        PlanForm::deserialize(deserializer).map(|form| Plan { taps: form.taps })
    }
}

impl Serialize for Plan {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        PlanForm { taps: self.taps.clone() }.serialize(serializer)
    }
}

/// The keys of a tap that are not its action.
#[derive(Serialize, Deserialize)]
struct TapForm {
    site: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    rows: Option<Vec<usize>>,
    #[serde(default, skip_serializing_if = "is_all")]
    positions: Positions,
    #[serde(default, skip_serializing_if = "is_every_phase")]
    phase: Phase,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    steps: Option<Positions>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    heads: Option<Vec<usize>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    units: Option<Vec<usize>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    keys: Option<Positions>,
    #[serde(flatten)]
    action: Map<String, Value>,
}

fn is_all(positions: &Positions) -> bool {
    *positions == Positions::All
}

fn is_every_phase(phase: &Phase) -> bool {
    *phase == Phase::All
}

impl<'de> Deserialize<'de> for Tap {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Tap, D::Error> {
        let form = TapForm::deserialize(deserializer)?;
        let TapForm { site, rows, positions, phase, steps, heads, units, keys, action } = form;
        let action = read_action(action).map_err(|problem| D::Error::custom(format!("tap on `{site}`: {problem}")))?;
        Ok(Tap { site, rows, positions, phase, steps, heads, units, keys, action })
    }
}

impl Serialize for Tap {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let tap = self.clone();
        let action = write_action(&tap.action).map_err(S::Error::custom)?;
        let Tap { site, rows, positions, phase, steps, heads, units, keys, .. } = tap;
        TapForm { site, rows, positions, phase, steps, heads, units, keys, action }.serialize(serializer)
    }
}

const ACTIONS: &str = "capture, set, add, scale, zero, mean_ablate, project_out, cap, skip";

fn read_action(keys: Map<String, Value>) -> Result<Action, String> {
    let found = keys.keys().map(|key| format!("`{key}`")).collect::<Vec<_>>().join(" and ");
    let mut keys = keys.into_iter();
    let (Some((name, value)), None) = (keys.next(), keys.next()) else {
        let found = if found.is_empty() { "found none".into() } else { format!("found {found}") };
        return Err(format!("{found}; a tap has exactly one action, one of {ACTIONS}"));
    };
    let flag = |action: Action| match value {
        Value::Bool(true) => Ok(action),
        _ => Err(format!("`{name}` takes true")),
    };
    match name.as_str() {
        "capture" => match &value {
            Value::Bool(true) => Ok(Action::Capture(None)),
            Value::Object(_) => {
                let form: CaptureForm = read(&name, value)?;
                Ok(Action::Capture(Some(form.reduce.into())))
            }
            _ => Err("`capture` takes true or {\"reduce\": …}".into()),
        },
        "set" => Ok(Action::Set(read_operand(value)?)),
        "mean_ablate" => Ok(Action::MeanAblate(read_operand(value)?)),
        "add" => {
            let mut value = value;
            let scale = value.as_object_mut().and_then(|object| object.remove("scale"));
            let scale = scale.map_or(Ok(1.0), |scale| scale.as_f64().ok_or("`scale` takes a number"))?;
            Ok(Action::Add { operand: read_operand(value)?, scale: scale as f32 })
        }
        "scale" => Ok(Action::Scale(value.as_f64().ok_or("`scale` takes a number")? as f32)),
        "zero" => flag(Action::Zero),
        "skip" => flag(Action::Skip),
        "project_out" => {
            let form: ProjectForm = read(&name, value)?;
            Ok(Action::ProjectOut { vector: read_operand(form.vector)?, scale: form.scale.unwrap_or(0.0) })
        }
        "cap" => {
            let form: CapForm = read(&name, value)?;
            if form.min.is_none() && form.max.is_none() {
                return Err("`cap` takes min, max or both".into());
            }
            Ok(Action::Cap { vector: read_operand(form.vector)?, min: form.min, max: form.max })
        }
        "call" => Err("`call` takes a closure and cannot be written in JSON".into()),
        other => Err(format!("unknown key `{other}`; a tap has one action, one of {ACTIONS}")),
    }
}

fn write_action(action: &Action) -> Result<Map<String, Value>, &'static str> {
    let (name, value) = match action {
        Action::Capture(None) => ("capture", json!(true)),
        Action::Capture(Some(reduce)) => ("capture", json!({ "reduce": write_reduce(reduce) })),
        Action::Set(operand) => ("set", write_operand(operand)),
        Action::MeanAblate(operand) => ("mean_ablate", write_operand(operand)),
        Action::Add { operand, scale } => {
            let mut value = match write_operand(operand) {
                Value::Object(object) => object,
                plain => Map::from_iter([("vector".to_string(), plain)]),
            };
            value.insert("scale".into(), json!(scale));
            ("add", Value::Object(value))
        }
        Action::Scale(by) => ("scale", json!(by)),
        Action::Zero => ("zero", json!(true)),
        Action::Skip => ("skip", json!(true)),
        Action::ProjectOut { vector, scale } => {
            ("project_out", json!({ "vector": write_operand(vector), "scale": scale }))
        }
        Action::Cap { vector, min, max } => ("cap", json!({ "vector": write_operand(vector), "min": min, "max": max })),
        Action::Call(_) => return Err("a plan with a closure cannot be written as JSON"),
    };
    Ok(Map::from_iter([(name.to_string(), value)]))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CaptureForm {
    reduce: ReduceForm,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum ReduceForm {
    Mean,
    Norm,
    Topk(usize),
    Dot(OperandForm),
}

impl From<ReduceForm> for Reduce {
    fn from(form: ReduceForm) -> Reduce {
        match form {
            ReduceForm::Mean => Reduce::Mean,
            ReduceForm::Norm => Reduce::Norm,
            ReduceForm::Topk(k) => Reduce::TopK(k),
            ReduceForm::Dot(vector) => Reduce::Dot(vector.0),
        }
    }
}

fn write_reduce(reduce: &Reduce) -> Value {
    match reduce {
        Reduce::Mean => json!("mean"),
        Reduce::Norm => json!("norm"),
        Reduce::TopK(k) => json!({ "topk": k }),
        Reduce::Dot(vector) => json!({ "dot": write_operand(vector) }),
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ProjectForm {
    vector: Value,
    scale: Option<f32>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CapForm {
    vector: Value,
    min: Option<f32>,
    max: Option<f32>,
}

struct OperandForm(Operand);

impl<'de> Deserialize<'de> for OperandForm {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<OperandForm, D::Error> {
        read_operand(Value::deserialize(deserializer)?).map(OperandForm).map_err(D::Error::custom)
    }
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

/// A number, `"-inf"`, a list, a list of lists, `"file#tensor"`, `{"vector": …}` or `{"from": …}`.
fn read_operand(value: Value) -> Result<Operand, String> {
    match value {
        Value::Number(number) => Ok(Operand::Number(number.as_f64().unwrap_or(f64::NAN) as f32)),
        Value::String(text) if text == "-inf" => Ok(Operand::Number(f32::NEG_INFINITY)),
        Value::String(file) => Ok(Operand::File(file)),
        Value::Array(list) if list.first().is_some_and(Value::is_array) => {
            Ok(Operand::Rows(read("rows of numbers", Value::Array(list))?))
        }
        Value::Array(_) => Ok(Operand::Vector(read("a list of numbers", value)?)),
        Value::Object(mut object) => {
            let known = |key: &String| ["vector", "from"].contains(&key.as_str());
            if let Some(key) = object.keys().find(|key| !known(key)) {
                return Err(format!(
                    "unknown key `{key}` in a value; it takes `vector` or `from`, and `scale` in `add`"
                ));
            }
            match (object.remove("vector"), object.remove("from")) {
                (Some(vector), None) => read_operand(vector),
                (None, Some(from)) => {
                    let FromForm { site, rows, positions } = read("from", from)?;
                    Ok(Operand::From(FromSite { site, rows, positions }))
                }
                _ => Err("a value takes either `vector` or `from`".into()),
            }
        }
        Value::Bool(_) | Value::Null => {
            Err("a value is a number, a list of numbers, \"file.safetensors#tensor\", {\"vector\": …} or {\"from\": …}"
                .into())
        }
    }
}

fn write_operand(operand: &Operand) -> Value {
    match operand {
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

fn read<T: serde::de::DeserializeOwned>(what: &str, value: Value) -> Result<T, String> {
    serde_json::from_value(value).map_err(|error| format!("`{what}`: {error}"))
}

impl<'de> Deserialize<'de> for Positions {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Positions, D::Error> {
        match Value::deserialize(deserializer)? {
            Value::Number(n) => n
                .as_i64()
                .map(|n| Positions::List(vec![n]))
                .ok_or_else(|| D::Error::custom("a position is a whole number")),
            Value::String(text) => Ok(Positions::parse(&text)),
            list @ Value::Array(_) => serde_json::from_value(list).map(Positions::List).map_err(D::Error::custom),
            Value::Object(object) => match object.get("token").and_then(Value::as_str) {
                Some(text) if object.len() == 1 => Ok(Positions::Token(text.into())),
                _ => Err(D::Error::custom("positions as an object are {\"token\": \"text\"}")),
            },
            _ => Err(D::Error::custom(
                "positions are a number, a list, a slice, last, prompt, generated, all or a token",
            )),
        }
    }
}

impl Serialize for Positions {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Positions::List(list) => list.serialize(serializer),
            Positions::Token(token) => json!({ "token": token }).serialize(serializer),
            named => named.to_string().serialize(serializer),
        }
    }
}
