//! The costs of each mode relative to the baseline of its round, with confidence intervals.

use super::mode::Mode;
use super::result::{CaptureRun, Iteration};
use crate::stats::{Estimate, confidence_interval, fit_with_intervals, least_squares, mean, median};
use serde::{Deserialize, Serialize};

/// Seed of the bootstrap.
const SEED: u64 = 1;

/// One process of a suite.
#[derive(Clone, Debug, PartialEq)]
pub struct ModeProcess {
    /// Round, from 0.
    pub round: usize,
    /// Mode.
    pub mode: Mode,
    /// Its answer.
    pub run: CaptureRun,
}

/// The cost of a mode as fractions of the baseline's generation time, paired by round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Overhead {
    /// The mode. For the baseline: its second process of a round against its first (A/A control).
    pub mode: Mode,
    /// Captured layers.
    pub layers: usize,
    /// `(generation − baseline generation) / baseline generation`.
    pub generation: Estimate,
    /// The same for CPU time, which other programs on the machine disturb less.
    pub cpu: Estimate,
    /// `fetch / baseline generation`.
    pub fetch: Estimate,
    /// Sum of generation and fetch overhead.
    pub total: Estimate,
    /// Relative change of the generation time from the first to the last iteration of a process;
    /// absent with one iteration.
    pub drift: Option<Estimate>,
}

/// Generation time against the number of captured layers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LayerFit {
    /// Seconds without captures.
    pub base: Estimate,
    /// Seconds per captured layer, by the fit.
    pub per_layer: Estimate,
    /// Coefficient of determination.
    pub r2: f64,
    /// `(all_layers − zero_layer) / layers` in seconds, if both were measured.
    pub per_layer_cost: Option<Estimate>,
    /// (captured layers, generation seconds) of each process, scaled to the mean baseline.
    pub points: Vec<(f64, f64)>,
}

/// State of a bar.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BarState {
    /// The whole interval is within the limit.
    Met,
    /// The whole interval is beyond the limit.
    Missed,
    /// The interval contains the limit.
    Undecided,
}

impl BarState {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            BarState::Met => "met",
            BarState::Missed => "missed",
            BarState::Undecided => "undecided",
        }
    }
}

/// A limit on a relative cost.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Bar {
    /// The quantity.
    pub name: String,
    /// Largest value, as a fraction.
    pub limit: f64,
    /// Whether negative values are limited too.
    pub two_sided: bool,
    /// The measured value.
    pub value: Estimate,
    /// The same in CPU time, where it is a ratio of times of computation.
    pub cpu: Option<Estimate>,
    /// Whether it is within the limit.
    pub state: BarState,
}

impl Bar {
    /// Judges a value. Beyond the limit it must also exceed the noise floor, the half-width of the
    /// A/A control's interval.
    fn new(name: &str, limit: f64, two_sided: bool, value: Estimate, cpu: Option<Estimate>, noise: f64) -> Bar {
        let lower = if two_sided { -limit } else { f64::NEG_INFINITY };
        let state = match () {
            () if value.low >= lower && value.high <= limit => BarState::Met,
            () if value.low > limit + noise || value.high < lower - noise => BarState::Missed,
            () => BarState::Undecided,
        };
        Bar { name: name.into(), limit, two_sided, value, cpu, state }
    }
}

/// A process's median of a quantity.
fn of_process(process: &ModeProcess, quantity: fn(&Iteration) -> f64) -> f64 {
    median(&process.run.iterations.iter().map(quantity).collect::<Vec<_>>())
}

/// The processes of a mode in a round, in the order in which they ran.
fn in_round(processes: &[ModeProcess], mode: Mode, round: usize) -> impl Iterator<Item = &ModeProcess> {
    processes.iter().filter(move |process| process.mode == mode && process.round == round)
}

/// Mean over a mode's processes of a round; `None` without any.
fn round_value(processes: &[ModeProcess], mode: Mode, round: usize, quantity: fn(&Iteration) -> f64) -> Option<f64> {
    let values: Vec<f64> = in_round(processes, mode, round).map(|process| of_process(process, quantity)).collect();
    (!values.is_empty()).then(|| mean(&values))
}

fn rounds(processes: &[ModeProcess]) -> std::ops::Range<usize> {
    0..processes.iter().map(|process| process.round + 1).max().unwrap_or(0)
}

/// Computes the overheads of all modes that ran, the A/A control first.
pub fn overheads(processes: &[ModeProcess], layers: impl Fn(Mode) -> usize) -> Vec<Overhead> {
    let mut modes: Vec<Mode> = processes.iter().map(|process| process.mode).collect();
    modes.sort_unstable();
    modes.dedup();
    modes.into_iter().map(|mode| overhead(processes, mode, layers(mode))).collect()
}

