//! Distribution plot: every process's value, one strip per variant.

use super::series::variants;
use super::svg::{Axis, PlotRow, byte_tick, escape, mark, rows, second_tick, variant_style, vertical_line};
use crate::report::format::quantity;
use crate::result::SessionResult;
use crate::stats::median;
use crate::suite::{Metric, Workload};

const HEIGHT: f64 = 34.0;
/// Vertical positions of the marks, in turn, so that equal values do not hide each other.
const LANES: [f64; 5] = [17.0, 9.0, 25.0, 13.0, 21.0];

/// Draws a plot per workload and metric; `None` without values.
pub(super) fn spread(result: &SessionResult) -> Option<String> {
    let mut out = String::new();
    for workload in &result.suite.workloads {
        for &metric in &workload.metrics {
            out += &plot(result, workload, metric).unwrap_or_default();
        }
    }
    (!out.is_empty()).then_some(out)
}

fn plot(result: &SessionResult, workload: &Workload, metric: Metric) -> Option<String> {
    let of = |variant: &str| -> (Vec<f64>, usize) {
        let runs: Vec<_> = result.runs.iter().filter(|r| r.workload == workload.id && r.variant == variant).collect();
        let values: Vec<f64> = runs.iter().filter_map(|run| run.value(metric)).collect();
        (values.clone(), runs.len() - values.len())
    };
    let groups: Vec<(usize, &str, Vec<f64>, usize)> = variants(result)
        .into_iter()
        .enumerate()
        .map(|(index, variant)| {
            let (values, missing) = of(variant);
            (index, variant, values, missing)
        })
        .filter(|(_, _, values, missing)| !values.is_empty() || *missing > 0)
        .collect();
    let all: Vec<f64> = groups.iter().flat_map(|(_, _, values, _)| values.iter().copied()).collect();
    if all.is_empty() {
        return None;
    }
    let axis = Axis::of(all, if metric == Metric::Peak { byte_tick } else { second_tick });
    let strips: Vec<PlotRow> = groups
        .iter()
        .map(|(index, variant, values, missing)| {
            let (class, shape) = variant_style(*index);
            let mut marks: String = values
                .iter()
                .enumerate()
                .map(|(i, value)| {
                    mark(&format!("dot {class}"), &shape, axis.to_percent(*value), LANES[i % LANES.len()])
                })
                .collect();
            let middle = median(values);
            if middle.is_finite() {
                marks += &vertical_line("median", axis.to_percent(middle), 1.0, HEIGHT - 1.0);
            }
            let none = if *missing > 0 { format!(", {missing} without a value") } else { String::new() };
            let range = values.iter().fold((f64::INFINITY, 0.0f64), |(a, b), x| (a.min(*x), b.max(*x)));
            let of_range = if values.is_empty() {
                String::new()
            } else {
                format!(", {} to {}", quantity(metric, range.0), quantity(metric, range.1))
            };
            PlotRow {
                label: escape(variant),
                value: format!("{} <small>n = {}{none}</small>", quantity(metric, middle), values.len()),
                title: format!(
                    "{variant}: {} processes, median {}{of_range}{none}",
                    values.len(),
                    quantity(metric, middle)
                ),
                marks,
                height: HEIGHT as u32,
            }
        })
        .collect();
    Some(format!("<h3>{}, {}</h3>\n{}", escape(&workload.id), metric.name(), rows(&axis, &strips)))
}
