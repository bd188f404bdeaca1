//! The header of one safetensors file, checked in full before a byte of data is looked at.
//!
//! The layout is 8 bytes of little-endian header length, a JSON object, then the data. The checks are done here rather
//! than by the `safetensors` crate because that crate keeps the last of two equal keys and does not say which tensor
//! is at fault.

use std::borrow::Cow;
use std::ops::Range;

use serde::Deserialize;
use serde::de::{Error as _, MapAccess};

use super::StoredType;
use super::pairs::{self, Pairs, Text};

/// The reference implementation refuses longer headers, so no real file has one.
const LONGEST_HEADER: u64 = 100_000_000;
/// What Git leaves in the place of a large file that was not fetched.
pub(crate) const LFS_POINTER: &[u8] = b"version https://git-lfs";
/// How to get what it stands for.
pub(crate) const LFS_REMEDY: &str = "run `git lfs pull` in the model's directory";

/// One tensor of a header; `range` is counted from the start of the file.
pub(super) struct Entry {
    pub name: String,
    pub dtype: StoredType,
    pub shape: Vec<usize>,
    pub range: Range<usize>,
}

/// What is wrong with a file, and what to do about it.
pub(super) struct Fault {
    pub problem: String,
    pub remedy: &'static str,
}

fn fault(problem: impl Into<String>, remedy: &'static str) -> Fault {
    Fault { problem: problem.into(), remedy }
}

const AGAIN: &str = "the file is incomplete: download or copy it again";
const DAMAGED: &str =
    "the file is damaged or was not written by a safetensors library: download it again or convert the model again";

/// What a header holds under a name.
enum Field<'a> {
    Tensor(Info<'a>),
    /// Nothing in it is used, but a file that breaks the format here is not to be trusted elsewhere.
    Metadata,
}

#[derive(Deserialize)]
struct Info<'a> {
    #[serde(borrow)]
    dtype: Cow<'a, str>,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

impl<'de: 'a, 'a> pairs::Entry<'de> for Field<'a> {
    fn read<A: MapAccess<'de>>(name: &str, map: &mut A) -> Result<Self, A::Error> {
        let (read, what) = if name == "__metadata__" {
            let read = map.next_value::<Pairs<'a, Text<'a>>>().map(|_| Field::Metadata);
            (read, "`__metadata__` is not a map of strings".to_owned())
        } else {
            (map.next_value().map(Field::Tensor), format!("tensor `{name}`: its description is not valid"))
        };
        read.map_err(|error| A::Error::custom(format!("{what}: {error}")))
    }
}

/// Reads and checks the header of a whole file; the entries come back in the order of their data.
pub(super) fn read(file: &[u8]) -> Result<Vec<Entry>, Fault> {
    let json = header_bytes(file)?;
    let data_start = 8 + json.len();
    let fields: Pairs<'_, Field<'_>> =
        serde_json::from_slice(json).map_err(|error| fault(format!("the header is not valid: {error}"), DAMAGED))?;

    let mut entries = Vec::with_capacity(fields.0.len());
    for (name, field) in fields.0 {
        if let Field::Tensor(info) = field {
            entries.push(entry(name.into_owned(), info, data_start, file.len())?);
        }
    }
    entries.sort_by_key(|entry| (entry.range.start, entry.range.end));
    check_cover(&entries, data_start..file.len())?;
    Ok(entries)
}

/// The JSON part of the file.
fn header_bytes(file: &[u8]) -> Result<&[u8], Fault> {
    if file.starts_with(LFS_POINTER) {
        return Err(fault("this is a Git LFS pointer, not the weights", LFS_REMEDY));
    }
    let Some((length, rest)) = file.split_first_chunk::<8>() else {
        return Err(fault(format!("the file has {} bytes, too few for a safetensors header", file.len()), AGAIN));
    };
    let length = u64::from_le_bytes(*length);
    if length > LONGEST_HEADER {
        return Err(fault(
            format!("the header claims {length} bytes, and more than {LONGEST_HEADER} is not a safetensors file"),
            DAMAGED,
        ));
    }
    // At most LONGEST_HEADER, which every usize holds.
    rest.get(..length as usize).ok_or_else(|| {
        fault(format!("the header claims {length} bytes, and the file has only {} after its length", rest.len()), AGAIN)
    })
}

/// One tensor's description, checked against itself and against the file's length.
fn entry(name: String, info: Info<'_>, data_start: usize, file_len: usize) -> Result<Entry, Fault> {
    let wrong = |problem: String| fault(format!("tensor `{name}`: {problem}"), DAMAGED);

    let dtype = StoredType::from_name(&info.dtype)
        .ok_or_else(|| wrong(format!("the number format `{}` is not known", info.dtype)))?;

    let overflow = || wrong(format!("the shape {:?} of {dtype} has more bytes than can be addressed", info.shape));
    let shape: Vec<usize> =
        info.shape.iter().map(|&size| usize::try_from(size)).collect::<Result<_, _>>().map_err(|_| overflow())?;
    let elements = shape.iter().try_fold(1usize, |product, &size| product.checked_mul(size)).ok_or_else(overflow)?;
    let bits = elements.checked_mul(dtype.bits()).ok_or_else(overflow)?;
    if bits % 8 != 0 {
        return Err(wrong(format!("the shape {shape:?} of {dtype} does not fill whole bytes")));
    }

    let (start, end) = info.data_offsets;
    if end < start {
        return Err(wrong(format!("its data ends at {end}, before its start {start}")));
    }
    if end - start != (bits / 8) as u64 {
        return Err(wrong(format!(
            "the shape {shape:?} of {dtype} needs {} bytes, its data has {}",
            bits / 8,
            end - start
        )));
    }
    let available = (file_len - data_start) as u64;
    if end > available {
        return Err(fault(
            format!("tensor `{name}`: its data ends at byte {end}, and the file's data has only {available} bytes"),
            AGAIN,
        ));
    }
    // Both are at most the file's length now.
    let range = data_start + start as usize..data_start + end as usize;
    Ok(Entry { name, dtype, shape, range })
}

/// The tensors must cover the data exactly: no byte shared, none left over for something to hide in.
fn check_cover(entries: &[Entry], data: Range<usize>) -> Result<(), Fault> {
    let mut covered = data.start;
    let mut previous = "the header";
    for entry in entries {
        let start = entry.range.start;
        if start < covered {
            return Err(fault(format!("tensors `{previous}` and `{}` overlap", entry.name), DAMAGED));
        }
        if start > covered {
            let gap = start - covered;
            return Err(fault(format!("{gap} bytes before tensor `{}` belong to no tensor", entry.name), DAMAGED));
        }
        covered = entry.range.end;
        previous = &entry.name;
    }
    match data.end - covered {
        0 => Ok(()),
        left => Err(fault(format!("{left} bytes at the end of the file belong to no tensor"), DAMAGED)),
    }
}
