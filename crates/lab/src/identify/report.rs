//! The result as a Markdown page.

use super::Category;
use super::compare::{BaselineComparison, Color};
use super::gates::{Gate, GateState, Quantity};
use super::measure::ROUNDS;
use super::result::{BenchmarkResult, IdentifyResult, Times};
use crate::report::seconds;

/// The whole page.
pub fn markdown(run: &IdentifyResult) -> String {
    let mut page = summary(run);
    let wrong: Vec<&BenchmarkResult> = run.results.iter().filter(|row| !row.outcome.ok).collect();
    if !wrong.is_empty() {
        let rows =
            wrong.iter().map(|row| [row.name.clone(), row.outcome.expected.clone(), row.outcome.observed.clone()]);
        page += "\n## Wrong Outcomes\n\n";
        page += &table(["Benchmark", "Expected", "Observed"], rows);
    }
    page += "\n## Performance Gates\n\n";
    page += &table(["Gate", "Limit", "Nearest Benchmark", "Measured", "Verdict"], run.gates.iter().map(gate));
    if run.summary.categories.contains(&Category::Memory) {
        page += &memory(&run.results);
    }
    page += "\n## Results\n";
    for (number, (category, _, title)) in Category::ALL.iter().enumerate() {
        let mut rows = run.results.iter().filter(|row| row.category == *category).peekable();
        if rows.peek().is_some() {
            page += &format!("\n### {}. {title}\n\n", number + 1);
            let columns =
                ["Benchmark", "Mean", "Median", "P95", "P99", "Std Dev", "Min", "Max", "n", "Memory Delta", "Outcome"];
            page += &table(columns, rows.map(result));
        }
    }
    page += &coverage(&run.results);
    page + &run.comparison.as_ref().map(changes).unwrap_or_default()
}

/// Formats a table; escapes the cells.
fn table<const N: usize>(columns: [&str; N], rows: impl IntoIterator<Item = [String; N]>) -> String {
    let mut out = format!("| {} |\n|{}\n", columns.join(" | "), "---|".repeat(N));
    for row in rows {
        let cells = row.map(|cell| cell.replace('|', "\\|").replace(['\n', '\r'], " "));
        out += &format!("| {} |\n", cells.join(" | "));
    }
    out
}

fn or_dash<T>(value: Option<T>, words: impl Fn(T) -> String) -> String {
    value.map_or_else(|| "—".into(), words)
}

fn megabytes(value: f64) -> String {
    format!("{value:.4} MB")
}

fn summary(run: &IdentifyResult) -> String {
    let (settings, summary) = (&run.settings, &run.summary);
    let hard = |key: &str| run.env.hard.get(key).map_or("unknown", String::as_str);
    let gates = |state: GateState| run.gates.iter().filter(|gate| gate.state == state).count();
    let baseline = run.comparison.as_ref().map_or_else(
        || "none given".into(),
        |c| {
            let [red, green, neutral] = [Color::Red, Color::Green, Color::Neutral].map(|color| c.count(color));
            format!("{red} red, {green} green, {neutral} neutral against {}", c.baseline.replace('T', " "))
        },
    );
    format!(
        "# Pellucid Identify Benchmark Report\n\n\
         **Generated:** {}  \n**Runtime:** {}  \n**Platform:** {}, {}, {} cores  \n\
         **Iterations:** {} in {ROUNDS} rounds, {} of warmup; a tenth of both for calls that take milliseconds  \n\
         **Real model:** {}\n\n## Summary\n\n\
         - **Benchmarks:** {} in {} categories\n- **Outcomes:** {} correct, {} wrong; a wrong answer has no time\n\
         - **Gates:** {} met, {} missed, {} undecided, {} not judged\n- **Baseline:** {baseline}\n",
        run.timestamp.replace('T', " "),
        run.runtime,
        run.platform,
        hard("cpu"),
        hard("cores"),
        settings.iterations,
        settings.warmup,
        settings.model.as_deref().unwrap_or("none (set TEST_MODEL_PATH)"),
        summary.total_benchmarks,
        summary.categories.len(),
        summary.total_benchmarks - summary.wrong_outcomes,
        summary.wrong_outcomes,
        gates(GateState::Met),
        gates(GateState::Missed),
        gates(GateState::Undecided),
        gates(GateState::NotJudged),
    )
}

