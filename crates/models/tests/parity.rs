//! Every golden model gives the numbers that `transformers` gives.

#[allow(dead_code)] // each test file uses its own part of this module
mod golden;

use golden::{Case, difference};
use pellucid_engine::{Generate, Plan};
use pellucid_models::families;

/// What is wrong with a case, in words; empty when nothing is.
type Faults = Vec<String>;

/// Runs a check on every case, and reports all faults at once.
fn every_case(check: impl Fn(&Case) -> Faults) {
    let faults: Faults = golden::names()
        .iter()
        .flat_map(|name| match golden::open(name) {
            Ok(case) => check(&case),
            Err(error) => vec![error],
        })
        .collect();
    assert!(faults.is_empty(), "{} faults\n{}", faults.len(), faults.join("\n"));
}

/// Compares a site with a reference tensor. A site that the model does not have and a tensor that the case does not have
/// are no fault here; those that must be there are asked for with `needed`.
fn compare(case: &Case, site: &str, tensor: &str, tolerance: f32, needed: bool) -> Option<String> {
    let Some((_, truth)) = case.reference.get(tensor) else {
        return needed.then(|| format!("{}: the case has no {tensor}", case.name));
    };
    if case.loaded.model.find(site).is_err() {
        return Some(format!("{}: there is a reference for {tensor} and no site {site}", case.name));
    }
    let off = difference(&case.capture(&[site])[0], truth);
    (off > tolerance).then(|| format!("{}: {site} is off by {off} (allowed {tolerance})", case.name))
}

#[test]
fn logits_streams_and_sublayers_agree() {
    every_case(|case| {
        let mut faults = Faults::new();
        faults.extend(compare(case, "logits", "logits", 1e-4, true));
        faults.extend(compare(case, "layers.0.resid_pre", "resid_pre.0", 1e-4, true));
        faults.extend(compare(case, "final_norm", "final_norm", 1e-4, false));
        for layer in 0..case.layers() {
            let at = |point: &str| (format!("layers.{layer}.{point}"), format!("{point}.{layer}"));
            let (site, tensor) = at("resid_post");
            faults.extend(compare(case, &site, &tensor, 1e-4, true));
            for point in ["attn_out", "mixer_out", "mlp_out", "z", "mlp_act", "router_logits"] {
                let (site, tensor) = at(point);
                faults.extend(compare(case, &site, &tensor, 1e-4, false));
            }
        }
        faults
    });
}

#[test]
fn attention_probabilities_agree() {
    let layers: usize = golden::all()
        .iter()
        .map(|case| {
            let there = |layer: &usize| case.reference.contains_key(&format!("attn_probs.{layer}"));
            (0..case.layers()).filter(there).count()
        })
        .sum();
    assert!(layers > 100, "most cases come with their attention");
    every_case(|case| {
        let one =
            |layer| compare(case, &format!("layers.{layer}.attn_probs"), &format!("attn_probs.{layer}"), 1e-5, false);
        (0..case.layers()).filter_map(one).collect()
    });
}

#[test]
fn greedy_continuations_agree_token_for_token() {
    every_case(|case| {
        let truth: Vec<u32> = case.reference["greedy"].1.iter().map(|&x| x as u32).collect();
        let options = Generate { max_new: truth.len(), ..Generate::default() };
        let model = &case.loaded.model;
        let generation = model.generate(std::slice::from_ref(&case.ids), &Plan::default(), &options, &mut |_, _| {
            pellucid_engine::Control::Go
        });
        match generation {
            Ok(generation) if generation.rows[0].tokens == truth => Faults::new(),
            Ok(generation) => vec![format!("{}: {:?} and not {truth:?}", case.name, generation.rows[0].tokens)],
            Err(error) => vec![format!("{}: {error}", case.name)],
        }
    });
}

#[test]
fn a_shorter_row_agrees_beside_a_longer_one() {
    every_case(|case| {
        let short = case.ids[3..].to_vec();
        let run = case.run(&[case.ids.clone(), short], &Plan::capture(["logits"]));
        let off = difference(run.captures[1].array.values(), &case.reference["short_logits"].1);
        (off > 1e-4).then(|| format!("{}: the shorter row is off by {off}", case.name)).into_iter().collect()
    });
}

#[test]
fn every_native_family_has_a_golden_case() {
    let seen: Vec<String> =
        golden::all().iter().map(|case| case.loaded.model.program().architecture().family.clone()).collect();
    for family in families::native() {
        assert!(seen.iter().any(|s| s == family), "{family} is called native and has no golden case");
    }
}
