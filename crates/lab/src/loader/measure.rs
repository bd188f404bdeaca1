//! The clock: benchmarks asked in rounds, so that a machine that changes meanwhile shows in the difference between rounds and not as a
//! difference between benchmarks.

use super::Category;
use super::bench::{Benchmark, Sample};
use super::result::{Outcome, Row, Times};
use super::settings::Settings;
use crate::memory::{forget_peak, status};
use crate::protocol::Allocations;
use crate::stats;

/// How often the whole list is gone through. Two runs of a benchmark whose rounds do not overlap are so by chance once in 12,870 times.
pub const ROUNDS: usize = 8;

/// Measures benchmarks. `heard` is told the name of each before its turn.
pub fn measure(benchmarks: &mut [Benchmark], settings: &Settings, heard: &mut dyn FnMut(&str)) -> Vec<Row> {
    let mut taken: Vec<Taken> = benchmarks.iter().map(|_| Taken::default()).collect();
    for round in 0..ROUNDS {
        for (benchmark, taken) in benchmarks.iter_mut().zip(&mut taken) {
            heard(&benchmark.name);
            taken.round(benchmark, settings, round);
        }
    }
    let rows = benchmarks.iter_mut().zip(taken);
    rows.map(|(benchmark, mut taken)| {
        if settings.memory_profiling || benchmark.category == Category::Memory {
            taken.count(benchmark);
        }
        taken.row(benchmark)
    })
    .collect()
}

/// What a benchmark gave so far.
#[derive(Default)]
struct Taken {
    nanoseconds: Vec<u64>,
    /// The seconds of an iteration in each round.
    rounds: Vec<f64>,
    /// The first answer that was not the expected one.
    wrong: Option<String>,
    peak: u64,
    allocations: Option<Allocations>,
}

impl Taken {
    fn round(&mut self, benchmark: &mut Benchmark, settings: &Settings, round: usize) {
        let iterations = settings.iterations.div_ceil(benchmark.one_in);
        let share = iterations * (round + 1) / ROUNDS - iterations * round / ROUNDS;
        if share == 0 || self.wrong.is_some() {
            return;
        }
        forget_peak();
        for _ in 0..settings.warmup.div_ceil(benchmark.one_in * ROUNDS) {
            self.answered(benchmark.timed(), benchmark);
        }
        let before = self.nanoseconds.len();
        for _ in 0..share {
            if self.wrong.is_some() {
                return;
            }
            let sample = benchmark.timed();
            self.nanoseconds.push(sample.nanoseconds);
            self.answered(sample, benchmark);
        }
        let seconds: u64 = self.nanoseconds[before..].iter().sum();
        self.rounds.push(seconds as f64 / 1e9 / share as f64);
        self.peak = self.peak.max(status("VmHWM"));
    }

    fn count(&mut self, benchmark: &mut Benchmark) {
        if self.wrong.is_none() {
            let sample = benchmark.counted();
            self.allocations = sample.allocations;
            self.answered(sample, benchmark);
        }
    }

    fn answered(&mut self, sample: Sample, benchmark: &Benchmark) {
        if sample.observed != benchmark.expected && self.wrong.is_none() {
            self.wrong = Some(sample.observed);
        }
    }

    fn row(self, benchmark: &Benchmark) -> Row {
        let ok = self.wrong.is_none();
        let observed = self.wrong.unwrap_or_else(|| benchmark.expected.clone());
        // A wrong answer has no time, and costs nothing that anyone should know.
        let samples_ns = if ok { self.nanoseconds } else { Vec::new() };
        let allocations = self.allocations.filter(|_| ok);
        Row {
            name: benchmark.name.clone(),
            category: benchmark.category,
            function: benchmark.function.into(),
            iterations: samples_ns.len(),
            times: ok.then(|| times(&samples_ns, self.rounds)),
            memory_delta_mb: allocations.map(|found| found.peak_live as f64 / 1e6),
            metadata: benchmark.metadata.clone(),
            outcome: Outcome { expected: benchmark.expected.clone(), observed, ok },
            samples_ns,
            peak_rss_kb: (ok && self.peak > 0).then_some(self.peak / 1024),
            alloc_count: allocations.map(|found| found.count),
            alloc_bytes: allocations.map(|found| found.bytes),
        }
    }
}

