//! The files of weights: which there are, which are missing, and what their headers count up to.

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

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// Tensors that are not counted: copies of tied tables and what can be computed from the configuration.
pub(super) type Uncounted<'a> = &'a dyn Fn(&str) -> bool;

/// Counts the weights of a model directory. Where they can be opened as for loading, they are; where not, the report says why
/// and counts what is there.
pub(super) fn open(listing: &Listing, uncounted: Uncounted, report: &mut Report) -> Option<Tensors> {
    match Checkpoint::open(&listing.dir) {
        Ok(checkpoint) => {
            let names = checkpoint.files().filter_map(|(path, _)| path.file_name()?.to_str());
            // Files of torch's own format are counted, but they are no shards.
            let shards: BTreeSet<String> =
                names.filter(|name| name.ends_with(".safetensors")).map(str::to_owned).collect();
            list_shards(listing, &shards, report);
            report.file_bytes = match shards.is_empty() {
                true => listing.bytes(weight_files(listing)),
                false => checkpoint.files().map(|(_, bytes)| bytes as u64).sum(),
            };
            for tensor in checkpoint.tensors().filter(|tensor| !uncounted(&tensor.name)) {
                count(report, &tensor.name, tensor.dtype.name(), tensor.elements() as u64);
            }
            report.tensors = checkpoint.tensors().len();
            Some(Tensors::Checkpoint(checkpoint))
        }
        Err(error) => {
            let shards = shards(listing, report);
            let (used, missing): (Vec<&String>, Vec<&String>) = shards.iter().partition(|shard| listing.has(shard));
            list_shards(listing, &shards, report);
            report.file_bytes = match used.is_empty() {
                true => listing.bytes(weight_files(listing)),
                false => listing.bytes(used.iter().map(|name| name.as_str())),
            };
            report.shards.missing = missing.into_iter().cloned().collect();
            report.refuse_for(&error);
            for shard in used {
                // Why a header cannot be read has been said; the others still count.
                let _ = count_header(&listing.dir.join(shard), uncounted, report);
            }
            None
        }
    }
}

/// How many files the weights are in, and which others look like some of them.
fn list_shards(listing: &Listing, shards: &BTreeSet<String>, report: &mut Report) {
    report.shards.count = shards.len();
    report.shards.surplus = listing
        .ending(".safetensors")
        .filter(|name| name.starts_with("model") && !shards.contains(*name))
        .map(str::to_owned)
        .collect();
}

/// Counts every safetensors file of a directory and of those inside it, at any depth: autoencoders, adapters, pipelines.
pub(super) fn count_all(listing: &Listing, report: &mut Report) {
    /// Releases of autoencoders have thousands of directories, of which this many are counted.
    const MOST_DIRS: usize = 64;
    let mut inside: Vec<Listing> = Vec::new();
    let mut waiting: VecDeque<PathBuf> = listing.inner_dirs().collect();
    while inside.len() < MOST_DIRS
        && let Some(dir) = waiting.pop_front()
    {
        if let Ok(inner) = Listing::read(&dir) {
            waiting.extend(inner.inner_dirs());
            inside.push(inner);
        }
    }
    // The parts of a model are told apart by names that these things use otherwise.
    let parts = std::mem::take(&mut report.modalities.parts);
    for listing in std::iter::once(listing).chain(&inside) {
        let files: Vec<&str> = weight_files(listing).collect();
        report.shards.count += files.len();
        report.file_bytes = report.file_bytes.saturating_add(listing.bytes(files.iter().copied()));
        for file in files.iter().filter(|file| file.ends_with(".safetensors")) {
            // These things do not run here, so a damaged file among them changes no answer.
            let _ = count_header(&listing.dir.join(file), &|_| false, report);
        }
    }
    report.modalities.parts = parts;
}

/// Counts a file of torch's own format, of which nothing is executed.
pub(super) fn count_torch(path: &Path, report: &mut Report) {
    // Why it cannot be read is said where it is loaded.
    let Ok(checkpoint) = Checkpoint::open_file(path) else { return };
    let parts = std::mem::take(&mut report.modalities.parts);
    report.tensors += checkpoint.tensors().len();
    for tensor in checkpoint.tensors() {
        count(report, &tensor.name, tensor.dtype.name(), tensor.elements() as u64);
    }
    report.modalities.parts = parts;
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
    parts::count(report, name, elements);
    if elements > 0 {
        let sum = report.dtypes.entry(dtype.to_owned()).or_default();
        *sum = sum.saturating_add(elements);
    }
}

/// How many parameters a tensor of quantised weights stands for; scales and the like are none.
pub(super) fn packed(name: &str, dtype: &str, elements: u64, bits: Option<u64>) -> u64 {
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

/// The index of shards, of which only their names are kept.
#[derive(Deserialize)]
struct Index {
    weight_map: Names,
}

struct Names(BTreeSet<String>);

impl<'de> Deserialize<'de> for Names {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Names, D::Error> {
        struct Collect;
        impl<'de> Visitor<'de> for Collect {
            type Value = Names;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map from tensors to files")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Names, A::Error> {
                let mut names = BTreeSet::new();
                while let Some((IgnoredAny, Name(name))) = map.next_entry()? {
                    if !names.contains(name.as_ref()) {
                        names.insert(name.into_owned());
                    }
                }
                Ok(Names(names))
            }
        }
        deserializer.deserialize_map(Collect)
    }
}

#[derive(Deserialize)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

/// The files that a model's weights should be in, by the index or by their own numbering.
fn shards(listing: &Listing, report: &mut Report) -> BTreeSet<String> {
    if listing.has(SINGLE) {
        return BTreeSet::from([SINGLE.to_owned()]);
    }
    match listing.settings(INDEX) {
        Ok(Some(index)) => {
            // What is wrong with an index, opening the weights says. Names that lead elsewhere are not followed.
            let Ok(index) = serde_json::from_slice::<Index>(&index) else { return BTreeSet::new() };
            return index.weight_map.0.into_iter().filter(|name| !name.contains(['/', '\\', '\0'])).collect();
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
    let weights = |name: &&str| -> bool {
        ENDINGS.iter().any(|end| name.ends_with(end)) && !LEFT.iter().any(|start| name.starts_with(start))
    };
    listing.files().filter(weights)
}

/// Counts what the header of a safetensors file lists, even where the data after it is cut off.
fn count_header(path: &Path, uncounted: Uncounted, report: &mut Report) -> Result<(), header::Fault> {
    header::scan(path, &mut |tensor| {
        report.tensors += 1;
        if !uncounted(tensor.name) {
            count(report, tensor.name, tensor.dtype, tensor.elements);
        }
    })
}
