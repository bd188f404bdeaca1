//! Gradients of random architectures against central differences of the oracle, at any site.

mod contracts;
mod weights;

use crate::{oracle, random};
use pellucid_engine::architecture::Skip;
use pellucid_engine::point::Point;
use pellucid_engine::{Action, Architecture, Capture, GradOptions, Model, Operand, Plan, Program, Seed, Site, Tap};
use pellucid_kernels::{DType, Pool};
use proptest::prelude::*;
use random::{model, noise, weights};
use std::sync::Arc;

/// Seeds of a scalar: a random linear combination of all logits.
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

/// Sites whose shift has the same effect in the oracle and in the engine. Excludes edges with two
/// site names, which the oracle shifts in only one of the two roles.
fn movable_sites(program: &Program) -> Vec<Site> {
    let sites: Vec<Site> = program.sites().collect();
    let alone =
        |site: &Site| sites.iter().filter(|other| program.edge_of(**other) == program.edge_of(*site)).count() == 1;
    let can = |site: &Site| match site.point {
        Point::ResidPre | Point::ExpertIndices | Point::MixerState => false,
        // The output of an empty layer is its input, which others may read too.
        Point::ResidPost => {
            let entered = Site { point: Point::ResidPre, ..*site };
            program.edge_of(entered) != program.edge_of(*site)
        }
        Point::AttnIn | Point::MixerIn | Point::MlpIn => {
            let layer = &program.architecture().layers[site.layer.unwrap_or_default()];
            // The input of a sublayer may also feed the skip connection or the other sublayer.
            let own = site.point != Point::MlpIn || layer.mlp_norm.is_some() || layer.shared.is_some();
            own && alone(site)
                && layer.skip == Skip::Identity
                && layer.attention.is_none() != layer.recurrence.is_none()
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
    /// A site to which a tap adds a constant.
    edited: Option<Site>,
}

/// The constant that the tap adds.
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
        let movable_sites = movable_sites(model.program());
        let edited = seed.is_multiple_of(2).then(|| movable_sites[(seed / 2) as usize % movable_sites.len()]);
        Case { architecture: architecture.clone(), weights, model, texts, seeds, edited }
    }

    fn plan(&self) -> Plan {
        let add = Action::Add { operand: Operand::Number(ADDED), scale: 1.0 };
        Plan::of(self.edited.iter().map(|site| Tap::new(site.to_string(), add.clone())))
    }

    fn vjp(&self, to: &[Site], recompute: bool) -> Vec<Capture> {
        self.model.vjp(&self.texts, &self.plan(), &self.seeds, to, &GradOptions { recompute }).expect("gradients")
    }

    fn oracle(&self, weights: &oracle::Weights, row: usize, shift: Option<oracle::SiteShift>) -> oracle::OracleRun {
        let edit = |site: &Site| oracle::SiteShift { site: site.to_string(), by: vec![ADDED as f64; 1 << 16] };
        let shifts: Vec<oracle::SiteShift> = self.edited.iter().map(edit).chain(shift).collect();
        oracle::run_shifted(&self.architecture, weights, &self.texts[row], &shifts)
    }

    /// Central difference of the scalar along a direction of a site, computed by the oracle.
    fn difference(&self, weights: &oracle::Weights, row: usize, site: Site, direction: &[f64]) -> f64 {
        const STEP: f64 = 1e-6;
        let value = |by: f64| -> f64 {
            let shift = oracle::SiteShift { site: site.to_string(), by: direction.iter().map(|x| x * by).collect() };
            let truth = self.oracle(weights, row, Some(shift));
            truth.sites["logits"].iter().zip(&self.seeds[row].values).map(|(x, c)| x * *c as f64).sum()
        };
        (value(STEP) - value(-STEP)) / (2.0 * STEP)
    }

    /// Whether rounding cannot have changed a discrete choice or the side of a kink, and the oracle
    /// has not overflowed.
    fn is_decided(&self, row: usize) -> bool {
        let oracle::OracleRun { sites, closest_choice, closest_kink } = self.oracle(&self.weights, row, None);
        closest_choice.min(closest_kink) > 1e-4 && sites.values().flatten().all(|x| !x.is_nan())
    }
}

