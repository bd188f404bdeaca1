//! The caller's side of a request.

use super::OnEnd;
use super::worker::Shared;
use crate::error::{Error, Result};
use crate::generate::Generation;
use crate::job::LiveCapture;
use crate::logprobs::{LiveLogprobs, RowLogprobs, TokenLogprobs};
use crate::plan::Capture;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A new token of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowToken {
    /// The row of the request.
    pub row: usize,
    /// The token.
    pub token: u32,
}

/// Tokens that the caller has not received yet, and the result.
#[derive(Default)]
struct Progress {
    tokens: VecDeque<RowToken>,
    result: Option<Result<Generation>>,
    ended: bool,
    captures: Arc<[Arc<LiveCapture>]>,
    logprobs: Option<Arc<LiveLogprobs>>,
    /// Called once, at the next token or at the end.
    wakers: Vec<Waker>,
    on_end: Option<OnEnd>,
}

/// A function that wakes a task that waits for a request.
type Waker = Box<dyn FnOnce() + Send>;

/// State of a request that the scheduler's thread and the caller share.
#[derive(Default)]
pub(super) struct Outbox {
    progress: Mutex<Progress>,
    changed: Condvar,
    cancelled: AtomicBool,
}

impl Outbox {
    pub fn new(on_end: Option<OnEnd>) -> Outbox {
        Outbox { progress: Mutex::new(Progress { on_end, ..Progress::default() }), ..Outbox::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives the captures and log-probabilities of a request that starts.
    pub fn set_live(&self, captures: Arc<[Arc<LiveCapture>]>, logprobs: Option<Arc<LiveLogprobs>>) {
        let mut progress = self.lock();
        (progress.captures, progress.logprobs) = (captures, logprobs);
    }

    pub fn send(&self, token: RowToken) {
        let mut progress = self.lock();
        progress.tokens.push_back(token);
        self.wake(progress);
    }

    /// Wakes the threads and tasks that wait, without the lock.
    fn wake(&self, mut progress: MutexGuard<'_, Progress>) {
        let wakers = std::mem::take(&mut progress.wakers);
        drop(progress);
        self.changed.notify_all();
        // A waker that panics is a fault of its caller, and other requests go on.
        wakers.into_iter().for_each(|waker| _ = catch_unwind(AssertUnwindSafe(waker)));
    }

    pub fn end(&self, result: Result<Generation>) {
        let mut progress = self.lock();
        if !progress.ended {
            (progress.result, progress.ended) = (Some(result), true);
        }
        let on_end = progress.on_end.take();
        progress.wakers.extend(on_end);
        self.wake(progress);
    }

    /// Waits until the progress is `ready`; `None` after the timeout.
    fn wait(&self, timeout: Option<Duration>, ready: impl Fn(&Progress) -> bool) -> Option<MutexGuard<'_, Progress>> {
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        let mut progress = self.lock();
        while !ready(&progress) {
            progress = match deadline.map(|deadline| deadline.saturating_duration_since(Instant::now())) {
                None => self.changed.wait(progress).unwrap_or_else(PoisonError::into_inner),
                Some(Duration::ZERO) => return None,
                Some(left) => self.changed.wait_timeout(progress, left).unwrap_or_else(PoisonError::into_inner).0,
            };
        }
        Some(progress)
    }

    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }
}

/// A submitted request. Dropping the handle cancels the request.
#[must_use = "dropping the handle cancels the request"]
pub struct RequestHandle {
    id: u64,
    outbox: Arc<Outbox>,
    scheduler: Arc<Shared>,
}

impl RequestHandle {
    pub(super) fn new(id: u64, outbox: Arc<Outbox>, scheduler: Arc<Shared>) -> RequestHandle {
        RequestHandle { id, outbox, scheduler }
    }

    /// The number of the request, in the order of submission.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Waits for the next token; `None` after the last one, also when the request has failed.
    pub fn next_token(&self) -> Option<RowToken> {
        self.wait_for_token(None).unwrap_or_default()
    }

