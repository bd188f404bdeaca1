//! Conditions of taps: `when` the activation's dot product with a direction, or one of its units,
//! is above or below a threshold.
//!
//! A condition is evaluated for each position that its tap selects, at its own site, in the same
//! pass. So its result depends only on the row's own tokens up to that position.

use super::action::{read_operand, write_operand};
use super::json_value::{ValueParser, ValueWriter};
use super::{Columns, Operand, Tap};
use crate::error::{Error, Result};
use pellucid_kernels::elementwise::dot;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A condition of a tap: `h·v` or one unit at a site is above one threshold, below another, or
/// both.
///
/// The dot product is taken with the vector as given, not normalized.
///
/// ```
/// use pellucid_engine::plan::When;
/// use pellucid_engine::{Plan, Tap};
/// let angry = When::above("layers.2.resid_post", vec![0.5, -0.5], 1.5);
/// let plan = Plan::of([
///     // Steer only the positions where the condition holds; report them; end the row.
///     Tap::zero("layers.4.mlp_out").when(angry.clone()),
///     Tap::mark("angry", angry.clone()),
///     Tap::stop(angry),
/// ]);
/// # assert_eq!(Plan::from_json(&plan.to_json().unwrap()).unwrap(), plan);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct When {
    /// Address, alias, or a pattern that is paired with the tap's sites by layer.
    pub site: String,
    /// The number that is compared.
    pub probe: Probe,
    /// The dot product must be above this.
    pub above: Option<f32>,
    /// The dot product must be below this.
    pub below: Option<f32>,
}

/// The number that a condition compares with its thresholds.
#[derive(Clone, Debug, PartialEq)]
pub enum Probe {
    /// Dot product with a vector, one element per unit of the site.
    Direction(Operand),
    /// One unit of the site, such as a feature of an attached autoencoder.
    Unit(usize),
}

/// A position at which the condition of a [`mark`](super::Action::Mark) held.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Mark {
    /// Name of the mark.
    pub name: String,
    /// Index of the tap in the plan.
    pub tap: usize,
    /// Site of the condition.
    #[serde(serialize_with = "as_text")]
    pub site: crate::Site,
    /// Row of the call.
    pub row: usize,
    /// Absolute position in the row.
    pub position: usize,
    /// The dot product, or the unit.
    pub value: f32,
}

fn as_text<S: serde::Serializer>(site: &crate::Site, serializer: S) -> std::result::Result<S::Ok, S::Error> {
    serializer.collect_str(site)
}

impl When {
    /// Holds where `h·v` is above a threshold.
    pub fn above(site: impl Into<String>, direction: impl Into<Operand>, threshold: f32) -> When {
        When { site: site.into(), probe: Probe::Direction(direction.into()), above: Some(threshold), below: None }
    }

    /// Holds where `h·v` is below a threshold.
    pub fn below(site: impl Into<String>, direction: impl Into<Operand>, threshold: f32) -> When {
        When { site: site.into(), probe: Probe::Direction(direction.into()), above: None, below: Some(threshold) }
    }

    /// Holds where one unit of the site is above a threshold.
    pub fn unit_above(site: impl Into<String>, unit: usize, threshold: f32) -> When {
        When { site: site.into(), probe: Probe::Unit(unit), above: Some(threshold), below: None }
    }
}

/// A compiled condition.
pub(crate) struct Condition {
    probe: CompiledProbe,
    /// Number of units of the site.
    units: usize,
    above: f32,
    below: f32,
    pub then: Consequence,
}

enum CompiledProbe {
    Direction(Vec<f32>),
    Unit(usize),
}

/// The consequence of a condition that holds.
#[derive(Clone, PartialEq)]
pub(crate) enum Consequence {
    /// The tap that it belongs to applies at this position.
    Apply,
    /// The row's generation ends.
    Stop,
    /// The position is reported under this name.
    Mark(String),
}

