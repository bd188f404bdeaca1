//! Attaches sparse autoencoders to a model and detaches them.

use super::Model;
use crate::error::{Error, Result};
use crate::program::{Program, SaeAttachment};
use crate::sae::{AttachedSae, Sae};
use crate::site::Site;
use std::sync::Arc;

/// The autoencoders of a model.
#[derive(Default)]
pub(super) struct AttachedSaes {
    /// The program without them; `None` if there are none.
    plain: Option<Arc<Program>>,
    list: Vec<AttachedSae>,
}

impl Model {
    /// Returns this model with an autoencoder attached: its features become sites, such as
    /// `layers.5.resid_post/sae.acts`. `write` equals `read` for an autoencoder; a transcoder reads
    /// the input of an MLP and reconstructs its output. The model's weights are shared, and plans
    /// that do not name the autoencoder give the same bits as before.
    pub fn attach(&self, sae: Arc<Sae>, read: Site, write: Site) -> Result<Model> {
        sae.check()?;
        if sae.decoders.len() != 1 {
            return Err(Error::input(
                format!("this SAE reconstructs {} layers", sae.decoders.len()),
                "encode and decode with it directly; only SAEs of one layer can be attached",
            ));
        }
        let (d_in, d_out, n_features) = (sae.d_in(), sae.d_out(), sae.n_features());
        let scales_tokens = sae.undoes_token_scales();
        let at = SaeAttachment { read, write, d_in, d_out, n_features, scales_tokens };
        let program = self.program.attach(&at, self.saes().len())?;
        let list = self.saes().iter().cloned().chain([AttachedSae { sae, read, write }]).collect();
        let plain = self.saes.plain.clone().or_else(|| Some(self.program.clone()));
        let saes = Arc::new(AttachedSaes { plain, list });
        Ok(Model { program: Arc::new(program), plans: Arc::default(), saes, ..self.clone() })
    }

    /// Returns this model without the autoencoder at `site`.
    pub fn detach(&self, site: Site) -> Result<Model> {
        if !self.saes().iter().any(|attached| attached.write == site) {
            let at: Vec<String> = self.saes().iter().map(|attached| attached.write.to_string()).collect();
            let remedy =
                if at.is_empty() { "none is attached".into() } else { format!("attached are {}", at.join(", ")) };
            return Err(Error::site(format!("no SAE is attached at `{site}`"), remedy));
        }
        let without = self.detach_all();
        let others = self.saes().iter().filter(|attached| attached.write != site);
        others.into_iter().try_fold(without, |model, other| model.attach(other.sae.clone(), other.read, other.write))
    }

    /// Returns this model without autoencoders.
    pub fn detach_all(&self) -> Model {
        match &self.saes.plain {
            Some(program) => {
                Model { program: program.clone(), plans: Arc::default(), saes: Arc::default(), ..self.clone() }
            }
            None => self.clone(),
        }
    }

    /// The attached autoencoders, in the order in which they were attached.
    pub fn saes(&self) -> &[AttachedSae] {
        &self.saes.list
    }
}
