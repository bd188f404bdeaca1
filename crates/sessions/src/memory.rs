//! Resident memory of this process, as Linux reports it under `/proc/self`.

/// Returns the resident memory in bytes; 0 if it is not available.
pub fn resident_bytes() -> u64 {
    status_bytes("VmRSS")
}

/// Returns the peak of the resident memory since the last [`reset_peak`], in bytes; 0 if it is not
/// available.
pub fn peak_bytes() -> u64 {
    status_bytes("VmHWM")
}

/// Starts a new measurement of the peak.
pub fn reset_peak() {
    // If the kernel refuses the write, all phases share one peak.
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

fn status_bytes(key: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
    line.and_then(|rest| rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()).unwrap_or(0) * 1024
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn the_peak_of_a_phase_holds_its_allocations() {
        reset_peak();
        let before = peak_bytes();
        let buffer = vec![1_u8; 64 << 20];
        assert!(std::hint::black_box(&buffer).iter().all(|&byte| byte == 1));
        assert!(peak_bytes() >= before + (32 << 20));
        assert!(resident_bytes() > 0);
    }
}
