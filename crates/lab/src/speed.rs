//! The speed suite: our engine and a peer on the same weights, in turn, as ratios.
//!
//! For each measurement fresh processes of both sides run in the order A B B A …, so that drift of the machine falls on both;
//! each pair gives one ratio of medians, and the report is their geometric mean with the lowest and highest. A measurement
//! whose outputs differ gives no time.

use crate::protocol::{Answer, Job, Request};
use crate::{Error, Result};
use serde::Serialize;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The peer's worker, run with the given Python.
const TRANSFORMERS: &str = include_str!("../peers/transformers.py");
/// Largest difference of the leading logits between two f32 engines that count as equal.
const TOLERANCE: f32 = 2e-3;

/// What to measure and with whom.
#[derive(Clone, Debug)]
pub struct Suite {
    /// Directory or GGUF file.
    pub model: PathBuf,
    /// The family that a model of an unknown type is read as.
    pub assume: Option<String>,
    /// Our own executable, started as `lab __worker`.
    pub pellucid: PathBuf,
    /// A Python with torch and transformers.
    pub python: Option<PathBuf>,
    /// Pairs of processes for each measurement.
    pub rounds: usize,
}

/// One measurement of both sides.
#[derive(Clone, Debug, Serialize)]
pub struct Measurement {
    /// What was measured.
    pub name: String,
    /// Our answers.
    pub ours: Vec<Answer>,
    /// The other side's: the peer's, or for `capture` our own without captures.
    pub theirs: Vec<Answer>,
    /// Who the other side is.
    pub against: String,
    /// What is compared.
    pub quantity: Quantity,
}

/// What of an answer is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Quantity {
    /// Median time of the runs.
    Time,
    /// Loading to the first token.
    Load,
}

impl Measurement {
    /// Their time over ours for each pair: above 1 we are faster.
    pub fn ratios(&self) -> Vec<f64> {
        let value = |answer: &Answer| match self.quantity {
            Quantity::Time => median(&answer.samples_s),
            Quantity::Load => answer.load_to_first_token_s,
        };
        self.ours.iter().zip(&self.theirs).map(|(ours, theirs)| value(theirs) / value(ours)).collect()
    }

    /// Geometric mean, lowest and highest ratio.
    pub fn summary(&self) -> (f64, f64, f64) {
        let ratios = self.ratios();
        let mean = (ratios.iter().map(|r| r.ln()).sum::<f64>() / ratios.len().max(1) as f64).exp();
        (mean, ratios.iter().copied().fold(f64::INFINITY, f64::min), ratios.iter().copied().fold(0.0, f64::max))
    }

    /// Our median time in seconds over all rounds.
    pub fn our_seconds(&self) -> f64 {
        let values: Vec<f64> = match self.quantity {
            Quantity::Time => self.ours.iter().map(|a| median(&a.samples_s)).collect(),
            Quantity::Load => self.ours.iter().map(|a| a.load_to_first_token_s).collect(),
        };
        median(&values)
    }
}

/// The middle value.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[n / 2],
        n => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
    }
}

/// Runs the suite; `progress` hears what is being measured.
pub fn run(suite: &Suite, progress: &mut dyn FnMut(&str)) -> Result<Vec<Measurement>> {
    let mut measurements = Vec::new();
    for (name, job, length, repeats) in [
        ("forward of 9 tokens", Job::Forward, 9, 15),
        ("prefill of 512 tokens", Job::Prefill, 512, 3),
        ("decode step after 9 tokens", Job::Decode { steps: 32 }, 9, 2),
    ] {
        let request = suite.request(job, length, repeats);
        if suite.python.is_some() {
            let (ours, theirs) = suite.pairs(name, &request, None, progress)?;
            if name.starts_with("decode") {
                measurements.push(Measurement {
                    name: "load to first token".into(),
                    ours: ours.clone(),
                    theirs: theirs.clone(),
                    against: "transformers".into(),
                    quantity: Quantity::Load,
                });
            }
            measurements.push(Measurement {
                name: name.into(),
                ours,
                theirs,
                against: "transformers".into(),
                quantity: Quantity::Time,
            });
        } else {
            progress(name);
            let ours = (0..suite.rounds).map(|_| suite.ours(&request)).collect::<Result<Vec<_>>>()?;
            measurements.push(Measurement {
                name: name.into(),
                theirs: ours.clone(),
                ours,
                against: "itself".into(),
                quantity: Quantity::Time,
            });
        }
    }
    // The cost of looking: the same pass with and without captures.
    let name = "prefill of 512 tokens, every resid_post captured";
    let (with, without) = suite.pairs(
        name,
        &suite.request(Job::Capture, 512, 5),
        Some(&suite.request(Job::Prefill, 512, 5)),
        progress,
    )?;
    measurements.push(Measurement {
        name: name.into(),
        ours: with,
        theirs: without,
        against: "no plan".into(),
        quantity: Quantity::Time,
    });
    Ok(measurements)
}

