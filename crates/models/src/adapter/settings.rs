//! `adapter_config.json`: the keys that determine the updates, and those that are not supported.

use crate::config::Config;
use crate::error::{Error, Result};
use serde_json::Value;
use std::path::Path;

/// The file that makes a directory an adapter.
pub(crate) const CONFIG: &str = "adapter_config.json";

/// LoraSettings of a LoRA adapter.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct LoraSettings {
    rank: usize,
    alpha: f32,
    /// Ranks and alphas of single modules (`rank_pattern`, `alpha_pattern`).
    ranks: Vec<(Pattern, f32)>,
    alphas: Vec<(Pattern, f32)>,
    /// rsLoRA: scale by `alpha / sqrt(rank)` instead of `alpha / rank`.
    rs_lora: bool,
    /// DoRA: direction and magnitude of each row are trained separately.
    pub(super) dora: bool,
    /// The embedding and the head stay tied.
    pub(super) tied: bool,
}

/// Keys of features that the merge does not support.
const UNSUPPORTED: [(&str, &str); 9] = [
    ("use_qalora", "quantization-aware groups"),
    ("use_bdlora", "block-diagonal factors"),
    ("alora_invocation_tokens", "activation by tokens"),
    ("layer_replication", "replicated layers"),
    ("target_parameters", "factors for parameters instead of modules"),
    ("trainable_token_indices", "single trained tokens"),
    ("arrow_config", "routing between adapters"),
    ("kasa_config", "singular values"),
    ("monteclora_config", "sampled weights"),
];

/// Initializations that also change the base weights, so the adapter does not fit the published
/// base model.
const CHANGED_BASE: [&str; 5] = ["pissa", "olora", "corda", "loftq", "lora_ga"];

impl LoraSettings {
    /// Reads a configuration and rejects unsupported features.
    pub(super) fn read(config: &Config, path: &Path) -> Result<LoraSettings> {
        let merge = "merge it into its base model with PEFT's `merge_and_unload`, and give the result";
        let refuse = |what: String| Error::unsupported(format!("{}: {what}", path.display()), merge);
        let kind = config.text("peft_type").unwrap_or_default();
        if !kind.eq_ignore_ascii_case("lora") {
            let kind = if kind.is_empty() { "without a `peft_type`".into() } else { format!("of type `{kind}`") };
            return Err(refuse(format!("adapters {kind} are not supported, only LORA")));
        }
        for (key, what) in UNSUPPORTED {
            if config.get(key).is_some_and(|value| !is_off(value)) {
                return Err(refuse(format!("this adapter uses {what} (`{key}`), which is not supported")));
            }
        }
        let init = config.text("init_lora_weights").unwrap_or_default();
        if let Some(name) = CHANGED_BASE.iter().find(|name| init.starts_with(**name)) {
            return Err(refuse(format!(
                "this adapter was initialized by {name} (`init_lora_weights`), which also changes the base model's weights"
            )));
        }
        let rank = config.size("r").map_err(|_| bad(path, "`r` is not an integer"))?;
        let alpha = config
            .number_maybe("lora_alpha")
            .ok()
            .flatten()
            .ok_or_else(|| bad(path, "`lora_alpha` is not a number"))?;
        let flag = |key: &str| {
            config.flag_or(key, false).map_err(|_| bad(path, &format!("`{key}` is neither true nor false")))
        };
        Ok(LoraSettings {
            rank,
            alpha,
            ranks: patterns(config, "rank_pattern", path)?,
            alphas: patterns(config, "alpha_pattern", path)?,
            rs_lora: flag("use_rslora")?,
            dora: flag("use_dora")?,
            tied: flag("ensure_weight_tying")?,
        })
    }

    /// The rank of a module.
    pub(super) fn rank(&self, module: &str) -> usize {
        lookup(&self.ranks, module).map_or(self.rank, |rank| rank as usize)
    }

    /// Scale of a module's update.
    pub(super) fn scale(&self, module: &str) -> f32 {
        let (rank, alpha) = (self.rank(module) as f64, lookup(&self.alphas, module).unwrap_or(self.alpha));
        (f64::from(alpha) / if self.rs_lora { rank.sqrt() } else { rank }) as f32
    }
}

/// An error about an adapter's configuration.
pub(super) fn bad(path: &Path, problem: &str) -> Error {
    Error::invalid(path, problem, "download the adapter again")
}

