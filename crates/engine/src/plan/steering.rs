//! Steering specs: ordered edits of the residual stream by layer, in the JSON form in which
//! programs send them with a request.
//!
//! ```json
//! {"layers": {"12": {"operations": [
//!     {"type": "add", "vector": [0.5, -0.5], "scale": 2.0},
//!     {"type": "cap", "vector": [0.5, -0.5], "min": -1.0, "max": 1.0},
//!     {"type": "ablation", "vector": [0.5, -0.5], "scale": 0.0}]}}}
//! ```
//!
//! A spec becomes taps on `layers.N.resid_post`, in list order. A bundle of named vectors and
//! experiments (`{"vectors": …, "experiments": …}`) is read as the caps of one experiment.

use super::{Operand, Tap};
use crate::error::{Error, Result};
use crate::program::Program;
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;

/// Scale up to which an `add` counts as no change.
const NEGLIGIBLE_SCALE: f32 = 1e-12;

/// Ordered edits of the residual stream, by layer.
///
/// ```
/// use pellucid_engine::plan::SteeringSpec;
/// let spec = serde_json::json!({"layers": {"2": {"operations": [
///     {"type": "add", "vector": [1.0, 0.0], "scale": 4.0},
///     {"type": "ablation", "vector": [0.0, 1.0], "scale": 0.0},
/// ]}}});
/// let spec = SteeringSpec::from_json(&spec).unwrap();
/// assert_eq!(spec.taps().len(), 2);
/// assert_eq!(spec.taps()[0].site, "layers.2.resid_post");
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SteeringSpec {
    /// The operations of each layer, in the order in which they apply.
    pub layers: BTreeMap<usize, Vec<SteeringOp>>,
}

/// One edit of a [`SteeringSpec`].
#[derive(Clone, Debug, PartialEq)]
pub enum SteeringOp {
    /// `h + sv`.
    Add {
        /// The vector.
        vector: Operand,
        /// Its scale.
        scale: f32,
    },
    /// `h + (clamp(h·v, min, max) − h·v)v` with `v` of unit length.
    Cap {
        /// The direction.
        vector: Operand,
        /// Minimum of `h·v`.
        min: Option<f32>,
        /// Maximum of `h·v`.
        max: Option<f32>,
    },
    /// `h + (s − 1)(h·v)v` with `v` of unit length: 0 removes the direction, 1 changes nothing.
    Ablation {
        /// The direction.
        vector: Operand,
        /// Scale of the component along the direction.
        scale: f32,
    },
}

impl SteeringSpec {
    /// Parses a spec: the operations by layer, or a bundle of vectors and experiments. A bundle
    /// with several experiments names one in `"experiment"`.
    ///
    /// Fails for vectors that are empty, have NaN, infinite or only zero elements, for a cap
    /// without bounds, and for unknown keys and types.
    pub fn from_json(json: &Value) -> Result<SteeringSpec> {
        let is_bundle = json.get("experiments").is_some();
        let spec = if is_bundle { read_bundle(json) } else { read_layers(json) };
        let spec = spec.map_err(|problem| Error::input(problem, "docs/plans.md describes the form of a spec"))?;
        for (layer, ops) in &spec.layers {
            for (index, op) in ops.iter().enumerate() {
                op.check().map_err(|problem| {
                    let problem = format!("steering spec, layer {layer}, operation {index}: {problem}");
                    Error::input(problem, "correct the operation; docs/plans.md lists the formulas")
                })?;
            }
        }
        Ok(spec)
    }

    /// Checks layers and vector lengths against a model.
    pub fn check(&self, program: &Program) -> Result<()> {
        let (depth, width) = (program.architecture().layers.len(), program.architecture().width);
        for (layer, ops) in &self.layers {
            if *layer >= depth {
                let problem = format!("steering spec: there is no layer {layer}; this model has {depth} layers");
                return Err(Error::input(problem, format!("layers count from 0 to {}", depth - 1)));
            }
            for (index, op) in ops.iter().enumerate() {
                if let Operand::Vector(vector) = op.vector()
                    && vector.len() != width
                {
                    let found = vector.len();
                    return Err(Error::input(
                        format!(
                            "steering spec, layer {layer}, operation {index}: a vector of {found} elements, but the residual stream has {width}"
                        ),
                        "use a vector that was extracted from this model",
                    ));
                }
            }
        }
        Ok(())
    }

