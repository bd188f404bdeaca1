//! A suite: variants × workloads × metrics, as a Rust value or a TOML file.

use crate::protocol::Job;
use crate::{Error, Result};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

/// What is measured, with whom, and how exactly.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Suite {
    /// Its name.
    pub name: String,
    /// What it is about, in one sentence.
    #[serde(default)]
    pub title: String,
    /// The model, where the caller names no other: a path or the name of a pulled one.
    #[serde(default)]
    pub model: Option<String>,
    /// The variant that the others are compared with.
    pub reference: String,
    /// The variant whose outputs are the truth; the reference where absent.
    #[serde(default)]
    pub oracle: Option<String>,
    /// Variants of which each does a little more than the one before: steps are compared with each other, and the last with the first.
    #[serde(default)]
    pub ladder: Vec<String>,
    /// When a comparison is precise enough.
    #[serde(default)]
    pub precision: Precision,
    /// Who is measured.
    #[serde(rename = "variant")]
    pub variants: Vec<Variant>,
    /// What they do.
    #[serde(rename = "workload")]
    pub workloads: Vec<Workload>,
    /// What must hold.
    #[serde(default, rename = "limit")]
    pub limits: Vec<Limit>,
}

/// When to stop.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Precision {
    /// Pairs of processes at most.
    pub pairs: usize,
    /// Pairs at least, whatever the precision.
    pub least_pairs: usize,
    /// The half width of a ratio's interval that is good enough.
    pub half_width: f64,
    /// Seconds for the whole session.
    pub budget_s: f64,
    /// Seconds that one process may take.
    pub timeout_s: f64,
    /// Differences up to this share count as none.
    pub margin: f64,
}

impl Default for Precision {
    fn default() -> Precision {
        Precision { pairs: 12, least_pairs: 4, half_width: 0.01, budget_s: 300.0, timeout_s: 300.0, margin: 0.02 }
    }
}

/// Somebody who can do the workloads.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Variant {
    /// Its name in the suite.
    pub id: String,
    /// Which worker runs it.
    #[serde(default)]
    pub worker: WorkerKind,
    /// Another executable of ours, for comparing builds.
    #[serde(default)]
    pub binary: Option<PathBuf>,
    /// What it does instead of the workload's own job, for comparing jobs.
    #[serde(default)]
    pub job: Option<Job>,
    /// How weights are kept: `auto`, `f32`, `bf16` or `f16`.
    #[serde(default = "f32_name")]
    pub dtype: String,
    /// Threads; the default where absent.
    #[serde(default)]
    pub threads: Option<usize>,
    /// Environment variables of its process.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
}

fn f32_name() -> String {
    "f32".into()
}

/// Whose worker it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkerKind {
    /// Ours.
    #[default]
    Pellucid,
    /// Hugging Face transformers with forward hooks.
    Transformers,
    /// nnsight.
    Nnsight,
    /// TransformerLens.
    TransformerLens,
    /// llama.cpp through its Python binding.
    LlamaCpp,
    /// candle, as a program of its own that the lab builds on request; its variant's `binary`.
    Candle,
}

/// Something to do and what to read off it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Workload {
    /// Its name in the suite.
    pub id: String,
    /// What is done.
    pub job: Job,
    /// The model of this workload, where it is not the session's: a path or the name of a pulled one.
    #[serde(default)]
    pub model: Option<String>,
    /// Tokens of the prompt.
    pub tokens: usize,
    /// Untimed runs in each process.
    #[serde(default = "one")]
    pub warmups: usize,
    /// Timed runs in each process; their median is the process's number.
    #[serde(default = "three")]
    pub repeats: usize,
    /// The variant that the others are compared with here, where it is not the suite's.
    #[serde(default)]
    pub reference: Option<String>,
    /// Who takes part; everybody where absent.
    #[serde(default)]
    pub variants: Option<Vec<String>>,
    /// What is compared.
    #[serde(default = "time")]
    pub metrics: Vec<Metric>,
    /// Differences up to this share count as none, where this workload has its own.
    #[serde(default)]
    pub margin: Option<f64>,
    /// Both sides of a pair run in one process, in turn: for jobs that differ less than one process does from the next.
    #[serde(default)]
    pub together: bool,
}

fn one() -> usize {
    1
}

fn three() -> usize {
    3
}

fn time() -> Vec<Metric> {
    vec![Metric::Time]
}

