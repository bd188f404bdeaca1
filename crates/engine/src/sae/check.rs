//! Consistency of the parts of an autoencoder.

use super::{InputNormalization, Sae, SaeKind};
use crate::{Error, Result};
use pellucid_kernels::Matrix;

impl Sae {
    /// Checks that the shapes of all parts agree, that biases, thresholds and factors are finite,
    /// and that `k` suits the number of features. All other functions assume this.
    ///
    /// Weights are not read: their reader checks them while it packs them.
    pub fn check(&self) -> Result<()> {
        let (n, d_in) = (self.n_features(), self.d_in());
        if n == 0 || d_in == 0 {
            return problem(format!("its encoder is empty: {n} features of width {d_in}"));
        }
        vector("encoder bias", &self.encoder_bias, n)?;
        self.check_decoders()?;
        self.check_kind()?;
        match self.normalization {
            InputNormalization::Constant(factor) if !(factor.is_finite() && factor != 0.0) => {
                problem(format!("its inputs are scaled by {factor}"))
            }
            InputNormalization::LayerNorm if d_in == 1 => {
                problem("layer normalization of inputs needs a width of at least 2".into())
            }
            _ => Ok(()),
        }
    }

    fn check_decoders(&self) -> Result<()> {
        let n = self.n_features();
        let Some(first) = self.decoders.first() else {
            return problem("it has no decoder".into());
        };
        let d_out = first.cols();
        if self.decoder_biases.len() != self.decoders.len() {
            let (decoders, biases) = (self.decoders.len(), self.decoder_biases.len());
            return problem(format!("it has {decoders} decoders and {biases} decoder biases"));
        }
        for (index, (decoder, bias)) in self.decoders.iter().zip(&self.decoder_biases).enumerate() {
            matrix(&format!("decoder {index}"), decoder, n, d_out)?;
            vector(&format!("bias of decoder {index}"), bias, d_out)?;
        }
        if self.subtract_decoder_bias && d_out != self.d_in() {
            let problem_of = format!("its decoder bias of width {d_out} cannot be subtracted from inputs of width");
            return problem(format!("{problem_of} {}", self.d_in()));
        }
        match &self.skip {
            Some(skip) => matrix("skip path", skip, d_out, self.d_in()),
            None => Ok(()),
        }
    }

    fn check_kind(&self) -> Result<()> {
        let n = self.n_features();
        match &self.kind {
            SaeKind::Relu => Ok(()),
            SaeKind::JumpRelu { threshold } => vector("threshold", threshold, n),
            SaeKind::TopK { k, by_decoder_norm } => {
                count("k", *k, n)?;
                by_decoder_norm.as_ref().map_or(Ok(()), |norms| vector("decoder norms", norms, n))
            }
            SaeKind::AbsTopK { k } => count("k", *k, n),
            SaeKind::GroupMax { k } => {
                count("number of groups", *k, n)?;
                if n.is_multiple_of(*k) {
                    return Ok(());
                }
                problem(format!("its {n} features cannot be split into {k} equal groups"))
            }
            SaeKind::Gated { gate_bias, magnitude_bias, log_scale } => {
                vector("gate bias", gate_bias, n)?;
                vector("magnitude bias", magnitude_bias, n)?;
                vector("log scale (r_mag)", log_scale, n)
            }
        }
    }
}

fn problem<T>(problem: String) -> Result<T> {
    let remedy = "check that its configuration and its weights belong together, or download it again";
    Err(Error::input(format!("invalid sparse autoencoder: {problem}"), remedy))
}

fn matrix(name: &str, matrix: &Matrix, rows: usize, cols: usize) -> Result<()> {
    if (matrix.rows(), matrix.cols()) == (rows, cols) {
        return Ok(());
    }
    problem(format!("its {name} is [{}, {}] instead of [{rows}, {cols}]", matrix.rows(), matrix.cols()))
}

fn vector(name: &str, vector: &[f32], len: usize) -> Result<()> {
    if vector.len() != len {
        return problem(format!("its {name} has {} elements instead of {len}", vector.len()));
    }
    match vector.iter().position(|x| !x.is_finite()) {
        Some(index) => problem(format!("its {name} is {} at index {index}", vector[index])),
        None => Ok(()),
    }
}

fn count(name: &str, count: usize, n: usize) -> Result<()> {
    if (1..=n).contains(&count) {
        return Ok(());
    }
    problem(format!("its {name} is {count}, with {n} features"))
}
