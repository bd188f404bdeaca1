//! Selectors and captures: the rows, positions, heads, units and keys that a tap selects, and the
//! captured arrays.

use crate::test_plans::{add, at, bits, capture, direction, logits, plan, run, set, value};
use golden::{Case, difference};
use pellucid_engine::{Action, Array, Control, GenerateOptions, Operand, Plan, Reduce, RunOptions, Tap};

const SITE: &str = "layers.1.resid_post";

fn whole(case: &Case, site: &str) -> Array {
    value(case, &run(case, [capture(site)]), site, 0)
}

#[test]
fn rows_select_inputs_of_the_call() {
    let case = golden::case("llama");
    let inputs = [case.ids.clone(), case.ids[3..].to_vec(), case.ids[..4].to_vec()];
    let found = case.run(&inputs, &plan([capture(SITE).rows([2, 1]), capture("layers.0.z")]));
    let rows: Vec<(usize, usize)> = found.captures.iter().map(|capture| (capture.tap, capture.row)).collect();
    assert_eq!(rows, [(0, 1), (0, 2), (1, 0), (1, 1), (1, 2)], "the plan's order, row by row");
    assert_eq!(value(&case, &found, SITE, 2).shape(), [4, 32]);
}

#[test]
fn positions_select_tokens_in_the_given_order() {
    let case = golden::case("gemma2");
    for site in [SITE, "logits", "layers.2.value", "final_scale"] {
        let whole = whole(&case, site);
        for (text, expected) in [
            ("0", vec![0]),
            ("-1", vec![11]),
            ("last", vec![11]),
            ("2:5", vec![2, 3, 4]),
            ("-3:", vec![9, 10, 11]),
            (":-9", vec![0, 1, 2]),
            ("::4", vec![0, 4, 8]),
            ("5,0,-2", vec![5, 0, 10]),
            ("prompt", (0..12).collect()),
            ("all", (0..12).collect()),
        ] {
            for chunk in [None, Some(1), Some(5)] {
                let tap = plan([capture(site).positions(at(text))]);
                let found = case
                    .loaded
                    .model
                    .run(std::slice::from_ref(&case.ids), &tap, &RunOptions { chunk, ..RunOptions::default() })
                    .expect("a run");
                let capture = &found.captures[0];
                assert_eq!(capture.positions, expected, "{site} at {text}");
                assert_eq!(capture.array.shape()[0], expected.len());
                assert_eq!(capture.array.shape()[1..], whole.shape()[1..]);
                for (index, &position) in expected.iter().enumerate() {
                    assert_eq!(capture.array.row(index), whole.row(position), "{site} at {text}");
                }
            }
        }
    }
}

#[test]
fn an_edit_at_a_position_leaves_earlier_positions_alone() {
    let case = golden::case("qwen3");
    let plain = whole(&case, "logits");
    for site in case.token_sites() {
        let edited = run(&case, [add(&site, 0.5).positions(at("7"))]);
        let edited = &edited.captures[0].array;
        assert_eq!(edited.values()[..7 * 96], plain.values()[..7 * 96], "{site} at 7 affects earlier positions");
        assert!(edited.row(7) != plain.row(7), "{site} at 7 has no effect");
    }
}

#[test]
fn heads_select_parts_of_an_activation_and_of_attention() {
    let case = golden::case("llama");
    let (z, probs) = (whole(&case, "layers.1.z"), whole(&case, "layers.1.attn_probs"));
    let found = run(&case, [capture("layers.1.z").heads([3, 1])]);
    let some = value(&case, &found, "layers.1.z", 0);
    assert_eq!((z.shape(), some.shape()), (&[12, 4, 8][..], &[12, 2, 8][..]));
    for token in 0..12 {
        assert_eq!(some.row(token)[..8], z.row(token)[24..], "head 3 comes first");
        assert_eq!(some.row(token)[8..], z.row(token)[8..16]);
    }
    let found = run(&case, [capture("layers.1.attn_probs").heads([2]).positions(at("-2:"))]);
    let some = value(&case, &found, "layers.1.attn_probs", 0);
    assert_eq!(some.shape(), [1, 2, 12]);
    assert_eq!(some.values(), &probs.row(2)[10 * 12..]);
}

