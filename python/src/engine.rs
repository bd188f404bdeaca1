//! The scheduler behind `Model.engine`: many requests at once.

use crate::chat::extract_chats;
use crate::errors::{ErrorKind, error, from_engine, guarded};
use crate::model::Model;
use crate::plan::Plan;
use crate::results::{CaptureTuple, RunResults, to_tuple};
use crate::run::{EditedPlan, Generation, PlanOffset, concat_edits, extract_rows, parse_generate_options, run_engine};
use pellucid_engine::{self as engine, Request, RowToken, Scheduler, SchedulerOptions};
use pellucid_models::RequestText;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Time between two looks for Ctrl-C while a call waits.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(50);

/// A scheduler. Closing it ends its requests.
#[pyclass(frozen, module = "pellucid._core")]
pub struct Engine {
    scheduler: Mutex<Option<Scheduler>>,
}

#[pymethods]
impl Engine {
    /// Starts the scheduler's thread.
    #[new]
    fn new(py: Python<'_>, model: &Model, options: &Bound<'_, PyDict>) -> PyResult<Engine> {
        let options = parse_scheduler_options(py, options)?;
        let scheduler = Scheduler::new(&model.loaded(py)?.model, options).map_err(|fault| from_engine(py, &fault))?;
        Ok(Engine { scheduler: Mutex::new(Some(scheduler)) })
    }

    /// Submits rows of tokens as one job, under the standing edits followed by a plan.
    fn submit(
        &self,
        py: Python<'_>,
        model: &Model,
        rows: &Bound<'_, PyList>,
        plan: Py<Plan>,
        edits: &Bound<'_, PyTuple>,
        options: &Bound<'_, PyDict>,
    ) -> PyResult<EngineRequest> {
        let chats = extract_chats(rows);
        let (loaded, rows, edits) = (model.loaded(py)?, extract_rows(py, rows)?, concat_edits(edits)?);
        let mut settings = parse_generate_options(py, options)?;
        if settings.eos {
            settings.generate.eos = loaded.eos.clone();
        }
        let (limits, count) = (RowLimits::of(&settings.generate), rows.len());
        let (handle, text, offset) = run_engine(py, || {
            let edited = EditedPlan::new(plan.get(), edits, &rows, &chats, model)?;
            let offset = edited.offset;
            let text = match (&loaded.tokenizer, settings.stop.is_empty()) {
                (None, true) => None,
                _ => Some(loaded.request_text(count, &settings.stop)?),
            };
            let mut request = Request {
                inputs: rows,
                plan: edited.plan.into_owned(),
                options: settings.generate,
                ..Request::default()
            };
            text.iter().for_each(|text: &RequestText| text.end_rows_of(&mut request));
            let scheduler = self.lock();
            let handle = match &*scheduler {
                Some(scheduler) => scheduler.submit(request)?,
                None => Err(engine::Error::input("the engine is closed", "submit requests before closing it"))?,
            };
            Ok((handle, text, offset))
        })?;
        let stream = Stream { text: text.clone(), counts: vec![0; count], limits, rest: 0 };
        Ok(EngineRequest {
            handle,
            plan,
            offset,
            one_row: count == 1,
            no_text: text,
            stream: Mutex::new(stream),
            outcome: Mutex::default(),
        })
    }

    /// Requests that run, their rows, requests that wait, and the bytes that running requests have
    /// reserved for KV caches and for captures.
    fn load(&self) -> (usize, usize, usize, usize, usize) {
        let load = self.lock().as_ref().map(Scheduler::load).unwrap_or_default();
        (load.running, load.rows, load.waiting, load.kv_bytes, load.capture_bytes)
    }

    /// Ends all requests and the thread.
    fn close(&self, py: Python<'_>) {
        // The thread may be waiting for the GIL to call a Python function of a plan.
        py.detach(|| drop(self.lock().take()));
    }
}

impl Engine {
    fn lock(&self) -> MutexGuard<'_, Option<Scheduler>> {
        self.scheduler.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        Python::attach(|py| self.close(py));
    }
}

