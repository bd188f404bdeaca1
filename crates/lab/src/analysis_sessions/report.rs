//! The result as a Markdown page: counts, a row per state, phases, the slowest and the largest,
//! targets, unused parts; for the published workloads also the peer and the bars.

use super::measure::{SessionResult, SessionRun, SessionsResult};
use super::states::{StateCost, StateRow, states};
use crate::report::date;

/// Length of the lists of the slowest and the largest.
const TOP_COUNT: usize = 5;
/// Length of the list of unused parts.
const UNUSED_COUNT: usize = 10;
/// Uses from which a shared state is worth optimizing.
const HIGH_IMPACT_USES: usize = 3;
/// Maximum length of an error in the table.
const MAX_ERROR_CHARS: usize = 30;

const COLUMNS: [&str; 12] = [
    "Session State",
    "Uses",
    "Type",
    "Scope",
    "Category",
    "Init Time (s)",
    "Memory Δ (MB)",
    "GPU Δ (MB)",
    "Status",
    "MAD (s)",
    "Peak (MB)",
    "Runs",
];

/// The heading of a table, and the line under it.
fn heading(columns: &[&str]) -> [String; 2] {
    let rules: Vec<String> = columns.iter().map(|column| "-".repeat(column.chars().count() + 2)).collect();
    [format!("| {} |", columns.join(" | ")), format!("|{}|", rules.join("|"))]
}

/// The whole page.
pub fn markdown(result: &SessionsResult) -> String {
    let rows = states(result);
    let mut lines: Vec<String> = vec![
        "# Pellucid Session Benchmark Report".into(),
        String::new(),
        format!("**Generated:** {}", date(result.generated).trim_end_matches(" UTC")),
        "**GPU Available:** False".into(),
        "**GPU Device:** None".into(),
        format!("**Total Sessions Analyzed:** {}", result.sessions.len()),
        String::new(),
    ];
    summary(&rows, &mut lines);
    details(&rows, &mut lines);
    phases(&result.sessions, &mut lines);
    insights(&rows, &mut lines);
    recommendations(&rows, &mut lines);
    peers(&result.sessions, &mut lines);
    bars(result, &mut lines);
    lines.join("\n") + "\n"
}

fn summary(rows: &[StateRow], lines: &mut Vec<String>) {
    let note = [
        "## Summary Statistics",
        "",
        "> **Note:** Each run is `pellucid analyze` in a fresh process. A session has three states: `config` (the file is",
        "> read), `ready` (model, SAEs and tokens are in memory) and `run` (the store is written). Times and memory count",
        "> from the start of the session, `run` from the start of the process; they are medians. Sessions with the same",
        "> model, SAEs and examples share a `ready` row. Peak is the kernel's peak of the resident memory, not the last value.",
        "",
    ];
    lines.extend(note.map(String::from));
    let used = rows.iter().filter(|row| row.uses > 0).count();
    lines.extend([
        format!("- **Total States:** {}", rows.len()),
        format!("- **Used States:** {used} ({})", percent(used, rows.len())),
        format!("- **Unused Parts:** {}", rows.len() - used),
        String::new(),
    ]);
    counts("Category", rows, |row| row.category, lines);
    counts("Scope", rows, |row| row.scope, lines);
}

fn percent(part: usize, whole: usize) -> String {
    format!("{:.1}%", 100.0 * part as f64 / whole.max(1) as f64)
}

/// Counts rows by a property, in order of first appearance.
fn counts(what: &str, rows: &[StateRow], of: fn(&StateRow) -> &'static str, lines: &mut Vec<String>) {
    lines.extend([format!("### By {what}"), String::new()]);
    lines.extend(heading(&[what, "Count", "Used", "Usage %"]));
    let mut names: Vec<&str> = Vec::new();
    rows.iter().map(of).for_each(|name| {
        if !names.contains(&name) {
            names.push(name);
        }
    });
    for name in names {
        let own: Vec<&StateRow> = rows.iter().filter(|row| of(row) == name).collect();
        let used = own.iter().filter(|row| row.uses > 0).count();
        lines.push(format!("| {name} | {} | {used} | {} |", own.len(), percent(used, own.len())));
    }
    lines.push(String::new());
}

