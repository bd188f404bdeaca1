//! Invariants of reads and writes (identities 12, 14 and 15; the others are in invariants.rs and
//! sublayers.rs): later tokens do not affect earlier ones, writing back a captured value changes
//! nothing, and a write to any site affects the logits.

use golden::Case;
use pellucid_engine::plan::FromSite;
use pellucid_engine::{Action, Callback, Operand, Plan, SelectedRow, Tap};
use std::sync::Arc;

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

/// The bits of the logits for the case's tokens under a plan.
fn logits(case: &Case, plan: Plan) -> Vec<u32> {
    let run = case.run(std::slice::from_ref(&case.ids), &plan.with(Tap::new("logits", Action::Capture(None))));
    bits(run.captures.last().expect("logits").array.values())
}

fn call(f: impl Fn(&mut SelectedRow) + Send + Sync + 'static) -> Action {
    Action::Call(Callback(Arc::new(move |rows: &mut [SelectedRow]| rows.iter_mut().for_each(&f))))
}

/// Sites that an edit may change: expert indices and recurrent states are read-only.
fn writable(case: &Case) -> Vec<String> {
    let read_only = |site: &str| site.ends_with("expert_indices") || site.ends_with("mixer_state");
    case.token_sites().into_iter().filter(|site| !read_only(site)).collect()
}

#[test]
fn identity_12_changing_the_last_token_changes_nothing_before_it() {
    for case in golden::all() {
        let sites: Vec<String> = case.loaded.model.program().sites().map(|site| site.to_string()).collect();
        let plan = Plan::capture(sites);
        let n = case.ids.len();
        let mut other = case.ids.clone();
        other[n - 1] = if other[n - 1] == 5 { 6 } else { 5 };
        let (first, second) = (case.run(std::slice::from_ref(&case.ids), &plan), case.run(&[other], &plan));
        let mut changed = 0;
        for (first, second) in first.captures.iter().zip(&second.captures) {
            let (site, attention) = (
                first.site.to_string(),
                first.site.to_string().contains("attn_scores") || first.site.to_string().contains("attn_probs"),
            );
            let (a, b) = (first.array.values(), second.array.values());
            // Attention is [heads, queries, keys]: compare all queries but the last of each head.
            let vectors = if attention { n * first.array.shape()[0] } else { n };
            let width = a.len() / vectors;
            for vector in 0..vectors {
                let (a, b) = (bits(&a[vector * width..][..width]), bits(&b[vector * width..][..width]));
                if vector % n < n - 1 {
                    assert_eq!(a, b, "{}: {site} at position {} depends on a later token", case.name, vector % n);
                } else {
                    changed += (a != b) as usize;
                }
            }
        }
        assert!(changed > 30, "{}: the last position itself changes", case.name);
    }
}

#[test]
fn identity_14_writing_back_what_was_captured_changes_nothing() {
    for case in golden::all() {
        let plain = logits(&case, Plan::default());
        for site in writable(&case) {
            let run = case.run(std::slice::from_ref(&case.ids), &Plan::capture([site.as_str()]));
            let array = &run.captures[0].array;
            let rows: Vec<Vec<f32>> = (0..case.ids.len()).map(|row| array.row(row).to_vec()).collect();
            let set = Tap::new(site.as_str(), Action::Set(Operand::Rows(rows.clone())));
            assert!(
                logits(&case, Plan::default().with(set)) == plain,
                "{}: writing {site} back changes the logits",
                case.name
            );
            // Control: another value changes them.
            let other = rows.iter().map(|row| row.iter().map(|x| 0.5 - 1.5 * x).collect()).collect();
            let set = Tap::new(site.as_str(), Action::Set(Operand::Rows(other)));
            assert!(
                logits(&case, Plan::default().with(set)) != plain,
                "{}: {site} has no effect on the logits",
                case.name
            );
        }
    }
}

#[test]
fn identity_14_holds_for_closures_scales_of_one_and_attention() {
    for case in golden::all() {
        let plain = logits(&case, Plan::default());
        let unfused = case.attends().then(|| logits(&case, Plan::capture(["layers.*.attn_scores"])));
        for site in writable(&case) {
            for action in [call(|_| {}), Action::Scale(1.0), Action::Add { operand: Operand::Number(0.0), scale: 1.0 }]
            {
                assert!(
                    logits(&case, Plan::default().with(Tap::new(site.as_str(), action))) == plain,
                    "{}: {site}",
                    case.name
                );
            }
        }
        for point in ["attn_scores", "attn_probs"] {
            let Some(unfused) = &unfused else { continue };
            let site = format!("layers.*.{point}");
            for action in [call(|_| {}), Action::Scale(1.0)] {
                assert!(
                    logits(&case, Plan::default().with(Tap::new(site.as_str(), action))) == *unfused,
                    "{}: {point}",
                    case.name
                );
            }
        }
    }
}

#[test]
fn identity_14_holds_between_two_rows_of_the_same_text() {
    for case in golden::all() {
        let plain = logits(&case, Plan::default());
        let same = [case.ids.clone(), case.ids.clone()];
        for site in writable(&case) {
            let from = FromSite { rows: Some(vec![0]), ..FromSite::default() };
            let tap = Tap::new(site.as_str(), Action::Set(Operand::From(from))).rows([1]);
            let run = case.run(&same, &Plan::default().with(tap).with(Tap::new("logits", Action::Capture(None))));
            assert!(
                run.captures.iter().all(|capture| bits(capture.array.values()) == plain),
                "{}: {site} from an equal row",
                case.name
            );
        }
    }
}

#[test]
fn identity_15_randomizing_attention_changes_the_logits() {
    for case in golden::all().iter().filter(|case| case.attends()) {
        let plain = logits(case, Plan::capture(["layers.*.attn_probs"]));
        let attends = |layer: &usize| case.loaded.model.find(&format!("layers.{layer}.attn_probs")).is_ok();
        for layer in (0..case.layers()).filter(attends) {
            for point in ["attn_probs", "attn_scores"] {
                let noise = call(|selected| {
                    let mut state = 12345u32 + selected.positions[0] as u32;
                    for value in selected.values.iter_mut() {
                        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                        *value = (state >> 8) as f32 / (1u32 << 24) as f32;
                    }
                });
                let tap = Tap::new(format!("layers.{layer}.{point}"), noise);
                assert!(
                    logits(case, Plan::default().with(tap)) != plain,
                    "{}: {point} of layer {layer} has no effect on the logits",
                    case.name
                );
            }
        }
    }
}
