//! Who runs a worker: a fresh process, or a simulation of one.

use crate::lab_worker;
use crate::protocol::{Answer, Request};
use crate::suite::{Variant, WorkerKind};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// What became of a worker.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// It answered.
    Answered(Box<Answer>),
    /// It did not, in this way.
    Failed {
        /// How.
        how: Failing,
        /// What it said last.
        said: String,
    },
}

/// How a worker fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Failing {
    /// It could not be started.
    Start,
    /// It ended with an error of its own.
    Error,
    /// It was killed by a signal.
    Killed,
    /// It took longer than it may.
    Timeout,
    /// It answered something else than the protocol.
    Garbage,
}

impl Failing {
    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Failing::Start => "could not be started",
            Failing::Error => "ended with an error",
            Failing::Killed => "was killed",
            Failing::Timeout => "took too long",
            Failing::Garbage => "did not answer in the protocol",
        }
    }
}

/// Runs workers and knows the time. Scheduling and statistics see nothing else, so they can be tested without time passing.
pub trait Executor {
    /// Runs one worker to its end, whatever that is.
    fn run(&mut self, variant: &Variant, request: &Request, limit: Duration) -> Outcome;

    /// Runs a worker of ours that counts the heap allocations of the job. Simulated workers count whenever they run.
    fn count_allocations(&mut self, variant: &Variant, request: &Request, limit: Duration) -> Outcome {
        self.run(variant, request, limit)
    }

    /// Seconds since the session began.
    fn elapsed(&self) -> f64;
}

/// Runs each worker as a fresh process.
pub struct Processes {
    /// Our own executable, started as `lab __worker`.
    pub pellucid: PathBuf,
    /// The Python that peers run with.
    pub python: Option<PathBuf>,
    /// When the session began.
    pub started: Instant,
}

impl Processes {
    /// Processes of our own executable, and of peers with a Python.
    pub fn new(pellucid: PathBuf, python: Option<PathBuf>) -> Processes {
        Processes { pellucid, python, started: Instant::now() }
    }

    fn command(&self, variant: &Variant) -> Result<Command, String> {
        let mut command = match (variant.worker, variant.worker.script()) {
            (_, Some(script)) => {
                let python = self.python.as_deref().ok_or("it needs a Python that has it: --python")?;
                let mut command = Command::new(python);
                command.args(["-c", &script]);
                command
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
        // Where a worker fails, its last words are told: they should be its error, not the end of a backtrace.
        command.env("RUST_BACKTRACE", "0").envs(&variant.env);
        Ok(command)
    }
}

impl WorkerKind {
    /// The Python program of a peer: what all have in common, then its own.
    pub fn script(self) -> Option<String> {
        const ALL: &str = include_str!("../peers/prelude.py");
        const ON_TORCH: &str = concat!(include_str!("../peers/prelude.py"), include_str!("../peers/prelude_torch.py"));
        let (common, own) = match self {
            WorkerKind::Pellucid | WorkerKind::Candle => return None,
            WorkerKind::Transformers => (ON_TORCH, include_str!("../peers/transformers.py")),
            WorkerKind::Nnsight => (ON_TORCH, include_str!("../peers/nnsight.py")),
            WorkerKind::TransformerLens => (ON_TORCH, include_str!("../peers/transformer_lens.py")),
            WorkerKind::LlamaCpp => (ALL, include_str!("../peers/llama_cpp.py")),
        };
        Some([common, own].concat())
    }

    /// The module that a Python must be able to import to run it.
    pub fn module(self) -> Option<&'static str> {
        match self {
            WorkerKind::Pellucid | WorkerKind::Candle => None,
            WorkerKind::Transformers => Some("transformers"),
            WorkerKind::Nnsight => Some("nnsight"),
            WorkerKind::TransformerLens => Some("transformer_lens"),
            WorkerKind::LlamaCpp => Some("llama_cpp"),
        }
    }
}

impl Variant {
    /// Whether it can run here, given a Python.
    pub fn is_available(&self, python: Option<&Path>) -> bool {
        let Some(module) = self.worker.module() else {
            return self.worker != WorkerKind::Candle || self.binary.is_some();
        };
        let Some(python) = python else { return false };
        // Finding a module is a hundred times faster than importing it.
        let find = format!("import importlib.util, sys; sys.exit(importlib.util.find_spec('{module}') is None)");
        let status = Command::new(python).args(["-c", &find]).stdout(Stdio::null()).stderr(Stdio::null()).status();
        status.is_ok_and(|status| status.success())
    }
}

impl Executor for Processes {
    fn run(&mut self, variant: &Variant, request: &Request, limit: Duration) -> Outcome {
        outcome(self.command(variant), request, limit)
    }

    fn count_allocations(&mut self, variant: &Variant, request: &Request, limit: Duration) -> Outcome {
        let command = lab_worker::beside(variant.binary.as_deref().unwrap_or(&self.pellucid)).map(|path| {
            let mut command = lab_worker::Task::CountAllocations.command(&path);
            command.env("RUST_BACKTRACE", "0").envs(&variant.env);
            command
        });
        outcome(command.map_err(|error| error.to_string()), request, limit)
    }