fn overhead(processes: &[ModeProcess], mode: Mode, layers: usize) -> Overhead {
    let generation = relative(processes, mode, |i| i.generation_time);
    let fetch: Vec<f64> = rounds(processes)
        .filter_map(|round| {
            let base = round_value(processes, Mode::Baseline, round, |i| i.generation_time)?;
            Some(round_value(processes, mode, round, |i| i.fetch_time)? / base)
        })
        .collect();
    let total: Vec<f64> = generation.iter().zip(&fetch).map(|(generation, fetch)| generation + fetch).collect();
    let estimate = |values: &[f64]| confidence_interval(values, SEED);
    Overhead {
        mode,
        layers,
        generation: estimate(&generation),
        cpu: estimate(&relative(processes, mode, |i| i.cpu_time)),
        fetch: estimate(&fetch),
        total: estimate(&total),
        drift: drift(processes.iter().filter(|process| process.mode == mode)),
    }
}

/// For each round, the mode's value relative to the baseline's, minus 1. The baseline itself is
/// compared with its other process of the round.
fn relative(processes: &[ModeProcess], mode: Mode, quantity: fn(&Iteration) -> f64) -> Vec<f64> {
    let of_round = |round: usize| {
        if mode == Mode::Baseline {
            let values: Vec<f64> = in_round(processes, mode, round).map(|p| of_process(p, quantity)).collect();
            return Some(values.get(1)? / values[0] - 1.0);
        }
        let base = round_value(processes, Mode::Baseline, round, quantity)?;
        Some(round_value(processes, mode, round, quantity)? / base - 1.0)
    };
    rounds(processes).filter_map(of_round).collect()
}

/// Relative change over the iterations of a process, by a linear fit.
fn drift<'p>(processes: impl Iterator<Item = &'p ModeProcess>) -> Option<Estimate> {
    let of_process = |process: &ModeProcess| {
        let times: Vec<f64> = process.run.iterations.iter().map(|i| i.generation_time).collect();
        let rows: Vec<Vec<f64>> = (0..times.len()).map(|i| vec![1.0, i as f64]).collect();
        let fit = least_squares(&rows, &times).filter(|_| times.len() > 1)?;
        Some(fit.coefficients[1] * (times.len() - 1) as f64 / mean(&times))
    };
    let changes: Vec<f64> = processes.filter_map(of_process).collect();
    (!changes.is_empty()).then(|| confidence_interval(&changes, SEED))
}

/// Fits generation time against captured layers; `None` with fewer than three numbers of layers.
/// Modes without captures other than the zero-layer mode are left out.
pub fn fit(processes: &[ModeProcess], layers: impl Fn(Mode) -> usize) -> Option<LayerFit> {
    let generation: fn(&Iteration) -> f64 = |i| i.generation_time;
    let base_of = |round: usize| round_value(processes, Mode::Baseline, round, generation);
    let mean_base = mean(&rounds(processes).filter_map(base_of).collect::<Vec<_>>());
    let fitted = |process: &&ModeProcess| process.mode.captures() || process.mode == Mode::ZeroLayer;
    let points: Vec<(f64, f64)> = processes
        .iter()
        .filter(fitted)
        .filter_map(|process| {
            // Relative to its round, so that slow rounds do not add scatter.
            let scale = mean_base / base_of(process.round)?;
            Some((layers(process.mode) as f64, of_process(process, generation) * scale))
        })
        .collect();
    let mut counts: Vec<usize> = points.iter().map(|(layers, _)| *layers as usize).collect();
    counts.sort_unstable();
    counts.dedup();
    if counts.len() < 3 {
        return None;
    }
    let rows: Vec<Vec<f64>> = points.iter().map(|(layers, _)| vec![1.0, *layers]).collect();
    let times: Vec<f64> = points.iter().map(|(_, seconds)| *seconds).collect();
    let (found, intervals) = fit_with_intervals(&rows, &times, SEED)?;
    let per_layer: Vec<f64> = rounds(processes)
        .filter_map(|round| {
            let all = round_value(processes, Mode::AllLayers, round, generation)?;
            let zero = round_value(processes, Mode::ZeroLayer, round, generation)?;
            Some((all - zero) / layers(Mode::AllLayers) as f64)
        })
        .collect();
    Some(LayerFit {
        base: intervals[0],
        per_layer: intervals[1],
        r2: found.r2,
        per_layer_cost: (!per_layer.is_empty()).then(|| confidence_interval(&per_layer, SEED)),
        points,
    })
}

/// Judges the limits that the engine promises.
pub fn bars(overheads: &[Overhead], processes: &[ModeProcess]) -> Vec<Bar> {
    let of = |mode: Mode| overheads.iter().find(|overhead| overhead.mode == mode);
    let noise = of(Mode::Baseline).map_or(f64::INFINITY, |aa| aa.generation.half_width());
    let mut bars = Vec::new();
    if let Some(zero) = of(Mode::ZeroLayer) {
        let name = "zero-layer generation, against baseline";
        bars.push(Bar::new(name, 0.02, true, zero.generation, Some(zero.cpu), noise));
    }
    if let Some(all) = of(Mode::AllLayers) {
        let name = "all-layers generation, against baseline";
        bars.push(Bar::new(name, 0.03, false, all.generation, Some(all.cpu), noise));
        bars.push(Bar::new("all-layers fetch, of baseline generation", 0.02, false, all.fetch, None, 0.0));
    }
    if let Some(drift) = drift(processes.iter()) {
        bars.push(Bar::new("drift from the first to the last iteration", 0.01, true, drift, None, noise));
    }
    bars
}
