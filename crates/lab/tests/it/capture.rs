//! `lab capture` with simulated workers whose costs are known: order, overheads, checks, pages.

use crate::conforms::problems;
use pellucid_lab::capture::overhead::BarState;
use pellucid_lab::capture::request::{CaptureRequest, WorkloadSize};
use pellucid_lab::capture::result::{
    CaptureRun, CaptureSuite, FetchTimes, Iteration, MODE_SCHEMA_TEXT, RequestTokens, TimeSplit, digest,
};
use pellucid_lab::capture::session::{self, CaptureExecutor, CaptureSettings};
use pellucid_lab::capture::{Mode, html, markdown};
use pellucid_lab::environment::Environment;
use pellucid_lab::stats::Rng;
use serde_json::Value;

const SIZE: WorkloadSize = WorkloadSize { batch: 4, prefill: 16, decode: 8, mixed: false };
const WIDTH: usize = 32;

/// Workers with known costs per captured layer.
struct Machine {
    random: Rng,
    processes: usize,
    /// Fraction by which the machine becomes slower with each process.
    drift: f64,
    /// Fraction of the generation that one captured layer adds.
    per_layer: f64,
    /// Relative standard deviation of a process.
    noise: f64,
    /// A mode that generates other tokens.
    wrong: Option<Mode>,
}

impl Machine {
    fn new(per_layer: f64, noise: f64) -> Machine {
        Machine { random: Rng::new(7), processes: 0, drift: 0.0, per_layer, noise, wrong: None }
    }
}

impl CaptureExecutor for Machine {
    fn run(&mut self, request: &CaptureRequest) -> Result<CaptureRun, String> {
        self.processes += 1;
        let layers = request.layers.len();
        let slower = 1.0 + self.drift * self.processes as f64;
        let base = slower * (self.noise * self.random.normal()).exp() * (1.0 + self.per_layer * layers as f64);
        let bytes = SIZE.captured_bytes(layers, WIDTH);
        let iteration = |iteration: usize| Iteration {
            iteration,
            generation_time: base,
            fetch_time: 0.001 * layers as f64,
            total_time: base + 0.001 * layers as f64,
            throughput_tokens_per_sec: 96.0 / base,
            cpu_time: 2.0 * base,
            prefill_tokens_per_sec: 100.0,
            decode_tokens_per_sec: 50.0,
            outside_passes_time: 0.002,
            mean_concurrency: 3.5,
            max_concurrency: 4,
            fetch: FetchTimes { hand_over: 1e-5, copy: 0.001 * layers as f64, file: Some(0.1) },
            ..Iteration::default()
        };
        let wrong = self.wrong.is_some() && request.mode() == self.wrong;
        Ok(CaptureRun {
            engine: "simulated".into(),
            iterations: (1..=request.iterations).map(iteration).collect(),
            tokens: vec![vec![if wrong { 9 } else { 3 }; SIZE.decode]; SIZE.batch],
            requests: vec![RequestTokens { prompt: 16, generated: 8, captured_positions: 23, reused: 0 }; SIZE.batch],
            rows_checked: layers * SIZE.batch,
            captured_bytes: bytes,
            peak_bytes: 1_000_000 + bytes,
            resident_bytes: 500_000,
            equals_forward_pass: (layers > 0).then_some(true),
            split: request.profile.then_some(TimeSplit {
                forward: base,
                copy: self.per_layer * layers as f64,
                outside_ops: 0.01,
                outside_ops_without_plan: 0.01,
            }),
            ..CaptureRun::default()
        })
    }
}

fn settings() -> CaptureSettings {
    CaptureSettings {
        model: "model".into(),
        model_name: "model".into(),
        assume: None,
        dtype: "auto".into(),
        threads: None,
        size: SIZE,
        depth: 12,
        width: WIDTH,
        vocab: 96,
        custom_layers: vec![],
        iterations: 3,
        warmups: 1,
        rounds: 4,
        profile_fetch: true,
        command: vec!["pellucid".into()],
    }
}

const MODES: [Mode; 6] = [Mode::Baseline, Mode::ZeroLayer, Mode::NoopHook, Mode::Single, Mode::Half, Mode::AllLayers];

fn suite(machine: &mut Machine) -> CaptureSuite {
    session::run(&settings(), &MODES, &Environment::default(), machine, &mut |_, _, _| ()).expect("it runs")
}

#[test]
fn known_costs_are_found_although_the_machine_becomes_slower() {
    let found = suite(&mut Machine { drift: 0.01, ..Machine::new(0.01, 0.0) });
    assert_eq!(found.invalid, Vec::<String>::new());
    assert_eq!(found.order.len(), 4 * 7);
    let of = |mode: Mode| found.overheads.iter().find(|o| o.mode == mode).expect("measured");
    // The machine loses 1 % per process, 27 % in all; the mirrored order cancels it.
    let all = of(Mode::AllLayers);
    assert!((all.generation.mean - 0.12).abs() < 0.01, "{:?}", all.generation);
    assert!(of(Mode::ZeroLayer).generation.mean.abs() < 0.01, "{:?}", of(Mode::ZeroLayer).generation);
    assert!((all.total.mean - all.generation.mean - all.fetch.mean).abs() < 1e-9);
    let fit = found.fit.as_ref().expect("four numbers of layers");
    let relative = fit.per_layer.mean / fit.base.mean;
    assert!((relative - 0.01).abs() < 0.002, "{relative}");
    // (all − zero) / layers is the same slope.
    let cost = fit.per_layer_cost.expect("both modes ran");
    assert!((cost.mean / fit.per_layer.mean - 1.0).abs() < 0.25, "{cost:?} {:?}", fit.per_layer);
}

