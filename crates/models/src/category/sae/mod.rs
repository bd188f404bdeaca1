//! Detects sparse autoencoders, transcoders and steering vectors in all published layouts, at any
//! depth.
//!
//! The layouts are those of `crate::sae::formats`: each is recognized by its file names and, if
//! these are ambiguous, by keys of its settings files.

mod describe;

pub use crate::sae::SaeLayout;
pub use describe::{SaeDescription, describe, describe_gguf};
pub(crate) use describe::{base_model, describe_listing};

use super::config_keys::{ConfigKeys, Presence};
use crate::gguf::GgufFile;
use crate::listing::Listing;
use crate::sae::formats::{self, ConfigMarks};
use crate::sae::search::walk;

/// Directory names of releases that are named after the site of the autoencoders.
const SITES: &[&str] = &[
    "attn_out",
    "attn_out_all",
    "crosscoder",
    "mlp_out",
    "mlp_out_all",
    "resid_post",
    "resid_post_all",
    "transcoder",
    "transcoder_all",
];

/// Whether this directory itself contains an autoencoder. `config` is its configuration.
pub(crate) fn is_here(listing: &Listing, config: Option<&ConfigKeys>) -> bool {
    let marks = config.map(|config| ConfigMarks {
        model_type: config.model_type().is_some(),
        trainer: config.trainer == Presence::Container,
        hf_hook_point_in: config.hf_hook_point_in.any(),
        width: config.width.any(),
        hook_point_in: config.hook_point_in.any(),
    });
    formats::recognize(listing, &|| marks).is_some()
}

/// Whether a nested directory contains one.
pub(crate) fn is_inside(listing: &Listing) -> bool {
    /// Limit of directories opened.
    const MAX_OPENED: usize = 128;
    if listing.dirs().any(|dir| SITES.contains(&dir)) || has_control_vector(listing) {
        return true;
    }
    let mut found = false;
    walk(listing, MAX_OPENED, &mut |_, _| {
        found = true;
        false
    });
    found
}

/// Whether one of the GGUF files here is a control vector.
fn has_control_vector(listing: &Listing) -> bool {
    const MAX_OPENED: usize = 4;
    let is_vector = |name: &str| {
        GgufFile::open(listing.dir.join(name)).is_ok_and(|file| file.architecture().is_ok_and(|a| a == "controlvector"))
    };
    listing.files_with_suffix(".gguf").take(MAX_OPENED).any(is_vector)
}
