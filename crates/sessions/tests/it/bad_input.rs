//! Bad input: every error names the thing, its place and the remedy, before anything runs.

use crate::helpers::{error_of, example, examples, open, run_sources};
use pellucid_sessions::config::{ConfigSource, read_config, schema};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

fn write(directory: &Path, name: &str, text: &str) -> PathBuf {
    let path = directory.join(name);
    std::fs::write(&path, text).expect("written");
    path
}

/// Opens an example session with other settings; returns problem and remedy.
fn refused(name: &str, settings: Value) -> (String, String) {
    let output = json!({"output": {"path": "never-written"}});
    let mut sources = example(name, output);
    sources.push(ConfigSource::Json(settings));
    error_of(open(&sources))
}

#[test]
fn files_report_the_line_of_an_unknown_key_and_of_a_wrong_type() {
    let directory = tempfile::tempdir().expect("a directory");
    let read =
        |name: &str, text: &str| error_of(read_config(&[ConfigSource::File(write(directory.path(), name, text))]));
    let (problem, remedy) = read("s.toml", "seed = 1\n[dataset]\nlimt = 4\n");
    assert!(problem.contains("s.toml, line 3: unknown field `limt`"), "{problem}");
    assert!(remedy.contains("docs/sessions.md"));
    let (problem, _) = read("s.toml", "[dataset]\nlimit = \"four\"\n");
    assert!(problem.contains("line 2") && problem.contains("four"), "{problem}");
    let (problem, _) = read("s.toml", "[dataset\n");
    assert!(problem.contains("s.toml, line 1"), "{problem}");
    let (problem, _) = read("s.yaml", "seed: 1\ndataset:\n  limt: 4\n");
    assert!(problem.contains("s.yaml, line 3") && problem.contains("limt"), "{problem}");
    let (problem, _) = read("s.yaml", "name: x\nops: [1]\n");
    assert!(problem.contains("s.yaml, line 2: `ops` is neither a chain"), "{problem}");
    let (problem, _) = read("s.yaml", "dataset:\n  padding: other\n");
    assert!(problem.contains("s.yaml, line 2"), "{problem}");
    let (problem, remedy) = read("s.json", "{}");
    assert!(problem.contains("s.json") && remedy.contains(".toml"), "{problem}");
    let (problem, _) = error_of(read_config(&[ConfigSource::File(directory.path().join("none.toml"))]));
    assert!(problem.contains("none.toml"), "{problem}");
}

#[test]
fn settings_are_checked_like_files() {
    let set = |text: &str| error_of(read_config(&[ConfigSource::Set(text.into())]));
    assert!(set("dataset.limt=3").0.contains("`dataset.limt=3`: unknown field `limt`"));
    assert!(set("limit").1.contains("key=value"));
    assert!(set("dataset.limit=x").0.contains("dataset.limit=x"));
    let merged = read_config(&[
        ConfigSource::File(examples().join("sae.toml")),
        ConfigSource::Set("dataset.limit = 3".into()),
        ConfigSource::Set("dataset.labels=[\" A\", \" B\"]".into()),
        ConfigSource::Set("name=with spaces".into()),
    ]);
    let config = merged.expect("a session").config;
    assert_eq!((config.dataset.limit, config.dataset.batch_size), (Some(3), Some(2)));
    assert_eq!(config.dataset.labels, [" A", " B"]);
    assert_eq!(config.name.as_deref(), Some("with spaces"));
}

#[test]
fn yaml_and_toml_give_the_same_session_and_later_files_win() {
    let directory = tempfile::tempdir().expect("a directory");
    let toml =
        write(directory.path(), "a.toml", "ops = \"logit_diffs_base\"\n[dataset]\nlimit = 4\npath = \"d.jsonl\"\n");
    let yaml = write(directory.path(), "a.yaml", "ops: logit_diffs_base\ndataset:\n  limit: 4\n  path: d.jsonl\n");
    let read = |paths: &[&PathBuf]| {
        let sources: Vec<ConfigSource> = paths.iter().map(|path| ConfigSource::File(path.to_path_buf())).collect();
        read_config(&sources).expect("a session").config
    };
    assert_eq!(read(&[&toml]), read(&[&yaml]));
    let more = write(directory.path(), "b.yml", "dataset: {limit: 7}\n");
    let both = read(&[&toml, &more]);
    assert_eq!((both.dataset.limit, both.dataset.path), (Some(7), Some(directory.path().join("d.jsonl"))));
}

