//! `graph_node_influence`: the influence of each node of a graph on its targets.

use super::batch::{AnalysisBatch, OpContext};
use super::spec::{BuiltinOp, Field, Needs, OpSpec};
use crate::table::{Column, DataType};
use pellucid_analysis::attribution_graph::{graph_scores, node_influence};
use pellucid_models::Result;
use std::borrow::Cow;

pub(super) static OP: BuiltinOp = BuiltinOp {
    spec: OpSpec {
        name: Cow::Borrowed("graph_node_influence"),
        aliases: &[],
        version: Cow::Borrowed("1"),
        about: Cow::Borrowed("influence of each node on the targets, also with signs, and the scores of the graph"),
        inputs: Cow::Borrowed(&[Field::memory("graph")]),
        outputs: Cow::Borrowed(&[
            Field::example("node_influence", DataType::Float32List),
            Field::example("signed_node_influence", DataType::Float32List),
            Field::example("replacement_score", DataType::Float32),
            Field::example("completeness_score", DataType::Float32),
        ]),
        needs: Needs { saes: true, gradients: false },
    },
    run,
};

fn run(_: &OpContext<'_>, batch: &mut AnalysisBatch) -> Result<()> {
    let graphs = &batch.memory.graphs;
    let influence = |signed: bool| graphs.iter().map(|graph| node_influence(graph, signed)).collect();
    let (plain, signed): (Vec<Vec<f32>>, Vec<Vec<f32>>) = (influence(false), influence(true));
    let scores: Vec<_> = graphs.iter().map(graph_scores).collect();
    batch.set_example("node_influence", Column::Float32List(plain))?;
    batch.set_example("signed_node_influence", Column::Float32List(signed))?;
    let replacement = scores.iter().map(|scores| scores.replacement).collect();
    batch.set_example("replacement_score", Column::Float32(replacement))?;
    let completeness = scores.iter().map(|scores| scores.completeness).collect();
    batch.set_example("completeness_score", Column::Float32(completeness))
}
