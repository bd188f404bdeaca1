//! The published workloads in TransformerLens with SAELens.

use super::outputs::{Inputs, LatentOutput, Outputs};
use crate::executor::{has_module, run_process};
use crate::gpt2_shaped;
use pellucid_models::python;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Time limit of a peer's process.
const LIMIT: Duration = Duration::from_secs(900);

const SCRIPT: &str = concat!(
    include_str!("../../peers/prelude.py"),
    include_str!("../../peers/prelude_torch.py"),
    include_str!("../../peers/sessions.py")
);

/// The peer, with the model that it loads.
pub struct Peer {
    /// Python interpreter with transformer-lens and sae-lens.
    pub python: PathBuf,
    /// The directory of `gpt2-shaped`.
    pub model: PathBuf,
    /// Number of threads; all cores if absent.
    pub threads: Option<usize>,
}

/// Times and memory of one process of the peer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PeerRun {
    /// Libraries and versions.
    pub engine: String,
    /// Wall seconds of the process.
    pub wall_s: f64,
    /// Seconds to load the model and the SAEs, without imports.
    pub load_s: f64,
    /// Seconds of the workload.
    pub run_s: f64,
    /// Peak of the resident memory, in bytes.
    pub peak_bytes: u64,
    /// Forward passes of the workload.
    pub forwards: usize,
}

/// Answer of the peer's program.
#[derive(Deserialize)]
struct PeerAnswer {
    engine: String,
    load_s: f64,
    run_s: f64,
    peak_bytes: u64,
    forwards: usize,
    logit_diffs: Vec<f32>,
    /// Example, SAE, latent, activation, effect.
    latents: Vec<(usize, usize, usize, f32, Option<f32>)>,
}

impl Peer {
    /// Runs a workload in a fresh process.
    ///
    /// # Errors With the end of its stderr.
    pub fn run(&self, workload: &str, inputs: &Inputs) -> Result<(PeerRun, Outputs), String> {
        let saes: Vec<PathBuf> =
            gpt2_shaped::SAE_LAYERS.iter().map(|&layer| gpt2_shaped::sae_directory(&self.model, layer)).collect();
        // The common start of all peers reads a dtype and a single prompt.
        let request = json!({
            "model": self.model, "job": workload, "dtype": "f32", "threads": self.threads, "saes": saes,
            "tokens": inputs.prompts.first(), "prompts": inputs.prompts, "label_tokens": inputs.label_tokens,
            "labels": inputs.labels,
        });
        let mut command = python::command(&self.python, SCRIPT);
        // OpenMP's threads spin while they wait, which slows torch down on a machine with other
        // work.
        command.env("OMP_WAIT_POLICY", "PASSIVE");
        if let Some(threads) = self.threads {
            for name in ["OMP_NUM_THREADS", "MKL_NUM_THREADS"] {
                command.env(name, threads.to_string());
            }
        }
        let (answer, wall_s): (PeerAnswer, f64) = run_process(&mut command, &request, LIMIT)
            .map_err(|(kind, message)| format!("it {}: {message}", kind.name()))?;
        let latents = answer.latents.into_iter().map(|(example, sae, latent, activation, effect)| LatentOutput {
            example,
            sae,
            latent,
            activation,
            effect,
        });
        let outputs = Outputs { logit_diffs: answer.logit_diffs, latents: latents.collect() };
        let PeerAnswer { engine, load_s, run_s, peak_bytes, forwards, .. } = answer;
        Ok((PeerRun { engine, wall_s, load_s, run_s, peak_bytes, forwards }, outputs))
    }

    /// Whether an interpreter has the libraries.
    pub fn is_available(python: &Path) -> bool {
        ["transformer_lens", "sae_lens"].iter().all(|module| has_module(python, module))
    }
}
