//! Gradients of random architectures against central differences of the oracle, at any site.

mod ways;
mod weights;

use crate::{oracle, random};
use pellucid_engine::architecture::Skip;
use pellucid_engine::point::Point;
use pellucid_engine::{Action, Architecture, Capture, GradOptions, Model, Operand, Plan, Program, Seed, Site, Tap};
use pellucid_kernels::{DType, Pool};
use proptest::prelude::*;
use random::{model, noise, weights};
use std::sync::Arc;

/// A scalar: the logits of all positions, each times a number of its own.
fn seeds(model: &Model, texts: &[Vec<u32>], seed: u64) -> Vec<Seed> {
    let vocab = model.program().architecture().vocab;
    let one = |(row, text): (usize, &Vec<u32>)| Seed {
        site: Site::model(Point::Logits),
        row,
        positions: (0..text.len()).collect(),
        values: noise(seed ^ (row as u64 + 77) << 8, text.len() * vocab),
    };
    texts.iter().enumerate().map(one).collect()
}

/// The sites that the oracle moves just where the engine does: an edge that is two sites may be made in one place and moved in another.
fn movable(program: &Program) -> Vec<Site> {
    let sites: Vec<Site> = program.sites().collect();
    let alone =
        |site: &Site| sites.iter().filter(|other| program.edge_of(**other) == program.edge_of(*site)).count() == 1;
    let can = |site: &Site| match site.point {
        Point::ResidPre | Point::ExpertIndices | Point::MixerState => false,
        // What leaves an empty layer entered it, and may be read further on.
        Point::ResidPost => {
            let entered = Site { point: Point::ResidPre, ..*site };
            program.edge_of(entered) != program.edge_of(*site)
        }
        Point::AttnIn | Point::MixerIn | Point::MlpIn => {
            let layer = &program.architecture().layers[site.layer.unwrap_or_default()];
            // What is handed to a sublayer may also go round it, or to the other.
            let own = site.point != Point::MlpIn || layer.mlp_norm.is_some() || layer.shared.is_some();
            own && alone(site) && layer.skip == Skip::Stream && layer.attention.is_none() != layer.recurrence.is_none()
        }
        _ => true,
    };
    sites.iter().copied().filter(can).collect()
}

fn length(x: impl Iterator<Item = f64>) -> f64 {
    x.map(|x| x * x).sum::<f64>().sqrt()
}

struct Case {
    architecture: Architecture,
    weights: oracle::Weights,
    model: Model,
    texts: Vec<Vec<u32>>,
    seeds: Vec<Seed>,
    /// A site to which a tap adds a number everywhere.
    edited: Option<Site>,
}

/// The number that the tap adds.
const ADDED: f32 = 0.125;

impl Case {
    fn new(architecture: &Architecture, lengths: &[usize], seed: u64) -> Case {
        let program = Program::new(architecture.clone()).expect("a program");
        let weights = weights(&program, seed);
        let token = |x: &f32| ((x + 1.0) / 2.0 * architecture.vocab as f32) as u32 % architecture.vocab as u32;
        let text = |(row, &n): (usize, &usize)| noise(seed ^ row as u64, n).iter().map(token).collect();
        let texts: Vec<Vec<u32>> = lengths.iter().enumerate().map(text).collect();
        let model = model(program, &weights, DType::F32);
        let seeds = seeds(&model, &texts, seed);
        let movable = movable(model.program());
        let edited = seed.is_multiple_of(2).then(|| movable[(seed / 2) as usize % movable.len()]);
        Case { architecture: architecture.clone(), weights, model, texts, seeds, edited }
    }

    fn plan(&self) -> Plan {
        let add = Action::Add { operand: Operand::Number(ADDED), scale: 1.0 };
        Plan::of(self.edited.iter().map(|site| Tap::new(site.to_string(), add.clone())))
    }

    fn vjp(&self, to: &[Site], recompute: bool) -> Vec<Capture> {
        self.model.vjp(&self.texts, &self.plan(), &self.seeds, to, &GradOptions { recompute }).expect("gradients")
    }

    fn oracle(&self, weights: &oracle::Weights, row: usize, moved: Option<oracle::Move>) -> oracle::Truth {
        let edit = |site: &Site| oracle::Move { site: site.to_string(), by: vec![ADDED as f64; 1 << 16] };
        let moves: Vec<oracle::Move> = self.edited.iter().map(edit).chain(moved).collect();
        oracle::run_moved(&self.architecture, weights, &self.texts[row], &moves)
    }

    /// What the scalar gains by a move, by the oracle.
    fn difference(&self, weights: &oracle::Weights, row: usize, site: Site, direction: &[f64]) -> f64 {
        const STEP: f64 = 1e-6;
        let value = |by: f64| -> f64 {
            let moved = oracle::Move { site: site.to_string(), by: direction.iter().map(|x| x * by).collect() };
            let truth = self.oracle(weights, row, Some(moved));
            truth.sites["logits"].iter().zip(&self.seeds[row].values).map(|(x, c)| x * *c as f64).sum()
        };
        (value(STEP) - value(-STEP)) / (2.0 * STEP)
    }

