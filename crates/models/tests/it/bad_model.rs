//! Invalid models: weights that do not fit, and contradictory configurations. Loading gives an
//! error that names the tensor or key, and never panics.

use golden::temp_models::changed;
use pellucid_engine::{Plan, RunOptions};
use pellucid_models::{Error, LoadOptions, LoadedModel};
use safetensors::Dtype;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;

fn open(dir: &Path) -> Result<LoadedModel, Error> {
    LoadedModel::open(dir, &LoadOptions::default(), &mut |_| {})
}

fn assert_refused(dir: &tempfile::TempDir, parts: &[&str]) {
    let error = open(dir.path()).map(|_| ()).expect_err(&format!("{parts:?}"));
    let text = error.to_string();
    for part in parts {
        assert!(text.contains(part), "{text:?} does not contain {part:?}");
    }
    assert!(error.remedy().is_some_and(|remedy| remedy.to_string().len() > 10), "{text:?} has no remedy");
}

const DOWN: &str = "model.layers.1.mlp.down_proj.weight";

#[test]
fn an_unchanged_copy_loads() {
    // Control of this file: the change is refused, not the copy.
    let dir = changed("llama", |_| {}, |_| {});
    assert!(open(dir.path()).is_ok());
}

#[test]
fn weights_that_do_not_fit_the_configuration_are_refused() {
    let missing = changed("llama", |_| {}, |t| drop(t.remove(DOWN)));
    assert_refused(&missing, &[missing.path().to_str().unwrap(), "1 missing", DOWN]);
    let extra =
        changed("llama", |_| {}, |t| drop(t.insert("model.layers.7.extra".into(), (Dtype::F32, vec![1], vec![0; 4]))));
    assert_refused(&extra, &["1 unexpected", "model.layers.7.extra"]);
    let misshaped = changed("llama", |_| {}, |t| t.get_mut(DOWN).unwrap().1.reverse());
    assert_refused(&misshaped, &["1 of the wrong shape", DOWN, "where the configuration expects"]);
    let flat = changed("llama", |_| {}, |t| t.get_mut(DOWN).unwrap().1 = vec![t[DOWN].2.len() / 4]);
    assert_refused(&flat, &["1 of the wrong shape", DOWN]);
    let all_three = changed(
        "llama",
        |_| {},
        |t| {
            let tensor = t.remove(DOWN).unwrap();
            t.insert("model.layers.1.mlp.dwn_proj.weight".into(), tensor);
            t.get_mut("model.norm.weight").unwrap().1 = vec![4, 8];
        },
    );
    assert_refused(&all_three, &["1 missing", "1 of the wrong shape", "1 unexpected", "dwn_proj", "model.norm.weight"]);
    let empty = changed("llama", |_| {}, BTreeMap::clear);
    assert_refused(&empty, &["missing", "more"]);
    let other_dtype =
        changed("llama", |_| {}, |t| t.values_mut().for_each(|t| *t = (Dtype::I64, vec![t.2.len() / 8], t.2.clone())));
    assert_refused(&other_dtype, &["of the wrong shape"]);
    let integers = changed("llama", |_| {}, |t| t.values_mut().for_each(|t| t.0 = Dtype::I32));
    assert_refused(&integers, &["I32"]);
}

#[test]
fn weights_with_non_finite_elements_are_refused() {
    let put = |name: &str, tensor: &str, at: usize, bytes: &[u8]| {
        changed(
            name,
            |_| {},
            |t| {
                let data = &mut t.get_mut(tensor).unwrap_or_else(|| panic!("{tensor}")).2;
                data[at * bytes.len()..][..bytes.len()].copy_from_slice(bytes);
            },
        )
    };
    // Element 3 · cols is the first of row 3.
    let cols = {
        open(changed("llama", |_| {}, |_| {}).path())
            .unwrap()
            .model
            .program()
            .weights()
            .iter()
            .find(|w| w.name == "layers.1.mlp.down")
            .unwrap()
            .shape[1]
    };
    assert_refused(
        &put("llama", DOWN, 3 * cols, &f32::NAN.to_le_bytes()),
        &["model.safetensors", DOWN, "non-finite", "row 3"],
    );
    assert_refused(
        &put("llama", "model.embed_tokens.weight", 0, &f32::INFINITY.to_le_bytes()),
        &["model.embed_tokens.weight", "non-finite"],
    );
    assert_refused(
        &put("llama", "model.norm.weight", 5, &f32::NEG_INFINITY.to_le_bytes()),
        &["model.norm.weight", "non-finite"],
    );
    assert_refused(
        &put("gpt2", "transformer.h.0.attn.c_attn.weight", 7, &f32::NAN.to_le_bytes()),
        &["c_attn.weight", "non-finite"],
    );
    assert_refused(&put("llama-bf16", DOWN, 2, &[0xc0, 0x7f]), &[DOWN, "non-finite"]);
    assert_refused(&put("llama-f16", DOWN, 2, &[0x00, 0x7c]), &[DOWN, "non-finite"]);
}

