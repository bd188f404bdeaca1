//! Sizes, dtype and quantization from the configuration of any model, native or not.

use serde_json::Value;

use super::report::{Quantization, Report};
use crate::category::registry;

/// Alternative configuration keys of each size; the first present one counts.
const LAYERS: &[&str] = &["num_hidden_layers", "n_layer", "num_layers", "n_layers", "encoder_layers"];
const WIDTH: &[&str] = &["hidden_size", "n_embd", "d_model", "dim", "n_embed", "hidden_dim"];
const HEADS: &[&str] = &["num_attention_heads", "n_head", "num_heads", "n_heads", "encoder_attention_heads"];
const KV_HEADS: &[&str] = &["num_key_value_heads", "num_kv_heads", "n_kv_heads", "multi_query_group_num"];
const HEAD_DIM: &[&str] = &["head_dim", "attention_head_dim", "d_kv", "kv_channels"];
const CONTEXT: &[&str] =
    &["max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "n_ctx", "max_target_positions"];
const VOCAB: &[&str] = &["vocab_size", "padded_vocab_size"];

/// Keys of the language model's configuration in multimodal models.
const TEXT_CONFIG_KEYS: &[&str] = &["text_config", "llm_config", "language_config", "thinker_config", "decoder"];

/// Writes the model type and the class into the report.
pub(super) fn read_names(config: &Value, report: &mut Report) {
    report.model_type = config.get("model_type").and_then(Value::as_str).map(str::to_owned);
    report.architecture = class(config).map(str::to_owned);
}

/// Writes the sizes into the report.
pub(super) fn read(config: &Value, report: &mut Report) {
    let parts = || [Some(config), text_config(config)].into_iter().flatten();
    let size = |keys: &[&str]| {
        parts()
            .find_map(|part| keys.iter().find_map(|key| part.get(key)?.as_u64()))
            .and_then(|n| usize::try_from(n).ok())
    };
    report.layers = size(LAYERS);
    report.width = size(WIDTH);
    report.heads = size(HEADS);
    report.kv_heads = size(KV_HEADS).or(report.heads);
    report.head_dim = size(HEAD_DIM).or_else(|| report.width?.checked_div(report.heads?));
    report.context = size(CONTEXT);
    report.vocab = size(VOCAB);
}

/// The language model's configuration, which may be nested two levels deep.
fn text_config(config: &Value) -> Option<&Value> {
    let nested_key =
        |value: &'_ Value| TEXT_CONFIG_KEYS.iter().find(|key| value.get(key).is_some_and(Value::is_object)).copied();
    let part = config.get(nested_key(config)?)?;
    nested_key(part).and_then(|key| part.get(key)).or(Some(part))
}

/// The dtype in the configuration (`dtype`, `torch_dtype`).
pub(super) fn dtype(config: &Value) -> Option<String> {
    let parts = [Some(config), text_config(config)];
    let found =
        parts.into_iter().flatten().find_map(|part| part.get("dtype").or_else(|| part.get("torch_dtype"))?.as_str());
    found.map(|name| name.trim_start_matches("torch.").to_owned())
}

/// The first entry of `architectures`.
fn class(config: &Value) -> Option<&str> {
    config.get("architectures")?.as_array()?.first()?.as_str()
}

/// The quantization that the configuration describes.
pub(super) fn quantization(config: &Value) -> Option<Quantization> {
    let part =
        [Some(config), text_config(config)].into_iter().flatten().find_map(|part| part.get("quantization_config"))?;
    let flag = |key: &str| part.get(key).and_then(Value::as_bool).unwrap_or(false);
    let (four, eight) = (flag("load_in_4bit"), flag("load_in_8bit"));
    // Early bitsandbytes configurations have no `quant_method`.
    let method = part.get("quant_method").and_then(Value::as_str).or((four || eight).then_some("bitsandbytes"))?;
    // compressed-tensors has the bits in its groups.
    let groups = || part.get("config_groups").and_then(Value::as_object).into_iter().flat_map(|groups| groups.values());
    let of_groups = || groups().find_map(|group| group.pointer("/weights/num_bits")?.as_u64());
    let bits = part.get("bits").and_then(Value::as_u64).or(four.then_some(4)).or(eight.then_some(8)).or_else(of_groups);
    Some(Quantization { method: method.to_owned(), bits, types: Vec::new() })
}

/// The most similar native family: by name, by class, and otherwise by the keys of the
/// configuration.
pub(super) fn nearest(config: &Value, model_type: Option<&str>) -> Option<String> {
    const MIN_SIMILARITY: f64 = 0.8;
    let name = model_type.unwrap_or_default();
    // A family that is a prefix of the name takes precedence over a similar name.
    let stem = crate::families::native().filter(|family| name.starts_with(family)).max_by_key(|family| family.len());
    let by_class = || {
        let class = config.pointer("/architectures/0")?.as_str()?;
        let class_type = registry::by_class(class)?.model_type?;
        crate::families::native().find(|family| *family == class_type)
    };
    let by_similarity = || {
        let scored = crate::families::native().map(|family| (family, strsim::jaro_winkler(family, name)));
        scored
            .filter(|(_, score)| *score >= MIN_SIMILARITY)
            .max_by(|a, b| a.1.total_cmp(&b.1))
            .map(|(family, _)| family)
    };
    let has = |key: &str| [Some(config), text_config(config)].into_iter().flatten().any(|part| part.get(key).is_some());
    let by_keys = || match () {
        _ if has("num_local_experts") || has("num_experts") || has("n_routed_experts") => Some("mixtral"),
        _ if has("rms_norm_eps") => Some("llama"),
        _ if has("n_embd") => Some("gpt2"),
        _ if has("rotary_pct") || has("partial_rotary_factor") => Some("gpt_neox"),
        _ if has("alibi") => Some("bloom"),
        _ => None,
    };
    stem.or_else(by_class).or_else(by_similarity).or_else(by_keys).map(str::to_owned)
}
