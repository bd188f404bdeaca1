//! The rotary part of the configuration: base, scaling, and the factors that some files store as tensors.

use pellucid_kernels::encoding::{Encoding, decode};
use serde_json::{Value as Json, json};

use super::facts::Facts;
use crate::{Error, Result};

/// The base of the frequencies.
pub(super) fn theta(facts: &Facts) -> Result<f64> {
    Ok(facts.float("rope.freq_base")?.unwrap_or(10000.0))
}

/// The `rope_parameters` of the configuration, in the form of current transformers.
///
/// Llama 3 scales its frequencies by a rule with four numbers, of which the file keeps none: it holds the resulting
/// factors (`rope_freqs.weight`). Where the rule with Llama 3's numbers gives exactly these factors, the rule is named;
/// otherwise the factors are given as they are, in the words of `longrope`, which divides frequencies by factors too.
pub(super) fn parameters(facts: &Facts) -> Result<Json> {
    let theta = theta(facts)?;
    let context = facts.size("context_length")?;
    let original = facts.number("rope.scaling.original_context_length")?;
    if let Some(factors) = factors(facts, "rope_freqs.weight")? {
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
        (factors(facts, "rope_factors_long.weight")?, factors(facts, "rope_factors_short.weight")?)
    {
        let decimals = |list: Vec<f32>| list.into_iter().map(decimal).collect::<Vec<_>>();
        let mut parameters = json!({"rope_type": "longrope", "rope_theta": theta, "long_factor": decimals(long),
            "short_factor": decimals(short), "original_max_position_embeddings": original.unwrap_or(context)});
        if let Some(factor) = facts.float("rope.scaling.attn_factor")? {
            parameters["attention_factor"] = factor.into();
        }
        return Ok(parameters);
    }
    // The older key for linear scaling held the factor only.
    let linear = facts.float("rope.scale_linear")?;
    let factor = facts.float("rope.scaling.factor")?.or(linear).filter(|factor| *factor > 0.0).unwrap_or(1.0);
    match facts.text("rope.scaling.type")?.unwrap_or(if linear.is_some() { "linear" } else { "none" }) {
        "none" => Ok(json!({"rope_type": "default", "rope_theta": theta})),
        "linear" if factor == 1.0 => Ok(json!({"rope_type": "default", "rope_theta": theta})),
        "linear" => Ok(json!({"rope_type": "linear", "rope_theta": theta, "factor": factor})),
        "yarn" => {
            let mut parameters = json!({"rope_type": "yarn", "rope_theta": theta, "factor": factor,
                "original_max_position_embeddings": original.unwrap_or(context)});
            for (name, key) in [("beta_fast", "yarn_beta_fast"), ("beta_slow", "yarn_beta_slow")] {
                if let Some(beta) = facts.float(&format!("rope.scaling.{key}"))? {
                    parameters[name] = beta.into();
                }
            }
            Ok(parameters)
        }
        other => {
            let what = format!("{}: RoPE scaling of type {other:?}", facts.file.path().display());
            Err(Error::unsupported(what, "known are none, linear, yarn and stored factors"))
        }
    }
}

/// The values of a one-dimensional f32 tensor with a factor for each frequency.
fn factors(facts: &Facts, name: &str) -> Result<Option<Vec<f32>>> {
    let Some(tensor) = facts.file.tensor(name) else { return Ok(None) };
    let [len] = tensor.shape[..] else {
        return Err(facts.file.damaged(format!("tensor {name:?} must have one dimension, not {:?}", tensor.shape)));
    };
    if tensor.encoding != Encoding::F32 {
        return Err(facts.file.damaged(format!("tensor {name:?} must be stored as F32, not {}", tensor.encoding)));
    }
    let mut values = vec![0.0; len];
    decode(tensor.encoding, facts.file.bytes(tensor), &mut values);
    if !values.iter().all(|factor| factor.is_finite() && *factor > 0.0) {
        return Err(facts.file.damaged(format!("tensor {name:?} holds a factor that is not a positive number")));
    }
    Ok(Some(values))
}

/// The numbers of the rule that every released Llama 3 shares; only the factor varies.
const LOW: f64 = 1.0;
const HIGH: f64 = 4.0;
const ORIGINAL: usize = 8192;

/// By what Llama 3's rule divides each of `count` frequencies: 1 for the fast ones, `factor` for the slow ones, and
/// something between in the middle.
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

/// The decimal that was meant by a stored f32.
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
    fn the_factors_of_llama_3_become_its_rule() {
        let stored: Vec<f32> = llama3_factors(500000.0, 32, 32.0).into_iter().map(|f| f as f32).collect();
        assert_eq!(stored[0], 1.0);
        assert_eq!(stored[31], 32.0);
        let parameters = parameters_with(&stored);
        assert_eq!(parameters["rope_type"], "llama3");
        assert_eq!(parameters["factor"], 32.0);
        assert_eq!(parameters["original_max_position_embeddings"], 8192);
    }

    #[test]
    fn other_factors_are_given_as_they_are() {
        let parameters = parameters_with(&[1.0, 1.1, 2.5, 7.0]);
        assert_eq!(parameters["rope_type"], "longrope");
        assert_eq!(parameters["attention_factor"], 1.0);
        assert_eq!(parameters["long_factor"], json!([1.0, 1.1, 2.5, 7.0]));
        assert_eq!(parameters["long_factor"], parameters["short_factor"]);
    }

    #[test]
    fn scaling_by_metadata() {
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
