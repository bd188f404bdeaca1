//! Each format with one decoder: orientation, kind, biases, sites.

use super::*;
use crate::sae::{SaeLayout, SaeRole};
use serde_json::json;

/// Width and number of features: different, so that a transposed matrix does not fit.
const D: usize = 5;
const N: usize = 12;

/// `W_enc [D, N]`, `W_dec [N, D]` and biases.
fn native() -> Arrays {
    Arrays::default()
        .with("W_enc", Array::new(1, &[D, N]))
        .with("W_dec", Array::new(2, &[N, D]))
        .with("b_enc", Array::new(3, &[N]))
        .with("b_dec", Array::new(4, &[D]))
}

/// `encoder.weight [N, D]`, `decoder.weight [D, N]` and the encoder bias.
fn linear() -> Arrays {
    Arrays::default()
        .with("encoder.weight", Array::new(1, &[N, D]))
        .with("decoder.weight", Array::new(2, &[D, N]))
        .with("encoder.bias", Array::new(3, &[N]))
}

fn check_native(loaded: &LoadedSae, arrays: &Arrays, sites: (&[&str], &[&str])) {
    let (enc, dec) = (arrays.get("W_enc"), arrays.get("W_dec"));
    check(loaded, |j, i| enc.at(&[i, j]), |_, j, o| dec.at(&[j, o]), sites);
    assert_eq!(loaded.sae.encoder_bias, arrays.get("b_enc").values);
    assert_eq!(loaded.sae.decoder_biases, [arrays.get("b_dec").values.clone()]);
}

fn check_linear(loaded: &LoadedSae, arrays: &Arrays, sites: (&[&str], &[&str])) {
    let (enc, dec) = (arrays.get("encoder.weight"), arrays.get("decoder.weight"));
    check(loaded, |j, i| enc.at(&[j, i]), |_, j, o| dec.at(&[o, j]), sites);
    assert_eq!(loaded.sae.encoder_bias, arrays.get("encoder.bias").values);
}

#[test]
fn saelens_files_of_old_and_new_versions() {
    let dir = tempfile::tempdir().expect("a directory");
    let arrays = native();
    arrays.save(dir.path(), "sae_weights.safetensors");
    let site: (&[&str], &[&str]) = (&["layers.8.resid_pre"], &["layers.8.resid_pre"]);
    write(
        dir.path(),
        "cfg.json",
        json!({"model_name": "gpt2-small", "hook_point": "blocks.8.hook_resid_pre", "hook_point_head_index": null,
            "d_in": D, "d_sae": N, "lr": 0.1, "activation_fn_str": "relu"})
        .to_string(),
    );
    let old = read(dir.path());
    check_native(&old, &arrays, site);
    assert_eq!((&old.sae.kind, old.sae.subtract_decoder_bias), (&SaeKind::Relu, true));
    assert_eq!((old.info.prepend_bos, old.info.base_model.as_deref()), (Some(true), Some("gpt2-small")));
    assert!(old.sae.decoders[0].is_in_place(), "the decoder is mapped");

    // A TopK before version 6 is a `standard` architecture.
    write(
        dir.path(),
        "cfg.json",
        json!({"architecture": "standard", "hook_name": "blocks.8.hook_resid_pre", "d_in": D, "d_sae": N,
            "activation_fn": "topk", "activation_fn_kwargs": {"k": 3}, "apply_b_dec_to_input": false})
        .to_string(),
    );
    let topk = read(dir.path());
    assert_eq!(topk.sae.kind, SaeKind::TopK { k: 3, by_decoder_norm: None });
    assert!(!topk.sae.subtract_decoder_bias);

    write(
        dir.path(),
        "cfg.json",
        json!({"architecture": "standard", "d_in": D, "d_sae": N, "normalize_activations": "layer_norm",
            "metadata": {"hook_name": "blocks.8.hook_resid_pre", "model_name": "pythia-70m", "prepend_bos": false,
            "model_from_pretrained_kwargs": {"center_writing_weights": true}}})
        .to_string(),
    );
    let new = read(dir.path());
    check_native(&new, &arrays, site);
    assert_eq!(new.sae.normalization, InputNormalization::LayerNorm);
    assert_eq!(new.info.weight_processing, ["center_writing_weights=true"]);
    assert_eq!((new.info.prepend_bos, new.info.layout), (Some(false), SaeLayout::Saelens));
}

