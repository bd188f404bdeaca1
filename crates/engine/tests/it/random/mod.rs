//! Random architectures, random weights, and models built from both.

mod attention;
mod coverage;
mod mlp;
mod recurrence;

pub use attention::attention;
pub use mlp::{dense, experts, mlp};
pub use recurrence::recurrence;

use crate::oracle;
use pellucid_engine::architecture::{
    AbsolutePositions, Activation, Attention, Dense, Embedding, Gain, Head, HeadTransform, Layer, LongRope, Mlp,
    Modules, Norm, NormKind, Recurrence, Rope, RopeStyle, SharedBlock, Skip,
};
use pellucid_engine::{Architecture, Model, Program, Weight, WeightKind, Weights};
use pellucid_kernels::{DType, Matrix, Pool};
use proptest::prelude::*;

/// Rotary dimensions per head in MLA (`qk_rope_head_dim`). Only the last of `ropes` has more.
pub const ROTATED: usize = 6;
/// Row length beyond which LongRoPE and dynamic NTK change the rotary frequencies.
pub const LONG: usize = 24;
pub const CONTEXT: usize = 100;

/// Pseudo-random values between -1 and 1.
pub fn noise(seed: u64, len: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 33) as f32 / (1u64 << 30) as f32) - 1.0
    };
    (0..len).map(|_| next()).collect()
}

/// Random weights for a program: matrices that preserve the magnitude of their input, gains near 1.
pub fn weights(program: &Program, seed: u64) -> oracle::Weights {
    let one = |(index, spec): (usize, &pellucid_engine::WeightSpec)| {
        let values = noise(seed ^ (index as u64 + 1) << 20, spec.shape.iter().product());
        let values = match spec.kind {
            WeightKind::Vector => {
                values.iter().map(|x| 0.3 * x + if spec.name.ends_with("gain") { 0.8 } else { 0.0 }).collect()
            }
            WeightKind::Table => values,
            WeightKind::Matrix => values.iter().map(|x| x * (3.0 / spec.shape[1] as f32).sqrt()).collect(),
        };
        (spec.name.clone(), (spec.shape.clone(), values))
    };
    program.weights().iter().enumerate().map(one).collect()
}

/// The same weights, each changed by a few ulps, the size of rounding errors.
pub fn perturbed(weights: &oracle::Weights, seed: u64) -> oracle::Weights {
    let one = |(name, (shape, values)): (&String, &(Vec<usize>, Vec<f32>))| {
        let by = noise(seed ^ name.len() as u64, values.len());
        let values = values.iter().zip(by).map(|(x, by)| x * (1.0 + 3e-7 * by)).collect();
        (name.clone(), (shape.clone(), values))
    };
    weights.iter().map(one).collect()
}

pub fn model(program: Program, weights: &oracle::Weights, dtype: DType) -> Model {
    let pool = Pool::new(1);
    let packed = program.weights().iter().map(|spec| {
        let values = &weights[&spec.name].1;
        match spec.kind {
            WeightKind::Vector => Weight::Vector(values.clone()),
            _ => {
                let fill =
                    |row: usize, out: &mut [f32]| out.copy_from_slice(&values[row * spec.shape[1]..][..spec.shape[1]]);
                Weight::Matrix(Matrix::pack(&pool, spec.shape[0], spec.shape[1], dtype, &fill))
            }
        }
    });
    let packed = Weights::new(packed.collect());
    Model::new(program, packed)
}

pub fn norm() -> impl Strategy<Value = Norm> {
    let gain = prop_oneof![Just(Gain::None), Just(Gain::Weight), Just(Gain::OnePlusWeight)];
    (prop::bool::ANY, gain, prop::bool::ANY).prop_map(|(layer, gain, bias)| Norm {
        kind: if layer { NormKind::Layer } else { NormKind::Rms },
        eps: 1e-2,
        gain,
        bias,
    })
}

