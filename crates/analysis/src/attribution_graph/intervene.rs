//! Runs with chosen activations of features.

use pellucid_engine::{Error, Interrupt, Model, Plan, Result, RunOptions, SaePart, Tap};

/// A feature that is set to a value at a position.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FeatureEdit {
    /// Index of its autoencoder in [`Model::saes`].
    pub sae: usize,
    /// Position in the prompt.
    pub position: usize,
    /// Index of the feature.
    pub feature: usize,
    /// Its new activation.
    pub value: f32,
}

/// Returns the logits of the last position without and with the edits. An edit changes the
/// reconstructed activation by the change of the feature times its decoder row. With
/// `freeze_attention`, the attention weights stay those of the unedited run, as in attribution
/// graphs; everything else is computed by the model.
pub fn intervene(
    model: &Model,
    tokens: &[u32],
    edits: &[FeatureEdit],
    freeze_attention: bool,
    interrupt: Option<Interrupt>,
) -> Result<(Vec<f32>, Vec<f32>)> {
    let mut plan = Plan::default();
    if freeze_attention {
        plan.taps.push(Tap::set("layers.*.attn_probs").from_row(0).rows([1]));
    }
    for edit in edits {
        let Some(attached) = model.saes().get(edit.sae) else {
            return Err(Error::input("no SAE is attached there", pellucid_engine::Remedy::AttachSae));
        };
        let acts = attached.write.sae(SaePart::Acts).to_string();
        let set = Tap::set(acts).with(edit.value).rows([1]).units([edit.feature]);
        plan.taps.push(set.positions(edit.position as i64));
    }
    plan.taps.push(Tap::capture("logits").last());
    let options = RunOptions { interrupt, ..RunOptions::default() };
    let run = model.run(&[tokens.to_vec(), tokens.to_vec()], &plan, &options)?;
    let mut captures = run.captures.into_iter().map(|capture| capture.array.values().to_vec());
    match (captures.next(), captures.next()) {
        (Some(before), Some(after)) => Ok((before, after)),
        _ => Err(Error::Internal("the logits were not captured".into())),
    }
}
