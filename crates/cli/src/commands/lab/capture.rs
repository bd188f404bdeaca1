//! `pellucid lab capture`: the cost of captures in batched generation.

use super::{exit_with, failure, print, say, session, write_outputs};
use crate::args::{LabCaptureArgs, LabOutputs, SuiteOptions};
use crate::failure::Failure;
use crate::files;
use pellucid_lab::capture::request::{WorkloadSize, check_layers};
use pellucid_lab::capture::result::CaptureSuite;
use pellucid_lab::capture::session::{self as modes, CaptureExecutor, CaptureProcesses, CaptureSettings};
use pellucid_lab::capture::{Mode, html, markdown, peer};
use pellucid_lab::environment::Environment;
use pellucid_lab::report;
use pellucid_models::{locate, program_of};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Time limit of one process.
const LIMIT: Duration = Duration::from_secs(3600);
/// Directory of suites without `--output`.
const DIRECTORY: &str = "lab-capture";

pub fn run(args: LabCaptureArgs) -> Result<(), Failure> {
    let chosen = chosen_modes(&args)?;
    let settings = settings(&args)?;
    let environment = Environment::detect(&settings.model);
    let own = crate::own_program()?;
    let mut processes = CaptureProcesses { pellucid: own, limit: LIMIT };
    match chosen[..] {
        [mode] if !args.mode.is_empty() => run_mode(&args, &settings, mode, environment, &mut processes),
        _ => run_suite(&args, &settings, &chosen, &environment, &mut processes),
    }
}

/// The arguments of `lab run capture`.
pub fn as_suite(options: &SuiteOptions) -> Result<LabCaptureArgs, Failure> {
    use clap::{Args, Command, FromArgMatches};
    let command = LabCaptureArgs::augment_args(Command::new("capture"));
    let defaults = LabCaptureArgs::from_arg_matches(&command.get_matches_from(["capture"]))
        .map_err(|error| Failure::internal(error.to_string()))?;
    Ok(LabCaptureArgs {
        model: options.model.clone().unwrap_or(defaults.model),
        assume: options.assume.clone(),
        rounds: options.pairs.unwrap_or(defaults.rounds),
        python: options.python.clone(),
        gate: options.gate,
        ..defaults
    })
}

/// The modes to run: those given, or all but `custom`.
fn chosen_modes(args: &LabCaptureArgs) -> Result<Vec<Mode>, Failure> {
    let mut chosen: Vec<Mode> = Vec::new();
    for mode in args.mode.iter().filter_map(|name| Mode::from_name(name)) {
        if chosen.contains(&mode) {
            return Err(Failure::usage(
                format!("--mode {} is given twice", mode.name()),
                "give it once; --rounds sets the number of its processes",
            ));
        }
        chosen.push(mode);
    }
    let custom = chosen.contains(&Mode::Custom);
    if custom && args.layers.is_empty() {
        return Err(Failure::usage("--mode custom has no layers", "name them: --layers 0,5,10"));
    }
    if !custom && !args.layers.is_empty() {
        return Err(Failure::usage("--layers is for the mode custom", "add --mode custom"));
    }
    if chosen.is_empty() {
        chosen = Mode::ALL.map(|(mode, _)| mode).into_iter().filter(|mode| *mode != Mode::Custom).collect();
    }
    Ok(chosen)
}

/// Resolves the model and checks sizes and layers against it, without loading weights.
fn settings(args: &LabCaptureArgs) -> Result<CaptureSettings, Failure> {
    let assume = args.assume.assume.clone();
    let model = session::resolve_model(&args.model, assume.as_deref())?;
    let (program, _) = program_of(locate(Some(&args.model))?.as_deref(), assume.as_deref())?;
    let architecture = program.architecture();
    let size = WorkloadSize { batch: args.batch, prefill: args.prefill, decode: args.decode, mixed: args.mixed };
    let hint = "see `pellucid lab capture --help`, and `pellucid inspect` for the model's layers and context";
    let usage = |error: pellucid_lab::Error| Failure::usage(error.to_string(), hint);
    size.check(architecture).map_err(usage)?;
    check_layers(&args.layers, architecture.layers.len()).map_err(usage)?;
    Ok(CaptureSettings {
        model,
        model_name: args.model.clone(),
        assume,
        dtype: args.dtype.clone(),
        threads: args.threads.map(|threads| threads as usize),
        size,
        depth: architecture.layers.len(),
        width: architecture.width,
        vocab: architecture.vocab,
        custom_layers: args.layers.clone(),
        iterations: args.iterations as usize,
        warmups: 1,
        rounds: args.rounds as usize,
        profile_fetch: args.profile_fetch,
        command: std::env::args().collect(),
    })
}

