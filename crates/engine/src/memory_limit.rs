//! The memory that a call may take.
//!
//! Memory that cannot be had ends a process: the allocator aborts, or the kernel kills it. So
//! loads, runs and generations predict what they need and compare it with what is available before
//! they allocate ([`check_memory`](crate::check_memory)). By default a call may take 90 % of the
//! available memory; [`set_memory_limit`] and the environment variable `PELLUCID_MEMORY_LIMIT`
//! change that.
//!
//! Available is the least of: `MemAvailable` of the machine, what the memory cgroups of the process
//! leave, and what its limit on address space (`ulimit -v`) leaves. On systems without `/proc`
//! nothing is known and nothing is refused.

use std::fmt;
use std::str::FromStr;
use std::sync::RwLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Environment variable with the limit, such as `80%`, `12GB` or `none`.
pub const MEMORY_LIMIT_VARIABLE: &str = "PELLUCID_MEMORY_LIMIT";

/// Needs below this are not compared with the available memory, because reading it takes longer
/// than a small run.
const UNCHECKED: usize = 64 << 20;

/// The memory that the calls of this process may take.
///
/// ```
/// use pellucid_engine::MemoryLimit;
/// assert_eq!("80%".parse(), Ok(MemoryLimit::Share(0.8)));
/// assert_eq!("12GB".parse(), Ok(MemoryLimit::Bytes(12_000_000_000)));
/// assert_eq!("none".parse(), Ok(MemoryLimit::Unlimited));
/// assert!("fast".parse::<MemoryLimit>().is_err());
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MemoryLimit {
    /// A call may take this share of the memory that is available when it starts, above 0 and at
    /// most 1.
    Share(f64),
    /// The process may grow to this many bytes of resident memory, and a call may take what is
    /// available.
    Bytes(usize),
    /// No call is refused.
    Unlimited,
}

impl Default for MemoryLimit {
    fn default() -> MemoryLimit {
        MemoryLimit::Share(0.9)
    }
}

impl FromStr for MemoryLimit {
    type Err = String;

    fn from_str(text: &str) -> Result<MemoryLimit, String> {
        let text = text.trim();
        if text.eq_ignore_ascii_case("none") {
            return Ok(MemoryLimit::Unlimited);
        }
        let wrong = || format!("{text:?} is not a memory limit: write a share (80%), a size (12GB) or none");
        let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let number: f64 = text[..split].parse().map_err(|_| wrong())?;
        let unit = match text[split..].trim().to_ascii_lowercase().as_str() {
            "%" if number > 0.0 && number <= 100.0 => return Ok(MemoryLimit::Share(number / 100.0)),
            "b" => 1.0,
            "kb" => 1e3,
            "mb" => 1e6,
            "gb" => 1e9,
            "tb" => 1e12,
            "kib" => 1024.0,
            "mib" => 1024.0 * 1024.0,
            "gib" => 1024.0 * 1024.0 * 1024.0,
            _ => return Err(wrong()),
        };
        match number * unit {
            bytes if (1.0..1e18).contains(&bytes) => Ok(MemoryLimit::Bytes(bytes as usize)),
            _ => Err(wrong()),
        }
    }
}

/// The limit of this process; `None` until it is set or read from the environment.
static LIMIT: RwLock<Option<MemoryLimit>> = RwLock::new(None);
/// Needs below this many bytes are never refused.
static SMALLEST_CHECKED: AtomicUsize = AtomicUsize::new(UNCHECKED);

/// Sets the limit for all later calls of this process.
pub fn set_memory_limit(limit: MemoryLimit) {
    *LIMIT.write().unwrap_or_else(|poisoned| poisoned.into_inner()) = Some(limit);
    let smallest = match limit {
        MemoryLimit::Share(_) => UNCHECKED,
        MemoryLimit::Bytes(_) => 0,
        MemoryLimit::Unlimited => usize::MAX,
    };
    SMALLEST_CHECKED.store(smallest, Ordering::Relaxed);
}

