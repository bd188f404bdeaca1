//! An evaluation as a table.

use super::{Evaluation, Metric};

/// The metrics of each variant with their intervals, and the changes against the plain model.
pub fn eval_text(evaluation: &Evaluation) -> String {
    let items = if evaluation.items == 1 { "item" } else { "items" };
    let examples = match evaluation.num_fewshot {
        0 => String::new(),
        1 => ", 1 example in the prompt".into(),
        count => format!(", {count} examples in the prompt"),
    };
    let mut text = format!("{}, {}: {} {items}{examples}\n\n", evaluation.model, evaluation.task, evaluation.items);
    let width = evaluation.variants.iter().map(|variant| variant.name.chars().count()).max().unwrap_or(0).max(7);
    text += &format!("{:width$}  {:<17} {:>9}  {:<20}  against clean\n", "variant", "metric", "value", "95 % interval");
    for variant in &evaluation.variants {
        for (index, metric) in variant.metrics.iter().enumerate() {
            let name = if index == 0 { variant.name.as_str() } else { "" };
            let change = variant.changes.get(index).map(|change| {
                format!("  {} ({} to {})", signed(change.value), signed(change.low), signed(change.high))
            });
            let interval = format!("{} to {}", number(metric.low), number(metric.high));
            let Metric { name: metric_name, value, .. } = metric;
            let line = format!(
                "{name:width$}  {metric_name:<17} {:>9}  {interval:<20}{}",
                number(*value),
                change.unwrap_or_default()
            );
            text += line.trim_end();
            text.push('\n');
        }
    }
    text
}

fn number(value: f64) -> String {
    format!("{value:.4}")
}

fn signed(value: f64) -> String {
    format!("{value:+.4}")
}