/// Runs one mode in one process and writes its file.
fn run_mode(
    args: &LabCaptureArgs,
    settings: &CaptureSettings,
    mode: Mode,
    environment: Environment,
    processes: &mut dyn CaptureExecutor,
) -> Result<(), Failure> {
    for (flag, given) in [("--python", args.python.is_some()), ("--ladder", args.ladder), ("--gate", args.gate)] {
        if given {
            return Err(Failure::usage(format!("{flag} needs a suite"), "leave out --mode, or give several modes"));
        }
    }
    files::check(args.output.as_deref())?;
    let run = processes.run(&settings.request(mode, true)).map_err(failed)?;
    let result = settings.result(mode, &[run], environment);
    match &args.output {
        Some(path) => {
            write_json(path, &result)?;
            let summary = result.summary;
            say(&format!(
                "{}: generation {:.3} s, fetch {:.4} s, {} rows checked; {}",
                mode.name(),
                summary.mean_generation_time,
                summary.mean_fetch_time,
                result.rows_checked,
                path.display()
            ));
        }
        None => super::print_json(&result)?,
    }
    for problem in &result.problems {
        say(&format!("wrong: {problem}"));
    }
    exit_with(i32::from(!result.problems.is_empty()), true)
}

/// Runs several modes, the peers and the ladder, and writes a folder.
fn run_suite(
    args: &LabCaptureArgs,
    settings: &CaptureSettings,
    chosen: &[Mode],
    environment: &Environment,
    processes: &mut dyn CaptureExecutor,
) -> Result<(), Failure> {
    let folder = create_folder(args.output.as_deref().unwrap_or(Path::new(DIRECTORY)))?;
    let mut suite = modes::run(settings, chosen, environment, processes, &mut |index, total, mode| {
        say(&format!("process {} of {total}: {}", index + 1, mode.name()));
    })
    .map_err(failed)?;
    run_peers(args, settings, &mut suite, processes)?;
    for mode in &suite.modes {
        write_json(&folder.join(format!("{}.json", mode.mode.name())), mode)?;
    }
    write_json(&folder.join("suite.json"), &suite)?;
    let page = markdown::page(&suite);
    files::write(&folder.join("report.md"), page.as_bytes())?;
    files::write(&folder.join("report.html"), html::page(&suite).as_bytes())?;
    print(&page)?;
    if args.ladder {
        run_ladder(args, &folder)?;
    }
    say(&format!("reports are in {}", folder.display()));
    exit_with(suite.exit_code(args.gate), true)
}

/// Runs the same prompts in other libraries. A missing library is reported, not an error.
fn run_peers(
    args: &LabCaptureArgs,
    settings: &CaptureSettings,
    suite: &mut CaptureSuite,
    processes: &mut dyn CaptureExecutor,
) -> Result<(), Failure> {
    let Some(python) = &args.python else {
        say("no peer row: give an interpreter with torch and transformers, or llama_cpp: --python PYTHON");
        return Ok(());
    };
    let whole = if suite.mode(Mode::AllLayers).is_some() { Mode::AllLayers } else { Mode::Baseline };
    for peer in &peer::PEERS {
        let mode = if peer.captures { whole } else { Mode::Baseline };
        if peer.captures && !mode.captures() {
            continue;
        }
        let missing = peer.missing(python);
        if !missing.is_empty() {
            say(&format!("no row for {}: {} cannot import {}", peer.title, python.display(), missing.join(", ")));
            continue;
        }
        let title = peer.title;
        let Some(ours) = suite.mode(mode).map(|result| result.summary) else { continue };
        say(&format!("peer: {title}"));
        // Ours once more, next to the peer: its tokens and activations are the reference.
        let request = settings.request(mode, false);
        let own = processes.run(&request).map_err(failed)?;
        match peer::run(python, peer, &request, &own, &ours, LIMIT) {
            Ok(result) => suite.peers.push(result),
            Err(why) => say(&format!("no row: {why}")),
        }
    }
    Ok(())
}

/// Runs the suite `ladder` on the same model and writes its reports.
fn run_ladder(args: &LabCaptureArgs, folder: &Path) -> Result<(), Failure> {
    let path = |ending: &str| Some(folder.join(format!("ladder.{ending}")));
    let options = SuiteOptions {
        model: Some(args.model.clone()),
        assume: args.assume.clone(),
        python: None,
        candle: false,
        only: vec![],
        pairs: None,
        budget: None,
        seed: 1,
        log: None,
        baseline: None,
        gate: false,
        allocations: false,
        outputs: LabOutputs { out: path("json"), html: path("html"), markdown: path("md"), bencher: None },
    };
    let result = session::measure("ladder", &options)?;
    write_outputs(&result, &options.outputs)?;
    print(&format!("\n{}", report::text(&result)))
}

/// Creates a new folder with the time in its name.
fn create_folder(directory: &Path) -> Result<PathBuf, Failure> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let folder = directory.join(format!("isolated_{}", modes::folder_time(now)));
    let fail = |problem: String| {
        Failure::usage(
            format!("cannot create {}: {problem}", folder.display()),
            "give a directory that can be written: --output DIR",
        )
    };
    if folder.exists() {
        return Err(fail("it exists already".into()));
    }
    std::fs::create_dir_all(&folder).map_err(|error| fail(error.to_string()))?;
    Ok(folder)
}

fn write_json(path: &Path, value: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(value).map_err(|error| Failure::internal(error.to_string()))?;
    files::write(path, (text + "\n").as_bytes())
}

fn failed(why: String) -> Failure {
    Failure::invalid(why, "if memory ran out, measure fewer requests, tokens or layers")
}

/// Answers the request of a worker process.
pub fn answer() -> Result<(), Failure> {
    super::print_json(&pellucid_lab::capture::worker::answer(&super::read_request()?).map_err(failure)?)
}
