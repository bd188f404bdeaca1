//! The result as a Markdown page: counts, a row per fixture, the slowest and the largest.

use super::measure::{ConstructionResult, FixtureResult};
use crate::report::date;

/// Length of the lists of the slowest and the largest.
const TOP_COUNT: usize = 5;
/// Maximum length of an error in the table.
const MAX_ERROR_CHARS: usize = 30;

const COLUMNS: [&str; 16] = [
    "Fixture Name",
    "Type",
    "Scope",
    "Category",
    "Init Time (s)",
    "Memory Δ (MB)",
    "GPU Δ (MB)",
    "Status",
    "Init 95 % (s)",
    "MAD (s)",
    "Runs",
    "Load (s)",
    "Prepare (s)",
    "Run (s)",
    "Peak (MB)",
    "Anonymous (MB)",
];

/// The heading of a table, and the line under it.
fn heading(columns: &[&str]) -> [String; 2] {
    let rules: Vec<String> = columns.iter().map(|column| "-".repeat(column.chars().count() + 2)).collect();
    [format!("| {} |", columns.join(" | ")), format!("|{}|", rules.join("|"))]
}

/// The whole page.
pub fn markdown(result: &ConstructionResult) -> String {
    let rows = &result.rows;
    let mut lines: Vec<String> = vec![
        "# Pellucid Fixture Benchmark Report".into(),
        String::new(),
        format!("**Generated:** {}", date(result.generated).trim_end_matches(" UTC")),
        "**GPU Available:** False".into(),
        "**GPU Device:** None".into(),
        format!("**Total Fixtures Analyzed:** {}", rows.len()),
        String::new(),
    ];
    if let Some(why) = &result.invalid {
        lines.extend([format!("**Invalid:** {why}. Ignore all figures below."), String::new()]);
    }
    summary(rows, &mut lines);
    details(rows, &mut lines);
    insights(rows, &mut lines);
    lines.join("\n") + "\n"
}

fn summary(rows: &[FixtureResult], lines: &mut Vec<String>) {
    lines.extend(
        [
            "## Summary Statistics",
            "",
            "> **Note:** Each fixture is built in a fresh process paired with an empty one; times and Memory Δ are medians of paired",
            "> differences and may be negative. Peak and Anonymous are absolute values of the child. A fresh process shares",
            "> nothing, so inside a test process a fixture may cost less.",
            "> Scope: process is one instance for all tests (pytest: session), suite one per file (class), test one per test (function).",
            "",
        ]
        .map(String::from),
    );
    let built = rows.iter().filter(|row| row.cost.is_some()).count();
    lines.extend([format!("- **Total Fixtures:** {}", rows.len()), format!("- **Built:** {built}"), String::new()]);
    counts("Category", rows, |row| row.category.name(), lines);
    counts("Scope", rows, |row| row.scope.name(), lines);
}

/// Counts rows by a property, in order of first appearance.
fn counts(what: &str, rows: &[FixtureResult], of: fn(&FixtureResult) -> &'static str, lines: &mut Vec<String>) {
    lines.extend([format!("### By {what}"), String::new()]);
    lines.extend(heading(&[what, "Count"]));
    let mut counts: Vec<(&str, usize)> = Vec::new();
    for name in rows.iter().map(of) {
        match counts.iter_mut().find(|(known, _)| *known == name) {
            Some((_, count)) => *count += 1,
            None => counts.push((name, 1)),
        }
    }
    lines.extend(counts.iter().map(|(name, count)| format!("| {name} | {count} |")));
    lines.push(String::new());
}

fn details(rows: &[FixtureResult], lines: &mut Vec<String>) {
    lines.extend(["## Detailed Fixture Analysis".into(), String::new()]);
    lines.extend(heading(&COLUMNS));
    let mut sorted: Vec<&FixtureResult> = rows.iter().collect();
    sorted.sort_by(|a, b| a.name.cmp(&b.name));
    lines.extend(sorted.into_iter().map(detail));
    lines.push(String::new());
}

fn detail(row: &FixtureResult) -> String {
    let [kind, scope, category] = [row.kind.name(), row.scope.name(), row.category.name()];
    let head = format!("| {} | {kind} | {scope} | {category}", row.name);
    let Some(cost) = &row.cost else {
        let error: String = row.error.as_deref().unwrap_or_default().chars().take(MAX_ERROR_CHARS).collect();
        let none = " | N/A".repeat(COLUMNS.len() - 8);
        return format!("{head} | N/A | N/A | N/A | ❌ {}...{none} |", plain(&error));
    };
    let between = match cost.init.half_width().is_finite() {
        true => format!("{:.3} to {:.3}", cost.init.low, cost.init.high),
        false => "N/A".into(),
    };
    format!(
        "{head} | {:.3} | {:.1} | N/A | ✅ Success | {between} | {:.3} | {} | {:.3} | {:.3} | {:.3} | {:.1} | {:.1} |",
        cost.init_s,
        megabytes(cost.memory),
        cost.init_mad_s,
        cost.runs,
        cost.load_s,
        cost.prepare_s,
        cost.run_s,
        megabytes(cost.peak),
        megabytes(cost.anonymous)
    )
}

/// Escapes text for a table cell.
fn plain(text: &str) -> String {
    text.replace('|', "\\|").replace(['\n', '\r'], " ")
}

fn megabytes(bytes: f64) -> f64 {
    bytes / 1e6
}

fn insights(rows: &[FixtureResult], lines: &mut Vec<String>) {
    lines.extend(["## Performance Insights".into(), String::new()]);
    let mut top =
        |title: &str, of: fn(&super::measure::Cost) -> f64, format: fn(f64) -> String| {
            let mut sorted: Vec<(&FixtureResult, f64)> =
                rows.iter().filter_map(|row| Some((row, of(row.cost.as_ref()?)))).collect();
            sorted.sort_by(|a, b| b.1.total_cmp(&a.1));
            lines.extend([format!("### {title} (Top {TOP_COUNT})"), String::new()]);
            lines.extend(sorted.iter().take(TOP_COUNT).map(|(row, value)| {
                format!("- **{}**: {} (Category: {})", row.name, format(*value), row.category.name())
            }));
            lines.push(String::new());
        };
    top("Slowest Fixtures", |cost| cost.init_s, |seconds| format!("{seconds:.3}s"));
    top("Most Memory Intensive", |cost| megabytes(cost.memory), |size| format!("{size:.1}MB"));
}