fn is_off(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    }
}

/// Suffix of a module's name, in which a dot matches any character, as in PEFT's regular
/// expressions.
#[derive(Clone, Debug, PartialEq)]
struct Pattern {
    text: String,
    whole: bool,
}

impl Pattern {
    /// Parses a pattern; `None` if it uses other features of regular expressions.
    fn new(text: &str) -> Option<Pattern> {
        let (text, whole) = text.strip_prefix('^').map_or((text, false), |text| (text, true));
        let text = text.replace("\\.", ".");
        let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        text.chars().all(plain).then_some(Pattern { text, whole })
    }

    fn matches(&self, module: &str) -> bool {
        let Some(before) = module.len().checked_sub(self.text.len()) else { return false };
        let (start, end) = module.as_bytes().split_at(before);
        let matches = end.iter().zip(self.text.bytes()).all(|(byte, wanted)| *byte == wanted || wanted == b'.');
        matches && (start.is_empty() || !self.whole && start.ends_with(b"."))
    }
}

fn lookup(patterns: &[(Pattern, f32)], module: &str) -> Option<f32> {
    patterns.iter().find(|(pattern, _)| pattern.matches(module)).map(|(_, number)| *number)
}

fn patterns(config: &Config, key: &str, path: &Path) -> Result<Vec<(Pattern, f32)>> {
    let Some(value) = config.get(key) else { return Ok(Vec::new()) };
    let map = value.as_object().ok_or_else(|| bad(path, &format!("`{key}` is not an object")))?;
    let one = |(text, number): (&String, &Value)| {
        let number = number.as_f64().ok_or_else(|| bad(path, &format!("`{key}` of `{text}` is not a number")))?;
        let pattern = Pattern::new(text).ok_or_else(|| {
            Error::unsupported(
                format!(
                    "{}: the pattern `{text}` of `{key}` is a regular expression that is not supported",
                    path.display()
                ),
                "write the modules' names out",
            )
        })?;
        Ok((pattern, number as f32))
    };
    map.iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(change: Value) -> Result<LoraSettings> {
        let mut value = json!({"peft_type": "LORA", "r": 8, "lora_alpha": 16, "layer_replication": null, "trainable_token_indices": [], "use_qalora": false});
        let (Some(all), Value::Object(change)) = (value.as_object_mut(), change) else { panic!("an object") };
        all.extend(change);
        LoraSettings::read(&Config::new(value, Path::new(CONFIG)).expect("a config"), Path::new(CONFIG))
    }

    #[test]
    fn scales_follow_rank_and_alpha() {
        let scale = |change: Value, module: &str| read(change).expect("settings").scale(module);
        assert_eq!(scale(json!({}), "a.q_proj"), 2.0);
        assert_eq!(scale(json!({"use_rslora": true, "r": 16}), "a.q_proj"), 4.0);
        let own = json!({"rank_pattern": {"q_proj": 4}, "alpha_pattern": {"^model.layers.0.mlp.up_proj": 64, "layers\\.1\\.q_proj": 1}});
        let own = |module: &str| scale(own.clone(), module);
        assert_eq!(
            [own("model.layers.0.q_proj"), own("model.layers.1.q_proj"), own("model.layers.0.k_proj")],
            [4.0, 0.25, 2.0]
        );
        assert_eq!([own("model.layers.0.mlp.up_proj"), own("x.model.layers.0.mlp.up_proj")], [8.0, 2.0]);
        assert_eq!(own("model.layers.0.xq_proj"), 2.0, "a name ends at a dot");
    }

    #[test]
    fn unsupported_features_are_named_in_the_error() {
        let error = |change: Value| read(change).expect_err("refused").to_string();
        assert!(error(json!({"peft_type": "IA3"})).contains("`IA3`"));
        assert!(error(json!({"peft_type": "PREFIX_TUNING"})).contains("`PREFIX_TUNING`"));
        assert!(error(json!({"layer_replication": [[0, 4], [2, 5]]})).contains("`layer_replication`"));
        assert!(error(json!({"target_parameters": ["experts.w"]})).contains("`target_parameters`"));
        assert!(error(json!({"init_lora_weights": "pissa_niter_4"})).contains("pissa"));
        assert!(error(json!({"alpha_pattern": {"layers.[0-9]+.q": 4}})).contains("regular expression"));
        assert!(error(json!({"r": "eight"})).contains("`r`"));
    }
}
