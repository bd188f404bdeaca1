//! Attaches an autoencoder to a loaded model, after a test of its reconstructions (`check`); all
//! layers of a cross-layer transcoder together (`cross_layer`). Also attaches LoRA adapters
//! (`adapters`).

mod adapters;
mod check;
mod cross_layer;
mod named;

pub use crate::adapter::AdapterRecord;
pub use crate::sae::{SaeCheck, SaeRecord, Tried};
pub use named::check_saes;

use crate::error::{Error, Result};
use crate::model::LoadedModel;
use crate::sae::{LoadedSae, SaeRole, read_layers, read_named_sae};
use check::check;
use pellucid_engine::Site;
use std::path::Path;

/// How to attach an autoencoder.
#[derive(Clone, Debug, Default)]
pub struct AttachOptions {
    /// The site that it reconstructs, if not the one that its files name.
    pub site: Option<String>,
    /// Attach it without testing its reconstructions.
    pub unchecked: bool,
}

impl LoadedModel {
    /// Reads the autoencoder at a path, or the built-in one by its name
    /// ([`BUILTIN`](crate::sae::BUILTIN)), and attaches it. The path of a cross-layer transcoder is
    /// its directory; it has one record for each layer.
    pub fn attach_path(&mut self, name: &str, options: &AttachOptions) -> Result<Vec<SaeRecord>> {
        let before = self.sae_records.len();
        match read_layers(Path::new(name))? {
            Some(layers) => _ = self.attach_cross_layer(&layers, options)?,
            None => _ = self.attach_sae(&read_named_sae(name)?, options)?,
        }
        let records = &mut self.sae_records[before..];
        records.iter_mut().for_each(|record| record.path = name.into());
        Ok(records.to_vec())
    }

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
        self.sae_records.push(SaeRecord::new(info, write, check.clone()));
        Ok(check)
    }

    /// The sites that an autoencoder reads and reconstructs in this model.
    fn sites_of(&self, loaded: &LoadedSae, site: Option<&str>) -> Result<(Site, Site)> {
        let info = &loaded.info;
        match info.role {
            SaeRole::CrossLayerTranscoder => {
                return Err(Error::usage(
                    format!("{} is one layer of a cross-layer transcoder", info.path.display()),
                    "give the directory, to attach all layers together",
                ));
            }
            SaeRole::Crosscoder => {
                return Err(Error::usage(
                    format!(
                        "{} is a crosscoder, which cannot be attached or spliced: its features follow from several \
                         layers, and the model has continued from the first of them before they are known",
                        info.path.display()
                    ),
                    "capture its layers, concatenate them, then encode and decode; docs/saes.md has an example",
                ));
            }
            SaeRole::Autoencoder | SaeRole::Transcoder => {}
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
