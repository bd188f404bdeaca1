//! The suite `construction` with simulated children: the layout of its page, and children that misbehave.

use pellucid_lab::construction::child::{Answer, Built, Phase};
use pellucid_lab::construction::measure::{BASELINE_LIMIT, Children, Ended, FIXTURE_LIMIT, Survey, measure, startup};
use pellucid_lab::construction::registry::FIXTURES;
use pellucid_lab::construction::{Fixture, NONE, report};
use pellucid_lab::executor::Failing;
use std::time::Duration;

/// Children that take the time and memory of their place in the table, and what becomes of some of them instead.
struct Simulated {
    fates: Vec<(&'static str, Ended)>,
    started: Vec<String>,
}

impl Children for Simulated {
    fn run(&mut self, fixture: &str, limit: Duration) -> Ended {
        assert_eq!(limit, if fixture == NONE { BASELINE_LIMIT } else { FIXTURE_LIMIT });
        self.started.push(fixture.into());
        if let Some((_, fate)) = self.fates.iter().find(|(name, _)| *name == fixture) {
            return fate.clone();
        }
        let place = FIXTURES.iter().position(|f| f.name == fixture).map_or(0.0, |at| 1.0 + at as f64);
        // The third in the table is a little faster than nothing, as noise would have it.
        let wall = if place == 3.0 { 0.009 } else { 0.010 + place * 0.1 };
        let resident = (10e6 + place * 1e6) as u64;
        let built =
            Built { load_s: place, prepare_s: 0.5, run_s: 0.25, resident, peak: resident * 2, anonymous: 5_000_000 };
        Ok((Answer::Built(built), wall))
    }
}

fn surveyed(fates: Vec<(&'static str, Ended)>) -> (Survey, Vec<String>) {
    let fixtures: Vec<&Fixture> = FIXTURES.iter().collect();
    let mut children = Simulated { fates, started: vec![] };
    let survey = measure(&fixtures, 3, 1, &mut children, &mut |_, _| {});
    (survey, children.started)
}

#[test]
fn the_page_has_its_headings_in_order_and_its_rules() {
    let (survey, _) = surveyed(vec![("opened_model", Err((Failing::Timeout, String::new())))]);
    let page = report::markdown(&survey);
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
    // Three runs: a mean with its interval, the median distance, and the phases.
    let row = page.lines().find(|line| line.starts_with("| builtin_model")).expect("a row");
    assert!(row.ends_with("| 0.100 to 0.100 | 0.000 | 3 | 1.000 | 0.500 | 0.250 | 22.0 | 5.0 |"), "{row}");
    let text = serde_json::to_string(&survey).expect("JSON");
    assert_eq!(serde_json::from_str::<Survey>(&text).expect("the same"), survey);
}

#[test]
fn pairs_alternate_and_every_fixture_has_an_empty_process_beside_it() {
    let (survey, started) = surveyed(vec![]);
    assert_eq!(started.len(), 3 * 2 * FIXTURES.len());
    for (index, pair) in started.chunks(2).enumerate() {
        let round = index / FIXTURES.len();
        assert_eq!(pair[usize::from(round % 2 == 1)], NONE, "{pair:?}");
    }
    assert!(survey.invalid.is_none() && survey.rows.iter().all(|row| row.pairs.len() == 3));
}

#[test]
fn whatever_a_fixture_does_the_others_go_on() {
    let long = "x".repeat(200);
    let failed = |phase, said: &str| Ok((Answer::Failed { phase, said: said.into() }, 1.0));
    let (survey, started) = surveyed(vec![
        ("opened_model", failed(None, "there is no such fixture")),
        ("model_as_stored", failed(Some(Phase::Load), "the model `smollm2-135m` is not pulled yet\nsecond line")),
        ("model_in_f32", failed(Some(Phase::Run), &long)),
        ("model_in_bf16", Err((Failing::Killed, long.clone()))),
        ("decode_job", Err((Failing::Timeout, String::new()))),
        ("steer_job", Err((Failing::Garbage, "bananas".into()))),
        ("gguf_header", Err((Failing::Error, "exit status: 3".into()))),
        ("inspection", Err((Failing::Start, "no such file".into()))),
    ]);
    let error = |name: &str| survey.rows.iter().find(|row| row.name == name).and_then(|row| row.error.clone());
    assert_eq!(error("opened_model").as_deref(), Some("Fixture not found"));
    assert_eq!(error("model_as_stored").as_deref(), Some("Setup error: the model `smollm2-135m` is not pulled yet"));
    assert_eq!(error("model_in_f32"), Some(format!("Error: {}", &long[..50])));
    assert_eq!(error("model_in_bf16"), Some(format!("Test failed: {}", &long[..100])));
    assert_eq!(error("decode_job").as_deref(), Some("Timeout (>2min)"));
    assert_eq!(error("steer_job").as_deref(), Some("Incomplete benchmark results"));
    assert_eq!(error("gguf_header").as_deref(), Some("Test had errors"));
    assert_eq!(error("inspection").as_deref(), Some("Benchmark error"));
    assert!(
        survey.invalid.is_none() && survey.rows.iter().filter(|row| row.cost.is_some()).count() == FIXTURES.len() - 8
    );
    assert_eq!(started.iter().filter(|name| *name == "decode_job").count(), 1, "what failed is not tried again");
    let page = report::markdown(&survey);
    assert!(page.contains("❌ Setup error: the model `smollm..."), "{page}");
}

#[test]
fn without_an_empty_process_nothing_is_believed() {
    let (survey, started) = surveyed(vec![(NONE, Err((Failing::Timeout, "30 s".into())))]);
    assert_eq!(survey.invalid.as_deref(), Some("the empty process took too long: 30 s"));
    assert_eq!(started.len(), 2, "and nothing more is measured");
    assert!(report::markdown(&survey).contains("**Invalid:** the empty process took too long"));
    let mut children = Simulated { fates: vec![], started: vec![] };
    assert_eq!(startup(5, &mut children).map(|times| times.len()), Ok(5));
    let mut children = Simulated { fates: vec![(NONE, Err((Failing::Error, "no".into())))], started: vec![] };
    assert!(startup(5, &mut children).is_err());
}