    fn elapsed(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }
}

fn outcome(command: Result<Command, String>, request: &Request, limit: Duration) -> Outcome {
    match command.map(|mut command| run_process(&mut command, request, limit)) {
        Ok(Ok((answer, _))) => Outcome::Answered(Box::new(answer)),
        Ok(Err((how, said))) => Outcome::Failed { how, said },
        Err(said) => Outcome::Failed { how: Failing::Start, said },
    }
}

/// Starts a process, hands it the request as JSON, and waits for its answer or its end. With the answer come the seconds from its start
/// until it closed its output.
pub fn run_process<A: DeserializeOwned>(
    command: &mut Command,
    request: &impl Serialize,
    limit: Duration,
) -> Result<(A, f64), (Failing, String)> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let failed = |how: Failing, said: String| Err((how, said));
    let text = match serde_json::to_string(request) {
        Ok(text) => text,
        Err(error) => return failed(Failing::Start, error.to_string()),
    };
    let started = Instant::now();
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => return failed(Failing::Start, error.to_string()),
    };
    // Pipes are emptied while the worker runs, so that none of them fills up and stops it.
    let stdin = child.stdin.take();
    let writer = std::thread::spawn(move || {
        // A worker that died early says why on its stderr.
        stdin.map(|mut stdin| stdin.write_all(text.as_bytes()))
    });
    let (stdout, stderr) = (drain(child.stdout.take()), drain(child.stderr.take()));
    let status = wait(&mut child, limit);
    let _ = writer.join();
    let (answer, ended) = stdout.join().unwrap_or_else(|_| (Vec::new(), Instant::now()));
    let said = last_words(&stderr.join().map(|(said, _)| said).unwrap_or_default());
    match status {
        None => failed(Failing::Timeout, format!("{} s; {said}", limit.as_secs())),
        Some(status) if !status.success() => {
            failed(if status.code().is_none() { Failing::Killed } else { Failing::Error }, format!("{status}: {said}"))
        }
        Some(_) => match serde_json::from_slice(&answer) {
            Ok(answer) => Ok((answer, ended.duration_since(started).as_secs_f64())),
            Err(error) => failed(Failing::Garbage, format!("{error}: {}", last_words(&answer))),
        },
    }
}

/// Reads a pipe to its end, in a thread of its own, and notes when that was: asking for the child's status is too coarse a clock.
fn drain(pipe: Option<impl Read + Send + 'static>) -> std::thread::JoinHandle<(Vec<u8>, Instant)> {
    std::thread::spawn(move || {
        let mut all = Vec::new();
        if let Some(mut pipe) = pipe {
            // What could be read before an error is what there is.
            let _ = pipe.read_to_end(&mut all);
        }
        (all, Instant::now())
    })
}

/// The child's status, or none when it had to be killed for its time.
fn wait(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
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

/// The last lines of what a process wrote, on one line.
pub(crate) fn last_words(bytes: &[u8]) -> String {
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
            beside: None,
            tokens: vec![1; 100_000],
            warmups: 0,
            repeats: 1,
        }
    }

    fn shell(script: &str, seconds: f64) -> Result<(Answer, f64), (Failing, String)> {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        run_process(&mut command, &request(), Duration::from_secs_f64(seconds))
    }

    fn failing(outcome: Result<(Answer, f64), (Failing, String)>) -> (Failing, String) {
        outcome.expect_err("it fails")
    }

    #[test]
    fn every_way_to_fail_is_told_apart_and_none_stops_the_session() {
        let (how, said) = failing(shell("echo the model is gone >&2; exit 3", 10.0));
        assert!(how == Failing::Error && said.contains("the model is gone"), "{how:?} {said}");
        assert_eq!(failing(shell("kill -9 $$", 10.0)).0, Failing::Killed);
        let started = Instant::now();
        assert_eq!(failing(shell("exec sleep 60", 0.3)).0, Failing::Timeout);
        assert!(started.elapsed() < Duration::from_secs(20));
        let (how, said) = failing(shell("cat >/dev/null; echo 42 bananas", 10.0));
        assert!(how == Failing::Garbage && said.contains("bananas"), "{how:?} {said}");
        // Much on both pipes, and a request that nobody reads.
        let (how, _) = failing(shell("head -c 300000 /dev/zero >&2; head -c 300000 /dev/zero", 20.0));
        assert_eq!(how, Failing::Garbage);
        let mut missing = Command::new("no-such-program-anywhere");
        assert_eq!(failing(run_process(&mut missing, &request(), Duration::from_secs(1))).0, Failing::Start);
    }

    #[test]
    fn a_peer_without_its_python_says_what_it_needs() {
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
        let Outcome::Failed { how, said } = outcome else { panic!("{outcome:?}") };
        assert!(how == Failing::Start && said.contains("--python"), "{said}");
        let is_available = |worker| Variant { worker, ..variant.clone() }.is_available(None);
        assert!(is_available(WorkerKind::Pellucid));
        assert!(!is_available(WorkerKind::Transformers) && !is_available(WorkerKind::Candle));
    }
}