/// What is read off a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// Median seconds of the timed runs.
    Time,
    /// Seconds from the start of loading to the first token.
    Load,
    /// Bytes at the highest, of the whole process.
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

/// Something that must hold; beyond a soft limit a comparison has regressed, whatever the margin.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limit {
    /// The workload.
    pub workload: String,
    /// The variant.
    pub variant: String,
    /// What is limited.
    #[serde(default = "time_metric")]
    pub metric: Metric,
    /// The ratio to the reference that must not be exceeded.
    #[serde(default)]
    pub ratio: Option<f64>,
    /// The seconds or bytes that must not be exceeded.
    #[serde(default)]
    pub absolute: Option<f64>,
}

fn time_metric() -> Metric {
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

    /// Refuses names that lead nowhere and numbers that make no sense.
    pub fn check(&self) -> Result<()> {
        let fail = |problem: String| Err(Error::Suite { suite: self.name.clone(), problem });
        let ids: Vec<&str> = self.variants.iter().map(|variant| variant.id.as_str()).collect();
        let known = |id: &str| ids.contains(&id);
        let names = ids.join(", ");
        if ids.iter().collect::<BTreeSet<_>>().len() != ids.len() {
            return fail(format!("two variants have one name: {names}"));
        }
        if self.workloads.is_empty() || ids.is_empty() {
            return fail("a suite needs a variant and a workload".into());
        }
        for (what, id) in [("reference", Some(&self.reference)), ("oracle", self.oracle.as_ref())] {
            if let Some(id) = id.filter(|id| !known(id)) {
                return fail(format!("the {what} is `{id}`, which is no variant (there are {names})"));
            }
        }
        if let Some(id) = self.ladder.iter().find(|id| !known(id)) {
            return fail(format!("the ladder names `{id}`, which is no variant (there are {names})"));
        }
        let mut seen = BTreeSet::new();
        for workload in &self.workloads {
            if !seen.insert(&workload.id) {
                return fail(format!("two workloads are called `{}`", workload.id));
            }
            if workload.tokens == 0 || workload.repeats == 0 || workload.metrics.is_empty() {
                return fail(format!("workload `{}` needs tokens, repeats and a metric", workload.id));
            }
            if let Some(id) = workload.variants.iter().flatten().chain(&workload.reference).find(|id| !known(id)) {
                return fail(format!("workload `{}` names the variant `{id}` (there are {names})", workload.id));
            }
        }
        for workload in self.workloads.iter().filter(|workload| workload.together) {
            let all = self.participants(workload);
            let own = |variant: &&Variant| Variant { id: String::new(), job: None, ..(*variant).clone() };
            let alike =
                all.iter().all(|variant| own(variant) == own(&all[0]) && variant.worker == WorkerKind::Pellucid);
            if !alike || workload.metrics != [Metric::Time] {
                return fail(format!(
                    "workload `{}` runs in one process: its variants may differ in their jobs alone, must be ours, and are compared by time",
                    workload.id
                ));
            }
        }
        for limit in &self.limits {
            if !known(&limit.variant) || !seen.contains(&limit.workload) {
                return fail(format!("a limit names `{}` of `{}`, which do not exist", limit.workload, limit.variant));
            }
            if limit.ratio.is_none() && limit.absolute.is_none() {
                return fail(format!("the limit of `{}` limits nothing", limit.workload));
            }
            if limit.ratio.into_iter().chain(limit.absolute).any(|most| !most.is_finite()) {
                return fail(format!("a limit of `{}` is no number", limit.workload));
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
                "precision needs 2 ≤ least_pairs ≤ pairs, a half width, a budget, a time limit and a margin".into(),
            );
        }
        if let Some(workload) = self.workloads.iter().find(|workload| !workload.margin.is_none_or(finite)) {
            return fail(format!("the margin of workload `{}` is no share", workload.id));
        }
        Ok(())
    }

    /// A variant by its name.
    pub fn variant(&self, id: &str) -> Option<&Variant> {
        self.variants.iter().find(|variant| variant.id == id)
    }

    /// Whose outputs are the truth.
    pub fn oracle(&self) -> &str {
        self.oracle.as_deref().unwrap_or(&self.reference)
    }

    /// Whom the others are compared with on a workload.
    pub fn reference<'s>(&'s self, workload: &'s Workload) -> &'s str {
        workload.reference.as_deref().unwrap_or(&self.reference)
    }

    /// Who takes part in a workload, the reference first.
    pub fn participants<'s>(&'s self, workload: &'s Workload) -> Vec<&'s Variant> {
        let reference = self.reference(workload);
        let takes_part = |variant: &&Variant| {
            workload.variants.as_ref().is_none_or(|ids| ids.contains(&variant.id)) && variant.id != reference
        };
        self.variant(reference).into_iter().chain(self.variants.iter().filter(takes_part)).collect()
    }

    /// Keeps only the workloads of these names, with their limits.
    pub fn keep_only(&mut self, names: &[String]) -> Result<()> {
        let known = |name: &&String| self.workloads.iter().any(|workload| workload.id == **name);
        if let Some(name) = names.iter().find(|name| !known(name)) {
            let ids: Vec<&str> = self.workloads.iter().map(|workload| workload.id.as_str()).collect();
            let problem = format!("there is no workload `{name}` (there are {})", ids.join(", "));
            return Err(Error::Suite { suite: self.name.clone(), problem });
        }
        self.workloads.retain(|workload| names.contains(&workload.id));
        self.limits.retain(|limit| names.contains(&limit.workload));
        Ok(())
    }

    /// Who is compared with whom on a workload, `(before, after)`: the reference with itself, then every variant with the
    /// reference, or every rung of the ladder with the one below it and the last with the first.
    pub fn arms<'s>(&'s self, workload: &'s Workload) -> Vec<(&'s Variant, &'s Variant)> {
        let all = self.participants(workload);
        let Some(reference) = all.first().copied() else { return Vec::new() };
        let mut arms = vec![(reference, reference)];
        if self.ladder.is_empty() {
            arms.extend(all[1..].iter().map(|variant| (reference, *variant)));
            return arms;
        }
        let rungs: Vec<&Variant> =
            self.ladder.iter().filter_map(|id| all.iter().find(|v| v.id == *id).copied()).collect();
        arms.extend(rungs.windows(2).map(|step| (step[0], step[1])));
        if let ([first, .., last], true) = (&rungs[..], rungs.len() > 2) {
            arms.push((first, last));
        }
        arms
    }

    /// What a variant does on a workload.
    pub fn job(&self, workload: &Workload, variant: &Variant) -> Job {
        variant.job.unwrap_or(workload.job)
    }

    /// The margin of a workload.
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
    fn a_workload_may_have_a_reference_of_its_own_and_be_chosen_alone() {
        let more = r#"
            [[workload]]
            id = "batch"
            job = { decode = { steps = 8, rows = 4 } }
            tokens = 9
            reference = "after"
        "#;
        let mut suite = Suite::parse(&format!("{TWO}{more}"), "two.toml").expect("a suite");
        assert_eq!(suite.workloads[1].job, Job::Decode { steps: 8, rows: 4 });
        let arms = |workload: usize| {
            let arms = suite.arms(&suite.workloads[workload]);
            arms.iter().map(|(a, b)| format!("{} {}", a.id, b.id)).collect::<Vec<_>>()
        };
        assert_eq!(
            (arms(0), arms(1)),
            (vec!["before before".into(), "before after".into()], vec!["after after".into(), "after before".into()])
        );
        let error = suite.keep_only(&["bach".into()]).expect_err("a name that leads nowhere").to_string();
        assert!(error.contains("`bach`") && error.contains("step, batch"), "{error}");
        suite.keep_only(&["batch".into()]).expect("it is there");
        assert_eq!((suite.workloads.len(), suite.limits.len()), (1, 0));
    }

    #[test]
    fn mistakes_are_named() {
        for (from, to, said) in [
            ("reference = \"before\"", "reference = \"befor\"", "the reference is `befor`, which is no variant"),
            ("id = \"after\"", "id = \"before\"", "two variants have one name"),
            ("tokens = 9", "tokens = 0", "needs tokens"),
            ("pairs = 8", "pairs = 1", "least_pairs ≤ pairs"),
            ("ratio = 1.05", "", "limits nothing"),
            ("workload = \"step\"", "workload = \"stop\"", "`stop`"),
            ("tokens = 9", "tokens = 9\n bananas = 1", "bananas"),
            ("tokens = 9", "tokens = 9\n together = true", "may differ in their jobs alone"),
            ("tokens = 9", "tokens = 9\n reference = \"afore\"", "names the variant `afore`"),
        ] {
            assert!(TWO.contains(from), "{from}");
            let error = Suite::parse(&TWO.replace(from, to), "two.toml").expect_err(said).to_string();
            assert!(error.contains(said), "{error}");
        }
    }
}
