//! A suite: variants × workloads × metrics, as a Rust value or a TOML file.

use crate::protocol::Job;
use crate::{Error, Result};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

/// A benchmark suite: which variants run which workloads, and how precisely they are compared.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Suite {
    /// Its name.
    pub name: String,
    /// One-sentence description.
    #[serde(default)]
    pub title: String,
    /// Default model: a path or the name of a pulled model.
    #[serde(default)]
    pub model: Option<String>,
    /// The variant that the others are compared with (the "A" of A/B).
    pub reference: String,
    /// The variant whose outputs are taken as correct; the reference if absent.
    #[serde(default)]
    pub oracle: Option<String>,
    /// Variants of increasing work: each is compared with the one before it, and the last with the
    /// first.
    #[serde(default)]
    pub ladder: Vec<String>,
    /// Stopping rules and equivalence margin.
    #[serde(default)]
    pub precision: Precision,
    /// The measured programs and settings.
    #[serde(rename = "variant")]
    pub variants: Vec<Variant>,
    /// The measured tasks.
    #[serde(rename = "workload")]
    pub workloads: Vec<Workload>,
    /// Upper bounds on times, memory or ratios.
    #[serde(default, rename = "limit")]
    pub limits: Vec<Limit>,
}

/// Stopping rules and equivalence margin of a session.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Precision {
    /// Maximum number of pairs per comparison.
    pub pairs: usize,
    /// Minimum number of pairs per comparison, even if the interval is already narrow enough.
    pub least_pairs: usize,
    /// A comparison is precise enough when the half-width of its ratio's 95 % interval is at most
    /// this.
    pub half_width: f64,
    /// Time limit of the session in seconds.
    pub budget_s: f64,
    /// Time limit of one process in seconds.
    pub timeout_s: f64,
    /// Equivalence margin: relative differences up to this count as equal.
    pub margin: f64,
}

impl Default for Precision {
    fn default() -> Precision {
        Precision { pairs: 12, least_pairs: 4, half_width: 0.01, budget_s: 300.0, timeout_s: 300.0, margin: 0.02 }
    }
}

/// A program, with its settings, that runs the workloads.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Variant {
    /// Its name in the suite.
    pub id: String,
    /// The worker that runs it.
    #[serde(default)]
    pub worker: WorkerKind,
    /// Another Pellucid executable, to compare builds.
    #[serde(default)]
    pub binary: Option<PathBuf>,
    /// Runs this job instead of the workload's, to compare jobs.
    #[serde(default)]
    pub job: Option<Job>,
    /// In-memory dtype of the weights: `auto` (as stored), `f32`, `bf16`, `f16` or `q8`.
    #[serde(default = "default_dtype")]
    pub dtype: String,
    /// Number of threads; the engine's default if absent.
    #[serde(default)]
    pub threads: Option<usize>,
    /// Environment variables of its process.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
}

fn default_dtype() -> String {
    "f32".into()
}

/// The library that a worker measures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkerKind {
    /// This engine.
    #[default]
    Pellucid,
    /// Hugging Face transformers with forward hooks.
    Transformers,
    /// nnsight.
    Nnsight,
    /// TransformerLens.
    TransformerLens,
    /// TransformerLens with SAELens.
    SaeLens,
    /// llama.cpp through its Python binding.
    LlamaCpp,
    /// candle: a separate program that the lab builds on request (the variant's `binary`).
    Candle,
}

/// A task, its input size and the metrics to compare.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Workload {
    /// Its name in the suite.
    pub id: String,
    /// The job to run.
    pub job: Job,
    /// Model of this workload, if it is not the session's: a path or the name of a pulled model.
    #[serde(default)]
    pub model: Option<String>,
    /// Tokens of the prompt.
    pub tokens: usize,
    /// Untimed runs in each process.
    #[serde(default = "default_warmups")]
    pub warmups: usize,
    /// Timed runs in each process; their median is the process's value.
    #[serde(default = "default_repeats")]
    pub repeats: usize,
    /// The reference on this workload, if it is not the suite's.
    #[serde(default)]
    pub reference: Option<String>,
    /// The variants that run this workload; all if absent.
    #[serde(default)]
    pub variants: Option<Vec<String>>,
    /// The compared metrics.
    #[serde(default = "default_metrics")]
    pub metrics: Vec<Metric>,
    /// Equivalence margin of this workload, if it is not the suite's.
    #[serde(default)]
    pub margin: Option<f64>,
    /// Both sides of a pair alternate in one process. For jobs whose difference is smaller than the
    /// variation between processes.
    #[serde(default, rename = "together")]
    pub same_process: bool,
}

