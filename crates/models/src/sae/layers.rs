//! Cross-layer transcoders: all layers of a directory.

use super::formats;
use super::{LoadedSae, SaeRole};
use crate::listing::Listing;
use crate::{Error, Result};
use std::path::Path;

/// Reads all layers of the cross-layer transcoder in a directory, from first to last; `None` if the
/// path is something else.
pub fn read_layers(path: &Path) -> Result<Option<Vec<LoadedSae>>> {
    if !path.is_dir() {
        return Ok(None);
    }
    let listing = Listing::read(path).map_err(Error::io(path))?;
    let Some(format) = formats::of_directory(&listing) else { return Ok(None) };
    let members = (format.members)(&listing);
    let Some((first, others)) = members.split_first() else { return Ok(None) };
    let first = (format.read)(&listing, first)?;
    if first.info.role != SaeRole::CrossLayerTranscoder {
        return Ok(None);
    }
    let others = others.iter().map(|name| (format.read)(&listing, name));
    std::iter::once(Ok(first)).chain(others).collect::<Result<Vec<LoadedSae>>>().map(Some)
}
