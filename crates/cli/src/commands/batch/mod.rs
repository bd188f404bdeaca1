//! `pellucid generate --batch`: many requests from a file, on the engine's scheduler.
//!
//! The file is read line by line (`line.rs`), and requests are submitted while fewer than twice
//! `--max-batch` are unfinished, so memory does not grow with the file. `request.rs` prepares a
//! request, `results.rs` appends its result when it ends and knows the ids of earlier runs.

mod line;
mod progress;
mod request;
mod results;

use super::generate::finish_reason;
use crate::args::GenerateArgs;
use crate::failure::Failure;
use crate::files::{self, ResultView, Results};
use crate::{inputs, interrupt, models};
use line::RequestName;
use pellucid_analysis::schedule::{self, Schedule, ScheduledRequest};
use pellucid_engine::{Control, Generation, Plan, Request, RequestHandle, Scheduler, SchedulerOptions};
use pellucid_models::{LoadedModel, StopStrings};
use progress::{BatchProgress, Counts};
use request::{PreparedRequest, Preparer};
use results::{CaptureFile, Generated, Outcome, RequestResult, ResultsWriter, TensorShape, Timing};
use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Interval at which the progress is shown and Ctrl-C is noticed.
const TICK: Duration = Duration::from_millis(100);

/// Runs the requests of a file.
pub fn run(args: &GenerateArgs, path: &Path) -> Result<(), Failure> {
    // All files are opened before the model is loaded.
    let input = File::open(path)
        .map_err(|error| Failure::usage(format!("cannot read {}: {error}", path.display()), "check --batch"))?;
    if args.batch.output.as_deref().is_some_and(|output| is_same_file(output, path)) {
        return Err(Failure::usage("--output is the file of --batch", "give --output another file"));
    }
    let results = ResultsWriter::open(args.batch.output.as_deref())?;
    let captures = args.batch.captures.as_deref();
    captures.map(files::create_directory).transpose()?;
    files::check(args.batch.trace.as_deref())?;
    let trace = args.batch.trace.as_deref().map(TraceFile::new).transpose()?;
    if captures.is_none() && !args.plan.capture.is_empty() {
        return Err(Failure::usage("--capture needs a directory for the captures", "give --captures DIR"));
    }
    let file = inputs::plan_file(&args.plan)?;
    let loaded = models::load_with_saes(&args.model, &file.saes())?;
    let preparer = Preparer::new(loaded, file, args, path)?;
    let settings = args.batch.scheduler.options(SchedulerOptions::default());
    let max_rows = settings.max_rows;
    let settings = SchedulerOptions { queue: 2 * max_rows, record_passes: trace.is_some(), ..settings };
    let (started, scheduler) = (Instant::now(), Scheduler::new(&loaded.model, settings)?);
    let interrupted = interrupt::watch()?;
    let (ended, ends) = channel();
    let mut batch = BatchRun {
        loaded,
        preparer,
        scheduler,
        results,
        captures,
        lines_of_ids: HashMap::new(),
        running: HashMap::new(),
        window: 2 * max_rows,
        ended,
        tokens: Arc::default(),
        counts: Counts::default(),
        scheduled: trace.is_some().then(Vec::new),
        started,
    };
    let mut progress = BatchProgress::start();
    let outcome = batch.run(BufReader::new(input), &ends, &interrupted, &mut progress);
    progress.finish(batch.current_counts());
    if let Some(trace) = &trace {
        trace.write(&batch)?;
    }
    outcome?;
    let unfinished = batch.running.len();
    if interrupted.load(Ordering::Relaxed) {
        return Err(Failure::interrupted(
            format!("interrupted: {unfinished} requests were cancelled"),
            match args.batch.output {
                Some(_) => "the finished results are kept; run the command again to continue",
                None => "with --output F.jsonl, running the command again continues it",
            },
        ));
    }
    match batch.counts.failed {
        0 => Ok(()),
        failed => Err(Failure::no(
            format!("{failed} {} failed", if failed == 1 { "request" } else { "requests" }),
            "each has a result with its `error`; running the command again tries them again",
        )),
    }
}

/// Whether two paths are the same existing file.
fn is_same_file(a: &Path, b: &Path) -> bool {
    matches!((a.canonicalize(), b.canonicalize()), (Ok(a), Ok(b)) if a == b)
}

