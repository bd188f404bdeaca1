//! Quantized checkpoints and adapters give the logits that transformers computes from their
//! dequantized and merged weights (tests/golden/quantized.py), and errors name the faulty tensor.

use golden::difference;
use pellucid_engine::{Plan, Remedy, RunOptions};
use pellucid_kernels::DType;
use pellucid_models::checkpoint::Checkpoint;
use pellucid_models::config::Config;
use pellucid_models::inspect::Support;
use pellucid_models::tensors::Tensors;
use pellucid_models::{Error, LoadOptions, LoadedModel, Storage, families, inspect};
use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

fn directory() -> PathBuf {
    golden::quantized("")
}

/// Directories of the cases with an adapter, or of the quantized models.
fn cases(adapters: bool) -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> =
        std::fs::read_dir(directory()).expect("cases").map(|entry| entry.expect("an entry").path()).collect();
    all.retain(|path| path.join("adapter").is_dir() == adapters);
    all.sort();
    assert!(all.len() >= if adapters { 5 } else { 20 }, "cases are missing: {all:?}");
    all
}

/// A tensor of a file, as f32.
fn tensor(file: &Path, name: &str) -> Vec<f32> {
    let bytes = std::fs::read(file).expect("a file");
    let file = SafeTensors::deserialize(&bytes).expect("a valid file");
    let tensor = file.tensor(name).expect("a tensor");
    match tensor.dtype() {
        Dtype::F32 => tensor.data().as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
        Dtype::I64 => tensor.data().as_chunks().0.iter().map(|b| i64::from_le_bytes(*b) as f32).collect(),
        Dtype::BF16 => tensor
            .data()
            .as_chunks()
            .0
            .iter()
            .map(|b| f32::from_bits(u32::from(u16::from_le_bytes(*b)) << 16))
            .collect(),
        other => panic!("{name}: {other:?}"),
    }
}

fn ids(case: &Path) -> Vec<u32> {
    tensor(&case.join("reference.safetensors"), "ids").iter().map(|id| *id as u32).collect()
}

fn logits(loaded: &LoadedModel, ids: &[u32]) -> Vec<f32> {
    let run = loaded.model.run(&[ids.to_vec()], &Plan::capture(["logits"]), &RunOptions::default()).expect("a run");
    run.captures[0].array.values().to_vec()
}

fn open(dir: &Path) -> Result<LoadedModel, Error> {
    LoadedModel::open(dir, &LoadOptions::default(), &mut |_| {})
}

fn open_with(dir: &Path, adapter: &Path) -> Result<LoadedModel, Error> {
    let options = LoadOptions { adapters: vec![adapter.to_path_buf()], ..LoadOptions::default() };
    LoadedModel::open(dir, &options, &mut |_| {})
}

/// Whether a case's family is native.
fn runs(case: &Path) -> bool {
    let config: Value =
        serde_json::from_slice(&std::fs::read(case.join("config.json")).expect("a config")).expect("json");
    families::native().any(|family| family == config["model_type"])
}

#[test]
fn every_format_gives_the_logits_of_its_dequantized_weights() {
    let mut ran = 0;
    for case in cases(false).iter().filter(|case| runs(case)) {
        let loaded = open(case).unwrap_or_else(|error| panic!("{}: {error}", case.display()));
        let off = difference(&logits(&loaded, &ids(case)), &tensor(&case.join("reference.safetensors"), "logits"));
        assert!(off <= 1e-4, "{}: off by {off}", case.display());
        ran += 1;
    }
    assert!(ran >= 19);
}

