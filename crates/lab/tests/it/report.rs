//! Reports of simulated sessions: every section is present, every text is escaped, and non-finite
//! values do not break a plot.

use pellucid_lab::check::CellState;
use pellucid_lab::environment::Environment;
use pellucid_lab::executor::{Executor, FailureKind, WorkerOutcome};
use pellucid_lab::protocol::{Allocations, Answer, Job, Memory, Request};
use pellucid_lab::report;
use pellucid_lab::result::{AllocationCounts, SessionResult};
use pellucid_lab::roofline::{OpRate, Roofline};
use pellucid_lab::session::{self, SessionContext};
use pellucid_lab::stats::{Estimate, Rng};
use pellucid_lab::suite::{Suite, Variant};
use std::time::Duration;

const HOSTILE: &str = "<b>&\"";

/// A simulated machine: captures cost 1 % per layer, and the machine slows down a little.
struct Machine {
    random: Rng,
    clock: f64,
    /// If set, the outcome of every worker.
    fixed_outcome: Option<WorkerOutcome>,
}

impl Machine {
    fn new(seed: u64) -> Machine {
        Machine { random: Rng::new(seed), clock: 0.0, fixed_outcome: None }
    }
}

impl Executor for Machine {
    fn run(&mut self, variant: &Variant, request: &Request, _: Duration) -> WorkerOutcome {
        self.clock += 1.0;
        if let Some(fixed_outcome) = &self.fixed_outcome {
            return fixed_outcome.clone();
        }
        let factor = match request.job {
            Job::CaptureLayers { layers } => 1.0 + 0.01 * layers as f64,
            _ if variant.id == HOSTILE => 12.0,
            _ => 1.0,
        };
        let noise = (0.006 * self.random.normal() + 2e-4 * self.clock).exp();
        let seconds = 1e-4 * request.tokens.len() as f64 * factor * noise;
        let mut answer = Answer {
            engine: "simulated 1.0".into(),
            load_to_first_token_s: 0.4 * noise,
            samples_s: vec![seconds, seconds * 1.01, seconds * 0.99],
            peak_bytes: (612e6 * noise) as u64,
            memory: Some(Memory {
                load: 612_000_000,
                run: 580_000_000,
                anonymous: 71_000_000,
                file: 505_000_000,
                proportional: 570_000_000,
            }),
            weight_bytes: 500_000_000,
            top: vec![(3, 1.0), (4, 0.5)],
            values: vec![1.0, 2.0],
            ..Answer::default()
        };
        match variant.id.as_str() {
            "crash" => {
                return WorkerOutcome::Failed { kind: FailureKind::Killed, message: "signal 9 <i>\u{1b}[0m".into() };
            }
            "wrong" => answer.top[0].1 = 2.0,
            "python" => answer.memory = None,
            _ => {}
        }
        WorkerOutcome::Answered(Box::new(answer))
    }

    fn elapsed(&self) -> f64 {
        self.clock
    }
}

fn head(name: &str, ladder: &str) -> String {
    format!(
        "name = {name:?}\ntitle = \"What it costs, <simulated>\"\nreference = \"plain\"\n{ladder}\n\
         [precision]\nbudget_s = 1e6\nhalf_width = 0.003\npairs = 14\n"
    )
}

/// A ladder of captures.
fn ladder() -> Suite {
    let mut text = head("capture", "ladder = [\"plain\", \"capture-4\", \"capture-8\", \"capture-all-of-them\"]");
    for (id, layers) in [("plain", 0), ("capture-4", 4), ("capture-8", 8), ("capture-all-of-them", 16)] {
        text += &format!("[[variant]]\nid = \"{id}\"\n");
        if layers > 0 {
            text += &format!("job = {{ capture_layers = {{ layers = {layers} }} }}\n");
        }
    }
    text += "[[workload]]\nid = \"prefill-256\"\njob = \"prefill\"\ntokens = 256\nmetrics = [\"time\", \"peak\"]\n";
    Suite::parse(&text, "capture").expect("a suite")
}

/// A suite of variants, some of which fail or are wrong.
fn mixed_suite() -> Suite {
    let mut text = head("race", "");
    for id in ["plain", "after", HOSTILE, "python", "crash", "wrong"] {
        text += &format!("[[variant]]\nid = {id:?}\n");
    }
    text += "[[workload]]\nid = \"prefill-256\"\njob = \"prefill\"\ntokens = 256\nmetrics = [\"time\", \"load\", \"peak\"]\n\
        [[workload]]\nid = \"decode-with-a-rather-long-name-after-a-prompt-of-64\"\njob = { decode = { steps = 8 } }\ntokens = 64\n\
        variants = [\"plain\", \"after\"]\n\
        [[limit]]\nworkload = \"prefill-256\"\nvariant = \"after\"\nabsolute = 0.001\n";
    Suite::parse(&text, "race").expect("a suite")
}

