//! Model directories for the benchmarks, created in a temporary directory before anything is timed.
//!
//! `configs.json` holds configurations of well-known models, so that they are as large as in
//! practice. `extends` names configurations whose keys are included; `labels` is the number of
//! generated entries of `label2id`.

use crate::{Error, Result};
use pellucid_models::builtin;
use serde_json::{Map, Value, json};
use std::fs;
use std::io::Write;
use std::path::PathBuf;
use tempfile::TempDir;

/// Base model of the autoencoders, stored next to them.
const BASE: &str = "base-model";
/// Sites that releases of autoencoders name directories after.
const SITES: [&str; 5] = ["resid_post", "mlp_out", "attn_out", "transcoder", "resid_post_all"];
/// Unknown model type that the suite registers as a Llama.
pub const CUSTOM: &str = "pellucid_lab_custom";

const TOKENIZER_CONFIG: &str = r#"{"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"}"#;

/// Small files with fixed contents: a diffusers pipeline, and common mistakes.
const FILES: [(&str, &str); 6] = [
    ("diffusers/model_index.json", r#"{"_class_name": "StableDiffusionPipeline"}"#),
    ("diffusers/unet/config.json", r#"{"_class_name": "UNet2DConditionModel"}"#),
    ("diffusers/vae/config.json", r#"{"_class_name": "AutoencoderKL"}"#),
    ("file.txt", "not a model"),
    ("truncated_config/config.json", r#"{"model_type": "llama", "architectures": ["Llam"#),
    ("lfs_pointer/model.safetensors", "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"),
];

/// The created directories; deleted on drop.
pub struct Directories {
    root: TempDir,
}

impl Directories {
    /// Creates the directories.
    ///
    /// # Errors If the temporary directory cannot be written.
    pub fn create() -> Result<Directories> {
        let fail = |error: std::io::Error| Error::File {
            path: std::env::temp_dir().display().to_string(),
            problem: format!("cannot create the test directories: {error}; set TMPDIR to use another directory"),
        };
        let directories =
            Directories { root: tempfile::Builder::new().prefix("pellucid-identify-").tempdir().map_err(fail)? };
        directories.write_all().map_err(fail)?;
        Ok(directories)
    }

    /// Returns the path of a directory or file.
    pub fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    fn write_all(&self) -> std::io::Result<()> {
        let all: Map<String, Value> =
            serde_json::from_str(include_str!("configs.json")).map_err(std::io::Error::other)?;
        for name in all.keys() {
            self.write_file(&format!("{name}/config.json"), Value::from(config(&all, name)).to_string())?;
            // Real directories have these files; no query may read them.
            self.write_file(&format!("{name}/tokenizer.json"), "{}")?;
            self.write_file(&format!("{name}/generation_config.json"), "{}")?;
        }
        for (path, contents) in FILES {
            self.write_file(path, contents)?;
        }
        fs::create_dir_all(self.path("empty"))?;
        self.write_file(
            "deep_config/config.json",
            format!("{{\"a\": {}1{}}}", "[".repeat(100_000), "]".repeat(100_000)),
        )?;
        // A Llama with one layer, width 8 and five tokens; all weights are zero.
        self.write_file("model.gguf", include_bytes!("model.gguf"))?;
        self.write_autoencoders()?;
        self.write_models()?;
        self.write_sharded(config(&all, "llama"))
    }

    fn write_file(&self, path: &str, contents: impl AsRef<[u8]>) -> std::io::Result<()> {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap_or(&path))?;
        fs::write(path, contents)
    }

    /// One release per site and one with all sites, in the layout of Gemma Scope 2.
    fn write_autoencoders(&self) -> std::io::Result<()> {
        let weights = [("w_enc", vec![4, 8]), ("w_dec", vec![8, 4]), ("b_enc", vec![8]), ("b_dec", vec![4])];
        let weights = safetensors("F32", 4, &weights.map(|(name, shape)| (name.to_owned(), shape)), true).0;
        for site in SITES {
            let hook = format!("model.layers.12.{site}");
            let settings = json!({"affine_connection": false, "architecture": "jump_relu", "hf_hook_point_in": hook,
                "hf_hook_point_out": hook, "l0": 20, "model_name": BASE, "type": "sae", "width": 16384});
            for release in [format!("sae_{site}"), "sae_multi".into()] {
                let inner = format!("{release}/{site}/layer_12_width_16k_l0_small");
                self.write_file(&format!("{inner}/config.json"), settings.to_string())?;
                self.write_file(&format!("{inner}/params.safetensors"), &weights)?;
            }
        }
        Ok(())
    }

    /// Directories with the built-in model's weights: under its own and other types, complete and
    /// broken; and a LoRA adapter for it.
    fn write_models(&self) -> std::io::Result<()> {
        let own: Map<String, Value> = serde_json::from_slice(builtin::CONFIG).map_err(std::io::Error::other)?;
        let typed = |model_type: &str| {
            let mut config = own.clone();
            config.extend([
                ("model_type".into(), json!(model_type)),
                ("architectures".into(), json!(["CustomForCausalLM"])),
            ]);
            Value::from(config).to_string().into_bytes()
        };
        let plain = || builtin::CONFIG.to_vec();
        for (name, config, weights, has_tokenizer) in [
            ("whole", plain(), builtin::WEIGHTS, true),
            (BASE, plain(), builtin::WEIGHTS, true),
            ("custom", typed(CUSTOM), builtin::WEIGHTS, true),
            ("unheard_of", typed("pellucid_lab_unheard_of"), builtin::WEIGHTS, true),
            ("without_tokenizer", plain(), builtin::WEIGHTS, false),
            ("truncated_weights", plain(), &builtin::WEIGHTS[..builtin::WEIGHTS.len() / 2], false),
        ] {
            self.write_file(&format!("{name}/config.json"), config)?;
            self.write_file(&format!("{name}/model.safetensors"), weights)?;
            if has_tokenizer {
                self.write_file(&format!("{name}/tokenizer.json"), builtin::TOKENIZER)?;
                self.write_file(&format!("{name}/tokenizer_config.json"), TOKENIZER_CONFIG)?;
            }
        }
        self.write_file("lfs_pointer/config.json", builtin::CONFIG)?;
        let (rank, width) = (2, own.get("hidden_size").and_then(Value::as_u64).unwrap_or_default());
        let settings = json!({"peft_type": "LORA", "r": rank, "lora_alpha": 4, "target_modules": ["q_proj"],
            "base_model_name_or_path": format!("../{BASE}")});
        self.write_file("adapter/adapter_config.json", settings.to_string())?;
        let name = |side: &str| format!("base_model.model.model.layers.0.self_attn.q_proj.lora_{side}.weight");
        let weights = [(name("A"), vec![rank, width]), (name("B"), vec![width, rank])];
        self.write_file("adapter/adapter_model.safetensors", safetensors("F32", 4, &weights, true).0)
    }

    /// A Llama with 6,738,415,616 parameters in three files that are sparse after their headers.
    fn write_sharded(&self, config: Map<String, Value>) -> std::io::Result<()> {
        const SHARDS: usize = 3;
        const LAYERS: usize = 32;
        const WEIGHTS: [(&str, &[u64]); 9] = [
            ("self_attn.q_proj", &[4096, 4096]),
            ("self_attn.k_proj", &[4096, 4096]),
            ("self_attn.v_proj", &[4096, 4096]),
            ("self_attn.o_proj", &[4096, 4096]),
            ("mlp.gate_proj", &[11008, 4096]),
            ("mlp.up_proj", &[11008, 4096]),
            ("mlp.down_proj", &[4096, 11008]),
            ("input_layernorm", &[4096]),
            ("post_attention_layernorm", &[4096]),
        ];
        let mut shards: [Vec<(String, Vec<u64>)>; SHARDS] = Default::default();
        for layer in 0..LAYERS {
            let weights = WEIGHTS.map(|(name, shape)| (format!("model.layers.{layer}.{name}.weight"), shape.to_vec()));
            shards[layer * SHARDS / LAYERS].extend(weights);
        }
        shards[0].push(("model.embed_tokens.weight".into(), vec![32000, 4096]));
        shards[SHARDS - 1].push(("model.norm.weight".into(), vec![4096]));
        shards[SHARDS - 1].push(("lm_head.weight".into(), vec![32000, 4096]));
        self.write_file("sharded/config.json", Value::from(config).to_string())?;
        self.write_file("sharded/tokenizer.json", builtin::TOKENIZER)?;
        self.write_file("sharded/tokenizer_config.json", TOKENIZER_CONFIG)?;
        let (mut map, mut total) = (Map::new(), 0);
        for (index, tensors) in shards.iter().enumerate() {
            let name = format!("model-{:05}-of-{SHARDS:05}.safetensors", index + 1);
            let (header, bytes) = safetensors("F16", 2, tensors, false);
            let mut file = fs::File::create(self.path("sharded").join(&name))?;
            file.write_all(&header)?;
            file.set_len(header.len() as u64 + bytes)?;
            total += bytes;
            map.extend(tensors.iter().map(|(tensor, _)| (tensor.clone(), json!(name))));
        }
        let index = json!({"metadata": {"total_size": total}, "weight_map": map});
        self.write_file("sharded/model.safetensors.index.json", index.to_string())
    }
}

/// Returns a configuration of `configs.json` with all that it extends.
fn config(all: &Map<String, Value>, name: &str) -> Map<String, Value> {
    let mut own = all.get(name).and_then(Value::as_object).cloned().unwrap_or_default();
    let extended = own.remove("extends").unwrap_or_default();
    let mut config = Map::new();
    for base in extended.as_array().into_iter().flatten().filter_map(Value::as_str) {
        config.extend(self::config(all, base));
    }
    let labels = own.remove("labels").and_then(|count| count.as_u64());
    config.extend(own);
    if let Some(count) = labels {
        let labels: Map<String, Value> = (0..count).map(|i| (format!("LABEL_{i:05}"), json!(i))).collect();
        config.insert("label2id".into(), labels.into());
    }
    config
}

/// Returns a safetensors file of zeros, or only its header, and the number of data bytes.
fn safetensors(dtype: &str, width: u64, tensors: &[(String, Vec<u64>)], with_data: bool) -> (Vec<u8>, u64) {
    let (mut map, mut offset) = (Map::new(), 0);
    for (name, shape) in tensors {
        let bytes = shape.iter().product::<u64>() * width;
        map.insert(name.clone(), json!({"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + bytes]}));
        offset += bytes;
    }
    let header = Value::from(map).to_string();
    let mut file = [&(header.len() as u64).to_le_bytes(), header.as_bytes()].concat();
    if with_data {
        file.resize(file.len() + offset as usize, 0);
    }
    (file, offset)
}
