//! Values of plans: read, computed, written back, saved; between rows, layers and steps.

use crate::test_plans::{at, bits, capture, generate, set};
use golden::{Case, difference};
use pellucid_engine::plan::{Across, Combine, Expr, Fold, Function, Map, Pick, ValueId};
use pellucid_engine::{Action, Array, Error, Operand, Plan, Run, RunOptions, Tap};
use std::sync::Arc;

const SITE: &str = "layers.1.resid_post";

fn read(site: &str) -> Tap {
    Tap::new(site, Action::Read)
}

fn scalar(x: f32) -> Expr {
    Expr::Constant(Array::new(vec![], vec![x]))
}

fn run_plan(case: &Case, rows: &[Vec<u32>], plan: &Plan) -> Run {
    case.loaded.model.run(rows, plan, &RunOptions::default()).unwrap_or_else(|e| panic!("{}: {e}", case.name))
}

fn refused(case: &Case, rows: &[Vec<u32>], plan: &Plan) -> String {
    let error = case.loaded.model.run(rows, plan, &RunOptions::default()).expect_err("an invalid plan");
    format!("{error}; {}", error.remedy().map(ToString::to_string).unwrap_or_default())
}

fn two_rows(case: &Case) -> Vec<Vec<u32>> {
    vec![case.ids.clone(), case.ids.iter().rev().take(7).copied().collect()]
}

#[test]
fn a_read_sees_the_edits_before_it_and_no_later_ones() {
    for case in [golden::case("llama"), golden::case("gpt2"), golden::case("qwen3_next")] {
        let rows = two_rows(&case);
        let mut plan = Plan::default();
        let before = plan.read(read(SITE));
        let mut plan = plan.with(Tap::new(SITE, Action::Scale(3.0)).positions(at("-2:")));
        let after = plan.read(read(SITE).positions(at("-2:")));
        plan.save = vec![before, after];
        let plan = plan.with(capture(SITE));
        let run = run_plan(&case, &rows, &plan);
        let plain = run_plan(&case, &rows, &Plan::capture([SITE]));
        for (row, tokens) in rows.iter().enumerate() {
            let (whole, edited) = (&plain.captures[row].array, &run.captures[row].array);
            assert_eq!(bits(run.value(before, row).unwrap()), bits(whole), "{}: before the edit", case.name);
            let read = run.value(after, row).unwrap();
            assert_eq!(read.shape()[0], 2);
            for nth in 0..2 {
                assert_eq!(read.row(nth), edited.row(tokens.len() - 2 + nth));
                assert_ne!(read.row(nth), whole.row(tokens.len() - 2 + nth));
            }
        }
    }
}

#[test]
fn writing_a_computed_value_equals_a_plain_edit() {
    let case = golden::case("llama");
    let rows = two_rows(&case);
    // h[-1] += 2.5 * h[-1], once as `scale` and once by values.
    let mut plan = Plan::default();
    let last = plan.read(read(SITE).positions(at("last")));
    let by = plan.value(scalar(2.5));
    let more = plan.value(Expr::Combine(Combine::Mul, last, by));
    let add = Action::Add { operand: Operand::Value(more), scale: 1.0 };
    let plan = plan.with(Tap::new(SITE, add).positions(at("last"))).with(capture("logits"));
    let scaled = Plan::of([Tap::new(SITE, Action::Scale(3.5)).positions(at("last")), capture("logits")]);
    let (a, b) = (run_plan(&case, &rows, &plan), run_plan(&case, &rows, &scaled));
    for row in 0..2 {
        assert!(difference(a.captures[row].array.values(), b.captures[row].array.values()) < 1e-5);
    }
}

