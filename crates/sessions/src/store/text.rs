//! Stores as text for a terminal.

use super::Store;
use super::diff::StoreDifference;
use super::summary::{HookSummary, Summary};
use crate::phases::PhaseRecord;

/// Describes a store: provenance, statistics, and the strongest `top` latents of each autoencoder.
pub fn summary_text(store: &Store, summary: &Summary, top: usize) -> String {
    let manifest = store.manifest();
    let dataset = &manifest.dataset;
    let bos = if dataset.starts_with_bos { "with" } else { "without" };
    let mut lines = vec![
        format!("session    {}", summary.name),
        format!("model      {} ({})", summary.model, manifest.short_fingerprint()),
        format!("ops        {}", summary.ops),
        format!("examples   {} in {} batches, {} tokens, {bos} BOS", summary.examples, summary.batches, dataset.tokens),
    ];
    if let Some(correct) = summary.correct {
        let share = 100.0 * correct as f64 / summary.examples.max(1) as f64;
        lines.push(format!("correct    {correct} of {} ({share:.1} %)", summary.examples));
    }
    lines.extend(summary.mean_logit_diff.map(|mean| format!("logit diff {mean:+.4} on average")));
    lines.extend(summary.mean_loss.map(|mean| format!("loss       {mean:.4} on average")));
    for hook in &summary.hooks {
        lines.push(String::new());
        lines.extend(hook_lines(hook, top));
    }
    lines.join("\n") + "\n"
}

fn hook_lines(hook: &HookSummary, top: usize) -> Vec<String> {
    let mut lines = vec![format!("{}: {} latents alive, {:.1} per example", hook.hook, hook.alive, hook.mean_active)];
    if hook.latents.is_empty() {
        return lines;
    }
    let number = |value: Option<f64>| value.map_or("-".into(), |value| format!("{value:+.5}"));
    lines.push(format!(
        "{:>8} {:>13} {:>12} {:>7} {:>8} {:>11} {:>11}",
        "latent", "total effect", "mean effect", "active", "share", "activation", "clean diff"
    ));
    lines.extend(hook.latents.iter().take(top).map(|latent| {
        format!(
            "{:>8} {:>13} {:>12} {:>7} {:>7.0}% {:>11.4} {:>11}",
            latent.latent,
            number(latent.total_effect),
            number(latent.mean_effect),
            latent.active,
            100.0 * latent.proportion_active,
            latent.mean_activation,
            latent.clean_diff.map_or("-".into(), |value| format!("{value:+.4}")),
        )
    }));
    let more = hook.latents.len().saturating_sub(top);
    lines.extend((more > 0).then(|| format!("{:>8} {more} more", "…")));
    lines
}

/// Lists phases with time and memory.
pub fn phases_text(phases: &[PhaseRecord]) -> String {
    let megabytes = |bytes: u64| bytes as f64 / 1e6;
    let mut lines =
        vec![format!("{:<9}{:>10}{:>12}{:>12}{:>12}", "phase", "seconds", "before MB", "peak MB", "after MB")];
    lines.extend(phases.iter().map(|phase| {
        format!(
            "{:<9}{:>10.3}{:>12.1}{:>12.1}{:>12.1}",
            phase.name,
            phase.seconds,
            megabytes(phase.rss_before),
            megabytes(phase.rss_peak),
            megabytes(phase.rss_after)
        )
    }));
    lines.join("\n") + "\n"
}

/// Describes the differences of two stores.
pub fn diff_text(difference: &StoreDifference) -> String {
    if difference.is_equal() {
        return "the stores hold the same results, bit by bit\n".into();
    }
    let mut lines: Vec<String> = difference.provenance.clone();
    for column in &difference.columns {
        let name = format!("{}.{}", column.table, column.column);
        lines.push(match (&column.first_row, column.max_difference) {
            (Some(row), Some(largest)) => format!(
                "{name}: {} of {} rows differ by at most {largest:.3e}; first row {row}: {} and {}",
                column.rows_different, column.rows, column.left, column.right
            ),
            (Some(row), None) => format!(
                "{name}: {} of {} rows differ; first row {row}: {} and {}",
                column.rows_different, column.rows, column.left, column.right
            ),
            (None, _) => format!("{name}: {}", column.left),
        });
    }
    lines.join("\n") + "\n"
}
