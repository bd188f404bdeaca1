//! Attaches sparse autoencoders to a model and detaches them.

use super::Model;
use crate::error::{Error, Result};
use crate::program::Program;
use crate::sae::{AttachedSae, Sae};
use crate::site::Site;
use crate::weights::files_of;
use pellucid_kernels::matrix::BackingFile;
use std::sync::Arc;

/// The autoencoders of a model.
#[derive(Default)]
pub(super) struct AttachedSaes {
    /// The program without them; `None` if there are none.
    plain: Option<Arc<Program>>,
    list: Vec<AttachedSae>,
    /// The files that their matrices read in place.
    files: Vec<Arc<dyn BackingFile>>,
}

/// One layer of a cross-layer transcoder: its weights, the site that it reads and the site of the
/// same layer that it reconstructs.
pub type TranscoderLayer = (Arc<Sae>, Site, Site);

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
                "attach all layers of a cross-layer transcoder together, with `attach_cross_layer`",
            ));
        }
        self.attach_layer(AttachedSae { sae, read, write, set: None }, Vec::new())
    }

    /// Returns this model with a cross-layer transcoder attached, given as its layers from first to
    /// last. The features of layer `i` are decoded at its own site and at those of all later
    /// layers: decoder `k` of layer `i` contributes to the reconstruction of layer `i + k`.
    pub fn attach_cross_layer(&self, layers: &[TranscoderLayer]) -> Result<Model> {
        let first = self.saes().len();
        let mut model = self.clone();
        for (index, (sae, read, write)) in layers.iter().enumerate() {
            sae.check()?;
            let (expected, found) = (layers.len() - index, sae.decoders.len());
            if found != expected {
                return Err(Error::input(
                    format!("layer {index} of the cross-layer transcoder reconstructs {found} layers, not {expected}"),
                    "give all its layers, from first to last",
                ));
            }
            if sae.undo_normalization && sae.normalization != Default::default() {
                return Err(Error::input(
                    "a cross-layer transcoder cannot scale its reconstructions back: they belong to several inputs",
                    "fold the normalization into its weights",
                ));
            }
            let earlier = layers[..index].iter().enumerate();
            let earlier = earlier.map(|(layer, (_, _, write))| (*write, first + layer, index - layer)).collect();
            let set = Some(first..first + layers.len());
            model = model.attach_layer(AttachedSae { sae: sae.clone(), read: *read, write: *write, set }, earlier)?;
        }
        Ok(model)
    }

    fn attach_layer(&self, attached: AttachedSae, earlier: Vec<(Site, usize, usize)>) -> Result<Model> {
        let at = attached.attachment(earlier);
        let program = self.program.attach(&at, self.saes().len())?;
        let list: Vec<AttachedSae> = self.saes().iter().cloned().chain([attached]).collect();
        let files = files_of(list.iter().flat_map(|attached| attached.sae.matrices()));
        let plain = self.saes.plain.clone().or_else(|| Some(self.program.clone()));
        let saes = Arc::new(AttachedSaes { plain, list, files });
        Ok(Model { program: Arc::new(program), plans: Arc::default(), saes, ..self.clone() })
    }

    /// Returns this model without the autoencoder at `site`. All layers of a cross-layer transcoder
    /// are detached together.
    pub fn detach(&self, site: Site) -> Result<Model> {
        let Some(found) = self.saes().iter().position(|attached| attached.write == site) else {
            let at: Vec<String> = self.saes().iter().map(|attached| attached.write.to_string()).collect();
            let remedy =
                if at.is_empty() { "none is attached".into() } else { format!("attached are {}", at.join(", ")) };
            return Err(Error::site(format!("no SAE is attached at `{site}`"), remedy));
        };
        let removed = self.saes()[found].set.clone().unwrap_or(found..found + 1);
        let mut model = self.detach_all();
        let mut index = 0;
        while let Some(attached) = self.saes().get(index) {
            let set = attached.set.clone().unwrap_or(index..index + 1);
            index = set.end;
            if set == removed {
                continue;
            }
            let layers = self.saes()[set].iter().map(|other| (other.sae.clone(), other.read, other.write));
            let layers: Vec<TranscoderLayer> = layers.collect();
            model = match (&attached.set, &layers[..]) {
                (None, [(sae, read, write)]) => model.attach(sae.clone(), *read, *write)?,
                _ => model.attach_cross_layer(&layers)?,
            };
        }
        Ok(model)
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

    /// Checks that the files that matrices read in place have not changed since they were opened:
    /// results would change with them, and reading past the end of a file ends the process.
    pub(crate) fn check_files(&self) -> Result<()> {
        self.weights().files().iter().chain(&self.saes.files).try_for_each(|file| {
            file.check().map_err(|problem| {
                Error::input(
                    format!("{}: {problem}, and weights are read from it while the model runs", file.path().display()),
                    "load it again; to replace a file that is in use, write the new one beside it and rename it",
                )
            })
        })
    }

    /// The attached autoencoders, in the order in which they were attached.
    pub fn saes(&self) -> &[AttachedSae] {
        &self.saes.list
    }
}