#[test]
fn rows_without_a_field_or_with_other_labels_are_named() {
    let directory = tempfile::tempdir().expect("a directory");
    let dataset = |text: &str| {
        let path = write(directory.path(), "d.jsonl", text);
        refused("base.toml", json!({"dataset": {"path": path}}))
    };
    let good = "{\"text\": \"Tom ran.\", \"pronoun\": \" He\"}\n";
    let (problem, remedy) = dataset(&format!("{good}{{\"pronoun\": \" He\"}}\n"));
    assert!(problem.contains("d.jsonl, line 2: there is no field `text`"), "{problem}");
    assert!(remedy.contains("pronoun"), "{remedy}");
    let (problem, _) = dataset(&format!("{good}\n{{\"text\": \"a\"}}\n"));
    assert!(problem.contains("d.jsonl, line 3: there is no field `pronoun`"), "{problem}");
    let (problem, remedy) = dataset("{\"text\": \"a\", \"pronoun\": \" They\"}\n");
    assert!(problem.contains("which is not a label") && remedy.contains(" She"), "{problem} {remedy}");
    let (problem, _) = dataset("{\"text\": \"a\"\n");
    assert!(problem.contains("d.jsonl, line 1") && !problem.contains("at line 1"), "{problem}");
    let (problem, remedy) = dataset("{\"text\": \"\", \"pronoun\": \" He\"}\n");
    assert!(problem.contains("line 1: the prompt is empty") && remedy.contains("bos"), "{problem} {remedy}");
    let (problem, _) = dataset("[1]\n");
    assert!(problem.contains("neither an object nor a string"), "{problem}");
    assert!(dataset("\n").0.contains("has no examples"));
}

#[test]
fn labels_of_several_tokens_need_a_mode() {
    let labels = json!({"dataset": {"labels": [" He was", " She"], "label_field": "nothing"}});
    let directory = tempfile::tempdir().expect("a directory");
    let path = write(directory.path(), "d.jsonl", "{\"text\": \"Tom ran.\", \"nothing\": 0}\n");
    let mut settings = labels.clone();
    settings["dataset"]["path"] = json!(path);
    let (problem, remedy) = refused("base.toml", settings.clone());
    assert!(problem.contains("d.jsonl, line 1: the label \" He was\" is 2 tokens"), "{problem}");
    assert!(remedy.contains("first_token") && remedy.contains("sequence"), "{remedy}");
    for mode in ["first_token", "sequence"] {
        settings["dataset"]["answer"] = json!(mode);
        let mut sources = example("base.toml", json!({"output": {"path": directory.path().join(mode)}}));
        sources.push(ConfigSource::Json(settings.clone()));
        run_sources(&sources).unwrap_or_else(|error| panic!("{mode}: {error}"));
    }
}

#[test]
fn chains_and_columns_are_checked_before_the_model_is_loaded() {
    let (problem, _) = refused("base.toml", json!({"ops": "logit_diff_base", "model": {"path": "/nowhere"}}));
    assert!(problem.contains("base.toml, line 3: there is no op `logit_diff_base`"), "{problem}");
    let (problem, remedy) = refused("sae.toml", json!({"ops": ["labels_to_ids", "gradient_attribution"]}));
    assert!(problem.contains("needs `cache`"), "{problem}");
    assert!(remedy.contains("`model_gradient`"), "{remedy}");
    let (problem, _) = refused("base.toml", json!({"ops": "logit_diffs_sae"}));
    assert!(problem.contains("needs an SAE"), "{problem}");
    let (problem, _) = refused("base.toml", json!({"dataset": {"labels": [" He"]}}));
    assert!(problem.contains("there is one label"), "{problem}");
    let (problem, _) = error_of(open(&[ConfigSource::Json(json!({"ops": "model_fwd"}))]));
    assert!(problem.contains("`output.path` is missing"), "{problem}");
}

#[test]
fn autoencoders_and_models_that_do_not_fit_are_named_with_their_line() {
    let (problem, remedy) = refused("sae.toml", json!({"saes": [{"path": "builtin", "site": "layers.3.mlp_out"}]}));
    assert!(problem.contains("sae.toml, line") && problem.contains("explained variance -0.39"), "{problem}");
    assert!(remedy.contains("`unchecked = true` in its [[saes]] table"), "{remedy}");
    let (problem, _) = refused("sae.toml", json!({"saes": [{"path": "no/such/sae"}]}));
    assert!(problem.contains("no/such/sae"), "{problem}");
    let (problem, _) = refused("sae.toml", json!({"saes": [{"site": "layers.3.mlp_out"}]}));
    assert!(problem.contains("no `path`"), "{problem}");
    let (problem, _) = refused("base.toml", json!({"model": {"path": "no-such-model"}}));
    assert!(problem.contains("no-such-model"), "{problem}");
    let (problem, _) = refused("base.toml", json!({"dataset": {"path": "/nowhere/d.jsonl"}}));
    assert!(problem.contains("there is no dataset /nowhere/d.jsonl"), "{problem}");
}

