//! The files of weights: which there are, which are missing, and what their headers count up to.

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::listing::{LFS_POINTER, Listing};
use super::report::Report;
use crate::checkpoint::{Checkpoint, StoredType};
use crate::tensors::Tensors;

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// The reference implementation refuses longer headers, so no real file has one.
const LONGEST_HEADER: u64 = 100_000_000;

/// Tensors that are not counted: copies of tied tables and what can be computed from the configuration.
pub(super) type Uncounted<'a> = &'a dyn Fn(&str) -> bool;

/// Counts the weights of a model directory. Where they can be opened as for loading, they are; where not, the report says why
/// and counts what is there.
pub(super) fn open(listing: &Listing, uncounted: Uncounted, report: &mut Report) -> Option<Tensors> {
    let shards = shards(listing, report);
    let (used, missing): (Vec<String>, Vec<String>) = shards.iter().cloned().partition(|shard| listing.has(shard));
    report.shards.count = shards.len();
    report.shards.surplus = listing
        .ending(".safetensors")
        .filter(|name| name.starts_with("model") && !shards.contains(*name))
        .map(str::to_owned)
        .collect();
    report.shards.missing = missing;
    report.file_bytes = if used.is_empty() {
        listing.bytes(weight_files(listing))
    } else {
        listing.bytes(used.iter().map(String::as_str))
    };
    match Checkpoint::open(&listing.dir) {
        Ok(checkpoint) => {
            for tensor in checkpoint.tensors().filter(|tensor| !uncounted(&tensor.name)) {
                count(report, &tensor.name, tensor.dtype.name(), tensor.elements() as u64);
            }
            report.tensors = checkpoint.tensors().len();
            Some(Tensors::Checkpoint(checkpoint))
        }
        Err(error) => {
            report.refuse_for(&error);
            for shard in used {
                // Why a header cannot be read has been said; the others still count.
                let _ = count_header(&listing.dir.join(shard), uncounted, report);
            }
            None
        }
    }
}

/// Counts every safetensors file of a directory and of those inside it: autoencoders, adapters, pipelines.
pub(super) fn count_all(listing: &Listing, report: &mut Report) {
    /// Releases of autoencoders have thousands of directories, of which this many are counted.
    const MOST_DIRS: usize = 64;
    let inside = listing.dirs().take(MOST_DIRS).filter_map(|dir| Listing::read(&listing.dir.join(dir)).ok());
    let inside: Vec<Listing> = inside.collect();
    for listing in std::iter::once(listing).chain(&inside) {
        let files: Vec<&str> = weight_files(listing).collect();
        report.shards.count += files.len();
        report.file_bytes = report.file_bytes.saturating_add(listing.bytes(files.iter().copied()));
        for file in files.iter().filter(|file| file.ends_with(".safetensors")) {
            // These things do not run here, so a damaged file among them changes no answer.
            let _ = count_header(&listing.dir.join(file), &|_| false, report);
        }
    }
}

/// Counts a lone safetensors file.
pub(super) fn count_file(path: &Path, report: &mut Report) {
    report.shards.count = 1;
    if let Err(problem) = count_header(path, &|_| false, report) {
        report.refuse(problem, "the file is damaged or incomplete: download or convert it again");
    }
}

/// Counts a tensor. Formats that pack numbers into words of other types are counted as what they pack.
pub(super) fn count(report: &mut Report, name: &str, dtype: &str, elements: u64) {
    let elements = match &report.quantisation {
        Some(quantisation) => packed(name, dtype, elements, quantisation.bits),
        None => elements,
    };
    report.parameters = report.parameters.saturating_add(elements);
    if elements > 0 {
        let sum = report.dtypes.entry(dtype.to_owned()).or_default();
        *sum = sum.saturating_add(elements);
    }
}

/// How many parameters a tensor of quantised weights stands for; scales and the like are none.
fn packed(name: &str, dtype: &str, elements: u64, bits: Option<u64>) -> u64 {
    const BESIDE: &[&str] = &[
        ".qzeros",
        ".scales",
        ".g_idx",
        ".SCB",
        ".weight_format",
        ".absmax",
        ".quant_map",
        ".nested_absmax",
        ".nested_quant_map",
        "_scales",
        ".weight_scale",
        ".weight_scale_inv",
        ".input_scale",
        ".activation_scale",
        ".input_global_scale",
        ".weight_global_scale",
        ".weight_zero_point",
        ".weight_shape",
        ".weight_g_idx",
        ".k_scale",
        ".v_scale",
    ];
    if BESIDE.iter().any(|end| name.ends_with(end)) || name.contains(".quant_state.") {
        return 0;
    }
    let is_packed = |endings: &[&str]| endings.iter().any(|end| name.ends_with(end));
    match (dtype, bits) {
        ("I32", Some(bits @ 1..=16)) if is_packed(&[".qweight", ".weight_packed"]) => {
            elements.saturating_mul(32) / bits
        }
        ("U8", Some(4)) if name.ends_with(".weight") => elements.saturating_mul(2),
        ("U8", _) if is_packed(&["_blocks", ".weight_packed"]) => elements.saturating_mul(2),
        _ => elements,
    }
}

