//! Who does which method correctly on which family: every cell once, in a process of its own, against the oracle. No times, no pairs.

use crate::check::{self, State};
use crate::executor::{Executor, Outcome};
use crate::protocol::{Answer, Request};
use crate::result::Cell;
use crate::session::{Setting, request};
use crate::suite::{Suite, Variant, WorkerKind, Workload};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// A family's cells.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Family {
    /// What it is called.
    pub name: String,
    /// Its cells: workloads are methods, variants are those who offer them.
    pub cells: Vec<Cell>,
    /// Who they were, with their versions, where they answered at all.
    pub engines: BTreeMap<String, String>,
}

/// Runs every variant on every workload once, whether or not the suite would time it there. `heard` is told after each.
pub fn family(
    name: &str,
    suite: &Suite,
    setting: &Setting,
    executor: &mut dyn Executor,
    heard: &mut dyn FnMut(&Cell),
) -> Family {
    let mut found = Family { name: name.into(), cells: Vec::new(), engines: BTreeMap::new() };
    for workload in &suite.workloads {
        let mut truth: Option<Answer> = None;
        // The oracle first: everybody else is compared with it.
        let oracle = |variant: &&Variant| variant.id == suite.oracle();
        let all = suite.variants.iter().filter(oracle).chain(suite.variants.iter().filter(|variant| !oracle(variant)));
        for variant in all {
            let limit = Duration::from_secs_f64(suite.precision.timeout_s);
            // Once: nothing is timed.
            let asked = Request { warmups: 0, repeats: 1, ..request(suite, setting, workload, variant) };
            let cell = match executor.run(variant, &asked, limit) {
                Outcome::Answered(answer) => {
                    found.engines.insert(variant.id.clone(), answer.engine.clone());
                    if variant.id == suite.oracle() {
                        truth = Some((*answer).clone());
                    }
                    judged(suite, workload, variant, &answer, truth.as_ref())
                }
                Outcome::Failed { how, said } => {
                    cell(workload, variant, State::Error, 0.0, format!("{}: {said}", how.name()))
                }
            };
            heard(&cell);
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

fn cell(workload: &Workload, variant: &Variant, state: State, max_abs: f32, why: String) -> Cell {
    Cell { workload: workload.id.clone(), variant: variant.id.clone(), state, max_abs, why }
}

/// Cells of ours that run, say nothing and are wrong.
pub fn wrong_of_ours<'f>(suite: &Suite, families: &'f [Family]) -> Vec<(&'f str, &'f Cell)> {
    let is_ours = |id: &str| suite.variant(id).is_some_and(|variant| variant.worker == WorkerKind::Pellucid);
    let all = families.iter().flat_map(|family| family.cells.iter().map(|cell| (family.name.as_str(), cell)));
    all.filter(|(_, cell)| is_ours(&cell.variant) && cell.state == State::SilentlyWrong).collect()
}