#[test]
fn datasets_of_every_format_give_the_same_examples() {
    let directory = tempfile::tempdir().expect("a directory");
    let jsonl = "{\"text\": \"Tom, \\\"ran\\\".\", \"y\": 0}\n{\"text\": \"Lily ran.\", \"y\": 1}\n";
    let csv = "text,y\n\"Tom, \"\"ran\"\".\",0\nLily ran.,1\n";
    let tsv = "text\ty\nTom, \"ran\".\t0\nLily ran.\t1\n".replace("Tom, \"ran\".", "\"Tom, \"\"ran\"\".\"");
    let mut table = pellucid_sessions::table::Table::default();
    let texts = vec!["Tom, \"ran\".".to_string(), "Lily ran.".into()];
    table.set("text", pellucid_sessions::table::Column::Text(texts)).expect("a column");
    table.set("y", pellucid_sessions::table::Column::Int64(vec![0, 1])).expect("a column");
    pellucid_sessions::store::write_table(&directory.path().join("d.parquet"), &table).expect("written");
    for (name, text) in [("d.jsonl", jsonl), ("d.csv", csv), ("d.tsv", &tsv)] {
        write(directory.path(), name, text);
    }
    let mut found = Vec::new();
    for name in ["d.jsonl", "d.csv", "d.tsv", "d.parquet"] {
        let settings = json!({
            "dataset": {"path": directory.path().join(name), "label_field": "y"},
            "output": {"path": directory.path().join("out")},
        });
        let session = open(&example("base.toml", settings)).unwrap_or_else(|error| panic!("{name}: {error}"));
        found.push(session.examples().to_vec());
    }
    assert!(found.iter().all(|examples| *examples == found[0] && examples.len() == 2));
    // Plain text has no labels, so only ops without them run.
    write(directory.path(), "d.txt", "Tom ran.\n\nLily ran.\n");
    let settings = json!({
        "dataset": {"path": directory.path().join("d.txt")}, "ops": "model_fwd",
        "output": {"path": directory.path().join("text")},
    });
    let outcome = run_sources(&[ConfigSource::Json(settings)]).expect("plain text");
    assert_eq!(outcome.store.rows("examples"), 2);
}

#[test]
fn splits_are_files_of_a_directory_or_values_of_a_field() {
    let directory = tempfile::tempdir().expect("a directory");
    let line = |text: &str| format!("{{\"text\": \"{text}\", \"pronoun\": \" He\", \"split\": \"{text}\"}}\n");
    let splits = directory.path().join("splits");
    std::fs::create_dir(&splits).expect("a directory");
    write(&splits, "train.jsonl", &line("train"));
    write(&splits, "test-00000-of-00001.jsonl", &line("test"));
    let both = write(directory.path(), "both.jsonl", &(line("train") + &line("test")));
    let prompts = |path: &Path, split: Value| {
        let settings =
            json!({"dataset": {"path": path, "split": split}, "output": {"path": directory.path().join("o")}});
        let session = open(&example("base.toml", settings))?;
        Ok(session.examples().iter().map(|example| example.prompt.clone()).collect::<Vec<_>>())
    };
    for path in [&splits, &both] {
        assert_eq!(prompts(path, json!("test")).expect("a split"), ["test"]);
    }
    let (problem, remedy) = error_of(prompts(&splits, json!("dev")));
    assert!(problem.contains("\"dev\"") && remedy.contains("train"), "{problem} {remedy}");
    assert!(error_of(prompts(&both, json!("dev"))).0.contains("has no examples"));
    let other = write(directory.path(), "other.jsonl", "{\"text\": \"a\", \"pronoun\": \" He\"}\n");
    assert!(error_of(prompts(&other, json!("dev"))).0.contains("no field `split`"));
}

#[test]
fn the_schema_describes_every_key_of_the_examples() {
    let schema = schema();
    let dataset = &schema["$defs"]["DatasetConfig"]["properties"];
    for key in ["path", "prompt", "labels", "label_field", "batch_size", "limit", "padding"] {
        assert!(dataset[key]["description"].is_string(), "{key}");
    }
    assert!(schema["properties"]["saes"].is_object());
}
