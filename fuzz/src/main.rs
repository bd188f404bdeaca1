//! Runs the fuzz targets on the stable toolchain.
//!
//! Each target runs in a child process, which writes every input to a file before it executes it.
//! So the input is known even if the process dies by a stack overflow. A watchdog in the child ends
//! executions that take too long or too much memory.

use pellucid_fuzz::mutate::{Random, mutate};
use pellucid_fuzz::{TARGETS, Target, scratch_directory, target};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const USAGE: &str = "\
usage: pellucid-fuzz ci                           replay all past crashes, then a short run of every target
       pellucid-fuzz run TARGET EXECUTIONS [SEED]   one target; prints executions per second
       pellucid-fuzz replay FILE TARGET           execute one input
       pellucid-fuzz seeds DIR                    write the seeds as corpora of libFuzzer
";
/// Limits of one execution.
const LONGEST: Duration = Duration::from_secs(20);
const MOST_MEMORY: u64 = 3 << 29;
/// Stack of the thread that executes: that of Rust's threads.
const STACK: usize = 2 << 20;
/// Executions on one thread. The tokenizers crate keeps a cache of each BPE model for the life of
/// the thread, also when the model is gone.
const EXECUTIONS_PER_THREAD: usize = 4096;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match arguments[..] {
        ["ci"] => run_all(),
        ["run", name, executions] => start(name, executions, "1"),
        ["run", name, executions, seed] => start(name, executions, seed),
        ["replay", file, name] => replay(Path::new(file), name),
        ["seeds", directory] => write_seeds(Path::new(directory)),
        // What `start` and `replay` start.
        ["child", name, executions, seed, file] => return child(name, executions, seed, Path::new(file)),
        ["one", name, file] => return one(name, Path::new(file)),
        _ => Err(USAGE.to_owned()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            say(problem.trim_end());
            ExitCode::FAILURE
        }
    }
}

/// Prints a line to stderr, which may be closed.
fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

fn find(name: &str) -> Result<&'static Target, String> {
    let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
    target(name).ok_or_else(|| format!("no target `{name}`: one of {}", names.join(", ")))
}

fn crashes() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("crashes")
}

fn run_all() -> Result<(), String> {
    let mut problems = Vec::new();
    for target in TARGETS {
        let files = std::fs::read_dir(crashes().join(target.name)).into_iter().flatten().flatten();
        for file in files {
            problems.extend(replay(&file.path(), target.name).err());
        }
        problems.extend(start(target.name, &target.short.to_string(), "1").err());
    }
    if problems.is_empty() { Ok(()) } else { Err(problems.join("\n")) }
}

fn own_program() -> Command {
    Command::new(std::env::current_exe().unwrap_or_else(|_| "pellucid-fuzz".into()))
}

/// Runs a target in a child; keeps the input that ended it.
fn start(name: &str, executions: &str, seed: &str) -> Result<(), String> {
    let target = find(name)?;
    let folder = scratch_directory().map_err(|error| error.to_string())?;
    let current = folder.path().join("input");
    let status = own_program().args(["child", name, executions, seed]).arg(&current).status();
    let status = status.map_err(|error| error.to_string())?;
    if status.success() {
        return Ok(());
    }
    let input = std::fs::read(&current).map_err(|error| format!("{name}: {status}, and no input: {error}"))?;
    let kept = crashes().join(target.name).join(format!("seed-{seed}-{}-bytes", input.len()));
    std::fs::create_dir_all(crashes().join(target.name)).map_err(|error| error.to_string())?;
    std::fs::write(&kept, input).map_err(|error| error.to_string())?;
    Err(format!("{name}: {status}; the input is {}", kept.display()))
}

fn replay(file: &Path, name: &str) -> Result<(), String> {
    find(name)?;
    let status = own_program().args(["one", name]).arg(file).status().map_err(|error| error.to_string())?;
    if status.success() { Ok(()) } else { Err(format!("{name}: {} ends with {status}", file.display())) }
}

fn write_seeds(directory: &Path) -> Result<(), String> {
    for target in TARGETS {
        let corpus = directory.join(target.name);
        std::fs::create_dir_all(&corpus).map_err(|error| error.to_string())?;
        for (index, seed) in (target.seeds)().iter().enumerate() {
            std::fs::write(corpus.join(format!("seed-{index:03}")), seed).map_err(|error| error.to_string())?;
        }
    }
    Ok(())
}

/// Number of the execution in progress, for the watchdog.
static EXECUTION: AtomicU64 = AtomicU64::new(0);

fn child(name: &str, executions: &str, seed: &str, current: &Path) -> ExitCode {
    let (Some(target), Ok(executions), Ok(seed)) = (target(name), executions.parse::<u64>(), seed.parse()) else {
        return ExitCode::from(2);
    };
    let current = current.to_owned();
    watched(move || {
        let (mut random, seeds, started) = (Random::new(seed), (target.seeds)(), Instant::now());
        for first in (0..executions).step_by(EXECUTIONS_PER_THREAD) {
            let last = executions.min(first + EXECUTIONS_PER_THREAD as u64);
            let some = || {
                for execution in first..last {
                    // The seeds themselves come first.
                    let input = seeds.get(execution as usize).cloned();
                    let input = input.unwrap_or_else(|| mutate(&mut random, &seeds, target.kind));
                    std::fs::write(&current, &input).expect("the input is written");
                    EXECUTION.store(execution + 1, Ordering::Relaxed);
                    (target.run)(&input);
                }
            };
            std::thread::scope(|scope| {
                let thread = std::thread::Builder::new().stack_size(STACK).spawn_scoped(scope, some);
                thread.expect("a thread").join().expect("the target finds no fault");
            });
        }
        let seconds = started.elapsed().as_secs_f64();
        say(&format!("{:<12} {executions:>9} executions {:>8.0} per second", target.name, executions as f64 / seconds));
    })
}

fn one(name: &str, file: &Path) -> ExitCode {
    let (Some(target), Ok(input)) = (target(name), std::fs::read(file)) else { return ExitCode::from(2) };
    watched(move || (target.run)(&input))
}

/// Runs work on a thread with the usual stack while this one watches time and memory.
fn watched(work: impl FnOnce() + Send + 'static) -> ExitCode {
    let Ok(worker) = std::thread::Builder::new().stack_size(STACK).spawn(work) else { return ExitCode::from(2) };
    let (mut seen, mut since) = (0, Instant::now());
    while !worker.is_finished() {
        std::thread::sleep(Duration::from_millis(20));
        let now = EXECUTION.load(Ordering::Relaxed);
        if now != seen {
            (seen, since) = (now, Instant::now());
        } else if since.elapsed() > LONGEST {
            say(&format!("execution {now} takes more than {} s", LONGEST.as_secs()));
            std::process::exit(3);
        }
        if memory() > MOST_MEMORY {
            say(&format!("execution {now} takes more than {} MB", MOST_MEMORY >> 20));
            std::process::exit(4);
        }
    }
    if worker.join().is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Resident memory in bytes; 0 where the system does not report it.
fn memory() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").ok();
    let pages = pages.and_then(|text| text.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()));
    pages.unwrap_or(0) * 4096
}
