//! An attached adapter gives the results of the merged one.

use super::{adapter_for, llama_with_two, logits, open, relative, run, write_adapter};
use crate::gguf_files;
use golden::temp_models::{Tensors, read};
use pellucid_engine::{Plan, RowAdapters};
use pellucid_models::LoadedModel;
use safetensors::Dtype;
use serde_json::Value;
use std::path::Path;

/// Rounding of f32, relative to the largest logit.
const ROUNDING: f32 = 2e-5;

#[test]
fn attached_adapters_of_peft_give_the_logits_of_peft() {
    for name in ["lora", "lora-gpt2"] {
        let case = golden::quantized(name);
        let reference = golden::tensors(&case.join("reference.safetensors"));
        let ids: Vec<u32> = reference["ids"].1.iter().map(|&id| id as u32).collect();
        let mut loaded = open(&case.join("base"), &[]).expect("a model");
        let before = logits(&loaded, &ids, RowAdapters::default());
        let record = loaded.attach_adapter("one", &case.join("adapter")).expect("an adapter");
        assert_eq!((record.rank, record.base.as_deref()), (4, Some("../base")));
        let ours = logits(&loaded, &ids, "one".into());
        let off = golden::difference(ours.values(), &reference["logits"].1);
        assert!(off <= 1e-4, "{name}: off by {off}");
        let merged = open(&case.join("base"), &[&case.join("adapter")]).expect("a model");
        let merged = logits(&merged, &ids, RowAdapters::default());
        assert!(relative(ours.values(), merged.values()) < ROUNDING, "{name}");
        assert!(relative(before.values(), merged.values()) > 0.01, "{name}: the adapter changes nothing");
        assert_eq!(logits(&loaded, &ids, RowAdapters::default()), before, "{name}: the base has changed");
    }
}

/// PEFT's switches: rsLoRA, `rank_pattern`, `alpha_pattern` and trained biases. The case's
/// embedding and head, which only a merge can change, are left out.
#[test]
fn scales_patterns_and_trained_biases_are_applied() {
    let case = golden::quantized("lora-switches");
    let mut tensors = read(&case.join("adapter/adapter_model.safetensors"));
    tensors.retain(|name, _| !name.contains("embed_tokens") && !name.contains("lm_head"));
    assert!(tensors.keys().any(|name| name.ends_with(".bias")), "{:?}", tensors.keys());
    let adapter = write_adapter(4, &tensors);
    std::fs::copy(case.join("adapter/adapter_config.json"), adapter.path().join("adapter_config.json"))
        .expect("copied");
    let (mut loaded, merged) = (open(&case.join("base"), &[]), open(&case.join("base"), &[adapter.path()]));
    let (loaded, merged) = (loaded.as_mut().expect("a model"), merged.expect("a model"));
    loaded.attach_adapter("one", adapter.path()).expect("an adapter");
    let ids = [3, 1, 4, 1, 5, 9];
    let (ours, merged) = (logits(loaded, &ids, "one".into()), logits(&merged, &ids, RowAdapters::default()));
    assert!(relative(ours.values(), merged.values()) < ROUNDING);
    // Control: without its biases the adapter gives other logits.
    tensors.retain(|name, _| !name.ends_with(".bias"));
    let without = write_adapter(4, &tensors);
    std::fs::copy(case.join("adapter/adapter_config.json"), without.path().join("adapter_config.json"))
        .expect("copied");
    loaded.attach_adapter("without biases", without.path()).expect("an adapter");
    assert!(relative(logits(loaded, &ids, "without biases".into()).values(), merged.values()) > 1e-3);
}

#[test]
fn an_attached_adapter_equals_the_merged_one_in_every_family() {
    let (mut same, mut refused) = (0, Vec::new());
    for name in golden::one_per_type() {
        let path = golden::path(&name);
        if !path.join("model.safetensors").is_file() {
            continue;
        }
        let adapter = adapter_for(&path, 5, |_| true);
        // Names of some families' projections are not in the list of this test.
        let Ok(merged) = open(&path, &[adapter.path()]) else { continue };
        let case = golden::case(&name);
        let mut loaded = case.loaded.clone();
        if let Err(error) = loaded.attach_adapter("one", adapter.path()) {
            assert!(error.to_string().contains("cannot be applied without merging"), "{name}: {error}");
            refused.push(format!("{name}: {error}"));
            continue;
        }
        let (plan, rows) = (Plan::capture(["layers.*.resid_post", "logits"]), std::slice::from_ref(&case.ids));
        let (ours, truth) =
            (run(&loaded, rows, &plan, "one".into()), run(&merged, rows, &plan, RowAdapters::default()));
        let before = run(&case.loaded, rows, &plan, RowAdapters::default());
        let mut changes = 0.0f32;
        for ((ours, truth), before) in ours.captures.iter().zip(&truth.captures).zip(&before.captures) {
            let off = relative(ours.array.values(), truth.array.values());
            assert!(off < 5.0 * ROUNDING, "{name}: {} is off by {off}", ours.site);
            changes = changes.max(relative(before.array.values(), truth.array.values()));
        }
        // Families without any of the listed projections have an empty adapter.
        if loaded.adapters()[0].projections > 0 {
            assert!(changes > 1e-3, "{name}: the adapter changes nothing");
            same += 1;
        }
    }
    assert!(same >= 60, "only {same} families were compared; refused: {refused:#?}");
    assert!(refused.len() <= 6, "{refused:#?}");
}

