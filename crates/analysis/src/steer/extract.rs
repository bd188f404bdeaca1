//! [`extract`]: from pairs of prompts to steering vectors with a report of every layer.

use super::activations::{Activations, Reading, collect};
use super::method::{Method, find_direction};
use super::quality::{LayerQuality, measure_quality};
use pellucid_engine::{Interrupt, Point, Positions};
use pellucid_models::steer::{LayerList, SteeringInfo, SteeringVectors, fingerprint};
use pellucid_models::{Error, LoadedModel, Result};

/// Options of an extraction.
#[derive(Clone)]
pub struct ExtractOptions {
    /// How a direction is computed.
    pub method: Method,
    /// Layers; by default all but layer 0, as in `repeng`: llama.cpp cannot steer layer 0.
    pub layers: Option<LayerList>,
    /// Positions whose activations are read, as [`Positions::parse`] takes them; the mean of
    /// several.
    pub positions: String,
    /// The point to read, and later to steer.
    pub point: Point,
    /// Polled during the runs; ends the extraction with an error.
    pub interrupt: Option<Interrupt>,
}

impl Default for ExtractOptions {
    fn default() -> ExtractOptions {
        ExtractOptions {
            method: Method::Mean,
            layers: None,
            positions: "last".into(),
            point: Point::ResidPost,
            interrupt: None,
        }
    }
}

/// The result of an extraction.
#[derive(Clone, Debug)]
pub struct Extraction {
    /// One direction per layer.
    pub vectors: SteeringVectors,
    /// The measurements of each layer, in order.
    pub layers: Vec<LayerQuality>,
}

/// Extracts steering vectors from pairs of token rows, positive then negative. `progress` receives
/// the fraction done.
///
/// # Errors
/// If there are no pairs, a layer or site does not exist, a prompt is not valid, or the positive
/// and negative activations of a layer do not differ.
pub fn extract(
    loaded: &LoadedModel,
    pairs: &[[Vec<u32>; 2]],
    options: &ExtractOptions,
    progress: &mut dyn FnMut(f32),
) -> Result<Extraction> {
    if pairs.is_empty() {
        return Err(Error::usage("there are no pairs", "give at least one positive and one negative prompt"));
    }
    let architecture = loaded.model.program().architecture();
    let depth = architecture.layers.len();
    let layers = options.layers.clone().unwrap_or_else(|| (1.min(depth - 1)..depth).collect());
    if let Some(&layer) = layers.as_slice().iter().find(|&&layer| layer >= depth) {
        return Err(Error::usage(
            format!("there is no layer {layer}: the model has layers 0 to {}", depth - 1),
            "choose layers of this model",
        ));
    }
    let prompts: Vec<Vec<u32>> = pairs.iter().flatten().cloned().collect();
    let positions = Positions::parse(&options.positions);
    let reading = Reading {
        point: options.point,
        layers: layers.as_slice(),
        positions: &positions,
        interrupt: options.interrupt.clone(),
    };
    let activations = collect(loaded, &prompts, reading, progress)?;
    let (mut directions, mut report) = (std::collections::BTreeMap::new(), Vec::new());
    for (&layer, activations) in layers.as_slice().iter().zip(&activations) {
        let (vector, quality) = direction_of(layer, activations, options.method)?;
        directions.insert(layer, vector);
        report.push(quality);
    }
    let info = SteeringInfo {
        model_type: Some(architecture.family.clone()),
        fingerprint: Some(fingerprint(&loaded.model)),
        method: Some(options.method.name().into()),
        positions: Some(options.positions.clone()),
        pairs: Some(pairs.len()),
        scale: Some(options.method.scale()),
    };
    Ok(Extraction { vectors: SteeringVectors::new(options.point, directions, info)?, layers: report })
}

/// Computes and measures the direction of a layer. The activations alternate: positive, negative.
fn direction_of(layer: usize, activations: &Activations, method: Method) -> Result<(Vec<f32>, LayerQuality)> {
    let positive: Vec<&[f32]> = activations.rows().step_by(2).collect();
    let negative: Vec<&[f32]> = activations.rows().skip(1).step_by(2).collect();
    let difference = |(p, n): (&&[f32], &&[f32])| p.iter().zip(*n).map(|(&p, &n)| p as f64 - n as f64).collect();
    let differences: Vec<Vec<f64>> = positive.iter().zip(&negative).map(difference).collect();
    if let Some(pair) = differences.iter().position(|row| row.iter().any(|x| !x.is_finite())) {
        return Err(Error::usage(
            format!("the activations of pair {} at layer {layer} are not finite", pair + 1),
            "check the prompts of this pair; the model computes NaN or infinity for them",
        ));
    }
    let direction = find_direction(&differences, method).ok_or_else(|| {
        let (problem, remedy) = match method {
            Method::PcaDiff if differences.iter().flatten().any(|&x| x != 0.0) => (
                "all differences are equal, and `pca_diff` subtracts their mean",
                "give several different pairs, or use another method",
            ),
            _ => (
                "the activations of positive and negative prompts are the same",
                "the prompts of a pair differ at or before the position that is read",
            ),
        };
        Error::usage(format!("layer {layer} has no direction: {problem}"), remedy)
    })?;
    let quality = measure_quality(layer, &positive, &negative, &differences, &direction, method);
    Ok((direction.vector.iter().map(|&x| x as f32).collect(), quality))
}

