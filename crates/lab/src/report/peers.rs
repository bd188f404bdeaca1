//! The page of methods × families × peers.

use super::format::difference;
use super::markdown::cell as escaped;
use crate::check::State;
use crate::result::Cell;
use crate::suite::Suite;
use crate::survey::{Family, wrong_of_ours};
use std::collections::{BTreeMap, BTreeSet};

/// The signs of the states in the tables.
const SIGNS: [(State, &str); 5] = [
    (State::Supported, "✓"),
    (State::SupportedDegraded, "≈"),
    (State::NoReference, "?"),
    (State::Error, "error"),
    (State::SilentlyWrong, "**wrong**"),
];

/// The whole page as Markdown; `command` is what made it.
pub fn peers_page(suite: &Suite, families: &[Family], command: &str) -> String {
    let wrong = wrong_of_ours(suite, families).len();
    let variants: Vec<&str> = suite.variants.iter().map(|variant| variant.id.as_str()).collect();
    let mut out = format!(
        "# Peers: who computes what correctly\n\n\
         Every method of the suite `{}`, on every family, by everybody who offers it: one fresh process each, its numbers compared with those of \
         `{}`. Made by\n\n```\n{command}\n```\n\n\
         **Silently wrong cells of ours: {wrong}.**\n\n\
         ✓ runs and agrees · ≈ differs only by what its storage format loses · error: fails and says so · **wrong**: runs, says nothing, and is \
         wrong · ? the reference itself failed · – not run\n\n",
        escaped(&suite.name),
        escaped(suite.oracle()),
    );
    out += &scores(&variants, families);
    for workload in &suite.workloads {
        out += &format!(
            "\n## {}\n\n| family | {} |\n|---|{}\n",
            workload.id,
            variants.join(" | "),
            "---|".repeat(variants.len())
        );
        for family in families {
            let of = |id: &&str| {
                let found = family.cells.iter().find(|cell| cell.workload == workload.id && cell.variant == **id);
                found.map_or_else(|| "–".into(), sign)
            };
            let row: Vec<String> = variants.iter().map(of).collect();
            out += &format!("| {} | {} |\n", escaped(&family.name), row.join(" | "));
        }
    }
    out += &reasons(families);
    let engines: BTreeSet<String> =
        families.iter().flat_map(|f| f.engines.iter().map(|(id, engine)| format!("- {id}: {engine}\n"))).collect();
    out + "\n## Versions\n\n" + &engines.into_iter().collect::<String>()
}

/// A cell's sign, with the largest difference where there is one worth a number.
fn sign(cell: &Cell) -> String {
    let sign = SIGNS.iter().find(|(state, _)| *state == cell.state).map_or("–", |(_, sign)| sign);
    match cell.state {
        State::Supported | State::SupportedDegraded | State::SilentlyWrong => {
            format!("{sign} {}", difference(cell.max_abs))
        }
        State::NoReference | State::Error => sign.into(),
    }
}

/// How often everybody is in which state.
fn scores(variants: &[&str], families: &[Family]) -> String {
    let heads: Vec<&str> = SIGNS.iter().map(|(_, sign)| *sign).collect();
    let mut out = format!("| cells | {} |\n|---|{}\n", heads.join(" | "), "---:|".repeat(heads.len()));
    for id in variants {
        let count = |state: State| {
            let cells = families.iter().flat_map(|family| &family.cells);
            cells.filter(|cell| cell.variant == *id && cell.state == state).count().to_string()
        };
        let row: Vec<String> = SIGNS.iter().map(|(state, _)| count(*state)).collect();
        out += &format!("| {id} | {} |\n", row.join(" | "));
    }
    out
}

/// What failed and why, each reason once.
fn reasons(families: &[Family]) -> String {
    let mut reasons: BTreeMap<(&str, &str), Vec<String>> = BTreeMap::new();
    for family in families {
        let mut of_family: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
        for cell in family.cells.iter().filter(|cell| !cell.why.is_empty()) {
            of_family.entry((&cell.variant, &cell.why)).or_default().push(&cell.workload);
        }
        for (reason, methods) in of_family {
            let all = family.cells.iter().filter(|cell| cell.variant == reason.0).count();
            let what = if methods.len() == all { "everything".into() } else { methods.join(", ") };
            reasons.entry(reason).or_default().push(format!("{what} on {}", family.name));
        }
    }
    if reasons.is_empty() {
        return String::new();
    }
    let mut out = String::from("\n## Reasons\n\n");
    for ((variant, why), places) in reasons {
        out += &format!("- {variant} ({}): {}\n", escaped(&places.join("; ")), escaped(why));
    }
    out
}
