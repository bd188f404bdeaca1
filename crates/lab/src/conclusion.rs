//! The conclusion of a session: one verdict and its reason.
//!
//! A row gates if it can show a regression of Pellucid: a Pellucid variant that does the same job
//! as its reference, or one with a limit. Rows of other libraries, and of variants that do more
//! work, are informational: they are printed and never decide.

use crate::check::CellState;
use crate::result::{Comparison, SessionResult};
use crate::suite::{Limit, Suite, WorkerKind};
use crate::verdict::Verdict;

/// Verdict and reason of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conclusion {
    /// The verdict; `None` if no row gates.
    pub verdict: Option<Verdict>,
    /// The reason, as one sentence without a period.
    pub why: String,
}

impl Conclusion {
    /// Returns the verdict's name, or `information only`.
    pub fn name(&self) -> &'static str {
        self.verdict.map_or("information only", Verdict::name)
    }

    /// Returns the exit code of the verdict.
    pub fn exit_code(&self) -> i32 {
        match self.verdict {
            None | Some(Verdict::Improved | Verdict::Equivalent) => 0,
            Some(Verdict::Regressed) => 1,
            Some(Verdict::Inconclusive) => 4,
            Some(Verdict::Invalid) => 5,
        }
    }
}

/// State of a limit.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum LimitCheck {
    /// It holds.
    Holds,
    /// The measurement does not decide it; the reason.
    Unknown(String),
    /// It is exceeded; the description.
    Broken(String),
}

/// Checks a limit: a ratio by its whole confidence interval, an absolute value by its median.
pub(crate) fn check_limit(limit: &Limit, comparisons: &[Comparison]) -> LimitCheck {
    let found = comparisons.iter().find(|c| {
        (c.workload.as_str(), c.variant.as_str(), c.metric) == (&limit.workload, &limit.variant, limit.metric)
    });
    let what = format!("{} of {} on {}", limit.metric.name(), limit.variant, limit.workload);
    let Some(found) = found else { return LimitCheck::Unknown(format!("{what} was not measured")) };
    let ratio = found.log_ratio.exp();
    if let Some(most) = limit.absolute.filter(|most| found.value > *most) {
        return LimitCheck::Broken(format!("{what}: {:.6}, at most {most} is allowed", found.value));
    }
    match limit.ratio {
        Some(most) if ratio.low > most => {
            LimitCheck::Broken(format!("{what}: {:.3} times the reference's, at most {most} is allowed", ratio.mean))
        }
        Some(most) if ratio.high.is_nan() || ratio.high > most => LimitCheck::Unknown(format!(
            "it is undecided whether {what} is within its limit of {most} times the reference's"
        )),
        _ => LimitCheck::Holds,
    }
}

/// Describes the limits of a suite that are exceeded.
pub(crate) fn broken_limits(suite: &Suite, comparisons: &[Comparison]) -> Vec<String> {
    let broken = |limit: &Limit| match check_limit(limit, comparisons) {
        LimitCheck::Broken(how) => Some(how),
        _ => None,
    };
    suite.limits.iter().filter_map(broken).collect()
}

impl SessionResult {
    /// Returns the conclusion. The first that applies decides: wrong output of a Pellucid variant,
    /// an invalid session, a failed Pellucid variant, an exceeded limit, the worst gating row.
    pub fn conclusion(&self) -> Conclusion {
        let conclusion = |verdict, why: String| Conclusion { verdict: Some(verdict), why };
        let of_ours = |state| self.cells.iter().find(|cell| cell.state == state && self.is_ours(&cell.variant));
        if let Some(cell) = of_ours(CellState::SilentlyWrong) {
            let why = format!("the output of {} on {} is wrong: {}", cell.variant, cell.workload, cell.why);
            return conclusion(Verdict::Regressed, why);
        }
        if let Some(why) = self.invalid_reason() {
            return conclusion(Verdict::Invalid, why);
        }
        if let Some(cell) = of_ours(CellState::Error) {
            let why = format!("{} failed on {}: {}", cell.variant, cell.workload, cell.why);
            return conclusion(Verdict::Invalid, why);
        }
        if let Some(limit) = self.broken_limits.first() {
            return conclusion(Verdict::Regressed, format!("a limit is broken: {limit}"));
        }
        self.gating_conclusion()
    }

    /// Returns the exit code of the conclusion.
    pub fn exit_code(&self) -> i32 {
        self.conclusion().exit_code()
    }

    /// Returns the reason why the session is invalid, if it is.
    fn invalid_reason(&self) -> Option<String> {
        let has_comparisons = self.suite.workloads.iter().any(|workload| self.suite.pairings(workload).len() > 1);
        let compared = self.comparisons.iter().any(|c| !has_comparisons || c.variant != c.reference);
        let early = &self.session.ended_early;
        let early = if early.is_empty() { String::new() } else { format!(" ({early})") };
        if !compared {
            return Some(format!("nothing was compared: no pair has two correct answers{early}"));
        }
        let found = self.comparisons.iter().find(|c| c.verdict == Verdict::Invalid)?;
        Some(format!("the A/A control failed: {} differs from itself on {}", found.reference, found.workload))
    }

    /// Returns the verdict of the gating rows and limits.
    fn gating_conclusion(&self) -> Conclusion {
        let others = || self.comparisons.iter().filter(|c| c.variant != c.reference);
        let gating: Vec<&Comparison> = others().filter(|c| self.gates(c)).collect();
        let unknown = self.suite.limits.iter().filter_map(|limit| match check_limit(limit, &self.comparisons) {
            LimitCheck::Unknown(why) => Some(why),
            _ => None,
        });
        let unknown: Vec<String> = unknown.collect();
        let informational = others().count() - gating.len();
        let note = match informational {
            0 => String::new(),
            1 => "; 1 row is informational".into(),
            n => format!("; {n} rows are informational"),
        };
        let limits = self.suite.limits.len();
        if gating.is_empty() && limits == 0 {
            let right = self.cells.iter().filter(|cell| self.is_ours(&cell.variant)).count();
            let why = format!("no row gates{note}; Pellucid's output is correct in {right} of {right} cells");
            return Conclusion { verdict: None, why };
        }
        let worst = gating.iter().map(|c| c.verdict).max();
        let worst = worst.max((!unknown.is_empty()).then_some(Verdict::Inconclusive)).unwrap_or(Verdict::Equivalent);
        let of_worst = gating.iter().filter(|c| c.verdict == worst).count();
        let mut why = match gating.len() {
            0 => format!("no row gates, only {limits} limits"),
            all => format!("{of_worst} of {all} gating rows {} {worst}", if of_worst == 1 { "is" } else { "are" }),
        };
        if let Some(first) = unknown.first() {
            why += &format!(", and {first}");
        }
        Conclusion { verdict: Some(worst), why: why + &note }
    }

    /// Whether a comparison gates, that is, can show a regression of Pellucid.
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
