//! The size of the benchmark, its checks, and the request to a worker.

use super::mode::Mode;
use crate::{Error, Result};
use pellucid_engine::Architecture;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Size of the workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkloadSize {
    /// Number of requests, all submitted at once.
    pub batch: usize,
    /// Tokens of each prompt; of the longest one if they are mixed.
    pub prefill: usize,
    /// New tokens of each request; the most if they are mixed.
    pub decode: usize,
    /// Random lengths from [`SHORTEST`] up instead of equal ones.
    pub mixed: bool,
}

/// Shortest prompt and fewest new tokens of mixed lengths.
pub const SHORTEST: usize = 16;

impl WorkloadSize {
    /// Returns the prompt tokens and the new tokens of each request.
    pub fn requests(&self) -> Vec<(usize, usize)> {
        let mut random = crate::stats::Rng::new(0x5eed);
        let mut between = |most: usize| SHORTEST.min(most) + random.below(most - SHORTEST.min(most) + 1);
        let request =
            |_| if self.mixed { (between(self.prefill), between(self.decode)) } else { (self.prefill, self.decode) };
        (0..self.batch).map(request).collect()
    }

    /// Bytes of the captures of all requests: `B · L · (P + G − 1) · d · 4`. The last new token is
    /// never fed back, so it has no position.
    pub fn captured_bytes(&self, layers: usize, width: usize) -> u64 {
        let positions: usize = self.requests().iter().map(|(prompt, new)| prompt + new - 1).sum();
        (layers * positions * width * size_of::<f32>()) as u64
    }

    /// Checks the size against the model's context.
    ///
    /// # Errors If a count is 0, or a request does not fit.
    pub fn check(&self, architecture: &Architecture) -> Result<()> {
        for (flag, count) in [("--batch", self.batch), ("--prefill", self.prefill), ("--decode", self.decode)] {
            if count == 0 {
                return Err(invalid(format!("{flag} is 0: there would be nothing to measure")));
            }
        }
        let context = architecture.context.unwrap_or(usize::MAX);
        let positions = self.prefill.saturating_add(self.decode - 1);
        if positions > context {
            return Err(invalid(format!(
                "--prefill {} and --decode {} need {positions} positions, and the model's context has {context}",
                self.prefill, self.decode
            )));
        }
        Ok(())
    }

    /// Returns distinct prompts of random token ids, the same for every process.
    pub fn prompts(&self, vocab: usize) -> Vec<Vec<u32>> {
        let requests = self.requests().into_iter().enumerate();
        requests.map(|(row, (prompt, _))| random_prompt(row as u64, prompt, vocab)).collect()
    }
}

/// Returns `length` token ids below `vocab`, the same for the same seed. The first ids are left out
/// where possible, because they are often control tokens.
fn random_prompt(seed: u64, length: usize, vocab: usize) -> Vec<u32> {
    let first = if vocab > 64 { 20 } else { 0 };
    let mut random = crate::stats::Rng::new(0x5eed_0000 + seed);
    (0..length).map(|_| (first + random.below(vocab - first)) as u32).collect()
}

/// Checks the layers of `--layers`.
///
/// # Errors If one is missing in the model or given twice.
pub fn check_layers(layers: &[usize], depth: usize) -> Result<()> {
    for (index, layer) in layers.iter().enumerate() {
        if *layer >= depth {
            return Err(invalid(format!(
                "--layers: the model has no layer {layer}; its layers are 0 to {}",
                depth - 1
            )));
        }
        if layers[..index].contains(layer) {
            return Err(invalid(format!("--layers: layer {layer} is given twice")));
        }
    }
    Ok(())
}

fn invalid(problem: String) -> Error {
    Error::Suite { suite: super::NAME.into(), problem }
}

/// A request to a worker: generate for these prompts in one mode.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CaptureRequest {
    /// Directory, GGUF file, or the name of the built-in model.
    pub model: PathBuf,
    /// In-memory dtype of the weights, as in [`Request`](crate::protocol::Request).
    pub dtype: String,
    /// Number of threads; the engine's default if absent.
    pub threads: Option<usize>,
    /// Family to assume for a model of an unknown type.
    pub assume: Option<String>,
    /// The mode. Peers have their own names.
    pub job: String,
    /// Layers to capture.
    pub layers: Vec<usize>,
    /// Token ids of each request.
    pub prompts: Vec<Vec<u32>>,
    /// New tokens of each request.
    pub new_tokens: Vec<usize>,
    /// Untimed iterations.
    pub warmups: usize,
    /// Timed iterations.
    pub iterations: usize,
    /// Requests per padded batch, for peers that need batches.
    pub padded_batch: Option<usize>,
    /// Also measure where the time of a generation went, in two more iterations.
    pub profile: bool,
    /// Also time writing the captures to a file.
    pub profile_fetch: bool,
}

impl CaptureRequest {
    /// The mode, if the request is one to Pellucid.
    pub fn mode(&self) -> Option<Mode> {
        Mode::from_name(&self.job)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_are_distinct_and_have_exactly_the_requested_tokens() {
        let size = WorkloadSize { batch: 8, prefill: 100, decode: 5, mixed: false };
        let prompts = size.prompts(96);
        assert!(prompts.iter().all(|prompt| prompt.len() == 100 && prompt.iter().all(|id| (20..96).contains(id))));
        for (index, prompt) in prompts.iter().enumerate() {
            assert!(prompts[..index].iter().all(|other| other[..4] != prompt[..4]), "no common prefix");
        }
        assert_eq!(prompts, size.prompts(96), "every process gets the same prompts");
        assert_eq!(size.captured_bytes(3, 16), 8 * 3 * 104 * 16 * 4);
        let mixed = WorkloadSize { batch: 64, prefill: 100, decode: 20, mixed: true };
        assert!(mixed.requests().iter().all(|(p, n)| (16..=100).contains(p) && (16..=20).contains(n)));
        assert_eq!(mixed.prompts(96)[5].len(), mixed.requests()[5].0);
        assert_ne!(mixed.requests()[0], mixed.requests()[1]);
    }

    #[test]
    fn unknown_and_repeated_layers_are_refused() {
        assert!(check_layers(&[0, 5], 6).is_ok());
        assert!(check_layers(&[0, 6], 6).expect_err("too deep").to_string().contains("no layer 6"));
        assert!(check_layers(&[1, 1], 6).expect_err("twice").to_string().contains("layer 1 is given twice"));
    }
}
