//! Captures and saved values of a run under their names, as the tensors of a safetensors file.

use crate::attach::SaeRecord;
use crate::error::Result;
use crate::model::LoadedModel;
use half::slice::HalfFloatSliceExt;
use pellucid_engine::{Action, Array, Capture, CaptureDtype, Generation, Plan, SavedValue, SparseRows};
use safetensors::{Dtype, View};
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};

/// Captures and saved values of a run.
pub struct Results<'a> {
    /// The plan of the run.
    pub plan: &'a Plan,
    /// Its captures.
    pub captures: &'a [Capture],
    /// The values that the plan saves.
    pub saved: &'a [SavedValue],
    /// Number of rows in the call.
    pub rows: usize,
    /// The autoencoders attached to the model.
    pub saes: Vec<&'a SaeRecord>,
}

impl<'a> Results<'a> {
    /// The results of a generation by a model.
    pub fn of_generation(loaded: &'a LoadedModel, plan: &'a Plan, generation: &'a Generation) -> Results<'a> {
        let Generation { captures, saved, rows, .. } = generation;
        Results { plan, captures, saved, rows: rows.len(), saes: loaded.saes() }
    }

    /// Returns every result with its name: the site (with `.grad` for gradients) or the value's own
    /// name, prefixed by the row if there are several, followed by `@step` in a generation, and
    /// numbered if the name repeats.
    pub fn named(&self) -> Vec<NamedResult<'a>> {
        let mut seen: HashMap<String, usize> = HashMap::new();
        let mut unique = |name: String| {
            let count = seen.entry(name.clone()).or_default();
            *count += 1;
            if *count > 1 { format!("{name}#{count}") } else { name }
        };
        let of_row = |row: Option<usize>, name: String| match row {
            Some(row) if self.rows > 1 => format!("{row}/{name}"),
            _ => name,
        };
        let mut named = Vec::new();
        for capture in self.captures {
            let is_gradient = matches!(self.plan.taps[capture.tap].action, Action::Grad { .. });
            let site = if is_gradient { format!("{}.grad", capture.site) } else { capture.site.to_string() };
            let name = unique(of_row(Some(capture.row), site));
            let sparse = capture.sparse.as_deref().map(|rows| (rows, &capture.positions[..]));
            named.push(NamedResult { name: name.clone(), array: &capture.array, sparse });
            let units = capture.units.as_ref();
            named.extend(units.map(|array| NamedResult { name: format!("{name}.units"), array, sparse: None }));
        }
        for saved in self.saved {
            let value = &self.plan.values[saved.value];
            let name = value.name.clone().unwrap_or_else(|| format!("value{}", saved.value));
            let name = if saved.step > 0 { format!("{name}@{}", saved.step) } else { name };
            named.push(NamedResult { name: unique(of_row(saved.row, name)), array: &saved.array, sparse: None });
        }
        named
    }

    /// Returns the tensors of a file of results. A sparse capture is three tensors: `NAME.indptr`,
    /// `NAME.indices` and `NAME.values`.
    pub fn tensors(&self) -> Vec<(String, ResultView<'a>)> {
        let of = |result: NamedResult<'a>| {
            let NamedResult { name, array, sparse } = result;
            let whole = |name: String| (name, ResultView::new(array.shape(), Elements::Array(array)));
            match sparse {
                None => vec![whole(name)],
                Some((rows, _)) => vec![
                    (format!("{name}.indptr"), ResultView::new(&[rows.indptr.len()], Elements::Offsets(&rows.indptr))),
                    (format!("{name}.indices"), ResultView::new(&[array.len()], Elements::Indices(&rows.indices))),
                    whole(format!("{name}.values")),
                ],
            }
        };
        self.named().into_iter().flat_map(of).collect()
    }

    /// Returns the metadata of a file of results, as JSON texts: `sparse`, the dense shapes of
    /// sparse captures by name; `saes`, the attached autoencoders. `None` if there are neither.
    pub fn metadata(&self) -> Option<HashMap<String, String>> {
        let shape = |result: NamedResult| Some((result.name, result.sparse?.0.shape()));
        let shapes: BTreeMap<String, [usize; 2]> = self.named().into_iter().filter_map(shape).collect();
        let mut metadata = HashMap::new();
        if !shapes.is_empty() {
            metadata.insert("sparse".to_string(), serde_json::json!(shapes).to_string());
        }
        if !self.saes.is_empty() {
            metadata.insert("saes".to_string(), serde_json::json!(self.saes).to_string());
        }
        (!metadata.is_empty()).then_some(metadata)
    }

    /// Returns the content of a safetensors file of these results.
    pub fn to_safetensors(&self) -> Result<Vec<u8>> {
        safetensors::serialize(self.tensors(), self.metadata())
            .map_err(|error| pellucid_engine::Error::Internal(error.to_string()).into())
    }
}

/// An array with its name.
pub struct NamedResult<'a> {
    /// The name.
    pub name: String,
    /// The elements; of a sparse capture the nonzero ones.
    pub array: &'a Array,
    /// The places of the elements of a sparse capture, and the positions of its rows.
    pub sparse: Option<(&'a SparseRows, &'a [usize])>,
}

/// A tensor of a safetensors file.
pub struct ResultView<'a> {
    /// The shape.
    pub shape: Vec<usize>,
    elements: Elements<'a>,
}

#[derive(Clone, Copy)]
enum Elements<'a> {
    Array(&'a Array),
    /// Columns of the elements of a sparse capture.
    Indices(&'a [u32]),
    /// Offsets of its rows.
    Offsets(&'a [usize]),
}

impl<'a> ResultView<'a> {
    fn new(shape: &[usize], elements: Elements<'a>) -> ResultView<'a> {
        ResultView { shape: shape.to_vec(), elements }
    }
}

impl View for ResultView<'_> {
    fn dtype(&self) -> Dtype {
        match self.elements {
            Elements::Indices(_) | Elements::Offsets(_) => Dtype::I64,
            Elements::Array(array) => match array.dtype() {
                _ if array.is_integer() => Dtype::I64,
                CaptureDtype::F32 => Dtype::F32,
                CaptureDtype::Bf16 => Dtype::BF16,
            },
        }
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        let integers = |values: &mut dyn Iterator<Item = i64>| Cow::Owned(values.flat_map(i64::to_le_bytes).collect());
        match self.elements {
            Elements::Indices(indices) => integers(&mut indices.iter().map(|&index| i64::from(index))),
            Elements::Offsets(offsets) => integers(&mut offsets.iter().map(|&offset| offset as i64)),
            Elements::Array(array) => match array.halves() {
                _ if array.is_integer() => integers(&mut array.values().iter().map(|&x| x as i64)),
                Some(halves) => le_bytes(halves.reinterpret_cast(), |x| x.to_le_bytes()),
                None => le_bytes(array.values(), |x| x.to_le_bytes()),
            },
        }
    }

    fn data_len(&self) -> usize {
        let bytes = match self.elements {
            Elements::Array(array) if !array.is_integer() => array.dtype().bytes(),
            _ => 8,
        };
        bytes * self.shape.iter().product::<usize>()
    }
}

/// The bytes of floats, little endian. Large captures are not copied where memory has that order.
fn le_bytes<T: bytemuck::NoUninit, const N: usize>(elements: &[T], bytes: impl Fn(&T) -> [u8; N]) -> Cow<'_, [u8]> {
    match cfg!(target_endian = "little") {
        true => Cow::Borrowed(bytemuck::cast_slice(elements)),
        false => Cow::Owned(elements.iter().flat_map(bytes).collect()),
    }
}