#[test]
fn stacked_experts_are_dequantized_as_transformers_does() {
    let case = directory().join("mxfp4");
    let config = Config::parse(&std::fs::read(case.join("config.json")).expect("a config"), &case).expect("a config");
    let tensors =
        Tensors::from_checkpoint(Checkpoint::open(&case).expect("weights"), &config, &case).expect("quantized tensors");
    for name in ["model.layers.0.mlp.experts.gate_up_proj", "model.layers.0.mlp.experts.down_proj"] {
        let stored = tensors.get(name).expect("a quantized layer");
        let &[experts, outputs, inputs] = stored.shape else { panic!("{:?}", stored.shape) };
        // The reference is [experts, inputs, outputs].
        let truth = tensor(&case.join("reference.safetensors"), name);
        let tensor = stored.dequantized.expect("a quantized layer");
        let mut row = vec![0.0; inputs];
        for (expert, output) in (0..experts).flat_map(|expert| (0..outputs).map(move |output| (expert, output))) {
            tensor.row(expert * outputs + output, &mut row);
            let truth = (0..inputs).map(|input| truth[(expert * inputs + input) * outputs + output]);
            assert!(row.iter().copied().eq(truth), "{name}: expert {expert}, output {output}");
        }
        assert!(tensors.get(&format!("{name}_blocks")).is_none(), "the parts are not separate tensors");
    }
}

#[test]
fn layers_that_stay_quantized_have_the_bits_of_their_f32_values() {
    for case in cases(false).iter().filter(|case| runs(case)) {
        let load = |storage| {
            let options = LoadOptions { storage, ..LoadOptions::default() };
            LoadedModel::open(case, &options, &mut |_| {}).unwrap_or_else(|error| panic!("{}: {error}", case.display()))
        };
        let (stored, widened) = (load(Storage::AsStored), load(Storage::As(DType::F32)));
        assert_eq!(logits(&stored, &ids(case)), logits(&widened, &ids(case)), "{}", case.display());
        // The estimate that `inspect` makes from the headers agrees with loading.
        let (name, memory) =
            (case.file_name().expect("a name").to_string_lossy(), inspect(case).expect("a report").memory);
        let memory = memory.expect("sizes");
        let stays_quantized =
            ["gptq-2", "gptq-3", "gptq-4", "gptq-4-sym-v2", "awq", "compressed-pack", "mxfp4"].contains(&&*name);
        assert_eq!(memory.as_stored < memory.f32 / 2, stays_quantized, "{name}: {memory:?}");
        let formats = stored.model.weights().formats();
        let quantized = formats.iter().any(|(format, _)| format.starts_with(['Q', 'M']));
        // Loading may keep more layers quantized than `inspect` expects, never fewer.
        assert!(quantized || !stays_quantized, "{name}: {formats:?}");
    }
}

#[test]
fn the_storage_option_is_honored() {
    let case = directory().join("gptq-4");
    let off = |storage| {
        let options = LoadOptions { storage, ..LoadOptions::default() };
        let loaded = LoadedModel::open(&case, &options, &mut |_| {}).expect("a model");
        difference(&logits(&loaded, &ids(&case)), &tensor(&case.join("reference.safetensors"), "logits"))
    };
    assert!(off(Storage::As(DType::F32)) <= 1e-4);
    let rounded = off(Storage::As(DType::Bf16));
    assert!(rounded > 1e-4 && rounded < 0.3, "bf16 rounds: {rounded}");
}

#[test]
fn inspect_reports_quantization_and_that_the_model_runs() {
    for case in cases(false).iter().filter(|case| runs(case)) {
        let report = inspect(case).expect("a report");
        assert_eq!(report.support, Support::Native, "{report:#?}");
        assert!(report.runs(), "{report:#?}");
        let quantization = report.quantization.as_ref().expect("quantized");
        assert!(report.card().contains(&format!("quantized by {}", quantization.method)), "{}", report.card());
        assert!(report.card().ends_with("It will run.\n"), "{}", report.card());
        // Scales, zero points and the like are not counted as parameters.
        let llama = 48 * 64 + 2 * (4 * 32 * 64 + 3 * 32 * 64 + 2 * 64) + 64;
        let plain = if case.ends_with("mxfp4") { 25_286 } else { llama };
        assert_eq!(report.parameters, plain, "{}", case.display());
    }
}

/// A tensor: dtype, shape, bytes.
type Content = (Dtype, Vec<usize>, Vec<u8>);
/// The tensors of a file.
type Contents = BTreeMap<String, Content>;

