//! `inspect` and loading agree: on the family, the strategy, the warnings, the outcome of each
//! strategy and the text of the error, for every golden case and for many odd paths.

use crate::directories::dir_with;
use crate::gguf_files;
use golden::temp_models::{self, Tensors, changed, copy, with_config};
use pellucid_models::{Attempt, Error, LoadOptions, LoadedModel, Strategy, inspect_as, strategies};
use safetensors::Dtype;
use serde_json::json;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Everything that inspection and loading both state about a path.
#[derive(Debug, PartialEq)]
enum Verdict {
    Runs { family: String, strategy: Strategy, warnings: Vec<String>, attempts: Vec<Attempt> },
    Refused { error: String, attempts: Vec<Attempt> },
}

fn inspected(path: &Path, assume: Option<&str>) -> Verdict {
    let report = inspect_as(path, assume).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    assert_eq!(report.runs(), report.reason.is_none(), "{report:#?}");
    let attempts = report.strategies.unwrap_or_default();
    match (report.reason, report.family, report.strategy) {
        (Some(error), ..) => Verdict::Refused { error, attempts },
        (None, Some(family), Some(strategy)) => Verdict::Runs { family, strategy, warnings: report.warnings, attempts },
        (None, family, strategy) => panic!("{}: it runs as {family:?} by {strategy:?}", path.display()),
    }
}

fn loaded(path: &Path, assume: Option<&str>) -> Verdict {
    let options = LoadOptions { assume: assume.map(str::to_owned), ..LoadOptions::default() };
    match LoadedModel::open(path, &options, &mut |_| {}) {
        Ok(loaded) => Verdict::Runs {
            family: loaded.model.program().architecture().family.clone(),
            strategy: loaded.strategy,
            warnings: loaded.warnings,
            attempts: strategies(path, &options),
        },
        Err(Error::Load { error, attempts }) => {
            assert_eq!(attempts, strategies(path, &options), "{}", path.display());
            Verdict::Refused { error: error.to_string(), attempts }
        }
        Err(error) => panic!("{}: {error} lists no attempts", path.display()),
    }
}

#[test]
fn inspection_and_loading_agree_on_every_golden_case() {
    for name in golden::names() {
        let path = golden::path(&name);
        let verdict = loaded(&path, None);
        assert!(matches!(verdict, Verdict::Runs { .. }), "{name}: {verdict:?}");
        assert_eq!(inspected(&path, None), verdict, "{name}");
    }
}

#[test]
fn inspection_and_loading_agree_on_quantized_models_and_adapters() {
    let entries = |dir: &Path| -> Vec<PathBuf> {
        fs::read_dir(dir)
            .expect("a directory")
            .flatten()
            .map(|entry| entry.path())
            .filter(|path| path.is_dir())
            .collect()
    };
    let mut run = BTreeSet::new();
    for path in entries(&golden::quantized("")) {
        // An adapter and its base model share a directory.
        for path in std::iter::once(path.clone()).chain(entries(&path)) {
            let verdict = loaded(&path, None);
            assert_eq!(inspected(&path, None), verdict, "{}", path.display());
            run.extend(matches!(verdict, Verdict::Runs { .. }).then_some(path));
        }
    }
    assert!(run.len() > 25, "{run:?}");
}

/// Paths that are not plain models. The directories live as long as this.
#[derive(Default)]
struct OddPaths {
    directories: Vec<TempDir>,
    /// Name, path, assumed family.
    paths: Vec<(&'static str, PathBuf, Option<&'static str>)>,
}

impl OddPaths {
    fn add(&mut self, name: &'static str, directory: TempDir) -> PathBuf {
        self.add_file(name, directory, "", None)
    }

    fn add_file(
        &mut self,
        name: &'static str,
        directory: TempDir,
        file: &str,
        assume: Option<&'static str>,
    ) -> PathBuf {
        let path = if file.is_empty() { directory.path().to_owned() } else { directory.path().join(file) };
        self.paths.push((name, path.clone(), assume));
        self.directories.push(directory);
        path
    }

