//! The weight files: which exist, which are missing, and how many parameters their headers list.

use std::borrow::Cow;
use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};

use super::parts;
use super::report::Report;
use crate::checkpoint::Checkpoint;
use crate::header;
use crate::listing::Listing;
use crate::tensors::Tensors;

const SAFETENSORS_FILE: &str = "model.safetensors";
const SAFETENSORS_INDEX: &str = "model.safetensors.index.json";

/// Predicate for tensors that are not parameters: copies of tied weights, derived buffers.
pub(super) type Uncounted<'a> = &'a dyn Fn(&str) -> bool;

/// Counts the weights of a model directory; the readable headers, if the tensors could not be
/// opened.
pub(super) fn count_model(listing: &Listing, tensors: Option<&Tensors>, uncounted: Uncounted, report: &mut Report) {
    if let Some(checkpoint) = tensors.and_then(Tensors::checkpoint) {
        let names = checkpoint.files().filter_map(|(path, _)| path.file_name()?.to_str());
        // PyTorch files are counted, but not as shards.
        let shards: BTreeSet<String> = names.filter(|name| name.ends_with(".safetensors")).map(str::to_owned).collect();
        list_shards(listing, &shards, report);
        report.file_bytes = match shards.is_empty() {
            true => listing.bytes(weight_files(listing)),
            false => checkpoint.files().map(|(_, bytes)| bytes as u64).sum(),
        };
        for tensor in checkpoint.tensors().filter(|tensor| !uncounted(&tensor.name)) {
            count(report, &tensor.name, tensor.dtype.name(), tensor.elements() as u64);
        }
        report.tensors = checkpoint.tensors().len();
        return;
    }
    let shards = shards(listing);
    let (used, missing): (Vec<&String>, Vec<&String>) = shards.iter().partition(|shard| listing.has(shard));
    list_shards(listing, &shards, report);
    report.file_bytes = match used.is_empty() {
        true => listing.bytes(weight_files(listing)),
        false => listing.bytes(used.iter().map(|name| name.as_str())),
    };
    report.shards.missing = missing.into_iter().cloned().collect();
    for shard in used {
        // The reason for an unreadable header is already reported; count the others.
        let _ = count_header(&listing.dir.join(shard), uncounted, report);
    }
}

/// Reports the number of weight files, and similarly named files that are not used.
fn list_shards(listing: &Listing, shards: &BTreeSet<String>, report: &mut Report) {
    report.shards.count = shards.len();
    report.shards.surplus = listing
        .files_with_suffix(".safetensors")
        .filter(|name| name.starts_with("model") && !shards.contains(*name))
        .map(str::to_owned)
        .collect();
}

/// Counts the safetensors files of a directory tree (autoencoders, adapters, pipelines).
pub(super) fn count_all(listing: &Listing, report: &mut Report) {
    /// Limit of directories counted; SAE releases have thousands.
    const MAX_DIRS: usize = 64;
    let mut inner_listings: Vec<Listing> = Vec::new();
    let mut waiting: VecDeque<PathBuf> = listing.inner_dirs().collect();
    while inner_listings.len() < MAX_DIRS
        && let Some(dir) = waiting.pop_front()
    {
        if let Ok(inner) = Listing::read(&dir) {
            waiting.extend(inner.inner_dirs());
            inner_listings.push(inner);
        }
    }
    // Part names mean other things in these directories, so no parts are recorded.
    let parts = std::mem::take(&mut report.modalities.parts);
    for listing in std::iter::once(listing).chain(&inner_listings) {
        let files: Vec<&str> = weight_files(listing).collect();
        report.shards.count += files.len();
        report.file_bytes = report.file_bytes.saturating_add(listing.bytes(files.iter().copied()));
        for file in files.iter().filter(|file| file.ends_with(".safetensors")) {
            // These do not run anyway, so a damaged file does not matter.
            let _ = count_header(&listing.dir.join(file), &|_| false, report);
        }
    }
    report.modalities.parts = parts;
}

/// Counts a PyTorch file; no code in it is executed.
pub(super) fn count_torch(path: &Path, report: &mut Report) {
    // Loading reports the reason for an unreadable file.
    let Ok(checkpoint) = Checkpoint::open_file(path) else { return };
    let parts = std::mem::take(&mut report.modalities.parts);
    report.tensors += checkpoint.tensors().len();
    for tensor in checkpoint.tensors() {
        count(report, &tensor.name, tensor.dtype.name(), tensor.elements() as u64);
    }
    report.modalities.parts = parts;
}

/// Counts a single safetensors file.
pub(super) fn count_file(path: &Path, report: &mut Report) {
    report.shards.count = 1;
    if let Err(problem) = count_header(path, &|_| false, report) {
        report.refuse(problem, "the file is damaged or incomplete: download or convert it again");
    }
}

