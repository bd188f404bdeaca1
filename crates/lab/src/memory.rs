//! What the system knows about this process's memory.

/// A line of the process's own status, in bytes; 0 where the system does not tell.
pub(crate) fn status(key: &str) -> u64 {
    kilobytes(&std::fs::read_to_string("/proc/self/status").unwrap_or_default(), key)
}

/// The process's share of everything that it holds, in bytes; 0 where the system does not tell.
pub(crate) fn proportional() -> u64 {
    kilobytes(&std::fs::read_to_string("/proc/self/smaps_rollup").unwrap_or_default(), "Pss")
}

fn kilobytes(text: &str, key: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
    line.and_then(|rest| rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()).unwrap_or(0) * 1024
}

/// Lets the high-water mark begin anew, so that each phase has its own.
pub(crate) fn forget_peak() {
    // Where the system does not allow it, the phases share one mark.
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}