#[test]
fn bars_are_met_missed_or_undecided() {
    let states =
        |machine: &mut Machine| suite(machine).bars.iter().map(|bar| (bar.name.clone(), bar.state)).collect::<Vec<_>>();
    let state = |found: &[(String, BarState)], name: &str| {
        found.iter().find(|(known, _)| known.starts_with(name)).map(|(_, state)| *state)
    };
    let cheap = states(&mut Machine::new(0.0005, 0.0));
    assert_eq!(state(&cheap, "all-layers generation"), Some(BarState::Met), "{cheap:?}");
    let costly = states(&mut Machine::new(0.02, 0.0));
    assert_eq!(state(&costly, "all-layers generation"), Some(BarState::Missed), "{costly:?}");
    let noisy = states(&mut Machine::new(0.0005, 0.2));
    assert_eq!(state(&noisy, "zero-layer"), Some(BarState::Undecided), "{noisy:?}");
    assert_eq!(suite(&mut Machine::new(0.02, 0.0)).exit_code(true), 1);
    assert_eq!(suite(&mut Machine::new(0.02, 0.0)).exit_code(false), 0, "bars gate only on request");
}

#[test]
fn other_tokens_than_the_baselines_are_wrong() {
    let mut machine = Machine { wrong: Some(Mode::Half), ..Machine::new(0.01, 0.0) };
    let found = suite(&mut machine);
    assert_eq!(found.invalid, ["half: generated other tokens than the baseline"]);
    assert_eq!(found.exit_code(false), 1);
    assert!(markdown::page(&found).contains("**Wrong results: do not use the times.**"));
    assert!(html::page(&found).contains("generated other tokens"));
    assert_ne!(digest(&[vec![1], vec![2]]), digest(&[vec![1, 2], vec![]]));
}

#[test]
fn pages_answer_the_questions_of_the_original_benchmark() {
    let found = suite(&mut Machine::new(0.01, 0.001));
    let page = markdown::page(&found);
    for text in [
        "| all-layers | 12 |",
        "baseline against itself (A/A)",
        "| zero-layer generation, against baseline | within ±2 % |",
        "**Do results vary?**",
        "**Does armed machinery cost anything?** Zero-layer overhead is",
        "**Where does the time of captures go?** All-layers costs",
        "most of it is copies",
        "exactly as predicted",
        "writing them to a file",
        "**Is the cost linear in layers?**",
    ] {
        assert!(page.contains(text), "{text}\nis not in\n{page}");
    }
    let html = html::page(&found);
    assert!(html.contains("captured layers") && html.contains("id=\"data\"") && !html.contains("NaN"));
}

#[test]
fn a_modes_file_has_the_keys_of_the_original_and_fits_its_schema() {
    let found = suite(&mut Machine::new(0.01, 0.0));
    let root: Value = serde_json::from_str(MODE_SCHEMA_TEXT).expect("JSON");
    for mode in &found.modes {
        let value = serde_json::to_value(mode).expect("JSON");
        let mut wrong = Vec::new();
        problems(&root, &root, &value, "mode", &mut wrong);
        assert_eq!(wrong, Vec::<String>::new());
    }
    let value = serde_json::to_value(found.mode(Mode::AllLayers)).expect("JSON");
    let has = |value: &Value, keys: &[&str]| keys.iter().all(|key| value.get(key).is_some());
    assert!(has(
        &value,
        &[
            "mode",
            "model",
            "batch_size",
            "prefill_tokens",
            "decode_tokens",
            "total_layers",
            "capture_layers",
            "num_captured_layers",
            "iterations",
            "summary"
        ]
    ));
    assert!(has(
        &value["iterations"][0],
        &["iteration", "generation_time", "fetch_time", "total_time", "throughput_tokens_per_sec"]
    ));
    assert!(has(
        &value["summary"],
        &["mean_generation_time", "mean_fetch_time", "mean_total_time", "min_generation_time", "max_generation_time"]
    ));
    let mut broken = value.clone();
    broken["captured_bytes"]["observed"] = "many".into();
    let mut wrong = Vec::new();
    problems(&root, &root, &broken, "mode", &mut wrong);
    assert!(!wrong.is_empty(), "the schema can be violated");
    let text = serde_json::to_string(&found).expect("JSON");
    assert_eq!(serde_json::from_str::<CaptureSuite>(&text).expect("read back"), found);
}
