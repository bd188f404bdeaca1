//! Rotary frequencies and their scalings (linear, dynamic, Llama 3, LongRoPE, YaRN), as
//! `transformers` computes them.

use crate::config::Config;
use crate::error::{Error, Result};
use pellucid_engine::architecture::{LongRope, Rope, RopeStyle};
use serde_json::{Value, json};
use std::f32::consts::PI;

/// Builds the rotary embedding that a configuration describes, for heads of `head_dim`.
///
/// Reads both forms: `rope_parameters` (with the base inside), and the older `rope_theta` with
/// `rope_scaling`.
pub(crate) fn rope(config: &Config, head_dim: usize, style: RopeStyle) -> Result<Rope> {
    let source = rope_scaling(config);
    let source = source.as_ref();
    let base = match source.map(|p| p.number_maybe("rope_theta")).transpose()?.flatten() {
        Some(base) => base,
        None => config.number_maybe("rope_theta")?.or(config.number_maybe("rotary_emb_base")?).unwrap_or(10_000.0),
    };
    let fraction = match source.map(|p| p.number_maybe("partial_rotary_factor")).transpose()?.flatten() {
        Some(fraction) => fraction,
        None => config.number_maybe("partial_rotary_factor")?.or(config.number_maybe("rotary_pct")?).unwrap_or(1.0),
    };
    build_rope(config, source, base, head_dim, fraction, style)
}

/// Returns `rope_scaling` if it is present and not empty, else `rope_parameters`, as `transformers`
/// does.
pub(crate) fn rope_scaling(config: &Config) -> Option<Config> {
    let older = config.part("rope_scaling").filter(|_| config.get("rope_scaling") != Some(&json!({})));
    older.or_else(|| config.part("rope_parameters"))
}

/// Returns the configuration with a key set in `rope_scaling` and `rope_parameters`, where present.
pub(crate) fn with_rope_scaling_key(config: &Config, key: &str, value: Value) -> Config {
    ["rope_scaling", "rope_parameters"].into_iter().fold(config.clone(), |config, part| {
        let mut object = config.get(part).and_then(Value::as_object).cloned().unwrap_or_default();
        if object.is_empty() {
            return config;
        }
        object.insert(key.into(), value.clone());
        config.with(part, object.into())
    })
}

/// Builds the rotary embeddings of full-attention and of sliding-window layers, in this order. They
/// are equal if the configuration does not distinguish layer types.
pub(crate) fn ropes_by_layer_type(config: &Config, head_dim: usize) -> Result<Vec<Rope>> {
    let parts = config.part("rope_parameters");
    ["full_attention", "sliding_attention"]
        .into_iter()
        .map(|kind| match parts.as_ref().and_then(|parts| parts.part(kind)) {
            Some(part) => {
                let (base, fraction) =
                    (part.number_or("rope_theta", 10_000.0)?, part.number_or("partial_rotary_factor", 1.0)?);
                build_rope(config, Some(&part), base, head_dim, fraction, RopeStyle::Halves)
            }
            None => rope(config, head_dim, RopeStyle::Halves),
        })
        .collect()
}

/// Returns the configuration with `rope_parameters` set to `default` if absent.
pub(crate) fn rope_parameters_or(config: &Config, default: Value) -> Config {
    match config.part("rope_parameters") {
        Some(_) => config.clone(),
        None => config.with("rope_parameters", default),
    }
}

/// Converts the older keys to `rope_parameters` by layer type. `full` and `sliding` are the key of
/// the base and its default; `rope_scaling` applies to the full-attention layers only.
pub(crate) fn rope_parameters_by_layer_type(
    config: &Config,
    full: (&str, f32),
    sliding: (&str, f32),
) -> Result<Config> {
    let given = |key: &str, inner: &str| config.get(key).and_then(|parts| parts.get(inner)).filter(|x| x.is_object());
    let part = |kind: &str, (key, default): (&str, f32)| -> Result<Value> {
        let mut part = given("rope_parameters", kind).cloned().unwrap_or(json!({}));
        if let (Value::Object(part), "full_attention") = (&mut part, kind) {
            let scaling = config.get("rope_scaling").and_then(Value::as_object).cloned().unwrap_or_default();
            part.extend(scaling);
        }
        if part.get("rope_theta").is_none_or(Value::is_null) {
            part["rope_theta"] = config.number_or(key, default)?.into();
        }
        Ok(part)
    };
    let parts = json!({
        "full_attention": part("full_attention", full)?,
        "sliding_attention": part("sliding_attention", sliding)?,
    });
    Ok(config.with("rope_parameters", parts).with("rope_scaling", Value::Null))
}

