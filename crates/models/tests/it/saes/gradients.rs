//! Gradients of features, and through features.

use super::{FEATURES, attached, kinds, run, sae, width};
use crate::test_plans::{at, capture, plan};
use golden::Case;
use pellucid_engine::plan::{Expr, Pick};
use pellucid_engine::sae::{InputNormalization, SaeKind};
use pellucid_engine::{Action, Model, Operand, Plan, RunOptions, Splice, Tap};
use std::sync::Arc;

/// A plan whose metric is the log-probability of token 7 after the prompt.
pub fn metric(plan: &mut Plan) {
    let logits = plan.read(Tap::new("logits", Action::Read).positions(at("last")));
    let logs = plan.value(Expr::Softmax { of: logits, axis: -1, log: true });
    let one = plan.value(Expr::Index { of: logs, picks: vec![Pick::At(0), Pick::At(7)] });
    plan.metrics.push(one);
    plan.save.push(one);
}

pub fn gradient(site: &str) -> Tap {
    Tap::new(site, Action::Grad { metric: 0, action: Box::new(Action::Capture(None)) })
}

pub fn gradients(model: &Model, case: &Case, taps: Vec<Tap>, recompute: bool) -> Vec<Vec<f32>> {
    let mut plan = plan(taps);
    metric(&mut plan);
    let options = RunOptions { recompute, ..RunOptions::default() };
    let run = model.run(std::slice::from_ref(&case.ids), &plan, &options).unwrap_or_else(|e| panic!("{e}"));
    run.captures.iter().map(|capture| capture.array.values().to_vec()).collect()
}

#[test]
fn the_gradient_of_a_feature_is_its_decoder_row_times_the_gradient_of_the_stream() {
    for kind in kinds() {
        let case = golden::case("llama");
        let site = "layers.0.resid_post";
        let model = attached(&case, kind, site);
        for recompute in [false, true] {
            let ours = gradients(&model, &case, vec![gradient("layers.0.resid_post/sae.acts")], recompute);
            let stream = gradients(&case.loaded.model, &case, vec![gradient(site)], recompute);
            let d = width(&case, case.site(site));
            let decoder = &model.saes()[0].sae.decoders[0];
            let mut row = vec![0.0; d];
            for (token, (ours, stream)) in ours[0].chunks_exact(FEATURES).zip(stream[0].chunks_exact(d)).enumerate() {
                for (feature, &g) in ours.iter().enumerate() {
                    decoder.row(feature, &mut row);
                    let expected: f32 = row.iter().zip(stream).map(|(w, g)| w * g).sum();
                    assert!((g - expected).abs() < 1e-5 * expected.abs().max(0.1), "token {token}: {g} {expected}");
                }
            }
        }
    }
}

/// The metric of a run under a plan.
pub fn value(model: &Model, case: &Case, taps: Vec<Tap>) -> f32 {
    let mut plan = plan(taps);
    metric(&mut plan);
    run(model, std::slice::from_ref(&case.ids), &plan).saved[0].array.values()[0]
}

#[test]
fn gradients_through_a_spliced_autoencoder_agree_with_finite_differences() {
    let case = golden::case("llama");
    let normalizations = [
        InputNormalization::None,
        InputNormalization::UnitNorm,
        InputNormalization::LayerNorm,
        InputNormalization::Constant(1.7),
    ];
    let site = case.site("layers.0.resid_post");
    let d = width(&case, site);
    for (kind, normalization) in kinds().into_iter().flat_map(|kind| normalizations.map(|n| (kind.clone(), n))) {
        let autoencoder = pellucid_engine::Sae { normalization, ..sae(kind.clone(), d, d) };
        let model = case.loaded.model.attach(Arc::new(autoencoder), site, site).expect("attached");
        // An edit of a feature lies between the site and the metric.
        let taps = || {
            vec![
                Tap::new("layers.0.resid_post", Action::Splice(Splice::Recon)),
                Tap::new("layers.0.resid_post/sae.acts", Action::Scale(1.5)).units([0, 1, 2, 3, 4]),
            ]
        };
        let with_gradient = taps().into_iter().chain([gradient("layers.0.resid_post")]).collect();
        let found = gradients(&model, &case, with_gradient, false).remove(0);
        let position = case.ids.len() / 2;
        let own = &found[position * d..][..d];
        let norm = own.iter().map(|g| g * g).sum::<f32>().sqrt();
        assert!(norm > 0.0, "{kind:?} {normalization:?}: a gradient");
        let step = 1e-3;
        let moved = |by: f32| {
            let vector = own.iter().map(|g| g / norm * by).collect();
            let add = Action::Add { operand: Operand::Vector(vector), scale: 1.0 };
            let shift = Tap::new("layers.0.resid_post", add).positions(at(&position.to_string()));
            value(&model, &case, std::iter::once(shift).chain(taps()).collect())
        };
        let slope = (moved(step) - moved(-step)) / (2.0 * step);
        // A token whose active set changes within the step has no derivative; the step is small.
        assert!((slope - norm).abs() < 0.02 * norm.max(0.05), "{kind:?} {normalization:?}: {slope} {norm}");
    }
}

#[test]
fn with_the_error_term_gradients_pass_through_the_features_only() {
    let case = golden::case("llama");
    let site = case.site("layers.0.resid_post");
    let d = width(&case, site);
    let model = attached(&case, SaeKind::Relu, "layers.0.resid_post");
    let run = |how| {
        let taps = vec![Tap::new("layers.0.resid_post", Action::Splice(how)), gradient("layers.0.resid_post")];
        gradients(&model, &case, taps, false).remove(0)
    };
    // The values differ, so compare the path: the error is a constant, and its own gradient is that
    // of the output.
    let with_error = run(Splice::ReconAndError);
    let taps = vec![
        Tap::new("layers.0.resid_post", Action::Splice(Splice::ReconAndError)),
        gradient("layers.0.resid_post/sae.error"),
        gradient("layers.0.resid_post/sae.out"),
        gradient("layers.0.resid_post/sae.pre"),
    ];
    let [error, out, pre] = &gradients(&model, &case, taps, false)[..] else { panic!("three gradients") };
    assert_eq!(error, out);
    let encoder = &model.saes()[0].sae.encoder;
    let mut row = vec![0.0; d];
    for (g, pre) in with_error.chunks_exact(d).zip(pre.chunks_exact(FEATURES)) {
        let mut expected = vec![0.0; d];
        for (feature, pre) in pre.iter().enumerate() {
            encoder.row(feature, &mut row);
            expected.iter_mut().zip(&row).for_each(|(sum, w)| *sum += w * pre);
        }
        let largest = expected.iter().fold(0.01_f32, |max, x| max.max(x.abs()));
        assert!(golden::difference(g, &expected) < 1e-5 * largest.max(1.0));
    }
}

#[test]
fn an_unused_autoencoder_does_not_change_gradients() {
    for name in ["gpt2", "llama"] {
        let case = golden::case(name);
        let model = attached(&case, SaeKind::Relu, "layers.0.resid_post");
        let taps = || vec![gradient("layers.0.resid_pre"), gradient("layers.0.resid_post")];
        assert_eq!(gradients(&model, &case, taps(), false), gradients(&case.loaded.model, &case, taps(), false));
        let capture = plan([capture("layers.0.resid_post")]);
        run(&model, std::slice::from_ref(&case.ids), &capture);
    }
}
