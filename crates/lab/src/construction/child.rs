//! The child's side: one fixture constructed in this process, in three phases, with the memory that it leaves.

use super::{NONE, registry};
use crate::Result;
use crate::memory::status;
use serde::{Deserialize, Serialize};
use std::time::Instant;

/// What a child is asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wanted {
    /// The fixture's name, or `none`.
    pub fixture: String,
}

/// What a child answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// It was constructed.
    Built(Built),
    /// It was not.
    Failed {
        /// Before which phase was over; none where there is no such fixture.
        phase: Option<Phase>,
        /// What was said.
        said: String,
    },
}

/// A part of constructing something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Reading a model.
    Load,
    /// Making inputs and plans.
    Prepare,
    /// Running.
    Run,
}

/// What constructing took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Built {
    /// Seconds of reading a model.
    pub load_s: f64,
    /// Seconds of making inputs and plans.
    pub prepare_s: f64,
    /// Seconds of running.
    pub run_s: f64,
    /// Bytes in memory at the end.
    pub resident: u64,
    /// Bytes in memory at the most.
    pub peak: u64,
    /// Bytes of the end that no file backs.
    pub anonymous: u64,
}

/// The clock of a fixture's phases.
#[derive(Default)]
pub struct Phases {
    spent: [f64; 3],
    last: Option<Phase>,
}

impl Phases {
    /// Reads a model.
    pub fn load<T>(&mut self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        self.timed(Phase::Load, work)
    }

    /// Makes inputs and plans.
    pub fn prepare<T>(&mut self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        self.timed(Phase::Prepare, work)
    }

    /// Runs.
    pub fn run<T>(&mut self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        self.timed(Phase::Run, work)
    }

    fn timed<T>(&mut self, phase: Phase, work: impl FnOnce() -> Result<T>) -> Result<T> {
        self.last = Some(phase);
        let started = Instant::now();
        let made = work();
        self.spent[phase as usize] += started.elapsed().as_secs_f64();
        made
    }
}

/// Constructs what is wanted, and says what it took.
pub fn answer(wanted: &Wanted) -> Answer {
    let mut phases = Phases::default();
    let made = match registry::named(&wanted.fixture) {
        Some(fixture) => (fixture.build)(&mut phases),
        None if wanted.fixture == NONE => Ok(Box::new(()) as Box<_>),
        None => return Answer::Failed { phase: None, said: format!("there is no fixture `{}`", wanted.fixture) },
    };
    match made {
        Err(error) => Answer::Failed { phase: phases.last, said: error.to_string() },
        Ok(kept) => {
            let [load_s, prepare_s, run_s] = phases.spent;
            let built = Built {
                load_s,
                prepare_s,
                run_s,
                resident: status("VmRSS"),
                peak: status("VmHWM"),
                anonymous: status("RssAnon"),
            };
            drop(kept);
            Answer::Built(built)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(name: &str) -> Answer {
        answer(&Wanted { fixture: name.into() })
    }

    #[test]
    fn nothing_takes_no_phase_and_a_session_takes_all_three() {
        let Answer::Built(none) = asked(NONE) else { panic!("nothing can always be constructed") };
        assert_eq!((none.load_s, none.prepare_s, none.run_s), (0.0, 0.0, 0.0));
        assert!(none.peak >= none.anonymous);
        let Answer::Built(session) = asked("capture_session") else { panic!("the built-in model is always there") };
        assert!(session.load_s > 0.0 && session.prepare_s > 0.0 && session.run_s > 0.0, "{session:?}");
        let Answer::Failed { phase: None, said } = asked("bananas") else { panic!("there is no such fixture") };
        assert!(said.contains("bananas"));
    }

    #[test]
    fn everything_that_needs_no_download_can_be_constructed() {
        for fixture in registry::FIXTURES.iter().filter(|f| f.model.is_none_or(|m| m == pellucid_models::builtin::NAME))
        {
            let found = asked(fixture.name);
            assert!(matches!(found, Answer::Built(_)), "{}: {found:?}", fixture.name);
        }
    }
}
