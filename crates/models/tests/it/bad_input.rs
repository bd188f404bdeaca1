//! Invalid requests: each is refused before anything runs, with an error that names the cause and a
//! remedy.

use crate::test_plans::{add, at, call, capture, from, plan, set};
use golden::Case;
use pellucid_engine::plan::FromSite;
use pellucid_engine::{
    Action, Control, Error, GenerateOptions, Operand, Plan, Positions, Reduce, RunOptions, Sampling, Tap,
};

const SITE: &str = "layers.1.resid_post";

fn assert_error(error: &Error, parts: &[&str]) {
    let text = error.to_string();
    for part in parts {
        assert!(text.contains(part), "{text:?} does not contain {part:?}");
    }
    assert!(error.remedy().is_some_and(|remedy| remedy.to_string().len() > 10), "{text:?} has no remedy");
}

/// Asserts that a run and a generation refuse a plan on two rows, of 12 and 9 tokens.
fn refused(case: &Case, taps: impl IntoIterator<Item = Tap>, parts: &[&str]) {
    let (inputs, plan) = ([case.ids.clone(), case.ids[3..].to_vec()], plan(taps));
    let run_error = case.loaded.model.run(&inputs, &plan, &RunOptions::default()).expect_err("a refusal");
    assert_error(&run_error, parts);
    assert!(matches!(run_error, Error::Plan { .. } | Error::Site { .. }), "{run_error:?}");
    let options = GenerateOptions { max_new: 4, ..GenerateOptions::default() };
    let generate_error = case
        .loaded
        .model
        .generate(&inputs, &plan, &options, &mut |_, _| panic!("nothing may be generated"))
        .expect_err("a refusal");
    assert!(matches!(generate_error, Error::Plan { .. } | Error::Site { .. }), "{generate_error:?}");
}

#[test]
fn invalid_rows_of_tokens_are_refused() {
    let case = golden::case("llama");
    let model = &case.loaded.model;
    let long = vec![5u32; 65];
    for (inputs, parts) in [
        (vec![], vec!["no input"]),
        (vec![vec![5], vec![]], vec!["row 1 is empty"]),
        (vec![vec![5, 96]], vec!["row 0", "token 96", "96 tokens"]),
        (vec![vec![5], vec![u32::MAX]], vec!["row 1", "token 4294967295"]),
        (vec![vec![5], long.clone()], vec!["row 1", "65 positions", "64"]),
    ] {
        assert_error(
            &model.run(&inputs, &Plan::capture(["logits"]), &RunOptions::default()).expect_err("a refusal"),
            &parts,
        );
        let error = model
            .generate(
                &inputs,
                &Plan::default(),
                &GenerateOptions { max_new: 1, ..GenerateOptions::default() },
                &mut |_, _| Control::Go,
            )
            .expect_err("a refusal");
        assert_error(&error, &parts);
    }
    assert!(
        model.run(&[long[1..].to_vec()], &Plan::capture(["logits"]), &RunOptions::default()).is_ok(),
        "a row may fill the whole context"
    );
}

#[test]
fn generations_that_would_exceed_the_context_are_refused() {
    for name in ["llama", "gpt2", "opt", "bloom"] {
        let case = golden::case(name);
        let prompt = [case.ids.clone()];
        let generate = |max_new: usize| {
            case.loaded.model.generate(
                &prompt,
                &Plan::default(),
                &GenerateOptions { max_new, ..GenerateOptions::default() },
                &mut |_, _| Control::Stop,
            )
        };
        assert_error(&generate(0).expect_err("nothing to do"), &["max_new is 0"]);
        // 12 + 53 - 1 = 64: the last new token is not fed back.
        assert!(generate(53).is_ok(), "{name}");
        if name != "bloom" {
            assert_error(&generate(54).expect_err("one too many"), &["row 0", "65 positions", "64"]);
        }
        for absurd in [1 << 40, usize::MAX / 2, usize::MAX - 5, usize::MAX] {
            assert_error(&generate(absurd).expect_err("absurd"), &["row 0", "positions"]);
        }
    }
}

