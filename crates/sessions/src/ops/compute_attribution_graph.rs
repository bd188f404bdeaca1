//! `compute_attribution_graph`: features, errors and tokens that cause a prediction, with the edges
//! between them.

use super::batch::{AnalysisBatch, OpContext};
use super::concept::last_tokens;
use super::concept_direction::NAME as CONCEPT;
use super::spec::{BuiltinOp, Field, Needs, OpSpec, Place};
use crate::dataset::Example;
use crate::table::{Column, DataType};
use pellucid_analysis::attribution_graph::{AttributionGraph, GraphOptions, Targets, attribute};
use pellucid_models::{Error, Result};
use std::borrow::Cow;

pub(super) static OP: BuiltinOp = BuiltinOp {
    spec: OpSpec {
        name: Cow::Borrowed("compute_attribution_graph"),
        aliases: &[],
        version: Cow::Borrowed("1"),
        about: Cow::Borrowed("attribution graph of the prediction, or of the concept's direction"),
        inputs: Cow::Borrowed(&[
            Field::memory("input"),
            Field {
                name: Cow::Borrowed(CONCEPT),
                place: Place::Example,
                dtype: Some(DataType::Float32List),
                optional: true,
            },
        ]),
        outputs: Cow::Borrowed(&[
            Field::memory("graph"),
            Field::example("n_nodes", DataType::Int64),
            Field::example("active_features", DataType::Int64List),
            Field::example("activation_values", DataType::Float32List),
            Field::example("selected_features", DataType::Int64List),
            Field::example("logit_targets", DataType::Int64List),
            Field::example("logit_probabilities", DataType::Float32List),
            Field::example("edge_targets", DataType::Int64List),
            Field::example("edge_sources", DataType::Int64List),
            Field::example("edge_weights", DataType::Float32List),
        ]),
        needs: Needs { saes: true, gradients: true },
    },
    run,
};

fn run(context: &OpContext<'_>, batch: &mut AnalysisBatch) -> Result<()> {
    let with_concept = batch.examples.get(CONCEPT).is_some();
    let graph = |example| graph(context, example, with_concept);
    let graphs = context.examples.iter().map(graph).collect::<Result<Vec<_>>>()?;
    let integers = |of: &dyn Fn(&AttributionGraph) -> Vec<i64>| Column::Int64List(graphs.iter().map(of).collect());
    let floats = |of: &dyn Fn(&AttributionGraph) -> Vec<f32>| Column::Float32List(graphs.iter().map(of).collect());
    let columns = [
        ("n_nodes", Column::Int64(graphs.iter().map(|graph| graph.n_nodes() as i64).collect())),
        (
            "active_features",
            integers(&|graph| {
                let nodes = graph.features.iter().flat_map(|node| [node.layer, node.position, node.feature]);
                nodes.map(|index| index as i64).collect()
            }),
        ),
        ("activation_values", floats(&|graph| graph.features.iter().map(|node| node.activation).collect())),
        ("selected_features", integers(&|graph| graph.selected.iter().map(|&index| index as i64).collect())),
        (
            "logit_targets",
            integers(&|graph| graph.targets.iter().map(|target| target.token.map_or(-1, i64::from)).collect()),
        ),
        ("logit_probabilities", floats(&|graph| graph.targets.iter().map(|target| target.probability).collect())),
        ("edge_targets", integers(&|graph| graph.nonzero_edges().map(|(target, ..)| target as i64).collect())),
        ("edge_sources", integers(&|graph| graph.nonzero_edges().map(|(_, source, _)| source as i64).collect())),
        ("edge_weights", floats(&|graph| graph.nonzero_edges().map(|(.., weight)| weight).collect())),
    ];
    for (name, column) in columns {
        batch.set_example(name, column)?;
    }
    batch.memory.graphs = graphs;
    Ok(())
}

fn graph(context: &OpContext<'_>, example: &Example, with_concept: bool) -> Result<AttributionGraph> {
    if example.pads > 0 {
        return Err(Error::usage(
            "attribution graphs take no padded rows",
            "leave out `dataset.padding`: rows without pads need none of its modes",
        ));
    }
    let config = context.options.graph.clone().unwrap_or_default();
    let bos = context.model.tokenizer()?.special().bos;
    let starts_with_bos = bos.is_some() && example.tokens.first().copied() == bos;
    let defaults = GraphOptions::default();
    let options = GraphOptions {
        max_logits: config.max_logits.unwrap_or(defaults.max_logits),
        logit_threshold: config.logit_threshold.unwrap_or(defaults.logit_threshold),
        max_features: config.max_features.unwrap_or(defaults.max_features),
        skip_positions: config.skip_positions.unwrap_or(usize::from(starts_with_bos)),
        ..defaults
    };
    let targets = if with_concept {
        let concept = context.concept()?;
        let of_label = || example.labels.get(concept.label).and_then(|label| label.first().copied());
        let tokens = if concept.tokens.is_empty() { of_label().into_iter().collect() } else { concept.tokens.clone() };
        Targets::Direction { vector: concept.direction.clone(), tokens }
    } else if config.tokens.is_empty() {
        Targets::Likely
    } else {
        Targets::Tokens(last_tokens(context.model, &config.tokens)?)
    };
    Ok(attribute(&context.model.model, &example.tokens, &targets, &options, context.interrupt.clone())?)
}
