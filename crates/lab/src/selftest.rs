//! Self-test of the lab: compares two copies of one build, and one copy with an injected slowdown.
//!
//! Identical builds must not be called different. The slowed build must be detected, or the
//! comparison must stay inconclusive with an estimate of the pairs needed.

use crate::executor::Executor;
use crate::protocol::Job;
use crate::result::Comparison;
use crate::session::{self, SessionContext};
use crate::stats;
use crate::suite::{Metric, Precision, Suite, Variant, WorkerKind, Workload};
use crate::verdict::Verdict;
use crate::{Result, worker};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Maximum fraction of sessions with a false verdict.
pub const MAX_FALSE_SHARE: f64 = 0.1;

/// Size of the self-test.
#[derive(Clone, Copy, Debug)]
pub struct SelftestOptions {
    /// Number of sessions.
    pub sessions: usize,
    /// Pairs per comparison.
    pub pairs: usize,
    /// Relative slowdown of the slowed build.
    pub slow: f64,
}

/// Counts over all sessions.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SelftestResult {
    /// Number of sessions.
    pub sessions: usize,
    /// Pairs per comparison.
    pub pairs: usize,
    /// Invalid sessions: the A/A control differed significantly. They are excluded from the other
    /// counts.
    pub invalid: usize,
    /// False positives: sessions that called identical builds different.
    pub false_verdicts: usize,
    /// Sessions that called identical builds equivalent; the rest were inconclusive.
    pub equivalent: usize,
    /// Relative slowdown of the slowed build.
    pub slow: f64,
    /// Sessions that detected the slowdown.
    pub found: usize,
    /// Sessions that were inconclusive about the slowdown.
    pub open: usize,
    /// False negatives: sessions that called the slowed build no slower.
    pub missed: usize,
    /// Median of the pairs needed in the inconclusive sessions; `None` if there is no estimate.
    pub pairs_needed: Option<usize>,
    /// Median half-width of the confidence intervals between identical builds.
    #[serde(with = "crate::json_float")]
    pub half_width: f64,
}

impl SelftestResult {
    /// Whether the error rates are acceptable on this machine.
    pub fn holds(&self) -> bool {
        let valid = (self.sessions - self.invalid) as f64;
        valid > 0.0
            && self.false_verdicts as f64 <= MAX_FALSE_SHARE * valid
            && self.missed as f64 <= MAX_FALSE_SHARE * valid
    }

    /// Formats the result for the terminal.
    pub fn text(&self) -> String {
        let valid = self.sessions - self.invalid;
        let needed = self.pairs_needed.map_or_else(String::new, |pairs| format!(", about {pairs} pairs needed"));
        format!(
            "{} sessions of {} pairs, {} of them invalid (the A/A control differed)\n\
             identical builds: {} of {valid} called different, {} equivalent, {} inconclusive; intervals of ±{:.1} %\n\
             a build slowed by {:.1} %: detected in {} of {valid}, inconclusive in {}{needed}; called no slower in {}\n{}\n",
            self.sessions,
            self.pairs,
            self.invalid,
            self.false_verdicts,
            self.equivalent,
            valid - self.false_verdicts - self.equivalent,
            self.half_width.exp_m1() * 100.0,
            self.slow * 100.0,
            self.found,
            self.open,
            self.missed,
            match (self.holds(), self.found + self.equivalent) {
                _ if valid == 0 => "every session was invalid: the machine is busy, measure again when it is idle",
                (true, 0) => "no false verdict, but this machine is too noisy to decide anything",
                (true, _) => "verdicts on this machine are reliable",
                (false, _) => "verdicts on this machine are not reliable",
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

/// Builds the suite: two copies of one build, and a slowed one.
pub fn suite(builds: [&Path; 2], options: &SelftestOptions) -> Suite {
    let variant = |id: &str, build: &Path| Variant {
        id: id.into(),
        worker: WorkerKind::Pellucid,
        binary: Some(build.to_path_buf()),
        job: None,
        dtype: "f32".into(),
        // A single thread waits for no other, so it is the least disturbed on a busy machine.
        threads: Some(1),
        env: Default::default(),
    };
    let mut slowed = variant("slowed", builds[1]);
    slowed.env.insert(worker::SLOWDOWN_VARIABLE.into(), options.slow.to_string());
    Suite {
        name: "selftest".into(),
        title: "Two copies of one build, and one with an injected slowdown".into(),
        model: None,
        reference: "one".into(),
        oracle: None,
        ladder: vec![],
        precision: Precision {
            pairs: options.pairs,
            least_pairs: options.pairs.min(4),
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
            same_process: false,
        }],
        limits: vec![],
    }
}

/// Runs the sessions. `begin` returns the context and executor for a seed; `on_session` is called
/// after each session.
pub fn run<E: Executor>(
    suite: &Suite,
    options: &SelftestOptions,
    mut begin: impl FnMut(u64) -> (SessionContext, E),
    mut on_session: impl FnMut(usize, &SelftestResult),
) -> Result<SelftestResult> {
    let mut totals = SelftestResult {
        sessions: options.sessions,
        pairs: options.pairs,
        slow: options.slow,
        ..SelftestResult::default()
    };
    let (mut needed, mut widths) = (Vec::new(), Vec::new());
    for number in 0..options.sessions {
        let (context, mut executor) = begin(number as u64 + 1);
        let result = session::run(suite, context, &mut executor, &mut |_| {})?;
        let of = |id: &str| result.comparisons.iter().find(|c| c.variant == id && c.verdict != Verdict::Invalid);
        match (of("twin"), of("slowed")) {
            (Some(twins), Some(slowed)) => {
                totals.count(twins, slowed);
                widths.push(twins.log_ratio.half_width());
                needed.extend(slowed.pairs_needed.map(|pairs| pairs as f64));
            }
            _ => totals.invalid += 1,
        }
        on_session(number + 1, &totals);
    }
    totals.half_width = stats::median(&widths);
    totals.pairs_needed = (!needed.is_empty()).then(|| stats::median(&needed) as usize);
    Ok(totals)
}
