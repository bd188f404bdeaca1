//! `gpt2-shaped`: a model of GPT-2 small's shape with two SAEs of 24,576 features, for benchmarks
//! that need this size and no download. Weights are random with a fixed seed; the SAEs' biases are
//! set so that about 20 features fire at a token of the prompts of `lab sessions --gpt2`. The
//! tokenizer is GPT-2's, reduced to the merges of these prompts (`workloads/make.py`): it gives
//! their token ids, and the bytes of any other text.

use crate::stats::Rng;
use crate::{Error, Result, rte};
use pellucid_engine::{Plan, RunOptions};
use pellucid_kernels::Pool;
use pellucid_models::sae::read_sae;
use pellucid_models::{LoadOptions, LoadedModel};
use safetensors::{Dtype, View};
use serde_json::json;
use std::borrow::Cow;
use std::path::{Path, PathBuf};

/// Its name in suites and for `--model`.
pub const NAME: &str = "gpt2-shaped";

/// Increased when the weights change, so that an older copy in the cache is not used.
const VERSION: u32 = 2;

const LAYERS: usize = 12;
const WIDTH: usize = 768;
const HIDDEN: usize = 4 * WIDTH;
const VOCABULARY: usize = 50_257;
const CONTEXT: usize = 1024;

const TOKENIZER: &str = include_str!("../workloads/tokenizer.json");
const FEATURES: usize = 24_576;

/// Layers whose `z` has an SAE.
pub const SAE_LAYERS: [usize; 2] = [9, 10];

/// Mean number of features that fire at a token.
const ACTIVE: usize = 20;

/// Returns the model's directory in the cache; writes it first if it is not there.
pub fn directory(cache: &Path) -> Result<PathBuf> {
    let parent = cache.join("lab");
    let directory = parent.join(format!("{NAME}-{VERSION}"));
    if directory.is_dir() {
        return Ok(directory);
    }
    std::fs::create_dir_all(&parent).map_err(fail(&parent))?;
    // Written under another name, so that an interrupted run leaves no incomplete model.
    let unfinished = tempfile::tempdir_in(&parent).map_err(fail(&parent))?;
    write_model(unfinished.path())?;
    write_saes(unfinished.path())?;
    let unfinished = unfinished.keep();
    match std::fs::rename(&unfinished, &directory) {
        Ok(()) => Ok(directory),
        Err(error) => {
            let _ = std::fs::remove_dir_all(&unfinished);
            // Another process may have written it in the meantime.
            if directory.is_dir() { Ok(directory) } else { Err(fail(&directory)(error)) }
        }
    }
}

/// The directory of the SAE at a layer's `z`.
pub fn sae_directory(model: &Path, layer: usize) -> PathBuf {
    model.join("saes").join(format!("layers.{layer}.z"))
}

fn fail(path: &Path) -> impl Fn(std::io::Error) -> Error + '_ {
    move |error| Error::File { path: path.display().to_string(), problem: error.to_string() }
}

/// A random tensor: normal numbers of a standard deviation around a mean.
struct RandomTensor {
    shape: Vec<usize>,
    mean: f32,
    deviation: f32,
    seed: u64,
}

impl RandomTensor {
    fn values(&self) -> impl Iterator<Item = f32> {
        let (mut rng, mean, deviation) = (Rng::new(self.seed), self.mean, self.deviation);
        (0..self.shape.iter().product()).map(move |_| mean + deviation * rng.normal() as f32)
    }
}

impl View for &RandomTensor {
    fn dtype(&self) -> Dtype {
        Dtype::F32
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Owned(self.values().flat_map(f32::to_le_bytes).collect())
    }

    fn data_len(&self) -> usize {
        4 * self.shape.iter().product::<usize>()
    }
}

/// The tensors of the model. Scales are chosen so that attention spreads over several tokens, as in
/// a trained model.
fn tensors() -> Vec<(String, RandomTensor)> {
    let mut tensors = Vec::new();
    let mut add = |name: String, shape: &[usize], mean: f32, deviation: f32| {
        let seed = tensors.len() as u64 + 1;
        tensors.push((name, RandomTensor { shape: shape.to_vec(), mean, deviation, seed }));
    };
    add("transformer.wte.weight".into(), &[VOCABULARY, WIDTH], 0.0, 0.14);
    add("transformer.wpe.weight".into(), &[CONTEXT, WIDTH], 0.0, 0.05);
    for layer in 0..LAYERS {
        for norm in ["ln_1", "ln_2"] {
            add(format!("transformer.h.{layer}.{norm}.weight"), &[WIDTH], 1.0, 0.1);
            add(format!("transformer.h.{layer}.{norm}.bias"), &[WIDTH], 0.0, 0.05);
        }
        let products = [
            ("attn.c_attn", WIDTH, 3 * WIDTH),
            ("attn.c_proj", WIDTH, WIDTH),
            ("mlp.c_fc", WIDTH, HIDDEN),
            ("mlp.c_proj", HIDDEN, WIDTH),
        ];
        for (name, inputs, outputs) in products {
            add(format!("transformer.h.{layer}.{name}.weight"), &[inputs, outputs], 0.0, 0.05);
            add(format!("transformer.h.{layer}.{name}.bias"), &[outputs], 0.0, 0.05);
        }
    }
    add("transformer.ln_f.weight".into(), &[WIDTH], 1.0, 0.1);
    add("transformer.ln_f.bias".into(), &[WIDTH], 0.0, 0.05);
    tensors
}

