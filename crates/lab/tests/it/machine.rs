//! A simulated session result that has every optional part.

use pellucid_lab::environment::Environment;
use pellucid_lab::executor::{Executor, FailureKind, WorkerOutcome};
use pellucid_lab::protocol::{Allocations, Answer, Memory, Request};
use pellucid_lab::result::{AllocationCounts, SessionResult};
use pellucid_lab::roofline::{OpRate, Roofline};
use pellucid_lab::session::{self, SessionContext};
use pellucid_lab::stats::Rng;
use pellucid_lab::suite::{Suite, Variant};
use std::time::Duration;

struct Machine {
    random: Rng,
    clock: f64,
}

impl Executor for Machine {
    fn run(&mut self, variant: &Variant, _: &Request, _: Duration) -> WorkerOutcome {
        self.clock += 1.0;
        if variant.id == "fails" {
            return WorkerOutcome::Failed { kind: FailureKind::Error, message: "no such thing".into() };
        }
        let seconds = 0.1 * (0.01 * self.random.normal()).exp();
        WorkerOutcome::Answered(Box::new(Answer {
            engine: "simulated".into(),
            load_to_first_token_s: 1.0,
            samples_s: vec![seconds],
            peak_bytes: 1000,
            memory: Some(Memory { load: 1000, run: 900, anonymous: 800, file: 100, proportional: 850 }),
            allocations: Some(Allocations { count: 3, bytes: 300, peak_live: 200 }),
            weight_bytes: 1000,
            top: vec![(3, 1.0), (4, 0.5)],
            decoded: vec![1],
            values: vec![1.0, 2.0],
            ..Answer::default()
        }))
    }

    fn elapsed(&self) -> f64 {
        self.clock
    }
}

/// A session with a failing variant, a cost model, a broken limit and allocations.
pub fn full_result() -> SessionResult {
    let suite = r#"
        name = "simulated"
        reference = "a"
        precision = { budget_s = 1e6 }
        variant = [
            { id = "a" },
            { id = "b", job = { capture_layers = { layers = 2 } } },
            { id = "c", job = { capture_layers = { layers = 4 } } },
            { id = "fails", worker = "nnsight" },
        ]
        workload = [{ id = "w", job = "prefill", tokens = 4 }]
        limit = [{ workload = "w", variant = "b", absolute = 0.001 }]
    "#;
    let suite = Suite::parse(suite, "simulated").expect("a suite");
    let setting = SessionContext {
        model: "none".into(),
        assume: None,
        seed: 1,
        environment: Environment::detect(std::path::Path::new("none")),
        command: vec!["pellucid".into()],
        earlier: vec![],
    };
    let mut machine = Machine { random: Rng::new(1), clock: 0.0 };
    let counted: Vec<AllocationCounts> =
        session::count_allocations(&suite, &setting, &mut machine, &mut |why| panic!("{why}"));
    assert_eq!(counted.len(), 3, "of ours only");
    let result = session::run(&suite, setting, &mut machine, &mut |_| {}).expect("a session");
    assert!(!result.cost_models.is_empty() && !result.broken_limits.is_empty());
    let op = OpRate { name: "q".into(), phase: "step".into(), seconds: 1.0, share: 1.0, flops: 2.0, bytes: 4.0 };
    let roofline = Roofline {
        model: "none".into(),
        dtype: "f32".into(),
        threads: 1,
        bytes_per_s: 1e9,
        flops_per_s: 1e9,
        ops: vec![op],
    };
    SessionResult { allocations: counted, roofline: Some(roofline), ..result }
}
