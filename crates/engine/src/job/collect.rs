//! What a job has captured so far, and the values that some of its rows keep for others.

use super::pass::Pass;
use crate::array::Array;
use crate::error::Result;
use crate::memory::{DeviceMemory, DeviceValue, Value};
use crate::plan::{Capture, Chosen, Compiled, CompiledAction, CompiledReduce, Entry, ValueId};
use crate::point::Point;
use crate::program::{Edge, Layout, Program};
use crate::value::{OpRunner, Store};
use pellucid_kernels::elementwise::dot;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A value that a run saved.
#[derive(Clone, Debug)]
pub struct Saved {
    /// Which value of the plan.
    pub value: ValueId,
    /// The row that it belongs to; none where it is one for all.
    pub row: Option<usize>,
    /// The step of a generation that computed it; 0 is the prompt.
    pub step: usize,
    /// The value.
    pub array: Array,
}

/// The values of a job, which its backward passes share. Only one thread uses a job at a time, so the lock is never waited for.
#[derive(Clone, Default)]
pub(crate) struct SharedStore(Arc<Mutex<Store>>);

impl SharedStore {
    pub fn lock(&self) -> MutexGuard<'_, Store> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Captures under way, stashed sources and values.
pub(crate) struct Collector {
    /// By entry, and of an entry by row.
    gathered: Vec<Vec<Option<Gathered>>>,
    /// By source and row, one value for each chosen position.
    stash: HashMap<(usize, usize), Vec<Option<Vec<f32>>>>,
    /// Sources in a backend's memory, by source and row: for each chosen position its buffer and line.
    stash_on_device: HashMap<(usize, usize), Vec<Option<DeviceLine>>>,
    /// Captures in a backend's memory, in the order in which they were taken.
    on_device: Vec<OnDevice>,
    /// Every row is computed in a single pass.
    single_pass: bool,
    store: SharedStore,
    saved: Vec<Saved>,
    step: usize,
}

/// A line of a buffer in a backend's memory.
pub(crate) type DeviceLine = (DeviceValue, usize);

/// A capture that is still in a backend's memory.
enum OnDevice {
    /// Selected lines of a row of an entry, with their indices in the selection.
    Lines { entry: usize, row: usize, places: Vec<usize>, value: DeviceValue },
    /// A whole buffer of an entry, and for each row its first token and how many.
    Whole { entry: usize, rows: Vec<(usize, usize, usize)>, value: DeviceValue },
}

impl OnDevice {
    fn value(&self) -> &DeviceValue {
        match self {
            OnDevice::Lines { value, .. } | OnDevice::Whole { value, .. } => value,
        }
    }
}

/// One capture of one row.
enum Gathered {
    /// The whole value, as it was made.
    Buffer(Array),
    /// A line for each chosen position, in a buffer sized beforehand, and which of them are there.
    Lines { values: Vec<f32>, units: Vec<f32>, there: Vec<bool> },
    /// A running sum and its count.
    Sum(Vec<f32>, usize),
    /// The chosen queries.
    Attention(Vec<Option<AttentionLine>>),
}

/// A captured query of attention.
#[derive(Clone)]
pub(crate) struct AttentionLine {
    pub position: usize,
    /// The keys that were there when it was computed.
    pub keys: usize,
    /// `[heads × selected keys]`
    pub values: Vec<f32>,
}

impl Collector {
    pub fn new(compiled: &Compiled, single_pass: bool) -> Collector {
        let of_entry = |(index, entry): (usize, &Entry)| {
            let CompiledAction::Capture(reduce) = &entry.action else { return Vec::new() };
            // A whole capture of a single pass takes the buffer itself and needs no room.
            let takes_buffer = single_pass
                && entry.whole
                && matches!(reduce, CompiledReduce::Whole)
                && compiled.at_edge[entry.edge].last() == Some(&index);
            let room = |chosen: &Option<Chosen>| {
                let chosen = chosen.as_ref().filter(|_| !takes_buffer)?;
                Some(Gathered::new(entry, reduce, chosen.len()))
            };
            entry.rows.iter().map(room).collect()
        };
        let gathered = compiled.entries.iter().enumerate().map(of_entry).collect();
        Collector {
            gathered,
            stash: HashMap::new(),
            stash_on_device: HashMap::new(),
            on_device: Vec::new(),
            single_pass,
            store: SharedStore::default(),
            saved: Vec::new(),
            step: 0,
        }
    }

    pub fn takes_buffers(&self) -> bool {
        self.single_pass
    }