fn gate(gate: &Gate) -> [String; 5] {
    let shown = if gate.quantity == Quantity::MeanTime { seconds } else { megabytes };
    let benchmark = gate.benchmark.clone().unwrap_or_else(|| "not measured".into());
    [gate.what.clone(), shown(gate.limit), benchmark, or_dash(gate.value, shown), gate.state.name().into()]
}

fn memory(results: &[BenchmarkResult]) -> String {
    let rows = results.iter().filter(|row| row.category == Category::Memory).map(|row| {
        let count = |value: Option<u64>| or_dash(value, |value| value.to_string());
        let counts = [row.alloc_count, row.alloc_bytes, row.peak_rss_kb].map(count);
        let [allocations, bytes, peak] = counts;
        [row.name.clone(), or_dash(row.memory_delta_mb, megabytes), allocations, bytes, peak]
    });
    "\n## Memory Usage\n\n> Memory Delta is the peak of live heap during one call.\n\n".to_owned()
        + &table(["Benchmark", "Memory Delta", "Allocations", "Bytes Allocated", "Peak RSS (kB)"], rows)
}

fn result(row: &BenchmarkResult) -> [String; 11] {
    let time = |of: fn(&Times) -> f64| or_dash(row.times.as_ref(), |times| seconds(of(times)));
    let outcome = if row.outcome.ok { format!("✅ {}", row.outcome.expected) } else { "❌ wrong".into() };
    [
        row.name.clone(),
        time(|times| times.mean_time),
        time(|times| times.median_time),
        time(|times| times.p95_time),
        time(|times| times.p99_time),
        time(|times| times.std_dev),
        time(|times| times.min_time),
        time(|times| times.max_time),
        row.iterations.to_string(),
        or_dash(row.memory_delta_mb, megabytes),
        outcome,
    ]
}

/// Counts the benchmarks with correct answers per timed function.
fn coverage(results: &[BenchmarkResult]) -> String {
    let mut functions: Vec<(&str, usize)> = Vec::new();
    for row in results.iter().filter(|row| row.outcome.ok) {
        match functions.iter_mut().find(|(function, _)| *function == row.function) {
            Some((_, count)) => *count += 1,
            None => functions.push((&row.function, 1)),
        }
    }
    let rows = functions.iter().map(|(function, count)| [format!("`{function}`"), count.to_string()]);
    "\n## Coverage\n\n".to_owned() + &table(["Function", "Benchmarks"], rows)
}

fn changes(comparison: &BaselineComparison) -> String {
    let moved = match comparison.moved_together() {
        true => {
            "> **Most benchmarks moved in the same direction: the machine may have changed. Measure both builds again.**\n\n"
        }
        false => "",
    };
    let rows = comparison.changes.iter().map(|change| {
        let verdict = match change.verdict {
            Color::Red => "🔴 red",
            Color::Green => "🟢 green",
            Color::Neutral => "⚪ neutral",
        };
        let percent = |share: f64| format!("{:+.1} %", share * 100.0);
        let rounds = if change.clear { "separated" } else { "overlap" };
        let (before, after) = (seconds(change.before), seconds(change.after));
        let (mean, median) = (percent(change.change), percent(change.median_change));
        [change.name.clone(), before, after, mean, median, rounds.into(), verdict.into()]
    });
    let unmatched = match comparison.unmatched.is_empty() {
        true => String::new(),
        false => format!("\nMeasured in only one of the two results: {}.\n", comparison.unmatched.join(", ")),
    };
    "\n## Regression Detection\n\n\
     > Red and green: mean and median changed by more than 5 %, and the rounds are separated (every round of one result is faster\n\
     > than every round of the other). The results come from separate processes, so a machine that was slower throughout is red, too.\n\n"
        .to_owned()
        + moved
        + &table(["Benchmark", "Baseline", "Now", "Change", "Median", "Rounds", "Verdict"], rows)
        + &unmatched
}
