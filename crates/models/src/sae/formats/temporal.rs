//! Temporal autoencoders (`conf.yaml`, `latest_ckpt.safetensors`): recognized, not run.
//!
//! Their features depend on earlier positions through attention layers inside the autoencoder, so
//! they are not a function of one token's activation.

use super::super::settings::number_after;
use super::{Format, Marks, Summary, no_members};
use crate::listing::Listing;
use crate::sae::{LoadedSae, SaeLayout};
use crate::{Error, Result};

pub(super) const FORMAT: Format = Format {
    layout: SaeLayout::Temporal,
    name: "temporal autoencoders",
    recognize,
    members: no_members,
    describe,
    read,
};

fn recognize(listing: &Listing, _: Marks<'_>) -> std::result::Result<(), &'static str> {
    match listing.has("conf.yaml") && listing.has("latest_ckpt.safetensors") {
        true => Ok(()),
        false => Err("there is no pair of conf.yaml and latest_ckpt.safetensors"),
    }
}

fn describe(listing: &Listing) -> Summary {
    let layer = number_after(&listing.dir.to_string_lossy(), "layer_");
    let hooks = layer.map(|layer| format!("blocks.{layer}.hook_resid_post")).into_iter().collect();
    Summary { count: 1, kind: Some("temporal".into()), hooks, ..Summary::default() }
}

fn read(listing: &Listing, _: &str) -> Result<LoadedSae> {
    Err(Error::unsupported(
        format!(
            "{}: a temporal autoencoder, whose features depend on earlier positions through attention layers of its own",
            listing.dir.display()
        ),
        "use an autoencoder that encodes each token by itself",
    ))
}
