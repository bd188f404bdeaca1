//! Fingerprint of the machine, the build and the model: facts that must agree before two sessions
//! are compared, and facts that may explain a difference.

use pellucid_models::builtin;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// A fingerprint of the machine, the build and the model.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Environment {
    /// Facts that must agree before two results are compared.
    pub hard: BTreeMap<String, String>,
    /// Facts that may differ and may explain a difference.
    pub soft: BTreeMap<String, String>,
}

impl Environment {
    /// Collects the facts of this machine and build, with the fingerprint of `model`.
    pub fn detect(model: &Path) -> Environment {
        let mut found = Environment::default();
        let mut hard = |key: &str, value: String| found.hard.insert(key.into(), value);
        let cpu = read("/proc/cpuinfo");
        hard("cpu", proc_field(&cpu, "model name").unwrap_or_else(|| std::env::consts::ARCH.into()));
        hard("cores", std::thread::available_parallelism().map_or(0, |n| n.get()).to_string());
        hard("instructions", pellucid_kernels::simd::instruction_set().name().into());
        hard("kernel", read("/proc/sys/kernel/osrelease").trim().into());
        hard("build", if cfg!(debug_assertions) { "debug".into() } else { "release".into() });
        hard("model", fingerprint(model));
        let mut soft = |key: &str, value: String| found.soft.insert(key.into(), value);
        soft("version", env!("CARGO_PKG_VERSION").into());
        soft("load", read("/proc/loadavg").split_whitespace().take(3).collect::<Vec<_>>().join(" "));
        soft("memory", proc_field(&read("/proc/meminfo"), "MemTotal").unwrap_or_default());
        soft("transparent huge pages", selected_option(&read("/sys/kernel/mm/transparent_hugepage/enabled")));
        soft("address randomisation", read("/proc/sys/kernel/randomize_va_space").trim().into());
        soft("governor", read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor").trim().into());
        soft("uptime", read("/proc/uptime").split_whitespace().next().unwrap_or_default().into());
        soft("stolen", CpuTime::now().map_or_else(String::new, |time| format!("{:.2} %", time.stolen_share() * 100.0)));
        found.soft.retain(|_, value| !value.is_empty());
        found
    }

    /// Returns the `hard` facts that differ, as text.
    pub fn mismatches(&self, other: &Environment) -> Vec<String> {
        let keys: std::collections::BTreeSet<&String> = self.hard.keys().chain(other.hard.keys()).collect();
        let absent = String::from("unknown");
        let of = |environment: &'_ Environment, key: &String| environment.hard.get(key).unwrap_or(&absent).clone();
        keys.into_iter()
            .filter(|key| of(self, key) != of(other, key))
            .map(|key| format!("{key}: {} and {}", of(self, key), of(other, key)))
            .collect()
    }
}

/// CPU time of the machine since boot, in clock ticks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CpuTime {
    /// Time that the hypervisor gave to other machines (steal time).
    pub stolen: f64,
    /// All time, including idle time.
    pub total: f64,
}

impl CpuTime {
    /// Reads the CPU time; `None` if the system does not report it.
    pub fn now() -> Option<CpuTime> {
        CpuTime::parse(&read("/proc/stat"))
    }

    fn parse(stat: &str) -> Option<CpuTime> {
        let ticks: Vec<f64> = stat.lines().next()?.split_whitespace().skip(1).filter_map(|n| n.parse().ok()).collect();
        // The first eight numbers are disjoint; the guest times after them are part of others.
        Some(CpuTime { stolen: *ticks.get(7)?, total: ticks.iter().take(8).sum() })
    }

    /// Fraction of the CPU time since boot that was stolen.
    pub fn stolen_share(self) -> f64 {
        self.stolen / self.total.max(1.0)
    }