    /// Waits at most `timeout` for the next token: `Err(())` if none came in time.
    #[allow(clippy::result_unit_err)] // a timeout carries nothing
    pub fn next_token_within(&self, timeout: Duration) -> std::result::Result<Option<RowToken>, ()> {
        self.wait_for_token(Some(timeout)).ok_or(())
    }

    /// The next token, or none after the last; `None` after the timeout.
    fn wait_for_token(&self, timeout: Option<Duration>) -> Option<Option<RowToken>> {
        let mut progress = self.outbox.wait(timeout, |progress| progress.ended || !progress.tokens.is_empty())?;
        Some(progress.tokens.pop_front())
    }

    /// Takes the next token without waiting: `Err(())` if there is none yet, `Ok(None)` after the
    /// last.
    #[allow(clippy::result_unit_err)] // "not yet" carries nothing
    pub fn try_next_token(&self) -> std::result::Result<Option<RowToken>, ()> {
        self.wait_for_token(Some(Duration::ZERO)).ok_or(())
    }

    /// Calls a function once: now if a token is ready or the request has ended, otherwise from the
    /// scheduler's thread when that happens. Event loops wait for a request in this way; the
    /// function should only wake them.
    pub fn when_ready(&self, waker: impl FnOnce() + Send + 'static) {
        let mut progress = self.outbox.lock();
        if progress.ended || !progress.tokens.is_empty() {
            drop(progress);
            return waker();
        }
        progress.wakers.push(Box::new(waker));
    }

    /// Waits for the end of the request and returns its result. Tokens that were not received are
    /// dropped; they are in the result too.
    pub fn wait(self) -> Result<Generation> {
        self.take_result(None).unwrap_or(Err(Error::Interrupted))
    }

    /// Waits at most `timeout` for the end of the request. Its result is returned once; later calls
    /// give [`Error::Interrupted`].
    pub fn wait_within(&self, timeout: Duration) -> Option<Result<Generation>> {
        self.take_result(Some(timeout))
    }

    fn take_result(&self, timeout: Option<Duration>) -> Option<Result<Generation>> {
        let mut progress = self.outbox.wait(timeout, |progress| progress.ended)?;
        Some(progress.result.take().unwrap_or(Err(Error::Interrupted)))
    }

    /// Returns the captured lines so far, without waiting and without a copy: after a token was
    /// received, the lines of all positions before it. Calls may be repeated, also after the end.
    /// Means, attention patterns and captures with a condition are only in the result. A handle
    /// keeps this memory until it is dropped.
    pub fn captures(&self) -> Vec<Capture> {
        let captures = self.outbox.lock().captures.clone();
        captures.iter().map(|live| live.capture()).collect()
    }

    /// Returns the log-probabilities of the generated tokens of a row from token `from` on, without
    /// waiting: after a token was received, they include its own. Empty if none are recorded.
    pub fn logprobs(&self, row: usize, from: usize) -> Vec<TokenLogprobs> {
        let generated = |row: &RowLogprobs| row.generated.get(from..).unwrap_or_default().to_vec();
        self.with_logprobs(row, generated)
    }

    /// Returns the log-probabilities of the prompt tokens of a row after the first, as far as its
    /// prompt has been computed; complete once a token was received.
    pub fn prompt_logprobs(&self, row: usize) -> Vec<TokenLogprobs> {
        self.with_logprobs(row, |row| row.prompt.clone())
    }

    fn with_logprobs(&self, row: usize, read: impl Fn(&RowLogprobs) -> Vec<TokenLogprobs>) -> Vec<TokenLogprobs> {
        let live = self.outbox.lock().logprobs.clone();
        live.and_then(|live| live.rows().get(row).map(read)).unwrap_or_default()
    }

    /// Whether the request has ended.
    pub fn is_done(&self) -> bool {
        self.outbox.lock().ended
    }

    /// Ends the request before the next pass and frees its rows. Its result is
    /// [`Error::Interrupted`] unless it has ended already.
    pub fn cancel(&self) {
        self.outbox.cancelled.store(true, Ordering::Relaxed);
        self.scheduler.wake();
    }
}

impl Drop for RequestHandle {
    fn drop(&mut self) {
        if !self.is_done() {
            self.cancel();
        }
    }
}
