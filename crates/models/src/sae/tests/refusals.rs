//! Bad input: the error names the file, the tensor or key and the expected shape.

use super::*;
use crate::sae::fold_input_scale;
use pellucid_kernels::Pool;
use serde_json::json;
use std::sync::Arc;

const D: usize = 5;
const N: usize = 12;

fn saelens() -> Arrays {
    Arrays::default()
        .with("W_enc", Array::new(1, &[D, N]))
        .with("W_dec", Array::new(2, &[N, D]))
        .with("b_enc", Array::new(3, &[N]))
        .with("b_dec", Array::new(4, &[D]))
}

fn settings(dir: &Path, change: serde_json::Value) {
    let mut cfg = json!({"architecture": "standard", "d_in": D, "d_sae": N, "metadata": {}});
    let (Some(cfg_map), Some(change)) = (cfg.as_object_mut(), change.as_object()) else { panic!("objects") };
    cfg_map.extend(change.clone());
    write(dir, "cfg.json", cfg.to_string());
}

#[test]
fn wrong_weights_are_refused_by_name_and_shape() {
    let dir = tempfile::tempdir().expect("a directory");
    settings(dir.path(), json!({}));
    let mut nan = saelens();
    if let Some(array) = nan.0.get_mut("W_dec") {
        array.values[4 * D + 2] = f32::NAN;
    }
    let mut infinite = saelens();
    if let Some(array) = infinite.0.get_mut("b_enc") {
        array.values[7] = f32::INFINITY;
    }
    let cases: [(Arrays, &[&str]); 7] = [
        (saelens().transpose("W_enc"), &["`W_enc`", "[12, 5]", "[d_in 5, d_sae 12]", "transposed"]),
        (saelens().transpose("W_dec"), &["`W_dec`", "[5, 12]", "[d_sae 12, d_out 5]", "transposed"]),
        (saelens().without("b_enc"), &["`b_enc`", "missing", "W_dec, W_enc, b_dec"]),
        (saelens().with("b_dec", Array::new(1, &[D + 1])), &["`b_dec`", "[6]", "[d_out 5]"]),
        (saelens().with("W_extra", Array::new(1, &[D])), &["unknown tensor `W_extra`", "could change the results"]),
        (nan, &["the decoder of feature 4 has a NaN"]),
        (infinite, &["`b_enc`", "element 7 is inf"]),
    ];
    for (arrays, parts) in cases {
        arrays.save(dir.path(), "sae_weights.safetensors");
        let text = refusal(dir.path());
        assert!(text.contains("sae_weights.safetensors") && parts.iter().all(|part| text.contains(part)), "{text}");
    }
    std::fs::write(dir.path().join("sae_weights.safetensors"), "version https://git-lfs").expect("written");
    assert!(refusal(dir.path()).contains("git lfs pull"));
}

#[test]
fn settings_that_would_change_the_results_are_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    saelens().save(dir.path(), "sae_weights.safetensors");
    for (change, part) in [
        (json!({"architecture": "temporal"}), "depend on earlier positions"),
        (json!({"architecture": "matching_pursuit"}), "iterative search"),
        (json!({"architecture": "topk"}), "`k`: it is missing"),
        (json!({"architecture": "topk", "k": 13}), "k is 13, but there are 12 features"),
        (json!({"normalize_activations": "covariance_whitening"}), "covariance_whitening"),
        (json!({"new_option": 3}), "unknown setting `new_option`"),
        (json!({"d_in": "five"}), "`d_in`: expected a whole number"),
        (json!({"d_sae": 13}), "[d_in 5, d_sae 13]"),
    ] {
        settings(dir.path(), change);
        let text = refusal(dir.path());
        assert!(text.contains(part), "{text}");
    }
    std::fs::remove_file(dir.path().join("cfg.json")).expect("removed");
    assert!(refusal(dir.path()).contains("cfg.json: the file is missing"));
    settings(dir.path(), json!({}));
    saelens().with("scaling_factor", Array::of(&[N], vec![1.0; N])).save(dir.path(), "sae_weights.safetensors");
    read(dir.path());
    saelens().with("scaling_factor", Array::of(&[N], vec![1.1; N])).save(dir.path(), "sae_weights.safetensors");
    assert!(refusal(dir.path()).contains("not all ones"));
}