    fn add_files(&mut self, name: &'static str, files: &[(&str, &[u8])]) {
        self.add(name, dir_with(files));
    }

    /// Adds a copy of the golden Llama in which one file has other contents.
    fn add_llama(&mut self, name: &'static str, file: &str, contents: &[u8]) {
        let directory = copy("llama");
        fs::write(directory.path().join(file), contents).expect("written");
        self.add(name, directory);
    }

    fn add_weights(&mut self, name: &'static str, change: impl FnOnce(&mut Tensors)) {
        self.add(name, changed("llama", |_| {}, change));
    }
}

const LFS_POINTER: &[u8] = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12345\n";
const NORM: &str = "model.norm.weight";

fn odd_paths() -> OddPaths {
    let mut odd = OddPaths::default();
    add_configurations(&mut odd);
    add_weights(&mut odd);
    add_text_parts(&mut odd);
    add_files(&mut odd);
    add_kinds(&mut odd);
    odd
}

/// Missing, damaged and unknown configurations.
fn add_configurations(odd: &mut OddPaths) {
    odd.add_files("empty", &[]);
    odd.add_files("notes only", &[("notes.txt", b"x")]);
    odd.add_files("model in a subdirectory", &[("inner/config.json", b"{}")]);
    odd.add_files("config.json is a directory", &[("config.json/x", b"")]);
    odd.add_llama("truncated configuration", "config.json", b"{");
    odd.add_llama("configuration is a list", "config.json", b"[1]");
    odd.add_llama("configuration is no UTF-8", "config.json", b"{\"model_type\": \"\xff\"}");
    odd.add_llama("configuration is empty", "config.json", b"{}");
    odd.add_llama("configuration is an LFS pointer", "config.json", LFS_POINTER);
    odd.add_llama("configuration is too long", "config.json", &vec![b' '; 33 << 20]);
    odd.add_llama("duplicate key", "config.json", br#"{"model_type": "llama", "model_type": "gpt2"}"#);
    odd.add_llama("no sizes", "config.json", br#"{"model_type": "llama"}"#);
    odd.add("huge size", with_config("llama", |config| config["hidden_size"] = json!(u64::MAX)));
    odd.add("unknown activation", with_config("llama", |config| config["hidden_act"] = json!("acme")));
    odd.add("unknown type", with_config("llama", |config| config["model_type"] = json!("acme_llm")));
    let unknown = || with_config("llama", |config| config["model_type"] = json!("acme_llm"));
    odd.add_file("assumed", unknown(), "", Some("llama"));
    odd.add_file("assumed, but does not fit", unknown(), "", Some("gpt2"));
    odd.add_file("assumed against its own type", copy("llama"), "", Some("gpt2"));
    odd.add_file("assumed as its own type", copy("llama"), "", Some("llama"));
    odd.add("mapped type", with_config("qwen3", |config| config["model_type"] = json!("agent_cpm")));
    odd.add("mapped type, but does not fit", with_config("gpt2", |config| config["model_type"] = json!("agent_cpm")));
    odd.add("wrong class", with_config("llama", |config| config["architectures"] = json!(["SiglipModel"])));
    odd.add_files("unknown type without weights", &[("config.json", br#"{"model_type": "acme_llm"}"#)]);
    let custom = unknown();
    fs::write(custom.path().join("modeling_acme.py"), "raise SystemExit").expect("written");
    odd.add("unknown type with code", custom);
    odd.add_files("class without a type", &[("config.json", br#"{"architectures": ["LlamaForCausalLM"]}"#)]);
    odd.add_files(
        "vision encoder",
        &[("config.json", br#"{"model_type": "siglip", "architectures": ["SiglipModel"]}"#)],
    );
    odd.add_files("audio encoder", &[("config.json", br#"{"model_type": "wav2vec2"}"#)]);
    odd.add("encoder", with_config("bert", |config| config["is_decoder"] = json!(false)));
    odd.add(
        "unsupported quantization",
        with_config("llama", |config| config["quantization_config"] = json!({"quant_method": "hqq"})),
    );
    odd.add(
        "quantized, but the weights are not",
        with_config("llama", |config| config["quantization_config"] = json!({"quant_method": "gptq", "bits": 4})),
    );
}

/// Missing, damaged and wrong weights.
fn add_weights(odd: &mut OddPaths) {
    odd.add_weights("missing tensor", |tensors| drop(tensors.remove(NORM)));
    odd.add_weights("surplus tensor", |tensors| {
        let norm = tensors[NORM].clone();
        tensors.insert("model.layers.0.surplus.weight".into(), norm);
    });
    odd.add_weights("wrong shape", |tensors| {
        drop(tensors.insert(NORM.into(), (Dtype::F32, vec![3], vec![0; 12])));
    });
    odd.add_weights("integer norm", |tensors| {
        let shape = tensors[NORM].1.clone();
        drop(tensors.insert(NORM.into(), (Dtype::I32, shape.clone(), vec![0; 4 * shape[0]])));
    });
    odd.add("renamed tensors", temp_models::renamed("llama", |name| format!("module.{name}")));
    odd.add_llama("weights are an LFS pointer", "model.safetensors", LFS_POINTER);
    odd.add_llama("weights are empty", "model.safetensors", b"");
    odd.add_llama("weights are text", "model.safetensors", b"hello, these are no weights at all");
    for (name, file) in [("torch file that runs code", "pytorch_model.bin"), ("bare pickle", "consolidated.00.pth")] {
        let directory = copy("llama");
        fs::remove_file(directory.path().join("model.safetensors")).expect("removed");
        fs::write(directory.path().join(file), b"\x80\x02cos\nsystem\n").expect("written");
        odd.add(name, directory);
    }
    let directory = copy("llama");
    fs::remove_file(directory.path().join("model.safetensors")).expect("removed");
    fs::write(directory.path().join("model.safetensors.index.json"), LFS_POINTER).expect("written");
    odd.add("index is an LFS pointer", directory);
    let directory = copy("llama-sharded");
    fs::remove_file(directory.path().join("model-00002-of-00004.safetensors")).expect("removed");
    odd.add("missing shard", directory);
}

/// Damaged and wrong tokenizers and chat templates.
fn add_text_parts(odd: &mut OddPaths) {
    let builtin = Path::new(env!("CARGO_MANIFEST_DIR")).join("builtin");
    let with = |file: &str, contents: &[u8]| {
        let directory = tempfile::tempdir().expect("a directory");
        for file in ["config.json", "model.safetensors", "tokenizer.json"] {
            fs::copy(builtin.join(file), directory.path().join(file)).expect("copied");
        }
        fs::write(directory.path().join(file), contents).expect("written");
        directory
    };
    odd.add("plain tokenizer", with("notes.txt", b""));
    odd.add("truncated tokenizer", with("tokenizer.json", b"{\"model\": "));
    odd.add("tokenizer without a model", with("tokenizer.json", b"{}"));
    odd.add("tokenizer is an LFS pointer", with("tokenizer.json", LFS_POINTER));
    odd.add("broken tokenizer settings", with("tokenizer_config.json", b"{"));
    odd.add("broken chat template", with("chat_template.jinja", b"{% for %}"));
    let tokenizer = fs::read(builtin.join("tokenizer.json")).expect("a tokenizer");
    // The golden Llama has fewer rows than the built-in vocabulary has tokens.
    odd.add_llama("tokenizer of another model", "tokenizer.json", &tokenizer);
    let directory = with("tokenizer_config.json", b"{");
    fs::remove_file(directory.path().join("model.safetensors")).expect("removed");
    odd.add("broken settings and no weights", directory);
}

/// GGUF files with and without their extension, and files of other kinds.
fn add_files(odd: &mut OddPaths) {
    let llama = gguf_files::llama(1, 0);
    for (name, file) in [("GGUF", "m.gguf"), ("GGUF without an extension", "blob"), ("GGUF as .bin", "m.bin")] {
        odd.add_file(name, dir_with(&[(file, &llama)]), file, None);
    }
    odd.add_files("directory with one GGUF", &[("m.gguf", &llama), ("README.md", b"x")]);
    odd.add_files("directory with one GGUF without an extension", &[("blob", &llama)]);
    odd.add_files("directory with two GGUFs", &[("a.gguf", &llama), ("b.gguf", &llama)]);
    odd.add_files("directory with an LFS pointer named .gguf", &[("a.gguf", LFS_POINTER)]);
    odd.add_files("directory with a truncated GGUF", &[("a.gguf", &llama[..100])]);
    odd.add_file("GGUF of a native model, assumed", dir_with(&[("m", &llama)]), "m", Some("gpt2"));
    odd.add_file("truncated GGUF", dir_with(&[("m.gguf", &llama[..200])]), "m.gguf", None);
    odd.add_file("GGUF without a tensor", dir_with(&[("m", &gguf_files::llama(1, 1))]), "m", None);
    odd.add_file("GGUF that claims too many layers", dir_with(&[("m", &gguf_files::llama(u32::MAX, 0))]), "m", None);
    for architecture in ["acme", "controlvector", "clip", "bert"] {
        let file = gguf_files::with_architecture(architecture, 1, 0);
        odd.add_file("GGUF that is no Llama", dir_with(&[("m.gguf", &file)]), "m.gguf", None);
        odd.add_files("directory with a GGUF that is no Llama", &[("m", &file)]);
    }
    odd.add_file("text named .gguf", dir_with(&[("m.gguf", b"hello")]), "m.gguf", None);
    odd.add_file("LFS pointer named .gguf", dir_with(&[("m.gguf", LFS_POINTER)]), "m.gguf", None);
    odd.add_file("empty file", dir_with(&[("m.gguf", b"")]), "m.gguf", None);
    odd.add_file("text file", dir_with(&[("notes.txt", b"hello")]), "notes.txt", None);
    odd.add_file("weight file of a directory", copy("llama"), "model.safetensors", None);
    odd.add_file("configuration of a directory", copy("llama"), "config.json", None);
}

/// Adapters, autoencoders and pipelines.
fn add_kinds(odd: &mut OddPaths) {
    let settings = |base: &str| {
        json!({"peft_type": "LORA", "r": 2, "lora_alpha": 4, "base_model_name_or_path": base,
               "target_modules": ["q_proj"]})
        .to_string()
    };
    let factor = |shape: [usize; 2]| (Dtype::F32, shape.to_vec(), vec![0; 4 * shape[0] * shape[1]]);
    let adapter = |base: &Path, module: &str| {
        let directory = dir_with(&[("adapter_config.json", settings(&base.to_string_lossy()).as_bytes())]);
        let module = format!("base_model.model.model.layers.0.self_attn.{module}");
        let factors = [
            (format!("{module}.lora_A.weight"), factor([2, 32])),
            (format!("{module}.lora_B.weight"), factor([32, 2])),
        ];
        temp_models::write(&directory.path().join("adapter_model.safetensors"), &factors.into_iter().collect());
        directory
    };
    let llama = golden::path("llama");
    odd.add("adapter", adapter(&llama, "q_proj"));
    odd.add("adapter for a missing module", adapter(&llama, "x_proj"));
    odd.add("adapter for a missing model", adapter(Path::new("no/such/model"), "q_proj"));
    odd.add(
        "adapter without weights",
        dir_with(&[("adapter_config.json", settings(&llama.to_string_lossy()).as_bytes())]),
    );
    odd.add_files("adapter with damaged settings", &[("adapter_config.json", b"{")]);
    odd.add_files("adapter that names no model", &[("adapter_config.json", b"{}")]);
    let beside = adapter(&llama, "q_proj");
    fs::copy(llama.join("config.json"), beside.path().join("config.json")).expect("copied");
    odd.add("adapter with its base model's configuration", beside);
    let pipeline = adapter(&llama, "q_proj");
    fs::write(pipeline.path().join("model_index.json"), "{}").expect("written");
    odd.add("adapter that looks like a pipeline", pipeline);
    let broken = odd.add("base without a norm", changed("llama", |_| {}, |tensors| drop(tensors.remove(NORM))));
    odd.add("adapter for a damaged model", adapter(&broken, "q_proj"));
    let gguf = odd.add_file("base", dir_with(&[("base", &gguf_files::llama(1, 0))]), "base", None);
    odd.add("adapter for a GGUF file", adapter(&gguf, "q_proj"));
    odd.add("adapter for an adapter", adapter(&golden::quantized("lora/adapter"), "q_proj"));

    odd.add_files("Gemma Scope", &[("layer_1/width_16k/average_l0_10/params.npz", b"PK")]);
    odd.add_files("SAELens", &[("cfg.json", b"{}"), ("sae_weights.safetensors", b"")]);
    odd.add_files("Gemma Scope 2", &[("resid_post/layer_0/config.json", br#"{"model_name": "google/gemma-3-1b"}"#)]);
    odd.add_files("SAE with a configuration", &[("config.json", br#"{"trainer": {}}"#), ("ae.pt", b"PK")]);
    odd.add_files("pipeline", &[("model_index.json", br#"{"_class_name": "FluxPipeline"}"#)]);
    odd.add_files("part of a pipeline", &[("config.json", br#"{"_diffusers_version": "0.30.0"}"#)]);
    // The folder is named like one of autoencoders, but the model loads.
    let model = copy("llama");
    fs::create_dir(model.path().join("resid_post")).expect("created");
    odd.add("model with a folder named after a site", model);
}

#[test]
fn inspection_and_loading_agree_on_odd_paths() {
    let odd = odd_paths();
    let (mut errors, mut run) = (BTreeSet::new(), Vec::new());
    for (name, path, assume) in &odd.paths {
        let verdict = loaded(path, *assume);
        assert_eq!(inspected(path, *assume), verdict, "{name}");
        match verdict {
            Verdict::Runs { .. } => run.push(*name),
            // The same error may name different directories.
            Verdict::Refused { error, .. } => drop(errors.insert(error.replace(&*path.to_string_lossy(), ""))),
        }
    }
    // The paths are as odd as they are meant to be.
    assert_eq!(
        run,
        [
            "assumed",
            "assumed as its own type",
            "mapped type",
            "wrong class",
            "quantized, but the weights are not",
            "renamed tensors",
            "plain tokenizer",
            "broken chat template",
            "GGUF",
            "GGUF without an extension",
            "GGUF as .bin",
            "directory with one GGUF",
            "directory with one GGUF without an extension",
            "adapter",
            "adapter with its base model's configuration",
            "adapter that looks like a pipeline",
            "base",
            "adapter for a GGUF file",
            "model with a folder named after a site"
        ]
    );
    assert!(errors.len() > 40, "{} different errors: {errors:#?}", errors.len());
}

#[test]
fn verdicts_of_different_models_differ() {
    let (model, broken) = (copy("llama"), changed("llama", |_| {}, |tensors| drop(tensors.remove(NORM))));
    let unknown = with_config("llama", |config| config["model_type"] = json!("acme_llm"));
    let mapped = with_config("qwen3", |config| config["model_type"] = json!("agent_cpm"));
    let paths = [model.path(), broken.path(), unknown.path(), mapped.path()];
    for (at, path) in paths.iter().enumerate() {
        for (other, other_path) in paths.iter().enumerate() {
            assert_eq!(inspected(path, None) == loaded(other_path, None), at == other, "{at} and {other}");
        }
    }
    assert_ne!(inspected(unknown.path(), Some("llama")), loaded(unknown.path(), None));
}

#[test]
fn a_missing_path_has_the_same_error() {
    let path = Path::new("/no/such/place");
    let inspected = inspect_as(path, None).expect_err("missing").to_string();
    let error = LoadedModel::open(path, &LoadOptions::default(), &mut |_| {}).map(drop).expect_err("missing");
    assert_eq!(inspected, error.cause().to_string());
}
