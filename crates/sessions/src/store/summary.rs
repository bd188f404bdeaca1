//! Statistics of a store: correct answers, and the effect of each latent.

use super::Store;
use crate::table::Column;
use pellucid_models::Result;
use serde::Serialize;
use std::collections::BTreeMap;

/// Statistics of a store.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// Name of the session.
    pub name: String,
    /// Name of the model.
    pub model: String,
    /// The chain of ops.
    pub ops: String,
    /// Number of examples.
    pub examples: usize,
    /// Number of batches.
    pub batches: usize,
    /// Examples that are answered correctly: the logit difference is positive or, after ablations,
    /// the most frequent prediction is the label. `None` without labels.
    pub correct: Option<usize>,
    /// Mean cross-entropy of the correct label.
    pub mean_loss: Option<f64>,
    /// Mean logit difference.
    pub mean_logit_diff: Option<f64>,
    /// The autoencoders.
    pub hooks: Vec<HookSummary>,
}

/// Statistics of an autoencoder.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HookSummary {
    /// Its site.
    pub hook: String,
    /// Number of distinct latents that are active at an answer position.
    pub alive: usize,
    /// Mean number of active latents of an example.
    pub mean_active: f64,
    /// The latents, by the magnitude of their total effect, or of their mean activation if the
    /// session computed no effects.
    pub latents: Vec<LatentSummary>,
}

/// Statistics of a latent.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct LatentSummary {
    /// Its index.
    pub latent: usize,
    /// Sum of its effects over correct examples.
    pub total_effect: Option<f64>,
    /// The same divided by the number of all examples.
    pub mean_effect: Option<f64>,
    /// Number of examples in which it is active.
    pub active: usize,
    /// Fraction of the correct examples in which it is active.
    pub proportion_active: f64,
    /// Mean activation over correct examples; 0 where it is not active.
    pub mean_activation: f64,
    /// Mean logit difference, without an ablation, of the examples in which it is active.
    pub clean_diff: Option<f64>,
}

/// Computes the statistics of a store, part by part: memory follows the number of examples, not
/// that of latents.
pub fn summarize(store: &Store) -> Result<Summary> {
    let answers = Answers::read(store)?;
    let manifest = store.manifest();
    Ok(Summary {
        name: manifest.name.clone(),
        model: manifest.model.name.clone(),
        ops: manifest.ops.iter().map(|op| op.name.as_str()).collect::<Vec<_>>().join("."),
        examples: store.rows("examples"),
        batches: answers.batches,
        correct: answers.correct.as_ref().map(|correct| correct.iter().filter(|&&correct| correct).count()),
        mean_loss: answers.losses.as_deref().map(mean_of),
        mean_logit_diff: answers.differences.as_deref().map(mean_of),
        hooks: hooks(store, answers.correct.as_deref(), answers.differences.as_deref())?,
    })
}

fn mean_of(values: &[f32]) -> f64 {
    values.iter().map(|&value| f64::from(value)).sum::<f64>() / values.len().max(1) as f64
}

/// One value per example; `None` if the store does not have the column.
#[derive(Default)]
struct Answers {
    losses: Option<Vec<f32>>,
    differences: Option<Vec<f32>>,
    /// Whether the example is answered correctly.
    correct: Option<Vec<bool>>,
    /// Number of batches.
    batches: usize,
}

impl Answers {
    fn read(store: &Store) -> Result<Answers> {
        let mut answers = Answers::default();
        let has_votes = store.has("examples", "orig_labels") && store.has("latents", "preds");
        for part in 0..store.parts() {
            let integers = |table: &str, name: &str| -> Result<Option<Vec<i64>>> {
                Ok(optional(store, table, name, part)?.and_then(|column| column.integers().map(<[i64]>::to_vec)))
            };
            let floats = |name: &str| -> Result<Option<Vec<f32>>> {
                let column = optional(store, "examples", name, part)?;
                Ok(column.and_then(|column| column.floats().map(<[f32]>::to_vec)))
            };
            if let Some(&last) = integers("examples", "batch")?.as_deref().and_then(<[i64]>::last) {
                answers.batches = last as usize + 1;
            }
            if let Some(losses) = floats("loss")? {
                answers.losses.get_or_insert_default().extend(losses);
            }
            let Some(differences) = floats("logit_diffs")? else { continue };
            let mut correct: Vec<bool> = differences.iter().map(|&difference| difference > 0.0).collect();
            if let (true, Some(labels)) = (has_votes, integers("examples", "orig_labels")?) {
                let first = answers.differences.as_ref().map_or(0, Vec::len);
                let votes = Votes::count(integers("latents", "example")?, integers("latents", "preds")?);
                let own = integers("examples", "preds")?;
                for (row, correct) in correct.iter_mut().enumerate() {
                    let own = own.as_ref().and_then(|own| own.get(row)).copied();
                    *correct = votes.winner(first + row, own) == labels.get(row).copied();
                }
            }
            answers.correct.get_or_insert_default().extend(correct);
            answers.differences.get_or_insert_default().extend(differences);
        }
        Ok(answers)
    }
}