    /// Fraction of the CPU time since `earlier` that was stolen.
    pub fn stolen_share_since(self, earlier: CpuTime) -> f64 {
        // Some kernels correct the counters backwards.
        let interval = CpuTime { stolen: self.stolen - earlier.stolen, total: self.total - earlier.total };
        interval.stolen_share().clamp(0.0, 1.0)
    }
}

/// Returns a hash of the model's file names, sizes and first 64 KiB: enough to distinguish models,
/// and fast.
pub fn fingerprint(model: &Path) -> String {
    const PREFIX_BYTES: usize = 64 * 1024;
    if model.to_str() == Some(builtin::NAME) {
        return format!("{}-{:x}", builtin::NAME, builtin::WEIGHTS.len());
    }
    let mut files: Vec<std::path::PathBuf> = if model.is_dir() {
        let entries = std::fs::read_dir(model).into_iter().flatten().flatten().map(|entry| entry.path());
        entries.filter(|path| path.is_file()).collect()
    } else {
        vec![model.to_path_buf()]
    };
    files.sort();
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    let mut add = |bytes: &[u8]| {
        bytes.iter().for_each(|byte| hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3))
    };
    for file in &files {
        add(file.file_name().unwrap_or_default().as_encoded_bytes());
        add(&std::fs::metadata(file).map_or(0, |meta| meta.len()).to_le_bytes());
        let mut prefix = Vec::new();
        if let Ok(file) = std::fs::File::open(file) {
            use std::io::Read;
            // An unreadable file is identified by its name and size alone.
            let _ = file.take(PREFIX_BYTES as u64).read_to_end(&mut prefix);
        }
        add(&prefix);
    }
    format!("{hash:016x}")
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

fn proc_field(text: &str, key: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        (name.trim() == key).then(|| value.trim().to_string())
    })
}

/// `always [madvise] never` → `madvise`
fn selected_option(text: &str) -> String {
    text.split_whitespace().find_map(|word| word.strip_prefix('[')?.strip_suffix(']')).unwrap_or_default().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stolen_time_is_a_fraction_of_the_interval_and_not_of_the_time_since_boot() {
        // user nice system idle iowait irq softirq steal guest guest_nice
        let time = |stat: &str| CpuTime::parse(stat).expect("a line of CPU times");
        let before = time("cpu  1000 0 0 8900 0 0 0 100 50 0\ncpu0 1 2 3\n");
        assert_eq!(before, CpuTime { stolen: 100.0, total: 10_000.0 });
        // 100 ticks later, of which 25 were stolen: 25 %, while the share since boot is 1.2 %.
        let after = time("cpu  1050 0 0 8925 0 0 0 125 50 0\n");
        assert_eq!(after.stolen_share_since(before), 0.25);
        assert!((after.stolen_share() - 0.0124).abs() < 1e-4, "{}", after.stolen_share());
        // The share of a quiet interval is zero, even if the share since boot is not.
        let quiet = time("cpu  1100 0 0 8975 0 0 0 125 50 0\n");
        assert_eq!((quiet.stolen_share_since(after), after.stolen_share_since(after)), (0.0, 0.0));
        assert_eq!(CpuTime::parse("cpu 1 2 3\n"), None);
    }

    #[test]
    fn an_environment_matches_itself_but_not_one_with_another_model() {
        let dir = std::env::temp_dir().join(format!("pellucid-lab-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a directory");
        std::fs::write(dir.join("config.json"), b"{}").expect("a file");
        let before = Environment::detect(&dir);
        assert!(before.hard["model"].len() == 16 && before.hard.contains_key("cpu"));
        assert_eq!(before.mismatches(&Environment::detect(&dir)), Vec::<String>::new());
        std::fs::write(dir.join("config.json"), b"{ }").expect("a file");
        let mismatches = before.mismatches(&Environment::detect(&dir));
        assert!(mismatches.len() == 1 && mismatches[0].starts_with("model: "), "{mismatches:?}");
        std::fs::remove_dir_all(&dir).expect("removed");
        assert_eq!(selected_option("always [madvise] never"), "madvise");
    }
}
