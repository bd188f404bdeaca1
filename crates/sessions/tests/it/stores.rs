//! Stores: reading, comparing, exporting, replaying.

use crate::helpers::{error_of, run};
use pellucid_sessions::Store;
use pellucid_sessions::ops::Registry;
use pellucid_sessions::session::replay;
use pellucid_sessions::store::{ExportFormat, dense_arrays, diff, export, summarize, to_html};
use pellucid_sessions::table::{Column, DataType};
use serde_json::{Value, json};
use std::path::Path;

fn edit_manifest(store: &Path, edit: impl FnOnce(&mut Value)) {
    let path = store.join("manifest.json");
    let mut manifest = serde_json::from_slice(&std::fs::read(&path).expect("a manifest")).expect("JSON");
    edit(&mut manifest);
    std::fs::write(&path, manifest.to_string()).expect("written");
}

#[test]
fn equal_sessions_give_equal_stores_and_other_ops_differ() {
    let directory = tempfile::tempdir().expect("a directory");
    let one = run("sae.toml", &directory.path().join("one"), json!({}));
    let two = run("sae.toml", &directory.path().join("two"), json!({"model": {"threads": 1}}));
    assert_eq!(one.manifest().content_hash, two.manifest().content_hash);
    assert!(diff(&one, &two).expect("compared").is_equal());
    let base = run("base.toml", &directory.path().join("base"), json!({}));
    let found = diff(&one, &base).expect("compared");
    assert!(found.provenance.iter().any(|line| line.starts_with("ops: ")), "{:?}", found.provenance);
    let column = found.columns.iter().find(|own| own.column == "logit_diffs").expect("another difference");
    assert_eq!((column.rows, column.first_row), (8, Some(0)));
    assert!(column.max_difference.expect("floats") > 0.0);
    assert!(found.columns.iter().any(|own| own.table == "latents" && own.first_row.is_none()));
}

#[test]
fn replays_are_equal_and_name_the_first_difference() {
    let directory = tempfile::tempdir().expect("a directory");
    for name in ["base.toml", "sae.toml", "attr_grad.toml", "attr_ablation.toml"] {
        let store = run(name, &directory.path().join(name), json!({"output": {"part_rows": 4}}));
        let report = replay(&store, &[], &Registry::default(), None, &mut |_| {}).expect("a replay");
        assert_eq!((report.difference, report.changes.len(), report.examples), (None, 0, 8), "{name}");
    }
    // The same results under another op version, and with the error term, which changes logits.
    let path = directory.path().join("sae.toml");
    edit_manifest(&path, |manifest| {
        manifest["ops"][1]["version"] = json!("0");
        manifest["config"]["saes"][0]["error_term"] = json!(true);
    });
    let store = Store::open(&path).expect("a store");
    let report = replay(&store, &[], &Registry::default(), None, &mut |_| {}).expect("a replay");
    assert!(report.changes.iter().any(|change| change.contains("version 1")), "{:?}", report.changes);
    let found = report.difference.expect("a difference");
    assert_eq!((found.part, found.column.table.as_str()), (0, "examples"));
    // A file that was changed is found before anything runs.
    let file = path.join("examples/part-00000.parquet");
    let mut bytes = std::fs::read(&file).expect("a part");
    bytes[20] ^= 1;
    std::fs::write(&file, bytes).expect("written");
    let (problem, _) = error_of(replay(&store, &[], &Registry::default(), None, &mut |_| {}));
    assert!(
        problem.contains("part-00000.parquet") && problem.contains("not those that the session wrote"),
        "{problem}"
    );
}

