//! Memory and CPU time of this process, as Linux reports them under `/proc/self`.

/// Returns an entry of `/proc/self/status` in bytes; 0 if it is not available.
pub(crate) fn status_bytes(key: &str) -> u64 {
    parse_kilobytes(&std::fs::read_to_string("/proc/self/status").unwrap_or_default(), key)
}

/// Returns the proportional set size in bytes; 0 if it is not available.
pub(crate) fn pss_bytes() -> u64 {
    parse_kilobytes(&std::fs::read_to_string("/proc/self/smaps_rollup").unwrap_or_default(), "Pss")
}

fn parse_kilobytes(text: &str, key: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
    line.and_then(|rest| rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()).unwrap_or(0) * 1024
}

/// Resets the peak RSS (`VmHWM`), so that each phase has its own peak.
pub(crate) fn reset_peak_rss() {
    // If the kernel refuses the write, all phases share one peak.
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

/// Returns the CPU time of all live threads in seconds; 0 if it is not available.
pub(crate) fn cpu_seconds() -> f64 {
    let threads = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let nanoseconds = |thread: std::fs::DirEntry| {
        // The first number is the time on a CPU.
        let text = std::fs::read_to_string(thread.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<u64>().ok()
    };
    threads.filter_map(nanoseconds).sum::<u64>() as f64 * 1e-9
}
