//! Values as JSON: one object each, with a name and one operation.
//!
//! An argument is a name, a number, nested lists of numbers, or another operation:
//! `{"name": "x", "mul": ["h", {"exp": "g"}]}`.

use super::{Across, Combine, Expr, Fold, Map, Pick, Plan, Value as PlanValue, ValueId};
use crate::array::Array;
use crate::ids::IdVec;
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use pellucid_kernels::activation::Activation;
use serde_json::{Map as Object, Value, json};
use std::collections::HashMap;

/// JSON names of elementwise functions. Activation functions have their own table in the kernels.
const MAPS: [(&str, Map); 11] = [
    ("detach", Map::Detach),
    ("neg", Map::Neg),
    ("abs", Map::Abs),
    ("exp", Map::Exp),
    ("log", Map::Log),
    ("sqrt", Map::Sqrt),
    ("square", Map::Square),
    ("sign", Map::Sign),
    ("not", Map::Not),
    ("sin", Map::Sin),
    ("cos", Map::Cos),
];

const COMBINES: [(&str, Combine); 13] = [
    ("add", Combine::Add),
    ("sub", Combine::Sub),
    ("mul", Combine::Mul),
    ("div", Combine::Div),
    ("pow", Combine::Pow),
    ("maximum", Combine::Max),
    ("minimum", Combine::Min),
    ("lt", Combine::Less),
    ("le", Combine::LessEqual),
    ("gt", Combine::Greater),
    ("ge", Combine::GreaterEqual),
    ("eq", Combine::Equal),
    ("ne", Combine::NotEqual),
];

const FOLDS: [(&str, Fold); 7] = [
    ("sum", Fold::Sum),
    ("mean", Fold::Mean),
    ("max", Fold::Max),
    ("min", Fold::Min),
    ("argmax", Fold::ArgMax),
    ("norm", Fold::Norm),
    ("var", Fold::Var),
];

const ACROSS: [(&str, Across); 4] =
    [("sum", Across::Sum), ("mean", Across::Mean), ("stack", Across::Stack), ("concat", Across::Concat)];

fn named<T: Copy>(table: &[(&str, T)], name: &str) -> Option<T> {
    table.iter().find(|(known, _)| *known == name).map(|(_, meaning)| *meaning)
}

