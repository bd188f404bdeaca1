//! Reference implementations of transformer parts in f64, slow and simple, and the comparison that
//! the identity tests use (invariants.rs, sublayers.rs).

use golden::Case;
use pellucid_engine::architecture::{Activation, Attention, Dense, Layer, Mlp, Norm, NormKind};
use pellucid_engine::program::WeightId;
use pellucid_engine::{Plan, Run};

/// Whether two vectors agree in direction, in norm and in every element, relative to the largest.
pub fn same(ours: &[f64], truth: &[f64]) -> bool {
    assert_eq!(ours.len(), truth.len(), "values of different shapes");
    let norm = |x: &[f64]| x.iter().map(|x| x * x).sum::<f64>().sqrt();
    let (a, b) = (norm(ours), norm(truth));
    assert!(b > 0.0, "nothing to compare with");
    let cosine = ours.iter().zip(truth).map(|(a, b)| a * b).sum::<f64>() / (a * b).max(1e-300);
    let largest = truth.iter().fold(0.0f64, |most, x| most.max(x.abs()));
    let off = ours.iter().zip(truth).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    cosine > 1.0 - 1e-6 && (a / b - 1.0).abs() < 1e-4 && off <= 1e-4 * largest
}

pub fn to_f64(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&x| x as f64).collect()
}

pub fn plus(a: &[f64], b: &[f64]) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| a + b).collect()
}

/// The values of all sites for a case's tokens, attention included, and its weights, as f64.
pub struct Activations<'a> {
    pub case: &'a Case,
    pub tokens: usize,
    run: Run,
}

