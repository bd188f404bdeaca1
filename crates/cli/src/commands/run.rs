//! `pellucid run`: runs prompts once, with captures and edits.

use super::{list_marks, print, print_json, print_result, say, say_passed_over, say_written};
use crate::args::RunArgs;
use crate::failure::Failure;
use crate::files::{NamedResult, Results};
use crate::remote::{FinishedRun, ModelPlace};
use crate::{files, inputs, models, remote};
use pellucid_client::Explained;
use pellucid_engine::{Action, Array, NanOrigin, Plan, Positions, Run, RunOptions, SparseRows, Tap};
use pellucid_models::LoadedModel;
use serde_json::{Value, json};
use std::time::Instant;

/// Number of top next tokens shown per row.
const TOP_TOKENS: usize = 5;
/// Results with at most this many values are printed in full, larger ones as statistics.
const MAX_LISTED_VALUES: usize = 8;

pub fn run(args: RunArgs) -> Result<(), Failure> {
    inputs::check_captures(&args.plan)?;
    if args.explain && args.plan.out.is_some() {
        return Err(Failure::usage("--explain runs nothing, so --out would stay empty", "leave out one of the two"));
    }
    files::check(args.plan.out.as_deref())?;
    remote::check_plan(&args.plan, &args.server)?;
    let started = Instant::now();
    let file = inputs::plan_file(&args.plan)?;
    let place = remote::open(&args.model, &args.server, &file.saes())?;
    let loaded = place.parts();
    models::say_unused_adapters(&args.model);
    let load_s = started.elapsed().as_secs_f64();
    let prompts = inputs::prompts(loaded, &args.input, args.input_file.as_deref())?;
    let mut plan = inputs::plan(loaded, file, &args.plan, &prompts)?;
    let rows = prompts.rows;
    // Without captures the command prints the next tokens. With captures, ops after the last
    // captured site do not run.
    let has_result = |tap: &Tap| matches!(tap.action, Action::Capture(_) | Action::Grad { .. } | Action::Mark(_));
    let shows_next_tokens = plan.save.is_empty() && !plan.taps.iter().any(has_result);
    if shows_next_tokens {
        plan.taps.push(Tap::new("logits", Action::Capture(None)).positions(Positions::Last));
    }
    if args.explain {
        let lengths: Vec<usize> = rows.iter().map(Vec::len).collect();
        return explain(&place, &plan, &lengths, args.json);
    }
    let started = Instant::now();
    let captures = inputs::capture_options(&args.plan);
    let options = RunOptions { chunk: args.chunk.map(|n| n as usize), captures, ..RunOptions::default() };
    let FinishedRun { run, nan } = place.run(&rows, &plan, &options)?;
    let run_s = started.elapsed().as_secs_f64();
    let results =
        Results { plan: &plan, captures: &run.captures, saved: &run.saved, rows: rows.len(), saes: loaded.saes() };
    if let Some(path) = &args.plan.out {
        files::write_results(path, &results)?;
    }
    say_passed_over(&run.passed_over);
    let marks = plan.taps.iter().any(|tap| matches!(tap.action, Action::Mark(_)));
    if run.captures.is_empty() && run.saved.is_empty() && !marks {
        say("nothing was captured: the requested positions do not exist in these rows");
    }
    if results.named().iter().any(|result| result.array.values().iter().any(|x| x.is_nan())) {
        say(&nan_warning(place.find_nan(&rows, &plan, &options, nan)));
    }
    if args.json {
        let shown = (!shows_next_tokens).then_some(&results);
        return print_result(loaded, &json_of(loaded, &rows, &run, shown, load_s, run_s));
    }
    if shows_next_tokens {
        print(&next_tokens(loaded, &rows, &run))
    } else {
        print(&(summary(&results) + &list_marks(&run.marks)))
    }?;
    if marks && run.marks.is_empty() {
        say("no mark: the conditions held nowhere");
    }
    if let Some(path) = &args.plan.out {
        say_written(path, &results);
    }
    Ok(())
}

/// Prints what a plan would do and cost.
fn explain(place: &ModelPlace, plan: &Plan, lengths: &[usize], json: bool) -> Result<(), Failure> {
    let model = match place {
        ModelPlace::Server(model) => model,
        ModelPlace::Here(loaded) => {
            let explanation = plan.explain(&loaded.model, lengths)?;
            return if json { print_json(&explanation) } else { print(&explanation.to_string()) };
        }
    };
    let Explained { text, explanation } = model.explain(plan, lengths)?;
    let explanation: Value =
        serde_json::from_str(explanation.get()).map_err(|error| Failure::internal(error.to_string()))?;
    if json { print_json(&explanation) } else { print(&text) }
}

/// Words the warning that results are NaN, with the site at which NaN first appears.
fn nan_warning(origin: Option<NanOrigin>) -> String {
    let Some(NanOrigin { site, row, position, infinite }) = origin else {
        return "warning: some values are NaN; all activations are numbers, so a computed value of the plan is the cause"
            .into();
    };
    let after = infinite.map_or_else(String::new, |site| format!(", after infinite values at `{site}`"));
    format!(
        "warning: some values are NaN; NaN first appears at `{site}`, row {row}, position {position}{after}\n\
         hint: an edit may be too large; without edits, the weights are"
    )
}