#[test]
fn a_chunk_size_of_zero_is_refused() {
    let case = golden::case("llama");
    let inputs = std::slice::from_ref(&case.ids);
    assert_error(
        &case
            .loaded
            .model
            .run(inputs, &Plan::capture(["logits"]), &RunOptions { chunk: Some(0), ..RunOptions::default() })
            .expect_err("no progress"),
        &["chunk is 0"],
    );
    let options = GenerateOptions { chunk: Some(0), ..GenerateOptions::default() };
    assert_error(
        &case
            .loaded
            .model
            .generate(inputs, &Plan::default(), &options, &mut |_, _| Control::Go)
            .expect_err("no progress"),
        &["chunk is 0"],
    );
    assert!(
        case.loaded
            .model
            .run(inputs, &Plan::capture(["logits"]), &RunOptions { chunk: Some(usize::MAX), ..RunOptions::default() })
            .is_ok()
    );
}

#[test]
fn sampling_settings_out_of_range_are_refused() {
    let case = golden::case("llama");
    let plain = Sampling::default();
    for (sampling, expected) in [
        (Sampling { temperature: -1.0, ..plain.clone() }, "temperature is -1"),
        (Sampling { temperature: f32::NAN, ..plain.clone() }, "temperature is NaN"),
        (Sampling { temperature: f32::INFINITY, ..plain.clone() }, "temperature is inf"),
        (Sampling { top_p: 0.0, ..plain.clone() }, "top_p is 0"),
        (Sampling { top_p: 1.5, ..plain.clone() }, "top_p is 1.5"),
        (Sampling { top_p: f32::NAN, ..plain.clone() }, "top_p is NaN"),
        (Sampling { min_p: -0.1, ..plain.clone() }, "min_p is -0.1"),
        (Sampling { min_p: 1.1, ..plain.clone() }, "min_p is 1.1"),
        (Sampling { repetition_penalty: 0.0, ..plain.clone() }, "repetition_penalty is 0"),
        (Sampling { repetition_penalty: f32::NAN, ..plain.clone() }, "repetition_penalty is NaN"),
    ] {
        let options = GenerateOptions { sampling, ..GenerateOptions::default() };
        let error = case
            .loaded
            .model
            .generate(std::slice::from_ref(&case.ids), &Plan::default(), &options, &mut |_, _| Control::Go)
            .expect_err(expected);
        assert_error(&error, &[expected]);
    }
}

#[test]
fn extreme_settings_and_logits_still_give_a_token() {
    let case = golden::case("llama");
    let hot = Sampling { temperature: 1.0, ..Sampling::default() };
    let all_logits = |x: f32| Plan { allow_nan: true, ..plan([set("logits", Operand::Number(x))]) };
    for (sampling, plan) in [
        (Sampling { temperature: f32::MIN_POSITIVE, ..hot.clone() }, Plan::default()),
        (Sampling { temperature: 1e-45, ..hot.clone() }, Plan::default()),
        (Sampling { temperature: f32::MAX, ..hot.clone() }, Plan::default()),
        (Sampling { min_p: 1.0, top_k: 1, ..hot.clone() }, Plan::default()),
        (Sampling { top_k: usize::MAX, top_p: f32::MIN_POSITIVE, ..hot.clone() }, Plan::default()),
        (Sampling { repetition_penalty: f32::MIN_POSITIVE, ..hot.clone() }, Plan::default()),
        (hot.clone(), all_logits(f32::NEG_INFINITY)),
        (hot.clone(), all_logits(f32::INFINITY)),
        (hot.clone(), all_logits(f32::NAN)),
        (Sampling::default(), all_logits(f32::NAN)),
        (Sampling::default(), all_logits(f32::NEG_INFINITY)),
    ] {
        let options = GenerateOptions { max_new: 3, sampling: sampling.clone(), ..GenerateOptions::default() };
        let generation =
            case.loaded.model.generate(std::slice::from_ref(&case.ids), &plan, &options, &mut |_, _| Control::Go);
        let tokens = &generation.unwrap_or_else(|e| panic!("{sampling:?}: {e}")).rows[0].tokens;
        assert!(tokens.len() == 3 && tokens.iter().all(|&token| token < 96), "{sampling:?}: {tokens:?}");
    }
    // A temperature near zero is greedy.
    let cold =
        GenerateOptions { max_new: 6, sampling: Sampling { temperature: 1e-40, ..hot }, ..GenerateOptions::default() };
    let tokens = |options: &GenerateOptions| {
        case.loaded
            .model
            .generate(std::slice::from_ref(&case.ids), &Plan::default(), options, &mut |_, _| Control::Go)
            .unwrap()
            .rows[0]
            .tokens
            .clone()
    };
    assert_eq!(tokens(&cold), tokens(&GenerateOptions { max_new: 6, ..GenerateOptions::default() }));
}