#[test]
fn a_saelens_transcoder_has_its_own_output_width_and_skip_path() {
    let dir = tempfile::tempdir().expect("a directory");
    const OUT: usize = 7;
    let arrays = native()
        .with("W_dec", Array::new(2, &[N, OUT]))
        .with("b_dec", Array::new(4, &[OUT]))
        .with("W_skip", Array::new(5, &[OUT, D]))
        .with("threshold", Array::positive(6, &[N]));
    arrays.save(dir.path(), "sae_weights.safetensors");
    write(
        dir.path(),
        "cfg.json",
        json!({"architecture": "jumprelu_skip_transcoder", "d_in": D, "d_sae": N, "d_out": OUT,
            "apply_b_dec_to_input": true, "metadata": {"hook_name": "blocks.3.ln2.hook_normalized",
            "hook_name_out": "blocks.3.hook_mlp_out", "model_name": "gemma-2-2b"}})
        .to_string(),
    );
    let loaded = read(dir.path());
    check_native(&loaded, &arrays, (&["layers.3.mlp_normed"], &["layers.3.mlp_out_post"]));
    assert_eq!(loaded.sae.kind, SaeKind::JumpRelu { threshold: arrays.get("threshold").values.clone() });
    assert!(!loaded.sae.subtract_decoder_bias, "the bias is in the space of the output");
    let skip = loaded.sae.skip.as_ref().expect("a skip path");
    (0..OUT).for_each(|o| assert_eq!(row(skip, o), &arrays.get("W_skip").values[o * D..][..D]));
    assert_eq!(loaded.info.role, SaeRole::Transcoder);
}

#[test]
fn gemma_scope_archives() {
    let dir = tempfile::tempdir().expect("a directory");
    let arrays = native().with("threshold", Array::positive(6, &[N]));
    let places: [(&str, &[&str], &[&str]); 4] = [
        (
            "gemma-scope-2b-pt-res/layer_12/width_16k/average_l0_82",
            &["layers.12.resid_post"],
            &["layers.12.resid_post"],
        ),
        ("gemma-scope-2b-pt-att/layer_3/width_16k/average_l0_82", &["layers.3.z"], &["layers.3.z"]),
        (
            "gemma-scope-2b-pt-transcoders/layer_4/width_16k/average_l0_82",
            &["layers.4.mlp_normed"],
            &["layers.4.mlp_out_post"],
        ),
        ("gemma-scope-2b-pt-res/embedding/width_4k/average_l0_82", &["embed"], &["embed"]),
    ];
    for (place, reads, writes) in places {
        let path = dir.path().join(place);
        arrays.save(&path, "params.npz");
        let loaded = read(&path.join("params.npz"));
        check_native(&loaded, &arrays, (reads, writes));
        assert_eq!(loaded.sae.kind, SaeKind::JumpRelu { threshold: arrays.get("threshold").values.clone() });
        assert!(!loaded.sae.subtract_decoder_bias);
        assert_eq!(
            (loaded.info.declared_l0, loaded.info.base_model.as_deref()),
            (Some(82.0), Some("google/gemma-2-2b"))
        );
    }
    // numpy may store a transposed array in Fortran order.
    let path = dir.path().join("gemma-scope-2b-pt-mlp/layer_4/width_16k/average_l0_9");
    let fortran = arrays.clone().with("W_dec", arrays.get("W_dec").clone().column_major());
    fortran.save(&path, "params.npz");
    check_native(&read(&path), &arrays, (&["layers.4.mlp_out_post"], &["layers.4.mlp_out_post"]));
}

