//! The test of a cross-layer transcoder when it is attached: on the built-in model, with a
//! transcoder that is a linear fit of each MLP.

use super::width_in;
use pellucid_engine::sae::{InputNormalization, Sae, SaeKind};
use pellucid_engine::{Plan, Point, RunOptions, Site};
use pellucid_kernels::{DType, Matrix, Pool};
use pellucid_models::attach::AttachOptions;
use pellucid_models::sae::{LoadedSae, SaeInfo, SaeRole, read_named_sae};
use pellucid_models::{LoadOptions, LoadedModel};
use std::sync::Arc;

/// Texts that the MLPs are fitted on.
const TEXTS: [&str; 6] = [
    "Once upon a time there was a little girl named Lily. She loved to play outside in the park with her friends. One day \
     she saw a big dog near the tree and ran home to tell her mom about it.",
    "Tom and Ben are brothers. They like to build towers with blocks. Ben put a red block on top and the tower fell down. \
     They laughed and built it again, even higher than before.",
    "The old man lived in a small house by the river. Every morning he went fishing. He caught a fish, but the fish was so \
     small that he let it swim away. \"Come back when you are big,\" he said.",
    "Anna was sad because she lost her toy. Her friend Max helped her look for it under the bed and behind the door. At \
     last they found it in the garden, and Anna gave Max a hug.",
    "It was raining, so the children stayed inside. They read a book about a brave bird that could not fly. The bird tried \
     every day until it learned. The children wanted to be brave too.",
    "A cat sat in the sun. A mouse came and asked, \"Why do you sleep all day?\" The cat opened one eye. \"I am tired,\" it \
     said, \"but soon I will be hungry.\" The mouse ran away very fast.",
];

fn model() -> LoadedModel {
    LoadedModel::builtin(&LoadOptions::default()).expect("the built-in model")
}

/// Solves `(XᵀX + λI) A = XᵀY` by Gaussian elimination; rows of `x` and `y` are tokens.
fn ridge(x: &[Vec<f64>], y: &[Vec<f64>], strength: f64) -> Vec<Vec<f64>> {
    let (d, width) = (x[0].len(), y[0].len());
    let mut system = vec![vec![0.0; d + width]; d];
    for (x, y) in x.iter().zip(y) {
        for (row, &factor) in system.iter_mut().zip(x) {
            row.iter_mut().zip(x.iter().chain(y)).for_each(|(sum, value)| *sum += factor * value);
        }
    }
    (0..d).for_each(|i| system[i][i] += strength);
    for pivot in 0..d {
        let scale = system[pivot][pivot];
        system[pivot].iter_mut().for_each(|value| *value /= scale);
        let own = system[pivot].clone();
        for (_, line) in system.iter_mut().enumerate().filter(|(row, _)| *row != pivot) {
            let factor = line[pivot];
            line.iter_mut().zip(&own).for_each(|(value, own)| *value -= factor * own);
        }
    }
    system.into_iter().map(|row| row[d..].to_vec()).collect()
}

/// Tokens of all texts, without the first of each, at a site.
fn activations(loaded: &LoadedModel, site: Site) -> Vec<Vec<f64>> {
    let tokenizer = loaded.tokenizer.as_ref().expect("a tokenizer");
    let rows: Vec<Vec<u32>> = TEXTS.iter().map(|text| tokenizer.encode(text, true).expect("tokens")).collect();
    let run = loaded.model.run(&rows, &Plan::capture([site.to_string()]), &RunOptions::default()).expect("a run");
    let lines = |capture: &pellucid_engine::Capture| {
        let width = capture.array.shape()[1];
        let values = capture.array.values().chunks_exact(width).skip(1);
        values.map(|line| line.iter().map(|&x| f64::from(x)).collect::<Vec<f64>>()).collect::<Vec<_>>()
    };
    run.captures.iter().flat_map(lines).collect()
}

fn matrix(rows: usize, cols: usize, value: impl Fn(usize, usize) -> f64 + Sync) -> Matrix {
    Matrix::pack(&Pool::global(), rows, cols, DType::F32, &|row, out| {
        out.iter_mut().enumerate().for_each(|(col, w)| *w = value(row, col) as f32);
    })
}