#[test]
fn editing_one_head_changes_that_head_only() {
    let case = golden::case("llama");
    for site in ["layers.1.q", "layers.1.value", "layers.1.z", "layers.1.head_out"] {
        let heads = whole(&case, site).shape()[1];
        let found = run(&case, [Tap::new(site, Action::Zero).heads([1]), capture(site)]);
        let (before, after) = (whole(&case, site), value(&case, &found, site, 0));
        let dim = before.shape()[2];
        for (index, (before, after)) in
            before.values().chunks_exact(dim).zip(after.values().chunks_exact(dim)).enumerate()
        {
            let zeroed = index % heads == 1;
            assert_eq!(after, if zeroed { vec![0.0; dim] } else { before.to_vec() }, "{site}");
        }
        assert_ne!(logits(&found), bits(&whole(&case, "logits")), "{site} affects the logits");
    }
    // Ablating a head at z equals ablating it at head_out.
    let zeroed = |site: &str| {
        run(&case, [Tap::new(site, Action::Zero).heads([2]), capture("layers.1.attn_out")]).captures[0].array.clone()
    };
    assert!(difference(zeroed("layers.1.z").values(), zeroed("layers.1.head_out").values()) < 1e-6);
}

#[test]
fn units_select_columns() {
    let case = golden::case("gpt2");
    let whole = whole(&case, SITE);
    let found = run(&case, [capture(SITE).units([31, 0, 4]), add(SITE, 2.0).units([5]), capture(SITE)]);
    for token in 0..12 {
        let (some, after) = (found.captures[0].array.row(token), found.captures[1].array.row(token));
        assert_eq!(some, [whole.row(token)[31], whole.row(token)[0], whole.row(token)[4]]);
        let expected: Vec<f32> =
            whole.row(token).iter().enumerate().map(|(unit, x)| if unit == 5 { x + 2.0 } else { *x }).collect();
        assert_eq!(after, expected);
    }
}

#[test]
fn keys_can_be_ablated_in_attention_weights_and_in_scores() {
    for case in [golden::case("llama"), golden::case("gemma2"), golden::case("bloom")] {
        let before = whole(&case, "layers.1.attn_probs");
        let ablate = |tap: Tap| {
            value(
                &case,
                &run(&case, [tap.keys(at("8,9")).positions(at("10:")), capture("layers.1.attn_probs")]),
                "layers.1.attn_probs",
                0,
            )
        };
        let on_probs = ablate(Tap::new("layers.1.attn_probs", Action::Zero));
        let on_scores = ablate(set("layers.1.attn_scores", Operand::Number(f32::NEG_INFINITY)));
        for (row, ((before, probs), scores)) in before
            .values()
            .chunks_exact(12)
            .zip(on_probs.values().chunks_exact(12))
            .zip(on_scores.values().chunks_exact(12))
            .enumerate()
        {
            if row % 12 < 10 {
                assert_eq!((probs, scores), (before, before), "{}: query {} was not selected", case.name, row % 12);
                continue;
            }
            let left: f32 = (0..12).filter(|key| ![8, 9].contains(key)).map(|key| before[key]).sum();
            for key in 0..12 {
                let expected = if [8, 9].contains(&key) { 0.0 } else { before[key] };
                assert_eq!(probs[key], expected, "{}: weights are not renormalized", case.name);
                assert!(
                    (scores[key] - expected / left).abs() < 1e-6,
                    "{}: masked scores are renormalized by the softmax",
                    case.name
                );
            }
        }
    }
}

