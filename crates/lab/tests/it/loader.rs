//! The suite `loader`: right answers on its fixtures, wrong ones found out, its file, its page.

use pellucid_lab::environment::Environment;
use pellucid_lab::loader::fixtures::Fixtures;
use pellucid_lab::loader::measure::{ROUNDS, measure, times};
use pellucid_lab::loader::result::{self, Outcome, Row, Run, SCHEMA_TEXT};
use pellucid_lab::loader::settings::Settings;
use pellucid_lab::loader::{Benchmark, Category, against, report};
use pellucid_models::Strategy;
use serde_json::Value;
use std::collections::BTreeMap;

/// Every name that the first suite of this kind had, by its category.
const FIRST: [(&str, &[&str]); 8] = [
    (
        "detection",
        &[
            "architecture_detection_llama",
            "architecture_detection_qwen",
            "architecture_detection_mistral",
            "architecture_detection_gemma",
            "architecture_detection_phi",
            "architecture_detection_deepseek",
            "architecture_detection_falcon",
            "category_detection_transformers_llm",
            "category_detection_vision_encoder",
            "category_detection_asr_model",
            "category_detection_diffusers",
            "category_detection_sae_model",
            "omni_detection_omni_qwen",
            "omni_detection_omni_any2any",
            "omni_detection_omni_qwen3",
            "omni_detection_regular_llama",
            "omni_detection_regular_qwen",
            "omni_detection_regular_mistral",
        ],
    ),
    (
        "sae",
        &[
            "sae_detection_sae_resid_post",
            "sae_detection_sae_mlp_out",
            "sae_detection_sae_attn_out",
            "sae_detection_sae_transcoder",
            "sae_detection_sae_resid_post_all",
            "sae_detection_sae_multi",
            "sae_base_model_extraction",
        ],
    ),
    ("tokenizer", &["tokenizer_load_normal", "tokenizer_load_sae_fallback"]),
    (
        "support",
        &[
            "support_check_supported_llama",
            "support_check_supported_qwen",
            "support_check_supported_mistral",
            "support_check_supported_gemma",
            "support_check_unsupported_custom",
            "support_check_glm4_moe_lite",
            "support_check_step_robotics",
            "support_check_qwen3",
        ],
    ),
    (
        "memory",
        &[
            "model_info_with_memory",
            "category_detection_with_memory",
            "support_check_with_memory",
            "sae_detection_with_memory",
        ],
    ),
    (
        "comparison",
        &[
            "strategy_detection_transformers",
            "strategy_support_transformers",
            "strategy_full_info_transformers",
            "strategy_detection_vision",
            "strategy_support_vision",
            "strategy_full_info_vision",
            "strategy_detection_asr",
            "strategy_support_asr",
            "strategy_full_info_asr",
        ],
    ),
    (
        "architecture",
        &[
            "arch_variation_llama_simple",
            "arch_variation_llama_with_quant",
            "arch_variation_llama_with_talker",
            "arch_variation_qwen_omni",
            "arch_variation_complex_config",
        ],
    ),
    (
        "regression",
        &[
            "regression_get_model_info_llama",
            "regression_get_model_info_qwen",
            "regression_is_supported_llama",
            "regression_detect_category_llama",
            "regression_detect_category_vision",
            "regression_is_omni_model_false",
            "regression_is_omni_model_true",
            "regression_is_sae_model",
            "regression_is_sae_model_false",
        ],
    ),
];

fn quickly() -> Settings {
    Settings { iterations: 1, warmup: 0, ..Settings::default() }
}

#[test]
fn every_answer_is_right_and_every_name_is_there() {
    let found = result::run(&quickly(), &mut |_| {}).expect("measured");
    let wrong: Vec<_> =
        found.results.iter().filter(|row| !row.outcome.ok).map(|row| (&row.name, &row.outcome)).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    let planned = |row: &&Row| row.metadata.contains_key("planned");
    let mut first: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for row in found.results.iter().filter(|row| !planned(row)) {
        first.entry(row.category.name()).or_default().push(&row.name);
    }
    let known: BTreeMap<&str, Vec<&str>> = FIRST.iter().map(|(category, names)| (*category, names.to_vec())).collect();
    assert_eq!(first, known);
    assert_eq!(first.values().map(Vec::len).sum::<usize>(), 62);
    assert_eq!(found.summary.categories, Category::ALL);
    let what: Vec<&str> =
        found.results.iter().filter_map(|row| row.metadata.get("planned").map(String::as_str)).collect();
    for plan in [
        "real model loading",
        "concurrent loading",
        "large model configs",
        "network latency",
        "error handling performance",
        "missing tokenizer handling",
        "pad token auto-configuration",
        "custom architecture registration",
        "loading strategy selection",
    ] {
        assert!(what.contains(&plan), "{plan}");
    }
    let chosen = found.results.iter().filter(|row| row.name.starts_with("strategy_selection_"));
    let chosen: Vec<&str> = chosen.map(|row| row.outcome.observed.as_str()).collect();
    for strategy in Strategy::ALL.map(Strategy::name).into_iter().chain(["refused"]) {
        assert!(chosen.contains(&strategy), "no benchmark has the outcome {strategy:?}");
    }
}