#[cfg(test)]
mod tests {
    use super::*;
    use pellucid_models::LoadOptions;

    const PAIRS: [(&str, &str); 4] = [
        ("Lily was so happy. She smiled and", "Lily was so sad. She cried and"),
        ("Tom felt happy and", "Tom felt sad and"),
        ("It was a happy day. Max", "It was a sad day. Max"),
        ("Mia had a happy face and", "Mia had a sad face and"),
    ];

    fn pairs(loaded: &LoadedModel) -> Vec<[Vec<u32>; 2]> {
        PAIRS.iter().map(|(a, b)| [loaded.encode(a).unwrap(), loaded.encode(b).unwrap()]).collect()
    }

    fn run(loaded: &LoadedModel, pairs: &[[Vec<u32>; 2]], options: &ExtractOptions) -> Result<Extraction> {
        extract(loaded, pairs, options, &mut |_| {})
    }

    #[test]
    fn all_methods_give_a_direction_for_every_layer_but_the_first() {
        let loaded = LoadedModel::builtin(&LoadOptions::default()).unwrap();
        let (pairs, depth) = (pairs(&loaded), loaded.model.program().architecture().layers.len());
        for method in Method::ALL {
            let found = run(&loaded, &pairs, &ExtractOptions { method, ..ExtractOptions::default() }).unwrap();
            assert_eq!(found.vectors.layers().as_slice(), (1..depth).collect::<Vec<_>>());
            assert_eq!(found.layers.len(), depth - 1);
            assert_eq!(found.vectors.warning(&loaded), None);
            for quality in &found.layers {
                assert!((0.0..=1.0).contains(&quality.explained) && quality.accuracy > 0.5, "{quality:?}");
                assert_eq!(method == Method::Mean, (quality.norm - 1.0).abs() > 1e-6, "{quality:?}");
            }
        }
    }

    #[test]
    fn batches_and_the_order_of_pairs_do_not_change_the_activations() {
        let loaded = LoadedModel::builtin(&LoadOptions::default()).unwrap();
        let pairs = pairs(&loaded);
        let options = ExtractOptions { method: Method::Mean, ..ExtractOptions::default() };
        let whole = run(&loaded, &pairs, &options).unwrap();
        // 60 copies exceed one run; the mean of copies is the same mean up to rounding.
        let copies: Vec<_> = pairs.iter().cycle().take(60 * pairs.len()).cloned().collect();
        let copied = run(&loaded, &copies, &options).unwrap();
        for (layer, direction) in whole.vectors.directions() {
            let other = &copied.vectors.directions()[layer];
            assert!(direction.iter().zip(other).all(|(a, b)| (a - b).abs() <= 1e-6), "layer {layer}");
        }
        let swapped: Vec<_> = pairs.iter().map(|[a, b]| [b.clone(), a.clone()]).collect();
        let opposite = run(&loaded, &swapped, &options).unwrap();
        for (layer, direction) in whole.vectors.directions() {
            assert!(direction.iter().zip(&opposite.vectors.directions()[layer]).all(|(a, b)| *a == -b));
        }
    }

    #[test]
    fn positions_choose_what_is_read() {
        let loaded = LoadedModel::builtin(&LoadOptions::default()).unwrap();
        let pairs = pairs(&loaded);
        let of = |positions: &str| {
            let options =
                ExtractOptions { method: Method::Mean, positions: positions.into(), ..ExtractOptions::default() };
            run(&loaded, &pairs, &options)
        };
        let last = of("last").unwrap();
        assert_eq!(last.vectors.directions(), of("-1").unwrap().vectors.directions());
        assert_ne!(last.vectors.directions(), of("all").unwrap().vectors.directions());
        let error = of("40:").unwrap_err().to_string();
        assert!(error.contains("the positive prompt of pair 1 has none of the selected positions"), "{error}");
        let error = of("-40").unwrap_err().to_string();
        assert!(error.contains("the positive prompt of pair 1 has ") && error.contains("no position -40"), "{error}");
        let error = of(" happy").unwrap_err().to_string();
        assert!(error.contains("the negative prompt of pair 1 does not contain the token \" happy\""), "{error}");
    }

    #[test]
    fn input_without_a_direction_is_an_error_that_names_the_layer() {
        let loaded = LoadedModel::builtin(&LoadOptions::default()).unwrap();
        let same = loaded.encode("Tom saw a dog").unwrap();
        let error =
            |pairs: &[[Vec<u32>; 2]], options: &ExtractOptions| run(&loaded, pairs, options).unwrap_err().to_string();
        let options = ExtractOptions::default();
        let text = error(&[[same.clone(), same.clone()]], &options);
        assert!(
            text.contains("layer 1 has no direction: the activations of positive and negative prompts are the same"),
            "{text}"
        );
        let principal = ExtractOptions { method: Method::PcaDiff, ..ExtractOptions::default() };
        let one = error(&pairs(&loaded)[..1], &principal);
        assert!(one.contains("all differences are equal, and `pca_diff` subtracts their mean"), "{one}");
        assert!(error(&[], &options).contains("there are no pairs"));
        let deep = ExtractOptions { layers: Some([99].into_iter().collect()), ..ExtractOptions::default() };
        assert!(error(&pairs(&loaded), &deep).contains("there is no layer 99"));
        let empty = error(&[[same.clone(), same], [vec![1, 2], vec![]]], &options);
        assert!(empty.contains("in pairs 1 to 2"), "{empty}");
    }
}
