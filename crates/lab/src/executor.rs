//! Runs workers: as fresh processes, or simulated in tests.

use crate::lab_worker;
use crate::protocol::{Answer, Request};
use crate::suite::{Variant, WorkerKind};
use pellucid_models::python;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Result of running a worker.
#[derive(Clone, Debug, PartialEq)]
pub enum WorkerOutcome {
    /// The worker's answer.
    Answered(Box<Answer>),
    /// The worker failed.
    Failed {
        /// Kind of failure.
        kind: FailureKind,
        /// The end of its stderr, or the cause.
        message: String,
    },
}

/// Ways in which a worker fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureKind {
    /// It could not be started.
    Start,
    /// It exited with a nonzero code.
    Error,
    /// It was killed by a signal.
    Killed,
    /// It exceeded its time limit.
    Timeout,
    /// Its output is not an answer of the protocol.
    #[serde(rename = "garbage")]
    InvalidAnswer,
}

impl FailureKind {
    /// Phrase for messages: "the worker {name}".
    pub fn name(self) -> &'static str {
        match self {
            FailureKind::Start => "could not be started",
            FailureKind::Error => "exited with an error",
            FailureKind::Killed => "was killed",
            FailureKind::Timeout => "timed out",
            FailureKind::InvalidAnswer => "returned an invalid answer",
        }
    }
}

/// Runs workers and keeps the clock. Scheduling and statistics use only this trait, so tests can
/// simulate them without time passing.
pub trait Executor {
    /// Runs one worker until it answers, fails or exceeds `limit`.
    fn run(&mut self, variant: &Variant, request: &Request, limit: Duration) -> WorkerOutcome;

    /// Runs a Pellucid worker that counts the job's heap allocations. Simulated workers always
    /// count.
    fn count_allocations(&mut self, variant: &Variant, request: &Request, limit: Duration) -> WorkerOutcome {
        self.run(variant, request, limit)
    }

    /// Seconds since the session began.
    fn elapsed(&self) -> f64;
}

/// Runs each worker as a fresh process.
pub struct Processes {
    /// The Pellucid executable, started as `lab __worker`.
    pub pellucid: PathBuf,
    /// Python interpreter of the peers.
    pub python: Option<PathBuf>,
    /// Start of the session.
    pub started: Instant,
}

impl Processes {
    /// Processes of a Pellucid executable and, with a Python interpreter, of peers.
    pub fn new(pellucid: PathBuf, python: Option<PathBuf>) -> Processes {
        Processes { pellucid, python, started: Instant::now() }
    }

    fn command(&self, variant: &Variant) -> Result<Command, String> {
        let mut command = match (variant.worker, variant.worker.script()) {
            (_, Some(script)) => {
                let python =
                    self.python.as_deref().ok_or("it needs a Python interpreter that can import it: --python")?;
                python::command(python, &script)
            }
            (WorkerKind::Candle, None) => {
                Command::new(variant.binary.as_deref().ok_or("it is built on request: --candle")?)
            }
            (_, None) => {
                let mut command = Command::new(variant.binary.as_deref().unwrap_or(&self.pellucid));
                command.args(["lab", "__worker"]);
                command
            }
        };
        if let Some(threads) = variant.threads {
            for name in ["RAYON_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"] {
                command.env(name, threads.to_string());
            }
        }
        // The end of a failing worker's stderr is reported. It should hold the error, not a
        // backtrace.
        command.env("RUST_BACKTRACE", "0").envs(&variant.env);
        Ok(command)
    }
}

impl WorkerKind {
    /// Returns the Python program of a peer: the common prelude, then its own code.
    pub fn script(self) -> Option<String> {
        const COMMON: &str = include_str!("../peers/prelude.py");
        const ON_TORCH: &str = concat!(include_str!("../peers/prelude.py"), include_str!("../peers/prelude_torch.py"));
        let (common, own) = match self {
            WorkerKind::Pellucid | WorkerKind::Candle => return None,
            WorkerKind::Transformers => (ON_TORCH, include_str!("../peers/transformers.py")),
            WorkerKind::Nnsight => (ON_TORCH, include_str!("../peers/nnsight.py")),
            WorkerKind::TransformerLens => (ON_TORCH, include_str!("../peers/transformer_lens.py")),
            WorkerKind::SaeLens => (ON_TORCH, include_str!("../peers/sae_lens.py")),
            WorkerKind::LlamaCpp => (COMMON, include_str!("../peers/llama_cpp.py")),
        };
        Some([common, own].concat())
    }

