//! Tables: comparisons, correctness, variants, the session and the machine.

use super::forest::sign;
use super::series::variants;
use super::svg::escape;
use crate::check::CellState;
use crate::report::format::{change, date, difference, ends, noise, quantity, share, sides, times};
use crate::result::{Cell, SessionResult};
use serde_json::Value;
use std::collections::BTreeMap;

/// Formats a table that scrolls horizontally if it is too wide. `name` is its accessible name.
pub(super) fn table(name: &str, head: &str, body: &str) -> String {
    format!(
        "<div class=\"wide\" role=\"region\" aria-label=\"{name}\" tabindex=\"0\"><table>{head}<tbody>\n{body}</tbody></table></div>\n"
    )
}

/// Formats the headings; those that start with `#` are for numeric columns.
pub(super) fn head(names: &[&str]) -> String {
    let cell = |name: &&str| match name.strip_prefix('#') {
        Some(name) => format!("<th scope=\"col\" class=\"number\">{name}</th>"),
        None => format!("<th scope=\"col\">{name}</th>"),
    };
    format!("<thead><tr>{}</tr></thead>", names.iter().map(cell).collect::<String>())
}

/// Formats all comparisons; `None` if there are none.
pub(super) fn comparisons(result: &SessionResult) -> Option<String> {
    let mut body = String::new();
    for c in &result.comparisons {
        let (class, _, symbol) = sign(c.verdict);
        let itself = if c.variant == c.reference { " class=\"itself\"" } else { "" };
        let needed = c.pairs_needed.map_or_else(String::new, |pairs| format!("<small>{pairs} pairs needed</small>"));
        let mut notes = Vec::new();
        if c.outliers.0 > 0 {
            let far = if c.outliers.1 > 0 { format!(", {} extreme", c.outliers.1) } else { String::new() };
            notes.push(format!("outliers: {}{far}", c.outliers.0));
        }
        if let Some(drift) = c.drift.filter(|drift| drift.is_significant()) {
            notes.push(format!("drift {} per process", change(drift.mean)));
        }
        body += &format!(
            "<tr{itself}><td class=\"name\">{}</td><td class=\"name\">{}</td><td>{}</td><td class=\"number\">{}<small>reference {}</small></td>\
             <td class=\"number\">{}<small>{}</small></td><td class=\"number\">{}</td><td class=\"number\">{}<small>margin {}</small></td>\
             <td><b class=\"{class}\">{symbol} {}</b>{needed}</td><td class=\"notes\">{}</td></tr>\n",
            escape(&c.workload),
            escape(&sides(c)),
            c.metric.name(),
            quantity(c.metric, c.value),
            quantity(c.metric, c.reference_value),
            times(c.log_ratio.mean.exp()),
            ends(&c.log_ratio),
            c.pairs,
            noise(c.noise),
            share(c.margin),
            c.verdict,
            notes.join("; ")
        );
    }
    let names = [
        "workload",
        "variant / compared with",
        "what",
        "#value",
        "#ratio (95 %)",
        "#pairs",
        "#noise",
        "verdict",
        "notes",
    ];
    (!body.is_empty()).then(|| table("Comparisons", &head(&names), &body))
}

/// Returns the CSS class and symbol of a state.
fn state_sign(state: CellState) -> (&'static str, &'static str) {
    match state {
        CellState::Supported => ("supported", "✓"),
        CellState::SupportedDegraded => ("degraded", "≈"),
        CellState::NoReference => ("unreferenced", "?"),
        CellState::Error => ("error", "!"),
        CellState::SilentlyWrong => ("wrong", "✕"),
    }
}

/// Formats the matrix of workloads × variants, with the reasons below; `None` if nothing ran.
pub(super) fn matrix(result: &SessionResult) -> Option<String> {
    if result.cells.is_empty() {
        return None;
    }
    let variants = variants(result);
    let mut names = vec!["workload".to_string()];
    names.extend(variants.iter().map(|id| escape(id)));
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut body = String::new();
    for workload in &result.suite.workloads {
        body += &format!("<tr><th scope=\"row\" class=\"name\">{}</th>", escape(&workload.id));
        for variant in &variants {
            let found = result.cells.iter().find(|cell| cell.workload == workload.id && cell.variant == *variant);
            body += &found.map_or_else(|| "<td class=\"state absent\">— not run</td>".into(), state);
        }
        body += "</tr>\n";
    }
    let mut out = table("States of all cells", &head(&names), &body);
    let why = |cell: &&Cell| !cell.why.is_empty();
    let reasons: String = result
        .cells
        .iter()
        .filter(why)
        .map(|cell| {
            let (class, symbol) = state_sign(cell.state);
            format!(
                "<li><b class=\"state {class}\">{symbol} {}</b> {} on {}: {}</li>\n",
                cell.state.name(),
                escape(&cell.variant),
                escape(&cell.workload),
                escape(&cell.why)
            )
        })
        .collect();
    if !reasons.is_empty() {
        out += &format!("<ul class=\"why\">\n{reasons}</ul>\n");
    }
    Some(out)
}

