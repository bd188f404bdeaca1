//! The first principal component, by the Lanczos method.
//!
//! An extraction needs one eigenvector of `XᵀX` per layer, with `X` of a few hundred rows and a few
//! thousand columns. Lanczos needs only products with `X` and `Xᵀ` (some tens of them), so no
//! covariance matrix is formed and no linear-algebra library is needed.

/// Size of the Krylov basis before a restart from the best vector.
const BASIS: usize = 48;
/// Restarts before the method returns its best vector. More are needed only if the two largest
/// eigenvalues are equal to many digits, and then every vector of their plane is an answer.
const MAX_RESTARTS: usize = 60;
/// Relative residual `|XᵀXv − λv| / λ` at which the vector is accepted.
const TOLERANCE: f64 = 1e-11;

/// The first principal component of the rows of a matrix.
#[derive(Clone, Debug)]
pub(super) struct Principal {
    /// Unit vector, `[columns]`. Its sign is arbitrary.
    pub vector: Vec<f64>,
    /// Share of the sum of squares of the matrix along the vector, from 0 to 1.
    pub share: f64,
}

/// Computes the unit vector `v` that maximizes `|Xv|` for the rows of `X`, `[rows, columns]`. The
/// rows are used as they are: center them for a PCA. Returns `None` if all rows are zero.
pub(super) fn first_component(rows: &[Vec<f64>]) -> Option<Principal> {
    let total: f64 = rows.iter().map(|row| dot(row, row)).sum();
    // The longest row is a start that cannot be orthogonal to all principal components.
    let longest = rows.iter().max_by(|a, b| dot(a, a).total_cmp(&dot(b, b)))?;
    if total.is_nan() || total == 0.0 {
        return None;
    }
    let mut vector = longest.clone();
    normalize(&mut vector);
    let mut value = 0.0;
    for _ in 0..MAX_RESTARTS {
        let (next, eigenvalue, residual) = expand(rows, vector);
        (vector, value) = (next, eigenvalue);
        if residual <= TOLERANCE * value {
            break;
        }
    }
    Some(Principal { vector, share: (value / total).min(1.0) })
}

/// Builds a Krylov basis from `start` and returns its best vector, the eigenvalue and the residual.
fn expand(rows: &[Vec<f64>], start: Vec<f64>) -> (Vec<f64>, f64, f64) {
    let size = BASIS.min(start.len());
    let mut basis = vec![start];
    // The projection of XᵀX onto the basis is tridiagonal: alpha on the diagonal, beta beside it.
    let (mut alpha, mut beta) = (Vec::new(), Vec::new());
    let mut scale = 0.0f64;
    loop {
        let last = basis.len() - 1;
        let mut next = product(rows, &basis[last]);
        scale = scale.max(norm(&next));
        alpha.push(dot(&next, &basis[last]));
        // Twice is enough to stay orthogonal in floating point.
        for _ in 0..2 {
            for vector in &basis {
                let along = dot(&next, vector);
                subtract(&mut next, along, vector);
            }
        }
        let length = norm(&next);
        beta.push(length);
        // The basis spans an invariant subspace: nothing more can be found from this start.
        if basis.len() == size || length <= 1e-14 * scale {
            break;
        }
        next.iter_mut().for_each(|x| *x /= length);
        basis.push(next);
    }
    let (value, weights) = largest_eigenpair(&alpha, &beta);
    let mut vector = vec![0.0; basis[0].len()];
    for (weight, of_basis) in weights.iter().zip(&basis) {
        subtract(&mut vector, -weight, of_basis);
    }
    normalize(&mut vector);
    let residual = beta.last().zip(weights.last()).map_or(0.0, |(beta, weight)| (beta * weight).abs());
    (vector, value, residual)
}

/// Returns the largest eigenvalue of a symmetric tridiagonal matrix and its unit eigenvector, by
/// Jacobi rotations. `beta[i]` is beside `alpha[i]` and `alpha[i + 1]`.
fn largest_eigenpair(alpha: &[f64], beta: &[f64]) -> (f64, Vec<f64>) {
    let n = alpha.len();
    let mut a = vec![vec![0.0; n]; n];
    let mut v = vec![vec![0.0; n]; n];
    for i in 0..n {
        a[i][i] = alpha[i];
        v[i][i] = 1.0;
        if i + 1 < n {
            (a[i][i + 1], a[i + 1][i]) = (beta[i], beta[i]);
        }
    }
    let total: f64 = a.iter().flatten().map(|x| x * x).sum();
    for _ in 0..64 {
        let off: f64 = (0..n).flat_map(|i| (0..i).map(move |j| (i, j))).map(|(i, j)| a[i][j] * a[i][j]).sum();
        if off <= 1e-32 * total {
            break;
        }
        for p in 0..n {
            for q in p + 1..n {
                rotate(&mut a, &mut v, p, q);
            }
        }
    }
    let best = (0..n).max_by(|&i, &j| a[i][i].total_cmp(&a[j][j])).unwrap_or(0);
    (a[best][best], v.iter().map(|row| row[best]).collect())
}

