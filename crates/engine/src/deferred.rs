//! A backend for tests that records all work and executes it when the host waits, in separate
//! memory.
//!
//! It proves that [`Backend`] and [`DeviceMemory`] suffice for a device. It uses the CPU's kernels,
//! so results are bit-identical. Ops with taps on inner edges fall back to the CPU, and so do the
//! ops excluded by [`Deferred::lacking`].

use crate::backend::cpu::Cpu;
use crate::backend::{Arena, Backend, Buffers, Frame, Taps};
use crate::error::Result;
use crate::job::{Pass, RowState};
use crate::memory::{DeviceMemory, DeviceRow, DeviceValue, EditOperand, Selection, TapEdit, TapWork};
use crate::model::Model;
use crate::program::{EdgeId, OpKind};
use pellucid_kernels::attention::KvCache;
use pellucid_kernels::elementwise::dot;
use std::any::Any;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A buffer that is filled when all earlier work has been executed.
type Slot = Arc<Mutex<Option<Vec<f32>>>>;
type Task = Box<dyn FnOnce() + Send>;
/// Reduces the selected floats of a token to a tap's output.
type Reduce = Box<dyn Fn(&[f32]) -> Vec<f32> + Send>;

/// Recorded work that has not been executed.
#[derive(Default)]
struct Queue {
    tasks: Mutex<Vec<Task>>,
    /// Number of times the host has waited.
    waits: Mutex<usize>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Queue {
    fn record(&self, task: impl FnOnce() + Send + 'static) {
        lock(&self.tasks).push(Box::new(task));
    }

    /// Executes everything recorded so far.
    fn wait(&self) {
        *lock(&self.waits) += 1;
        let tasks = std::mem::take(&mut *lock(&self.tasks));
        tasks.into_iter().for_each(|task| task());
    }
}

/// The deferring backend; see the module documentation.
pub struct Deferred {
    model: Model,
    queue: Arc<Queue>,
    lacks: fn(&OpKind) -> bool,
}

impl Deferred {
    /// Returns the model with a backend that defers all work.
    pub fn on(model: &Model) -> Model {
        Deferred::lacking(model, |_| false)
    }

    /// Like [`on`](Self::on), without the ops for which `lacks` is true: those fall back to the
    /// CPU.
    pub fn lacking(model: &Model, lacks: fn(&OpKind) -> bool) -> Model {
        model.with_backend(Arc::new(Deferred { model: model.clone(), queue: Arc::default(), lacks }))
    }

    /// Like [`on`](Self::on), with a function that returns how often the host has waited.
    pub fn counting(model: &Model) -> (Model, impl Fn() -> usize + use<>) {
        let queue: Arc<Queue> = Arc::default();
        let backend = Deferred { model: model.clone(), queue: queue.clone(), lacks: |_| false };
        (model.with_backend(Arc::new(backend)), move || *lock(&queue.waits))
    }

    fn value(&self, len: usize) -> (DeviceValue, Slot) {
        let slot = Slot::default();
        (DeviceValue::new(len, Arc::new(slot.clone())), slot)
    }

    /// The device state of a row, created on first use. KV caches and states left on the host by
    /// fallback ops move to the device.
    fn row(&self, row: &mut RowState, layer: Option<usize>, op: usize) -> Arc<Mutex<RowState>> {
        let make = || {
            let state = RowState { keeps_kv: true, capacity: row.capacity, ..RowState::new(row.prompt, row.format) };
            Box::new(DeferredRow { state: Arc::new(Mutex::new(state)), queue: self.queue.clone() })
        };
        let device = row.device.get_or_insert_with(|| make());
        let Some(own) = device.as_any().downcast_mut::<DeferredRow>() else {
            unreachable!("rows of a call stay on one backend")
        };
        let state = own.state.clone();
        let kv = layer.and_then(|layer| Some((layer, row.kv.get_mut(layer)?.take()?)));
        let carried = row.recurrent_states.get_mut(op).map(std::mem::take).filter(|state| !state.is_empty());
        let (layers, ops) = (self.model.program().architecture().layers.len(), self.model.program().ops().len());
        if kv.is_some() || carried.is_some() {
            let state = state.clone();
            self.queue.record(move || {
                let mut state = lock(&state);
                if let Some((layer, kv)) = kv {
                    state.put_kv(layer, layers, kv);
                }
                if let Some(carried) = carried {
                    state.recurrent_states.resize_with(ops, Vec::new);
                    state.recurrent_states[op] = carried;
                }
            });
        }
        state
    }
}

impl Backend for Deferred {
    fn runs(&self, op: &OpKind, tapped_inside: bool) -> bool {
        !tapped_inside && !(self.lacks)(op)
    }

