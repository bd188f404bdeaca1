//! Translates GGUF metadata to the equivalent `config.json`.
//!
//! llama.cpp's converters use their own keys (`llama.attention.head_count`) and leave out values
//! that llama.cpp hardcodes, such as which layers of Gemma use a sliding window. Both become keys
//! of the Hugging Face configuration, so the families do not need to know the file format. One
//! exception: `"pellucid_gguf": true` marks that Gemma's norm weights are stored as 1 + w.

use serde_json::{Map, Value as Json, json};

use super::arch_metadata::ArchMetadata;
use super::{GgufFile, Value, rope};
use crate::families::MAX_LAYERS;
use crate::{Error, Result};

/// Returns the Hugging Face configuration of this model.
///
/// # Errors
/// If the architecture is not supported, or the metadata is incomplete or inconsistent.
pub fn hf_config(file: &GgufFile) -> Result<Json> {
    let meta = ArchMetadata { file, arch: file.architecture()? };
    let mut config = Map::new();
    if meta.number("block_count")?.is_some_and(|layers| layers > MAX_LAYERS) {
        return Err(file.damaged(format!(
            "the metadata value {}.block_count is more than {MAX_LAYERS}, which no model has",
            meta.arch
        )));
    }
    match meta.arch {
        "llama" => llama(&meta, &mut config)?,
        "qwen2" => qwen(&meta, &mut config, "qwen2", "Qwen2ForCausalLM")?,
        "qwen3" => qwen(&meta, &mut config, "qwen3", "Qwen3ForCausalLM")?,
        "qwen2moe" => qwen_moe(&meta, &mut config, "qwen2_moe", "Qwen2MoeForCausalLM")?,
        "qwen3moe" => qwen_moe(&meta, &mut config, "qwen3_moe", "Qwen3MoeForCausalLM")?,
        "gemma" => gemma(&meta, &mut config)?,
        "gemma2" => gemma2(&meta, &mut config)?,
        "gemma3" => gemma3(&meta, &mut config)?,
        "phi2" => phi2(&meta, &mut config)?,
        "phi3" => phi3(&meta, &mut config)?,
        "gpt2" => gpt2(&meta, &mut config)?,
        "gptneox" => gptneox(&meta, &mut config)?,
        "bloom" => bloom(&meta, &mut config)?,
        other => {
            let what = format!("{}: the GGUF architecture {other:?} is not known to this build", file.path().display());
            return Err(Error::unsupported(what, "use the model's Hugging Face directory, if its family is supported"));
        }
    }
    for (name, key) in [("bos_token_id", "bos"), ("eos_token_id", "eos"), ("pad_token_id", "padding")] {
        if let Some(id) = file.number(&format!("tokenizer.ggml.{key}_token_id"))? {
            config.insert(name.into(), id.into());
        }
    }
    config.insert("vocab_size".into(), meta.vocab()?.into());
    config.insert("tie_word_embeddings".into(), file.tensor("output.weight").is_none().into());
    config.insert("pellucid_gguf".into(), true.into());
    Ok(config.into())
}

type Config = Map<String, Json>;

fn put(config: &mut Config, name: &str, value: impl Into<Json>) {
    config.insert(name.into(), value.into());
}

fn set_model_type(config: &mut Config, model_type: &str, class: &str) {
    put(config, "model_type", model_type);
    put(config, "architectures", json!([class]));
}

/// Sets the sizes that nearly every decoder has, under the keys of the Llama family.
fn sizes(meta: &ArchMetadata, config: &mut Config) -> Result<()> {
    put(config, "hidden_size", meta.size("embedding_length")?);
    put(config, "num_hidden_layers", meta.size("block_count")?);
    put(config, "num_attention_heads", meta.heads()?);
    put(config, "num_key_value_heads", meta.kv_heads()?);
    put(config, "head_dim", meta.head_dim()?);
    put(config, "intermediate_size", meta.size("feed_forward_length")?);
    put(config, "max_position_embeddings", meta.size("context_length")?);
    Ok(())
}

/// Sets the keys of a decoder with gated MLP, RMS norm and RoPE.
fn gated(meta: &ArchMetadata, config: &mut Config) -> Result<()> {
    sizes(meta, config)?;
    put(config, "hidden_act", "silu");
    put(config, "rms_norm_eps", meta.required_float("attention.layer_norm_rms_epsilon")?);
    put(config, "rope_theta", rope::theta(meta)?);
    put(config, "rope_parameters", rope::parameters(meta)?);
    Ok(())
}

