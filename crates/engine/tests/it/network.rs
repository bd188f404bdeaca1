//! Hand-built networks: captured, edited and differentiated like any model.

use pellucid_engine::architecture::{Activation, NormKind};
use pellucid_engine::plan::{Across, Expr, Fold};
use pellucid_engine::program::Network;
use pellucid_engine::{
    Action, Array, Batch, Control, GenerateOptions, Model, Operand, Plan, Program, RunOptions, Tap, Weight, WeightKind,
    Weights,
};
use pellucid_kernels::{DType, Matrix, Pool};

/// Deterministic values between -1.1 and 1.1.
fn test_values(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|i| (((i * 37 + seed * 101) % 23) as f32 - 11.0) / 10.0).collect()
}

fn model(program: Program) -> Model {
    let weights = program.weights().iter().enumerate().map(|(seed, spec)| {
        let values = test_values(spec.shape.iter().product(), seed);
        match spec.kind {
            WeightKind::Vector => Weight::Vector(values),
            _ => {
                let [rows, cols] = spec.shape[..] else { panic!("a matrix has two axes") };
                let row = |row: usize, out: &mut [f32]| out.copy_from_slice(&values[row * cols..][..cols]);
                Weight::Matrix(Matrix::pack(&Pool::global(), rows, cols, DType::F32, &row))
            }
        }
    });
    let weights = Weights::new(weights.collect());
    Model::new(program, weights)
}

fn array(rows: usize, width: usize) -> Array {
    Array::new(vec![rows, width], test_values(rows * width, 7))
}

fn product(x: &[f32], weight: &Array, bias: Option<&Array>) -> Vec<f32> {
    let dot = |line: &[f32]| line.iter().zip(x).map(|(w, x)| w * x).sum::<f32>();
    let outputs = weight.shape()[0];
    (0..outputs).map(|o| dot(weight.row(o)) + bias.map_or(0.0, |bias| bias.values()[o])).collect()
}

#[test]
fn a_linear_network_is_traced() {
    let mut net = Network::new();
    let x = net.input("x", 5).unwrap();
    let hidden = net.linear("layer1", x, 10, true).unwrap();
    let y = net.linear("layer2", hidden, 2, true).unwrap();
    net.activation("out", y, Activation::Sigmoid).unwrap();
    let model = model(net.build().unwrap());
    let input = array(3, 5);
    let plan = Plan::capture(["layer1", "layer2", "out"]);
    let run = model.run_vectors("x", std::slice::from_ref(&input), &plan, &RunOptions::default()).unwrap();
    let (w1, b1) = model.weight_of(model.find("layer1").unwrap().sites[0]).unwrap();
    let (w2, b2) = model.weight_of(model.find("layer2").unwrap().sites[0]).unwrap();
    for token in 0..3 {
        let hidden = product(input.row(token), &w1, b1.as_ref());
        let y = product(&hidden, &w2, b2.as_ref());
        for (found, expected) in [(0, &hidden), (1, &y)] {
            let found = run.captures[found].array.row(token);
            assert!(found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-4), "{found:?} {expected:?}");
        }
        let out = run.captures[2].array.row(token);
        assert!(out.iter().zip(&y).all(|(a, y)| (a - 1.0 / (1.0 + (-y).exp())).abs() < 1e-5));
    }
    // Sites come in forward order, and an edit affects later sites.
    let sites: Vec<String> = model.program().sites().map(|site| site.to_string()).collect();
    assert_eq!(sites, ["x", "layer1", "layer2", "out"]);
    let zeroed = Plan::of([Tap::new("layer1", Action::Zero), Tap::new("layer2", Action::Capture(None))]);
    let run = model.run_vectors("x", &[input], &zeroed, &RunOptions::default()).unwrap();
    assert_eq!(run.captures[0].array.row(1), b2.unwrap().values());
}

#[test]
fn a_reused_layer_has_an_edge_for_each_call() {
    let mut net = Network::new();
    let mut h = net.input("x", 4).unwrap();
    for call in 0..3 {
        h = net.linear_again(&format!("step.{call}"), "step", h, 4, false).unwrap();
    }
    let program = net.build().unwrap();
    assert_eq!(program.weights().len(), 1);
    let model = model(program);
    let run = |taps: Vec<Tap>| {
        let plan = Plan::of(taps.into_iter().chain([Tap::new("step.2", Action::Capture(None))]));
        model.run_vectors("x", &[array(2, 4)], &plan, &RunOptions::default()).unwrap().captures.remove(0).array
    };
    let plain = run(vec![]);
    assert!(plain.values().iter().any(|&x| x != 0.0));
    assert!(run(vec![Tap::new("step.1", Action::Zero)]).values().iter().all(|&x| x == 0.0));
}

