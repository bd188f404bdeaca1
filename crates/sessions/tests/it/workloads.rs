//! The four workloads against independent computations: full forward passes for every number.

use crate::helpers::{model, plain_model, run, write_sae};
use pellucid_engine::plan::{Combine, Expr, Pick};
use pellucid_engine::{Action, Array, Operand, Plan, RunOptions, Splice, Tap};
use pellucid_models::LoadedModel;
use pellucid_sessions::Store;
use pellucid_sessions::table::Column;
use serde_json::json;
use std::path::Path;

/// Logits of labels (He, She) at the last position of a full run.
fn label_logits(model: &LoadedModel, tokens: &[u32], taps: Vec<Tap>) -> [f32; 2] {
    let plan = Plan::of(taps.into_iter().chain([Tap::capture("logits").last()]));
    let run = model.model.run(&[tokens.to_vec()], &plan, &RunOptions::default()).expect("a run");
    let logits = run.captures.last().expect("logits").array.values();
    let tokenizer = model.tokenizer().expect("a tokenizer");
    [" He", " She"].map(|label| logits[tokenizer.find(label).expect("one token") as usize])
}

struct Rows {
    tokens: Vec<Vec<u32>>,
    labels: Vec<usize>,
    differences: Vec<f32>,
}

fn rows(store: &Store) -> Rows {
    let Column::Int64List(tokens) = store.column("examples", "tokens").expect("tokens") else { panic!("lists") };
    let integers = store.column("examples", "orig_labels").expect("labels");
    let differences = store.column("examples", "logit_diffs").expect("differences");
    Rows {
        tokens: tokens.iter().map(|row| row.iter().map(|&token| token as u32).collect()).collect(),
        labels: integers.integers().expect("integers").iter().map(|&label| label as usize).collect(),
        differences: differences.floats().expect("floats").to_vec(),
    }
}

fn difference(logits: [f32; 2], label: usize) -> f32 {
    logits[label] - logits[1 - label]
}

fn splices(model: &LoadedModel) -> Vec<Tap> {
    model.model.saes().iter().map(|sae| Tap::new(sae.write.to_string(), Action::Splice(Splice::Recon))).collect()
}

#[test]
fn base_differences_are_those_of_full_runs_without_batches() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = run("base.toml", &directory.path().join("s"), json!({}));
    let (rows, model) = (rows(&store), plain_model());
    assert_eq!(rows.tokens.len(), 8);
    let losses = store.column("examples", "loss").expect("losses");
    for (index, tokens) in rows.tokens.iter().enumerate() {
        let logits = label_logits(&model, tokens, Vec::new());
        assert_eq!(rows.differences[index].to_bits(), difference(logits, rows.labels[index]).to_bits());
        let plan = Plan::of([Tap::capture("logits").last()]);
        let run = model.model.run(std::slice::from_ref(tokens), &plan, &RunOptions::default()).expect("a run");
        let all: Vec<f64> = run.captures[0].array.values().iter().map(|&x| f64::from(x)).collect();
        let partition = all.iter().map(|x| x.exp()).sum::<f64>().ln();
        let expected = partition - f64::from(logits[rows.labels[index]]);
        assert!((f64::from(losses.floats().expect("floats")[index]) - expected).abs() < 1e-5);
    }
    // A control: without its first token, the first prompt has another difference.
    assert_ne!(difference(label_logits(&model, &rows.tokens[0][1..], vec![]), rows.labels[0]), rows.differences[0]);
}

#[test]
fn spliced_differences_and_active_latents_are_those_of_full_runs() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = run("sae.toml", &directory.path().join("s"), json!({}));
    let (rows, model) = (rows(&store), model(&[]));
    let latents = store.table("latents").expect("latents");
    let mut found = 0;
    for (index, tokens) in rows.tokens.iter().enumerate() {
        let logits = label_logits(&model, tokens, splices(&model));
        assert_eq!(rows.differences[index].to_bits(), difference(logits, rows.labels[index]).to_bits());
        let taps = splices(&model).into_iter().chain([Tap::capture("layers.3.resid_post/sae.acts")]);
        let run =
            model.model.run(std::slice::from_ref(tokens), &Plan::of(taps), &RunOptions::default()).expect("a run");
        let acts = run.captures[0].array.row(tokens.len() - 1).to_vec();
        for (latent, value) in acts.into_iter().enumerate().filter(|(_, value)| *value > 0.0) {
            let at = |name: &str| latents.get(name).expect("a column").show(found);
            assert_eq!((at("example"), at("latent")), (index.to_string(), latent.to_string()));
            assert_eq!(at("activation"), value.to_string());
            let correct = if rows.differences[index] > 0.0 { value.to_string() } else { String::new() };
            assert_eq!(at("correct_activations"), correct);
            found += 1;
        }
    }
    assert_eq!((found, latents.len()), (16 * 8, 16 * 8), "TopK 16 of 2048 at each answer position");
}

