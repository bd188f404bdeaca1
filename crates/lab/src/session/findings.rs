//! What follows from a session's runs: comparisons, states, cost models.

use super::{Arm, Question, Running, arm_name};
use crate::check::{self, State};
use crate::conclusion::broken_limits;
use crate::protocol::{Answer, Job};
use crate::result::{Cell, Comparison, CostModel, Run, SCHEMA, Session, SessionResult};
use crate::stats;
use crate::suite::{Metric, Workload};
use crate::verdict::{Verdict, judge, pairs_needed};
use std::collections::HashMap;

impl Running<'_> {
    /// A comparison as it stands, given the noise of its workload.
    pub(super) fn comparison(&self, arm: &Arm, metric: Metric, noise: Option<f64>) -> Option<Comparison> {
        let (workload, name) = (arm.workload, arm_name(arm.before, arm.after));
        let of_arm = |run: &&Run| run.workload == workload.id && run.arm == name;
        let runs: Vec<&Run> = self.runs.iter().filter(of_arm).collect();
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
        let log_ratio = stats::interval(&ratios, self.setting.seed);
        let (margin, noise) = (self.suite.margin(workload), noise.unwrap_or(0.0));
        let verdict = judge(&log_ratio, margin, noise);
        let values = |side: &HashMap<usize, f64>| pairs.iter().map(|pair| side[pair]).collect::<Vec<f64>>();
        let (before, after) = (values(&before), values(&after));
        let (a, b) = (stats::outliers(&before), stats::outliers(&after));
        // Each side's logarithms about their own mean, in the order in which they ran.
        let drift = stats::drift(&centred(&runs, metric));
        Some(Comparison {
            workload: workload.id.clone(),
            variant: arm.after.id.clone(),
            reference: arm.before.id.clone(),
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
                let arm = |(before, after)| Arm { workload, before, after, before_first: true };
                let mut arms = suite.arms(workload).into_iter().map(arm);
                let itself = arms.next().and_then(|arm| self.comparison(&arm, metric, None));
                // The noise of a workload is how far the reference seems to be from itself.
                // Where it could not be found out, it has no bound, and no difference can be told from it.
                let noise = itself.as_ref().map_or(f64::INFINITY, |c| c.log_ratio.half_width());
                let margin = (1.0 + suite.margin(workload)).ln();
                let broken =
                    itself.as_ref().is_some_and(|c| c.log_ratio.is_significant() && c.log_ratio.mean.abs() > margin);
                let itself = itself.map(|itself| Comparison { noise, ..itself });
                let found: Vec<Comparison> =
                    arms.filter_map(|arm| self.comparison(&arm, metric, Some(noise))).collect();
                comparisons.extend(itself.into_iter().chain(found).map(|comparison| Comparison {
                    verdict: if broken { Verdict::Invalid } else { comparison.verdict },
                    ..comparison
                }));
            }
        }
        let cells = self.cells();
        let models = self.cost_models();
        let broken_limits = broken_limits(suite, &comparisons);
        SessionResult {
            schema: SCHEMA.into(),
            suite: suite.clone(),
            session: Session {
                began: std::time::SystemTime::now()
                    .duration_since(std::time::UNIX_EPOCH)
                    .map_or(0, |now| now.as_secs().saturating_sub(seconds as u64)),
                seed: self.setting.seed,
                seconds,
                command: self.setting.command.clone(),
                model: self.setting.model.display().to_string(),
                ended_early,
            },
            environment: self.setting.environment.clone(),
            runs: self.runs,
            comparisons,
            cells,
            models,
            broken_limits,
            allocations: Vec::new(),
            roofline: None,
        }
    }

    /// Judges every run's numbers; done at the end, since the oracle may have run after others.
    fn check_all(&mut self) {
        let suite = self.suite;
        let judged = |run: &Run| {
            let (answer, question) = (run.answer.as_ref()?, self.question(run)?);
            let exact = suite.variant(&run.variant)?.dtype == suite.variant(suite.oracle())?.dtype;
            let same = self.truths.iter().find(|(known, _)| *known == question).map(|(_, truth)| truth.clone());
            // Another job makes other numbers; what both know is the model's answer to the prompt.
            let alike =
                |(known, _): &&(Question, Answer)| (&known.model, known.tokens) == (&question.model, question.tokens);
            let truth = same.or_else(|| {
                let (_, truth) = self.truths.iter().find(alike)?;
                Some(Answer { values: answer.values.clone(), decoded: Vec::new(), ..truth.clone() })
            });
            Some(check::check(question.job, answer, truth.as_ref(), exact))
        };
        let checks: Vec<Option<check::Check>> = self.runs.iter().map(judged).collect();
        self.runs.iter_mut().zip(checks).for_each(|(run, check)| run.check = check);
    }

    fn cells(&self) -> Vec<Cell> {
        let mut cells = Vec::new();
        for workload in &self.suite.workloads {
            for variant in self.suite.participants(workload) {
                let runs: Vec<&Run> =
                    self.runs.iter().filter(|r| r.workload == workload.id && r.variant == variant.id).collect();
                let judged = |run: &&Run| match (&run.check, &run.failed) {
                    (Some(check), _) => (check.state, check.max_abs, check.difference.clone()),
                    (None, Some((how, said))) => (State::Error, 0.0, format!("{}: {said}", how.name())),
                    (None, None) => (State::Error, 0.0, String::new()),
                };
                let worst = runs.iter().map(judged).max_by_key(|(state, ..)| *state);
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

    /// Time against captured layers, for each workload that variants ran with several numbers of them.
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
            let (fit, estimates) = stats::fit_with_intervals(&rows, &values, self.setting.seed)?;
            let [base, per_layer] = estimates[..] else { return None };
            Some(CostModel { workload: workload.id.clone(), base, per_layer, r2: fit.r2, points })
        };
        self.suite.workloads.iter().filter_map(fit).collect()
    }
}

/// The logarithms of a metric in the order of running, each about the mean of its own variant.
fn centred(runs: &[&Run], metric: Metric) -> Vec<f64> {
    let logs: Vec<(bool, f64)> =
        runs.iter().filter_map(|run| Some((run.is_reference, run.value(metric)?.ln()))).collect();
    let of = |side: bool| logs.iter().filter(move |(s, _)| *s == side).map(|(_, x)| *x).collect::<Vec<f64>>();
    let means = [stats::mean(&of(false)), stats::mean(&of(true))];
    logs.iter().map(|(side, x)| x - means[usize::from(*side)]).collect()
}
