//! The test of an autoencoder when it is attached, on the built-in model and its own autoencoder.

use pellucid_models::attach::AttachOptions;
use pellucid_models::sae::{BUILTIN, LoadedSae, read_named_sae};
use pellucid_models::{LoadOptions, LoadedModel};

fn model() -> LoadedModel {
    LoadedModel::builtin(&LoadOptions::default()).expect("the built-in model")
}

fn sae() -> LoadedSae {
    read_named_sae(BUILTIN).expect("the built-in SAE")
}

fn at(site: &str) -> AttachOptions {
    AttachOptions { site: Some(site.into()), ..AttachOptions::default() }
}

#[test]
fn the_built_in_autoencoder_explains_its_site() {
    let mut model = model();
    let check = model.attach_sae(&sae(), &AttachOptions::default()).expect("it fits").expect("it was tested");
    assert!(check.explained_variance > 0.7 && check.tokens > 50, "{check:?}");
    assert!((check.l0 - 16.0).abs() < 0.5, "{check:?}");
    assert_eq!(check.warning(), None);
    assert!(model.model.find("layers.3.resid_post/sae.acts").is_ok());
    // The next layer is not far worse, so the autoencoder is attached there with a warning.
    let mut neighbor = LoadedModel::builtin(&LoadOptions::default()).expect("the built-in model");
    let check = neighbor.attach_sae(&sae(), &at("layers.2.resid_post")).expect("attached").expect("tested");
    assert!(check.warning().is_some_and(|warning| warning.contains("at layers.3.resid_post")), "{check:?}");
}

#[test]
fn an_autoencoder_at_the_wrong_layer_is_refused_and_the_right_one_named() {
    for site in ["layers.0.resid_pre", "layers.1.resid_post", "layers.3.mlp_out"] {
        let mut model = model();
        let error = model.attach_sae(&sae(), &at(site)).expect_err("refused").to_string();
        // One edge has two names.
        let right = ["at layers.3.resid_post", "at layers.4.resid_pre"].iter().any(|right| error.contains(right));
        assert!(error.contains(&format!("at {site}")) && right, "{site}: {error}");
        assert!(model.model.saes().is_empty(), "the model stays as it was");
        let unchecked = AttachOptions { unchecked: true, ..at(site) };
        assert_eq!(model.attach_sae(&sae(), &unchecked).expect("attached"), None);
    }
}

#[test]
fn an_autoencoder_of_another_model_is_refused() {
    // The same weights with shuffled features of the decoder reconstruct nothing.
    let mut other = sae();
    let sae = std::sync::Arc::get_mut(&mut other.sae).expect("not shared yet");
    let d = sae.d_in();
    let values: Vec<f32> = (0..sae.n_features() * d).map(|i| ((i * 7919) % 101) as f32 / 101.0 - 0.5).collect();
    sae.decoders[0] = pellucid_kernels::Matrix::pack(
        &pellucid_kernels::Pool::global(),
        sae.n_features(),
        d,
        pellucid_kernels::DType::F32,
        &|row, out| out.copy_from_slice(&values[row * d..][..d]),
    );
    let error = model().attach_sae(&other, &AttachOptions::default()).expect_err("refused").to_string();
    assert!(error.contains("worse than the mean") && error.contains("layers.2.resid_post"), "{error}");
}

#[test]
fn a_site_of_another_width_is_refused() {
    let error = model().attach_sae(&sae(), &at("layers.3.mlp_act")).expect_err("refused").to_string();
    assert!(error.contains("width 128"), "{error}");
    let several = model().attach_sae(&sae(), &at("layers.*.resid_post")).expect_err("refused").to_string();
    assert!(several.contains("several sites"), "{several}");
}