#[test]
fn a_category_is_measured_alone() {
    let fixtures = Fixtures::make().expect("fixtures");
    let chosen = |category: Option<Category>| {
        let settings = Settings { category, ..quickly() };
        result::chosen(&fixtures, &settings).expect("chosen").into_iter().map(|b| b.category).collect::<Vec<_>>()
    };
    let all = chosen(None);
    for category in Category::ALL {
        let count = all.iter().filter(|found| **found == category).count();
        assert!(count > 0);
        assert_eq!(chosen(Some(category)), vec![category; count]);
    }
}

#[test]
fn a_real_model_must_be_what_inspection_says_and_be_there() {
    let golden = golden::path("llama").to_string_lossy().into_owned();
    let settings = Settings { category: Some(Category::Loading), model: Some(golden), ..quickly() };
    let found = result::run(&settings, &mut |_| {}).expect("measured");
    let said = |name: &str| {
        let row = found.results.iter().find(|row| row.name == name).unwrap_or_else(|| panic!("{name}"));
        assert!(row.outcome.ok && row.metadata["model"] == "llama", "{row:?}");
        row.outcome.observed.clone()
    };
    assert_eq!(said("real_model_info"), "llama, native");
    assert_eq!(said("real_model_open"), "3 layers, ready to run");
    assert!(said("real_model_report").ends_with(" parameters"));
    assert_eq!(found.env.hard["model"].len(), 16, "the model is a part of what is compared");
    let nowhere = Settings { model: Some("/no/such/model".into()), ..quickly() };
    let fault = result::run(&nowhere, &mut |_| {}).expect_err("refused").to_string();
    assert!(fault.contains("TEST_MODEL_PATH is `/no/such/model`"), "{fault}");
}

fn place() -> Environment {
    let hard = [("cpu", "A Processor"), ("cores", "2"), ("build", "release")];
    Environment { hard: hard.map(|(key, value)| (key.into(), value.into())).into(), soft: BTreeMap::new() }
}

/// A row of four samples a round, all of which take about as long.
fn row(name: &str, category: Category, function: &str, microseconds: u64) -> Row {
    let samples: Vec<u64> = (0..4 * ROUNDS as u64).map(|i| microseconds * 1000 + i % 4 * 100).collect();
    let mean = microseconds as f64 / 1e6 + 150e-9;
    Row {
        name: name.into(),
        category,
        function: function.into(),
        iterations: samples.len(),
        times: Some(times(&samples, vec![mean; ROUNDS])),
        memory_delta_mb: (category == Category::Memory).then_some(0.0123),
        metadata: BTreeMap::from([("model".into(), "m".into())]),
        outcome: Outcome { expected: "yes".into(), observed: "yes".into(), ok: true },
        samples_ns: samples,
        peak_rss_kb: Some(9000),
        alloc_count: (category == Category::Memory).then_some(12),
        alloc_bytes: (category == Category::Memory).then_some(3456),
    }
}

fn wrong(name: &str) -> Row {
    let mut row = row(name, Category::Sae, "is_sae_model", 1);
    (row.times, row.iterations, row.peak_rss_kb) = (None, 0, None);
    row.samples_ns.clear();
    row.outcome = Outcome { expected: "true".into(), observed: "a|b\nfalse".into(), ok: false };
    row
}

