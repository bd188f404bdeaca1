//! An autoencoder with the sites that it is attached to.

use super::Sae;
use crate::program::SaeAttachment;
use crate::site::Site;
use std::ops::Range;
use std::sync::Arc;

/// An autoencoder and the sites that it is attached to.
#[derive(Clone)]
pub struct AttachedSae {
    /// Its weights.
    pub sae: Arc<Sae>,
    /// The site that it reads.
    pub read: Site,
    /// The site that it reconstructs.
    pub write: Site,
    /// The layers of its cross-layer transcoder, as indices in
    /// [`Model::saes`](crate::Model::saes); `None` for an autoencoder of one layer.
    pub set: Option<Range<usize>>,
}

impl AttachedSae {
    /// Returns where it is attached and its sizes; `earlier` are the earlier layers of its
    /// cross-layer transcoder.
    pub(crate) fn attachment(&self, earlier: Vec<(Site, usize, usize)>) -> SaeAttachment {
        let AttachedSae { sae, read, write, .. } = self;
        SaeAttachment {
            read: *read,
            write: *write,
            d_in: sae.d_in(),
            d_out: sae.d_out(),
            n_features: sae.n_features(),
            scales_tokens: sae.undoes_token_scales(),
            max_active: sae.kind.max_active(),
            earlier,
        }
    }
}
