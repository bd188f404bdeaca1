//! Correct or no time: what a worker computed against what the oracle computed.

use crate::protocol::{Answer, Job};
use serde::{Deserialize, Serialize};

/// A difference that counts as none: an absolute part, and a share of the number itself, since a stream may hold thousands where logits
/// hold tens, and f32 has seven digits for both.
struct Tolerance {
    absolute: f32,
    relative: f32,
}

/// Between two f32 engines.
const SAME: Tolerance = Tolerance { absolute: 2e-3, relative: 2e-5 };
/// Between two storage formats of the same weights.
const DEGRADED: Tolerance = Tolerance { absolute: 1.0, relative: 2e-2 };
/// Decoded tokens that must agree.
const AGREE: usize = 8;

/// What may be said about a cell's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum State {
    /// It runs and agrees with the reference.
    Supported,
    /// It differs only by what its storage format loses.
    SupportedDegraded,
    /// The reference itself is missing.
    NoReference,
    /// It fails, and says so.
    Error,
    /// It runs, says nothing, and its numbers are wrong.
    SilentlyWrong,
}

impl State {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            State::Supported => "SUPPORTED",
            State::SupportedDegraded => "SUPPORTED_DEGRADED",
            State::NoReference => "NO_REFERENCE",
            State::Error => "ERROR",
            State::SilentlyWrong => "SILENTLY_WRONG",
        }
    }
}

/// The state with the largest difference found, and what differs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Check {
    /// The state.
    pub state: State,
    /// Largest absolute difference.
    #[serde(with = "crate::number")]
    pub max_abs: f32,
    /// What differs, in words; empty where nothing does.
    #[serde(default)]
    pub difference: String,
}

/// Judges an answer. `exact` says that both sides keep their weights in the same format.
pub fn check(job: Job, ours: &Answer, truth: Option<&Answer>, exact: bool) -> Check {
    let Some(truth) = truth else {
        return Check { state: State::NoReference, max_abs: 0.0, difference: String::new() };
    };
    let logits = ours.top.iter().zip(&truth.top).map(|(a, b)| (a.1, b.1));
    let numbers: Vec<(f32, f32)> =
        logits.chain(ours.values.iter().copied().zip(truth.values.iter().copied())).collect();
    let max_abs = numbers.iter().map(|(a, b)| distance(*a, *b)).fold(0.0, f32::max);
    let within = |most: &Tolerance| {
        numbers.iter().all(|(a, b)| distance(*a, *b) <= most.absolute + most.relative * b.abs().min(f32::MAX))
    };
    let known = if exact { ours.top.len() } else { 1 };
    let difference = if ours.top.iter().zip(&truth.top).take(known).any(|(a, b)| a.0 != b.0) {
        let ids = |answer: &Answer| answer.top.iter().map(|(id, _)| *id).collect::<Vec<_>>();
        format!("the likeliest tokens are {:?} where the reference has {:?}", ids(ours), ids(truth))
    } else if ours.values.len() != truth.values.len() {
        format!("{} values where the reference has {}", ours.values.len(), truth.values.len())
    } else if !within(if exact { &SAME } else { &DEGRADED }) {
        format!("numbers differ by up to {max_abs}")
    } else if exact && parted(&ours.decoded, &truth.decoded) {
        "the decoded tokens part".into()
    } else if job.edits() && !has_effect(ours) {
        "the edit changed nothing".into()
    } else {
        String::new()
    };
    let state = match (difference.is_empty(), exact || within(&SAME)) {
        (false, _) => State::SilentlyWrong,
        (true, true) => State::Supported,
        (true, false) => State::SupportedDegraded,
    };
    Check { state, max_abs, difference }
}

/// How far two numbers are apart; nothing is as far as what is not a number.
fn distance(a: f32, b: f32) -> f32 {
    let apart = if a == b { 0.0 } else { (a - b).abs() };
    if apart.is_nan() { f32::INFINITY } else { apart }
}

fn parted(ours: &[u32], theirs: &[u32]) -> bool {
    let agree = ours.iter().zip(theirs).take_while(|(a, b)| a == b).count();
    agree < ours.len().min(theirs.len()).min(AGREE)
}

/// Whether a job's numbers differ from those of the same job without its edit.
fn has_effect(answer: &Answer) -> bool {
    answer.control.is_empty()
        || answer.control.iter().zip(&answer.values).any(|(a, b)| distance(*a, *b) > SAME.absolute)
}

impl Job {
    /// Whether it changes the model's numbers.
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
        let truth = answer(&[(7, 3.0), (8, 1.0)], &[1.0, 2.0], &[]);
        let state = |ours: &Answer, exact| check(Job::Prefill, ours, Some(&truth), exact).state;
        assert_eq!(state(&truth, true), State::Supported);
        assert_eq!(state(&answer(&[(7, 3.001), (8, 1.0)], &[1.0, 2.0], &[]), true), State::Supported);
        assert_eq!(state(&answer(&[(7, 3.1), (8, 1.0)], &[1.0, 2.0], &[]), true), State::SilentlyWrong);
        assert_eq!(state(&answer(&[(7, 3.1), (9, 1.0)], &[1.0, 2.0], &[]), false), State::SupportedDegraded);
        assert_eq!(state(&answer(&[(8, 3.1), (7, 1.0)], &[1.0, 2.0], &[]), false), State::SilentlyWrong);
        assert_eq!(state(&answer(&[(7, 3.0), (8, 1.0)], &[1.0, f32::NAN], &[]), true), State::SilentlyWrong);
        assert_eq!(state(&answer(&[(7, 3.0), (8, 1.0)], &[1.0], &[]), true), State::SilentlyWrong);
        assert_eq!(check(Job::Prefill, &truth, None, true).state, State::NoReference);
    }

    #[test]
    fn an_edit_without_effect_is_wrong_even_where_both_sides_agree() {
        let dead = answer(&[(7, 3.0)], &[1.0, 2.0], &[1.0, 2.0]);
        let found = check(Job::Steer, &dead, Some(&dead), true);
        assert_eq!((found.state, found.difference.as_str()), (State::SilentlyWrong, "the edit changed nothing"));
        let alive = answer(&[(7, 3.0)], &[1.0, 2.0], &[1.5, 2.0]);
        assert_eq!(check(Job::Steer, &alive, Some(&alive), true).state, State::Supported);
    }

    #[test]
    fn decoded_tokens_must_agree() {
        let with = |tokens: &[u32]| Answer { decoded: tokens.to_vec(), ..answer(&[(7, 3.0)], &[], &[]) };
        let job = Job::Decode { steps: 3, rows: 1 };
        assert_eq!(check(job, &with(&[1, 2, 3]), Some(&with(&[1, 2, 3])), true).state, State::Supported);
        assert_eq!(check(job, &with(&[1, 2, 4]), Some(&with(&[1, 2, 3])), true).state, State::SilentlyWrong);
    }
}
