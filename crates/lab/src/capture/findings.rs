//! Explains the figures: the debugging advice of the original benchmark, answered by the
//! measurement.

use super::mode::Mode;
use super::overhead::Overhead;
use super::result::{CaptureResult, CaptureSuite};
use crate::report::{bytes, seconds};
use crate::stats::{Estimate, mean, median};
use serde::{Deserialize, Serialize};

/// Differences of at most this fraction are called no difference.
const NEGLIGIBLE: f64 = 0.02;

/// An explanation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// The question that it answers.
    pub about: String,
    /// The answer.
    pub text: String,
}

/// Formats a fraction as a signed percentage with its interval.
pub(super) fn percent(estimate: &Estimate) -> String {
    if !estimate.mean.is_finite() {
        return "—".into();
    }
    let interval = match estimate.low.is_finite() && estimate.high.is_finite() {
        true => format!(" ({:+.1} to {:+.1} %)", estimate.low * 100.0, estimate.high * 100.0),
        false => String::new(),
    };
    format!("{:+.2} %{interval}", estimate.mean * 100.0)
}

/// Answers the questions that the measurement can answer.
pub fn of(suite: &CaptureSuite) -> Vec<Finding> {
    let of = |mode: Mode| suite.overheads.iter().find(|overhead| overhead.mode == mode);
    let mut found = Vec::new();
    let mut add = |about: &str, text: Option<String>| {
        if let Some(text) = text {
            found.push(Finding { about: about.into(), text });
        }
    };
    add("Do results vary?", of(Mode::Baseline).map(|aa| noise(aa, suite.rounds)));
    add("Does armed machinery cost anything?", of(Mode::ZeroLayer).map(|zero| armed(zero, of(Mode::Baseline), suite)));
    add("What does a callback cost?", of(Mode::NoopHook).map(callback));
    let all = [Mode::AllLayers, Mode::Half, Mode::Custom, Mode::Single]
        .into_iter()
        .find_map(|mode| Some((of(mode)?, suite.mode(mode)?)));
    add("Where does the time of captures go?", all.and_then(|(overhead, result)| copies(overhead, result)));
    add("What does fetching cost?", all.map(|(overhead, result)| fetching(overhead, result)));
    add("Is the cost linear in layers?", linearity(suite));
    add("What does the scheduler cost?", suite.mode(Mode::Baseline).map(scheduling));
    add("Is memory as predicted?", all.and_then(|(_, result)| memory(result, suite.mode(Mode::Baseline)?)));
    found
}

fn noise(aa: &Overhead, rounds: usize) -> String {
    let spread = percent(&aa.generation);
    let half = aa.generation.half_width();
    match () {
        () if !half.is_finite() => {
            format!("unknown: the baseline against itself is {spread} in one round; measure at least --rounds 2")
        }
        () if half > NEGLIGIBLE => format!(
            "noisy: the baseline against itself is {spread} over {rounds} rounds, so smaller differences cannot be seen; \
             raise --rounds, stop other programs, or read the CPU times, where it is {}",
            percent(&aa.cpu)
        ),
        () => format!("no: the baseline against itself is {spread} over {rounds} rounds"),
    }
}

fn armed(zero: &Overhead, aa: Option<&Overhead>, suite: &CaptureSuite) -> String {
    let small = |estimate: &Estimate| estimate.mean.abs() <= NEGLIGIBLE;
    let noisy = aa.is_none_or(|aa| !aa.generation.half_width().is_finite() || aa.generation.half_width() > NEGLIGIBLE);
    if !noisy && small(&zero.generation) {
        return format!("zero-layer overhead is {}: nothing to look for", percent(&zero.generation));
    }
    if noisy && (small(&zero.cpu) || !zero.cpu.is_significant()) {
        return format!(
            "zero-layer overhead is {} of CPU time: nothing to look for; wall time is too noisy to judge",
            percent(&zero.cpu)
        );
    }
    let split = suite.mode(Mode::ZeroLayer).and_then(|result| result.time_split);
    let outside = split.map_or_else(String::new, |split| {
        let more = split.outside_ops - split.outside_ops_without_plan;
        format!(
            "; in the profiled run the tapped ops took {} more, and the time outside ops {} more",
            signed(split.copy),
            signed(more)
        )
    });
    format!(
        "zero-layer overhead is {} of wall time and {} of CPU time{outside}",
        percent(&zero.generation),
        percent(&zero.cpu)
    )
}

fn signed(value: f64) -> String {
    if value < 0.0 { format!("−{}", seconds(-value)) } else { seconds(value) }
}