    fn execute(&self, index: usize, frame: &mut Frame, taps: &mut Taps) -> Result<()> {
        let program = frame.program;
        let op = &program.ops()[index];
        let inputs: Vec<(EdgeId, DeviceValue)> =
            op.kind.inputs().into_iter().filter_map(|edge| Some((edge, frame.device(edge)?))).collect();
        let outputs: Vec<(EdgeId, DeviceValue, Slot)> = op
            .kind
            .outputs()
            .into_iter()
            .map(|edge| {
                let (value, slot) = self.value(frame.tokens(edge) * program.edge(edge).width);
                (edge, value, slot)
            })
            .collect();
        let stateful = matches!(op.kind, OpKind::Attention { .. }) || op.kind.is_recurrent();
        let layer = op.layer.filter(|_| matches!(op.kind, OpKind::Attention { .. }));
        let lengths: Vec<(usize, usize)> = frame.rows.iter().map(|row| (row.prompt, row.capacity)).collect();
        let rows: Vec<Arc<Mutex<RowState>>> =
            frame.rows.iter_mut().filter(|_| stateful).map(|row| self.row(row, layer, index)).collect();
        let recorded = RecordedOp {
            model: self.model.clone(),
            index,
            pass: frame.pass.clone(),
            absent: frame.absent.clone(),
            inputs,
            outputs: outputs.iter().map(|(edge, _, slot)| (*edge, slot.clone())).collect(),
            lengths,
            rows,
        };
        self.queue.record(move || recorded.execute());
        outputs.into_iter().try_for_each(|(edge, value, _)| frame.put_device(edge, value, taps))
    }

    fn memory(&self) -> Option<&dyn DeviceMemory> {
        Some(self)
    }
}

/// A recorded op.
struct RecordedOp {
    model: Model,
    index: usize,
    pass: Pass,
    absent: Vec<bool>,
    inputs: Vec<(EdgeId, DeviceValue)>,
    outputs: Vec<(EdgeId, Slot)>,
    /// Prompt length and capacity of each row.
    lengths: Vec<(usize, usize)>,
    rows: Vec<Arc<Mutex<RowState>>>,
}

impl RecordedOp {
    fn execute(self) {
        let program = self.model.program();
        let mut buffers = Buffers::new(program);
        self.inputs.iter().for_each(|(edge, value)| buffers.put(*edge, floats(value)));
        let mut states: Vec<RowState> = match self.rows.is_empty() {
            true => self.lengths.iter().map(|&(prompt, _)| RowState::new(prompt, self.model.kv())).collect(),
            false => self.rows.iter().map(|row| std::mem::take(&mut *lock(row))).collect(),
        };
        let mut arena = Arena::default();
        let (weights, pool) = (self.model.weights(), self.model.pool());
        let mut frame = Frame::new(program, weights, pool, &self.pass, &mut states, &mut arena, &mut buffers);
        frame.absent = self.absent;
        frame.prepare(program.architecture());
        let mut no_taps = Taps { ops: &self.model, jobs: &mut [] };
        Cpu.execute(self.index, &mut frame, &mut no_taps).expect("an op without taps does not fail");
        for (edge, slot) in self.outputs {
            *lock(&slot) = Some(frame.take(edge));
        }
        self.rows.iter().zip(states).for_each(|(row, state)| *lock(row) = state);
    }
}

/// The floats of a value whose work has been executed.
fn floats(value: &DeviceValue) -> Vec<f32> {
    let slot = value.buffer::<Slot>().expect("a value of this backend");
    lock(slot).clone().expect("everything before has been executed")
}

impl DeviceMemory for Deferred {
    fn upload(&self, values: &[f32]) -> DeviceValue {
        let (value, slot) = self.value(values.len());
        let values = values.to_vec();
        self.queue.record(move || *lock(&slot) = Some(values));
        value
    }

