//! Compares a worker's output with the oracle's. A wrong output has no time.

use crate::protocol::{Answer, Job};
use serde::{Deserialize, Serialize};

/// Allowed difference: an absolute part plus a fraction of the value. The residual stream may hold
/// thousands where logits hold tens, and f32 has seven digits for both.
struct Tolerance {
    absolute: f32,
    relative: f32,
}

/// Tolerance between two f32 engines.
const F32_TOLERANCE: Tolerance = Tolerance { absolute: 2e-3, relative: 2e-5 };
/// Tolerance between two storage formats of the same weights.
const STORAGE_TOLERANCE: Tolerance = Tolerance { absolute: 1.0, relative: 2e-2 };
/// Number of leading decoded tokens that must agree. Later ones may differ, because rounding errors
/// accumulate.
const MIN_EQUAL_TOKENS: usize = 8;

/// Correctness of a variant's output on a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum CellState {
    /// The output agrees with the oracle's.
    Supported,
    /// The output differs only by the precision of the weights' storage format.
    SupportedDegraded,
    /// The oracle has no output.
    NoReference,
    /// The worker failed with an error.
    Error,
    /// The worker succeeded, but its output is wrong.
    SilentlyWrong,
}

impl CellState {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            CellState::Supported => "SUPPORTED",
            CellState::SupportedDegraded => "SUPPORTED_DEGRADED",
            CellState::NoReference => "NO_REFERENCE",
            CellState::Error => "ERROR",
            CellState::SilentlyWrong => "SILENTLY_WRONG",
        }
    }
}

/// Result of a comparison with the oracle.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Check {
    /// The state.
    pub state: CellState,
    /// Largest absolute difference.
    #[serde(with = "crate::json_float")]
    pub max_abs: f32,
    /// Description of the difference; empty if there is none.
    #[serde(default)]
    pub difference: String,
}

/// Compares an answer with the oracle's. `exact`: both sides store their weights in the same
/// format.
pub fn check(job: Job, ours: &Answer, oracle: Option<&Answer>, exact: bool) -> Check {
    let Some(oracle) = oracle else {
        return Check { state: CellState::NoReference, max_abs: 0.0, difference: String::new() };
    };
    let logits = ours.top.iter().zip(&oracle.top).map(|(a, b)| (a.1, b.1));
    let pairs: Vec<(f32, f32)> = logits.chain(ours.values.iter().copied().zip(oracle.values.iter().copied())).collect();
    let max_abs = pairs.iter().map(|(a, b)| distance(*a, *b)).fold(0.0, f32::max);
    let within = |most: &Tolerance| {
        pairs.iter().all(|(a, b)| distance(*a, *b) <= most.absolute + most.relative * b.abs().min(f32::MAX))
    };
    let known = if exact { ours.top.len() } else { 1 };
    let difference = if ours.top.iter().zip(&oracle.top).take(known).any(|(a, b)| a.0 != b.0) {
        let ids = |answer: &Answer| answer.top.iter().map(|(id, _)| *id).collect::<Vec<_>>();
        format!("the top tokens are {:?} where the reference has {:?}", ids(ours), ids(oracle))
    } else if ours.values.len() != oracle.values.len() {
        format!("{} values where the reference has {}", ours.values.len(), oracle.values.len())
    } else if !within(if exact { &F32_TOLERANCE } else { &STORAGE_TOLERANCE }) {
        format!("values differ by up to {max_abs}")
    } else if exact && tokens_differ(&ours.decoded, &oracle.decoded) {
        "the decoded tokens differ".into()
    } else if job.edits() && !edit_has_effect(ours) {
        "the edit changed nothing".into()
    } else {
        String::new()
    };
    let state = match (difference.is_empty(), exact || within(&F32_TOLERANCE)) {
        (false, _) => CellState::SilentlyWrong,
        (true, true) => CellState::Supported,
        (true, false) => CellState::SupportedDegraded,
    };
    Check { state, max_abs, difference }
}

