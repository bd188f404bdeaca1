//! Exact rescalings of an autoencoder's weights, which leave its reconstructions unchanged.

use pellucid_engine::sae::{InputNormalization, Sae, SaeKind};
use pellucid_kernels::{DType, Matrix, Pool};

use super::view::rows_f32;
use crate::{Error, Result};

/// Scales features so that every decoder row has norm 1 (`fold_W_dec_norm` of SAELens).
///
/// Reconstructions stay the same; activations, and thresholds with them, are multiplied by the
/// norms. Weights become f32. A row of zeros keeps scale 1. Fails if there are several decoders,
/// and for kinds that select features by comparing their pre-activations (`topk`, `abstopk`,
/// `groupmax`), because the scale would change the selection. A TopK that selects by
/// `by_decoder_norm` is folded: that is the same selection.
pub fn fold_decoder_norms(sae: Sae) -> Result<Sae> {
    match &sae.kind {
        SaeKind::TopK { by_decoder_norm: None, .. } | SaeKind::AbsTopK { .. } | SaeKind::GroupMax { .. } => {
            Err(Error::unsupported(
                "decoder norms cannot be folded into an autoencoder that selects features by comparing them: the scale \
                 would change the selection",
                "use it without folding",
            ))
        }
        _ => fold_norms(sae),
    }
}

/// [`fold_decoder_norms`] for files whose own rule selects by `p · norm(W_dec[j])`, whatever the
/// kind.
pub(super) fn fold_norms(mut sae: Sae) -> Result<Sae> {
    let [decoder] = &sae.decoders[..] else {
        return Err(Error::unsupported(
            format!("decoder norms cannot be folded: the autoencoder has {} decoders", sae.decoders.len()),
            "use it without folding",
        ));
    };
    let norms = decoder_norms(decoder);
    let pool = &Pool::global();
    let (n, d_in, d_out) = (sae.n_features(), sae.d_in(), sae.d_out());
    let encoder = Matrix::pack(pool, n, d_in, DType::F32, &|row, out| scale_row(&sae.encoder, row, out, norms[row]));
    let decoder = rows_f32(pool, n, d_out, &|row, out| scale_row(decoder, row, out, 1.0 / norms[row]));
    let scale = |values: &mut [f32]| values.iter_mut().zip(&norms).for_each(|(x, norm)| *x *= norm);
    scale(&mut sae.encoder_bias);
    match &mut sae.kind {
        SaeKind::JumpRelu { threshold } => scale(threshold),
        SaeKind::TopK { by_decoder_norm, .. } => *by_decoder_norm = None,
        SaeKind::Gated { gate_bias, magnitude_bias, .. } => {
            scale(gate_bias);
            scale(magnitude_bias);
        }
        SaeKind::Relu | SaeKind::AbsTopK { .. } | SaeKind::GroupMax { .. } => {}
    }
    (sae.encoder, sae.decoders) = (encoder, vec![decoder]);
    Ok(sae)
}

/// Writes a row times `scale`.
fn scale_row(matrix: &Matrix, row: usize, out: &mut [f32], scale: f32) {
    matrix.row(row, out);
    out.iter_mut().for_each(|x| *x *= scale);
}

/// Norm of every row; 1 for a row of zeros.
fn decoder_norms(decoder: &Matrix) -> Vec<f32> {
    let mut values = vec![0.0; decoder.cols()];
    let norm = |row: usize| {
        decoder.row(row, &mut values);
        let square: f64 = values.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
        if square == 0.0 { 1.0 } else { square.sqrt() as f32 }
    };
    (0..decoder.rows()).map(norm).collect()
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