/// Copies a directory with changes to its JSON file and its tensors.
fn changed(
    from: &Path,
    [config, weights]: [&str; 2],
    set: impl FnOnce(&mut Value),
    change: impl FnOnce(&mut Contents),
) -> tempfile::TempDir {
    let to = tempfile::tempdir().expect("a directory");
    let mut value: Value = serde_json::from_slice(&std::fs::read(from.join(config)).expect("a config")).expect("json");
    set(&mut value);
    std::fs::write(to.path().join(config), value.to_string()).expect("written");
    let bytes = std::fs::read(from.join(weights)).expect("weights");
    let file = SafeTensors::deserialize(&bytes).expect("a valid file");
    let tensors = file.tensors().into_iter();
    let mut tensors: Contents =
        tensors.map(|(name, t)| (name, (t.dtype(), t.shape().to_vec(), t.data().to_vec()))).collect();
    change(&mut tensors);
    let views = tensors.iter().map(|(name, (dtype, shape, data))| {
        (name.clone(), TensorView::new(*dtype, shape.clone(), data).expect("a tensor"))
    });
    let bytes = safetensors::serialize(views.collect::<Vec<_>>(), None).expect("a file");
    std::fs::write(to.path().join(weights), bytes).expect("written");
    to
}

const MODEL: [&str; 2] = ["config.json", "model.safetensors"];
const ADAPTER: [&str; 2] = ["adapter_config.json", "adapter_model.safetensors"];

fn refused(result: Result<LoadedModel, Error>, parts: &[&str]) {
    let error = result.map(|_| ()).expect_err(&format!("{parts:?}"));
    let text = error.to_string();
    for part in parts {
        assert!(text.contains(part), "{text:?} does not contain {part:?}");
    }
    assert!(error.remedy().is_some_and(|remedy| remedy.to_string().len() > 10), "{text:?} has no remedy");
}

#[test]
fn a_missing_or_misshaped_part_is_named() {
    let q = "model.layers.1.self_attn.q_proj";
    let parts = [
        ("gptq-4", "scales"),
        ("gptq-4", "qzeros"),
        ("awq", "scales"),
        ("bnb-nf4", "weight.absmax"),
        ("bnb-nf4-nested", "weight.nested_quant_map"),
        ("fp8-blocks", "weight_scale_inv"),
        ("compressed-pack", "weight_scale"),
        ("compressed-pack", "weight_shape"),
    ];
    for (case, part) in parts {
        let name = format!("{q}.{part}");
        let without = changed(&directory().join(case), MODEL, |_| {}, |t| drop(t.remove(&name).expect("the part")));
        refused(open(without.path()), &[&format!("tensor {name} is missing")]);
        let report = inspect(without.path()).expect("a report");
        assert!(!report.runs() && report.reason.is_some_and(|reason| reason.contains(&name)), "{case}: {part}");
        let other = changed(
            &directory().join(case),
            MODEL,
            |_| {},
            |t| {
                let tensor = t.get_mut(&name).expect("the part");
                tensor.1 = vec![3, 1];
                tensor.2 = vec![0; 3 * tensor.0.bitsize() / 8];
            },
        );
        refused(open(other.path()), &[&name]);
    }
    // Without its codes a layer does not count as quantized: its weight is missing, its scales are
    // left over.
    let codes = changed(&directory().join("gptq-4"), MODEL, |_| {}, |t| drop(t.remove(&format!("{q}.qweight"))));
    refused(open(codes.path()), &["1 missing", &format!("{q}.weight"), "unexpected", &format!("{q}.scales")]);
}

