//! Steering: the formulas of the actions, the order in which they apply, and requests next to each
//! other.

use crate::test_plans::{at, bits, capture, direction, generate, logits, plan, run, value};
use golden::{Case, difference};
use pellucid_engine::plan::{FromSite, Injection};
use pellucid_engine::{Array, Batch, Control, GenerateOptions, Operand, Phase, Plan, RunOptions, SteeringSpec, Tap};

const SITE: &str = "layers.1.resid_post";

fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| *a as f64 * *b as f64).sum()
}

fn norm(a: &[f32]) -> f64 {
    dot(a, a).sqrt()
}

/// A second direction, neither orthogonal nor parallel to `direction`.
fn other_direction() -> Vec<f32> {
    (0..32).map(|i| ((i * 5 + 1) % 7) as f32 - 2.0).collect()
}

/// `h + by·v` in double precision.
fn plus(h: &[f32], by: f64, v: &[f32]) -> Vec<f32> {
    h.iter().zip(v).map(|(h, v)| (*h as f64 + by * *v as f64) as f32).collect()
}

fn after(case: &Case, taps: impl IntoIterator<Item = Tap>) -> Array {
    value(case, &run(case, taps.into_iter().chain([capture(SITE)])), SITE, 0)
}

/// Compares a tap's effect with `expected` of each token's activation.
fn check(case: &Case, tap: Tap, expected: impl Fn(&[f32]) -> Vec<f32>) {
    let (before, after) = (after(case, []), after(case, [tap.clone()]));
    for token in 0..case.ids.len() {
        let expected = expected(before.row(token));
        let largest = expected.iter().fold(1.0f32, |most, x| most.max(x.abs()));
        assert!(difference(after.row(token), &expected) <= 1e-5 * largest, "{}: {:?}", case.name, tap.action);
        assert!(difference(before.row(token), &expected) > 1e-3, "the action changes the activation");
    }
}

#[test]
fn steering_actions_have_their_formulas() {
    for case in [golden::case("llama"), golden::case("gpt2")] {
        let (v, w) = (direction(32), other_direction());
        let (v_norm, w_norm) = (norm(&v), norm(&w));
        check(&case, Tap::add_scaled(SITE, v.clone(), 0.5), |h| plus(h, 0.5 * norm(h) / v_norm, &v));
        check(&case, Tap::norm_match(SITE, v.clone(), -0.4), |h| {
            let sum = plus(h, -0.4, &v);
            let by = norm(h) / norm(&sum);
            sum.iter().map(|x| (*x as f64 * by) as f32).collect()
        });
        check(&case, Tap::orthogonal(SITE, v.clone(), 0.25), |h| {
            plus(&plus(h, -dot(h, &v) / (v_norm * v_norm), &v), 0.25, &v)
        });
        let replace = Injection { scale: 0.5, ..Injection::default() };
        check(&case, Tap::inject(SITE, v.clone(), replace), |_| v.iter().map(|x| 0.5 * x).collect());
        let oracle = Injection { scale: 2.0, add: true, norm_match: true };
        check(&case, Tap::inject(SITE, v.clone(), oracle), |h| plus(h, 2.0 * norm(h) / v_norm, &v));
        let scaled = Injection { norm_match: true, ..Injection::default() };
        check(&case, Tap::inject(SITE, v.clone(), scaled), |h| plus(&vec![0.0; h.len()], norm(h) / v_norm, &v));
        // `swap` exchanges the two components and keeps the norm.
        let (before, swapped) = (after(&case, []), after(&case, [Tap::swap(SITE, v.clone(), w.clone())]));
        for (h, swapped) in before.values().chunks_exact(32).zip(swapped.values().chunks_exact(32)) {
            let (of_v, of_w) = (dot(h, &v) / v_norm, dot(h, &w) / w_norm);
            assert!((of_v - of_w).abs() > 1e-3, "the components differ");
            assert!((dot(swapped, &v) / v_norm - of_w).abs() < 1e-4, "{}", case.name);
            assert!((dot(swapped, &w) / w_norm - of_v).abs() < 1e-4, "{}", case.name);
            assert!((norm(swapped) - norm(h)).abs() < 1e-4 * norm(h));
        }
    }
}

