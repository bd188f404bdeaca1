//! `extract_top_features`: the features of a graph with the largest scores.

use super::batch::{AnalysisBatch, OpContext, absent};
use super::spec::{BuiltinOp, Field, Needs, OpSpec};
use crate::config::{FeatureScore, FeaturesConfig, ScoreSign};
use crate::table::{Column, DataType};
use pellucid_analysis::attribution_graph::{ActiveFeature, AttributionGraph};
use pellucid_models::Result;
use std::borrow::Cow;

pub(super) static OP: BuiltinOp = BuiltinOp {
    spec: OpSpec {
        name: Cow::Borrowed("extract_top_features"),
        aliases: &[],
        version: Cow::Borrowed("1"),
        about: Cow::Borrowed("features of largest influence (or another score), after the filters of `features`"),
        inputs: Cow::Borrowed(&[
            Field::memory("graph"),
            Field::example("node_influence", DataType::Float32List),
            Field::example("signed_node_influence", DataType::Float32List),
        ]),
        outputs: Cow::Borrowed(&[
            Field::memory("top_features"),
            Field::example("top_layers", DataType::Int64List),
            Field::example("top_positions", DataType::Int64List),
            Field::example("top_features", DataType::Int64List),
            Field::example("top_scores", DataType::Float32List),
            Field::example("top_activations", DataType::Float32List),
        ]),
        needs: Needs { saes: true, gradients: false },
    },
    run,
};

/// Default number of features.
const TOP: usize = 10;

/// A feature with its score.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct ScoredFeature {
    pub node: ActiveFeature,
    pub score: f32,
}

fn run(context: &OpContext<'_>, batch: &mut AnalysisBatch) -> Result<()> {
    let config = context.options.features.clone().unwrap_or_default();
    let column = match config.by.unwrap_or_default() {
        FeatureScore::SignedInfluence => "signed_node_influence",
        FeatureScore::Influence | FeatureScore::Activation => "node_influence",
    };
    let Some(Column::Float32List(influence)) = batch.examples.get(column) else { return Err(absent(column)) };
    let sae_of = |layer: usize| context.hooks.iter().position(|hook| hook.site.layer == Some(layer));
    let of_graph = |(graph, influence): (&AttributionGraph, &Vec<f32>)| {
        let score = |(node, &index): (usize, &usize)| {
            let feature = graph.features[index];
            let score = match config.by.unwrap_or_default() {
                FeatureScore::Activation => feature.activation,
                _ => influence.get(node).copied().unwrap_or(0.0),
            };
            ScoredFeature { node: feature, score }
        };
        let scored: Vec<ScoredFeature> = graph.selected.iter().enumerate().map(score).collect();
        top_features(&scored, &config, graph.positions.saturating_sub(1), sae_of)
    };
    let top: Vec<Vec<ScoredFeature>> = batch.memory.graphs.iter().zip(influence).map(of_graph).collect();
    let integers = |of: fn(&ScoredFeature) -> usize| {
        Column::Int64List(top.iter().map(|own| own.iter().map(|feature| of(feature) as i64).collect()).collect())
    };
    let floats = |of: fn(&ScoredFeature) -> f32| {
        Column::Float32List(top.iter().map(|own| own.iter().map(of).collect()).collect())
    };
    let columns = [
        ("top_layers", integers(|feature| feature.node.layer)),
        ("top_positions", integers(|feature| feature.node.position)),
        ("top_features", integers(|feature| feature.node.feature)),
        ("top_scores", floats(|feature| feature.score)),
        ("top_activations", floats(|feature| feature.node.activation)),
    ];
    for (name, column) in columns {
        batch.set_example(name, column)?;
    }
    batch.memory.top_features = top;
    Ok(())
}

