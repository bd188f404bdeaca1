//! Adapters and calls that cannot work are refused with the reason and a remedy.

use super::{adapter_for, llama_with_two, logits, open, write_adapter};
use golden::temp_models::{Tensors, read};
use pellucid_engine::plan::Expr;
use pellucid_engine::{Plan, Remedy, RowAdapters, RunOptions, Tap};
use safetensors::Dtype;
use std::path::Path;

/// The error of attaching the adapter of a golden case to its base.
fn refused(case: &str, parts: &[&str]) {
    let case = golden::quantized(case);
    let mut loaded = open(&case.join("base"), &[]).expect("a model");
    let error = loaded.attach_adapter("one", &case.join("adapter")).expect_err("it cannot be applied unmerged");
    parts.iter().for_each(|part| assert!(error.to_string().contains(part), "{error} does not contain {part}"));
    let directory = case.join("adapter").display().to_string();
    assert_eq!(error.remedy(), Some(&Remedy::MergeAdapter { adapter: directory }), "{error}");
    assert!(loaded.adapters().is_empty() && loaded.model.adapters().is_empty());
}

#[test]
fn what_only_a_merge_can_apply_is_refused_with_the_reason() {
    refused("dora", &["cannot be applied without merging", "DoRA", "gate_proj"]);
    refused("lora-tied", &["`model.embed_tokens` is an embedding"]);
    // It has an embedding and a fully trained head.
    refused("lora-switches", &["cannot be applied without merging"]);
    let case = golden::quantized("lora-switches");
    let mut tensors = read(&case.join("adapter/adapter_model.safetensors"));
    tensors.retain(|name, _| name.contains("lm_head"));
    let adapter = write_adapter(4, &tensors);
    let error = open(&case.join("base"), &[]).expect("a model").attach_adapter("one", adapter.path());
    assert!(error.expect_err("refused").to_string().contains("lm_head.weight is fully trained"));
}

#[test]
fn experts_are_refused_by_name() {
    let path = golden::path("mixtral");
    let mut tensors = Tensors::new();
    for (name, (_, shape, _)) in read(&path.join("model.safetensors")) {
        let Some(module) = name.strip_suffix(".weight").filter(|module| module.contains("experts.0.w1")) else {
            continue;
        };
        for (factor, shape) in [("A", [1, shape[1]]), ("B", [shape[0], 1])] {
            let bytes = 0.5f32.to_le_bytes().repeat(shape[0] * shape[1]);
            tensors
                .insert(format!("base_model.model.{module}.lora_{factor}.weight"), (Dtype::F32, shape.to_vec(), bytes));
        }
    }
    assert!(!tensors.is_empty(), "the case has experts stored one by one");
    let adapter = write_adapter(1, &tensors);
    let mut loaded = open(&path, &[]).expect("a model");
    let error = loaded.attach_adapter("one", adapter.path()).expect_err("refused").to_string();
    assert!(error.contains("belongs to the experts of a layer"), "{error}");
}

#[test]
fn files_that_do_not_fit_are_refused() {
    let path = golden::path("llama");
    let mut loaded = open(&path, &[]).expect("a model");
    let mut attach = |directory: &Path| loaded.attach_adapter("one", directory).expect_err("refused").to_string();
    let other = golden::quantized("lora/adapter");
    assert!(attach(&other).contains("where the model expects"), "{}", attach(&other));
    assert!(attach(&path).contains("there is no adapter_config.json here"));
    assert!(attach(Path::new("no/such/directory")).contains("there is no adapter_config.json here"));
    let changed = |change: &dyn Fn(&mut Tensors)| {
        let adapter = adapter_for(&path, 1, |module| module.contains("layers.0.self_attn.q_proj"));
        let file = adapter.path().join("adapter_model.safetensors");
        let mut tensors = read(&file);
        change(&mut tensors);
        golden::temp_models::write(&file, &tensors);
        adapter
    };
    let q = "base_model.model.model.layers.0.self_attn.q_proj";
    let nan = changed(&|t| {
        t.get_mut(&format!("{q}.lora_A.weight")).expect("A").2[..4].copy_from_slice(&f32::NAN.to_le_bytes())
    });
    assert!(attach(nan.path()).contains("lora_A.weight has a non-finite element"));
    let missing = changed(&|t| drop(t.remove(&format!("{q}.lora_B.weight"))));
    assert!(attach(missing.path()).contains("has no factor B"));
    let stray = changed(&|t| {
        let tensor = t[&format!("{q}.lora_A.weight")].clone();
        t.insert("base_model.model.model.layers.9.mlp.up_proj.lora_A.weight".into(), tensor.clone());
        t.insert("base_model.model.model.layers.9.mlp.up_proj.lora_B.weight".into(), tensor);
    });
    assert!(attach(stray.path()).contains("layers.9.mlp.up_proj.lora_A.weight belongs to no weight of this model"));
}

