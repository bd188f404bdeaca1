//! Puts a complete file under its name.

use super::directory_of;
use std::fs::{File, Metadata};
use std::io;
use std::path::Path;
use tempfile::Builder;

/// Replaces or creates the file `path` by one that `fill` writes, with the mode and owner of `old`.
pub(super) fn replace(
    path: &Path,
    old: Option<&Metadata>,
    fill: impl FnOnce(&File) -> io::Result<()>,
) -> io::Result<()> {
    let dir = directory_of(path);
    #[cfg(target_os = "linux")]
    if let Some(file) = unnamed::create(dir) {
        fill(&file)?;
        complete(&file, old)?;
        unnamed::link(&file, dir, path)?;
        return flush_directory(dir);
    }
    let mut builder = Builder::new();
    // Temporary files are private by default; a result gets the usual permissions (the umask
    // applies).
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    let file = builder.prefix(PREFIX).tempfile_in(dir)?;
    fill(file.as_file())?;
    complete(file.as_file(), old)?;
    file.persist(path).map_err(|error| error.error)?;
    flush_directory(dir)
}

/// Start of temporary names.
const PREFIX: &str = ".pellucid-";

/// Gives a file the owner and mode of the one it replaces, and writes it to the disk.
fn complete(file: &File, old: Option<&Metadata>) -> io::Result<()> {
    if let Some(old) = old {
        #[cfg(unix)]
        {
            use std::os::unix::fs::{MetadataExt, fchown};
            let new = file.metadata()?;
            if (new.uid(), new.gid()) != (old.uid(), old.gid()) {
                // Only root may give files away; another user becomes the owner.
                let _ = fchown(file, Some(old.uid()), Some(old.gid()));
            }
        }
        file.set_permissions(old.permissions())?;
    }
    file.sync_all()
}

/// Makes a rename durable.
fn flush_directory(dir: &Path) -> io::Result<()> {
    // Some file systems cannot flush directories; the file itself is already written.
    #[cfg(unix)]
    let _ = File::open(dir).and_then(|dir| dir.sync_all());
    #[cfg(not(unix))]
    let _ = dir;
    Ok(())
}

#[cfg(target_os = "linux")]
mod unnamed {
    //! Files without a name (`O_TMPFILE`): the kernel frees them when the process ends.

    use super::{Builder, PREFIX};
    use rustix::fs::{AtFlags, CWD, OFlags, linkat};
    use std::fs::{File, OpenOptions};
    use std::io;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::OpenOptionsExt;
    use std::path::Path;

    /// Creates an unnamed file in a directory; `None` if the file system has none, or if it could
    /// not be linked later.
    pub fn create(dir: &Path) -> Option<File> {
        let flags = OFlags::TMPFILE.bits().cast_signed();
        let file = OpenOptions::new().write(true).mode(0o666).custom_flags(flags).open(dir).ok()?;
        Path::new(&name_of(&file)).exists().then_some(file)
    }

    /// Gives a complete file its name.
    pub fn link(file: &File, dir: &Path, path: &Path) -> io::Result<()> {
        let link = |to: &Path| linkat(CWD, name_of(file), CWD, to, AtFlags::SYMLINK_FOLLOW).map_err(io::Error::from);
        match link(path) {
            // A link cannot replace a file, a rename can.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let named = Builder::new().prefix(PREFIX).make_in(dir, link)?;
                named.into_temp_path().persist(path).map_err(|error| error.error)
            }
            other => other,
        }
    }

    fn name_of(file: &File) -> String {
        format!("/proc/self/fd/{}", file.as_raw_fd())
    }
}