/// Zeroes `a[p][q]` by a rotation of rows and columns `p` and `q`; `v` collects the rotations.
fn rotate(a: &mut [Vec<f64>], v: &mut [Vec<f64>], p: usize, q: usize) {
    if a[p][q] == 0.0 {
        return;
    }
    let theta = (a[q][q] - a[p][p]) / (2.0 * a[p][q]);
    let t = theta.signum() / (theta.abs() + (theta * theta + 1.0).sqrt());
    let c = 1.0 / (t * t + 1.0).sqrt();
    let s = t * c;
    for row in a.iter_mut().chain(v.iter_mut()) {
        let (x, y) = (row[p], row[q]);
        (row[p], row[q]) = (c * x - s * y, s * x + c * y);
    }
    let (above, below) = a.split_at_mut(q);
    for (x, y) in above[p].iter_mut().zip(&mut below[0]) {
        (*x, *y) = (c * *x - s * *y, s * *x + c * *y);
    }
}

/// Computes `XᵀX v`.
fn product(rows: &[Vec<f64>], v: &[f64]) -> Vec<f64> {
    let mut out = vec![0.0; v.len()];
    for row in rows {
        subtract(&mut out, -dot(row, v), row);
    }
    out
}

/// Inner product.
pub(super) fn dot(a: &[f64], b: &[f64]) -> f64 {
    // Eight sums: independent additions can use vector instructions.
    let mut sums = [0.0; 8];
    let (a, a_rest) = a.as_chunks::<8>();
    let (b, b_rest) = b.as_chunks::<8>();
    for (a, b) in a.iter().zip(b) {
        for i in 0..8 {
            sums[i] += a[i] * b[i];
        }
    }
    sums.iter().sum::<f64>() + a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum::<f64>()
}

/// `a −= factor · b`.
fn subtract(a: &mut [f64], factor: f64, b: &[f64]) {
    for (a, b) in a.iter_mut().zip(b) {
        *a -= factor * b;
    }
}

/// Euclidean length.
pub(super) fn norm(a: &[f64]) -> f64 {
    dot(a, a).sqrt()
}

fn normalize(a: &mut [f64]) {
    let length = norm(a);
    a.iter_mut().for_each(|x| *x /= length);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Rows `[rows, columns]` of a matrix.
    fn matrices() -> impl Strategy<Value = Vec<Vec<f64>>> {
        (1..12usize, 1..70usize)
            .prop_flat_map(|(rows, columns)| prop::collection::vec(prop::collection::vec(-3.0..3.0, columns), rows))
    }

    proptest! {
        #[test]
        fn no_other_direction_explains_more(rows in matrices()) {
            let found = first_component(&rows).unwrap();
            let along = |v: &[f64]| rows.iter().map(|row| dot(row, v).powi(2)).sum::<f64>();
            let total: f64 = rows.iter().map(|row| dot(row, row)).sum();
            prop_assert!((norm(&found.vector) - 1.0).abs() < 1e-12);
            prop_assert!((along(&found.vector) / total - found.share).abs() < 1e-9);
            // An eigenvector: XᵀXv is parallel to v.
            let mut image = product(&rows, &found.vector);
            subtract(&mut image, found.share * total, &found.vector);
            prop_assert!(norm(&image) <= 1e-8 * total, "residual {}", norm(&image) / total);
            for row in &rows {
                let mut other = row.clone();
                normalize(&mut other);
                prop_assert!(along(&other) <= along(&found.vector) * (1.0 + 1e-9));
            }
        }
    }

    #[test]
    fn a_known_component_is_found_and_close_eigenvalues_are_separated() {
        // Orthogonal rows of lengths 3 and 2.999: the longer one is the component.
        let rows = vec![vec![0.0, 2.999, 0.0], vec![3.0, 0.0, 0.0]];
        let found = first_component(&rows).unwrap();
        assert!((found.vector[0].abs() - 1.0).abs() < 1e-9, "{:?}", found.vector);
        assert!((found.share - 9.0 / (9.0 + 2.999 * 2.999)).abs() < 1e-12);
        assert!(first_component(&[vec![0.0; 4], vec![0.0; 4]]).is_none());
        assert!(first_component(&[]).is_none());
    }

    #[test]
    fn many_rows_need_restarts_and_still_converge() {
        // Columns with slowly decreasing variance: the ratio of the first two eigenvalues is 0.98.
        let (rows, columns) = (400, 300);
        let mut state = 1u64;
        let mut noise = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) as f64 / (1u64 << 31) as f64 - 0.5
        };
        let rows: Vec<Vec<f64>> =
            (0..rows).map(|_| (0..columns).map(|j| noise() * 0.99f64.powi(j)).collect()).collect();
        let found = first_component(&rows).unwrap();
        let value = found.share * rows.iter().map(|row| dot(row, row)).sum::<f64>();
        let mut image = product(&rows, &found.vector);
        subtract(&mut image, value, &found.vector);
        assert!(norm(&image) <= 1e-9 * value, "residual {}", norm(&image) / value);
    }
}
