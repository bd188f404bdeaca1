//! The scheduler's thread: admits requests, runs passes, hands out tokens and results.

use super::handle::{Outbox, RequestHandle, RowToken};
use super::{Load, OnEnd, OnToken, PassRecord, PassShare, RequestMemory, SchedulerOptions};
use crate::error::{Error, Result};
use crate::generate::{Batch, BatchShare, Control, GenerateOptions, Generation, RequestId};
use crate::model::Model;
use crate::plan::Plan;
use crate::prefix::PrefixCache;
use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// A checked request.
pub(super) struct Checked {
    pub inputs: Vec<Vec<u32>>,
    pub plan: Plan,
    pub options: GenerateOptions,
    pub on_token: Option<OnToken>,
    pub memory: RequestMemory,
}

/// A request in the queue.
struct Waiting {
    id: u64,
    request: Checked,
    outbox: Arc<Outbox>,
}

/// A request in the batch.
struct Running {
    id: u64,
    rows: usize,
    memory: RequestMemory,
    on_token: Option<OnToken>,
    /// `on_token` has panicked.
    failed: bool,
    outbox: Arc<Outbox>,
}

/// State that the scheduler, its thread and the handles share.
pub(super) struct Shared {
    state: Mutex<State>,
    /// Rows and reserved bytes of the running requests.
    running: Mutex<Load>,
    /// Signals a new request, a cancellation or the end.
    changed: Condvar,
    prefixes: Option<PrefixCache>,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Waiting>,
    submitted: u64,
    closing: bool,
    passes: Vec<PassRecord>,
}

impl Shared {
    pub fn new(prefixes: Option<PrefixCache>) -> Shared {
        Shared { state: Mutex::default(), running: Mutex::default(), changed: Condvar::new(), prefixes }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn running(&self) -> MutexGuard<'_, Load> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn prefixes(&self) -> Option<&PrefixCache> {
        self.prefixes.as_ref()
    }

    pub fn passes(&self) -> Vec<PassRecord> {
        self.lock().passes.clone()
    }

    pub fn load(&self) -> Load {
        let waiting = self.lock().queue.len();
        Load { waiting, ..*self.running() }
    }

    /// Puts a request at the end of the queue, which holds at most `limit`.
    pub fn enqueue(self: &Arc<Shared>, request: Checked, on_end: Option<OnEnd>, limit: usize) -> Result<RequestHandle> {
        let outbox = Arc::new(Outbox::new(on_end));
        let mut state = self.lock();
        if state.queue.len() >= limit {
            return Err(Error::Busy { waiting: state.queue.len() });
        }
        let id = state.submitted;
        state.submitted += 1;
        state.queue.push_back(Waiting { id, request, outbox: outbox.clone() });
        drop(state);
        self.changed.notify_one();
        Ok(RequestHandle::new(id, outbox, self.clone()))
    }

    /// Wakes the thread, which looks for cancelled requests.
    pub fn wake(&self) {
        // Under the lock, so that the signal cannot fall between the thread's look and its wait.
        let _state = self.lock();
        self.changed.notify_one();
    }

    /// Tells the thread to end all requests and to return.
    pub fn close(&self) {
        self.lock().closing = true;
        self.changed.notify_one();
    }
}

/// The thread's own state.
struct Worker {
    model: Model,
    options: SchedulerOptions,
    shared: Arc<Shared>,
    batch: Batch,
    running: HashMap<RequestId, Running>,
    started: Instant,
}

/// Runs requests until the scheduler closes.
pub(super) fn run(model: Model, options: SchedulerOptions, shared: Arc<Shared>) {
    let batch = Batch::new(&model);
    let mut worker = Worker { model, options, shared, batch, running: HashMap::new(), started: Instant::now() };
    while let Some(admitted) = worker.wait_for_work() {
        admitted.into_iter().for_each(|waiting| worker.start(waiting));
        worker.pass();
    }
    worker.end_all(Error::Interrupted);
}

