//! Plot of time against captured layers, with the linear fit.

use super::svg::{Axis, capitalize, curve, escape, grid, mark, second_tick, text};
use crate::report::cost_line;
use crate::result::{CostModel, SessionResult};

const HEIGHT: f64 = 230.0;

/// Draws a scatter plot per cost model; `None` without models.
pub(super) fn cost(result: &SessionResult) -> Option<String> {
    let out: String = result.cost_models.iter().map(scatter).collect();
    (!out.is_empty()).then_some(out)
}

fn scatter(model: &CostModel) -> String {
    let points: Vec<(f64, f64)> =
        model.points.iter().copied().filter(|(x, y)| x.is_finite() && y.is_finite()).collect();
    let x_axis = Axis::from_zero(points.iter().map(|(x, _)| *x), |tick, _| format!("{tick}"));
    let most = points.iter().map(|(x, _)| *x).fold(0.0, f64::max);
    let fit = |x: f64| model.base.mean + model.per_layer.mean * x;
    let y_axis = Axis::of(points.iter().map(|(_, y)| *y).chain([fit(0.0), fit(most)]), second_tick);
    let mut marks = grid(&x_axis, &y_axis, HEIGHT);
    // The bounds of the slope's confidence interval, drawn through the centroid, where the fit is
    // most certain.
    let n = points.len().max(1) as f64;
    let centroid = points.iter().fold((0.0, 0.0), |(a, b), (x, y)| (a + x / n, b + y / n));
    let line = |class: &str, slope: f64| {
        let at = |x: f64| (x_axis.to_percent(x), y_axis.to_px(centroid.1 + slope * (x - centroid.0), HEIGHT));
        curve(class, &[at(0.0), at(most)], HEIGHT)
    };
    for slope in [model.per_layer.low, model.per_layer.high].into_iter().filter(|slope| slope.is_finite()) {
        marks += &line("fit-edge", slope);
    }
    if model.per_layer.mean.is_finite() {
        marks += &line("fit", model.per_layer.mean);
    }
    // Horizontal jitter separates processes with the same number of layers.
    for (i, (x, y)) in points.iter().enumerate() {
        let jitter = (i % 5) as f64 * 0.6 - 1.2;
        marks += &mark("dot v0", "s0", x_axis.to_percent(*x) + jitter, y_axis.to_px(*y, HEIGHT));
    }
    let caption = cost_line(model);
    let (height, caption, workload) = (HEIGHT + 44.0, escape(&capitalize(&caption)), escape(&model.workload));
    marks += &text(50.0, HEIGHT + 38.0, "middle", "captured layers");
    format!(
        "<h3>{workload}</h3>\n<svg class=\"plot\" height=\"{height}\" role=\"img\"><title>{caption}</title>{marks}</svg>\n\
         <p class=\"summary\">{caption}.</p>\n"
    )
}
