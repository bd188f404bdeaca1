//! The lens as one self-contained page that loads nothing and opens from a file.
//!
//! The page consists of three plain files (`page.html`, `page.css`, `page.js`) and the table as
//! JSON. The script creates every element with `textContent`, so a token is never parsed as markup.

use super::color::{DARK, LIGHT, Scale};
use super::table::LensTable;
use crate::html::escape_json;
use crate::text::{one_line, visible};
use serde::Serialize;

const PAGE: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// More steps than the eye can distinguish on these scales.
const STEPS: usize = 65;

/// Data for the script.
#[derive(Serialize)]
struct Data {
    table: LensTable,
    /// Background and text color of each step, as CSS colors, from weak to strong.
    scales: Scales,
}

#[derive(Serialize)]
struct Scales {
    light: Vec<[String; 2]>,
    dark: Vec<[String; 2]>,
}

/// Renders the table as a complete HTML document.
///
/// The page is a heat map of layers × tokens, colored by probability, entropy, KL divergence to the
/// final row or rank of the final prediction. Hover, keyboard focus or a tap shows a cell's top
/// predictions.
pub fn html(table: &LensTable) -> String {
    let steps = |scale: Scale| {
        scale.steps(STEPS).map(|(background, text)| [background.to_string(), text.to_string()]).collect()
    };
    let data = Data { table: spelled(table), scales: Scales { light: steps(LIGHT), dark: steps(DARK) } };
    let json = serde_json::to_string(&data).expect("plain structs with string keys always serialize");
    // The data is inserted last, so that markers in tokens are never replaced.
    PAGE.replacen("/*STYLE*/", STYLE, 1).replacen("/*SCRIPT*/", SCRIPT, 1).replacen("/*DATA*/", &escape_json(&json), 1)
}

/// Returns the table with all texts made visible, so that the script needs no such rules.
fn spelled(table: &LensTable) -> LensTable {
    let mut table = table.clone();
    table.model = one_line(&table.model);
    table.prompt_tokens.iter_mut().for_each(|token| *token = visible(token));
    for row in &mut table.rows {
        row.label = one_line(&row.label);
        for prediction in row.cells.iter_mut().flat_map(|cell| &mut cell.predictions) {
            prediction.token = visible(&prediction.token);
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::super::table::{LensRow, sample};
    use super::*;

    /// Extracts the data element as a browser does: up to the first `</script`.
    fn data(page: &str) -> serde_json::Value {
        let (_, rest) = page.split_once(r#"<script type="application/json" id="data">"#).unwrap();
        serde_json::from_str(rest.split_once("</script").unwrap().0).unwrap()
    }

    #[test]
    fn the_page_carries_the_table_and_both_scales() {
        let data = data(&html(&sample::table()));
        assert_eq!(data["table"]["prompt_tokens"], serde_json::json!(["The", "·Eiffel"]));
        assert_eq!(data["table"]["rows"][0]["cells"][0]["guesses"][0]["token"], "⏎");
        assert_eq!(data["scales"]["dark"].as_array().unwrap().len(), STEPS);
        assert_eq!(data["scales"]["light"][0][1], "#000000");
    }

    #[test]
    fn hostile_text_stays_text() {
        let hostile =
            ["</script><script>alert(1)", "<!--<script>", "]]>&lt;", "/*DATA*/", "/*SCRIPT*/", "\"}\\", "${1}`"];
        let clean = html(&sample::table());
        for text in hostile {
            let mut table = sample::table();
            table.model = text.into();
            table.prompt_tokens[0] = text.into();
            table.rows[0].site = format!("{text}\u{2028}\u{2029}");
            table.rows[0].label = text.into();
            table.rows[0].cells[0].predictions[0].token = text.into();
            let page = html(&table);
            // No new markup: as many tags as in the harmless page.
            assert_eq!(page.matches('<').count(), clean.matches('<').count(), "{text}");
            assert!(!page.contains(['\u{2028}', '\u{2029}']), "{text}");
            let table = &data(&page)["table"];
            assert_eq!((&table["model"], &table["prompt_tokens"][0]), (&text.into(), &text.into()));
            assert_eq!(table["rows"][0]["site"], format!("{text}\u{2028}\u{2029}"));
            assert_eq!(table["rows"][0]["cells"][0]["guesses"][0]["token"], text);
        }
    }

    #[test]
    fn line_separators_in_tokens_are_spelled_out() {
        let mut table = sample::table();
        table.prompt_tokens[0] = "\u{2028}".into();
        assert_eq!(data(&html(&table))["table"]["prompt_tokens"][0], "‹2028›");
    }

    #[test]
    fn the_page_fetches_nothing_and_has_no_marker_left() {
        let page = html(&sample::table());
        for absent in ["http:", "https:", "//cdn", "@import", "url(", "fetch(", "/*STYLE*/", "/*SCRIPT*/", "/*DATA*/"] {
            assert!(!page.contains(absent), "{absent}");
        }
        assert!(page.contains("default-src 'none'"));
    }

    #[test]
    fn empty_single_and_unfinished_tables_make_pages() {
        assert_eq!(data(&html(&LensTable::default()))["table"]["rows"], serde_json::json!([]));
        let mut table = sample::table();
        table.prompt_tokens.truncate(1);
        table.rows = vec![LensRow { cells: vec![sample::cell("a", f32::NAN, 1)], ..LensRow::default() }];
        // NaN becomes null, which the script shows as a dash.
        let data = data(&html(&table));
        assert!(data["table"]["rows"][0]["cells"][0]["guesses"][0]["probability"].is_null());
    }
}