#[test]
fn invalid_and_contradictory_configurations_are_refused() {
    let with = |name: &str, key: &'static str, value: Value| changed(name, |config| config[key] = value, |_| {});
    assert_refused(&with("llama", "model_type", json!("llamma")), &["`llamma`", "do not run natively"]);
    assert_refused(&with("llama", "model_type", json!(7)), &["config.json", "`model_type`"]);
    assert_refused(&with("llama", "model_type", Value::Null), &["`model_type`"]);
    for (name, key, value, expected) in [
        ("llama", "num_attention_heads", json!(0), "0 heads"),
        ("llama", "num_key_value_heads", json!(3), "4 heads of width 8 and 3 key heads"),
        ("llama", "num_key_value_heads", json!(0), "0 key heads"),
        ("llama", "vocab_size", json!(0), "vocabulary size 0"),
        ("llama", "hidden_size", json!(0), "width 0"),
        ("llama", "num_attention_heads", json!(5), "5 heads of width 8 and 2 key heads"),
        ("llama", "num_attention_heads", json!(2), "the weights do not fit"),
        ("llama", "vocab_size", json!(2_000_000_000), "embed_tokens.weight is [96, 32]"),
        ("llama", "hidden_size", json!(64), "of the wrong shape"),
        ("llama", "num_hidden_layers", json!(4), "model.layers.3."),
        ("llama", "num_hidden_layers", json!(2), "unexpected"),
        ("llama", "num_hidden_layers", json!(0), "unexpected"),
        ("llama", "vocab_size", json!(1u64 << 60), "`vocab_size` is not an integer in range"),
        ("llama", "hidden_size", json!(-32), "`hidden_size` is not an integer in range"),
        ("llama", "hidden_size", json!("32"), "`hidden_size` is not an integer in range"),
        ("llama", "hidden_size", json!(32.5), "`hidden_size` is not an integer in range"),
        ("llama", "hidden_size", Value::Null, "`hidden_size` is missing"),
        ("llama", "num_hidden_layers", json!(u64::MAX), "`num_hidden_layers` is not an integer in range"),
        ("llama", "rms_norm_eps", json!("small"), "`rms_norm_eps` is not a number"),
        ("llama", "tie_word_embeddings", json!("yes"), "`tie_word_embeddings` is neither true nor false"),
        ("llama", "hidden_act", json!("gelu_newest"), "`gelu_newest`"),
        ("llama", "rope_parameters", json!({"rope_type": "default", "rope_theta": 0.0}), "rope_theta"),
        ("llama", "rope_parameters", json!({"rope_type": "default", "rope_theta": -1e4}), "rope_theta"),
        ("llama", "rope_parameters", json!({"rope_type": "spiral", "rope_theta": 1e4}), "spiral"),
        ("mistral-sliding", "sliding_window", json!(0), "empty window"),
        ("gemma2", "layer_types", json!(["full_attention"]), "`layer_types`"),
        (
            "gemma2",
            "layer_types",
            json!(["full_attention", "full_attention", "linear_attention"]),
            "`linear_attention`",
        ),
        ("mixtral", "num_experts_per_tok", json!(0), "selects 0 of"),
        ("mixtral", "num_experts_per_tok", json!(99), "selects 99 of"),
        ("mixtral", "num_local_experts", json!(2_000_000_000), "`num_local_experts`"),
        ("qwen3_moe", "num_experts", json!(2_000_000_000), "`num_experts`"),
        ("gpt_neo", "num_layers", json!(2_000_000_000), "`num_layers`"),
        ("llama", "num_hidden_layers", json!(2_000_000_000), "`num_hidden_layers`"),
        ("llama", "head_dim", json!(2_000_000_000), "`head_dim`"),
        ("bloom", "n_head", json!(2_000_000_000), "`n_head`"),
        ("gpt2", "n_head", json!(5), "the weights do not fit"),
        ("gpt2", "n_head", json!(0), "0 heads"),
        ("gpt_neox", "num_attention_heads", json!(3), "the weights do not fit"),
        ("bloom", "n_head", json!(0), "0 heads"),
        ("opt", "max_position_embeddings", json!(10), "embed_positions"),
    ] {
        let dir = with(name, key, value);
        assert_refused(&dir, &[expected]);
    }
    for text in ["", "{", "[]", "\"llama\"", "{\"model_type\": \"llama\"}", "null"] {
        let dir = changed("llama", |_| {}, |_| {});
        std::fs::write(dir.path().join("config.json"), text).unwrap();
        assert_refused(&dir, &["config.json"]);
    }
}

#[test]
fn no_number_in_a_configuration_causes_a_panic() {
    let mut panics = Vec::new();
    for name in [
        "bloom",
        "gemma2",
        "gemma3",
        "gpt2",
        "gpt_neox",
        "llama-rope-llama3",
        "llama-rope-yarn",
        "mistral-sliding",
        "mixtral",
        "opt",
        "qwen2-window",
        "qwen3",
    ] {
        let config: Value =
            serde_json::from_slice(&std::fs::read(golden::path(name).join("config.json")).unwrap()).unwrap();
        let part = if config.get("text_config").is_some() { "/text_config" } else { "" };
        let pointers: Vec<String> =
            ["", "/rope_parameters", "/rope_scaling"].iter().map(|inner| format!("{part}{inner}")).collect();
        for pointer in pointers {
            let Some(Value::Object(object)) = config.pointer(&pointer) else { continue };
            for (key, _) in object.iter().filter(|(_, old)| old.is_number()) {
                for new in [
                    json!(0),
                    json!(-1),
                    json!(7),
                    json!(1u64 << 60),
                    json!(0.3),
                    json!(1e30),
                    json!("x"),
                    Value::Null,
                    json!({}),
                ] {
                    let dir = changed(name, |config| config.pointer_mut(&pointer).unwrap()[key] = new.clone(), |_| {});
                    let outcome = std::panic::catch_unwind(|| {
                        let loaded = open(dir.path()).ok()?;
                        let plan = Plan::capture(["layers.*.attn_probs", "logits"]);
                        loaded.model.run(&[vec![5, 6, 7], vec![8]], &plan, &RunOptions::default()).ok().map(drop)
                    });
                    if outcome.is_err() {
                        panics.push(format!("{name}: {pointer}/{key} = {new}"));
                    }
                }
            }
        }
    }
    assert!(panics.is_empty(), "{panics:#?}");
}
