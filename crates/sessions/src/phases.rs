//! Phases of a session, with the time and memory of each.

use crate::memory::{peak_bytes, reset_peak, resident_bytes};
use serde::{Deserialize, Serialize};
use std::time::Instant;

/// Time and memory of a phase. Memory is 0 where the system does not report it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PhaseRecord {
    /// `config`, `init`, `prepare`, `setup`, `debug`, `run` or `save`.
    pub name: String,
    /// Duration in seconds.
    pub seconds: f64,
    /// Resident memory before, in bytes.
    pub rss_before: u64,
    /// Peak of the resident memory during the phase.
    pub rss_peak: u64,
    /// Resident memory after.
    pub rss_after: u64,
}

/// Measures phases one after the other.
#[derive(Clone, Debug, Default)]
pub struct PhaseClock {
    records: Vec<PhaseRecord>,
}

impl PhaseClock {
    /// Runs a phase and records it, also if it fails.
    pub fn measure<T>(&mut self, name: &str, work: impl FnOnce() -> T) -> T {
        let started = PhaseStart::now();
        let result = work();
        self.records.push(started.finish(name));
        result
    }

    /// Records a phase that a caller measured.
    pub fn push(&mut self, record: PhaseRecord) {
        self.records.push(record);
    }

    /// The phases so far, in order.
    pub fn records(&self) -> &[PhaseRecord] {
        &self.records
    }
}

/// The start of a phase.
pub struct PhaseStart {
    started: Instant,
    rss_before: u64,
}

impl PhaseStart {
    /// Starts a phase now.
    pub fn now() -> PhaseStart {
        reset_peak();
        PhaseStart { started: Instant::now(), rss_before: resident_bytes() }
    }

    /// Returns the record of the phase so far.
    pub fn finish(&self, name: &str) -> PhaseRecord {
        PhaseRecord {
            name: name.to_string(),
            seconds: self.started.elapsed().as_secs_f64(),
            rss_before: self.rss_before,
            rss_peak: peak_bytes(),
            rss_after: resident_bytes(),
        }
    }
}