/// The files that a model's weights should be in, by the index or by their own numbering.
fn shards(listing: &Listing, report: &mut Report) -> BTreeSet<String> {
    #[derive(Deserialize)]
    struct Index {
        weight_map: HashMap<String, String>,
    }
    if listing.has(SINGLE) {
        return BTreeSet::from([SINGLE.to_owned()]);
    }
    match listing.json(INDEX) {
        Ok(Some(index)) => {
            // What is wrong with an index, opening the weights says. Names that lead elsewhere are not followed.
            let index = Index::deserialize(index).map(|index| index.weight_map).unwrap_or_default();
            return index.into_values().filter(|name| !name.contains(['/', '\\', '\0'])).collect();
        }
        Ok(None) => {}
        Err(error) => report.refuse_for(&error),
    }
    listing.ending(".safetensors").filter_map(numbered).flatten().collect()
}

/// `model-00002-of-00003.safetensors` → all three.
fn numbered(name: &str) -> Option<Vec<String>> {
    const MOST: usize = 1000;
    let (start, total) = name.strip_suffix(".safetensors")?.rsplit_once("-of-")?;
    let (start, number) = start.rsplit_once('-')?;
    let plain = |digits: &str| digits.len() == 5 && digits.bytes().all(|b| b.is_ascii_digit());
    let count: usize = total.parse().ok().filter(|count| *count <= MOST && plain(number) && plain(total))?;
    Some((1..=count).map(|number| format!("{start}-{number:05}-of-{total}.safetensors")).collect())
}

/// Files that hold weights of any kind, without what training leaves behind.
fn weight_files(listing: &Listing) -> impl Iterator<Item = &str> {
    const ENDINGS: &[&str] = &[".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".npz", ".gguf"];
    const LEFT: &[&str] = &["training_args", "optimizer", "scheduler", "rng_state"];
    let weights = |name: &&str| {
        ENDINGS.iter().any(|end| name.ends_with(end)) && !LEFT.iter().any(|start| name.starts_with(start))
    };
    listing.files().map(|(name, _)| name).filter(weights)
}

/// Counts what the header of a safetensors file lists, even where the data after it is cut off.
fn count_header(path: &Path, uncounted: Uncounted, report: &mut Report) -> Result<(), String> {
    #[derive(Deserialize)]
    struct Info {
        dtype: String,
        shape: Vec<u64>,
    }
    let said = |error: std::io::Error| error.to_string();
    let mut file = File::open(path).map_err(said)?;
    let mut length = [0; 8];
    file.read_exact(&mut length).map_err(|_| "the file is too short for a safetensors header".to_owned())?;
    if LFS_POINTER.starts_with(&length) {
        return Err("this is a Git LFS pointer, not the weights".into());
    }
    let length = u64::from_le_bytes(length);
    if length > LONGEST_HEADER {
        return Err(format!("the header claims {length} bytes: this is not a safetensors file"));
    }
    let mut json = Vec::new();
    file.take(length).read_to_end(&mut json).map_err(said)?;
    let mut header: HashMap<String, &RawValue> =
        serde_json::from_slice(&json).map_err(|error| format!("the header is not valid JSON: {error}"))?;
    header.remove("__metadata__");
    for (name, info) in header {
        let info: Info = serde_json::from_str(info.get()).map_err(|error| format!("tensor `{name}`: {error}"))?;
        let known = StoredType::from_name(&info.dtype)
            .ok_or_else(|| format!("tensor `{name}`: unknown format {}", info.dtype))?;
        let elements = info.shape.iter().try_fold(1u64, |product, size| product.checked_mul(*size));
        let elements = elements.ok_or_else(|| format!("tensor `{name}`: its shape is beyond any memory"))?;
        report.tensors += 1;
        if !uncounted(&name) {
            count(report, &name, known.name(), elements);
        }
    }
    Ok(())
}