#[test]
fn keys_are_captured_in_the_given_order_whole_in_chunks_and_generated() {
    let case = golden::case("llama");
    let tap = |point: &str| capture(&format!("layers.1.{point}")).keys(at("9,0,4")).heads([3, 0]);
    for point in ["attn_probs", "attn_scores"] {
        let plan = plan([tap(point)]);
        let all = whole(&case, &format!("layers.1.{point}"));
        let (options, mut seen) = (GenerateOptions { max_new: 8, ..GenerateOptions::default() }, 0);
        let mut stop_at_third = |_, _| {
            seen += 1;
            if seen == 3 { Control::Stop } else { Control::Go }
        };
        let generation = case
            .loaded
            .model
            .generate(&[case.ids[..6].to_vec()], &plan, &options, &mut stop_at_third)
            .expect("a generation");
        let text = [&case.ids[..6], &generation.rows[0].tokens[..2]].concat();
        let mut longer = vec![(case.ids.clone(), all)];
        longer.push((
            text.clone(),
            case.run(&[text], &Plan::capture([format!("layers.1.{point}")])).captures[0].array.clone(),
        ));
        for chunk in [None, Some(1), Some(4)] {
            let found = case
                .loaded
                .model
                .run(std::slice::from_ref(&case.ids), &plan, &RunOptions { chunk, ..RunOptions::default() })
                .expect("a run");
            let some = &found.captures[0].array;
            assert_eq!(some.shape(), [2, 12, 3]);
            for (index, x) in some.values().iter().enumerate() {
                let (head, query, key) = ([3, 0][index / 36], index / 3 % 12, [9, 0, 4][index % 3]);
                assert_eq!(
                    *x,
                    longer[0].1.values()[(head * 12 + query) * 12 + key],
                    "{point}: head {head}, query {query}, key {key}, chunk {chunk:?}"
                );
            }
        }
        // The generation stops before position 9, so it captures the other two keys.
        let some = &generation.captures[0].array;
        assert_eq!(some.shape(), [2, 8, 2]);
        for (index, x) in some.values().iter().enumerate() {
            let (head, query, key) = ([3, 0][index / 16], index / 2 % 8, [0, 4][index % 2]);
            assert_eq!(
                *x,
                longer[1].1.values()[(head * 8 + query) * 8 + key],
                "{point} generated: head {head}, query {query}, key {key}"
            );
        }
    }
}

#[test]
fn captures_may_be_reduced() {
    let case = golden::case("opt");
    let (whole, v) = (whole(&case, SITE), direction(32));
    let reduce = |reduce| Tap::new(SITE, Action::Capture(Some(reduce))).positions(at("3:7"));
    let taps = [Reduce::Mean, Reduce::Norm, Reduce::TopK(3), Reduce::Dot(Operand::Vector(v.clone()))].map(reduce);
    for chunk in [None, Some(2)] {
        let found = case
            .loaded
            .model
            .run(std::slice::from_ref(&case.ids), &plan(taps.clone()), &RunOptions { chunk, ..RunOptions::default() })
            .expect("a run");
        let [mean, norm, top, dot] = &found.captures[..] else { panic!("four captures") };
        assert_eq!(
            (mean.array.shape(), norm.array.shape(), top.array.shape(), dot.array.shape()),
            (&[32][..], &[4][..], &[4, 3][..], &[4][..])
        );
        assert!(found.captures.iter().all(|capture| capture.positions == [3, 4, 5, 6]));
        for unit in 0..32 {
            let expected = (3..7).map(|p| whole.row(p)[unit]).sum::<f32>() / 4.0;
            assert!((mean.array.values()[unit] - expected).abs() < 1e-6);
        }
        let units = top.units.as_ref().expect("the units of the largest values");
        assert!(units.is_integer() && top.array.shape() == units.shape());
        for index in 0..4 {
            let token = whole.row(index + 3);
            assert!((norm.array.values()[index] - token.iter().map(|x| x * x).sum::<f32>().sqrt()).abs() < 1e-5);
            assert!((dot.array.values()[index] - token.iter().zip(&v).map(|(a, b)| a * b).sum::<f32>()).abs() < 1e-4);
            let mut sorted: Vec<usize> = (0..32).collect();
            sorted.sort_by(|&a, &b| token[b].total_cmp(&token[a]));
            for nth in 0..3 {
                assert_eq!(units.row(index)[nth] as usize, sorted[nth]);
                assert_eq!(top.array.row(index)[nth], token[sorted[nth]]);
            }
        }
    }
}