#[test]
fn exports_hold_the_same_numbers() {
    let directory = tempfile::tempdir().expect("a directory");
    let settings = json!({"output": {"part_rows": 4, "formats": ["parquet", "safetensors"]}});
    let store = run("attr_ablation.toml", &directory.path().join("s"), settings);
    let arrays = dense_arrays(&store).expect("arrays");
    let effects = arrays.iter().find(|own| own.name == "attribution_values/layers.3.resid_post").expect("effects");
    assert_eq!(effects.shape, [8, 2048]);
    let column = store.column("latents", "attribution_values").expect("effects");
    let sum = |values: &[f32]| values.iter().map(|&value| f64::from(value)).sum::<f64>();
    assert!((sum(&effects.values) - sum(column.floats().expect("floats"))).abs() < 1e-9);
    let bytes = std::fs::read(store.path().join("arrays.safetensors")).expect("the session's arrays");
    let read = safetensors::SafeTensors::deserialize(&bytes).expect("safetensors");
    let tensor = read.tensor("attribution_values/layers.3.resid_post").expect("effects");
    let expected: Vec<u8> = effects.values.iter().flat_map(|value| value.to_le_bytes()).collect();
    assert!(tensor.shape() == [8, 2048] && tensor.data() == expected);
    for format in [ExportFormat::Csv, ExportFormat::Jsonl, ExportFormat::Parquet, ExportFormat::Safetensors] {
        let files = export(&store, format, &directory.path().join("out")).expect("exported");
        assert_eq!(files.len(), if format == ExportFormat::Safetensors { 1 } else { 2 });
    }
    let joined = directory.path().join("out/latents.parquet");
    let read = pellucid_sessions::store::read_column(&joined, "attribution_values", DataType::Float32).expect("read");
    assert_eq!(read.first_difference(&column), None);
    let csv = std::fs::read_to_string(directory.path().join("out/latents.csv")).expect("CSV");
    assert_eq!(csv.lines().count(), 1 + column.len());
}

#[test]
fn a_summary_sums_effects_over_correct_examples() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = run("attr_ablation.toml", &directory.path().join("s"), json!({}));
    let summary = summarize(&store).expect("a summary");
    assert_eq!((summary.examples, summary.batches, summary.hooks.len()), (8, 4, 1));
    let hook = &summary.hooks[0];
    assert_eq!(hook.mean_active, 16.0);
    let latents = store.table("latents").expect("latents");
    let first = &hook.latents[0];
    let ids = latents.get("latent").and_then(Column::integers).expect("integers");
    let effects = latents.get("attribution_values").and_then(Column::floats).expect("floats");
    let own: Vec<f64> =
        ids.iter().zip(effects).filter(|(id, _)| **id == first.latent as i64).map(|(_, e)| f64::from(*e)).collect();
    assert_eq!(own.len(), first.active);
    // An effect is 0 where the ablated model is wrong, so all effects are of correct examples.
    assert!((own.iter().sum::<f64>() - first.total_effect.expect("an effect")).abs() < 1e-6);
    assert!((first.mean_effect.unwrap() * 8.0 - first.total_effect.unwrap()).abs() < 1e-9);
    let weights: Vec<f64> = hook.latents.iter().map(|latent| latent.total_effect.unwrap().abs()).collect();
    assert!(weights.is_sorted_by(|a, b| a >= b));
    let page = to_html(&store, &summary, 5);
    assert!(page.contains("layers.3.resid_post") && page.contains(&format!("<td>{}</td>", first.latent)));
}

#[test]
fn newer_schemas_and_directories_that_are_no_stores_are_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = run("base.toml", &directory.path().join("s"), json!({}));
    edit_manifest(store.path(), |manifest| manifest["schema"] = json!(7));
    let (problem, remedy) = error_of(Store::open(store.path()));
    assert!(problem.contains("schema 7") && remedy.contains("newer"), "{problem} {remedy}");
    edit_manifest(store.path(), |manifest| *manifest = json!({"schema": 1}));
    assert!(error_of(Store::open(store.path())).0.contains("missing field"));
    assert!(error_of(Store::open(directory.path())).0.contains("no manifest.json"));
    assert!(error_of(Store::open(&directory.path().join("none"))).0.contains("there is no store"));
}
