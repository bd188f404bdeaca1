//! The directories that are asked about, made in a temporary folder before any time is taken.

use super::{configs, gguf};
use crate::{Error, Result};
use pellucid_models::builtin;
use serde_json::{Map, Value, json};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// The model that the autoencoders say they were trained on; it lies beside them, too.
pub const BASE: &str = "base-model";
/// Bytes of a very large configuration.
pub const LARGE: usize = 1_000_000;
/// The layers of the large model whose weights are only headers, and its parameters.
pub const SHARDED: (usize, u64) = (32, 6_738_415_616);
/// The sites of autoencoders that releases name directories for.
pub const SITES: [&str; 5] = ["resid_post", "mlp_out", "attn_out", "transcoder", "resid_post_all"];
/// A type that nobody has, which the suite registers as a Llama.
pub const CUSTOM: &str = "pellucid_lab_custom";
/// A type that nobody has and nobody registers.
const UNHEARD_OF: &str = "pellucid_lab_unheard_of";
/// A file instead of a directory.
pub const GGUF: &str = "model.gguf";

const TOKENIZER_CONFIG: &str = r#"{"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"}"#;

/// Everything that is asked about; gone when it is dropped.
pub struct Fixtures {
    root: TempDir,
}

impl Fixtures {
    /// Makes them.
    ///
    /// # Errors
    /// If the temporary folder cannot be written.
    pub fn make() -> Result<Fixtures> {
        let fail = |error: std::io::Error| Error::File {
            path: std::env::temp_dir().display().to_string(),
            problem: format!("the fixtures cannot be made: {error}; TMPDIR names another folder"),
        };
        let fixtures = Fixtures { root: tempfile::Builder::new().prefix("pellucid-loader-").tempdir().map_err(fail)? };
        fixtures.write().map_err(fail)?;
        Ok(fixtures)
    }

    /// The directory of a name.
    pub fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    fn write(&self) -> std::io::Result<()> {
        let configured = [
            ("llama", configs::llama()),
            ("qwen", configs::qwen()),
            ("qwen3", configs::qwen3()),
            ("mistral", configs::mistral()),
            ("gemma", configs::gemma()),
            ("phi", configs::phi()),
            ("deepseek", configs::deepseek()),
            ("falcon", configs::falcon()),
            ("vision", configs::siglip()),
            ("asr", configs::whisper()),
            ("omni_qwen", configs::omni()),
            ("omni_qwen3", configs::omni_qwen3()),
            ("omni_any2any", configs::any_to_any()),
            ("glm4_moe_lite", configs::glm4_moe_lite()),
            ("step_robotics", configs::step_robotics()),
            ("unknown", configs::unknown()),
            ("simple", configs::simple()),
            ("quantised", configs::quantised()),
            ("talking", configs::talking()),
            ("complex", configs::complex()),
            ("large", configs::large(LARGE)),
        ];
        for (name, config) in configured {
            self.file(name, "config.json", config.to_string())?;
            // Real directories have these, and no question may read them.
            self.file(name, "tokenizer.json", "{}")?;
            self.file(name, "generation_config.json", "{}")?;
        }
        self.pipeline()?;
        self.autoencoders()?;
        self.models()?;
        self.sharded(&self.path("sharded"))?;
        self.broken()
    }

    fn file(&self, dir: &str, name: &str, contents: impl AsRef<[u8]>) -> std::io::Result<()> {
        let path = self.path(dir).join(name);
        fs::create_dir_all(path.parent().unwrap_or(&path))?;
        fs::write(path, contents)
    }

