//! The machine and what it was doing: what must be the same before two sessions are compared, and what is good to know.

use pellucid_models::builtin;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// A fingerprint of the machine, the build and the model.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Environment {
    /// What must agree before results are compared.
    pub hard: BTreeMap<String, String>,
    /// What may differ and explain something.
    pub soft: BTreeMap<String, String>,
}

impl Environment {
    /// Looks at this machine, with a model.
    pub fn here(model: &Path) -> Environment {
        let mut here = Environment::default();
        let mut hard = |key: &str, value: String| here.hard.insert(key.into(), value);
        let cpu = read("/proc/cpuinfo");
        hard("cpu", field(&cpu, "model name").unwrap_or_else(|| std::env::consts::ARCH.into()));
        hard("cores", std::thread::available_parallelism().map_or(0, |n| n.get()).to_string());
        hard("instructions", pellucid_kernels::simd::instruction_set().name().into());
        hard("kernel", read("/proc/sys/kernel/osrelease").trim().into());
        hard("build", if cfg!(debug_assertions) { "debug".into() } else { "release".into() });
        hard("model", fingerprint(model));
        let mut soft = |key: &str, value: String| here.soft.insert(key.into(), value);
        soft("version", env!("CARGO_PKG_VERSION").into());
        soft("load", read("/proc/loadavg").split_whitespace().take(3).collect::<Vec<_>>().join(" "));
        soft("memory", field(&read("/proc/meminfo"), "MemTotal").unwrap_or_default());
        soft("transparent huge pages", chosen(&read("/sys/kernel/mm/transparent_hugepage/enabled")));
        soft("address randomisation", read("/proc/sys/kernel/randomize_va_space").trim().into());
        soft("governor", read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor").trim().into());
        soft("uptime", read("/proc/uptime").split_whitespace().next().unwrap_or_default().into());
        soft("stolen", stolen().map_or_else(String::new, |share| format!("{:.2} %", share * 100.0)));
        here.soft.retain(|_, value| !value.is_empty());
        here
    }

    /// What differs of what must not.
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

/// The share of all time since the start that a hypervisor took away.
pub fn stolen() -> Option<f64> {
    let text = read("/proc/stat");
    let numbers: Vec<f64> = text.lines().next()?.split_whitespace().skip(1).filter_map(|n| n.parse().ok()).collect();
    let total: f64 = numbers.iter().take(8).sum();
    numbers.get(7).map(|stolen| stolen / total.max(1.0))
}

/// A model by its files' names and sizes, and the beginning of each: enough to tell two models apart at once.
pub fn fingerprint(model: &Path) -> String {
    const BEGINNING: usize = 64 * 1024;
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
        let mut beginning = Vec::new();
        if let Ok(file) = std::fs::File::open(file) {
            use std::io::Read;
            // A file that cannot be read is told apart by its name and size.
            let _ = file.take(BEGINNING as u64).read_to_end(&mut beginning);
        }
        add(&beginning);
    }
    format!("{hash:016x}")
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

fn field(text: &str, key: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        (name.trim() == key).then(|| value.trim().to_string())
    })
}

/// `always [madvise] never` → `madvise`
fn chosen(text: &str) -> String {
    text.split_whitespace().find_map(|word| word.strip_prefix('[')?.strip_suffix(']')).unwrap_or_default().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_place_matches_itself_and_another_model_does_not() {
        let dir = std::env::temp_dir().join(format!("pellucid-lab-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a directory");
        std::fs::write(dir.join("config.json"), b"{}").expect("a file");
        let before = Environment::here(&dir);
        assert!(before.hard["model"].len() == 16 && before.hard.contains_key("cpu"));
        assert_eq!(before.mismatches(&Environment::here(&dir)), Vec::<String>::new());
        std::fs::write(dir.join("config.json"), b"{ }").expect("a file");
        let said = before.mismatches(&Environment::here(&dir));
        assert!(said.len() == 1 && said[0].starts_with("model: "), "{said:?}");
        std::fs::remove_dir_all(&dir).expect("removed");
        assert_eq!(chosen("always [madvise] never"), "madvise");
    }
}
