//! The strongest examples of a feature in a corpus.

use super::features::token_text;
use pellucid_engine::{Action, Error, Plan, Result, RunOptions, SaePart, Site, Tap};
use pellucid_models::LoadedModel;
use serde::Serialize;

/// Tokens of context before and after an example.
const CONTEXT: usize = 12;

/// A place at which a feature fires strongly.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Example {
    /// Index of the text in the corpus.
    pub text: usize,
    /// Position of the token.
    pub position: usize,
    /// The activation there.
    pub value: f32,
    /// The tokens around it, each with its activation.
    pub context: Vec<(String, f32)>,
    /// Index of the token in `context`.
    pub at: usize,
}

/// Finds the `count` strongest activations of a feature, at most one per text. `progress` receives
/// the fraction done.
pub fn top_examples(
    loaded: &LoadedModel,
    site: Site,
    feature: usize,
    rows: &[Vec<u32>],
    count: usize,
    progress: &mut dyn FnMut(f32),
) -> Result<Vec<Example>> {
    let attached = loaded.model.saes().iter().find(|attached| attached.write == site);
    let features = attached.map_or(0, |attached| attached.sae.n_features());
    if feature >= features {
        return Err(Error::input(
            format!("there is no feature {feature}"),
            format!("this SAE has {features} features, counted from 0"),
        ));
    }
    let tap = Tap::new(site.sae(SaePart::Acts).to_string(), Action::Capture(None)).units([feature]);
    let plan = Plan::of([tap]);
    let mut examples = Vec::new();
    for (text, row) in rows.iter().enumerate() {
        let run = loaded.model.run(std::slice::from_ref(row), &plan, &RunOptions::default())?;
        let acts = run.captures[0].array.values();
        let strongest = (0..acts.len()).max_by(|&a, &b| acts[a].abs().total_cmp(&acts[b].abs()));
        if let Some(position) = strongest.filter(|&position| acts[position] != 0.0) {
            let from = position.saturating_sub(CONTEXT);
            let range = from..(position + CONTEXT + 1).min(row.len());
            let context = range.map(|i| (token_text(loaded, row[i]), acts[i])).collect();
            examples.push(Example { text, position, value: acts[position], context, at: position - from });
        }
        progress((text + 1) as f32 / rows.len() as f32);
    }
    examples.sort_by(|a, b| b.value.abs().total_cmp(&a.value.abs()));
    examples.truncate(count);
    Ok(examples)
}
