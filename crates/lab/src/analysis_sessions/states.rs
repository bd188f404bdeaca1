//! States of sessions: a session is read (`config`), made ready (`ready`: model, SAEs, tokens) and
//! run to its end (`run`). Sessions with the same model, SAEs and examples have the same ready
//! state, so its uses show what is worth sharing.

use super::measure::{SessionResult, SessionRun, SessionsResult};
use crate::stats;

/// A row of the report.
#[derive(Clone, Debug, PartialEq)]
pub struct StateRow {
    /// Name: the session's, with the kind of state.
    pub name: String,
    /// Number of measured sessions that use it.
    pub uses: usize,
    /// `config`, `ready`, `run`, or `sae` for a part that no op reads.
    pub kind: &'static str,
    /// `shared` if several sessions can use one instance, otherwise `session`.
    pub scope: &'static str,
    /// `Real Model`, `Custom Model` or `Config Only`.
    pub category: &'static str,
    /// Its cost, or the error.
    pub cost: Result<StateCost, String>,
}

/// Cost of a state, from the start of the session: medians over processes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StateCost {
    /// Seconds.
    pub init_s: f64,
    /// Median absolute deviation of the seconds.
    pub mad_s: f64,
    /// Growth of the resident memory, in bytes.
    pub memory: f64,
    /// Peak of the resident memory, in bytes.
    pub peak: f64,
    /// Processes.
    pub runs: usize,
}

/// Returns the states of all sessions, in the order of the sessions.
pub fn states(result: &SessionsResult) -> Vec<StateRow> {
    let mut rows: Vec<StateRow> = Vec::new();
    for session in &result.sessions {
        let row = |kind, scope, category, uses, cost| StateRow {
            name: format!("{}__{kind}", session.name),
            uses,
            kind,
            scope,
            category,
            cost,
        };
        let (Some(about), None) = (&session.about, &session.error) else {
            let error = session.error.clone().unwrap_or_else(|| "it did not run".into());
            rows.push(row("run", "session", "Config Only", 1, Err(error)));
            continue;
        };
        let model = if about.is_real_model { "Real Model" } else { "Custom Model" };
        let config = |run: &SessionRun| run.phase_s("config");
        rows.push(row("config", "session", "Config Only", 1, Ok(cost(&[session], config, "config"))));
        let same = |other: &&SessionResult| {
            other.error.is_none() && other.about.as_ref().is_some_and(|own| own.ready_state == about.ready_state)
        };
        let sharing: Vec<&SessionResult> = result.sessions.iter().filter(same).collect();
        // The row of a shared state carries the name of its first session.
        if sharing.first().is_some_and(|first| first.name == session.name) {
            let scope = if sharing.len() > 1 { "shared" } else { "session" };
            rows.push(row("ready", scope, model, sharing.len(), Ok(cost(&sharing, SessionRun::ready_s, "setup"))));
        }
        rows.push(row("run", "session", model, 1, Ok(cost(&[session], |run| run.wall_s, "save"))));
        for sae in &about.unread_saes {
            let name = format!("{}: {sae}", session.name);
            let cost = Err("no op reads it".to_string());
            rows.push(StateRow { name, uses: 0, kind: "sae", scope: "session", category: model, cost });
        }
    }
    rows
}

fn cost(sessions: &[&SessionResult], seconds: fn(&SessionRun) -> f64, last: &str) -> StateCost {
    let runs: Vec<&SessionRun> = sessions.iter().flat_map(|session| &session.runs).collect();
    let all = |of: &dyn Fn(&SessionRun) -> f64| runs.iter().map(|run| of(run)).collect::<Vec<f64>>();
    let times = all(&seconds);
    StateCost {
        init_s: stats::median(&times),
        mad_s: stats::median_absolute_deviation(&times),
        memory: stats::median(&all(&|run| run.growth(last))),
        peak: stats::median(&all(&|run| run.peak(last) as f64)),
        runs: runs.len(),
    }
}
