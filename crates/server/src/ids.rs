//! Ids of requests and objects, and the time in responses.

use std::time::{SystemTime, UNIX_EPOCH};

/// Returns a new id such as `chatcmpl-0f3c…`: the prefix and 96 random bits.
pub fn new(prefix: &str) -> String {
    let mut bytes = [0; 12];
    if getrandom::fill(&mut bytes).is_err() {
        // Without the system's generator, ids are still distinct within the process.
        let nanos = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos());
        bytes.copy_from_slice(&nanos.to_le_bytes()[..12]);
    }
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{prefix}-{hex}")
}

/// Returns a seed for a request that gives none.
pub fn seed() -> u64 {
    getrandom::u64().unwrap_or_default()
}

/// Seconds since 1970.
pub fn unix_time() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}
