//! Plans as JSON: one object per tap, with one key for its action. The JSON of each action is in
//! `action/`.

use super::action::ActionWriter;
use super::json_value::{ValueParser, ValueWriter};
use super::strict_json::{StrictMap, StrictValue};
use super::when::{read_when, write_when};
use super::{Action, MessagePositions, Phase, Plan, Positions, SteeringSpec, Tap};
use serde::de::Error as _;
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value, json};

impl Plan {
    /// Parses a plan from JSON.
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

    /// Returns the plan as JSON; fails if it contains closures.
    pub fn to_json(&self) -> std::result::Result<String, String> {
        serde_json::to_string_pretty(self).map_err(|e| e.to_string())
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a plan: an object with a list of `taps`")]
struct PlanForm {
    #[serde(default)]
    taps: Option<Vec<TapForm>>,
    /// A steering spec, whose taps come first.
    #[serde(default, skip_serializing)]
    steer: Option<StrictValue>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    values: Vec<StrictMap>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    save: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    metric: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    metrics: Vec<String>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    allow_nan: bool,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    saes: Vec<String>,
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

/// Collects names first: taps can use values, and values use what taps read.
fn read_plan(form: PlanForm) -> Result<Plan, String> {
    let metrics: Vec<String> = form.metric.into_iter().chain(form.metrics).collect();
    let mut names = ValueParser::new(&metrics);
    let mut taps = match form.steer {
        Some(spec) => SteeringSpec::from_json(&spec.0).map_err(|error| error.to_string())?.taps(),
        None if form.taps.is_none() => return Err("missing field `taps`".into()),
        None => Vec::new(),
    };
    let forms = form.taps.unwrap_or_default();
    for (index, tap) in forms.iter().enumerate() {
        names.add_read(taps.len() + index, tap.reads_as(&tap.action.0)?)?;
    }
    for value in form.values {
        names.add_value(value.0)?;
    }
    for tap in forms {
        taps.push(tap.read(&names)?);
    }
    let find = |list: &[String]| list.iter().map(|name| names.find(name)).collect::<Result<Vec<_>, _>>();
    Ok(Plan {
        taps,
        save: find(&form.save)?,
        metrics: find(&metrics)?,
        allow_nan: form.allow_nan,
        saes: form.saes,
        values: names.values,
    })
}

fn write_plan(plan: &Plan) -> Result<PlanForm, String> {
    let names = ValueWriter::new(plan);
    let taps = plan.taps.iter().enumerate().map(|(index, tap)| TapForm::write(index, tap, &names));
    let mut metrics: Vec<String> = plan.metrics.iter().map(|&id| names.name(id)).collect();
    let metric = (metrics.len() == 1).then(|| metrics.remove(0));
    Ok(PlanForm {
        taps: Some(taps.collect::<Result<_, _>>()?),
        steer: None,
        values: names.values(plan)?.into_iter().map(StrictMap).collect(),
        save: plan.save.iter().map(|&id| names.name(id)).collect(),
        metric,
        metrics,
        allow_nan: plan.allow_nan,
        saes: plan.saes.clone(),
    })
}

/// A tap in JSON; `action` collects the keys that are not part of the selection.
#[derive(Serialize, Deserialize)]
struct TapForm {
    /// Absent only if the condition has it: `stop` and `mark` act at the condition's site.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    site: Option<String>,
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
    #[serde(alias = "features", default, skip_serializing_if = "Option::is_none")]
    units: Option<Vec<usize>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    experts: Option<Vec<usize>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    keys: Option<Positions>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    when: Option<StrictValue>,
    #[serde(flatten)]
    action: StrictMap,
}

fn is_all(positions: &Positions) -> bool {
    *positions == Positions::All
}

fn is_every_phase(phase: &Phase) -> bool {
    *phase == Phase::All
}

impl TapForm {
    /// Returns the value name of a reading tap (`as`), which is inside `grad` for a gradient.
    fn reads_as(&self, action: &Map<String, Value>) -> Result<Option<String>, String> {
        if let Some(Value::Object(inner)) = action.get("grad") {
            return self.reads_as(inner);
        }
        match action.get("as") {
            Some(Value::String(name)) => Ok(Some(name.clone())),
            Some(_) => {
                let site = self.site.as_deref().unwrap_or("?");
                Err(format!("tap on `{site}`: `as` must be a name"))
            }
            None => Ok(None),
        }
    }

    fn read(self, names: &ValueParser) -> Result<Tap, String> {
        let TapForm { site, rows, positions, phase, steps, heads, units, experts, keys, when, action } = self;
        let when = when.map(|when| read_when(when.0, site.as_deref(), names)).transpose()?;
        let site = match (site, &when) {
            (Some(site), _) => site,
            (None, Some(when)) => when.site.clone(),
            (None, None) => return Err("missing field `site`".into()),
        };
        let action = Action::from_json(action.0, names).map_err(|problem| format!("tap on `{site}`: {problem}"))?;
        Ok(Tap { site, rows, positions, phase, steps, heads, units, experts, keys, when, action })
    }

    fn write(index: usize, tap: &Tap, names: &ValueWriter) -> Result<TapForm, String> {
        let tap = tap.clone();
        let action = StrictMap(tap.action.to_json(&ActionWriter { tap: index, names })?);
        let when = tap.when.as_ref().map(|when| write_when(when, names).map(StrictValue)).transpose()?;
        let Tap { site, rows, positions, phase, steps, heads, units, experts, keys, .. } = tap;
        Ok(TapForm { site: Some(site), rows, positions, phase, steps, heads, units, experts, keys, when, action })
    }
}

impl<'de> Deserialize<'de> for Positions {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Positions, D::Error> {
        match Value::deserialize(deserializer)? {
            Value::Number(n) => n
                .as_i64()
                .map(|n| Positions::List(vec![n]))
                .ok_or_else(|| D::Error::custom("a position must be an integer")),
            Value::String(text) => Ok(Positions::parse(&text)),
            list @ Value::Array(_) => serde_json::from_value(list).map(Positions::List).map_err(D::Error::custom),
            Value::Object(object) => match object.get("token").and_then(Value::as_str) {
                Some(text) if object.len() == 1 => Ok(Positions::Token(text.into())),
                _ => MessagePositions::from_json(&object).map(Positions::Messages).map_err(D::Error::custom),
            },
            _ => Err(D::Error::custom(
                "positions must be a number, a list, a slice, last, prompt, generated, all or a token",
            )),
        }
    }
}

impl Serialize for Positions {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Positions::List(list) => list.serialize(serializer),
            Positions::Token(token) => json!({ "token": token }).serialize(serializer),
            Positions::Messages(messages) => messages.to_json().serialize(serializer),
            named => named.to_string().serialize(serializer),
        }
    }
}