/// Builds the rotary embedding for a base, with the scaling that `source` describes, if any.
/// `fraction` is the rotated part of each head.
pub(crate) fn build_rope(
    config: &Config,
    source: Option<&Config>,
    base: f32,
    head_dim: usize,
    fraction: f32,
    style: RopeStyle,
) -> Result<Rope> {
    if !(base > 0.0 && base.is_finite() && (0.0..=1.0).contains(&fraction)) {
        return Err(config.bad("rope_theta", "or the rotated fraction is out of range"));
    }
    let dim = (head_dim as f32 * fraction) as usize / 2 * 2;
    let plain: Vec<f32> = (0..dim / 2).map(|i| 1.0 / base.powf(2.0 * i as f32 / dim as f32)).collect();
    let kind = source.and_then(|s| s.text("rope_type").or_else(|| s.text("type"))).unwrap_or("default");
    let mut long = None;
    let (frequencies, amplitude) = match (kind, source) {
        ("default" | "mrope", _) | (_, None) => (plain, 1.0),
        ("dynamic", Some(s)) => {
            let (length, factor) = (config.size("max_position_embeddings")?, s.number("factor")?);
            long = Some(LongRope::Dynamic { length, base, factor });
            (plain, 1.0)
        }
        ("longrope" | "su", Some(s)) => {
            let (short, beyond, amplitude) = longrope(config, s, &plain)?;
            long = Some(beyond);
            (short, amplitude)
        }
        ("linear", Some(s)) => {
            let factor = s.number("factor")?;
            (plain.iter().map(|f| f / factor).collect(), 1.0)
        }
        ("llama3", Some(s)) => (llama3(config, s, &plain)?, 1.0),
        ("yarn", Some(s)) => yarn(config, s, base, dim, &plain)?,
        (other, _) => {
            let what = format!(
                "rotary scaling of type {other:?} is not supported (default, dynamic, linear, llama3, longrope and yarn are)"
            );
            return Err(Error::unsupported(what, "use a model with one of these scalings"));
        }
    };
    Ok(Rope { style, frequencies, amplitude, long })
}

/// Context length of the original training, before scaling.
fn original_length(config: &Config, scaling: &Config) -> Result<f32> {
    match scaling.number_maybe("original_max_position_embeddings")? {
        Some(length) => Ok(length),
        None => config.number("max_position_embeddings"),
    }
}

/// Llama 3: low frequencies are divided by `factor`, high ones kept, those between interpolated.
fn llama3(config: &Config, scaling: &Config, plain: &[f32]) -> Result<Vec<f32>> {
    let factor = scaling.number("factor")?;
    let (low, high) = (scaling.number("low_freq_factor")?, scaling.number("high_freq_factor")?);
    let length = original_length(config, scaling)?;
    let stretch = |&frequency: &f32| {
        let wave = 2.0 * PI / frequency;
        if wave > length / low {
            frequency / factor
        } else if wave < length / high {
            frequency
        } else {
            let smooth = (length / wave - low) / (high - low);
            (1.0 - smooth) * frequency / factor + smooth * frequency
        }
    };
    Ok(plain.iter().map(stretch).collect())
}

/// LongRoPE: one factor per frequency; `short_factor` up to the original context length,
/// `long_factor` beyond it.
fn longrope(config: &Config, scaling: &Config, plain: &[f32]) -> Result<(Vec<f32>, LongRope, f32)> {
    let by = |key: &str| -> Result<Vec<f32>> {
        let factors = scaling.numbers(key)?;
        if factors.len() != plain.len() {
            return Err(config.bad(key, &format!("has {} factors for {} frequencies", factors.len(), plain.len())));
        }
        Ok(plain.iter().zip(factors).map(|(frequency, factor)| frequency / factor).collect())
    };
    let context = config.number("max_position_embeddings")?;
    let length = match scaling.number_maybe("original_max_position_embeddings")? {
        Some(length) => length,
        None => config.number_or("original_max_position_embeddings", context)?,
    };
    let factor = match scaling.number_maybe("factor")? {
        Some(factor) => factor,
        None => context / length,
    };
    let amplitude = match scaling.number_maybe("attention_factor")? {
        Some(given) => given,
        None if factor <= 1.0 => 1.0,
        None => (1.0 + factor.ln() / length.ln()).sqrt(),
    };
    let beyond = LongRope::Beyond { length: length as usize, frequencies: by("long_factor")?, amplitude };
    Ok((by("short_factor")?, beyond, amplitude))
}

/// YaRN: interpolates low frequencies, keeps high ones, and scales attention by an amplitude.
fn yarn(config: &Config, scaling: &Config, base: f32, dim: usize, plain: &[f32]) -> Result<(Vec<f32>, f32)> {
    let factor = scaling.number("factor")?;
    let length = original_length(config, scaling)?;
    let (fast, slow) = (scaling.number_or("beta_fast", 32.0)?, scaling.number_or("beta_slow", 1.0)?);
    let magnitude = |scale: f32, weight: f32| if scale <= 1.0 { 1.0 } else { 0.1 * weight * scale.ln() + 1.0 };
    let (mscale, all_dims) = (
        scaling.number_maybe("mscale")?.filter(|&x| x != 0.0),
        scaling.number_maybe("mscale_all_dim")?.filter(|&x| x != 0.0),
    );
    let amplitude = match (scaling.number_maybe("attention_factor")?, mscale, all_dims) {
        (Some(given), ..) => given,
        (None, Some(mscale), Some(all)) => magnitude(factor, mscale) / magnitude(factor, all),
        _ => magnitude(factor, 1.0),
    };
    let dim_of_rotations = |count: f32| dim as f32 * (length / (count * 2.0 * PI)).ln() / (2.0 * base.ln());
    let (mut from, mut to) = (dim_of_rotations(fast), dim_of_rotations(slow));
    if scaling.flag_or("truncate", true)? {
        (from, to) = (from.floor(), to.ceil());
    }
    let (from, to) = (from.max(0.0), to.min(dim as f32 - 1.0));
    let to = if from == to { to + 0.001 } else { to };
    let blend = |(i, &frequency): (usize, &f32)| {
        let ramp = ((i as f32 - from) / (to - from)).clamp(0.0, 1.0);
        frequency / factor * ramp + frequency * (1.0 - ramp)
    };
    Ok((plain.iter().enumerate().map(blend).collect(), amplitude))
}