fn llama(meta: &ArchMetadata, config: &mut Config) -> Result<()> {
    let experts = meta.number("expert_count")?.filter(|experts| *experts > 0);
    // Mistral is stored as architecture `llama`; it differs only by its sliding window.
    let window = meta.number("attention.sliding_window")?.filter(|window| *window > 0);
    match (experts, window) {
        (Some(_), _) => set_model_type(config, "mixtral", "MixtralForCausalLM"),
        (None, Some(_)) => set_model_type(config, "mistral", "MistralForCausalLM"),
        (None, None) => set_model_type(config, "llama", "LlamaForCausalLM"),
    }
    gated(meta, config)?;
    if let Some(experts) = experts {
        put(config, "num_local_experts", experts);
        put(config, "num_experts_per_tok", meta.size("expert_used_count")?);
    }
    if let Some(window) = window {
        put(config, "sliding_window", window);
    }
    // The metadata does not mention biases; the tensors exist or not.
    put(config, "attention_bias", meta.file.tensor("blk.0.attn_q.bias").is_some());
    put(config, "mlp_bias", meta.file.tensor("blk.0.ffn_up.bias").is_some());
    Ok(())
}

fn qwen(meta: &ArchMetadata, config: &mut Config, model_type: &str, class: &str) -> Result<()> {
    set_model_type(config, model_type, class);
    gated(meta, config)?;
    put(config, "use_sliding_window", false);
    if model_type == "qwen3" {
        put(config, "attention_bias", false);
    }
    Ok(())
}

fn qwen_moe(meta: &ArchMetadata, config: &mut Config, model_type: &str, class: &str) -> Result<()> {
    qwen(meta, config, model_type, class)?;
    put(config, "num_experts", meta.size("expert_count")?);
    put(config, "num_experts_per_tok", meta.size("expert_used_count")?);
    put(config, "moe_intermediate_size", meta.size("expert_feed_forward_length")?);
    // llama.cpp hardcodes both: every layer has experts, and only Qwen3 normalizes the top-k
    // weights.
    put(config, "decoder_sparse_step", 1);
    put(config, "norm_topk_prob", meta.arch == "qwen3moe");
    if let Some(shared) = meta.number("expert_shared_feed_forward_length")? {
        put(config, "shared_expert_intermediate_size", shared);
    }
    Ok(())
}

fn gemma(meta: &ArchMetadata, config: &mut Config) -> Result<()> {
    set_model_type(config, "gemma", "GemmaForCausalLM");
    gated(meta, config)?;
    put(config, "hidden_act", "gelu_pytorch_tanh");
    put(config, "hidden_activation", "gelu_pytorch_tanh");
    Ok(())
}

/// Attention scores are divided by the square root of this. The 27B models of Gemma 2 and 3 use
/// hidden size / heads instead of the head dimension; like llama.cpp, this recognizes them by their
/// number of layers.
fn query_pre_attn_scalar(meta: &ArchMetadata, layers_of_27b: usize) -> Result<usize> {
    if meta.size("block_count")? == layers_of_27b {
        return Ok(meta.size("embedding_length")? / meta.heads()?);
    }
    meta.head_dim()
}

/// The sliding-window pattern: the file's flag per layer, or all layers but the last of each
/// `period`.
fn layer_types(meta: &ArchMetadata, period: usize) -> Result<Json> {
    let layers = meta.size("block_count")?;
    let key = format!("{}.attention.sliding_window_pattern", meta.arch);
    let name = |sliding: bool| if sliding { "sliding_attention" } else { "full_attention" };
    if let Some(Value::List(_)) = meta.file.value(&key) {
        let flags = meta.file.list(&key, layers)?.unwrap_or_default();
        let types = flags.iter().map(|flag| match flag {
            Value::Bool(sliding) => Ok(name(*sliding)),
            _ => Err(meta.file.damaged(format!("the metadata value {key} must hold true or false for each layer"))),
        });
        return Ok(types.collect::<Result<Vec<_>>>()?.into());
    }
    let period = meta.number("attention.sliding_window_pattern")?.filter(|period| *period > 0).unwrap_or(period);
    Ok((0..layers).map(|layer| name(layer % period < period - 1)).collect::<Vec<_>>().into())
}