#[test]
fn a_row_uses_another_rows_value_from_any_depth() {
    let case = golden::case("gpt_neox");
    let rows = two_rows(&case);
    for (from, to) in [("layers.0.resid_post", SITE), (SITE, SITE), ("layers.2.resid_post", "layers.0.resid_post")] {
        let mut plan = Plan::default();
        let theirs = plan.read(read(from).rows([0]).positions(at("3")));
        let plan =
            plan.with(set(to, Operand::Value(theirs)).rows([1]).positions(at("2,5"))).with(capture(to).rows([1]));
        let run = run_plan(&case, &rows, &plan);
        let source = run_plan(&case, &rows[..1], &Plan::capture([from]));
        for position in [2, 5] {
            assert_eq!(run.captures[0].array.row(position), source.captures[0].array.row(3), "{from} to {to}");
        }
    }
    // A cycle between two rows is refused.
    let mut plan = Plan::default();
    let first = plan.read(read("layers.2.resid_post").rows([0]));
    let second = plan.read(read("layers.2.resid_post").rows([1]));
    let plan = plan
        .with(set("layers.0.resid_post", Operand::Value(second)).rows([0]).positions(at("0:7")))
        .with(set("layers.0.resid_post", Operand::Value(first)).rows([1]))
        .with(capture("logits"));
    let same = vec![rows[1].clone(), rows[1].clone()];
    assert!(refused(&case, &same, &plan).contains("wait for each other"));
    // So is an edit that needs a later value of its own row.
    let mut plan = Plan::default();
    let later = plan.read(read("layers.2.resid_post"));
    let plan = plan.with(set("layers.1.resid_post", Operand::Value(later))).with(capture("logits"));
    let problem = refused(&case, &rows, &plan);
    assert!(problem.contains("layers.2.resid_post") && problem.contains("layers.1.resid_post"), "{problem}");
}

#[test]
fn values_combine_rows_and_select_one() {
    let case = golden::case("llama");
    let rows = two_rows(&case);
    let mut plan = Plan::default();
    let h = plan.read(read(SITE).positions(at("last")));
    let all = plan.value(Expr::Across { of: h, how: Across::Concat });
    let mean = plan.value(Expr::Across { of: h, how: Across::Mean });
    let second = plan.value(Expr::Row { of: h, row: 1 });
    let distance = plan.value(Expr::Combine(Combine::Sub, h, mean));
    plan.save = vec![all, mean, second, distance];
    let run = run_plan(&case, &rows, &plan);
    let whole = run_plan(&case, &rows, &Plan::of([capture(SITE).positions(at("last"))]));
    let (a, b) = (&whole.captures[0].array, &whole.captures[1].array);
    assert_eq!(run.value(all, 0).unwrap().shape(), [2, 32]);
    assert_eq!(run.value(all, 0).unwrap().row(1), b.row(0));
    assert_eq!(run.value(second, 0), Some(b));
    assert_eq!(run.saved.iter().filter(|saved| saved.value == second).count(), 1, "one value for all rows");
    for unit in 0..32 {
        let half = (a.row(0)[unit] + b.row(0)[unit]) / 2.0;
        assert!((run.value(mean, 0).unwrap().row(0)[unit] - half).abs() < 1e-6);
        assert!((run.value(distance, 1).unwrap().row(0)[unit] - (b.row(0)[unit] - half)).abs() < 1e-6);
    }
}

#[test]
fn attention_is_read_and_written() {
    let case = golden::case("llama");
    let site = "layers.1.attn_probs";
    let mut plan = Plan::default();
    let probs = plan.read(read(site));
    let mean_over_heads = plan.value(Expr::Fold { of: probs, how: Fold::Mean, axis: Some(0), keep: true });
    plan.save = vec![probs];
    let plan = plan.with(set(site, Operand::Value(mean_over_heads))).with(capture(site)).with(capture("logits"));
    let run = run_plan(&case, std::slice::from_ref(&case.ids), &plan);
    let plain = run_plan(&case, std::slice::from_ref(&case.ids), &Plan::capture([site, "logits"]));
    let (was, is) = (&plain.captures[0].array, &run.captures[0].array);
    assert_eq!(run.value(probs, 0), Some(was));
    let (heads, n) = (was.shape()[0], was.shape()[1]);
    for (index, &x) in is.values().iter().enumerate() {
        let mean = (0..heads).map(|head| was.values()[head * n * n + index % (n * n)]).sum::<f32>() / heads as f32;
        assert!((x - mean).abs() < 1e-6);
    }
    assert_ne!(plain.captures[1].array, run.captures[1].array, "the edit has an effect");
}

