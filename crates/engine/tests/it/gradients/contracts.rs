//! Other guarantees of gradients: all ops and storage formats are supported, and sites without a
//! gradient are errors.

use crate::random;
use pellucid_engine::architecture::{
    Activation, Attention, Dense, Experts, Layer, Mamba, Mlp, Norm, Recurrence, Rope, RopeStyle, Routing,
};
use pellucid_engine::point::Point;
use pellucid_engine::{
    Action, Architecture, GradOptions, Model, Operand, Plan, Program, Seed, Site, Tap, Weight, WeightKind, Weights,
};
use pellucid_kernels::encoding::Encoding;
use pellucid_kernels::matrix::RowBytes;
use pellucid_kernels::{DType, Matrix, Pool};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use random::{model, noise, weights};
use std::collections::BTreeSet;

#[test]
fn every_kind_of_op_is_drawn() {
    let mut runner = TestRunner::deterministic();
    let mut names = BTreeSet::new();
    let mut draw = |strategy: &dyn Fn(&mut TestRunner) -> Architecture| {
        for _ in 0..64 {
            let program = Program::new(strategy(&mut runner)).expect("a program");
            names.extend(program.ops().iter().map(|op| op.kind.name()));
        }
    };
    draw(&|r| random::architecture(random::any_layer()).new_tree(r).expect("an architecture").current());
    draw(&|r| {
        random::architecture(crate::architectures::one_attention()).new_tree(r).expect("an architecture").current()
    });
    draw(&|r| {
        random::architecture(crate::architectures::one_recurrence()).new_tree(r).expect("an architecture").current()
    });
    draw(&|r| {
        random::architecture(crate::architectures::one_mixture()).new_tree(r).expect("an architecture").current()
    });
    assert_eq!(names.len(), 35, "{names:?}");
}

#[test]
fn finite_differences_detect_an_error_of_one_thousandth() {
    // Control: the tolerance of the property tests detects a relative error of 0.001.
    let case = super::Case::new(&architecture(), &[7], 3);
    for text in ["embed", "layers.0.attn_probs", "layers.0.router_logits", "layers.1.conv_out"] {
        let (site, gradient) = (site(text), case.vjp(&[site(text)], false).remove(0).array);
        // Along the gradient itself, where the difference is largest.
        let direction: Vec<f64> = gradient.values().iter().map(|&x| x as f64).collect();
        let square: f64 = direction.iter().map(|x| x * x).sum();
        let truth = case.difference(&case.weights, 0, site, &direction);
        assert!((square - truth).abs() < 1e-4 * square, "{text}: {square} instead of {truth}");
        assert!((1.001 * square - truth).abs() > 1e-4 * square, "{text}");
    }
}

/// Two layers: attention and experts, then a recurrence and an MLP.
fn architecture() -> Architecture {
    let norm = Norm::rms(1e-5);
    let dense = Dense::gated(64, Activation::Silu);
    let attention = Attention { scale: 0.2, rope: Some(0), ..Attention::plain(4, 2, 16) };
    let mamba = Mamba {
        inner_width: 64,
        state_size: 4,
        dt_rank: 32,
        conv_kernel: 3,
        conv_bias: true,
        bias: false,
        activation: Activation::Silu,
        inner_norm: None,
    };
    Architecture {
        family: "made by hand".into(),
        vocab: 50,
        width: 64,
        context: None,
        embedding: Default::default(),
        layers: vec![
            Layer {
                attention: Some(attention),
                mlp: Some(Mlp::Experts(Experts::new(4, 2, dense, Routing::softmax(true)))),
                ..Layer::empty(norm)
            },
            Layer { recurrence: Some(Recurrence::Mamba(mamba)), mlp: Some(Mlp::Dense(dense)), ..Layer::empty(norm) },
        ],
        final_norm: Some(norm),
        head: Default::default(),
        ropes: vec![Rope::fixed(RopeStyle::Halves, vec![1.0, 0.3, 0.1], 1.0)],
        modules: Default::default(),
    }
}

fn plain() -> Model {
    let program = Program::new(architecture()).expect("a program");
    let weights = weights(&program, 5);
    model(program, &weights, DType::F32)
}

fn site(text: &str) -> Site {
    plain().find(text).expect("a site").sites[0]
}

fn at_logits(positions: Vec<usize>) -> Seed {
    let values = noise(9, positions.len() * 50);
    Seed { site: Site::model(Point::Logits), row: 0, positions, values }
}

fn vjp(model: &Model, seed: Seed, to: &[&str]) -> Vec<Vec<f32>> {
    let to: Vec<Site> = to.iter().map(|text| site(text)).collect();
    let text = vec![vec![3, 14, 15, 9, 26, 5]];
    let captures = model.vjp(&text, &Plan::default(), &[seed], &to, &GradOptions::default()).expect("gradients");
    captures.iter().map(|capture| capture.array.values().to_vec()).collect()
}

struct Bytes(Vec<u8>, usize);

impl RowBytes for Bytes {
    fn row(&self, row: usize) -> &[u8] {
        &self.0[row * self.1..][..self.1]
    }
}

