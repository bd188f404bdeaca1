//! Roofline plot: FLOP/s against arithmetic intensity, under the machine's limits.

use super::svg::{Axis, curve, escape, grid, mark, text, vertical_line};
use crate::report::format::share;
use crate::result::SessionResult;
use crate::roofline::{OpRate, Roofline};

const HEIGHT: f64 = 260.0;
/// Marks of prompts and of decode steps.
const PHASES: [(&str, &str, &str); 2] = [("prompt", "v0", "s0"), ("step", "v1", "s3")];

/// Draws the plot and its table; `None` if nothing was measured.
pub(super) fn roofline(result: &SessionResult) -> Option<String> {
    let found = result.roofline.as_ref()?;
    let ops: Vec<&OpRate> = found.ops.iter().filter(|op| op.flops_per_s() > 0.0 && op.intensity() > 0.0).collect();
    if ops.is_empty() || !(found.bytes_per_s > 0.0 && found.flops_per_s > 0.0) {
        return None;
    }
    Some(legend() + &plot(found, &ops) + &summary(found) + &table(found, &ops))
}

fn legend() -> String {
    let item = |(phase, class, shape): &(&str, &str, &str)| {
        let name = if *phase == "prompt" { "the prompt, many tokens at once" } else { "a decode step, one token" };
        format!(
            "<span><svg width=\"14\" height=\"14\" aria-hidden=\"true\">{}</svg> {name}</span> ",
            mark(class, shape, 50.0, 7.0)
        )
    };
    format!("<p class=\"legend\">{}</p>\n", PHASES.iter().map(item).collect::<String>())
}

fn plot(found: &Roofline, ops: &[&OpRate]) -> String {
    // The plot always includes the ridge point, where both limits meet, and a part of the flat.
    let ridge = found.flops_per_s / found.bytes_per_s;
    let most = ops.iter().map(|op| op.intensity()).fold(ridge * 4.0, f64::max) * 1.5;
    let least = ops.iter().map(|op| op.intensity()).fold(ridge / 4.0, f64::min) / 1.5;
    let x_axis = Axis::of([least, most], |tick, _| plain(tick));
    let slowest = ops.iter().map(|op| op.flops_per_s()).fold(found.limit(least), f64::min);
    let y_axis = Axis::of([slowest / 1.3, found.flops_per_s * 1.6], |tick, _| plain(tick / 1e9));
    let mut marks = grid(&x_axis, &y_axis, HEIGHT);
    marks += &x_axis
        .ticks()
        .iter()
        .map(|(tick, _)| vertical_line("grid", x_axis.to_percent(*tick), 0.0, HEIGHT))
        .collect::<String>();
    let roof: Vec<(f64, f64)> =
        [least, ridge, most].map(|x| (x_axis.to_percent(x), y_axis.to_px(found.limit(x), HEIGHT))).to_vec();
    marks += &curve("fit", &roof, HEIGHT);
    for op in ops {
        let (_, class, shape) = PHASES.iter().find(|(phase, ..)| *phase == op.phase).copied().unwrap_or(PHASES[0]);
        let (x, y) = (x_axis.to_percent(op.intensity()), y_axis.to_px(op.flops_per_s(), HEIGHT));
        marks += &format!(
            "<g><title>{}</title>{}</g>",
            escape(&words(found, op)),
            mark(&format!("dot {class}"), shape, x, y)
        );
    }
    marks += &text(50.0, HEIGHT + 38.0, "middle", "operations per byte of weights");
    let title = format!("{} kinds of matmuls under the machine's limits, in GFLOP/s", ops.len());
    format!(
        "<p class=\"caption\">GFLOP/s</p><svg class=\"plot\" height=\"{}\" role=\"img\"><title>{title}</title>{marks}</svg>\n",
        HEIGHT + 44.0
    )
}

/// Formats a tick without trailing zeros.
fn plain(tick: f64) -> String {
    if tick >= 1.0 { format!("{tick:.0}") } else { format!("{tick}") }
}

fn words(found: &Roofline, op: &OpRate) -> String {
    format!(
        "{}, {}: {:.1} GFLOP/s, {:.1} GB/s, {} of the machine's limit",
        op.name,
        op.phase,
        op.flops_per_s() / 1e9,
        op.bytes_per_s() / 1e9,
        share(op.flops_per_s() / found.limit(op.intensity()))
    )
}

fn summary(found: &Roofline) -> String {
    let above = found.ops.iter().filter(|op| op.flops_per_s() > 1.05 * found.limit(op.intensity())).count();
    // Limits and matmuls are measured one after the other, and other processes can slow down
    // either.
    let above = match above {
        0 => String::new(),
        n => format!(
            " {n} of {} marks lie above the line: the machine was busier when its limits were measured.",
            found.ops.len()
        ),
    };
    format!(
        "<p class=\"summary\">{} threads read {:.1} GB/s from memory and reach {:.0} GFLOP/s in matmuls that stay in the cache; weights stored as {}.{above}</p>\n",
        found.threads,
        found.bytes_per_s / 1e9,
        found.flops_per_s / 1e9,
        escape(&found.dtype)
    )
}

fn table(found: &Roofline, ops: &[&OpRate]) -> String {
    let mut sorted = ops.to_vec();
    sorted.sort_by(|a, b| a.phase.cmp(&b.phase).then(b.seconds.total_cmp(&a.seconds)));
    let mut out = String::from(
        "<div class=\"wide\"><table><thead><tr><th>matmul</th><th>phase</th><th class=\"number\">of its time</th>\
         <th class=\"number\">GFLOP/s</th><th class=\"number\">GB/s</th><th class=\"number\">of the limit</th></tr></thead><tbody>\n",
    );
    for op in sorted {
        out += &format!(
            "<tr><th class=\"name\">{}</th><td>{}</td><td class=\"number\">{}</td><td class=\"number\">{:.1}</td>\
             <td class=\"number\">{:.1}</td><td class=\"number\">{}</td></tr>\n",
            escape(&op.name),
            escape(&op.phase),
            share(op.share),
            op.flops_per_s() / 1e9,
            op.bytes_per_s() / 1e9,
            share(op.flops_per_s() / found.limit(op.intensity()))
        );
    }
    out + "</tbody></table></div>\n"
}
