//! The lab tried on itself: two copies of one build, and one that is slower by a share that is known.
//!
//! Identical builds must not be called different, and a slower one must be found or be left open with the pairs that would tell.

use crate::executor::Executor;
use crate::protocol::Job;
use crate::result::Comparison;
use crate::session::{self, Setting};
use crate::stats;
use crate::suite::{Metric, Precision, Suite, Variant, WorkerKind, Workload};
use crate::verdict::Verdict;
use crate::{Result, worker};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Identical builds may be called different in this share of the sessions, and no more.
pub const FALSE_SHARE: f64 = 0.1;

/// How the lab is tried.
#[derive(Clone, Copy, Debug)]
pub struct Trial {
    /// Sessions.
    pub sessions: usize,
    /// Pairs of processes in each comparison.
    pub pairs: usize,
    /// The share by which one build is slowed.
    pub slow: f64,
}

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// Sessions.
    pub sessions: usize,
    /// Pairs in each of their comparisons.
    pub pairs: usize,
    /// Sessions in which the reference differed from itself: they say nothing, and nothing is concluded from them.
    pub invalid: usize,
    /// Sessions that called identical builds different.
    pub false_verdicts: usize,
    /// Sessions that called them equivalent; the others left it open.
    pub equivalent: usize,
    /// The share by which a build was slowed.
    pub slow: f64,
    /// Sessions that found it.
    pub found: usize,
    /// Sessions that left it open.
    pub open: usize,
    /// Sessions that said that it is no slower: wrong, as it is.
    pub missed: usize,
    /// The pairs that the open ones asked for, in the middle; none where they could not say.
    pub pairs_needed: Option<usize>,
    /// The half width of the intervals between identical builds, in the middle.
    #[serde(with = "crate::number")]
    pub half_width: f64,
}

impl Finding {
    /// Whether the instrument can be believed here.
    pub fn holds(&self) -> bool {
        let told = (self.sessions - self.invalid) as f64;
        told > 0.0 && self.false_verdicts as f64 <= FALSE_SHARE * told && self.missed as f64 <= FALSE_SHARE * told
    }

    /// In words.
    pub fn text(&self) -> String {
        let told = self.sessions - self.invalid;
        let needed =
            self.pairs_needed.map_or_else(String::new, |pairs| format!(", and about {pairs} pairs would tell"));
        format!(
            "{} sessions of {} pairs, {} of them invalid (the reference differed from itself)\n\
             identical builds: {} of {told} called different, {} equivalent, {} left open; intervals of ±{:.1} %\n\
             a build slowed by {:.1} %: found in {} of {told}, left open in {}{needed}; said to be no slower in {}\n{}\n",
            self.sessions,
            self.pairs,
            self.invalid,
            self.false_verdicts,
            self.equivalent,
            told - self.false_verdicts - self.equivalent,
            self.half_width.exp_m1() * 100.0,
            self.slow * 100.0,
            self.found,
            self.open,
            self.missed,
            match (self.holds(), self.found + self.equivalent) {
                _ if told == 0 => "nothing can be measured here: something else is running",
                (true, 0) =>
                    "nothing that the lab said is wrong, but this machine is too noisy for it to decide anything",
                (true, _) => "the lab can be believed here",
                (false, _) => "the lab cannot be believed here",
            }
        )
    }

    fn count(&mut self, twins: &Comparison, slowed: &Comparison) {
        match twins.verdict {
            Verdict::Improved | Verdict::Regressed => self.false_verdicts += 1,
            Verdict::Equivalent => self.equivalent += 1,
            Verdict::Inconclusive | Verdict::Invalid => {}
        }
        match slowed.verdict {
            Verdict::Regressed => self.found += 1,
            Verdict::Improved | Verdict::Equivalent => self.missed += 1,
            Verdict::Inconclusive | Verdict::Invalid => self.open += 1,
        }
    }
}

/// A suite of two copies of one build and a slowed one.
pub fn suite(builds: [&Path; 2], trial: &Trial) -> Suite {
    let variant = |id: &str, build: &Path| Variant {
        id: id.into(),
        worker: WorkerKind::Pellucid,
        binary: Some(build.to_path_buf()),
        job: None,
        dtype: "f32".into(),
        // One thread waits for no other, so a busy machine disturbs it least.
        threads: Some(1),
        env: Default::default(),
    };
    let mut slowed = variant("slowed", builds[1]);
    slowed.env.insert(worker::SLOW.into(), trial.slow.to_string());
    Suite {
        name: "selftest".into(),
        title: "Two copies of one build, and one that is slowed".into(),
        model: None,
        reference: "one".into(),
        oracle: None,
        ladder: vec![],
        precision: Precision {
            pairs: trial.pairs,
            least_pairs: trial.pairs.min(4),
            half_width: 0.005,
            ..Default::default()
        },
        variants: vec![variant("one", builds[0]), variant("twin", builds[1]), slowed],
        workloads: vec![Workload {
            id: "decode".into(),
            job: Job::Decode { steps: 16, rows: 1 },
            model: None,
            tokens: 9,
            warmups: 1,
            repeats: 9,
            reference: None,
            variants: None,
            metrics: vec![Metric::Time],
            margin: None,
            together: false,
        }],
        limits: vec![],
    }
}

/// Runs the sessions, each with a seed, a setting and an executor of its own; `heard` is told after each.
pub fn run<E: Executor>(
    suite: &Suite,
    trial: &Trial,
    mut begin: impl FnMut(u64) -> (Setting, E),
    mut heard: impl FnMut(usize, &Finding),
) -> Result<Finding> {
    let mut finding = Finding { sessions: trial.sessions, pairs: trial.pairs, slow: trial.slow, ..Finding::default() };
    let (mut needed, mut widths) = (Vec::new(), Vec::new());
    for number in 0..trial.sessions {
        let (setting, mut executor) = begin(number as u64 + 1);
        let result = session::run(suite, setting, &mut executor, &mut |_| {})?;
        let of = |id: &str| result.comparisons.iter().find(|c| c.variant == id && c.verdict != Verdict::Invalid);
        match (of("twin"), of("slowed")) {
            (Some(twins), Some(slowed)) => {
                finding.count(twins, slowed);
                widths.push(twins.log_ratio.half_width());
                needed.extend(slowed.pairs_needed.map(|pairs| pairs as f64));
            }
            _ => finding.invalid += 1,
        }
        heard(number + 1, &finding);
    }
    finding.half_width = stats::median(&widths);
    finding.pairs_needed = (!needed.is_empty()).then(|| stats::median(&needed) as usize);
    Ok(finding)
}
