//! `Plan::explain`, `Plan::check`, and the cache of compiled plans.

use crate::test_plans::{at, bits, capture, from, set};
use pellucid_engine::plan::{Expr, ValueId};
use pellucid_engine::{Action, Plan, RunOptions, Tap};

#[test]
fn an_explanation_gives_the_ops_and_their_cost() {
    let case = golden::case("llama");
    let model = &case.loaded.model;
    let plan = Plan::of([
        capture("layers.0.resid_post"),
        set("layers.0.mlp_out", from("layers.0.mlp_out", 0)).rows([1]).positions(at("2")),
        capture("layers.1.attn_probs").rows([1]),
    ]);
    let explained = plan.explain(model, &[12, 7]).unwrap();
    assert_eq!((explained.tokens, explained.last_layer, explained.logits), (19, Some(1), 0));
    assert!(explained.ops < explained.all_ops);
    assert_eq!(explained.groups, [vec![0], vec![1]], "row 1 reads the same site of row 0");
    assert_eq!(explained.unfused_attention, [(1, vec![1])]);
    assert!(explained.taps[0].zero_copy && !explained.taps[1].zero_copy);
    let heads = model.program().architecture().layers[1].attention.as_ref().unwrap().heads;
    assert_eq!(explained.capture_bytes, 4 * (19 * 32 + heads * 7 * 7));
    assert!(explained.seconds > 0.0 && explained.seconds < 10.0);
    assert!(explained.flops > 0.0 && explained.weight_bytes > 0.0 && explained.kv_bytes > 0 && !explained.gradients);
    let text = explained.to_string();
    for words in ["up to layer 1", "groups", "zero-copy", "unfused"] {
        assert!(text.contains(words), "{text}");
    }
    let whole = Plan::capture(["logits"]).explain(model, &[12]).unwrap();
    assert_eq!((whole.ops, whole.logits), (whole.all_ops, 12));
    let skipping = Plan::of([Tap::new("layers.1", Action::Skip(None)), capture("logits")]);
    let skipping = skipping.explain(model, &[12]).unwrap();
    assert_eq!(skipping.skipped, [1]);
    assert!(skipping.flops < whole.flops);
}

#[test]
fn a_check_reports_every_problem() {
    let case = golden::case("llama");
    let program = case.loaded.model.program();
    let taps = [capture("layers.9.resid_post"), capture("layers.0.zz"), capture("logits").positions(at("99"))];
    let problems = Plan::of(taps).check(program, &[12]);
    assert_eq!(problems.len(), 3);
    for (problem, word) in problems.iter().zip(["layers.9.resid_post", "layers.0.zz", "position 99"]) {
        assert!(problem.to_string().contains(word), "{problem}");
    }
    let mut plan = Plan::default();
    plan.value(Expr::Unembed(ValueId::new(7)));
    let h = plan.read(Tap::new("layers.0.resid_post", Action::Read));
    plan.value(Expr::Reshape { of: h, shape: vec![5, -1] });
    assert_eq!(plan.check(program, &[12]).len(), 2);
    assert!(Plan::capture(["logits"]).check(program, &[12]).is_empty());
}

#[test]
fn a_plan_is_compiled_once_and_gives_the_same_bits() {
    let case = golden::case("llama");
    let model = case.loaded.model.clone();
    let rows = vec![case.ids.clone()];
    let plan = |by: f32| Plan::of([Tap::new("layers.0.resid_post", Action::Scale(by)), capture("logits")]);
    let run = |model: &pellucid_engine::Model, by: f32| {
        bits(&model.run(&rows, &plan(by), &RunOptions::default()).unwrap().captures[0].array)
    };
    let first = run(&model, 2.0);
    assert_eq!(model.cached_plans(), 1);
    assert!(run(&model, 2.0) == first);
    assert_eq!(model.cached_plans(), 1);
    assert!(run(&model, 3.0) != first);
    assert_eq!(model.cached_plans(), 2);
    model.keep_plans(false);
    assert!(run(&model, 2.0) == first);
    assert_eq!(model.cached_plans(), 0);
    model.keep_plans(true);
    for by in 0..50 {
        run(&model, by as f32);
    }
    assert!(model.cached_plans() <= 32, "old plans are evicted");
}
