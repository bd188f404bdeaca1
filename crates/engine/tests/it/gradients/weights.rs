//! Weight gradients against central differences of the oracle, for every kind of op with weights.

use super::{Case, length};
use crate::{oracle, random};
use pellucid_engine::plan::{Combine, Expr, Fold};
use pellucid_engine::program::{OpKind, WeightId};
use pellucid_engine::{Action, Architecture, Array, Plan, Program, RunOptions, Tap};
use proptest::prelude::*;
use random::noise;

/// A plan whose metric is the scalar of the other tests and that saves the gradients of `weights`.
fn plan(case: &Case, weights: &[String]) -> Plan {
    let mut plan = case.plan();
    let vocab = case.architecture.vocab;
    let mut sums = Vec::new();
    for (row, text) in case.texts.iter().enumerate() {
        let logits = plan.read(Tap::new("logits", Action::Read).rows([row]));
        let coefficients = Array::new(vec![text.len(), vocab], case.seeds[row].values.clone());
        let coefficients = plan.value(Expr::Constant(coefficients));
        let product = plan.value(Expr::Combine(Combine::Mul, logits, coefficients));
        sums.push(plan.value(Expr::Fold { of: product, how: Fold::Sum, axis: None, keep: false }));
    }
    let metric = sums.into_iter().reduce(|a, b| plan.value(Expr::Combine(Combine::Add, a, b))).expect("a row");
    plan.metrics = vec![metric];
    for weight in weights {
        let gradient = plan.value(Expr::WeightGrad { metric: 0, weight: weight.clone() });
        plan.save.push(gradient);
    }
    plan
}

/// Whether a weight is a routing correction, which affects only the choice of experts and has no
/// gradient.
fn is_correction(program: &Program, weight: WeightId) -> bool {
    let corrects = |kind: &OpKind| matches!(kind, OpKind::Route { correction: Some(own), .. } if *own == weight);
    program.ops().iter().any(|op| corrects(&op.kind))
}

impl Case {
    /// The scalar, computed by the oracle.
    fn scalar(&self, weights: &oracle::Weights) -> f64 {
        let of_row = |row: usize| {
            let logits = &self.oracle(weights, row, None).sites["logits"];
            logits.iter().zip(&self.seeds[row].values).map(|(x, c)| x * *c as f64).sum::<f64>()
        };
        (0..self.texts.len()).map(of_row).sum()
    }

    /// Central difference of the scalar along a direction of a weight, and the actual direction
    /// after rounding the weight to f32.
    fn weight_difference(&self, weights: &oracle::Weights, name: &str, direction: &[f32]) -> (f64, Vec<f64>) {
        // As small as f32 allows: a longer step crosses kinks of activations and clips, where the
        // difference is not the gradient.
        const STEP: f32 = 1e-6;
        let moved = |by: f32| {
            let mut moved = weights.clone();
            let values = &mut moved.get_mut(name).expect("a weight of the program").1;
            values.iter_mut().zip(direction).for_each(|(x, d)| *x += by * d);
            moved
        };
        let (after, before) = (moved(STEP), moved(-STEP));
        let (there, here) = (&after[name].1, &before[name].1);
        let way = there.iter().zip(here).map(|(a, b)| (*a as f64 - *b as f64) / STEP as f64 / 2.0);
        ((self.scalar(&after) - self.scalar(&before)) / STEP as f64 / 2.0, way.collect())
    }

    fn weight_gradients(&self, weights: &[String], recompute: bool) -> Vec<Array> {
        let options = RunOptions { recompute, ..RunOptions::default() };
        let run = self.model.run(&self.texts, &plan(self, weights), &options).expect("gradients");
        run.saved.into_iter().map(|saved| saved.array).collect()
    }
}