fn details(rows: &[StateRow], lines: &mut Vec<String>) {
    lines.extend(["## Detailed Session Analysis".into(), String::new()]);
    lines.extend(heading(&COLUMNS));
    let mut sorted: Vec<&StateRow> = rows.iter().collect();
    sorted.sort_by(|a, b| b.uses.cmp(&a.uses).then_with(|| a.name.cmp(&b.name)));
    lines.extend(sorted.into_iter().map(detail));
    lines.push(String::new());
}

fn detail(row: &StateRow) -> String {
    let head = format!("| {} | {} | {} | {} | {}", row.name, row.uses, row.kind, row.scope, row.category);
    match &row.cost {
        Ok(cost) => format!(
            "{head} | {:.3} | {:.1} | N/A | ✅ Success | {:.3} | {:.1} | {} |",
            cost.init_s,
            megabytes(cost.memory),
            cost.mad_s,
            megabytes(cost.peak),
            cost.runs
        ),
        Err(message) if row.uses == 0 => {
            format!("{head} | N/A | N/A | N/A | {} | N/A | N/A | N/A |", plain(message))
        }
        Err(message) => {
            let error: String = message.chars().take(MAX_ERROR_CHARS).collect();
            format!("{head} | N/A | N/A | N/A | ❌ {}... | N/A | N/A | N/A |", plain(&error))
        }
    }
}

/// Escapes text for a table cell.
fn plain(text: &str) -> String {
    text.replace('|', "\\|").replace(['\n', '\r'], " ")
}

fn megabytes(bytes: f64) -> f64 {
    bytes / 1e6
}

fn phases(sessions: &[SessionResult], lines: &mut Vec<String>) {
    lines.extend(["### Phases".into(), String::new()]);
    lines.extend(heading(&[
        "Session",
        "config (s)",
        "init (s)",
        "prepare (s)",
        "setup (s)",
        "run (s)",
        "save (s)",
        "process (s)",
    ]));
    for session in sessions.iter().filter(|session| !session.runs.is_empty()) {
        let cells = ["config", "init", "prepare", "setup", "run", "save"]
            .map(|phase| format!("{:.3}", session.median(|run| run.phase_s(phase))));
        lines.push(format!("| {} | {} | {} |", session.name, cells.join(" | "), spread(session, |run| run.wall_s)));
    }
    lines.push(String::new());
}

/// The median with the range: `1.234 (1.200 to 1.300)`.
fn spread(session: &SessionResult, of: fn(&SessionRun) -> f64) -> String {
    let values: Vec<f64> = session.runs.iter().map(of).collect();
    let (low, high) = (crate::stats::quantile(&values, 0.0), crate::stats::quantile(&values, 1.0));
    format!("{:.3} ({low:.3} to {high:.3})", session.median(of))
}

fn insights(rows: &[StateRow], lines: &mut Vec<String>) {
    lines.extend(["## Performance Insights".into(), String::new()]);
    let mut top = |title: &str, of: fn(&StateCost) -> f64, format: fn(f64) -> String| {
        let mut sorted: Vec<(&StateRow, f64)> =
            rows.iter().filter_map(|row| Some((row, of(row.cost.as_ref().ok()?)))).collect();
        sorted.sort_by(|a, b| b.1.total_cmp(&a.1));
        lines.extend([format!("### {title} (Top {TOP_COUNT})"), String::new()]);
        lines.extend(
            sorted
                .iter()
                .take(TOP_COUNT)
                .map(|(row, value)| format!("- **{}**: {} (Category: {})", row.name, format(*value), row.category)),
        );
        lines.push(String::new());
    };
    top("Slowest Sessions", |cost| cost.init_s, |seconds| format!("{seconds:.3}s"));
    top("Most Memory Intensive", |cost| megabytes(cost.peak), |size| format!("{size:.1}MB"));
}