/// Returns the top tokens with their logits and probabilities.
fn top_tokens(logits: &[f32]) -> Vec<(u32, f32, f32)> {
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
    let top = logits[order[0]];
    let total: f32 = logits.iter().map(|x| (x - top).exp()).sum();
    order.iter().take(TOP_TOKENS).map(|&id| (id as u32, logits[id], (logits[id] - top).exp() / total)).collect()
}

fn token_text(loaded: &LoadedModel, id: u32) -> Option<String> {
    loaded.tokenizer.as_ref().map(|tokenizer| tokenizer.token_text(id))
}

fn next_tokens(loaded: &LoadedModel, rows: &[Vec<u32>], run: &Run) -> String {
    let mut text = String::new();
    for (row, capture) in run.captures.iter().enumerate() {
        if rows.len() > 1 {
            text += &format!("row {row}: {} tokens\n", rows[row].len());
        }
        for (id, logit, probability) in top_tokens(capture.array.values()) {
            let token = token_text(loaded, id).map(|text| format!("{text:?}")).unwrap_or_default();
            text += &format!("{id:>7}  {token:<16} {logit:>9.3}  {:>5.1}%\n", probability * 100.0);
        }
    }
    text
}

/// Prints the shape and statistics of each result, or its values if there are few.
fn summary(results: &Results) -> String {
    let named = results.named();
    let width = named.iter().map(|result| result.name.len()).max().unwrap_or(0);
    let line = |NamedResult { name, array, sparse }: &NamedResult| match (sparse, array.values()) {
        (Some((rows, positions)), values) => {
            let each = values.len() as f64 / positions.len().max(1) as f64;
            let count = format!("sparse, {} nonzero, {each:.1} per position", values.len());
            format!("{name:width$}  {:<18} {count}\n", format!("{:?}", rows.shape()))
        }
        (None, values) if values.len() <= MAX_LISTED_VALUES => format!("{name:width$}  {}\n", listed(array)),
        _ => format!("{name:width$}  {:<18} {}\n", format!("{:?}", array.shape()), statistics(array)),
    };
    named.iter().map(line).collect()
}

/// Formats the values; integers without decimals.
fn listed(array: &Array) -> String {
    let number = |x: &f32| if array.is_integer() { format!("{x:.0}") } else { format!("{x:.4}") };
    array.values().iter().map(number).collect::<Vec<_>>().join("  ")
}

fn statistics(array: &Array) -> String {
    let finite: Vec<f32> = array.values().iter().copied().filter(|x| x.is_finite()).collect();
    let n = finite.len().max(1) as f32;
    let mean = finite.iter().sum::<f32>() / n;
    let deviation = (finite.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / n).sqrt();
    format!("mean {mean:>9.4}  deviation {deviation:>9.4}")
}

/// Returns the nonzero units and values of each position of a sparse capture.
fn active(rows: &SparseRows, positions: &[usize], values: &[f32]) -> Vec<Value> {
    let of = |(row, position): (usize, &usize)| {
        let elements = rows.row(row);
        json!({ "position": position, "units": rows.indices[elements.clone()], "values": values[elements] })
    };
    positions.iter().enumerate().map(of).collect()
}

/// Returns the rows with the captures, or with the next tokens if nothing was captured.
fn json_of(
    loaded: &LoadedModel,
    rows: &[Vec<u32>],
    run: &Run,
    results: Option<&Results>,
    load_s: f64,
    run_s: f64,
) -> Value {
    let mut listed = Vec::new();
    for (row, tokens) in rows.iter().enumerate() {
        let texts: Option<Vec<String>> = tokens.iter().map(|&id| token_text(loaded, id)).collect();
        let mut entry = json!({ "tokens": tokens, "text_tokens": texts });
        if results.is_none()
            && let Some(capture) = run.captures.get(row)
        {
            let next = top_tokens(capture.array.values()).into_iter();
            entry["next"] = next.map(|(id, logit, probability)| json!({ "id": id, "token": token_text(loaded, id), "logit": logit, "probability": probability })).collect();
        }
        listed.push(entry);
    }
    let shown = |NamedResult { name, array, sparse }: NamedResult| match (sparse, array.values()) {
        (Some((rows, positions)), values) => {
            json!({ "name": name, "shape": rows.shape(), "active": active(rows, positions, values) })
        }
        (None, [number]) => json!({ "name": name, "shape": array.shape(), "value": number }),
        _ => json!({ "name": name, "shape": array.shape() }),
    };
    let captures: Vec<Value> = results.into_iter().flat_map(Results::named).map(shown).collect();
    let passed_over: Vec<String> = run.passed_over.iter().map(|site| site.to_string()).collect();
    json!({ "model": loaded.name, "rows": listed, "captures": captures, "marks": run.marks, "passed_over": passed_over, "timing": { "load_s": load_s, "run_s": run_s } })
}
