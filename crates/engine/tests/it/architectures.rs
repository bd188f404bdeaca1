//! Models of random architectures: every site against the f64 oracle, and bit-identical results in
//! any batch, chunking and thread count.

use crate::random::{model, noise, weights};
use crate::{oracle, random};
use pellucid_engine::architecture::{
    AbsolutePositions, Activation, Alibi, Attention, AttentionExperts, Decay, DeltaRule, Dense, DynamicMask, Embedding,
    ExpertGroups, Experts, Head, Latent, Layer, Mlp, Modules, Norm, Recurrence, Rope, Routing, SharedBlock, ShortConv,
    Skip,
};
use pellucid_engine::point::{Point, Scope};
use pellucid_engine::{
    Architecture, Capture, Control, GenerateOptions, Model, Plan, Program, RunOptions, Weight, WeightKind, Weights,
};
use pellucid_kernels::{DType, Matrix, Pool};
use proptest::prelude::*;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, OnceLock};

/// Compares captures with the oracle's values, relative to the largest value of the site.
fn agree(captures: &[&Capture], truth: &oracle::Sites) -> Result<(), TestCaseError> {
    for capture in captures {
        let site = capture.site.to_string();
        let (ours, truth) = (capture.array.values(), &truth[&site]);
        prop_assert_eq!(ours.len(), truth.len(), "{} has another shape", &site);
        let largest = truth.iter().filter(|x| x.is_finite()).fold(1f64, |most, x| most.max(x.abs()));
        for (index, (&ours, &truth)) in ours.iter().zip(truth).enumerate() {
            let equal = ours as f64 == truth || (ours as f64 - truth).abs() <= 1e-4 * largest;
            prop_assert!(equal, "{site}: element {index} is {ours} instead of {truth} (the largest is {largest})");
        }
    }
    Ok(())
}

/// The largest change of a site, relative to its largest value.
fn relative_change(truth: &[f64], other: &[f64]) -> f64 {
    let largest = truth.iter().filter(|x| x.is_finite()).fold(1f64, |most, x| most.max(x.abs()));
    let pairs = truth.iter().zip(other).filter(|(a, b)| a != b);
    pairs.map(|(a, b)| (a - b).abs() / largest).fold(0.0, f64::max)
}

/// The bits of a row's captures by site.
fn bits(captures: &[Capture], row: usize) -> BTreeMap<String, Vec<u32>> {
    let own = captures.iter().filter(|capture| capture.row == row);
    own.map(|capture| (capture.site.to_string(), capture.array.values().iter().map(|x| x.to_bits()).collect()))
        .collect()
}

/// Compares every site with the oracle.
fn matches_oracle(
    architecture: &Architecture,
    lengths: &[usize],
    chunk: usize,
    seed: u64,
) -> Result<(), TestCaseError> {
    let program = Program::new(architecture.clone()).expect("a program");
    let weights = weights(&program, seed);
    // With a dynamic mask, long rows have keys with almost equal scores, between which rounding
    // decides. Shorter rows leave larger gaps.
    let attention = |l: &Layer| l.attention.clone().or(l.shared.as_ref().map(|shared| shared.attention.clone()));
    let masked = architecture.layers.iter().filter_map(attention).any(|a| a.dynamic_mask.is_some());
    let token = |x: &f32| ((x + 1.0) / 2.0 * architecture.vocab as f32) as u32 % architecture.vocab as u32;
    let text = |(row, &n): (usize, &usize)| {
        noise(seed ^ row as u64, if masked { n.min(26) } else { n }).iter().map(token).collect()
    };
    let texts: Vec<Vec<u32>> = lengths.iter().enumerate().map(text).collect();
    let sites: Vec<String> = program.sites().map(|site| site.to_string()).collect();
    let model = model(program, &weights, DType::F32);
    let everything = model.run(&texts, &Plan::capture(&sites), &RunOptions::default()).expect("a run");
    let logits = model.run(&texts, &Plan::capture(["logits"]), &RunOptions::default()).expect("a run");
    for (row, text) in texts.iter().enumerate() {
        let oracle::OracleRun { sites: truth, closest_choice, .. } = oracle::run(architecture, &weights, text);
        // Reject huge attention scores: softmax amplifies their rounding errors.
        let scores = truth.iter().filter(|(site, _)| site.ends_with("attn_scores")).flat_map(|(_, values)| values);
        prop_assume!(scores.filter(|x| x.is_finite()).all(|x| x.abs() < 50.0));
        // Reject models that are ill-conditioned otherwise: their sites change much when the
        // weights change by a few ulps.
        let perturbed = oracle::run(architecture, &random::perturbed(&weights, seed), text);
        prop_assume!(truth.iter().all(|(site, truth)| relative_change(truth, &perturbed.sites[site]) < 2e-5));
        // Reject discrete choices between candidates that differ by less than rounding.
        prop_assume!(closest_choice > 3e-5);
        let mut named: Vec<&String> = truth.keys().collect();
        let mut has: Vec<&String> = sites.iter().collect();
        named.sort();
        has.sort();
        prop_assert_eq!(named, has, "the oracle and the program have the same sites");
        agree(&everything.captures.iter().filter(|capture| capture.row == row).collect::<Vec<_>>(), &truth)?;
        // Without taps on attention, it runs fused.
        agree(&[&logits.captures[row]], &truth)?;
    }
    is_bit_identical_in_any_batch(&model, &texts, chunk)
}