fn write_model(directory: &Path) -> Result<()> {
    let config = json!({
        "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": VOCABULARY, "n_positions": CONTEXT,
        "n_ctx": CONTEXT, "n_embd": WIDTH, "n_layer": LAYERS, "n_head": 12, "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5, "bos_token_id": 50256, "eos_token_id": 50256, "tie_word_embeddings": true,
        "torch_dtype": "float32",
    });
    write(&directory.join("config.json"), config.to_string().as_bytes())?;
    write(&directory.join("tokenizer.json"), TOKENIZER.as_bytes())?;
    let special = "<|endoftext|>";
    let tokenizer = json!({"tokenizer_class": "GPT2Tokenizer", "bos_token": special, "eos_token": special});
    write(&directory.join("tokenizer_config.json"), tokenizer.to_string().as_bytes())?;
    let tensors = tensors();
    let views = tensors.iter().map(|(name, tensor)| (name.as_str(), tensor));
    write_tensors(&directory.join("model.safetensors"), views)
}

/// Writes the SAEs in SAELens' format.
fn write_saes(model: &Path) -> Result<()> {
    let loaded = LoadedModel::open(model, &LoadOptions::default(), &mut |_| {})?;
    let prompts = rte::prompts().map(|prompt| Ok(loaded.tokenizer()?.encode(&prompt, false)?));
    let prompts = prompts.collect::<Result<Vec<Vec<u32>>>>()?;
    for layer in SAE_LAYERS {
        let directory = sae_directory(model, layer);
        std::fs::create_dir_all(&directory).map_err(fail(&directory))?;
        let config = json!({
            "architecture": "standard", "d_in": WIDTH, "d_sae": FEATURES, "dtype": "float32", "device": "cpu",
            "apply_b_dec_to_input": false, "normalize_activations": "none", "reshape_activations": "hook_z",
            "metadata": {
                "sae_lens_version": "6.54.0", "model_name": NAME, "hook_name": format!("blocks.{layer}.attn.hook_z"),
                "hook_head_index": null, "prepend_bos": false,
            },
        });
        write(&directory.join("cfg.json"), config.to_string().as_bytes())?;
        write_sae(&directory, layer, 0.0)?;
        // With the bias at 0 the encoder gives products only; the new bias is their quantile.
        let sae = read_sae(&directory)?.sae;
        let z = Plan::capture([format!("layers.{layer}.z")]);
        let mut activations = Vec::new();
        for prompt in &prompts {
            let run = loaded.model.run(std::slice::from_ref(prompt), &z, &RunOptions::default());
            let run = run.map_err(pellucid_models::Error::from)?;
            activations.extend_from_slice(run.captures[0].array.values());
        }
        let tokens = activations.len() / WIDTH;
        let mut products = vec![0.0; tokens * FEATURES];
        sae.encode(&Pool::global(), &activations, &mut products);
        let (_, threshold, _) = products.select_nth_unstable_by(tokens * ACTIVE, |a, b| b.total_cmp(a));
        write_sae(&directory, layer, -*threshold)?;
    }
    Ok(())
}

/// Writes the weights of an SAE whose decoder is its transposed encoder, with rows of norm about 1.
fn write_sae(directory: &Path, layer: usize, bias: f32) -> Result<()> {
    let deviation = 1.0 / (WIDTH as f32).sqrt();
    let decoder = RandomTensor { shape: vec![FEATURES, WIDTH], mean: 0.0, deviation, seed: 1000 + layer as u64 };
    let rows: Vec<f32> = decoder.values().collect();
    let transposed = (0..WIDTH).flat_map(|channel| rows[channel..].iter().step_by(WIDTH));
    let bytes = |values: &mut dyn Iterator<Item = f32>| values.flat_map(f32::to_le_bytes).collect::<Vec<u8>>();
    let tensors = [
        ("W_enc", vec![WIDTH, FEATURES], bytes(&mut transposed.copied())),
        ("W_dec", vec![FEATURES, WIDTH], bytes(&mut rows.iter().copied())),
        ("b_enc", vec![FEATURES], bytes(&mut std::iter::repeat_n(bias, FEATURES))),
        ("b_dec", vec![WIDTH], bytes(&mut std::iter::repeat_n(0.0, WIDTH))),
    ];
    let views = tensors.iter().map(|(name, shape, bytes)| {
        (*name, safetensors::tensor::TensorView::new(Dtype::F32, shape.clone(), bytes).expect("bytes of the shape"))
    });
    write_tensors(&directory.join("sae_weights.safetensors"), views)
}

fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    std::fs::write(path, bytes).map_err(fail(path))
}

fn write_tensors<'a, V: View>(path: &Path, views: impl IntoIterator<Item = (&'a str, V)>) -> Result<()> {
    safetensors::serialize_to_file(views, None, path)
        .map_err(|error| Error::File { path: path.display().to_string(), problem: error.to_string() })
}