fn recommendations(rows: &[StateRow], lines: &mut Vec<String>) {
    lines.extend(["## Optimization Recommendations".into(), String::new()]);
    lines.extend(["### High-Impact Optimization Targets".into(), String::new()]);
    let targets: Vec<String> = rows
        .iter()
        .filter(|row| row.uses >= HIGH_IMPACT_USES && row.scope == "shared")
        .filter_map(|row| {
            let cost = row.cost.as_ref().ok()?;
            let saved = cost.init_s * (row.uses - 1) as f64;
            Some(format!(
                "- **{}**: {} uses, {}; one process for these sessions would save {saved:.3}s",
                row.name, row.uses, row.category
            ))
        })
        .collect();
    match targets.is_empty() {
        true => lines.push(format!("No state is shared by {HIGH_IMPACT_USES} sessions or more.")),
        false => lines.extend(targets),
    }
    lines.extend([String::new(), "### Unused Parts Consider for Removal".into(), String::new()]);
    let unused: Vec<&StateRow> = rows.iter().filter(|row| row.uses == 0).collect();
    if unused.is_empty() {
        lines.push("Every SAE is read by an op of its session.".into());
    } else {
        lines.extend([
            format!("SAEs that a session attaches and none of its ops reads: {}", unused.len()),
            String::new(),
        ]);
        lines.extend(unused.iter().take(UNUSED_COUNT).map(|row| format!("- **{}**: {}", row.name, row.category)));
        if unused.len() > UNUSED_COUNT {
            lines.push(format!("- ... and {} more", unused.len() - UNUSED_COUNT));
        }
    }
    lines.push(String::new());
}

fn peers(sessions: &[SessionResult], lines: &mut Vec<String>) {
    let failed = sessions.iter().filter_map(|session| Some((&session.name, session.peer_error.as_ref()?)));
    let failed: Vec<String> = failed.map(|(name, error)| format!("- **{name}**: {}", plain(error))).collect();
    let measured: Vec<&SessionResult> =
        sessions.iter().filter(|session| !session.peer_runs.is_empty() && !session.runs.is_empty()).collect();
    if measured.is_empty() && failed.is_empty() {
        return;
    }
    lines.extend(["## Side by Side".into(), String::new()]);
    if let Some(run) = measured.first().and_then(|session| session.peer_runs.first()) {
        lines.extend([format!("The peer is {}. Each pair ran one after the other.", run.engine), String::new()]);
    }
    let columns = [
        "Session",
        "Run (s)",
        "Peer (s)",
        "Faster",
        "Process (s)",
        "Peer (s)",
        "Faster",
        "Peak (MB)",
        "Peer (MB)",
        "Memory",
        "Peer's forwards",
        "Results",
    ];
    lines.extend(heading(&columns));
    for session in measured {
        let (run, wall) = (session.median(SessionRun::run_s), session.median(|run| run.wall_s));
        let (peer_run, peer_wall) = (session.peer_median(|run| run.run_s), session.peer_median(|run| run.wall_s));
        let peak = session.median(|run| run.peak("save") as f64);
        let peer_peak = session.peer_median(|run| run.peak_bytes as f64);
        lines.push(format!(
            "| {} | {run:.2} | {peer_run:.2} | {:.1}× | {wall:.2} | {peer_wall:.2} | {:.1}× | {:.0} | {:.0} | {:.2}× | {:.0} | {} |",
            session.name,
            peer_run / run,
            peer_wall / wall,
            megabytes(peak),
            megabytes(peer_peak),
            peak / peer_peak,
            session.peer_median(|run| run.forwards as f64),
            agreement(session),
        ));
    }
    lines.push(String::new());
    if !failed.is_empty() {
        lines.extend(["The peer failed:".into(), String::new()]);
        lines.extend(failed);
        lines.push(String::new());
    }
}

fn agreement(session: &SessionResult) -> String {
    let Some(found) = &session.agreement else { return "N/A".into() };
    let verdict = if found.agrees { "✅" } else { "❌" };
    let latents = match found.latents {
        0 => String::new(),
        count => format!("; {count} latents, {} others, effects within {:.1e}", found.other_latents, found.effects),
    };
    format!("{verdict} differences within {:.1e}{latents}", found.logit_diffs)
}

fn bars(result: &SessionsResult, lines: &mut Vec<String>) {
    if result.bars.is_empty() {
        return;
    }
    lines.extend(["## Bars".into(), String::new()]);
    lines.extend(heading(&["Bar", "Bound", "Measured", "Verdict"]));
    lines.extend(result.bars.iter().map(|bar| {
        let verdict = if bar.met { "✅ met" } else { "❌ missed" };
        format!("| {} | {} | {} | {verdict} |", bar.name, bar.bound, bar.measured)
    }));
    lines.push(String::new());
}
