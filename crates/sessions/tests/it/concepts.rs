//! Concept states, directions and interventions against full runs and naive arithmetic.

use crate::helpers::{error_of, example, open, plain_model, run};
use pellucid_engine::{Plan, Point, RunOptions, Site, Tap};
use pellucid_models::LoadedModel;
use pellucid_sessions::Store;
use pellucid_sessions::table::Column;
use serde_json::{Value, json};
use std::path::Path;

const EXAMPLES: &str =
    "labels_to_ids.model_fwd.logit_diffs.extract_concept_latent_state.extract_concept_latent_examples";

fn lists(store: &Store, name: &str) -> Vec<Vec<f32>> {
    let Column::Float32List(lists) = store.column("examples", name).expect(name) else { panic!("{name}") };
    lists
}

fn floats(store: &Store, name: &str) -> Vec<f32> {
    store.column("examples", name).expect(name).floats().expect("floats").to_vec()
}

fn integers(store: &Store, name: &str) -> Vec<i64> {
    store.column("examples", name).expect(name).integers().expect("integers").to_vec()
}

fn tokens(store: &Store) -> Vec<Vec<u32>> {
    let Column::Int64List(tokens) = store.column("examples", "tokens").expect("tokens") else { panic!("lists") };
    tokens.iter().map(|row| row.iter().map(|&token| token as u32).collect()).collect()
}

/// A site at a position of a full run, without batches.
fn state(model: &LoadedModel, tokens: &[u32], site: &str, position: i64) -> Vec<f32> {
    let plan = Plan::of([Tap::capture(site).positions(position)]);
    let run = model.model.run(&[tokens.to_vec()], &plan, &RunOptions::default()).expect("a run");
    run.captures[0].array.values().to_vec()
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn unit(v: &[f32]) -> Vec<f32> {
    let norm = dot(v, v).sqrt();
    v.iter().map(|x| x / norm).collect()
}

fn mean(states: &[&Vec<f32>]) -> Vec<f32> {
    (0..states[0].len()).map(|i| states.iter().map(|state| state[i]).sum::<f32>() / states.len() as f32).collect()
}

fn assert_close(a: &[f32], b: &[f32], tolerance: f32) {
    assert_eq!(a.len(), b.len());
    let largest = b.iter().fold(1e-6_f32, |max, x| max.max(x.abs()));
    for (a, b) in a.iter().zip(b) {
        assert!((a - b).abs() < tolerance * largest, "{a} and {b}");
    }
}

/// A store of states.
fn states(directory: &Path, settings: Value) -> Store {
    let mut settings = settings;
    settings["ops"] = json!(EXAMPLES);
    run("base.toml", directory, settings)
}

#[test]
fn states_are_those_of_full_runs_and_groups_are_correct_labels() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = states(&directory.path().join("s"), json!({}));
    let (model, tokens) = (plain_model(), tokens(&store));
    let found = lists(&store, "concept_state");
    for (tokens, found) in tokens.iter().zip(&found) {
        assert_eq!(found, &state(&model, tokens, "final_norm", -1));
    }
    let (labels, differences) = (integers(&store, "orig_labels"), floats(&store, "logit_diffs"));
    let expected: Vec<i64> = labels.iter().zip(&differences).map(|(&l, &d)| if d > 0.0 { l } else { -1 }).collect();
    assert_eq!(integers(&store, "concept_group"), expected);
    let settings = json!({"concept": {
        "site": "layers.2.resid_post", "context_position": 0, "weight": "logit_diff",
    }});
    let store = states(&directory.path().join("p"), settings);
    for (tokens, found) in tokens.iter().zip(lists(&store, "concept_state")) {
        let (h, c) =
            (state(&model, tokens, "layers.2.resid_post", -1), state(&model, tokens, "layers.2.resid_post", 0));
        let along = dot(&h, &c) / dot(&c, &c);
        assert_close(&found, &c.iter().map(|x| along * x).collect::<Vec<_>>(), 1e-5);
    }
    let weights: Vec<f32> = differences.iter().map(|d| d.max(0.0)).collect();
    assert_eq!(floats(&store, "concept_weight"), weights);
}

#[test]
fn directions_come_from_stored_states_or_from_rows_of_the_unembedding() {
    let directory = tempfile::tempdir().expect("a directory");
    let source = states(&directory.path().join("states"), json!({}));
    let (found, groups) = (lists(&source, "concept_state"), integers(&source, "concept_group"));
    let group = |label: i64| -> Vec<&Vec<f32>> {
        found.iter().zip(&groups).filter(|(_, group)| **group == label).map(|(state, _)| state).collect()
    };
    let (a, b) = (mean(&group(0)), mean(&group(1)));
    let expected = unit(&a.iter().zip(&b).map(|(a, b)| a - b).collect::<Vec<_>>());
    let settings = json!({"ops": "concept_direction", "concept": {"store": directory.path().join("states")}});
    let store = run("base.toml", &directory.path().join("d"), settings);
    lists(&store, "concept_direction").iter().for_each(|found| assert_close(found, &expected, 1e-5));
    // Groups exchanged: the opposite direction.
    let settings = json!({"ops": "concept_direction",
        "concept": {"store": directory.path().join("states"), "groups": [1, 0]}});
    let store = run("base.toml", &directory.path().join("e"), settings);
    let opposite: Vec<f32> = expected.iter().map(|x| -x).collect();
    assert_close(&lists(&store, "concept_direction")[0], &opposite, 1e-5);
    let settings = json!({"ops": "concept_direction",
        "concept": {"tokens": [[" He", " his"], [" She"]], "method": "single_group"}});
    let store = run("base.toml", &directory.path().join("t"), settings);
    let model = plain_model();
    let (unembedding, _) = model.model.weight_of(Site::model(Point::LmHead)).expect("an unembedding");
    let tokenizer = model.tokenizer().expect("a tokenizer");
    let rows = [" He", " his"].map(|text| unembedding.row(tokenizer.find(text).expect("a token") as usize).to_vec());
    assert_close(&lists(&store, "concept_direction")[0], &unit(&mean(&[&rows[0], &rows[1]])), 1e-5);
}

