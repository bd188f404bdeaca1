//! `model.safetensors.index.json`: which shard holds which tensor.

use std::collections::BTreeSet;
use std::path::{Component, Path};

use serde::Deserialize;

use super::pairs::{Pairs, Text};
use crate::{Error, Result};

/// The file that lists a sharded model.
pub(super) const INDEX: &str = "model.safetensors.index.json";
/// The file that lists a sharded model of torch's own files.
pub(super) const TORCH_INDEX: &str = "pytorch_model.bin.index.json";

const WRITE_AGAIN: &str = "download the index file again, or save the model again with `save_pretrained`";

#[derive(Deserialize)]
struct IndexFile<'a> {
    #[serde(borrow)]
    weight_map: Pairs<'a, Text<'a>>,
}

/// A checked index: names of shards are plain names of files that exist.
pub(super) struct Index {
    /// The index itself.
    pub name: &'static str,
    /// The shards, each once, in order of name.
    pub shards: Vec<String>,
    /// Each tensor, and the number of its shard.
    pub weight_map: Vec<(String, usize)>,
}

impl Index {
    /// Reads an index of a directory.
    pub(super) fn open(dir: &Path, name: &'static str) -> Result<Index> {
        let path = dir.join(name);
        let text = std::fs::read(&path).map_err(Error::io(&path))?;
        let file: IndexFile<'_> = serde_json::from_slice(&text)
            .map_err(|error| Error::invalid(&path, format!("not a valid shard index: {error}"), WRITE_AGAIN))?;

        let shards: BTreeSet<&str> = file.weight_map.0.iter().map(|(_, shard)| shard.0.as_ref()).collect();
        if shards.is_empty() {
            return Err(Error::invalid(&path, "the index names no tensor", WRITE_AGAIN));
        }
        for shard in &shards {
            check_name(&path, shard)?;
        }
        let missing: Vec<&str> = shards.iter().copied().filter(|shard| !dir.join(shard).is_file()).collect();
        if !missing.is_empty() {
            return Err(Error::invalid(
                &path,
                format!("{} of {} shards are missing: {}", missing.len(), shards.len(), missing.join(", ")),
                "the download was not finished: run it again",
            ));
        }
        let shards: Vec<String> = shards.into_iter().map(str::to_owned).collect();
        // They are sorted, and every tensor's is among them.
        let number = |shard: &str| shards.partition_point(|other| other.as_str() < shard);
        let weight_map =
            file.weight_map.0.into_iter().map(|(tensor, shard)| (tensor.into_owned(), number(&shard.0))).collect();
        Ok(Index { name, shards, weight_map })
    }
}

/// A shard is a file of weights beside the index: the name leads nowhere else, and not back to an index.
fn check_name(index: &Path, shard: &str) -> Result<()> {
    let mut components = Path::new(shard).components();
    let plain = matches!((components.next(), components.next()), (Some(Component::Normal(name)), None) if name == shard)
        && !shard.contains(['\\', ':', '\0']);
    let end = if index.ends_with(TORCH_INDEX) { ".bin" } else { ".safetensors" };
    if plain && shard.ends_with(end) {
        return Ok(());
    }
    Err(Error::invalid(
        index,
        format!("the shard name `{}` is not the plain name of a {end} file", shard.escape_debug()),
        WRITE_AGAIN,
    ))
}