#[test]
fn selections_that_do_not_exist_are_refused() {
    let case = golden::case("llama");
    refused(&case, [capture(SITE).rows([2])], &["tap 0", SITE, "no row 2", "2 inputs"]);
    refused(
        &case,
        [capture("embed"), capture(SITE).positions(at("99"))],
        &["tap 1", SITE, "row 0", "position 99", "12"],
    );
    refused(&case, [capture(SITE).positions(at("-13"))], &["position -13"]);
    refused(
        &case,
        [capture(SITE).positions(Positions::List(vec![i64::MIN, i64::MAX]))],
        &["position -9223372036854775808"],
    );
    refused(&case, [capture(SITE).positions(at("3,3"))], &["position 3 is selected twice"]);
    refused(&case, [capture(SITE).steps(at("99"))], &["steps", "99"]);
    refused(&case, [capture(SITE).positions(at(" Paris"))], &["\" Paris\"", "tokenizer"]);
    refused(&case, [capture("layers.1.z").heads([4])], &["no head 4", "4"]);
    refused(&case, [capture("layers.1.k").heads([2])], &["no head 2", "has 2"]);
    refused(&case, [capture("layers.1.attn_probs").heads([9])], &["no head 9"]);
    refused(&case, [capture(SITE).heads([0])], &["no heads"]);
    refused(&case, [capture(SITE).units([32])], &["no unit 32", "32"]);
    refused(&case, [capture(SITE).units([])], &["empty list of units"]);
    refused(&case, [capture("layers.1.z").heads([0]).units([0])], &["heads or units, not both"]);
    refused(&case, [capture("layers.1.attn_probs").units([0])], &["heads and keys, not units"]);
    refused(&case, [capture(SITE).keys(at("0"))], &["`keys`", "attn_scores and attn_probs"]);
    refused(&case, [capture("layers.1.attn_probs").keys(at("500"))], &["position 500"]);
    refused(&case, [capture("layers.7.z")], &["layers.7.z", "no layer 7"]);
    refused(&case, [Tap::new("layers.1.z", Action::Skip(None))], &["layers.1.z"]);
}

