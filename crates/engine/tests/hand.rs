//! Hand-made models of random architectures: every site and the logits against the oracle, an obvious transformer in double precision.

mod oracle;

use pellucid_engine::architecture::{
    Activation, Attention, Embedding, Gain, Head, Layer, LearnedPositions, Mlp, Modules, Norm, NormKind, Rope,
    RopeStyle, Routing,
};
use pellucid_engine::{Architecture, Capture, Model, Plan, Program, RunOptions, Weight, WeightKind, Weights};
use pellucid_kernels::{DType, Matrix, Pool};
use proptest::prelude::*;
use std::collections::HashMap;

/// Numbers between -1 and 1 that depend on a seed only.
fn noise(seed: u64, len: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 33) as f32 / (1u64 << 30) as f32) - 1.0
    };
    (0..len).map(|_| next()).collect()
}

/// Random weights for a program: matrices that keep the size of what they multiply, gains near one.
fn weights(program: &Program, seed: u64) -> oracle::Weights {
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

fn model(program: Program, weights: &oracle::Weights, dtype: DType) -> Model {
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

fn norm() -> impl Strategy<Value = Norm> {
    let gain = prop_oneof![Just(Gain::None), Just(Gain::Weight), Just(Gain::OnePlusWeight)];
    (prop::bool::ANY, gain, prop::bool::ANY).prop_map(|(layer, gain, bias)| Norm {
        kind: if layer { NormKind::Layer } else { NormKind::Rms },
        eps: 1e-2,
        gain,
        bias,
    })
}

fn maybe_norm() -> impl Strategy<Value = Option<Norm>> {
    prop::option::of(norm())
}

fn activation() -> impl Strategy<Value = Activation> {
    use Activation::*;
    prop::sample::select(vec![Silu, Gelu, GeluTanh, GeluQuick, Relu, ReluSquared, Tanh, Sigmoid, Identity])
}

fn mlp() -> impl Strategy<Value = Mlp> {
    let dense =
        (1usize..50, activation(), prop::bool::ANY, prop::bool::ANY).prop_map(|(width, activation, bias, gated)| {
            if gated { Mlp::Gated { width, activation, bias } } else { Mlp::Plain { width, activation, bias } }
        });
    let experts = (1usize..6, 0usize..5, 1usize..20, activation(), prop::bool::ANY).prop_map(
        |(experts, chosen, width, activation, renormalise)| Mlp::Experts {
            experts,
            chosen: 1 + chosen % experts,
            width,
            activation,
            routing: Routing::SoftmaxThenChoose { renormalise },
        },
    );
    prop_oneof![2 => dense, 1 => experts]
}

fn attention(head_dim: usize) -> impl Strategy<Value = Attention> {
    let heads = (1usize..4, 1usize..4, 1usize..20);
    let terms =
        (prop::option::of(0.5f32..4.0), prop::option::of(1usize..9), prop::bool::ANY, prop::option::of(0usize..2));
    (heads, terms, prop::bool::ANY, prop::bool::ANY, (maybe_norm(), prop::bool::ANY)).prop_map(
        move |(
            (kv_heads, group, value_dim),
            (soft_cap, window, alibi, rope),
            qkv_bias,
            out_bias,
            (qk_norm, qk_norm_flat),
        )| {
            let heads = kv_heads * group;
            let slopes = (0..heads).map(|head| 0.5f32.powi(head as i32 + 1)).collect();
            Attention {
                heads,
                kv_heads,
                head_dim,
                value_dim,
                qkv_bias,
                out_bias,
                qk_norm,
                qk_norm_flat,
                rope,
                scale: 0.4,
                soft_cap,
                window,
                alibi: alibi.then_some(slopes),
            }
        },
    )
}

fn layer(head_dim: usize) -> impl Strategy<Value = Layer> {
    let attn = (maybe_norm(), attention(head_dim), maybe_norm(), maybe_norm());
    let ends = (maybe_norm(), mlp(), maybe_norm(), maybe_norm());
    (prop::bool::ANY, attn, ends, prop::option::of(0.2f32..1.5)).prop_map(
        |(
            parallel,
            (attn_norm, attention, attn_post_norm, stream),
            (mlp_norm, mlp, mlp_post_norm, mlp_stream_norm),
            residual_scale,
        )| Layer {
            parallel,
            attn_norm,
            attention,
            attn_post_norm,
            attn_stream_norm: stream.filter(|_| !parallel),
            mlp_norm,
            mlp,
            mlp_post_norm,
            mlp_stream_norm,
            residual_scale,
        },
    )
}

fn architecture() -> impl Strategy<Value = Architecture> {
    let embedding =
        (prop::option::of(3usize..20), prop::option::of(0.5f32..2.0), prop::option::of(0usize..3), maybe_norm());
    let head = (prop::bool::ANY, prop::bool::ANY, prop::option::of(0.1f32..3.0), prop::option::of(1f32..30.0));
    let trunk = (8usize..17).prop_flat_map(|head_dim| (Just(head_dim), prop::collection::vec(layer(head_dim), 1..3)));
    // Norms of a few numbers are steps rather than functions: nothing narrower than eight.
    (2usize..50, 8usize..50, embedding, trunk, maybe_norm(), head).prop_map(
        |(
            vocab,
            width,
            (table_width, scale, offset, norm),
            (head_dim, layers),
            final_norm,
            (tied, bias, head_scale, soft_cap),
        )| {
            let frequencies = |count: usize| (0..count).map(|i| 1.0 / 100f32.powf(i as f32 / count as f32)).collect();
            let ropes = vec![
                Rope { style: RopeStyle::Halves, frequencies: frequencies(head_dim / 2), amplitude: 1.0 },
                Rope { style: RopeStyle::Pairs, frequencies: frequencies((head_dim / 4).max(1)), amplitude: 1.25 },
            ];
            Architecture {
                family: "made by hand".into(),
                vocab,
                width,
                context: Some(100),
                embedding: Embedding {
                    table_width,
                    scale,
                    positions: offset.map(|offset| LearnedPositions { rows: 100 + offset, offset }),
                    norm,
                },
                layers,
                final_norm,
                head: Head { tied, bias, table_width: table_width.filter(|_| tied), scale: head_scale, soft_cap },
                ropes,
                modules: Modules::default(),
            }
        },
    )
}

/// Compares captures with the oracle's values, relative to their size.
fn agree(captures: &[&Capture], truth: &oracle::Sites) -> Result<(), TestCaseError> {
    for capture in captures {
        let site = capture.site.to_string();
        let (ours, truth) = (capture.array.values(), &truth[&site]);
        prop_assert_eq!(ours.len(), truth.len(), "{} has another shape", &site);
        let largest = truth.iter().filter(|x| x.is_finite()).fold(1f64, |most, x| most.max(x.abs()));
        for (index, (&ours, &truth)) in ours.iter().zip(truth).enumerate() {
            let equal = ours as f64 == truth || (ours as f64 - truth).abs() <= 1e-4 * largest;
            prop_assert!(equal, "{site}: number {index} is {ours} instead of {truth} (the largest is {largest})");
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]
    #[test]
    fn any_architecture_computes_what_its_definition_says(architecture in architecture(), lengths in prop::collection::vec(1usize..80, 1..4), chunk in 1usize..9, seed: u64) {
        let program = Program::new(architecture.clone()).expect("a program");
        let weights = weights(&program, seed);
        let token = |x: &f32| ((x + 1.0) / 2.0 * architecture.vocab as f32) as u32 % architecture.vocab as u32;
        let texts: Vec<Vec<u32>> = lengths.iter().enumerate().map(|(row, &n)| noise(seed ^ row as u64, n).iter().map(token).collect()).collect();
        let sites: Vec<String> = program.sites().map(|site| site.to_string()).collect();
        let model = model(program, &weights, DType::F32);
        let everything = model.run(&texts, &Plan::capture(&sites), &RunOptions::default()).expect("a run");
        let logits = model.run(&texts, &Plan::capture(["logits"]), &RunOptions::default()).expect("a run");
        for (row, text) in texts.iter().enumerate() {
            let truth = oracle::run(&architecture, &weights, text);
            // A softmax of huge scores multiplies every rounding error by them: such models say nothing about arithmetic.
            let scores = truth.iter().filter(|(site, _)| site.ends_with("attn_scores")).flat_map(|(_, values)| values);
            prop_assume!(scores.filter(|x| x.is_finite()).all(|x| x.abs() < 50.0));
            prop_assert_eq!(truth.len(), sites.len(), "the oracle names the sites that the program names");
            agree(&everything.captures.iter().filter(|capture| capture.row == row).collect::<Vec<_>>(), &truth)?;
            // Once more with fused attention.
            agree(&[&logits.captures[row]], &truth)?;
        }
        // And the same bits in chunks, whatever the shapes.
        let in_chunks = model.run(&texts, &Plan::capture(["logits"]), &RunOptions { chunk: Some(chunk) }).expect("a run");
        for (ours, theirs) in logits.captures.iter().zip(&in_chunks.captures) {
            prop_assert!(ours.array.values().iter().zip(theirs.array.values()).all(|(a, b)| a.to_bits() == b.to_bits()));
        }
    }
}

/// Two plain layers; the weights of the second fit nothing, so that using any of them panics.
fn half_a_model() -> Model {
    let attention = Attention {
        heads: 2,
        kv_heads: 1,
        head_dim: 4,
        value_dim: 4,
        qkv_bias: false,
        out_bias: false,
        qk_norm: None,
        qk_norm_flat: false,
        rope: None,
        scale: 0.5,
        soft_cap: None,
        window: None,
        alibi: None,
    };
    let layer = Layer {
        parallel: false,
        attn_norm: Some(Norm::rms(1e-5)),
        attention,
        attn_post_norm: None,
        attn_stream_norm: None,
        mlp_norm: None,
        mlp: Mlp::Plain { width: 16, activation: Activation::Relu, bias: false },
        mlp_post_norm: None,
        mlp_stream_norm: None,
        residual_scale: None,
    };
    let program = Program::new(Architecture {
        family: "half".into(),
        vocab: 10,
        width: 8,
        context: None,
        embedding: Embedding::default(),
        layers: vec![layer; 2],
        final_norm: Some(Norm::rms(1e-5)),
        head: Head::default(),
        ropes: vec![],
        modules: Modules::default(),
    })
    .expect("a program");
    let whole = weights(&program, 3);
    let pool = Pool::new(1);
    let broken = program.weights().iter().map(|spec| {
        let values: &Vec<f32> = &whole[&spec.name].1;
        let (rows, cols) = if spec.name.starts_with("layers.1.") || spec.name == "head" {
            (1, 7)
        } else {
            (spec.shape[0], *spec.shape.last().unwrap())
        };
        match spec.kind {
            WeightKind::Vector => Weight::Vector(values.clone()),
            _ => Weight::Matrix(Matrix::pack(&pool, rows, cols, DType::F32, &|row, out| {
                out.copy_from_slice(&values[row * cols..][..cols])
            })),
        }
    });
    let broken = Weights::new(broken.collect());
    Model::new(program, broken)
}

#[test]
fn layers_past_the_last_needed_site_do_not_run() {
    let model = half_a_model();
    let run = |sites: &[&str]| {
        let sites: Vec<String> = sites.iter().map(|site| site.to_string()).collect();
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            model.run(&[vec![1, 2, 3]], &Plan::capture(sites), &RunOptions::default()).expect("a run").captures.len()
        }))
    };
    assert_eq!(
        run(&["embed", "layers.0.resid_post", "layers.1.resid_pre", "layers.1.attn_in"])
            .expect("nothing of layer 1 is multiplied"),
        4
    );
    assert_eq!(run(&[]).expect("nothing runs"), 0);
    // The control: the second layer would not have gone unnoticed.
    let noticed = [
        run(&["layers.1.q"]).is_err(),
        run(&["layers.0.resid_post", "layers.1.mlp_out"]).is_err(),
        run(&["logits"]).is_err(),
    ];
    assert_eq!(noticed, [true; 3]);
}