#[test]
fn wrong_shapes_non_finite_elements_and_invalid_groups_are_refused() {
    let q = "model.layers.0.self_attn.q_proj";
    let wide = changed(&directory().join("gptq-4"), MODEL, |c| c["hidden_size"] = json!(128), |_| {});
    refused(open(wide.path()), &["of the wrong shape", &format!("{q}.weight is [32, 64]")]);
    let nan = changed(
        &directory().join("fp8-blocks"),
        MODEL,
        |_| {},
        |t| t.get_mut(&format!("{q}.weight")).expect("codes").2[5 * 64 + 1] = 0x7f,
    );
    refused(open(nan.path()), &[&format!("{q}.weight has a non-finite element (row 5")]);
    let group = changed(
        &directory().join("gptq-4-order"),
        MODEL,
        |_| {},
        |t| t.get_mut(&format!("{q}.g_idx")).expect("groups").2[..4].copy_from_slice(&77i32.to_le_bytes()),
    );
    refused(open(group.path()), &[&format!("{q}.g_idx contains group 77, and there are only 2")]);
}

#[test]
fn older_checkpoints_have_a_separate_quantization_file() {
    let cases = [
        ("gptq-4", "quantize_config.json", json!({"bits": 4, "group_size": 32, "desc_act": false, "sym": false})),
        ("awq", "quant_config.json", json!({"w_bit": 4, "q_group_size": 32, "zero_point": true, "version": "GEMM"})),
    ];
    for (case, file, part) in cases {
        let case = directory().join(case);
        let without =
            |config: &mut Value| drop(config.as_object_mut().expect("an object").remove("quantization_config"));
        let dir = changed(&case, MODEL, without, |_| {});
        refused(open(dir.path()), &["unexpected", "qweight"]);
        std::fs::write(dir.path().join(file), part.to_string()).expect("written");
        let loaded = open(dir.path()).expect("a model");
        assert_eq!(logits(&loaded, &ids(&case)), logits(&open(&case).expect("a model"), &ids(&case)));
        assert!(inspect(dir.path()).expect("a report").runs());
    }
}

/// Ways to corrupt a tensor.
const CORRUPTIONS: [fn(&mut Content); 8] = [
    |t| t.1.reverse(),
    |t| t.1 = vec![t.1.iter().product()],
    |t| t.1.push(1),
    |t| t.1.insert(0, 1),
    |t| (t.1, t.2) = (vec![0; t.1.len().max(1)], Vec::new()),
    // Half of the rows.
    |t| {
        if let Some(rows) = t.1.first_mut().filter(|rows| **rows % 2 == 0) {
            *rows /= 2;
            t.2.truncate(t.2.len() / 2);
        }
    },
    // Another dtype of the same size.
    |t| {
        t.0 = match t.0.bitsize() {
            8 if t.0 != Dtype::I8 => Dtype::I8,
            8 => Dtype::F8_E4M3,
            16 => Dtype::I16,
            32 if t.0 != Dtype::F32 => Dtype::F32,
            32 => Dtype::I32,
            _ => t.0,
        }
    },
    // Other bytes: invalid shapes, orders, JSON and scales.
    |t| t.2.iter_mut().enumerate().for_each(|(i, byte)| *byte = byte.wrapping_mul(37).wrapping_add(i as u8 | 0x80)),
];

/// The names of a file's tensors.
fn names(file: &Path) -> Vec<String> {
    let bytes = std::fs::read(file).expect("weights");
    SafeTensors::deserialize(&bytes).expect("a valid file").names().into_iter().map(str::to_owned).collect()
}

#[test]
fn no_corrupted_tensor_causes_a_panic() {
    // Some changes leave a valid, different model; most are refused; none may panic.
    let mut refusals = 0;
    for case in cases(false).iter().filter(|case| runs(case)) {
        let names = names(&case.join("model.safetensors"));
        for name in names.iter().filter(|name| name.contains("layers.0.self_attn.k_proj")) {
            for corrupt in CORRUPTIONS {
                let dir = changed(case, MODEL, |_| {}, |t| corrupt(t.get_mut(name).expect("a tensor")));
                refusals += usize::from(open(dir.path()).is_err());
                let _ = inspect(dir.path()).expect("a report");
            }
        }
    }
    for case in cases(true) {
        let names = names(&case.join("adapter/adapter_model.safetensors"));
        for (name, corrupt) in names.iter().flat_map(|name| CORRUPTIONS.map(|corrupt| (name, corrupt))) {
            let from = case.join("adapter");
            let dir = changed(&from, ADAPTER, |_| {}, |t| corrupt(t.get_mut(name).expect("a tensor")));
            refusals += usize::from(open_with(&case.join("base"), dir.path()).is_err());
        }
    }
    assert!(refusals > 500, "{refusals}");
}

