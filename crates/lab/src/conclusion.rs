//! What a whole session says: one word, the reason for it, and which of its rows had a part in it.
//!
//! A row gates where it can be a loss of ours: a variant of ours that does the same job as what it is compared with, or one that has a
//! limit. What another library needs, and what more work costs, is information: it is printed and never decides.

use crate::check::State;
use crate::result::{Comparison, SessionResult};
use crate::suite::{Limit, Suite, WorkerKind};
use crate::verdict::Verdict;

/// The outcome of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conclusion {
    /// The word; none where nothing of the session gates.
    pub verdict: Option<Verdict>,
    /// Why, in one sentence without its full stop.
    pub why: String,
}

impl Conclusion {
    /// The word, or what stands in its place.
    pub fn name(&self) -> &'static str {
        self.verdict.map_or("information only", Verdict::name)
    }

    /// The exit code that says so.
    pub fn exit_code(&self) -> i32 {
        match self.verdict {
            None | Some(Verdict::Improved | Verdict::Equivalent) => 0,
            Some(Verdict::Regressed) => 1,
            Some(Verdict::Inconclusive) => 4,
            Some(Verdict::Invalid) => 5,
        }
    }
}

/// What became of a limit.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Held {
    /// It holds.
    Yes,
    /// It cannot be told: why.
    Unknown(String),
    /// It does not: how.
    No(String),
}

/// Whether a limit holds: a ratio by its whole interval, an absolute value by its median.
pub(crate) fn held(limit: &Limit, comparisons: &[Comparison]) -> Held {
    let found = comparisons.iter().find(|c| {
        (c.workload.as_str(), c.variant.as_str(), c.metric) == (&limit.workload, &limit.variant, limit.metric)
    });
    let what = format!("{} of {} on {}", limit.metric.name(), limit.variant, limit.workload);
    let Some(found) = found else { return Held::Unknown(format!("{what} was not measured")) };
    let ratio = found.log_ratio.exp();
    if let Some(most) = limit.absolute.filter(|most| found.value > *most) {
        return Held::No(format!("{what}: {:.6}, at most {most} is allowed", found.value));
    }
    match limit.ratio {
        Some(most) if ratio.low > most => {
            Held::No(format!("{what}: {:.3} times the reference's, at most {most} is allowed", ratio.mean))
        }
        Some(most) if ratio.high.is_nan() || ratio.high > most => {
            Held::Unknown(format!("{what} may or may not be within its limit of {most} times the reference's"))
        }
        _ => Held::Yes,
    }
}

/// The limits of a suite that do not hold, in words.
pub(crate) fn broken_limits(suite: &Suite, comparisons: &[Comparison]) -> Vec<String> {
    let broken = |limit: &Limit| match held(limit, comparisons) {
        Held::No(how) => Some(how),
        _ => None,
    };
    suite.limits.iter().filter_map(broken).collect()
}

impl SessionResult {
    /// What the session says as a whole. The first of these that applies: wrong numbers of ours, nothing that can be trusted,
    /// a broken limit, the worst row that gates.
    pub fn conclusion(&self) -> Conclusion {
        let conclusion = |verdict, why: String| Conclusion { verdict: Some(verdict), why };
        let of_ours = |state| self.cells.iter().find(|cell| cell.state == state && self.is_ours(&cell.variant));
        if let Some(cell) = of_ours(State::SilentlyWrong) {
            let why = format!("the numbers of {} on {} are wrong: {}", cell.variant, cell.workload, cell.why);
            return conclusion(Verdict::Regressed, why);
        }
        if let Some(why) = self.untrusted() {
            return conclusion(Verdict::Invalid, why);
        }
        if let Some(cell) = of_ours(State::Error) {
            let why = format!("{} failed on {}: {}", cell.variant, cell.workload, cell.why);
            return conclusion(Verdict::Invalid, why);
        }
        if let Some(limit) = self.broken_limits.first() {
            return conclusion(Verdict::Regressed, format!("a limit is broken: {limit}"));
        }
        self.gated()
    }

    /// The exit code that says so.
    pub fn exit_code(&self) -> i32 {
        self.conclusion().exit_code()
    }

    /// Why nothing of the session can be believed, where it cannot.
    fn untrusted(&self) -> Option<String> {
        let asked = self.suite.workloads.iter().any(|workload| self.suite.arms(workload).len() > 1);
        let compared = self.comparisons.iter().any(|c| !asked || c.variant != c.reference);
        let early = &self.session.ended_early;
        let early = if early.is_empty() { String::new() } else { format!(" ({early})") };
        if !compared {
            return Some(format!("nothing was compared: no pair has two sides that answered and are right{early}"));
        }
        let found = self.comparisons.iter().find(|c| c.verdict == Verdict::Invalid)?;
        Some(format!("{} differs from itself on {}", found.reference, found.workload))
    }

    /// What the rows that gate say.
    fn gated(&self) -> Conclusion {
        let others = || self.comparisons.iter().filter(|c| c.variant != c.reference);
        let gating: Vec<&Comparison> = others().filter(|c| self.gates(c)).collect();
        let unknown = self.suite.limits.iter().filter_map(|limit| match held(limit, &self.comparisons) {
            Held::Unknown(why) => Some(why),
            _ => None,
        });
        let unknown: Vec<String> = unknown.collect();
        let informing = others().count() - gating.len();
        let aside = match informing {
            0 => String::new(),
            1 => "; 1 row is information and does not count".into(),
            n => format!("; {n} rows are information and do not count"),
        };
        let limits = self.suite.limits.len();
        if gating.is_empty() && limits == 0 {
            let right = self.cells.iter().filter(|cell| self.is_ours(&cell.variant)).count();
            let why = format!("no row gates{aside}; our numbers are right in {right} of {right} cells");
            return Conclusion { verdict: None, why };
        }
        let worst = gating.iter().map(|c| c.verdict).max();
        let worst = worst.max((!unknown.is_empty()).then_some(Verdict::Inconclusive)).unwrap_or(Verdict::Equivalent);
        let of_worst = gating.iter().filter(|c| c.verdict == worst).count();
        let mut why = match gating.len() {
            0 => format!("no row gates but for {limits} limits"),
            all => format!("{of_worst} of {all} rows that gate {} so", if of_worst == 1 { "is" } else { "are" }),
        };
        if let Some(first) = unknown.first() {
            why += &format!(", and {first}");
        }
        Conclusion { verdict: Some(worst), why: why + &aside }
    }

    /// Whether a comparison can be a loss of ours.
    pub fn gates(&self, comparison: &Comparison) -> bool {
        let suite = &self.suite;
        let job = |id: &str| {
            let workload = suite.workloads.iter().find(|workload| workload.id == comparison.workload);
            workload.zip(suite.variant(id)).map(|(workload, variant)| suite.job(workload, variant))
        };
        let same_job = job(&comparison.variant) == job(&comparison.reference);
        comparison.variant != comparison.reference && same_job && self.is_ours(&comparison.variant)
    }

    fn is_ours(&self, id: &str) -> bool {
        self.suite.variant(id).is_some_and(|variant| variant.worker == WorkerKind::Pellucid)
    }
}