fn rows(factor: u64) -> Vec<Row> {
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

fn made(rows: Vec<Row>) -> Run {
    Run::new(1_769_760_000, place(), Settings::default(), rows)
}

#[test]
fn a_run_is_read_back_as_it_was_written_and_is_of_its_schema() {
    let root: Value = serde_json::from_str(SCHEMA_TEXT).expect("JSON");
    let (before, mut now) = (made(rows(1)), made(rows(2)));
    now.results.push(wrong("sae_detection_sae_mlp_out"));
    now.comparison = Some(against::compare(&before, &now).expect("compared"));
    for run in [before, now] {
        let value = serde_json::to_value(&run).expect("JSON");
        let mut found = Vec::new();
        crate::conforms::problems(&root, &root, &value, "run", &mut found);
        assert_eq!(found, Vec::<String>::new());
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), value.to_string()).expect("written");
        assert_eq!(result::read(file.path()).expect("read back"), run);
    }
    assert_eq!(root["$id"], result::SCHEMA);
    let mut value = serde_json::to_value(made(rows(1))).expect("JSON");
    value["results"][0]["bananas"] = Value::Null;
    value["gates"][0]["state"] = "fine".into();
    let mut found = Vec::new();
    crate::conforms::problems(&root, &root, &value, "run", &mut found);
    assert_eq!(found.len(), 2, "{found:?}");
}

#[test]
fn what_is_no_run_is_not_read() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    let fault = |text: &str| {
        std::fs::write(file.path(), text).expect("written");
        result::read(file.path()).expect_err("refused").to_string()
    };
    assert!(fault("{").contains("not a result of `lab loader`"));
    assert!(fault("{}").contains("names no schema"));
    assert!(fault(r#"{"schema": "pellucid/lab-result/v1"}"#).contains("its format is pellucid/lab-result/v1"));
    assert!(fault(r#"{"schema": "pellucid/lab-loader/v1"}"#).contains("missing field"));
}

#[test]
fn a_wrong_answer_fails_the_run_and_is_told() {
    let mut benchmarks = [Benchmark::new("b", Category::Sae, "is_sae_model", "true", || false, bool::to_string)];
    let run = made(measure(&mut benchmarks, &quickly(), &mut |_| {}));
    assert_eq!((run.summary.wrong_outcomes, run.exit_code()), (1, 1));
    let page = report::markdown(&run);
    assert!(page.contains("## Wrong Outcomes") && page.contains("| b | true | false |"), "{page}");
    assert!(page.contains("| b | — | — |") && page.contains("❌ wrong"), "{page}");
}

#[test]
fn a_missed_gate_or_a_red_benchmark_fails_the_run() {
    let fine = || rows(1).into_iter().filter(|row| row.category != Category::Support).collect::<Vec<_>>();
    let mut run = made(fine());
    assert_eq!((run.summary.gates_missed, run.exit_code()), (0, 0));
    assert_eq!(made(rows(1)).exit_code(), 1, "a support check of 60 µs may take 50");
    let mut restless = rows(1);
    restless[4].times.as_mut().expect("times").round_means[0] = 4e-5;
    assert_eq!(made(restless).exit_code(), 4, "in one round it took 40");

    let mut before = fine();
    before[0] = row("architecture_detection_llama", Category::Detection, "get_model_info", 15);
    run.comparison = Some(against::compare(&made(before), &run).expect("compared"));
    let reds: Vec<&str> = run.comparison.as_ref().expect("set").reds().map(|change| change.name.as_str()).collect();
    assert_eq!((reds, run.exit_code()), (vec!["architecture_detection_llama"], 1));
}

#[test]
fn runs_of_two_machines_are_not_compared_and_a_part_only_with_its_part() {
    let mut other = made(rows(1));
    other.env.hard.insert("cpu".into(), "Another".into());
    let fault = against::compare(&other, &made(rows(1))).expect_err("refused").to_string();
    assert!(fault.contains("cpu: Another and A Processor"), "{fault}");
    let part = made(rows(1).into_iter().filter(|row| row.category == Category::Sae).chain([wrong("sae_x")]).collect());
    let found = against::compare(&made(rows(1)), &part).expect("compared");
    assert_eq!((found.changes.len(), found.unmatched.len()), (1, 0));
    let whole = against::compare(&part, &made(rows(1))).expect("compared");
    assert_eq!((whole.changes.len(), whole.unmatched.len()), (1, rows(1).len() - 1));
}

#[test]
fn the_page_is_the_one_that_is_kept() {
    let mut results = rows(2);
    results.push(wrong("sae_detection_sae_mlp_out"));
    let mut run = made(results);
    run.comparison = Some(against::compare(&made(rows(1)), &run).expect("compared"));
    let page = report::markdown(&run).replace(env!("CARGO_PKG_VERSION"), "VERSION");
    let kept = include_str!("golden/loader.md");
    if page != kept {
        let path = std::env::temp_dir().join("pellucid-loader-report.md");
        std::fs::write(&path, &page).expect("written");
        panic!("the page differs from tests/golden/loader.md; what it is now: {}", path.display());
    }
}