/// Checks every ablation of a store against a full forward pass with the same edit.
fn check_ablations(store: &Store, model: &LoadedModel) -> usize {
    let rows = rows(store);
    let latents = store.table("latents").expect("latents");
    let column = |name: &str| latents.get(name).unwrap_or_else(|| panic!("{name}"));
    let effects = column("attribution_values").floats().expect("floats");
    let after = column("logit_diffs").floats().expect("floats");
    for row in 0..latents.len() {
        let example = column("example").integers().expect("integers")[row] as usize;
        let latent = column("latent").integers().expect("integers")[row] as usize;
        let site = format!("{}/sae.acts", column("hook").show(row));
        let tokens = &rows.tokens[example];
        let zero = Tap::zero(site).units([latent]).positions(tokens.len() as i64 - 1);
        let taps = splices(model).into_iter().chain([zero]).collect();
        let ablated = difference(label_logits(model, tokens, taps), rows.labels[example]);
        assert_eq!(after[row].to_bits(), ablated.to_bits(), "example {example}, latent {latent}");
        let expected = if ablated > 0.0 { rows.differences[example] - ablated } else { 0.0 };
        assert_eq!(effects[row].to_bits(), expected.to_bits());
    }
    latents.len()
}

#[test]
fn ablations_are_full_forward_passes_bit_by_bit() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = run("attr_ablation.toml", &directory.path().join("s"), json!({}));
    assert_eq!(check_ablations(&store, &model(&[])), 16 * 8);
    let effects = store.column("latents", "attribution_values").expect("effects");
    assert!(effects.floats().expect("floats").iter().any(|effect| effect.abs() > 0.1), "some latent matters");
}

#[test]
fn ablations_with_three_autoencoders_encode_again_downstream() {
    let directory = tempfile::tempdir().expect("a directory");
    let (one, two) = (
        write_sae(directory.path(), "blocks.1.attn.hook_z", 96),
        write_sae(directory.path(), "blocks.2.hook_resid_post", 80),
    );
    let saes = json!([
        {"path": one, "unchecked": true}, {"path": two, "unchecked": true}, {"path": "builtin"}
    ]);
    let settings = json!({"saes": saes, "dataset": {"limit": 3}});
    let store = run("attr_ablation.toml", &directory.path().join("s"), settings);
    assert!(check_ablations(&store, &model(&[&one, &two])) > 3 * 16 + 20);
}

#[test]
fn attributions_are_activations_times_decoder_rows_times_gradients_of_the_plain_model() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = run("attr_grad.toml", &directory.path().join("s"), json!({}));
    let (rows, model, plain) = (rows(&store), model(&[]), plain_model());
    let latents = store.table("latents").expect("latents");
    let attributions = latents.get("attribution_values").and_then(Column::floats).expect("floats");
    let values = latents.get("activation").and_then(Column::floats).expect("floats");
    let decoder = &model.model.saes()[0].sae.decoders[0];
    let (mut direction, mut row, mut largest) = (vec![0.0; decoder.cols()], 0, 0.0_f32);
    for (example, tokens) in rows.tokens.iter().enumerate() {
        let signs = if rows.labels[example] == 0 { [1.0, -1.0] } else { [-1.0, 1.0] };
        let last = tokens.len() - 1;
        let picks: Vec<(usize, u32, f32)> = [" He", " She"]
            .iter()
            .zip(signs)
            .map(|(text, sign)| (last, plain.tokenizer().expect("a tokenizer").find(text).expect("one token"), sign))
            .collect();
        let gradient = stream_gradient(&model, &plain, tokens, last, &picks, false);
        while row < latents.len() && latents.get("example").and_then(Column::integers).unwrap()[row] == example as i64 {
            let latent = latents.get("latent").and_then(Column::integers).unwrap()[row] as usize;
            decoder.row(latent, &mut direction);
            let slope: f64 = direction.iter().zip(&gradient).map(|(w, g)| f64::from(*w) * f64::from(*g)).sum();
            let expected = f64::from(values[row]) * slope;
            assert!((f64::from(attributions[row]) - expected).abs() < 5e-5 * expected.abs().max(1.0), "row {row}");
            largest = largest.max(attributions[row].abs());
            row += 1;
        }
    }
    assert_eq!(row, latents.len());
    assert!(largest > 0.1, "some latent matters");
}

