//! Results: a safetensors file whose metadata describes each array.

use super::calls::value_id;
use crate::error::{Error, Result};
use half::bf16;
use pellucid_engine::plan::Value;
use pellucid_engine::{
    Array, Capture, Finish, GeneratedRow, Generation, LookupStats, Mark, NanOrigin, Plan, RowLogprobs, Run, SavedValue,
    Site, SparseRows,
};
use safetensors::{Dtype, SafeTensors, View};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// Key of the metadata.
const KEY: &str = "pellucid";

/// Everything that a call returns.
#[derive(Debug, Default)]
pub struct WireResults {
    /// The captures, in plan order.
    pub captures: Vec<Capture>,
    /// The saved values.
    pub saved: Vec<SavedValue>,
    /// Where marks held.
    pub marks: Vec<Mark>,
    /// Sites that patterns skipped.
    pub passed_over: Vec<Site>,
    /// Tokens of each row that came from the prefix cache.
    pub reused: Vec<usize>,
    /// Generated rows.
    pub rows: Vec<GeneratedRow>,
    /// Time of the run, or of prefill.
    pub first: Duration,
    /// Time of decoding.
    pub decode: Duration,
    /// Where the first NaN appears, if that was asked for and found.
    pub nan: Option<NanOrigin>,
    /// The first activation of a generation that is not finite, in words.
    pub non_finite: Option<String>,
}

impl WireResults {
    /// The results of a run.
    pub fn of_run(run: Run, time: Duration, nan: Option<NanOrigin>) -> WireResults {
        let Run { captures, saved, marks, passed_over, reused, .. } = run;
        WireResults { captures, saved, marks, passed_over, reused, first: time, nan, ..WireResults::default() }
    }

    /// The results of a generation.
    pub fn of_generation(generation: Generation, non_finite: Option<String>) -> WireResults {
        let Generation { rows, captures, saved, marks, passed_over, reused, prefill, decode, .. } = generation;
        let (first, nan) = (prefill, None);
        WireResults { captures, saved, marks, passed_over, reused, rows, first, decode, nan, non_finite }
    }

    /// Returns the run.
    pub fn into_run(self) -> Run {
        let WireResults { captures, saved, marks, passed_over, reused, .. } = self;
        Run { captures, saved, marks, passed_over, reused, ..Run::default() }
    }

    /// Returns the generation.
    pub fn into_generation(self) -> Generation {
        let WireResults { captures, saved, marks, passed_over, reused, rows, first, decode, .. } = self;
        let moved = Default::default();
        Generation { rows, captures, saved, marks, passed_over, reused, prefill: first, decode, moved }
    }

    /// Whether an array has NaN.
    pub fn has_nan(&self) -> bool {
        let arrays = self.captures.iter().map(|capture| &capture.array);
        arrays.chain(self.saved.iter().map(|saved| &saved.array)).any(|array| array.values().iter().any(|x| x.is_nan()))
    }

    /// Writes the results of a plan.
    pub fn encode(&self, plan: &Plan) -> Result<Vec<u8>> {
        let mut file = ArrayFile::default();
        let captures = self.captures.iter().map(|capture| CaptureHeader {
            site: capture.site,
            tap: capture.tap,
            row: capture.row,
            positions: capture.positions.clone(),
            array: file.add(&capture.array),
            units: capture.units.as_ref().map(|units| file.add(units)),
            sparse: capture.sparse.as_deref().map(|rows| SparseHeader {
                indptr: rows.indptr.clone(),
                indices: rows.indices.clone(),
                width: rows.width,
            }),
        });
        let captures = captures.collect();
        let saved = self.saved.iter().map(|saved| SavedHeader {
            value: plan.values.get(saved.value).and_then(|Value { name, .. }| name.clone()).unwrap_or_default(),
            row: saved.row,
            step: saved.step,
            array: file.add(&saved.array),
        });
        let saved = saved.collect();
        let marks = self.marks.iter().map(|mark| MarkHeader {
            name: mark.name.clone(),
            tap: mark.tap,
            site: mark.site,
            row: mark.row,
            position: mark.position,
            bits: mark.value.to_bits(),
        });
        let rows = self.rows.iter().map(|row| RowHeader {
            tokens: row.tokens.clone(),
            finish: FinishName::of(row.finish),
            lookup: [row.lookup.passes, row.lookup.drafted, row.lookup.accepted],
            non_finite: row.non_finite,
        });
        let header = Header {
            captures,
            saved,
            marks: marks.collect(),
            passed_over: self.passed_over.clone(),
            reused: self.reused.clone(),
            rows: rows.collect(),
            first: self.first,
            decode: self.decode,
            nan: self.nan.map(NanPlace::from),
            non_finite: self.non_finite.clone(),
        };
        file.encode(&header)
    }

