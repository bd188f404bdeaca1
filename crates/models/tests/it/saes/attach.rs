//! Attaching and detaching, and the activations inside an autoencoder.

use super::{attached, kinds, run, sae, width};
use crate::test_plans::{bits, capture, generate, plan};
use golden::Case;
use pellucid_engine::sae::SaeKind;
use pellucid_engine::{Action, Control, GenerateOptions, Plan, RunOptions, Site, Tap};
use pellucid_kernels::Pool;
use std::sync::Arc;

/// The sites of a case at which an autoencoder can be attached, a few of each kind.
pub fn sites(case: &Case) -> Vec<&'static str> {
    let all = ["layers.0.resid_pre", "layers.0.resid_post", "layers.1.resid_pre", "layers.1.z", "layers.0.mlp_out"];
    let all = all.into_iter().chain(["layers.1.mlp_out_post", "layers.1.resid_post", "embed"]);
    all.filter(|site| case.loaded.model.find(site).is_ok()).collect()
}

#[test]
fn a_plan_that_names_no_feature_gives_the_bits_of_the_plain_model() {
    for name in golden::one_per_type() {
        let case = golden::case(&name);
        let mut model = case.loaded.model.clone();
        for site in sites(&case) {
            let site = case.site(site);
            let d = width(&case, site);
            // Two names of one edge: the second is refused, and the model stays as it is.
            if let Ok(more) = model.attach(Arc::new(sae(SaeKind::Relu, d, d)), site, site) {
                model = more;
            }
        }
        assert!(model.saes().len() >= 3, "{name}: {} SAEs", model.saes().len());
        let everything = Plan::of(case.token_sites().iter().map(|site| capture(site)).chain([capture("logits")]));
        let rows = [case.ids.clone(), case.ids[..3].to_vec()];
        let (plain, with) = (case.run(&rows, &everything), run(&model, &rows, &everything));
        assert_eq!(plain.captures.len(), with.captures.len());
        for (a, b) in plain.captures.iter().zip(&with.captures) {
            assert!(a.site == b.site && bits(&a.array) == bits(&b.array), "{name}: {}", a.site);
        }
        let options = GenerateOptions { max_new: 4, ..GenerateOptions::default() };
        let ours = model.generate(&rows, &Plan::default(), &options, &mut |_, _| Control::Go).expect("tokens");
        let theirs = generate(&case, &rows, &Plan::default(), 4);
        assert_eq!(ours.rows[0].tokens, theirs.rows[0].tokens, "{name}");
        let restored = model.detach_all();
        assert_eq!(restored.program().ops().len(), case.loaded.model.program().ops().len());
    }
}

#[test]
fn features_are_the_encoding_of_their_site() {
    for kind in kinds() {
        for name in ["gpt2", "llama"] {
            let case = golden::case(name);
            for site in sites(&case) {
                let model = attached(&case, kind.clone(), site);
                let parts = ["pre", "acts", "recon", "error"];
                let taps = parts.iter().map(|part| capture(&format!("{site}/sae.{part}"))).chain([capture(site)]);
                let run = run(&model, std::slice::from_ref(&case.ids), &plan(taps.chain([capture("logits")])));
                let [pre, acts, recon, error, x, logits] = &run.captures[..] else { panic!("six captures") };
                let sae = &model.saes()[0].sae;
                let pool = Pool::global();
                let mut expected = vec![0.0; pre.array.values().len()];
                let scales = sae.encode(&pool, x.array.values(), &mut expected);
                assert_eq!(pre.array.values(), expected, "{name} {site}");
                sae.activate(&pool, &mut expected);
                assert_eq!(acts.array.values(), expected);
                assert!(expected.iter().any(|&f| f > 0.0) && expected.contains(&0.0), "{name} {site}: features");
                let mut decoded = vec![0.0; x.array.values().len()];
                sae.decode(&pool, 0, &expected, &scales, x.array.values(), &mut decoded);
                assert_eq!(recon.array.values(), decoded);
                assert_eq!(recon.array.shape(), x.array.shape());
                let differences = x.array.values().iter().zip(&decoded).map(|(x, recon)| x - recon);
                assert!(error.array.values().iter().copied().eq(differences));
                // Reading features changes nothing.
                let plain = case.run(std::slice::from_ref(&case.ids), &plan([capture("logits")]));
                assert_eq!(bits(&logits.array), bits(&plain.captures[0].array));
            }
        }
    }
}

#[test]
fn names_of_saelens_and_patterns_address_features() {
    let case = golden::case("gpt2");
    let model = attached(&case, SaeKind::Relu, "layers.1.resid_pre");
    for name in ["blocks.1.hook_resid_pre.hook_sae_acts_post", "layers.*.resid_pre/sae.acts"] {
        let found = model.find(name).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(found.sites.iter().map(Site::to_string).collect::<Vec<_>>(), ["layers.1.resid_pre/sae.acts"]);
    }
    let listed: Vec<String> = model.program().sites().map(|site| site.to_string()).collect();
    for part in ["pre", "acts", "recon", "error", "out"] {
        assert!(listed.contains(&format!("layers.1.resid_pre/sae.{part}")), "{part} is listed");
    }
}

#[test]
fn a_capture_of_some_features_and_positions_is_a_part_of_the_whole() {
    let case = golden::case("llama");
    let model = attached(&case, SaeKind::Relu, "layers.0.resid_post");
    let site = "layers.0.resid_post/sae.acts";
    let some = Tap::new(site, Action::Capture(None)).units([3, 17]).positions(crate::test_plans::at("1,3"));
    let run = run(&model, std::slice::from_ref(&case.ids), &plan([some, capture(site)]));
    let (some, whole) = (&run.captures[0].array, &run.captures[1].array);
    assert_eq!(some.shape(), [2, 2]);
    let n = whole.shape()[1];
    let expected: Vec<f32> =
        [1, 3].iter().flat_map(|position| [3, 17].map(|unit| whole.values()[position * n + unit])).collect();
    assert_eq!(some.values(), expected);
}

#[test]
fn detaching_one_autoencoder_keeps_the_others() {
    let case = golden::case("gpt2");
    let model = attached(&case, SaeKind::Relu, "layers.0.resid_post");
    let site = case.site("layers.1.z");
    let d = width(&case, site);
    let two = model.attach(Arc::new(sae(SaeKind::Relu, d, d)), site, site).expect("a second one");
    let one = two.detach(case.site("layers.0.resid_post")).expect("detached");
    assert!(one.find("layers.0.resid_post/sae.acts").is_err() && one.find("layers.1.z/sae.acts").is_ok());
    let plan = plan([capture("layers.1.z/sae.acts")]);
    let ids = std::slice::from_ref(&case.ids);
    let options = RunOptions::default();
    let (a, b) = (one.run(ids, &plan, &options).expect("a run"), two.run(ids, &plan, &options).expect("a run"));
    assert_eq!(bits(&a.captures[0].array), bits(&b.captures[0].array));
}