/// Counts a tensor; packed quantized weights count as the weights they contain.
pub(super) fn count(report: &mut Report, name: &str, dtype: &str, elements: u64) {
    let elements = match &report.quantization {
        Some(quantization) => unpacked_elements(name, dtype, elements, quantization.bits),
        None => elements,
    };
    report.parameters = report.parameters.saturating_add(elements);
    parts::count(report, name, elements);
    if elements > 0 {
        let sum = report.dtypes.entry(dtype.to_owned()).or_default();
        *sum = sum.saturating_add(elements);
    }
}

/// The number of parameters in a tensor of a quantized layer; 0 for scales, zero points and so on.
pub(super) fn unpacked_elements(name: &str, dtype: &str, elements: u64, bits: Option<u64>) -> u64 {
    const NOT_PARAMETERS: &[&str] = &[
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
    if NOT_PARAMETERS.iter().any(|suffix| name.ends_with(suffix)) || name.contains(".quant_state.") {
        return 0;
    }
    let is_packed = |suffixes: &[&str]| suffixes.iter().any(|suffix| name.ends_with(suffix));
    match (dtype, bits) {
        ("I32", Some(bits @ 1..=16)) if is_packed(&[".qweight", ".weight_packed"]) => {
            elements.saturating_mul(32) / bits
        }
        ("U8", Some(4)) if name.ends_with(".weight") => elements.saturating_mul(2),
        ("U8", _) if is_packed(&["_blocks", ".weight_packed"]) => elements.saturating_mul(2),
        _ => elements,
    }
}

/// The shard index, reduced to the names of the shards.
#[derive(Deserialize)]
struct Index {
    weight_map: ShardNames,
}

struct ShardNames(BTreeSet<String>);

impl<'de> Deserialize<'de> for ShardNames {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<ShardNames, D::Error> {
        struct Collect;
        impl<'de> Visitor<'de> for Collect {
            type Value = ShardNames;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map from tensors to files")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<ShardNames, A::Error> {
                let mut names = BTreeSet::new();
                while let Some((IgnoredAny, Name(name))) = map.next_entry()? {
                    if !names.contains(name.as_ref()) {
                        names.insert(name.into_owned());
                    }
                }
                Ok(ShardNames(names))
            }
        }
        deserializer.deserialize_map(Collect)
    }
}

#[derive(Deserialize)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

/// The expected weight files, by the index or by the numbering of the files.
fn shards(listing: &Listing) -> BTreeSet<String> {
    if listing.has(SAFETENSORS_FILE) {
        return BTreeSet::from([SAFETENSORS_FILE.to_owned()]);
    }
    // Opening the weights reports an index that cannot be read or is invalid.
    if let Ok(Some(index)) = listing.settings(SAFETENSORS_INDEX) {
        let Ok(index) = serde_json::from_slice::<Index>(&index) else { return BTreeSet::new() };
        // Names with path separators are dropped.
        return index.weight_map.0.into_iter().filter(|name| !name.contains(['/', '\\', '\0'])).collect();
    }
    listing.files_with_suffix(".safetensors").filter_map(shards_from_numbering).flatten().collect()
}

/// All shard names from one: `model-00002-of-00003.safetensors` gives three.
fn shards_from_numbering(name: &str) -> Option<Vec<String>> {
    const MAX_SHARDS: usize = 1000;
    let (start, total) = name.strip_suffix(".safetensors")?.rsplit_once("-of-")?;
    let (start, number) = start.rsplit_once('-')?;
    let plain = |digits: &str| digits.len() == 5 && digits.bytes().all(|b| b.is_ascii_digit());
    let count: usize = total.parse().ok().filter(|count| *count <= MAX_SHARDS && plain(number) && plain(total))?;
    Some((1..=count).map(|number| format!("{start}-{number:05}-of-{total}.safetensors")).collect())
}

/// Weight files of any kind, without optimizer states and other training files.
fn weight_files(listing: &Listing) -> impl Iterator<Item = &str> {
    const SUFFIXES: &[&str] = &[".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".npz", ".gguf"];
    const TRAINING_FILES: &[&str] = &["training_args", "optimizer", "scheduler", "rng_state"];
    let weights = |name: &&str| -> bool {
        SUFFIXES.iter().any(|suffix| name.ends_with(suffix))
            && !TRAINING_FILES.iter().any(|start| name.starts_with(start))
    };
    listing.files().filter(weights)
}

/// Counts the tensors in the header of a safetensors file, even if the data is truncated.
fn count_header(path: &Path, uncounted: Uncounted, report: &mut Report) -> Result<(), header::Fault> {
    header::scan(path, &mut |tensor| {
        report.tensors += 1;
        if !uncounted(tensor.name) {
            count(report, tensor.name, tensor.dtype, tensor.elements);
        }
    })
}