    /// Whether it changes nothing: it has no operations, or only additions with a scale of at most
    /// 1e-12.
    pub fn is_empty(&self) -> bool {
        self.layers
            .values()
            .flatten()
            .all(|op| matches!(op, SteeringOp::Add { scale, .. } if scale.abs() <= NEGLIGIBLE_SCALE))
    }

    /// Returns the taps that apply it, layer by layer in list order; none if it is empty.
    pub fn taps(&self) -> Vec<Tap> {
        if self.is_empty() {
            return Vec::new();
        }
        let of_layer = |(layer, ops): (&usize, &Vec<SteeringOp>)| -> Vec<Tap> {
            let site = format!("layers.{layer}.resid_post");
            ops.iter().map(|op| op.tap(&site)).collect()
        };
        self.layers.iter().flat_map(of_layer).collect()
    }
}

impl SteeringOp {
    /// Its vector.
    pub fn vector(&self) -> &Operand {
        match self {
            SteeringOp::Add { vector, .. } | SteeringOp::Cap { vector, .. } | SteeringOp::Ablation { vector, .. } => {
                vector
            }
        }
    }

    fn tap(&self, site: &str) -> Tap {
        match self.clone() {
            SteeringOp::Add { vector, scale } => Tap::add(site).times(scale).with(vector),
            SteeringOp::Cap { vector, min, max } => Tap::new(site, super::Action::Cap { vector, min, max }),
            SteeringOp::Ablation { vector, scale } => Tap::scale_along(site, vector, scale),
        }
    }

