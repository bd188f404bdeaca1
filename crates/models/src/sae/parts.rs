//! From the stored parts of an autoencoder to its runtime type.

use std::path::PathBuf;
use std::sync::Arc;

use pellucid_engine::check_memory;
use pellucid_engine::sae::{InputNormalization, Sae, SaeKind};
use pellucid_kernels::Pool;
use pellucid_kernels::memory::SlabReservation;

use super::LoadedSae;
use super::file::WeightFile;
use super::info::{Facts, SaeInfo, SaeRole};
use super::layout::SaeLayout;
use super::view::MatrixView;
use crate::{Error, Result};

/// The stored parts, each in the orientation of [`Sae`].
pub(super) struct Parts {
    pub kind: SaeKind,
    pub normalization: InputNormalization,
    pub subtract_decoder_bias: bool,
    /// `[n_features, d_in]`
    pub encoder: MatrixView,
    pub encoder_bias: Vec<f32>,
    /// `[n_features, d_out]`, one for each site written.
    pub decoders: Vec<MatrixView>,
    pub decoder_biases: Vec<Vec<f32>>,
    /// `[d_out, d_in]`
    pub skip: Option<MatrixView>,
    /// Scale features so that decoder rows have norm 1, as the format's own code does.
    pub fold_norms: bool,
}

impl Parts {
    /// Parts of an autoencoder with one decoder, plain inputs and a ReLU.
    pub fn relu(
        encoder: MatrixView,
        encoder_bias: Vec<f32>,
        decoder: MatrixView,
        decoder_bias: Vec<f32>,
        subtract_decoder_bias: bool,
    ) -> Parts {
        let several = Parts::with_decoders(encoder, encoder_bias, vec![decoder], vec![decoder_bias]);
        Parts { subtract_decoder_bias, ..several }
    }

    /// Parts of an autoencoder with several decoders, plain inputs and a ReLU.
    pub fn with_decoders(
        encoder: MatrixView,
        encoder_bias: Vec<f32>,
        decoders: Vec<MatrixView>,
        decoder_biases: Vec<Vec<f32>>,
    ) -> Parts {
        Parts {
            kind: SaeKind::Relu,
            normalization: InputNormalization::None,
            subtract_decoder_bias: false,
            encoder,
            encoder_bias,
            decoders,
            decoder_biases,
            skip: None,
            fold_norms: false,
        }
    }

    /// Checks all values and builds the autoencoder. `files` are the files that the parts come
    /// from, the first of which holds encoder and decoder in most formats.
    pub fn load(self, path: PathBuf, layout: SaeLayout, facts: Facts, files: &[&WeightFile]) -> Result<LoadedSae> {
        let pool = &Pool::global();
        let file = files.first().map(|file| file.path.clone()).unwrap_or_else(|| path.clone());
        let bad =
            |what: String| Error::invalid(&file, what, "download the file again; a trained autoencoder is finite");
        let (n, d_in) = (self.encoder.rows, self.encoder.cols);
        if n == 0 || d_in == 0 || self.decoders.iter().any(|decoder| decoder.cols == 0) {
            return Err(bad(format!("the encoder has shape [{n}, {d_in}]: there is nothing to compute")));
        }
        let matrices = [&self.encoder].into_iter().chain(&self.decoders).chain(&self.skip);
        // Packed as f32 at most; a decoder of f32 may stay in the file.
        let needed = matrices.map(|view| view.rows.saturating_mul(view.cols).saturating_mul(4));
        check_memory(needed.fold(0, usize::saturating_add), || format!("{}: loading the autoencoder", file.display()))?;
        for (name, view) in [("encoder", &self.encoder)].into_iter().chain(self.decoders.iter().map(|d| ("decoder", d)))
        {
            if let Some(feature) = view.find_non_finite(pool) {
                return Err(bad(format!("the {name} of feature {feature} has a NaN or infinity")));
            }
        }
        if self.skip.as_ref().is_some_and(|skip| skip.find_non_finite(pool).is_some()) {
            return Err(bad("the skip path has a NaN or infinity".into()));
        }
        self.check_k(n).map_err(bad)?;
        // The check has read the whole file.
        self.decoders.iter().for_each(MatrixView::release_pages);
        let slab = SlabReservation::new(self.encoder.packed_bytes());
        let encoder = self.encoder.pack(pool);
        drop(slab);
        let mut sae = Sae {
            kind: self.kind,
            normalization: self.normalization,
            undo_normalization: true,
            subtract_decoder_bias: self.subtract_decoder_bias,
            encoder,
            encoder_bias: self.encoder_bias,
            decoders: self.decoders.into_iter().map(|decoder| decoder.into_rows(pool)).collect(),
            decoder_biases: self.decoder_biases,
            skip: self.skip.map(|skip| skip.pack(pool)),
        };
        if self.fold_norms {
            sae = sae.scale_to_unit_decoder_rows(pool)?;
        }
        let files = files.iter().map(|file| file.path.clone()).collect();
        let mut info = SaeInfo::new(path, layout, &sae, facts, files);
        info.folded_decoder_norms = self.fold_norms;
        // The output of a transcoder is at another scale than its input.
        sae.undo_normalization = info.role == SaeRole::Autoencoder;
        Ok(LoadedSae { sae: Arc::new(sae), info })
    }

    fn check_k(&self, n: usize) -> std::result::Result<(), String> {
        match self.kind {
            SaeKind::TopK { k, .. } | SaeKind::AbsTopK { k } if k == 0 || k > n => {
                Err(format!("k is {k}, but there are {n} features"))
            }
            SaeKind::GroupMax { k } if k == 0 || !n.is_multiple_of(k) => {
                Err(format!("{n} features cannot be split into {k} equal groups"))
            }
            _ => Ok(()),
        }
    }
}
