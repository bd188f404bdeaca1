//! The RoPE part of the configuration: base, scaling, and factors that some files store as tensors.

use pellucid_kernels::encoding::{Encoding, decode};
use serde_json::{Value as Json, json};

use super::arch_metadata::ArchMetadata;
use crate::{Error, Result};

/// The base of the rotary frequencies (`rope_theta`).
pub(super) fn theta(meta: &ArchMetadata) -> Result<f64> {
    Ok(meta.float("rope.freq_base")?.unwrap_or(10000.0))
}

/// The `rope_parameters` of the configuration, in the form of current transformers.
///
/// Llama 3 scales its frequencies by a rule with four parameters. The file does not store these,
/// only the resulting factors (`rope_freqs.weight`). If the rule with Llama 3's parameters gives
/// exactly these factors, the result is `llama3`; otherwise `longrope`, which also divides
/// frequencies by factors.
pub(super) fn parameters(meta: &ArchMetadata) -> Result<Json> {
    let theta = theta(meta)?;
    let context = meta.size("context_length")?;
    let original = meta.number("rope.scaling.original_context_length")?;
    if let Some(factors) = factors(meta, "rope_freqs.weight")? {
        let factor = factors.iter().copied().fold(1.0, f32::max);
        let rule = llama3_factors(theta, factors.len(), factor.into());
        if factors.iter().zip(&rule).all(|(a, b)| (f64::from(*a) - b).abs() <= 1e-4 * b) {
            return Ok(json!({"rope_type": "llama3", "rope_theta": theta, "factor": decimal(factor),
                "low_freq_factor": LOW, "high_freq_factor": HIGH, "original_max_position_embeddings": ORIGINAL}));
        }
        let factors: Vec<f64> = factors.into_iter().map(decimal).collect();
        return Ok(
            json!({"rope_type": "longrope", "rope_theta": theta, "short_factor": factors, "long_factor": factors,
            "attention_factor": 1.0, "original_max_position_embeddings": context}),
        );
    }
    if let (Some(long), Some(short)) =
        (factors(meta, "rope_factors_long.weight")?, factors(meta, "rope_factors_short.weight")?)
    {
        let decimals = |list: Vec<f32>| list.into_iter().map(decimal).collect::<Vec<_>>();
        let mut parameters = json!({"rope_type": "longrope", "rope_theta": theta, "long_factor": decimals(long),
            "short_factor": decimals(short), "original_max_position_embeddings": original.unwrap_or(context)});
        if let Some(factor) = meta.float("rope.scaling.attn_factor")? {
            parameters["attention_factor"] = factor.into();
        }
        return Ok(parameters);
    }
    // The older key for linear scaling has only the factor.
    let linear = meta.float("rope.scale_linear")?;
    let factor = meta.float("rope.scaling.factor")?.or(linear).filter(|factor| *factor > 0.0).unwrap_or(1.0);
    match meta.text("rope.scaling.type")?.unwrap_or(if linear.is_some() { "linear" } else { "none" }) {
        "none" => Ok(json!({"rope_type": "default", "rope_theta": theta})),
        "linear" if factor == 1.0 => Ok(json!({"rope_type": "default", "rope_theta": theta})),
        "linear" => Ok(json!({"rope_type": "linear", "rope_theta": theta, "factor": factor})),
        "yarn" => {
            let mut parameters = json!({"rope_type": "yarn", "rope_theta": theta, "factor": factor,
                "original_max_position_embeddings": original.unwrap_or(context)});
            for (name, key) in [("beta_fast", "yarn_beta_fast"), ("beta_slow", "yarn_beta_slow")] {
                if let Some(beta) = meta.float(&format!("rope.scaling.{key}"))? {
                    parameters[name] = beta.into();
                }
            }
            Ok(parameters)
        }
        other => {
            let what = format!("{}: RoPE scaling of type {other:?}", meta.file.path().display());
            Err(Error::unsupported(what, "none, linear, yarn and stored factors are supported"))
        }
    }
}