pub fn maybe_norm() -> impl Strategy<Value = Option<Norm>> {
    prop::option::of(norm())
}

/// An optional multiplier, present in 30 % of the cases.
pub fn factor() -> impl Strategy<Value = Option<f32>> {
    prop::option::weighted(0.3, 0.3f32..1.8)
}

pub fn activation() -> impl Strategy<Value = Activation> {
    // A clamped gate needs a gated MLP.
    let anywhere = Activation::ALL.into_iter().filter(|activation| *activation != Activation::ClampedGlu);
    prop::sample::select(anywhere.collect::<Vec<_>>())
}

fn skip() -> impl Strategy<Value = Skip> {
    let normed = (0.5f32..1.5, 0.5f32..1.5).prop_map(|(attn, mlp)| Skip::Normed { attn, mlp });
    prop_oneof![4 => Just(Skip::Identity), 1 => normed, 1 => Just(Skip::Normed { attn: 1.0, mlp: 1.0 }), 1 => Just(Skip::LearnedGain)]
}

/// A layer with the given sublayers, any of which may be missing.
pub fn layer(
    attention: impl Strategy<Value = Option<Attention>>,
    recurrence: impl Strategy<Value = Option<Recurrence>>,
    mlp: impl Strategy<Value = Option<Mlp>>,
) -> impl Strategy<Value = Layer> {
    let attn = (maybe_norm(), attention, recurrence, maybe_norm(), maybe_norm());
    let ends = (maybe_norm(), mlp, maybe_norm(), maybe_norm());
    let factors = (factor(), factor(), factor(), factor(), factor());
    (prop::bool::ANY, skip(), attn, ends, factors).prop_map(|(parallel, skip, attn, ends, factors)| {
        let (attn_norm, attention, recurrence, attn_post_norm, attn_post_residual_norm) = attn;
        let (mlp_norm, mlp, mlp_post_norm, mlp_post_residual_norm) = ends;
        let (attn_in_scale, attn_multiplier, mixer_multiplier, mlp_multiplier, out_scale) = factors;
        // A layer with both attention and a recurrence cannot have a post-norm for their outputs.
        let both = attention.is_some() && recurrence.is_some();
        Layer {
            parallel,
            attn_norm,
            attention,
            recurrence,
            attn_post_norm: attn_post_norm.filter(|_| !both),
            // A parallel block has no residual stream between its sublayers.
            attn_post_residual_norm: attn_post_residual_norm.filter(|_| !parallel),
            attn_in_scale,
            attn_multiplier,
            mixer_multiplier,
            mlp_norm,
            mlp,
            mlp_post_norm,
            mlp_post_residual_norm,
            mlp_multiplier,
            skip: if parallel { Skip::Identity } else { skip },
            shared: None,
            out_scale,
        }
    })
}

/// Any layer.
pub fn any_layer() -> impl Strategy<Value = Layer> {
    let attention = prop::option::weighted(0.7, attention());
    let any = layer(attention, prop::option::weighted(0.4, recurrence()), prop::option::weighted(0.8, mlp()));
    prop_oneof![6 => any, 1 => layer_with_shared_block()]
}

/// A layer whose recurrence reads the output of a block that other layers may share.
pub fn layer_with_shared_block() -> impl Strategy<Value = Layer> {
    let adapters = (prop::option::of(1usize..5), prop::option::of(1usize..5));
    let block = (norm(), attention(), norm(), dense(), adapters);
    (layer(Just(None), recurrence().prop_map(Some), Just(None)), block).prop_map(|(layer, block)| {
        let (norm, attention, mlp_norm, mlp, (in_attention, in_mlp)) = block;
        let plain = attention.latent.is_none() && attention.experts.is_none();
        let attention = Attention { adapter: in_attention.filter(|_| plain), ..attention };
        let shared =
            SharedBlock { block: 0, adapter: 0, norm, attention, mlp_norm, mlp: Dense { adapter: in_mlp, ..mlp } };
        Layer { shared: Some(shared), ..layer }
    })
}

