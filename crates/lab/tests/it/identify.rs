//! The suite `identify`: correct answers, detection of wrong ones, its file and its page.

use crate::conforms;
use pellucid_lab::environment::Environment;
use pellucid_lab::identify::compare::{self, BaselineComparison, Change, Color};
use pellucid_lab::identify::directories::Directories;
use pellucid_lab::identify::gates::{self, GateState};
use pellucid_lab::identify::measure::{ROUNDS, measure, times};
use pellucid_lab::identify::result::{
    self, BenchmarkResult, CheckedAnswer, ITERATIONS, IdentifyResult, IdentifySettings, MODEL, SCHEMA_TEXT, WARMUP,
};
use pellucid_lab::identify::{self, Benchmark, Category, Query, report};
use pellucid_models::Strategy;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

fn quick() -> IdentifySettings {
    IdentifySettings { iterations: 1, warmup: 0, ..IdentifySettings::default() }
}

#[test]
fn every_answer_is_correct() {
    let hub = pellucid_loopback::Hub::start(identify::hub_files()).expect("a port");
    let address = identify::Hub { endpoint: hub.endpoint(), model: pellucid_loopback::MODEL.into() };
    let found = result::run(&quick(), Some(&address)).expect("measured");
    let wrong: Vec<_> =
        found.results.iter().filter(|row| !row.outcome.ok).map(|row| (&row.name, &row.outcome)).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(hub.requests().iter().any(|path| path.contains("tokenizer.json")), "{:?}", hub.requests());
    let names: BTreeSet<&str> = found.results.iter().map(|row| row.name.as_str()).collect();
    assert_eq!((names.len(), found.results.len()), (88, 88), "names are unique");
    assert_eq!(found.summary.categories, Category::ALL.map(|(category, ..)| category));
    let chosen = found.results.iter().filter(|row| row.name.starts_with("strategy_selection_"));
    let chosen: Vec<&str> = chosen.map(|row| row.outcome.observed.as_str()).collect();
    for strategy in Strategy::ALL.map(Strategy::name).into_iter().chain(["refused"]) {
        assert!(chosen.contains(&strategy), "no benchmark has the outcome {strategy:?}");
    }
}

#[test]
fn a_category_is_measured_alone() {
    let directories = Directories::create().expect("directories");
    let selected = |category: Option<Category>, has_hub| {
        let settings = IdentifySettings { category, ..quick() };
        let all = identify::select_benchmarks(&directories, &settings, has_hub).expect("chosen");
        all.into_iter().map(|benchmark| benchmark.category).collect::<Vec<_>>()
    };
    let all = selected(None, true);
    for (category, ..) in Category::ALL {
        let count = all.iter().filter(|found| **found == category).count();
        assert!(count > 0);
        assert_eq!(selected(Some(category), true), vec![category; count]);
    }
    assert_eq!(selected(None, false).len(), all.len() - 1, "without a hub nothing is downloaded");
}

#[test]
fn a_real_model_is_checked_against_its_inspection_and_must_exist() {
    let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/models/llama");
    let settings = IdentifySettings { category: Some(Category::Loading), model: Some(golden.into()), ..quick() };
    let found = result::run(&settings, None).expect("measured");
    let observed = |name: &str| {
        let row = found.results.iter().find(|row| row.name == name).unwrap_or_else(|| panic!("{name}"));
        assert!(row.outcome.ok && row.metadata["model"] == "llama", "{row:?}");
        row.outcome.observed.clone()
    };
    assert_eq!(observed("real_model_info"), "llama, native");
    assert_eq!(observed("real_model_open"), "3 layers, ready to run");
    assert!(observed("real_model_report").ends_with(" parameters, native, it will run"));
    assert_eq!(found.env.hard["model"].len(), 16, "the fingerprint includes the model");
    let missing = IdentifySettings { model: Some("/no/such/model".into()), ..quick() };
    let error = result::run(&missing, None).expect_err("refused").to_string();
    assert!(error.contains("TEST_MODEL_PATH is `/no/such/model`"), "{error}");
}

/// A benchmark whose expected answer is `right`.
fn benchmark(query: &'static Query) -> Benchmark {
    Benchmark {
        name: "b".into(),
        category: Category::Sae,
        query,
        path: "no/such/path".into(),
        expected: "right".into(),
        metadata: BTreeMap::new(),
    }
}