/// Checks that every site except attention scores and probabilities has the same bits alone, in a
/// batch, in chunks, on three threads, and when decoded.
fn is_bit_identical_in_any_batch(model: &Model, texts: &[Vec<u32>], chunk: usize) -> Result<(), TestCaseError> {
    static THREE: OnceLock<Arc<Pool>> = OnceLock::new();
    let sites = model.program().sites().map(|site| site.to_string());
    let plan = Plan::capture(sites.filter(|site| !site.ends_with("attn_scores") && !site.ends_with("attn_probs")));
    let run = |model: &Model, texts: &[Vec<u32>], chunk: Option<usize>| {
        model.run(texts, &plan, &RunOptions { chunk, ..RunOptions::default() }).expect("a run").captures
    };
    let together = run(model, texts, None);
    let in_chunks = run(model, texts, Some(chunk));
    let on_three = run(&model.clone().with_pool(THREE.get_or_init(|| Arc::new(Pool::new(3))).clone()), texts, None);
    for (row, text) in texts.iter().enumerate() {
        let ours = bits(&together, row);
        let alone = run(model, std::slice::from_ref(text), None);
        for (how, theirs) in
            [("alone", bits(&alone, 0)), ("in chunks", bits(&in_chunks, row)), ("threads", bits(&on_three, row))]
        {
            prop_assert!(ours.keys().eq(theirs.keys()), "{} has other sites", how);
            let differs = ours.iter().find(|(site, ours)| theirs[*site] != **ours).map(|(site, _)| site);
            prop_assert!(differs.is_none(), "row {}, {}: {:?} has other bits", row, how, differs);
        }
    }
    let options = GenerateOptions { max_new: 4, chunk: Some(chunk), ..GenerateOptions::default() };
    let generation = model.generate(texts, &plan, &options, &mut |_, _| Control::Go).expect("a generation");
    for (row, text) in texts.iter().enumerate() {
        let whole = [text, &generation.rows[row].tokens[..3]].concat();
        // A row that outgrows the original context gets other rotary frequencies than a run over
        // the whole text.
        let turns = |rope: &Rope, length: usize| (rope.frequencies_at(length).to_vec(), rope.amplitude_at(length));
        let same = |rope: &Rope| (text.len()..=whole.len()).all(|n| turns(rope, n) == turns(rope, text.len()));
        if !model.program().architecture().ropes.iter().all(same) {
            continue;
        }
        let (ours, theirs) = (bits(&generation.captures, row), bits(&run(model, &[whole], None), 0));
        let differs = ours.iter().find(|(site, ours)| theirs[*site] != **ours).map(|(site, _)| site);
        prop_assert!(differs.is_none(), "row {}, decoded: {:?} has other bits", row, differs);
    }
    Ok(())
}

