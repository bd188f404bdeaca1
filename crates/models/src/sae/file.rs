//! The weights file of an autoencoder: tensors of checked shape, from safetensors, a PyTorch
//! pickle (never executed) or a NumPy archive.
//!
//! A reader asks for each tensor by name and shape, then calls [`WeightFile::finish`], which
//! rejects a file with tensors that nothing asked for: they may belong to an architecture that
//! computes something else.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::npz::{self, NpyData};
use super::view::{Element, MatrixView};
use crate::checkpoint::{Checkpoint, StoredType, Tensor};
use crate::files::{FETCH_LFS, LFS_POINTER};
use crate::mapped::MappedFile;
use crate::{Error, Result};

/// Weights whose shapes are checked as they are read.
pub(super) struct WeightFile {
    pub path: PathBuf,
    arrays: BTreeMap<String, StoredArray>,
    used: RefCell<BTreeSet<String>>,
}

struct StoredArray {
    shape: Vec<usize>,
    strides: Vec<usize>,
    /// The stored dtype's name if it has no floats.
    element: std::result::Result<Element, String>,
    integer: Option<StoredType>,
    bytes: Bytes,
}

/// Bytes of a stored tensor, which keep their file mapped.
#[derive(Clone)]
pub(super) struct Bytes {
    source: Arc<Source>,
    part: Part,
}

enum Source {
    Checkpoint(Checkpoint),
    Archive { map: Arc<MappedFile>, inflated: Vec<Vec<u8>> },
}

#[derive(Clone)]
enum Part {
    Tensor(Tensor),
    Range(Range<usize>),
    Inflated(usize),
}

impl Bytes {
    pub fn get(&self) -> &[u8] {
        match (&*self.source, &self.part) {
            (Source::Checkpoint(checkpoint), Part::Tensor(tensor)) => checkpoint.bytes(tensor),
            (Source::Archive { map, .. }, Part::Range(range)) => &map[range.clone()],
            (Source::Archive { inflated, .. }, Part::Inflated(index)) => &inflated[*index],
            _ => &[],
        }
    }

    /// The mapped file that holds them; `None` if they are in memory.
    pub fn mapped(&self) -> Option<&Arc<MappedFile>> {
        match (&*self.source, &self.part) {
            (Source::Checkpoint(checkpoint), Part::Tensor(tensor)) => checkpoint.mapped(tensor),
            (Source::Archive { map, .. }, Part::Range(_)) => Some(map),
            _ => None,
        }
    }

    /// Copies bytes from `at` on, without making the file's pages resident.
    pub fn copy(&self, at: usize, out: &mut [u8]) {
        match (&*self.source, &self.part) {
            (Source::Checkpoint(checkpoint), Part::Tensor(tensor)) => checkpoint.copy(tensor, at, out),
            _ => out.copy_from_slice(&self.get()[at..at + out.len()]),
        }
    }

    /// Releases the resident pages of the file, for a tensor that has been copied.
    pub fn release_pages(&self) {
        if let (Source::Checkpoint(checkpoint), Part::Tensor(tensor)) = (&*self.source, &self.part) {
            checkpoint.release_pages(tensor);
        }
    }
}

