//! Stores as a page: statistics, and the effects of the strongest latents as bars.

use super::Store;
use super::summary::{HookSummary, LatentSummary, Summary};
use super::text::phases_text;
use pellucid_analysis::html::escape_text;

const STYLE: &str =
    "body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222}
h1{font-size:1.4rem}h2{font-size:1.1rem;margin-top:2rem}table{border-collapse:collapse}
td,th{padding:.15rem .7rem;text-align:right;font-variant-numeric:tabular-nums}th{border-bottom:1px solid #999}
td:first-child,th:first-child{text-align:left}dt{float:left;width:8rem;color:#666}dd{margin:0}
.bar{display:inline-block;height:.8rem;vertical-align:middle}.track{width:16rem;text-align:left;position:relative}
pre{background:#f5f5f5;padding:.8rem;overflow-x:auto}
@media(prefers-color-scheme:dark){body{background:#181818;color:#ddd}pre{background:#222}dt{color:#999}}";

/// Draws a store as one self-contained page, with the strongest `top` latents of each autoencoder.
pub fn to_html(store: &Store, summary: &Summary, top: usize) -> String {
    let manifest = store.manifest();
    let title = escape_text(&summary.name);
    let mut facts = vec![
        ("model", format!("{} ({})", summary.model, manifest.short_fingerprint())),
        ("ops", summary.ops.clone()),
        ("examples", format!("{} in {} batches", summary.examples, summary.batches)),
    ];
    if let Some(correct) = summary.correct {
        let share = 100.0 * correct as f64 / summary.examples.max(1) as f64;
        facts.push(("correct", format!("{correct} of {} ({share:.1} %)", summary.examples)));
    }
    facts.extend(summary.mean_logit_diff.map(|mean| ("logit diff", format!("{mean:+.4} on average"))));
    facts.extend(summary.mean_loss.map(|mean| ("loss", format!("{mean:.4} on average"))));
    let facts: String =
        facts.iter().map(|(name, value)| format!("<dt>{name}</dt><dd>{}</dd>", escape_text(value))).collect();
    let hooks: String = summary.hooks.iter().map(|hook| hook_html(hook, top)).collect();
    let phases = escape_text(&phases_text(&manifest.phases));
    format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>{title}</title><style>{STYLE}</style>\
         <h1>{title}</h1><dl>{facts}</dl>{hooks}<h2>Phases</h2><pre>{phases}</pre></html>\n"
    )
}

fn hook_html(hook: &HookSummary, top: usize) -> String {
    let shown = &hook.latents[..top.min(hook.latents.len())];
    let weight = |latent: &LatentSummary| latent.total_effect.unwrap_or(latent.mean_activation);
    let largest = shown.iter().map(|latent| weight(latent).abs()).fold(f64::MIN_POSITIVE, f64::max);
    let rows: String = shown
        .iter()
        .map(|latent| {
            let value = weight(latent);
            // Orange raises the logit difference, blue lowers it.
            let color = if value < 0.0 { "#4682e6" } else { "#f59628" };
            let width = 100.0 * value.abs() / largest;
            let number = |value: Option<f64>| value.map_or("–".into(), |value| format!("{value:+.5}"));
            format!(
                "<tr><td>{}</td><td class=\"track\"><span class=\"bar\" style=\"width:{width:.1}%;background:{color}\">\
                 </span></td><td>{}</td><td>{}</td><td>{}</td><td>{:.0} %</td><td>{:.4}</td><td>{}</td></tr>",
                latent.latent,
                number(latent.total_effect),
                number(latent.mean_effect),
                latent.active,
                100.0 * latent.proportion_active,
                latent.mean_activation,
                number(latent.clean_diff),
            )
        })
        .collect();
    format!(
        "<h2>{}</h2><p>{} latents alive, {:.1} per example</p><table><tr><th>latent</th><th></th><th>total effect</th>\
         <th>mean effect</th><th>active</th><th>share</th><th>activation</th><th>clean diff</th></tr>{rows}</table>",
        escape_text(&hook.hook),
        hook.alive,
        hook.mean_active
    )
}