    /// Whether no choice was so close that rounding may have decided it, nor any number so close to a kink that it may have been on
    /// the other side, and the oracle has not overflowed.
    fn is_decided(&self, row: usize) -> bool {
        let oracle::Truth { sites, closest, bend } = self.oracle(&self.weights, row, None);
        closest.min(bend) > 1e-4 && sites.values().flatten().all(|x| !x.is_nan())
    }
}

/// Gradients at some sites of each row against differences along random directions.
fn is_its_difference(architecture: &Architecture, lengths: &[usize], seed: u64) -> Result<(), TestCaseError> {
    let case = Case::new(architecture, lengths, seed);
    let mut to = movable(case.model.program());
    // The embedding has everything between itself and the logits; of the others some, by chance.
    let chance = noise(seed ^ 0xC0FFEE, to.len());
    let keep = 8.0 / to.len() as f32;
    let mut draws = chance.iter();
    to.retain(|site| site.point == Point::Embed || draws.next().is_some_and(|x| (x + 1.0) / 2.0 < keep));
    let gradients = case.vjp(&to, false);
    prop_assert_eq!(gradients.len(), to.len() * case.texts.len());
    for capture in &gradients {
        let numbers: Vec<f64> = capture.array.values().iter().map(|&x| x as f64).collect();
        let direction: Vec<f64> =
            noise(seed ^ capture.row as u64 ^ 99, numbers.len()).iter().map(|&x| x as f64).collect();
        let ours: f64 = numbers.iter().zip(&direction).map(|(g, d)| g * d).sum();
        let truth = case.difference(&case.weights, capture.row, capture.site, &direction);
        let size = length(numbers.iter().copied()) * length(direction.iter().copied());
        if (ours - truth).abs() > 1e-4 * size.max(0.5) {
            // Some models say nothing about arithmetic: their gradients move as far when their weights move by a few units in the last place.
            let nudged = random::nudged(&case.weights, seed);
            let moved = (case.difference(&nudged, capture.row, capture.site, &direction) - truth).abs();
            prop_assume!(moved < 1e-5 * size.max(0.5) && case.is_decided(capture.row));
            prop_assert!(false, "{} of row {}: {ours} instead of {truth} (size {size})", capture.site, capture.row);
        }
    }
    let bits = |captures: &[Capture]| -> Vec<u32> {
        captures.iter().flat_map(|capture| capture.array.values().iter().map(|x| x.to_bits())).collect()
    };
    prop_assert!(bits(&gradients) == bits(&case.vjp(&to, true)), "layers that run again give other numbers");
    let three = Case { model: case.model.clone().with_pool(Arc::new(Pool::new(3))), ..case };
    prop_assert!(bits(&gradients) == bits(&three.vjp(&to, false)), "other numbers on three threads");
    let case = three;
    for (row, text) in case.texts.iter().enumerate() {
        let alone = Seed { row: 0, ..case.seeds[row].clone() };
        let alone = case.model.vjp(std::slice::from_ref(text), &case.plan(), &[alone], &to, &GradOptions::default());
        let own: Vec<Capture> = gradients.iter().filter(|capture| capture.row == row).cloned().collect();
        prop_assert!(bits(&own) == bits(&alone.expect("gradients")), "row {} has other gradients alone", row);
    }
    Ok(())
}

/// Mostly short rows; some that fill blocks of queries and outlast remembered states.
fn lengths() -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(prop_oneof![5 => 1usize..14, 1 => 33usize..80], 1..3)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn the_gradient_of_any_architecture_is_its_difference(a in random::architecture(random::any_layer()), lengths in lengths(), seed: u64) {
        is_its_difference(&a, &lengths, seed)?;
    }

    #[test]
    fn the_gradient_of_any_attention_is_its_difference(a in random::architecture(crate::architectures::one_attention()), lengths in lengths(), seed: u64) {
        is_its_difference(&a, &lengths, seed)?;
    }

    #[test]
    fn the_gradient_of_any_recurrence_is_its_difference(a in random::architecture(crate::architectures::one_recurrence()), lengths in lengths(), seed: u64) {
        is_its_difference(&a, &lengths, seed)?;
    }

    #[test]
    fn the_gradient_of_any_shared_block_is_its_difference(a in random::architecture(crate::architectures::one_shared_block()), lengths in lengths(), seed: u64) {
        is_its_difference(&a, &lengths, seed)?;
    }

    #[test]
    fn the_gradient_of_any_mixture_of_experts_is_its_difference(a in random::architecture(crate::architectures::one_mixture()), lengths in lengths(), seed: u64) {
        is_its_difference(&a, &lengths, seed)?;
    }
}
