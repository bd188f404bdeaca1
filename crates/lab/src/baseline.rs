//! Results that are kept, and the comparison of two of them.

use crate::result::{Comparison, SCHEMA, SessionResult};
use crate::stats::{self, Estimate, Random};
use crate::suite::Metric;
use crate::verdict::{Verdict, judge, pairs_needed};
use crate::{Error, Result};
use std::path::{Path, PathBuf};

/// Reads a result file.
pub fn read(path: &Path) -> Result<SessionResult> {
    let fail = |problem: String| Error::File { path: path.display().to_string(), problem };
    let bytes = std::fs::read(path).map_err(|error| fail(error.to_string()))?;
    let value: serde_json::Value =
        serde_json::from_slice(&bytes).map_err(|error| fail(format!("not a result of the lab: {error}")))?;
    match value.get("schema").and_then(|schema| schema.as_str()) {
        Some(SCHEMA) => {}
        Some(other) => return Err(fail(format!("its format is {other}, this build reads {SCHEMA}"))),
        None => return Err(fail("not a result of the lab: it names no schema".into())),
    }
    serde_json::from_value(value).map_err(|error| fail(format!("not a result of the lab: {error}")))
}

/// Writes a result file.
pub fn write(path: &Path, result: &SessionResult) -> Result<()> {
    let fail = |problem: String| Error::File { path: path.display().to_string(), problem };
    let text = serde_json::to_string(result).map_err(|error| fail(error.to_string()))?;
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent).map_err(|error| fail(error.to_string()))?;
    }
    std::fs::write(path, text).map_err(|error| fail(error.to_string()))
}

/// Baselines by name, in a directory.
pub struct Shelf {
    directory: PathBuf,
}

impl Shelf {
    /// The baselines in a directory.
    pub fn new(directory: PathBuf) -> Shelf {
        Shelf { directory }
    }

    /// The file of a name; a name is letters, digits, dots, dashes and underscores.
    pub fn path(&self, name: &str) -> Result<PathBuf> {
        let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        if name.is_empty() || name.starts_with('.') || !name.chars().all(plain) {
            let problem = "is no name for a baseline: letters, digits, dots, dashes and underscores".into();
            return Err(Error::File { path: format!("`{name}`"), problem });
        }
        Ok(self.directory.join(format!("{name}.json")))
    }

    /// The names there are.
    pub fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.directory).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().to_str()?.strip_suffix(".json").map(String::from));
        let mut names: Vec<String> = names.collect();
        names.sort();
        names
    }

    /// Keeps a result under a name.
    pub fn save(&self, name: &str, result: &SessionResult) -> Result<PathBuf> {
        let path = self.path(name)?;
        write(&path, result)?;
        Ok(path)
    }

    /// A kept result.
    pub fn load(&self, name: &str) -> Result<SessionResult> {
        let path = self.path(name)?;
        if !path.exists() {
            let names = self.names();
            let there =
                if names.is_empty() { "there is none".into() } else { format!("there are {}", names.join(", ")) };
            return Err(Error::File {
                path: format!("baseline `{name}`"),
                problem: format!("does not exist; {there}"),
            });
        }
        read(&path)
    }
}

/// Compares two sessions, variant by variant and workload by workload. Sessions of different machines or models are refused
/// unless `force` says otherwise.
///
/// These are not pairs: the machine may have changed between the sessions, so the noise of both is added to the bar.
pub fn compare(before: &SessionResult, after: &SessionResult, force: bool) -> Result<Vec<Comparison>> {
    let mismatches = before.environment.mismatches(&after.environment);
    if !mismatches.is_empty() && !force {
        return Err(Error::Mismatch(mismatches));
    }
    let mut comparisons = Vec::new();
    for workload in &after.suite.workloads {
        for variant in after.suite.participants(workload) {
            for &metric in &workload.metrics {
                let (old, new) = (
                    values(before, &workload.id, &variant.id, metric),
                    values(after, &workload.id, &variant.id, metric),
                );
                if old.len() < 2 || new.len() < 2 {
                    continue;
                }
                let noise = noise(before, &workload.id, metric).hypot(noise(after, &workload.id, metric));
                let log_ratio = unpaired(&old, &new, after.session.seed);
                let margin = after.suite.margin(workload);
                let verdict = judge(&log_ratio, margin, noise);
                let pairs = old.len().min(new.len());
                let (a, b) = (stats::outliers(&old), stats::outliers(&new));
                comparisons.push(Comparison {
                    workload: workload.id.clone(),
                    variant: variant.id.clone(),
                    reference: "baseline".into(),
                    metric,
                    pairs,
                    log_ratio,
                    noise,
                    margin,
                    verdict,
                    pairs_needed: (verdict == Verdict::Inconclusive)
                        .then(|| pairs_needed(pairs, &log_ratio, margin, noise))
                        .flatten(),
                    value: stats::median(&new),
                    reference_value: stats::median(&old),
                    outliers: (a.0 + b.0, a.1 + b.1),
                    drift: None,
                });
            }
        }
    }
    Ok(comparisons)
}

fn values(result: &SessionResult, workload: &str, variant: &str, metric: Metric) -> Vec<f64> {
    let runs = result.runs.iter().filter(|run| run.workload == workload && run.variant == variant);
    runs.filter_map(|run| run.value(metric)).collect()
}

fn noise(result: &SessionResult, workload: &str, metric: Metric) -> f64 {
    let found = result.comparisons.iter().find(|c| c.workload == workload && c.metric == metric);
    found.map_or(0.0, |comparison| comparison.noise)
}

/// The logarithm of the ratio of two samples' medians, with a bootstrap interval.
fn unpaired(before: &[f64], after: &[f64], seed: u64) -> Estimate {
    const RESAMPLES: usize = 4_000;
    let mut random = Random::new(seed);
    let mut again = |sample: &[f64]| {
        let drawn: Vec<f64> = (0..sample.len()).map(|_| sample[random.below(sample.len())]).collect();
        stats::median(&drawn)
    };
    let logs: Vec<f64> = (0..RESAMPLES).map(|_| (again(after) / again(before)).ln()).collect();
    Estimate {
        mean: (stats::median(after) / stats::median(before)).ln(),
        low: stats::quantile(&logs, 0.025),
        high: stats::quantile(&logs, 0.975),
    }
}
