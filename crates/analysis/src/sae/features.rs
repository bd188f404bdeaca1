//! The features that fire at each token of a prompt.

use pellucid_engine::{Action, Error, Plan, Result, RunOptions, SaePart, Site, Tap};
use pellucid_models::LoadedModel;
use serde::Serialize;
use std::collections::HashMap;

/// The features of a prompt.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FeatureTable {
    /// Name of the model.
    pub model: String,
    /// The site of the autoencoder.
    pub site: String,
    /// Number of features of the autoencoder.
    pub n_features: usize,
    /// The tokens, in order.
    pub tokens: Vec<TokenFeatures>,
}

/// The features that fire at one token.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TokenFeatures {
    /// Position in the prompt.
    pub position: usize,
    /// Text of the token.
    pub token: String,
    /// Number of active features.
    pub active: usize,
    /// The strongest features, strongest first.
    pub features: Vec<FiringFeature>,
}

/// A feature that fires.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FiringFeature {
    /// Index of the feature.
    pub feature: usize,
    /// Its activation.
    pub value: f32,
    /// Tokens whose logits its decoder row raises most, through the unembedding.
    pub promoted: Vec<String>,
    /// Tokens whose logits it lowers most.
    pub suppressed: Vec<String>,
}

/// Finds the strongest `top` features at each token of a prompt, with `tokens` promoted and
/// suppressed tokens each.
pub fn features(loaded: &LoadedModel, site: Site, row: &[u32], top: usize, tokens: usize) -> Result<FeatureTable> {
    let model = &loaded.model;
    let acts = Tap::new(site.sae(SaePart::Acts).to_string(), Action::Capture(None));
    let run = model.run(&[row.to_vec()], &Plan::of([acts]), &RunOptions::default())?;
    let acts = &run.captures[0].array;
    let n_features = acts.values().len() / row.len();
    let mut effects: HashMap<usize, (Vec<String>, Vec<String>)> = HashMap::new();
    let mut table = Vec::with_capacity(row.len());
    for (position, line) in acts.values().chunks_exact(n_features).enumerate() {
        let mut active: Vec<usize> = (0..n_features).filter(|&feature| line[feature] != 0.0).collect();
        active.sort_by(|&a, &b| line[b].abs().total_cmp(&line[a].abs()));
        let count = active.len();
        let mut shown = Vec::new();
        for feature in active.into_iter().take(top) {
            let (promoted, suppressed) = match effects.get(&feature) {
                Some(known) => known.clone(),
                None => {
                    let found = token_effects(loaded, site, feature, tokens)?;
                    effects.entry(feature).or_insert(found).clone()
                }
            };
            shown.push(FiringFeature { feature, value: line[feature], promoted, suppressed });
        }
        table.push(TokenFeatures {
            position,
            token: token_text(loaded, row[position]),
            active: count,
            features: shown,
        });
    }
    Ok(FeatureTable { model: loaded.name.clone(), site: site.to_string(), n_features, tokens: table })
}

/// The tokens whose logits a feature's decoder row raises and lowers most. Empty if the row is not
/// as wide as the residual stream.
fn token_effects(loaded: &LoadedModel, site: Site, feature: usize, count: usize) -> Result<(Vec<String>, Vec<String>)> {
    let model = &loaded.model;
    let attached = model.saes().iter().find(|attached| attached.write == site);
    let sae =
        &attached.ok_or_else(|| Error::input("no SAE is attached there", pellucid_engine::Remedy::AttachSae))?.sae;
    let architecture = model.program().architecture();
    if count == 0 || sae.d_out() != architecture.width || model.program().logits_edge().is_none() {
        return Ok((Vec::new(), Vec::new()));
    }
    let mut row = vec![0.0; sae.d_out()];
    sae.decoders[0].row(feature, &mut row);
    let logits = model.unembed(&row)?;
    // A bias of the unembedding is not an effect of the feature.
    let baseline = model.unembed(&vec![0.0; row.len()])?;
    let effect: Vec<f32> = logits.iter().zip(&baseline).map(|(a, b)| a - b).collect();
    let mut order: Vec<usize> = (0..effect.len()).collect();
    order.sort_by(|&a, &b| effect[b].total_cmp(&effect[a]));
    let text = |token: &usize| token_text(loaded, *token as u32);
    Ok((order.iter().take(count).map(text).collect(), order.iter().rev().take(count).map(text).collect()))
}

/// The text of a token, or its id without a tokenizer.
pub(super) fn token_text(loaded: &LoadedModel, token: u32) -> String {
    loaded.tokenizer.as_ref().map_or_else(|| format!("#{token}"), |tokenizer| tokenizer.decode(&[token], false))
}
