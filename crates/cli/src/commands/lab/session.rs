//! `pellucid lab run`: runs a session of one suite.

use super::{failure, say, worker_binary};
use crate::args::SuiteOptions;
use crate::failure::Failure;
use crate::models;
use crate::progress::progress_bar;
use indicatif::ProgressBar;
use pellucid_lab::environment::{self, Environment};
use pellucid_lab::executor::Processes;
use pellucid_lab::result::{Run, SessionResult};
use pellucid_lab::roofline::Roofline;
use pellucid_lab::session::{self, Progress, SessionContext};
use pellucid_lab::suite::{Suite, Variant, WorkerKind, Workload};
use pellucid_lab::{builtin_suites, candle, gpt2_shaped};
use pellucid_models::{builtin, locate, program_of, pull};
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};

/// Runs a suite as the arguments ask.
pub fn measure(name: &str, args: &SuiteOptions) -> Result<SessionResult, Failure> {
    let mut suite = find_suite(name)?;
    if !args.only.is_empty() {
        suite.retain_workloads(&args.only).map_err(failure)?;
    }
    if args.candle {
        build_candle(&mut suite)?;
    }
    leave_out_absent(&mut suite, args.python.as_deref())?;
    let name = args.model.as_deref().or(suite.model.as_deref()).unwrap_or("smollm2-135m").to_string();
    let assume = args.assume.assume.clone();
    let model = resolve_model(&name, assume.as_deref())?;
    let mut environment = Environment::detect(&model);
    for workload in &mut suite.workloads {
        let Some(name) = &workload.model else { continue };
        let own = resolve_model(name, assume.as_deref())?;
        environment.hard.insert(format!("model of {}", workload.id), environment::fingerprint(&own));
        workload.model = Some(own.to_string_lossy().into_owned());
    }
    suite.precision.pairs = args.pairs.map_or(suite.precision.pairs, |pairs| pairs as usize);
    suite.precision.least_pairs = suite.precision.least_pairs.min(suite.precision.pairs);
    suite.precision.budget_s = args.budget.unwrap_or(suite.precision.budget_s);

    let pellucid = crate::own_program()?;
    let mut log = args.log.as_deref().map(Log::open).transpose()?;
    let setting = SessionContext {
        environment,
        model,
        assume,
        seed: args.seed,
        command: std::env::args().collect(),
        earlier: log.as_mut().map(|log| std::mem::take(&mut log.earlier)).unwrap_or_default(),
    };
    let allocations = match args.allocations {
        true => {
            worker_binary::worker_path()?;
            say("counting allocations");
            let mut executor = Processes::new(pellucid.clone(), args.python.clone());
            session::count_allocations(&suite, &setting, &mut executor, &mut say)
        }
        false => Vec::new(),
    };
    let roofline = match args.outputs.html {
        Some(_) => measure_roofline(&suite, &setting, &pellucid),
        None => None,
    };
    // Created last: its clock is the session's budget.
    let mut executor = Processes::new(pellucid, args.python.clone());
    let display = Display::new(&suite);
    let mut log_failure = None;
    let result = session::run(&suite, setting, &mut executor, &mut |progress| {
        display.show(progress);
        if let Some(log) = &mut log {
            log_failure = log_failure.take().or(log.append(progress.run).err());
        }
    })
    .map_err(failure)?;
    display.finish();
    match log_failure {
        Some(error) => Err(error),
        None => Ok(SessionResult { allocations, roofline, ..result }),
    }
}

/// Measures the roofline in a separate process; on failure prints the reason and returns `None`.
fn measure_roofline(suite: &Suite, setting: &SessionContext, pellucid: &Path) -> Option<Roofline> {
    let found = session::roofline(suite, setting, pellucid)?;
    found.map_err(|why| say(&format!("no roofline: {why}"))).ok()
}

/// Resolves a model and prints its warnings once, because workers' stderr is captured. The built-in
/// model is passed to workers by name; the lab's own model is written if it is not in the cache.
pub fn resolve_model(name: &str, assume: Option<&str>) -> Result<PathBuf, Failure> {
    if name == gpt2_shaped::NAME {
        return gpt2_shaped::directory(&pull::cache_dir()?).map_err(failure);
    }
    let model = locate(Some(name))?;
    models::warn(&program_of(model.as_deref(), assume)?.1);
    Ok(model.unwrap_or_else(|| builtin::NAME.into()))
}

fn find_suite(name: &str) -> Result<Suite, Failure> {
    if let Some(suite) = builtin_suites::named(name) {
        return suite.map_err(failure);
    }
    let text = std::fs::read_to_string(name).map_err(|error| {
        let known = builtin_suites::names().collect::<Vec<_>>().join(", ");
        Failure::usage(format!("unknown suite `{name}`: {error}"), format!("give a TOML file, or one of {known}"))
    })?;
    Suite::parse(&text, name).map_err(failure)
}

/// Builds candle's worker and sets it as the binary of candle's variants.
fn build_candle(suite: &mut Suite) -> Result<(), Failure> {
    let mut candle_variants =
        suite.variants.iter_mut().filter(|variant| variant.worker == WorkerKind::Candle).peekable();
    if candle_variants.peek().is_none() {
        return Err(Failure::usage(format!("{} has no variant of candle", suite.name), "leave out --candle"));
    }
    say("building candle's worker (the first time takes minutes)");
    let program = candle::build(&pull::cache_dir()?).map_err(failure)?;
    candle_variants.for_each(|variant| variant.binary = Some(program.clone()));
    Ok(())
}

