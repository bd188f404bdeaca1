//! `graph_prune`: the nodes and edges that carry most of the influence.

use super::batch::{AnalysisBatch, OpContext};
use super::spec::{BuiltinOp, Field, Needs, OpSpec};
use crate::table::{Column, DataType};
use pellucid_analysis::attribution_graph::{PrunedGraph, prune};
use pellucid_models::Result;
use std::borrow::Cow;

pub(super) static OP: BuiltinOp = BuiltinOp {
    spec: OpSpec {
        name: Cow::Borrowed("graph_prune"),
        aliases: &[],
        version: Cow::Borrowed("1"),
        about: Cow::Borrowed(
            "nodes and edges that make up `graph.node_threshold` and `graph.edge_threshold` of the influence",
        ),
        inputs: Cow::Borrowed(&[Field::memory("graph")]),
        outputs: Cow::Borrowed(&[
            Field::example("pruned_nodes", DataType::Int64List),
            Field::example("pruned_edge_targets", DataType::Int64List),
            Field::example("pruned_edge_sources", DataType::Int64List),
        ]),
        needs: Needs { saes: true, gradients: false },
    },
    run,
};

fn run(context: &OpContext<'_>, batch: &mut AnalysisBatch) -> Result<()> {
    let config = context.options.graph.clone().unwrap_or_default();
    let (nodes, edges) = (config.node_threshold.unwrap_or(0.8), config.edge_threshold.unwrap_or(0.98));
    let pruned: Vec<PrunedGraph> = batch.memory.graphs.iter().map(|graph| prune(graph, nodes, edges)).collect();
    let integers = |of: &dyn Fn(&PrunedGraph) -> Vec<i64>| Column::Int64List(pruned.iter().map(of).collect());
    let kept = |graph: &PrunedGraph| {
        graph.nodes.iter().enumerate().filter(|(_, kept)| **kept).map(|(node, _)| node as i64).collect()
    };
    let pairs = |graph: &PrunedGraph| -> Vec<(i64, i64)> {
        let of_target = |(target, sources): (usize, &Vec<usize>)| -> Vec<(i64, i64)> {
            sources.iter().map(|&source| (target as i64, source as i64)).collect()
        };
        graph.sources.iter().enumerate().flat_map(of_target).collect()
    };
    batch.set_example("pruned_nodes", integers(&kept))?;
    let targets = integers(&|graph| pairs(graph).into_iter().map(|(target, _)| target).collect());
    batch.set_example("pruned_edge_targets", targets)?;
    let sources = integers(&|graph| pairs(graph).into_iter().map(|(_, source)| source).collect());
    batch.set_example("pruned_edge_sources", sources)
}