/// The gradient, at the residual stream after layer 3 and one position, of a signed sum of logits
/// (or log-probabilities) of tokens at positions. Reconstructions are written into the plain model.
fn stream_gradient(
    model: &LoadedModel,
    plain: &LoadedModel,
    tokens: &[u32],
    position: usize,
    picks: &[(usize, u32, f32)],
    log: bool,
) -> Vec<f32> {
    let capture = Plan::of([Tap::capture("layers.3.resid_post/sae.recon")]);
    let run = model.model.run(&[tokens.to_vec()], &capture, &RunOptions::default()).expect("a run");
    let recon = &run.captures[0].array;
    let lines = (0..tokens.len()).map(|position| recon.row(position).to_vec()).collect();
    let mut plan = Plan::of([Tap::set("layers.3.resid_post").with(Operand::Rows(lines))]);
    let mut logits = plan.read(Tap::read("logits"));
    if log {
        logits = plan.value(Expr::Softmax { of: logits, axis: -1, log: true });
    }
    let mut metric = plan.value(Expr::Constant(Array::new(vec![], vec![0.0])));
    for &(position, token, sign) in picks {
        let pick = vec![Pick::At(position as i64), Pick::At(i64::from(token))];
        let one = plan.value(Expr::Index { of: logits, picks: pick });
        metric = plan.value(Expr::Combine(if sign > 0.0 { Combine::Add } else { Combine::Sub }, metric, one));
    }
    plan.add_metric(metric);
    let plan = plan.with(Tap::capture("layers.4.resid_pre").positions(position as i64).of_gradient(0));
    let run = plain.model.run(&[tokens.to_vec()], &plan, &RunOptions::default()).expect("a run");
    run.captures[0].array.values().to_vec()
}

#[test]
fn results_do_not_depend_on_batches_or_parts() {
    let directory = tempfile::tempdir().expect("a directory");
    for name in ["attr_grad.toml", "attr_ablation.toml"] {
        let one = run(name, &directory.path().join(format!("1{name}")), json!({}));
        let settings = json!({"dataset": {"batch_size": 3}, "output": {"part_rows": 3}});
        let other = run(name, &directory.path().join(format!("2{name}")), settings);
        assert_eq!((one.manifest().parts.len(), other.manifest().parts.len()), (1, 3));
        for (table, column) in [("examples", "logit_diffs"), ("latents", "attribution_values"), ("latents", "latent")] {
            let columns = (one.column(table, column).expect("one"), other.column(table, column).expect("other"));
            assert_eq!(columns.0.first_difference(&columns.1), None, "{name} {column}");
        }
    }
}

#[test]
fn sequences_of_tokens_are_scored_by_their_log_probability() {
    let directory = tempfile::tempdir().expect("a directory");
    let labels = json!([" He was", " She went to"]);
    let dataset =
        json!({"labels": labels, "label_field": "label", "answer": "sequence", "path": data(directory.path())});
    for name in ["base.toml", "attr_ablation.toml", "attr_grad.toml"] {
        let store = run(name, &directory.path().join(name), json!({"dataset": dataset}));
        let model = if name == "base.toml" { plain_model() } else { model(&[]) };
        let tokenizer = model.tokenizer().expect("a tokenizer");
        let rows = rows(&store);
        for (index, tokens) in rows.tokens.iter().enumerate() {
            let scores = [" He was", " She went to"].map(|label| {
                let whole = tokenizer.encode(&format!("Lily saw a cat.{label}"), false).expect("tokens");
                let own = &whole[tokenizer.encode("Lily saw a cat.", false).expect("tokens").len()..];
                assert!(own.len() > 1);
                let row: Vec<u32> = tokens.iter().chain(own).copied().collect();
                let taps = if name == "base.toml" { Vec::new() } else { splices(&model) };
                let plan = Plan::of(taps.into_iter().chain([Tap::capture("logits")]));
                let run = model.model.run(&[row], &plan, &RunOptions::default()).expect("a run");
                let logits = &run.captures[0].array;
                let score = own.iter().enumerate().map(|(at, &token)| {
                    let line = logits.row(tokens.len() - 1 + at);
                    let sum: f64 = line.iter().map(|&x| f64::from(x).exp()).sum();
                    f64::from(line[token as usize]) - sum.ln()
                });
                score.sum::<f64>()
            });
            let expected = scores[rows.labels[index]] - scores[1 - rows.labels[index]];
            assert!((f64::from(rows.differences[index]) - expected).abs() < 1e-4, "{name}: {expected}");
        }
        if name == "attr_grad.toml" {
            check_sequence_gradients(&store, &model, &rows);
        }
    }
}