/// Reads a one-dimensional f32 tensor of one factor per frequency.
fn factors(meta: &ArchMetadata, name: &str) -> Result<Option<Vec<f32>>> {
    let Some(tensor) = meta.file.tensor(name) else { return Ok(None) };
    let [len] = tensor.shape[..] else {
        return Err(meta.file.damaged(format!("tensor {name:?} must have one dimension, not {:?}", tensor.shape)));
    };
    if tensor.encoding != Encoding::F32 {
        return Err(meta.file.damaged(format!("tensor {name:?} must be stored as F32, not {}", tensor.encoding)));
    }
    let mut values = vec![0.0; len];
    decode(tensor.encoding, meta.file.bytes(tensor), &mut values);
    if !values.iter().all(|factor| factor.is_finite() && *factor > 0.0) {
        return Err(meta.file.damaged(format!("tensor {name:?} holds a factor that is not positive and finite")));
    }
    Ok(Some(values))
}

/// The parameters that all released Llama 3 models share; only the factor varies.
const LOW: f64 = 1.0;
const HIGH: f64 = 4.0;
const ORIGINAL: usize = 8192;

/// The divisors of `count` frequencies by Llama 3's rule: 1 for high frequencies, `factor` for low
/// ones, interpolated in between.
fn llama3_factors(theta: f64, count: usize, factor: f64) -> Vec<f64> {
    let frequency = |i: usize| theta.powf(-(i as f64) / count as f64);
    (0..count)
        .map(|i| {
            let wavelength = 2.0 * std::f64::consts::PI / frequency(i);
            let turns = ORIGINAL as f64 / wavelength;
            if turns > HIGH {
                return 1.0;
            }
            if turns < LOW {
                return factor;
            }
            let smooth = (turns - LOW) / (HIGH - LOW);
            1.0 / ((1.0 - smooth) / factor + smooth)
        })
        .collect()
}

/// The shortest decimal of an f32, as an f64.
fn decimal(number: f32) -> f64 {
    number.to_string().parse().unwrap_or(f64::from(number))
}

#[cfg(test)]
mod tests {
    use super::super::testing::llama;
    use super::super::{GgufFile, hf_config};
    use super::*;

    fn parameters_with(factors: &[f32]) -> Json {
        let mut file = llama();
        file.tensor("rope_freqs.weight", &[factors.len() as u64], factors);
        hf_config(&GgufFile::parse(file.bytes(), "x.gguf").unwrap()).unwrap()["rope_parameters"].clone()
    }

    #[test]
    fn the_factors_of_llama_3_are_recognized() {
        let stored: Vec<f32> = llama3_factors(500000.0, 32, 32.0).into_iter().map(|f| f as f32).collect();
        assert_eq!(stored[0], 1.0);
        assert_eq!(stored[31], 32.0);
        let parameters = parameters_with(&stored);
        assert_eq!(parameters["rope_type"], "llama3");
        assert_eq!(parameters["factor"], 32.0);
        assert_eq!(parameters["original_max_position_embeddings"], 8192);
    }

    #[test]
    fn other_factors_become_longrope() {
        let parameters = parameters_with(&[1.0, 1.1, 2.5, 7.0]);
        assert_eq!(parameters["rope_type"], "longrope");
        assert_eq!(parameters["attention_factor"], 1.0);
        assert_eq!(parameters["long_factor"], json!([1.0, 1.1, 2.5, 7.0]));
        assert_eq!(parameters["long_factor"], parameters["short_factor"]);
    }

    #[test]
    fn scaling_types_are_read_from_the_metadata() {
        let scaled = |kind: &str| {
            let mut file = llama();
            file.text("llama.rope.scaling.type", kind).f32("llama.rope.scaling.factor", 4.0);
            file.u32("llama.rope.scaling.original_context_length", 16);
            hf_config(&GgufFile::parse(file.bytes(), "x.gguf").unwrap())
        };
        assert_eq!(scaled("none").unwrap()["rope_parameters"]["rope_type"], "default");
        assert_eq!(scaled("linear").unwrap()["rope_parameters"]["factor"], 4.0);
        assert_eq!(scaled("yarn").unwrap()["rope_parameters"]["original_max_position_embeddings"], 16);
        let error = scaled("twisted").unwrap_err();
        assert!(error.to_string().contains("x.gguf: RoPE scaling of type \"twisted\""), "{error}");
    }
}
