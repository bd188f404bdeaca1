//! Interrupted calls, concatenated plans, and shapes without a run.

use pellucid_engine::plan::{Across, Expr, Fold, Function, ValueId};
use pellucid_engine::{Action, Array, Error, GenerateOptions, Interrupt, Operand, Plan, RunOptions, Tap};
use pellucid_models::{LoadOptions, LoadedModel};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

fn model() -> LoadedModel {
    LoadedModel::builtin(&LoadOptions::default()).expect("the built-in model")
}

/// Returns an interrupt that fires at its third poll, and the number of polls.
fn interrupt_at_third_poll() -> (Interrupt, Arc<AtomicUsize>) {
    let polls = Arc::new(AtomicUsize::new(0));
    let counter = polls.clone();
    (Interrupt(Arc::new(move || counter.fetch_add(1, Ordering::Relaxed) >= 2)), polls)
}

#[test]
fn an_interrupted_call_stops_and_the_next_call_is_correct() {
    let loaded = model();
    let row: Vec<u32> = (0..250).map(|n| n % 1000 + 10).collect();
    let plan = Plan::capture(["logits"]);
    let before = loaded.model.run(std::slice::from_ref(&row), &plan, &RunOptions::default()).expect("a run");

    let (interrupt, polls) = interrupt_at_third_poll();
    let options = RunOptions { interrupt: Some(interrupt), ..RunOptions::default() };
    let outcome = loaded.model.run(&vec![row.clone(); 200], &plan, &options);
    assert_eq!(outcome.expect_err("it was stopped"), Error::Interrupted);
    assert_eq!(polls.load(Ordering::Relaxed), 3);

    let (interrupt, _) = interrupt_at_third_poll();
    let options = GenerateOptions { max_new: 250, interrupt: Some(interrupt), ..GenerateOptions::default() };
    let outcome = loaded
        .model
        .generate(&vec![row[..5].to_vec(); 64], &Plan::default(), &options, &mut |_, _| pellucid_engine::Control::Go);
    assert_eq!(outcome.expect_err("it was stopped"), Error::Interrupted);

    let after = loaded.model.run(&[row], &plan, &RunOptions::default()).expect("a run");
    assert_eq!(before.captures[0].array, after.captures[0].array);
}

#[test]
fn the_backward_pass_can_be_interrupted() {
    let loaded = model();
    let row: Vec<u32> = (0..250).map(|n| n % 1000 + 10).collect();
    let mut plan = Plan::default();
    let logits = plan.read(Tap::new("logits", Action::Read));
    let sum = plan.value(Expr::Fold { of: logits, how: Fold::Sum, axis: None, keep: false });
    let metric = plan.value(Expr::Across { of: sum, how: Across::Sum });
    plan.metrics.push(metric);
    // The function reads the metric, so it runs at the end of the forward pass. The interrupt fires
    // only after it, that is, during the backward pass.
    let forward_ended = Arc::new(AtomicBool::new(false));
    let flag = forward_ended.clone();
    let set_flag = Function(Arc::new(move |arrays: &[Array]| {
        flag.store(true, Ordering::Relaxed);
        Ok(arrays[0].clone())
    }));
    let called = plan.value(Expr::Call { function: set_flag, of: vec![metric] });
    plan.save.push(called);
    let polled = forward_ended.clone();
    let interrupt = Some(Interrupt(Arc::new(move || polled.load(Ordering::Relaxed))));
    for recompute in [false, true] {
        forward_ended.store(false, Ordering::Relaxed);
        let options = RunOptions { interrupt: interrupt.clone(), recompute, ..RunOptions::default() };
        let outcome = loaded.model.run(&vec![row.clone(); 40], &plan.clone().gradient("embed"), &options);
        assert_eq!(outcome.expect_err("it was stopped"), Error::Interrupted);
        assert!(forward_ended.load(Ordering::Relaxed));
    }
}

#[test]
fn branches_can_be_interrupted() {
    let loaded = model();
    let row: Vec<u32> = (0..250).map(|n| n % 1000 + 10).collect();
    let stop = Arc::new(AtomicBool::new(false));
    let polled = stop.clone();
    let interrupt = Interrupt(Arc::new(move || polled.load(Ordering::Relaxed)));
    let base = loaded.model.base_with(&row, &Plan::default(), Some(interrupt)).expect("a base");
    let plan = Plan::capture(["logits"]).with(Tap::new("layers.0.resid_pre", Action::Scale(0.5)));
    // Control: without an interrupt the branch completes.
    assert_eq!(base.branches(std::slice::from_ref(&plan)).expect("a branch").len(), 1);
    stop.store(true, Ordering::Relaxed);
    let outcome = base.branches(&vec![plan; 400]);
    assert_eq!(outcome.map(|runs| runs.len()), Err(Error::Interrupted));
}

/// A plan that writes twice the value of site `from` to site `to`, and saves it.
fn doubled(from: &str, to: &str) -> Plan {
    let mut plan = Plan::default();
    let resid = plan.read(Tap::new(from, Action::Read));
    let two = plan.value(Expr::Constant(Array::new(vec![], vec![2.0])));
    let product = plan.value(Expr::Combine(pellucid_engine::plan::Combine::Mul, resid, two));
    plan.save.push(product);
    plan.with(Tap::new(to, Action::Set(Operand::Value(product))))
}

#[test]
fn concatenated_plans_run_as_one() {
    let loaded = model();
    let rows = [loaded.encode("Tom saw a dog.").expect("tokens")];
    let (first, second) =
        (doubled("layers.0.resid_pre", "layers.1.resid_post"), doubled("layers.1.resid_post", "layers.3.resid_post"));
    let both = first.clone().then(second.clone());
    assert_eq!((both.taps.len(), both.values.len(), &both.save), (4, 6, &vec![ValueId::new(2), ValueId::new(5)]));
    let run = loaded.model.run(&rows, &both, &RunOptions::default()).expect("a run");
    let (once, twice) =
        (run.value(ValueId::new(2), 0).expect("the first"), run.value(ValueId::new(5), 0).expect("the second"));
    assert!(once.values().iter().zip(twice.values()).all(|(once, twice)| 2.0 * once == *twice));
}

#[test]
fn shapes_are_known_without_a_run() {
    let loaded = model();
    let rows = [loaded.encode("Tom saw a dog.").expect("tokens"), vec![5, 6, 7]];
    let plan = doubled("layers.0.resid_pre", "layers.1.resid_post")
        .with(Tap::new("layers.2.attn_probs", Action::Capture(None)));
    let lengths = [rows[0].len(), 3];
    let shapes = plan.shapes(loaded.model.program(), &lengths).expect("a plan that works");
    let run = loaded.model.run(&rows, &plan, &RunOptions::default()).expect("a run");
    assert_eq!(shapes.captures.len(), run.captures.len());
    for ((tap, row, shape), capture) in shapes.captures.iter().zip(&run.captures) {
        assert_eq!((*tap, *row, shape.as_slice()), (capture.tap, capture.row, capture.array.shape()));
    }
    assert_eq!(shapes.saved.len(), run.saved.len());
    for ((value, row, shape), saved) in shapes.saved.iter().zip(&run.saved) {
        assert_eq!((*value, *row, shape.as_deref()), (saved.value, saved.row, Some(saved.array.shape())));
    }
}
