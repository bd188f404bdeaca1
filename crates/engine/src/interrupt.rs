//! Stopping a call from outside.

use crate::error::{Error, Result};
use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Least time between two questions.
const PERIOD: Duration = Duration::from_millis(20);

/// Asked now and then during a call whether to stop it: true ends the call with [`Error::Interrupted`].
///
/// The question is put between ops, on the thread that made the call, at most fifty times a second.
#[derive(Clone)]
pub struct Interrupt(pub Arc<dyn Fn() -> bool + Send + Sync>);

impl std::fmt::Debug for Interrupt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Interrupt")
    }
}

/// When a call's interrupt was asked last.
pub(crate) struct Watch {
    interrupt: Option<Interrupt>,
    asked: Cell<Instant>,
}

impl Watch {
    pub fn new(interrupt: Option<&Interrupt>) -> Watch {
        Watch { interrupt: interrupt.cloned(), asked: Cell::new(Instant::now()) }
    }

    /// Asks, if it is time to.
    pub fn check(&self) -> Result<()> {
        let Some(interrupt) = &self.interrupt else { return Ok(()) };
        if self.asked.get().elapsed() < PERIOD {
            return Ok(());
        }
        self.asked.set(Instant::now());
        if interrupt.0() { Err(Error::Interrupted) } else { Ok(()) }
    }
}
