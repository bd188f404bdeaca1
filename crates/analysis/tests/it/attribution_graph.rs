//! Every edge of an attribution graph is the measured effect of its intervention on the frozen
//! model: forward passes only, with attention weights, scales and MLP outputs written from an
//! unedited row.

use pellucid_analysis::attribution_graph::{
    AttributionGraph, FeatureEdit, GraphOptions, Targets, attribute, intervene, node_influence,
};
use pellucid_engine::plan::{Combine, Expr};
use pellucid_engine::sae::{InputNormalization, Sae, SaeKind};
use pellucid_engine::{Array, Model, Operand, Plan, Point, RunOptions, SaePart, Site, Tap, TranscoderLayer};
use pellucid_kernels::{DType, Matrix, Pool};
use pellucid_models::{LoadOptions, LoadedModel};
use std::sync::Arc;

const FEATURES: usize = 20;
const TOKENS: [u32; 5] = [5, 17, 42, 8, 23];

fn number(seed: usize) -> f32 {
    let mut x = (seed as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    x ^= x >> 29;
    x = x.wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x ^= x >> 32;
    (x % 20_001) as f32 / 10_000.0 - 1.0
}

fn matrix(seed: usize, rows: usize, cols: usize) -> Matrix {
    let size = 1.0 / (cols as f32).sqrt();
    Matrix::pack(&Pool::global(), rows, cols, DType::F32, &|row, out| {
        out.iter_mut().enumerate().for_each(|(col, x)| *x = number(seed * 1_000_003 + row * cols + col) * size);
    })
}

/// An autoencoder or transcoder of width `d`, of which some features fire at every token.
fn sae(seed: usize, d: usize, decoders: usize, skip: bool) -> Sae {
    Sae {
        kind: SaeKind::Relu,
        normalization: InputNormalization::None,
        undo_normalization: false,
        subtract_decoder_bias: false,
        encoder: matrix(seed, FEATURES, d),
        encoder_bias: (0..FEATURES).map(|i| number(seed + i) * 0.1).collect(),
        decoders: (0..decoders).map(|i| matrix(seed + 10 + i, FEATURES, d)).collect(),
        decoder_biases: (0..decoders).map(|_| vec![0.05; d]).collect(),
        skip: skip.then(|| matrix(seed + 30, d, d)),
    }
}

fn golden_model(name: &str) -> Model {
    LoadedModel::open(&golden::path(name), &LoadOptions::default(), &mut |_| {}).expect("the golden model").model
}

fn transcoders(model: &Model, skip: bool) -> Model {
    let (layers, d) = (model.program().architecture().layers.len(), model.program().architecture().width);
    (0..layers).fold(model.clone(), |model, layer| {
        let (read, write) = (Site::layer(layer, Point::MlpIn), Site::layer(layer, Point::MlpOutPost));
        model.attach(Arc::new(sae(100 * layer, d, 1, skip)), read, write).expect("attached")
    })
}

/// The edges by interventions: for each source node, the change of every feature's pre-activation
/// and of every target.
struct Measured {
    /// For each source node and each node with edges.
    effects: Vec<Vec<f32>>,
    /// The nodes with edges.
    nodes: Vec<usize>,
}

fn run(model: &Model, plan: &Plan) -> pellucid_engine::Run {
    model.run(&[TOKENS.to_vec(), TOKENS.to_vec()], plan, &RunOptions::default()).unwrap_or_else(|e| panic!("{e}"))
}

/// Row 1 is the frozen model: its attention weights, scales and source outputs come from row 0.
fn frozen(model: &Model, graph: &AttributionGraph, freeze_attention: bool) -> Plan {
    let points = [Point::AttnScale, Point::MlpScale, Point::FinalScale, Point::AttnProbs];
    let points = points.into_iter().filter(|point| freeze_attention || *point != Point::AttnProbs);
    let mut plan = Plan::default();
    for site in model.program().sites().filter(|site| points.clone().any(|point| site.point == point)) {
        plan.taps.push(Tap::set(site.to_string()).from_row(0).rows([1]));
    }
    for &site in &graph.error_sites {
        plan.taps.push(Tap::set(out(model, site)).from_row(0).rows([1]));
        let Some(attached) = model.saes().iter().find(|sae| sae.write == site) else { continue };
        let Some(skip) = &attached.sae.skip else { continue };
        // The skip path stays: W_skip times the change of the transcoder's input is added.
        let read = |row: usize| Tap::read(attached.read.to_string()).rows([row]);
        let (own, base) = (plan.read(read(1)), plan.read(read(0)));
        let base = plan.value(Expr::Row { of: base, row: 0 });
        let change = plan.value(Expr::Combine(Combine::Sub, own, base));
        let (rows, cols) = (skip.rows(), skip.cols());
        let mut transposed = vec![0.0; rows * cols];
        let mut line = vec![0.0; cols];
        for row in 0..rows {
            skip.row(row, &mut line);
            line.iter().enumerate().for_each(|(col, &x)| transposed[col * rows + row] = x);
        }
        let weight = plan.value(Expr::Constant(Array::new(vec![cols, rows], transposed)));
        let passed = plan.value(Expr::MatMul(change, weight));
        plan.taps.push(Tap::add(out(model, site)).with(Operand::Value(passed)).rows([1]));
    }
    plan
}

fn out(model: &Model, site: Site) -> String {
    let spliced = site.sae(SaePart::Out);
    if model.program().edge_of(spliced).is_some() { spliced.to_string() } else { site.to_string() }
}

/// The vectors that a source adds: sites, position, vector.
fn written(model: &Model, graph: &AttributionGraph, node: usize) -> (Vec<(String, Vec<f32>)>, usize) {
    let capture = |site: String| {
        let run = run(model, &Plan::of([Tap::capture(site).rows([0])]));
        run.captures[0].array.clone()
    };
    if node < graph.first_error() {
        let feature = graph.features[graph.selected[node]];
        let sae = &model.saes()[feature.sae].sae;
        let writes = sae.decoders.iter().enumerate().map(|(later, decoder)| {
            let mut row = vec![0.0; decoder.cols()];
            decoder.row(feature.feature, &mut row);
            row.iter_mut().for_each(|x| *x *= feature.activation);
            (out(model, model.saes()[feature.sae + later].write), row)
        });
        return (writes.collect(), feature.position);
    }
    let position = (node - graph.first_error()) % graph.positions;
    let (from, to) = match node < graph.first_token() {
        true => {
            let site = graph.error_sites[(node - graph.first_error()) / graph.positions];
            let error = site.sae(SaePart::Error);
            let from = if model.program().edge_of(error).is_some() { error } else { site };
            (from.to_string(), out(model, site))
        }
        false => ("layers.0.resid_pre".into(), "layers.0.resid_pre".into()),
    };
    (vec![(to, capture(from).row(position).to_vec())], position)
}

fn measure(model: &Model, graph: &AttributionGraph, freeze_attention: bool) -> Measured {
    let features: Vec<usize> = (0..graph.first_error()).collect();
    let nodes: Vec<usize> = features.iter().copied().chain(graph.first_target()..graph.n_nodes()).collect();
    let (unembedding, _) = model.weight_of(Site::model(Point::LmHead)).expect("an unembedding");
    let (vocab, d) = (unembedding.shape()[0], unembedding.shape()[1]);
    let mean: Vec<f32> =
        (0..d).map(|i| (0..vocab).map(|t| unembedding.row(t)[i]).sum::<f32>() / vocab as f32).collect();
    let read = |plan: Plan| -> Vec<Vec<f32>> {
        let mut plan = plan;
        for attached in model.saes() {
            plan.taps.push(Tap::capture(attached.write.sae(SaePart::Pre).to_string()));
        }
        plan.taps.push(Tap::capture("final_norm").last());
        let run = run(model, &plan);
        let of_row = |row: usize| {
            let captures: Vec<_> = run.captures.iter().filter(|capture| capture.row == row).collect();
            let mut values = Vec::new();
            for &node in &nodes {
                if node < graph.first_error() {
                    let feature = graph.features[graph.selected[node]];
                    values.push(captures[feature.sae].array.row(feature.position)[feature.feature]);
                } else {
                    let token = graph.targets[node - graph.first_target()].token.expect("a token") as usize;
                    let input = captures.last().expect("final_norm").array.values().to_vec();
                    let along = input.iter().zip(unembedding.row(token)).zip(&mean).map(|((x, w), m)| x * (w - m));
                    values.push(along.sum());
                }
            }
            values
        };
        vec![of_row(0), of_row(1)]
    };
    let effects = (0..graph.first_target()).map(|source| {
        let mut plan = frozen(model, graph, freeze_attention);
        let (writes, position) = written(model, graph, source);
        for (site, vector) in writes {
            plan.taps.push(Tap::add(site).with(vector).rows([1]).positions(position as i64));
        }
        let values = read(plan);
        values[1].iter().zip(&values[0]).map(|(edited, base)| edited - base).collect()
    });
    Measured { effects: effects.collect(), nodes }
}

/// The largest difference between an edge and its measured effect, relative to the largest edge of
/// its target.
fn largest_difference(graph: &AttributionGraph, measured: &Measured) -> f32 {
    let mut worst = 0.0_f32;
    for (index, &node) in measured.nodes.iter().enumerate() {
        let row = &graph.edges[node];
        let largest = row.iter().fold(1e-3_f32, |max, x| max.max(x.abs()));
        for (source, effects) in measured.effects.iter().enumerate() {
            worst = worst.max((row[source] - effects[index]).abs() / largest);
        }
    }
    worst
}

fn graph(model: &Model, options: &GraphOptions) -> AttributionGraph {
    attribute(model, &TOKENS, &Targets::Likely, options, None).unwrap_or_else(|error| panic!("{error}"))
}

fn two_targets() -> GraphOptions {
    GraphOptions { max_logits: 2, logit_threshold: 1.0, ..GraphOptions::default() }
}

/// Rounding of f32, which the measured differences of two runs also have.
const TOLERANCE: f32 = 2e-4;

#[test]
fn edges_are_the_effects_of_interventions_on_the_frozen_model() {
    for name in ["gpt2", "llama", "gpt_neox"] {
        let plain = golden_model(name);
        let d = plain.program().architecture().width;
        let layers = plain.program().architecture().layers.len();
        let resid = Site::layer(layers / 2, Point::ResidPost);
        let cross: Vec<TranscoderLayer> = (0..layers)
            .map(|layer| {
                let (read, write) = (Site::layer(layer, Point::MlpIn), Site::layer(layer, Point::MlpOutPost));
                (Arc::new(sae(100 * layer, d, layers - layer, false)), read, write)
            })
            .collect();
        let models = [
            ("transcoders", transcoders(&plain, false)),
            ("skip transcoders", transcoders(&plain, true)),
            ("an SAE of the residual stream", plain.attach(Arc::new(sae(7, d, 1, false)), resid, resid).expect("one")),
            ("a cross-layer transcoder", plain.attach_cross_layer(&cross).expect("attached")),
        ];
        for (kind, model) in models {
            let graph = graph(&model, &two_targets());
            assert!(graph.selected.len() > 10, "{name}, {kind}: {} features", graph.selected.len());
            assert_eq!(graph.selected.len(), graph.features.len());
            let difference = largest_difference(&graph, &measure(&model, &graph, true));
            assert!(difference < TOLERANCE, "{name}, {kind}: {difference}");
        }
    }
}

#[test]
fn edges_are_not_the_effects_in_a_model_whose_attention_moves() {
    let model = transcoders(&golden_model("gpt2"), false);
    let graph = graph(&model, &two_targets());
    let difference = largest_difference(&graph, &measure(&model, &graph, false));
    assert!(difference > 10.0 * TOLERANCE, "{difference}");
}

#[test]
fn a_budget_keeps_the_features_of_most_influence_with_the_same_edges() {
    let model = transcoders(&golden_model("gpt2"), false);
    let whole = graph(&model, &two_targets());
    let options = GraphOptions { max_features: 30, batch: 4, ..two_targets() };
    let part = graph(&model, &options);
    assert_eq!((part.features.len(), part.selected.len()), (whole.features.len(), 30));
    for (node, &feature) in part.selected.iter().enumerate() {
        let expected: Vec<f32> = part.selected.iter().map(|&source| whole.edges[feature][source]).collect();
        assert_eq!(part.edges[node][..30], expected);
    }
    // The first batch is that of most direct influence on the targets.
    let mut direct = whole.clone();
    direct.edges[..whole.first_error()].iter_mut().for_each(Vec::clear);
    let influence = node_influence(&direct, false);
    let mut order: Vec<usize> = (0..whole.features.len()).collect();
    order.sort_by(|&a, &b| influence[b].total_cmp(&influence[a]));
    assert!(order[..4].iter().all(|node| part.selected.contains(node)));
}

#[test]
fn skipped_positions_have_neither_features_nor_errors() {
    let model = transcoders(&golden_model("gpt2"), false);
    let graph = graph(&model, &GraphOptions { skip_positions: 1, ..two_targets() });
    assert!(graph.features.iter().all(|feature| feature.position > 0));
    let errors = (0..graph.error_sites.len()).map(|site| graph.first_error() + site * graph.positions);
    let edges = &graph.edges[graph.first_target()];
    for error in errors {
        assert!(edges[error] == 0.0 && edges[error + graph.positions - 1] != 0.0);
    }
}

#[test]
fn a_direction_can_be_the_target() {
    let model = transcoders(&golden_model("gpt2"), false);
    let whole = graph(&model, &two_targets());
    let token = whole.targets[0].token.expect("a token") as usize;
    let (unembedding, _) = model.weight_of(Site::model(Point::LmHead)).expect("an unembedding");
    let vocab = unembedding.shape()[0];
    let mean = |i: usize| (0..vocab).map(|t| f64::from(unembedding.row(t)[i])).sum::<f64>() / vocab as f64;
    let vector = unembedding.row(token).iter().enumerate().map(|(i, x)| (f64::from(*x) - mean(i)) as f32).collect();
    let targets = Targets::Direction { vector, tokens: vec![token as u32] };
    let own = attribute(&model, &TOKENS, &targets, &GraphOptions::default(), None).expect("a graph");
    assert_eq!((own.targets.len(), own.targets[0].token), (1, None));
    assert_eq!(own.targets[0].probability, whole.targets[0].probability);
    for (a, b) in own.edges[own.first_target()].iter().zip(&whole.edges[whole.first_target()]) {
        assert!((a - b).abs() < 1e-5, "{a} and {b}");
    }
}

#[test]
fn an_intervention_adds_the_change_of_the_feature_times_its_decoder_row() {
    let model = transcoders(&golden_model("llama"), false);
    let graph = graph(&model, &two_targets());
    let feature = graph.features[graph.selected[3]];
    let value = feature.activation + 2.0;
    let edit = FeatureEdit { sae: feature.sae, position: feature.position, feature: feature.feature, value };
    let mut row = vec![0.0; model.program().architecture().width];
    model.saes()[feature.sae].sae.decoders[0].row(feature.feature, &mut row);
    row.iter_mut().for_each(|x| *x *= 2.0);
    let site = model.saes()[feature.sae].write.to_string();
    for frozen in [false, true] {
        let (before, after) = intervene(&model, &TOKENS, &[edit], frozen, None).expect("a run");
        let mut taps = vec![Tap::add(site.clone()).with(row.clone()).rows([1]).positions(feature.position as i64)];
        if frozen {
            taps.push(Tap::set("layers.*.attn_probs").from_row(0).rows([1]));
        }
        taps.push(Tap::capture("logits").last());
        let expected = run(&model.detach_all(), &Plan::of(taps));
        assert_eq!(before, expected.captures[0].array.values());
        let largest = after.iter().zip(&before).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(largest > 1e-3, "the edit matters");
        for (a, b) in after.iter().zip(expected.captures[1].array.values()) {
            assert!((a - b).abs() < 1e-3 * largest, "{a} and {b}");
        }
    }
}

#[test]
fn models_that_cannot_be_frozen_are_refused_by_name() {
    let plain = golden_model("gpt2");
    let error = attribute(&plain, &TOKENS, &Targets::Likely, &GraphOptions::default(), None).expect_err("no SAE");
    assert!(error.to_string().contains("no autoencoder"), "{error}");
    let recurrent = golden_model("mamba");
    let d = recurrent.program().architecture().width;
    let site = Site::layer(0, Point::ResidPost);
    let recurrent = recurrent.attach(Arc::new(sae(1, d, 1, false)), site, site).expect("attached");
    let error = attribute(&recurrent, &TOKENS, &Targets::Likely, &GraphOptions::default(), None).expect_err("mamba");
    assert!(error.to_string().contains("recurrence"), "{error}");
}
