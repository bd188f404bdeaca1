//! An autoencoder with the sites that it is attached to.

use super::Sae;
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
