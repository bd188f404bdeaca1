//! Computes a session's comparisons, correctness cells and cost models from its runs.

use super::{OracleKey, Pairing, SessionState, pairing_name};
use crate::check::{self, CellState};
use crate::conclusion::broken_limits;
use crate::protocol::{Answer, Job};
use crate::result::{Cell, Comparison, CostModel, Run, SCHEMA, Session, SessionResult};
use crate::stats;
use crate::suite::{Metric, Workload};
use crate::verdict::{Verdict, judge, pairs_needed};
use std::collections::HashMap;

impl SessionState<'_> {
    /// Compares the complete pairs of a pairing so far, given the workload's noise floor.
    pub(super) fn comparison(&self, pairing: &Pairing, metric: Metric, noise: Option<f64>) -> Option<Comparison> {
        let (workload, name) = (pairing.workload, pairing_name(pairing.before, pairing.after));
        let in_pairing = |run: &&Run| run.workload == workload.id && run.pairing == name;
        let runs: Vec<&Run> = self.runs.iter().filter(in_pairing).collect();
        let side = |is_reference: bool| {
            let side = runs.iter().filter(move |run| run.is_reference == is_reference);
            side.filter_map(|run| Some((run.pair, run.value(metric)?))).collect::<HashMap<usize, f64>>()
        };
        let (before, after) = (side(true), side(false));
        let mut pairs: Vec<usize> = before.keys().filter(|pair| after.contains_key(pair)).copied().collect();
        pairs.sort_unstable();
        if pairs.is_empty() {
            return None;
        }
        let ratios: Vec<f64> = pairs.iter().map(|pair| (after[pair] / before[pair]).ln()).collect();
        let log_ratio = stats::confidence_interval(&ratios, self.context.seed);
        let (margin, noise) = (self.suite.margin(workload), noise.unwrap_or(0.0));
        let verdict = judge(&log_ratio, margin, noise);
        let values = |side: &HashMap<usize, f64>| pairs.iter().map(|pair| side[pair]).collect::<Vec<f64>>();
        let (before, after) = (values(&before), values(&after));
        let (a, b) = (stats::outliers(&before), stats::outliers(&after));
        // Each side's logarithms minus their mean, in the order of execution.
        let drift = stats::drift(&centered_logs(&runs, metric));
        Some(Comparison {
            workload: workload.id.clone(),
            variant: pairing.after.id.clone(),
            reference: pairing.before.id.clone(),
            metric,
            pairs: pairs.len(),
            noise,
            margin,
            verdict,
            pairs_needed: (verdict == Verdict::Inconclusive)
                .then(|| pairs_needed(pairs.len(), &log_ratio, margin, noise))
                .flatten(),
            log_ratio,
            value: stats::median(&after),
            reference_value: stats::median(&before),
            outliers: (a.0 + b.0, a.1 + b.1),
            drift,
        })
    }

    pub(super) fn finish(mut self, seconds: f64, ended_early: String) -> SessionResult {
        self.check_all();
        let suite = self.suite;
        let mut comparisons = Vec::new();
        for workload in &suite.workloads {
            for &metric in &workload.metrics {
                let pairing = |(before, after)| Pairing { workload, before, after, before_first: true };
                let mut pairings = suite.pairings(workload).into_iter().map(pairing);
                let control = pairings.next().and_then(|pairing| self.comparison(&pairing, metric, None));
                // The noise floor is the half-width of the A/A control's interval. Without A/A
                // pairs it is infinite, so no difference is significant.
                let noise = control.as_ref().map_or(f64::INFINITY, |c| c.log_ratio.half_width());
                let margin = (1.0 + suite.margin(workload)).ln();
                let broken =
                    control.as_ref().is_some_and(|c| c.log_ratio.is_significant() && c.log_ratio.mean.abs() > margin);
                let control = control.map(|control| Comparison { noise, ..control });
                let found: Vec<Comparison> =
                    pairings.filter_map(|pairing| self.comparison(&pairing, metric, Some(noise))).collect();
                comparisons.extend(control.into_iter().chain(found).map(|comparison| Comparison {
                    verdict: if broken { Verdict::Invalid } else { comparison.verdict },
                    ..comparison
                }));
            }
        }
        let cells = self.cells();
        let cost_models = self.cost_models();
        let broken_limits = broken_limits(suite, &comparisons);
        SessionResult {
            schema: SCHEMA.into(),
            suite: suite.clone(),
            session: Session {
                began: std::time::SystemTime::now()
                    .duration_since(std::time::UNIX_EPOCH)
                    .map_or(0, |now| now.as_secs().saturating_sub(seconds as u64)),
                seed: self.context.seed,
                seconds,
                command: self.context.command.clone(),
                model: self.context.model.display().to_string(),
                ended_early,
            },
            environment: self.context.environment.clone(),
            runs: self.runs,
            comparisons,
            cells,
            cost_models,
            broken_limits,
            allocations: Vec::new(),
            roofline: None,
        }
    }

    /// Checks every run's output. This happens at the end, because the oracle may run after other
    /// variants.
    fn check_all(&mut self) {
        let suite = self.suite;
        let check_run = |run: &Run| {
            let (answer, oracle_key) = (run.answer.as_ref()?, self.oracle_key(run)?);
            let exact = suite.variant(&run.variant)?.dtype == suite.variant(suite.oracle())?.dtype;
            let same = self
                .oracle_answers
                .iter()
                .find(|(known, _)| *known == oracle_key)
                .map(|(_, oracle_answer)| oracle_answer.clone());
            // The oracle did not run this job. Its top tokens for the same prompt can still be
            // compared.
            let same_prompt = |(known, _): &&(OracleKey, Answer)| {
                (&known.model, known.tokens) == (&oracle_key.model, oracle_key.tokens)
            };
            let oracle_answer = same.or_else(|| {
                let (_, oracle_answer) = self.oracle_answers.iter().find(same_prompt)?;
                Some(Answer { values: answer.values.clone(), decoded: Vec::new(), ..oracle_answer.clone() })
            });
            Some(check::check(oracle_key.job, answer, oracle_answer.as_ref(), exact))
        };
        let checks: Vec<Option<check::Check>> = self.runs.iter().map(check_run).collect();
        self.runs.iter_mut().zip(checks).for_each(|(run, check)| run.check = check);
    }

    fn cells(&self) -> Vec<Cell> {
        let mut cells = Vec::new();
        for workload in &self.suite.workloads {
            for variant in self.suite.participants(workload) {
                let runs: Vec<&Run> =
                    self.runs.iter().filter(|r| r.workload == workload.id && r.variant == variant.id).collect();
                let check_run = |run: &&Run| match (&run.check, &run.failed) {
                    (Some(check), _) => (check.state, check.max_abs, check.difference.clone()),
                    (None, Some((kind, message))) => (CellState::Error, 0.0, format!("{}: {message}", kind.name())),
                    (None, None) => (CellState::Error, 0.0, String::new()),
                };
                let worst = runs.iter().map(check_run).max_by_key(|(state, ..)| *state);
                if let Some((state, max_abs, why)) = worst {
                    cells.push(Cell {
                        workload: workload.id.clone(),
                        variant: variant.id.clone(),
                        state,
                        max_abs,
                        why,
                    });
                }
            }
        }
        cells
    }

    /// Fits time against captured layers for each workload whose variants capture different numbers
    /// of layers.
    fn cost_models(&self) -> Vec<CostModel> {
        let layers = |workload: &Workload, variant: &str| match self.suite.job(workload, self.suite.variant(variant)?) {
            Job::Prefill => Some(0.0),
            Job::CaptureLayers { layers } => Some(layers as f64),
            _ => None,
        };
        let fit = |workload: &Workload| {
            let runs = self.runs.iter().filter(|run| run.workload == workload.id);
            let points: Vec<(f64, f64)> =
                runs.filter_map(|run| Some((layers(workload, &run.variant)?, run.value(Metric::Time)?))).collect();
            let rows: Vec<Vec<f64>> = points.iter().map(|(layers, _)| vec![1.0, *layers]).collect();
            let values: Vec<f64> = points.iter().map(|(_, seconds)| *seconds).collect();
            let (fit, estimates) = stats::fit_with_intervals(&rows, &values, self.context.seed)?;
            let [base, per_layer] = estimates[..] else { return None };
            Some(CostModel { workload: workload.id.clone(), base, per_layer, r2: fit.r2, points })
        };
        self.suite.workloads.iter().filter_map(fit).collect()
    }
}

/// Returns the logarithms of a metric in the order of execution, each minus the mean of its side.
fn centered_logs(runs: &[&Run], metric: Metric) -> Vec<f64> {
    let logs: Vec<(bool, f64)> =
        runs.iter().filter_map(|run| Some((run.is_reference, run.value(metric)?.ln()))).collect();
    let of = |side: bool| logs.iter().filter(move |(s, _)| *s == side).map(|(_, x)| *x).collect::<Vec<f64>>();
    let means = [stats::mean(&of(false)), stats::mean(&of(true))];
    logs.iter().map(|(side, x)| x - means[usize::from(*side)]).collect()
}
