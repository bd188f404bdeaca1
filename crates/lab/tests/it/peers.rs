//! The page of methods × families × libraries, with simulated peers: one returns wrong values, one
//! fails.

use pellucid_lab::check::CellState;
use pellucid_lab::environment::Environment;
use pellucid_lab::executor::{Executor, FailureKind, WorkerOutcome};
use pellucid_lab::protocol::{Answer, Job, Request};
use pellucid_lab::session::SessionContext;
use pellucid_lab::suite::Variant;
use pellucid_lab::survey::{self, Family};
use pellucid_lab::{builtin_suites, report};
use std::time::Duration;

/// Simulated peers: all agree, except TransformerLens, which is wrong at ablation, and llama.cpp,
/// which fails.
struct Peers {
    pellucid_is_wrong: bool,
}

impl Executor for Peers {
    fn run(&mut self, variant: &Variant, request: &Request, _: Duration) -> WorkerOutcome {
        if variant.id == "llama-cpp" {
            return WorkerOutcome::Failed { kind: FailureKind::Error, message: "GGUF files only | really".into() };
        }
        let off = (variant.id == "transformer-lens" && request.job == Job::Ablate)
            || (variant.id == "pellucid" && self.pellucid_is_wrong);
        WorkerOutcome::Answered(Box::new(Answer {
            engine: format!("{} 1.0", variant.id),
            load_to_first_token_s: 1.0,
            samples_s: vec![1.0],
            top: vec![(3, 1.0)],
            decoded: vec![1],
            values: vec![if off { 2.0 } else { 1.0 }],
            control: vec![0.0],
            ..Answer::default()
        }))
    }

    fn elapsed(&self) -> f64 {
        0.0
    }
}

fn families(pellucid_is_wrong: bool) -> Vec<Family> {
    let suite = builtin_suites::named("peers").expect("there").expect("a suite");
    let family = |name: &str| {
        let environment = Environment::default();
        let setting =
            SessionContext { model: name.into(), assume: None, seed: 1, environment, command: vec![], earlier: vec![] };
        survey::family(name, &suite, &setting, &mut Peers { pellucid_is_wrong }, &mut |_| {})
    };
    vec![family("gpt2"), family("qwen_3")]
}

#[test]
fn the_page_shows_correct_cells_and_the_reasons_of_others() {
    let suite = builtin_suites::named("peers").expect("there").expect("a suite");
    let families = families(false);
    assert!(families.iter().all(|family| family.cells.len() == 7 * 5), "every method of every library");
    assert!(survey::our_wrong_cells(&suite, &families).is_empty());
    let page = report::peers_page(&suite, &families, "pellucid lab peers");
    for line in [
        "**Silently wrong cells of Pellucid: 0.**",
        "| cells | ✓ | ≈ | ? | error | **wrong** |",
        "| pellucid | 14 | 0 | 0 | 0 | 0 |",
        "| transformer-lens | 12 | 0 | 0 | 0 | 2 |",
        "| llama-cpp | 0 | 0 | 0 | 14 | 0 |",
        "## ablation",
        "| gpt2 | ✓ 0 | ✓ 0 | ✓ 0 | **wrong** 1.0e0 | error |",
        "- transformer-lens (ablation on gpt2; ablation on qwen\\_3): values differ by up to 1",
        "- llama-cpp (everything on gpt2; everything on qwen\\_3): exited with an error",
        "GGUF files only \\| really",
        "- nnsight: nnsight 1.0",
    ] {
        assert!(page.contains(line), "{line}\nis not in\n{page}");
    }
}

#[test]
fn wrong_cells_of_pellucid_are_counted() {
    let suite = builtin_suites::named("peers").expect("there").expect("a suite");
    let families = families(true);
    let wrong = survey::our_wrong_cells(&suite, &families);
    assert_eq!(wrong.len(), 14);
    assert!(wrong.iter().all(|(_, cell)| cell.state == CellState::SilentlyWrong));
    assert!(report::peers_page(&suite, &families, "x").contains("**Silently wrong cells of Pellucid: 14.**"));
}