#[test]
fn the_models_ops_apply_to_any_value() {
    let case = golden::case("llama");
    let mut plan = Plan::default();
    let resid = plan.read(read("layers.2.resid_post"));
    let logits = plan.value(Expr::Unembed(resid));
    let mlp_in = plan.read(read("layers.1.mlp_in"));
    let mlp = plan.value(Expr::Through { of: mlp_in, from: "layers.1.mlp_in".into(), to: "layers.1.mlp_out".into() });
    let attn_in = plan.read(read("layers.1.attn_in"));
    let attn =
        plan.value(Expr::Through { of: attn_in, from: "layers.1.attn_in".into(), to: "layers.1.attn_out".into() });
    plan.save = vec![logits, mlp, attn];
    let plan = plan.with(capture("logits")).with(capture("layers.1.mlp_out")).with(capture("layers.1.attn_out"));
    let run = run_plan(&case, std::slice::from_ref(&case.ids), &plan);
    for (nth, value) in [logits, mlp, attn].into_iter().enumerate() {
        assert_eq!(bits(run.value(value, 0).unwrap()), bits(&run.captures[nth].array), "the same ops, the same bits");
    }
    let mut plan = Plan::default();
    let resid = plan.read(read("layers.0.mlp_in"));
    let invalid =
        plan.value(Expr::Through { of: resid, from: "layers.0.mlp_in".into(), to: "layers.1.resid_post".into() });
    plan.save = vec![invalid];
    assert!(refused(&case, std::slice::from_ref(&case.ids), &plan).contains("from the first alone"));
}

#[test]
fn steps_of_a_generation_have_their_own_values() {
    let case = golden::case("llama");
    let rows = two_rows(&case);
    let mut plan = Plan::default();
    let h = plan.read(read(SITE).positions(at("-1:")));
    let length = plan.value(Expr::Fold { of: h, how: Fold::Norm, axis: Some(-1), keep: false });
    plan.save = vec![length];
    let plan = plan.with(capture(SITE).positions(at("-1:")));
    let generation = generate(&case, &rows, &plan, 4);
    assert_eq!(generation.saved.len(), 8, "two rows, four steps");
    for saved in &generation.saved {
        let row = saved.row.unwrap();
        let activation = generation.captures[row].array.row(saved.step);
        let norm = activation.iter().map(|x| x * x).sum::<f32>().sqrt();
        assert!((saved.array.values()[0] - norm).abs() < 1e-4, "row {row}, step {}", saved.step);
    }
    // A value of one step is written at a later one.
    let mut plan = Plan::default();
    let first = plan.read(read(SITE).steps(at("0")));
    let plan = plan.with(set(SITE, Operand::Value(first)).steps(at("2"))).with(capture(SITE).positions(at("-1:")));
    let generation = generate(&case, &rows, &plan, 4);
    for capture in &generation.captures {
        assert_eq!(capture.array.row(0), capture.array.row(2));
        assert_ne!(capture.array.row(0), capture.array.row(1));
    }
}

#[test]
fn functions_see_arrays_and_their_failures_are_reported() {
    let case = golden::case("llama");
    let mut plan = Plan::default();
    let h = plan.read(read(SITE).positions(at("last")));
    let double =
        |of: &[Array]| Ok(Array::new(of[0].shape().to_vec(), of[0].values().iter().map(|x| 2.0 * x).collect()));
    let twice = plan.value(Expr::Call { function: Function(Arc::new(double)), of: vec![h] });
    let plan = plan.with(set(SITE, Operand::Value(twice)).positions(at("last"))).with(capture("logits"));
    let by_hand = Plan::of([Tap::new(SITE, Action::Scale(2.0)).positions(at("last")), capture("logits")]);
    let rows = std::slice::from_ref(&case.ids);
    assert_eq!(
        bits(&run_plan(&case, rows, &plan).captures[0].array),
        bits(&run_plan(&case, rows, &by_hand).captures[0].array)
    );

    let mut plan = Plan::default();
    let h = plan.read(read(SITE));
    let bad = Function(Arc::new(|_: &[Array]| Err("no such luck".to_string())));
    let failing = plan.value(Expr::Call { function: bad, of: vec![h] });
    plan.save = vec![failing];
    assert!(refused(&case, rows, &plan).contains("no such luck"));
}