fn lengths() -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(1usize..80, 1..4)
}

pub fn one_attention() -> impl Strategy<Value = Layer> {
    random::layer(
        random::attention().prop_map(Some),
        Just(None),
        prop::option::of(random::dense().prop_map(Mlp::Dense)),
    )
}

pub fn one_recurrence() -> impl Strategy<Value = Layer> {
    let attention = prop::option::weighted(0.2, random::attention());
    random::layer(attention, random::recurrence().prop_map(Some), prop::option::of(random::mlp()))
}

pub fn one_shared_block() -> impl Strategy<Value = Layer> {
    let recurrence = random::layer(Just(None), random::recurrence().prop_map(Some), Just(None));
    prop_oneof![3 => random::layer_with_shared_block(), 1 => recurrence]
}

pub fn one_mixture() -> impl Strategy<Value = Layer> {
    random::layer(Just(None), Just(None), random::experts().prop_map(|experts| Some(Mlp::Experts(experts))))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn any_architecture_matches_the_oracle(a in random::architecture(random::any_layer()), lengths in lengths(), chunk in 1usize..9, seed: u64) {
        matches_oracle(&a, &lengths, chunk, seed)?;
    }

    #[test]
    fn any_attention_matches_the_oracle(a in random::architecture(one_attention()), lengths in lengths(), chunk in 1usize..9, seed: u64) {
        matches_oracle(&a, &lengths, chunk, seed)?;
    }

    #[test]
    fn any_recurrence_matches_the_oracle(a in random::architecture(one_recurrence()), lengths in lengths(), chunk in 1usize..9, seed: u64) {
        matches_oracle(&a, &lengths, chunk, seed)?;
    }

    #[test]
    fn any_shared_block_matches_the_oracle(a in random::architecture(one_shared_block()), lengths in lengths(), chunk in 1usize..9, seed: u64) {
        matches_oracle(&a, &lengths, chunk, seed)?;
    }

    #[test]
    fn any_mixture_of_experts_matches_the_oracle(a in random::architecture(one_mixture()), lengths in lengths(), chunk in 1usize..9, seed: u64) {
        matches_oracle(&a, &lengths, chunk, seed)?;
    }
}

#[test]
fn the_oracle_comparison_detects_other_weights() {
    // Control: a run matches the oracle with its own weights, and no site matches with others.
    let program = layers_with_missing_parts().program().clone();
    let (ours, others) = (weights(&program, 1), weights(&program, 2));
    let (architecture, text) = (program.architecture().clone(), vec![1, 2, 3, 4]);
    let sites: Vec<String> = program.sites().map(|site| site.to_string()).collect();
    let run = model(program, &ours, DType::F32);
    let run = run.run(std::slice::from_ref(&text), &Plan::capture(&sites), &RunOptions::default()).expect("a run");
    let (own, other) = (oracle::run(&architecture, &ours, &text), oracle::run(&architecture, &others, &text));
    for capture in &run.captures {
        assert!(agree(&[capture], &own.sites).is_ok(), "{}", capture.site);
        assert!(agree(&[capture], &other.sites).is_err(), "{} is the same for other weights", capture.site);
    }
}