#[test]
fn attention_norms_and_gradients_work() {
    let mut net = Network::new();
    let tokens = net.embedding("tokens", 11, 8).unwrap();
    let positions = net.positions("pos_table", 16, 8).unwrap();
    let x = net.add("x", tokens, positions).unwrap();
    let normed = net.norm("norm", x, NormKind::Layer, 1e-5, true).unwrap();
    let [q, k, v] = ["q", "k", "v"].map(|name| net.linear(name, normed, 8, false).unwrap());
    let mixed = net.attention("attention", q, k, v, 2, 2).unwrap();
    let scaled = net.scale("half", mixed, 0.5).unwrap();
    let gated = net.multiply("gated", scaled, v).unwrap();
    net.concat("end", &[gated, x]).unwrap();
    let model = model(net.build().unwrap());
    let rows = vec![vec![1, 5, 3, 10], vec![7, 2]];
    let mut plan = Plan::default();
    let end = plan.read(Tap::new("end", Action::Read));
    let squares = plan.value(Expr::Map(pellucid_engine::plan::Map::Square, end));
    let sum = plan.value(Expr::Fold { of: squares, how: Fold::Sum, axis: None, keep: false });
    let all = plan.value(Expr::Across { of: sum, how: Across::Sum });
    (plan.metrics, plan.save) = (vec![all], vec![all]);
    let found = model
        .run(
            &rows,
            &plan.clone().gradient("x").with(Tap::new("attention.probs", Action::Capture(None))),
            &RunOptions::default(),
        )
        .unwrap();
    let probs = found.captures.iter().find(|capture| capture.site.to_string() == "attention.probs").unwrap();
    assert_eq!(probs.array.shape(), [2, 4, 4]);
    assert!((probs.array.row(1)[4..8].iter().sum::<f32>() - 1.0).abs() < 1e-5);
    // Compare one element of the gradient with a central difference.
    let gradient = found.captures[0].array.row(2)[3];
    let metric = |by: f32| {
        let mut step = vec![0.0; 8];
        step[3] = by;
        let moved = Tap::new("x", Action::Add { operand: Operand::Vector(step), scale: 1.0 }).rows([0]);
        let moved = moved.positions(pellucid_engine::Positions::List(vec![2]));
        let mut plan = plan.clone();
        plan.taps.push(moved);
        model.run(&rows, &plan, &RunOptions::default()).unwrap().value(all, 0).unwrap().values()[0]
    };
    let difference = (metric(0.01) - metric(-0.01)) / 0.02;
    assert!(
        (difference - gradient).abs() < 0.02 * gradient.abs().max(1.0),
        "central difference {difference}, gradient {gradient}"
    );
}

#[test]
fn generating_without_logits_is_an_error() {
    let mut net = Network::new();
    let x = net.input("x", 5).unwrap();
    net.linear("out", x, 2, true).unwrap();
    let model = model(net.build().unwrap());
    let options = GenerateOptions::default();
    let error = model.generate(&[vec![0]], &Plan::default(), &options, &mut |_, _| Control::Go).unwrap_err();
    assert!(error.to_string().contains("no logits"), "{error}");
    assert!(Batch::new(&model).add(&[vec![0]], &Plan::default(), &options).is_err());
}

#[test]
fn invalid_networks_are_errors() {
    let mut net = Network::new();
    let x = net.input("x", 4).unwrap();
    let y = net.linear("y", x, 3, false).unwrap();
    let refused = |found: pellucid_engine::Result<_>, word: &str| {
        let problem: String = found.map(|_: pellucid_engine::program::Node| ()).unwrap_err().to_string();
        assert!(problem.contains(word), "{problem}");
    };
    refused(net.add("sum", x, y), "sum");
    refused(net.linear("y", x, 3, false), "already used");
    refused(net.linear("logits", x, 3, false), "reserved");
    refused(net.linear("none", x, 0, false), "width is 0");
    refused(net.linear_again("z", "y", x, 5, false), "[3, 4]");
    refused(net.attention("a", x, y, y, 2, 1), "heads");
    assert!(Network::new().build().is_err());
    let model = model(net.build().unwrap());
    let error = |input: &str, width: usize| {
        model
            .run_vectors(input, &[array(2, width)], &Plan::capture(["y"]), &RunOptions::default())
            .unwrap_err()
            .to_string()
    };
    assert!(error("x", 5).contains("[2, 5]"));
    assert!(error("xx", 4).contains("xx"));
}
