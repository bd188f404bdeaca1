//! One budget for several suites, shared out so that their sum is bounded however long each would like to take.

use crate::suite::{Suite, WorkerKind};

/// How many of our processes one of a peer is worth: it imports a library first.
const PEER: f64 = 3.0;

/// What a suite needs to be seen once, in processes of ours: both sides of one pair of each of its arms.
pub fn weight(suite: &Suite) -> f64 {
    let process = |worker: WorkerKind| if worker == WorkerKind::Pellucid { 1.0 } else { PEER };
    let arms = suite.workloads.iter().flat_map(|workload| suite.arms(workload));
    arms.map(|(before, after)| process(before.worker) + process(after.worker)).sum()
}

/// Seconds that are left, for those who are still to come.
#[derive(Clone, Copy, Debug)]
pub struct Purse {
    seconds: f64,
    weights: f64,
}

impl Purse {
    /// Seconds for everybody whose weights are given.
    pub fn new(seconds: f64, weights: impl IntoIterator<Item = f64>) -> Purse {
        Purse { seconds, weights: weights.into_iter().sum() }
    }

    /// What the next may spend: its part of what is left, by its weight among those still to come.
    pub fn share(&self, weight: f64) -> f64 {
        (self.seconds * weight / self.weights.max(weight)).max(0.0)
    }

    /// Takes away what it spent; what it left over is for the others.
    pub fn spend(&mut self, weight: f64, seconds: f64) {
        self.seconds -= seconds;
        self.weights -= weight;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_leaves_over_is_for_the_others_and_the_sum_is_bounded() {
        let weights = [10.0, 30.0, 60.0];
        let mut purse = Purse::new(100.0, weights);
        assert_eq!(purse.share(10.0), 10.0);
        purse.spend(10.0, 1.0);
        assert_eq!(purse.share(30.0), 33.0);
        purse.spend(30.0, 33.0);
        assert!((purse.share(60.0) - 66.0).abs() < 1e-9);
        // One that takes more than its part takes it from those after it, never from the whole.
        purse.spend(60.0, 70.0);
        assert_eq!(purse.share(5.0), 0.0);
    }
}