/// Returns the limit: as set, else from `PELLUCID_MEMORY_LIMIT`, else 90 % of what is available.
///
/// # Errors
/// The variable has another form.
pub fn memory_limit() -> Result<MemoryLimit, String> {
    if let Some(limit) = *LIMIT.read().unwrap_or_else(|poisoned| poisoned.into_inner()) {
        return Ok(limit);
    }
    let limit = match std::env::var(MEMORY_LIMIT_VARIABLE) {
        Ok(text) => text.parse().map_err(|problem: String| format!("{MEMORY_LIMIT_VARIABLE}: {problem}"))?,
        Err(_) => MemoryLimit::default(),
    };
    set_memory_limit(limit);
    Ok(limit)
}

/// Whether a need is large enough to be compared with the available memory. The limit is read from
/// the environment by the first load, before any run.
pub(crate) fn is_checked(needed: usize) -> bool {
    needed >= SMALLEST_CHECKED.load(Ordering::Relaxed)
}

/// Bytes of an array of f32; `usize::MAX` if they cannot be counted.
pub(crate) fn shape_bytes(shape: &[usize]) -> usize {
    shape.iter().try_fold(4usize, |bytes, &length| bytes.checked_mul(length)).unwrap_or(usize::MAX)
}

/// Rejects bytes of values that a call may not take.
pub(crate) fn check_value_bytes(needed: usize) -> Result<(), String> {
    // Half of the address space is more than any machine has.
    if needed > usize::MAX / 2 {
        return Err("too large for any memory".into());
    }
    if !is_checked(needed) {
        return Ok(());
    }
    match allowed_memory()?.filter(|allowed| needed > allowed.bytes) {
        Some(allowed) => Err(format!("it would take {}; {allowed}", format_bytes(needed))),
        None => Ok(()),
    }
}

/// The memory that a call may take now.
#[derive(Clone, Debug, PartialEq)]
pub struct AllowedMemory {
    /// Bytes that the call may take.
    pub bytes: usize,
    /// Bytes that are available.
    pub available: usize,
    /// What limits the available bytes: the machine, a cgroup or `ulimit -v`.
    pub bound: &'static str,
    /// The limit that was applied.
    pub limit: MemoryLimit,
}

impl fmt::Display for AllowedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (bytes, available, bound) = (format_bytes(self.bytes), format_bytes(self.available), self.bound);
        match self.limit {
            MemoryLimit::Share(share) => {
                write!(f, "{bytes} may be used, {:.0} % of the {available} available ({bound})", 100.0 * share)
            }
            MemoryLimit::Bytes(limit) => {
                write!(
                    f,
                    "{bytes} may be used: {} for the whole process, {available} available ({bound})",
                    format_bytes(limit)
                )
            }
            MemoryLimit::Unlimited => write!(f, "{available} available ({bound})"),
        }
    }
}

/// Returns the memory that a call may take; `None` if it is not limited or not known.
pub fn allowed_memory() -> Result<Option<AllowedMemory>, String> {
    let limit = memory_limit()?;
    let known = available_memory();
    Ok(match limit {
        MemoryLimit::Unlimited => None,
        MemoryLimit::Share(share) => known.map(|(available, bound)| {
            let bytes = (share * available as f64) as usize;
            AllowedMemory { bytes, available, bound, limit }
        }),
        MemoryLimit::Bytes(most) => {
            let (available, bound) = known.unwrap_or((usize::MAX, "unknown"));
            let bytes = most.saturating_sub(resident_bytes().unwrap_or(0)).min(available);
            Some(AllowedMemory { bytes, available, bound, limit })
        }
    })
}

/// Returns the available memory and what bounds it; `None` if it is not known on this system.
pub fn available_memory() -> Option<(usize, &'static str)> {
    let machine =
        read("/proc/meminfo").and_then(|text| kilobytes(&text, "MemAvailable:")).map(|bytes| (bytes, "machine"));
    let cgroup = cgroup_available().map(|bytes| (bytes, "cgroup"));
    let address_space = address_space_left().map(|bytes| (bytes, "ulimit -v"));
    [machine, cgroup, address_space].into_iter().flatten().min_by_key(|(bytes, _)| *bytes)
}

fn read(path: &str) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

/// Resident memory of this process.
fn resident_bytes() -> Option<usize> {
    kilobytes(&read("/proc/self/status")?, "VmRSS:")
}

