//! A run as the Markdown page that people know from reports of this kind, in its order: what was expected, what was measured, what is covered.

use super::against::{Change, Colour, Comparison};
use super::gates::{Gate, Quantity, State};
use super::measure::ROUNDS;
use super::result::{Row, Run};
use super::{Category, ways};
use crate::report::seconds;

/// The nine categories as that page counts them, and what it only planned.
const SECTIONS: [&str; 10] = [
    "Architecture Detection",
    "SAE Model Detection",
    "Tokenizer Loading",
    "Model Category Detection",
    "Support Checking",
    "Memory Profiling",
    "Loading Strategy Comparison",
    "Architecture Variation",
    "Regression Tests",
    "Loading, Concurrency and Errors (planned by the first suite)",
];

/// What that page expected of times: operation, mean, range, and the benchmarks by how their names begin.
const EXPECTED_TIMES: [(&str, &str, &str, &str); 6] = [
    ("Architecture Detection", "< 1 ms", "0.1–2 ms", "architecture_detection_"),
    ("Category Detection", "< 0.5 ms", "0.05–1 ms", "category_detection_"),
    ("SAE Detection", "< 0.3 ms", "0.05–0.5 ms", "sae_detection_"),
    ("Support Check", "< 1.5 ms", "0.5–3 ms", "support_check_"),
    ("Tokenizer Load", "< 2 ms (a mock)", "1–5 ms (a mock)", "tokenizer_load_"),
    ("Omni Model Detection", "< 0.5 ms", "0.1–1 ms", "omni_detection_"),
];

/// What it expected of memory.
const EXPECTED_MEMORY: [(&str, &str, &str); 4] = [
    ("Model Info Retrieval", "< 1 MB", "model_info_with_memory"),
    ("Category Detection", "< 0.5 MB", "category_detection_with_memory"),
    ("SAE Detection", "< 0.2 MB", "sae_detection_with_memory"),
    ("Support Check", "< 1 MB", "support_check_with_memory"),
];

/// The methods that it covers, and the functions that answer the same here.
const METHODS: [(&str, &str); 14] = [
    ("get_model_info", "get_model_info"),
    ("is_omni_model", "is_omni_model"),
    ("is_model_supported", "is_model_supported"),
    ("_is_sae_model", "is_sae_model"),
    ("_get_sae_base_model", "get_sae_base_model"),
    ("_is_diffusers_model", "is_diffusers_model"),
    ("_is_vision_encoder", "is_vision_encoder"),
    ("_is_asr_model", "is_asr_model"),
    ("_detect_model_category", "detect_model_category"),
    ("_load_tokenizer", ways::TOKENIZER),
    ("_register_custom_architecture", "register_architecture"),
    ("_apply_self_healing_patches", ""),
    ("_load_with_strategies", ways::OPEN),
    ("—", "inspect"),
];

/// The whole page.
pub fn markdown(run: &Run) -> String {
    let mut page = Page::default();
    head(run, &mut page);
    wrong(run, &mut page);
    gates(&run.gates, &mut page);
    baselines(&run.results, &mut page);
    memory(&run.results, &mut page);
    results(&run.results, &mut page);
    coverage(&run.results, &mut page);
    if let Some(comparison) = &run.comparison {
        changes(comparison, &mut page);
    }
    page.text
}

#[derive(Default)]
struct Page {
    text: String,
}

impl Page {
    fn line(&mut self, line: impl AsRef<str>) {
        self.text += line.as_ref();
        self.text.push('\n');
    }

    fn heading(&mut self, heading: &str) {
        self.line(format!("\n{heading}\n"));
    }

    fn table<const N: usize>(&mut self, columns: [&str; N], rows: impl IntoIterator<Item = [String; N]>) {
        self.line(format!("| {} |", columns.join(" | ")));
        self.line(format!("|{}", "---|".repeat(N)));
        for row in rows {
            self.line(format!("| {} |", row.map(|cell| plain(&cell)).join(" | ")));
        }
    }
}

/// Text that cannot end a cell of a table.
fn plain(text: &str) -> String {
    text.replace('|', "\\|").replace(['\n', '\r'], " ")
}

fn megabytes(value: Option<f64>) -> String {
    value.map_or_else(|| "—".into(), |value| format!("{value:.4} MB"))
}