/// Filters features, ranks them by the magnitude of their scores, and adds pairs that are missing.
fn top_features(
    all: &[ScoredFeature],
    config: &FeaturesConfig,
    last: usize,
    sae_of: impl Fn(usize) -> Option<usize>,
) -> Vec<ScoredFeature> {
    let is_pair = |node: &ActiveFeature, pair: &[usize; 2]| node.layer == pair[0] && node.feature == pair[1];
    let has_filter = !(config.layers.is_empty()
        && config.positions.is_empty()
        && config.ids.is_empty()
        && config.triples.is_empty()
        && config.pairs.is_empty());
    let passes = |feature: &&ScoredFeature| {
        let node = &feature.node;
        let taken = !has_filter
            || config.layers.contains(&node.layer)
            || config.positions.contains(&node.position)
            || config.ids.contains(&node.feature)
            || config.triples.contains(&[node.layer, node.position, node.feature])
            || config.pairs.iter().any(|pair| is_pair(node, pair));
        let signed = match config.sign {
            None => true,
            Some(ScoreSign::Positive) => feature.score > 0.0,
            Some(ScoreSign::Negative) => feature.score < 0.0,
        };
        taken && signed
    };
    let mut found: Vec<ScoredFeature> = all.iter().filter(passes).copied().collect();
    found.sort_by(|a, b| b.score.abs().total_cmp(&a.score.abs()));
    found.truncate(config.top.unwrap_or(TOP));
    for pair in &config.pairs {
        if found.iter().any(|feature| is_pair(&feature.node, pair)) {
            continue;
        }
        let strongest = all.iter().filter(|feature| is_pair(&feature.node, pair));
        let strongest = strongest.max_by(|a, b| a.score.abs().total_cmp(&b.score.abs())).copied();
        found.extend(strongest.or_else(|| Some(mean_of_layer(all, *pair, last, sae_of(pair[0])?))));
    }
    found
}

/// A feature that is not in the graph: with the mean score and activation of its layer.
fn mean_of_layer(all: &[ScoredFeature], [layer, feature]: [usize; 2], position: usize, sae: usize) -> ScoredFeature {
    let own: Vec<&ScoredFeature> = all.iter().filter(|other| other.node.layer == layer).collect();
    let mean = |of: fn(&ScoredFeature) -> f32| own.iter().map(|own| of(own)).sum::<f32>() / own.len().max(1) as f32;
    let activation = mean(|own| own.node.activation);
    let node = ActiveFeature { sae, layer, position, feature, activation };
    ScoredFeature { node, score: mean(|own| own.score) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn features() -> Vec<ScoredFeature> {
        let feature = |layer, position, feature, activation, score| ScoredFeature {
            node: ActiveFeature { sae: layer, layer, position, feature, activation },
            score,
        };
        vec![feature(0, 0, 5, 1.0, 0.125), feature(0, 1, 6, 3.0, -0.875), feature(1, 1, 5, 2.0, 0.4)]
    }

    fn ids(config: &FeaturesConfig) -> Vec<[usize; 3]> {
        let found = top_features(&features(), config, 7, Some);
        found.iter().map(|own| [own.node.layer, own.node.position, own.node.feature]).collect()
    }

    #[test]
    fn features_are_ranked_by_magnitude_after_filters_that_combine_by_or() {
        assert_eq!(ids(&FeaturesConfig::default()), [[0, 1, 6], [1, 1, 5], [0, 0, 5]]);
        assert_eq!(ids(&FeaturesConfig { top: Some(1), ..Default::default() }), [[0, 1, 6]]);
        let filters = FeaturesConfig { layers: vec![1], triples: vec![[0, 0, 5]], ..Default::default() };
        assert_eq!(ids(&filters), [[1, 1, 5], [0, 0, 5]]);
        assert_eq!(ids(&FeaturesConfig { sign: Some(ScoreSign::Negative), ..Default::default() }), [[0, 1, 6]]);
    }

    #[test]
    fn a_requested_pair_is_in_the_result_even_if_it_is_not_in_the_graph() {
        let config = FeaturesConfig { pairs: vec![[0, 9], [1, 5]], ..Default::default() };
        let found = top_features(&features(), &config, 7, Some);
        assert_eq!(ids(&config), [[1, 1, 5], [0, 7, 9]]);
        assert_eq!((found[1].node.activation, found[1].score), (2.0, -0.375), "means of layer 0");
    }
}