#[test]
fn interventions_are_full_runs_with_the_edited_state() {
    let directory = tempfile::tempdir().expect("a directory");
    let (model, site) = (plain_model(), "layers.4.resid_post");
    let (unembedding, _) = model.model.weight_of(Site::model(Point::LmHead)).expect("an unembedding");
    let tokenizer = model.tokenizer().expect("a tokenizer");
    let row = |text: &str| unembedding.row(tokenizer.find(text).expect("a token") as usize).to_vec();
    let (a, b) = (unit(&row(" He")), unit(&row(" She")));
    let v = unit(&row(" He").iter().zip(&row(" She")).map(|(a, b)| a - b).collect::<Vec<_>>());
    let s = 2.5_f32;
    let edited = |mode: &str, h: &[f32]| -> Vec<f32> {
        match mode {
            "replace" => v.clone(),
            "add" => h.iter().zip(&v).map(|(h, v)| h + s * v).collect(),
            "project" => v.iter().map(|x| s * dot(h, &v) / dot(&v, &v) * x).collect(),
            _ => {
                // Least squares: h ≈ c0 a + c1 b, by gradient descent instead of the inverse.
                let (mut c0, mut c1) = (0.0_f64, 0.0_f64);
                for _ in 0..20_000 {
                    let rest: Vec<f64> =
                        (0..h.len()).map(|i| f64::from(h[i]) - c0 * f64::from(a[i]) - c1 * f64::from(b[i])).collect();
                    c0 += 0.4 * rest.iter().zip(&a).map(|(r, a)| r * f64::from(*a)).sum::<f64>();
                    c1 += 0.4 * rest.iter().zip(&b).map(|(r, b)| r * f64::from(*b)).sum::<f64>();
                }
                let s = f64::from(s);
                let change = |i: usize| f64::from(a[i]) * (s * c1 - c0) + f64::from(b[i]) * (s * c0 - c1);
                (0..h.len()).map(|i| (f64::from(h[i]) + change(i)) as f32).collect()
            }
        }
    };
    let mut differences = Vec::new();
    for mode in ["replace", "add", "project", "patch"] {
        let settings = json!({
            "ops": "labels_to_ids.concept_direction.model_fwd_intervention.logit_diffs",
            "concept": {"tokens": [[" He"], [" She"]]},
            "intervention": {"sites": [site], "mode": mode, "scale": s},
            "dataset": {"limit": 3},
        });
        let store = run("base.toml", &directory.path().join(mode), settings);
        let (labels, found) = (integers(&store, "orig_labels"), floats(&store, "logit_diffs"));
        for (index, tokens) in tokens(&store).iter().enumerate() {
            let h = edited(mode, &state(&model, tokens, site, -1));
            let plan = Plan::of([Tap::set(site).with(h).last(), Tap::capture("logits").last()]);
            let run = model.model.run(std::slice::from_ref(tokens), &plan, &RunOptions::default()).expect("a run");
            let logit = |text: &str| run.captures[0].array.values()[tokenizer.find(text).expect("a token") as usize];
            let expected = (logit(" He") - logit(" She")) * if labels[index] == 0 { 1.0 } else { -1.0 };
            assert!((found[index] - expected).abs() < 2e-4, "{mode}: {} and {expected}", found[index]);
        }
        differences.push(found);
    }
    assert!(differences.windows(2).all(|pair| pair[0] != pair[1]), "the modes differ");
}

#[test]
fn concepts_without_their_inputs_are_refused_before_the_run() {
    let directory = tempfile::tempdir().expect("a directory");
    let refused = |settings: Value| {
        let mut settings = settings;
        settings["output"] = json!({"path": "never-written"});
        error_of(open(&example("base.toml", settings)))
    };
    let (problem, remedy) = refused(json!({"ops": "concept_direction"}));
    assert!(problem.contains("`concept`") && remedy.contains("concept.tokens"), "{problem}");
    let (problem, _) = refused(json!({"ops": "concept_direction", "concept": {"store": "no/such/store"}}));
    assert!(problem.contains("no/such/store"), "{problem}");
    let plain = run("base.toml", &directory.path().join("s"), json!({}));
    let (problem, remedy) = refused(json!({"ops": "concept_direction", "concept": {"store": plain.path()}}));
    assert!(problem.contains("`concept_state`") && remedy.contains("extract_concept_latent_state"), "{problem}");
    let same = json!({"ops": "concept_direction", "concept": {"tokens": [[" He"], [" He"]]}});
    assert!(refused(same).0.contains("zero"));
    let (problem, remedy) = refused(json!({"ops": "model_fwd_intervention"}));
    assert!(problem.contains("`concept_direction`") && remedy.contains("`concept_direction`"), "{problem} {remedy}");
    let (problem, remedy) = refused(json!({"ops": "graph_prune"}));
    assert!(problem.contains("SAE") && remedy.contains("saes"), "{problem} {remedy}");
}
