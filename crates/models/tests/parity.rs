//! Every golden model gives the numbers that `transformers` gives.

#[allow(dead_code)] // each test file uses its own part of this module
mod golden;

use golden::{Case, difference};
use pellucid_engine::{Generate, Plan};
use pellucid_models::families;

/// Compares a site with a reference tensor, if the case has it.
fn compare(case: &Case, site: &str, tensor: &str, tolerance: f32) -> bool {
    let Some((_, truth)) = case.reference.get(tensor) else { return false };
    let ours = &case.capture(&[site])[0];
    let off = difference(ours, truth);
    assert!(off <= tolerance, "{}: {site} is off by {off} (allowed {tolerance})", case.name);
    true
}

#[test]
fn logits_streams_and_sublayers_agree() {
    for case in golden::all() {
        assert!(compare(&case, "logits", "logits", 1e-4), "{}: no logits", case.name);
        assert!(compare(&case, "layers.0.resid_pre", "resid_pre.0", 1e-4), "{}: no resid_pre", case.name);
        compare(&case, "final_norm", "final_norm", 1e-4);
        for layer in 0..case.layers() {
            assert!(
                compare(&case, &format!("layers.{layer}.resid_post"), &format!("resid_post.{layer}"), 1e-4),
                "{}: no resid_post",
                case.name
            );
            for point in ["attn_out", "mlp_out", "z", "mlp_act", "router_logits"] {
                compare(&case, &format!("layers.{layer}.{point}"), &format!("{point}.{layer}"), 1e-4);
            }
        }
    }
}

#[test]
fn attention_probabilities_agree() {
    for case in golden::all() {
        for layer in 0..case.layers() {
            let there = compare(&case, &format!("layers.{layer}.attn_probs"), &format!("attn_probs.{layer}"), 1e-5);
            assert!(there, "{}: no attention of layer {layer}", case.name);
        }
    }
}

#[test]
fn greedy_continuations_agree_token_for_token() {
    for case in golden::all() {
        let truth: Vec<u32> = case.reference["greedy"].1.iter().map(|&x| x as u32).collect();
        let options = Generate { max_new: truth.len(), ..Generate::default() };
        let generation =
            case.loaded.model.generate(std::slice::from_ref(&case.ids), &Plan::default(), &options, &mut |_, _| {
                pellucid_engine::Control::Go
            });
        assert_eq!(generation.expect("a generation").rows[0].tokens, truth, "{}", case.name);
    }
}

#[test]
fn a_shorter_row_agrees_beside_a_longer_one() {
    for case in golden::all() {
        let short = case.ids[3..].to_vec();
        let run = case.run(&[case.ids.clone(), short], &Plan::capture(["logits"]));
        let off = difference(run.captures[1].array.values(), &case.reference["short_logits"].1);
        assert!(off <= 1e-4, "{}: the shorter row is off by {off}", case.name);
    }
}

#[test]
fn every_native_family_has_a_golden_case() {
    let seen: Vec<String> =
        golden::all().iter().map(|case| case.loaded.model.program().architecture().family.clone()).collect();
    for family in families::native() {
        assert!(seen.iter().any(|s| s == family), "{family} is called native and has no golden case");
    }
}