#[test]
fn a_capture_sees_the_edits_before_it_and_no_later_ones() {
    let case = golden::case("llama");
    for site in ["embed", SITE, "layers.1.z", "layers.1.mlp_act", "layers.1.attn_normed", "final_norm", "logits"] {
        let plain = bits(&whole(&case, site));
        let found =
            run(&case, [capture(site), add(site, 1.0), capture(site), Tap::new(site, Action::Zero), capture(site)]);
        assert_eq!(bits(&found.captures[0].array), plain, "{site} before any edit");
        let once: Vec<u32> = whole(&case, site).values().iter().map(|x| (x + 1.0).to_bits()).collect();
        assert_eq!(bits(&found.captures[1].array), once, "{site} between the edits");
        assert!(found.captures[2].array.values().iter().all(|&x| x == 0.0), "{site} after both");
    }
}

#[test]
fn taps_on_one_site_apply_in_the_plans_order() {
    let case = golden::case("llama");
    let h = whole(&case, SITE);
    let doubled = Tap::new(SITE, Action::Scale(2.0));
    let last = |taps: [Tap; 3]| run(&case, taps).captures[0].array.clone();
    let added_first = last([add(SITE, 1.0), doubled.clone(), capture(SITE)]);
    let scaled_first = last([doubled, add(SITE, 1.0), capture(SITE)]);
    for (i, x) in h.values().iter().enumerate() {
        assert_eq!(added_first.values()[i], (x + 1.0) * 2.0);
        assert_eq!(scaled_first.values()[i], x * 2.0 + 1.0);
    }
}

#[test]
fn resid_post_is_tapped_before_resid_pre_of_the_next_layer() {
    let case = golden::case("llama");
    let h = whole(&case, SITE);
    // Listed in reverse order on purpose.
    let taps = [
        Tap::new("layers.2.resid_pre", Action::Scale(2.0)),
        add(SITE, 1.0),
        capture("layers.2.resid_pre"),
        capture(SITE),
    ];
    let found = run(&case, taps);
    let (entering, leaving) = (&found.captures[0].array, &found.captures[1].array);
    for (i, x) in h.values().iter().enumerate() {
        assert_eq!(leaving.values()[i], x + 1.0, "resid_post of layer 1 comes first");
        assert_eq!(entering.values()[i], (x + 1.0) * 2.0, "resid_pre of layer 2 after it");
    }
}

#[test]
fn patterns_match_existing_sites_and_report_missing_ones() {
    let case = golden::case("gpt_neox");
    let sites = |text: &str| {
        run(&case, [capture(text)])
            .captures
            .iter()
            .map(|c| c.site.to_string())
            .filter(|s| s != "logits")
            .collect::<Vec<_>>()
    };
    assert_eq!(sites("layers.*.resid_post"), ["layers.0.resid_post", "layers.1.resid_post", "layers.2.resid_post"]);
    assert_eq!(sites("layers.1-2.z"), ["layers.1.z", "layers.2.z"]);
    assert_eq!(sites("layers.{2,0}.q"), ["layers.2.q", "layers.0.q"]);
    let mut all = case.loaded.model.program().architecture().clone();
    all.layers[1].parallel = false;
    let mixed = pellucid_engine::Program::new(all).expect("a program");
    let found = pellucid_engine::site::find(&mixed, "layers.*.resid_mid").expect("a match");
    assert_eq!(found.sites.iter().map(ToString::to_string).collect::<Vec<_>>(), ["layers.1.resid_mid"]);
    assert_eq!(
        found.passed_over.iter().map(ToString::to_string).collect::<Vec<_>>(),
        ["layers.0.resid_mid", "layers.2.resid_mid"]
    );
}
