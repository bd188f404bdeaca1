//! How well the direction of a layer separates positive from negative examples.

use super::method::{Direction, Method, find_direction};
use super::principal::{dot, norm};
use serde::Serialize;

/// Folds of the cross-validation.
const FOLDS: usize = 5;

/// Measurements of one layer's direction.
#[derive(Clone, Debug, Serialize)]
pub struct LayerQuality {
    /// The layer.
    pub layer: usize,
    /// Length of the direction.
    pub norm: f64,
    /// Mean length of the activations, for choosing a scale.
    pub activation_norm: f64,
    /// Share of the variance that the direction explains ([`Direction::explained`]).
    pub explained: f64,
    /// Distance of the mean projections of positive and negative examples, in standard deviations
    /// (their pooled one). Infinite if the projections of each kind are all equal.
    pub separation: f64,
    /// Share of pairs whose positive example projects higher than its negative one.
    pub accuracy: f64,
    /// The same for pairs that the direction was not computed from, by 5-fold cross-validation.
    /// With few pairs every direction separates its own pairs, so this is the number to compare.
    /// `None` if there are too few pairs for a direction without one fold.
    pub held_out_accuracy: Option<f64>,
}

/// Measures the direction of a layer on the activations that it was computed from. `positive` and
/// `negative` are the activations of the pairs in the same order, `[pairs, width]`.
pub fn measure_quality(
    layer: usize,
    positive: &[&[f32]],
    negative: &[&[f32]],
    differences: &[Vec<f64>],
    direction: &Direction,
    method: Method,
) -> LayerQuality {
    let length = norm(&direction.vector);
    let project = |rows: &[&[f32]]| -> Vec<f64> {
        rows.iter()
            .map(|row| row.iter().zip(&direction.vector).map(|(&x, v)| x as f64 * v).sum::<f64>() / length)
            .collect()
    };
    let (high, low) = (project(positive), project(negative));
    let activations = positive.iter().chain(negative);
    let lengths = activations.map(|row| row.iter().map(|&x| (x as f64).powi(2)).sum::<f64>().sqrt());
    LayerQuality {
        layer,
        norm: length,
        activation_norm: lengths.sum::<f64>() / (positive.len() + negative.len()) as f64,
        explained: direction.explained,
        separation: (mean(&high) - mean(&low)) / ((variance(&high) + variance(&low)) / 2.0).sqrt(),
        accuracy: share_above(differences, &direction.vector),
        held_out_accuracy: cross_validate(differences, method),
    }
}

/// Returns the share of held-out pairs that project in the positive direction.
fn cross_validate(differences: &[Vec<f64>], method: Method) -> Option<f64> {
    let folds = FOLDS.min(differences.len());
    let mut correct = 0.0;
    for fold in 0..folds {
        // Every fifth pair: neighbors in a file are often variants of one text.
        let (held_out, rest): (Vec<_>, Vec<_>) =
            differences.iter().enumerate().partition(|(index, _)| index % folds == fold);
        let rows = |part: Vec<(usize, &Vec<f64>)>| part.into_iter().map(|(_, row)| row.clone()).collect::<Vec<_>>();
        let direction = find_direction(&rows(rest), method)?;
        let held_out = rows(held_out);
        correct += share_above(&held_out, &direction.vector) * held_out.len() as f64;
    }
    (folds > 0).then(|| correct / differences.len() as f64)
}

fn share_above(differences: &[Vec<f64>], vector: &[f64]) -> f64 {
    let above = differences.iter().filter(|row| dot(row, vector) > 0.0).count();
    above as f64 / differences.len().max(1) as f64
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

fn variance(values: &[f64]) -> f64 {
    let center = mean(values);
    values.iter().map(|x| (x - center).powi(2)).sum::<f64>() / values.len() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_random_direction_separates_its_own_pairs_but_not_held_out_ones() {
        // Twelve pairs in 200 dimensions without any common difference.
        let mut state = 7u64;
        let mut noise = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) as f64 / (1u64 << 31) as f64 - 0.5
        };
        let random: Vec<Vec<f64>> = (0..12).map(|_| (0..200).map(|_| noise()).collect()).collect();
        let shared: Vec<Vec<f64>> = random.iter().map(|row| row.iter().map(|x| x + 0.5).collect()).collect();
        let of = |differences: &[Vec<f64>]| {
            let direction = find_direction(differences, Method::Mean).unwrap();
            let positive: Vec<Vec<f32>> =
                differences.iter().map(|row| row.iter().map(|&x| x as f32).collect()).collect();
            let negative = vec![vec![0.0f32; 200]; 12];
            let (positive, negative): (Vec<&[f32]>, Vec<&[f32]>) =
                (positive.iter().map(Vec::as_slice).collect(), negative.iter().map(Vec::as_slice).collect());
            measure_quality(3, &positive, &negative, differences, &direction, Method::Mean)
        };
        let (random, shared) = (of(&random), of(&shared));
        assert_eq!(random.accuracy, 1.0);
        assert!(random.held_out_accuracy.unwrap() < 0.9, "{random:?}");
        assert_eq!((shared.accuracy, shared.held_out_accuracy), (1.0, Some(1.0)));
        assert!(shared.separation > random.separation && shared.explained > random.explained);
    }
}