/// The statistics of samples, of which there is at least one.
pub fn times(samples_ns: &[u64], round_means: Vec<f64>) -> Times {
    let mut seconds: Vec<f64> = samples_ns.iter().map(|&nanoseconds| nanoseconds as f64 / 1e9).collect();
    seconds.sort_by(f64::total_cmp);
    let last = seconds.len() - 1;
    // The value at this place of the sorted ones, not between two of them.
    let percentile = |share: f64| seconds[((seconds.len() as f64 * share) as usize).min(last)];
    Times {
        total_time: seconds.iter().sum(),
        mean_time: stats::mean(&seconds),
        median_time: stats::median(&seconds),
        std_dev: if last == 0 { 0.0 } else { stats::deviation(&seconds) },
        min_time: seconds[0],
        max_time: seconds[last],
        p95_time: percentile(0.95),
        p99_time: percentile(0.99),
        round_means,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::rc::Rc;

    #[test]
    fn percentiles_are_the_values_at_their_places() {
        let samples: Vec<u64> = (1..=100).rev().map(|i| i * 1_000_000).collect();
        let found = times(&samples, vec![]);
        assert_eq!((found.p95_time, found.p99_time), (0.096, 0.1));
        assert_eq!((found.min_time, found.max_time, found.median_time), (0.001, 0.1, 0.0505));
        assert!((found.mean_time - 0.0505).abs() < 1e-12 && (found.total_time - 5.05).abs() < 1e-9);
        assert!((found.std_dev - 0.029_011_491_975_882_016).abs() < 1e-12, "{}", found.std_dev);
        let one = times(&[2_000], vec![]);
        assert_eq!((one.std_dev, one.p95_time, one.p99_time), (0.0, 2e-6, 2e-6));
    }

    fn asked(right: usize) -> (Benchmark, Rc<Cell<usize>>) {
        let count = Rc::new(Cell::new(0));
        let counter = Rc::clone(&count);
        let run = move || {
            counter.set(counter.get() + 1);
            counter.get() <= right
        };
        let say = |right: &bool| if *right { "right".to_string() } else { "wrong".into() };
        (Benchmark::new("b", Category::Detection, "f", "right", run, say), count)
    }

    #[test]
    fn every_iteration_is_timed_once_after_its_warmup() {
        let settings = Settings { iterations: 20, warmup: 8, ..Settings::default() };
        let (benchmark, count) = asked(usize::MAX);
        let rows = measure(&mut [benchmark], &settings, &mut |_| {});
        let times = rows[0].times.as_ref().expect("right answers have times");
        assert_eq!((rows[0].iterations, rows[0].samples_ns.len(), times.round_means.len()), (20, 20, ROUNDS));
        assert_eq!(count.get(), 28);
        assert!(rows[0].outcome.ok && times.min_time <= times.mean_time && times.mean_time <= times.max_time);
        let (benchmark, count) = asked(usize::MAX);
        let few = Settings { iterations: 3, warmup: 0, ..Settings::default() };
        let rows = measure(&mut [benchmark.slow()], &few, &mut |_| {});
        assert_eq!((rows[0].iterations, count.get()), (1, 1), "a tenth, and at least one");
    }

    #[test]
    fn one_wrong_answer_leaves_no_time_at_all() {
        let settings = Settings { iterations: 20, warmup: 0, ..Settings::default() };
        let (benchmark, count) = asked(15);
        let row = measure(&mut [benchmark], &settings, &mut |_| {}).remove(0);
        assert_eq!(row.outcome, Outcome { expected: "right".into(), observed: "wrong".into(), ok: false });
        assert!(row.times.is_none() && row.samples_ns.is_empty() && row.iterations == 0);
        assert_eq!(count.get(), 16, "what is wrong is not asked again");
    }
}
