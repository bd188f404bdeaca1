//! Weights under variants of their names: the same bits as under their own, and every rule that
//! matched is reported.

use golden::temp_models::{Tensors, changed, logits, renamed};
use pellucid_models::name_variants::NameRule;
use pellucid_models::{LoadOptions, LoadedModel, NameVariant};
use safetensors::Dtype;
use std::path::Path;

fn open(dir: &Path) -> LoadedModel {
    LoadedModel::open(dir, &LoadOptions::default(), &mut |_| {}).unwrap_or_else(|error| panic!("{error}"))
}

fn refusal(dir: &Path) -> String {
    LoadedModel::open(dir, &LoadOptions::default(), &mut |_| {}).map(|_| ()).expect_err("refused").to_string()
}

/// The rules that matched, with the stored and the expected name component.
fn rules(name_variants: &[NameVariant]) -> Vec<(NameRule, &str, &str)> {
    name_variants.iter().map(|variant| (variant.rule, variant.stored.as_str(), variant.read_as.as_str())).collect()
}

/// Concatenates matrices or vectors along the rows.
fn fuse(tensors: &mut Tensors, parts: &[String], whole: String) {
    let parts: Vec<_> = parts.iter().map(|name| tensors.remove(name).unwrap_or_else(|| panic!("{name}"))).collect();
    let mut shape = parts[0].1.clone();
    shape[0] = parts.iter().map(|(_, shape, _)| shape[0]).sum();
    let bytes = parts.iter().flat_map(|(.., bytes)| bytes.clone()).collect();
    tensors.insert(whole, (parts[0].0, shape, bytes));
}

/// Splits a matrix by rows.
fn split(tensors: &mut Tensors, whole: &str, parts: &[(String, usize)]) {
    let (dtype, shape, bytes) = tensors.remove(whole).unwrap_or_else(|| panic!("{whole}"));
    let row = bytes.len() / shape[0];
    let mut start = 0;
    for (name, rows) in parts {
        let mut shape = shape.clone();
        shape[0] = *rows;
        tensors.insert(name.clone(), (dtype, shape, bytes[start * row..(start + rows) * row].to_vec()));
        start += rows;
    }
    assert_eq!(start, shape[0]);
}

#[test]
fn a_model_under_its_own_names_needs_no_variants() {
    for name in ["llama", "gpt2", "gpt_neox", "phi3", "bert"] {
        assert_eq!(open(&golden::path(name)).name_variants, [], "{name}");
    }
}

#[test]
fn prefixes_of_wrappers_are_removed() {
    for (model, before, own, read_as) in [
        ("llama", "module.model.", "model.", "model."),
        ("llama", "_orig_mod.model.", "model.", "model."),
        ("llama", "base_model.model.model.", "model.", "model."),
        ("llama", "language_model.model.", "model.", "model."),
        ("llama", "model.language_model.", "model.", "model."),
        ("llama", "transformer.", "model.", "model."),
        ("gpt2", "module.transformer.", "transformer.", "transformer."),
        ("gpt2", "model.", "transformer.", "transformer."),
        ("opt", "model.model.decoder.", "model.decoder.", "model."),
    ] {
        let dir = renamed(model, |name| name.strip_prefix(own).map_or(name.into(), |rest| format!("{before}{rest}")));
        let (original, loaded) = (open(&golden::path(model)), open(dir.path()));
        assert_eq!(logits(&loaded), logits(&original), "{model} under {before}");
        let prefix = before.strip_suffix("decoder.").unwrap_or(before);
        assert_eq!(rules(&loaded.name_variants), [(NameRule::Prefix, prefix, read_as)], "{model} under {before}");
        let count = original.model.program().weights().iter().filter(|weight| weight.name != "head").count();
        assert!(
            loaded.name_variants[0].tensors > 10 && loaded.name_variants[0].tensors <= count,
            "{}",
            loaded.name_variants[0]
        );
    }
}

#[test]
fn a_wrapper_prefix_also_applies_to_the_head_and_to_ignored_tensors() {
    let dir = changed(
        "llama",
        |config| config["tie_word_embeddings"] = true.into(),
        |tensors| {
            tensors.remove("lm_head.weight");
            let table = tensors["model.embed_tokens.weight"].clone();
            tensors.insert("lm_head.weight".into(), table);
            tensors.insert("model.layers.0.self_attn.rotary_emb.inv_freq".into(), (Dtype::F32, vec![4], vec![0; 16]));
            *tensors = std::mem::take(tensors).into_iter().map(|(name, t)| (format!("module.{name}"), t)).collect();
        },
    );
    let loaded = open(dir.path());
    assert_eq!(rules(&loaded.name_variants), [(NameRule::Prefix, "module.model.", "model.")]);
}