#[test]
fn gemma_scope_2_with_affine_skip_and_without_settings() {
    let dir = tempfile::tempdir().expect("a directory");
    const OUT: usize = 7;
    let base = Arrays::default()
        .with("w_enc", Array::new(1, &[D, N]))
        .with("b_enc", Array::new(3, &[N]))
        .with("threshold", Array::positive(6, &[N]));
    let transcoder = base
        .clone()
        .with("w_dec", Array::new(2, &[N, OUT]))
        .with("b_dec", Array::new(4, &[OUT]))
        .with("affine_skip_connection", Array::new(5, &[D, OUT]));
    let path = dir.path().join("transcoder/layer_7_width_16k_l0_small_affine");
    transcoder.save(&path, "params.safetensors");
    let settings = json!({"hf_hook_point_in": "model.layers.7.pre_feedforward_layernorm.output", "architecture": "jump_relu",
        "hf_hook_point_out": "model.layers.7.post_feedforward_layernorm.output", "width": N, "type": "transcoder",
        "model_name": "google/gemma-3-1b-it", "l0": 50, "affine_connection": true});
    write(&path, "config.json", settings.to_string());
    let loaded = read(&path);
    let (enc, dec) = (transcoder.get("w_enc"), transcoder.get("w_dec"));
    let sites: (&[&str], &[&str]) = (&["layers.7.mlp_in"], &["layers.7.mlp_out_post"]);
    check(&loaded, |j, i| enc.at(&[i, j]), |_, j, o| dec.at(&[j, o]), sites);
    let (skip, stored) = (loaded.sae.skip.as_ref().expect("a skip path"), transcoder.get("affine_skip_connection"));
    (0..OUT).for_each(|o| assert_eq!(row(skip, o), (0..D).map(|i| stored.at(&[i, o])).collect::<Vec<_>>()));
    assert!(loaded.info.notes.iter().any(|note| note.contains("first 4 positions")));
    assert_eq!(loaded.info.declared_l0, Some(50.0));

    let path = dir.path().join("attn_out/layer_9_width_16k_l0_small");
    let sae = base.with("w_dec", Array::new(2, &[N, D])).with("b_dec", Array::new(4, &[D]));
    sae.save(&path, "params.safetensors");
    let (enc, dec) = (sae.get("w_enc"), sae.get("w_dec"));
    check(&read(&path), |j, i| enc.at(&[i, j]), |_, j, o| dec.at(&[j, o]), (&["layers.9.z"], &["layers.9.z"]));
}

#[test]
fn llama_scope_scales_inputs_and_threshold() {
    let dir = tempfile::tempdir().expect("a directory");
    let arrays = linear().with("decoder.bias", Array::new(4, &[D]));
    let path = dir.path().join("Llama3_1-8B-Base-L5R-8x");
    arrays.save(&path, "checkpoints/final.safetensors");
    let hook = "blocks.5.hook_resid_post";
    write(
        &path,
        "hyperparams.json",
        json!({"hook_point_in": hook, "hook_point_out": hook, "act_fn": "jumprelu", "d_model": D, "d_sae": N,
            "jump_relu_threshold": 0.5, "dataset_average_activation_norm": {"in": 2.0, "out": 2.0}})
        .to_string(),
    );
    let site: (&[&str], &[&str]) = (&["layers.5.resid_post"], &["layers.5.resid_post"]);
    let scale = (D as f32).sqrt() / 2.0;
    for path in [path.clone(), path.join("checkpoints/final.safetensors")] {
        let loaded = read(&path);
        check_linear(&loaded, &arrays, site);
        assert_eq!(loaded.sae.normalization, InputNormalization::Constant(scale));
        let SaeKind::JumpRelu { threshold } = &loaded.sae.kind else { panic!("{:?}", loaded.sae.kind) };
        assert!(threshold.len() == N && threshold.iter().all(|t| (t - 0.5 * scale).abs() < 1e-7));
        assert_eq!(loaded.info.base_model.as_deref(), Some("meta-llama/Llama-3.1-8B"));
    }

    // The R1 distillation has other files and a threshold per feature.
    let path = dir.path().join("L5R");
    let arrays = arrays.with("log_jumprelu_threshold", Array::new(6, &[N]));
    arrays.save(&path, "sae_weights.safetensors");
    write(
        &path,
        "config.json",
        json!({"hook_point_in": hook, "hook_point_out": hook, "act_fn": "jumprelu", "d_model": D}).to_string(),
    );
    let loaded = read(&path);
    check_linear(&loaded, &arrays, site);
    let expected: Vec<f32> = arrays.get("log_jumprelu_threshold").values.iter().map(|x| x.exp()).collect();
    assert_eq!(loaded.sae.kind, SaeKind::JumpRelu { threshold: expected });
}