#[test]
fn unsupported_formats_are_refused_by_name_before_weights_are_read() {
    for (part, name) in [
        (json!({"quant_method": "hqq"}), "`hqq`"),
        (json!({"quant_method": "aqlm"}), "`aqlm`"),
        (json!({"quant_method": "torchao"}), "`torchao`"),
        (json!({"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"}), "marlin"),
        (json!({"quant_method": "gptq", "bits": 5}), "5 bits"),
        (json!({"quant_method": "awq", "bits": 4, "version": "gemv"}), "gemv"),
        (json!({"quant_method": "compressed-tensors", "format": "marlin-24"}), "marlin-24"),
    ] {
        let dir = changed(&directory().join("gptq-4"), MODEL, |c| c["quantization_config"] = part, |_| {});
        std::fs::remove_file(dir.path().join("model.safetensors")).expect("removed");
        refused(open(dir.path()), &[name, "does not support"]);
    }
}

#[test]
fn adapters_give_the_logits_that_peft_gives() {
    for case in cases(true) {
        let truth = tensor(&case.join("reference.safetensors"), "logits");
        let loaded =
            open_with(&case.join("base"), &case.join("adapter")).unwrap_or_else(|e| panic!("{}: {e}", case.display()));
        let off = difference(&logits(&loaded, &ids(&case)), &truth);
        assert!(off <= 1e-4, "{}: off by {off}", case.display());
        let without = difference(&logits(&open(&case.join("base")).expect("the base"), &ids(&case)), &truth);
        assert!(without > 0.01, "{}: the adapter changes nothing", case.display());
        // The adapter names its base, a sibling directory.
        let loaded = open(&case.join("adapter")).expect("the base is found");
        assert_eq!(difference(&logits(&loaded, &ids(&case)), &truth), off);
        assert_eq!(loaded.name, "adapter");
        let report = inspect(&case.join("adapter")).expect("a report");
        assert!(report.runs() && report.support == Support::Native, "{report:#?}");
    }
}

#[test]
fn merging_while_loading_gives_the_bits_of_merging_beforehand() {
    let case = directory().join("lora");
    let loaded = open_with(&case.join("base"), &case.join("adapter")).expect("a model");
    let merged = open(&case.join("merged")).expect("a model");
    assert_eq!(logits(&loaded, &ids(&case)), logits(&merged, &ids(&case)));
    // Control: merging twice gives other logits.
    let twice = LoadOptions { adapters: vec![case.join("adapter"); 2], ..LoadOptions::default() };
    let twice = LoadedModel::open(&case.join("base"), &twice, &mut |_| {}).expect("a model");
    assert_ne!(logits(&twice, &ids(&case)), logits(&merged, &ids(&case)));
}

#[test]
fn an_adapter_may_be_merged_into_quantized_weights() {
    let case = directory().join("bnb-nf4");
    // Factors of zero change nothing.
    let from = directory().join("lora/adapter");
    let adapter = |value: f32| {
        changed(
            &from,
            ADAPTER,
            |c| c["r"] = json!(1),
            |t| {
                t.clear();
                let bytes = |count: usize| value.to_le_bytes().repeat(count);
                let q = "base_model.model.model.layers.0.self_attn.q_proj";
                t.insert(format!("{q}.lora_A.weight"), (Dtype::F32, vec![1, 64], bytes(64)));
                t.insert(format!("{q}.lora_B.weight"), (Dtype::F32, vec![32, 1], bytes(32)));
            },
        )
    };
    let plain = logits(&open(&case).expect("a model"), &ids(&case));
    let same = open_with(&case, adapter(0.0).path()).expect("a model");
    assert_eq!(logits(&same, &ids(&case)), plain);
    let other = open_with(&case, adapter(0.5).path()).expect("a model");
    assert!(difference(&logits(&other, &ids(&case)), &plain) > 0.01);
}

