//! The suite `construction` with simulated children: its report, and failing children.

use pellucid_lab::construction::child::{BuildMeasurement, ChildAnswer, Phase};
use pellucid_lab::construction::measure::{
    BASELINE_LIMIT, ChildResult, Children, ConstructionResult, FIXTURE_LIMIT, measure, startup,
};
use pellucid_lab::construction::registry::FIXTURES;
use pellucid_lab::construction::{Fixture, NONE, report};
use pellucid_lab::executor::FailureKind;
use std::time::Duration;

/// Simulated children: time and memory follow from the position in the table; some fail.
struct Simulated {
    failures: Vec<(&'static str, ChildResult)>,
    started: Vec<String>,
}

impl Children for Simulated {
    fn run(&mut self, fixture: &str, limit: Duration) -> ChildResult {
        assert_eq!(limit, if fixture == NONE { BASELINE_LIMIT } else { FIXTURE_LIMIT });
        self.started.push(fixture.into());
        if let Some((_, failure)) = self.failures.iter().find(|(name, _)| *name == fixture) {
            return failure.clone();
        }
        let index = FIXTURES.iter().position(|f| f.name == fixture).map_or(0.0, |at| 1.0 + at as f64);
        // The third is slightly faster than the empty child, as noise can make it.
        let wall = if index == 3.0 { 0.009 } else { 0.010 + index * 0.1 };
        let resident = (10e6 + index * 1e6) as u64;
        let built = BuildMeasurement {
            load_s: index,
            prepare_s: 0.5,
            run_s: 0.25,
            resident,
            peak: resident * 2,
            anonymous: 5_000_000,
        };
        Ok((ChildAnswer::Built(built), wall))
    }
}

fn simulate(failures: Vec<(&'static str, ChildResult)>) -> (ConstructionResult, Vec<String>) {
    let fixtures: Vec<&Fixture> = FIXTURES.iter().collect();
    let mut children = Simulated { failures, started: vec![] };
    let result = measure(&fixtures, 3, 1, &mut children, &mut |_, _| {});
    (result, children.started)
}

#[test]
fn the_page_has_its_headings_in_order() {
    let (result, _) = simulate(vec![("opened_model", Err((FailureKind::Timeout, String::new())))]);
    let page = report::markdown(&result);
    let mut rest = page.as_str();
    for line in [
        "# Pellucid Fixture Benchmark Report",
        "**Generated:** ",
        "**GPU Available:** False",
        "**GPU Device:** None",
        "**Total Fixtures Analyzed:** 19",
        "## Summary Statistics",
        "> **Note:** ",
        "- **Total Fixtures:** 19",
        "- **Built:** 18",
        "### By Category",
        "| Category | Count |",
        "|----------|-------|",
        "| Custom Model | 5 |",
        "| Real Model | 6 |",
        "| Config Only | 4 |",
        "| Static | 4 |",
        "### By Scope",
        "| Scope | Count |",
        "## Detailed Fixture Analysis",
        "| Fixture Name | Type | Scope | Category | Init Time (s) | Memory Δ (MB) | GPU Δ (MB) | Status |",
        "| builtin_model | dynamic | process | Custom Model | 0.100 | 1.0 | N/A | ✅ Success |",
        "| model_as_stored | dynamic | suite | Real Model | -0.001 | 3.0 | N/A | ✅ Success |",
        "| opened_model | dynamic | process | Real Model | N/A | N/A | N/A | ❌ Timeout (>2min)... |",
        "## Performance Insights",
        "### Slowest Fixtures (Top 5)",
        "- **thread_pool**: 1.900s (Category: Static)",
        "### Most Memory Intensive (Top 5)",
        "- **thread_pool**: 19.0MB (Category: Static)",
    ] {
        let at = rest.find(line).unwrap_or_else(|| panic!("{line}\nis not in the rest of\n{page}"));
        rest = &rest[at..];
    }
    assert_eq!(page.lines().filter(|line| line.starts_with('>')).count(), 4, "a note of four lines");
    // Three runs: the mean with its interval, the MAD, and the phases.
    let row = page.lines().find(|line| line.starts_with("| builtin_model")).expect("a row");
    assert!(row.ends_with("| 0.100 to 0.100 | 0.000 | 3 | 1.000 | 0.500 | 0.250 | 22.0 | 5.0 |"), "{row}");
    let text = serde_json::to_string(&result).expect("JSON");
    assert_eq!(serde_json::from_str::<ConstructionResult>(&text).expect("the same"), result);
}

#[test]
fn pairs_alternate_and_every_fixture_is_paired_with_an_empty_process() {
    let (result, started) = simulate(vec![]);
    assert_eq!(started.len(), 3 * 2 * FIXTURES.len());
    for (index, pair) in started.chunks(2).enumerate() {
        let round = index / FIXTURES.len();
        assert_eq!(pair[usize::from(round % 2 == 1)], NONE, "{pair:?}");
    }
    assert!(result.invalid.is_none() && result.rows.iter().all(|row| row.pairs.len() == 3));
}

#[test]
fn a_failing_fixture_does_not_stop_the_others() {
    let long = "x".repeat(200);
    let failed = |phase, message: &str| Ok((ChildAnswer::Failed { phase, message: message.into() }, 1.0));
    let (result, started) = simulate(vec![
        ("opened_model", failed(None, "there is no such fixture")),
        ("model_as_stored", failed(Some(Phase::Load), "the model `smollm2-135m` is not pulled yet\nsecond line")),
        ("model_in_f32", failed(Some(Phase::Run), &long)),
        ("model_in_bf16", Err((FailureKind::Killed, long.clone()))),
        ("decode_job", Err((FailureKind::Timeout, String::new()))),
        ("steer_job", Err((FailureKind::InvalidAnswer, "bananas".into()))),
        ("gguf_header", Err((FailureKind::Error, "exit status: 3".into()))),
        ("inspection", Err((FailureKind::Start, "no such file".into()))),
    ]);
    let error = |name: &str| result.rows.iter().find(|row| row.name == name).and_then(|row| row.error.clone());
    assert_eq!(error("opened_model").as_deref(), Some("Fixture not found"));
    assert_eq!(error("model_as_stored").as_deref(), Some("Setup error: the model `smollm2-135m` is not pulled yet"));
    assert_eq!(error("model_in_f32"), Some(format!("Error: {}", &long[..50])));
    assert_eq!(error("model_in_bf16"), Some(format!("Test failed: {}", &long[..100])));
    assert_eq!(error("decode_job").as_deref(), Some("Timeout (>2min)"));
    assert_eq!(error("steer_job").as_deref(), Some("Incomplete benchmark results"));
    assert_eq!(error("gguf_header").as_deref(), Some("Test had errors"));
    assert_eq!(error("inspection").as_deref(), Some("Benchmark error"));
    assert!(
        result.invalid.is_none() && result.rows.iter().filter(|row| row.cost.is_some()).count() == FIXTURES.len() - 8
    );
    assert_eq!(started.iter().filter(|name| *name == "decode_job").count(), 1, "failed fixtures are not retried");
    let page = report::markdown(&result);
    assert!(page.contains("❌ Setup error: the model `smollm..."), "{page}");
}

#[test]
fn without_an_empty_process_the_result_is_invalid() {
    let (result, started) = simulate(vec![(NONE, Err((FailureKind::Timeout, "30 s".into())))]);
    assert_eq!(result.invalid.as_deref(), Some("the empty process timed out: 30 s"));
    assert_eq!(started.len(), 2, "and nothing more is measured");
    assert!(report::markdown(&result).contains("**Invalid:** the empty process timed out"));
    let mut children = Simulated { failures: vec![], started: vec![] };
    assert_eq!(startup(5, &mut children).map(|times| times.len()), Ok(5));
    let mut children = Simulated { failures: vec![(NONE, Err((FailureKind::Error, "no".into())))], started: vec![] };
    assert!(startup(5, &mut children).is_err());
}
