//! Attribution graphs of sessions: their columns, influences and interventions. That edges are
//! effects of interventions is tested in `pellucid-analysis`.

use crate::helpers::{model, run};
use pellucid_engine::{Plan, RunOptions, Tap};
use pellucid_sessions::Store;
use pellucid_sessions::ops::Registry;
use pellucid_sessions::session::replay;
use pellucid_sessions::table::Column;
use serde_json::json;
use std::path::Path;

fn floats(store: &Store, name: &str) -> Vec<Vec<f32>> {
    match store.column("examples", name).expect(name) {
        Column::Float32List(lists) => lists,
        Column::Float32(values) => values.into_iter().map(|value| vec![value]).collect(),
        _ => panic!("{name}"),
    }
}

fn integers(store: &Store, name: &str) -> Vec<Vec<usize>> {
    let Column::Int64List(lists) = store.column("examples", name).expect(name) else { panic!("{name}") };
    lists.into_iter().map(|list| list.into_iter().map(|x| x as usize).collect()).collect()
}

fn concept_session(directory: &Path) -> Store {
    let settings = json!({
        "ops": "intervention_from_concept.graph_prune",
        "concept": {"tokens": [[" He"], [" She"]]},
        "features": {"top": 4, "by": "signed_influence", "scale": -1.0},
        "dataset": {"limit": 3},
    });
    run("sae.toml", directory, settings)
}

#[test]
fn a_session_from_concept_to_intervention_is_consistent_and_replays() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = concept_session(&directory.path().join("s"));
    let model = model(&[]);
    let (tokens, features) = (integers(&store, "tokens"), integers(&store, "active_features"));
    let (targets, sources) = (integers(&store, "edge_targets"), integers(&store, "edge_sources"));
    let weights = floats(&store, "edge_weights");
    for example in 0..store.rows("examples") {
        let positions = tokens[example].len();
        let n_features = features[example].len() / 3;
        assert_eq!(n_features, 16 * positions, "TopK 16 at every position");
        // One error site for each of six MLPs and for the SAE; the direction is one target.
        let nodes = n_features + 7 * positions + positions + 1;
        let recorded = store.column("examples", "n_nodes").expect("nodes");
        assert_eq!(recorded.integers().expect("integers")[example] as usize, nodes);
        let mut edges = vec![vec![0.0_f64; nodes]; nodes];
        for ((&target, &source), &weight) in targets[example].iter().zip(&sources[example]).zip(&weights[example]) {
            edges[target][source] = f64::from(weight);
        }
        // Influence by repeated multiplication of the dense matrix, in f64.
        let mut expected = vec![0.0; nodes];
        let mut current = vec![0.0; nodes];
        current[nodes - 1] = f64::from(floats(&store, "logit_probabilities")[example][0]);
        for _ in 0..20 {
            let mut next = vec![0.0; nodes];
            for (row, weight) in edges.iter().zip(&current) {
                let sum: f64 = row.iter().map(|x| x.abs()).sum();
                row.iter().zip(&mut next).for_each(|(x, next)| *next += weight * x / sum.max(1e-10));
            }
            expected.iter_mut().zip(&next).for_each(|(sum, x)| *sum += x);
            current = next;
        }
        for (found, expected) in floats(&store, "signed_node_influence")[example].iter().zip(&expected) {
            assert!((f64::from(*found) - expected).abs() < 1e-6, "{found} and {expected}");
        }
        let mut order: Vec<usize> = (0..n_features).collect();
        order.sort_by(|&a, &b| expected[b].abs().total_cmp(&expected[a].abs()));
        let chosen: Vec<usize> = order[..4].iter().map(|&node| features[example][3 * node + 2]).collect();
        assert_eq!(integers(&store, "top_features")[example], chosen);
        // The intervention: minus the activation, with the attention weights of the plain row.
        let row: Vec<u32> = tokens[example].iter().map(|&token| token as u32).collect();
        let mut plan = Plan::of([Tap::set("layers.*.attn_probs").from_row(0).rows([1])]);
        for &node in &order[..4] {
            let value = -floats(&store, "activation_values")[example][node];
            let set = Tap::set("layers.3.resid_post/sae.acts").with(value).rows([1]);
            let position = features[example][3 * node + 1] as i64;
            plan.taps.push(set.units([features[example][3 * node + 2]]).positions(position));
        }
        plan.taps.push(Tap::capture("logits").last());
        let run = model.model.run(&[row.clone(), row], &plan, &RunOptions::default()).expect("a run");
        assert_eq!(floats(&store, "post_intervention_logits")[example], run.captures[1].array.values());
        let token = model.tokenizer().expect("a tokenizer").find(" He").expect("a token") as usize;
        let change = run.captures[1].array.values()[token] - run.captures[0].array.values()[token];
        assert!((floats(&store, "intervention_logit_diff")[example][0] - change).abs() < 1e-6);
        let kept = &integers(&store, "pruned_nodes")[example];
        assert!(kept.len() < nodes && kept.contains(&(nodes - 1)), "{} of {nodes}", kept.len());
    }
    let report = replay(&store, &[], &Registry::default(), None, &mut |_| {}).expect("a replay");
    assert_eq!(report.difference, None);
}

#[test]
fn without_a_concept_the_targets_are_the_most_probable_tokens() {
    let directory = tempfile::tempdir().expect("a directory");
    let settings = json!({
        "ops": "compute_attribution_graph.graph_node_influence",
        "graph": {"max_logits": 3, "logit_threshold": 1.0, "max_features": 20},
        "dataset": {"limit": 1},
    });
    let store = run("sae.toml", &directory.path().join("s"), settings);
    let tokens: Vec<u32> = integers(&store, "tokens")[0].iter().map(|&token| token as u32).collect();
    let plan = Plan::of([Tap::capture("logits").last()]);
    let run = model(&[]).model.run(&[tokens], &plan, &RunOptions::default()).expect("a run");
    let logits = run.captures[0].array.values();
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
    assert_eq!(integers(&store, "logit_targets")[0], order[..3]);
    assert_eq!(integers(&store, "selected_features")[0].len(), 20);
    for score in [floats(&store, "replacement_score")[0][0], floats(&store, "completeness_score")[0][0]] {
        assert!(score > 0.0 && score < 1.0, "{score}");
    }
}