#[test]
fn wrappers_of_single_layers_are_removed() {
    let dir = renamed("llama", |name| match name.strip_prefix("model.layers.1.") {
        Some(rest) => format!("model.layers.1._orig_mod.{rest}"),
        None => name.into(),
    });
    let loaded = open(dir.path());
    assert_eq!(logits(&loaded), logits(&open(&golden::path("llama"))));
    assert_eq!(rules(&loaded.name_variants), [(NameRule::Wrapper, "_orig_mod.", "")]);
    assert_eq!(loaded.name_variants[0].tensors, 9);
    assert!(loaded.name_variants[0].to_string().contains("`_orig_mod.` inside the name is left out"));
}

#[test]
fn legacy_suffixes_of_norms_are_known() {
    for (model, norm) in [("gpt2", ".ln_"), ("bert", "LayerNorm")] {
        let dir = renamed(model, |name| {
            let is_norm = name.contains(norm);
            match (name.strip_suffix("weight"), name.strip_suffix("bias")) {
                (Some(start), _) if is_norm => format!("{start}gamma"),
                (_, Some(start)) if is_norm => format!("{start}beta"),
                _ => name.into(),
            }
        });
        let loaded = open(dir.path());
        assert_eq!(logits(&loaded), logits(&open(&golden::path(model))));
        assert_eq!(
            rules(&loaded.name_variants),
            [(NameRule::Suffix, "beta", "bias"), (NameRule::Suffix, "gamma", "weight")]
        );
    }
}

#[test]
fn fused_projections_are_split() {
    for (fused, gates) in [("qkv_proj", true), ("W_pack", false)] {
        let dir = changed(
            "llama",
            |_| {},
            |tensors| {
                for layer in 0..3 {
                    let at = |name: &str| format!("model.layers.{layer}.{name}.weight");
                    let parts = ["q_proj", "k_proj", "v_proj"].map(|name| at(&format!("self_attn.{name}")));
                    fuse(tensors, &parts, at(&format!("self_attn.{fused}")));
                    if gates {
                        fuse(tensors, &[at("mlp.gate_proj"), at("mlp.up_proj")], at("mlp.gate_up_proj"));
                    }
                }
            },
        );
        let loaded = open(dir.path());
        assert_eq!(logits(&loaded), logits(&open(&golden::path("llama"))), "{fused}");
        let mut expected = vec![(NameRule::Fused, fused, "q_proj, k_proj, v_proj")];
        if gates {
            expected.insert(0, (NameRule::Fused, "gate_up_proj", "gate_proj, up_proj"));
        }
        assert_eq!(rules(&loaded.name_variants), expected);
        assert_eq!(loaded.name_variants[0].tensors, 3);
    }
    // Biases have the same order.
    let dir = changed(
        "qwen2",
        |_| {},
        |tensors| {
            for (layer, end) in (0..3).flat_map(|layer| [(layer, "weight"), (layer, "bias")]) {
                let at = |name: &str| format!("model.layers.{layer}.self_attn.{name}.{end}");
                fuse(tensors, &["q_proj", "k_proj", "v_proj"].map(at), at("qkv_proj"));
            }
        },
    );
    assert_eq!(logits(&open(dir.path())), logits(&open(&golden::path("qwen2"))));
}

#[test]
fn projections_that_a_family_fuses_may_be_stored_unfused() {
    let original = open(&golden::path("phi3"));
    let rows = |name: &str| {
        original.model.program().weights().iter().find(|weight| weight.name == name).expect("a weight").shape[0]
    };
    let dir = changed(
        "phi3",
        |_| {},
        |tensors| {
            for layer in 0..3 {
                let at = |name: &str| format!("model.layers.{layer}.{name}.weight");
                let part = |name: &str, weight: &str| (at(name), rows(&format!("layers.{layer}.{weight}")));
                let qkv = [("q_proj", "attn.q"), ("k_proj", "attn.k"), ("v_proj", "attn.v")]
                    .map(|(name, weight)| part(&format!("self_attn.{name}"), weight));
                split(tensors, &at("self_attn.qkv_proj"), &qkv);
                split(
                    tensors,
                    &at("mlp.gate_up_proj"),
                    &[part("mlp.gate_proj", "mlp.gate"), part("mlp.up_proj", "mlp.up")],
                );
            }
        },
    );
    let loaded = open(dir.path());
    assert_eq!(logits(&loaded), logits(&original));
    let expected = [
        (NameRule::Unfused, "gate_proj, up_proj", "gate_up_proj"),
        (NameRule::Unfused, "q_proj, k_proj, v_proj", "qkv_proj"),
    ];
    assert_eq!(rules(&loaded.name_variants), expected);
    assert_eq!(loaded.name_variants[1].tensors, 9);
}

