//! Measures benchmarks in rounds, so that a change of the machine shows as a difference between rounds, not between benchmarks.

use super::questions::{Case, Stopwatch};
use super::result::{Outcome, Row, Settings, Times};
use super::{Benchmark, Category, Hub};
use crate::memory::{forget_peak, status};
use crate::protocol::Allocations;
use crate::stats;

/// Passes over the list. The rounds of two runs of one benchmark do not overlap by chance once in 12,870 times.
pub const ROUNDS: usize = 8;

/// Measures benchmarks.
pub fn measure(benchmarks: &[Benchmark], settings: &Settings, hub: Option<&Hub>) -> Vec<Row> {
    let mut all: Vec<Measured> = benchmarks.iter().map(|benchmark| Measured::new(benchmark, hub)).collect();
    for round in 0..ROUNDS {
        all.iter_mut().for_each(|measured| measured.round(settings, round));
    }
    for measured in &mut all {
        if settings.memory_profiling || measured.benchmark.category == Category::Memory {
            measured.count_allocations();
        }
    }
    all.into_iter().map(Measured::into_row).collect()
}

/// A benchmark and its samples so far.
struct Measured<'a> {
    benchmark: &'a Benchmark,
    hub: Option<&'a Hub>,
    nanoseconds: Vec<u64>,
    /// The mean of each round, in seconds.
    round_means: Vec<f64>,
    /// The first answer that was not the expected one; nothing is asked after it.
    wrong: Option<String>,
    peak: u64,
    allocations: Option<Allocations>,
}

impl<'a> Measured<'a> {
    fn new(benchmark: &'a Benchmark, hub: Option<&'a Hub>) -> Self {
        let (nanoseconds, round_means) = (Vec::new(), Vec::new());
        Measured { benchmark, hub, nanoseconds, round_means, wrong: None, peak: 0, allocations: None }
    }

    /// Asks once, and notes a wrong answer.
    fn ask(&mut self, counts: bool) -> Stopwatch {
        let Benchmark { path, expected, question, .. } = self.benchmark;
        let mut watch = Stopwatch { counts, ..Stopwatch::default() };
        let observed = (question.ask)(&Case { path, expected, hub: self.hub }, &mut watch);
        if observed != *expected {
            self.wrong = Some(observed);
        }
        watch
    }

    fn round(&mut self, settings: &Settings, round: usize) {
        let one_in = self.benchmark.question.one_in;
        let iterations = settings.iterations.div_ceil(one_in);
        let share = iterations * (round + 1) / ROUNDS - iterations * round / ROUNDS;
        if share == 0 {
            return;
        }
        forget_peak();
        let (warmup, before) = (settings.warmup.div_ceil(one_in * ROUNDS), self.nanoseconds.len());
        for iteration in 0..warmup + share {
            if self.wrong.is_some() {
                return;
            }
            let watch = self.ask(false);
            if iteration >= warmup {
                self.nanoseconds.push(watch.nanoseconds);
            }
        }
        let total: u64 = self.nanoseconds[before..].iter().sum();
        self.round_means.push(total as f64 / 1e9 / share as f64);
        self.peak = self.peak.max(status("VmHWM"));
    }

    fn count_allocations(&mut self) {
        if self.wrong.is_none() {
            self.allocations = self.ask(true).allocations;
        }
    }

    fn into_row(self) -> Row {
        let (benchmark, ok) = (self.benchmark, self.wrong.is_none());
        let expected = benchmark.expected.clone();
        // A wrong answer has no time and no memory.
        let samples_ns = if ok { self.nanoseconds } else { Vec::new() };
        let allocations = self.allocations.filter(|_| ok);
        Row {
            name: benchmark.name.clone(),
            category: benchmark.category,
            function: benchmark.question.function.into(),
            iterations: samples_ns.len(),
            times: ok.then(|| times(&samples_ns, self.round_means)),
            memory_delta_mb: allocations.map(|found| found.peak_live as f64 / 1e6),
            metadata: benchmark.metadata.clone(),
            outcome: Outcome { observed: self.wrong.unwrap_or_else(|| expected.clone()), expected, ok },
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
    // The sample at this index of the sorted ones, without interpolation.
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
