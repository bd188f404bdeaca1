//! Interrupting a call.

use crate::error::{Error, Result};
use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Minimum time between two polls.
const MIN_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// A callback that is polled during a call; returning true ends the call with
/// [`Error::Interrupted`].
///
/// It is polled between ops, on the calling thread, at most 50 times per second.
#[derive(Clone)]
pub struct Interrupt(pub Arc<dyn Fn() -> bool + Send + Sync>);

impl std::fmt::Debug for Interrupt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Interrupt")
    }
}

/// Polls a call's interrupt at a limited rate.
pub(crate) struct InterruptPoller {
    interrupt: Option<Interrupt>,
    last_poll: Cell<Instant>,
}

impl InterruptPoller {
    pub fn new(interrupt: Option<&Interrupt>) -> InterruptPoller {
        InterruptPoller { interrupt: interrupt.cloned(), last_poll: Cell::new(Instant::now()) }
    }

    /// Polls the interrupt if the last poll is long enough ago.
    pub fn check(&self) -> Result<()> {
        let Some(interrupt) = &self.interrupt else { return Ok(()) };
        if self.last_poll.get().elapsed() < MIN_POLL_INTERVAL {
            return Ok(());
        }
        self.last_poll.set(Instant::now());
        if interrupt.0() { Err(Error::Interrupted) } else { Ok(()) }
    }
}