#[test]
fn norms_are_kept_and_neutral_edits_change_no_bit() {
    let case = golden::case("qwen2");
    let v = direction(32);
    let before = after(&case, []);
    let matched = after(&case, [Tap::norm_match(SITE, v.clone(), 3.0)]);
    for (h, matched) in before.values().chunks_exact(32).zip(matched.values().chunks_exact(32)) {
        assert!((norm(h) - norm(matched)).abs() < 1e-5 * norm(h));
    }
    let (largest, length) = (before.values().iter().fold(0.0f32, |most, x| most.max(x.abs())), norm(&v) as f32);
    let bound = 32.0 * largest * length;
    for tap in [
        Tap::scale_along(SITE, v.clone(), 1.0),
        Tap::cap(SITE, v.clone(), -bound..=bound),
        Tap::add(SITE).times(0.0).with(v.clone()),
        Tap::add_scaled(SITE, v.clone(), 0.0),
    ] {
        assert_eq!(bits(&after(&case, [tap.clone()])), bits(&before), "{:?}", tap.action);
    }
    // Scale 0 leaves nothing along the direction, to rounding.
    let ablated = after(&case, [Tap::scale_along(SITE, v.clone(), 0.0)]);
    for (h, ablated) in before.values().chunks_exact(32).zip(ablated.values().chunks_exact(32)) {
        assert!(dot(ablated, &v).abs() / norm(&v) < 1e-6 * norm(h).max(1.0));
        assert!(dot(h, &v).abs() / norm(&v) > 1e-4 * norm(h), "there is something to remove");
    }
}

#[test]
fn taps_of_a_site_compose_in_list_order() {
    let case = golden::case("llama");
    let v = direction(32);
    let add = || Tap::add(SITE).times(0.5).with(direction(32));
    let cap = || Tap::cap(SITE, v.clone(), ..=0.25);
    let (add_cap, cap_add) = (after(&case, [add(), cap()]), after(&case, [cap(), add()]));
    assert_ne!(bits(&add_cap), bits(&cap_add));
    let along = |array: &Array| array.values().chunks_exact(32).map(|h| dot(h, &v) / norm(&v)).collect::<Vec<_>>();
    assert!(along(&add_cap).iter().all(|&x| x <= 0.2501), "the cap applies last");
    assert!(along(&cap_add).iter().any(|&x| x > 1.0), "the addition applies last");
    // Repeats are separate edits.
    let (twice, double) = (after(&case, [add(), add()]), after(&case, [Tap::add(SITE).with(v.clone())]));
    assert!(difference(twice.values(), double.values()) < 1e-4);
    assert_ne!(bits(&twice), bits(&after(&case, [add()])));
}

#[test]
fn an_injection_takes_one_vector_for_each_placeholder() {
    let case = golden::case("llama");
    let rows: Vec<Vec<f32>> = vec![direction(32), other_direction()];
    let tap = Tap::inject(SITE, Operand::Rows(rows.clone()), Injection::default()).positions([5, 2]);
    let injected = after(&case, [tap]);
    assert_eq!((injected.row(5), injected.row(2)), (&rows[0][..], &rows[1][..]));
    // Replacing from another row is `set` with `from`, as in Patchscopes.
    let inputs = [case.ids.clone(), case.ids[1..].to_vec()];
    let source = || Operand::From(FromSite::default().site("layers.2.resid_post").row(0).positions(-1));
    let by_inject = Tap::inject(SITE, source(), Injection::default()).rows([1]).positions(3);
    let by_set = Tap::set(SITE).with(source()).rows([1]).positions(3);
    let of = |tap: Tap| logits(&case.run(&inputs, &plan([tap, capture("logits")])));
    assert_eq!(of(by_inject), of(by_set));
}

