//! `pytorch_model.bin`: the zip archives of `torch.save`, read in place.
//!
//! The archive contains one pickle, which describes the tensors (`pickle`), and one raw member per
//! storage. Members are not compressed, so a tensor is a range of the mapped file, as in
//! safetensors.

use super::header::{FileFault, TensorEntry};
use super::pickle::{self, TensorDescription};
use crate::escape;
use crate::files::{FETCH_LFS, LFS_POINTER};
use std::collections::HashMap;
use std::io::{Cursor, Read};
use std::ops::Range;

const DAMAGED: &str = "the file is incomplete or damaged: download or copy it again";
/// Remedy for a file that has to be converted.
pub(super) const CONVERT: &str = "convert it once, where you trust its origin: python -c \"import torch; from safetensors.torch import save_file; \
                       save_file({k: v.contiguous().clone() for k, v in torch.load('FILE', weights_only=True).items()}, \
                       'model.safetensors', {'format': 'pt'})\"";

/// Remedy if the whole model has to be saved again.
pub(super) const RESAVE: &str = "convert it once, where you trust its origin: \
                                    python -c \"from transformers import AutoModelForCausalLM as A; \
                                    A.from_pretrained('DIR').save_pretrained('NEW_DIR', safe_serialization=True)\"";

/// Limit of the pickle's size; real ones have a few megabytes at most.
const MAX_PICKLE_BYTES: u64 = 64 << 20;

fn fault(problem: impl Into<String>, remedy: &'static str) -> FileFault {
    FileFault { problem: problem.into(), remedy }
}

/// Whether a file is in PyTorch's format, by its first bytes or its name. A safetensors file starts
/// with the length of its header, 8 bytes, and the header, a JSON object; its name does not matter.
pub(super) fn is_torch(name: &str, file: &[u8]) -> bool {
    let is_safetensors = file.get(8) == Some(&b'{');
    file.starts_with(b"PK\x03\x04") || !is_safetensors && [".bin", ".pt", ".pth"].iter().any(|end| name.ends_with(end))
}

/// Reads and checks the pickle of a complete file; returns the entries in the order of their data.
pub(super) fn read(file: &[u8]) -> Result<Vec<TensorEntry>, FileFault> {
    if file.starts_with(LFS_POINTER) {
        return Err(fault("this is a Git LFS pointer, not the weights", FETCH_LFS));
    }
    if !file.starts_with(b"PK") {
        return Err(match file.first() {
            Some(0x80) => {
                fault("a file of PyTorch before version 1.6, which is one pickle and is never unpickled", RESAVE)
            }
            _ => fault(format!("{} bytes that are not a PyTorch file", file.len()), DAMAGED),
        });
    }
    let members = ArchiveMembers::read(file)?;
    let mut entries = Vec::new();
    for (name, tensor) in pickle::tensors(members.pickle)? {
        entries.push(members.entry(&name, &tensor)?);
    }
    entries.sort_by_key(|entry| (entry.range.start, entry.range.end));
    Ok(entries)
}

/// The members of the archive.
struct ArchiveMembers<'a> {
    pickle: &'a [u8],
    /// Byte range of each storage in the file, by its key.
    storages: HashMap<String, Range<usize>>,
}

