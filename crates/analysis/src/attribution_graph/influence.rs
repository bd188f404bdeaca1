//! Influence of nodes on the targets, scores of a graph, and pruning.

use super::AttributionGraph;
use serde::Serialize;

/// Largest number of steps: more than any path of an acyclic graph of transformer layers has.
const MAX_STEPS: usize = 1000;
/// Smallest sum by which a row is divided.
const MIN_SUM: f32 = 1e-10;

/// Returns the influence of each node on the targets: `w N + w N² + …`, where `w` are the
/// probabilities of the targets and `N` the absolute edges, with the edges of each target divided
/// by their sum. With `signed`, edges keep their signs and are divided by the sum of their absolute
/// values.
pub fn node_influence(graph: &AttributionGraph, signed: bool) -> Vec<f32> {
    influence(&normalize_rows(&graph.edges, !signed), &graph.target_weights())
}

/// Divides the edges of each target by the sum of their absolute values.
pub(super) fn normalize_rows(edges: &[Vec<f32>], absolute: bool) -> Vec<Vec<f32>> {
    let normalize = |row: &Vec<f32>| {
        let sum = row.iter().map(|x| x.abs()).sum::<f32>().max(MIN_SUM);
        row.iter().map(|x| if absolute { x.abs() / sum } else { x / sum }).collect()
    };
    edges.iter().map(normalize).collect()
}

/// `w N + w N² + …`; rows may be shorter than the number of nodes.
pub(super) fn influence(normalized: &[Vec<f32>], weights: &[f32]) -> Vec<f32> {
    let (mut total, mut current) = (vec![0.0; weights.len()], weights.to_vec());
    for _ in 0..MAX_STEPS {
        let mut next = vec![0.0; weights.len()];
        for (row, &weight) in normalized.iter().zip(&current).filter(|(_, weight)| **weight != 0.0) {
            next.iter_mut().zip(row).for_each(|(sum, x)| *sum += weight * x);
        }
        if next.iter().all(|&x| x == 0.0) {
            break;
        }
        total.iter_mut().zip(&next).for_each(|(total, x)| *total += x);
        current = next;
    }
    total
}

/// How much of a graph features explain, as opposed to errors.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct GraphScores {
    /// Influence of tokens, as a share of that of tokens and errors.
    pub replacement: f32,
    /// Share of inputs that are not errors, weighted by the influence of the nodes that receive
    /// them.
    pub completeness: f32,
}

/// Returns the scores of a graph.
pub fn graph_scores(graph: &AttributionGraph) -> GraphScores {
    let normalized = normalize_rows(&graph.edges, true);
    let weights = graph.target_weights();
    let influence = influence(&normalized, &weights);
    let (errors, tokens) =
        (graph.first_error()..graph.first_token(), graph.first_token()..graph.first_token() + graph.positions);
    let of_errors: f32 = influence[errors.clone()].iter().sum();
    let of_tokens: f32 = influence[tokens].iter().sum();
    let (mut explained, mut all) = (0.0, 0.0);
    for ((row, influence), weight) in normalized.iter().zip(&influence).zip(&weights) {
        let from_errors: f32 = row.get(errors.clone()).map_or(0.0, |own| own.iter().sum());
        explained += (1.0 - from_errors) * (influence + weight);
        all += influence + weight;
    }
    let share = |part: f32, whole: f32| if whole > 0.0 { part / whole } else { 0.0 };
    GraphScores { replacement: share(of_tokens, of_tokens + of_errors), completeness: share(explained, all) }
}

/// The nodes and edges that pruning keeps.
#[derive(Clone, Debug, PartialEq)]
pub struct PrunedGraph {
    /// For each node whether it is kept.
    pub nodes: Vec<bool>,
    /// For each node the sources of its kept edges.
    pub sources: Vec<Vec<usize>>,
}

/// Keeps the nodes that make up the share `node_threshold` of all influence, tokens and targets
/// always; then the edges between them that make up `edge_threshold` of all edge scores; then drops
/// features without inputs, and features and errors without outputs, until nothing changes.
pub fn prune(graph: &AttributionGraph, node_threshold: f32, edge_threshold: f32) -> PrunedGraph {
    let (n, first_token, n_features) = (graph.n_nodes(), graph.first_token(), graph.first_error());
    let of_nodes = node_influence(graph, false);
    let cut = threshold(of_nodes.clone(), node_threshold);
    let mut nodes: Vec<bool> = of_nodes.iter().enumerate().map(|(node, x)| node >= first_token || *x >= cut).collect();
    let masked = |(target, row): (usize, &Vec<f32>)| -> Vec<f32> {
        let keep = |source: usize| nodes[target] && nodes[source];
        row.iter().enumerate().map(|(source, &x)| if keep(source) { x } else { 0.0 }).collect()
    };
    let kept: Vec<Vec<f32>> = graph.edges.iter().enumerate().map(masked).collect();
    let (normalized, weights) = (normalize_rows(&kept, true), graph.target_weights());
    let received: Vec<f32> = influence(&normalized, &weights).iter().zip(&weights).map(|(x, w)| x + w).collect();
    let score = |target: usize, source: usize| normalized[target][source] * received[target];
    let all = (0..n).flat_map(|target| (0..normalized[target].len()).map(move |source| (target, source)));
    let scores: Vec<f32> = all.map(|(target, source)| score(target, source)).collect();
    let cut = threshold(scores, edge_threshold);
    // A score of 0 is no edge, even if the threshold is 0.
    let is_kept = |target: usize, source: usize| score(target, source) >= cut && score(target, source) > 0.0;
    let of_target = |target: usize| (0..normalized[target].len()).filter(|&source| is_kept(target, source)).collect();
    let mut sources: Vec<Vec<usize>> = (0..n).map(of_target).collect();
    loop {
        let mut has_output = vec![false; n];
        sources.iter().flatten().for_each(|&source| has_output[source] = true);
        let mut changed = false;
        for node in 0..first_token {
            let stays = has_output[node] && (node >= n_features || !sources[node].is_empty());
            changed |= nodes[node] && !stays;
            nodes[node] &= stays;
        }
        if !changed {
            return PrunedGraph { nodes, sources };
        }
        for (target, own) in sources.iter_mut().enumerate() {
            own.retain(|&source| nodes[target] && nodes[source]);
        }
    }
}