#[test]
fn invalid_steering_taps_are_refused() {
    let case = golden::case("llama");
    let v = direction(32);
    let refused = |tap: Tap, word: &str| {
        let error = case.loaded.model.run(std::slice::from_ref(&case.ids), &plan([tap]), &RunOptions::default());
        let error = error.expect_err(word).to_string();
        assert!(error.contains(word), "{error:?} does not contain {word:?}");
    };
    refused(Tap::add_scaled(SITE, vec![1.0; 31], 1.0), "31");
    refused(Tap::add_scaled(SITE, vec![0.0; 32], 1.0), "length 0");
    refused(Tap::norm_match(SITE, vec![f32::NAN; 32], 1.0), "NaN");
    refused(Tap::orthogonal(SITE, Operand::Number(1.0), 1.0), "direction");
    refused(Tap::swap(SITE, v.clone(), v.iter().map(|x| 2.0 * x).collect::<Vec<f32>>()), "same");
    refused(Tap::swap("layers.1.z", vec![1.0; 8], vec![1.0; 32]), "8 and 32");
    refused(Tap::inject(SITE, Operand::Number(1.0), Injection::default()), "vector, not a number");
    let how = Injection { norm_match: true, ..Injection::default() };
    refused(Tap::inject(SITE, vec![0.0; 32], how), "zero vector");
    refused(Tap::add_scaled("layers.1.attn_probs", v, 1.0), "attention sites");
}

#[test]
fn a_phase_restricts_steering_to_prompt_or_generated_positions() {
    let case = golden::case("llama");
    let steer = |phase: Phase| Tap::add_scaled(SITE, direction(32), 0.8).phase(phase);
    let captured = |tap: Option<Tap>| {
        let taps = tap.into_iter().chain([capture(SITE)]);
        generate(&case, std::slice::from_ref(&case.ids), &plan(taps), 5)
    };
    let prompt = case.ids.len();
    let (plain, prefill) = (captured(None), captured(Some(steer(Phase::Prefill))));
    let decode = captured(Some(steer(Phase::Decode)));
    let row = |found: &pellucid_engine::Generation, position: usize| found.captures[0].array.row(position).to_vec();
    assert_ne!(row(&prefill, 0), row(&plain, 0));
    assert_eq!(row(&decode, prompt - 1), row(&plain, prompt - 1), "no prompt position is steered");
    assert_eq!(decode.rows[0].tokens[0], plain.rows[0].tokens[0]);
    assert_ne!(row(&decode, prompt), row(&plain, prompt));
}

/// Requests with different specs in one batch, next to one without: each has the bits of its own
/// generation.
#[test]
fn a_steered_request_leaves_its_neighbors_bit_equal() {
    for name in ["llama", "mixtral", "mamba", "gemma3_text"] {
        let case = golden::case(name);
        let model = &case.loaded.model;
        let v = direction(32);
        let specs: Vec<Vec<Tap>> = vec![
            vec![],
            vec![Tap::add_scaled(SITE, v.clone(), 0.5)],
            vec![Tap::norm_match(SITE, v.clone(), 1.0), Tap::cap(SITE, v.clone(), ..=0.1)],
            vec![Tap::cap(SITE, v.clone(), ..=0.1), Tap::norm_match(SITE, v.clone(), 1.0)],
            vec![Tap::swap("layers.*.resid_post", v.clone(), other_direction())],
            vec![Tap::orthogonal(SITE, v.clone(), 0.3).phase(Phase::Decode)],
            vec![
                Tap::inject(SITE, v.clone(), Injection { add: true, norm_match: true, scale: 1.0 }).positions(at("1")),
            ],
        ];
        let plans: Vec<Plan> = specs.into_iter().map(|taps| plan(taps.into_iter().chain([capture(SITE)]))).collect();
        let options = GenerateOptions { max_new: 6, ..GenerateOptions::default() };
        let mut batch = Batch::new(model);
        let ids: Vec<_> = plans
            .iter()
            .map(|plan| batch.add(std::slice::from_ref(&case.ids), plan, &options).expect("a valid plan"))
            .collect();
        while batch.running() > 0 {
            batch.pass(9, &mut |_, _, _| Control::Go).expect("a pass");
        }
        for (plan, id) in plans.iter().zip(ids) {
            let together = batch.take(id).expect("it has ended").expect("a generation");
            let alone = generate(&case, std::slice::from_ref(&case.ids), plan, 6);
            assert_eq!(together.rows[0].tokens, alone.rows[0].tokens, "{name}");
            assert_eq!(bits(&together.captures[0].array), bits(&alone.captures[0].array), "{name}");
        }
    }
}

