//! The lens as one self-contained page: no network, no fonts to fetch, opens from a file.
//!
//! The page is three plain files (`page.html`, `page.css`, `page.js`) and the table as JSON. The script builds every
//! element from that JSON with `textContent`, so no token is ever read as markup.

use super::colour::{DARK, LIGHT, Scale};
use super::table::LensTable;
use super::text::{one_line, visible};
use crate::html::escape_json;
use serde::Serialize;

const PAGE: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// More steps than the eye tells apart on these scales.
const STEPS: usize = 65;

/// What the script reads.
#[derive(Serialize)]
struct Data {
    table: LensTable,
    /// Background and ink of each step, as CSS colours, from weak to strong.
    scales: Scales,
}

#[derive(Serialize)]
struct Scales {
    light: Vec<[String; 2]>,
    dark: Vec<[String; 2]>,
}

/// Draws the table as a complete HTML document.
///
/// The page is a heat map of layers × tokens that can be coloured by probability, entropy, KL to the final row or
/// rank of the final answer; hover, keyboard focus or a tap shows a cell's best guesses.
pub fn html(table: &LensTable) -> String {
    let steps = |scale: Scale| scale.steps(STEPS).map(|(ground, ink)| [ground.to_string(), ink.to_string()]).collect();
    let data = Data { table: spelled(table), scales: Scales { light: steps(LIGHT), dark: steps(DARK) } };
    let json = serde_json::to_string(&data).expect("plain structs with string keys always serialise");
    // The data goes in last, and only once: whatever a token contains, nothing looks for a marker in it.
    PAGE.replacen("/*STYLE*/", STYLE, 1).replacen("/*SCRIPT*/", SCRIPT, 1).replacen("/*DATA*/", &escape_json(&json), 1)
}

/// The table with every text as the reader must see it, so that the script needs no spelling rules of its own.
fn spelled(table: &LensTable) -> LensTable {
    let mut table = table.clone();
    table.model = one_line(&table.model);
    table.prompt_tokens.iter_mut().for_each(|token| *token = visible(token));
    for row in &mut table.rows {
        row.label = one_line(&row.label);
        for guess in row.cells.iter_mut().flat_map(|cell| &mut cell.guesses) {
            guess.token = visible(&guess.token);
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::super::table::{LensRow, sample};
    use super::*;

    /// The data element's text, found as a browser finds it: up to the first `</script`.
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
            table.rows[0].cells[0].guesses[0].token = text.into();
            let page = html(&table);
            // No new markup: the same tags as the harmless page has.
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
        // What is not a number becomes null, which the script shows as a dash.
        let data = data(&html(&table));
        assert!(data["table"]["rows"][0]["cells"][0]["guesses"][0]["probability"].is_null());
    }
}
