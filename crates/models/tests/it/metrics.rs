//! Gradients of a plan's metrics: through values, edits and rows, and with taps that read or change
//! them.

use crate::test_plans::{at, capture, direction, from, set};
use golden::Case;
use pellucid_engine::architecture::Activation;
use pellucid_engine::plan::{Across, Combine, Expr, Fold, FromSite, Function, Injection, Map, Pick};
use pellucid_engine::{Action, Array, Operand, Plan, Run, RunOptions, Tap};
use std::sync::Arc;

fn read(site: &str) -> Tap {
    Tap::new(site, Action::Read)
}

fn grad(site: &str, action: Action) -> Tap {
    Tap::new(site, Action::Grad { metric: 0, action: Box::new(action) })
}

fn capture_grad(site: &str) -> Tap {
    grad(site, Action::Capture(None))
}

fn run_plan(case: &Case, rows: &[Vec<u32>], plan: &Plan) -> Run {
    case.loaded.model.run(rows, plan, &RunOptions::default()).unwrap_or_else(|e| panic!("{}: {e}", case.name))
}

fn two_rows(case: &Case) -> Vec<Vec<u32>> {
    vec![case.ids.clone(), case.ids.iter().rev().take(7).copied().collect()]
}

/// Adds a metric: the log-probability of token 7 after each row, summed over rows.
fn add_log_probability(plan: &mut Plan) {
    let logits = plan.read(read("logits").positions(at("last")));
    let logs = plan.value(Expr::Softmax { of: logits, axis: -1, log: true });
    let one = plan.value(Expr::Index { of: logs, picks: vec![Pick::At(0), Pick::At(7)] });
    let sum = plan.value(Expr::Across { of: one, how: Across::Sum });
    plan.metrics.push(sum);
    plan.save.push(sum);
}

/// Compares the gradient at `site` in `row` with a central difference of the metric along one
/// direction. The shift is inserted as tap `order`.
fn compare(case: &Case, rows: &[Vec<u32>], plan: &Plan, site: &str, row: usize, order: usize) {
    let metric = plan.metrics[0];
    let gradient = plan.clone().with(capture_grad(site));
    let run = run_plan(case, rows, &gradient);
    let mut found = run.captures.iter().filter(|capture| capture.row == row && capture.tap == plan.taps.len());
    let gradient = found.next_back().expect("a gradient of the row").array.clone();
    let step = direction(gradient.values().len());
    let length = step.iter().map(|x| x * x).sum::<f32>().sqrt();
    let step: Vec<f32> = step.iter().map(|x| x / length).collect();
    let expected: f32 = gradient.values().iter().zip(&step).map(|(g, d)| g * d).sum();
    let moved = |by: f32| {
        let mut plan = plan.clone();
        let values = step.iter().map(|x| x * by).collect();
        let shift = plan.value(Expr::Constant(Array::new(gradient.shape().to_vec(), values)));
        // The gradient is with respect to the site's value at this index in tap order.
        plan.taps.insert(order, Tap::new(site, Action::Add { operand: Operand::Value(shift), scale: 1.0 }).rows([row]));
        for value in &mut plan.values {
            if let Expr::Read(tap) = &mut value.expr {
                *tap += (*tap >= order) as usize;
            }
        }
        run_plan(case, rows, &plan).value(metric, 0).unwrap().values()[0]
    };
    let scale = gradient.values().iter().map(|x| x * x).sum::<f32>().sqrt().max(1e-3);
    // A steeper metric needs a smaller step.
    let by = 0.02 / scale.max(1.0);
    let found = (moved(by) - moved(-by)) / (2.0 * by);
    assert!(
        (found - expected).abs() < 0.02 * scale,
        "{}: {site} of row {row}: {found} by finite differences, {expected} by gradient (norm {scale})",
        case.name
    );
}

#[test]
fn a_metrics_gradient_agrees_with_finite_differences() {
    for name in ["llama", "gpt2", "gemma3_text", "mixtral", "mamba", "qwen3_next"] {
        let case = golden::case(name);
        let rows = two_rows(&case);
        let mut plan = Plan::default();
        add_log_probability(&mut plan);
        for site in ["embed", "layers.0.resid_post", "layers.1.resid_pre", "final_norm"] {
            for row in 0..2 {
                compare(&case, &rows, &plan, site, row, plan.taps.len());
            }
        }
    }
}