/// Two plain layers. The weights of the second have wrong shapes, so that using any of them panics.
fn model_with_broken_second_layer() -> Model {
    let attention = Attention { scale: 0.5, ..Attention::plain(2, 1, 4) };
    let layer = Layer {
        attention: Some(attention),
        mlp: Some(Mlp::Dense(Dense::plain(16, Activation::Relu))),
        ..Layer::empty(Norm::rms(1e-5))
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
fn layers_after_the_last_needed_site_do_not_run() {
    let model = model_with_broken_second_layer();
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
    // Control: running the second layer panics.
    let noticed = [
        run(&["layers.1.q"]).is_err(),
        run(&["layers.0.resid_post", "layers.1.mlp_out"]).is_err(),
        run(&["logits"]).is_err(),
    ];
    assert_eq!(noticed, [true; 3]);
}

#[test]
fn an_edit_after_the_last_capture_does_not_run() {
    use pellucid_engine::{Action, Tap};
    let plan = Plan::capture(["layers.0.mlp_act"])
        .with(Tap::new("layers.1.resid_post", Action::Zero))
        .with(Tap::new("logits", Action::Scale(2.0)));
    assert_eq!(
        model_with_broken_second_layer()
            .run(&[vec![1, 2, 3]], &plan, &RunOptions::default())
            .expect("a run")
            .captures
            .len(),
        1
    );
}

#[test]
fn a_program_states_each_weight_and_site_once() {
    let model = model_with_broken_second_layer();
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
fn an_inconsistent_architecture_is_an_error() {
    let good = model_with_broken_second_layer().program().architecture().clone();
    let refused = |change: &dyn Fn(&mut Architecture), refusal: &str| {
        let mut bad = good.clone();
        change(&mut bad);
        let error = Program::new(bad).expect_err(refusal);
        assert!(error.to_string().contains(refusal), "{error}");
        assert!(error.remedy().is_some());
    };
    refused(&|a| a.vocab = 0, "vocabulary size 0");
    refused(&|a| a.width = 0, "width 0");
    fn attn(a: &mut Architecture, layer: usize) -> &mut Attention {
        a.layers[layer].attention.as_mut().expect("attention")
    }
    refused(&|a| attn(a, 1).heads = 0, "layer 1 has 0 heads");
    refused(&|a| attn(a, 0).kv_heads = 3, "and 3 key heads");
    refused(&|a| attn(a, 0).rope = Some(0), "layer 0 rotates");
    refused(&|a| attn(a, 0).window = Some(0), "empty window");
    refused(&|a| attn(a, 0).chunk = Some(0), "empty window");
    refused(&|a| attn(a, 0).alibi = Some(Alibi { slopes: vec![0.5], bf16_scale: None }), "ALiBi slopes");
    refused(&|a| attn(a, 0).differential = Some(0.5), "odd number of key heads (1)");
    let rms = Norm::rms(1e-5);
    let latent =
        Latent { query_rank: None, kv_rank: 4, rope_dim: 2, norm: rms, bias: false, query_scale: None, kv_scale: None };
    refused(&|a| (attn(a, 0).latent, attn(a, 0).clip) = (Some(latent), Some(1.0)), "combines latent attention");
    refused(&|a| attn(a, 0).latent = Some(Latent { kv_rank: 0, ..latent }), "latent attention of rank 0");
    refused(&|a| attn(a, 0).dynamic_mask = Some(DynamicMask { bias: false, max_keys: 0 }), "keeps 0 keys");
    refused(&|a| attn(a, 0).experts = Some(AttentionExperts { count: 1, top_k: 2 }), "2 of 1 experts for its 2 heads");
    refused(&|a| (a.layers[1].parallel, a.layers[1].skip) = (true, Skip::LearnedGain), "layer 1 is a parallel block");
    refused(
        &|a| (a.layers[1].parallel, a.layers[1].attn_post_residual_norm) = (true, Some(rms)),
        "layer 1 is a parallel block",
    );
    refused(
        &|a| (a.layers[0].recurrence, a.layers[0].attn_post_norm) = (Some(Recurrence::Rwkv(4)), Some(rms)),
        "has one post-norm",
    );
    let rule = DeltaRule {
        key_heads: 2,
        value_heads: 4,
        key_dim: 8,
        value_dim: 8,
        conv_kernel: 4,
        activation: Activation::Silu,
        decay: Decay::PerHead,
        beta_scale: 1.0,
        norm: rms,
        gate_activation: Activation::Silu,
        gate_rank: None,
    };
    let with_rule = |decay| Some(Recurrence::DeltaRule(DeltaRule { decay, ..rule.clone() }));
    refused(&|a| a.layers[0].recurrence = with_rule(Decay::PerKeyChannel { rank: 3 }), "inconsistent sizes");
    let mut accepted = good.clone();
    accepted.layers[0].recurrence = with_rule(Decay::PerHead);
    Program::new(accepted).expect("the same with a decay for each head");
    refused(&|a| a.layers[0].recurrence = Some(Recurrence::Rwkv(0)), "inconsistent sizes");
    let plain = Dense::plain(8, Activation::Relu);
    let experts = |count, top_k, expert| Experts::new(count, top_k, expert, Routing::softmax(false));
    let mlp = |a: &mut Architecture, experts| a.layers[0].mlp = Some(Mlp::Experts(experts));
    refused(&|a| mlp(a, experts(2, 3, plain)), "selects 3 of 2 experts");
    refused(&|a| mlp(a, experts(2, 1, Dense { inner_norm: Some(rms), ..plain })), "experts with xIELU");
    refused(
        &|a| {
            let mut experts = experts(6, 3, plain);
            experts.routing.groups = Some(ExpertGroups { count: 3, top_groups: 1, by_top_two: false });
            mlp(a, experts)
        },
        "selects from 1 of 3 groups of 6 experts",
    );
    refused(&|a| a.layers[0].mlp = Some(Mlp::Dense(Dense { gated: true, xielu: true, ..plain })), "gated xIELU");
    refused(
        &|a| {
            let (attention, mlp) = (attn(a, 0).clone(), plain);
            let shared = SharedBlock { block: 0, adapter: 0, norm: rms, attention, mlp_norm: rms, mlp };
            a.layers[0].shared = Some(shared);
        },
        "uses a shared block without a recurrence",
    );
    refused(&|a| attn(a, 0).adapter = Some(2), "has adapters");
    refused(
        &|a| a.embedding.positions = Some(AbsolutePositions::Sinusoidal { frequencies: vec![1.0; 5], offset: 0 }),
        "10 sinusoidal position channels",
    );
    refused(
        &|a| a.embedding.positions = Some(AbsolutePositions::Learned { rows: 9, offset: 0 }),
        "position table of 9 rows",
    );
    refused(&|a| a.head = Head { tied: true, table_width: Some(4), ..Head::default() }, "tied head with another width");
}

/// A model whose layers each lack a different sublayer or site.
fn layers_with_missing_parts() -> Model {
    let good = model_with_broken_second_layer().program().architecture().clone();
    let plain = good.layers[0].clone();
    let attention = plain.attention.clone().expect("attention");
    let latent = Latent {
        query_rank: None,
        kv_rank: 4,
        rope_dim: 2,
        norm: Norm::rms(1e-5),
        bias: false,
        query_scale: None,
        kv_scale: None,
    };
    let experts = AttentionExperts { count: 3, top_k: 2 };
    let layers = vec![
        Layer { mlp: None, ..plain.clone() },
        Layer { attention: None, ..plain.clone() },
        Layer { attention: None, recurrence: Some(Recurrence::Rwkv(6)), ..plain.clone() },
        Layer {
            attention: None,
            recurrence: Some(Recurrence::ShortConv(ShortConv { conv_kernel: 3, bias: false })),
            ..plain.clone()
        },
        Layer { attention: Some(Attention { latent: Some(latent), ..attention.clone() }), ..plain.clone() },
        Layer { attention: Some(Attention { experts: Some(experts), ..attention }), parallel: true, ..plain },
    ];
    let program = Program::new(Architecture { layers, ..good }).expect("a program");
    let weights = weights(&program, 9);
    model(program, &weights, DType::F32)
}

#[test]
fn an_absent_site_is_an_error_with_the_reason() {
    let model = layers_with_missing_parts();
    let refusal = |site: &str| {
        let error = model.run(&[vec![1, 2, 3]], &Plan::capture([site]), &RunOptions::default()).expect_err(site);
        assert!(error.remedy().is_some_and(|remedy| !remedy.to_string().is_empty()), "{site}");
        error.to_string()
    };
    let (mut refused, mut there) = (0, 0);
    for (index, layer) in model.program().architecture().layers.iter().enumerate() {
        for point in Point::ALL.into_iter().filter(|point| point.info().scope == Scope::Layer) {
            let site = format!("layers.{index}.{point}");
            if model.find(&site).is_ok() {
                there += 1;
                continue;
            }
            let why = refusal(&site);
            assert!(why.contains(point.absent_from(Some(layer))), "{site}: {why}");
            refused += 1;
        }
    }
    assert!(refused > 60 && there > 60, "{refused} refusals, {there} sites");
    for (site, why) in [
        ("layers.0.resid_mid", "one sublayer"),
        ("layers.0.mlp_act", "this layer has no MLP"),
        ("layers.0.mixer_out", "no recurrence; use the attention points"),
        ("layers.1.resid_mid", "one sublayer"),
        ("layers.1.z", "no softmax attention"),
        ("layers.1.attn_scale", "no norm before its attention or recurrence"),
        ("layers.2.conv_out", "no convolution"),
        ("layers.3.mixer_state", "no recurrent state"),
        ("layers.4.value", "latent attention has no separate k and v"),
        ("layers.5.head_out", "its experts; use z or attn_out"),
        ("layers.5.resid_mid", "run in parallel"),
    ] {
        assert!(refusal(site).contains(why), "{site}: {}", refusal(site));
    }
}

#[test]
fn a_recurrent_state_can_be_captured_and_not_edited() {
    use pellucid_engine::{Action, Callback, Operand, Tap};
    let model = layers_with_missing_parts();
    let (text, state) = (vec![vec![1, 2, 3, 4, 5]], "layers.2.mixer_state");
    let run = |plan: &Plan| model.run(&text, plan, &RunOptions::default());
    let seen = run(&Plan::capture([state, "logits"])).expect("a run");
    assert_eq!(seen.captures[0].array.shape(), [5, 6, 3], "three values per channel and token");
    let rows = seen.captures[0].array.values().chunks_exact(18).collect::<Vec<_>>();
    assert!(rows.windows(2).all(|pair| pair[0] != pair[1]), "every token changes it");
    let plain = run(&Plan::capture(["logits"])).expect("a run");
    assert_eq!(plain.captures[0].array, seen.captures[1].array, "capturing changes nothing");
    for action in [
        Action::Zero,
        Action::Scale(2.0),
        Action::Set(Operand::Number(1.0)),
        Action::Add { operand: Operand::Number(1.0), scale: 1.0 },
        Action::Call(Callback(Arc::new(|_| {}))),
    ] {
        let plan =
            Plan::default().with(Tap::new(state, action.clone())).with(Tap::new("logits", Action::Capture(None)));
        let error = run(&plan).expect_err("an edit of a state").to_string();
        assert!(
            error.contains(state) && error.contains("can be captured, not edited") && error.contains("edit mixer_in"),
            "{error}"
        );
        // Control: the same edit of the recurrence's input is allowed, and changes the logits
        // (except the no-op callback).
        let fed = Plan::default()
            .with(Tap::new("layers.2.mixer_in", action.clone()))
            .with(Tap::new("logits", Action::Capture(None)));
        let edited = run(&fed).expect("a run");
        assert_eq!(edited.captures[0].array != plain.captures[0].array, !matches!(action, Action::Call(_)));
    }
}

#[test]
fn wide_products_keep_their_bits_in_any_batch() {
    // Wider than several matmul blocks, with partially filled panels, in every storage format.
    let mut architecture = model_with_broken_second_layer().program().architecture().clone();
    (architecture.width, architecture.vocab) = (525, 37);
    architecture.layers.iter_mut().for_each(|layer| {
        layer.mlp = Some(Mlp::Dense(Dense::gated(1030, Activation::Silu).with_bias(true)));
        let attention = layer.attention.as_mut().expect("attention");
        (attention.head_dim, attention.value_dim) = (40, 37);
    });
    let program = Program::new(architecture).expect("a program");
    let weights = weights(&program, 5);
    let texts: Vec<Vec<u32>> = [1, 25, 130, 7].iter().map(|&n| (0..n).map(|i| (i * 11 + n) % 37).collect()).collect();
    for dtype in [DType::F32, DType::Bf16, DType::F16] {
        let model = model(program.clone(), &weights, dtype);
        let bits = |texts: &[Vec<u32>], chunk: Option<usize>| {
            let run = model
                .run(texts, &Plan::capture(["logits"]), &RunOptions { chunk, ..RunOptions::default() })
                .expect("a run");
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
