//! The cost: time against captured layers, with its fit.

use super::svg::{Axis, capital, curve, escape, grid, mark, second_tick, text};
use crate::report::cost as sentence;
use crate::result::{CostModel, SessionResult};

const HEIGHT: f64 = 230.0;

/// A scatter for each cost model; none where there is no model.
pub(super) fn cost(result: &SessionResult) -> Option<String> {
    let out: String = result.models.iter().map(scatter).collect();
    (!out.is_empty()).then_some(out)
}

fn scatter(model: &CostModel) -> String {
    let points: Vec<(f64, f64)> =
        model.points.iter().copied().filter(|(x, y)| x.is_finite() && y.is_finite()).collect();
    let across = Axis::from_zero(points.iter().map(|(x, _)| *x), |tick, _| format!("{tick}"));
    let most = points.iter().map(|(x, _)| *x).fold(0.0, f64::max);
    let fit = |x: f64| model.base.mean + model.per_layer.mean * x;
    let up = Axis::of(points.iter().map(|(_, y)| *y).chain([fit(0.0), fit(most)]), second_tick);
    let mut marks = grid(&across, &up, HEIGHT);
    // The slope's interval, turned about the middle of the points, where the fit is surest.
    let n = points.len().max(1) as f64;
    let centre = points.iter().fold((0.0, 0.0), |(a, b), (x, y)| (a + x / n, b + y / n));
    let line = |class: &str, slope: f64| {
        let at = |x: f64| (across.at(x), up.down(centre.1 + slope * (x - centre.0), HEIGHT));
        curve(class, &[at(0.0), at(most)], HEIGHT)
    };
    for slope in [model.per_layer.low, model.per_layer.high].into_iter().filter(|slope| slope.is_finite()) {
        marks += &line("fit-edge", slope);
    }
    if model.per_layer.mean.is_finite() {
        marks += &line("fit", model.per_layer.mean);
    }
    // Processes of one variant have one number of layers: they are spread a little, so that each can be seen.
    for (i, (x, y)) in points.iter().enumerate() {
        let aside = (i % 5) as f64 * 0.6 - 1.2;
        marks += &mark("dot v0", "s0", across.at(*x) + aside, up.down(*y, HEIGHT));
    }
    let said = sentence(model);
    let (height, said, workload) = (HEIGHT + 44.0, escape(&capital(&said)), escape(&model.workload));
    marks += &text(50.0, HEIGHT + 38.0, "middle", "captured layers");
    format!(
        "<h3>{workload}</h3>\n<svg class=\"plot\" height=\"{height}\" role=\"img\"><title>{said}</title>{marks}</svg>\n\
         <p class=\"said\">{said}.</p>\n"
    )
}
