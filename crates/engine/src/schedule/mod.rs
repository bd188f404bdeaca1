//! The scheduler: many generation requests at once, each with its own plan, sampling and seed.
//!
//! One thread owns the running [`Batch`](crate::Batch). Between two passes it drops cancelled
//! requests, admits waiting ones in the order of their arrival as far as the limits allow
//! (`memory.rs`), and then runs one pass: one token of every row that decodes, and prompt tokens up
//! to the token budget of a pass, so that a long prompt does not stall the others (`worker.rs`).
//! Callers hold a [`RequestHandle`] (`handle.rs`): tokens as they come, the result, cancellation.
//!
//! A row has the same bits in any company, so a request's tokens and captures do not depend on the
//! load, on its neighbors, or on how its prompt was split.

mod handle;
mod memory;
mod worker;

pub use handle::{RequestHandle, RowToken};
pub use memory::RequestMemory;

use crate::error::{Error, Result};
use crate::generate::{Control, GenerateOptions};
use crate::model::Model;
use crate::plan::Plan;
use crate::prefix::PrefixCache;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use worker::{Checked, Shared};

/// Limits of a [`Scheduler`].
#[derive(Clone, Debug)]
pub struct SchedulerOptions {
    /// Most rows in one pass.
    pub max_rows: usize,
    /// Tokens of one pass: one for each row that decodes, the rest from prompts. A prompt always
    /// advances by at least one token.
    pub pass_tokens: usize,
    /// Bytes for the KV caches and recurrent states of running requests. A request counts with the
    /// length that it may reach; one that does not fit waits.
    pub kv_bytes: usize,
    /// Bytes for the captures of running requests. A request counts with all positions that it may
    /// reach; one that does not fit waits. The captures of a finished request belong to the caller.
    pub capture_bytes: usize,
    /// Bytes for prefixes of earlier requests that later ones may start with; 0 turns this off.
    pub prefix_bytes: usize,
    /// Most requests that wait.
    pub queue: usize,
    /// Keep a record of every pass, for [`Scheduler::passes`].
    pub record_passes: bool,
}

impl Default for SchedulerOptions {
    fn default() -> SchedulerOptions {
        SchedulerOptions {
            max_rows: 32,
            pass_tokens: 512,
            kv_bytes: 4 << 30,
            capture_bytes: 4 << 30,
            prefix_bytes: 256 << 20,
            queue: 4096,
            record_passes: false,
        }
    }
}

/// A function that sees each new token of a request, on the scheduler's thread, and may end the
/// row.
pub type OnToken = Box<dyn FnMut(RowToken) -> Control + Send>;

/// A function that is called on the scheduler's thread once a request has ended and its result can
/// be taken. It must not wait, nor call the scheduler.
pub type OnEnd = Box<dyn FnOnce() + Send>;

/// A generation to be scheduled: rows that share a plan.
#[derive(Default)]
pub struct Request {
    /// Tokens of each prompt. Several rows form one job, so a row may read another's activations.
    pub inputs: Vec<Vec<u32>>,
    /// Captures and edits.
    pub plan: Plan,
    /// Sampling, length and end-of-sequence tokens. `threads`, `prefixes` and `interrupt` must be
    /// absent: the scheduler has its own threads and prefix cache, and handles cancel.
    pub options: GenerateOptions,
    /// Called with each new token before the handle receives it.
    pub on_token: Option<OnToken>,
    /// Called when the request has ended, with a result or an error. A caller with many handles
    /// learns in this way which of them to take.
    pub on_end: Option<OnEnd>,
}

impl Request {
    /// A request for one prompt.
    pub fn new(prompt: Vec<u32>, plan: Plan, options: GenerateOptions) -> Request {
        Request { inputs: vec![prompt], plan, options, ..Request::default() }
    }
}

/// Rows, requests and bytes at this moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Requests that run.
    pub running: usize,
    /// Their rows.
    pub rows: usize,
    /// Requests that wait.
    pub waiting: usize,
    /// Bytes that running requests have reserved for KV caches and recurrent states.
    pub kv_bytes: usize,
    /// Bytes that running requests have reserved for captures.
    pub capture_bytes: usize,
}

/// One pass of the scheduler.
#[derive(Clone, Debug, PartialEq)]
pub struct PassRecord {
    /// Time from the scheduler's start to the start of the pass.
    pub start: Duration,
    /// Duration of the pass.
    pub duration: Duration,
    /// The requests in it.
    pub requests: Vec<PassShare>,
    /// Requests that waited meanwhile.
    pub waiting: usize,
    /// Bytes that its requests have reserved for KV caches and recurrent states.
    pub kv_bytes: usize,
    /// Bytes that its requests have reserved for captures.
    pub capture_bytes: usize,
}

