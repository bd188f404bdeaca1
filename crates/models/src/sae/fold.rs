//! Exact rescaling of an autoencoder's inputs, which leaves its reconstructions unchanged.

use pellucid_engine::sae::{InputNormalization, Sae};
use pellucid_kernels::{DType, Matrix, Pool};

use super::view::rows_f32;
use crate::{Error, Result};

/// Writes a row times `scale`.
fn scale_row(matrix: &Matrix, row: usize, out: &mut [f32], scale: f32) {
    matrix.row(row, out);
    out.iter_mut().for_each(|x| *x *= scale);
}

/// Folds a constant input scale into the weights, so that inputs are used as they are:
/// `W_enc *= c`, `W_dec /= c`, `b_dec /= c` (`fold_activation_norm_scaling_factor` of SAELens).
///
/// `c` is `sqrt(d_in)` divided by the mean norm of the activations in training
/// (`expected_average_only_in`). Activations are those of the scaled inputs; thresholds do not
/// change, because they compare pre-activations of the scaled inputs. Weights become f32.
pub fn fold_input_scale(mut sae: Sae, c: f32) -> Result<Sae> {
    if !(c.is_finite() && c > 0.0) {
        return Err(Error::usage(format!("the input scale is {c}"), "give a positive number"));
    }
    if sae.normalization != InputNormalization::None {
        return Err(Error::unsupported(
            "the autoencoder already normalizes its inputs, so a constant scale cannot be folded into it",
            "use it as it is",
        ));
    }
    let pool = &Pool::global();
    let (n, d_in, d_out) = (sae.n_features(), sae.d_in(), sae.d_out());
    let encoder = Matrix::pack(pool, n, d_in, DType::F32, &|row, out| scale_row(&sae.encoder, row, out, c));
    let decoders: Vec<Matrix> = sae
        .decoders
        .iter()
        .map(|decoder| rows_f32(pool, n, d_out, &|row, out| scale_row(decoder, row, out, 1.0 / c)))
        .collect();
    (sae.encoder, sae.decoders) = (encoder, decoders);
    sae.decoder_biases.iter_mut().flatten().for_each(|x| *x /= c);
    Ok(sae)
}