#[test]
fn several_rules_work_together() {
    let dir = changed(
        "llama",
        |_| {},
        |tensors| {
            for layer in 0..3 {
                let at = |name: &str| format!("model.layers.{layer}.self_attn.{name}.weight");
                fuse(tensors, &["q_proj", "k_proj", "v_proj"].map(at), at("qkv_proj"));
            }
            *tensors =
                std::mem::take(tensors).into_iter().map(|(name, t)| (format!("module._orig_mod.{name}"), t)).collect();
        },
    );
    let loaded = open(dir.path());
    assert_eq!(logits(&loaded), logits(&open(&golden::path("llama"))));
    let prefixes =
        [(NameRule::Prefix, "module._orig_mod.", ""), (NameRule::Prefix, "module._orig_mod.model.", "model.")];
    let fused = (NameRule::Fused, "qkv_proj", "q_proj, k_proj, v_proj");
    assert_eq!(rules(&loaded.name_variants), [&prefixes[..], &[fused]].concat());
}

#[test]
fn ambiguous_and_unexpected_tensors_are_errors() {
    let twice = |name: &str, copy: &'static str| {
        changed(
            "llama",
            |_| {},
            |tensors| {
                let tensor = tensors[name].clone();
                tensors.insert(copy.into(), tensor);
            },
        )
    };
    // A tensor under its own name and under another.
    let dir = twice("model.norm.weight", "module.model.norm.weight");
    assert!(refusal(dir.path()).contains("1 unexpected: module.model.norm.weight"));
    // A tensor under two other names.
    let dir = changed(
        "llama",
        |_| {},
        |tensors| {
            let tensor = tensors.remove("model.norm.weight").expect("a norm");
            tensors.insert("module.model.norm.weight".into(), tensor.clone());
            tensors.insert("_orig_mod.model.norm.weight".into(), tensor);
        },
    );
    let text = refusal(dir.path());
    assert!(
        text.contains("1 ambiguous: ") && text.contains("_orig_mod.model.norm.weight, module.model.norm.weight"),
        "{text}"
    );
    // Both a fused matrix and its parts.
    let dir = changed(
        "llama",
        |_| {},
        |tensors| {
            let at = |name: &str| format!("model.layers.0.self_attn.{name}.weight");
            let before = tensors.clone();
            fuse(tensors, &["q_proj", "k_proj", "v_proj"].map(at), at("qkv_proj"));
            tensors.extend(before);
        },
    );
    assert!(refusal(dir.path()).contains("1 unexpected: model.layers.0.self_attn.qkv_proj.weight"));
}

#[test]
fn missing_tensors_stay_missing() {
    let dir = changed(
        "llama",
        |_| {},
        |tensors| {
            tensors.remove("model.layers.1.mlp.down_proj.weight");
            *tensors = std::mem::take(tensors).into_iter().map(|(name, t)| (format!("module.{name}"), t)).collect();
        },
    );
    let text = refusal(dir.path());
    assert!(text.contains("1 missing: model.layers.1.mlp.down_proj.weight"), "{text}");
    assert!(!text.contains("unexpected"), "{text}");
    // A fused matrix with another number of rows is rejected.
    let dir = changed(
        "llama",
        |_| {},
        |tensors| {
            for layer in 0..3 {
                let at = |name: &str| format!("model.layers.{layer}.self_attn.{name}.weight");
                fuse(tensors, &["q_proj", "k_proj"].map(at), at("qkv_proj"));
                tensors.remove(&at("v_proj"));
            }
        },
    );
    assert!(refusal(dir.path()).contains("9 of the wrong shape"), "{}", refusal(dir.path()));
}
