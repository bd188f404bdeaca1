//! Rounds of sessions in fresh processes, and the result.

use super::bars::{Bar, bars};
use super::outputs::{Agreement, Inputs, Outputs};
use super::peer::PeerRun;
use super::sets::MeasuredSession;
use crate::stats::{self, Rng};
use pellucid_sessions::phases::PhaseRecord;
use serde::{Deserialize, Serialize};

/// Version of the format of [`SessionsResult`].
pub const SCHEMA: &str = "pellucid/lab-sessions/v1";

/// Phases that make a session ready to run.
const READY_PHASES: [&str; 4] = ["config", "init", "prepare", "setup"];

/// Runs sessions and peers; tests simulate them.
pub trait Programs {
    /// Runs a session in a fresh process; an error is its message.
    fn analyze(&mut self, session: &MeasuredSession) -> Result<Analyzed, String>;

    /// Runs the same work in the peer; `None` if there is none.
    fn peer(&mut self, session: &MeasuredSession, inputs: &Inputs) -> Option<Result<(PeerRun, Outputs), String>>;
}

/// A session that was run.
#[derive(Clone, Debug, PartialEq)]
pub struct Analyzed {
    /// Times and memory.
    pub run: SessionRun,
    /// Properties of the session.
    pub about: About,
    /// Its examples.
    pub inputs: Inputs,
    /// Its results.
    pub outputs: Outputs,
}

/// Times and memory of one process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SessionRun {
    /// Wall seconds of the process.
    pub wall_s: f64,
    /// Time and memory of each phase.
    pub phases: Vec<PhaseRecord>,
}

impl SessionRun {
    /// Seconds of a phase; 0 if the session does not have it.
    pub fn phase_s(&self, name: &str) -> f64 {
        self.phases.iter().filter(|phase| phase.name == name).map(|phase| phase.seconds).sum()
    }

    /// Seconds until the session is ready to run.
    pub fn ready_s(&self) -> f64 {
        READY_PHASES.iter().map(|name| self.phase_s(name)).sum()
    }

    /// Seconds of the results: the phases `run` and `save`.
    pub fn run_s(&self) -> f64 {
        self.phase_s("run") + self.phase_s("save")
    }

    /// Peak of the resident memory over the phases up to `last`, in bytes.
    pub fn peak(&self, last: &str) -> u64 {
        self.until(last).iter().map(|phase| phase.rss_peak).max().unwrap_or(0)
    }

    /// Growth of the resident memory until the end of phase `last`, in bytes.
    pub fn growth(&self, last: &str) -> f64 {
        let phases = self.until(last);
        let before = phases.first().map_or(0, |phase| phase.rss_before);
        phases.last().map_or(0.0, |phase| phase.rss_after as f64 - before as f64)
    }

    fn until(&self, last: &str) -> &[PhaseRecord] {
        let end = self.phases.iter().rposition(|phase| phase.name == last);
        end.map_or(&[], |end| &self.phases[..=end])
    }
}

/// Properties of a session, from its manifest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct About {
    /// Name of the model.
    pub model: String,
    /// Whether the weights are published ones, rather than the built-in model or random weights.
    pub is_real_model: bool,
    /// Identifies the state before the run: model, SAEs and examples. Sessions with equal states
    /// could share it.
    pub ready_state: String,
    /// SAEs that the session attaches and none of its ops reads.
    pub unread_saes: Vec<String>,
}

/// Result of the suite.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SessionsResult {
    /// The format, [`SCHEMA`].
    pub schema: String,
    /// Time of creation, Unix seconds.
    pub generated: u64,
    /// Number of threads of each process; all cores if absent.
    pub threads: Option<usize>,
    /// One entry per session, in the given order.
    pub sessions: Vec<SessionResult>,
    /// Bars of the published workloads; none for other sessions.
    pub bars: Vec<Bar>,
}

/// Measurements of one session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SessionResult {
    /// Its name.
    pub name: String,
    /// Its properties; absent if it never ran.
    pub about: Option<About>,
    /// Every process.
    pub runs: Vec<SessionRun>,
    /// The error that ended its measurement.
    pub error: Option<String>,
    /// Every process of the peer.
    pub peer_runs: Vec<PeerRun>,
    /// The error of the peer.
    pub peer_error: Option<String>,
    /// How well the results agree with the peer's.
    pub agreement: Option<Agreement>,
}

impl SessionResult {
    /// Median over the processes.
    pub fn median(&self, of: impl Fn(&SessionRun) -> f64) -> f64 {
        stats::median(&self.runs.iter().map(of).collect::<Vec<_>>())
    }

    /// Median over the peer's processes.
    pub fn peer_median(&self, of: impl Fn(&PeerRun) -> f64) -> f64 {
        stats::median(&self.peer_runs.iter().map(of).collect::<Vec<_>>())
    }
}

/// Runs `runs` rounds of all sessions, each round in another random order. In a round, a session
/// and its peer run one after the other; which one is first alternates. `on_run` is called before
/// each session.
pub fn measure(
    sessions: &[MeasuredSession],
    runs: usize,
    seed: u64,
    threads: Option<usize>,
    programs: &mut dyn Programs,
    on_run: &mut dyn FnMut(&str, usize),
) -> SessionsResult {
    let mut random = Rng::new(seed);
    let mut results: Vec<SessionResult> = sessions.iter().map(|session| empty(&session.name)).collect();
    let mut inputs = vec![Inputs::default(); sessions.len()];
    for round in 0..runs {
        let mut order: Vec<usize> = (0..sessions.len()).collect();
        random.shuffle(&mut order);
        for index in order {
            let (session, result) = (&sessions[index], &mut results[index]);
            if result.error.is_some() {
                continue;
            }
            on_run(&session.name, round);
            // The first round needs the session's tokens before the peer can run.
            let peer_first = round % 2 == 1;
            let before = peer_first.then(|| run_peer(result, session, &inputs[index], programs)).flatten();
            match programs.analyze(session) {
                Err(message) => result.error = Some(message),
                Ok(analyzed) => {
                    result.runs.push(analyzed.run);
                    result.about = Some(analyzed.about);
                    inputs[index] = analyzed.inputs;
                    let after = if peer_first { before } else { run_peer(result, session, &inputs[index], programs) };
                    if let Some(theirs) = after {
                        result.agreement = Some(analyzed.outputs.compare(&theirs));
                    }
                }
            }
        }
    }
    let generated = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |now| now.as_secs());
    let is_workloads = !sessions.is_empty() && sessions.iter().all(|session| session.is_workload);
    let bars = if is_workloads { bars(&results) } else { Vec::new() };
    SessionsResult { schema: SCHEMA.into(), generated, threads, sessions: results, bars }
}

/// Runs the peer unless it failed before; returns its results.
fn run_peer(
    result: &mut SessionResult,
    session: &MeasuredSession,
    inputs: &Inputs,
    programs: &mut dyn Programs,
) -> Option<Outputs> {
    if result.peer_error.is_some() {
        return None;
    }
    match programs.peer(session, inputs)? {
        Ok((run, outputs)) => {
            result.peer_runs.push(run);
            Some(outputs)
        }
        Err(message) => {
            result.peer_error = Some(message);
            None
        }
    }
}

fn empty(name: &str) -> SessionResult {
    SessionResult {
        name: name.into(),
        about: None,
        runs: Vec::new(),
        error: None,
        peer_runs: Vec::new(),
        peer_error: None,
        agreement: None,
    }
}
