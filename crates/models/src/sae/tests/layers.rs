//! Transcoders and crosscoders of several layers, and per-layer transcoders.

use super::*;
use crate::sae::{SaeRole, find_saes};
use serde_json::json;

const D: usize = 5;
const N: usize = 12;

#[test]
fn per_layer_transcoders_with_and_without_threshold() {
    let dir = tempfile::tempdir().expect("a directory");
    let plain = Arrays::default()
        .with("W_enc", Array::new(1, &[N, D]))
        .with("W_dec", Array::new(2, &[N, D]))
        .with("b_enc", Array::new(3, &[N]))
        .with("b_dec", Array::new(4, &[D]))
        .with("W_skip", Array::new(5, &[D, D]));
    plain.save(dir.path(), "layer_0.safetensors");
    let jump = plain.clone().without("W_skip").with("activation_function.threshold", Array::positive(6, &[N]));
    jump.save(dir.path(), "layer_1.safetensors");
    write(
        dir.path(),
        "config.yaml",
        "model_name: \"Qwen/Qwen3-0.6B\"\nmodel_kind: transcoder_set\nfeature_input_hook: mlp.hook_in\nfeature_output_hook: mlp.hook_out\n",
    );
    let (enc, dec) = (plain.get("W_enc"), plain.get("W_dec"));
    let first = read(&dir.path().join("layer_0.safetensors"));
    check(&first, |j, i| enc.at(&[j, i]), |_, j, o| dec.at(&[j, o]), (&["layers.0.mlp_in"], &["layers.0.mlp_out"]));
    assert_eq!(first.sae.kind, SaeKind::Relu);
    assert_eq!(first.info.weight_processing, ["fold_ln=false"]);
    let skip = first.sae.skip.as_ref().expect("a skip path");
    (0..D).for_each(|o| assert_eq!(row(skip, o), &plain.get("W_skip").values[o * D..][..D]));
    let second = read(&dir.path().join("layer_1.safetensors"));
    assert_eq!(
        second.sae.kind,
        SaeKind::JumpRelu { threshold: jump.get("activation_function.threshold").values.clone() }
    );
    assert_eq!(find_saes(dir.path()).expect("found").paths.len(), 2);

    // Without config.yaml: the hooks of these transcoders, and the model in the repository's name.
    let path = dir.path().join("qwen3-14b-transcoders");
    plain.save(&path, "layer_7.safetensors");
    write(&path, "wanb-config.yaml", "d_model:\n  value: 5\n");
    let loaded = read(&path);
    assert_eq!(loaded.info.base_model.as_deref(), Some("Qwen/Qwen3-14B"));
    assert_eq!(loaded.site_in().map(|site| site.to_string()).as_deref(), Some("layers.7.mlp_in"));

    let negative = jump.with("activation_function.threshold", Array::of(&[N], vec![-0.5; N]));
    negative.save(&path, "layer_7.safetensors");
    assert!(refusal(&path).contains("threshold of feature 0 is negative"));
}

#[test]
fn one_layer_of_a_cross_layer_transcoder_writes_its_own_and_later_layers() {
    const LAYERS: usize = 3;
    let dir = tempfile::tempdir().expect("a directory");
    let mut files = Vec::new();
    for layer in 0..LAYERS {
        let name = |start: &str| format!("{start}_{layer}");
        let encoder = Arrays::default()
            .with(&name("W_enc"), Array::new(layer, &[N, D]))
            .with(&name("b_enc"), Array::new(3, &[N]))
            .with(&name("b_dec"), Array::new(4 + layer, &[D]))
            .with(&name("threshold"), Array::positive(6, &[N]))
            .with(&name("W_skip"), Array::new(8, &[D, D]));
        let decoder = Arrays::default().with(&name("W_dec"), Array::new(9 + layer, &[N, LAYERS - layer, D]));
        encoder.save(dir.path(), &format!("W_enc_{layer}.safetensors"));
        decoder.save(dir.path(), &format!("W_dec_{layer}.safetensors"));
        files.push((encoder, decoder));
    }
    write(
        dir.path(),
        "config.yaml",
        "model_kind: cross_layer_transcoder\nmodel_name: llama\nfeature_input_hook: hook_resid_mid\nfeature_output_hook: hook_mlp_out\n",
    );
    let loaded = read(&dir.path().join("W_enc_1.safetensors"));
    let (enc, dec) = (files[1].0.get("W_enc_1"), files[1].1.get("W_dec_1"));
    let sites: (&[&str], &[&str]) = (&["layers.1.resid_mid"], &["layers.1.mlp_out_post", "layers.2.mlp_out_post"]);
    check(&loaded, |j, i| enc.at(&[j, i]), |slot, j, o| dec.at(&[j, slot, o]), sites);
    assert_eq!(loaded.sae.decoder_biases, [files[1].0.get("b_dec_1").values.clone(), vec![0.0; D]]);
    // `x W_skip` here.
    let (skip, stored) = (loaded.sae.skip.as_ref().expect("a skip path"), files[1].0.get("W_skip_1"));
    (0..D).for_each(|o| assert_eq!(row(skip, o), (0..D).map(|i| stored.at(&[i, o])).collect::<Vec<_>>()));
    assert_eq!(loaded.info.role, SaeRole::CrossLayerTranscoder);
    assert!(loaded.sae.decoders.iter().all(|decoder| decoder.is_in_place()), "slices are mapped");
    assert!(refusal(dir.path()).contains("holds 3 autoencoders"));
    std::fs::remove_file(dir.path().join("W_dec_2.safetensors")).expect("removed");
    assert!(refusal(&dir.path().join("W_enc_2.safetensors")).contains("W_dec_2.safetensors"));
}