/// Row 0's residual stream of layer 0 goes to row 1 after layer 1.
fn inject_from_row_0(how: Injection) -> Tap {
    Tap::inject("layers.1.resid_post", from("layers.0.resid_post", 0), how).rows([1]).positions(at("3,4"))
}

#[test]
fn gradients_pass_through_edits() {
    let case = golden::case("llama");
    let rows = two_rows(&case);
    let v = direction(32);
    let edits: Vec<Vec<Tap>> = vec![
        vec![Tap::new("layers.1.resid_post", Action::Scale(0.4)).positions(at("-3:"))],
        vec![Tap::new("layers.1.resid_post", Action::Zero).units([1, 5, 9])],
        vec![set("layers.1.mlp_out", Operand::Vector(v.clone())).positions(at("2"))],
        vec![Tap::new("layers.1.z", Action::Scale(-2.0)).heads([1])],
        vec![Tap::new("layers.1.resid_post", Action::ProjectOut { vector: Operand::Vector(v), scale: 0.0 })],
        vec![Tap::add_scaled("layers.1.resid_post", direction(32), 0.3)],
        vec![Tap::norm_match("layers.1.resid_post", direction(32), 0.4).positions(at("1:"))],
        vec![Tap::norm_match("layers.1.z", direction(8), -0.2).heads([1, 3])],
        vec![Tap::orthogonal("layers.1.resid_post", direction(32), 0.1)],
        vec![Tap::swap("layers.1.resid_post", direction(32), vec![1.0; 32])],
        vec![Tap::inject("layers.1.resid_post", direction(32), Injection::default()).positions(at("2"))],
        vec![inject_from_row_0(Injection { scale: 0.7, ..Injection::default() })],
        vec![inject_from_row_0(Injection { scale: 0.7, add: true, norm_match: true })],
        vec![inject_from_row_0(Injection { scale: 1.5, add: false, norm_match: true })],
        vec![Tap::new("layers.2", Action::Skip(None))],
        vec![set("layers.2.resid_post", from("layers.0.resid_post", 0)).rows([1]).positions(at("3"))],
        vec![Tap::new("layers.1.attn_probs", Action::Scale(0.5)).heads([0])],
    ];
    for taps in edits {
        let mut plan = Plan::of(taps);
        let order = plan.taps.len();
        add_log_probability(&mut plan);
        for row in 0..2 {
            compare(&case, &rows, &plan, "layers.0.resid_post", row, order);
        }
    }
}

#[test]
fn gradients_pass_through_edits_by_expert() {
    let case = golden::case("mixtral");
    let rows = two_rows(&case);
    let (out, weights) = ("layers.1.expert_out", "layers.1.expert_weights");
    let value = |plan: &mut Plan| {
        let read = plan.read(read("layers.1.mlp_in"));
        let squared = plan.value(Expr::Map(Map::Square, read));
        plan.taps.push(Tap::add(out).with(Operand::Value(squared)).experts([1, 2]));
    };
    let edits: Vec<Vec<Tap>> = vec![
        vec![Tap::zero(out).experts([2])],
        vec![Tap::scale(out, -1.5).experts([0, 3]).units([3, 7]), Tap::scale(weights, 0.5).experts([1])],
        vec![Tap::add_scaled(out, direction(32), 0.4).experts([0, 1, 2])],
        vec![set(out, Operand::From(FromSite::default().site("layers.1.mlp_in"))).experts([1, 3])],
        vec![inject_into_experts(out, Injection { scale: 0.7, add: true, norm_match: true })],
        vec![Tap::replace("layers.1.expert_indices", [(0, 1), (1, 0)]), Tap::scale(out, 0.3).experts([1])],
        vec![Tap::set("layers.1.expert_indices").with(2.0).positions(at("1:"))],
        vec![],
    ];
    for taps in edits {
        let mut plan = Plan::of(taps);
        if plan.taps.is_empty() {
            value(&mut plan);
        }
        add_log_probability(&mut plan);
        for row in 0..2 {
            compare(&case, &rows, &plan, "layers.0.resid_post", row, 0);
            compare(&case, &rows, &plan, "layers.1.router_logits", row, 0);
        }
    }
}

fn inject_into_experts(site: &str, how: Injection) -> Tap {
    let source = Operand::From(FromSite::default().site("layers.0.mlp_out").row(0));
    Tap::inject(site, source, how).rows([0]).experts([0, 2])
}

