//! `pellucid lab`: measurements that can be believed.

use super::{print, print_json, say};
use crate::args::{BaselineCommand, LabCommand, LabCompareArgs, LabOutputs, LabRunArgs};
use crate::failure::Failure;
use crate::progress::bar_of;
use crate::{files, models};
use indicatif::ProgressBar;
use pellucid_lab::baseline::{self, Shelf};
use pellucid_lab::environment::Environment;
use pellucid_lab::executor::Processes;
use pellucid_lab::protocol::Request;
use pellucid_lab::result::{Run, SessionResult};
use pellucid_lab::session::{self, Progress, Setting};
use pellucid_lab::suite::Suite;
use pellucid_lab::verdict::Verdict;
use pellucid_lab::{noise, report, suites, worker};
use pellucid_models::{program_of, pull};
use std::io::{IsTerminal, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

pub fn run(command: LabCommand) -> Result<(), Failure> {
    match command {
        LabCommand::Worker => answer(),
        LabCommand::Run(args) => run_suite(args),
        LabCommand::List => list(),
        LabCommand::Compare(args) => compare(args),
        LabCommand::Noise { seconds, json } => look_at_noise(seconds, json),
        LabCommand::Baseline(command) => keep(command),
        LabCommand::Report { result, outputs } => {
            let result = baseline::read(&result).map_err(failure)?;
            write_outputs(&result, &outputs)?;
            print(&report::text(&result))
        }
    }
}

fn answer() -> Result<(), Failure> {
    let mut text = String::new();
    std::io::stdin()
        .read_to_string(&mut text)
        .map_err(|error| Failure::usage(format!("stdin: {error}"), "send one JSON request"))?;
    let request: Request = serde_json::from_str(&text).map_err(|error| {
        Failure::usage(format!("not a request: {error}"), "crates/lab/src/protocol.rs says what a request is")
    })?;
    print_json(&worker::answer(&request).map_err(failure)?)
}

fn list() -> Result<(), Failure> {
    let mut text = String::new();
    for name in suites::names() {
        if let Some(Ok(suite)) = suites::named(name) {
            text += &format!("{name:<10} {}\n", suite.title);
        }
    }
    print(&text)
}

fn run_suite(args: LabRunArgs) -> Result<(), Failure> {
    for path in [&args.outputs.out, &args.outputs.html, &args.outputs.markdown, &args.outputs.bencher] {
        files::check(path.as_deref())?;
    }
    let mut suite = find_suite(&args.suite)?;
    let name = args.model.as_deref().or(suite.model.as_deref()).unwrap_or("smollm2-135m").to_string();
    let model = pull::resolve(&name)?;
    let assume = args.assume.assume;
    // The workers' stderr is theirs: what is to be said about the model is said here, once.
    models::warn(&program_of(Some(&model), assume.as_deref())?.1);
    suite.precision.pairs = args.pairs.map_or(suite.precision.pairs, |pairs| pairs as usize);
    suite.precision.least_pairs = suite.precision.least_pairs.min(suite.precision.pairs);
    suite.precision.budget_s = args.budget.unwrap_or(suite.precision.budget_s);
    leave_out_absent(&mut suite, args.python.as_deref())?;
    let shelf = shelf()?;
    let kept = args.baseline.as_deref().map(|name| shelf.load(name)).transpose().map_err(failure)?;

    let pellucid = std::env::current_exe().map_err(|error| Failure::internal(error.to_string()))?;
    let mut executor = Processes::new(pellucid, args.python.clone());
    let mut log = args.log.as_deref().map(Log::open).transpose()?;
    let setting = Setting {
        environment: Environment::here(&model),
        model,
        assume,
        seed: args.seed,
        command: std::env::args().collect(),
        earlier: log.as_mut().map(|log| std::mem::take(&mut log.earlier)).unwrap_or_default(),
    };
    let display = Display::new(&suite);
    let mut trouble = None;
    let result = session::run(&suite, setting, &mut executor, &mut |progress| {
        display.show(progress);
        if let Some(log) = &mut log {
            trouble = trouble.take().or(log.append(progress.run).err());
        }
    })
    .map_err(failure)?;
    display.finish();
    if let Some(error) = trouble {
        return Err(error);
    }
    write_outputs(&result, &args.outputs)?;
    print(&report::text(&result))?;
    let mut code = result.exit_code();
    if let Some(kept) = &kept {
        let comparisons = baseline::compare(kept, &result, false).map_err(failure)?;
        print("\nagainst the baseline:\n")?;
        comparisons.iter().try_for_each(|comparison| print(&format!("{}\n", report::line(comparison))))?;
        if comparisons.iter().any(|c| c.verdict == Verdict::Regressed) {
            code = 1;
        }
    }
    // Without a gate only what is certain to be wrong fails.
    let code = if args.gate || code == 1 { code } else { 0 };
    if code == 0 { Ok(()) } else { std::process::exit(code) }
}

fn find_suite(name: &str) -> Result<Suite, Failure> {
    if let Some(suite) = suites::named(name) {
        return suite.map_err(failure);
    }
    let text = std::fs::read_to_string(name).map_err(|error| {
        let known = suites::names().collect::<Vec<_>>().join(", ");
        Failure::usage(format!("there is no suite `{name}`: {error}"), format!("give a TOML file, or one of {known}"))
    })?;
    Suite::parse(&text, name).map_err(failure)
}

/// Takes variants out of a suite that cannot run here, and says so.
fn leave_out_absent(suite: &mut Suite, python: Option<&Path>) -> Result<(), Failure> {
    let here = |id: &str, suite: &Suite| suite.variant(id).is_some_and(|v| v.worker.is_available(python));
    let absent: Vec<String> =
        suite.variants.iter().filter(|v| !here(&v.id, suite)).map(|variant| variant.id.clone()).collect();
    if absent.is_empty() {
        return Ok(());
    }
    let hint = "name a Python that has it: --python venv/bin/python";
    say(&format!("left out, not to be found here: {} ({hint})", absent.join(", ")));
    suite.variants.retain(|variant| !absent.contains(&variant.id));
    suite.limits.retain(|limit| !absent.contains(&limit.variant));
    suite.ladder.retain(|id| !absent.contains(id));
    for workload in &mut suite.workloads {
        if let Some(variants) = &mut workload.variants {
            variants.retain(|id| !absent.contains(id));
        }
    }
    if absent.contains(&suite.reference) {
        let first = suite.variants.first().ok_or_else(|| Failure::usage("nothing of this suite can run here", hint))?;
        suite.reference = first.id.clone();
        // Limits compare with a reference that is not there.
        suite.limits.retain(|limit| limit.ratio.is_none());
        say(&format!("compared with `{}` instead", suite.reference));
    }
    suite.oracle = suite.oracle.take().filter(|oracle| !absent.contains(oracle));
    suite.check().map_err(failure)
}

fn write_outputs(result: &SessionResult, outputs: &LabOutputs) -> Result<(), Failure> {
    if let Some(path) = &outputs.out {
        baseline::write(path, result).map_err(failure)?;
    }
    if let Some(path) = &outputs.html {
        files::write(path, report::html(result).as_bytes())?;
    }
    if let Some(path) = &outputs.markdown {
        files::write(path, report::markdown(result).as_bytes())?;
    }
    if let Some(path) = &outputs.bencher {
        files::write(path, format!("{:#}\n", report::bencher(result)).as_bytes())?;
    }
    Ok(())
}

fn compare(args: LabCompareArgs) -> Result<(), Failure> {
    let shelf = shelf()?;
    let read = |name: &str| {
        let path = Path::new(name);
        if path.exists() { baseline::read(path) } else { shelf.load(name) }
    };
    let (before, after) = (read(&args.before).map_err(failure)?, read(&args.after).map_err(failure)?);
    let comparisons = baseline::compare(&before, &after, args.force).map_err(failure)?;
    if args.json {
        print_json(&comparisons)?;
    } else {
        comparisons.iter().try_for_each(|comparison| print(&format!("{}\n", report::line(comparison))))?;
    }
    match comparisons.iter().any(|comparison| comparison.verdict == Verdict::Regressed) {
        true => Err(Failure::no("something regressed", "see the lines above")),
        false => Ok(()),
    }
}

fn look_at_noise(seconds: f64, json: bool) -> Result<(), Failure> {
    if !(seconds > 0.0 && seconds <= 3600.0) {
        return Err(Failure::usage(format!("{seconds} seconds"), "give between 0 and 3600"));
    }
    let found = noise::measure(Duration::from_secs_f64(seconds));
    if json {
        return print_json(&found);
    }
    let stolen = found.stolen.map_or_else(|| "unknown".into(), |share| format!("{:.2} %", share * 100.0));
    print(&format!(
        "{}\n\nspread of one run   {:.2} %\nslowest twentieth  +{:.1} %\ndrift               {:.2} %\nstolen              {stolen}\npairs to see 2 %    {}\n",
        found.verdict(),
        found.spread * 100.0,
        found.slowest * 100.0,
        found.drift * 100.0,
        found.pairs_for_two_percent,
    ))
}

fn keep(command: BaselineCommand) -> Result<(), Failure> {
    let shelf = shelf()?;
    match command {
        BaselineCommand::Save { name, result } => {
            let result = baseline::read(&result).map_err(failure)?;
            let path = shelf.save(&name, &result).map_err(failure)?;
            say(&format!("kept as {}", path.display()));
            Ok(())
        }
        BaselineCommand::List => shelf.names().iter().try_for_each(|name| print(&format!("{name}\n"))),
        BaselineCommand::Show { name } => print(&report::text(&shelf.load(&name).map_err(failure)?)),
    }
}

/// Where baselines are kept.
fn shelf() -> Result<Shelf, Failure> {
    Ok(Shelf::new(pull::cache_dir()?.join("lab")))
}

/// Every process of a session in a file, one JSON value a line.
struct Log {
    path: PathBuf,
    file: std::fs::File,
    earlier: Vec<Run>,
}

impl Log {
    fn open(path: &Path) -> Result<Log, Failure> {
        let bad = |problem: String| Failure::usage(format!("{}: {problem}", path.display()), "name a file of your own");
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(bad(error.to_string())),
        };
        // A session that was cut short may have left half a line.
        let earlier: Vec<Run> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        if earlier.is_empty() && !text.trim().is_empty() {
            return Err(bad("is not a log of the lab".into()));
        }
        if !earlier.is_empty() {
            say(&format!("going on after {} processes", earlier.len()));
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
            Failure::usage(format!("{}: {error}", self.path.display()), "the results so far are in memory and printed")
        })
    }
}

