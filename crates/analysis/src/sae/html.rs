//! Features and examples as self-contained pages.

use super::{Example, FeatureTable};
use crate::html::escape_text;
use crate::text::visible;

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:70rem;padding:0 1rem;color:#222;background:#fff}\
h1{font-size:1.3rem}p{color:#555}table{border-collapse:collapse;width:100%}td,th{padding:.25rem .6rem;text-align:left;\
vertical-align:top;border-top:1px solid #e4e4e4}td.n{text-align:right;font-variant-numeric:tabular-nums}\
code{font:13px ui-monospace,monospace}.t{padding:.1rem .15rem;border-radius:.2rem}\
@media(prefers-color-scheme:dark){body{color:#ddd;background:#181818}p{color:#aaa}td,th{border-color:#333}}";

/// Draws the features of a prompt as a page.
pub fn features_html(table: &FeatureTable) -> String {
    let features = table.tokens.iter().flat_map(|token| &token.features);
    let strongest = features.fold(0.0_f32, |max, feature| max.max(feature.value.abs()));
    let mut rows = String::new();
    for token in &table.tokens {
        let span = token.features.len().max(1);
        let head = format!(
            "<td class=n rowspan={span}>{}</td><td rowspan={span}><code>{}</code></td><td class=n rowspan={span}>{}</td>",
            token.position,
            escape_text(&visible(&token.token)),
            token.active
        );
        if token.features.is_empty() {
            rows += &format!("<tr>{head}<td colspan=4></td></tr>");
        }
        for (index, feature) in token.features.iter().enumerate() {
            let head = if index == 0 { head.as_str() } else { "" };
            rows += &format!(
                "<tr>{head}<td class=n>{}</td><td class=n style=\"background:{}\">{:.3}</td><td>{}</td><td>{}</td></tr>\n",
                feature.feature,
                shade(feature.value / strongest),
                feature.value,
                words(&feature.promoted),
                words(&feature.suppressed)
            );
        }
    }
    let (model, site) = (escape_text(&table.model), escape_text(&table.site));
    page(
        &format!("Features at {site}"),
        &format!(
            "<p>{model}, {} features. Promoted and suppressed tokens are those whose logits the feature's decoder row \
             raises and lowers most.</p><table><thead><tr><th><th>token<th>active<th>feature<th>value<th>promotes\
             <th>suppresses</thead><tbody>{rows}</tbody></table>",
            table.n_features
        ),
    )
}

/// Draws the strongest examples of a feature as a page.
pub fn examples_html(site: &str, feature: usize, examples: &[Example]) -> String {
    let strongest = examples.iter().fold(0.0_f32, |max, example| max.max(example.value.abs()));
    let mut rows = String::new();
    for example in examples {
        let token = |(text, value): &(String, f32)| {
            format!(
                "<span class=t style=\"background:{}\" title=\"{value:.3}\">{}</span>",
                shade(value / strongest),
                escape_text(&visible(text).replace('·', " "))
            )
        };
        let text: String = example.context.iter().map(token).collect();
        rows += &format!(
            "<tr><td class=n>{:.3}</td><td class=n>{}</td><td>{text}</td></tr>\n",
            example.value, example.text
        );
    }
    page(
        &format!("Feature {feature} at {}", escape_text(site)),
        &format!("<table><thead><tr><th>value<th>text<th>context</thead><tbody>{rows}</tbody></table>"),
    )
}

fn page(title: &str, body: &str) -> String {
    format!(
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content=\"width=device-width\">\
         <title>{title}</title><style>{STYLE}</style><h1>{title}</h1>{body}</html>\n"
    )
}

fn words(tokens: &[String]) -> String {
    let word = |token: &String| format!("<code>{}</code>", escape_text(&visible(token)));
    tokens.iter().map(word).collect::<Vec<_>>().join(" ")
}

/// The background of a strength from −1 to 1: orange for positive, blue for negative.
fn shade(strength: f32) -> String {
    let rgb = if strength < 0.0 { "70,130,230" } else { "245,150,40" };
    format!("rgba({rgb},{:.2})", strength.abs().clamp(0.0, 1.0) * 0.8)
}
