//! The survey as the Markdown page that people know from test suites of this kind, with what that page left out in further columns.

use super::measure::{Row, Survey};
use super::{Category, Scope};
use crate::report::date;

/// Entries of the lists of the slowest and the largest.
const TOP: usize = 5;
/// Unused fixtures that are named.
const NAMED: usize = 10;
/// Uses from which on a fixture is worth making faster.
const OFTEN: usize = 3;
/// Characters of an error that the table shows.
const SHOWN: usize = 30;

/// The columns of that page, then ours.
const COLUMNS: [&str; 17] = [
    "Fixture Name",
    "Uses",
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
pub fn markdown(survey: &Survey) -> String {
    let rows = &survey.rows;
    let mut lines: Vec<String> = vec![
        "# Pellucid Fixture Benchmark Report".into(),
        String::new(),
        format!("**Generated:** {}", date(survey.generated).trim_end_matches(" UTC")),
        "**GPU Available:** False".into(),
        "**GPU Device:** None".into(),
        format!("**Total Fixtures Analyzed:** {}", rows.len()),
        String::new(),
    ];
    if let Some(why) = &survey.invalid {
        lines.extend([format!("**Invalid:** {why}. No number below can be believed."), String::new()]);
    }
    summary(rows, &mut lines);
    details(rows, &mut lines);
    insights(rows, &mut lines);
    recommendations(rows, &mut lines);
    lines.join("\n") + "\n"
}

fn is_used(row: &&Row) -> bool {
    row.uses.is_some_and(|uses| uses > 0)
}

fn percent(part: usize, whole: usize) -> String {
    format!("{:.1}%", if whole == 0 { 0.0 } else { 100.0 * part as f64 / whole as f64 })
}

fn summary(rows: &[Row], lines: &mut Vec<String>) {
    let used = rows.iter().filter(is_used).count();
    let known = rows.iter().all(|row| row.uses.is_some());
    lines.extend(
        [
            "## Summary Statistics",
            "",
            "> **Note:** Each fixture is built in a fresh process beside an empty one; times and Memory Δ are medians of paired",
            "> differences and may be negative. Peak and Anonymous are the child's own, not differences. A fixture alone shares",
            "> nothing, so inside a test process it may cost less. Uses are references in test code to its registered identifier.",
            "> Scope process is one for all tests (session elsewhere), suite one a file (class), test one a test (function).",
            "",
        ]
        .map(String::from),
    );
    lines.push(format!("- **Total Fixtures:** {}", rows.len()));
    if known {
        lines.push(format!("- **Used Fixtures:** {used} ({})", percent(used, rows.len())));
        lines.push(format!("- **Unused Fixtures:** {}", rows.len() - used));
    } else {
        lines.push("- **Used Fixtures:** N/A (no test sources were found; name their directory)".into());
        lines.push("- **Unused Fixtures:** N/A".into());
    }
    lines.push(String::new());
    groups("Category", rows, |row| row.category.name(), lines);
    groups("Scope", rows, |row| row.scope.name(), lines);
}

/// Counts by a property, in the order in which its values are first seen.
fn groups(what: &str, rows: &[Row], of: fn(&Row) -> &'static str, lines: &mut Vec<String>) {
    lines.extend([format!("### By {what}"), String::new()]);
    lines.extend(heading(&[what, "Count", "Used", "Usage %"]));
    let mut seen: Vec<&str> = Vec::new();
    for name in rows.iter().map(of) {
        if !seen.contains(&name) {
            seen.push(name);
        }
    }
    for name in seen {
        let all: Vec<&Row> = rows.iter().filter(|row| of(row) == name).collect();
        let used = all.iter().filter(|row| is_used(row)).count();
        lines.push(format!("| {name} | {} | {used} | {} |", all.len(), percent(used, all.len())));
    }
    lines.push(String::new());
}

fn details(rows: &[Row], lines: &mut Vec<String>) {
    lines.extend(["## Detailed Fixture Analysis".into(), String::new()]);
    lines.extend(heading(&COLUMNS));
    let mut sorted: Vec<&Row> = rows.iter().collect();
    sorted.sort_by(|a, b| b.uses.cmp(&a.uses).then_with(|| a.name.cmp(&b.name)));
    lines.extend(sorted.into_iter().map(detail));
    lines.push(String::new());
}

fn detail(row: &Row) -> String {
    let uses = row.uses.map_or_else(|| "N/A".into(), |uses| uses.to_string());
    let [kind, scope, category] = [row.kind.name(), row.scope.name(), row.category.name()];
    let head = format!("| {} | {uses} | {kind} | {scope} | {category}", row.name);
    let Some(cost) = &row.cost else {
        let error: String = row.error.as_deref().unwrap_or_default().chars().take(SHOWN).collect();
        let none = " | N/A".repeat(COLUMNS.len() - 9);
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

/// Text that cannot end a cell of a table.
fn plain(text: &str) -> String {
    text.replace('|', "\\|").replace(['\n', '\r'], " ")
}

fn megabytes(bytes: f64) -> f64 {
    bytes / 1e6
}

fn insights(rows: &[Row], lines: &mut Vec<String>) {
    lines.extend(["## Performance Insights".into(), String::new()]);
    let mut top = |title: &str, of: fn(&super::measure::Cost) -> f64, said: fn(f64) -> String| {
        let mut sorted: Vec<(&Row, f64)> = rows.iter().filter_map(|row| Some((row, of(row.cost.as_ref()?)))).collect();
        sorted.sort_by(|a, b| b.1.total_cmp(&a.1));
        lines.extend([format!("### {title} (Top {TOP})"), String::new()]);
        lines.extend(
            sorted.iter().take(TOP).map(|(row, value)| {
                format!("- **{}**: {} (Category: {})", row.name, said(*value), row.category.name())
            }),
        );
        lines.push(String::new());
    };
    top("Slowest Fixtures", |cost| cost.init_s, |seconds| format!("{seconds:.3}s"));
    top("Most Memory Intensive", |cost| megabytes(cost.memory), |size| format!("{size:.1}MB"));
}

fn recommendations(rows: &[Row], lines: &mut Vec<String>) {
    lines.extend(
        [
            "## Optimization Recommendations",
            "",
            "### High-Impact Optimization Targets",
            "",
            "These fixtures are heavily used and have session scope, making them prime candidates for optimization:",
            "",
        ]
        .map(String::from),
    );
    let is_target = |row: &&Row| {
        row.uses.is_some_and(|uses| uses >= OFTEN)
            && row.scope == Scope::Process
            && matches!(row.category, Category::Real | Category::Custom)
    };
    for row in rows.iter().filter(is_target) {
        lines.push(format!("- **{}**: {} uses, {}", row.name, row.uses.unwrap_or_default(), row.category.name()));
    }
    let unused: Vec<&Row> = rows.iter().filter(|row| row.uses == Some(0)).collect();
    lines.extend([String::new(), "### Unused Fixtures Consider for Removal".into(), String::new()]);
    lines.push(format!("Found {} unused fixtures that could potentially be removed:", unused.len()));
    lines.push(String::new());
    for row in unused.iter().take(NAMED) {
        lines.push(format!("- **{}**: {}, {} scope", row.name, row.category.name(), row.scope.name()));
    }
    if unused.len() > NAMED {
        lines.push(format!("- ... and {} more", unused.len() - NAMED));
    }
}
