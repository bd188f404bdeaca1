//! NumPy archives (`.npz`): a zip file with one `.npy` array per member.
//!
//! Members that are not compressed (`numpy.savez`) are read from the mapped file in place.

use std::io::{Cursor, Read};
use std::ops::Range;
use std::path::Path;

use super::view::Element;
use crate::{Error, Result};

/// An array of the archive.
pub(super) struct NpyArray {
    pub name: String,
    pub shape: Vec<usize>,
    /// `None` for dtypes other than floats; holds numpy's name (`<i8`).
    pub dtype: std::result::Result<Element, String>,
    pub column_major: bool,
    pub data: NpyData,
}

/// Position of an array's elements.
pub(super) enum NpyData {
    /// Range in the archive.
    Stored(Range<usize>),
    /// Decompressed.
    Inflated(Vec<u8>),
}

const DAMAGED: &str = "the file is incomplete or damaged: download it again";
/// Limit of a decompressed member: the largest published arrays have 10 GB.
const MAX_BYTES: u64 = 64 << 30;

/// Lists the arrays of an archive.
pub(super) fn read(file: &[u8], path: &Path) -> Result<Vec<NpyArray>> {
    let bad = |problem: String| Error::invalid(path, problem, DAMAGED);
    let mut archive = zip::ZipArchive::new(Cursor::new(file))
        .map_err(|error| bad(format!("not a NumPy archive (a zip file of .npy members): {error}")))?;
    let mut arrays = Vec::new();
    for index in 0..archive.len() {
        let (name, stored, size) = {
            let member = archive.by_index_raw(index).map_err(|error| bad(error.to_string()))?;
            let name = member.name().map_err(|error| bad(error.to_string()))?.into_owned();
            let start = member.data_start().and_then(|start| usize::try_from(start).ok());
            let end = start.zip(usize::try_from(member.size()).ok()).and_then(|(start, size)| start.checked_add(size));
            let stored = (member.compression() == zip::CompressionMethod::Stored && !member.encrypted())
                .then(|| start.zip(end).filter(|(_, end)| *end <= file.len()));
            (name, stored, member.size())
        };
        let Some(array) = name.strip_suffix(".npy") else { continue };
        let array = array.to_owned();
        let wrong = |problem: String| bad(format!("array `{array}`: {problem}"));
        let (header, data) = match stored {
            Some(None) => return Err(wrong("it extends past the end of the file".into())),
            Some(Some((start, end))) => {
                let header = NpyHeader::read(&file[start..end]).map_err(&wrong)?;
                let range = start + header.length..end;
                (header, NpyData::Stored(range))
            }
            None if size > MAX_BYTES => return Err(wrong(format!("it has {size} bytes"))),
            None => {
                let mut bytes = Vec::new();
                let mut member = archive.by_index(index).map_err(|error| bad(error.to_string()))?;
                member.by_ref().take(MAX_BYTES).read_to_end(&mut bytes).map_err(|error| wrong(error.to_string()))?;
                let header = NpyHeader::read(&bytes).map_err(&wrong)?;
                bytes.drain(..header.length);
                (header, NpyData::Inflated(bytes))
            }
        };
        let held = match &data {
            NpyData::Stored(range) => range.len(),
            NpyData::Inflated(bytes) => bytes.len(),
        };
        if let Ok(element) = header.dtype {
            let needed = header.shape.iter().try_fold(element.size(), |bytes, &size| bytes.checked_mul(size));
            if needed != Some(held) {
                return Err(wrong(format!("the shape {:?} does not fit its {held} bytes", header.shape)));
            }
        }
        let NpyHeader { shape, dtype, column_major, .. } = header;
        arrays.push(NpyArray { name: array, shape, dtype, column_major, data });
    }
    Ok(arrays)
}

/// Header of a `.npy` file, a Python dictionary:
/// `{'descr': '<f4', 'fortran_order': False, 'shape': (2304, 16384), }`.
struct NpyHeader {
    shape: Vec<usize>,
    dtype: std::result::Result<Element, String>,
    column_major: bool,
    /// Bytes before the data.
    length: usize,
}

impl NpyHeader {
    fn read(bytes: &[u8]) -> std::result::Result<NpyHeader, String> {
        let short = || "its header is incomplete".to_owned();
        let rest = bytes.strip_prefix(b"\x93NUMPY").ok_or("it does not start like a .npy file")?;
        let (start, length) = match rest {
            [1, _, a, b, ..] => (10, usize::from(u16::from_le_bytes([*a, *b]))),
            [2 | 3, _, a, b, c, d, ..] => (12, u32::from_le_bytes([*a, *b, *c, *d]) as usize),
            [version, ..] => return Err(format!("its .npy version {version} is unknown")),
            [] => return Err(short()),
        };
        let length = start + length;
        let text = bytes.get(start..length).ok_or_else(short)?;
        let text = std::str::from_utf8(text).map_err(|_| "its header is not text")?;
        let value = |key: &str| text.split_once(&format!("'{key}':")).map(|(_, rest)| rest.trim_start());
        let descr = value("descr").and_then(|rest| rest.strip_prefix('\'')?.split_once('\'')).ok_or_else(short)?.0;
        let column_major = match value("fortran_order") {
            Some(rest) if rest.starts_with("True") => true,
            Some(rest) if rest.starts_with("False") => false,
            _ => return Err(short()),
        };
        let shape = value("shape").and_then(|rest| rest.strip_prefix('(')?.split_once(')')).ok_or_else(short)?.0;
        let sizes = shape.split(',').map(str::trim).filter(|size| !size.is_empty()).map(|size| size.parse::<usize>());
        let shape = sizes.collect::<std::result::Result<_, _>>().map_err(|_| short())?;
        let dtype = match descr {
            "<f4" => Ok(Element::F32),
            "<f2" => Ok(Element::F16),
            "<f8" => Ok(Element::F64),
            other => Err(other.to_owned()),
        };
        Ok(NpyHeader { shape, dtype, column_major, length })
    }
}
