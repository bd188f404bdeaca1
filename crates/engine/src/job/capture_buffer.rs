//! The memory of one capture of one row, and how lines get into it.
//!
//! Lines are written once, in place, as their positions are computed; nothing is concatenated.
//! [`LiveCapture`] shows the finished lines to other threads while the row is still running.

use super::capture_options::CaptureOptions;
use super::sparse_buffer::SparseBuffer;
use crate::array::{Array, CaptureDtype, LineStorage, SpillFile};
use crate::error::{Error, Result};
use crate::plan::{Capture, CompiledAction, CompiledPlan, CompiledReduce, CompiledTap, SelectedPositions};
use crate::point::Point;
use crate::program::{Edge, Layout, Program};
use crate::sae::ActiveFeatures;
use crate::site::Site;
use pellucid_kernels::elementwise::dot;
use pellucid_kernels::{Matrix, Pool, matmul};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The data of one capture of one row.
pub(super) enum CaptureBuffer {
    /// The op's output buffer itself.
    Buffer(Array),
    /// One line per selected position.
    Lines(LineBuffer),
    /// A sum over tokens and their count, for a mean.
    Sum(Vec<f32>, usize),
    /// The selected queries.
    Attention(Vec<Option<AttentionLine>>),
    /// The nonzero elements.
    Sparse(SparseBuffer),
}

/// Lines that are written one by one.
pub(super) struct LineBuffer {
    live: Arc<LiveCapture>,
    /// For each line whether it has been computed.
    present: Vec<bool>,
    /// A line was computed twice, which would be a fault of the engine.
    repeated: bool,
    /// The tap has a condition, so some lines may never be computed.
    conditional: bool,
}

/// A captured query of attention.
#[derive(Clone)]
pub(crate) struct AttentionLine {
    /// Number of keys when it was computed.
    pub keys: usize,
    /// `[heads × selected keys]`
    pub values: Vec<f32>,
}

/// A capture of a running row: the lines that are finished.
pub(crate) struct LiveCapture {
    site: Site,
    tap: usize,
    row: usize,
    positions: Vec<usize>,
    /// Shape of one line.
    shape: Vec<usize>,
    values: Arc<LineStorage>,
    /// Unit indices, for a top-k reduction.
    units: Option<Arc<LineStorage>>,
    integer: bool,
    /// Lines at the start that are finished. Only its [`LineBuffer`] writes it.
    finished: AtomicUsize,
}

impl LiveCapture {
    /// Returns the finished lines, without a copy.
    pub fn capture(&self) -> Capture {
        let count = self.finished.load(Ordering::Acquire);
        let shape: Vec<usize> = std::iter::once(count).chain(self.shape.iter().copied()).collect();
        // SAFETY: finished lines have been written, and a line is written once.
        let view = |storage: &Arc<LineStorage>| unsafe { Array::finished_lines(shape.clone(), storage.clone()) };
        Capture {
            site: self.site,
            tap: self.tap,
            row: self.row,
            positions: self.positions[..count].to_vec(),
            array: view(&self.values).with_integer(self.integer),
            units: self.units.as_ref().map(|units| view(units).with_integer(true)),
            sparse: None,
        }
    }
}

/// Allocates the memory of captures, on the heap or in one file.
pub(super) struct CaptureAllocator {
    dtype: CaptureDtype,
    file: Option<Arc<SpillFile>>,
    /// First free byte of the file.
    next: usize,
}

/// Offsets in a file are multiples of this.
const ALIGNMENT: usize = 64;

impl CaptureAllocator {
    pub fn new(program: &Program, compiled: &CompiledPlan, options: &CaptureOptions) -> Result<CaptureAllocator> {
        let file = match spilled_bytes(program, compiled, options) {
            0 => None,
            bytes => Some(SpillFile::create(options.spill_folder.as_deref(), bytes)?),
        };
        Ok(CaptureAllocator { dtype: options.dtype, file, next: 0 })
    }

    fn storage(&mut self, len: usize, dtype: CaptureDtype) -> Arc<LineStorage> {
        let start = self.next;
        self.next += padded(len * dtype.bytes());
        Arc::new(match &self.file {
            Some(file) => LineStorage::in_file(file.clone(), start, len, dtype),
            None => LineStorage::heap(len, dtype),
        })
    }
}

