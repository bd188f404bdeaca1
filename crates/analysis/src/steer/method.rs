//! The direction of one layer from the activations of contrastive pairs.

use super::principal::{dot, first_component, norm};
use pellucid_models::steer::ScaleConvention;
use serde::Serialize;

/// How a direction is computed from the paired differences `dᵢ = positiveᵢ − negativeᵢ`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Method {
    /// Mean of the differences (difference of means), not normalized. The default of
    /// `steering-vectors`.
    Mean,
    /// First principal component of the differences after their mean is subtracted. The default of
    /// `repeng`. It is the direction in which the differences vary most, which need not be the
    /// direction that they share.
    PcaDiff,
    /// First principal component of all activations after the mean of each pair is subtracted, so
    /// of `±dᵢ/2`: the direction that the differences share. `repeng`'s `pca_center` and the
    /// `pca_aggregator` of `steering-vectors`.
    PcaCenter,
}

impl Method {
    /// All methods.
    pub const ALL: [Method; 3] = [Method::Mean, Method::PcaDiff, Method::PcaCenter];

    /// Returns its name, such as `pca_diff`.
    pub fn name(self) -> &'static str {
        match self {
            Method::Mean => "mean",
            Method::PcaDiff => "pca_diff",
            Method::PcaCenter => "pca_center",
        }
    }

    /// Returns the method of this name.
    pub fn from_name(name: &str) -> Option<Method> {
        Method::ALL.into_iter().find(|method| method.name() == name)
    }

    /// Returns the meaning of scale 1 for its directions.
    pub fn scale(self) -> ScaleConvention {
        match self {
            Method::Mean => ScaleConvention::Difference,
            Method::PcaDiff | Method::PcaCenter => ScaleConvention::Unit,
        }
    }
}

/// A direction, from negative to positive examples.
#[derive(Clone, Debug)]
pub struct Direction {
    /// The vector, `[width]`: of length 1 for a principal component.
    pub vector: Vec<f64>,
    /// Share of the variance that it explains, from 0 to 1. For a principal component the ratio of
    /// PCA; for the mean the share of the differences' squared length along it.
    pub explained: f64,
}

/// Computes the direction of paired differences, `[pairs, width]`. Returns `None` if there is none:
/// all differences are zero, or for [`Method::PcaDiff`] all are equal.
///
/// A principal component has no sign of its own. As in `repeng`, the sign is the one with which
/// positive examples project higher in more pairs; in a tie, the one with a positive mean.
pub fn find_direction(differences: &[Vec<f64>], method: Method) -> Option<Direction> {
    let (vector, explained) = match method {
        Method::Mean => {
            let mean = mean_of(differences)?;
            let length = norm(&mean);
            if length.is_nan() || length == 0.0 {
                return None;
            }
            let total: f64 = differences.iter().map(|row| dot(row, row)).sum();
            let along: f64 = differences.iter().map(|row| (dot(row, &mean) / length).powi(2)).sum();
            (mean, along / total)
        }
        Method::PcaDiff => {
            let mean = mean_of(differences)?;
            let centered: Vec<Vec<f64>> =
                differences.iter().map(|row| row.iter().zip(&mean).map(|(x, m)| x - m).collect()).collect();
            // Equal differences leave rounding errors, whose direction means nothing.
            let largest = differences.iter().map(|row| norm(row)).fold(0.0, f64::max);
            if centered.iter().all(|row| norm(row) <= 1e-12 * largest) {
                return None;
            }
            let found = first_component(&centered)?;
            (found.vector, found.share)
        }
        Method::PcaCenter => {
            // The rows ±dᵢ/2 have the same principal components as the dᵢ.
            let found = first_component(differences)?;
            (found.vector, found.share)
        }
    };
    let mut direction = Direction { vector, explained };
    if points_backward(differences, &direction.vector) {
        direction.vector.iter_mut().for_each(|x| *x = -*x);
    }
    Some(direction)
}

fn points_backward(differences: &[Vec<f64>], vector: &[f64]) -> bool {
    let projections: Vec<f64> = differences.iter().map(|row| dot(row, vector)).collect();
    let positive = projections.iter().filter(|&&x| x > 0.0).count();
    let negative = projections.iter().filter(|&&x| x < 0.0).count();
    negative > positive || (negative == positive && projections.iter().sum::<f64>() < 0.0)
}

fn mean_of(rows: &[Vec<f64>]) -> Option<Vec<f64>> {
    let mut mean = vec![0.0; rows.first()?.len()];
    for row in rows {
        mean.iter_mut().zip(row).for_each(|(mean, x)| *mean += x);
    }
    mean.iter_mut().for_each(|x| *x /= rows.len() as f64);
    Some(mean)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(a: &[f64], b: &[f64]) -> bool {
        a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-9)
    }

    #[test]
    fn each_method_finds_its_direction_and_points_to_the_positive_examples() {
        // The differences share −x and vary along y.
        let differences = [vec![-1.0, 2.0, 0.0], vec![-1.0, -2.0, 0.0], vec![-1.0, 2.0, 0.0], vec![-1.0, -1.9, 0.0]];
        let mean = find_direction(&differences, Method::Mean).unwrap();
        assert!(close(&mean.vector, &[-1.0, 0.025, 0.0]));
        let shared = [vec![-2.0, 1.0, 0.0], vec![-2.0, -1.0, 0.0]];
        let center = find_direction(&shared, Method::PcaCenter).unwrap();
        assert!(close(&center.vector, &[-1.0, 0.0, 0.0]), "{:?}", center.vector);
        assert!((center.explained - 0.8).abs() < 1e-9);
        let diff = find_direction(&shared, Method::PcaDiff).unwrap();
        assert!(close(&diff.vector.iter().map(|x| x.abs()).collect::<Vec<_>>(), &[0.0, 1.0, 0.0]));
        assert!((diff.explained - 1.0).abs() < 1e-9, "without the mean, only y varies");
    }

    #[test]
    fn the_sign_follows_the_majority_of_pairs() {
        let differences = [vec![0.0, -1.0], vec![0.0, -1.0], vec![0.0, 9.0]];
        // The mean of the projections is positive along y, but two of three pairs are negative.
        let found = find_direction(&differences, Method::PcaCenter).unwrap();
        assert!(close(&found.vector, &[0.0, -1.0]), "{:?}", found.vector);
    }

    #[test]
    fn there_is_no_direction_without_a_difference() {
        let zero = [vec![0.0; 3], vec![0.0; 3]];
        let equal = [vec![0.1, 0.7], vec![0.1, 0.7], vec![0.1, 0.7]];
        for method in Method::ALL {
            assert!(find_direction(&zero, method).is_none() && find_direction(&[], method).is_none());
            assert_eq!(find_direction(&equal, method).is_none(), method == Method::PcaDiff);
            assert_eq!(Method::from_name(method.name()), Some(method));
        }
    }
}