/// Returns the absolute difference; infinite if either value is NaN.
fn distance(a: f32, b: f32) -> f32 {
    let apart = if a == b { 0.0 } else { (a - b).abs() };
    if apart.is_nan() { f32::INFINITY } else { apart }
}

fn tokens_differ(ours: &[u32], theirs: &[u32]) -> bool {
    let agree = ours.iter().zip(theirs).take_while(|(a, b)| a == b).count();
    agree < ours.len().min(theirs.len()).min(MIN_EQUAL_TOKENS)
}

/// Whether the output differs from that of the same job without its edit.
fn edit_has_effect(answer: &Answer) -> bool {
    answer.control.is_empty()
        || answer.control.iter().zip(&answer.values).any(|(a, b)| distance(*a, *b) > F32_TOLERANCE.absolute)
}

impl Job {
    /// Whether the job edits activations.
    pub fn edits(self) -> bool {
        matches!(self, Job::Steer | Job::SteerDecode { .. } | Job::Ablate | Job::Patch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(crate) fn answer(top: &[(u32, f32)], values: &[f32], control: &[f32]) -> Answer {
        Answer {
            engine: "test".into(),
            load_to_first_token_s: 1.0,
            samples_s: vec![1.0],
            top: top.to_vec(),
            values: values.to_vec(),
            control: control.to_vec(),
            ..Answer::default()
        }
    }

    #[test]
    fn every_state_has_its_rule() {
        let oracle = answer(&[(7, 3.0), (8, 1.0)], &[1.0, 2.0], &[]);
        let state = |ours: &Answer, exact| check(Job::Prefill, ours, Some(&oracle), exact).state;
        assert_eq!(state(&oracle, true), CellState::Supported);
        assert_eq!(state(&answer(&[(7, 3.001), (8, 1.0)], &[1.0, 2.0], &[]), true), CellState::Supported);
        assert_eq!(state(&answer(&[(7, 3.1), (8, 1.0)], &[1.0, 2.0], &[]), true), CellState::SilentlyWrong);
        assert_eq!(state(&answer(&[(7, 3.1), (9, 1.0)], &[1.0, 2.0], &[]), false), CellState::SupportedDegraded);
        assert_eq!(state(&answer(&[(8, 3.1), (7, 1.0)], &[1.0, 2.0], &[]), false), CellState::SilentlyWrong);
        assert_eq!(state(&answer(&[(7, 3.0), (8, 1.0)], &[1.0, f32::NAN], &[]), true), CellState::SilentlyWrong);
        assert_eq!(state(&answer(&[(7, 3.0), (8, 1.0)], &[1.0], &[]), true), CellState::SilentlyWrong);
        assert_eq!(check(Job::Prefill, &oracle, None, true).state, CellState::NoReference);
    }

    #[test]
    fn an_edit_without_effect_is_wrong_even_where_both_sides_agree() {
        let dead = answer(&[(7, 3.0)], &[1.0, 2.0], &[1.0, 2.0]);
        let found = check(Job::Steer, &dead, Some(&dead), true);
        assert_eq!((found.state, found.difference.as_str()), (CellState::SilentlyWrong, "the edit changed nothing"));
        let alive = answer(&[(7, 3.0)], &[1.0, 2.0], &[1.5, 2.0]);
        assert_eq!(check(Job::Steer, &alive, Some(&alive), true).state, CellState::Supported);
    }

    #[test]
    fn decoded_tokens_must_agree() {
        let with = |tokens: &[u32]| Answer { decoded: tokens.to_vec(), ..answer(&[(7, 3.0)], &[], &[]) };
        let job = Job::Decode { steps: 3, rows: 1 };
        assert_eq!(check(job, &with(&[1, 2, 3]), Some(&with(&[1, 2, 3])), true).state, CellState::Supported);
        assert_eq!(check(job, &with(&[1, 2, 4]), Some(&with(&[1, 2, 3])), true).state, CellState::SilentlyWrong);
    }
}
