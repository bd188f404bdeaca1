//! Parses and validates the header of a safetensors file before any data is read.
//!
//! Layout: 8 bytes of little-endian header length, a JSON object, then the data. The `safetensors`
//! crate is not used because it silently keeps the last of two equal keys and its errors do not
//! name the tensor.

use std::borrow::Cow;
use std::ops::Range;

use serde::Deserialize;
use serde::de::{Error as _, MapAccess};

use super::StoredType;
use super::pairs::{self, Pairs, Text};
use crate::files::{FETCH_LFS, LFS_POINTER};

/// The limit of the reference implementation.
const MAX_HEADER_BYTES: u64 = 100_000_000;

/// One tensor of a header; `range` is in bytes from the start of the file.
pub(super) struct TensorEntry {
    pub name: String,
    pub dtype: StoredType,
    pub shape: Vec<usize>,
    pub range: Range<usize>,
    /// Strides in elements; `None` if the tensor is contiguous (row-major).
    pub strides: Option<Vec<usize>>,
}

/// A problem of a file, and its remedy.
pub(super) struct FileFault {
    pub problem: String,
    pub remedy: &'static str,
}

fn fault(problem: impl Into<String>, remedy: &'static str) -> FileFault {
    FileFault { problem: problem.into(), remedy }
}

const INCOMPLETE: &str = "the file is incomplete: download or copy it again";
const DAMAGED: &str =
    "the file is damaged or was not written by a safetensors library: download it again or convert the model again";

/// A value of the header object.
enum Field<'a> {
    Tensor(TensorInfo<'a>),
    /// `__metadata__`: checked even if it is unused, because a file that violates the format is
    /// rejected.
    Metadata(Pairs<'a, Text<'a>>),
}

#[derive(Deserialize)]
struct TensorInfo<'a> {
    #[serde(borrow)]
    dtype: Cow<'a, str>,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

impl<'de: 'a, 'a> pairs::ReadValue<'de> for Field<'a> {
    fn read<A: MapAccess<'de>>(name: &str, map: &mut A) -> Result<Self, A::Error> {
        let (field, context) = if name == "__metadata__" {
            let field = map.next_value().map(Field::Metadata);
            (field, "`__metadata__` is not a map of strings".to_owned())
        } else {
            (map.next_value().map(Field::Tensor), format!("tensor `{name}`: its description is not valid"))
        };
        field.map_err(|error| A::Error::custom(format!("{context}: {error}")))
    }
}

/// Reads and checks the header of a complete file; returns the entries in the order of their data.
pub(super) fn read(file: &[u8]) -> Result<Vec<TensorEntry>, FileFault> {
    let json = header_bytes(file)?;
    let data_start = 8 + json.len();
    let fields = parse_fields(json)?;

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

/// Returns the pairs of `__metadata__`; empty if the file has none.
pub(super) fn read_metadata(file: &[u8]) -> Result<Vec<(String, String)>, FileFault> {
    let fields = parse_fields(header_bytes(file)?)?.0.into_iter();
    let metadata = fields.filter_map(|(_, field)| match field {
        Field::Metadata(pairs) => Some(pairs.0),
        Field::Tensor(_) => None,
    });
    Ok(metadata.flatten().map(|(key, Text(value))| (key.into_owned(), value.into_owned())).collect())
}

fn parse_fields(json: &[u8]) -> Result<Pairs<'_, Field<'_>>, FileFault> {
    serde_json::from_slice(json).map_err(|error| fault(format!("the header is not valid: {error}"), DAMAGED))
}

/// The JSON header of the file.
fn header_bytes(file: &[u8]) -> Result<&[u8], FileFault> {
    if file.starts_with(LFS_POINTER) {
        return Err(fault("this is a Git LFS pointer, not the weights", FETCH_LFS));
    }
    let Some((length, rest)) = file.split_first_chunk::<8>() else {
        return Err(fault(format!("the file has {} bytes, too few for a safetensors header", file.len()), INCOMPLETE));
    };
    let length = u64::from_le_bytes(*length);
    if length > MAX_HEADER_BYTES {
        return Err(fault(
            format!("the header length is {length} bytes; safetensors allows at most {MAX_HEADER_BYTES}"),
            DAMAGED,
        ));
    }
    // At most MAX_HEADER_BYTES, which fits any usize.
    rest.get(..length as usize).ok_or_else(|| {
        fault(format!("the header length is {length} bytes, but only {} bytes follow", rest.len()), INCOMPLETE)
    })
}

/// Checks one tensor's description for consistency and against the file's length.
fn entry(name: String, info: TensorInfo<'_>, data_start: usize, file_len: usize) -> Result<TensorEntry, FileFault> {
    let wrong = |problem: String| fault(format!("tensor `{name}`: {problem}"), DAMAGED);

    let dtype = StoredType::from_name(&info.dtype).ok_or_else(|| wrong(format!("unknown dtype `{}`", info.dtype)))?;

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
            INCOMPLETE,
        ));
    }
    // Both offsets are at most the file's length here.
    let range = data_start + start as usize..data_start + end as usize;
    Ok(TensorEntry { name, dtype, shape, range, strides: None })
}

/// Checks that the tensors cover the data exactly: no byte is shared and none is left over.
fn check_cover(entries: &[TensorEntry], data: Range<usize>) -> Result<(), FileFault> {
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
