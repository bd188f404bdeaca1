//! Autoencoders by the text of `--sae` and of a plan's `saes`.

use super::{AttachOptions, SaeRecord};
use crate::error::{Error, Result};
use crate::model::LoadedModel;
use crate::sae::BUILTIN;
use pellucid_engine::{Plan, Remedy};
use std::path::Path;

/// An autoencoder to attach: `PATH[@SITE]`.
struct SaeSpec<'a> {
    /// `builtin`, or a path relative to the working directory.
    path: String,
    site: Option<&'a str>,
}

impl<'a> SaeSpec<'a> {
    fn parse(text: &'a str, base: &Path) -> SaeSpec<'a> {
        let (path, site) = match text.rsplit_once('@') {
            // A path may contain `@` itself.
            Some((path, site)) if !base.join(text).exists() => (path, Some(site)),
            _ => (text, None),
        };
        let path = if path == BUILTIN { BUILTIN.into() } else { base.join(path).display().to_string() };
        SaeSpec { path, site }
    }
}

/// Whether a text `PATH[@SITE]` names one of the records, by its path or its site.
fn is_attached(records: &[&SaeRecord], text: &str, base: &Path) -> bool {
    let spec = SaeSpec::parse(text, base);
    records.iter().any(|record| {
        let site = record.site.to_string();
        site == text || (record.path == spec.path && spec.site.is_none_or(|wanted| wanted == site))
    })
}

/// Checks that the autoencoders that a plan names are attached.
pub fn check_saes(attached: &[&SaeRecord], plan: &Plan, base: &Path) -> Result<()> {
    match plan.saes.iter().find(|text| !is_attached(attached, text, base)) {
        None => Ok(()),
        Some(text) => {
            Err(Error::usage(format!("the plan needs the SAE {text:?}, which is not attached"), Remedy::AttachSae))
        }
    }
}

impl LoadedModel {
    /// The attached autoencoders, with the results of their tests.
    pub fn saes(&self) -> Vec<&SaeRecord> {
        let still_attached = |record: &&SaeRecord| self.model.saes().iter().any(|sae| sae.write == record.site);
        self.sae_records.iter().filter(still_attached).collect()
    }

    /// Attaches the autoencoder of a text `PATH[@SITE]`, whose path is relative to `base`. A text
    /// that names an attached one, by its path or its site, changes nothing. Returns the new
    /// records.
    pub fn attach_named_sae(&mut self, text: &str, base: &Path, unchecked: bool) -> Result<Vec<SaeRecord>> {
        if is_attached(&self.saes(), text, base) {
            return Ok(Vec::new());
        }
        let SaeSpec { path, site } = SaeSpec::parse(text, base);
        self.attach_path(&path, &AttachOptions { site: site.map(str::to_owned), unchecked })
    }
}