/// Bytes of a job's captures that are stored in a file: none, or those of all captures that have
/// lines.
pub(crate) fn spilled_bytes(program: &Program, compiled: &CompiledPlan, options: &CaptureOptions) -> usize {
    let Some(limit) = options.memory_limit else { return 0 };
    let of = |entry: &CompiledTap| {
        let CompiledAction::Capture(reduce) = &entry.action else { return 0 };
        let Some(width) = line_width(entry, reduce) else { return 0 };
        let element = stored_dtype(options.dtype, program.edge(entry.edge), reduce).bytes();
        let of_row = |chosen: &SelectedPositions| {
            let elements = chosen.len() * width;
            let units = if has_units(reduce) { padded(4 * elements) } else { 0 };
            padded(element * elements) + units
        };
        entry.rows.iter().flatten().map(of_row).sum()
    };
    let bytes: usize = compiled.taps.iter().map(of).sum();
    if bytes > limit { bytes } else { 0 }
}

/// Whole activations have the chosen type. Integers and reduced captures stay f32.
fn stored_dtype(chosen: CaptureDtype, edge: &Edge, reduce: &CompiledReduce) -> CaptureDtype {
    if matches!(reduce, CompiledReduce::Whole) && !edge.integer { chosen } else { CaptureDtype::F32 }
}

fn has_units(reduce: &CompiledReduce) -> bool {
    matches!(reduce, CompiledReduce::TopK { .. })
}

fn padded(bytes: usize) -> usize {
    bytes.next_multiple_of(ALIGNMENT)
}

/// Elements of one line; `None` if the capture has no lines.
fn line_width(entry: &CompiledTap, reduce: &CompiledReduce) -> Option<usize> {
    match reduce {
        _ if !entry.heads.is_empty() => None,
        CompiledReduce::Whole => Some(entry.captured_len()),
        CompiledReduce::Mean | CompiledReduce::Sparse(_) => None,
        CompiledReduce::Norm | CompiledReduce::Dot(_) => Some(1),
        CompiledReduce::TopK { k, .. } => Some(*k),
        CompiledReduce::Project(matrix) => Some(matrix.rows()),
    }
}

/// Shape of one line.
fn line_shape(edge: &Edge, entry: &CompiledTap, reduce: &CompiledReduce) -> Vec<usize> {
    match reduce {
        CompiledReduce::Whole | CompiledReduce::Mean => entry.captured_shape(edge),
        CompiledReduce::Norm | CompiledReduce::Dot(_) | CompiledReduce::Sparse(_) => Vec::new(),
        CompiledReduce::TopK { k, .. } => vec![*k],
        CompiledReduce::Project(matrix) => vec![matrix.rows()],
    }
}

impl LineBuffer {
    /// Stores the line of the `nth` selected position, with its units for a top-k reduction.
    fn store(&mut self, nth: usize, values: &[f32], units: &[f32]) {
        if self.present[nth] {
            self.repeated = true;
            return;
        }
        let live = &*self.live;
        // SAFETY: the line is not finished, so no reader has a view of it, and only this buffer
        // writes.
        unsafe {
            live.values.write(nth * values.len(), values);
            if let Some(storage) = &live.units {
                storage.write(nth * units.len(), units);
            }
        }
        self.present[nth] = true;
        let mut finished = live.finished.load(Ordering::Relaxed);
        while self.present.get(finished) == Some(&true) {
            finished += 1;
        }
        live.finished.store(finished, Ordering::Release);
    }

    /// Returns the lines that have been computed. A generation that ended early has not computed
    /// all selected positions.
    fn finish(self) -> Capture {
        let live = &self.live;
        let count = self.present.iter().filter(|&&present| present).count();
        if count == live.finished.load(Ordering::Relaxed) {
            return live.capture();
        }
        // Some lines in the middle are missing: the plan lists positions in another order, or a
        // condition did not hold.
        let width = live.shape.iter().product::<usize>();
        let lines = || (0..self.present.len()).filter(|&line| self.present[line]);
        let shape: Vec<usize> = std::iter::once(count).chain(live.shape.iter().copied()).collect();
        let gather = |storage: &Arc<LineStorage>| {
            // SAFETY: the row has ended, so no line is written any more.
            let all = unsafe { Array::finished_lines(vec![storage.len()], storage.clone()) };
            let values = lines().flat_map(|line| &all.values()[line * width..][..width]).copied().collect();
            Array::new(shape.clone(), values)
        };
        Capture {
            site: live.site,
            tap: live.tap,
            row: live.row,
            positions: lines().map(|line| live.positions[line]).collect(),
            array: gather(&live.values).with_integer(live.integer),
            units: live.units.as_ref().map(|units| gather(units).with_integer(true)),
            sparse: None,
        }
    }
}