/// The smallest of the largest values that together reach a share of the sum.
fn threshold(mut values: Vec<f32>, share: f32) -> f32 {
    values.sort_by(|a, b| b.total_cmp(a));
    let total: f64 = values.iter().map(|&x| f64::from(x)).sum();
    let mut sum = 0.0;
    for &value in &values {
        sum += f64::from(value);
        if sum >= f64::from(share) * total {
            return value;
        }
    }
    values.last().copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::super::{ActiveFeature, Target};
    use super::*;
    use pellucid_engine::{Point, Site};

    /// Two features, one error site at two positions, two tokens, two targets.
    fn graph() -> AttributionGraph {
        let feature = |layer, position| ActiveFeature { sae: layer, layer, position, feature: 3, activation: 1.0 };
        AttributionGraph {
            features: vec![feature(0, 0), feature(1, 1)],
            selected: vec![0, 1],
            error_sites: vec![Site::layer(0, Point::MlpOut)],
            positions: 2,
            targets: vec![Target { token: Some(5), probability: 0.7 }, Target { token: Some(6), probability: 0.2 }],
            edges: vec![
                vec![0.0, 0.0, 0.0, 0.0, 2.0, 0.0, 0.0, 0.0],
                vec![-1.0, 0.0, 0.5, 0.0, 0.5, 0.0, 0.0, 0.0],
                vec![],
                vec![],
                vec![],
                vec![],
                vec![0.5, 3.0, 0.0, -0.01, 0.0, 0.49, 0.0, 0.0],
                vec![0.0, 0.0, 0.0, 1.0, 0.0, -1.0, 0.0, 0.0],
            ],
        }
    }

    /// Influence by the inverse of I − N, computed by Gaussian elimination in f64.
    fn by_inverse(graph: &AttributionGraph, signed: bool) -> Vec<f64> {
        let n = graph.n_nodes();
        let mut system = vec![vec![0.0; n + 1]; n];
        let weights = graph.target_weights();
        // x = (x + w) N, so x (I − N) = w N; transposed: (I − Nᵀ) x = Nᵀ w.
        for (target, row) in graph.edges.iter().enumerate() {
            let sum: f64 = row.iter().map(|x| f64::from(x.abs())).sum();
            for (source, &x) in row.iter().enumerate() {
                let x = f64::from(if signed { x } else { x.abs() }) / sum.max(1e-10);
                system[source][target] -= x;
                system[source][n] += x * f64::from(weights[target]);
            }
        }
        (0..n).for_each(|i| system[i][i] += 1.0);
        for pivot in 0..n {
            let own = system[pivot].clone();
            for (index, row) in system.iter_mut().enumerate().filter(|(index, _)| *index != pivot) {
                assert!(own[pivot].abs() > 1e-9, "pivot {pivot} for row {index}");
                let factor = row[pivot] / own[pivot];
                row.iter_mut().zip(&own).for_each(|(x, y)| *x -= factor * y);
            }
        }
        (0..n).map(|i| system[i][n] / system[i][i]).collect()
    }

    #[test]
    fn influence_is_that_of_the_inverse_matrix() {
        for signed in [false, true] {
            let found = node_influence(&graph(), signed);
            for (node, (found, expected)) in found.iter().zip(by_inverse(&graph(), signed)).enumerate() {
                assert!((f64::from(*found) - expected).abs() < 1e-6, "node {node}: {found} and {expected}");
            }
        }
        assert_ne!(node_influence(&graph(), false), node_influence(&graph(), true), "some edges are negative");
    }

    #[test]
    fn scores_weigh_tokens_against_errors() {
        let (scores, influence) = (graph_scores(&graph()), by_inverse(&graph(), false));
        let (errors, tokens): (f64, f64) = (influence[2] + influence[3], influence[4] + influence[5]);
        assert!((f64::from(scores.replacement) - tokens / (tokens + errors)).abs() < 1e-6);
        let mut without_errors = graph();
        without_errors.edges.iter_mut().filter(|row| !row.is_empty()).for_each(|row| row[2..4].fill(0.0));
        let scores = graph_scores(&without_errors);
        assert_eq!((scores.replacement, scores.completeness), (1.0, 1.0));
    }

    #[test]
    fn pruning_keeps_the_main_path_and_no_dead_ends() {
        let pruned = prune(&graph(), 0.8, 0.98);
        assert_eq!(pruned.nodes[4..], [true; 4], "tokens and targets stay");
        assert!(pruned.nodes[0] && pruned.nodes[1], "both features carry the first target");
        assert!(pruned.sources[6].contains(&1) && !pruned.sources[6].contains(&3), "the edge of -0.01 goes");
        let everything = prune(&graph(), 1.0, 1.0);
        assert_eq!(everything.nodes, [true; 8]);
        let edges: usize = everything.sources.iter().map(Vec::len).sum();
        assert_eq!(edges, graph().nonzero_edges().count());
        // A feature whose only output goes is dropped, with its inputs.
        let mut dead_end = graph();
        dead_end.edges[6][0] = 0.0;
        dead_end.edges[1][0] = 0.0;
        assert!(!prune(&dead_end, 1.0, 1.0).nodes[0]);
    }
}