#[test]
fn an_edit_past_the_last_capture_does_not_run_either() {
    use pellucid_engine::{Action, Tap};
    let plan = Plan::capture(["layers.0.mlp_act"])
        .with(Tap::new("layers.1.resid_post", Action::Zero))
        .with(Tap::new("logits", Action::Scale(2.0)));
    assert_eq!(half_a_model().run(&[vec![1, 2, 3]], &plan, &RunOptions::default()).expect("a run").captures.len(), 1);
}

#[test]
fn a_program_states_each_weight_and_site_once() {
    let model = half_a_model();
    let mut names = HashMap::new();
    for spec in model.program().weights() {
        assert!(names.insert(spec.name.clone(), spec.shape.clone()).is_none(), "{} twice", spec.name);
    }
    assert_eq!(names["layers.1.attn.k"], [4, 8]);
    let sites: Vec<String> = model.program().sites().map(|site| site.to_string()).collect();
    assert_eq!(
        (sites[0].as_str(), sites[1].as_str(), sites.last().map(String::as_str)),
        ("embed", "layers.0.resid_pre", Some("logits"))
    );
}

#[test]
fn an_architecture_that_contradicts_itself_is_refused() {
    let good = half_a_model().program().architecture().clone();
    let refused = |change: &dyn Fn(&mut Architecture), said: &str| {
        let mut bad = good.clone();
        change(&mut bad);
        let error = Program::new(bad).expect_err(said);
        assert!(error.to_string().contains(said), "{error}");
        assert!(error.remedy().is_some());
    };
    refused(&|a| a.vocab = 0, "a vocabulary of 0");
    refused(&|a| a.width = 0, "a width of 0");
    refused(&|a| a.layers[1].attention.heads = 0, "layer 1 has 0 heads");
    refused(&|a| a.layers[0].attention.kv_heads = 3, "over 3 key heads");
    refused(&|a| a.layers[0].attention.rope = Some(0), "layer 0 rotates");
    refused(&|a| a.layers[0].attention.window = Some(0), "empty window");
    refused(&|a| a.layers[0].attention.alibi = Some(vec![0.5]), "slopes for another number of heads");
    refused(&|a| a.embedding.positions = Some(LearnedPositions { rows: 9, offset: 0 }), "over a table of 9 rows");
    refused(&|a| a.head = Head { tied: true, table_width: Some(4), ..Head::default() }, "tied head of another width");
}

