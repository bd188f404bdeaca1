//! Finds autoencoders in a directory tree.
//!
//! Releases have one directory per site, width and sparsity, so the tree is searched, with limits
//! on depth and number, and without following link cycles.

use std::path::{Path, PathBuf};

use super::formats::{self, Format};
use crate::listing::Listing;
use crate::{Error, Result};

/// Autoencoders in a directory tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundSaes {
    /// Their paths, each of which [`read_sae`](super::read_sae) takes.
    pub paths: Vec<PathBuf>,
    /// Whether the search stopped at its limit.
    pub more: bool,
}

/// Lists the autoencoders in a directory tree.
pub fn find_saes(path: &Path) -> Result<FoundSaes> {
    /// Limit of directories opened.
    const MAX_DIRS: usize = 20_000;
    let listing = Listing::read(path).map_err(Error::io(path))?;
    let mut paths = Vec::new();
    let complete = walk(&listing, MAX_DIRS, &mut |listing, format| {
        let members = (format.members)(listing);
        match members.is_empty() {
            true => paths.push(listing.dir.clone()),
            false => paths.extend(members.iter().map(|name| listing.dir.join(name))),
        }
        true
    });
    Ok(FoundSaes { paths, more: !complete })
}

/// Depth limit of the search: releases have up to four levels and may be nested in other folders.
const MAX_DEPTH: usize = 8;

/// Calls `visit` for every directory with an autoencoder until it returns `false`; opens at most
/// `max_dirs` directories. Returns whether the search was complete.
pub(crate) fn walk(
    listing: &Listing,
    max_dirs: usize,
    visit: &mut dyn FnMut(&Listing, &'static Format) -> bool,
) -> bool {
    fn walk_from(
        listing: &Listing,
        depth: usize,
        left: &mut usize,
        visit: &mut dyn FnMut(&Listing, &'static Format) -> bool,
    ) -> bool {
        if let Some(format) = formats::of_directory(listing)
            && !visit(listing, format)
        {
            return false;
        }
        if depth == MAX_DEPTH {
            return true;
        }
        for dir in listing.inner_dirs() {
            if *left == 0 {
                return false;
            }
            *left -= 1;
            if let Ok(inner) = Listing::read(&dir)
                && !walk_from(&inner, depth + 1, left, visit)
            {
                return false;
            }
        }
        true
    }
    walk_from(listing, 0, &mut { max_dirs }, visit)
}