impl CaptureBuffer {
    pub fn new(
        allocator: &mut CaptureAllocator,
        edge: &Edge,
        entry: &CompiledTap,
        reduce: &CompiledReduce,
        chosen: &SelectedPositions,
        row: usize,
    ) -> CaptureBuffer {
        let Some(width) = line_width(entry, reduce) else {
            return match reduce {
                _ if !entry.heads.is_empty() => CaptureBuffer::Attention(vec![None; chosen.len()]),
                CompiledReduce::Sparse(_) => {
                    CaptureBuffer::Sparse(SparseBuffer::new(chosen.len(), entry.columns.len()))
                }
                _ => CaptureBuffer::Sum(vec![0.0; entry.columns.len()], 0),
            };
        };
        let len = chosen.len() * width;
        let values = allocator.storage(len, stored_dtype(allocator.dtype, edge, reduce));
        let live = LiveCapture {
            site: entry.site,
            tap: entry.tap,
            row,
            positions: chosen.positions(),
            shape: line_shape(edge, entry, reduce),
            values,
            units: has_units(reduce).then(|| allocator.storage(len, CaptureDtype::F32)),
            integer: edge.integer,
            finished: AtomicUsize::new(0),
        };
        CaptureBuffer::Lines(LineBuffer {
            live: Arc::new(live),
            present: vec![false; chosen.len()],
            repeated: false,
            conditional: entry.condition.is_some(),
        })
    }

    /// The capture as other threads see it, if its lines are written one after the other.
    pub fn live(&self) -> Option<Arc<LiveCapture>> {
        match self {
            CaptureBuffer::Lines(lines) if lines.conditional => None,
            CaptureBuffer::Lines(lines) => Some(lines.live.clone()),
            CaptureBuffer::Buffer(_)
            | CaptureBuffer::Sum(..)
            | CaptureBuffer::Attention(_)
            | CaptureBuffer::Sparse(_) => None,
        }
    }

    /// Sets the scalar that the `nth` selected position was reduced to.
    pub fn set_scalar(&mut self, nth: usize, scalar: f32) {
        if let CaptureBuffer::Lines(lines) = self {
            lines.store(nth, &[scalar], &[]);
        }
    }

    /// Adds the active features of the `nth` selected position to a sparse capture.
    pub fn add_active(&mut self, nth: usize, active: &ActiveFeatures) {
        if let CaptureBuffer::Sparse(buffer) = self {
            buffer.add_active(nth, active);
        }
    }

    /// Adds a captured query of attention.
    pub fn set_query(&mut self, nth: usize, line: AttentionLine) {
        if let CaptureBuffer::Attention(lines) = self {
            lines[nth] = Some(line);
        }
    }

    /// Sets the dot products of some selected positions: `gathered` is `[indices, units]`.
    pub fn project(&mut self, pool: &Pool, matrix: &Matrix, gathered: &[f32], indices: &[usize]) {
        let CaptureBuffer::Lines(lines) = self else { return };
        let count = matrix.rows();
        let mut products = vec![0.0; indices.len() * count];
        if !indices.is_empty() {
            matmul(pool, gathered, matrix, None, &mut products);
        }
        products.chunks_exact(count).zip(indices).for_each(|(line, &nth)| lines.store(nth, line, &[]));
    }

