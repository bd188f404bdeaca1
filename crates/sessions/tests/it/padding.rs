//! The compatibility modes of padding against runs without pads.

use crate::helpers::{error_of, example, open, run, run_sources};
use pellucid_engine::{Plan, RunOptions, Tap};
use pellucid_models::{LoadOptions, LoadedModel};
use pellucid_sessions::Store;
use pellucid_sessions::config::ConfigSource;
use pellucid_sessions::ops::Registry;
use pellucid_sessions::session::replay;
use pellucid_sessions::table::Column;
use serde_json::{Value, json};
use std::path::Path;

fn floats(store: &Store, table: &str, name: &str) -> Vec<f32> {
    store.column(table, name).expect(name).floats().expect("floats").to_vec()
}

fn tokens(store: &Store) -> Vec<Vec<u32>> {
    let Column::Int64List(tokens) = store.column("examples", "tokens").expect("tokens") else { panic!("lists") };
    tokens.iter().map(|row| row.iter().map(|&token| token as u32).collect()).collect()
}

/// The golden GPT-2, which has learned positions, with a tokenizer of one-letter words.
fn gpt2(directory: &Path) -> std::path::PathBuf {
    let path = directory.join("gpt2");
    std::fs::create_dir_all(&path).expect("a directory");
    for entry in std::fs::read_dir(golden::path("gpt2")).expect("the golden model").flatten() {
        std::fs::copy(entry.path(), path.join(entry.file_name())).expect("copied");
    }
    let words: serde_json::Map<String, Value> = std::iter::once("<eos>".to_string())
        .chain(('a'..='z').map(String::from))
        .enumerate()
        .map(|(id, word)| (word, json!(id)))
        .collect();
    let eos = json!({"id": 0, "content": "<eos>", "single_word": false, "lstrip": false, "rstrip": false,
        "normalized": false, "special": true});
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [eos], "normalizer": null,
        "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null, "decoder": null,
        "model": {"type": "WordLevel", "vocab": words, "unk_token": "<eos>"},
    });
    std::fs::write(path.join("tokenizer.json"), tokenizer.to_string()).expect("written");
    let config = json!({"bos_token": "<eos>", "eos_token": "<eos>"});
    std::fs::write(path.join("tokenizer_config.json"), config.to_string()).expect("written");
    path
}

fn gpt2_session(directory: &Path, name: &str, dataset: Value) -> Store {
    let data = directory.join("data.jsonl");
    let rows = [("q w e r t y", "a"), ("u i", "b"), ("o p s", "a")];
    let lines: Vec<String> = rows.iter().map(|(p, l)| json!({"prompt": p, "label": l}).to_string()).collect();
    std::fs::write(&data, lines.join("\n")).expect("written");
    let mut settings = json!({
        "model": {"path": gpt2(directory)}, "ops": "logit_diffs_base",
        "dataset": {"path": data, "labels": ["a", "b"]},
        "output": {"path": directory.join(name)},
    });
    for (key, value) in dataset.as_object().expect("a table") {
        settings["dataset"][key] = value.clone();
    }
    run_sources(&[ConfigSource::Json(settings)]).unwrap_or_else(|error| panic!("{error}")).store
}

