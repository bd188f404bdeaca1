//! Metadata → what would be the model's `config.json`.
//!
//! The converters of llama.cpp store each fact under its own name (`llama.attention.head_count`), and leave out those that
//! its code knows by heart, such as which layers of Gemma slide. Both kinds are written out here under the names of the
//! Hugging Face configuration, so the families never learn where a model came from. One exception: `"pellucid_gguf": true`
//! tells them that Gemma's norm weights are stored as 1 + w.

use serde_json::{Map, Value as Json, json};

use super::facts::Facts;
use super::{GgufFile, Value, rope};
use crate::families::MOST_LAYERS;
use crate::{Error, Result};

/// The Hugging Face configuration that this file stands for.
///
/// # Errors
/// If the architecture is not one of those known here, or the metadata lacks something or contradicts itself.
pub fn hf_config(file: &GgufFile) -> Result<Json> {
    let facts = Facts { file, arch: file.architecture()? };
    let mut config = Map::new();
    if facts.number("block_count")?.is_some_and(|layers| layers > MOST_LAYERS) {
        return Err(file.damaged(format!(
            "the metadata value {}.block_count is more than {MOST_LAYERS}, and no model is that large",
            facts.arch
        )));
    }
    match facts.arch {
        "llama" => llama(&facts, &mut config)?,
        "qwen2" => qwen(&facts, &mut config, "qwen2", "Qwen2ForCausalLM")?,
        "qwen3" => qwen(&facts, &mut config, "qwen3", "Qwen3ForCausalLM")?,
        "qwen2moe" => qwen_moe(&facts, &mut config, "qwen2_moe", "Qwen2MoeForCausalLM")?,
        "qwen3moe" => qwen_moe(&facts, &mut config, "qwen3_moe", "Qwen3MoeForCausalLM")?,
        "gemma" => gemma(&facts, &mut config)?,
        "gemma2" => gemma2(&facts, &mut config)?,
        "gemma3" => gemma3(&facts, &mut config)?,
        "phi2" => phi2(&facts, &mut config)?,
        "phi3" => phi3(&facts, &mut config)?,
        "gpt2" => gpt2(&facts, &mut config)?,
        "gptneox" => gptneox(&facts, &mut config)?,
        "bloom" => bloom(&facts, &mut config)?,
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
    config.insert("vocab_size".into(), facts.vocab()?.into());
    config.insert("tie_word_embeddings".into(), file.tensor("output.weight").is_none().into());
    config.insert("pellucid_gguf".into(), true.into());
    Ok(config.into())
}

type Config = Map<String, Json>;

fn put(config: &mut Config, name: &str, value: impl Into<Json>) {
    config.insert(name.into(), value.into());
}

fn named(config: &mut Config, model_type: &str, class: &str) {
    put(config, "model_type", model_type);
    put(config, "architectures", json!([class]));
}

/// The numbers that nearly every decoder has, under the names of the Llama family.
fn sizes(facts: &Facts, config: &mut Config) -> Result<()> {
    put(config, "hidden_size", facts.size("embedding_length")?);
    put(config, "num_hidden_layers", facts.size("block_count")?);
    put(config, "num_attention_heads", facts.heads()?);
    put(config, "num_key_value_heads", facts.kv_heads()?);
    put(config, "head_dim", facts.head_dim()?);
    put(config, "intermediate_size", facts.size("feed_forward_length")?);
    put(config, "max_position_embeddings", facts.size("context_length")?);
    Ok(())
}

/// A gated decoder with RMS norms and rotation.
fn gated(facts: &Facts, config: &mut Config) -> Result<()> {
    sizes(facts, config)?;
    put(config, "hidden_act", "silu");
    put(config, "rms_norm_eps", facts.needed_float("attention.layer_norm_rms_epsilon")?);
    put(config, "rope_theta", rope::theta(facts)?);
    put(config, "rope_parameters", rope::parameters(facts)?);
    Ok(())
}

fn llama(facts: &Facts, config: &mut Config) -> Result<()> {
    let experts = facts.number("expert_count")?.filter(|experts| *experts > 0);
    // Mistral is stored as Llama, and runs as Llama; only a window makes a difference.
    let window = facts.number("attention.sliding_window")?.filter(|window| *window > 0);
    match (experts, window) {
        (Some(_), _) => named(config, "mixtral", "MixtralForCausalLM"),
        (None, Some(_)) => named(config, "mistral", "MistralForCausalLM"),
        (None, None) => named(config, "llama", "LlamaForCausalLM"),
    }
    gated(facts, config)?;
    if let Some(experts) = experts {
        put(config, "num_local_experts", experts);
        put(config, "num_experts_per_tok", facts.size("expert_used_count")?);
    }
    if let Some(window) = window {
        put(config, "sliding_window", window);
    }
    // The files say nothing about biases; they have the tensors or not.
    put(config, "attention_bias", facts.file.tensor("blk.0.attn_q.bias").is_some());
    put(config, "mlp_bias", facts.file.tensor("blk.0.ffn_up.bias").is_some());
    Ok(())
}

fn qwen(facts: &Facts, config: &mut Config, model_type: &str, class: &str) -> Result<()> {
    named(config, model_type, class);
    gated(facts, config)?;
    put(config, "use_sliding_window", false);
    if model_type == "qwen3" {
        put(config, "attention_bias", false);
    }
    Ok(())
}

fn qwen_moe(facts: &Facts, config: &mut Config, model_type: &str, class: &str) -> Result<()> {
    qwen(facts, config, model_type, class)?;
    put(config, "num_experts", facts.size("expert_count")?);
    put(config, "num_experts_per_tok", facts.size("expert_used_count")?);
    put(config, "moe_intermediate_size", facts.size("expert_feed_forward_length")?);
    // llama.cpp fixes these two by the architecture: every layer has experts, and only Qwen3 rescales the chosen ones.
    put(config, "decoder_sparse_step", 1);
    put(config, "norm_topk_prob", facts.arch == "qwen3moe");
    if let Some(shared) = facts.number("expert_shared_feed_forward_length")? {
        put(config, "shared_expert_intermediate_size", shared);
    }
    Ok(())
}

fn gemma(facts: &Facts, config: &mut Config) -> Result<()> {
    named(config, "gemma", "GemmaForCausalLM");
    gated(facts, config)?;
    put(config, "hidden_act", "gelu_pytorch_tanh");
    put(config, "hidden_activation", "gelu_pytorch_tanh");
    Ok(())
}

/// Scores are divided by the root of this. The largest models of both generations take hidden size over heads instead
/// of the head's width; llama.cpp knows them by their number of layers, and so must we.
fn query_pre_attn_scalar(facts: &Facts, layers_of_27b: usize) -> Result<usize> {
    if facts.size("block_count")? == layers_of_27b {
        return Ok(facts.size("embedding_length")? / facts.heads()?);
    }
    facts.head_dim()
}

/// Which layers slide: as the file says for each, or every layer but the last of each `period`.
fn layer_types(facts: &Facts, period: usize) -> Result<Json> {
    let layers = facts.size("block_count")?;
    let key = format!("{}.attention.sliding_window_pattern", facts.arch);
    let name = |slides: bool| if slides { "sliding_attention" } else { "full_attention" };
    if let Some(Value::List(_)) = facts.file.value(&key) {
        let flags = facts.file.list(&key, layers)?.unwrap_or_default();
        let types = flags.iter().map(|flag| match flag {
            Value::Bool(slides) => Ok(name(*slides)),
            _ => Err(facts.file.damaged(format!("the metadata value {key} must hold true or false for each layer"))),
        });
        return Ok(types.collect::<Result<Vec<_>>>()?.into());
    }
    let period = facts.number("attention.sliding_window_pattern")?.filter(|period| *period > 0).unwrap_or(period);
    Ok((0..layers).map(|layer| name(layer % period < period - 1)).collect::<Vec<_>>().into())
}

fn gemma2(facts: &Facts, config: &mut Config) -> Result<()> {
    gemma(facts, config)?;
    named(config, "gemma2", "Gemma2ForCausalLM");
    put(config, "query_pre_attn_scalar", query_pre_attn_scalar(facts, 46)?);
    put(config, "attn_logit_softcapping", facts.float("attn_logit_softcapping")?.unwrap_or(50.0));
    put(config, "final_logit_softcapping", facts.float("final_logit_softcapping")?.unwrap_or(30.0));
    put(config, "sliding_window", facts.number("attention.sliding_window")?.unwrap_or(4096));
    put(config, "layer_types", layer_types(facts, 2)?);
    Ok(())
}

fn gemma3(facts: &Facts, config: &mut Config) -> Result<()> {
    gemma(facts, config)?;
    named(config, "gemma3_text", "Gemma3ForCausalLM");
    put(config, "query_pre_attn_scalar", query_pre_attn_scalar(facts, 62)?);
    put(config, "attn_logit_softcapping", Json::Null);
    put(config, "final_logit_softcapping", facts.float("final_logit_softcapping")?.map_or(Json::Null, Json::from));
    put(config, "sliding_window", facts.size("attention.sliding_window")?);
    put(config, "sliding_window_pattern", 6);
    put(config, "layer_types", layer_types(facts, 6)?);
    let local = facts.float("rope.freq_base_swa")?.unwrap_or(10000.0);
    put(config, "rope_local_base_freq", local);
    let full = rope::parameters(facts)?;
    let sliding = json!({"rope_type": "default", "rope_theta": local});
    put(config, "rope_parameters", json!({"full_attention": full, "sliding_attention": sliding}));
    Ok(())
}

fn phi2(facts: &Facts, config: &mut Config) -> Result<()> {
    named(config, "phi", "PhiForCausalLM");
    sizes(facts, config)?;
    put(config, "hidden_act", "gelu_new");
    put(config, "layer_norm_eps", facts.needed_float("attention.layer_norm_epsilon")?);
    partly_rotated(facts, config)
}

fn phi3(facts: &Facts, config: &mut Config) -> Result<()> {
    named(config, "phi3", "Phi3ForCausalLM");
    gated(facts, config)?;
    if let Some(window) = facts.number("attention.sliding_window")?.filter(|window| *window > 0) {
        put(config, "sliding_window", window);
    }
    let original = facts.number("rope.scaling.original_context_length")?;
    put(config, "original_max_position_embeddings", original.map_or_else(|| facts.size("context_length"), Ok)?);
    partly_rotated(facts, config)
}

fn partly_rotated(facts: &Facts, config: &mut Config) -> Result<()> {
    let partial = facts.partial_rotary_factor()?;
    let mut parameters = rope::parameters(facts)?;
    parameters["partial_rotary_factor"] = partial.into();
    put(config, "partial_rotary_factor", partial);
    put(config, "rope_theta", rope::theta(facts)?);
    put(config, "rope_parameters", parameters);
    Ok(())
}

fn gptneox(facts: &Facts, config: &mut Config) -> Result<()> {
    named(config, "gpt_neox", "GPTNeoXForCausalLM");
    sizes(facts, config)?;
    put(config, "hidden_act", "gelu");
    put(config, "layer_norm_eps", facts.needed_float("attention.layer_norm_epsilon")?);
    put(config, "attention_bias", true);
    let parallel = facts.file.flag("gptneox.use_parallel_residual")?.unwrap_or(true);
    put(config, "use_parallel_residual", parallel);
    put(config, "rotary_pct", facts.partial_rotary_factor()?);
    put(config, "rotary_emb_base", rope::theta(facts)?);
    partly_rotated(facts, config)
}

fn gpt2(facts: &Facts, config: &mut Config) -> Result<()> {
    named(config, "gpt2", "GPT2LMHeadModel");
    put(config, "n_embd", facts.size("embedding_length")?);
    put(config, "n_layer", facts.size("block_count")?);
    put(config, "n_head", facts.heads()?);
    put(config, "n_inner", facts.size("feed_forward_length")?);
    put(config, "n_positions", facts.size("context_length")?);
    put(config, "n_ctx", facts.size("context_length")?);
    put(config, "layer_norm_epsilon", facts.needed_float("attention.layer_norm_epsilon")?);
    put(config, "activation_function", "gelu_new");
    put(config, "scale_attn_weights", true);
    Ok(())
}

fn bloom(facts: &Facts, config: &mut Config) -> Result<()> {
    named(config, "bloom", "BloomForCausalLM");
    put(config, "hidden_size", facts.size("embedding_length")?);
    put(config, "n_layer", facts.size("block_count")?);
    put(config, "n_head", facts.heads()?);
    put(config, "layer_norm_epsilon", facts.needed_float("attention.layer_norm_epsilon")?);
    put(config, "seq_length", facts.size("context_length")?);
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
    fn a_llama() {
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
    fn experts_make_a_mixtral_and_a_window_a_mistral() {
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
    fn numbers_for_each_layer_must_agree() {
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
        assert!(error_of(&each(&[])).contains("qwen2.attention.head_count must be a whole number"));
        assert!(error_of(&each(&[-1, -1])).contains("must be a whole number"));
    }

    #[test]
    fn gemmas_say_which_layers_slide() {
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
    fn every_sixth_layer_of_gemma_3_is_full_and_the_largest_has_its_own_scale() {
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
    fn the_older_families() {
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
    fn what_is_missing_or_unknown_is_named() {
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