#[test]
fn errors_in_an_adapter_are_named() {
    let case = directory().join("lora");
    let (base, from) = (case.join("base"), case.join("adapter"));
    let q = "base_model.model.model.layers.0.self_attn.q_proj";
    let try_with = |set: fn(&mut Value), change: &dyn Fn(&mut Contents), parts: &[&str]| {
        let dir = changed(&from, ADAPTER, set, |t| change(t));
        refused(open_with(&base, dir.path()), parts);
    };
    let nothing = |_: &mut Value| {};
    try_with(
        nothing,
        &|t| drop(t.remove(&format!("{q}.lora_B.weight"))),
        &["model.layers.0.self_attn.q_proj", "factor B"],
    );
    try_with(
        nothing,
        &|t| t.get_mut(&format!("{q}.lora_B.weight")).unwrap().1.reverse(),
        &["lora_B.weight is [4, 32] where the model expects [32, 4]"],
    );
    try_with(|c| c["r"] = json!(8), &|_| {}, &["lora_A.weight is [4, ", "the configuration gives rank 8"]);
    try_with(|c| c["peft_type"] = json!("IA3"), &|_| {}, &["`IA3`"]);
    try_with(|c| c["use_dora"] = json!(true), &|_| {}, &["magnitude"]);
    try_with(|c| c["target_parameters"] = json!(["x"]), &|_| {}, &["`target_parameters`"]);
    let stray = |t: &mut Contents| {
        let factor = t[&format!("{q}.lora_A.weight")].clone();
        t.insert("base_model.model.model.layers.9.mlp.up_proj.lora_A.weight".into(), factor);
        let factor = t[&format!("{q}.lora_B.weight")].clone();
        t.insert("base_model.model.model.layers.9.mlp.up_proj.lora_B.weight".into(), factor);
    };
    try_with(nothing, &stray, &["layers.9.mlp.up_proj.lora_A.weight belongs to no weight of this model (and 1 more)"]);
    try_with(
        nothing,
        &|t| drop(t.insert("extra".into(), (Dtype::F32, vec![1], vec![0; 4]))),
        &["tensor extra belongs to no weight"],
    );
    let nan = |t: &mut Contents| {
        t.get_mut(&format!("{q}.lora_A.weight")).unwrap().2[..4].copy_from_slice(&f32::NAN.to_le_bytes())
    };
    try_with(nothing, &nan, &["lora_A.weight has a non-finite element"]);
    let wide = changed(
        &directory().join("lora-switches/adapter"),
        ADAPTER,
        |_| {},
        |t| {
            let head = t.get_mut("base_model.model.lm_head.weight").expect("the head");
            (head.1[0], head.2) = (50, vec![0; 50 * 16 * 4]);
        },
    );
    refused(
        open_with(&directory().join("lora-switches/base"), wide.path()),
        &["lm_head.weight is [50, 16] where the model has [48, 16]"],
    );
    refused(open_with(&base, &base), &["there is no adapter_config.json here"]);
}

#[test]
fn an_adapter_alone_names_its_base() {
    let from = directory().join("lora/adapter");
    let dir = changed(&from, ADAPTER, |c| c["base_model_name_or_path"] = json!("acme/missing-base"), |_| {});
    let error = open(dir.path()).map(|_| ()).expect_err("no base");
    assert!(error.to_string().contains("is an adapter for `acme/missing-base`, not a model"), "{error}");
    let (base, adapter) = (Some("acme/missing-base".to_owned()), dir.path().display().to_string());
    assert_eq!(error.remedy(), Some(&Remedy::UseAdapter { base: base.clone(), adapter: adapter.clone() }), "{error}");
    let report = inspect(dir.path()).expect("a report");
    assert!(!report.runs() && report.card().contains("`LoadOptions::adapters`"), "{}", report.card());
    assert_eq!(report.problems[0].remedy, Remedy::UseAdapter { base, adapter });
}