    /// Returns the module that the interpreter must be able to import.
    pub fn module(self) -> Option<&'static str> {
        match self {
            WorkerKind::Pellucid | WorkerKind::Candle => None,
            WorkerKind::Transformers => Some("transformers"),
            WorkerKind::Nnsight => Some("nnsight"),
            WorkerKind::TransformerLens => Some("transformer_lens"),
            WorkerKind::SaeLens => Some("sae_lens"),
            WorkerKind::LlamaCpp => Some("llama_cpp"),
        }
    }
}

impl Variant {
    /// Whether this variant can run on this machine with this interpreter.
    pub fn is_available(&self, python: Option<&Path>) -> bool {
        let Some(module) = self.worker.module() else {
            return self.worker != WorkerKind::Candle || self.binary.is_some();
        };
        let Some(python) = python else { return false };
        has_module(python, module)
    }
}

/// Whether an interpreter can import a module. Finding its spec is about 100 times faster than
/// importing it.
pub(crate) fn has_module(python: &Path, module: &str) -> bool {
    let find = format!("import importlib.util; sys.exit(importlib.util.find_spec('{module}') is None)");
    let status = python::command(python, &find).stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

impl Executor for Processes {
    fn run(&mut self, variant: &Variant, request: &Request, limit: Duration) -> WorkerOutcome {
        run_worker(self.command(variant), request, limit)
    }

    fn count_allocations(&mut self, variant: &Variant, request: &Request, limit: Duration) -> WorkerOutcome {
        let command = lab_worker::find_worker(variant.binary.as_deref().unwrap_or(&self.pellucid)).map(|path| {
            let mut command = lab_worker::Task::CountAllocations.command(&path);
            command.env("RUST_BACKTRACE", "0").envs(&variant.env);
            command
        });
        run_worker(command.map_err(|error| error.to_string()), request, limit)
    }

    fn elapsed(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }
}

fn run_worker(command: Result<Command, String>, request: &Request, limit: Duration) -> WorkerOutcome {
    match command.map(|mut command| run_process(&mut command, request, limit)) {
        Ok(Ok((answer, _))) => WorkerOutcome::Answered(Box::new(answer)),
        Ok(Err((kind, message))) => WorkerOutcome::Failed { kind, message },
        Err(message) => WorkerOutcome::Failed { kind: FailureKind::Start, message },
    }
}

/// Starts a process, sends it the request as JSON, and waits for its answer. Returns the answer and
/// the seconds from the start until the process closed stdout.
pub fn run_process<A: DeserializeOwned>(
    command: &mut Command,
    request: &impl Serialize,
    limit: Duration,
) -> Result<(A, f64), (FailureKind, String)> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let failed = |kind: FailureKind, message: String| Err((kind, message));
    let text = match serde_json::to_string(request) {
        Ok(text) => text,
        Err(error) => return failed(FailureKind::Start, error.to_string()),
    };
    let started = Instant::now();
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => return failed(FailureKind::Start, error.to_string()),
    };
    // Threads drain the pipes while the worker runs, so that a full pipe cannot block it.
    let stdin = child.stdin.take();
    let writer = std::thread::spawn(move || {
        // If the worker exits early this write fails; the reason is on its stderr.
        stdin.map(|mut stdin| stdin.write_all(text.as_bytes()))
    });
    let (stdout, stderr) = (read_in_background(child.stdout.take()), read_in_background(child.stderr.take()));
    let status = wait_or_kill(&mut child, limit);
    let _ = writer.join();
    let (answer, ended) = stdout.join().unwrap_or_else(|_| (Vec::new(), Instant::now()));
    let message = last_lines(&stderr.join().map(|(message, _)| message).unwrap_or_default());
    match status {
        None => failed(FailureKind::Timeout, format!("{} s; {message}", limit.as_secs())),
        Some(status) if !status.success() => failed(
            if status.code().is_none() { FailureKind::Killed } else { FailureKind::Error },
            format!("{status}: {message}"),
        ),
        Some(_) => match serde_json::from_slice(&answer) {
            Ok(answer) => Ok((answer, ended.duration_since(started).as_secs_f64())),
            Err(error) => failed(FailureKind::InvalidAnswer, format!("{error}: {}", last_lines(&answer))),
        },
    }
}