#[test]
fn values_of_the_wrong_shape_are_refused() {
    let case = golden::case("llama");
    let short = || Operand::Vector(vec![1.0; 31]);
    refused(&case, [set(SITE, short())], &["tap 0", SITE, "vector of 31 elements", "32"]);
    refused(&case, [set(SITE, Operand::Vector(vec![]))], &["vector of 0 elements"]);
    refused(&case, [Tap::new(SITE, Action::Add { operand: short(), scale: 1.0 })], &["31", "32"]);
    refused(&case, [set("layers.1.z", Operand::Vector(vec![1.0; 9]))], &["9", "32"]);
    refused(&case, [set(SITE, Operand::Rows(vec![vec![0.0; 32]; 5]))], &["5 vectors", "12"]);
    refused(&case, [set(SITE, Operand::Rows(vec![vec![0.0; 3]])).positions(at("0"))], &["a row of 3 elements", "32"]);
    refused(&case, [Tap::new(SITE, Action::Capture(Some(Reduce::Dot(short()))))], &["31"]);
    refused(&case, [Tap::new(SITE, Action::Capture(Some(Reduce::TopK(0))))], &["topk of 0"]);
    refused(&case, [Tap::new(SITE, Action::Capture(Some(Reduce::TopK(33))))], &["topk of 33", "32"]);
    refused(&case, [Tap::new(SITE, Action::ProjectOut { vector: short(), scale: 0.0 })], &["31"]);
    refused(
        &case,
        [Tap::new(SITE, Action::ProjectOut { vector: Operand::Vector(vec![0.0; 32]), scale: 0.0 })],
        &["length 0"],
    );
    refused(
        &case,
        [Tap::new(SITE, Action::ProjectOut { vector: Operand::Vector(vec![f32::NAN; 32]), scale: 0.0 })],
        &["length NaN"],
    );
    refused(&case, [Tap::new(SITE, Action::ProjectOut { vector: Operand::Number(1.0), scale: 0.0 })], &["direction"]);
    let cap = |min, max| Tap::new(SITE, Action::Cap { vector: Operand::Vector(vec![1.0; 32]), min, max });
    refused(&case, [cap(Some(2.0), Some(1.0))], &["min 2 above max 1"]);
    refused(&case, [cap(Some(f32::NAN), None)], &["NaN"]);
    refused(&case, [set(SITE, Operand::File("v.safetensors#v".into()))], &["v.safetensors#v", "was not loaded"]);
    refused(&case, [set("layers.1.attn_probs", Operand::Vector(vec![0.0; 12]))], &["take only a number"]);
    refused(
        &case,
        [Tap::new("layers.1.attn_probs", Action::ProjectOut { vector: short(), scale: 0.0 })],
        &["attention sites take"],
    );
    let experts = golden::case("mixtral");
    refused(&experts, [add("layers.1.expert_indices", 1.0)], &["expert_indices", "edit router_logits"]);
    refused(&experts, [Tap::new("layers.1.expert_indices", call(|_| {}))], &["edit router_logits"]);
}