fn default_warmups() -> usize {
    1
}

fn default_repeats() -> usize {
    3
}

fn default_metrics() -> Vec<Metric> {
    vec![Metric::Time]
}

/// A quantity measured per process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// Median seconds of the timed runs.
    Time,
    /// Seconds from the start of loading to the first token.
    Load,
    /// Peak memory of the process in bytes.
    Peak,
}

impl Metric {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Metric::Time => "time",
            Metric::Load => "load",
            Metric::Peak => "peak",
        }
    }
}

/// An upper bound. Exceeding it is a regression, whatever the equivalence margin.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limit {
    /// The workload.
    pub workload: String,
    /// The variant.
    pub variant: String,
    /// The bounded metric.
    #[serde(default = "default_metric")]
    pub metric: Metric,
    /// Maximum ratio to the reference.
    #[serde(default)]
    pub ratio: Option<f64>,
    /// Maximum value, in seconds or bytes.
    #[serde(default)]
    pub absolute: Option<f64>,
}

fn default_metric() -> Metric {
    Metric::Time
}

impl Suite {
    /// Reads a suite from TOML and checks it.
    pub fn parse(text: &str, origin: &str) -> Result<Suite> {
        let suite: Suite =
            toml::from_str(text).map_err(|error| Error::Suite { suite: origin.into(), problem: error.to_string() })?;
        suite.check()?;
        Ok(suite)
    }

    /// Rejects unknown names and values out of range.
    pub fn check(&self) -> Result<()> {
        let fail = |problem: String| Err(Error::Suite { suite: self.name.clone(), problem });
        let ids: Vec<&str> = self.variants.iter().map(|variant| variant.id.as_str()).collect();
        let known = |id: &str| ids.contains(&id);
        let names = ids.join(", ");
        if ids.iter().collect::<BTreeSet<_>>().len() != ids.len() {
            return fail(format!("two variants have the same name: {names}"));
        }
        if self.workloads.is_empty() || ids.is_empty() {
            return fail("a suite needs a variant and a workload".into());
        }
        for (what, id) in [("reference", Some(&self.reference)), ("oracle", self.oracle.as_ref())] {
            if let Some(id) = id.filter(|id| !known(id)) {
                return fail(format!("the {what} is `{id}`, which is not a variant (variants: {names})"));
            }
        }
        if let Some(id) = self.ladder.iter().find(|id| !known(id)) {
            return fail(format!("the ladder names `{id}`, which is not a variant (variants: {names})"));
        }
        let mut seen = BTreeSet::new();
        for workload in &self.workloads {
            if !seen.insert(&workload.id) {
                return fail(format!("two workloads have the same name: `{}`", workload.id));
            }
            if workload.tokens == 0 || workload.repeats == 0 || workload.metrics.is_empty() {
                return fail(format!("workload `{}` needs tokens, repeats and a metric", workload.id));
            }
            if let Some(id) = workload.variants.iter().flatten().chain(&workload.reference).find(|id| !known(id)) {
                return fail(format!(
                    "workload `{}` names the unknown variant `{id}` (variants: {names})",
                    workload.id
                ));
            }
        }
        for workload in self.workloads.iter().filter(|workload| workload.same_process) {
            let all = self.participants(workload);
            let own = |variant: &&Variant| Variant { id: String::new(), job: None, ..(*variant).clone() };
            let alike =
                all.iter().all(|variant| own(variant) == own(&all[0]) && variant.worker == WorkerKind::Pellucid);
            if !alike || workload.metrics != [Metric::Time] {
                return fail(format!(
                    "workload `{}` has `together = true`: its variants must be Pellucid's, may differ only in their jobs, and are compared by time",
                    workload.id
                ));
            }
        }
        for limit in &self.limits {
            if !known(&limit.variant) || !seen.contains(&limit.workload) {
                return fail(format!(
                    "a limit names workload `{}` and variant `{}`, which do not both exist",
                    limit.workload, limit.variant
                ));
            }
            if limit.ratio.is_none() && limit.absolute.is_none() {
                return fail(format!("the limit on `{}` needs `ratio` or `absolute`", limit.workload));
            }
            if limit.ratio.into_iter().chain(limit.absolute).any(|most| !most.is_finite()) {
                return fail(format!("a limit on `{}` is not finite", limit.workload));
            }
        }
        let p = &self.precision;
        let finite = |value: f64| (0.0..=1e9).contains(&value);
        let positive = |value: f64| finite(value) && value > 0.0;
        if p.least_pairs < 2
            || p.pairs < p.least_pairs
            || !(positive(p.half_width) && positive(p.budget_s) && positive(p.timeout_s) && finite(p.margin))
        {
            return fail(
                "precision needs 2 ≤ least_pairs ≤ pairs, positive half_width, budget_s and timeout_s, and a margin of at least 0".into(),
            );
        }
        if let Some(workload) = self.workloads.iter().find(|workload| !workload.margin.is_none_or(finite)) {
            return fail(format!("the margin of workload `{}` must be a fraction of at least 0", workload.id));
        }
        Ok(())
    }