fn gemma2(meta: &ArchMetadata, config: &mut Config) -> Result<()> {
    gemma(meta, config)?;
    set_model_type(config, "gemma2", "Gemma2ForCausalLM");
    put(config, "query_pre_attn_scalar", query_pre_attn_scalar(meta, 46)?);
    put(config, "attn_logit_softcapping", meta.float("attn_logit_softcapping")?.unwrap_or(50.0));
    put(config, "final_logit_softcapping", meta.float("final_logit_softcapping")?.unwrap_or(30.0));
    put(config, "sliding_window", meta.number("attention.sliding_window")?.unwrap_or(4096));
    put(config, "layer_types", layer_types(meta, 2)?);
    Ok(())
}

fn gemma3(meta: &ArchMetadata, config: &mut Config) -> Result<()> {
    gemma(meta, config)?;
    set_model_type(config, "gemma3_text", "Gemma3ForCausalLM");
    put(config, "query_pre_attn_scalar", query_pre_attn_scalar(meta, 62)?);
    put(config, "attn_logit_softcapping", Json::Null);
    put(config, "final_logit_softcapping", meta.float("final_logit_softcapping")?.map_or(Json::Null, Json::from));
    put(config, "sliding_window", meta.size("attention.sliding_window")?);
    put(config, "sliding_window_pattern", 6);
    put(config, "layer_types", layer_types(meta, 6)?);
    let local = meta.float("rope.freq_base_swa")?.unwrap_or(10000.0);
    put(config, "rope_local_base_freq", local);
    let full = rope::parameters(meta)?;
    let sliding = json!({"rope_type": "default", "rope_theta": local});
    put(config, "rope_parameters", json!({"full_attention": full, "sliding_attention": sliding}));
    Ok(())
}

fn phi2(meta: &ArchMetadata, config: &mut Config) -> Result<()> {
    set_model_type(config, "phi", "PhiForCausalLM");
    sizes(meta, config)?;
    put(config, "hidden_act", "gelu_new");
    put(config, "layer_norm_eps", meta.required_float("attention.layer_norm_epsilon")?);
    set_partial_rotary(meta, config)
}

fn phi3(meta: &ArchMetadata, config: &mut Config) -> Result<()> {
    set_model_type(config, "phi3", "Phi3ForCausalLM");
    gated(meta, config)?;
    if let Some(window) = meta.number("attention.sliding_window")?.filter(|window| *window > 0) {
        put(config, "sliding_window", window);
    }
    let original = meta.number("rope.scaling.original_context_length")?;
    put(config, "original_max_position_embeddings", original.map_or_else(|| meta.size("context_length"), Ok)?);
    set_partial_rotary(meta, config)
}

fn set_partial_rotary(meta: &ArchMetadata, config: &mut Config) -> Result<()> {
    let partial = meta.partial_rotary_factor()?;
    let mut parameters = rope::parameters(meta)?;
    parameters["partial_rotary_factor"] = partial.into();
    put(config, "partial_rotary_factor", partial);
    put(config, "rope_theta", rope::theta(meta)?);
    put(config, "rope_parameters", parameters);
    Ok(())
}

fn gptneox(meta: &ArchMetadata, config: &mut Config) -> Result<()> {
    set_model_type(config, "gpt_neox", "GPTNeoXForCausalLM");
    sizes(meta, config)?;
    put(config, "hidden_act", "gelu");
    put(config, "layer_norm_eps", meta.required_float("attention.layer_norm_epsilon")?);
    put(config, "attention_bias", true);
    let parallel = meta.file.flag("gptneox.use_parallel_residual")?.unwrap_or(true);
    put(config, "use_parallel_residual", parallel);
    put(config, "rotary_pct", meta.partial_rotary_factor()?);
    put(config, "rotary_emb_base", rope::theta(meta)?);
    set_partial_rotary(meta, config)
}

fn gpt2(meta: &ArchMetadata, config: &mut Config) -> Result<()> {
    set_model_type(config, "gpt2", "GPT2LMHeadModel");
    put(config, "n_embd", meta.size("embedding_length")?);
    put(config, "n_layer", meta.size("block_count")?);
    put(config, "n_head", meta.heads()?);
    put(config, "n_inner", meta.size("feed_forward_length")?);
    put(config, "n_positions", meta.size("context_length")?);
    put(config, "n_ctx", meta.size("context_length")?);
    put(config, "layer_norm_epsilon", meta.required_float("attention.layer_norm_epsilon")?);
    put(config, "activation_function", "gelu_new");
    put(config, "scale_attn_weights", true);
    Ok(())
}