#[test]
fn every_iteration_is_timed_once_after_its_warmup() {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    static FAST: Query = Query {
        function: "f",
        iteration_divisor: 1,
        run: |_, _| {
            COUNT.fetch_add(1, Relaxed);
            "right".into()
        },
    };
    static SLOW: Query = Query { function: FAST.function, iteration_divisor: 10, run: FAST.run };
    let settings = IdentifySettings { iterations: 20, warmup: 8, ..IdentifySettings::default() };
    let rows = measure(&[benchmark(&FAST)], &settings, None);
    let times = rows[0].times.as_ref().expect("correct answers have times");
    assert_eq!((rows[0].iterations, rows[0].samples_ns.len(), times.round_means.len()), (20, 20, ROUNDS));
    assert_eq!(COUNT.swap(0, Relaxed), 28);
    assert!(rows[0].outcome.ok && times.min_time <= times.mean_time && times.mean_time <= times.max_time);
    let few = IdentifySettings { iterations: 3, warmup: 0, ..IdentifySettings::default() };
    let rows = measure(&[benchmark(&SLOW)], &few, None);
    assert_eq!((rows[0].iterations, COUNT.load(Relaxed)), (1, 1), "a tenth, and at least one");
}

#[test]
fn one_wrong_answer_leaves_no_time_and_fails_the_run() {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    static LAPSING: Query = Query {
        function: "f",
        iteration_divisor: 1,
        run: |_, _| if COUNT.fetch_add(1, Relaxed) < 15 { "right".into() } else { "wrong".into() },
    };
    let settings = IdentifySettings { iterations: 20, warmup: 0, ..IdentifySettings::default() };
    let rows = measure(&[benchmark(&LAPSING)], &settings, None);
    assert_eq!(rows[0].outcome, CheckedAnswer { expected: "right".into(), observed: "wrong".into(), ok: false });
    assert!(rows[0].times.is_none() && rows[0].samples_ns.is_empty() && rows[0].iterations == 0);
    assert_eq!(COUNT.load(Relaxed), 16, "a wrong answer stops the benchmark");
    let run = run_of(rows);
    assert_eq!((run.summary.wrong_outcomes, run.exit_code()), (1, 1));
    let page = report::markdown(&run);
    assert!(page.contains("## Wrong Outcomes") && page.contains("| b | right | wrong |"), "{page}");
    assert!(page.contains("| b | — | — |") && page.contains("❌ wrong"), "{page}");
}

#[test]
fn percentiles_are_the_samples_at_their_indices() {
    let samples: Vec<u64> = (1..=100).rev().map(|i| i * 1_000_000).collect();
    let found = times(&samples, vec![]);
    assert_eq!((found.p95_time, found.p99_time), (0.096, 0.1));
    assert_eq!((found.min_time, found.max_time, found.median_time), (0.001, 0.1, 0.0505));
    assert!((found.mean_time - 0.0505).abs() < 1e-12 && (found.total_time - 5.05).abs() < 1e-9);
    assert!((found.std_dev - 0.029_011_491_975_882_016).abs() < 1e-12, "{}", found.std_dev);
    let one = times(&[2_000], vec![]);
    assert_eq!((one.std_dev, one.p95_time, one.p99_time), (0.0, 2e-6, 2e-6));
}

#[test]
fn arguments_override_the_environment() {
    let variables = |name: &str| match name {
        ITERATIONS => Some("30".into()),
        WARMUP => Some(" 3 ".into()),
        MODEL => Some("m".into()),
        _ => None,
    };
    let both = IdentifySettings::new(Some(7), Some(1), variables).expect("settings");
    assert_eq!((both.iterations, both.warmup, both.model.as_deref()), (7, 1, Some("m")));
    let environment = IdentifySettings::new(None, None, variables).expect("settings");
    assert_eq!((environment.iterations, environment.warmup), (30, 3));
    let neither = IdentifySettings::new(None, None, |_| None).expect("settings");
    assert_eq!(neither, IdentifySettings::default());
    assert_eq!((neither.iterations, neither.warmup), (100, 10));
    assert_eq!(IdentifySettings::new(None, None, |_| Some(String::new())).expect("empty is unset"), neither);
    let error =
        |iterations| IdentifySettings::new(iterations, None, |name| (name == ITERATIONS).then(|| "many".into()));
    assert!(error(None).expect_err("refused").to_string().contains("BENCHMARK_ITERATIONS is `many`"));
    assert_eq!(error(Some(2)).expect("an argument").iterations, 2);
    assert!(
        IdentifySettings::new(Some(0), None, |_| None).expect_err("refused").to_string().contains("measure nothing")
    );
}

fn environment() -> Environment {
    let hard = [("cpu", "A Processor"), ("cores", "2"), ("build", "release")];
    Environment { hard: hard.map(|(key, value)| (key.into(), value.into())).into(), soft: BTreeMap::new() }
}