fn run(suite: &Suite, machine: &mut Machine) -> SessionResult {
    let mut environment = Environment::default();
    environment.hard.insert("cpu".into(), "Simulated <CPU> at 3 GHz".into());
    environment.soft.insert("load".into(), "0.10 0.20 0.30".into());
    let command = vec!["pellucid".into(), "lab".into(), "run".into(), "a & b".into()];
    let setting =
        SessionContext { model: "tiny & small".into(), assume: None, seed: 7, environment, command, earlier: vec![] };
    session::run(suite, setting, machine, &mut |_| {}).expect("a session")
}

/// A roofline with two matmuls.
fn roofline() -> Roofline {
    let op = |phase: &str, flops: f64, bytes: f64| OpRate {
        name: "mlp.<down>".into(),
        phase: phase.into(),
        seconds: 1.0,
        share: 0.5,
        flops,
        bytes,
    };
    Roofline {
        model: "tiny".into(),
        dtype: "f32".into(),
        threads: 2,
        bytes_per_s: 20e9,
        flops_per_s: 100e9,
        ops: vec![op("prompt", 80e9, 2e9), op("step", 9e9, 18e9)],
    }
}

/// Splits the page into markup and data.
fn parts(page: &str) -> (String, serde_json::Value) {
    let (before, rest) = page.split_once("<script type=\"application/json\" id=\"data\">").expect("the data");
    let (json, after) = rest.split_once("</script").expect("its end");
    (format!("{before}<script></script{after}"), serde_json::from_str(json).expect("JSON"))
}

/// Checks that every tag is closed, every attribute quoted, and every number of a plot finite.
fn well_formed(page: &str) {
    let (_, mut rest) = page.split_once("<!doctype html>").expect("a document");
    let mut open: Vec<&str> = Vec::new();
    while let Some(at) = rest.find('<') {
        let end = rest[at..].find('>').expect("a tag ends") + at;
        let tag = &rest[at + 1..end];
        rest = &rest[end + 1..];
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name), "</{name}> closes another");
            continue;
        }
        let (name, attributes) = tag.split_once(' ').unwrap_or((tag, ""));
        let name = name.trim_end_matches('/');
        assert!(name.chars().all(|c| c.is_ascii_alphanumeric()), "{tag}");
        assert_eq!(attributes.matches('"').count() % 2, 0, "{tag}");
        if !tag.ends_with('/') {
            open.push(name);
        }
        if open.contains(&"svg") {
            for value in attributes.split('"').skip(1).step_by(2) {
                let bare = value.trim_end_matches('%');
                assert!(!value.contains("NaN") && !value.ends_with("inf") && !bare.ends_with("inf"), "{tag}");
            }
        }
    }
    assert!(open.is_empty(), "left open: {open:?}");
}

fn check(page: &str) -> (String, serde_json::Value) {
    let (page, data) = parts(page);
    well_formed(&page);
    for absent in ["http://", "https://", "@import", "src=", "NaN", "×inf", "inf %", "(inf", " inf"] {
        assert!(!page.replace(" inline", "").replace(" information", "").contains(absent), "{absent}");
    }
    assert!(!page.replace("url(#", "").contains("url("));
    (page, data)
}

#[test]
fn a_ladder_has_all_its_plots() {
    let mut result = run(&ladder(), &mut Machine::new(1));
    let allocations = Allocations { count: 1234, bytes: 5_600_000, peak_live: 2_100_000 };
    result.allocations.push(AllocationCounts { workload: "prefill".into(), variant: "all".into(), allocations });
    result.roofline = Some(roofline());
    let page = report::html(&result);
    let size = page.len();
    let (page, data) = check(&page);
    for id in [
        "comparisons",
        "forest",
        "spread",
        "series",
        "ladder",
        "cost",
        "roofline",
        "memory",
        "correctness",
        "participants",
        "session",
        "environment",
        "raw",
    ] {
        assert!(page.contains(&format!("<section id=\"{id}\"")), "{id}");
        assert!(page.contains(&format!("href=\"#{id}\"")), "{id}");
    }
    // Every informative drawing has a title, and every plot a caption.
    assert_eq!(page.matches("role=\"img\"><title>").count(), page.matches("role=\"img\"").count());
    assert_eq!(page.matches("<figure>").count(), page.matches("<figcaption>").count());
    assert!(page.contains("the steps sum to") && page.contains("they agree within"));
    assert!(page.contains("per captured layer (") && page.contains("captured layers</text>"));
    assert!(page.contains("peak while loading") && page.contains("71 MB + 505 MB"));
    // The rungs of a ladder differ by design; that is not a regression.
    assert!(!page.contains("Regressed: ") && page.contains("<title>capture · information only</title>"));
    assert!(page.contains("SUPPORTED</b>"));
    assert!(
        page.contains("2 threads read 20.0 GB/s")
            && page.contains("mlp.&lt;down&gt;, step: 9.0 GFLOP/s, 18.0 GB/s, 90.0")
    );
    assert!(page.contains("1234"));
    assert!(page.contains("<pre class=\"command\">pellucid lab run a &amp; b</pre>"));
    assert!(page.contains("Simulated &lt;CPU&gt;") && page.contains("What it costs, &lt;simulated&gt;"));
    assert_eq!(data["runs"].as_array().map(Vec::len), Some(result.runs.len()), "every sample is there");
    let back: SessionResult = serde_json::from_value(data).expect("the same format");
    assert_eq!((back.suite, back.cells), (result.suite, result.cells));
    assert!(size < 4096 * result.runs.len() + 60_000, "{size} bytes for {} processes", result.runs.len());
}

