//! Results of a session, for the comparison with another library.

use pellucid_models::Result;
use pellucid_sessions::Store;
use pellucid_sessions::table::Column;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A latent whose activation is below this may be active in one library only.
const NEARLY_ZERO: f32 = 1e-3;
/// Largest difference of results that counts as equal: absolute, and per unit of the value. Both
/// sides compute in f32.
const TOLERANCE: (f32, f32) = (2e-3, 1e-3);

/// Results of a session.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Outputs {
    /// The logit difference of each example.
    pub logit_diffs: Vec<f32>,
    /// The active latents.
    pub latents: Vec<LatentOutput>,
}

/// An active latent at the answer position of an example.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LatentOutput {
    /// Index of the example.
    pub example: usize,
    /// Index of the SAE, in the order of the session.
    pub sae: usize,
    /// Index of the latent.
    pub latent: usize,
    /// Its activation.
    pub activation: f32,
    /// Its attribution or effect; absent if the session computes none.
    pub effect: Option<f32>,
}

/// Differences between the results of two libraries.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Agreement {
    /// Largest difference of a logit difference.
    pub logit_diffs: f32,
    /// Largest difference of an effect.
    pub effects: f32,
    /// Latents with an activation of at least 0.001 that only one side has.
    pub other_latents: usize,
    /// Compared latents.
    pub latents: usize,
    /// Whether all differences are within the tolerance.
    pub agrees: bool,
}

impl Outputs {
    /// Reads the results from a store.
    pub fn read(store: &Store) -> Result<Outputs> {
        let floats = |table: &str, name: &str| -> Result<Vec<f32>> {
            if !store.has(table, name) {
                return Ok(Vec::new());
            }
            Ok(store.column(table, name)?.floats().unwrap_or_default().to_vec())
        };
        let mut outputs = Outputs { logit_diffs: floats("examples", "logit_diffs")?, latents: Vec::new() };
        if !store.has("latents", "activation") {
            return Ok(outputs);
        }
        let integers = |name: &str| -> Result<Vec<usize>> {
            let column = store.column("latents", name)?;
            Ok(column.integers().unwrap_or_default().iter().map(|&value| value as usize).collect())
        };
        let (examples, latents) = (integers("example")?, integers("latent")?);
        let (activations, effects) = (floats("latents", "activation")?, floats("latents", "attribution_values")?);
        let hooks = store.column("latents", "hook")?;
        let hooks = hooks.texts().unwrap_or_default();
        for (row, &activation) in activations.iter().enumerate() {
            let sae = store.manifest().saes.iter().position(|sae| sae.site == hooks[row]).unwrap_or(usize::MAX);
            let effect = effects.get(row).copied();
            let (example, latent) = (examples[row], latents[row]);
            outputs.latents.push(LatentOutput { example, sae, latent, activation, effect });
        }
        Ok(outputs)
    }

    /// Compares with the results of another library.
    pub fn compare(&self, other: &Outputs) -> Agreement {
        let close = |a: f32, b: f32| (a - b).abs() <= TOLERANCE.0 + TOLERANCE.1 * a.abs();
        let mut agreement =
            Agreement { agrees: self.logit_diffs.len() == other.logit_diffs.len(), ..Agreement::default() };
        let mut take = |largest: fn(&mut Agreement) -> &mut f32, a: f32, b: f32| {
            let own = largest(&mut agreement);
            *own = own.max((a - b).abs());
            agreement.agrees &= close(a, b);
        };
        for (&a, &b) in self.logit_diffs.iter().zip(&other.logit_diffs) {
            take(|agreement| &mut agreement.logit_diffs, a, b);
        }
        let by_key = |outputs: &Outputs| -> BTreeMap<(usize, usize, usize), (f32, Option<f32>)> {
            let entry = |row: &LatentOutput| ((row.example, row.sae, row.latent), (row.activation, row.effect));
            outputs.latents.iter().map(entry).collect()
        };
        let (ours, theirs) = (by_key(self), by_key(other));
        let mut only = 0;
        for (key, (activation, effect)) in &ours {
            match theirs.get(key) {
                Some((_, other)) => {
                    if let (Some(a), Some(b)) = (effect, other) {
                        take(|agreement| &mut agreement.effects, *a, *b);
                    }
                }
                None => only += usize::from(*activation >= NEARLY_ZERO),
            }
        }
        only += theirs.iter().filter(|(key, (value, _))| !ours.contains_key(key) && *value >= NEARLY_ZERO).count();
        agreement.other_latents = only;
        agreement.agrees &= only == 0;
        agreement.latents = ours.len();
        agreement
    }
}

/// Tokens and labels of a store's examples, as a peer needs them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Inputs {
    /// Token ids of each prompt.
    pub prompts: Vec<Vec<i64>>,
    /// Token ids of each example's labels; each label is one token.
    pub label_tokens: Vec<Vec<i64>>,
    /// Index of the correct label.
    pub labels: Vec<i64>,
}

impl Inputs {
    /// Reads the examples of a store.
    pub fn read(store: &Store) -> Result<Inputs> {
        let lists = |name: &str| -> Result<Vec<Vec<i64>>> {
            match store.column("examples", name)? {
                Column::Int64List(lists) => Ok(lists),
                _ => Ok(Vec::new()),
            }
        };
        if !store.has("examples", "label") {
            return Ok(Inputs { prompts: lists("tokens")?, ..Inputs::default() });
        }
        let labels = store.column("examples", "label")?.integers().unwrap_or_default().to_vec();
        Ok(Inputs { prompts: lists("tokens")?, label_tokens: lists("label_tokens")?, labels })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn latent(latent: usize, activation: f32, effect: f32) -> LatentOutput {
        LatentOutput { example: 0, sae: 0, latent, activation, effect: Some(effect) }
    }

    #[test]
    fn results_agree_up_to_rounding_and_latents_that_hardly_fire() {
        let ours = Outputs { logit_diffs: vec![1.0], latents: vec![latent(1, 2.0, 0.5), latent(2, 1e-4, 0.0)] };
        let theirs = Outputs { logit_diffs: vec![1.001], latents: vec![latent(1, 2.0, 0.501)] };
        let agreement = ours.compare(&theirs);
        assert!(agreement.agrees && agreement.other_latents == 0, "{agreement:?}");
        assert!((agreement.effects - 0.001).abs() < 1e-6 && (agreement.logit_diffs - 0.001).abs() < 1e-6);
        let missing = Outputs { latents: vec![latent(3, 0.5, 0.5)], ..theirs.clone() };
        assert_eq!(ours.compare(&missing).other_latents, 2);
        let wrong = Outputs { logit_diffs: vec![1.01], ..theirs.clone() };
        assert!(!ours.compare(&wrong).agrees);
        let short = Outputs { logit_diffs: vec![], ..theirs };
        assert!(!ours.compare(&short).agrees);
    }
}
