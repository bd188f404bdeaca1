//! Ctrl-C and termination signals for commands that end their work in order.

use crate::failure::Failure;
use pellucid_engine::Interrupt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Sets a flag at the first Ctrl-C, SIGTERM or SIGHUP; the second ends the process.
///
/// Called once, by commands with work to finish or to clean up. Any other command dies by the
/// signal, which leaves no file behind: output files have no name before they are complete.
pub fn watch() -> Result<Arc<AtomicBool>, Failure> {
    let flag = Arc::new(AtomicBool::new(false));
    let set = flag.clone();
    ctrlc::set_handler(move || {
        if set.swap(true, Ordering::Relaxed) {
            std::process::exit(130);
        }
    })
    .map_err(|error| Failure::internal(format!("cannot watch for Ctrl-C: {error}")))?;
    Ok(flag)
}

/// Returns an interrupt that the first signal raises.
pub fn interrupt() -> Result<Interrupt, Failure> {
    let flag = watch()?;
    Ok(Interrupt(Arc::new(move || flag.load(Ordering::Relaxed))))
}

/// A file beyond the limit of file sizes (`ulimit -f`) is a failed write with a message, not the
/// end of the process.
pub fn ignore_file_size_signal() {
    #[cfg(unix)]
    // SAFETY: called before any other thread exists; ignoring a signal runs no code.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
    }
}
