//! The generated part of docs/models.md: every model type with its golden cases, measured error and refused sites.
//!
//! The example `models_page` of `pellucid-models` writes it for `cargo xtask check --fix`; `cargo xtask check` and a test compare it. It knows no
//! family and no point by name: a new golden case, family, point or reason appears by itself.

use crate::{Case, CaseFile, all, difference};
use pellucid_engine::Point;
use pellucid_engine::point::Scope;
use pellucid_models::families;
use pellucid_models::inspect::{Category, registry};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::PathBuf;

const BEGIN: &str = "<!-- generated: begin (cargo xtask check --fix) -->\n";
const END: &str = "<!-- generated: end -->\n";

/// What is known of a model type.
pub struct Row {
    model_type: &'static str,
    /// The classes of transformers that its golden cases are of.
    classes: Vec<String>,
    cases: usize,
    /// The largest difference from transformers in the logits and in any layer's `resid_post`; none without a reference.
    error: Option<f32>,
    /// Which points its golden cases lack.
    lacks: Vec<(Point, Lack)>,
}

/// How far a model type lacks a point.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lack {
    Always,
    SomeLayers,
    SomeConfigurations,
}

/// The page.
pub fn path() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/models.md")
}

/// Runs every golden case: a row for each native type.
pub fn measure() -> Vec<Row> {
    let with_config = |case: Case| {
        let config = CaseFile::read(&case.name).config;
        (case, config)
    };
    let cases: Vec<(Case, Value)> = all().into_iter().map(with_config).collect();
    let row = |model_type: &'static str| {
        let own: Vec<&(Case, Value)> = cases.iter().filter(|(_, config)| config["model_type"] == model_type).collect();
        let classes = own.iter().filter_map(|(_, config)| config["architectures"][0].as_str()).map(str::to_owned);
        Row {
            model_type,
            classes: classes.collect::<BTreeSet<_>>().into_iter().collect(),
            cases: own.len(),
            error: own.iter().filter_map(|(case, _)| error(case)).reduce(f32::max),
            lacks: Point::ALL.into_iter().filter_map(|point| Some((point, lack(&own, point)?))).collect(),
        }
    };
    families::native().map(row).collect()
}

fn error(case: &Case) -> Option<f32> {
    let streams = (0..case.layers()).map(|layer| (format!("layers.{layer}.resid_post"), format!("resid_post.{layer}")));
    let all = std::iter::once(("logits".into(), "logits".into())).chain(streams);
    let (sites, tensors): (Vec<String>, Vec<String>) =
        all.filter(|(_, tensor)| case.reference.contains_key(tensor)).unzip();
    let values = case.capture(&sites.iter().map(String::as_str).collect::<Vec<_>>());
    values.iter().zip(&tensors).map(|(ours, tensor)| difference(ours, &case.reference[tensor].1)).reduce(f32::max)
}

fn lack(cases: &[&(Case, Value)], point: Point) -> Option<Lack> {
    let (mut whole, mut none) = (0, 0);
    for (case, _) in cases {
        let places = if point.info().scope == Scope::Model { 1 } else { case.layers() };
        match case.loaded.model.program().sites().filter(|site| site.point == point).count() {
            0 => none += 1,
            there if there == places => whole += 1,
            _ => {}
        }
    }
    match cases.len() {
        all if whole == all => None,
        all if none == all => Some(Lack::Always),
        all if whole + none == all => Some(Lack::SomeConfigurations),
        _ => Some(Lack::SomeLayers),
    }
}

/// The bound that is printed for a measured error. Other processors round otherwise: AVX2 and portable code have been seen to differ by a factor of
/// 2.6 here. So it is four times as much, up to one digit, and no more than the parity tests allow.
fn bound(error: f32) -> String {
    const ALLOWED: f64 = 1e-4;
    // Below this, what one processor rounds to nothing another may not.
    let error = f64::from(error).max(1e-7);
    let room = (error * 4.0).min(ALLOWED.max(error));
    let exponent = room.log10().floor();
    let digit = (room / 10f64.powf(exponent) - 1e-9).ceil();
    if digit < 10.0 { format!("{digit}e{exponent}") } else { format!("1e{}", exponent + 1.0) }
}

/// What is wrong with a page, in words. Rounding differs between processors, so a bound need only hold, and not be ten times too wide;
/// everything else is exact.
pub fn problems(page: &str, rows: &[Row]) -> Vec<String> {
    let Some(stated) = part(page) else { return vec!["the two comments around the generated part are lost".into()] };
    let fresh = render(rows, |row| stated_bound(stated, row.model_type).unwrap_or("none").to_owned());
    let mut problems: Vec<String> = rows.iter().filter_map(|row| problem_of_bound(stated, row)).collect();
    if let Some((new, old)) = fresh.lines().zip(stated.lines()).find(|(new, old)| new != old) {
        problems.push(format!("out of date: {old:?} should be {new:?}"));
    } else if fresh != stated {
        problems.push("out of date: its end is missing, or there is more than there should be".into());
    }
    problems
}