#[test]
fn failing_variants_are_shown_and_their_messages_escaped() {
    let result = run(&mixed_suite(), &mut Machine::new(2));
    let (page, _) = check(&report::html(&result));
    assert!(!page.contains("<b>&\"") && !page.contains("<i>") && page.contains("&lt;b&gt;&amp;&quot;"));
    assert!(page.contains("✕ SILENTLY_WRONG") && page.contains("! ERROR") && page.contains("— not run"));
    assert!(page.contains("was killed: signal 9 &lt;i&gt;␛[0m"));
    assert!(page.contains("The output of wrong on prefill-256 is wrong"));
    assert!(page.contains("Limit exceeded: time of after on prefill-256"));
    assert!(page.contains("peak, phases not reported") && page.contains("model tiny &amp; small"));
    assert!(page.contains("<td class=\"state wrong\" title=\"SILENTLY_WRONG: "));
    for absent in ["id=\"ladder\"", "id=\"cost\""] {
        assert!(!page.contains(absent), "{absent}");
    }
}

#[test]
fn sessions_without_any_answer_have_reports() {
    let fixed_outcome = Some(WorkerOutcome::Failed { kind: FailureKind::Timeout, message: String::new() });
    let failing = run(&mixed_suite(), &mut Machine { fixed_outcome, ..Machine::new(3) });
    let (page, _) = check(&report::html(&failing));
    assert!(page.contains("Invalid: nothing was compared") && page.contains("timed out"));
    assert!(!page.contains("id=\"forest\"") && !page.contains("id=\"series\""));
    assert!(report::text(&failing).contains("nothing was compared"));
    let mut empty = failing.clone();
    empty.runs.clear();
    empty.cells.clear();
    empty.suite.variants.clear();
    empty.suite.workloads.clear();
    empty.environment = Environment::default();
    empty.session.command.clear();
    let (page, _) = check(&report::html(&empty));
    assert!(page.contains("Nothing was run.") && page.contains("not recorded"));
    assert!(report::markdown(&empty).contains("nothing was compared"));
}

#[test]
fn non_finite_values_are_drawn_within_the_plot() {
    let mut suite = ladder();
    suite.precision.budget_s = 10.5;
    let mut result = run(&suite, &mut Machine::new(4));
    assert!(result.comparisons.iter().all(|c| c.log_ratio.high.is_infinite()), "one pair each");
    let (page, data) = check(&report::html(&result));
    assert!(page.contains("no interval") && page.contains("too few pairs") && page.contains("Ended early"));
    assert_eq!(data["comparisons"][0]["log_ratio"]["high"], "inf");
    let back: SessionResult = serde_json::from_value(data).expect("what was written can be read");
    assert_eq!(back, result, "to the last bit");
    let strange = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0, 1e300, -1e300];
    for (i, &mean) in strange.iter().enumerate() {
        let estimate = Estimate { mean, low: strange[(i + 1) % 6], high: strange[(i + 2) % 6] };
        for c in &mut result.comparisons {
            (c.log_ratio, c.noise, c.margin, c.value, c.drift) = (estimate, mean, mean, mean, Some(estimate));
        }
        for model in &mut result.cost_models {
            (model.base, model.per_layer, model.r2) = (estimate, estimate, mean);
            model.points.push((mean, mean));
        }
        for cell in &mut result.cells {
            (cell.max_abs, cell.state) = (mean as f32, CellState::SupportedDegraded);
        }
        check(&report::html(&result));
        for text in [report::text(&result), report::markdown(&result)] {
            assert!(!text.contains("NaN") && !text.replace(" information", "").contains(" inf"), "{text}");
        }
    }
}

#[test]
fn the_other_reports_have_the_same_facts_in_aligned_columns() {
    let result = run(&mixed_suite(), &mut Machine::new(5));
    let text = report::text(&result);
    let mut lines = text.lines().skip(2);
    let heading = lines.next().expect("a heading");
    let places = |line: &str, word: &str| line.find(word).map(|at| line[..at].chars().count());
    let verdicts = places(heading, "verdict");
    for (line, comparison) in lines.zip(&result.comparisons) {
        let rest: String = line.chars().skip(verdicts.expect("a column")).collect();
        assert!(rest.starts_with(comparison.verdict.name()), "{line}");
    }
    let markdown = report::markdown(&result);
    for fact in
        ["| noise |", "pellucid lab run a & b", "| seed | 7 |", "SILENTLY_WRONG", "was killed", "must agree", "\\<b>"]
    {
        assert!(markdown.contains(fact), "{fact}: {markdown}");
    }
    let captured = report::markdown(&run(&ladder(), &mut Machine::new(5)));
    assert!(captured.contains("per captured layer") && captured.contains("the steps sum to"));
}