#[test]
fn experts_that_do_not_exist_and_sites_without_experts_are_refused() {
    let (case, dense) = (golden::case("mixtral"), golden::case("llama"));
    let (out, weights, indices) = ("layers.1.expert_out", "layers.1.expert_weights", "layers.1.expert_indices");
    refused(&case, [Tap::zero(out).experts([1, 4])], &[out, "no expert 4", "4"]);
    refused(&case, [Tap::zero("layers.1.router_logits").experts([9])], &["no expert 9", "4"]);
    refused(&case, [Tap::zero(out).experts([])], &["an empty list of experts"]);
    refused(&case, [Tap::zero(out).experts([0]).heads([0])], &["experts or heads"]);
    refused(&case, [Tap::zero(out).experts([0]).units([32])], &["no unit 32", "32"]);
    refused(&case, [Tap::zero("layers.1.router_logits").experts([0]).units([0])], &["one of both"]);
    refused(&case, [Tap::zero("layers.1.mlp_out").experts([0])], &["no experts", "expert_out"]);
    refused(&case, [Tap::zero("layers.1.attn_probs").experts([0])], &["no experts"]);
    let norm = Tap::new(out, Action::Capture(Some(Reduce::Norm)));
    refused(&case, [norm.experts([0])], &["capture the experts whole"]);
    refused(&case, [Tap::read(out).experts([0])], &["slots to edit or capture", "expert_indices"]);
    refused(&case, [Tap::new(weights, call(|_| {})).experts([0])], &["slots to edit or capture"]);
    refused(&case, [set(out, Operand::Vector(vec![0.0; 64])).experts([0])], &["64 elements", "32"]);
    refused(&case, [Tap::zero(out).heads([2])], &["no head 2", "2"]);
    refused(&case, [Tap::set(indices).with(1.0).experts([0])], &["replace"]);
    refused(&case, [Tap::set(indices).with(4.0)], &["no expert 4", "4"]);
    refused(&case, [Tap::set(indices).with(1.5)], &["no expert 1.5"]);
    refused(&case, [Tap::set(indices).with(-1.0)], &["no expert -1"]);
    refused(&case, [Tap::set(indices).with(f32::NAN)], &["no expert NaN"]);
    refused(&case, [Tap::set(indices).with(vec![0.0, 7.0])], &["no expert 7"]);
    refused(&case, [Tap::set(indices).from_site(weights)], &["only expert_indices"]);
    refused(&case, [Tap::replace(indices, [(0, 4)])], &["no expert 4"]);
    refused(&case, [Tap::replace(indices, [(4, 0)])], &["no expert 4"]);
    refused(&case, [Tap::replace(indices, [])], &["no experts"]);
    refused(&case, [Tap::replace(weights, [(0, 1)])], &["only expert_indices"]);
    for tap in [Tap::zero(out).experts([0]), capture(out), Tap::replace(indices, [(0, 1)])] {
        refused(&dense, [tap], &["this layer has no experts"]);
    }
    refused(&dense, [Tap::zero(SITE).experts([0])], &["no experts"]);
    let parse = |json: &str| Plan::from_json(json).expect_err("a wrong plan");
    for (json, part) in [
        (r#"{"taps": [{"site": "layers.1.expert_out", "experts": [0.5], "zero": true}]}"#, "0.5"),
        (r#"{"taps": [{"site": "layers.1.expert_out", "experts": 5, "zero": true}]}"#, "5"),
        (r#"{"taps": [{"site": "layers.1.expert_indices", "replace": [5, 2]}]}"#, "runs expert 2 in place"),
        (r#"{"taps": [{"site": "layers.1.expert_indices", "replace": {"five": 2}}]}"#, "five"),
        (r#"{"taps": [{"site": "layers.1.expert_indices", "replace": {"5": -2}}]}"#, "-2"),
    ] {
        assert!(parse(json).contains(part), "{}", parse(json));
    }
}

#[test]
fn sources_that_are_computed_too_late_are_refused() {
    let case = golden::case("llama");
    let own = |site: &str| Operand::From(FromSite { site: Some(site.into()), ..FromSite::default() });
    refused(
        &case,
        [set("layers.0.mlp_out", own("layers.2.mlp_out"))],
        &["tap 0", "layers.0.mlp_out", "layers.2.mlp_out", "row 0", "later"],
    );
    refused(&case, [set(SITE, own(SITE))], &[SITE, "row 0"]);
    // Two rows that wait for each other.
    let circle = [
        set(SITE, from(SITE, 1)).rows([0]).positions(at("last")),
        set(SITE, from(SITE, 0)).rows([1]).positions(at("last")),
    ];
    refused(&case, circle, &[SITE, "wait for each other"]);
    refused(&case, [set(SITE, from(SITE, 5)).rows([1])], &["no row 5"]);
    refused(&case, [set(SITE, from("layers.9.z", 0)).rows([1])], &["no layer 9"]);
    refused(&case, [set(SITE, from("logits", 0)).rows([1]).positions(at("last"))], &["width 96", "32"]);
    refused(&case, [set(SITE, from("layers.0.resid_post", 0)).rows([1])], &["12 positions", "9 of row 1"]);
    refused(
        &case,
        [set("layers.1.attn_probs", from("layers.1.z", 0)).rows([1]).positions(at("last"))],
        &["cannot feed each other"],
    );
    let several = Operand::From(FromSite { site: None, rows: Some(vec![0, 1, 0]), positions: None });
    refused(&case, [set(SITE, several).positions(at("last"))], &["3 source rows for 2 rows"]);
    // Control: within a row, an earlier site may feed a later one.
    let fine = plan([set("layers.2.mlp_out", own("layers.0.mlp_out")), capture("logits")]);
    assert!(case.loaded.model.run(std::slice::from_ref(&case.ids), &fine, &RunOptions::default()).is_ok());
}