#[test]
fn sparsify_reads_modules_by_their_directory() {
    let dir = tempfile::tempdir().expect("a directory");
    let arrays = Arrays::default()
        .with("encoder.weight", Array::new(1, &[N, D]))
        .with("W_dec", Array::new(2, &[N, D]))
        .with("encoder.bias", Array::new(3, &[N]))
        .with("b_dec", Array::new(4, &[D]));
    write(dir.path(), "config.json", r#"{"model": "EleutherAI/pythia-160m", "ctx_len": 2048}"#);
    let (enc, dec) = (arrays.get("encoder.weight").clone(), arrays.get("W_dec").clone());
    let orientation = |loaded: &LoadedSae, sites: (&[&str], &[&str])| {
        check(loaded, |j, i| enc.at(&[j, i]), |_, j, o| dec.at(&[j, o]), sites);
        assert_eq!(loaded.info.base_model.as_deref(), Some("EleutherAI/pythia-160m"));
    };
    let path = dir.path().join("layers.5");
    arrays.save(&path, "sae.safetensors");
    write(
        &path,
        "cfg.json",
        json!({"d_in": D, "num_latents": N, "k": 4, "signed": false, "normalize_decoder": true}).to_string(),
    );
    let loaded = read(&path);
    orientation(&loaded, (&["layers.5.resid_post"], &["layers.5.resid_post"]));
    assert_eq!(loaded.sae.kind, SaeKind::TopK { k: 4, by_decoder_norm: None });
    assert!(loaded.sae.subtract_decoder_bias);

    let path = dir.path().join("layers.5.mlp");
    let skip = arrays.clone().with("W_skip", Array::new(5, &[D, D]));
    skip.save(&path, "sae.safetensors");
    write(
        &path,
        "cfg.json",
        json!({"d_in": D, "num_latents": N, "k": 4, "activation": "groupmax", "transcode": true, "skip_connection": true})
            .to_string(),
    );
    let loaded = read(&path);
    orientation(&loaded, (&["layers.5.mlp_in"], &["layers.5.mlp_out"]));
    assert_eq!(loaded.sae.kind, SaeKind::GroupMax { k: 4 });
    assert!(!loaded.sae.subtract_decoder_bias);
    let matrix = loaded.sae.skip.as_ref().expect("a skip path");
    (0..D).for_each(|o| assert_eq!(row(matrix, o), &skip.get("W_skip").values[o * D..][..D]));
}

#[test]
fn attention_autoencoders_of_gpt2() {
    let dir = tempfile::tempdir().expect("a directory");
    let arrays = native();
    for layer in [9, 10] {
        let name = format!("gpt2-small_L{layer}_Hcat_z_v1");
        // The decoder is saved transposed in memory, as PyTorch does.
        let saved = arrays.clone().with("W_dec", arrays.get("W_dec").clone().column_major());
        saved.save(dir.path(), &format!("{name}.pt"));
        let hook = format!("blocks.{layer}.attn.hook_z");
        write(
            dir.path(),
            &format!("{name}_cfg.json"),
            json!({"act_name": hook, "act_size": D, "dict_size": N}).to_string(),
        );
    }
    let loaded = read(&dir.path().join("gpt2-small_L9_Hcat_z_v1.pt"));
    check_native(&loaded, &arrays, (&["layers.9.z"], &["layers.9.z"]));
    assert!(loaded.sae.subtract_decoder_bias && loaded.info.prepend_bos == Some(true));
    let text = refusal(dir.path());
    assert!(text.contains("holds 2 autoencoders") && text.contains("gpt2-small_L10_Hcat_z_v1.pt"), "{text}");
}

#[test]
fn qwen_scope_and_single_checkpoints() {
    let dir = tempfile::tempdir().expect("a directory");
    let arrays = Arrays::default()
        .with("W_enc", Array::new(1, &[N, D]))
        .with("W_dec", Array::new(2, &[D, N]))
        .with("b_enc", Array::new(3, &[N]))
        .with("b_dec", Array::new(4, &[D]));
    let (enc, dec) = (arrays.get("W_enc").clone(), arrays.get("W_dec").clone());
    let path = dir.path().join("mine");
    arrays.save(&path, "layer3.sae.pt");
    assert!(refusal(&path).contains("k is unknown"));
    write(
        &path,
        "config.json",
        json!({"model_type": "topk_sae", "base_model": "Qwen/Qwen3-1.7B-Base", "d_model": D, "d_sae": N, "k": 2})
            .to_string(),
    );
    let loaded = read(&path);
    check(
        &loaded,
        |j, i| enc.at(&[j, i]),
        |_, j, o| dec.at(&[o, j]),
        (&["layers.3.resid_post"], &["layers.3.resid_post"]),
    );
    assert_eq!(loaded.sae.kind, SaeKind::TopK { k: 2, by_decoder_norm: None });
    assert!(!loaded.sae.subtract_decoder_bias);
    // Without settings, the repository's name has k, and the width, which does not fit here.
    let named = dir.path().join("SAE-Res-Qwen3-1.7B-Base-W32K-L0_50");
    arrays.save(&named, "layer3.sae.pt");
    assert!(refusal(&named).contains("declares 32K features, the weights have 12"));

    for (prefixes, name) in [
        (["encoder_linear", "decoder_linear"], "Llama-3.1-8B-Instruct-SAE-l19.pth"),
        (["encoder", "decoder"], "DeepSeek-R1-Distill-Llama-8B-SAE-l19.pt"),
    ] {
        let [encoder, decoder] = prefixes;
        let arrays = Arrays::default()
            .with(&format!("{encoder}.weight"), enc.clone())
            .with(&format!("{encoder}.bias"), Array::new(3, &[N]))
            .with(&format!("{decoder}.weight"), dec.clone().column_major())
            .with(&format!("{decoder}.bias"), Array::new(4, &[D]));
        let path = dir.path().join(encoder);
        arrays.save(&path, name);
        let loaded = read(&path);
        check(
            &loaded,
            |j, i| enc.at(&[j, i]),
            |_, j, o| dec.at(&[o, j]),
            (&["layers.19.resid_post"], &["layers.19.resid_post"]),
        );
        assert!(loaded.sae.kind == SaeKind::Relu && !loaded.sae.subtract_decoder_bias);
        assert_eq!(loaded.info.layout, SaeLayout::Goodfire);
    }
}

#[test]
fn every_class_of_dictionary_learning() {
    let dir = tempfile::tempdir().expect("a directory");
    let threshold = |value: f32| Array::of(&[], vec![value]);
    let gated = linear()
        .without("encoder.bias")
        .with("decoder_bias", Array::new(4, &[D]))
        .with("gate_bias", Array::new(5, &[N]))
        .with("mag_bias", Array::new(6, &[N]))
        .with("r_mag", Array::new(7, &[N]));
    let topk =
        linear().with("b_dec", Array::new(4, &[D])).with("k", Array::integer(3)).with("threshold", threshold(0.25));
    let matryoshka = native()
        .with("k", Array::integer(3))
        .with("threshold", threshold(0.25))
        .with("group_sizes", Array::integer(12));
    let jumprelu = native().with("threshold", Array::positive(6, &[N]));
    // Class, tensors, whether the decoder bias is subtracted, whether decoder norms are folded.
    let classes: [(&str, Arrays, bool, bool); 7] = [
        ("AutoEncoder", linear().with("bias", Array::new(4, &[D])), true, true),
        ("AutoEncoderNew", linear().with("decoder.bias", Array::new(4, &[D])), false, false),
        ("GatedAutoEncoder", gated, true, true),
        ("AutoEncoderTopK", topk.clone(), true, false),
        ("BatchTopKSAE", topk.clone(), true, false),
        ("MatryoshkaBatchTopKSAE", matryoshka, true, false),
        ("JumpReluAutoEncoder", jumprelu, false, true),
    ];
    for (class, arrays, subtracts, folds) in classes {
        let path = dir.path().join(class);
        arrays.save(&path, "ae.pt");
        let trainer = json!({"dict_class": class, "activation_dim": D, "dict_size": N, "layer": 3, "lm_name": "pythia",
            "submodule_name": "mlp_out_layer_3"});
        write(&path, "config.json", json!({"trainer": trainer, "buffer": {"ctx_len": 128}}).to_string());
        let loaded = read(&path);
        let native = arrays.0.contains_key("W_enc");
        let [enc, dec] =
            if native { ["W_enc", "W_dec"] } else { ["encoder.weight", "decoder.weight"] }.map(|name| arrays.get(name));
        let encoder = |j: usize, i: usize| if native { enc.at(&[i, j]) } else { enc.at(&[j, i]) };
        let decoder = |j: usize, o: usize| if native { dec.at(&[j, o]) } else { dec.at(&[o, j]) };
        let norm = |j: usize| {
            let square: f64 = (0..D).map(|o| f64::from(decoder(j, o)).powi(2)).sum();
            if folds { square.sqrt() as f32 } else { 1.0 }
        };
        let site: (&[&str], &[&str]) = (&["layers.3.mlp_out"], &["layers.3.mlp_out"]);
        check(&loaded, |j, i| encoder(j, i) * norm(j), |_, j, o| decoder(j, o) * (1.0 / norm(j)), site);
        assert_eq!((loaded.sae.subtract_decoder_bias, loaded.info.folded_decoder_norms), (subtracts, folds), "{class}");
        assert_eq!(loaded.sae.decoder_biases[0], Array::new(4, &[D]).values, "{class}");
        let scaled =
            |name: &str| arrays.get(name).values.iter().enumerate().map(|(j, x)| x * norm(j)).collect::<Vec<f32>>();
        let expected = match class {
            "AutoEncoder" | "AutoEncoderNew" => SaeKind::Relu,
            "AutoEncoderTopK" => SaeKind::TopK { k: 3, by_decoder_norm: None },
            "GatedAutoEncoder" => SaeKind::Gated {
                gate_bias: scaled("gate_bias"),
                magnitude_bias: scaled("mag_bias"),
                log_scale: arrays.get("r_mag").values.clone(),
            },
            "JumpReluAutoEncoder" => SaeKind::JumpRelu { threshold: scaled("threshold") },
            _ => SaeKind::JumpRelu { threshold: vec![0.25; N] },
        };
        assert_eq!(loaded.sae.kind, expected, "{class}");
    }
    let path = dir.path().join("unset");
    topk.with("threshold", threshold(-1.0)).save(&path, "ae.pt");
    write(&path, "config.json", r#"{"trainer": {"dict_class": "BatchTopKSAE", "layer": 1}}"#);
    assert!(refusal(&path).contains("training ended before it was set"));
    std::fs::remove_file(path.join("config.json")).expect("removed");
    assert!(refusal(&path).contains("fit several classes"));
}
