//! Attaches an autoencoder to a loaded model, after a test of its reconstructions (`check`).

mod check;
mod named;

pub use crate::sae::{SaeCheck, SaeRecord, Tried};
pub use named::check_saes;

use crate::error::{Error, Result};
use crate::model::LoadedModel;
use crate::sae::{LoadedSae, SaeRole};
use check::check;
use pellucid_engine::Site;

/// How to attach an autoencoder.
#[derive(Clone, Debug, Default)]
pub struct AttachOptions {
    /// The site that it reconstructs, if not the one that its files name.
    pub site: Option<String>,
    /// Attach it without testing its reconstructions.
    pub unchecked: bool,
}

impl LoadedModel {
    /// Attaches an autoencoder: its features become sites of the model. First it reconstructs the
    /// activations of a short text; an autoencoder that reconstructs them worse than their mean, or
    /// that fits another site far better, is refused. Returns the numbers of this test, or `None`
    /// if it was left out.
    pub fn attach_sae(&mut self, loaded: &LoadedSae, options: &AttachOptions) -> Result<Option<SaeCheck>> {
        let (read, write) = self.sites_of(loaded, options.site.as_deref())?;
        let LoadedSae { sae, info } = loaded;
        let attached = self.model.attach(sae.clone(), read, write)?;
        // Without a tokenizer there is no text to test it on.
        let check = match &self.tokenizer {
            Some(tokenizer) if !options.unchecked => Some(check(&self.model, tokenizer, sae, info, (read, write))?),
            _ => None,
        };
        if let Some(problem) = check.as_ref().and_then(SaeCheck::problem) {
            return Err(Error::usage(
                format!("{}: {problem}", info.path.display()),
                pellucid_engine::Remedy::Unchecked,
            ));
        }
        self.model = attached;
        self.sae_records.push(SaeRecord {
            path: info.path.display().to_string(),
            site: write,
            kind: info.kind,
            features: info.n_features,
            check: check.clone(),
        });
        Ok(check)
    }

    /// The sites that an autoencoder reads and reconstructs in this model.
    fn sites_of(&self, loaded: &LoadedSae, site: Option<&str>) -> Result<(Site, Site)> {
        let info = &loaded.info;
        if matches!(info.role, SaeRole::Crosscoder | SaeRole::CrossLayerTranscoder) {
            return Err(Error::usage(
                format!("{} is a {}, which cannot be attached", info.path.display(), info.role),
                "SAEs and transcoders of one layer can; encode and decode with this one directly",
            ));
        }
        let first = |sites: &[Site]| sites.first().copied();
        let known_write = first(&info.sites_out).or(first(&info.sites_in));
        let write = match (site, known_write) {
            (Some(text), _) => match self.model.find(text)?.sites[..] {
                [one] => one,
                _ => {
                    return Err(Error::usage(
                        format!("`{text}` names several sites"),
                        "an SAE is attached at one site, such as layers.5.resid_post",
                    ));
                }
            },
            (None, Some(known)) => known,
            (None, None) => {
                return Err(Error::usage(
                    format!("{} does not say at which site it belongs", info.path.display()),
                    pellucid_engine::Remedy::NameSaeSite,
                ));
            }
        };
        // A transcoder at another layer reads the input of that layer.
        let read = match (info.role, first(&info.sites_in)) {
            (SaeRole::Transcoder, Some(read)) => Site { layer: write.layer, ..read },
            _ => write,
        };
        Ok((read, write))
    }
}