#[test]
fn gemma_scope_2_of_several_layers() {
    let dir = tempfile::tempdir().expect("a directory");
    let arrays = |layer: usize, layers: usize| {
        Arrays::default()
            .with("w_enc", Array::new(layer, &[D, N]))
            .with("w_dec", Array::new(layer + 1, &[N, layers, D]))
            .with("b_enc", Array::new(3, &[N]))
            .with("b_dec", Array::new(4, &[D]))
            .with("threshold", Array::positive(6, &[N]))
    };
    let settings = |hook: &str, kind: &str| {
        json!({"hf_hook_point_in": hook.replace('#', "pre_feedforward_layernorm.output"),
            "hf_hook_point_out": hook.replace('#', "post_feedforward_layernorm.output"),
            "width": 36, "model_name": "google/gemma-3-270m-pt", "architecture": "jump_relu", "type": kind})
        .to_string()
    };
    let clt = dir.path().join("clt/width_36_l0_big");
    (0..3).for_each(|layer| arrays(layer, 3).save(&clt, &format!("params_layer_{layer}.safetensors")));
    write(&clt, "config.json", settings("model.layers.{all}.#", "clt"));
    let (loaded, stored) = (read(&clt.join("params_layer_1.safetensors")), arrays(1, 3));
    let (enc, dec) = (stored.get("w_enc"), stored.get("w_dec"));
    let sites: (&[&str], &[&str]) = (&["layers.1.mlp_in"], &["layers.1.mlp_out_post", "layers.2.mlp_out_post"]);
    check(&loaded, |j, i| enc.at(&[i, j]), |slot, j, o| dec.at(&[j, slot + 1, o]), sites);
    assert_eq!(loaded.sae.decoder_biases, [stored.get("b_dec").values.clone(), vec![0.0; D]]);

    let cross = dir.path().join("crosscoder/layer_5_9_width_36_l0_big");
    (0..2).for_each(|layer| arrays(layer, 2).save(&cross, &format!("params_layer_{layer}.safetensors")));
    write(&cross, "config.json", settings("model.layers.{5,9}.output", "crosscoder"));
    let (loaded, stored) = (read(&cross.join("params_layer_1.safetensors")), arrays(1, 2));
    let (enc, dec) = (stored.get("w_enc"), stored.get("w_dec"));
    let sites: (&[&str], &[&str]) = (&["layers.9.resid_post"], &["layers.5.resid_post", "layers.9.resid_post"]);
    check(&loaded, |j, i| enc.at(&[i, j]), |slot, j, o| dec.at(&[j, slot, o]), sites);
    assert_eq!(loaded.sae.decoder_biases, [vec![0.0; D], stored.get("b_dec").values.clone()]);
    assert_eq!(loaded.info.role, SaeRole::Crosscoder);
}

#[test]
fn a_crosscoder_of_dictionary_learning_concatenates_its_layers() {
    const LAYERS: usize = 2;
    let dir = tempfile::tempdir().expect("a directory");
    let arrays = Arrays::default()
        .with("encoder.weight", Array::new(1, &[LAYERS, D, N]))
        .with("encoder.bias", Array::new(2, &[N]))
        .with("decoder.weight", Array::new(3, &[LAYERS, N, D]))
        .with("decoder.bias", Array::new(4, &[LAYERS, D]));
    arrays.save(dir.path(), "ae.pt");
    write(
        dir.path(),
        "config.json",
        r#"{"trainer": {"dict_class": "CrossCoder", "activation_dim": 5, "dict_size": 12}}"#,
    );
    let loaded = read(dir.path());
    let (enc, dec) = (arrays.get("encoder.weight"), arrays.get("decoder.weight"));
    check(&loaded, |j, i| enc.at(&[i / D, i % D, j]), |slot, j, o| dec.at(&[slot, j, o]), (&[], &[]));
    assert_eq!((loaded.sae.d_in(), loaded.sae.decoders.len()), (LAYERS * D, LAYERS));
    assert_eq!(loaded.sae.decoder_biases.concat(), arrays.get("decoder.bias").values);
}