/// A result with four nearly equal samples per round.
fn row(name: &str, category: Category, function: &str, microseconds: u64) -> BenchmarkResult {
    let samples: Vec<u64> = (0..4 * ROUNDS as u64).map(|i| microseconds * 1000 + i % 4 * 100).collect();
    let mean = microseconds as f64 / 1e6 + 150e-9;
    BenchmarkResult {
        name: name.into(),
        category,
        function: function.into(),
        iterations: samples.len(),
        times: Some(times(&samples, vec![mean; ROUNDS])),
        memory_delta_mb: (category == Category::Memory).then_some(0.0123),
        metadata: BTreeMap::from([("model".into(), "m".into())]),
        outcome: CheckedAnswer { expected: "yes".into(), observed: "yes".into(), ok: true },
        samples_ns: samples,
        peak_rss_kb: Some(9000),
        alloc_count: (category == Category::Memory).then_some(12),
        alloc_bytes: (category == Category::Memory).then_some(3456),
    }
}

fn wrong(name: &str) -> BenchmarkResult {
    let mut row = row(name, Category::Sae, "is_sae_model", 1);
    (row.times, row.iterations, row.peak_rss_kb) = (None, 0, None);
    row.samples_ns.clear();
    row.outcome = CheckedAnswer { expected: "true".into(), observed: "a|b\nfalse".into(), ok: false };
    row
}

fn rows(factor: u64) -> Vec<BenchmarkResult> {
    vec![
        row("architecture_detection_llama", Category::Detection, "get_model_info", 20),
        row("category_detection_asr_model", Category::Detection, "is_asr_model", 10),
        row("omni_detection_omni_qwen", Category::Detection, "is_omni_model", 10),
        row("sae_detection_sae_multi", Category::Sae, "is_sae_model", 30),
        row("support_check_qwen3", Category::Support, "is_model_supported", 60 * factor),
        row("model_info_with_memory", Category::Memory, "get_model_info", 25),
        row("regression_is_sae_model", Category::Regression, "is_sae_model", 30 / factor),
        row("full_report_sharded_7b", Category::Loading, "inspect", 1500),
    ]
}

fn run_of(rows: Vec<BenchmarkResult>) -> IdentifyResult {
    IdentifyResult::new(1_769_760_000, environment(), IdentifySettings::default(), rows)
}

#[test]
fn a_result_is_read_back_and_fits_its_schema() {
    let root: Value = serde_json::from_str(SCHEMA_TEXT).expect("JSON");
    let (before, mut now) = (run_of(rows(1)), run_of(rows(2)));
    now.results.push(wrong("sae_detection_sae_mlp_out"));
    now.comparison = Some(compare::compare(&before, &now).expect("compared"));
    for run in [before, now] {
        let value = serde_json::to_value(&run).expect("JSON");
        let mut found = Vec::new();
        conforms::problems(&root, &root, &value, "run", &mut found);
        assert_eq!(found, Vec::<String>::new());
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), value.to_string()).expect("written");
        assert_eq!(result::read(file.path()).expect("read back"), run);
    }
    assert_eq!(root["$id"], result::SCHEMA);
    let mut value = serde_json::to_value(run_of(rows(1))).expect("JSON");
    value["results"][0]["bananas"] = Value::Null;
    value["gates"][0]["state"] = "fine".into();
    let mut found = Vec::new();
    conforms::problems(&root, &root, &value, "run", &mut found);
    assert_eq!(found.len(), 2, "{found:?}");
}