#[test]
fn as_many_heads_as_positions_are_not_mistaken_for_attention() {
    let case = golden::case("llama");
    let from = FromSite { site: Some("layers.0.z".into()), rows: Some(vec![0]), positions: Some(at("1")) };
    let edit = set("layers.1.z", Operand::From(from)).rows([1]).heads([0, 1]).positions(at("2,3"));
    let mut plan = Plan::of([edit]);
    // The metric reads only row 1, so that row 0's gradient comes through the edit alone.
    let logits = plan.read(read("logits").rows([1]).positions(at("last")));
    let one = plan.value(Expr::Index { of: logits, picks: vec![Pick::At(0), Pick::At(7)] });
    let sum = plan.value(Expr::Across { of: one, how: Across::Sum });
    (plan.metrics, plan.save) = (vec![sum], vec![sum]);
    compare(&case, &two_rows(&case), &plan, "embed", 0, 0);
}

#[test]
fn gradients_pass_through_values() {
    let case = golden::case("llama");
    let rows = two_rows(&case);
    // tanh of row 0's residual stream is added to row 1 at a later layer, and half of the last
    // MLP's output is computed and added a second time.
    let mut plan = Plan::default();
    let h = plan.read(read("layers.0.resid_post").rows([0]).positions(at("2")));
    let squashed = plan.value(Expr::Map(Map::Activation(Activation::Tanh), h));
    let plan = &mut plan.with(
        Tap::new("layers.1.resid_post", Action::Add { operand: Operand::Value(squashed), scale: 2.0 })
            .rows([1])
            .positions(at("1,4")),
    );
    let mlp = plan.read(read("layers.2.mlp_in"));
    let again = plan.value(Expr::Through { of: mlp, from: "layers.2.mlp_in".into(), to: "layers.2.mlp_out".into() });
    let mut plan =
        plan.clone().with(Tap::new("layers.2.mlp_out", Action::Add { operand: Operand::Value(again), scale: 0.5 }));
    add_log_probability(&mut plan);
    for row in 0..2 {
        compare(&case, &rows, &plan, "embed", row, 0);
        compare(&case, &rows, &plan, "layers.0.resid_mid", row, 0);
    }
    // A metric of the logit lens: final norm and unembedding of a middle layer.
    let mut plan = Plan::default();
    let h = plan.read(read("layers.1.resid_post").positions(at("last")));
    let logits = plan.value(Expr::Unembed(h));
    let best = plan.value(Expr::Index { of: logits, picks: vec![Pick::At(0), Pick::At(3)] });
    let metric = plan.value(Expr::Across { of: best, how: Across::Mean });
    (plan.metrics, plan.save) = (vec![metric], vec![metric]);
    compare(&case, &rows, &plan, "layers.0.resid_post", 1, 0);
}

#[test]
fn taps_read_and_change_gradients() {
    let case = golden::case("gpt2");
    let rows = vec![case.ids.clone()];
    let mut base = Plan::default();
    add_log_probability(&mut base);
    let plain = run_plan(&case, &rows, &base.clone().gradient("layers.0.resid_post").gradient("layers.1.resid_post"));
    let (first, second) = (&plain.captures[0].array, &plain.captures[1].array);
    // Zeroed at layer 2, it reads as zero there and at layer 0.
    let zeroed = base
        .clone()
        .with(capture_grad("layers.0.resid_post"))
        .with(capture_grad("layers.2.resid_post"))
        .with(grad("layers.2.resid_post", Action::Zero));
    let run = run_plan(&case, &rows, &zeroed);
    assert!(run.captures[0].array.values().iter().chain(run.captures[1].array.values()).all(|&g| g == 0.0));
    // Scaled at layer 1, it is scaled at layer 0. Gradient taps run in reverse order, so the tap
    // listed before the edit sees the scaled gradient.
    let scaled = base
        .clone()
        .with(capture_grad("layers.1.resid_post"))
        .with(grad("layers.1.resid_post", Action::Scale(3.0)))
        .with(capture_grad("layers.1.resid_post"))
        .with(capture_grad("layers.0.resid_post"));
    let run = run_plan(&case, &rows, &scaled);
    for (a, b) in run.captures[0].array.values().iter().zip(second.values()) {
        assert!((a - 3.0 * b).abs() <= 1e-6 + 1e-4 * b.abs());
    }
    assert_eq!(run.captures[1].array, *second);
    for (a, b) in run.captures[2].array.values().iter().zip(first.values()) {
        assert!((a - 3.0 * b).abs() <= 1e-5 + 1e-3 * b.abs());
    }
    // Attribution patching: activation times gradient.
    let mut plan = base.clone();
    let h = plan.read(read("layers.1.resid_post"));
    let g = plan.read(grad("layers.1.resid_post", Action::Read));
    let product = plan.value(Expr::Combine(Combine::Mul, h, g));
    let by_token = plan.value(Expr::Fold { of: product, how: Fold::Sum, axis: Some(-1), keep: false });
    plan.save = vec![by_token];
    let run = run_plan(&case, &rows, &plan.with(capture("layers.1.resid_post")));
    for (token, &x) in run.value(by_token, 0).unwrap().values().iter().enumerate() {
        let h = run.captures[0].array.row(token);
        let expected: f32 = h.iter().zip(second.row(token)).map(|(h, g)| h * g).sum();
        assert!((x - expected).abs() < 1e-4);
    }
}