/// An expected dimension: its name and size.
pub(super) type Dim = (&'static str, usize);

/// `[d_in 5, n_features 12]`
fn describe_dims(dims: &[Dim]) -> String {
    let parts: Vec<String> = dims.iter().map(|(name, size)| format!("{name} {size}")).collect();
    format!("[{}]", parts.join(", "))
}

impl WeightFile {
    /// Opens a `.npz`, `.safetensors` or PyTorch file.
    pub fn open(path: &Path) -> Result<WeightFile> {
        let arrays = if path.extension().is_some_and(|ending| ending == "npz") {
            open_archive(path)?
        } else {
            open_checkpoint(path)?
        };
        Ok(WeightFile { path: path.to_owned(), arrays, used: RefCell::default() })
    }

    pub fn has(&self, name: &str) -> bool {
        self.arrays.contains_key(name)
    }

    /// The first of these names that the file has.
    pub fn first<'n>(&self, names: &[&'n str]) -> Option<&'n str> {
        names.iter().find(|name| self.has(name)).copied()
    }

    /// Shape of a tensor.
    pub fn shape(&self, name: &str) -> Result<&[usize]> {
        self.array(name).map(|array| array.shape.as_slice())
    }

    /// Length of a vector. A tensor with another number of axes is an error.
    pub fn len(&self, name: &str) -> Result<usize> {
        match self.shape(name)? {
            [len] => Ok(*len),
            shape => Err(self.wrong(name, format!("its shape is {shape:?}; expected a vector"))),
        }
    }

    /// An error about a tensor.
    pub fn wrong(&self, name: &str, problem: impl std::fmt::Display) -> Error {
        Error::invalid(
            &self.path,
            format!("tensor `{name}`: {problem}"),
            "check that the weights and their settings file belong together, and download them again",
        )
    }

    fn array(&self, name: &str) -> Result<&StoredArray> {
        self.used.borrow_mut().insert(name.to_owned());
        self.arrays.get(name).ok_or_else(|| {
            let names: Vec<&str> = self.arrays.keys().map(String::as_str).take(12).collect();
            self.wrong(name, format!("it is missing; the file has {}", names.join(", ")))
        })
    }

    fn float(&self, name: &str) -> Result<(&StoredArray, Element)> {
        let array = self.array(name)?;
        match &array.element {
            Ok(element) => Ok((array, *element)),
            Err(dtype) => Err(self.wrong(name, format!("its dtype is {dtype}; expected f32, f16, bf16 or f64"))),
        }
    }

    fn check_shape(&self, name: &str, shape: &[usize], dims: &[Dim]) -> Result<()> {
        let expected: Vec<usize> = dims.iter().map(|dim| dim.1).collect();
        if shape == expected {
            return Ok(());
        }
        let reversed = expected.iter().rev().eq(shape);
        let transposed = if reversed { "; it is transposed" } else { "" };
        Err(self.wrong(name, format!("its shape is {shape:?}; expected {}{transposed}", describe_dims(dims))))
    }

    /// Returns a matrix of this shape.
    pub fn matrix(&self, name: &str, dims: [Dim; 2]) -> Result<MatrixView> {
        let (array, element) = self.float(name)?;
        self.check_shape(name, &array.shape, &dims)?;
        Ok(MatrixView {
            bytes: array.bytes.clone(),
            element,
            rows: dims[0].1,
            cols: dims[1].1,
            offset: 0,
            row_stride: array.strides[0],
            col_stride: array.strides[1],
        })
    }

    /// Returns the matrices of a tensor with three axes, along axis `axis`.
    pub fn slices(&self, name: &str, dims: [Dim; 3], axis: usize) -> Result<Vec<MatrixView>> {
        let (array, element) = self.float(name)?;
        self.check_shape(name, &array.shape, &dims)?;
        let rest: Vec<usize> = (0..3).filter(|&other| other != axis).collect();
        let slice = |index: usize| MatrixView {
            bytes: array.bytes.clone(),
            element,
            rows: dims[rest[0]].1,
            cols: dims[rest[1]].1,
            offset: index * array.strides[axis],
            row_stride: array.strides[rest[0]],
            col_stride: array.strides[rest[1]],
        };
        Ok((0..dims[axis].1).map(slice).collect())
    }

    /// Returns a finite vector of this length.
    pub fn vector(&self, name: &str, dim: Dim) -> Result<Vec<f32>> {
        let (array, element) = self.float(name)?;
        self.check_shape(name, &array.shape, &[dim])?;
        self.decode(name, array, element)
    }

    /// Returns a finite scalar, stored with no axis or with one element.
    pub fn scalar(&self, name: &str) -> Result<f32> {
        let (array, element) = self.float(name)?;
        if !matches!(array.shape[..], [] | [1]) {
            return Err(self.wrong(name, format!("its shape is {:?}; expected a scalar", array.shape)));
        }
        Ok(self.decode(name, array, element)?[0])
    }

    /// Returns a scalar integer, such as k.
    pub fn integer(&self, name: &str) -> Result<usize> {
        let array = self.array(name)?;
        let bytes = array.bytes.get();
        let value = match (array.integer, bytes) {
            (Some(StoredType::I32), &[a, b, c, d]) => Some(i64::from(i32::from_le_bytes([a, b, c, d]))),
            (Some(StoredType::I64), bytes) if bytes.len() == 8 => bytes.try_into().ok().map(i64::from_le_bytes),
            _ => None,
        };
        let value = value.and_then(|value| usize::try_from(value).ok());
        value.ok_or_else(|| self.wrong(name, "expected one non-negative integer"))
    }

    fn decode(&self, name: &str, array: &StoredArray, element: Element) -> Result<Vec<f32>> {
        let view = MatrixView {
            bytes: array.bytes.clone(),
            element,
            rows: 1,
            cols: array.shape.first().copied().unwrap_or(1),
            offset: 0,
            row_stride: 0,
            col_stride: array.strides.first().copied().unwrap_or(1),
        };
        let mut values = vec![0.0; view.cols];
        view.row(0, &mut values);
        match values.iter().position(|x| !x.is_finite()) {
            Some(at) => Err(self.wrong(name, format!("element {at} is {}", values[at]))),
            None => Ok(values),
        }
    }

    /// Marks tensors as known that do not change the results.
    pub fn ignore(&self, names: &[&str]) {
        self.used.borrow_mut().extend(names.iter().map(|name| name.to_string()));
    }

    /// Checks that every tensor of the file was used or is known.
    pub fn finish(&self) -> Result<()> {
        let used = self.used.borrow();
        let unknown: Vec<&str> = self.arrays.keys().map(String::as_str).filter(|name| !used.contains(*name)).collect();
        if unknown.is_empty() {
            return Ok(());
        }
        Err(Error::unsupported(
            format!(
                "{}: unknown tensor{} `{}`, which could change the results",
                self.path.display(),
                if unknown.len() == 1 { "" } else { "s" },
                unknown.join("`, `")
            ),
            "this variant of the format is not supported; remove the tensors if they belong to training only",
        ))
    }
}