    /// Returns the variant of this name.
    pub fn variant(&self, id: &str) -> Option<&Variant> {
        self.variants.iter().find(|variant| variant.id == id)
    }

    /// Returns the name of the variant whose outputs are taken as correct.
    pub fn oracle(&self) -> &str {
        self.oracle.as_deref().unwrap_or(&self.reference)
    }

    /// Returns the name of the reference on a workload.
    pub fn reference<'s>(&'s self, workload: &'s Workload) -> &'s str {
        workload.reference.as_deref().unwrap_or(&self.reference)
    }

    /// Returns the variants that run a workload, the reference first.
    pub fn participants<'s>(&'s self, workload: &'s Workload) -> Vec<&'s Variant> {
        let reference = self.reference(workload);
        let takes_part = |variant: &&Variant| {
            workload.variants.as_ref().is_none_or(|ids| ids.contains(&variant.id)) && variant.id != reference
        };
        self.variant(reference).into_iter().chain(self.variants.iter().filter(takes_part)).collect()
    }

    /// Keeps only the named workloads and their limits.
    pub fn retain_workloads(&mut self, names: &[String]) -> Result<()> {
        let known = |name: &&String| self.workloads.iter().any(|workload| workload.id == **name);
        if let Some(name) = names.iter().find(|name| !known(name)) {
            let ids: Vec<&str> = self.workloads.iter().map(|workload| workload.id.as_str()).collect();
            let problem = format!("there is no workload `{name}` (workloads: {})", ids.join(", "));
            return Err(Error::Suite { suite: self.name.clone(), problem });
        }
        self.workloads.retain(|workload| names.contains(&workload.id));
        self.limits.retain(|limit| names.contains(&limit.workload));
        Ok(())
    }