/// The wire form of a spec with one operation at layer 1.
fn spec(operation: serde_json::Value) -> serde_json::Value {
    serde_json::json!({ "layers": { "1": { "operations": [operation] } } })
}

#[test]
fn a_steering_spec_becomes_taps_in_list_order() {
    let case = golden::case("llama");
    let v = direction(32);
    let json = serde_json::json!({"layers": {
        "10": {"operations": []},
        "1": {"operations": [
            {"type": "add", "vector": v, "scale": 0.5},
            {"type": "cap", "vector": v, "min": -1.0, "max": 0.25},
            {"type": "ablation", "vector": other_direction(), "scale": 0.0},
            {"type": "add", "vector": v},
        ]},
    }});
    let taps = || {
        [
            Tap::add(SITE).times(0.5).with(direction(32)),
            Tap::cap(SITE, direction(32), -1.0..=0.25),
            Tap::scale_along(SITE, other_direction(), 0.0),
            Tap::add(SITE).with(direction(32)),
        ]
    };
    assert_eq!(SteeringSpec::from_json(&json).expect("a valid spec").taps(), taps());
    // In a plan, the spec comes before the taps, so that captures see the steered activation.
    let text = format!(r#"{{"steer": {json}, "taps": [{{"site": "{SITE}", "capture": true}}]}}"#);
    let read = Plan::from_json(&text).expect("a valid plan");
    assert_eq!(read, plan(taps().into_iter().chain([capture(SITE)])));
    assert_eq!(Plan::from_json(&read.to_json().expect("plain data")), Ok(read));
    let only = Plan::from_json(&format!(r#"{{"steer": {json}}}"#)).expect("a plan without taps of its own");
    assert_eq!(only, plan(taps()));
    let steered = after(&case, SteeringSpec::from_json(&json).expect("a valid spec").taps());
    assert_eq!(bits(&steered), bits(&after(&case, taps())));
    assert_ne!(bits(&steered), bits(&after(&case, [])));
}

#[test]
fn a_bundle_of_experiments_becomes_caps() {
    let mut bundle = serde_json::json!({
        "vectors": {"calm": {"vector": direction(32), "layer": 1}, "kind": {"vector": other_direction(), "layer": 0}},
        "experiments": [{"id": "one", "interventions": [
            {"vector": "calm", "cap": 2.5}, {"vector": "kind", "cap": 1.0}, {"vector": "calm", "cap": 1.5}]}],
    });
    let expected = [
        Tap::cap("layers.0.resid_post", other_direction(), ..=1.0),
        Tap::cap(SITE, direction(32), ..=2.5),
        Tap::cap(SITE, direction(32), ..=1.5),
    ];
    assert_eq!(SteeringSpec::from_json(&bundle).expect("a valid bundle").taps(), expected);
    bundle["experiments"].as_array_mut().expect("a list").push(serde_json::json!({"id": "two", "interventions": []}));
    let problem = SteeringSpec::from_json(&bundle).expect_err("two experiments").to_string();
    assert!(problem.contains("`one`, `two`"), "{problem}");
    bundle["experiment"] = "one".into();
    assert_eq!(SteeringSpec::from_json(&bundle).expect("a named experiment").taps(), expected);
    bundle["experiment"] = "three".into();
    assert!(SteeringSpec::from_json(&bundle).expect_err("unknown").to_string().contains("`three`"));
}

#[test]
fn empty_specs_have_no_taps() {
    for (json, empty) in [
        (serde_json::json!({"layers": {}}), true),
        (serde_json::json!({"layers": {"3": {"operations": []}}}), true),
        (spec(serde_json::json!({"type": "add", "vector": [1.0], "scale": 1e-12})), true),
        (spec(serde_json::json!({"type": "add", "vector": [1.0], "scale": 1e-11})), false),
        (spec(serde_json::json!({"type": "ablation", "vector": [1.0], "scale": 1.0})), false),
    ] {
        let spec = SteeringSpec::from_json(&json).expect("a valid spec");
        assert_eq!((spec.is_empty(), spec.taps().is_empty()), (empty, empty), "{json}");
    }
}

#[test]
fn each_invalid_spec_has_its_error() {
    use serde_json::json;
    for (json, words) in [
        (spec(json!({"type": "add", "vector": [1.0, 1e300]})), &["layer 1, operation 0", "element 1", "inf"][..]),
        (spec(json!({"type": "add", "vector": [0.0, 0.0]})), &["norm 0"]),
        (spec(json!({"type": "add", "vector": []})), &["empty"]),
        (spec(json!({"type": "add", "vector": [null]})), &["vector"]),
        (spec(json!({"type": "add", "vector": [1.0], "scale": 1e300})), &["inf is not a finite number"]),
        (spec(json!({"type": "cap", "vector": [1.0]})), &["`cap` needs `min`, `max` or both"]),
        (spec(json!({"type": "cap", "vector": [1.0], "min": 2.0, "max": 1.0})), &["min 2 above max 1"]),
        (spec(json!({"type": "cap", "vector": [1.0], "max": 1.0, "scale": 1.0})), &["not `scale`"]),
        (spec(json!({"type": "ablation", "vector": [1.0]})), &["`ablation` needs `scale`"]),
        (spec(json!({"type": "add", "vector": [1.0], "max": 1.0})), &["belong to `cap`"]),
        (spec(json!({"type": "ablate", "vector": [1.0]})), &["`ablate`", "`ablation`"]),
        (spec(json!({"type": "add", "vector": [1.0], "by": 2.0})), &["by"]),
        (json!({"layers": {"one": {"operations": []}}}), &["`one`"]),
        (json!({"layers": {"1": {"operations": []}, "01": {"operations": []}}}), &["layer 1 is listed twice"]),
        (json!({"layer": {}}), &["layers"]),
        (json!([]), &["a steering spec"]),
    ] {
        let problem = SteeringSpec::from_json(&json).expect_err(words[0]).to_string();
        words.iter().for_each(|word| assert!(problem.contains(word), "{problem:?} does not contain {word:?}"));
    }
    // Against a model: layers and widths.
    let case = golden::case("llama");
    let check = |json: serde_json::Value| {
        let spec = SteeringSpec::from_json(&json).expect("a valid spec");
        let run = case.loaded.model.run(std::slice::from_ref(&case.ids), &plan(spec.taps()), &RunOptions::default());
        assert!(run.is_err(), "compiling finds it too");
        spec.check(case.loaded.model.program()).expect_err("it does not fit").to_string()
    };
    let wide = check(spec(json!({"type": "add", "vector": vec![1.0; 31]})));
    assert!(wide.contains("31") && wide.contains("32"), "{wide}");
    let deep = check(json!({"layers": {"40": {"operations": [{"type": "add", "vector": direction(32)}]}}}));
    assert!(deep.contains("no layer 40"), "{deep}");
}
