//! Measures benchmarks in rounds, so that a change of the machine appears as variation between
//! rounds and not as a difference between benchmarks.

use super::queries::{QueryInput, Stopwatch};
use super::result::{BenchmarkResult, CheckedAnswer, IdentifySettings, Times};
use super::{Benchmark, Category, Hub};
use crate::memory::{reset_peak_rss, status_bytes};
use crate::protocol::Allocations;
use crate::stats;

/// Number of rounds. Complete separation of the rounds of two results by chance has a probability
/// of 1 in 12,870.
pub const ROUNDS: usize = 8;

/// Measures all benchmarks.
pub fn measure(benchmarks: &[Benchmark], settings: &IdentifySettings, hub: Option<&Hub>) -> Vec<BenchmarkResult> {
    let mut all: Vec<BenchmarkRun> = benchmarks.iter().map(|benchmark| BenchmarkRun::new(benchmark, hub)).collect();
    for round in 0..ROUNDS {
        all.iter_mut().for_each(|measured| measured.run_round(settings, round));
    }
    for measured in &mut all {
        if settings.memory_profiling || measured.benchmark.category == Category::Memory {
            measured.count_allocations();
        }
    }
    all.into_iter().map(BenchmarkRun::into_row).collect()
}

/// A benchmark and its samples so far.
struct BenchmarkRun<'a> {
    benchmark: &'a Benchmark,
    hub: Option<&'a Hub>,
    nanoseconds: Vec<u64>,
    /// Mean of each round, in seconds.
    round_means: Vec<f64>,
    /// The first wrong answer. The benchmark stops there.
    wrong: Option<String>,
    peak: u64,
    allocations: Option<Allocations>,
}

impl<'a> BenchmarkRun<'a> {
    fn new(benchmark: &'a Benchmark, hub: Option<&'a Hub>) -> Self {
        let (nanoseconds, round_means) = (Vec::new(), Vec::new());
        BenchmarkRun { benchmark, hub, nanoseconds, round_means, wrong: None, peak: 0, allocations: None }
    }

    /// Runs the query once and records a wrong answer.
    fn run_query(&mut self, count_allocations: bool) -> Stopwatch {
        let Benchmark { path, expected, query, .. } = self.benchmark;
        let mut watch = Stopwatch { count_allocations, ..Stopwatch::default() };
        let observed = (query.run)(&QueryInput { path, expected, hub: self.hub }, &mut watch);
        if observed != *expected {
            self.wrong = Some(observed);
        }
        watch
    }

    fn run_round(&mut self, settings: &IdentifySettings, round: usize) {
        let iteration_divisor = self.benchmark.query.iteration_divisor;
        let iterations = settings.iterations.div_ceil(iteration_divisor);
        let share = iterations * (round + 1) / ROUNDS - iterations * round / ROUNDS;
        if share == 0 {
            return;
        }
        reset_peak_rss();
        let (warmup, before) = (settings.warmup.div_ceil(iteration_divisor * ROUNDS), self.nanoseconds.len());
        for iteration in 0..warmup + share {
            if self.wrong.is_some() {
                return;
            }
            let watch = self.run_query(false);
            if iteration >= warmup {
                self.nanoseconds.push(watch.nanoseconds);
            }
        }
        let total: u64 = self.nanoseconds[before..].iter().sum();
        self.round_means.push(total as f64 / 1e9 / share as f64);
        self.peak = self.peak.max(status_bytes("VmHWM"));
    }

    fn count_allocations(&mut self) {
        if self.wrong.is_none() {
            self.allocations = self.run_query(true).allocations;
        }
    }

    fn into_row(self) -> BenchmarkResult {
        let (benchmark, ok) = (self.benchmark, self.wrong.is_none());
        let expected = benchmark.expected.clone();
        // A wrong answer has neither time nor memory.
        let samples_ns = if ok { self.nanoseconds } else { Vec::new() };
        let allocations = self.allocations.filter(|_| ok);
        BenchmarkResult {
            name: benchmark.name.clone(),
            category: benchmark.category,
            function: benchmark.query.function.into(),
            iterations: samples_ns.len(),
            times: ok.then(|| times(&samples_ns, self.round_means)),
            memory_delta_mb: allocations.map(|found| found.peak_live as f64 / 1e6),
            metadata: benchmark.metadata.clone(),
            outcome: CheckedAnswer { observed: self.wrong.unwrap_or_else(|| expected.clone()), expected, ok },
            samples_ns,
            peak_rss_kb: (ok && self.peak > 0).then_some(self.peak / 1024),
            alloc_count: allocations.map(|found| found.count),
            alloc_bytes: allocations.map(|found| found.bytes),
        }
    }
}

/// Computes the statistics of at least one sample.
pub fn times(samples_ns: &[u64], round_means: Vec<f64>) -> Times {
    let mut seconds: Vec<f64> = samples_ns.iter().map(|&nanoseconds| nanoseconds as f64 / 1e9).collect();
    seconds.sort_by(f64::total_cmp);
    let last = seconds.len() - 1;
    // Nearest rank, without interpolation.
    let percentile = |share: f64| seconds[((seconds.len() as f64 * share) as usize).min(last)];
    Times {
        total_time: seconds.iter().sum(),
        mean_time: stats::mean(&seconds),
        median_time: stats::median(&seconds),
        std_dev: if last == 0 { 0.0 } else { stats::standard_deviation(&seconds) },
        min_time: seconds[0],
        max_time: seconds[last],
        p95_time: percentile(0.95),
        p99_time: percentile(0.99),
        round_means,
    }
}
