//! The child process: constructs one fixture in timed phases and measures the memory that it holds.

use super::{NONE, registry};
use crate::Result;
use crate::memory::status_bytes;
use serde::{Deserialize, Serialize};
use std::time::Instant;

/// Request to a child.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FixtureRequest {
    /// Name of the fixture, or `none`.
    pub fixture: String,
}

/// Answer of a child.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChildAnswer {
    /// The fixture was constructed.
    Built(BuildMeasurement),
    /// Construction failed.
    Failed {
        /// The phase that failed; `None` if the fixture does not exist.
        phase: Option<Phase>,
        /// The error.
        #[serde(rename = "said")]
        message: String,
    },
}

/// A phase of construction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Loading a model.
    Load,
    /// Building inputs and plans.
    Prepare,
    /// Running the model.
    Run,
}

/// Time and memory of constructing a fixture.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BuildMeasurement {
    /// Seconds of loading a model.
    pub load_s: f64,
    /// Seconds of building inputs and plans.
    pub prepare_s: f64,
    /// Seconds of running.
    pub run_s: f64,
    /// Resident bytes at the end.
    pub resident: u64,
    /// Peak resident bytes.
    pub peak: u64,
    /// Anonymous bytes (not backed by a file) at the end.
    pub anonymous: u64,
}

/// Times the phases of a fixture.
#[derive(Default)]
pub struct Phases {
    spent: [f64; 3],
    last: Option<Phase>,
}

impl Phases {
    /// Times loading a model.
    pub fn load<T>(&mut self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        self.time_phase(Phase::Load, work)
    }

    /// Times building inputs and plans.
    pub fn prepare<T>(&mut self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        self.time_phase(Phase::Prepare, work)
    }

    /// Times running the model.
    pub fn run<T>(&mut self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        self.time_phase(Phase::Run, work)
    }

    fn time_phase<T>(&mut self, phase: Phase, work: impl FnOnce() -> Result<T>) -> Result<T> {
        self.last = Some(phase);
        let started = Instant::now();
        let result = work();
        self.spent[phase as usize] += started.elapsed().as_secs_f64();
        result
    }
}

/// Constructs the requested fixture and returns its time and memory.
pub fn answer(request: &FixtureRequest) -> ChildAnswer {
    let mut phases = Phases::default();
    let built = match registry::find(&request.fixture) {
        Some(fixture) => (fixture.build)(&mut phases),
        None if request.fixture == NONE => Ok(Box::new(()) as Box<_>),
        None => {
            return ChildAnswer::Failed { phase: None, message: format!("there is no fixture `{}`", request.fixture) };
        }
    };
    match built {
        Err(error) => ChildAnswer::Failed { phase: phases.last, message: error.to_string() },
        Ok(value) => {
            let [load_s, prepare_s, run_s] = phases.spent;
            let measurement = BuildMeasurement {
                load_s,
                prepare_s,
                run_s,
                resident: status_bytes("VmRSS"),
                peak: status_bytes("VmHWM"),
                anonymous: status_bytes("RssAnon"),
            };
            drop(value);
            ChildAnswer::Built(measurement)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn build(name: &str) -> ChildAnswer {
        answer(&FixtureRequest { fixture: name.into() })
    }

    #[test]
    fn the_empty_fixture_has_no_phase_and_a_session_has_all_three() {
        let ChildAnswer::Built(none) = build(NONE) else { panic!("the empty fixture always succeeds") };
        assert_eq!((none.load_s, none.prepare_s, none.run_s), (0.0, 0.0, 0.0));
        assert!(none.peak >= none.anonymous);
        let ChildAnswer::Built(session) = build("capture_session") else {
            panic!("the built-in model is always there")
        };
        assert!(session.load_s > 0.0 && session.prepare_s > 0.0 && session.run_s > 0.0, "{session:?}");
        let ChildAnswer::Failed { phase: None, message } = build("bananas") else { panic!("there is no such fixture") };
        assert!(message.contains("bananas"));
    }

    #[test]
    fn every_fixture_without_a_download_can_be_constructed() {
        for fixture in registry::FIXTURES.iter().filter(|f| f.model.is_none_or(|m| m == pellucid_models::builtin::NAME))
        {
            let found = build(fixture.name);
            assert!(matches!(found, ChildAnswer::Built(_)), "{}: {found:?}", fixture.name);
        }
    }
}
