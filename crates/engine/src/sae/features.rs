//! Features of one layer of a cross-layer transcoder during a pass, for the decoders of later
//! layers.

use super::ActiveFeatures;

/// Active features of the tokens of a pass; none for tokens for which the layer has not run.
#[derive(Clone, Debug, Default)]
pub(crate) struct LayerFeatures {
    /// After edits.
    pub active: Vec<ActiveFeatures>,
    /// Before edits, if a tap edits them.
    pub unedited: Option<Vec<ActiveFeatures>>,
}

impl LayerFeatures {
    /// Features of a pass of `tokens` tokens.
    pub fn new(tokens: usize, edited: bool) -> LayerFeatures {
        let none = || vec![ActiveFeatures::default(); tokens];
        LayerFeatures { active: none(), unedited: edited.then(none) }
    }

    /// The features before edits.
    pub fn unedited(&self) -> &[ActiveFeatures] {
        self.unedited.as_ref().unwrap_or(&self.active)
    }
}

/// The active features in dense activations `[tokens, n_features]`.
pub(crate) fn features_of_dense(acts: &[f32], n_features: usize) -> Vec<ActiveFeatures> {
    let of_token = |acts: &[f32]| {
        let mut active = ActiveFeatures::default();
        active.set_from_dense(acts);
        active
    };
    acts.chunks_exact(n_features).map(of_token).collect()
}
