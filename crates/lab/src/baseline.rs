//! Result files, named baselines, and the unpaired comparison of two results.

use crate::result::{Comparison, SCHEMA, SessionResult};
use crate::stats::{self, Estimate, Rng};
use crate::suite::Metric;
use crate::verdict::{Verdict, judge, pairs_needed};
use crate::{Error, Result};
use pellucid_models::output;
use std::path::{Path, PathBuf};

/// Reads a result file.
pub fn read(path: &Path) -> Result<SessionResult> {
    let fail = |problem: String| Error::File { path: path.display().to_string(), problem };
    let bytes = std::fs::read(path).map_err(|error| fail(error.to_string()))?;
    let value: serde_json::Value =
        serde_json::from_slice(&bytes).map_err(|error| fail(format!("not a lab result: {error}")))?;
    match value.get("schema").and_then(|schema| schema.as_str()) {
        Some(SCHEMA) => {}
        Some(other) => return Err(fail(format!("its format is {other}, this build reads {SCHEMA}"))),
        None => return Err(fail("not a lab result: it names no schema".into())),
    }
    serde_json::from_value(value).map_err(|error| fail(format!("not a lab result: {error}")))
}

/// Writes a result file.
pub fn write(path: &Path, result: &SessionResult) -> Result<()> {
    let fail = |problem: String| Error::File { path: path.display().to_string(), problem };
    let text = serde_json::to_string(result).map_err(|error| fail(error.to_string()))?;
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent).map_err(|error| fail(error.to_string()))?;
    }
    output::write(path, text.as_bytes()).map_err(|error| fail(error.to_string()))
}

/// Named baselines in a directory.
pub struct BaselineStore {
    directory: PathBuf,
}

impl BaselineStore {
    /// Uses the baselines of a directory.
    pub fn new(directory: PathBuf) -> BaselineStore {
        BaselineStore { directory }
    }

    /// Returns the file of a baseline. Names consist of letters, digits, dots, dashes and
    /// underscores.
    pub fn path(&self, name: &str) -> Result<PathBuf> {
        let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        if name.is_empty() || name.starts_with('.') || !name.chars().all(plain) {
            let problem = "is not a valid baseline name: use letters, digits, dots, dashes and underscores".into();
            return Err(Error::File { path: format!("`{name}`"), problem });
        }
        Ok(self.directory.join(format!("{name}.json")))
    }

    /// Returns the names of all baselines.
    pub fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.directory).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().to_str()?.strip_suffix(".json").map(String::from));
        let mut names: Vec<String> = names.collect();
        names.sort();
        names
    }

    /// Saves a result under a name.
    pub fn save(&self, name: &str, result: &SessionResult) -> Result<PathBuf> {
        let path = self.path(name)?;
        write(&path, result)?;
        Ok(path)
    }

    /// Loads a baseline.
    pub fn load(&self, name: &str) -> Result<SessionResult> {
        let path = self.path(name)?;
        if !path.exists() {
            let names = self.names();
            let there = if names.is_empty() {
                "there are no baselines".into()
            } else {
                format!("baselines: {}", names.join(", "))
            };
            return Err(Error::File {
                path: format!("baseline `{name}`"),
                problem: format!("does not exist; {there}"),
            });
        }
        read(&path)
    }
}

/// Compares two sessions per variant, workload and metric. Sessions of different machines, builds
/// or models are refused unless `force` is set.
///
/// The samples are not paired, and the machine may have changed between the sessions. The noise
/// floors of both are therefore combined (root of the sum of squares).
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

/// Returns the log-ratio of two samples' medians, with a bootstrap confidence interval.
fn unpaired(before: &[f64], after: &[f64], seed: u64) -> Estimate {
    const RESAMPLES: usize = 4_000;
    let mut random = Rng::new(seed);
    let mut resampled_median = |sample: &[f64]| {
        let drawn: Vec<f64> = (0..sample.len()).map(|_| sample[random.below(sample.len())]).collect();
        stats::median(&drawn)
    };
    let logs: Vec<f64> = (0..RESAMPLES).map(|_| (resampled_median(after) / resampled_median(before)).ln()).collect();
    Estimate {
        mean: (stats::median(after) / stats::median(before)).ln(),
        low: stats::quantile(&logs, 0.025),
        high: stats::quantile(&logs, 0.975),
    }
}
