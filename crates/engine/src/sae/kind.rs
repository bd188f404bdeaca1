//! Kinds of autoencoders: from pre-activations to activations, and input normalization.

/// How activations follow from pre-activations `p = u W_enc + b_enc`.
#[derive(Clone, Debug, PartialEq)]
pub enum SaeKind {
    /// `relu(p)`
    Relu,
    /// `relu(p)` where `p > threshold`, else 0.
    JumpRelu {
        /// One threshold per feature.
        threshold: Vec<f32>,
    },
    /// The `k` largest pre-activations of each token, then ReLU.
    TopK {
        /// Maximum number of active features of a token.
        k: usize,
        /// Select by `p · norm(W_dec[j])` instead of `p`
        /// (`rescale_acts_by_decoder_norm` of SAELens); activations are in units of `p`.
        by_decoder_norm: Option<Vec<f32>>,
    },
    /// The `k` pre-activations of largest magnitude of each token, with their sign.
    AbsTopK {
        /// Number of active features of a token.
        k: usize,
    },
    /// The largest pre-activation of each of `k` equal groups of features, then ReLU.
    GroupMax {
        /// Number of groups.
        k: usize,
    },
    /// `relu(u W_enc · exp(r_mag) + b_mag)` where `u W_enc + b_gate > 0`, else 0.
    Gated {
        /// `b_gate`
        gate_bias: Vec<f32>,
        /// `b_mag`
        magnitude_bias: Vec<f32>,
        /// `r_mag`
        log_scale: Vec<f32>,
    },
}

impl SaeKind {
    /// Maximum number of active features of a token, if the kind has one.
    pub fn max_active(&self) -> Option<usize> {
        match self {
            SaeKind::TopK { k, .. } | SaeKind::AbsTopK { k } | SaeKind::GroupMax { k } => Some(*k),
            SaeKind::Relu | SaeKind::JumpRelu { .. } | SaeKind::Gated { .. } => None,
        }
    }

    /// The parameters that have one element per feature.
    pub(super) fn vectors(&self) -> impl Iterator<Item = &Vec<f32>> {
        let vectors = match self {
            SaeKind::JumpRelu { threshold } => vec![threshold],
            SaeKind::TopK { by_decoder_norm: Some(norms), .. } => vec![norms],
            SaeKind::Gated { gate_bias, magnitude_bias, log_scale } => vec![gate_bias, magnitude_bias, log_scale],
            SaeKind::Relu | SaeKind::TopK { .. } | SaeKind::AbsTopK { .. } | SaeKind::GroupMax { .. } => vec![],
        };
        vectors.into_iter()
    }
}

/// How the inputs of an autoencoder are scaled (`normalize_activations` of SAELens).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum InputNormalization {
    /// Not at all. `expected_average_only_in` becomes this when its factor is folded into the
    /// weights.
    #[default]
    None,
    /// Each token is scaled to norm `sqrt(d_in)`; its reconstruction is scaled back. A token of
    /// zeros stays as it is.
    UnitNorm,
    /// Each token loses its mean and is divided by its unbiased standard deviation plus 1e-5; its
    /// reconstruction is multiplied by the standard deviation and gets the mean back.
    LayerNorm,
    /// All tokens are multiplied by a constant; reconstructions are divided by it.
    Constant(f32),
}