#[test]
fn unknown_and_duplicate_names_are_refused() {
    let path = golden::path("llama");
    let adapter = adapter_for(&path, 1, |_| true);
    let mut loaded = open(&path, &[]).expect("a model");
    let options = |adapters: RowAdapters| RunOptions { adapters, ..RunOptions::default() };
    let run = |loaded: &pellucid_models::LoadedModel, adapters: RowAdapters| {
        loaded.model.run(&[vec![1, 2], vec![3]], &Plan::capture(["logits"]), &options(adapters)).expect_err("refused")
    };
    let error = run(&loaded, "one".into());
    assert_eq!(error.remedy(), Some(&Remedy::AttachAdapter), "{error}");
    loaded.attach_adapter("one", adapter.path()).expect("an adapter");
    let error = run(&loaded, "two".into());
    assert!(error.to_string().contains("no adapter named `two` is attached"), "{error}");
    assert!(error.remedy().is_some_and(|remedy| remedy.to_string().contains("`one`")), "{error}");
    let error = run(&loaded, RowAdapters::Each(vec![None; 3])).to_string();
    assert!(error.contains("3 adapters for 2 rows"), "{error}");
    let error = loaded.attach_adapter("one", adapter.path()).expect_err("refused").to_string();
    assert!(error.contains("already attached"), "{error}");
    assert!(loaded.attach_adapter("", adapter.path()).expect_err("refused").to_string().contains("name is empty"));
    assert!(loaded.model.with_adapter(Some("two")).is_err() && loaded.detach_adapter("two").is_err());
    // Detached, the name is free and the model is as before.
    let before = logits(&loaded, &[1, 2, 3], RowAdapters::default());
    loaded.model = loaded.model.with_adapter(Some("one")).expect("a model");
    assert_ne!(logits(&loaded, &[1, 2, 3], RowAdapters::default()), before);
    loaded.detach_adapter("one").expect("it is attached");
    assert_eq!(logits(&loaded, &[1, 2, 3], RowAdapters::default()), before);
    assert!(loaded.adapters().is_empty() && run(&loaded, "one".into()).to_string().contains("no adapter"));
}

/// `unembed` in a plan runs the head on vectors, which belong to no row.
#[test]
fn values_that_run_adapted_ops_need_the_default_adapter() {
    let loaded = llama_with_two();
    let mut plan = Plan::default();
    let stream = plan.read(Tap::read("layers.0.resid_post").last());
    let lens = plan.value(Expr::Unembed(stream));
    plan.save_value(lens);
    let rows = [vec![1, 5, 9]];
    let error = loaded.model.run(&rows, &plan, &RunOptions { adapters: "a".into(), ..RunOptions::default() });
    let error = error.expect_err("the adapter changes the head").to_string();
    assert!(error.contains("`unembed`"), "{error}");
    let model = loaded.model.with_adapter(Some("a")).expect("a model");
    let run = model.run(&rows, &plan, &RunOptions::default()).expect("a run");
    let stream = model.run(&rows, &Plan::of([Tap::capture("layers.0.resid_post").last()]), &RunOptions::default());
    let stream = stream.expect("a run").captures.remove(0).array;
    assert_eq!(run.value(lens, 0).expect("logits").values(), model.unembed(stream.values()).expect("logits"));
    assert_ne!(model.unembed(stream.values()).expect("logits"), loaded.model.unembed(stream.values()).expect("logits"));
}