impl<'a> Activations<'a> {
    pub fn new(case: &'a Case) -> Activations<'a> {
        let sites: Vec<String> = case.loaded.model.program().sites().map(|site| site.to_string()).collect();
        Activations {
            case,
            tokens: case.ids.len(),
            run: case.run(std::slice::from_ref(&case.ids), &Plan::capture(sites)),
        }
    }

    pub fn site(&self, name: &str) -> Vec<f64> {
        let site = self.case.site(name);
        to_f64(self.run.get(site, 0).unwrap_or_else(|| panic!("{}: {name}", self.case.name)).array.values())
    }

    pub fn layer(&self, layer: usize, point: &str) -> Vec<f64> {
        self.site(&format!("layers.{layer}.{point}"))
    }

    fn id(&self, name: &str) -> Option<WeightId> {
        self.case.loaded.model.program().weight_named(name)
    }

    pub fn vector(&self, name: &str) -> Option<Vec<f64>> {
        self.id(name).map(|id| to_f64(self.case.loaded.model.weights().vector(id)))
    }

    pub fn matrix(&self, name: &str) -> Vec<Vec<f64>> {
        let id = self.id(name).unwrap_or_else(|| panic!("{}: no weight {name}", self.case.name));
        let matrix = self.case.loaded.model.weights().matrix(id);
        let mut row = vec![0.0; matrix.cols()];
        let read = |index| {
            matrix.row(index, &mut row);
            to_f64(&row)
        };
        (0..matrix.rows()).map(read).collect()
    }

    /// `x Wᵀ + b` by weight name, with the bias if the model has one.
    pub fn linear(&self, x: &[f64], name: &str) -> Vec<f64> {
        linear(x, &self.matrix(name), self.vector(&format!("{name}.bias")).as_deref())
    }

    /// Applies a norm of the residual stream by weight name.
    pub fn norm(&self, x: &[f64], name: &str, norm: Norm) -> Vec<f64> {
        self.norm_of(x, name, norm, self.case.loaded.model.program().architecture().width)
    }

    /// Applies a norm over groups of `group` elements by weight name.
    pub fn norm_of(&self, x: &[f64], name: &str, norm: Norm, group: usize) -> Vec<f64> {
        let (gain, bias) = (self.vector(&format!("{name}.gain")), self.vector(&format!("{name}.bias")));
        affine(&normalize(x, group, norm).0, gain.as_deref(), bias.as_deref())
    }

    /// Activations of an MLP's neurons, from the input of its activation function and its linear
    /// branch.
    pub fn neurons(&self, dense: &Dense, name: &str, pre: &[f64], linear: Option<&[f64]>) -> Vec<f64> {
        let one = |x: f64| {
            if !dense.xielu {
                return activate(dense.activation, x);
            }
            let learned = |sign: &str| self.vector(&format!("{name}.xielu_{sign}")).expect("a learned scalar")[0];
            let (above, below) = (softplus(learned("positive")), 0.5 + softplus(learned("negative")));
            0.5 * x + if x > 0.0 { above * x * x } else { below * (x.min(-1e-6).exp_m1() - x) }
        };
        let mut act: Vec<f64> = pre.iter().map(|&x| one(x)).collect();
        if let Some(linear) = linear {
            // gpt_oss clamps both branches, and adds one to the linear one.
            let clamped = dense.activation == Activation::ClampedGlu;
            let branch = |x: f64| if clamped { x.clamp(-7.0, 7.0) + 1.0 } else { x };
            act.iter_mut().zip(linear).for_each(|(y, x)| *y *= branch(*x));
        }
        dense
            .inner_norm
            .map_or(act.clone(), |norm| self.norm_of(&act, &format!("{name}.inner_norm"), norm, dense.width))
    }

    /// Runs a dense MLP by weight name.
    pub fn dense(&self, dense: &Dense, name: &str, x: &[f64]) -> Vec<f64> {
        let part = |part: &str| self.linear(x, &format!("{name}.{part}"));
        let (pre, linear) = if dense.gated { (part("gate"), Some(part("up"))) } else { (part("up"), None) };
        let pre: Vec<f64> = pre.iter().map(|x| x * dense.gate_scale.unwrap_or(1.0) as f64).collect();
        self.down(dense, name, &self.neurons(dense, name, &pre, linear.as_deref()))
    }

    /// Applies an MLP's down projection by weight name.
    pub fn down(&self, dense: &Dense, name: &str, neurons: &[f64]) -> Vec<f64> {
        scale_by(&self.linear(neurons, &format!("{name}.down")), dense.down_scale)
    }

    /// Asserts that `ours` equals `truth`, and, as controls, that no value of `wrong` does.
    pub fn check(&self, what: &str, ours: &[f64], truth: &[f64], wrong: &[(&str, Vec<f64>)]) {
        assert!(same(ours, truth), "{}: {what} does not hold", self.case.name);
        for (how, wrong) in wrong {
            assert!(!same(wrong, truth), "{}: {what} also holds with {how}", self.case.name);
        }
    }
}

pub fn times(a: &[f64], b: &[f64]) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| a * b).collect()
}

pub fn scale_by(x: &[f64], by: Option<f32>) -> Vec<f64> {
    x.iter().map(|x| x * by.unwrap_or(1.0) as f64).collect()
}

/// `ln(1 + eˣ)`
pub fn softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

pub fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// `x Wᵀ + b`
pub fn linear(x: &[f64], w: &[Vec<f64>], bias: Option<&[f64]>) -> Vec<f64> {
    let inner = w[0].len();
    let one = |x: &[f64], unit: usize| {
        x.iter().zip(&w[unit]).map(|(a, b)| a * b).sum::<f64>() + bias.map_or(0.0, |b| b[unit])
    };
    x.chunks_exact(inner).flat_map(|x| (0..w.len()).map(|unit| one(x, unit)).collect::<Vec<f64>>()).collect()
}

/// Normalizes groups of `width` elements; returns the values before the gain, and the scales.
pub fn normalize(x: &[f64], width: usize, norm: Norm) -> (Vec<f64>, Vec<f64>) {
    let mut scales = Vec::new();
    let values = x.chunks_exact(width).flat_map(|x| {
        let mean = if norm.kind == NormKind::Layer { x.iter().sum::<f64>() / width as f64 } else { 0.0 };
        let scale = (x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / width as f64 + norm.eps as f64).sqrt();
        scales.push(scale);
        x.iter().map(|x| (x - mean) / scale).collect::<Vec<f64>>()
    });
    let values = values.collect();
    (values, scales)
}