#[test]
fn several_metrics_share_a_run() {
    let case = golden::case("llama");
    let rows = two_rows(&case);
    let mut plan = Plan::default();
    add_log_probability(&mut plan);
    let twice = plan.value(Expr::Combine(Combine::Add, plan.metrics[0], plan.metrics[0]));
    plan.metrics.push(twice);
    let site = "layers.0.resid_post";
    let second = Tap::new(site, Action::Grad { metric: 1, action: Box::new(Action::Capture(None)) });
    let run = run_plan(&case, &rows, &plan.gradient(site).with(second));
    for row in 0..2 {
        let (one, two) = (&run.captures[row].array, &run.captures[2 + row].array);
        assert!(one.values().iter().zip(two.values()).all(|(a, b)| (2.0 * a - b).abs() <= 1e-6));
        assert!(one.values().iter().any(|&g| g != 0.0));
    }
}

#[test]
fn gradient_checkpointing_changes_no_bit() {
    for name in ["llama", "gemma3_text", "mamba"] {
        let case = golden::case(name);
        let rows = two_rows(&case);
        let mut plan = Plan::of([
            Tap::new("layers.1.resid_post", Action::Scale(0.5)).positions(at("-2:")),
            Tap::norm_match("layers.1.resid_post", direction(32), 0.5),
        ]);
        add_log_probability(&mut plan);
        let plan = plan.gradient("layers.*.resid_post").gradient("embed");
        let model = &case.loaded.model;
        let stored = model.run(&rows, &plan, &RunOptions::default()).unwrap();
        let recomputed = model.run(&rows, &plan, &RunOptions { recompute: true, ..RunOptions::default() }).unwrap();
        for (a, b) in stored.captures.iter().zip(&recomputed.captures) {
            assert_eq!(a.array, b.array, "{name}: {} of row {}", a.site, a.row);
        }
    }
}

#[test]
fn unavailable_gradients_are_refused() {
    let case = golden::case("mixtral");
    let rows = two_rows(&case);
    let mut base = Plan::default();
    add_log_probability(&mut base);
    let refused = |plan: Plan, words: &[&str]| {
        let problem = case.loaded.model.run(&rows, &plan, &RunOptions::default()).unwrap_err().to_string();
        words.iter().for_each(|word| assert!(problem.contains(word), "{problem:?} does not contain {word:?}"));
    };
    refused(base.clone().gradient("layers.0.expert_indices"), &["expert_indices", "no gradient"]);
    refused(Plan::default().gradient("embed"), &["embed", "metric 0"]);
    let capped = Action::Cap { vector: Operand::Vector(direction(32)), min: None, max: Some(1.0) };
    refused(base.clone().with(Tap::new("layers.1.resid_post", capped)).gradient("embed"), &["cap"]);
    let mut plan = Plan::default();
    let logits = plan.read(read("logits").rows([0]).positions(at("last")));
    let sum = Function(Arc::new(|of: &[Array]| Ok(Array::new(vec![], vec![of[0].values().iter().sum()]))));
    let metric = plan.value(Expr::Call { function: sum, of: vec![logits] });
    plan.metrics = vec![metric];
    refused(plan.gradient("embed"), &["opaque function"]);
    let mut plan = base.clone();
    let g = plan.read(grad("layers.0.resid_post", Action::Read));
    refused(
        plan.with(set("layers.1.resid_post", Operand::Value(g))).with(capture("logits")),
        &["gradient", "after the forward pass"],
    );
}
