//! Exact rescaling of features to decoder rows of norm 1.

use super::{Sae, SaeKind};
use crate::{Error, Result};
use pellucid_kernels::encoding::Encoding;
use pellucid_kernels::matrix::RowBytes;
use pellucid_kernels::{DType, Matrix, Pool};

impl Sae {
    /// Returns the autoencoder with its features rescaled so that decoder rows have norm 1
    /// (`fold_W_dec_norm` of SAELens): activations are multiplied by the former norms, and
    /// reconstructions stay equal up to rounding. The new weights are f32.
    ///
    /// Fails for kinds that would select other features, and for several decoders. A row of zeros
    /// stays as it is.
    pub fn fold_decoder_norms(&self, pool: &Pool) -> Result<Sae> {
        if matches!(
            self.kind,
            SaeKind::TopK { by_decoder_norm: None, .. } | SaeKind::AbsTopK { .. } | SaeKind::GroupMax { .. }
        ) {
            return refuse("it ranks features by their pre-activations, and would rank them differently");
        }
        self.scale_to_unit_decoder_rows(pool)
    }

    /// [`fold_decoder_norms`](Self::fold_decoder_norms) for any kind. A kind that ranks features
    /// then ranks them by the new pre-activations.
    pub fn scale_to_unit_decoder_rows(&self, pool: &Pool) -> Result<Sae> {
        let [decoder] = &self.decoders[..] else {
            return refuse("each feature has one row in each of several decoders");
        };
        let norms = row_norms(decoder);
        let scaled = |vector: &[f32]| vector.iter().zip(&norms).map(|(x, norm)| x * norm).collect::<Vec<f32>>();
        let kind = match &self.kind {
            SaeKind::JumpRelu { threshold } => SaeKind::JumpRelu { threshold: scaled(threshold) },
            SaeKind::Gated { gate_bias, magnitude_bias, log_scale } => SaeKind::Gated {
                gate_bias: scaled(gate_bias),
                magnitude_bias: scaled(magnitude_bias),
                log_scale: log_scale.clone(),
            },
            // Selection by `p · norm` is selection by the new pre-activations.
            SaeKind::TopK { k, .. } => SaeKind::TopK { k: *k, by_decoder_norm: None },
            other => other.clone(),
        };
        let scale_row = |matrix: &Matrix, row: usize, factor: f32, out: &mut [f32]| {
            matrix.row(row, out);
            out.iter_mut().for_each(|x| *x *= factor);
        };
        let encoder = Matrix::pack(pool, self.n_features(), self.d_in(), DType::F32, &|row, out| {
            scale_row(&self.encoder, row, norms[row], out);
        });
        Ok(Sae {
            kind,
            normalization: self.normalization,
            undo_normalization: self.undo_normalization,
            subtract_decoder_bias: self.subtract_decoder_bias,
            encoder,
            encoder_bias: scaled(&self.encoder_bias),
            decoders: vec![in_place_f32(pool, self.n_features(), self.d_out(), &|row, out| {
                scale_row(decoder, row, 1.0 / norms[row], out);
            })],
            decoder_biases: self.decoder_biases.clone(),
            skip: self
                .skip
                .as_ref()
                .map(|skip| Matrix::pack(pool, skip.rows(), skip.cols(), DType::F32, &|row, out| skip.row(row, out))),
        })
    }
}

fn refuse(problem: &str) -> Result<Sae> {
    let problem = format!("decoder norms cannot be folded: {problem}");
    Err(Error::input(problem, "use the autoencoder as it is; activations differ by the norms only"))
}

/// Norm of each row; 1 for a row of zeros.
fn row_norms(matrix: &Matrix) -> Vec<f32> {
    let mut row = vec![0.0; matrix.cols()];
    let norms = (0..matrix.rows()).map(|index| {
        matrix.row(index, &mut row);
        let norm = row.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt();
        if norm == 0.0 { 1.0 } else { norm as f32 }
    });
    norms.collect()
}

/// Rows of f32 as little-endian bytes.
struct OwnedRows {
    bytes: Vec<u8>,
    row_bytes: usize,
}

impl RowBytes for OwnedRows {
    fn row(&self, row: usize) -> &[u8] {
        &self.bytes[row * self.row_bytes..][..self.row_bytes]
    }
}

/// Stores a matrix row by row, not in panels, because a decoder is read by rows.
pub(super) fn in_place_f32(pool: &Pool, rows: usize, cols: usize, fill: &dyn Fn(usize, &mut [f32])) -> Matrix {
    let mut row = vec![0.0; cols];
    let mut bytes = Vec::with_capacity(rows * cols * 4);
    for index in 0..rows {
        fill(index, &mut row);
        bytes.extend(row.iter().flat_map(|x| x.to_le_bytes()));
    }
    Matrix::encoded(pool, rows, cols, Encoding::F32, Box::new(OwnedRows { bytes, row_bytes: cols * 4 }))
}