/// Applies a learned gain and bias.
pub fn affine(x: &[f64], gain: Option<&[f64]>, bias: Option<&[f64]>) -> Vec<f64> {
    let at = |v: Option<&[f64]>, i: usize, or: f64| v.map_or(or, |v| v[i % v.len()]);
    x.iter().enumerate().map(|(i, x)| x * at(gain, i, 1.0) + at(bias, i, 0.0)).collect()
}

pub fn softmax(x: &[f64]) -> Vec<f64> {
    let top = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let total: f64 = x.iter().map(|x| (x - top).exp()).sum();
    x.iter().map(|x| (x - top).exp() / total).collect()
}

pub fn soft_cap(x: &[f64], cap: Option<f32>) -> Vec<f64> {
    cap.map_or(x.to_vec(), |cap| x.iter().map(|x| cap as f64 * (x / cap as f64).tanh()).collect())
}

pub fn activate(activation: Activation, x: f64) -> f64 {
    match activation {
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::Gelu => 0.5 * x * (1.0 + erf(x / 2f64.sqrt())),
        Activation::GeluTanh => {
            0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh())
        }
        Activation::Relu => x.max(0.0),
        Activation::ReluSquared => x.max(0.0).powi(2),
        Activation::GeluQuick => x * sigmoid(1.702 * x),
        Activation::Tanh => x.tanh(),
        Activation::Sigmoid => sigmoid(x),
        Activation::Identity => x,
        Activation::Softplus => softplus(x),
        Activation::ClampedGlu => x.min(7.0) * sigmoid(1.702 * x.min(7.0)),
    }
}

/// The error function by its series, which is exact enough for the inputs of a tiny model.
fn erf(x: f64) -> f64 {
    let (mut term, mut sum) = (x, x);
    for n in 1..200 {
        term *= -x * x / n as f64;
        sum += term / (2 * n + 1) as f64;
    }
    if x.abs() > 4.0 { x.signum() } else { sum * 2.0 / std::f64::consts::PI.sqrt() }
}

/// Rolls the heads of a tensor `[tokens, heads, dim]` by one.
pub fn roll_heads(x: &[f64], heads: usize, dim: usize) -> Vec<f64> {
    let roll = |token: &[f64]| {
        (0..heads).flat_map(|head| token[(head + 1) % heads * dim..][..dim].to_vec()).collect::<Vec<f64>>()
    };
    x.chunks_exact(heads * dim).flat_map(roll).collect()
}

/// The layers of a case's architecture.
pub fn layers(case: &Case) -> impl Iterator<Item = (usize, &Layer)> {
    case.loaded.model.program().architecture().layers.iter().enumerate()
}

/// A layer's attention and the prefix of its weights: its own, or those of a block that several
/// layers share.
pub fn attention(layer: usize, spec: &Layer) -> Option<(&Attention, String)> {
    let own = spec.attention.as_ref().map(|attention| (attention, format!("layers.{layer}")));
    own.or_else(|| spec.shared.as_ref().map(|shared| (&shared.attention, format!("shared.{}", shared.block))))
}

/// A layer's MLP and the prefix of its weights.
pub fn mlp(layer: usize, spec: &Layer) -> Option<(Mlp, String)> {
    let own = spec.mlp.clone().map(|mlp| (mlp, format!("layers.{layer}")));
    own.or_else(|| spec.shared.as_ref().map(|shared| (Mlp::Dense(shared.mlp), format!("shared.{}", shared.block))))
}

/// The error message for a capture of a site that the model does not have.
pub fn refusal(case: &Case, site: &str) -> String {
    let error = case
        .loaded
        .model
        .run(std::slice::from_ref(&case.ids), &Plan::capture([site]), &Default::default())
        .expect_err("a refusal");
    assert!(
        error.remedy().is_some_and(|remedy| !remedy.to_string().is_empty()),
        "{}: the error for {site} has no remedy",
        case.name
    );
    error.to_string()
}