/// A field of a file of `/proc` that is in kilobytes, in bytes.
fn kilobytes(text: &str, field: &str) -> Option<usize> {
    let line = text.lines().find_map(|line| line.strip_prefix(field))?;
    Some(line.split_whitespace().next()?.parse::<usize>().ok()? << 10)
}

/// Bytes that the limit on address space leaves.
fn address_space_left() -> Option<usize> {
    let limit = address_space_limit(&read("/proc/self/limits")?)?;
    Some(limit.saturating_sub(kilobytes(&read("/proc/self/status")?, "VmSize:")?))
}

fn address_space_limit(text: &str) -> Option<usize> {
    let line = text.lines().find_map(|line| line.strip_prefix("Max address space"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Bytes that the memory cgroups of this process leave: its own and those above it.
fn cgroup_available() -> Option<usize> {
    let groups = read("/proc/self/cgroup")?;
    // Version 2 has one line, `0::/path`; in version 1 the line of the controller `memory` counts.
    let v2 = groups.lines().find_map(|line| line.strip_prefix("0::"));
    let v1 = groups.lines().find_map(|line| line.split_once(":memory:")).map(|(_, path)| path);
    let of_version = |root: &str, path: &str, limit: &str, usage: &str| {
        let mut directories = vec![root.to_owned()];
        for part in path.split('/').filter(|part| !part.is_empty()) {
            directories.push(format!("{}/{part}", directories[directories.len() - 1]));
        }
        let left = |directory: &String| {
            let number = |file: &str| read(&format!("{directory}/{file}"))?.trim().parse::<usize>().ok();
            let cache = read(&format!("{directory}/memory.stat")).map_or(0, |text| inactive_file(&text));
            Some(number(limit)?.saturating_sub(number(usage)?.saturating_sub(cache)))
        };
        directories.iter().filter_map(left).min()
    };
    let of_v2 = v2.and_then(|path| of_version("/sys/fs/cgroup", path, "memory.max", "memory.current"));
    let of_v1 =
        v1.and_then(|path| of_version("/sys/fs/cgroup/memory", path, "memory.limit_in_bytes", "memory.usage_in_bytes"));
    [of_v2, of_v1].into_iter().flatten().min()
}

/// Page cache that the kernel frees first, counted as used by a cgroup.
fn inactive_file(stat: &str) -> usize {
    let value = |name: &str| {
        stat.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse::<usize>().ok())
    };
    value("total_inactive_file").or_else(|| value("inactive_file")).unwrap_or(0)
}

/// Returns a number of bytes for messages, such as `1.25 GB`.
pub fn format_bytes(bytes: usize) -> String {
    match bytes as f64 {
        x if x >= 1e9 => format!("{:.2} GB", x / 1e9),
        x if x >= 1e6 => format!("{:.1} MB", x / 1e6),
        x => format!("{:.1} kB", x / 1e3),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_shares_sizes_or_none() {
        let parse = |text: &str| text.parse::<MemoryLimit>();
        assert_eq!(parse("50%"), Ok(MemoryLimit::Share(0.5)));
        assert_eq!(parse(" 1.5 GiB "), Ok(MemoryLimit::Bytes(3 << 29)));
        assert_eq!(parse("NONE"), Ok(MemoryLimit::Unlimited));
        for wrong in ["", "%", "0%", "120%", "-1GB", "12", "12parsecs", "0MB", "1e9GB", "nan%", "inf"] {
            assert!(parse(wrong).is_err_and(|problem| problem.contains("80%")), "{wrong}");
        }
    }

    #[test]
    fn the_kernels_files_are_read() {
        let meminfo = "MemTotal:  24000 kB\nMemFree: 1 kB\nMemAvailable:   2048 kB\n";
        assert_eq!(kilobytes(meminfo, "MemAvailable:"), Some(2 << 20));
        let limits = "Limit  Soft Limit  Hard Limit  Units\nMax address space         4096000 unlimited bytes\n";
        assert_eq!(address_space_limit(limits), Some(4_096_000));
        assert_eq!(address_space_limit("Max address space  unlimited unlimited bytes"), None);
        assert_eq!(inactive_file("anon 5\ninactive_file 77\nactive_file 3\n"), 77);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn some_memory_is_available() {
        let (bytes, bound) = available_memory().expect("this system reports its memory");
        assert!(bytes > 1 << 20, "{bytes} bytes ({bound})");
    }
}