/// Compares gradients at some sites of each row with central differences along random directions.
fn matches_finite_differences(architecture: &Architecture, lengths: &[usize], seed: u64) -> Result<(), TestCaseError> {
    let case = Case::new(architecture, lengths, seed);
    let mut to = movable_sites(case.model.program());
    // Always the embedding, whose gradient passes through all ops; of the other sites a random few.
    let chance = noise(seed ^ 0xC0FFEE, to.len());
    let keep = 8.0 / to.len() as f32;
    let mut draws = chance.iter();
    to.retain(|site| site.point == Point::Embed || draws.next().is_some_and(|x| (x + 1.0) / 2.0 < keep));
    let gradients = case.vjp(&to, false);
    prop_assert_eq!(gradients.len(), to.len() * case.texts.len());
    for capture in &gradients {
        let values: Vec<f64> = capture.array.values().iter().map(|&x| x as f64).collect();
        let direction: Vec<f64> =
            noise(seed ^ capture.row as u64 ^ 99, values.len()).iter().map(|&x| x as f64).collect();
        let ours: f64 = values.iter().zip(&direction).map(|(g, d)| g * d).sum();
        let truth = case.difference(&case.weights, capture.row, capture.site, &direction);
        let size = length(values.iter().copied()) * length(direction.iter().copied());
        if (ours - truth).abs() > 1e-4 * size.max(0.5) {
            // Reject ill-conditioned models, whose gradients change as much when their weights
            // change by a few ulps.
            let perturbed = random::perturbed(&case.weights, seed);
            let change = (case.difference(&perturbed, capture.row, capture.site, &direction) - truth).abs();
            prop_assume!(change < 1e-5 * size.max(0.5) && case.is_decided(capture.row));
            prop_assert!(false, "{} of row {}: {ours} instead of {truth} (size {size})", capture.site, capture.row);
        }
    }
    let bits = |captures: &[Capture]| -> Vec<u32> {
        captures.iter().flat_map(|capture| capture.array.values().iter().map(|x| x.to_bits())).collect()
    };
    prop_assert!(bits(&gradients) == bits(&case.vjp(&to, true)), "gradient checkpointing changes the result");
    let three = Case { model: case.model.clone().with_pool(Arc::new(Pool::new(3))), ..case };
    prop_assert!(bits(&gradients) == bits(&three.vjp(&to, false)), "three threads change the result");
    let case = three;
    for (row, text) in case.texts.iter().enumerate() {
        let alone = Seed { row: 0, ..case.seeds[row].clone() };
        let alone = case.model.vjp(std::slice::from_ref(text), &case.plan(), &[alone], &to, &GradOptions::default());
        let own: Vec<Capture> = gradients.iter().filter(|capture| capture.row == row).cloned().collect();
        prop_assert!(bits(&own) == bits(&alone.expect("gradients")), "row {} has other gradients alone", row);
    }
    Ok(())
}

/// Mostly short rows; some longer than a query block and than the interval of state checkpoints.
fn lengths() -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(prop_oneof![5 => 1usize..14, 1 => 33usize..80], 1..3)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn the_gradient_of_any_architecture_matches_finite_differences(a in random::architecture(random::any_layer()), lengths in lengths(), seed: u64) {
        matches_finite_differences(&a, &lengths, seed)?;
    }

    #[test]
    fn the_gradient_of_any_attention_matches_finite_differences(a in random::architecture(crate::architectures::one_attention()), lengths in lengths(), seed: u64) {
        matches_finite_differences(&a, &lengths, seed)?;
    }

    #[test]
    fn the_gradient_of_any_recurrence_matches_finite_differences(a in random::architecture(crate::architectures::one_recurrence()), lengths in lengths(), seed: u64) {
        matches_finite_differences(&a, &lengths, seed)?;
    }

    #[test]
    fn the_gradient_of_any_shared_block_matches_finite_differences(a in random::architecture(crate::architectures::one_shared_block()), lengths in lengths(), seed: u64) {
        matches_finite_differences(&a, &lengths, seed)?;
    }

    #[test]
    fn the_gradient_of_any_mixture_of_experts_matches_finite_differences(a in random::architecture(crate::architectures::one_mixture()), lengths in lengths(), seed: u64) {
        matches_finite_differences(&a, &lengths, seed)?;
    }
}