#[test]
fn quantized_weights_have_the_gradients_of_their_values() {
    let pool = Pool::new(1);
    let program = Program::new(architecture()).expect("a program");
    for encoding in [Encoding::Q8_0, Encoding::Q4_0, Encoding::Q5_1] {
        let (mut quantized, mut wide) = (Vec::new(), Vec::new());
        for (index, spec) in program.weights().iter().enumerate() {
            if spec.kind == WeightKind::Vector {
                let values: Vec<f32> =
                    noise(index as u64, spec.shape.iter().product()).iter().map(|x| 0.8 + 0.2 * x).collect();
                quantized.push(Weight::Vector(values.clone()));
                wide.push(Weight::Vector(values));
                continue;
            }
            let (rows, cols, size) = (spec.shape[0], spec.shape[1], encoding.block_bytes());
            let width = cols / encoding.block_len() * size;
            let mut bytes: Vec<u8> =
                noise(index as u64, rows * width).iter().map(|x| (x * 127.0) as i8 as u8).collect();
            // Each block starts with its f16 scale and, for Q5_1, its f16 minimum. Choose values
            // that give weights of moderate size.
            let (scale, least) = (if encoding == Encoding::Q8_0 { 0x1800u16 } else { 0x2400 }, 0xB400u16);
            for block in bytes.chunks_exact_mut(size) {
                block[..2].copy_from_slice(&scale.to_le_bytes());
                if encoding == Encoding::Q5_1 {
                    block[2..4].copy_from_slice(&least.to_le_bytes());
                }
            }
            let matrix = Matrix::encoded(&pool, rows, cols, encoding, Box::new(Bytes(bytes, width)));
            let fill = |row: usize, out: &mut [f32]| matrix.row(row, out);
            wide.push(Weight::Matrix(Matrix::pack(&pool, rows, cols, DType::F32, &fill)));
            quantized.push(Weight::Matrix(matrix));
        }
        let to = ["embed", "layers.0.z", "layers.0.expert_weights", "layers.1.conv_out", "layers.1.mlp_act"];
        let [ours, truth] = [quantized, wide].map(|weights| {
            let model = Model::new(program.clone(), Weights::new(weights));
            vjp(&model, at_logits((0..6).collect()), &to)
        });
        assert_eq!(ours, truth, "{encoding}");
        assert!(ours.iter().all(|gradient| gradient.iter().any(|&x| x != 0.0)), "{encoding}");
    }
}

#[test]
fn a_site_after_the_seed_has_zero_gradient() {
    let seed = Seed { site: site("layers.0.resid_post"), row: 0, positions: vec![2], values: noise(1, 64) };
    let gradients = vjp(&plain(), seed.clone(), &["layers.0.resid_post", "layers.1.mlp_act", "final_norm", "embed"]);
    assert_eq!(gradients[0][2 * 64..3 * 64], seed.values, "the seed itself");
    assert!(gradients[1].iter().all(|&x| x == 0.0), "a site does not depend on later sites");
    assert!(gradients[2].is_empty(), "no logits are needed, so the final norm is not computed");
    // Position 2 depends on itself and earlier tokens only.
    assert!(gradients[3][..3 * 64].iter().all(|&x| x != 0.0) && gradients[3][3 * 64..].iter().all(|&x| x == 0.0));
}

#[test]
fn positions_of_a_seed_may_come_in_any_order() {
    let both = at_logits(vec![4, 1]);
    let reordered =
        Seed { positions: vec![1, 4], values: [&both.values[50..], &both.values[..50]].concat(), ..both.clone() };
    assert_eq!(vjp(&plain(), both, &["embed", "final_norm"]), vjp(&plain(), reordered, &["embed", "final_norm"]));
}

#[test]
fn sites_without_a_gradient_are_errors() {
    let model = plain();
    let refused = |plan: &Plan, seed: Seed, to: Site| {
        let error = model.vjp(&[vec![1, 2, 3]], plan, &[seed], &[to], &GradOptions::default()).expect_err("a refusal");
        assert!(error.remedy().is_some(), "{error}");
        error.to_string()
    };
    let none = Plan::default();
    let seed = at_logits(vec![2]);
    let embed = site("embed");
    for point in ["layers.0.expert_indices", "layers.1.mixer_state"] {
        assert!(refused(&none, seed.clone(), site(point)).contains(point));
        let at = Seed { site: site(point), ..seed.clone() };
        assert!(refused(&none, at, embed).contains(point));
    }
    assert!(refused(&none, seed.clone(), Site::layer(1, Point::Z)).contains("layers.1.z"));
    assert!(refused(&none, Seed { row: 1, ..seed.clone() }, embed).contains("row 1"));
    assert!(refused(&none, Seed { positions: vec![3], ..seed.clone() }, embed).contains("position 3 of a row of 3"));
    assert!(refused(&none, Seed { values: vec![1.0], ..seed.clone() }, embed).contains("1 values instead of 50"));
    let edit = |action: Action| Plan::default().with(Tap::new("layers.0.resid_post", action));
    assert!(refused(&edit(Action::Zero), seed.clone(), embed).contains("layers.0.resid_post"));
    let add = Action::Add { operand: Operand::Number(1.0), scale: 1.0 };
    assert!(model.vjp(&[vec![1, 2, 3]], &edit(add), &[seed], &[embed], &GradOptions::default()).is_ok());
}
