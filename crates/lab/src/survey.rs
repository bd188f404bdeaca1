//! Correctness survey: runs every method (workload) of every library (variant) once per model
//! family and compares the output with the oracle's. Nothing is timed.

use crate::check::{self, CellState};
use crate::executor::{Executor, WorkerOutcome};
use crate::protocol::{Answer, Request};
use crate::result::Cell;
use crate::session::{SessionContext, request};
use crate::suite::{Suite, Variant, WorkerKind, Workload};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// Results on one model family.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Family {
    /// Name of the family.
    pub name: String,
    /// One cell per method (workload) and library (variant).
    pub cells: Vec<Cell>,
    /// Libraries that answered, with their versions.
    pub engines: BTreeMap<String, String>,
}

/// Runs every variant on every workload once, including variants that the suite does not time
/// there. `on_cell` is called after each.
pub fn family(
    name: &str,
    suite: &Suite,
    setting: &SessionContext,
    executor: &mut dyn Executor,
    on_cell: &mut dyn FnMut(&Cell),
) -> Family {
    let mut found = Family { name: name.into(), cells: Vec::new(), engines: BTreeMap::new() };
    for workload in &suite.workloads {
        let mut truth: Option<Answer> = None;
        // The oracle runs first; the others are compared with it.
        let oracle = |variant: &&Variant| variant.id == suite.oracle();
        let all = suite.variants.iter().filter(oracle).chain(suite.variants.iter().filter(|variant| !oracle(variant)));
        for variant in all {
            let limit = Duration::from_secs_f64(suite.precision.timeout_s);
            // One untimed run.
            let asked = Request { warmups: 0, repeats: 1, ..request(suite, setting, workload, variant) };
            let cell = match executor.run(variant, &asked, limit) {
                WorkerOutcome::Answered(answer) => {
                    found.engines.insert(variant.id.clone(), answer.engine.clone());
                    if variant.id == suite.oracle() {
                        truth = Some((*answer).clone());
                    }
                    judged(suite, workload, variant, &answer, truth.as_ref())
                }
                WorkerOutcome::Failed { kind, message } => {
                    cell(workload, variant, CellState::Error, 0.0, format!("{}: {message}", kind.name()))
                }
            };
            on_cell(&cell);
            found.cells.push(cell);
        }
    }
    found
}

fn judged(suite: &Suite, workload: &Workload, variant: &Variant, answer: &Answer, truth: Option<&Answer>) -> Cell {
    let exact = suite.variant(suite.oracle()).is_some_and(|oracle| oracle.dtype == variant.dtype);
    let found = check::check(suite.job(workload, variant), answer, truth, exact);
    cell(workload, variant, found.state, found.max_abs, found.difference)
}

fn cell(workload: &Workload, variant: &Variant, state: CellState, max_abs: f32, why: String) -> Cell {
    Cell { workload: workload.id.clone(), variant: variant.id.clone(), state, max_abs, why }
}

/// Returns Pellucid's silently wrong cells.
pub fn our_wrong_cells<'f>(suite: &Suite, families: &'f [Family]) -> Vec<(&'f str, &'f Cell)> {
    let is_ours = |id: &str| suite.variant(id).is_some_and(|variant| variant.worker == WorkerKind::Pellucid);
    let all = families.iter().flat_map(|family| family.cells.iter().map(|cell| (family.name.as_str(), cell)));
    all.filter(|(_, cell)| is_ours(&cell.variant) && cell.state == CellState::SilentlyWrong).collect()
}
