//! Description of a loaded autoencoder: what it is, where it belongs, and what to know before
//! using it.

use std::fmt;
use std::path::PathBuf;

use pellucid_engine::Site;
use pellucid_engine::sae::{InputNormalization, Sae, SaeKind};
use serde::{Serialize, Serializer};

use super::layout::SaeLayout;

/// Role of an autoencoder: the sites that it reads and writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SaeRole {
    /// Reconstructs the activations that it reads.
    Autoencoder,
    /// Reads the input of a sublayer and reconstructs its output.
    Transcoder,
    /// One layer of a cross-layer transcoder: writes its own and all later layers.
    CrossLayerTranscoder,
    /// Reads or writes the same activation at several layers.
    Crosscoder,
}

impl fmt::Display for SaeRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SaeRole::Autoencoder => "sparse autoencoder",
            SaeRole::Transcoder => "transcoder",
            SaeRole::CrossLayerTranscoder => "cross-layer transcoder (one layer)",
            SaeRole::Crosscoder => "crosscoder",
        })
    }
}

/// Description of a loaded autoencoder.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SaeInfo {
    /// The directory or file that was given or selected.
    pub path: PathBuf,
    /// Storage layout.
    pub layout: SaeLayout,
    /// Its role.
    pub role: SaeRole,
    /// From pre-activations to activations: `relu`, `jumprelu`, `topk`, `abstopk`, `groupmax` or
    /// `gated`.
    pub kind: &'static str,
    /// Name of the kind in its settings, such as `BatchTopKSAE` or `matryoshka_batchtopk`.
    pub declared_kind: Option<String>,
    /// Width of the activations that it reads; of all layers together for a crosscoder that reads
    /// several.
    pub d_in: usize,
    /// Width of the activations that it writes, per layer.
    pub d_out: usize,
    /// Number of features.
    pub n_features: usize,
    /// Stored dtype of the encoder.
    pub dtype: String,
    /// Active features of a token, for kinds that select a fixed number.
    pub k: Option<usize>,
    /// Smallest and largest threshold of a JumpReLU.
    pub threshold: Option<[f32; 2]>,
    /// Input normalization in words; `None` if inputs are used as they are.
    pub normalization: Option<String>,
    /// Whether the decoder bias is subtracted from the input before encoding.
    pub subtracts_decoder_bias: bool,
    /// Whether a linear skip path is added to the reconstruction.
    pub skip: bool,
    /// Whether the decoder norms are folded into the features, so that decoder rows have norm 1.
    pub folded_decoder_norms: bool,
    /// Hook points that it reads, as its settings name them.
    pub hooks_in: Vec<String>,
    /// Hook points that it writes, as its settings name them; empty if it writes what it reads.
    pub hooks_out: Vec<String>,
    /// Sites that it reads; empty if unknown.
    #[serde(serialize_with = "site_names")]
    pub sites_in: Vec<Site>,
    /// Sites that it writes, one for each decoder; empty if unknown.
    #[serde(serialize_with = "site_names")]
    pub sites_out: Vec<Site>,
    /// Model that it was trained on.
    pub base_model: Option<String>,
    /// Whether texts started with a BOS token in training.
    pub prepend_bos: Option<bool>,
    /// Number of tokens of a text in training.
    pub context_size: Option<usize>,
    /// Processing of the model's weights that the activations need, in TransformerLens' terms.
    pub weight_processing: Vec<String>,
    /// Mean number of active features, as its settings or names declare it.
    pub declared_l0: Option<f64>,
    /// Facts to know before using it.
    pub notes: Vec<String>,
    /// The weight files.
    pub files: Vec<PathBuf>,
}

fn site_names<S: Serializer>(sites: &[Site], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(sites.iter().map(|site| site.to_string()))
}

/// The facts of a format's settings; the rest of [`SaeInfo`] follows from the weights.
#[derive(Default)]
pub(super) struct Facts {
    pub declared_kind: Option<String>,
    pub role: Option<SaeRole>,
    pub hooks_in: Vec<String>,
    pub hooks_out: Vec<String>,
    pub sites_in: Vec<Site>,
    pub sites_out: Vec<Site>,
    pub base_model: Option<String>,
    pub prepend_bos: Option<bool>,
    pub context_size: Option<usize>,
    pub weight_processing: Vec<String>,
    pub declared_l0: Option<f64>,
    pub notes: Vec<String>,
}

impl SaeInfo {
    pub(super) fn new(path: PathBuf, layout: SaeLayout, sae: &Sae, facts: Facts, files: Vec<PathBuf>) -> SaeInfo {
        let Facts { declared_kind, role, hooks_in, hooks_out, sites_in, sites_out, .. } = facts;
        let (kind, k, threshold) = match &sae.kind {
            SaeKind::Relu => ("relu", None, None),
            SaeKind::JumpRelu { threshold } => {
                let bounds = threshold
                    .iter()
                    .fold([f32::INFINITY, f32::NEG_INFINITY], |[low, high], &x| [low.min(x), high.max(x)]);
                ("jumprelu", None, Some(bounds))
            }
            SaeKind::TopK { k, .. } => ("topk", Some(*k), None),
            SaeKind::AbsTopK { k } => ("abstopk", Some(*k), None),
            SaeKind::GroupMax { k } => ("groupmax", Some(*k), None),
            SaeKind::Gated { .. } => ("gated", None, None),
        };
        let normalization = match sae.normalization {
            InputNormalization::None => None,
            InputNormalization::UnitNorm => Some("each token scaled to norm sqrt(d_in), scaled back".into()),
            InputNormalization::LayerNorm => {
                Some("each token without its mean, divided by its standard deviation".into())
            }
            InputNormalization::Constant(c) => Some(format!("times {c}, scaled back")),
        };
        SaeInfo {
            path,
            layout,
            role: role.unwrap_or(SaeRole::Autoencoder),
            kind,
            declared_kind,
            d_in: sae.d_in(),
            d_out: sae.d_out(),
            n_features: sae.n_features(),
            dtype: sae.encoder.format(),
            k,
            threshold,
            normalization,
            subtracts_decoder_bias: sae.subtract_decoder_bias,
            skip: sae.skip.is_some(),
            folded_decoder_norms: false,
            // An autoencoder writes what it reads.
            sites_out: if sites_out.is_empty() && hooks_out.is_empty() { sites_in.clone() } else { sites_out },
            hooks_in,
            hooks_out,
            sites_in,
            base_model: facts.base_model,
            prepend_bos: facts.prepend_bos,
            context_size: facts.context_size,
            weight_processing: facts.weight_processing,
            declared_l0: facts.declared_l0.or(k.map(|k| k as f64)),
            notes: facts.notes,
            files,
        }
    }
}