    /// Reads the results of a call.
    pub fn decode(bytes: &[u8]) -> Result<WireResults> {
        let (header, arrays): (Header, _) = ArrayFile::decode(bytes)?;
        let array = |index: usize| arrays.get(index).cloned().ok_or_else(|| invalid("an array is missing"));
        let capture = |header: CaptureHeader| {
            let sparse = header
                .sparse
                .map(|SparseHeader { indptr, indices, width }| Arc::new(SparseRows { indptr, indices, width }));
            Ok(Capture {
                site: header.site,
                tap: header.tap,
                row: header.row,
                positions: header.positions,
                array: array(header.array)?,
                units: header.units.map(array).transpose()?,
                sparse,
            })
        };
        let saved = |header: SavedHeader| {
            let value = value_id(&header.value).ok_or_else(|| invalid("a saved value has another name"))?;
            Ok(SavedValue { value, row: header.row, step: header.step, array: array(header.array)? })
        };
        let mark = |MarkHeader { name, tap, site, row, position, bits }| Mark {
            name,
            tap,
            site,
            row,
            position,
            value: f32::from_bits(bits),
        };
        let row = |RowHeader { tokens, finish, lookup: [passes, drafted, accepted], non_finite }| GeneratedRow {
            tokens,
            finish: finish.finish(),
            logprobs: RowLogprobs::default(),
            lookup: LookupStats { passes, drafted, accepted },
            non_finite,
        };
        Ok(WireResults {
            captures: header.captures.into_iter().map(capture).collect::<Result<_>>()?,
            saved: header.saved.into_iter().map(saved).collect::<Result<_>>()?,
            marks: header.marks.into_iter().map(mark).collect(),
            passed_over: header.passed_over,
            reused: header.reused,
            rows: header.rows.into_iter().map(row).collect(),
            first: header.first,
            decode: header.decode,
            nan: header.nan.map(NanOrigin::from),
            non_finite: header.non_finite,
        })
    }
}

fn invalid(problem: &str) -> Error {
    Error::usage(format!("these are not results of a model: {problem}"), "use a server of the same version")
}

#[derive(Serialize, Deserialize)]
struct Header {
    captures: Vec<CaptureHeader>,
    saved: Vec<SavedHeader>,
    marks: Vec<MarkHeader>,
    passed_over: Vec<Site>,
    reused: Vec<usize>,
    rows: Vec<RowHeader>,
    first: Duration,
    decode: Duration,
    nan: Option<NanPlace>,
    non_finite: Option<String>,
}

#[derive(Serialize, Deserialize)]
struct CaptureHeader {
    site: Site,
    tap: usize,
    row: usize,
    positions: Vec<usize>,
    /// Index of the array.
    array: usize,
    units: Option<usize>,
    sparse: Option<SparseHeader>,
}

#[derive(Serialize, Deserialize)]
struct SparseHeader {
    indptr: Vec<usize>,
    indices: Vec<u32>,
    width: usize,
}

#[derive(Serialize, Deserialize)]
struct SavedHeader {
    value: String,
    row: Option<usize>,
    step: usize,
    array: usize,
}

#[derive(Serialize, Deserialize)]
struct MarkHeader {
    name: String,
    tap: usize,
    site: Site,
    row: usize,
    position: usize,
    bits: u32,
}

#[derive(Serialize, Deserialize)]
struct RowHeader {
    tokens: Vec<u32>,
    finish: FinishName,
    lookup: [usize; 3],
    non_finite: bool,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum FinishName {
    Eos,
    Length,
    Stop,
    Condition,
}

impl FinishName {
    fn of(finish: Finish) -> FinishName {
        match finish {
            Finish::Eos => FinishName::Eos,
            Finish::Length => FinishName::Length,
            Finish::Stop => FinishName::Stop,
            Finish::Condition => FinishName::Condition,
        }
    }

