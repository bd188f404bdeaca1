//! `lab sessions` with simulated programs: the report, failures, the peer and the bars.

use pellucid_lab::analysis_sessions::measure::{About, Analyzed, Programs, SessionRun, SessionsResult, measure};
use pellucid_lab::analysis_sessions::outputs::{Inputs, Outputs};
use pellucid_lab::analysis_sessions::peer::PeerRun;
use pellucid_lab::analysis_sessions::report;
use pellucid_lab::analysis_sessions::sets::{MeasuredSession, WORKLOADS};
use pellucid_sessions::phases::PhaseRecord;

/// Simulated sessions: times and memory follow from the index of the workload.
#[derive(Default)]
struct Simulated {
    failing: Option<&'static str>,
    /// Factor of the peer's run time.
    slowness: f64,
    /// Error of the peer's results.
    error: f32,
    started: Vec<String>,
}

fn index(name: &str) -> usize {
    WORKLOADS.iter().position(|(own, _)| *own == name).expect("a workload")
}

fn phase(name: &str, seconds: f64, rss: [u64; 3]) -> PhaseRecord {
    let [rss_before, rss_peak, rss_after] = rss.map(|megabytes| megabytes * 1_000_000);
    PhaseRecord { name: name.into(), seconds, rss_before, rss_peak, rss_after }
}

impl Programs for Simulated {
    fn analyze(&mut self, session: &MeasuredSession) -> Result<Analyzed, String> {
        self.started.push(session.name.clone());
        if self.failing == Some(session.name.as_str()) {
            return Err("the dataset has no field `story`, which the template needs".into());
        }
        let index = index(&session.name);
        let run = 0.5 + 0.1 * index as f64;
        let phases = vec![
            phase("config", 0.001, [10, 11, 11]),
            phase("init", 0.25, [11, 600, 500]),
            phase("prepare", 0.001, [500, 500, 500]),
            phase("setup", 0.002, [500, 501, 501]),
            phase("run", run, [501, 650 + 10 * index as u64, 510]),
            phase("save", 0.005, [510, 511, 511]),
        ];
        let about = About {
            model: "builtin".into(),
            is_real_model: false,
            // The first workload has another state.
            ready_state: if index == 0 { "plain" } else { "with SAEs" }.into(),
            unread_saes: if index == 0 { vec!["SAE at layers.9.z".into()] } else { vec![] },
        };
        let outputs = Outputs { logit_diffs: vec![1.0, 2.0], latents: vec![] };
        let run = SessionRun { wall_s: 0.3 + run, phases };
        Ok(Analyzed { run, about, inputs: Inputs { prompts: vec![vec![1]], ..Inputs::default() }, outputs })
    }

    fn peer(&mut self, session: &MeasuredSession, inputs: &Inputs) -> Option<Result<(PeerRun, Outputs), String>> {
        assert_eq!(inputs.prompts, [[1]], "the peer gets the session's tokens");
        if self.slowness == 0.0 {
            return None;
        }
        self.started.push(format!("peer {}", session.name));
        let run_s = self.slowness * (0.5 + 0.1 * index(&session.name) as f64);
        let run =
            PeerRun { engine: "lens".into(), wall_s: 20.0, load_s: 1.0, run_s, peak_bytes: 2_000_000_000, forwards: 4 };
        Some(Ok((run, Outputs { logit_diffs: vec![1.0, 2.0 + self.error], latents: vec![] })))
    }
}

fn simulate(mut programs: Simulated) -> (SessionsResult, Vec<String>) {
    let session = |(name, _): (&str, &str)| MeasuredSession { name: name.into(), file: name.into(), is_workload: true };
    let result = measure(&WORKLOADS.map(session), 3, 1, Some(2), &mut programs, &mut |_, _| {});
    (result, programs.started)
}