impl<'a> ArchiveMembers<'a> {
    fn read(file: &'a [u8]) -> Result<ArchiveMembers<'a>, FileFault> {
        let bad = |error: zip::result::ZipError| fault(format!("not a valid zip archive: {error}"), DAMAGED);
        let mut archive = zip::ZipArchive::new(Cursor::new(file)).map_err(bad)?;
        let (mut pickle, mut storages) = (None, HashMap::new());
        for index in 0..archive.len() {
            let mut member = archive.by_index_raw(index).map_err(bad)?;
            let name = member.name().map_err(bad)?.into_owned();
            // All members are in one folder of any name.
            let Some((_, inside)) = name.split_once('/') else { continue };
            let inside = inside.to_owned();
            if inside == "byteorder" {
                let mut order = String::new();
                member
                    .by_ref()
                    .take(16)
                    .read_to_string(&mut order)
                    .map_err(|error| fault(error.to_string(), DAMAGED))?;
                if order.trim() != "little" {
                    return Err(fault(format!("its byte order is {:?}", order.trim()), CONVERT));
                }
            }
            let wanted = inside == "data.pkl" || inside.starts_with("data/");
            if !wanted {
                continue;
            }
            if member.compression() != zip::CompressionMethod::Stored || member.encrypted() {
                return Err(fault(format!("its member {name} is compressed or encrypted"), CONVERT));
            }
            let range = range(member.data_start(), member.size(), file.len());
            let range =
                range.ok_or_else(|| fault(format!("its member {name} extends past the end of the file"), DAMAGED))?;
            if inside == "data.pkl" {
                if member.size() > MAX_PICKLE_BYTES {
                    return Err(fault(format!("its pickle has {} bytes", member.size()), DAMAGED));
                }
                pickle = Some(&file[range]);
            } else if let Some(key) = inside.strip_prefix("data/") {
                storages.insert(key.to_owned(), range);
            }
        }
        let pickle =
            pickle.ok_or_else(|| fault("the archive has no data.pkl, so it is not a PyTorch file", DAMAGED))?;
        Ok(ArchiveMembers { pickle, storages })
    }

    /// Locates a tensor in the file and checks it against its storage.
    fn entry(&self, name: &str, tensor: &TensorDescription) -> Result<TensorEntry, FileFault> {
        let wrong = |problem: String, remedy| fault(format!("tensor `{}`: {problem}", escape::text(name, 200)), remedy);
        let TensorDescription { storage, offset, shape, strides } = tensor;
        let range = self.storages.get(&*storage.key);
        let range = range
            .ok_or_else(|| wrong(format!("its storage `{}` is missing", escape::text(&storage.key, 200)), DAMAGED))?;
        let size = (storage.dtype.bits() / 8) as u64;
        if storage.elements.checked_mul(size) != Some(range.len() as u64) {
            let has = range.len();
            return Err(wrong(
                format!("{} elements of {} in a storage of {has} bytes", storage.elements, storage.dtype),
                DAMAGED,
            ));
        }
        let (contiguous, size_in_storage) = (is_contiguous(shape, strides), extent(shape, strides));
        let end = size_in_storage.and_then(|size| size.checked_add(*offset)).filter(|end| *end <= storage.elements);
        let (Some(extent), Some(_)) = (size_in_storage, end) else {
            return Err(wrong(
                format!("the shape {shape:?} at offset {offset} extends past the end of its storage"),
                DAMAGED,
            ));
        };
        // An expanded tensor repeats elements, so its size is not limited by the file's.
        let elements = shape.iter().try_fold(1u64, |product, size| product.checked_mul(*size));
        if elements.is_none_or(|elements| elements > extent) {
            return Err(wrong(format!("it is not contiguous (strides {strides:?}, shape {shape:?})"), CONVERT));
        }
        // All of these are at most the file's length here.
        let start = range.start + (offset * size) as usize;
        let range = start..start + (extent * size) as usize;
        let usizes = |list: &[u64]| list.iter().map(|size| *size as usize).collect();
        let strides = (!contiguous && extent > 0).then(|| usizes(strides));
        Ok(TensorEntry { name: name.to_owned(), dtype: storage.dtype, shape: usizes(shape), range, strides })
    }
}

/// Number of elements from the first to the last of a tensor, inclusive; 0 if it is empty. `None`
/// if it overflows or if a dimension has no stride.
fn extent(shape: &[u64], strides: &[u64]) -> Option<u64> {
    if shape.len() != strides.len() {
        return None;
    }
    if shape.contains(&0) {
        return Some(0);
    }
    let mut steps = shape.iter().zip(strides).filter(|(size, _)| **size > 1);
    steps.try_fold(1u64, |extent, (size, stride)| extent.checked_add((size - 1).checked_mul(*stride)?))
}

fn range(start: Option<u64>, size: u64, file: usize) -> Option<Range<usize>> {
    let start = usize::try_from(start?).ok()?;
    let end = start.checked_add(usize::try_from(size).ok()?)?;
    (end <= file).then_some(start..end)
}

/// Whether the strides are row-major; the stride of a dimension of size one is ignored.
fn is_contiguous(shape: &[u64], strides: &[u64]) -> bool {
    let mut expected = 1u64;
    shape.len() == strides.len()
        && shape.iter().zip(strides).rev().all(|(size, stride)| {
            let fits = *size == 1 || *stride == expected;
            expected = expected.saturating_mul(*size);
            fits
        })
}