/// When the rows of a request end, apart from stop strings.
struct RowLimits {
    max_new: usize,
    eos: Vec<u32>,
}

impl RowLimits {
    fn of(options: &engine::GenerateOptions) -> RowLimits {
        RowLimits { max_new: options.max_new, eos: options.eos.clone() }
    }
}

/// The text of a request whose tokens are read one by one.
struct Stream {
    /// `None` without a tokenizer.
    text: Option<RequestText>,
    /// Tokens of each row.
    counts: Vec<usize>,
    limits: RowLimits,
    /// Next row whose held-back text is returned after the last token.
    rest: usize,
}

/// `(row, token, text)`. The token is `None` for text that follows the last token of a row.
type TextPiece = (usize, Option<u32>, Option<String>);

impl Stream {
    fn push(&mut self, token: RowToken) -> TextPiece {
        let RowToken { row, token: id } = token;
        self.counts[row] += 1;
        let is_last = self.counts[row] >= self.limits.max_new || self.limits.eos.contains(&id);
        let text = self.text.as_mut().map(|text| {
            let mut piece = text.push(token).to_owned();
            if is_last || text.is_stopped(row) {
                piece += text.finish(row);
            }
            piece
        });
        (row, Some(id), text)
    }

    /// After the last token: text that was held back in rows that ended for another reason.
    fn next_rest(&mut self) -> Option<TextPiece> {
        let text = self.text.as_mut()?;
        while self.rest < self.counts.len() {
            let row = self.rest;
            self.rest += 1;
            let piece = text.finish(row);
            if !piece.is_empty() {
                return Some((row, None, Some(piece.to_owned())));
            }
        }
        None
    }
}

/// The result of a request, which the engine gives once.
#[derive(Default)]
struct Outcome {
    received: Option<engine::Result<engine::Generation>>,
    converted: Option<Result<Py<Generation>, engine::Error>>,
}

/// A submitted request.
#[pyclass(frozen, module = "pellucid._core")]
pub struct EngineRequest {
    handle: engine::RequestHandle,
    plan: Py<Plan>,
    offset: PlanOffset,
    one_row: bool,
    /// The text before the first token; `None` without a tokenizer.
    no_text: Option<RequestText>,
    stream: Mutex<Stream>,
    outcome: Mutex<Outcome>,
}

#[pymethods]
impl EngineRequest {
    /// The number of the request, in the order of submission.
    #[getter]
    fn id(&self) -> u64 {
        self.handle.id()
    }

    /// Waits for the next token: `(row, token, text)`, or `None` after the last.
    fn next_token(&self, py: Python<'_>) -> PyResult<Option<TextPiece>> {
        loop {
            match py.detach(|| self.handle.next_token_within(SIGNAL_INTERVAL)) {
                Ok(token) => return Ok(self.piece(token)),
                Err(()) => py.check_signals()?,
            }
        }
    }

    /// The next token without waiting: `(is ready, token as in next_token)`.
    fn try_next_token(&self) -> (bool, Option<TextPiece>) {
        match self.handle.try_next_token() {
            Ok(token) => (true, self.piece(token)),
            Err(()) => (false, None),
        }
    }

    /// Calls a function once, when a token is ready or the request has ended; on any thread.
    fn when_ready(&self, py: Python<'_>, function: Py<PyAny>) {
        py.detach(|| {
            self.handle.when_ready(move || {
                // A closed event loop raises; nothing waits for it any more.
                _ = Python::attach(|py| function.call0(py).map(drop));
            })
        });
    }