/// The tokens of one request in a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PassShare {
    /// The number of the request, in the order of submission.
    pub request: u64,
    /// Prompt tokens.
    pub prompt_tokens: usize,
    /// Generated tokens that were fed back.
    pub decode_tokens: usize,
}

/// Runs requests in shared passes on a thread of its own. Dropping it ends all requests.
///
/// ```no_run
/// # fn example(model: &pellucid_engine::Model, prompts: Vec<Vec<u32>>) -> pellucid_engine::Result<()> {
/// use pellucid_engine::{GenerateOptions, Plan, Request, Scheduler, SchedulerOptions};
/// let scheduler = Scheduler::new(model, SchedulerOptions::default())?;
/// let plan = Plan::capture(["layers.*.resid_post"]);
/// let submit = |prompt| scheduler.submit(Request::new(prompt, plan.clone(), GenerateOptions::default()));
/// let handles = prompts.into_iter().map(submit).collect::<Result<Vec<_>, _>>()?;
/// for handle in handles {
///     let generation = handle.wait()?;
///     println!("{:?}", generation.rows[0].tokens);
/// }
/// # Ok(())
/// # }
/// ```
pub struct Scheduler {
    model: Model,
    options: SchedulerOptions,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Scheduler {
    /// Starts a scheduler with its thread.
    pub fn new(model: &Model, options: SchedulerOptions) -> Result<Scheduler> {
        for (name, value) in [("max_rows", options.max_rows), ("pass_tokens", options.pass_tokens)] {
            if value == 0 {
                return Err(Error::input(format!("{name} is 0"), format!("take at least 1 for {name}")));
            }
        }
        let prefixes = (options.prefix_bytes > 0).then(|| PrefixCache::new(options.prefix_bytes));
        let shared = Arc::new(Shared::new(prefixes));
        let (model, own, settings) = (model.clone(), shared.clone(), options.clone());
        let worker = model.clone();
        let thread = std::thread::Builder::new()
            .name("pellucid-scheduler".into())
            .spawn(move || worker::run(worker, settings, own))
            .map_err(|error| Error::input(format!("the scheduler's thread did not start: {error}"), "free memory"))?;
        Ok(Scheduler { model, options, shared, thread: Some(thread) })
    }

    /// The model that it runs.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Checks a request and puts it into the queue.
    ///
    /// Plan, inputs, sampling and memory are checked here, so a request that cannot run fails at
    /// once. The result is an error if the queue is full.
    pub fn submit(&self, request: Request) -> Result<RequestHandle> {
        let Request { inputs, plan, mut options, on_token, on_end } = request;
        if options.threads.is_some() || options.prefixes.is_some() || options.interrupt.is_some() {
            return Err(Error::input(
                "a request cannot have threads, prefixes or an interrupt of its own",
                "leave them out: the scheduler has its own threads and prefix cache, and a handle cancels its request",
            ));
        }
        options.prefixes = self.shared.prefixes().cloned();
        let memory = RequestMemory::of(&self.model, &inputs, &plan, &options)?;
        if inputs.len() > self.options.max_rows {
            return Err(Error::input(
                format!("the request has {} rows, and the scheduler takes {}", inputs.len(), self.options.max_rows),
                "split the request, or start the scheduler with a larger max_rows",
            ));
        }
        let limits = [
            ("KV caches", "kv_bytes", memory.kv_bytes, self.options.kv_bytes),
            ("captures", "capture_bytes", memory.capture_bytes, self.options.capture_bytes),
        ];
        if let Some((what, option, needed, limit)) = limits.into_iter().find(|(.., needed, limit)| needed > limit) {
            return Err(Error::input(
                format!("the request needs {needed} bytes for {what}, and the scheduler has {limit}"),
                format!("ask for fewer new tokens or captures, or start the scheduler with a larger {option}"),
            ));
        }
        let request = Checked { inputs, plan, options, on_token, memory };
        self.shared.enqueue(request, on_end, self.options.queue)
    }

    /// Returns the running and waiting requests and the reserved memory.
    pub fn load(&self) -> Load {
        self.shared.load()
    }

    /// The passes so far, if they are recorded.
    pub fn passes(&self) -> Vec<PassRecord> {
        self.shared.passes()
    }

    /// The prefix cache, if there is one.
    pub fn prefixes(&self) -> Option<&PrefixCache> {
        self.shared.prefixes()
    }
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        self.shared.close();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has ended its requests with an error already.
            let _ = thread.join();
        }
    }
}