#[test]
fn other_files_are_refused() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    let error = |text: &str| {
        std::fs::write(file.path(), text).expect("written");
        result::read(file.path()).expect_err("refused").to_string()
    };
    assert!(error("{").contains("not a result of `lab identify`"));
    assert!(error("{}").contains("names no schema"));
    assert!(error(r#"{"schema": "pellucid/lab-result/v1"}"#).contains("its format is pellucid/lab-result/v1"));
    assert!(error(r#"{"schema": "pellucid/lab-loader/v1"}"#).contains("missing field"));
}

/// A result whose rounds have these means.
fn with_rounds(name: &str, means: &[f64]) -> BenchmarkResult {
    let samples: Vec<u64> = means.iter().map(|mean| (mean * 1e9) as u64).collect();
    BenchmarkResult { times: Some(times(&samples, means.to_vec())), ..row(name, Category::Detection, "f", 1) }
}

#[test]
fn a_gate_is_met_missed_or_undecided_by_the_rounds() {
    let state = |rows: &[BenchmarkResult], what: &str, is_optimized| {
        let gate = gates::judge(rows, is_optimized).into_iter().find(|gate| gate.what == what).expect("a gate");
        (gate.state, gate.benchmark)
    };
    let (met, missed, open) = ([2e-5, 4e-5], [6e-5, 9e-5], [3e-5, 9e-4]);
    let of = |name: &str, rounds: &[f64]| with_rounds(&format!("omni_detection_{name}"), rounds);
    let judged = |rows: &[BenchmarkResult]| state(rows, "omni detection", true);
    assert_eq!(judged(&[of("a", &met)]), (GateState::Met, Some("omni_detection_a".into())));
    assert_eq!(judged(&[of("a", &met), of("b", &open)]), (GateState::Undecided, Some("omni_detection_b".into())));
    assert_eq!(judged(&[of("a", &open), of("b", &missed)]), (GateState::Missed, Some("omni_detection_b".into())));
    assert_eq!(judged(&[]), (GateState::NotJudged, None));
    assert_eq!(state(&[of("a", &missed)], "omni detection", false).0, GateState::NotJudged, "a build for development");

    // Memory is judged in every build; opening time only for SmolLM2.
    let mut rows = [of("a", &met), with_rounds("real_model_open", &[9.0])];
    rows[0].memory_delta_mb = Some(0.3);
    assert_eq!(state(&rows, "memory of an answer", false).0, GateState::Missed);
    assert_eq!(state(&rows, "SmolLM2-135M opened, ready to run", true).0, GateState::NotJudged);
    rows[1].metadata.insert("model".into(), "SmolLM2-135M".into());
    assert_eq!(state(&rows, "SmolLM2-135M opened, ready to run", true).0, GateState::Missed);
}

#[test]
fn a_missed_gate_or_a_red_benchmark_fails_the_run() {
    let fine = || rows(1).into_iter().filter(|row| row.category != Category::Support).collect::<Vec<_>>();
    let mut run = run_of(fine());
    assert_eq!((run.summary.gates_missed, run.exit_code()), (0, 0));
    assert_eq!(run_of(rows(1)).exit_code(), 1, "a support check of 60 µs may take 50");
    let mut noisy = rows(1);
    noisy[4].times.as_mut().expect("times").round_means[0] = 4e-5;
    assert_eq!(run_of(noisy).exit_code(), 4, "in one round it took 40");

    let mut before = fine();
    before[0] = row("architecture_detection_llama", Category::Detection, "get_model_info", 15);
    let comparison = compare::compare(&run_of(before), &run).expect("compared");
    let reds = comparison.changes.iter().filter(|change| change.verdict == Color::Red);
    assert_eq!(reds.map(|change| change.name.as_str()).collect::<Vec<_>>(), ["architecture_detection_llama"]);
    run.comparison = Some(comparison);
    assert_eq!(run.exit_code(), 1);
}

#[test]
fn a_color_needs_the_margin_and_separated_rounds() {
    let times = |means: &[f64]| with_rounds("b", means).times.expect("times");
    let verdict = |before: &[f64], after: &[f64]| compare::judge("b", &times(before), &times(after)).verdict;
    let about = |mean: f64| [0.0, 0.01, -0.01, 0.005, -0.005].map(|off| mean + off);
    let quiet = about(1.0);
    assert_eq!(verdict(&quiet, &about(1.10)), Color::Red);
    assert_eq!(verdict(&quiet, &about(0.90)), Color::Green);
    assert_eq!(verdict(&quiet, &about(1.04)), Color::Neutral, "separated, but within the margin");
    assert_eq!(verdict(&quiet, &[1.0, 1.5, 1.2, 1.3, 1.4]), Color::Neutral, "slower by a quarter, but not separated");
    assert_eq!(verdict(&[0.8, 1.2, 1.0, 1.0, 1.0], &about(1.15)), Color::Neutral);
    assert_eq!(verdict(&[2.0, 1.01, 1.01, 1.01, 1.01], &[1.0; 5]), Color::Neutral, "one slow round is not a change");
    assert_eq!(verdict(&[1.0; 4], &[2.0; 4]), Color::Neutral, "too few rounds: separation may be chance");
}

#[test]
fn a_shift_of_the_whole_suite_is_detected() {
    let moved = |changes: &[f64]| {
        let change = |change: &f64| Change {
            name: "b".into(),
            before: 1.0,
            after: 1.0 + change,
            change: *change,
            median_change: *change,
            clear: true,
            verdict: Color::Neutral,
        };
        let changes = changes.iter().map(change).collect();
        BaselineComparison { baseline: String::new(), changes, unmatched: vec![] }.moved_together()
    };
    assert!(moved(&[0.1, 0.2, 0.3, 0.0, 0.1]) && !moved(&[0.1, -0.2, 0.0, 0.0, 0.1]));
}

#[test]
fn results_of_two_machines_are_not_compared_and_categories_only_with_themselves() {
    let mut other = run_of(rows(1));
    other.env.hard.insert("cpu".into(), "Another".into());
    let error = compare::compare(&other, &run_of(rows(1))).expect_err("refused").to_string();
    assert!(error.contains("cpu: Another and A Processor"), "{error}");
    let part =
        run_of(rows(1).into_iter().filter(|row| row.category == Category::Sae).chain([wrong("sae_x")]).collect());
    let found = compare::compare(&run_of(rows(1)), &part).expect("compared");
    assert_eq!((found.changes.len(), found.unmatched.len()), (1, 0));
    let whole = compare::compare(&part, &run_of(rows(1))).expect("compared");
    assert_eq!((whole.changes.len(), whole.unmatched.len()), (1, rows(1).len() - 1));
}

#[test]
fn the_page_has_its_parts_in_order() {
    let mut results = rows(2);
    results.push(wrong("sae_detection_sae_mlp_out"));
    let mut run = run_of(results);
    run.comparison = Some(compare::compare(&run_of(rows(1)), &run).expect("compared"));
    let page = report::markdown(&run);
    let mut rest = page.as_str();
    for line in [
        "# Pellucid Identify Benchmark Report\n\n**Generated:** 2026-01-30 08:00:00  \n**Runtime:** pellucid ",
        "**Platform:** posix, A Processor, 2 cores  \n**Iterations:** 100 in 8 rounds, 10 of warmup; a tenth of both",
        "**Real model:** none (set TEST_MODEL_PATH)\n\n## Summary\n\n- **Benchmarks:** 9 in 6 categories\n",
        "- **Outcomes:** 8 correct, 1 wrong; a wrong answer has no time\n",
        "- **Gates:** 6 met, 1 missed, 0 undecided, 2 not judged\n",
        "- **Baseline:** 1 red, 1 green, 6 neutral against 2026-01-30 08:00:00\n",
        "\n## Wrong Outcomes\n\n| Benchmark | Expected | Observed |\n|---|---|---|\n",
        "| sae_detection_sae_mlp_out | true | a\\|b false |\n\n## Performance Gates\n\n",
        "| Gate | Limit | Nearest Benchmark | Measured | Verdict |\n|---|---|---|---|---|\n",
        "| support check | 50.0 µs | support_check_qwen3 | 120.1 µs | MISSED |\n",
        "| configuration of 1 MB | 10.00 ms | not measured | — | not judged |\n",
        "| memory of an answer | 0.2000 MB | model_info_with_memory | 0.0123 MB | met |\n\n## Memory Usage\n",
        "| model_info_with_memory | 0.0123 MB | 12 | 3456 | 9000 |\n\n## Results\n\n",
        "### 1. Architecture and Category Detection\n\n| Benchmark | Mean | Median | P95 | P99 | Std Dev | Min | Max | n |",
        "| architecture_detection_llama | 20.2 µs | 20.2 µs | 20.3 µs | 20.3 µs | 0.1 µs | 20.0 µs | 20.3 µs | 32 | — | ✅ yes |\n",
        "\n### 2. SAE Detection\n",
        "| sae_detection_sae_mlp_out | — | — | — | — | — | — | — | 0 | — | ❌ wrong |\n",
        "\n### 9. Loading, Concurrency and Errors\n",
        "\n## Coverage\n\n| Function | Benchmarks |\n|---|---|\n| `get_model_info` | 2 |\n",
        "\n## Regression Detection\n\n> Red and green:",
        "| support_check_qwen3 | 60.2 µs | 120.1 µs | +99.8 % | +99.8 % | separated | 🔴 red |\n",
        "| regression_is_sae_model | 30.2 µs | 15.1 µs | -49.8 % | -49.8 % | separated | 🟢 green |\n",
        "| full_report_sharded_7b | 1.50 ms | 1.50 ms | +0.0 % | +0.0 % | overlap | ⚪ neutral |\n",
    ] {
        let at = rest.find(line).unwrap_or_else(|| panic!("{line}\nis not in the rest of\n{page}"));
        rest = &rest[at + line.len()..];
    }
    assert!(rest.is_empty(), "{rest}");
}