/// Reads a column of a part, if the store has it.
fn optional(store: &Store, table: &str, name: &str, part: usize) -> Result<Option<Column>> {
    if store.has(table, name) { store.part_column(table, name, part).map(Some) } else { Ok(None) }
}

/// Predictions after ablations: for each example, how often each label is predicted.
struct Votes(BTreeMap<i64, BTreeMap<i64, usize>>);

impl Votes {
    fn count(examples: Option<Vec<i64>>, predictions: Option<Vec<i64>>) -> Votes {
        let mut votes = Votes(BTreeMap::new());
        for (example, prediction) in examples.into_iter().flatten().zip(predictions.into_iter().flatten()) {
            *votes.0.entry(example).or_default().entry(prediction).or_default() += 1;
        }
        votes
    }

    /// The most frequent prediction of an example. The one without an ablation, `own`, decides
    /// between equal counts, and stands alone for an example without ablations.
    fn winner(&self, example: usize, own: Option<i64>) -> Option<i64> {
        let votes = self.0.get(&(example as i64));
        let most = votes.and_then(|votes| votes.iter().max_by_key(|&(&p, &count)| (count, Some(p) == own)));
        most.map(|(&prediction, _)| prediction).or(own)
    }
}

fn hooks(store: &Store, correct: Option<&[bool]>, differences: Option<&[f32]>) -> Result<Vec<HookSummary>> {
    if store.rows("latents") == 0 && !store.has("latents", "hook") {
        return Ok(Vec::new());
    }
    let all = store.rows("examples").max(1) as f64;
    let n_correct = correct.map_or(0, |correct| correct.iter().filter(|&&correct| correct).count()).max(1) as f64;
    let order: Vec<String> = store.manifest().saes.iter().map(|sae| sae.site.clone()).collect();
    let mut found: BTreeMap<(usize, usize), (LatentSummary, f64)> = BTreeMap::new();
    for part in 0..store.parts() {
        let column = |name: &str| store.part_column("latents", name, part);
        let (examples, names, latents, values) =
            (column("example")?, column("hook")?, column("latent")?, column("activation")?);
        let effects = optional(store, "latents", "attribution_values", part)?;
        let effects = effects.as_ref().and_then(Column::floats);
        let rows = examples.integers().unwrap_or_default().iter().zip(names.texts().unwrap_or_default());
        let rows = rows.zip(latents.integers().unwrap_or_default()).zip(values.floats().unwrap_or_default());
        for (row, (((&example, name), &latent), &value)) in rows.enumerate() {
            let hook = order.iter().position(|own| own == name).unwrap_or(order.len());
            let (own, clean) = found.entry((hook, latent as usize)).or_default();
            own.latent = latent as usize;
            own.active += 1;
            let is_correct = correct.is_none_or(|correct| correct.get(example as usize) == Some(&true));
            if is_correct {
                own.proportion_active += 1.0 / n_correct;
                own.mean_activation += f64::from(value) / n_correct;
                if let Some(effects) = effects {
                    *own.total_effect.get_or_insert(0.0) += effects.get(row).map_or(0.0, |&effect| f64::from(effect));
                }
            }
            if effects.is_some() {
                own.total_effect.get_or_insert(0.0);
            }
            *clean +=
                differences.and_then(|all| all.get(example as usize)).map_or(0.0, |&difference| f64::from(difference));
        }
    }
    let mut summaries: Vec<HookSummary> = order
        .iter()
        .map(|hook| HookSummary { hook: hook.clone(), alive: 0, mean_active: 0.0, latents: Vec::new() })
        .collect();
    for ((hook, _), (mut own, clean)) in found {
        own.mean_effect = own.total_effect.map(|total| total / all);
        own.clean_diff = differences.map(|_| clean / own.active as f64);
        let Some(summary) = summaries.get_mut(hook) else { continue };
        summary.alive += 1;
        summary.mean_active += own.active as f64 / all;
        summary.latents.push(own);
    }
    for summary in &mut summaries {
        let weight = |latent: &LatentSummary| latent.total_effect.unwrap_or(latent.mean_activation).abs();
        summary.latents.sort_by(|a, b| weight(b).total_cmp(&weight(a)));
    }
    Ok(summaries)
}