/// Row-major strides of a shape.
fn row_major(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; shape.len()];
    for axis in (1..shape.len()).rev() {
        strides[axis - 1] = strides[axis] * shape[axis];
    }
    strides
}

fn open_checkpoint(path: &Path) -> Result<BTreeMap<String, StoredArray>> {
    let source = Arc::new(Source::Checkpoint(Checkpoint::open_strided(path)?));
    let Source::Checkpoint(checkpoint) = &*source else { return Ok(BTreeMap::new()) };
    let arrays = checkpoint.tensors().map(|tensor| {
        let element = match tensor.dtype {
            StoredType::F32 => Ok(Element::F32),
            StoredType::F16 => Ok(Element::F16),
            StoredType::Bf16 => Ok(Element::Bf16),
            StoredType::F64 => Ok(Element::F64),
            other => Err(other.name().to_owned()),
        };
        let array = StoredArray {
            shape: tensor.shape.clone(),
            strides: checkpoint.strides(tensor).map_or_else(|| row_major(&tensor.shape), <[usize]>::to_vec),
            integer: element.is_err().then_some(tensor.dtype),
            element,
            bytes: Bytes { source: source.clone(), part: Part::Tensor(tensor.clone()) },
        };
        (tensor.name.clone(), array)
    });
    Ok(arrays.collect())
}

fn open_archive(path: &Path) -> Result<BTreeMap<String, StoredArray>> {
    let map = Arc::new(MappedFile::open(path)?);
    if map.is_empty() {
        return Err(Error::invalid(path, "the file is empty", "download it again"));
    }
    if map.starts_with(LFS_POINTER) {
        return Err(Error::invalid(path, "this is a Git LFS pointer, not the weights", FETCH_LFS));
    }
    let mut inflated = Vec::new();
    let mut found = Vec::new();
    for array in npz::read(&map, path)? {
        let part = match array.data {
            NpyData::Stored(range) => Part::Range(range),
            NpyData::Inflated(bytes) => {
                inflated.push(bytes);
                Part::Inflated(inflated.len() - 1)
            }
        };
        let strides = if array.column_major {
            let reversed: Vec<usize> = array.shape.iter().rev().copied().collect();
            row_major(&reversed).into_iter().rev().collect()
        } else {
            row_major(&array.shape)
        };
        found.push((array.name, array.shape, strides, array.dtype, part));
    }
    let source = Arc::new(Source::Archive { map, inflated });
    let arrays = found.into_iter().map(|(name, shape, strides, element, part)| {
        let bytes = Bytes { source: source.clone(), part };
        (name, StoredArray { shape, strides, element, integer: None, bytes })
    });
    Ok(arrays.collect())
}
