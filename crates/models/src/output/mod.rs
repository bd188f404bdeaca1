//! Output files: complete or absent, with the mode and kind of the file that they replace.
//!
//! The content goes to a new file in the target's directory, is flushed to the disk, and then takes
//! the target's name. So a reader sees the old file or the complete new one, also after a power
//! cut. On Linux the new file has no name until it is complete (`O_TMPFILE`), so that a killed
//! process leaves nothing. Elsewhere, and on file systems without such files, it has a temporary
//! name, which a killed process leaves behind.
//!
//! A symbolic link stays, and its target is replaced. A device, pipe or descriptor (`/dev/null`,
//! `/dev/stdout`, a FIFO) is written to, not replaced.

mod place;
mod tensors;
#[cfg(all(test, target_os = "linux"))]
mod tests;

use crate::Error;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
pub use tensors::write_tensors;

/// Where the bytes of an output go.
enum Target {
    /// A new file takes this path, which is no link; `old` describes the present file.
    Replace { path: PathBuf, old: Option<Metadata> },
    /// The bytes are written to what is there: a device, a FIFO or an open descriptor.
    Stream { path: PathBuf, is_fifo: bool },
}

/// Writes a file: complete, or not at all.
///
/// # Errors
/// Of the file system; the target is then unchanged.
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    write_with(path, |file| file.write_all(bytes))
}

/// Writes a file: complete, or not at all. `fill` writes its content.
///
/// # Errors
/// Of `fill` and of the file system; the target is then unchanged.
pub fn write_with(path: &Path, fill: impl FnOnce(&mut (dyn Write + Send)) -> io::Result<()>) -> io::Result<()> {
    let filled = |file: &File| {
        let mut writer = BufWriter::with_capacity(1 << 18, file);
        fill(&mut writer)?;
        writer.flush()
    };
    match find_target(path)? {
        Target::Stream { path, .. } => filled(&OpenOptions::new().append(true).open(path)?),
        Target::Replace { path, old } => place::replace(&path, old.as_ref(), filled),
    }
}

/// Fails if a file cannot be written, before minutes of work are done for it. Leaves no trace.
///
/// # Errors
/// What [`write()`] would fail with: no such directory, no permission, a directory of this name.
pub fn check(path: &Path) -> io::Result<()> {
    match find_target(path)? {
        // Opening a FIFO waits for its reader, and closing it would end the reader's input.
        Target::Stream { is_fifo: true, .. } => Ok(()),
        Target::Stream { path, .. } => OpenOptions::new().append(true).open(path).map(drop),
        Target::Replace { path, old } => {
            if old.is_some() {
                OpenOptions::new().append(true).open(&path)?;
            }
            check_directory(directory_of(&path))
        }
    }
}

/// Fails if no file can be created in a directory. Leaves no trace.
///
/// # Errors
/// Of the file system.
pub fn check_directory(directory: &Path) -> io::Result<()> {
    tempfile::tempfile_in(directory).map(drop)
}

/// The error of an output that cannot be written, with its remedy.
pub fn error(path: &Path, source: &io::Error) -> Error {
    let remedy = match source.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory | io::ErrorKind::IsADirectory => {
            "give a file in a directory that exists"
        }
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            "give a file in a directory that you may write to"
        }
        io::ErrorKind::FileTooLarge => "raise the limit of file sizes (`ulimit -f`), or choose another file system",
        _ => "check that the directory exists and the disk is not full",
    };
    Error::usage(format!("cannot write {}: {source}", path.display()), remedy)
}

fn find_target(path: &Path) -> io::Result<Target> {
    match fs::metadata(path) {
        Ok(found) if found.is_dir() => Err(io::Error::new(io::ErrorKind::IsADirectory, "it is a directory")),
        Ok(found) if found.is_file() && !is_descriptor(path) => {
            Ok(Target::Replace { path: fs::canonicalize(path)?, old: Some(found) })
        }
        Ok(found) => Ok(Target::Stream { path: path.to_owned(), is_fifo: is_fifo(&found) }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let path = follow_links(path);
            if !directory_of(&path).is_dir() {
                return Err(io::Error::new(io::ErrorKind::NotFound, "there is no such directory"));
            }
            Ok(Target::Replace { path, old: None })
        }
        Err(error) => Err(error),
    }
}

/// Follows symbolic links to a file that does not exist yet.
fn follow_links(path: &Path) -> PathBuf {
    /// As many as Linux follows.
    const MOST: usize = 40;
    let mut path = path.to_owned();
    for _ in 0..MOST {
        let Ok(to) = fs::read_link(&path) else { break };
        path = directory_of(&path).join(to);
    }
    path
}

/// Whether the path names an open file of this process, such as `/dev/stdout` or `/dev/fd/3`: the
/// program that opened it reads from that file, not from a new one of its name.
fn is_descriptor(path: &Path) -> bool {
    fs::canonicalize(directory_of(path)).is_ok_and(|dir| dir == Path::new("/dev") || dir.starts_with("/proc"))
}

fn is_fifo(found: &Metadata) -> bool {
    #[cfg(unix)]
    return std::os::unix::fs::FileTypeExt::is_fifo(&found.file_type());
    #[cfg(not(unix))]
    {
        let _ = found;
        false
    }
}

fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."))
}