fn bloom(meta: &ArchMetadata, config: &mut Config) -> Result<()> {
    set_model_type(config, "bloom", "BloomForCausalLM");
    put(config, "hidden_size", meta.size("embedding_length")?);
    put(config, "n_layer", meta.size("block_count")?);
    put(config, "n_head", meta.heads()?);
    put(config, "layer_norm_epsilon", meta.required_float("attention.layer_norm_epsilon")?);
    put(config, "seq_length", meta.size("context_length")?);
    put(config, "apply_residual_connection_post_layernorm", false);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Writer, decoder, llama};
    use super::*;

    fn config_of(file: &Writer) -> Json {
        hf_config(&GgufFile::parse(file.bytes(), "x.gguf").unwrap()).unwrap()
    }

    fn error_of(file: &Writer) -> String {
        hf_config(&GgufFile::parse(file.bytes(), "x.gguf").unwrap()).unwrap_err().to_string()
    }

    #[test]
    fn llama_metadata_becomes_its_configuration() {
        let mut file = llama();
        file.u32("tokenizer.ggml.bos_token_id", 1).u32("tokenizer.ggml.eos_token_id", 2);
        let wanted = json!({
            "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 8, "num_hidden_layers": 2,
            "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4, "intermediate_size": 12,
            "max_position_embeddings": 64, "hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
            "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}, "attention_bias": false,
            "mlp_bias": false, "bos_token_id": 1, "eos_token_id": 2, "vocab_size": 5, "tie_word_embeddings": true,
            "pellucid_gguf": true,
        });
        assert_eq!(config_of(&file), wanted);
        file.tensor("output.weight", &[8, 5], &[0.0; 40]).tensor("blk.0.attn_q.bias", &[8], &[0.0; 8]);
        let untied = config_of(&file);
        assert_eq!((&untied["tie_word_embeddings"], &untied["attention_bias"]), (&json!(false), &json!(true)));
    }

    #[test]
    fn llama_with_experts_is_mixtral_and_with_a_window_is_mistral() {
        let mut file = llama();
        file.u32("llama.expert_count", 0);
        assert_eq!(config_of(&file)["model_type"], "llama");
        let mut file = llama();
        file.u32("llama.expert_count", 8).u32("llama.expert_used_count", 2);
        let config = config_of(&file);
        assert_eq!(config["model_type"], "mixtral");
        assert_eq!((&config["num_local_experts"], &config["num_experts_per_tok"]), (&json!(8), &json!(2)));
        let mut file = llama();
        file.u32("llama.attention.sliding_window", 16);
        let config = config_of(&file);
        assert_eq!((&config["model_type"], &config["sliding_window"]), (&json!("mistral"), &json!(16)));
    }

    #[test]
    fn values_per_layer_must_agree() {
        let mut file = decoder("qwen3");
        file.u32("qwen3.attention.key_length", 16);
        assert_eq!(config_of(&file)["head_dim"], 16);
        let each = |numbers: &[i32]| {
            let mut file = Writer::default();
            file.text("general.architecture", "qwen2").u32("qwen2.embedding_length", 8).u32("qwen2.block_count", 2);
            file.i32s("qwen2.attention.head_count", numbers).u32("qwen2.feed_forward_length", 8);
            file.u32("qwen2.context_length", 8).f32("qwen2.attention.layer_norm_rms_epsilon", 1e-6);
            file.tensor("token_embd.weight", &[8, 5], &[0.0; 40]);
            file
        };
        assert_eq!(config_of(&each(&[4, 4]))["num_attention_heads"], 4);
        assert_eq!(error_of(&each(&[4, 2])), "x.gguf: qwen2.attention.head_count is not the same for all layers");
        assert!(error_of(&each(&[])).contains("qwen2.attention.head_count must be a non-negative integer"));
        assert!(error_of(&each(&[-1, -1])).contains("must be a non-negative integer"));
    }

    #[test]
    fn gemma_has_a_sliding_window_pattern() {
        let config = config_of(&decoder("gemma2"));
        assert_eq!(config["layer_types"], json!(["sliding_attention", "full_attention"]));
        assert_eq!((&config["attn_logit_softcapping"], &config["sliding_window"]), (&json!(50.0), &json!(4096)));
        assert_eq!(config["query_pre_attn_scalar"], 4);

        let mut file = decoder("gemma3");
        file.u32("gemma3.attention.sliding_window", 32).f32("gemma3.rope.freq_base", 1e6);
        let config = config_of(&file);
        assert_eq!(config["model_type"], "gemma3_text");
        assert_eq!(config["layer_types"], json!(["sliding_attention", "sliding_attention"]));
        assert_eq!(config["rope_local_base_freq"], 10000.0);
        assert_eq!(config["rope_parameters"]["full_attention"]["rope_theta"], 1e6);
        assert_eq!(config["rope_parameters"]["sliding_attention"]["rope_theta"], 10000.0);
        file.array("gemma3.attention.sliding_window_pattern", 7, 2, &[0, 1]);
        assert_eq!(config_of(&file)["layer_types"], json!(["full_attention", "sliding_attention"]));
        let mut file = decoder("gemma3");
        file.u32("gemma3.attention.sliding_window", 32).array("gemma3.attention.sliding_window_pattern", 7, 1, &[0]);
        assert!(error_of(&file).contains("gemma3.attention.sliding_window_pattern must hold 2 values; it holds 1"));
    }

    #[test]
    fn gemma_3_has_full_attention_in_every_sixth_layer_and_27b_its_own_scale() {
        let mut file = Writer::default();
        file.text("general.architecture", "gemma3").tensor("token_embd.weight", &[8, 5], &[0.0; 40]);
        for (key, value) in
            [("block_count", 62), ("context_length", 64), ("embedding_length", 24), ("feed_forward_length", 8)]
        {
            file.u32(&format!("gemma3.{key}"), value);
        }
        file.u32("gemma3.attention.head_count", 2).u32("gemma3.attention.key_length", 16);
        file.u32("gemma3.attention.sliding_window", 32).f32("gemma3.attention.layer_norm_rms_epsilon", 1e-6);
        file.text("gemma3.rope.scaling.type", "linear").f32("gemma3.rope.scaling.factor", 8.0);
        let config = config_of(&file);
        let full: Vec<usize> = (0..62).filter(|layer| config["layer_types"][layer] == "full_attention").collect();
        assert_eq!(full, [5, 11, 17, 23, 29, 35, 41, 47, 53, 59]);
        assert_eq!(config["query_pre_attn_scalar"], 12);
        assert_eq!(config["rope_parameters"]["full_attention"]["factor"], 8.0);
    }

    #[test]
    fn older_families_are_translated() {
        let config = config_of(&decoder("gpt2"));
        assert_eq!(
            (&config["n_embd"], &config["n_inner"], &config["n_positions"]),
            (&json!(8), &json!(12), &json!(64))
        );
        let mut file = decoder("gptneox");
        file.u32("gptneox.rope.dimension_count", 1).flag("gptneox.use_parallel_residual", false);
        let config = config_of(&file);
        assert_eq!((&config["rotary_pct"], &config["use_parallel_residual"]), (&json!(0.25), &json!(false)));
        assert_eq!(config["layer_norm_eps"], 1e-5);
        assert_eq!(config_of(&decoder("bloom"))["n_head"], 2);
        assert_eq!(config_of(&decoder("phi2"))["model_type"], "phi");
        assert_eq!(config_of(&decoder("phi3"))["partial_rotary_factor"], 1.0);
    }

    #[test]
    fn missing_and_unknown_metadata_is_named_in_the_error() {
        assert_eq!(error_of(&decoder("mamba")), "x.gguf: the GGUF architecture \"mamba\" is not known to this build");
        let mut file = Writer::default();
        assert!(error_of(&file).contains("general.architecture is missing"));
        file.text("general.architecture", "llama").u32("llama.embedding_length", 8);
        assert_eq!(error_of(&file), "x.gguf: the metadata value llama.block_count is missing");
        file.u32("llama.block_count", 0);
        assert_eq!(error_of(&file), "x.gguf: the metadata value llama.block_count is zero");
        let mut moe = decoder("qwen3moe");
        assert!(error_of(&moe).contains("qwen3moe.expert_count is missing"));
        moe.u32("qwen3moe.expert_count", 4).u32("qwen3moe.expert_used_count", 2);
        moe.u32("qwen3moe.expert_feed_forward_length", 6);
        assert_eq!(config_of(&moe)["norm_topk_prob"], true);
    }
}