    fn finish(self) -> Finish {
        match self {
            FinishName::Eos => Finish::Eos,
            FinishName::Length => Finish::Length,
            FinishName::Stop => Finish::Stop,
            FinishName::Condition => Finish::Condition,
        }
    }
}

/// Where the first NaN of a run appears.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct NanPlace {
    site: Site,
    row: usize,
    position: usize,
    infinite: Option<Site>,
}

impl From<NanOrigin> for NanPlace {
    fn from(NanOrigin { site, row, position, infinite }: NanOrigin) -> NanPlace {
        NanPlace { site, row, position, infinite }
    }
}

impl From<NanPlace> for NanOrigin {
    fn from(NanPlace { site, row, position, infinite }: NanPlace) -> NanOrigin {
        NanOrigin { site, row, position, infinite }
    }
}

/// Arrays in a safetensors file with a header of any type. Integers are stored as the f32 elements
/// that the engine has.
#[derive(Default)]
pub struct ArrayFile<'a> {
    arrays: Vec<&'a Array>,
}

#[derive(Serialize, Deserialize)]
struct FileHeader<T> {
    header: T,
    /// Indices of the arrays that hold integers.
    integers: Vec<usize>,
}

impl<'a> ArrayFile<'a> {
    /// Adds an array; returns its index.
    pub fn add(&mut self, array: &'a Array) -> usize {
        self.arrays.push(array);
        self.arrays.len() - 1
    }

    /// Writes the file.
    pub fn encode(&self, header: &impl Serialize) -> Result<Vec<u8>> {
        let internal = |error: String| Error::from(pellucid_engine::Error::Internal(error));
        let is_integer = |(index, array): (usize, &&Array)| array.is_integer().then_some(index);
        let integers = self.arrays.iter().enumerate().filter_map(is_integer).collect();
        let header = serde_json::to_string(&FileHeader { header, integers }).map_err(|e| internal(e.to_string()))?;
        let tensors = self.arrays.iter().enumerate().map(|(index, array)| (index.to_string(), ArrayView(array)));
        safetensors::serialize(tensors, Some(HashMap::from([(KEY.to_string(), header)])))
            .map_err(|error| internal(error.to_string()))
    }

    /// Reads a file.
    pub fn decode<T: serde::de::DeserializeOwned>(bytes: &[u8]) -> Result<(T, Vec<Array>)> {
        let (_, metadata) = SafeTensors::read_metadata(bytes).map_err(|error| invalid(&error.to_string()))?;
        let text = metadata.metadata().as_ref().and_then(|metadata| metadata.get(KEY));
        let text = text.ok_or_else(|| invalid("the header is missing"))?;
        let FileHeader { header, integers } =
            serde_json::from_str::<FileHeader<T>>(text).map_err(|error| invalid(&error.to_string()))?;
        let tensors = SafeTensors::deserialize(bytes).map_err(|error| invalid(&error.to_string()))?;
        let mut arrays = Vec::with_capacity(tensors.len());
        for index in 0..tensors.len() {
            let tensor = tensors.tensor(&index.to_string()).map_err(|error| invalid(&error.to_string()))?;
            let (shape, data) = (tensor.shape().to_vec(), tensor.data());
            arrays.push(match tensor.dtype() {
                Dtype::F32 => {
                    let floats = data.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
                    match integers.contains(&index) {
                        true => Array::integers(shape, floats),
                        false => Array::new(shape, floats),
                    }
                }
                Dtype::BF16 => {
                    let halves = data.as_chunks().0.iter().map(|bytes| bf16::from_le_bytes(*bytes));
                    Array::from_bf16(shape, &halves.collect::<Vec<_>>())
                }
                other => return Err(invalid(&format!("an array of {other:?}"))),
            });
        }
        Ok((header, arrays))
    }
}

/// An array as it is stored.
struct ArrayView<'a>(&'a Array);

impl View for ArrayView<'_> {
    fn dtype(&self) -> Dtype {
        if self.0.halves().is_some() { Dtype::BF16 } else { Dtype::F32 }
    }

    fn shape(&self) -> &[usize] {
        self.0.shape()
    }

    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Owned(match self.0.halves() {
            Some(halves) => halves.iter().flat_map(|x| x.to_le_bytes()).collect(),
            None => self.0.values().iter().flat_map(|x| x.to_le_bytes()).collect(),
        })
    }

    fn data_len(&self) -> usize {
        self.0.len() * self.0.dtype().bytes()
    }
}
