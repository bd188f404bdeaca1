//! Bad input: each problem is named before anything runs.

use super::{FEATURES, attached, sae, width};
use crate::test_plans::{capture, plan};
use pellucid_engine::sae::SaeKind;
use pellucid_engine::{Action, Plan, RunOptions, Splice, Tap};
use std::sync::Arc;

#[test]
fn an_autoencoder_that_does_not_fit_is_refused() {
    let case = golden::case("gpt2");
    let model = &case.loaded.model;
    let site = case.site("layers.0.resid_post");
    let d = width(&case, site);
    let error = |read: &str, write: &str, d_in: usize, d_out: usize| {
        let sae = Arc::new(sae(SaeKind::Relu, d_in, d_out));
        match model.attach(sae, case.site(read), case.site(write)) {
            Ok(_) => panic!("{read} {write} is attached"),
            Err(error) => error.to_string(),
        }
    };
    let wide = error("layers.0.resid_post", "layers.0.resid_post", d + 1, d + 1);
    assert!(wide.contains(&format!("width {}", d + 1)) && wide.contains(&format!("has width {d}")), "{wide}");
    let late = error("layers.1.mlp_out", "layers.0.mlp_out", d, d);
    assert!(late.contains("computed after"), "{late}");
    let inside = error("layers.0.resid_pre", "layers.0.attn_normed", d, d);
    assert!(inside.contains("inside an op"), "{inside}");
    let twice = attached(&case, SaeKind::Relu, "layers.0.resid_post");
    let again = twice.attach(Arc::new(sae(SaeKind::Relu, d, d)), site, site);
    assert!(again.err().expect("refused").to_string().contains("already attached"));
}

#[test]
fn taps_on_missing_features_are_refused() {
    let case = golden::case("gpt2");
    let model = attached(&case, SaeKind::Relu, "layers.0.resid_post");
    let fails = |tap: Tap| {
        let run = model.run(std::slice::from_ref(&case.ids), &Plan::of([tap]), &RunOptions::default());
        run.expect_err("refused").to_string()
    };
    let range = fails(capture("layers.0.resid_post/sae.acts").units([FEATURES]));
    assert!(range.contains(&FEATURES.to_string()), "{range}");
    let part = fails(capture("layers.0.resid_post/sae.feature"));
    assert!(part.contains("is not a site"), "{part}");
    let elsewhere = fails(capture("layers.1.resid_post/sae.acts"));
    assert!(elsewhere.contains("layers.0.resid_post"), "{elsewhere}");
    let splice = fails(Tap::new("layers.1.resid_post", Action::Splice(Splice::Recon)));
    assert!(splice.contains("no SAE is attached there"), "{splice}");
    let none = case.loaded.model.run(
        std::slice::from_ref(&case.ids),
        &plan([capture("layers.0.resid_post/sae.acts")]),
        &RunOptions::default(),
    );
    assert!(none.expect_err("refused").to_string().contains("no SAE is attached to this model"));
}