/// Makes all layers with a shared block use the first one's, each with its own adapter.
fn shared(mut layers: Vec<Layer>) -> Vec<Layer> {
    let first = layers.iter().position(|layer| layer.shared.is_some()).unwrap_or(0);
    let block = layers[first].shared.clone();
    for (adapter, shared) in layers.iter_mut().filter_map(|layer| layer.shared.as_mut()).enumerate() {
        *shared = SharedBlock { block: first, adapter, ..block.clone().expect("a block") };
    }
    layers
}

fn frequencies(count: usize, base: f32) -> Vec<f32> {
    (0..count).map(|i| 1.0 / base.powf(i as f32 / count as f32)).collect()
}

fn ropes() -> impl Strategy<Value = Vec<Rope>> {
    let count = ROTATED / 2;
    let beyond = LongRope::Beyond { length: LONG, frequencies: frequencies(count, 900.0), amplitude: 0.9 };
    let dynamic = LongRope::Dynamic { length: LONG, base: 100.0, factor: 2.5 };
    prop_oneof![2 => Just(None), 1 => Just(Some(beyond)), 1 => Just(Some(dynamic))].prop_map(move |long| {
        vec![
            Rope { style: RopeStyle::Halves, frequencies: frequencies(count, 100.0), amplitude: 1.0, long },
            Rope::fixed(RopeStyle::Pairs, frequencies(count - 1, 100.0), 1.25),
            Rope::fixed(RopeStyle::Halves, frequencies(count + 1, 100.0), 1.0),
        ]
    })
}

fn positions() -> impl Strategy<Value = Option<(bool, usize)>> {
    prop::option::of((prop::bool::ANY, 0usize..3))
}

fn embedding() -> impl Strategy<Value = Embedding> {
    // A norm over very few elements is nearly a step function: use at least eight.
    let table = (prop::option::of(8usize..20), prop::bool::ANY);
    (table, factor(), positions(), prop::option::of(1usize..4), maybe_norm()).prop_map(
        |((table_width, projected_last), scale, positions, segments, norm)| Embedding {
            table_width,
            scale,
            positions: positions.map(|(learned, offset)| match learned {
                true => AbsolutePositions::Learned { rows: CONTEXT + offset, offset },
                // Fewer than the residual stream's width: the rest stays zero.
                false => AbsolutePositions::Sinusoidal { frequencies: frequencies(3 + offset / 2, 50.0), offset },
            }),
            segments,
            norm,
            projected_last,
        },
    )
}

fn head() -> impl Strategy<Value = Head> {
    let transform = (prop::bool::ANY, activation(), norm()).prop_map(|(bias, activation, norm)| HeadTransform {
        bias,
        activation,
        norm,
    });
    let ends = (prop::option::of(0.1f32..3.0), prop::option::of(1f32..30.0));
    (prop::bool::ANY, prop::bool::ANY, prop::option::of(8usize..20), prop::option::weighted(0.3, transform), ends)
        .prop_map(|(tied, bias, table_width, transform, (scale, soft_cap))| Head {
            tied,
            bias,
            table_width,
            transform,
            scale,
            soft_cap,
        })
}

pub fn architecture(layer: impl Strategy<Value = Layer>) -> impl Strategy<Value = Architecture> {
    let layers = prop::collection::vec(layer, 1..3);
    (2usize..50, 8usize..50, embedding(), layers, maybe_norm(), head(), ropes()).prop_map(
        |(vocab, width, embedding, layers, final_norm, head, ropes)| Architecture {
            family: "made by hand".into(),
            vocab,
            width,
            context: Some(CONTEXT),
            head: Head { table_width: if head.tied { embedding.table_width } else { head.table_width }, ..head },
            embedding,
            layers: shared(layers),
            final_norm,
            ropes,
            modules: Modules::default(),
        },
    )
}