/// An adapter of rank 2 for the head of the golden Llama, with its factors A and B.
fn head_adapter() -> (tempfile::TempDir, Vec<f32>, Vec<f32>) {
    let config = std::fs::read(golden::path("llama").join("config.json")).expect("a config");
    let config: Value = serde_json::from_slice(&config).expect("JSON");
    let size = |key: &str| config[key].as_u64().expect("a size") as usize;
    let mut tensors = Tensors::new();
    let [a, b] = [("A", [2, size("hidden_size")]), ("B", [size("vocab_size"), 2])].map(|(factor, shape)| {
        let floats: Vec<f32> = golden::weights::standard(3, factor).take(shape[0] * shape[1]).collect();
        let bytes = floats.iter().flat_map(|x| x.to_le_bytes()).collect();
        tensors.insert(format!("base_model.model.lm_head.lora_{factor}.weight"), (Dtype::F32, shape.to_vec(), bytes));
        floats
    });
    (write_adapter(2, &tensors), a, b)
}

/// The head's name has no prefix, so every prefix of the family gives the same name.
#[test]
fn an_update_of_the_head_is_merged_and_attached_once() {
    let path = golden::path("llama");
    let (adapter, a, b) = head_adapter();
    let (mut loaded, merged) = (open(&path, &[]).expect("a model"), open(&path, &[adapter.path()]).expect("a model"));
    loaded.attach_adapter("head", adapter.path()).expect("an adapter");
    let (plan, rows) = (Plan::capture(["final_norm", "logits"]), [vec![1, 2, 3]]);
    let plain = run(&loaded, &rows, &plan, RowAdapters::default());
    let (x, logits) = (plain.captures[0].array.values(), plain.captures[1].array.values());
    let (width, vocab) = (a.len() / 2, b.len() / 2);
    // lora_alpha / r is 2.
    let expected = logits.iter().enumerate().map(|(index, y)| {
        let (x, b) = (&x[index / vocab * width..][..width], &b[index % vocab * 2..][..2]);
        let inner = |rank: usize| x.iter().zip(&a[rank * width..]).map(|(x, a)| x * a).sum::<f32>();
        y + 2.0 * (inner(0) * b[0] + inner(1) * b[1])
    });
    let expected: Vec<f32> = expected.collect();
    let attached = run(&loaded, &rows, &plan, "head".into());
    let merged = run(&merged, &rows, &plan, RowAdapters::default());
    for run in [attached, merged] {
        assert!(relative(run.captures[1].array.values(), &expected) < ROUNDING);
    }
    assert!(relative(logits, &expected) > 0.01, "the adapter changes nothing");
}

/// A tied head has no weight of its own: an adapter of the head changes the logits, and the
/// embedding stays.
#[test]
fn an_adapter_of_a_tied_head_leaves_the_embedding() {
    let (adapter, ..) = head_adapter();
    let tied = golden::temp_models::changed(
        "llama",
        |config| config["tie_word_embeddings"] = true.into(),
        |tensors| drop(tensors.remove("lm_head.weight")),
    );
    let mut loaded = open(tied.path(), &[]).expect("a model");
    loaded.attach_adapter("head", adapter.path()).expect("an adapter");
    let merged = open(tied.path(), &[adapter.path()]).expect("a model");
    let (plan, rows) = (Plan::capture(["embed", "logits"]), [vec![1, 2, 3]]);
    let (ours, truth) = (run(&loaded, &rows, &plan, "head".into()), run(&merged, &rows, &plan, RowAdapters::default()));
    assert_eq!(ours.captures[0].array, truth.captures[0].array);
    assert!(relative(ours.captures[1].array.values(), truth.captures[1].array.values()) < ROUNDING);
}