fn callback(hook: &Overhead) -> String {
    format!(
        "a callback that reads nothing costs {} at every layer of every pass: its rows are copied out and back, because it may \
         change them; a capture copies them once",
        percent(&hook.generation)
    )
}

fn copies(overhead: &Overhead, result: &CaptureResult) -> Option<String> {
    let split = result.time_split?;
    let generation = split.forward + split.copy + split.outside_ops;
    let (volume, name) = (result.captured_bytes.observed as f64, result.mode.name());
    let more = split.outside_ops - split.outside_ops_without_plan;
    let rate = if split.copy > 0.0 { format!(", {}/s", bytes(volume / split.copy)) } else { String::new() };
    let share = split.copy / generation * 100.0;
    let verdict = match () {
        () if share.abs() <= 1.0 => "copies are not the cost to look for",
        () if split.copy >= more => {
            "most of it is copies: fewer layers, positions or a reduction at capture time cost less"
        }
        () => "most of it is outside ops: allocation of buffers and scheduling",
    };
    Some(format!(
        "{name} costs {} of wall time and {} of CPU time. Of a profiled generation of {}, the forward pass takes {}, copies into \
         capture buffers {} ({share:.1} %; {}{rate}), and the time outside ops is {} ({} without a plan): {verdict}",
        percent(&overhead.generation),
        percent(&overhead.cpu),
        seconds(generation),
        seconds(split.forward),
        signed(split.copy),
        bytes(volume),
        seconds(split.outside_ops),
        seconds(split.outside_ops_without_plan)
    ))
}

fn fetching(overhead: &Overhead, result: &CaptureResult) -> String {
    let of = |part: fn(&super::result::Iteration) -> f64| mean(&result.iterations.iter().map(part).collect::<Vec<_>>());
    let (hand_over, copy) = (of(|i| i.fetch.hand_over), of(|i| i.fetch.copy));
    let written: Vec<f64> = result.iterations.iter().filter_map(|i| i.fetch.file).collect();
    let file = match written.is_empty() {
        true => String::new(),
        false => format!("; writing them to a file and syncing it takes {}", seconds(median(&written))),
    };
    format!(
        "{} of the baseline's generation: handing over {} of arrays takes {}, copying them to fresh memory {} ({}/s). Python arrays \
         borrow the captures, so a caller that does not copy pays only the former{file}",
        percent(&overhead.fetch),
        bytes(result.captured_bytes.observed as f64),
        seconds(hand_over),
        seconds(copy),
        bytes(result.captured_bytes.observed as f64 / copy.max(1e-9))
    )
}

fn linearity(suite: &CaptureSuite) -> Option<String> {
    let fit = suite.fit.as_ref()?;
    let source = fit.per_layer_cost.as_ref().map_or_else(String::new, |cost| {
        let (low, high) = (signed(cost.low), signed(cost.high));
        let interval = if cost.low.is_finite() { format!(" ({low} to {high})") } else { String::new() };
        format!("; (all-layers − zero-layer) / layers is {}{interval}", signed(cost.mean))
    });
    let scatter = match fit.per_layer.is_significant() {
        true => format!("the fit explains {:.0} % of the variation", fit.r2 * 100.0),
        false => "the slope cannot be distinguished from 0, so linearity cannot be judged here".into(),
    };
    Some(format!(
        "one more captured layer adds {} ({} to {}){source}; {scatter}",
        signed(fit.per_layer.mean),
        signed(fit.per_layer.low),
        signed(fit.per_layer.high)
    ))
}

fn scheduling(base: &CaptureResult) -> String {
    let share: Vec<f64> = base.iterations.iter().map(|i| i.outside_passes_time / i.generation_time).collect();
    format!(
        "{:.2} % of the generation is outside passes (submission, admission, delivery of tokens, waking the caller); up to {} requests \
         share a pass",
        median(&share) * 100.0,
        base.true_concurrency
    )
}

fn memory(result: &CaptureResult, base: &CaptureResult) -> Option<String> {
    let captured = result.captured_bytes;
    let more = result.peak_memory_bytes as f64 - base.peak_memory_bytes as f64;
    let agree = if captured.observed == captured.predicted { "exactly as predicted" } else { "not as predicted" };
    (captured.observed > 0).then(|| {
        format!(
            "{} of captures, {agree}; peak memory is {} above the baseline's (the captures, and one request twice while fetching)",
            bytes(captured.observed as f64),
            bytes(more)
        )
    })
}