fn state(cell: &Cell) -> String {
    let (class, symbol) = state_sign(cell.state);
    let name = cell.state.name();
    let title = if cell.why.is_empty() { name.to_string() } else { format!("{name}: {}", cell.why) };
    // Errors have no output, and without a reference there is no difference.
    let differs = match cell.state {
        CellState::Error | CellState::NoReference => String::new(),
        _ => format!("<small>largest difference {}</small>", difference(cell.max_abs)),
    };
    format!("<td class=\"state {class}\" title=\"{}\"><b>{symbol} {name}</b>{differs}</td>", escape(&title))
}

/// Formats a table of names and values.
fn facts<'f>(name: &str, facts: impl Iterator<Item = (&'f str, String)>) -> String {
    let line = |(key, value): (&str, String)| {
        format!(
            "<tr><th scope=\"row\" class=\"name key\">{}</th><td class=\"code\">{}</td></tr>\n",
            escape(key),
            escape(&value)
        )
    };
    table(name, "", &facts.map(line).collect::<String>())
}

/// Formats the environment: facts that must agree, and facts that may differ.
pub(super) fn environment(result: &SessionResult) -> String {
    let part = |title: &str, map: &BTreeMap<String, String>| {
        if map.is_empty() {
            return format!("<h3>{title}</h3>\n<p>Nothing is recorded.</p>\n");
        }
        let all = map.iter().map(|(key, value)| (key.as_str(), value.clone()));
        format!("<h3>{title}</h3>\n{}", facts(title, all))
    };
    part("Hard: must agree before results are compared", &result.environment.hard)
        + &part("Soft: may differ and may explain a difference", &result.environment.soft)
}

/// Formats the session's command and settings.
pub(super) fn session(result: &SessionResult) -> String {
    let (session, precision) = (&result.session, &result.suite.precision);
    let command = if session.command.is_empty() { "not recorded".into() } else { session.command.join(" ") };
    let all = [
        ("model", session.model.clone()),
        ("started", date(session.began)),
        ("duration", format!("{:.0} s of {:.0} s", session.seconds, precision.budget_s)),
        ("processes", result.runs.len().to_string()),
        ("seed", session.seed.to_string()),
        ("pairs", format!("{} to {}, until ±{}", precision.least_pairs, precision.pairs, share(precision.half_width))),
        ("margin", share(precision.margin)),
        ("reference", result.suite.reference.clone()),
        ("oracle", result.suite.oracle().to_string()),
        ("format", result.schema.clone()),
    ];
    format!("<pre class=\"command\">{}</pre>\n{}", escape(&command), facts("Session", all.into_iter()))
}

/// Formats the variants and workloads.
pub(super) fn participants(result: &SessionResult) -> String {
    let mut body = String::new();
    for variant in &result.suite.variants {
        let engine = result.runs.iter().filter(|run| run.variant == variant.id).find_map(|run| run.answer.as_ref());
        let mut settings: Vec<String> = variant.env.iter().map(|(key, value)| format!("{key}={value}")).collect();
        if let Some(binary) = &variant.binary {
            settings.push(binary.display().to_string());
        }
        body += &format!(
            "<tr><th scope=\"row\" class=\"name\">{}</th><td>{}</td><td>{}</td><td>{}</td><td class=\"number\">{}</td><td class=\"code\">{}</td></tr>\n",
            escape(&variant.id),
            engine.map_or_else(|| "no answer".into(), |answer| escape(&answer.engine)),
            variant.job.map_or_else(|| "the workload's".into(), |job| escape(&plain(&job))),
            escape(&variant.dtype),
            variant.threads.map_or_else(|| "default".into(), |threads| threads.to_string()),
            escape(&settings.join(" "))
        );
    }
    let mut out = table("Variants", &head(&["variant", "engine", "job", "weights", "#threads", "settings"]), &body);
    body.clear();
    for workload in &result.suite.workloads {
        body += &format!(
            "<tr><th scope=\"row\" class=\"name\">{}</th><td>{}</td><td class=\"number\">{}</td><td class=\"number\">{}</td><td class=\"number\">{}</td></tr>\n",
            escape(&workload.id),
            escape(&plain(&workload.job)),
            workload.tokens,
            workload.warmups,
            workload.repeats
        );
    }
    out += &table("Workloads", &head(&["workload", "job", "#tokens", "#untimed runs", "#timed runs"]), &body);
    out
}

/// Formats a job: `decode (steps 8)`.
fn plain(job: &crate::protocol::Job) -> String {
    let Ok(Value::Object(job)) = serde_json::to_value(job) else {
        // A job without settings serializes to a string.
        return serde_json::to_value(job)
            .ok()
            .and_then(|name| Some(name.as_str()?.replace('_', " ")))
            .unwrap_or_default();
    };
    let settings = |value: &Value| {
        let each = value.as_object().into_iter().flatten().map(|(key, value)| format!("{key} {value}"));
        each.collect::<Vec<_>>().join(", ")
    };
    job.iter().map(|(name, value)| format!("{} ({})", name.replace('_', " "), settings(value))).collect()
}
