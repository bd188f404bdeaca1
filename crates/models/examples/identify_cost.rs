//! Measures the identification calls and a full inspection on generated directories: mean and
//! median of many calls with a warm page cache.
//!
//! `cargo run --release -p pellucid-models --example identify_cost`

use pellucid_models::inspect;
use serde_json::{Value, json};
use std::fs::{self, File};
use std::hint::black_box;
use std::io::Write;
use std::path::Path;
use std::time::Instant;

const CALLS: usize = 2000;

fn main() -> std::io::Result<()> {
    let root = tempfile::tempdir()?;
    let (llama, omni, sae, seven) =
        (root.path().join("llama"), root.path().join("omni"), root.path().join("sae"), root.path().join("seven"));
    write(&llama, "config.json", llama_config().to_string().as_bytes())?;
    write(&llama, "tokenizer.json", &vec![b' '; 4 << 20])?;
    let talker = json!({"model_type": "qwen2_5_omni", "architectures": ["Qwen2_5OmniForConditionalGeneration"],
        "thinker_config": {"text_config": {}}, "talker_config": {}});
    write(&omni, "config.json", talker.to_string().as_bytes())?;
    write(
        &sae,
        "resid_post/layer_5_width_16k_l0_small/config.json",
        br#"{"model_name": "google/gemma-3-1b", "width": 16384}"#,
    )?;
    sharded(&seven)?;

    let lines = [
        line("get_model_info", CALLS, || inspect::get_model_info(&llama)),
        line("detect_model_category", CALLS, || inspect::detect_model_category(&llama)),
        line("is_model_supported", CALLS, || inspect::is_model_supported(&llama)),
        line("is_omni_model (no)", CALLS, || inspect::is_omni_model(&llama)),
        line("is_omni_model (yes)", CALLS, || inspect::is_omni_model(&omni)),
        line("is_sae_model (no)", CALLS, || inspect::is_sae_model(&llama)),
        line("is_sae_model (yes)", CALLS, || inspect::is_sae_model(&sae)),
        line("get_sae_base_model", CALLS, || inspect::get_sae_base_model(&sae)),
        line("inspect, 7B in 3 shards", CALLS / 20, || inspect(&seven).map(|report| report.runs())),
    ];
    assert!(inspect(&seven).is_ok_and(|report| report.runs()), "the generated model is complete");
    std::io::stdout().write_all(lines.concat().as_bytes())
}

/// Calls a function many times and returns a line with the mean and the median.
fn line<T>(name: &str, calls: usize, work: impl Fn() -> T) -> String {
    let time = |_| {
        let start = Instant::now();
        black_box(work());
        start.elapsed().as_secs_f64() * 1e6
    };
    (0..calls / 10 + 1).for_each(|call| _ = time(call));
    let mut each: Vec<f64> = (0..calls).map(time).collect();
    each.sort_by(f64::total_cmp);
    let (mean, median) = (each.iter().sum::<f64>() / calls as f64, each[calls / 2]);
    format!("{name:28}{mean:10.1} µs mean {median:10.1} µs median\n")
}

fn llama_config() -> Value {
    json!({"architectures": ["LlamaForCausalLM"], "attention_bias": false, "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu",
        "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 11008, "max_position_embeddings": 4096,
        "mlp_bias": false, "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 32,
        "pretraining_tp": 1, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": false, "torch_dtype": "float16",
        "transformers_version": "4.40.0", "use_cache": true, "vocab_size": 32000})
}

fn write(dir: &Path, name: &str, bytes: &[u8]) -> std::io::Result<()> {
    let path = dir.join(name);
    fs::create_dir_all(path.parent().unwrap_or(dir))?;
    fs::write(path, bytes)
}

/// Writes a 7B Llama whose weights are sparse files (holes), with a tokenizer of the usual size.
fn sharded(dir: &Path) -> std::io::Result<()> {
    write(dir, "config.json", llama_config().to_string().as_bytes())?;
    let mut tensors: Vec<(String, Vec<u64>)> = vec![
        ("model.embed_tokens.weight".into(), vec![32000, 4096]),
        ("model.norm.weight".into(), vec![4096]),
        ("lm_head.weight".into(), vec![32000, 4096]),
    ];
    for layer in 0..32 {
        for (name, shape) in [
            ("self_attn.q_proj", vec![4096, 4096]),
            ("self_attn.k_proj", vec![4096, 4096]),
            ("self_attn.v_proj", vec![4096, 4096]),
            ("self_attn.o_proj", vec![4096, 4096]),
            ("mlp.gate_proj", vec![11008, 4096]),
            ("mlp.up_proj", vec![11008, 4096]),
            ("mlp.down_proj", vec![4096, 11008]),
            ("input_layernorm", vec![4096]),
            ("post_attention_layernorm", vec![4096]),
        ] {
            tensors.push((format!("model.layers.{layer}.{name}.weight"), shape));
        }
    }
    let mut map = serde_json::Map::new();
    for (number, part) in tensors.chunks(tensors.len().div_ceil(3)).enumerate() {
        let file = format!("model-{:05}-of-00003.safetensors", number + 1);
        let (mut header, mut at) = (serde_json::Map::new(), 0u64);
        for (name, shape) in part {
            let bytes = shape.iter().product::<u64>() * 2;
            header.insert(name.clone(), json!({"dtype": "F16", "shape": shape, "data_offsets": [at, at + bytes]}));
            map.insert(name.clone(), file.clone().into());
            at += bytes;
        }
        let header = Value::from(header).to_string();
        let mut shard = File::create(dir.join(&file))?;
        shard.write_all(&(header.len() as u64).to_le_bytes())?;
        shard.write_all(header.as_bytes())?;
        shard.set_len(8 + header.len() as u64 + at)?;
    }
    let index = json!({"metadata": {"total_size": 13476831232u64}, "weight_map": map});
    write(dir, "model.safetensors.index.json", index.to_string().as_bytes())?;
    let vocab: serde_json::Map<String, Value> = (0..32000).map(|id| (format!("▁token{id}"), id.into())).collect();
    let merges: Vec<String> = (0..61000).map(|id| format!("▁tok en{id}")).collect();
    let tokenizer = json!({"version": "1.0", "added_tokens": [], "post_processor": null,
        "model": {"type": "BPE", "vocab": vocab, "merges": merges}});
    write(dir, "tokenizer.json", tokenizer.to_string().as_bytes())
}