    /// Shares a whole buffer among the rows of its pass.
    pub fn hand_over(&mut self, index: usize, entry: &Entry, edge: &Edge, pass: &Pass, value: Value) {
        let rows = pass.segments.iter().map(|segment| {
            let tokens = pass.range(edge.domain, segment);
            (segment.row, tokens.start, tokens.len())
        });
        match value {
            Value::Host(value) => self.share(index, entry, edge, rows, value),
            Value::Device(value) => self.on_device.push(OnDevice::Whole { entry: index, rows: rows.collect(), value }),
        }
    }

    /// Gives each row its tokens of a whole buffer, as views of it.
    fn share(
        &mut self,
        index: usize,
        entry: &Entry,
        edge: &Edge,
        rows: impl Iterator<Item = (usize, usize, usize)>,
        value: Vec<f32>,
    ) {
        let value = Arc::new(value);
        for (row, first, count) in rows {
            let shape = entry.columns.shape(edge, count);
            let array = Array::view(shape, value.clone(), first * edge.width).with_integer(edge.integer);
            self.gathered[index][row] = Some(Gathered::Buffer(array));
        }
    }

    /// Takes what a capture has gathered or reduced of a row in a backend's memory.
    pub fn collect_on_device(&mut self, index: usize, row: usize, places: Vec<usize>, value: DeviceValue) {
        self.on_device.push(OnDevice::Lines { entry: index, row, places, value });
    }

    /// Takes lines that other taps will read, in a backend's memory.
    pub fn stash_on_device(
        &mut self,
        source: usize,
        row: usize,
        places: impl Iterator<Item = usize>,
        count: usize,
        lines: &DeviceValue,
    ) {
        let stash = self.stash_on_device.entry((source, row)).or_insert_with(|| vec![None; count]);
        places.enumerate().for_each(|(line, nth)| stash[nth] = Some((lines.clone(), line)));
    }

    /// The stashed line for the `nth` chosen position, or the only one, in a backend's memory.
    pub fn stashed_on_device(&self, source: usize, row: usize, nth: usize) -> Option<DeviceLine> {
        let lines = self.stash_on_device.get(&(source, row))?;
        lines.get(if lines.len() == 1 { 0 } else { nth })?.clone()
    }