/// A transcoder of all layers whose features are the positive and negative parts of `mlp_in`,
/// decoded by a linear fit of the own layer's MLP. Its files declare that it reads `read`.
fn fitted(loaded: &LoadedModel, read: Point) -> Vec<LoadedSae> {
    let count = loaded.model.program().architecture().layers.len();
    let info = || read_named_sae("builtin").expect("the built-in SAE").info;
    (0..count)
        .map(|layer| {
            let (input, output) = (Site::layer(layer, Point::MlpIn), Site::layer(layer, Point::MlpOut));
            let d = width_in(&loaded.model, input);
            let (x, y) = (activations(loaded, input), activations(loaded, output));
            let fit = ridge(&x, &y, 400.0);
            let mean =
                |lines: &[Vec<f64>], i: usize| lines.iter().map(|line| line[i]).sum::<f64>() / lines.len() as f64;
            let predicted = |o: usize| (0..d).map(|i| mean(&x, i) * fit[i][o]).sum::<f64>();
            let bias = (0..d).map(|o| (mean(&y, o) - predicted(o)) as f32).collect();
            let sign = |feature: usize| if feature < d { 1.0 } else { -1.0 };
            let own = matrix(2 * d, d, |feature, o| sign(feature) * fit[feature % d][o]);
            let others = (layer + 1..count).map(|_| matrix(2 * d, d, |_, _| 0.0));
            let sae = Sae {
                kind: SaeKind::Relu,
                normalization: InputNormalization::None,
                undo_normalization: false,
                subtract_decoder_bias: false,
                encoder: matrix(2 * d, d, |feature, i| if feature % d == i { sign(feature) } else { 0.0 }),
                encoder_bias: vec![0.0; 2 * d],
                decoders: std::iter::once(own).chain(others).collect(),
                decoder_biases: std::iter::once(bias).chain((layer + 1..count).map(|_| vec![0.0; d])).collect(),
                skip: None,
            };
            let info = SaeInfo {
                role: SaeRole::CrossLayerTranscoder,
                sites_in: vec![Site::layer(layer, read)],
                sites_out: (layer..count).map(|layer| Site::layer(layer, Point::MlpOut)).collect(),
                declared_l0: None,
                path: format!("fit/W_enc_{layer}.safetensors").into(),
                ..info()
            };
            LoadedSae { sae: Arc::new(sae), info }
        })
        .collect()
}

#[test]
fn every_layer_of_a_transcoder_is_tested() {
    let mut loaded = model();
    let layers = fitted(&loaded, Point::MlpIn);
    let checks = loaded.attach_cross_layer(&layers, &AttachOptions::default()).expect("it fits");
    assert_eq!(checks.len(), layers.len());
    for (layer, check) in checks.iter().enumerate() {
        assert_eq!(check.site, Site::layer(layer, Point::MlpOut));
        assert!(check.explained_variance > 0.0 && check.l0 > 10.0, "{check:?}");
    }
    assert_eq!(loaded.model.saes().len(), layers.len());
}

#[test]
fn a_transcoder_that_reads_another_point_is_refused_and_the_right_one_named() {
    let mut loaded = model();
    let wrong = fitted(&loaded, Point::ResidMid);
    let error = loaded.attach_cross_layer(&wrong, &AttachOptions::default()).expect_err("refused").to_string();
    assert!(error.contains("explained variance") && error.contains("reading layers."), "{error}");
    assert!(loaded.model.saes().is_empty(), "the model stays as it was");
    let unchecked = AttachOptions { unchecked: true, ..AttachOptions::default() };
    assert!(loaded.attach_cross_layer(&wrong, &unchecked).expect("attached").is_empty());
    let at_a_site = AttachOptions { site: Some("layers.0.mlp_out".into()), ..AttachOptions::default() };
    let error = model().attach_cross_layer(&wrong, &at_a_site).expect_err("refused").to_string();
    assert!(error.contains("leave the site out") || error.contains("cannot be attached at"), "{error}");
    let single = model().attach_sae(&wrong[0], &AttachOptions::default()).expect_err("refused").to_string();
    assert!(single.contains("one layer of a cross-layer transcoder"), "{single}");
}