/// What a session shows while it runs: a bar in a terminal, plain lines in a pipe.
struct Display(Option<ProgressBar>);

impl Display {
    fn new(suite: &Suite) -> Display {
        if !std::io::stderr().is_terminal() {
            return Display(None);
        }
        let bar = bar_of(1000, "{prefix} [{bar:24}] {percent:>3}% {elapsed}/{eta}  {msg}");
        bar.set_prefix(suite.name.clone());
        Display(Some(bar))
    }

    fn show(&self, progress: &Progress) {
        let run = progress.run;
        let now = match (&progress.so_far, &run.failed) {
            (_, Some((how, said))) => format!("{} {}: {said}", run.variant, how.name()),
            (Some(c), None) if c.pairs > 1 => {
                let ratio = c.log_ratio.exp();
                format!("{:.3} ({:.3} to {:.3})", ratio.mean, ratio.low, ratio.high)
            }
            _ => String::new(),
        };
        let text = format!("{} {} pair {} {now}", run.workload, run.arm, run.pair + 1);
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

fn failure(error: pellucid_lab::Error) -> Failure {
    match error {
        pellucid_lab::Error::Model(error) => error.into(),
        pellucid_lab::Error::Mismatch(_) => {
            Failure::usage(error.to_string(), "compare results of one machine, build and model, or say --force")
        }
        other => Failure::usage(other.to_string(), "`pellucid lab --help` and docs/lab.md tell more"),
    }
}