#[test]
fn an_unknown_directory_names_every_format_and_why_it_does_not_match() {
    let dir = tempfile::tempdir().expect("a directory");
    write(dir.path(), "notes.txt", "");
    let text = refusal(dir.path());
    for part in [
        "SAELens: there is no sae_weights.safetensors",
        "Gemma Scope: there is no params.npz",
        "Qwen-Scope: there is no layer0.sae.pt",
    ] {
        assert!(text.contains(part), "{text}");
    }
    assert!(super::super::FORMATS.iter().all(|format| text.contains(format.name)), "{text}");
    saelens().save(dir.path(), "weights.safetensors");
    assert!(refusal(&dir.path().join("weights.safetensors")).contains("not an autoencoder in a known format"));
    assert!(refusal(&dir.path().join("absent")).contains("absent"));
    // A release lists its autoencoders; one alone is read.
    for name in ["a/b", "c"] {
        let inner = dir.path().join(name);
        settings_and_weights(&inner);
        let found = read_sae(dir.path());
        assert_eq!(found.is_ok(), name == "a/b");
    }
    let text = refusal(dir.path());
    assert!(
        text.contains("holds 2 autoencoders") && text.contains("a/b") && text.contains("give the path of one"),
        "{text}"
    );
    // A temporal autoencoder is recognized and refused.
    let temporal = dir.path().join("layer_12/temporal");
    write(&temporal, "conf.yaml", "");
    write(&temporal, "latest_ckpt.safetensors", "");
    assert!(refusal(&temporal).contains("temporal autoencoder"));
}

fn settings_and_weights(dir: &Path) {
    saelens().save(dir, "sae_weights.safetensors");
    settings(dir, json!({}));
}

#[test]
fn folds_leave_reconstructions_unchanged() {
    let dir = tempfile::tempdir().expect("a directory");
    let x: Vec<f64> = (0..D).map(|i| (i as f64 * 1.7).sin() * 2.0).collect();
    let arrays = saelens().with("threshold", Array::positive(6, &[N]));
    for architecture in ["standard", "jumprelu"] {
        let stored = if architecture == "standard" { arrays.clone().without("threshold") } else { arrays.clone() };
        stored.save(dir.path(), "sae_weights.safetensors");
        settings(dir.path(), json!({"architecture": architecture}));
        let (before, recon) = encode_decode(&read(dir.path()).sae, &x);
        assert!(before.iter().any(|act| *act > 0.0), "features are active");
        let folded = read(dir.path()).sae.fold_decoder_norms(&Pool::global()).expect("folded");
        let (after, same) = encode_decode(&folded, &x);
        for feature in 0..N {
            let norm = (0..D).map(|o| f64::from(arrays.get("W_dec").at(&[feature, o])).powi(2)).sum::<f64>().sqrt();
            assert!((after[feature] - before[feature] * norm).abs() < 1e-6, "{architecture}: feature {feature}");
            let unit: f32 = row(&folded.decoders[0], feature).iter().map(|x| x * x).sum();
            assert!((unit - 1.0).abs() < 1e-6);
        }
        assert!(recon.iter().zip(&same).all(|(a, b)| (a - b).abs() < 1e-6), "{recon:?} {same:?}");

        // A constant input scale: the folded autoencoder on x is the original on c·x, divided by c.
        let c = 1.75;
        let scaled: Vec<f64> = x.iter().map(|x| x * c).collect();
        let (acts, recon) = encode_decode(&read(dir.path()).sae, &scaled);
        let folded = fold_input_scale(owned(read(dir.path())), c as f32).expect("folded");
        let (folded_acts, folded_recon) = encode_decode(&folded, &x);
        assert!(acts.iter().zip(&folded_acts).all(|(a, b)| (a - b).abs() < 1e-5));
        assert!(recon.iter().zip(&folded_recon).all(|(a, b)| (a / c - b).abs() < 1e-5));
    }
    settings(dir.path(), json!({"architecture": "topk", "k": 2}));
    saelens().save(dir.path(), "sae_weights.safetensors");
    let refused = read(dir.path()).sae.fold_decoder_norms(&Pool::global()).map(|_| ()).expect_err("refused");
    assert!(refused.to_string().contains("rank them differently"), "{refused}");
}

/// The weights of an autoencoder that is not shared.
fn owned(loaded: LoadedSae) -> Sae {
    Arc::into_inner(loaded.sae).expect("not shared")
}
