//! Splits one time budget over several suites in proportion to their cost.

use crate::suite::{Suite, WorkerKind};

/// Cost of a peer's process in units of one Pellucid process: a peer imports its library first.
const PEER_COST: f64 = 3.0;

/// Estimated cost of one round of a suite (one pair per pairing), in units of one Pellucid process.
pub fn round_cost(suite: &Suite) -> f64 {
    let process_cost = |worker: WorkerKind| if worker == WorkerKind::Pellucid { 1.0 } else { PEER_COST };
    let pairings = suite.workloads.iter().flat_map(|workload| suite.pairings(workload));
    pairings.map(|(before, after)| process_cost(before.worker) + process_cost(after.worker)).sum()
}

/// The time left, and the total cost of the suites that have not run yet.
#[derive(Clone, Copy, Debug)]
pub struct TimeBudget {
    remaining_s: f64,
    remaining_cost: f64,
}

impl TimeBudget {
    /// A budget of `seconds` for suites of these costs.
    pub fn new(seconds: f64, costs: impl IntoIterator<Item = f64>) -> TimeBudget {
        TimeBudget { remaining_s: seconds, remaining_cost: costs.into_iter().sum() }
    }

    /// Returns the seconds for the next suite: its share, by cost, of the remaining time.
    pub fn share(&self, cost: f64) -> f64 {
        (self.remaining_s * cost / self.remaining_cost.max(cost)).max(0.0)
    }

    /// Subtracts a finished suite. Time that it left unused is shared by the remaining suites.
    pub fn spend(&mut self, cost: f64, seconds: f64) {
        self.remaining_s -= seconds;
        self.remaining_cost -= cost;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unused_time_goes_to_the_remaining_suites() {
        let costs = [10.0, 30.0, 60.0];
        let mut budget = TimeBudget::new(100.0, costs);
        assert_eq!(budget.share(10.0), 10.0);
        budget.spend(10.0, 1.0);
        assert_eq!(budget.share(30.0), 33.0);
        budget.spend(30.0, 33.0);
        assert!((budget.share(60.0) - 66.0).abs() < 1e-9);
        // A suite that exceeds its share leaves less, down to zero, for the suites after it.
        budget.spend(60.0, 70.0);
        assert_eq!(budget.share(5.0), 0.0);
    }
}