    fn check(&self) -> std::result::Result<(), String> {
        if let Operand::Vector(vector) = self.vector() {
            if vector.is_empty() {
                return Err("the vector is empty".into());
            }
            if let Some(index) = vector.iter().position(|x| !x.is_finite()) {
                return Err(format!("element {index} of the vector is {}, which is not finite in f32", vector[index]));
            }
            if vector.iter().all(|&x| x == 0.0) {
                return Err("the vector has norm 0, so it has no direction".into());
            }
        }
        let numbers = match self {
            SteeringOp::Add { scale, .. } | SteeringOp::Ablation { scale, .. } => [Some(*scale), None],
            SteeringOp::Cap { min: None, max: None, .. } => return Err("`cap` needs `min`, `max` or both".into()),
            SteeringOp::Cap { min, max, .. } => [*min, *max],
        };
        match (numbers.iter().flatten().find(|x| !x.is_finite()), self) {
            (Some(number), _) => Err(format!("{number} is not a finite number")),
            (None, SteeringOp::Cap { min: Some(min), max: Some(max), .. }) if min > max => {
                Err(format!("`cap` has min {min} above max {max}"))
            }
            (None, _) => Ok(()),
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a steering spec: an object with `layers`")]
struct SpecForm {
    layers: BTreeMap<String, LayerForm>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object with a list of `operations`")]
struct LayerForm {
    operations: Vec<Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OpForm {
    #[serde(rename = "type")]
    kind: String,
    vector: VectorForm,
    scale: Option<f64>,
    min: Option<f64>,
    max: Option<f64>,
}

/// A vector: its elements, or a tensor in a file.
#[derive(Deserialize)]
#[serde(untagged, expecting = "a vector must be a list of numbers or \"file.safetensors#tensor\"")]
enum VectorForm {
    Elements(Vec<f64>),
    File(String),
}

impl VectorForm {
    fn operand(self) -> Operand {
        match self {
            VectorForm::Elements(elements) => Operand::Vector(elements.into_iter().map(|x| x as f32).collect()),
            VectorForm::File(file) => Operand::File(file),
        }
    }
}

fn read_layers(json: &Value) -> std::result::Result<SteeringSpec, String> {
    let form = SpecForm::deserialize(json).map_err(|error| format!("steering spec: {error}"))?;
    let mut spec = SteeringSpec::default();
    for (name, layer) in form.layers {
        let index = name.parse().map_err(|_| format!("steering spec: `{name}` is not the number of a layer"))?;
        let ops = layer.operations.iter().enumerate().map(|(nth, op)| {
            read_op(op).map_err(|problem| format!("steering spec, layer {index}, operation {nth}: {problem}"))
        });
        if spec.layers.insert(index, ops.collect::<std::result::Result<_, _>>()?).is_some() {
            return Err(format!("steering spec: layer {index} is listed twice"));
        }
    }
    Ok(spec)
}

fn read_op(json: &Value) -> std::result::Result<SteeringOp, String> {
    let OpForm { kind, vector, scale, min, max } = OpForm::deserialize(json).map_err(|error| error.to_string())?;
    let vector = vector.operand();
    let [scale, min, max] = [scale, min, max].map(|number| number.map(|x| x as f32));
    let bounds = min.is_some() || max.is_some();
    match (kind.as_str(), scale) {
        ("add" | "ablation", _) if bounds => Err(format!("`min` and `max` belong to `cap`, not to `{kind}`")),
        ("add", scale) => Ok(SteeringOp::Add { vector, scale: scale.unwrap_or(1.0) }),
        ("ablation", Some(scale)) => Ok(SteeringOp::Ablation { vector, scale }),
        ("ablation", None) => Err("`ablation` needs `scale`: 0 removes the component, 1 changes nothing".into()),
        ("cap", None) => Ok(SteeringOp::Cap { vector, min, max }),
        ("cap", Some(_)) => Err("`cap` has `min` and `max`, not `scale`".into()),
        _ => Err(format!("unknown type `{kind}`; known types are `add`, `cap` and `ablation`")),
    }
}

#[derive(Deserialize)]
struct BundleForm {
    vectors: BTreeMap<String, BundleVector>,
    experiments: Vec<ExperimentForm>,
    experiment: Option<String>,
}

#[derive(Deserialize)]
struct BundleVector {
    vector: VectorForm,
    layer: usize,
}

#[derive(Deserialize)]
struct ExperimentForm {
    id: String,
    interventions: Vec<InterventionForm>,
}

#[derive(Deserialize)]
struct InterventionForm {
    /// Name of the vector.
    vector: String,
    /// Maximum of the component along it.
    cap: f64,
}

/// Reads one experiment of a bundle; each intervention caps the component along its vector.
fn read_bundle(json: &Value) -> std::result::Result<SteeringSpec, String> {
    let form = BundleForm::deserialize(json).map_err(|error| format!("steering bundle: {error}"))?;
    let ids =
        || form.experiments.iter().map(|experiment| format!("`{}`", experiment.id)).collect::<Vec<_>>().join(", ");
    let experiment = match (&form.experiment, &form.experiments[..]) {
        (Some(id), all) => all
            .iter()
            .find(|experiment| experiment.id == *id)
            .ok_or_else(|| format!("steering bundle: there is no experiment `{id}`; it has {}", ids()))?,
        (None, [only]) => only,
        (None, []) => return Err("steering bundle: it has no experiments".into()),
        (None, _) => return Err(format!("steering bundle: name one of its experiments in `experiment`: {}", ids())),
    };
    let vectors: BTreeMap<String, (Operand, usize)> =
        form.vectors.into_iter().map(|(name, entry)| (name, (entry.vector.operand(), entry.layer))).collect();
    let mut spec = SteeringSpec::default();
    for InterventionForm { vector: name, cap } in &experiment.interventions {
        let (vector, layer) = vectors
            .get(name)
            .ok_or_else(|| format!("steering bundle, experiment `{}`: there is no vector `{name}`", experiment.id))?;
        let op = SteeringOp::Cap { vector: vector.clone(), min: None, max: Some(*cap as f32) };
        spec.layers.entry(*layer).or_default().push(op);
    }
    Ok(spec)
}