    fn tap(&self, value: &DeviceValue, selection: &Selection, work: &TapWork) -> Option<DeviceValue> {
        let (tokens, columns, width) = (selection.tokens.to_vec(), selection.columns.to_vec(), selection.width);
        let count: usize = columns.iter().map(|range| range.len()).sum();
        let from = value.clone();
        let gather = move |line: &[f32]| -> Vec<f32> {
            columns.iter().flat_map(|range| line[range.clone()].iter().copied()).collect()
        };
        let lines = move |values: &[f32]| -> Vec<Vec<f32>> {
            tokens.iter().map(|&token| gather(&values[token * width..][..width])).collect()
        };
        let reduce: Reduce = match work {
            TapWork::Gather => Box::new(|line| line.to_vec()),
            TapWork::Norm => Box::new(|line| vec![dot(line, line).sqrt()]),
            TapWork::Dot(vector) => {
                let vector = vector.to_vec();
                Box::new(move |line| vec![dot(line, &vector)])
            }
            TapWork::Edit(edit) => {
                let edit = OwnedEdit::of(edit);
                let (tokens, columns) = (selection.tokens.to_vec(), selection.columns.to_vec());
                self.queue.record(move || edit.execute(&from, width, &tokens, &columns));
                return None;
            }
        };
        let each = if matches!(work, TapWork::Gather) { count } else { 1 };
        let (made, slot) = self.value(selection.tokens.len() * each);
        self.queue.record(move || {
            let values = floats(&from);
            *lock(&slot) = Some(lines(&values).iter().flat_map(|line| reduce(line)).collect());
        });
        Some(made)
    }

    fn concat(&self, value: &DeviceValue, more: &DeviceValue) -> DeviceValue {
        let (joined, slot) = self.value(value.len() + more.len());
        let (value, more) = (value.clone(), more.clone());
        self.queue.record(move || {
            let mut floats_of_both = floats(&value);
            floats_of_both.extend(floats(&more));
            *lock(&slot) = Some(floats_of_both);
        });
        joined
    }

    fn download(&self, values: &[&DeviceValue]) -> Result<Vec<Vec<f32>>> {
        self.queue.wait();
        Ok(values.iter().map(|value| floats(value)).collect())
    }
}

/// A recorded edit.
enum OwnedEdit {
    Set(OwnedOperand),
    Add(OwnedOperand, f32),
    Scale(f32),
    ProjectOut(Vec<f32>, f32),
    Cap(Vec<f32>, f32, f32),
}

enum OwnedOperand {
    Number(f32),
    Vector(Vec<f32>),
    Vectors(Vec<f32>),
    Lines(DeviceValue, Vec<usize>),
}

impl OwnedOperand {
    fn of(written: &EditOperand) -> OwnedOperand {
        match written {
            EditOperand::Number(number) => OwnedOperand::Number(*number),
            EditOperand::Vector(vector) => OwnedOperand::Vector(vector.to_vec()),
            EditOperand::Vectors(vectors) => OwnedOperand::Vectors(vectors.to_vec()),
            EditOperand::Lines(buffer, lines) => OwnedOperand::Lines((*buffer).clone(), lines.to_vec()),
        }
    }