impl Condition {
    /// Checks a condition for a site with `units` units.
    pub fn new(when: &When, units: usize, then: Consequence) -> std::result::Result<Condition, String> {
        let probe = match &when.probe {
            Probe::Direction(Operand::Vector(vector)) if vector.len() == units => {
                if vector.iter().any(|x| !x.is_finite()) || vector.iter().all(|&x| x == 0.0) {
                    return Err("`when`: a direction must be finite and not zero".into());
                }
                CompiledProbe::Direction(vector.clone())
            }
            Probe::Direction(Operand::Vector(vector)) => {
                let found = vector.len();
                return Err(format!("`when`: a direction of {found} elements, but `{}` has {units} units", when.site));
            }
            Probe::Direction(Operand::File(file)) => {
                return Err(format!("`when`: the file {file:?} was not loaded; resolve files before compiling"));
            }
            Probe::Direction(_) => {
                return Err("`when`: a direction must be a list of numbers or a tensor in a file".into());
            }
            Probe::Unit(unit) if *unit < units => CompiledProbe::Unit(*unit),
            Probe::Unit(unit) => return Err(format!("`when`: unit {unit}, but `{}` has {units} units", when.site)),
        };
        let (above, below) = (when.above.unwrap_or(f32::NEG_INFINITY), when.below.unwrap_or(f32::INFINITY));
        if when.above.is_none() && when.below.is_none() {
            return Err("`when` needs `above`, `below` or both".into());
        }
        if above.is_nan() || below.is_nan() || above >= below {
            return Err(format!("`when`: nothing is above {above} and below {below}"));
        }
        Ok(Condition { probe, units, above, below, then })
    }

    /// Returns the compared number at one token if the condition holds.
    pub fn test(&self, token: &[f32]) -> Option<f32> {
        let found = match &self.probe {
            CompiledProbe::Direction(direction) => dot(token, direction),
            CompiledProbe::Unit(unit) => token[*unit],
        };
        (found > self.above && found < self.below).then_some(found)
    }

    /// The columns that it reads: all units of its site.
    pub fn columns(&self) -> Columns {
        Columns::All(self.units)
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WhenForm {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    site: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    direction: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none", alias = "feature")]
    unit: Option<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    above: Option<f32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    below: Option<f32>,
}

/// Parses a condition; `site` is the tap's own, which the condition's defaults to.
pub(super) fn read_when(value: Value, site: Option<&str>, names: &ValueParser) -> std::result::Result<When, String> {
    let form: WhenForm = serde_json::from_value(value).map_err(|error| format!("`when`: {error}"))?;
    let site = form.site.or(site.map(str::to_string)).ok_or("`when` needs a `site`")?;
    let probe = match (form.direction, form.unit) {
        (Some(direction), None) => Probe::Direction(read_operand(direction, names)?),
        (None, Some(unit)) => Probe::Unit(unit),
        _ => return Err("`when` needs either `direction` or `feature`".into()),
    };
    if form.above.is_none() && form.below.is_none() {
        return Err("`when` needs `above`, `below` or both".into());
    }
    Ok(When { site, probe, above: form.above, below: form.below })
}

pub(super) fn write_when(when: &When, names: &ValueWriter) -> std::result::Result<Value, String> {
    let (direction, unit) = match &when.probe {
        Probe::Direction(direction) => (Some(write_operand(direction, names)), None),
        Probe::Unit(unit) => (None, Some(*unit)),
    };
    let form = WhenForm { site: Some(when.site.clone()), direction, unit, above: when.above, below: when.below };
    serde_json::to_value(form).map_err(|error| error.to_string())
}

/// Rejects taps with conditions, for a feature that does not evaluate them.
pub(crate) fn refuse_conditions(taps: &[Tap], feature: &str) -> Result<()> {
    match taps.iter().position(|tap| tap.when.is_some()) {
        None => Ok(()),
        Some(index) => Err(Error::Plan {
            tap: index,
            site: taps[index].site.clone(),
            problem: format!("{feature} does not evaluate `when`"),
            remedy: "use run or generate for taps with conditions".into(),
        }),
    }
}