    /// Brings all captures to the host, in one wait.
    fn resolve(&mut self, program: &Program, compiled: &Compiled, memory: Option<&dyn DeviceMemory>) -> Result<()> {
        let Some(memory) = memory.filter(|_| !self.on_device.is_empty()) else { return Ok(()) };
        let waiting = std::mem::take(&mut self.on_device);
        let floats = memory.download(&waiting.iter().map(OnDevice::value).collect::<Vec<_>>())?;
        for (capture, floats) in waiting.into_iter().zip(floats) {
            match capture {
                OnDevice::Whole { entry: index, rows, .. } => {
                    let entry = &compiled.entries[index];
                    self.share(index, entry, program.edge(entry.edge), rows.into_iter(), floats);
                }
                OnDevice::Lines { entry: index, row, places, .. } => {
                    let CompiledAction::Capture(reduce) = &compiled.entries[index].action else { continue };
                    let Some(gathered) = &mut self.gathered[index][row] else { continue };
                    let width = floats.len() / places.len().max(1);
                    for (nth, line) in places.into_iter().zip(floats.chunks_exact(width.max(1))) {
                        match reduce {
                            CompiledReduce::Norm | CompiledReduce::Dot(_) => gathered.put(nth, line[0]),
                            CompiledReduce::Whole | CompiledReduce::Mean | CompiledReduce::TopK(_) => {
                                gathered.take(reduce, nth, line)
                            }
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Takes what a capture wants of tokens of one row, each with its place in the selection. Nothing is allocated for whole tokens.
    pub fn collect<'t>(
        &mut self,
        index: usize,
        row: usize,
        entry: &Entry,
        reduce: &CompiledReduce,
        tokens: impl Iterator<Item = (&'t [f32], usize)>,
    ) {
        let Some(gathered) = &mut self.gathered[index][row] else { return };
        let mut room = Vec::new();
        for (token, nth) in tokens {
            gathered.take(reduce, nth, entry.columns.pick(token, &mut room));
        }
    }

    pub fn collect_attention(&mut self, index: usize, row: usize, nth: usize, line: AttentionLine) {
        if let Some(Gathered::Attention(lines)) = &mut self.gathered[index][row] {
            lines[nth] = Some(line);
        }
    }

    /// Makes what an entry has read of a row the values that it reads for.
    pub fn bind(&mut self, compiled: &Compiled, entry: &Entry, row: usize, array: Array) {
        for &value in &entry.binds {
            self.store.lock().bind(&compiled.values, value, row, array.clone());
        }
    }

    /// A value for a reader.
    pub fn value(
        &mut self,
        ops: &dyn OpRunner,
        compiled: &Compiled,
        value: ValueId,
        reader: Option<usize>,
    ) -> Result<Array> {
        self.store.lock().get(ops, compiled, value, reader)
    }

    /// The values so far; a backward pass shares them.
    pub fn store(&self) -> SharedStore {
        self.store.clone()
    }

    /// Keeps the saved values that depend on the gradient of a metric.
    pub fn end_gradient(&mut self, ops: &dyn OpRunner, compiled: &Compiled, metric: usize) -> Result<()> {
        let values = &compiled.values;
        for &value in values.save.iter().filter(|&&value| values.gradient_of[value] == Some(metric)) {
            for row in values.rows[value].each() {
                let array = self.value(ops, compiled, value, row)?;
                self.saved.push(Saved { value, row, step: 0, array });
            }
        }
        Ok(())
    }

    /// Keeps the saved values that the step under way has made; another step may follow, without the rows that have ended.
    pub fn end_step(&mut self, ops: &dyn OpRunner, compiled: &Compiled, ended: &[usize]) -> Result<()> {
        let values = &compiled.values;
        for &value in values.save.iter().filter(|&&value| values.gradient_of[value].is_none()) {
            if !self.store.lock().is_new(values, value) {
                continue;
            }
            for row in values.rows[value].each() {
                if row.is_none_or(|row| self.store.lock().is_alive(row)) {
                    let array = self.store.lock().get(ops, compiled, value, row)?;
                    self.saved.push(Saved { value, row, step: self.step, array });
                }
            }
        }
        self.step += 1;
        self.store.lock().next_step(ended);
        Ok(())
    }

    /// What was saved, in the order of the steps and of the plan.
    pub fn take_saved(&mut self) -> Vec<Saved> {
        std::mem::take(&mut self.saved)
    }

    pub fn stash(&mut self, source: usize, row: usize, nth: usize, count: usize, values: Vec<f32>) {
        self.stash.entry((source, row)).or_insert_with(|| vec![None; count])[nth] = Some(values);
    }

    /// The stashed value for the `nth` chosen position, or the only one.
    pub fn stashed(&self, source: usize, row: usize, nth: usize) -> Option<&[f32]> {
        let values = self.stash.get(&(source, row))?;
        let nth = if values.len() == 1 { 0 } else { nth };
        values.get(nth)?.as_deref()
    }

    /// The captures in the plan's order; rows have computed `lengths` positions. Those in a backend's memory come to the host.
    pub fn finish(
        mut self,
        program: &Program,
        compiled: &Compiled,
        lengths: &[usize],
        memory: Option<&dyn DeviceMemory>,
    ) -> Result<Vec<Capture>> {
        self.resolve(program, compiled, memory)?;
        let mut captures = Vec::new();
        for (index, entry) in compiled.entries.iter().enumerate() {
            let CompiledAction::Capture(reduce) = &entry.action else { continue };
            for (row, chosen) in entry.rows.iter().enumerate() {
                let (Some(chosen), Some(gathered)) = (chosen, self.gathered[index][row].take()) else { continue };
                let (positions, array, units) =
                    gathered.finish(program.edge(entry.edge), entry, reduce, chosen, row, lengths[row]);
                captures.push(Capture { site: entry.site, tap: entry.tap, row, positions, array, units });
            }
        }
        Ok(captures)
    }
}

impl Gathered {
    fn new(entry: &Entry, reduce: &CompiledReduce, count: usize) -> Gathered {
        let width = match reduce {
            _ if !entry.heads.is_empty() => return Gathered::Attention(vec![None; count]),
            CompiledReduce::Whole => entry.columns.len(),
            CompiledReduce::Mean => return Gathered::Sum(vec![0.0; entry.columns.len()], 0),
            CompiledReduce::Norm | CompiledReduce::Dot(_) => 1,
            CompiledReduce::TopK(k) => *k,
        };
        let units = if matches!(reduce, CompiledReduce::TopK(_)) { count * width } else { 0 };
        Gathered::Lines { values: vec![0.0; count * width], units: vec![0.0; units], there: vec![false; count] }
    }

    /// Takes the number that the `nth` chosen position was reduced to.
    fn put(&mut self, nth: usize, number: f32) {
        if let Gathered::Lines { values, there, .. } = self {
            (values[nth], there[nth]) = (number, true);
        }
    }

    /// Takes the selected numbers of the `nth` chosen position.
    fn take(&mut self, reduce: &CompiledReduce, nth: usize, picked: &[f32]) {
        match self {
            Gathered::Sum(sum, count) => {
                sum.iter_mut().zip(picked).for_each(|(sum, x)| *sum += x);
                *count += 1;
            }
            Gathered::Lines { values, units, there } => {
                there[nth] = true;
                match reduce {
                    CompiledReduce::Whole => values[nth * picked.len()..][..picked.len()].copy_from_slice(picked),
                    CompiledReduce::Norm => values[nth] = dot(picked, picked).sqrt(),
                    CompiledReduce::Dot(vector) => values[nth] = dot(picked, vector),
                    CompiledReduce::TopK(k) => {
                        let mut order: Vec<usize> = (0..picked.len()).collect();
                        order.sort_by(|&a, &b| picked[b].total_cmp(&picked[a]));
                        for (place, &unit) in order.iter().take(*k).enumerate() {
                            values[nth * k + place] = picked[unit];
                            units[nth * k + place] = unit as f32;
                        }
                    }
                    CompiledReduce::Mean => {}
                }
            }
            Gathered::Buffer(_) | Gathered::Attention(_) => {}
        }
    }

    fn finish(
        self,
        edge: &Edge,
        entry: &Entry,
        reduce: &CompiledReduce,
        chosen: &Chosen,
        row: usize,
        length: usize,
    ) -> (Vec<usize>, Array, Option<Array>) {
        let mut positions = chosen.positions();
        match self {
            Gathered::Buffer(array) => (positions, array, None),
            Gathered::Sum(mut sum, count) => {
                sum.iter_mut().for_each(|x| *x /= count.max(1) as f32);
                let shape = entry.columns.shape(edge, 1)[1..].to_vec();
                positions.retain(|&position| position < length);
                (positions, Array::new(shape, sum), None)
            }
            Gathered::Lines { mut values, mut units, there } => {
                // A generation that ended early computed fewer positions than it might have: close the gaps.
                let width = values.len() / there.len().max(1);
                keep(&mut values, &there, width);
                keep(&mut units, &there, width);
                let mut there = there.into_iter();
                positions.retain(|_| there.next().unwrap_or(false));
                let shape = match reduce {
                    CompiledReduce::Whole => entry.columns.shape(edge, positions.len()),
                    CompiledReduce::TopK(k) => vec![positions.len(), *k],
                    _ => vec![positions.len()],
                };
                let units = (!units.is_empty()).then(|| Array::new(shape.clone(), units).with_integer(true));
                (positions, Array::new(shape, values).with_integer(edge.integer), units)
            }
            Gathered::Attention(lines) => {
                debug_assert_eq!(edge.layout, Layout::QueryKey);
                let lines: Vec<AttentionLine> = lines.into_iter().flatten().collect();
                let selected: Vec<usize> = match &entry.keys {
                    Some(keys) => keys[row].iter().copied().filter(|&key| key < length).collect(),
                    None => (0..length).collect(),
                };
                let (heads, keys) = (entry.heads.len(), selected.len());
                // Keys past a query were never computed: masked scores are -inf, weights zero.
                let blank = if entry.site.point == Point::AttnScores { f32::NEG_INFINITY } else { 0.0 };
                let mut values = vec![blank; heads * lines.len() * keys];
                for (query, line) in lines.iter().enumerate() {
                    let width = line.values.len() / heads;
                    let places = (0..keys).filter(|&place| selected[place] < line.keys);
                    for (nth, place) in places.enumerate() {
                        (0..heads).for_each(|head| {
                            values[(head * lines.len() + query) * keys + place] = line.values[head * width + nth]
                        });
                    }
                }
                let shape = vec![heads, lines.len(), keys];
                (lines.into_iter().map(|line| line.position).collect(), Array::new(shape, values), None)
            }
        }
    }
}

/// Keeps the lines that are there.
fn keep(values: &mut Vec<f32>, there: &[bool], width: usize) {
    if there.iter().all(|&t| t) || values.is_empty() {
        return;
    }
    let kept = there
        .iter()
        .enumerate()
        .filter(|(_, there)| **there)
        .flat_map(|(line, _)| values[line * width..][..width].to_vec());
    *values = kept.collect();
}