    fn pipeline(&self) -> std::io::Result<()> {
        self.file("diffusers", "model_index.json", r#"{"_class_name": "StableDiffusionPipeline"}"#)?;
        self.file("diffusers", "unet/config.json", r#"{"_class_name": "UNet2DConditionModel"}"#)?;
        self.file("diffusers", "vae/config.json", r#"{"_class_name": "AutoencoderKL"}"#)
    }

    /// A release of one site each, and one of all; in the layout of Gemma Scope 2.
    fn autoencoders(&self) -> std::io::Result<()> {
        let weights =
            safetensors(&[("w_enc", vec![4, 8]), ("w_dec", vec![8, 4]), ("b_enc", vec![8]), ("b_dec", vec![4])]);
        for site in SITES {
            let settings = configs::autoencoder(site, BASE).to_string();
            for release in [format!("sae_{site}"), "sae_multi".into()] {
                let inner = format!("{site}/layer_12_width_16k_l0_small");
                self.file(&release, &format!("{inner}/config.json"), &settings)?;
                self.file(&release, &format!("{inner}/params.safetensors"), &weights)?;
            }
        }
        Ok(())
    }

    /// Models with weights: those of the model inside this program.
    fn models(&self) -> std::io::Result<()> {
        let own: Value = serde_json::from_slice(builtin::CONFIG).map_err(std::io::Error::other)?;
        let typed = |model_type: &str| {
            let mut config = own.clone();
            configs::extend(&mut config, json!({"model_type": model_type, "architectures": ["CustomForCausalLM"]}));
            config.to_string()
        };
        let (custom, unheard_of) = (typed(CUSTOM), typed(UNHEARD_OF));
        for (name, config) in [
            ("whole", builtin::CONFIG),
            (BASE, builtin::CONFIG),
            ("custom", custom.as_bytes()),
            ("unheard_of", unheard_of.as_bytes()),
        ] {
            self.file(name, "config.json", config)?;
            self.file(name, "model.safetensors", builtin::WEIGHTS)?;
            self.file(name, "tokenizer.json", builtin::TOKENIZER)?;
            self.file(name, "tokenizer_config.json", TOKENIZER_CONFIG)?;
        }
        fs::write(self.path(GGUF), gguf::llama())?;
        self.adapter(own["hidden_size"].as_u64().unwrap_or_default())?;
        self.file("without_tokenizer", "config.json", builtin::CONFIG)?;
        self.file("without_tokenizer", "model.safetensors", builtin::WEIGHTS)
    }

    /// A LoRA adapter for the model inside this program, which lies beside it. Its queries are as wide as its stream.
    fn adapter(&self, width: u64) -> std::io::Result<()> {
        const RANK: u64 = 2;
        let module = "base_model.model.model.layers.0.self_attn.q_proj";
        let (a, b) = (format!("{module}.lora_A.weight"), format!("{module}.lora_B.weight"));
        let settings = json!({"peft_type": "LORA", "r": RANK, "lora_alpha": 4, "target_modules": ["q_proj"],
            "base_model_name_or_path": format!("../{BASE}")});
        self.file("adapter", "adapter_config.json", settings.to_string())?;
        let weights = safetensors(&[(&a, vec![RANK, width]), (&b, vec![width, RANK])]);
        self.file("adapter", "adapter_model.safetensors", weights)
    }

    /// A model of seven thousand million parameters in three files, all of which is hole but the headers.
    fn sharded(&self, dir: &Path) -> std::io::Result<()> {
        const FILES: usize = 3;
        self.file("sharded", "config.json", configs::llama().to_string())?;
        self.file("sharded", "tokenizer.json", builtin::TOKENIZER)?;
        self.file("sharded", "tokenizer_config.json", TOKENIZER_CONFIG)?;
        let mut shards: [Vec<(String, Vec<u64>)>; FILES] = Default::default();
        for layer in 0..SHARDED.0 {
            let shard = &mut shards[layer * FILES / SHARDED.0];
            let mut add =
                |name: &str, shape: &[u64]| shard.push((format!("model.layers.{layer}.{name}.weight"), shape.to_vec()));
            ["q_proj", "k_proj", "v_proj", "o_proj"]
                .iter()
                .for_each(|name| add(&format!("self_attn.{name}"), &[4096, 4096]));
            ["gate_proj", "up_proj"].iter().for_each(|name| add(&format!("mlp.{name}"), &[11008, 4096]));
            add("mlp.down_proj", &[4096, 11008]);
            ["input_layernorm", "post_attention_layernorm"].iter().for_each(|name| add(name, &[4096]));
        }
        shards[0].push(("model.embed_tokens.weight".into(), vec![32000, 4096]));
        shards[FILES - 1].push(("model.norm.weight".into(), vec![4096]));
        shards[FILES - 1].push(("lm_head.weight".into(), vec![32000, 4096]));
        let (mut map, mut total) = (Map::new(), 0);
        for (index, tensors) in shards.iter().enumerate() {
            let name = format!("model-{:05}-of-{FILES:05}.safetensors", index + 1);
            map.extend(tensors.iter().map(|(tensor, _)| (tensor.clone(), json!(name))));
            let (header, bytes) =
                header("F16", 2, tensors.iter().map(|(name, shape)| (name.as_str(), shape.as_slice())));
            let mut file = fs::File::create(dir.join(name))?;
            file.write_all(&header)?;
            file.set_len(header.len() as u64 + bytes)?;
            total += bytes;
        }
        let index = json!({"metadata": {"total_size": total}, "weight_map": map});
        self.file("sharded", "model.safetensors.index.json", index.to_string())
    }

    /// What people have by mistake.
    fn broken(&self) -> std::io::Result<()> {
        fs::create_dir_all(self.path("empty"))?;
        fs::write(self.path("file.txt"), "not a model")?;
        self.file("truncated_config", "config.json", r#"{"model_type": "llama", "architectures": ["Llam"#)?;
        self.file("deep_config", "config.json", format!("{{\"a\": {}1{}}}", "[".repeat(100_000), "]".repeat(100_000)))?;
        let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n";
        self.file("lfs_pointer", "config.json", builtin::CONFIG)?;
        self.file("lfs_pointer", "model.safetensors", pointer)?;
        self.file("truncated_weights", "config.json", builtin::CONFIG)?;
        self.file("truncated_weights", "model.safetensors", &builtin::WEIGHTS[..builtin::WEIGHTS.len() / 2])
    }
}

/// The header of a safetensors file of these tensors, and how many bytes follow it.
fn header<'a>(dtype: &str, width: u64, tensors: impl Iterator<Item = (&'a str, &'a [u64])>) -> (Vec<u8>, u64) {
    let (mut map, mut at) = (Map::new(), 0);
    for (name, shape) in tensors {
        let bytes = shape.iter().product::<u64>() * width;
        map.insert(name.into(), json!({"dtype": dtype, "shape": shape, "data_offsets": [at, at + bytes]}));
        at += bytes;
    }
    let text = Value::from(map).to_string();
    ([&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat(), at)
}

/// A safetensors file of f32 tensors of zeros.
fn safetensors(tensors: &[(&str, Vec<u64>)]) -> Vec<u8> {
    let (mut file, bytes) = header("F32", 4, tensors.iter().map(|(name, shape)| (*name, shape.as_slice())));
    file.resize(file.len() + bytes as usize, 0);
    file
}