    /// Returns the compared variants of a workload as `(reference, variant)`. The first pairing is
    /// the A/A control (the reference with itself). Then every variant is paired with the reference
    /// or, with a ladder, every rung with the one below it and the last with the first.
    pub fn pairings<'s>(&'s self, workload: &'s Workload) -> Vec<(&'s Variant, &'s Variant)> {
        let all = self.participants(workload);
        let Some(reference) = all.first().copied() else { return Vec::new() };
        let mut pairings = vec![(reference, reference)];
        if self.ladder.is_empty() {
            pairings.extend(all[1..].iter().map(|variant| (reference, *variant)));
            return pairings;
        }
        let rungs: Vec<&Variant> =
            self.ladder.iter().filter_map(|id| all.iter().find(|v| v.id == *id).copied()).collect();
        pairings.extend(rungs.windows(2).map(|step| (step[0], step[1])));
        if let ([first, .., last], true) = (&rungs[..], rungs.len() > 2) {
            pairings.push((first, last));
        }
        pairings
    }

    /// Returns the job of a variant on a workload.
    pub fn job(&self, workload: &Workload, variant: &Variant) -> Job {
        variant.job.unwrap_or(workload.job)
    }

    /// Returns the equivalence margin of a workload.
    pub fn margin(&self, workload: &Workload) -> f64 {
        workload.margin.unwrap_or(self.precision.margin)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: &str = r#"
        name = "two"
        reference = "before"
        [precision]
        pairs = 8
        [[variant]]
        id = "before"
        binary = "/builds/old"
        [[variant]]
        id = "after"
        [[workload]]
        id = "step"
        job = { decode = { steps = 8 } }
        tokens = 9
        metrics = ["time", "peak"]
        [[limit]]
        workload = "step"
        variant = "after"
        ratio = 1.05
    "#;

    #[test]
    fn a_suite_is_read_with_its_defaults() {
        let suite = Suite::parse(TWO, "two.toml").expect("a suite");
        assert_eq!((suite.precision.pairs, suite.precision.least_pairs), (8, 4));
        assert_eq!(suite.oracle(), "before");
        assert_eq!(suite.workloads[0].job, Job::Decode { steps: 8, rows: 1 });
        let ids: Vec<&str> = suite.participants(&suite.workloads[0]).iter().map(|v| v.id.as_str()).collect();
        assert_eq!(ids, ["before", "after"]);
        let written = toml::to_string(&suite).expect("TOML");
        assert_eq!(Suite::parse(&written, "again").expect("the same"), suite);
    }

    #[test]
    fn a_workload_can_have_its_own_reference_and_be_selected_alone() {
        let more = r#"
            [[workload]]
            id = "batch"
            job = { decode = { steps = 8, rows = 4 } }
            tokens = 9
            reference = "after"
        "#;
        let mut suite = Suite::parse(&format!("{TWO}{more}"), "two.toml").expect("a suite");
        assert_eq!(suite.workloads[1].job, Job::Decode { steps: 8, rows: 4 });
        let pairings = |workload: usize| {
            let pairings = suite.pairings(&suite.workloads[workload]);
            pairings.iter().map(|(a, b)| format!("{} {}", a.id, b.id)).collect::<Vec<_>>()
        };
        assert_eq!(
            (pairings(0), pairings(1)),
            (vec!["before before".into(), "before after".into()], vec!["after after".into(), "after before".into()])
        );
        let error = suite.retain_workloads(&["bach".into()]).expect_err("unknown name").to_string();
        assert!(error.contains("`bach`") && error.contains("step, batch"), "{error}");
        suite.retain_workloads(&["batch".into()]).expect("it is there");
        assert_eq!((suite.workloads.len(), suite.limits.len()), (1, 0));
    }

    #[test]
    fn mistakes_are_named() {
        for (from, to, message) in [
            ("reference = \"before\"", "reference = \"befor\"", "the reference is `befor`, which is not a variant"),
            ("id = \"after\"", "id = \"before\"", "two variants have the same name"),
            ("tokens = 9", "tokens = 0", "needs tokens"),
            ("pairs = 8", "pairs = 1", "least_pairs ≤ pairs"),
            ("ratio = 1.05", "", "needs `ratio` or `absolute`"),
            ("workload = \"step\"", "workload = \"stop\"", "`stop`"),
            ("tokens = 9", "tokens = 9\n bananas = 1", "bananas"),
            ("tokens = 9", "tokens = 9\n together = true", "may differ only in their jobs"),
            ("tokens = 9", "tokens = 9\n reference = \"afore\"", "names the unknown variant `afore`"),
        ] {
            assert!(TWO.contains(from), "{from}");
            let error = Suite::parse(&TWO.replace(from, to), "two.toml").expect_err(message).to_string();
            assert!(error.contains(message), "{error}");
        }
    }
}