/// A batch that runs.
struct BatchRun<'a> {
    loaded: &'static LoadedModel,
    preparer: Preparer<'a>,
    scheduler: Scheduler,
    results: ResultsWriter,
    captures: Option<&'a Path>,
    /// The line of each id so far.
    lines_of_ids: HashMap<String, u64>,
    /// Submitted requests by their line.
    running: HashMap<u64, RunningRequest>,
    /// Most requests that are submitted at once.
    window: usize,
    /// Receives the line of each request that has ended, with the time.
    ended: Sender<(u64, Instant)>,
    /// New tokens of all requests.
    tokens: Arc<AtomicUsize>,
    counts: Counts,
    /// The requests, if the schedule is drawn.
    scheduled: Option<Vec<ScheduledRequest>>,
    started: Instant,
}

/// A submitted request.
struct RunningRequest {
    id: RequestName,
    handle: RequestHandle,
    plan: Plan,
    stops: StopStrings,
    prompt_tokens: usize,
    submitted: Instant,
    first_token: Arc<OnceLock<Instant>>,
}

impl BatchRun<'_> {
    /// Submits the requests of the file and writes the results until all have ended.
    fn run(
        &mut self,
        mut input: impl BufRead,
        ends: &Receiver<(u64, Instant)>,
        interrupted: &AtomicBool,
        progress: &mut BatchProgress,
    ) -> Result<(), Failure> {
        let (mut line, mut number, mut at_end) = (Vec::new(), 0, false);
        loop {
            while !at_end && self.running.len() < self.window && !interrupted.load(Ordering::Relaxed) {
                line.clear();
                let length = input.read_until(b'\n', &mut line).map_err(|error| {
                    Failure::usage(format!("line {} cannot be read: {error}", number + 1), "check the file of --batch")
                })?;
                at_end = length == 0;
                number += 1;
                // With its line end a broken line would be reported at the start of the next one.
                let text = line.strip_suffix(b"\n").unwrap_or(&line);
                if !text.trim_ascii().is_empty() {
                    self.start(text, number)?;
                }
            }
            if interrupted.load(Ordering::Relaxed) || (at_end && self.running.is_empty()) {
                return Ok(());
            }
            match ends.recv_timeout(TICK) {
                Ok((line, end)) => self.finish(line, end)?,
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
            }
            progress.show(self.current_counts(), self.scheduler.load());
        }
    }

    /// Submits the request of a line, or writes its error.
    fn start(&mut self, text: &[u8], line: u64) -> Result<(), Failure> {
        let (id, request) = line::read(text, line);
        let Some(id) = id else { return self.fail(None, line, request.err()) };
        let key = id.key();
        if let Some(earlier) = self.lines_of_ids.get(&key) {
            let problem = format!("the id {key:?} is taken: line {earlier} has it");
            // The result has no id: it is not a result of the first request of that name.
            return self.fail(None, line, Some(Failure::usage(problem, "give every request its own id")));
        }
        self.lines_of_ids.insert(key.clone(), line);
        if self.results.is_finished(&key) {
            self.counts.skipped += 1;
            return Ok(());
        }
        match request
            .and_then(|request| self.preparer.prepare(request))
            .and_then(|request| self.submit(&id, line, request))
        {
            Ok(running) => {
                self.running.insert(line, running);
                Ok(())
            }
            Err(failure) => self.fail(Some(id), line, Some(failure)),
        }
    }

    fn submit(&mut self, id: &RequestName, line: u64, request: PreparedRequest) -> Result<RunningRequest, Failure> {
        let PreparedRequest { prompt, plan, options, stops } = request;
        let first_token = Arc::new(OnceLock::new());
        let (tokens, first, ended) = (self.tokens.clone(), first_token.clone(), self.ended.clone());
        let prompt_tokens = prompt.len();
        let mut request = Request {
            on_token: Some(Box::new(move |_| {
                first.get_or_init(Instant::now);
                tokens.fetch_add(1, Ordering::Relaxed);
                Control::Go
            })),
            // The receiver is gone after an error that ends the whole batch.
            on_end: Some(Box::new(move || _ = ended.send((line, Instant::now())))),
            ..Request::new(prompt, plan.clone(), options)
        };
        if !stops.is_empty() {
            self.loaded.request_text(1, &stops)?.end_rows_of(&mut request);
        }
        let submitted = Instant::now();
        let handle = self.scheduler.submit(request)?;
        if let Some(scheduled) = &mut self.scheduled {
            let submitted = submitted.duration_since(self.started);
            scheduled.push(ScheduledRequest { label: id.key(), submitted, error: None });
        }
        Ok(RunningRequest { id: id.clone(), handle, plan, stops, prompt_tokens, submitted, first_token })
    }

    /// Writes the result of a request that has ended.
    fn finish(&mut self, line: u64, end: Instant) -> Result<(), Failure> {
        let Some(running) = self.running.remove(&line) else { return Ok(()) };
        let RunningRequest { id, handle, plan, stops, prompt_tokens, submitted, first_token } = running;
        let request = handle.id() as usize;
        let generation = match handle.wait() {
            Ok(generation) => generation,
            Err(error) => {
                let failure = Failure::from(error);
                if let Some(scheduled) = self.scheduled.as_mut().and_then(|list| list.get_mut(request)) {
                    scheduled.error = Some(failure.message().to_owned());
                }
                return self.fail(Some(id), line, Some(failure));
            }
        };
        let captures = self.write_captures(&id, &plan, &generation)?;
        let (row, total) = (&generation.rows[0], end.duration_since(submitted));
        let first_token = first_token.get().map_or(total, |first| first.duration_since(submitted));
        let queued = total.saturating_sub(generation.prefill + generation.decode);
        let timing = Timing {
            queued_s: queued.as_secs_f64(),
            first_token_s: first_token.as_secs_f64(),
            total_s: total.as_secs_f64(),
        };
        let generated = Generated {
            text: self.loaded.text(&row.tokens, &stops),
            tokens: row.tokens.clone(),
            prompt_tokens,
            finish_reason: finish_reason(row.finish),
            timing,
            captures,
            skipped_sites: generation.passed_over.iter().map(|site| site.to_string()).collect(),
        };
        self.counts.done += 1;
        self.results.write(&RequestResult { id: Some(id), line, outcome: Outcome::Generated(Box::new(generated)) })
    }

    /// Writes captures and saved values to the file of a request.
    fn write_captures(
        &self,
        id: &RequestName,
        plan: &Plan,
        generation: &Generation,
    ) -> Result<Option<CaptureFile>, Failure> {
        let results = Results::of_generation(self.loaded, plan, generation);
        let Some(directory) = self.captures.filter(|_| !results.captures.is_empty() || !results.saved.is_empty())
        else {
            return Ok(None);
        };
        let file = directory.join(format!("{}.safetensors", id.file_stem()));
        files::write_results(&file, &results)?;
        let tensor = |(name, view): (String, ResultView)| TensorShape { name, shape: view.shape };
        Ok(Some(CaptureFile { file, tensors: results.tensors().into_iter().map(tensor).collect() }))
    }

    /// Writes the error of a request.
    fn fail(&mut self, id: Option<RequestName>, line: u64, failure: Option<Failure>) -> Result<(), Failure> {
        self.counts.failed += 1;
        let failure = failure.unwrap_or_else(|| Failure::internal("the request ended without a result"));
        let (error, hint) = (failure.message().to_owned(), failure.hint().map(str::to_owned));
        self.results.write(&RequestResult { id, line, outcome: Outcome::Failed { error, hint } })
    }

    fn current_counts(&self) -> Counts {
        Counts { tokens: self.tokens.load(Ordering::Relaxed), ..self.counts }
    }
}

/// The file of the schedule's picture.
enum TraceFile {
    Page(PathBuf),
    ChromeTrace(PathBuf),
}

impl TraceFile {
    fn new(path: &Path) -> Result<TraceFile, Failure> {
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("html" | "htm") => Ok(TraceFile::Page(path.to_owned())),
            Some("json") => Ok(TraceFile::ChromeTrace(path.to_owned())),
            _ => Err(Failure::usage(
                format!("--trace {} is neither a page nor a Chrome trace", path.display()),
                "name the file F.html or F.json",
            )),
        }
    }

    fn write(&self, batch: &BatchRun) -> Result<(), Failure> {
        let schedule = Schedule {
            model: batch.loaded.name.clone(),
            passes: batch.scheduler.passes(),
            requests: batch.scheduled.clone().unwrap_or_default(),
        };
        match self {
            TraceFile::Page(path) => files::write(path, schedule::html(&schedule).as_bytes()),
            TraceFile::ChromeTrace(path) => {
                files::write(path, schedule::chrome_trace(&schedule).to_string().as_bytes())
            }
        }
    }
}