    /// The floats for the `nth` selected token.
    fn line(&self, nth: usize, count: usize) -> Vec<f32> {
        match self {
            OwnedOperand::Number(number) => vec![*number; count],
            OwnedOperand::Vector(vector) => vector.clone(),
            OwnedOperand::Vectors(vectors) => vectors[nth * count..][..count].to_vec(),
            OwnedOperand::Lines(buffer, lines) => floats(buffer)[lines[nth] * count..][..count].to_vec(),
        }
    }
}

impl OwnedEdit {
    fn of(edit: &TapEdit) -> OwnedEdit {
        match edit {
            TapEdit::Set(written) => OwnedEdit::Set(OwnedOperand::of(written)),
            TapEdit::Add(written, scale) => OwnedEdit::Add(OwnedOperand::of(written), *scale),
            TapEdit::Scale(by) => OwnedEdit::Scale(*by),
            TapEdit::ProjectOut(direction, left) => OwnedEdit::ProjectOut(direction.to_vec(), *left),
            TapEdit::Cap(direction, min, max) => OwnedEdit::Cap(direction.to_vec(), *min, *max),
        }
    }

    fn execute(&self, value: &DeviceValue, width: usize, tokens: &[usize], columns: &[std::ops::Range<usize>]) {
        let slot = value.buffer::<Slot>().expect("a value of this backend");
        let mut values = lock(slot).take().expect("everything before has been executed");
        for (nth, &token) in tokens.iter().enumerate() {
            let line = &mut values[token * width..][..width];
            let mut picked: Vec<f32> = columns.iter().flat_map(|range| line[range.clone()].iter().copied()).collect();
            self.apply(nth, &mut picked);
            let mut picked = picked.into_iter();
            columns.iter().flat_map(Clone::clone).for_each(|column| line[column] = picked.next().unwrap_or_default());
        }
        *lock(slot) = Some(values);
    }

    fn apply(&self, nth: usize, picked: &mut [f32]) {
        match self {
            OwnedEdit::Set(written) => picked.copy_from_slice(&written.line(nth, picked.len())),
            OwnedEdit::Add(written, scale) => {
                let line = written.line(nth, picked.len());
                picked.iter_mut().zip(line).for_each(|(x, v)| *x += scale * v);
            }
            OwnedEdit::Scale(by) => picked.iter_mut().for_each(|x| *x *= by),
            OwnedEdit::ProjectOut(direction, left) => {
                for part in picked.chunks_exact_mut(direction.len()) {
                    let along = (left - 1.0) * dot(part, direction);
                    part.iter_mut().zip(direction).for_each(|(x, v)| *x += along * v);
                }
            }
            OwnedEdit::Cap(direction, min, max) => {
                for part in picked.chunks_exact_mut(direction.len()) {
                    let along = dot(part, direction);
                    let change = along.clamp(*min, *max) - along;
                    part.iter_mut().zip(direction).for_each(|(x, v)| *x += change * v);
                }
            }
        }
    }
}

/// KV caches and recurrent states of a row.
struct DeferredRow {
    state: Arc<Mutex<RowState>>,
    queue: Arc<Queue>,
}

impl DeviceRow for DeferredRow {
    fn truncate(&mut self, len: usize) {
        let state = self.state.clone();
        self.queue.record(move || lock(&state).truncate(len));
    }

    fn prefix(&self, len: usize, capacity: usize) -> Box<dyn DeviceRow> {
        let (from, copy) = (self.state.clone(), Arc::new(Mutex::new(RowState::default())));
        let to = copy.clone();
        self.queue.record(move || {
            let from = lock(&from);
            *lock(&to) = from.prefix(len, capacity, from.prompt);
        });
        Box::new(DeferredRow { state: copy, queue: self.queue.clone() })
    }

    fn free_kv(&mut self, layer: usize) {
        let state = self.state.clone();
        self.queue.record(move || drop(lock(&state).free_kv(layer)));
    }

    fn take_kv(&mut self, layer: usize) -> Option<KvCache> {
        self.queue.wait();
        lock(&self.state).kv.get_mut(layer)?.take()
    }

    fn take_state(&mut self, op: usize) -> Option<Vec<f32>> {
        self.queue.wait();
        lock(&self.state).recurrent_states.get_mut(op).map(std::mem::take).filter(|state| !state.is_empty())
    }

    fn bytes(&self) -> usize {
        self.queue.wait();
        lock(&self.state).bytes()
    }

    fn as_any(&mut self) -> &mut dyn Any {
        self
    }
}
