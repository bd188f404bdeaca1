//! `pellucid lab sessions`: time and memory of analysis sessions.

use super::session::resolve_model;
use super::{exit_with, failure, print, say};
use crate::args::{LabSessionsArgs, SuiteOptions};
use crate::failure::Failure;
use crate::files;
use crate::progress::progress_bar;
use pellucid_lab::analysis_sessions::measure::{SessionsResult, measure};
use pellucid_lab::analysis_sessions::peer::Peer;
use pellucid_lab::analysis_sessions::processes::Processes;
use pellucid_lab::analysis_sessions::report;
use pellucid_lab::analysis_sessions::sets::{self, MeasuredSession, WORKLOADS};
use pellucid_lab::gpt2_shaped;
use std::io::IsTerminal;
use std::path::PathBuf;

pub fn run(args: LabSessionsArgs) -> Result<(), Failure> {
    [&args.json, &args.md].into_iter().try_for_each(|path| files::check(path.as_deref()))?;
    let result = measure_sessions(&args)?;
    write(&result, args.json.as_ref(), args.md.as_ref())?;
    if args.md.is_none() {
        print(&report::markdown(&result))?;
    }
    exit_with(exit_code(&result, args.gate), true)
}

/// The arguments of `lab run sessions`.
pub fn as_suite(options: &SuiteOptions) -> LabSessionsArgs {
    LabSessionsArgs {
        sessions: Vec::new(),
        gpt2: false,
        bos: false,
        only: Vec::new(),
        python: None,
        runs: options.pairs.unwrap_or(5),
        threads: None,
        seed: options.seed,
        keep: None,
        json: options.outputs.out.clone(),
        md: options.outputs.markdown.clone(),
        gate: options.gate,
    }
}

/// Measures the sessions, with a bar or lines on stderr.
pub fn measure_sessions(args: &LabSessionsArgs) -> Result<SessionsResult, Failure> {
    let threads = args.threads.map(|threads| threads as usize);
    let temporary = tempfile::tempdir().map_err(|error| {
        Failure::usage(format!("no temporary directory: {error}"), "set TMPDIR to a directory that can be written")
    })?;
    let directory = args.keep.as_deref().unwrap_or(temporary.path());
    std::fs::create_dir_all(directory).map_err(|error| {
        Failure::usage(
            format!("cannot create {}: {error}", directory.display()),
            "choose another directory with --keep",
        )
    })?;
    let mut peer = None;
    let sessions = if args.gpt2 {
        let model = resolve_model(gpt2_shaped::NAME, None)?;
        if let Some(python) = &args.python {
            if !Peer::is_available(python) {
                return Err(Failure::usage(
                    format!("{} cannot import transformer_lens and sae_lens", python.display()),
                    "install transformer-lens and sae-lens there, or leave out --python",
                ));
            }
            peer = Some(Peer { python: python.clone(), model: model.clone(), threads });
        }
        only(sets::workloads(directory, &model, args.bos).map_err(failure)?, &args.only)?
    } else if args.sessions.is_empty() {
        sets::examples(directory).map_err(failure)?
    } else {
        files_of(&args.sessions)?
    };
    let pellucid = crate::own_program()?;
    let mut processes = Processes { pellucid, stores: directory.join("stores"), threads, peer };
    let runs = args.runs as usize;
    let bar = std::io::stderr().is_terminal().then(|| {
        progress_bar((runs * sessions.len()) as u64, "sessions [{bar:24}] {percent:>3}% {elapsed}/{eta}  {msg}")
    });
    let result = measure(&sessions, runs, args.seed, threads, &mut processes, &mut |name, round| match &bar {
        Some(bar) => {
            bar.set_message(name.to_string());
            bar.inc(1);
        }
        None => say(&format!("{name} run {}", round + 1)),
    });
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    for session in &result.sessions {
        if let Some(error) = &session.error {
            say(&format!("{} failed: {error}", session.name));
        }
        if let Some(error) = &session.peer_error {
            say(&format!("{} failed in the peer: {error}", session.name));
        }
    }
    Ok(result)
}

/// Keeps the named workloads; all if there are no names.
fn only(sessions: Vec<MeasuredSession>, names: &[String]) -> Result<Vec<MeasuredSession>, Failure> {
    if let Some(name) = names.iter().find(|name| sessions.iter().all(|session| session.name != **name)) {
        let known = WORKLOADS.map(|(name, _)| name).join(", ");
        return Err(Failure::usage(format!("there is no workload `{name}`"), format!("the workloads are {known}")));
    }
    Ok(sessions.into_iter().filter(|session| names.is_empty() || names.contains(&session.name)).collect())
}

/// The sessions of files, whose names must differ: they name rows of the report.
fn files_of(paths: &[PathBuf]) -> Result<Vec<MeasuredSession>, Failure> {
    let mut sessions: Vec<MeasuredSession> = Vec::new();
    for path in paths {
        if !path.is_file() {
            return Err(Failure::usage(format!("{}: there is no such file", path.display()), "give session files"));
        }
        let session = sets::from_file(path);
        if sessions.iter().any(|other| other.name == session.name) {
            return Err(Failure::usage(
                format!("two session files are named `{}`", session.name),
                "measure them one after the other, or rename one",
            ));
        }
        sessions.push(session);
    }
    Ok(sessions)
}

/// Writes the result to the requested files.
pub fn write(result: &SessionsResult, json: Option<&PathBuf>, md: Option<&PathBuf>) -> Result<(), Failure> {
    if let Some(path) = json {
        let text = serde_json::to_string_pretty(result).map_err(|error| Failure::internal(error.to_string()))?;
        files::write(path, (text + "\n").as_bytes())?;
    }
    md.map_or(Ok(()), |path| files::write(path, report::markdown(result).as_bytes()))
}

/// 5 if a session failed; with `gate`, 1 if a bar is missed or results differ from the peer's.
pub fn exit_code(result: &SessionsResult, gate: bool) -> i32 {
    let failed = result.sessions.iter().any(|session| session.error.is_some());
    let missed = result.bars.iter().any(|bar| !bar.met);
    let differs = result.sessions.iter().filter_map(|session| session.agreement.as_ref()).any(|found| !found.agrees);
    match (failed, gate && (missed || differs)) {
        (true, _) => 5,
        (false, true) => 1,
        (false, false) => 0,
    }
}
