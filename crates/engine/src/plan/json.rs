//! Plans as JSON: one object a tap, one key for its action.

use super::json_value::{Names, Written};
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
    taps: Vec<TapForm>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    values: Vec<Map<String, Value>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    save: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    metric: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    metrics: Vec<String>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    allow_nan: bool,
}

impl<'de> Deserialize<'de> for Plan {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Plan, D::Error> {
        read_plan(PlanForm::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

impl Serialize for Plan {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        write_plan(self).map_err(S::Error::custom)?.serialize(serializer)
    }
}

/// Names first, since taps may use values and values what taps read.
fn read_plan(form: PlanForm) -> Result<Plan, String> {
    let metrics: Vec<String> = form.metric.into_iter().chain(form.metrics).collect();
    let mut names = Names::new(&metrics);
    for (index, tap) in form.taps.iter().enumerate() {
        names.read(index, tap.reads_as(&tap.action)?)?;
    }
    for value in form.values {
        names.value(value)?;
    }
    let taps = form.taps.into_iter().map(|tap| tap.read(&names)).collect::<Result<_, _>>()?;
    let find = |list: &[String]| list.iter().map(|name| names.find(name)).collect::<Result<Vec<_>, _>>();
    Ok(Plan {
        taps,
        save: find(&form.save)?,
        metrics: find(&metrics)?,
        allow_nan: form.allow_nan,
        values: names.values,
    })
}

fn write_plan(plan: &Plan) -> Result<PlanForm, String> {
    let names = Written::new(plan);
    let taps = plan.taps.iter().enumerate().map(|(index, tap)| TapForm::write(index, tap, &names));
    let mut metrics: Vec<String> = plan.metrics.iter().map(|&id| names.of(id)).collect();
    let metric = (metrics.len() == 1).then(|| metrics.remove(0));
    Ok(PlanForm {
        taps: taps.collect::<Result<_, _>>()?,
        values: names.values(plan)?,
        save: plan.save.iter().map(|&id| names.of(id)).collect(),
        metric,
        metrics,
        allow_nan: plan.allow_nan,
    })
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

impl TapForm {
    /// The name under which the tap reads, if it does; a read of a gradient stands inside `grad`.
    fn reads_as(&self, action: &Map<String, Value>) -> Result<Option<String>, String> {
        if let Some(Value::Object(inner)) = action.get("grad") {
            return self.reads_as(inner);
        }
        match action.get("as") {
            Some(Value::String(name)) => Ok(Some(name.clone())),
            Some(_) => Err(format!("tap on `{}`: `as` takes a name", self.site)),
            None => Ok(None),
        }
    }

    fn read(self, names: &Names) -> Result<Tap, String> {
        let TapForm { site, rows, positions, phase, steps, heads, units, keys, action } = self;
        let action = read_action(action, names).map_err(|problem| format!("tap on `{site}`: {problem}"))?;
        Ok(Tap { site, rows, positions, phase, steps, heads, units, keys, action })
    }

    fn write(index: usize, tap: &Tap, names: &Written) -> Result<TapForm, String> {
        let tap = tap.clone();
        let action = write_action(index, &tap.action, names)?;
        let Tap { site, rows, positions, phase, steps, heads, units, keys, .. } = tap;
        Ok(TapForm { site, rows, positions, phase, steps, heads, units, keys, action })
    }
}

const ACTIONS: &str = "capture, as, set, add, scale, zero, mean_ablate, project_out, cap, skip, grad";

fn read_action(keys: Map<String, Value>, names: &Names) -> Result<Action, String> {
    let read_operand = |value: Value| self::read_operand(value, names);
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
        "as" => Ok(Action::Read),
        "grad" => match value {
            Value::Bool(true) => Ok(Action::Grad { metric: 0, action: Box::new(Action::Capture(None)) }),
            Value::Object(mut inner) => {
                let metric = names.metric("grad", inner.remove("of"))?;
                Ok(Action::Grad { metric, action: Box::new(read_action(inner, names)?) })
            }
            _ => Err("`grad` takes true, or an action on the gradient such as {\"zero\": true}".into()),
        },
        "skip" => match value {
            Value::Bool(true) => Ok(Action::Skip(None)),
            Value::Object(_) => Ok(Action::Skip(Some(read_operand(value)?))),
            _ => Err("`skip` takes true, or what leaves the layer instead".into()),
        },
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

fn write_action(tap: usize, action: &Action, names: &Written) -> Result<Map<String, Value>, String> {
    let write_operand = |operand: &Operand| self::write_operand(operand, names);
    let (name, value) = match action {
        Action::Read => ("as", json!(names.of_tap(tap))),
        Action::Grad { metric: 0, action } if **action == Action::Capture(None) => ("grad", json!(true)),
        Action::Grad { metric, action } => {
            let mut inner = write_action(tap, action, names)?;
            inner.insert("of".into(), json!(names.metric(*metric)));
            ("grad", Value::Object(inner))
        }
        Action::Capture(None) => ("capture", json!(true)),
        Action::Capture(Some(reduce)) => ("capture", json!({ "reduce": write_reduce(reduce, names) })),
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
        Action::Skip(None) => ("skip", json!(true)),
        Action::Skip(Some(operand)) => match write_operand(operand) {
            object @ Value::Object(_) => ("skip", object),
            plain => ("skip", json!({ "vector": plain })),
        },
        Action::ProjectOut { vector, scale } => {
            ("project_out", json!({ "vector": write_operand(vector), "scale": scale }))
        }
        Action::Cap { vector, min, max } => ("cap", json!({ "vector": write_operand(vector), "min": min, "max": max })),
        Action::Call(_) => return Err("a plan with a closure cannot be written as JSON".into()),
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

fn write_reduce(reduce: &Reduce, names: &Written) -> Value {
    match reduce {
        Reduce::Mean => json!("mean"),
        Reduce::Norm => json!("norm"),
        Reduce::TopK(k) => json!({ "topk": k }),
        Reduce::Dot(vector) => json!({ "dot": write_operand(vector, names) }),
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
        read_operand(Value::deserialize(deserializer)?, &Names::new(&[])).map(OperandForm).map_err(D::Error::custom)
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

/// A number, `"-inf"`, a list, a list of lists, `"file#tensor"`, `{"vector": …}`, `{"from": …}` or `{"value": "name"}`.
fn read_operand(value: Value, names: &Names) -> Result<Operand, String> {
    match value {
        Value::Number(number) => Ok(Operand::Number(number.as_f64().unwrap_or(f64::NAN) as f32)),
        Value::String(text) if text == "-inf" => Ok(Operand::Number(f32::NEG_INFINITY)),
        Value::String(file) => Ok(Operand::File(file)),
        Value::Array(list) if list.first().is_some_and(Value::is_array) => {
            Ok(Operand::Rows(read("rows of numbers", Value::Array(list))?))
        }
        Value::Array(_) => Ok(Operand::Vector(read("a list of numbers", value)?)),
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
                    let FromForm { site, rows, positions } = read("from", from)?;
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

fn write_operand(operand: &Operand, names: &Written) -> Value {
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