fn name_of<T: Copy + PartialEq>(table: &[(&'static str, T)], meaning: T) -> &'static str {
    table.iter().find(|(_, known)| *known == meaning).map_or("", |(name, _)| name)
}

impl Map {
    /// Returns the function with this JSON name.
    pub fn named(name: &str) -> Option<Map> {
        named(&MAPS, name).or_else(|| Activation::named(name).map(Map::Activation))
    }

    /// Returns its JSON name; `None` for an activation function without one.
    fn name(self) -> Option<&'static str> {
        match self {
            Map::Activation(activation) => activation.names().first().copied(),
            other => Some(name_of(&MAPS, other)),
        }
    }
}

impl Combine {
    /// Returns the function with this JSON name.
    pub fn named(name: &str) -> Option<Combine> {
        named(&COMBINES, name)
    }
}

impl Fold {
    /// Returns the reduction with this JSON name.
    pub fn named(name: &str) -> Option<Fold> {
        named(&FOLDS, name)
    }
}

impl Across {
    /// Returns the row join with this JSON name.
    pub fn named(name: &str) -> Option<Across> {
        named(&ACROSS, name)
    }
}

/// Parses the values of a plan and resolves their names.
pub(super) struct ValueParser<'a> {
    pub values: IdVec<ValueId, PlanValue>,
    by_name: HashMap<String, ValueId>,
    metrics: &'a [String],
}

impl<'a> ValueParser<'a> {
    pub fn new(metrics: &'a [String]) -> ValueParser<'a> {
        ValueParser { values: IdVec::default(), by_name: HashMap::new(), metrics }
    }

    /// Returns the metric that `of` names in `grad` or `weight_grad`; the first metric if it is
    /// absent.
    pub fn metric(&self, op: &str, of: Option<Value>) -> Result<usize, String> {
        match of {
            None => Ok(0),
            Some(Value::String(of)) => self
                .metrics
                .iter()
                .position(|metric| *metric == of)
                .ok_or_else(|| format!("`{op}` of {of:?}, which is not a metric of the plan")),
            Some(_) => Err(format!("`of` in `{op}` must be the name of a metric")),
        }
    }

    /// Registers a reading tap under its name.
    pub fn add_read(&mut self, tap: usize, name: Option<String>) -> Result<(), String> {
        match name {
            Some(name) => self.add(Some(name), Expr::Read(tap)).map(drop),
            None => Ok(()),
        }
    }

    /// Parses one object of the list of values.
    pub fn add_value(&mut self, mut object: Object<String, Value>) -> Result<(), String> {
        let name = match object.remove("name") {
            Some(Value::String(name)) => name,
            _ => return Err("a value needs a `name`".into()),
        };
        let expr = self.expr(object).map_err(|problem| format!("value `{name}`: {problem}"))?;
        self.add(Some(name), expr).map(drop)
    }

    pub fn find(&self, name: &str) -> Result<ValueId, String> {
        let known = || self.by_name.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
        self.by_name
            .get(name)
            .copied()
            .ok_or_else(|| format!("there is no earlier value {name:?}; known values: {}", known()))
    }

    fn add(&mut self, name: Option<String>, expr: Expr) -> Result<ValueId, String> {
        let id = ValueId::new(self.values.len());
        if let Some(name) = &name
            && self.by_name.insert(name.clone(), id).is_some()
        {
            return Err(format!("two values have the name {name:?}"));
        }
        Ok(self.values.push(PlanValue { name, expr }))
    }

    fn argument(&mut self, value: Value) -> Result<ValueId, String> {
        match value {
            Value::String(name) => self.find(&name),
            Value::Object(object) => {
                let expr = self.expr(object)?;
                self.add(None, expr)
            }
            constant => {
                let array = array(&constant)?;
                self.add(None, Expr::Constant(array))
            }
        }
    }

    fn arguments<const N: usize>(&mut self, op: &str, value: Value) -> Result<[ValueId; N], String> {
        let Value::Array(list) = value else { return Err(format!("`{op}` takes a list of {N} arguments")) };
        let found = list.into_iter().map(|value| self.argument(value)).collect::<Result<Vec<_>, _>>()?;
        found.try_into().map_err(|list: Vec<ValueId>| format!("`{op}` takes {N} arguments, not {}", list.len()))
    }

    /// Parses `weight_grad`: a weight's name, or an object with `weight` and the metric `of`.
    fn weight_grad(&self, value: Value) -> Result<Expr, String> {
        let mut form = match value {
            Value::Object(form) => form,
            alone => Object::from_iter([("weight".to_string(), alone)]),
        };
        let metric = self.metric("weight_grad", form.remove("of"))?;
        let weight = take(&mut form, "weight")?.ok_or("`weight_grad` needs the name of a `weight`")?;
        match form.keys().next() {
            Some(key) => Err(format!("unknown key `{key}` in `weight_grad`")),
            None => Ok(Expr::WeightGrad { metric, weight }),
        }
    }

    /// Parses an object with one operation.
    fn expr(&mut self, object: Object<String, Value>) -> Result<Expr, String> {
        let mut keys = object.into_iter();
        let (Some((op, value)), None) = (keys.next(), keys.next()) else {
            return Err("a value has exactly one operation; docs/plans.md lists them".into());
        };
        if let Some(map) = Map::named(&op) {
            return Ok(Expr::Map(map, self.argument(value)?));
        }
        if let Some(combine) = Combine::named(&op) {
            let [a, b] = self.arguments(&op, value)?;
            return Ok(Expr::Combine(combine, a, b));
        }
        if op == "weight_grad" {
            return self.weight_grad(value);
        }
        // Operations with options take an object with `of`; `{"sum": "x"}` is short for
        // `{"sum": {"of": "x"}}`.
        let mut form = match value {
            Value::Object(form) if form.contains_key("of") => form,
            other => Object::from_iter([("of".to_string(), other)]),
        };
        let of = form.remove("of").unwrap_or_default();
        let expr = match op.as_str() {
            "constant" => Expr::Constant(array(&of)?),
            "file" => Expr::File(of.as_str().ok_or("`file` takes \"file.safetensors#tensor\"")?.into()),
            "where" => {
                let [condition, a, b] = self.arguments(&op, of)?;
                Expr::Where(condition, a, b)
            }
            "matmul" => {
                let [a, b] = self.arguments(&op, of)?;
                Expr::MatMul(a, b)
            }
            "softmax" | "log_softmax" => {
                let (of, axis) = (self.argument(of)?, take(&mut form, "axis")?.unwrap_or(-1));
                Expr::Softmax { of, axis, log: op == "log_softmax" }
            }
            "topk" | "topk_places" => {
                let k = take(&mut form, "k")?.ok_or("`topk` needs `k`")?;
                Expr::TopK { of: self.argument(of)?, k, indices: op == "topk_places" }
            }
            "index" => Expr::Index { of: self.argument(of)?, picks: picks(&mut form)? },
            "put" => {
                let by = form.remove("by").ok_or("`put` needs `by`")?;
                Expr::Put { of: self.argument(of)?, picks: picks(&mut form)?, by: self.argument(by)? }
            }
            "take" => {
                let indices = form.remove("places").ok_or("`take` needs `places`")?;
                Expr::Take { of: self.argument(of)?, indices: self.argument(indices)? }
            }
            "reshape" => Expr::Reshape {
                of: self.argument(of)?,
                shape: take(&mut form, "shape")?.ok_or("`reshape` needs `shape`")?,
            },
            "permute" => Expr::Permute {
                of: self.argument(of)?,
                axes: take(&mut form, "axes")?.ok_or("`permute` needs `axes`")?,
            },
            "concat" => {
                let Value::Array(parts) = of else { return Err("`concat` takes a list".into()) };
                let parts = parts.into_iter().map(|part| self.argument(part)).collect::<Result<_, _>>()?;
                Expr::Concat { parts, axis: take(&mut form, "axis")?.unwrap_or(0) }
            }
            "across" => {
                let how: String = take(&mut form, "how")?.unwrap_or_else(|| "stack".into());
                let how = Across::named(&how)
                    .ok_or_else(|| format!("`how` must be sum, mean, stack or concat, not {how:?}"))?;
                Expr::Across { of: self.argument(of)?, how }
            }
            "row" => Expr::Row { of: self.argument(of)?, row: take(&mut form, "row")?.ok_or("`row` needs `row`")? },
            "through" => Expr::Through {
                of: self.argument(of)?,
                from: take(&mut form, "from")?.ok_or("`through` needs `from`, a site")?,
                to: take(&mut form, "to")?.ok_or("`through` needs `to`, a site")?,
            },
            "unembed" => Expr::Unembed(self.argument(of)?),
            "call" => return Err("`call` takes a closure and cannot be written in JSON".into()),
            other => match Fold::named(other) {
                Some(how) => {
                    let (axis, keep) = (take(&mut form, "axis")?, take(&mut form, "keep")?.unwrap_or(false));
                    Expr::Fold { of: self.argument(of)?, how, axis, keep }
                }
                None => return Err(format!("unknown operation `{other}`; docs/plans.md lists them")),
            },
        };
        match form.keys().next() {
            Some(key) => Err(format!("unknown key `{key}` in `{op}`")),
            None => Ok(expr),
        }
    }
}

fn take<T: serde::de::DeserializeOwned>(form: &mut Object<String, Value>, key: &str) -> Result<Option<T>, String> {
    form.remove(key).map(|value| serde_json::from_value(value).map_err(|error| format!("`{key}`: {error}"))).transpose()
}

/// Arrays with more elements than this are written in base64.
const MAX_LISTED: usize = 256;

/// Parses an array in base64: `{"shape": [2, 3], "f32": "…"}`, little endian, in row-major order.
fn packed(form: &Object<String, Value>) -> Result<Array, String> {
    let wrong = || "an array in base64 is {\"shape\": [2, 3], \"f32\": \"…\"}".to_string();
    let (Some(shape), Some(Value::String(text)), 2) = (form.get("shape"), form.get("f32"), form.len()) else {
        return Err(wrong());
    };
    let shape: Vec<usize> = serde_json::from_value(shape.clone()).map_err(|_| wrong())?;
    let bytes = BASE64.decode(text).map_err(|error| format!("`f32` is not base64: {error}"))?;
    let len = shape.iter().try_fold(4usize, |len, &axis| len.checked_mul(axis));
    if len != Some(bytes.len()) {
        return Err(format!("`f32` has {} bytes, which are not the elements of the shape {shape:?}", bytes.len()));
    }
    let elements = bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
    Ok(Array::new(shape, elements.collect()))
}

/// Writes an array as nested lists; in base64 if it is large, or if lists cannot express it.
fn write_array(array: &Array) -> Value {
    let (shape, values) = (array.shape(), array.values());
    if !values.is_empty() && values.len() <= MAX_LISTED && values.iter().all(|x| x.is_finite()) {
        return nested(shape, values);
    }
    let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
    json!({ "shape": shape, "f32": BASE64.encode(bytes) })
}

/// Parses a number, nested lists of numbers with equal lengths, or an array in base64.
fn array(value: &Value) -> Result<Array, String> {
    if let Value::Object(form) = value {
        return packed(form);
    }
    fn fill(value: &Value, depth: usize, shape: &mut Vec<usize>, out: &mut Vec<f32>) -> Result<(), String> {
        let Value::Array(list) = value else {
            out.push(value.as_f64().ok_or("a constant must be a number or nested lists of numbers")? as f32);
            return if depth == shape.len() { Ok(()) } else { Err("nested lists have different depths".into()) };
        };
        if depth == shape.len() && out.is_empty() {
            shape.push(list.len());
        }
        if shape.get(depth) != Some(&list.len()) {
            return Err("nested lists have different lengths".into());
        }
        list.iter().try_for_each(|value| fill(value, depth + 1, shape, out))
    }
    let (mut shape, mut elements) = (Vec::new(), Vec::new());
    fill(value, 0, &mut shape, &mut elements)?;
    Ok(Array::new(shape, elements))
}

fn picks(form: &mut Object<String, Value>) -> Result<Vec<Pick>, String> {
    let Some(Value::Array(list)) = form.remove("picks") else { return Err("an index needs a list of `picks`".into()) };
    let pick = |value: Value| match value {
        Value::Null => Ok(Pick::New),
        Value::Number(at) => at.as_i64().map(Pick::At).ok_or_else(|| "an index must be an integer".to_string()),
        Value::String(text) if text == "..." => Ok(Pick::Rest),
        Value::String(text) => slice(&text).ok_or_else(|| format!("{text:?} is not a slice")),
        each @ Value::Array(_) => serde_json::from_value(each).map(Pick::Each).map_err(|error| error.to_string()),
        other => Err(format!("{other} is not an index; use a number, \"1:3\", a list, \"...\" or null")),
    };
    list.into_iter().map(pick).collect()
}

fn slice(text: &str) -> Option<Pick> {
    let bound = |part: &str| if part.trim().is_empty() { Some(None) } else { part.trim().parse().ok().map(Some) };
    let parts = text.split(':').map(bound).collect::<Option<Vec<Option<i64>>>>()?;
    match parts[..] {
        [start, end] => Some(Pick::Slice(start, end, 1)),
        [start, end, step] => Some(Pick::Slice(start, end, step.unwrap_or(1))),
        _ => None,
    }
}

/// Writes the values of a plan as JSON; unnamed values are called `v0`, `v1`, ….
pub(super) struct ValueWriter {
    names: IdVec<ValueId, String>,
    taps: HashMap<usize, ValueId>,
    metrics: Vec<ValueId>,
}

impl ValueWriter {
    pub fn new(plan: &Plan) -> ValueWriter {
        let name = |(id, value): (ValueId, &PlanValue)| value.name.clone().unwrap_or_else(|| format!("v{id}"));
        let reads = plan.values.iter_with_ids().filter_map(|(id, value)| match value.expr {
            Expr::Read(tap) => Some((tap, id)),
            _ => None,
        });
        ValueWriter {
            names: plan.values.iter_with_ids().map(name).collect(),
            taps: reads.collect(),
            metrics: plan.metrics.clone(),
        }
    }

    pub fn name(&self, id: ValueId) -> String {
        self.names.get(id).cloned().unwrap_or_default()
    }

    pub fn tap_name(&self, tap: usize) -> String {
        self.taps.get(&tap).map_or_else(|| format!("tap{tap}"), |&id| self.name(id))
    }

    /// Writes `of`, the metric of a gradient.
    pub fn write_metric(&self, metric: usize, to: &mut Object<String, Value>) -> Result<(), String> {
        match self.metrics.get(metric) {
            Some(&id) => drop(to.insert("of".into(), json!(self.name(id)))),
            // The plan is not complete yet; reading it gives the first metric again.
            None if metric == 0 => {}
            None => return Err(format!("there is no metric {metric}: the plan has {} metrics", self.metrics.len())),
        }
        Ok(())
    }

    /// Returns the list of values. Reads are written with their taps instead.
    pub fn values(&self, plan: &Plan) -> Result<Vec<Object<String, Value>>, String> {
        let rest = plan.values.iter_with_ids().filter(|(_, value)| !matches!(value.expr, Expr::Read(_)));
        rest.map(|(id, value)| {
            let (op, argument) = self.write(&value.expr)?;
            Ok(Object::from_iter([("name".to_string(), json!(self.name(id))), (op.to_string(), argument)]))
        })
        .collect()
    }

    fn write(&self, expr: &Expr) -> Result<(&'static str, Value), String> {
        let of = |id: &ValueId| self.name(*id);
        Ok(match expr {
            Expr::Read(_) => unreachable!("reads are written as taps"),
            Expr::Constant(array) => ("constant", write_array(array)),
            Expr::File(file) => ("file", json!(file)),
            Expr::Map(map, a) => {
                let problem = || format!("the activation function has no JSON name: {map:?}");
                (map.name().ok_or_else(problem)?, json!(of(a)))
            }
            Expr::Combine(combine, a, b) => (name_of(&COMBINES, *combine), json!([of(a), of(b)])),
            Expr::Where(c, a, b) => ("where", json!([of(c), of(a), of(b)])),
            Expr::MatMul(a, b) => ("matmul", json!([of(a), of(b)])),
            Expr::Fold { of: a, how, axis, keep } => {
                let mut form = json!({ "of": of(a), "keep": keep });
                if let Some(axis) = axis {
                    form["axis"] = json!(axis);
                }
                (name_of(&FOLDS, *how), form)
            }
            Expr::Softmax { of: a, axis, log } => {
                (if *log { "log_softmax" } else { "softmax" }, json!({ "of": of(a), "axis": axis }))
            }
            Expr::TopK { of: a, k, indices } => {
                (if *indices { "topk_places" } else { "topk" }, json!({ "of": of(a), "k": k }))
            }
            Expr::Index { of: a, picks } => ("index", json!({ "of": of(a), "picks": write_picks(picks) })),
            Expr::Put { of: a, picks, by } => {
                ("put", json!({ "of": of(a), "picks": write_picks(picks), "by": of(by) }))
            }
            Expr::Take { of: a, indices } => ("take", json!({ "of": of(a), "places": of(indices) })),
            Expr::Reshape { of: a, shape } => ("reshape", json!({ "of": of(a), "shape": shape })),
            Expr::Permute { of: a, axes } => ("permute", json!({ "of": of(a), "axes": axes })),
            Expr::Concat { parts, axis } => {
                ("concat", json!({ "of": parts.iter().map(of).collect::<Vec<_>>(), "axis": axis }))
            }
            Expr::Across { of: a, how } => ("across", json!({ "of": of(a), "how": name_of(&ACROSS, *how) })),
            Expr::Row { of: a, row } => ("row", json!({ "of": of(a), "row": row })),
            Expr::Through { of: a, from, to } => ("through", json!({ "of": of(a), "from": from, "to": to })),
            Expr::WeightGrad { metric, weight } => {
                let mut inner = Object::new();
                self.write_metric(*metric, &mut inner)?;
                inner.insert("weight".into(), json!(weight));
                ("weight_grad", Value::Object(inner))
            }
            Expr::Unembed(a) => ("unembed", json!(of(a))),
            Expr::Call { .. } => return Err("a plan with a closure cannot be written as JSON".into()),
        })
    }
}

fn write_picks(picks: &[Pick]) -> Vec<Value> {
    let bound = |at: &Option<i64>| at.map(|at| at.to_string()).unwrap_or_default();
    let write = |pick: &Pick| match pick {
        Pick::At(at) => json!(at),
        Pick::Slice(start, end, step) => json!(format!("{}:{}:{step}", bound(start), bound(end))),
        Pick::Each(list) => json!(list),
        Pick::New => Value::Null,
        Pick::Rest => json!("..."),
    };
    picks.iter().map(write).collect()
}

fn nested(shape: &[usize], values: &[f32]) -> Value {
    match shape.split_first() {
        None => json!(values.first()),
        Some((&length, rest)) => {
            let stride: usize = rest.iter().product();
            (0..length).map(|index| nested(rest, &values[index * stride..][..stride])).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_constant_survives_json_with_its_shape_and_bits() {
        let large: Vec<f32> = (0..300).map(|index| (index as f32).sin()).collect();
        let arrays = [
            Array::new(vec![], vec![-0.0]),
            Array::new(vec![2, 2], vec![0.1, -1e-38, 3e38, f32::MIN_POSITIVE / 2.0]),
            Array::new(vec![3], vec![f32::NAN, f32::INFINITY, f32::NEG_INFINITY]),
            Array::new(vec![0, 5], vec![]),
            Array::new(vec![3, 100], large),
        ];
        let bits = |array: &Array| array.values().iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        for constant in arrays {
            let mut plan = Plan::default();
            plan.value(Expr::Constant(constant.clone()));
            let read = Plan::from_json(&plan.to_json().expect("JSON")).expect("a plan");
            let Expr::Constant(read) = &read.values[ValueId::new(0)].expr else { panic!("{read:?}") };
            assert_eq!((read.shape(), bits(read)), (constant.shape(), bits(&constant)));
        }
    }

    #[test]
    fn damaged_base64_is_an_error() {
        for text in [
            r#"{"shape": [2], "f32": "AAAA"}"#,
            r#"{"shape": [1], "f32": "!"}"#,
            r#"{"shape": [-1], "f32": ""}"#,
            r#"{"shape": [18446744073709551615, 4], "f32": ""}"#,
            r#"{"shape": [1]}"#,
            r#"{"shape": [0], "f32": "", "f16": ""}"#,
        ] {
            let plan = format!(r#"{{"taps": [], "values": [{{"name": "x", "constant": {text}}}]}}"#);
            assert!(Plan::from_json(&plan).is_err(), "{text}");
        }
    }
}