/// Compares gradients of some weights with central differences along random directions.
fn matches_finite_differences(architecture: &Architecture, lengths: &[usize], seed: u64) -> Result<(), TestCaseError> {
    let case = Case::new(architecture, lengths, seed);
    let program = case.model.program();
    let weights = program.weight_ids().filter(|&id| !is_correction(program, id));
    let mut names: Vec<String> = weights.map(|id| program.weight(id).name.clone()).collect();
    let chance = noise(seed ^ 0xBEEF, names.len());
    let keep = 8.0 / names.len() as f32;
    let mut draws = chance.iter();
    names.retain(|_| draws.next().is_some_and(|x| (x + 1.0) / 2.0 < keep));
    let gradients = case.weight_gradients(&names, false);
    prop_assert_eq!(gradients.len(), names.len());
    let size = |gradient: &Array| length(gradient.values().iter().map(|&x| x as f64));
    // A gradient that cancels to zero (such as that of a key bias) leaves rounding errors.
    let cancelled = 1e-6 * gradients.iter().map(size).fold(0.0, f64::max);
    for (name, gradient) in names.iter().zip(&gradients) {
        prop_assert_eq!(gradient.shape(), &case.weights[name].0[..], "{}", name);
        let direction = noise(seed ^ name.len() as u64 ^ 99, gradient.values().len());
        let (truth, way) = case.weight_difference(&case.weights, name, &direction);
        let ours: f64 = gradient.values().iter().zip(&way).map(|(g, d)| *g as f64 * d).sum();
        let length = length(way.iter().copied());
        let size = (size(gradient) * length).max(0.5);
        if (ours - truth).abs() > 1e-4 * size + cancelled * length {
            // As for activations: reject the case if rounding changes the gradient as much, or may
            // have decided a choice.
            let perturbed = random::perturbed(&case.weights, seed);
            let change = (case.weight_difference(&perturbed, name, &direction).0 - truth).abs();
            let decided = (0..case.texts.len()).all(|row| case.is_decided(row));
            prop_assume!(change < 1e-5 * size && decided);
            prop_assert!(false, "{}: {} instead of {} (size {})", name, ours, truth, size);
        }
    }
    let bits = |arrays: &[Array]| -> Vec<u32> {
        arrays.iter().flat_map(|array| array.values().iter().map(|x| x.to_bits())).collect()
    };
    prop_assert!(bits(&gradients) == bits(&case.weight_gradients(&names, true)), "layers that run again differ");
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn the_gradient_of_any_weight_matches_finite_differences(a in random::architecture(random::any_layer()), lengths in super::lengths(), seed: u64) {
        matches_finite_differences(&a, &lengths, seed)?;
    }

    #[test]
    fn the_gradient_of_any_weight_of_attention_matches_finite_differences(a in random::architecture(crate::architectures::one_attention()), lengths in super::lengths(), seed: u64) {
        matches_finite_differences(&a, &lengths, seed)?;
    }

    #[test]
    fn the_gradient_of_any_weight_of_a_recurrence_matches_finite_differences(a in random::architecture(crate::architectures::one_recurrence()), lengths in super::lengths(), seed: u64) {
        matches_finite_differences(&a, &lengths, seed)?;
    }

    #[test]
    fn the_gradient_of_any_weight_of_experts_matches_finite_differences(a in random::architecture(crate::architectures::one_mixture()), lengths in super::lengths(), seed: u64) {
        matches_finite_differences(&a, &lengths, seed)?;
    }
}

/// The properties above cover every kind of op with weights.
#[test]
fn every_op_with_weights_is_drawn() {
    use proptest::strategy::ValueTree;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut met = std::collections::BTreeSet::new();
    let mut draw = |strategy: BoxedStrategy<Architecture>| {
        for _ in 0..64 {
            let architecture = strategy.new_tree(&mut runner).expect("an architecture").current();
            let program = Program::new(architecture).expect("a program");
            met.extend(program.ops().iter().filter(|op| !op.kind.weights().is_empty()).map(|op| op.kind.name()));
        }
    };
    draw(random::architecture(random::any_layer()).boxed());
    draw(random::architecture(crate::architectures::one_attention()).boxed());
    draw(random::architecture(crate::architectures::one_recurrence()).boxed());
    draw(random::architecture(crate::architectures::one_mixture()).boxed());
    let all = [
        "attention",
        "block_matmul",
        "convolve",
        "differ",
        "experts",
        "gain",
        "key_bias",
        "lookup",
        "lru",
        "matmul",
        "norm",
        "project",
        "recur",
        "route",
        "routed_matmul",
        "routed_project",
        "shift",
        "step",
        "wkv",
        "xielu",
    ];
    assert_eq!(met.into_iter().collect::<Vec<_>>(), all);
}
