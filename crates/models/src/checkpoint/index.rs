//! Reads `model.safetensors.index.json`, which maps each tensor to its shard.

use std::collections::BTreeSet;
use std::path::{Component, Path};

use serde::Deserialize;

use super::pairs::{Pairs, Text};
use crate::files::read_small;
use crate::{Error, Result};

/// The index of a sharded safetensors model.
pub(super) const SAFETENSORS_INDEX: &str = "model.safetensors.index.json";
/// The index of a sharded PyTorch model.
pub(super) const TORCH_INDEX: &str = "pytorch_model.bin.index.json";

/// Size limit of an index; the largest real ones have about 10 MB.
const MAX_INDEX_BYTES: u64 = 256 << 20;
/// Missing shards that an error names; it counts the others.
const MAX_NAMED_SHARDS: usize = 5;

const INVALID_INDEX: &str = "download the index file again, or save the model again with `save_pretrained`";

#[derive(Deserialize)]
struct IndexFile<'a> {
    #[serde(borrow)]
    weight_map: Pairs<'a, Text<'a>>,
}

/// A checked index: every shard name is a plain file name, and the file exists.
pub(super) struct Index {
    /// File name of the index.
    pub name: &'static str,
    /// The distinct shards, sorted by name.
    pub shards: Vec<String>,
    /// Each tensor with the index of its shard in `shards`.
    pub weight_map: Vec<(String, usize)>,
}

impl Index {
    /// Reads and checks the index file `name` of a directory.
    pub(super) fn open(dir: &Path, name: &'static str) -> Result<Index> {
        let path = dir.join(name);
        let text = read_small(&path, MAX_INDEX_BYTES)?;
        let file: IndexFile<'_> = serde_json::from_slice(&text)
            .map_err(|error| Error::invalid(&path, format!("not a valid shard index: {error}"), INVALID_INDEX))?;

        let shards: BTreeSet<&str> = file.weight_map.0.iter().map(|(_, shard)| shard.0.as_ref()).collect();
        if shards.is_empty() {
            return Err(Error::invalid(&path, "the index names no tensor", INVALID_INDEX));
        }
        for shard in &shards {
            check_name(&path, shard)?;
        }
        let missing: Vec<&str> = shards.iter().copied().filter(|shard| !dir.join(shard).is_file()).collect();
        if !missing.is_empty() {
            let mut named = missing[..missing.len().min(MAX_NAMED_SHARDS)].join(", ");
            if missing.len() > MAX_NAMED_SHARDS {
                named += &format!(" and {} more", missing.len() - MAX_NAMED_SHARDS);
            }
            return Err(Error::invalid(
                &path,
                format!("{} of {} shards are missing: {named}", missing.len(), shards.len()),
                "the download was not finished: run it again",
            ));
        }
        let shards: Vec<String> = shards.into_iter().map(str::to_owned).collect();
        // `shards` is sorted and contains every tensor's shard.
        let position = |shard: &str| shards.partition_point(|other| other.as_str() < shard);
        let weight_map =
            file.weight_map.0.into_iter().map(|(tensor, shard)| (tensor.into_owned(), position(&shard.0))).collect();
        Ok(Index { name, shards, weight_map })
    }
}

/// Checks that a shard name is a plain weight-file name: no path traversal, and not an index.
fn check_name(index: &Path, shard: &str) -> Result<()> {
    let mut components = Path::new(shard).components();
    let plain = matches!((components.next(), components.next()), (Some(Component::Normal(name)), None) if name == shard)
        && !shard.contains(['\\', ':', '\0']);
    let extension = if index.ends_with(TORCH_INDEX) { ".bin" } else { ".safetensors" };
    if plain && shard.ends_with(extension) {
        return Ok(());
    }
    Err(Error::invalid(
        index,
        format!("the shard name `{}` is not the plain name of a {extension} file", shard.escape_debug()),
        INVALID_INDEX,
    ))
}