#[test]
fn hf_arange_counts_positions_over_masked_pads() {
    let directory = tempfile::tempdir().expect("a directory");
    let (correct, padded) = (
        gpt2_session(directory.path(), "correct", json!({})),
        gpt2_session(directory.path(), "padded", json!({"padding": "hf_arange", "pad_to": 8})),
    );
    let loaded = LoadedModel::open(&gpt2(directory.path()), &LoadOptions::default(), &mut |_| {}).expect("a model");
    let found = floats(&padded, "examples", "logit_diffs");
    let labels = padded.column("examples", "orig_labels").expect("labels");
    for (index, row) in tokens(&correct).into_iter().enumerate() {
        let pads = 8 - row.len();
        let expected: Vec<u32> = std::iter::repeat_n(0, pads).chain(row.iter().copied()).collect();
        assert_eq!(tokens(&padded)[index], expected);
        // Without pads: the position embeddings of later positions are written instead.
        let long = Plan::of([Tap::capture("pos_embed").positions(pads as i64..8)]);
        let table = loaded.model.run(&[vec![0; 8]], &long, &RunOptions::default()).expect("a run");
        let positions: Vec<Vec<f32>> = (0..row.len()).map(|i| table.captures[0].array.row(i).to_vec()).collect();
        let plan = Plan::of([Tap::set("pos_embed").with(positions), Tap::capture("logits").last()]);
        let run = loaded.model.run(&[row], &plan, &RunOptions::default()).expect("a run");
        let logits = run.captures[0].array.values();
        let difference =
            (logits[1] - logits[2]) * if labels.integers().expect("labels")[index] == 0 { 1.0 } else { -1.0 };
        assert!((found[index] - difference).abs() < 1e-4, "{} and {difference}", found[index]);
    }
    let plain = floats(&correct, "examples", "logit_diffs");
    assert!(plain.iter().zip(&found).any(|(a, b)| (a - b).abs() > 1e-2), "positions matter: {plain:?} {found:?}");
    let report = replay(&padded, &[], &Registry::default(), None, &mut |_| {}).expect("a replay");
    assert_eq!(report.difference, None, "the number of pads is recorded");
}

#[test]
fn hooked_transformer_keeps_the_last_pad_as_bos() {
    let directory = tempfile::tempdir().expect("a directory");
    let correct = tokens(&gpt2_session(directory.path(), "correct", json!({})));
    let hooked = gpt2_session(directory.path(), "hooked", json!({"padding": "hooked_transformer"}));
    let expected: Vec<Vec<u32>> = correct
        .iter()
        .map(|row| if row.len() == 6 { row.clone() } else { std::iter::once(0).chain(row.iter().copied()).collect() })
        .collect();
    assert_eq!(tokens(&hooked), expected, "the longest row has no pad");
    let loaded = LoadedModel::open(&gpt2(directory.path()), &LoadOptions::default(), &mut |_| {}).expect("a model");
    let plan = Plan::of([Tap::capture("logits").last()]);
    let run = loaded.model.run(&expected, &plan, &RunOptions::default()).expect("a run");
    let logits = |row: usize| run.captures[row].array.values();
    let found = floats(&hooked, "examples", "logit_diffs");
    assert_eq!(found, [logits(0)[1] - logits(0)[2], logits(1)[2] - logits(1)[1], logits(2)[1] - logits(2)[2]]);
}

/// The built-in model has rotary positions, so an offset changes nothing but the rounding.
#[test]
fn ablations_and_gradients_mask_pads_too() {
    let directory = tempfile::tempdir().expect("a directory");
    let padded = json!({"dataset": {"padding": "hf_arange", "pad_to": 20}});
    for name in ["sae.toml", "attr_grad.toml", "attr_ablation.toml"] {
        let stores = [
            run(name, &directory.path().join(format!("{name}-correct")), json!({})),
            run(name, &directory.path().join(format!("{name}-padded")), padded.clone()),
        ];
        let [correct, shifted] = stores.each_ref().map(|store| floats(store, "examples", "logit_diffs"));
        for (a, b) in correct.iter().zip(&shifted) {
            assert!((a - b).abs() < 1e-3, "{name}: {a} and {b}");
        }
        if name != "sae.toml" {
            let [correct, shifted] = stores.each_ref().map(|store| floats(store, "latents", "attribution_values"));
            assert_eq!(correct.len(), shifted.len(), "{name}");
            for (a, b) in correct.iter().zip(&shifted) {
                assert!((a - b).abs() < 2e-3, "{name}: {a} and {b}");
            }
        }
    }
}

#[test]
fn padded_lengths_are_checked() {
    let refused = |dataset: Value| {
        error_of(open(&example("base.toml", json!({"dataset": dataset, "output": {"path": "never-written"}}))))
    };
    let (problem, remedy) = refused(json!({"pad_to": 20}));
    assert!(problem.contains("not padded") && remedy.contains("hf_arange"), "{problem} {remedy}");
    let (problem, _) = refused(json!({"padding": "hf_arange", "pad_to": 1000}));
    assert!(problem.contains("1000") && problem.contains("context"), "{problem}");
}
