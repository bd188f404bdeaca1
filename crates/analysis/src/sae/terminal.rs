//! Features and examples as text for a terminal.

use super::{Example, FeatureTable, SaeEval};
use crate::text::{cut, fit, visible};

/// Columns of a token.
const TOKEN: usize = 14;

/// Draws the features of a prompt, one line per feature, ending in a newline. With `color`, strong
/// features are bright.
pub fn features_text(table: &FeatureTable, width: usize, color: bool) -> String {
    let strongest =
        table.tokens.iter().flat_map(|token| &token.features).fold(0.0_f32, |max, f| max.max(f.value.abs()));
    let mut lines = vec![format!("{}, {}: {} features", table.model, table.site, table.n_features), String::new()];
    lines.push(format!(
        "{:>4}  {}  {:>6}  {:>8} {:>8}  promotes / suppresses",
        "",
        fit("token", TOKEN),
        "active",
        "feature",
        "value"
    ));
    for token in &table.tokens {
        let text = fit(&visible(&token.token), TOKEN);
        let mut head = format!("{:>4}  {text}  {:>6}", token.position, token.active);
        if token.features.is_empty() {
            lines.push(head.clone());
        }
        for feature in &token.features {
            let effects = format!("{} / {}", words(&feature.promoted), words(&feature.suppressed));
            let line = format!("{head}  {:>8} {:>8.3}  {effects}", feature.feature, feature.value);
            lines.push(shade(&cut(&line, width), feature.value.abs() / strongest, color));
            head = " ".repeat(head.chars().count().min(4 + 2 + TOKEN + 2 + 6));
        }
    }
    lines.join("\n") + "\n"
}

/// Draws the strongest examples of a feature, ending in a newline. With `color`, tokens at which
/// the feature fires are colored; without, the strongest one stands in brackets.
pub fn examples_text(feature: usize, examples: &[Example], width: usize, color: bool) -> String {
    if examples.is_empty() {
        return format!("feature {feature} does not fire in this corpus\n");
    }
    let strongest = examples.iter().fold(0.0_f32, |max, example| max.max(example.value.abs()));
    let mut lines = vec![format!("feature {feature}: {} strongest examples", examples.len()), String::new()];
    for example in examples {
        let mut line = format!("{:>8.3}  ", example.value);
        let mut columns = line.chars().count();
        for (index, (token, value)) in example.context.iter().enumerate() {
            let token = visible(token).replace('·', " ");
            let token = if index == example.at && !color { format!("[{token}]") } else { token };
            columns += crate::text::width(&token);
            if columns > width {
                line.push('…');
                break;
            }
            line += &shade(&token, value.abs() / strongest, color && *value != 0.0);
        }
        lines.push(line);
    }
    lines.join("\n") + "\n"
}

/// Lists the numbers of an evaluation, ending in a newline.
pub fn eval_text(eval: &SaeEval) -> String {
    let losses = &eval.losses;
    let lines = [
        format!("{}: {} tokens of {} texts", eval.site, eval.tokens, eval.texts),
        String::new(),
        format!("explained variance   {:>9.4}", eval.explained_variance),
        format!("cosine               {:>9.4}", eval.cosine),
        format!("mse                  {:>9.4}", eval.mse),
        format!("norm out / in        {:>9.4}", eval.l2_ratio),
        format!("L0                   {:>9.2}", eval.l0),
        format!("L1                   {:>9.2}", eval.l1),
        format!("dead features        {:>9}   of {}", eval.dead, eval.density.len()),
        format!("dense features       {:>9}   fire at more than a tenth of all tokens", eval.dense),
        String::new(),
        format!("{:<16}{:>10}{:>12}{:>14}{:>14}", "", "plain", "spliced", "zero-ablated", "mean-ablated"),
        format!(
            "{:<16}{:>10.4}{:>12.4}{:>14.4}{:>14.4}",
            "cross-entropy", losses.ce_plain, losses.ce_spliced, losses.ce_zero_ablated, losses.ce_mean_ablated
        ),
        format!(
            "{:<16}{:>10}{:>12.4}{:>14.4}{:>14.4}",
            "KL from plain", "", losses.kl_spliced, losses.kl_zero_ablated, losses.kl_mean_ablated
        ),
        format!(
            "recovered: {:.1} % of cross-entropy, {:.1} % of KL",
            100.0 * losses.ce_recovered,
            100.0 * losses.kl_recovered
        ),
    ];
    lines.join("\n") + "\n"
}

fn words(tokens: &[String]) -> String {
    tokens.iter().map(|token| visible(token)).collect::<Vec<_>>().join(" ")
}

/// Colors a text by strength, from 0 to 1.
fn shade(text: &str, strength: f32, color: bool) -> String {
    if !color {
        return text.to_string();
    }
    // From gray to bright orange, among the 256 colors of xterm.
    const SHADES: [u8; 5] = [245, 180, 179, 214, 208];
    let index = ((strength * SHADES.len() as f32) as usize).min(SHADES.len() - 1);
    format!("\x1b[38;5;{}m{text}\x1b[0m", SHADES[index])
}
