//! What must not take longer, or more memory, than it may.

use super::Category;
use super::real::SMOLLM2;
use super::result::Row;
use serde::{Deserialize, Serialize};

/// A limit and what was measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Gate {
    /// What is limited.
    pub what: String,
    /// Of which quantity.
    pub quantity: Quantity,
    /// What it may be: seconds or megabytes.
    pub limit: f64,
    /// What the first suite of this kind allowed.
    pub first_limit: Option<f64>,
    /// The benchmark that comes nearest to the limit or exceeds it most; nothing where none was measured.
    pub benchmark: Option<String>,
    /// What it gave.
    pub value: Option<f64>,
    /// Whether that is allowed.
    pub state: State,
}

/// What a gate limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Quantity {
    /// The mean time, in seconds.
    MeanTime,
    /// The memory delta, in megabytes.
    MemoryDelta,
}

/// Whether a gate is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// It is.
    Met,
    /// It is not, in any round.
    Missed,
    /// The mean is too long, and some rounds were not: the machine is too restless to say.
    Undecided,
    /// It says nothing about this run.
    NotJudged,
}

impl State {
    /// Its name for people.
    pub fn name(self) -> &'static str {
        match self {
            State::Met => "met",
            State::Missed => "MISSED",
            State::Undecided => "undecided",
            State::NotJudged => "not judged",
        }
    }
}

struct Rule {
    what: &'static str,
    quantity: Quantity,
    limit: f64,
    first_limit: Option<f64>,
    covers: fn(&Row) -> bool,
}

const RULES: &[Rule] = &[
    time("architecture detection", 5e-5, Some(2e-3), |row| row.name.starts_with("architecture_detection_")),
    time("category detection", 5e-5, Some(1e-3), |row| row.name.starts_with("category_detection_")),
    time("SAE detection", 5e-5, Some(5e-4), |row| row.name.starts_with("sae_detection_")),
    time("omni detection", 5e-5, None, |row| row.name.starts_with("omni_detection_")),
    time("support check", 5e-5, None, |row| row.name.starts_with("support_check_")),
    time("full report of a sharded 7B directory", 2e-3, None, |row| row.name == "full_report_sharded_7b"),
    time("configuration of 1 MB", 1e-2, None, |row| row.name == "arch_variation_very_large_config"),
    time("SmolLM2-135M opened, ready to run", 0.3, None, |row| {
        row.name == "real_model_open" && row.metadata.get("model").is_some_and(|model| model == SMOLLM2)
    }),
    Rule {
        what: "memory of an answer",
        quantity: Quantity::MemoryDelta,
        limit: 0.2,
        first_limit: Some(5.0),
        covers: |row| {
            let quick = [Category::Detection, Category::Sae, Category::Support, Category::Memory, Category::Regression];
            quick.contains(&row.category)
        },
    },
];

const fn time(what: &'static str, limit: f64, first_limit: Option<f64>, covers: fn(&Row) -> bool) -> Rule {
    Rule { what, quantity: Quantity::MeanTime, limit, first_limit, covers }
}

/// Judges results. The times of a build without optimisation are shown and not judged.
pub fn judge(results: &[Row], optimised: bool) -> Vec<Gate> {
    RULES.iter().map(|rule| rule.judge(results, optimised)).collect()
}

impl Rule {
    fn judge(&self, results: &[Row], optimised: bool) -> Gate {
        let value = |row: &Row| match self.quantity {
            Quantity::MeanTime => row.times.as_ref().map(|times| times.mean_time),
            Quantity::MemoryDelta => row.memory_delta_mb,
        };
        let measured = results.iter().filter(|row| (self.covers)(row)).filter_map(|row| Some((row, value(row)?)));
        // Surely over the limit comes before perhaps over it, whatever the means.
        let over = |row: &Row, value: f64| match &row.times {
            _ if value < self.limit => State::Met,
            Some(times) if self.quantity == Quantity::MeanTime && times.spread().0 < self.limit => State::Undecided,
            _ => State::Missed,
        };
        let rank =
            |state: State| [State::Met, State::Undecided, State::Missed].iter().position(|known| *known == state);
        let worst = measured
            .map(|(row, value)| (row, value, over(row, value)))
            .max_by(|a, b| rank(a.2).cmp(&rank(b.2)).then(a.1.total_cmp(&b.1)));
        let judged = optimised || self.quantity == Quantity::MemoryDelta;
        Gate {
            what: self.what.into(),
            quantity: self.quantity,
            limit: self.limit,
            first_limit: self.first_limit,
            benchmark: worst.map(|(row, ..)| row.name.clone()),
            value: worst.map(|(_, value, _)| value),
            state: worst.filter(|_| judged).map_or(State::NotJudged, |(_, _, state)| state),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::result::{Outcome, Times};
    use super::*;

    fn row(name: &str, rounds: &[f64], memory: Option<f64>) -> Row {
        let mean = rounds.iter().sum::<f64>() / rounds.len() as f64;
        Row {
            name: name.into(),
            category: Category::Detection,
            function: "f".into(),
            iterations: 1,
            times: Some(Times {
                total_time: mean,
                mean_time: mean,
                median_time: mean,
                std_dev: 0.0,
                min_time: mean,
                max_time: mean,
                p95_time: mean,
                p99_time: mean,
                round_means: rounds.to_vec(),
            }),
            memory_delta_mb: memory,
            metadata: Default::default(),
            outcome: Outcome { expected: "a".into(), observed: "a".into(), ok: true },
            samples_ns: vec![1],
            peak_rss_kb: None,
            alloc_count: None,
            alloc_bytes: None,
        }
    }

    fn state(rows: &[Row], what: &str, optimised: bool) -> (State, Option<String>) {
        let gate = judge(rows, optimised).into_iter().find(|gate| gate.what == what).expect("a gate");
        (gate.state, gate.benchmark)
    }

    #[test]
    fn a_limit_is_met_missed_or_left_open_by_the_rounds() {
        let (met, missed) = ([2e-5, 4e-5], [6e-5, 9e-5]);
        let open = [3e-5, 9e-4];
        let of = |name: &str, rounds: &[f64]| row(&format!("omni_detection_{name}"), rounds, None);
        let said = |rows: &[Row]| state(rows, "omni detection", true);
        assert_eq!(said(&[of("a", &met)]), (State::Met, Some("omni_detection_a".into())));
        assert_eq!(said(&[of("a", &met), of("b", &open)]), (State::Undecided, Some("omni_detection_b".into())));
        assert_eq!(said(&[of("a", &open), of("b", &missed)]), (State::Missed, Some("omni_detection_b".into())));
        assert_eq!(said(&[]), (State::NotJudged, None));
        assert_eq!(state(&[of("a", &missed)], "omni detection", false).0, State::NotJudged, "a build for development");
    }

    #[test]
    fn memory_is_judged_in_every_build_and_opening_only_of_its_model() {
        let rows = [row("omni_detection_a", &[1e-5], Some(0.3)), row("real_model_open", &[9.0], None)];
        assert_eq!(state(&rows, "memory of an answer", false).0, State::Missed);
        assert_eq!(state(&rows, "SmolLM2-135M opened, ready to run", true).0, State::NotJudged);
        let mut rows = rows;
        rows[1].metadata.insert("model".into(), SMOLLM2.into());
        assert_eq!(state(&rows, "SmolLM2-135M opened, ready to run", true).0, State::Missed);
    }
}