    /// Reduces and adds the selected floats of the `nth` selected position.
    pub fn add(&mut self, reduce: &CompiledReduce, nth: usize, picked: &[f32]) {
        match self {
            CaptureBuffer::Sum(sum, count) => {
                sum.iter_mut().zip(picked).for_each(|(sum, x)| *sum += x);
                *count += 1;
            }
            CaptureBuffer::Lines(lines) => match reduce {
                CompiledReduce::Whole => lines.store(nth, picked, &[]),
                CompiledReduce::Norm => lines.store(nth, &[dot(picked, picked).sqrt()], &[]),
                CompiledReduce::Dot(vector) => lines.store(nth, &[dot(picked, vector)], &[]),
                CompiledReduce::TopK { k, units } => {
                    let mut order: Vec<usize> = (0..picked.len()).collect();
                    order.sort_by(|&a, &b| picked[b].total_cmp(&picked[a]));
                    order.truncate(*k);
                    let values: Vec<f32> = order.iter().map(|&unit| picked[unit]).collect();
                    // The model's units, not indices into the selection.
                    let unit = |&index: &usize| *units.get(index).unwrap_or(&index) as f32;
                    lines.store(nth, &values, &order.iter().map(unit).collect::<Vec<f32>>());
                }
                CompiledReduce::Mean | CompiledReduce::Project(_) | CompiledReduce::Sparse(_) => {}
            },
            CaptureBuffer::Sparse(buffer) => buffer.add(nth, picked),
            CaptureBuffer::Buffer(_) | CaptureBuffer::Attention(_) => {}
        }
    }

    /// Returns the capture. `length` is the number of computed positions of the row, and
    /// `positions` are those among them that were to be captured. Each must have been captured
    /// exactly once: a short capture would be a wrong number that looks right.
    pub fn finish(
        self,
        edge: &Edge,
        entry: &CompiledTap,
        positions: Vec<usize>,
        row: usize,
        length: usize,
    ) -> Result<Capture> {
        let (captured, repeated) = match &self {
            CaptureBuffer::Buffer(array) => (array.shape()[0], false),
            CaptureBuffer::Lines(lines) => (lines.present.iter().filter(|&&present| present).count(), lines.repeated),
            CaptureBuffer::Sum(_, count) => (*count, false),
            CaptureBuffer::Attention(lines) => (lines.iter().flatten().count(), false),
            CaptureBuffer::Sparse(buffer) => (buffer.captured(), buffer.repeated),
        };
        let expected = positions.len();
        if captured != expected || repeated {
            return Err(Error::Internal(format!(
                "the capture of {} in row {row} has {captured} positions{}, and {expected} were computed",
                entry.site,
                if repeated { ", some twice" } else { "" }
            )));
        }
        let (site, tap) = (entry.site, entry.tap);
        let capture = |array: Array| Capture { site, tap, row, positions, array, units: None, sparse: None };
        Ok(match self {
            CaptureBuffer::Buffer(array) => capture(array),
            CaptureBuffer::Lines(lines) => lines.finish(),
            CaptureBuffer::Sum(mut sum, count) => {
                sum.iter_mut().for_each(|x| *x /= count.max(1) as f32);
                capture(Array::new(entry.columns.shape(edge, 1)[1..].to_vec(), sum))
            }
            CaptureBuffer::Sparse(buffer) => {
                let (values, rows) = buffer.finish();
                Capture { sparse: Some(Arc::new(rows)), ..capture(values) }
            }
            CaptureBuffer::Attention(lines) => {
                debug_assert_eq!(edge.layout, Layout::QueryKey);
                capture(attention_pattern(entry, lines.into_iter().flatten().collect(), row, length))
            }
        })
    }
}

/// Returns captured queries as `[heads, queries, keys]`.
fn attention_pattern(entry: &CompiledTap, lines: Vec<AttentionLine>, row: usize, length: usize) -> Array {
    let selected: Vec<usize> = match &entry.keys {
        Some(keys) => keys[row].iter().copied().filter(|&key| key < length).collect(),
        None => (0..length).collect(),
    };
    let (heads, keys) = (entry.heads.len(), selected.len());
    // Later keys did not exist yet: masked scores are -inf, probabilities zero.
    let blank = if entry.site.point == Point::AttnScores { f32::NEG_INFINITY } else { 0.0 };
    let mut values = vec![blank; heads * lines.len() * keys];
    for (query, line) in lines.iter().enumerate() {
        let width = line.values.len() / heads;
        let indices = (0..keys).filter(|&slot| selected[slot] < line.keys);
        for (nth, slot) in indices.enumerate() {
            (0..heads)
                .for_each(|head| values[(head * lines.len() + query) * keys + slot] = line.values[head * width + nth]);
        }
    }
    Array::new(vec![heads, lines.len(), keys], values)
}
