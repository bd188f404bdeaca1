//! The actions of plans: the effect of each on its site, and that later ops use the edited value.

use crate::test_plans::{add, at, bits, call, capture, direction, from, logits, plan, run, set, value};
use golden::{Case, difference};
use pellucid_engine::plan::FromSite;
use pellucid_engine::{Action, Array, Operand, Plan, Tap};

const SITE: &str = "layers.1.resid_post";

fn whole(case: &Case, site: &str) -> Array {
    value(case, &run(case, [capture(site)]), site, 0)
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Runs an action on the last four positions and compares with `f` of each token's activation
/// there.
fn check(case: &Case, site: &str, action: Action, f: impl Fn(usize, &[f32]) -> Vec<f32>) {
    let before = whole(case, site);
    let found = run(case, [Tap::new(site, action.clone()).positions(at("-4:")), capture(site)]);
    let after = value(case, &found, site, 0);
    for token in 0..12 {
        let expected = if token < 8 { before.row(token).to_vec() } else { f(token - 8, before.row(token)) };
        let largest = expected.iter().fold(1.0f32, |most, x| most.max(x.abs()));
        assert!(
            difference(after.row(token), &expected) <= 1e-5 * largest,
            "{}: {action:?} on {site} at {token}",
            case.name
        );
        assert!(
            token >= 8 || after.row(token) == before.row(token),
            "{}: {action:?} reaches outside its selection",
            case.name
        );
    }
    // Later ops use the edited value: setting it directly gives the same logits, bit for bit.
    let rows = (0..12).map(|token| after.row(token).to_vec()).collect();
    assert_eq!(
        logits(&found),
        logits(&run(case, [set(site, Operand::Rows(rows))])),
        "{}: after {action:?} on {site}",
        case.name
    );
}

#[test]
fn each_action_has_its_documented_effect() {
    for case in [golden::case("llama"), golden::case("gpt_neox"), golden::case("gemma3_text")] {
        for site in [SITE, "layers.0.attn_out", "layers.2.mlp_in", "final_norm"] {
            let v = direction(32);
            let length = dot(&v, &v).sqrt();
            let unit: Vec<f32> = v.iter().map(|x| x / length).collect();
            let along = |h: &[f32], by: f32| h.iter().zip(&unit).map(|(h, u)| h + by * u).collect::<Vec<f32>>();
            let (vector, rows) =
                (Operand::Vector(v.clone()), Operand::Rows((0..4).map(|i| vec![i as f32; 32]).collect()));
            check(&case, site, Action::Set(Operand::Number(0.25)), |_, h| vec![0.25; h.len()]);
            check(&case, site, Action::Set(vector.clone()), |_, _| v.clone());
            check(&case, site, Action::Set(rows.clone()), |nth, h| vec![nth as f32; h.len()]);
            check(&case, site, Action::Add { operand: Operand::Number(1.0), scale: -0.5 }, |_, h| {
                h.iter().map(|x| x - 0.5).collect()
            });
            check(&case, site, Action::Add { operand: vector.clone(), scale: 2.0 }, |_, h| {
                h.iter().zip(&v).map(|(h, v)| h + 2.0 * v).collect()
            });
            check(&case, site, Action::Add { operand: rows, scale: 3.0 }, |nth, h| {
                h.iter().map(|x| x + 3.0 * nth as f32).collect()
            });
            check(&case, site, Action::Scale(-1.5), |_, h| h.iter().map(|x| -1.5 * x).collect());
            check(&case, site, Action::Zero, |_, h| vec![0.0; h.len()]);
            check(&case, site, Action::MeanAblate(vector.clone()), |_, _| v.clone());
            check(&case, site, Action::ProjectOut { vector: vector.clone(), scale: 0.0 }, |_, h| {
                along(h, -dot(h, &unit))
            });
            check(&case, site, Action::ProjectOut { vector: vector.clone(), scale: 3.0 }, |_, h| {
                along(h, 2.0 * dot(h, &unit))
            });
            let cap = |min, max| Action::Cap { vector: vector.clone(), min, max };
            check(&case, site, cap(Some(0.1), None), |_, h| along(h, dot(h, &unit).max(0.1) - dot(h, &unit)));
            check(&case, site, cap(None, Some(-0.1)), |_, h| along(h, dot(h, &unit).min(-0.1) - dot(h, &unit)));
            check(&case, site, cap(Some(-0.1), Some(0.1)), |_, h| {
                along(h, dot(h, &unit).clamp(-0.1, 0.1) - dot(h, &unit))
            });
            check(&case, site, call(|selected| selected.values.iter_mut().for_each(|x| *x = x.abs())), |_, h| {
                h.iter().map(|x| x.abs()).collect()
            });
        }
    }
}

#[test]
fn project_out_leaves_nothing_along_the_direction_and_cap_bounds_it() {
    let case = golden::case("qwen2");
    let v = direction(32);
    let length = dot(&v, &v).sqrt();
    let remaining = |action: Action| {
        whole_after(&case, Tap::new(SITE, action))
            .values()
            .chunks_exact(32)
            .map(|h| dot(h, &v) / length)
            .collect::<Vec<f32>>()
    };
    let before: Vec<f32> = whole(&case, SITE).values().chunks_exact(32).map(|h| dot(h, &v) / length).collect();
    assert!(before.iter().any(|x| x.abs() > 0.5), "the activation has a component along the direction");
    let out = remaining(Action::ProjectOut { vector: Operand::Vector(v.clone()), scale: 0.0 });
    assert!(out.iter().all(|x| x.abs() < 1e-5), "{out:?}");
    let capped = remaining(Action::Cap { vector: Operand::Vector(v.clone()), min: Some(-0.2), max: Some(0.3) });
    assert!(capped.iter().all(|x| (-0.2001..=0.3001).contains(x)), "{capped:?}");
}

fn whole_after(case: &Case, tap: Tap) -> Array {
    let site = tap.site.clone();
    run(case, [tap, capture(&site)]).captures[0].array.clone()
}

#[test]
fn a_vector_of_head_width_applies_to_each_selected_head() {
    let case = golden::case("llama");
    let (before, v) = (whole(&case, "layers.1.z"), direction(8));
    let after = whole_after(&case, Tap::new("layers.1.z", Action::Set(Operand::Vector(v.clone()))).heads([0, 2]));
    for (index, (before, after)) in before.values().chunks_exact(8).zip(after.values().chunks_exact(8)).enumerate() {
        assert_eq!(after, if index % 2 == 0 { &v } else { before });
    }
    let out = whole_after(
        &case,
        Tap::new("layers.1.z", Action::ProjectOut { vector: Operand::Vector(v.clone()), scale: 0.0 }).heads([3]),
    );
    for (index, head) in out.values().chunks_exact(8).enumerate() {
        assert!((dot(head, &v).abs() < 1e-4) == (index % 4 == 3), "the direction is removed from head 3 only");
    }
}

#[test]
fn a_call_sees_its_row_its_positions_and_its_selection() {
    let case = golden::case("llama");
    let seen = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let log = seen.clone();
    let action = call(move |selected| {
        log.lock().unwrap().push((selected.row, selected.positions.to_vec(), selected.width, selected.values.len()))
    });
    let tap = Tap::new("layers.1.z", action).rows([1]).positions(at("1,4")).heads([0, 3]);
    case.run(&[case.ids.clone(), case.ids[2..].to_vec()], &plan([tap]));
    assert_eq!(*seen.lock().unwrap(), [(1, vec![1, 4], 16, 32)]);
}

#[test]
fn a_value_may_come_from_another_site_of_the_same_row() {
    let case = golden::case("mistral");
    let own = |site: &str| Operand::From(FromSite { site: Some(site.into()), ..FromSite::default() });
    for (site, source) in [
        ("layers.2.mlp_out", "layers.0.mlp_out"),
        ("layers.1.resid_mid", "layers.1.resid_pre"),
        ("layers.2.resid_post", "embed"),
    ] {
        let found = run(&case, [set(site, own(source)), capture(site)]);
        assert_eq!(bits(&found.captures[0].array), bits(&whole(&case, source)), "{site} from {source}");
        let added = Tap::new(site, Action::Add { operand: own(source), scale: 0.5 });
        let sum: Vec<f32> =
            whole(&case, site).values().iter().zip(whole(&case, source).values()).map(|(a, b)| a + 0.5 * b).collect();
        assert!(difference(whole_after(&case, added).values(), &sum) < 1e-6, "{site} plus {source}");
    }
    // A source is read after the edits of its site.
    let found = run(
        &case,
        [
            set("layers.2.mlp_out", own("layers.0.mlp_out")),
            Tap::new("layers.0.mlp_out", Action::Zero),
            capture("layers.2.mlp_out"),
        ],
    );
    assert!(found.captures[0].array.values().iter().all(|&x| x == 0.0));
}

#[test]
fn a_row_may_use_another_rows_earlier_same_or_later_site() {
    let case = golden::case("gemma2");
    let inputs = [case.ids.clone(), case.ids.iter().rev().copied().collect(), case.ids[5..].to_vec()];
    let third = case.run(&inputs[2..], &Plan::capture(["logits"])).captures[0].array.clone();
    for source in ["layers.0.resid_post", "layers.1.resid_post", "layers.2.resid_post"] {
        for (reader, origin) in [(0, 1), (1, 0)] {
            // Without the logits nothing past the edited site runs for the reader, but the source
            // has to.
            for end in ["logits", SITE] {
                let taps = plan([
                    set(SITE, from(source, origin)).rows([reader]),
                    capture(SITE),
                    capture(source),
                    capture(end),
                ]);
                let found = case
                    .loaded
                    .model
                    .run(&inputs, &taps, &Default::default())
                    .unwrap_or_else(|e| panic!("{source} → {SITE}: {e}"));
                let (there, here) = (value(&case, &found, source, origin), value(&case, &found, SITE, reader));
                assert_eq!(bits(&there), bits(&here), "row {reader} takes {source} of row {origin}");
                let alone = case.run(&inputs[origin..=origin], &Plan::capture([source])).captures[0].array.clone();
                assert_eq!(bits(&there), bits(&alone), "the origin is unchanged");
                if end == "logits" {
                    assert_eq!(bits(&value(&case, &found, end, 2)), bits(&third), "the third row is unchanged");
                    let rows = (0..12).map(|token| there.row(token).to_vec()).collect();
                    let expected =
                        case.run(&inputs[reader..=reader], &plan([set(SITE, Operand::Rows(rows)), capture(end)]));
                    assert_eq!(bits(&value(&case, &found, end, reader)), bits(&expected.captures[0].array));
                }
            }
        }
    }
}

#[test]
fn a_later_site_of_another_row_is_computed_even_if_nothing_else_needs_it() {
    let case = golden::case("llama");
    let inputs = [case.ids.clone(), case.ids.iter().rev().copied().collect()];
    let taps = [
        set("layers.0.resid_post", from("layers.2.resid_post", 0)).rows([1]),
        capture("layers.0.resid_post").rows([1]),
    ];
    let found =
        case.loaded.model.run(&inputs, &plan(taps), &Default::default()).expect("row 0 runs to its last layer first");
    assert_eq!(bits(&found.captures[0].array), bits(&whole(&case, "layers.2.resid_post")));
}

#[test]
fn rows_pass_values_on_in_chains_of_any_order() {
    let case = golden::case("llama");
    let inputs = [case.ids.clone(), case.ids.iter().rev().copied().collect(), case.ids.iter().map(|t| t + 1).collect()];
    // 2 → 0 → 1, each from a later to an earlier site.
    let taps = [
        set("layers.0.resid_post", from("layers.1.resid_post", 0)).rows([1]),
        set("layers.1.resid_pre", from("layers.2.resid_post", 2)).rows([0]),
    ];
    let found = case.run(
        &inputs,
        &plan(taps.into_iter().chain(
            ["layers.0.resid_post", "layers.1.resid_pre", "layers.1.resid_post", "layers.2.resid_post"].map(capture),
        )),
    );
    let at = |site: &str, row: usize| bits(&value(&case, &found, site, row));
    assert!(at("layers.1.resid_pre", 0) == at("layers.2.resid_post", 2));
    assert!(at("layers.0.resid_post", 1) == at("layers.1.resid_post", 0));
    assert!(
        at("layers.0.resid_post", 0) != at("layers.1.resid_pre", 0),
        "resid_post of layer 0 is captured before the edit of layer 1's resid_pre"
    );
}

#[test]
fn a_source_may_name_other_positions_or_one_for_all() {
    let case = golden::case("llama");
    let inputs = [case.ids.clone(), case.ids[4..].to_vec()];
    let source =
        |positions: &str| Operand::From(FromSite { site: None, rows: Some(vec![0]), positions: Some(at(positions)) });
    let taken = |tap: Tap| value(&case, &case.run(&inputs, &plan([tap.rows([1]), capture(SITE)])), SITE, 1);
    let whole = whole(&case, SITE);
    let several = taken(set(SITE, source("9,2")).positions(at("0,-1")));
    assert_eq!((several.row(0), several.row(7)), (whole.row(9), whole.row(2)));
    let one = taken(set(SITE, source("3")).positions(at("2:5")));
    assert!((2..5).all(|token| one.row(token) == whole.row(3)));
    let last =
        taken(set(SITE, Operand::From(FromSite { rows: Some(vec![0]), ..FromSite::default() })).positions(at("last")));
    assert_eq!(last.row(7), whole.row(11), "`last` is each row's own");
}

#[test]
fn attention_may_be_set_from_another_row() {
    let case = golden::case("llama");
    let inputs = [case.ids.clone(), case.ids.iter().rev().copied().collect()];
    for point in ["layers.1.attn_probs", "layers.1.attn_scores"] {
        let found = case.run(&inputs, &plan([set(point, from(point, 0)).rows([1]).heads([2]), capture(point)]));
        let (theirs, ours) = (value(&case, &found, point, 0), value(&case, &found, point, 1));
        let alone = value(&case, &case.run(&inputs[1..], &Plan::capture([point])), point, 0);
        for head in 0..4 {
            assert_eq!(
                ours.row(head),
                if head == 2 { theirs.row(head) } else { alone.row(head) },
                "{point}: head {head}"
            );
        }
    }
}

#[test]
fn different_edits_of_different_rows_do_not_interact() {
    for case in [golden::case("llama"), golden::case("mixtral"), golden::case("bloom")] {
        let inputs = [case.ids.clone(), case.ids[3..].to_vec(), case.ids[1..9].to_vec()];
        let edits = [add(SITE, 2.0), Tap::new("layers.0.mlp_out", Action::Scale(3.0))];
        let taps = [edits[0].clone().rows([0]), edits[1].clone().rows([1]), capture("logits")];
        let together = case.run(&inputs, &plan(taps));
        for row in 0..3 {
            let own = edits.get(row).cloned().into_iter().chain([capture("logits")]);
            let alone = case.run(&inputs[row..=row], &plan(own));
            assert_eq!(
                bits(&value(&case, &together, "logits", row)),
                bits(&alone.captures[0].array),
                "{}: row {row}",
                case.name
            );
        }
    }
}
