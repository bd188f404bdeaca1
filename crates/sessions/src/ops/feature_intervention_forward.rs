//! `feature_intervention_forward`: logits with features set to other values.

use super::batch::{AnalysisBatch, OpContext};
use super::concept::last_tokens;
use super::extract_top_features::ScoredFeature;
use super::spec::{BuiltinOp, Field, Needs, OpSpec};
use crate::config::{FeatureBase, FeaturesConfig};
use crate::table::{Column, DataType};
use pellucid_analysis::attribution_graph::{FeatureEdit, intervene};
use pellucid_models::Result;
use std::borrow::Cow;

pub(super) static OP: BuiltinOp = BuiltinOp {
    spec: OpSpec {
        name: Cow::Borrowed("feature_intervention_forward"),
        aliases: &[],
        version: Cow::Borrowed("1"),
        about: Cow::Borrowed("logits of the last position before and after the top features are set to other values"),
        inputs: Cow::Borrowed(&[Field::memory("input"), Field::memory("graph"), Field::memory("top_features")]),
        outputs: Cow::Borrowed(&[
            Field::example("intervention_values", DataType::Float32List),
            Field::example("intervention_base_values", DataType::Float32List),
            Field::example("intervention_scales", DataType::Float32List),
            Field::example("pre_intervention_logits", DataType::Float32List),
            Field::example("post_intervention_logits", DataType::Float32List),
            Field::example("intervention_logit_diff", DataType::Float32),
        ]),
        needs: Needs { saes: true, gradients: false },
    },
    run,
};

/// The new value of a feature, with what it is computed from.
#[derive(Clone, Copy, Debug, PartialEq)]
struct NewValue {
    base: f32,
    scale: f32,
    value: f32,
}

fn run(context: &OpContext<'_>, batch: &mut AnalysisBatch) -> Result<()> {
    let config = context.options.features.clone().unwrap_or_default();
    let model = &context.model.model;
    let (mut values, mut before, mut after, mut differences) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for (index, example) in context.examples.iter().enumerate() {
        let features = &batch.memory.top_features[index];
        let new = new_values(features, &config);
        let edit = |(feature, new): (&ScoredFeature, &NewValue)| FeatureEdit {
            sae: feature.node.sae,
            position: feature.node.position,
            feature: feature.node.feature,
            value: new.value,
        };
        let edits: Vec<FeatureEdit> = features.iter().zip(&new).map(edit).collect();
        let interrupt = context.interrupt.clone();
        let (pre, post) = intervene(model, &example.tokens, &edits, !config.move_attention, interrupt)?;
        let graph = &batch.memory.graphs[index];
        let targets = match (&context.concept, config.targets.is_empty()) {
            (_, false) => last_tokens(context.model, &config.targets)?,
            (Some(concept), true) if !concept.tokens.is_empty() => concept.tokens.clone(),
            (Some(concept), true) => {
                example.labels.get(concept.label).and_then(|label| label.first().copied()).into_iter().collect()
            }
            (None, true) => graph.targets.iter().filter_map(|target| target.token).collect(),
        };
        let change = |&token: &u32| f64::from(post[token as usize]) - f64::from(pre[token as usize]);
        let sum: f64 = targets.iter().filter(|&&token| (token as usize) < pre.len()).map(change).sum();
        differences.push((sum / targets.len().max(1) as f64) as f32);
        values.push(new);
        before.push(pre);
        after.push(post);
    }
    let lists =
        |of: fn(&NewValue) -> f32| Column::Float32List(values.iter().map(|own| own.iter().map(of).collect()).collect());
    let columns = [
        ("intervention_values", lists(|new| new.value)),
        ("intervention_base_values", lists(|new| new.base)),
        ("intervention_scales", lists(|new| new.scale)),
        ("pre_intervention_logits", Column::Float32List(before)),
        ("post_intervention_logits", Column::Float32List(after)),
        ("intervention_logit_diff", Column::Float32(differences)),
    ];
    columns.into_iter().try_for_each(|(name, column)| batch.set_example(name, column))
}

/// The new values of features: `sign(score) |base| s` if the sign of the score counts, else
/// `base s`.
fn new_values(features: &[ScoredFeature], config: &FeaturesConfig) -> Vec<NewValue> {
    let largest = features.iter().map(|feature| feature.score.abs()).fold(0.0, f32::max);
    let new = |feature: &ScoredFeature| {
        let base = match config.base.unwrap_or_default() {
            FeatureBase::Activation => feature.node.activation,
            FeatureBase::Score => feature.score,
            FeatureBase::Constant => config.constant.unwrap_or(1.0),
        };
        let relative = if largest > 0.0 { feature.score.abs() / largest } else { 0.0 };
        let scale = config.scale.unwrap_or(1.0) * if config.norm_scaled { relative } else { 1.0 };
        // f32::signum(0.0) is 1; a score of zero has no sign.
        let sign = if feature.score == 0.0 { 0.0 } else { feature.score.signum() };
        let value = if config.sign_aware { sign * base.abs() * scale } else { base * scale };
        NewValue { base, scale, value }
    };
    features.iter().map(new).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use pellucid_analysis::attribution_graph::ActiveFeature;

    #[test]
    fn values_follow_base_scale_and_sign() {
        let feature = |activation, score| ScoredFeature {
            node: ActiveFeature { sae: 0, layer: 0, position: 0, feature: 0, activation },
            score,
        };
        let features = [feature(2.0, -0.5), feature(3.0, 0.25), feature(4.0, 0.0)];
        let of = |config: FeaturesConfig| -> Vec<f32> {
            new_values(&features, &config).iter().map(|new| new.value).collect()
        };
        assert_eq!(of(FeaturesConfig { scale: Some(-2.0), ..Default::default() }), [-4.0, -6.0, -8.0]);
        let signed = FeaturesConfig { sign_aware: true, norm_scaled: true, ..Default::default() };
        assert_eq!(of(signed), [-2.0, 1.5, 0.0]);
        let constant = FeaturesConfig { base: Some(FeatureBase::Constant), constant: Some(5.0), ..Default::default() };
        assert_eq!(of(constant), [5.0; 3]);
        assert_eq!(of(FeaturesConfig { base: Some(FeatureBase::Score), ..Default::default() }), [-0.5, 0.25, 0.0]);
    }
}