#[test]
fn the_page_has_the_headings_of_the_source_in_order() {
    let (result, _) = simulate(Simulated { failing: Some("attr_grad"), ..Simulated::default() });
    let page = report::markdown(&result);
    let mut rest = page.as_str();
    for line in [
        "# Pellucid Session Benchmark Report",
        "**Generated:** ",
        "**GPU Available:** False",
        "**GPU Device:** None",
        "**Total Sessions Analyzed:** 4",
        "## Summary Statistics",
        "> **Note:** ",
        "- **Total States:** 10",
        "- **Used States:** 9 (90.0%)",
        "- **Unused Parts:** 1",
        "### By Category",
        "| Category | Count | Used | Usage % |",
        "|----------|-------|------|---------|",
        "| Config Only | 4 | 4 | 100.0% |",
        "| Custom Model | 6 | 5 | 83.3% |",
        "### By Scope",
        "| Scope | Count | Used | Usage % |",
        "| session | 9 | 8 | 88.9% |",
        "| shared | 1 | 1 | 100.0% |",
        "## Detailed Session Analysis",
        "| Session State | Uses | Type | Scope | Category | Init Time (s) | Memory Δ (MB) | GPU Δ (MB) | Status |",
        "| sae__ready | 2 | ready | shared | Custom Model | 0.254 | 491.0 | N/A | ✅ Success | 0.000 | 600.0 | 6 |",
        "| attr_grad__run | 1 | run | session | Config Only | N/A | N/A | N/A | ❌ the dataset has no field `stor... |",
        "| base__run | 1 | run | session | Custom Model | 0.800 | 501.0 | N/A | ✅ Success | 0.000 | 650.0 | 3 |",
        "| base: SAE at layers.9.z | 0 | sae | session | Custom Model | N/A | N/A | N/A | no op reads it |",
        "### Phases",
        "| base | 0.001 | 0.250 | 0.001 | 0.002 | 0.500 | 0.005 | 0.800 (0.800 to 0.800) |",
        "## Performance Insights",
        "### Slowest Sessions (Top 5)",
        "- **attr_ablation__run**: 1.100s (Category: Custom Model)",
        "### Most Memory Intensive (Top 5)",
        "- **attr_ablation__run**: 680.0MB (Category: Custom Model)",
        "## Optimization Recommendations",
        "### High-Impact Optimization Targets",
        "### Unused Parts Consider for Removal",
        "SAEs that a session attaches and none of its ops reads: 1",
        "- **base: SAE at layers.9.z**: Custom Model",
    ] {
        let at = rest.find(line).unwrap_or_else(|| panic!("{line}\nis not in the rest of\n{page}"));
        rest = &rest[at..];
    }
    assert!(!page.contains("## Side by Side"), "there is no peer");
    let text = serde_json::to_string(&result).expect("JSON");
    assert_eq!(serde_json::from_str::<SessionsResult>(&text).expect("the same"), result);
}

#[test]
fn a_failed_session_is_not_repeated_and_the_others_go_on() {
    let (result, started) = simulate(Simulated { failing: Some("sae"), ..Simulated::default() });
    assert_eq!(started.iter().filter(|name| *name == "sae").count(), 1);
    assert_eq!(started.len(), 3 * 3 + 1);
    assert!(result.sessions[1].error.is_some() && result.sessions[2].runs.len() == 3);
}

#[test]
fn a_session_and_its_peer_run_next_to_each_other_in_alternating_order() {
    let (result, started) = simulate(Simulated { slowness: 20.0, ..Simulated::default() });
    assert_eq!(started.len(), 2 * 3 * 4);
    for (at, pair) in started.chunks(2).enumerate() {
        let peer = (at / 4) % 2;
        assert_eq!(pair[1 - peer], format!("peer {}", pair[peer]), "{pair:?}");
    }
    assert!(result.sessions.iter().all(|session| session.agreement.as_ref().is_some_and(|found| found.agrees)));
}

#[test]
fn bars_are_met_or_missed_by_medians() {
    let verdicts = |result: &SessionsResult, words: &str| {
        result.bars.iter().filter(|bar| bar.name.contains(words)).map(|bar| bar.met).collect::<Vec<bool>>()
    };
    let (fast, _) = simulate(Simulated { slowness: 20.0, ..Simulated::default() });
    assert!(fast.bars.iter().all(|bar| bar.met), "{:?}", fast.bars);
    assert_eq!(fast.bars.len(), 6 + 2 * 4);
    let (slow, _) = simulate(Simulated { slowness: 3.5, error: 0.1, ..Simulated::default() });
    assert_eq!(verdicts(&slow, "run time of the peer"), [true, true, false, false]);
    assert!(slow.sessions.iter().all(|session| session.agreement.as_ref().is_some_and(|found| !found.agrees)));
    assert!(report::markdown(&slow).contains("❌ differences within 1.0e-1"));
    let (alone, _) = simulate(Simulated::default());
    assert_eq!(alone.bars.len(), 6, "nothing is compared without a peer");
}