fn number(value: Option<u64>) -> String {
    value.map_or_else(|| "—".into(), |value| value.to_string())
}

fn head(run: &Run, page: &mut Page) {
    let (settings, summary) = (&run.settings, &run.summary);
    let of = |key: &str| run.env.hard.get(key).map_or("unknown", String::as_str);
    page.line("# Pellucid Loader Benchmark Report\n");
    page.line(format!("**Generated:** {}  ", run.timestamp.replace('T', " ")));
    page.line(format!("**Runtime:** {}  ", run.runtime));
    page.line(format!("**Platform:** {}, {}, {} cores  ", run.platform, of("cpu"), of("cores")));
    page.line(format!(
        "**Iterations:** {} in {ROUNDS} rounds, {} of warmup; a tenth of both for what takes milliseconds  ",
        settings.iterations, settings.warmup
    ));
    page.line(format!("**Real model:** {}", settings.model.as_deref().unwrap_or("none (TEST_MODEL_PATH names one)")));
    page.heading("## Summary");
    let right = summary.total_benchmarks - summary.wrong_outcomes;
    let count = |state: State| run.gates.iter().filter(|gate| gate.state == state).count();
    page.line(format!("- **Benchmarks:** {} in {} categories", summary.total_benchmarks, summary.categories.len()));
    page.line(format!("- **Outcomes:** {right} right, {} wrong; a wrong answer has no time", summary.wrong_outcomes));
    page.line(format!(
        "- **Gates:** {} met, {} missed, {} undecided, {} not judged",
        count(State::Met),
        summary.gates_missed,
        summary.gates_undecided,
        count(State::NotJudged)
    ));
    let Some(comparison) = &run.comparison else {
        return page.line("- **Baseline:** none given");
    };
    let count = |colour: Colour| comparison.changes.iter().filter(|change| change.verdict == colour).count();
    page.line(format!(
        "- **Baseline:** {} red, {} green, {} neutral against {}",
        count(Colour::Red),
        count(Colour::Green),
        count(Colour::Neutral),
        comparison.baseline.replace('T', " ")
    ));
}

fn wrong(run: &Run, page: &mut Page) {
    if run.summary.wrong_outcomes == 0 {
        return;
    }
    page.heading("## Wrong Outcomes");
    let wrong = run.results.iter().filter(|row| !row.outcome.ok);
    let rows = wrong.map(|row| [row.name.clone(), row.outcome.expected.clone(), row.outcome.observed.clone()]);
    page.table(["Benchmark", "Expected", "Observed"], rows);
}

fn gates(gates: &[Gate], page: &mut Page) {
    page.heading("## Performance Gates");
    let rows = gates.iter().map(|gate| {
        let shown = |value: Option<f64>| match gate.quantity {
            Quantity::MeanTime => value.map_or_else(|| "—".into(), seconds),
            Quantity::MemoryDelta => megabytes(value),
        };
        let benchmark = gate.benchmark.clone().unwrap_or_else(|| "not measured".into());
        let state = gate.state.name().to_owned();
        [gate.what.clone(), shown(gate.first_limit), shown(Some(gate.limit)), benchmark, shown(gate.value), state]
    });
    page.table(["Gate", "First Suite's Limit", "Limit", "Nearest Benchmark", "Measured", "Verdict"], rows);
}

fn baselines(results: &[Row], page: &mut Page) {
    page.heading("## Performance Baselines");
    let rows = EXPECTED_TIMES.map(|(operation, mean, range, begins)| {
        let times = || results.iter().filter(|row| row.name.starts_with(begins)).filter_map(|row| row.times.as_ref());
        let most = |of: fn(&super::result::Times) -> f64| {
            let most = times().map(of).max_by(f64::total_cmp);
            most.map_or_else(|| "—".into(), seconds)
        };
        let count = times().count();
        let mean_of = times().map(|times| times.mean_time).sum::<f64>() / count as f64;
        let measured = if count == 0 { "—".into() } else { seconds(mean_of) };
        [
            operation.into(),
            mean.into(),
            range.into(),
            count.to_string(),
            measured,
            most(|times| times.mean_time),
            most(|times| times.p95_time),
        ]
    });
    page.table(
        ["Operation", "Expected Mean Time", "Acceptable Range", "Benchmarks", "Mean", "Slowest Mean", "Highest P95"],
        rows,
    );
}