/// The page made new. A bound that holds stays, whatever this processor measures.
pub fn renewed(page: &str, rows: &[Row]) -> Option<String> {
    let stated = part(page)?;
    let bound_of = |row: &Row| match stated_bound(stated, row.model_type) {
        Some(bound) if problem_of_bound(stated, row).is_none() => bound.to_owned(),
        _ => row.error.map_or_else(|| "not measured".into(), bound),
    };
    replaced(page, &render(rows, bound_of))
}

fn problem_of_bound(stated: &str, row: &Row) -> Option<String> {
    let (model_type, bound_of) = (row.model_type, stated_bound(stated, row.model_type).unwrap_or("none"));
    let Some(error) = row.error else { return Some(format!("{model_type}: no reference")) };
    let fitting = bound(error);
    match bound_of.parse::<f32>() {
        Ok(stated) if error <= stated => {
            let slack = stated / fitting.parse::<f32>().expect("a number");
            (slack >= 10.0).then(|| format!("{model_type}: {bound_of} could be {fitting}"))
        }
        _ => Some(format!("{model_type}: off by {error:e}, not within {bound_of}")),
    }
}

/// The part, with the bound that `bound_of` gives for each row.
fn render(rows: &[Row], bound_of: impl Fn(&Row) -> String) -> String {
    let reasons = reasons(rows);
    let mut text = String::from(
        "| model type | class in transformers | status | golden cases | error at most | sites refused |\n\
         |---|---|---|---|---|---|\n",
    );
    for row in rows {
        let classes: Vec<String> = row.classes.iter().map(|class| format!("`{class}`")).collect();
        text += &format!(
            "| `{}` | {} | native | {} | {} | {} |\n",
            row.model_type,
            classes.join(", "),
            row.cases,
            bound_of(row),
            refused(row, &reasons)
        );
    }
    text += "\nWhy a site is refused:\n\n";
    for (number, reason) in reasons.iter().enumerate() {
        text += &format!("{}. {reason}\n", number + 1);
    }
    text += "\n| other model types of transformers | status |\n|---|---|\n";
    for category in Category::ALL {
        let others = registry::types().filter(|info| info.category == category);
        let others = others.filter(|info| families::native().all(|native| native != info.model_type));
        let names: Vec<String> = others.map(|info| format!("`{}`", info.model_type)).collect();
        let name = category.name();
        let why = if category == Category::Transformers { "not native yet" } else { "not a language model" };
        if !names.is_empty() {
            text += &format!("| {} | inspect-only: of the category `{name}`, {why} |\n", names.join(", "));
        }
    }
    text
}

/// The reasons that occur, in the order of the points.
fn reasons(rows: &[Row]) -> Vec<&'static str> {
    let mut reasons = Vec::new();
    for point in Point::ALL {
        let reason = point.info().absent_because;
        if !reasons.contains(&reason) && rows.iter().any(|row| row.lacks.iter().any(|(lacked, _)| *lacked == point)) {
            reasons.push(reason);
        }
    }
    reasons
}

/// `resid_mid` (5), `mlp_pre`, `mlp_act` in some layers (7).
fn refused(row: &Row, reasons: &[&str]) -> String {
    let mut groups: Vec<(&str, Lack, Vec<String>)> = Vec::new();
    for (point, lack) in &row.lacks {
        let (reason, name) = (point.info().absent_because, format!("`{point}`"));
        match groups.iter_mut().find(|(other, state, _)| *other == reason && state == lack) {
            Some((.., names)) => names.push(name),
            None => groups.push((reason, *lack, vec![name])),
        }
    }
    let group = |(reason, lack, names): &(&str, Lack, Vec<String>)| {
        let number = reasons.iter().position(|other| other == reason).map_or(0, |at| at + 1);
        let where_ = match lack {
            Lack::Always => "",
            Lack::SomeLayers => " in some layers",
            Lack::SomeConfigurations => " in some configurations",
        };
        format!("{}{where_} ({number})", names.join(", "))
    };
    groups.iter().map(group).collect::<Vec<_>>().join("; ")
}

/// The generated part of a page.
fn part(page: &str) -> Option<&str> {
    let start = page.find(BEGIN)? + BEGIN.len();
    Some(&page[start..start + page[start..].find(END)?])
}

/// The page with another generated part.
fn replaced(page: &str, new: &str) -> Option<String> {
    let old = part(page)?;
    Some(page.replacen(&format!("{BEGIN}{old}{END}"), &format!("{BEGIN}{new}{END}"), 1))
}

/// The bound that a part states for a model type.
fn stated_bound<'a>(part: &'a str, model_type: &str) -> Option<&'a str> {
    let line = part.lines().find(|line| line.starts_with(&format!("| `{model_type}` |")))?;
    line.split('|').nth(5).map(str::trim)
}
