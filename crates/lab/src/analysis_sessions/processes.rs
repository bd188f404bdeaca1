//! Sessions as processes of the Pellucid executable.

use super::measure::{About, Analyzed, Programs, SessionRun};
use super::outputs::{Inputs, Outputs};
use super::peer::{Peer, PeerRun};
use super::sets::MeasuredSession;
use crate::executor::{FailureKind, run_process};
use pellucid_models::builtin;
use pellucid_sessions::Store;
use pellucid_sessions::phases::PhaseRecord;
use serde::Deserialize;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Time limit of a session.
const LIMIT: Duration = Duration::from_secs(600);

/// Runs each session as `pellucid analyze`.
pub struct Processes {
    /// The Pellucid executable.
    pub pellucid: PathBuf,
    /// Directory of the stores. A store of an earlier run is removed first.
    pub stores: PathBuf,
    /// Number of threads; all cores if absent.
    pub threads: Option<usize>,
    /// The peer of the published workloads.
    pub peer: Option<Peer>,
}

/// The part of the output of `pellucid analyze --json` that the lab reads.
#[derive(Deserialize)]
struct Analysis {
    phases: Vec<PhaseRecord>,
}

impl Programs for Processes {
    fn analyze(&mut self, session: &MeasuredSession) -> Result<Analyzed, String> {
        let output = self.stores.join(&session.name);
        // A finished store would be reused.
        for stale in [output.clone(), self.stores.join(format!("{}.partial", session.name))] {
            let _ = std::fs::remove_dir_all(stale);
        }
        let mut command = Command::new(&self.pellucid);
        command.arg("analyze").arg(&session.file).arg("--json").arg("--output").arg(&output);
        if let Some(threads) = self.threads {
            command.args(["--set", &format!("model.threads={threads}")]);
        }
        // The command reads no request.
        let (analysis, wall_s): (Analysis, f64) =
            run_process(&mut command, &json!(null), LIMIT).map_err(|(kind, message)| describe(kind, &message))?;
        let text = |error: pellucid_models::Error| error.to_string();
        let store = Store::open(&output).map_err(text)?;
        Ok(Analyzed {
            run: SessionRun { wall_s, phases: analysis.phases },
            about: about(&store),
            inputs: Inputs::read(&store).map_err(text)?,
            outputs: Outputs::read(&store).map_err(text)?,
        })
    }

    fn peer(&mut self, session: &MeasuredSession, inputs: &Inputs) -> Option<Result<(PeerRun, Outputs), String>> {
        let peer = self.peer.as_ref().filter(|_| session.is_workload)?;
        Some(peer.run(&session.name, inputs))
    }
}

/// The error of a session, or the end of a process that has none.
fn describe(kind: FailureKind, message: &str) -> String {
    match message.split_once("error: ") {
        Some((_, error)) => error.to_string(),
        None => format!("it {}: {message}", kind.name()),
    }
}

fn about(store: &Store) -> About {
    let manifest = store.manifest();
    let config = &manifest.config;
    let model = &manifest.model.name;
    let is_real_model = model != builtin::NAME && !model.starts_with(crate::gpt2_shaped::NAME);
    // The autoencoders of a session whose ops read none are not loaded.
    let (read, unread) = match manifest.saes.is_empty() {
        true => (&[][..], &config.saes[..]),
        false => (&config.saes[..], &[][..]),
    };
    let ready = json!([config.model, read, config.dataset]);
    let unread = unread.iter().map(|sae| {
        let path = Path::new(&sae.path);
        format!("SAE {}", path.file_name().map_or(sae.path.as_str().into(), |name| name.to_string_lossy()))
    });
    About { model: model.clone(), is_real_model, ready_state: ready.to_string(), unread_saes: unread.collect() }
}