impl Suite {
    fn request(&self, job: Job, length: usize, repeats: usize) -> Request {
        // Any fixed tokens do, if they differ and every vocabulary has them.
        let tokens = (0..length).map(|i| (100 + i * 37 % 900) as u32).collect();
        let (model, assume) = (self.model.clone(), self.assume.clone());
        Request { model, dtype: "f32".into(), threads: None, assume, job, tokens, warmups: 1, repeats }
    }

    /// Runs both sides in the order A B B A …; the other side is the peer, or ourselves with another request.
    fn pairs(
        &self,
        name: &str,
        request: &Request,
        other: Option<&Request>,
        progress: &mut dyn FnMut(&str),
    ) -> Result<(Vec<Answer>, Vec<Answer>)> {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for round in 0..self.rounds {
            progress(&format!("{name}, round {} of {}", round + 1, self.rounds));
            let their_side = || match other {
                Some(other) => self.ours(other),
                None => self.peer(request),
            };
            if round % 2 == 0 {
                ours.push(self.ours(request)?);
                theirs.push(their_side()?);
            } else {
                theirs.push(their_side()?);
                ours.push(self.ours(request)?);
            }
            check(name, &ours[round], &theirs[round])?;
        }
        Ok((ours, theirs))
    }

    fn ours(&self, request: &Request) -> Result<Answer> {
        ask("pellucid", Command::new(&self.pellucid).args(["lab", "__worker"]), request)
    }

    fn peer(&self, request: &Request) -> Result<Answer> {
        let python = self.python.as_deref().unwrap_or(Path::new("python3"));
        ask("transformers", Command::new(python).args(["-c", TRANSFORMERS]), request)
    }
}

/// Correct or no time.
fn check(name: &str, ours: &Answer, theirs: &Answer) -> Result<()> {
    let wrong = |difference: String| Err(Error::Wrong { measure: name.into(), difference });
    for ((our_id, our_logit), (their_id, their_logit)) in ours.top.iter().zip(&theirs.top) {
        if our_id != their_id || (our_logit - their_logit).abs() > TOLERANCE {
            return wrong(format!("token {our_id} at {our_logit} where the other has {their_id} at {their_logit}"));
        }
    }
    let agree = ours.decoded.iter().zip(&theirs.decoded).take_while(|(a, b)| a == b).count();
    if agree < ours.decoded.len().min(theirs.decoded.len()).min(8) {
        return wrong(format!("the decoded tokens part after {agree}"));
    }
    Ok(())
}

fn ask(worker: &str, command: &mut Command, request: &Request) -> Result<Answer> {
    let fail = |problem: String| Error::Worker { worker: worker.into(), problem };
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| fail(format!("cannot start: {error}")))?;
    let text = serde_json::to_string(request).map_err(|error| fail(error.to_string()))?;
    if let Some(mut stdin) = child.stdin.take() {
        // A worker that died early says why on its stderr, which is read below.
        let _ = stdin.write_all(text.as_bytes());
    }
    let output = child.wait_with_output().map_err(|error| fail(error.to_string()))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let last: Vec<&str> = said.lines().rev().take(4).collect();
        return Err(fail(format!(
            "ended with {}: {}",
            output.status,
            last.into_iter().rev().collect::<Vec<_>>().join(" / ")
        )));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| fail(format!("did not answer in the protocol: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(samples: &[f64], top: f32) -> Answer {
        Answer {
            engine: String::new(),
            load_to_first_token_s: 1.0,
            samples_s: samples.to_vec(),
            peak_bytes: 0,
            weight_bytes: 0,
            top: vec![(7, top)],
            decoded: vec![],
        }
    }

    #[test]
    fn ratios_compare_medians_pair_by_pair() {
        let ours = vec![answer(&[1.0, 2.0, 9.0], 0.0), answer(&[1.0], 0.0)];
        let theirs = vec![answer(&[8.0], 0.0), answer(&[4.0, 4.0], 0.0)];
        let measurement =
            Measurement { name: "m".into(), ours, theirs, against: "peer".into(), quantity: Quantity::Time };
        assert_eq!(measurement.ratios(), [4.0, 4.0]);
        assert_eq!(measurement.summary(), (4.0, 4.0, 4.0));
    }

    #[test]
    fn different_outputs_give_no_time() {
        assert!(check("m", &answer(&[], 1.0), &answer(&[], 1.001)).is_ok());
        assert!(check("m", &answer(&[], 1.0), &answer(&[], 1.01)).is_err());
    }
}