#[test]
fn wide_products_keep_their_bits_in_any_batch() {
    // Wider than several chunks of a product, with panels that are not full, in every storage format.
    let mut architecture = half_a_model().program().architecture().clone();
    (architecture.width, architecture.vocab) = (525, 37);
    architecture.layers.iter_mut().for_each(|layer| {
        layer.mlp = Mlp::Gated { width: 1030, activation: Activation::Silu, bias: true };
        (layer.attention.head_dim, layer.attention.value_dim) = (40, 37);
    });
    let program = Program::new(architecture).expect("a program");
    let weights = weights(&program, 5);
    let texts: Vec<Vec<u32>> = [1, 25, 130, 7].iter().map(|&n| (0..n).map(|i| (i * 11 + n) % 37).collect()).collect();
    for dtype in [DType::F32, DType::Bf16, DType::F16] {
        let model = model(program.clone(), &weights, dtype);
        let bits = |texts: &[Vec<u32>], chunk: Option<usize>| {
            let run = model.run(texts, &Plan::capture(["logits"]), &RunOptions { chunk }).expect("a run");
            let bits = |capture: &Capture| capture.array.values().iter().map(|x| x.to_bits()).collect::<Vec<u32>>();
            run.captures.iter().map(bits).collect::<Vec<_>>()
        };
        let together = bits(&texts, None);
        for (row, text) in texts.iter().enumerate() {
            assert!(bits(std::slice::from_ref(text), None)[0] == together[row], "{dtype:?}: row {row} alone");
            assert!(
                bits(std::slice::from_ref(text), Some(1))[0] == together[row],
                "{dtype:?}: row {row} token by token"
            );
        }
        assert!(bits(&texts, Some(29)) == together, "{dtype:?}: in chunks");
    }
}