impl Worker {
    /// Waits until there is something to do and takes the requests to admit from the queue; `None`
    /// when the scheduler closes.
    fn wait_for_work(&mut self) -> Option<Vec<Waiting>> {
        let shared = self.shared.clone();
        let mut state = shared.lock();
        loop {
            if state.closing {
                state.queue.drain(..).for_each(|waiting| waiting.outbox.end(Err(Error::Interrupted)));
                return None;
            }
            state.queue.retain(|waiting| {
                let cancelled = waiting.outbox.is_cancelled();
                if cancelled {
                    waiting.outbox.end(Err(Error::Interrupted));
                }
                !cancelled
            });
            self.drop_cancelled();
            let admitted = self.admit(&mut state.queue);
            if !admitted.is_empty() || !self.running.is_empty() {
                return Some(admitted);
            }
            state = shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Takes requests from the front of the queue while their rows, KV caches and captures fit. The
    /// first one that does not fit holds back the others, so no request is overtaken forever.
    fn admit(&self, queue: &mut VecDeque<Waiting>) -> Vec<Waiting> {
        let mut load = self.load();
        let mut admitted = Vec::new();
        while let Some(first) = queue.front() {
            load.rows += first.request.inputs.len();
            load.kv_bytes += first.request.memory.kv_bytes;
            load.capture_bytes += first.request.memory.capture_bytes;
            let SchedulerOptions { max_rows, kv_bytes, capture_bytes, .. } = self.options;
            if load.rows > max_rows || load.kv_bytes > kv_bytes || load.capture_bytes > capture_bytes {
                break;
            }
            admitted.extend(queue.pop_front());
        }
        admitted
    }

    /// Ends the running requests that were cancelled and frees their rows.
    fn drop_cancelled(&mut self) {
        let cancelled = |running: &Running| running.outbox.is_cancelled();
        let ids: Vec<RequestId> = self.running.iter().filter(|(_, r)| cancelled(r)).map(|(&id, _)| id).collect();
        for id in ids {
            self.batch.cancel(id);
            self.end(id, Err(Error::Interrupted));
        }
    }

    /// Adds a request to the batch.
    fn start(&mut self, waiting: Waiting) {
        let Waiting { id, request, outbox } = waiting;
        let Checked { inputs, plan, options, on_token, memory } = request;
        match self.batch.add(&inputs, &plan, &options) {
            Ok(key) => {
                let captures = self.batch.live_captures(key).unwrap_or_default();
                outbox.set_live(captures, self.batch.live_logprobs(key));
                let running = Running { id, rows: inputs.len(), memory, on_token, failed: false, outbox };
                self.running.insert(key, running);
                *self.shared.running() = self.load();
            }
            Err(error) => outbox.end(Err(error)),
        }
    }

    /// Runs one pass and delivers its tokens and the results of requests that have ended.
    fn pass(&mut self) {
        let start = self.started.elapsed();
        let Worker { batch, running, .. } = self;
        let mut on_token = |key: RequestId, row: usize, token: u32| match running.get_mut(&key) {
            Some(request) => request.deliver(RowToken { row, token }),
            None => Control::Stop,
        };
        // A panic is a fault of the engine. It ends the requests of this pass, not the process.
        let outcome = catch_unwind(AssertUnwindSafe(|| batch.pass(self.options.pass_tokens, &mut on_token)));
        let shares = match outcome {
            Ok(Ok(shares)) => shares,
            Ok(Err(error)) => return self.start_over(error),
            Err(_) => return self.start_over(Error::Internal("a pass of the scheduler panicked".into())),
        };
        if self.options.record_passes {
            let share = |share: &BatchShare| {
                let BatchShare { request, prompt_tokens, decode_tokens } = *share;
                Some(PassShare { request: self.running.get(&request)?.id, prompt_tokens, decode_tokens })
            };
            let requests = shares.iter().filter_map(share).collect();
            let duration = self.started.elapsed() - start;
            let Load { kv_bytes, capture_bytes, .. } = self.load();
            let mut state = self.shared.lock();
            let waiting = state.queue.len();
            state.passes.push(PassRecord { start, duration, requests, waiting, kv_bytes, capture_bytes });
        }
        for (key, result) in self.batch.take_ended() {
            let failed = self.running.get(&key).is_some_and(|running| running.failed);
            let panicked = || Error::input("the token callback panicked", "correct the callback");
            self.end(key, if failed { Err(panicked()) } else { result });
        }
    }

    /// Ends all running requests with an error and goes on with an empty batch.
    fn start_over(&mut self, error: Error) {
        self.end_all(error);
        self.batch = Batch::new(&self.model);
    }

    fn end_all(&mut self, error: Error) {
        let keys: Vec<RequestId> = self.running.keys().copied().collect();
        keys.into_iter().for_each(|key| self.end(key, Err(error.clone())));
    }

    fn end(&mut self, key: RequestId, result: Result<Generation>) {
        if let Some(running) = self.running.remove(&key) {
            // Before the caller learns of the end, so that it sees the memory freed.
            *self.shared.running() = self.load();
            running.outbox.end(result);
        }
    }

    /// Rows and reserved bytes of the running requests.
    fn load(&self) -> Load {
        let mut load = Load { running: self.running.len(), ..Load::default() };
        for running in self.running.values() {
            load.rows += running.rows;
            load.kv_bytes += running.memory.kv_bytes;
            load.capture_bytes += running.memory.capture_bytes;
        }
        load
    }
}

impl Running {
    /// Shows a new token to the request's callback and sends it to its handle.
    fn deliver(&mut self, token: RowToken) -> Control {
        let control = match &mut self.on_token {
            None => Control::Go,
            Some(on_token) => catch_unwind(AssertUnwindSafe(|| on_token(token))).unwrap_or_else(|_| {
                self.failed = true;
                Control::Stop
            }),
        };
        self.outbox.send(token);
        control
    }
}