/// Reads a pipe to its end in a thread. Also returns the time of the end, because polling the
/// child's status is too coarse a clock.
fn read_in_background(pipe: Option<impl Read + Send + 'static>) -> std::thread::JoinHandle<(Vec<u8>, Instant)> {
    std::thread::spawn(move || {
        let mut all = Vec::new();
        if let Some(mut pipe) = pipe {
            // After a read error the bytes so far are used.
            let _ = pipe.read_to_end(&mut all);
        }
        (all, Instant::now())
    })
}

/// Returns the child's exit status, or `None` if it was killed at the time limit.
fn wait_or_kill(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
    let started = Instant::now();
    let mut pause = Duration::from_millis(1);
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if started.elapsed() < limit => {
                std::thread::sleep(pause);
                pause = (pause * 2).min(Duration::from_millis(20));
            }
            _ => {
                let _ = child.kill();
                let _ = child.wait();
                return None;
            }
        }
    }
}

/// Returns the last lines of a process's output, joined into one line.
pub(crate) fn last_lines(bytes: &[u8]) -> String {
    const LINES: usize = 3;
    const CHARACTERS: usize = 300;
    let text = String::from_utf8_lossy(bytes);
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let last = lines[lines.len().saturating_sub(LINES)..].join(" / ");
    last.chars().take(CHARACTERS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Job;

    fn request() -> Request {
        Request {
            model: "model".into(),
            dtype: "f32".into(),
            threads: None,
            assume: None,
            job: Job::Prefill,
            paired_job: None,
            tokens: vec![1; 100_000],
            warmups: 0,
            repeats: 1,
        }
    }

    fn shell(script: &str, seconds: f64) -> Result<(Answer, f64), (FailureKind, String)> {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        run_process(&mut command, &request(), Duration::from_secs_f64(seconds))
    }

    fn failing(outcome: Result<(Answer, f64), (FailureKind, String)>) -> (FailureKind, String) {
        outcome.expect_err("it fails")
    }

    #[test]
    fn every_kind_of_failure_is_distinguished() {
        let (kind, message) = failing(shell("echo the model is gone >&2; exit 3", 10.0));
        assert!(kind == FailureKind::Error && message.contains("the model is gone"), "{kind:?} {message}");
        assert_eq!(failing(shell("kill -9 $$", 10.0)).0, FailureKind::Killed);
        let started = Instant::now();
        assert_eq!(failing(shell("exec sleep 60", 0.3)).0, FailureKind::Timeout);
        assert!(started.elapsed() < Duration::from_secs(20));
        let (kind, message) = failing(shell("cat >/dev/null; echo 42 bananas", 10.0));
        assert!(kind == FailureKind::InvalidAnswer && message.contains("bananas"), "{kind:?} {message}");
        // Much output on both pipes, and a request that the process does not read.
        let (kind, _) = failing(shell("head -c 300000 /dev/zero >&2; head -c 300000 /dev/zero", 20.0));
        assert_eq!(kind, FailureKind::InvalidAnswer);
        let mut missing = Command::new("no-such-program-anywhere");
        assert_eq!(failing(run_process(&mut missing, &request(), Duration::from_secs(1))).0, FailureKind::Start);
    }

    #[test]
    fn a_peer_without_python_names_the_missing_option() {
        let mut processes = Processes::new("pellucid".into(), None);
        let variant = Variant {
            id: "hf".into(),
            worker: WorkerKind::Transformers,
            binary: None,
            job: None,
            dtype: "f32".into(),
            threads: None,
            env: Default::default(),
        };
        let outcome = processes.run(&variant, &request(), Duration::from_secs(1));
        let WorkerOutcome::Failed { kind, message } = outcome else { panic!("{outcome:?}") };
        assert!(kind == FailureKind::Start && message.contains("--python"), "{message}");
        let is_available = |worker| Variant { worker, ..variant.clone() }.is_available(None);
        assert!(is_available(WorkerKind::Pellucid));
        assert!(!is_available(WorkerKind::Transformers) && !is_available(WorkerKind::Candle));
    }
}