/// Checks the attributions of two-token labels: gradients of both rows of an example add up.
fn check_sequence_gradients(store: &Store, model: &LoadedModel, rows: &Rows) {
    let latents = store.table("latents").expect("latents");
    let column = |name: &str| latents.get(name).unwrap_or_else(|| panic!("{name}"));
    let Column::Int64List(labels) = store.column("examples", "label_tokens").expect("labels") else { panic!("lists") };
    let Column::Int64List(lengths) = store.column("examples", "label_lengths").expect("lengths") else {
        panic!("lists")
    };
    let (decoder, plain) = (&model.model.saes()[0].sae.decoders[0], plain_model());
    let mut direction = vec![0.0; decoder.cols()];
    for (example, tokens) in rows.tokens.iter().enumerate() {
        let (last, mut gradient, mut start) = (tokens.len() - 1, vec![0.0; decoder.cols()], 0);
        for (label, &length) in lengths[example].iter().enumerate() {
            let own: Vec<u32> = labels[example][start..start + length as usize].iter().map(|&t| t as u32).collect();
            start += length as usize;
            let sign = if label == rows.labels[example] { 1.0 } else { -1.0 };
            let picks: Vec<_> = own.iter().enumerate().map(|(at, &token)| (last + at, token, sign)).collect();
            let row: Vec<u32> = tokens.iter().chain(&own).copied().collect();
            let more = stream_gradient(model, &plain, &row, last, &picks, true);
            gradient.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
        }
        for row in 0..latents.len() {
            if column("example").integers().expect("integers")[row] != example as i64 {
                continue;
            }
            decoder.row(column("latent").integers().expect("integers")[row] as usize, &mut direction);
            let slope: f64 = direction.iter().zip(&gradient).map(|(w, g)| f64::from(*w) * f64::from(*g)).sum();
            let expected = f64::from(column("activation").floats().expect("floats")[row]) * slope;
            let found = f64::from(column("attribution_values").floats().expect("floats")[row]);
            assert!((found - expected).abs() < 5e-5 * expected.abs().max(1.0), "{found} {expected}");
        }
    }
}

/// A dataset of one prompt with both labels.
fn data(directory: &Path) -> std::path::PathBuf {
    let path = directory.join("two.jsonl");
    let lines = "{\"text\": \"Lily saw a cat.\", \"label\": 1}\n{\"text\": \"Lily saw a cat.\", \"label\": 0}\n";
    std::fs::write(&path, lines).expect("written");
    path
}

#[test]
fn runs_kept_for_branches_have_the_bits_of_plain_spliced_runs() {
    let directory = tempfile::tempdir().expect("a directory");
    for error_term in [false, true] {
        let settings = || json!({"saes": [{"path": "builtin", "error_term": error_term}]});
        let plain = run("sae.toml", &directory.path().join(format!("p{error_term}")), settings());
        let kept = run("attr_ablation.toml", &directory.path().join(format!("k{error_term}")), settings());
        for (table, column) in [("examples", "logit_diffs"), ("examples", "loss"), ("latents", "activation")] {
            let columns = (plain.column(table, column).expect("plain"), kept.column(table, column).expect("kept"));
            assert_eq!(columns.0.first_difference(&columns.1), None, "{column}, error term {error_term}");
        }
    }
}
