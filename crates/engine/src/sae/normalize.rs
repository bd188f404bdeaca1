//! Input normalization: per-token scales, its inverse on reconstructions, their backward passes.

use super::{InputNormalization, Sae};
use pellucid_kernels::elementwise::scale;
use pellucid_kernels::sparse::add_scaled;

/// Added to the standard deviation by [`InputNormalization::LayerNorm`].
const EPS: f32 = 1e-5;

/// Mean and scale that normalization removed from each token; needed to scale reconstructions back
/// and for gradients. Empty if the normalization does not depend on the token.
#[derive(Clone, Debug, Default)]
pub struct TokenScales {
    /// Mean of each token; 0 for [`InputNormalization::UnitNorm`].
    mean: Vec<f32>,
    /// Factor of each reconstruction: the standard deviation, or `norm(x) / sqrt(d_in)`.
    scale: Vec<f32>,
}

impl TokenScales {
    /// Appends the scales of further tokens.
    pub(super) fn append(&mut self, mut other: TokenScales) {
        self.mean.append(&mut other.mean);
        self.scale.append(&mut other.scale);
    }

    fn of(&self, token: usize) -> (f32, f32) {
        (self.mean[token], self.scale[token])
    }
}

impl Sae {
    /// Computes the encoder's input `u [tokens, d_in]`: normalized tokens, less the decoder bias if
    /// the autoencoder subtracts it.
    pub(super) fn normalize(&self, x: &[f32], u: &mut [f32]) -> TokenScales {
        let mut scales = TokenScales::default();
        u.copy_from_slice(x);
        for u in u.chunks_exact_mut(self.d_in()) {
            match self.normalization {
                InputNormalization::None => {}
                InputNormalization::Constant(factor) => scale(u, factor),
                InputNormalization::UnitNorm => {
                    let norm = u.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt();
                    let size = if norm == 0.0 { 1.0 } else { norm / (u.len() as f64).sqrt() };
                    scale(u, (1.0 / size) as f32);
                    scales.mean.push(0.0);
                    scales.scale.push(size as f32);
                }
                InputNormalization::LayerNorm => {
                    let mean = (u.iter().map(|&x| f64::from(x)).sum::<f64>() / u.len() as f64) as f32;
                    u.iter_mut().for_each(|x| *x -= mean);
                    let squares = u.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>();
                    let deviation = (squares / (u.len() - 1) as f64).sqrt() as f32;
                    u.iter_mut().for_each(|x| *x /= deviation + EPS);
                    scales.mean.push(mean);
                    scales.scale.push(deviation);
                }
            }
            if self.subtract_decoder_bias {
                u.iter_mut().zip(&self.decoder_biases[0]).for_each(|(x, b)| *x -= b);
            }
        }
        scales
    }

    /// Returns the scales that encoding `x [tokens, d_in]` removes from each token.
    pub fn token_scales(&self, x: &[f32]) -> TokenScales {
        self.normalize(x, &mut vec![0.0; x.len()])
    }

    /// Scales the reconstruction of token `token` back, in place.
    pub(super) fn undo_token(&self, token: usize, scales: &TokenScales, recon: &mut [f32]) {
        if !self.undo_normalization {
            return;
        }
        match self.normalization {
            InputNormalization::None => {}
            InputNormalization::Constant(factor) => recon.iter_mut().for_each(|y| *y /= factor),
            InputNormalization::UnitNorm | InputNormalization::LayerNorm => {
                let (mean, size) = scales.of(token);
                recon.iter_mut().for_each(|y| *y = *y * size + mean);
            }
        }
    }

    /// Factor by which [`undo_token`](Self::undo_token) multiplies, the derivative of its result.
    pub(super) fn undo_factor(&self, token: usize, scales: &TokenScales) -> f32 {
        match self.normalization {
            _ if !self.undo_normalization => 1.0,
            InputNormalization::None => 1.0,
            InputNormalization::Constant(factor) => 1.0 / factor,
            InputNormalization::UnitNorm | InputNormalization::LayerNorm => scales.of(token).1,
        }
    }

    /// Whether reconstructions follow from the activations alone, without the inputs.
    pub fn decodes_alone(&self) -> bool {
        !self.undoes_token_scales() && self.skip.is_none()
    }

    /// Whether reconstructions depend on the scales of their token.
    pub(crate) fn undoes_token_scales(&self) -> bool {
        self.undo_normalization
            && matches!(self.normalization, InputNormalization::UnitNorm | InputNormalization::LayerNorm)
    }

    /// Backward pass of [`normalize`](Self::normalize) for one token: `d_x += d_u · du/dx`.
    pub(super) fn normalize_token_backward(
        &self,
        token: usize,
        x: &[f32],
        scales: &TokenScales,
        d_u: &[f32],
        d_x: &mut [f32],
    ) {
        let count = x.len() as f64;
        match self.normalization {
            InputNormalization::None => add_scaled(1.0, d_u, d_x),
            InputNormalization::Constant(factor) => add_scaled(factor, d_u, d_x),
            InputNormalization::UnitNorm => {
                let size = f64::from(scales.of(token).1);
                // The component of the gradient along `x` only changes its norm.
                let along = centered_product(x, 0.0, d_u) / (size * size * count);
                d_x.iter_mut().zip(d_u).zip(x).for_each(|((d_x, &d_u), &x)| {
                    *d_x += ((f64::from(d_u) - f64::from(x) * along) / size) as f32;
                });
            }
            InputNormalization::LayerNorm => {
                let (mean, deviation) = scales.of(token);
                let size = f64::from(deviation + EPS);
                let d_mean = d_u.iter().map(|&d| f64::from(d)).sum::<f64>() / count;
                // All elements of a token with deviation 0 equal its mean.
                let variance = f64::from(deviation) * (count - 1.0);
                let along = if variance == 0.0 { 0.0 } else { centered_product(x, mean, d_u) / (size * variance) };
                d_x.iter_mut().zip(d_u).zip(x).for_each(|((d_x, &d_u), &x)| {
                    *d_x += ((f64::from(d_u) - d_mean - f64::from(x - mean) * along) / size) as f32;
                });
            }
        }
    }

    /// Backward pass of [`undo_token`](Self::undo_token) through the mean and the scale of `x`:
    /// `recon = y · scale + mean`, and `d_scale` is the product of `d_recon` and `y`.
    pub(super) fn undo_token_backward(
        &self,
        token: usize,
        x: &[f32],
        scales: &TokenScales,
        d_recon: &[f32],
        d_scale: f32,
        d_x: &mut [f32],
    ) {
        let (mean, size) = scales.of(token);
        let (count, is_layer_norm) = (x.len() as f32, self.normalization == InputNormalization::LayerNorm);
        // scale² = Σ (x - mean)² / freedom, so ∂scale/∂x = (x - mean) / (freedom · scale).
        let freedom = if is_layer_norm { count - 1.0 } else { count };
        let along = if size == 0.0 { 0.0 } else { d_scale / (freedom * size) };
        let d_mean = if is_layer_norm { d_recon.iter().sum::<f32>() / count } else { 0.0 };
        d_x.iter_mut().zip(x).for_each(|(d_x, &x)| *d_x += (x - mean) * along + d_mean);
    }
}

/// `Σ (x - mean) · gradient`
fn centered_product(x: &[f32], mean: f32, gradient: &[f32]) -> f64 {
    x.iter().zip(gradient).map(|(&x, &d)| f64::from(x - mean) * f64::from(d)).sum()
}