fn memory(results: &[Row], page: &mut Page) {
    page.heading("## Memory Usage");
    page.line("> Memory Delta is the heap that one answer holds at its height beyond what was there; what it leaves is less.\n");
    let rows = EXPECTED_MEMORY.map(|(operation, expected, name)| {
        let row = results.iter().find(|row| row.name == name);
        [
            operation.into(),
            expected.into(),
            megabytes(row.and_then(|row| row.memory_delta_mb)),
            number(row.and_then(|row| row.alloc_count)),
            number(row.and_then(|row| row.alloc_bytes)),
            number(row.and_then(|row| row.peak_rss_kb)),
        ]
    });
    page.table(
        ["Operation", "Expected Memory Delta", "Memory Delta", "Allocations", "Bytes Allocated", "Peak RSS (kB)"],
        rows,
    );
}

/// The section of a benchmark.
fn section(row: &Row) -> usize {
    match row.category {
        Category::Detection if row.name.starts_with("category_detection_") => 3,
        Category::Detection => 0,
        Category::Sae => 1,
        Category::Tokenizer => 2,
        Category::Support => 4,
        Category::Memory => 5,
        Category::Comparison => 6,
        Category::Architecture => 7,
        Category::Regression => 8,
        Category::Loading => 9,
    }
}

fn results(results: &[Row], page: &mut Page) {
    page.heading("## Results");
    let mut first = true;
    for (index, title) in SECTIONS.iter().enumerate() {
        let mut rows = results.iter().filter(|row| section(row) == index).peekable();
        if rows.peek().is_none() {
            continue;
        }
        if !std::mem::take(&mut first) {
            page.line("");
        }
        page.line(format!("### {}. {title}\n", index + 1));
        page.table(
            ["Benchmark", "Mean", "Median", "P95", "P99", "Std Dev", "Min", "Max", "n", "Memory Delta", "Outcome"],
            rows.map(cells),
        );
    }
}

fn cells(row: &Row) -> [String; 11] {
    let time = |of: fn(&super::result::Times) -> f64| {
        row.times.as_ref().map_or_else(|| "—".into(), |times| seconds(of(times)))
    };
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
        megabytes(row.memory_delta_mb),
        outcome,
    ]
}

fn coverage(results: &[Row], page: &mut Page) {
    page.heading("## Coverage");
    let rows = METHODS.map(|(method, function)| {
        let count = results.iter().filter(|row| row.function == function && row.outcome.ok).count();
        let covered = match (function, count) {
            ("", _) => "— nothing is patched at run time".into(),
            (_, 0) => "⚠️ not in this run".into(),
            (_, 1) => "✅ timed and checked by 1 benchmark".into(),
            (_, count) => format!("✅ timed and checked by {count} benchmarks"),
        };
        let function = if function.is_empty() { "—".into() } else { format!("`{function}`") };
        let method = if method == "—" { method.into() } else { format!("`{method}`") };
        [method, function, covered]
    });
    page.table(["Method", "Function", "Benchmark Coverage"], rows);
}

fn changes(comparison: &Comparison, page: &mut Page) {
    page.heading("## Regression Detection");
    page.line(
        "> Red and green are changes of mean and median by more than 5 % that are clear: every round of one run was faster than every round\n\
         > of the other. Both runs are processes of their own, so a machine that was slower throughout shows as red, too.\n",
    );
    if comparison.moved_together() {
        page.line("> **Most benchmarks moved the same way: the machine may have changed. Measure both again before believing it.**\n");
    }
    let rows = comparison.changes.iter().map(|change: &Change| {
        let clear = if change.clear { "clear" } else { "overlap" };
        [
            change.name.clone(),
            seconds(change.before),
            seconds(change.after),
            format!("{:+.1} %", change.change * 100.0),
            format!("{:+.1} %", change.median_change * 100.0),
            clear.into(),
            change.verdict.sign().into(),
        ]
    });
    page.table(["Benchmark", "Baseline", "Now", "Change", "Median", "Rounds", "Verdict"], rows);
    if !comparison.unmatched.is_empty() {
        page.line(format!("\nWith a time in one of the two runs only: {}.", comparison.unmatched.join(", ")));
    }
}