    /// Waits for the result, at most `timeout` seconds: `None` if it was not ready in time. Raises
    /// the error of a request that failed. Calls may be repeated.
    fn result(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<Py<Generation>>> {
        let timeout = timeout.map(|seconds| {
            Duration::try_from_secs_f64(seconds).map_err(|_| {
                error(py, ErrorKind::Input, &format!("{seconds} is not a timeout"), Some("give seconds, at least 0"))
            })
        });
        let deadline = timeout.transpose()?.map(|timeout| std::time::Instant::now() + timeout);
        loop {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(std::time::Instant::now()));
            let interval = left.map_or(SIGNAL_INTERVAL, |left| left.min(SIGNAL_INTERVAL));
            if guarded(py, || self.receive(interval))? {
                break;
            }
            if left == Some(Duration::ZERO) {
                return Ok(None);
            }
            py.check_signals()?;
        }
        let mut outcome = self.outcome.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(received) = outcome.received.take() {
            outcome.converted = Some(match received {
                Ok(generation) => Ok(Py::new(py, self.convert(py, generation))?),
                Err(fault) => Err(fault),
            });
        }
        match &outcome.converted {
            Some(Ok(generation)) => Ok(Some(generation.clone_ref(py))),
            Some(Err(fault)) => Err(from_engine(py, fault)),
            None => Ok(None),
        }
    }

    /// The captured lines so far.
    fn captures(&self) -> Vec<CaptureTuple> {
        self.handle.captures().iter().map(to_tuple).collect()
    }

    /// Whether the request has ended.
    #[getter]
    fn is_done(&self) -> bool {
        self.handle.is_done()
    }

    /// Ends the request before the next pass.
    fn cancel(&self, py: Python<'_>) {
        py.detach(|| self.handle.cancel());
    }
}

impl EngineRequest {
    fn piece(&self, token: Option<RowToken>) -> Option<TextPiece> {
        let mut stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        match token {
            Some(token) => Some(stream.push(token)),
            None => stream.next_rest(),
        }
    }

    /// Waits at most `timeout` for the result; returns whether it is there.
    fn receive(&self, timeout: Duration) -> bool {
        let mut outcome = self.outcome.lock().unwrap_or_else(PoisonError::into_inner);
        if outcome.received.is_none() && outcome.converted.is_none() {
            outcome.received = self.handle.wait_within(timeout);
        }
        outcome.received.is_some() || outcome.converted.is_some()
    }

    fn convert(&self, py: Python<'_>, generation: engine::Generation) -> Generation {
        let text_of = |(row, generated): (usize, &engine::GeneratedRow)| {
            let mut text = self.no_text.clone()?;
            generated.tokens.iter().for_each(|&token| _ = text.push(RowToken { row, token }));
            text.finish(row);
            Some(text.text(row).to_owned())
        };
        let texts = generation.rows.iter().enumerate().map(text_of).collect();
        let engine::Generation { rows, captures, saved, marks, passed_over, reused, prefill, decode, .. } = generation;
        let (plan, offset) = (self.plan.clone_ref(py), self.offset);
        let one_row = self.one_row;
        let results = RunResults { captures, saved, marks, passed_over, plan, offset, one_row, steps: true };
        Generation { results, rows, texts, prefill, decode, reused, nan: None }
    }
}

/// Parses the keyword arguments of `Model.engine`.
fn parse_scheduler_options(py: Python<'_>, options: &Bound<'_, PyDict>) -> PyResult<SchedulerOptions> {
    let mut parsed = SchedulerOptions::default();
    for (key, value) in options {
        let key: String = key.extract()?;
        let field = match key.as_str() {
            "max_batch" => &mut parsed.max_rows,
            "pass_tokens" => &mut parsed.pass_tokens,
            "kv_bytes" => &mut parsed.kv_bytes,
            "capture_bytes" => &mut parsed.capture_bytes,
            "prefix_bytes" => &mut parsed.prefix_bytes,
            "queue" => &mut parsed.queue,
            _ => {
                let known = "max_batch, pass_tokens, kv_bytes, capture_bytes, prefix_bytes, queue";
                let problem = format!("an engine has no option {key:?}");
                return Err(error(py, ErrorKind::Input, &problem, Some(&format!("the options are {known}"))));
            }
        };
        *field = value.extract().map_err(|_| {
            error(py, ErrorKind::Input, &format!("{key}: {value} is not a count"), Some("give an integer from 0"))
        })?;
    }
    Ok(parsed)
}