#[test]
fn bad_values_are_refused_by_name() {
    let case = golden::case("llama");
    let rows = two_rows(&case);
    let check = |build: &dyn Fn(&mut Plan), words: &[&str]| {
        let mut plan = Plan::default();
        build(&mut plan);
        let problem = refused(&case, &rows, &plan.with(capture("logits")));
        words.iter().for_each(|word| assert!(problem.contains(word), "{problem:?} does not contain {word:?}"));
    };
    let vector = |n: usize| Expr::Constant(Array::new(vec![n], vec![1.0; n]));
    check(
        &|plan| {
            let h = plan.read(read(SITE));
            let v = plan.value(vector(31));
            plan.value(Expr::Combine(Combine::Add, h, v));
        },
        &["[12, 32]", "[31]", "broadcast"],
    );
    check(
        &|plan| {
            let v = plan.value(vector(31));
            plan.taps.push(set(SITE, Operand::Value(v)));
        },
        &[SITE, "[31]"],
    );
    check(
        &|plan| {
            let v = plan.value(Expr::Constant(Array::new(vec![32], vec![f32::NAN; 32])));
            plan.taps.push(set(SITE, Operand::Value(v)));
        },
        &[SITE, "NaN", "allow_nan"],
    );
    check(
        &|plan| {
            let h = plan.read(read(SITE));
            plan.value(Expr::Index { of: h, picks: vec![Pick::Rest, Pick::At(32)] });
        },
        &["index 32"],
    );
    check(&|plan| _ = plan.read(read("layers.*.resid_post")), &["several sites"]);
    check(&|plan| plan.save = vec![ValueId::new(3)], &["no value 3"]);
    check(&|plan| plan.taps.push(set(SITE, Operand::Value(ValueId::new(7)))), &["no value 7"]);
    check(&|plan| _ = plan.value(Expr::Map(Map::Exp, ValueId::new(5))), &["not defined before"]);
    check(
        &|plan| {
            let h = plan.read(read("logits"));
            plan.metrics = vec![h];
        },
        &["metric", "rows"],
    );
    // All problems of the taps are reported together.
    let plan = Plan::capture(["layers.9.resid_post", "layers.1.resid_pots"]);
    let error = case.loaded.model.run(&rows, &plan, &RunOptions::default()).unwrap_err();
    assert!(matches!(error, Error::Several(ref all) if all.len() == 2), "{error}");
}

#[test]
fn values_are_written_and_read_as_json() {
    let text = r#"{
      "taps": [
        {"site": "layers.0.resid_post", "positions": "last", "as": "h"},
        {"site": "layers.1.resid_post", "positions": "last", "set": {"value": "x"}},
        {"site": "layers.2", "skip": {"value": "x"}},
        {"site": "layers.1.resid_post", "grad": {"as": "g", "of": "loss"}},
        {"site": "layers.0.resid_post", "grad": true}
      ],
      "values": [
        {"name": "x", "add": ["h", {"mul": [2.0, {"tanh": "h"}]}]},
        {"name": "y", "index": {"of": "x", "picks": [-1, "1:5:2", null, "..."]}},
        {"name": "p", "softmax": {"of": "x", "axis": -1}},
        {"name": "best", "topk": {"of": "p", "k": 3}},
        {"name": "loss", "sum": "x"},
        {"name": "m", "matmul": [[[1.0, 2.0]], [[3.0], [4.0]]]}
      ],
      "save": ["y", "best", "g"], "metric": "loss"
    }"#;
    let plan = Plan::from_json(text).unwrap();
    let again = Plan::from_json(&plan.to_json().unwrap()).unwrap();
    assert_eq!(Plan::from_json(&again.to_json().unwrap()).unwrap(), again);
    assert_eq!((again.taps.len(), again.save.len(), again.metrics.len()), (5, 3, 1));
    for (bad, word) in [
        (r#"{"taps": [], "values": [{"name": "x", "exp": "h"}]}"#, "no earlier value \"h\""),
        (r#"{"taps": [], "values": [{"name": "x", "expp": 1.0}]}"#, "expp"),
        (r#"{"taps": [], "values": [{"name": "x", "add": [1.0]}]}"#, "takes 2"),
        (r#"{"taps": [], "values": [{"exp": 1.0}]}"#, "name"),
        (r#"{"taps": [], "values": [{"name": "x", "sum": {"of": 1.0, "axes": 2}}]}"#, "axes"),
        (r#"{"taps": [{"site": "embed", "grad": {"as": "g", "of": "loss"}}]}"#, "loss"),
    ] {
        let problem = Plan::from_json(bad).unwrap_err();
        assert!(problem.contains(word), "{problem}");
    }
}