/// The point of unmerged adapters: the base stays quantized.
#[test]
fn quantized_weights_stay_quantized() {
    let dir = tempfile::tempdir().expect("a directory");
    let gguf = dir.path().join("model.gguf");
    std::fs::write(&gguf, random_gguf()).expect("written");
    let factors = |width: usize, heads: usize| {
        let mut tensors = Tensors::new();
        for module in ["self_attn.q_proj", "self_attn.o_proj"] {
            let (inputs, outputs) = if module.ends_with("q_proj") { (width, heads) } else { (heads, width) };
            for (factor, shape) in [("A", [2, inputs]), ("B", [outputs, 2])] {
                let name = format!("base_model.model.model.layers.0.{module}.lora_{factor}.weight");
                let floats = golden::weights::standard(4, &name).take(shape[0] * shape[1]);
                let bytes = floats.flat_map(|x| (0.3 * x).to_le_bytes()).collect();
                tensors.insert(name, (Dtype::F32, shape.to_vec(), bytes));
            }
        }
        write_adapter(2, &tensors)
    };
    let gptq = golden::quantized("gptq-4");
    let config: Value =
        serde_json::from_slice(&std::fs::read(gptq.join("config.json")).expect("a config")).expect("JSON");
    let heads = config["num_attention_heads"].as_u64().expect("heads") as usize;
    let outputs = config["head_dim"].as_u64().map_or(64, |dim| dim as usize * heads);
    for (path, adapter) in [(gptq.as_path(), factors(64, outputs)), (gguf.as_path(), factors(32, 32))] {
        compare_quantized(path, adapter.path());
    }
}

fn compare_quantized(path: &Path, adapter: &Path) {
    let mut loaded: LoadedModel = open(path, &[]).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let formats = loaded.model.weights().formats();
    assert!(formats.iter().any(|(format, _)| !format.starts_with('f') && format != "bf16"), "{formats:?}");
    loaded.attach_adapter("one", adapter).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    assert_eq!(loaded.model.weights().formats(), formats);
    let merged = open(path, &[adapter]).expect("a model");
    assert_ne!(merged.model.weights().formats(), formats, "a merged weight is stored in f32");
    let ids = [1, 2, 3, 1];
    let (ours, truth) = (logits(&loaded, &ids, "one".into()), logits(&merged, &ids, RowAdapters::default()));
    let off = relative(ours.values(), truth.values());
    assert!(off < ROUNDING, "{}: off by {off}", path.display());
    let plain = logits(&loaded, &ids, RowAdapters::default());
    assert!(relative(plain.values(), truth.values()) > 1e-3, "{}: the adapter changes nothing", path.display());
}

/// The tiny GGUF file with random blocks of Q8_0 and norms of ones.
fn random_gguf() -> Vec<u8> {
    let mut file = gguf_files::llama(1, 0);
    // Rows of 32 elements: the embedding's, then those of each matrix; norms are 32 floats.
    let sizes = [Some(4), None, Some(32), Some(16), Some(16), Some(32), Some(32), Some(32), Some(32), None, None];
    let bytes = |size: Option<usize>| size.map_or(128, |rows: usize| rows * 34).next_multiple_of(32);
    let mut at = file.len() - sizes.into_iter().map(bytes).sum::<usize>();
    let mut codes = golden::weights::standard(9, "codes").map(|x| (x * 40.0).clamp(-127.0, 127.0) as i8 as u8);
    for size in sizes {
        match size {
            None => file[at..at + 128].as_chunks_mut().0.iter_mut().for_each(|x| *x = 1.0f32.to_le_bytes()),
            Some(rows) => {
                for block in file[at..at + rows * 34].chunks_exact_mut(34) {
                    // A scale of 2^-7 as f16.
                    block[..2].copy_from_slice(&0x2000u16.to_le_bytes());
                    block[2..].fill_with(|| codes.next().unwrap_or_default());
                }
            }
        }
        at += bytes(size);
    }
    file
}

#[test]
fn explanations_count_attached_adapters() {
    let loaded = llama_with_two();
    let bytes: usize = loaded.adapters().iter().map(|adapter| adapter.bytes).sum();
    assert!(bytes > 0);
    let plan = Plan::capture(["logits"]);
    let explain = |model: &pellucid_engine::Model| plan.explain(model, &[4]).expect("an explanation");
    let bare = loaded.model.detach_adapter("a").and_then(|model| model.detach_adapter("b")).expect("a model");
    let (with, without) = (explain(&loaded.model), explain(&bare));
    assert_eq!(with.peak_bytes, without.peak_bytes + bytes);
    assert_eq!(with.flops, without.flops, "no row uses an adapter");
    let used = explain(&loaded.model.with_adapter(Some("a")).expect("a model"));
    assert!(used.flops > without.flops && used.weight_bytes > without.weight_bytes);
}