/// Removes variants that cannot run on this machine from a suite, and reports them.
pub fn leave_out_absent(suite: &mut Suite, python: Option<&Path>) -> Result<(), Failure> {
    let compared = |suite: &Suite, workload: &Workload| suite.pairings(workload).len() > 1;
    let before: Vec<String> = suite.workloads.iter().filter(|w| compared(suite, w)).map(|w| w.id.clone()).collect();
    let (here, absent): (Vec<Variant>, Vec<Variant>) =
        std::mem::take(&mut suite.variants).into_iter().partition(|variant| variant.is_available(python));
    suite.variants = here;
    if absent.is_empty() {
        return Ok(());
    }
    let remedy = |variant: &Variant| if variant.worker == WorkerKind::Candle { "--candle" } else { "--python PYTHON" };
    let named: Vec<String> = absent.iter().map(|variant| format!("{} ({})", variant.id, remedy(variant))).collect();
    say(&format!("left out, not available here: {}", named.join(", ")));
    let hint =
        "give a Python interpreter that has the peers (--python venv/bin/python), or build candle's worker (--candle)";
    let is_absent = |id: &str| absent.iter().any(|variant| variant.id == id);
    // A ratio limit needs the reference that it was set against.
    let lost: Vec<String> =
        suite.workloads.iter().filter(|w| is_absent(suite.reference(w))).map(|w| w.id.clone()).collect();
    suite
        .limits
        .retain(|limit| !is_absent(&limit.variant) && (limit.ratio.is_none() || !lost.contains(&limit.workload)));
    suite.ladder.retain(|id| !is_absent(id));
    if is_absent(&suite.reference) {
        let first =
            suite.variants.first().ok_or_else(|| Failure::usage("no variant of this suite can run here", hint))?;
        suite.reference = first.id.clone();
        say(&format!("the reference is `{}` instead", suite.reference));
    }
    for workload in &mut suite.workloads {
        if let Some(variants) = &mut workload.variants {
            variants.retain(|id| !is_absent(id));
        }
    }
    // Skip a workload that has nothing left to be compared with.
    let own = |workload: &Workload| workload.reference.as_deref().is_some_and(is_absent);
    let alone = |w: &&Workload| own(w) || (before.contains(&w.id) && !compared(suite, w));
    let alone: Vec<String> = suite.workloads.iter().filter(alone).map(|w| w.id.clone()).collect();
    if !alone.is_empty() {
        say(&format!("left out, nothing to compare with: {}", alone.join(", ")));
    }
    suite.workloads.retain(|workload| !alone.contains(&workload.id));
    suite.limits.retain(|limit| !alone.contains(&limit.workload));
    if suite.workloads.is_empty() {
        let who = &suite.reference;
        return Err(Failure::invalid(
            format!("nothing can be compared: only `{who}` of {} is available", suite.name),
            hint,
        ));
    }
    suite.oracle = suite.oracle.take().filter(|oracle| !is_absent(oracle));
    suite.check().map_err(failure)
}

/// Log of a session's runs, one JSON value per line.
struct Log {
    path: PathBuf,
    file: std::fs::File,
    earlier: Vec<Run>,
}

impl Log {
    fn open(path: &Path) -> Result<Log, Failure> {
        let bad = |problem: String| Failure::usage(format!("{}: {problem}", path.display()), "choose another file");
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(bad(error.to_string())),
        };
        // An interrupted session may have left an incomplete line.
        let earlier: Vec<Run> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        if earlier.is_empty() && !text.trim().is_empty() {
            return Err(bad("is not a lab log".into()));
        }
        if !earlier.is_empty() {
            say(&format!("resuming after {} processes", earlier.len()));
        }
        let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
        let mut file = file.map_err(|error| bad(error.to_string()))?;
        if !text.is_empty() && !text.ends_with('\n') {
            let _ = file.write_all(b"\n");
        }
        Ok(Log { path: path.to_path_buf(), file, earlier })
    }

    fn append(&mut self, run: &Run) -> Result<(), Failure> {
        let line = serde_json::to_string(run).map_err(|error| Failure::internal(error.to_string()))?;
        writeln!(self.file, "{line}").map_err(|error| {
            Failure::usage(
                format!("{}: {error}", self.path.display()),
                "free disk space, then run the same command again: it resumes from the log",
            )
        })
    }
}

/// Progress of a session: a bar in a terminal, lines in a pipe.
struct Display(Option<ProgressBar>);

impl Display {
    fn new(suite: &Suite) -> Display {
        if !std::io::stderr().is_terminal() {
            return Display(None);
        }
        let bar = progress_bar(1000, "{prefix} [{bar:24}] {percent:>3}% {elapsed}/{eta}  {msg}");
        bar.set_prefix(suite.name.clone());
        Display(Some(bar))
    }

    fn show(&self, progress: &Progress) {
        let run = progress.run;
        let now = match (&progress.so_far, &run.failed) {
            (_, Some((kind, message))) => format!("{} {}: {message}", run.variant, kind.name()),
            (Some(c), None) if c.pairs > 1 => {
                let ratio = c.log_ratio.exp();
                format!("{:.3} ({:.3} to {:.3})", ratio.mean, ratio.low, ratio.high)
            }
            _ => String::new(),
        };
        let text = format!("{} {} pair {} {now}", run.workload, run.pairing, run.pair + 1);
        match &self.0 {
            Some(bar) => {
                bar.set_position((progress.done * 1000.0) as u64);
                bar.set_message(text);
            }
            None if run.failed.is_some() || !run.is_reference => say(&text),
            None => {}
        }
    }

    fn finish(&self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}
