//! Log-likelihoods, as lm-eval computes them: continuations are cut from the tokens of the whole
//! text, and a text without context follows the BOS token, or the end-of-text token if there is
//! none.

use super::{Item, Task, Variant};
use pellucid_engine::{Action, Callback, Interrupt, LogSoftmax, Plan, Positions, RunOptions, SelectedRow, Tap};
use pellucid_models::{Error, LoadedModel, Result, prepare};
use serde::Serialize;
use std::sync::{Arc, Mutex};

/// Tokens of a run: many rows share the reading of the weights.
const TOKENS_PER_RUN: usize = 1024;

/// Prompt tokens of a pass, so that few positions have logits at once.
const CHUNK: usize = 128;

/// Log-likelihood of a text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Score {
    /// The sum over its tokens, natural logarithm.
    pub log_likelihood: f64,
    /// Whether greedy decoding would have produced it.
    pub greedy: bool,
    /// Number of its tokens.
    pub tokens: usize,
}

/// Tokens whose last ones are scored.
struct Scored {
    /// All tokens but the last one, which is never read.
    row: Vec<u32>,
    /// The scored tokens: each follows the position before it, the last one the end of the row.
    targets: Vec<u32>,
    /// Index of the text, to which the score is added.
    text: usize,
}

/// Scores every text of a task: for each item, one score per choice.
pub(super) fn score_items(
    loaded: &LoadedModel,
    task: &Task,
    variant: &Variant,
    prefix: bool,
    interrupt: Option<&Interrupt>,
    progress: &mut dyn FnMut(f32),
) -> Result<Vec<Vec<Score>>> {
    if variant.plan.taps.iter().any(|tap| tap.rows.is_some()) {
        return Err(Error::usage(
            format!("{}: the plan selects `rows`, but an evaluation runs every text alone", variant.name),
            "leave out `rows`",
        ));
    }
    let (mut scored, mut counts) = (Vec::new(), Vec::new());
    let mut text = 0;
    for (index, item) in task.items.iter().enumerate() {
        let texts = texts_of(item);
        for (context, continuation) in &texts {
            let windows = encode(loaded, *context, continuation, prefix, text).map_err(|error| match error {
                Error::Usage { problem, remedy } => {
                    Error::usage(format!("{}, item {index}: {problem}", task.name), remedy)
                }
                other => other,
            })?;
            scored.extend(windows);
            text += 1;
        }
        counts.push(texts.len());
    }
    let mut scores = vec![Score { greedy: true, ..Score::default() }; text];
    // Rows of similar length share a run.
    scored.sort_by_key(|window| std::cmp::Reverse(window.row.len()));
    let mut done = 0;
    while done < scored.len() {
        let mut tokens = 0;
        let fits = |window: &&Scored| {
            tokens += window.row.len();
            tokens <= TOKENS_PER_RUN
        };
        let count = scored[done..].iter().take_while(fits).count().max(1);
        run(loaded, variant, &scored[done..done + count], interrupt, &mut scores)?;
        done += count;
        progress(done as f32 / scored.len() as f32);
    }
    let mut scores = scores.into_iter();
    Ok(counts.into_iter().map(|count| scores.by_ref().take(count).collect()).collect())
}

/// The texts of an item, each as context and continuation; `None` is no context at all.
fn texts_of(item: &Item) -> Vec<(Option<&str>, &str)> {
    fn context_of(context: &str) -> Option<&str> {
        (!context.is_empty()).then_some(context)
    }
    match item {
        Item::Choices { context, choices, .. } => {
            choices.iter().map(|choice| (context_of(context), choice.text.as_str())).collect()
        }
        Item::Target { context, target } => vec![(context_of(context), target.as_str())],
        Item::Text(text) => vec![(None, text.as_str())],
    }
}

/// Encodes a text that is scored: in several windows if it is longer than the model's context.
fn encode(
    loaded: &LoadedModel,
    context: Option<&str>,
    continuation: &str,
    prefix: bool,
    text: usize,
) -> Result<Vec<Scored>> {
    let longest = loaded.model.program().architecture().context.unwrap_or(usize::MAX - 1);
    let Some(context) = context else {
        let mut tokens = loaded.encode(continuation)?;
        if !prefix {
            let first = tokens.remove(0);
            return match tokens.is_empty() {
                true => Err(Error::usage("a text of one token, of which none is scored", "give a longer text")),
                false => Ok(windows(first, &tokens, longest, text)),
            };
        }
        let special = loaded.tokenizer()?.special();
        let first = special.bos.or_else(|| special.eos.first().copied()).ok_or_else(|| {
            Error::usage("the tokenizer has neither a BOS nor an end-of-text token", "give every text a context")
        })?;
        // A BOS token that the tokenizer adds is the context itself.
        if tokens.first() == Some(&first) {
            tokens.remove(0);
        }
        return Ok(windows(first, &tokens, longest, text));
    };
    // Spaces at the end of the context belong to the first token of the continuation.
    let trimmed = context.trim_end();
    let all = loaded.encode(&format!("{context}{continuation}"))?;
    let start = if trimmed.is_empty() { 0 } else { loaded.encode(trimmed)?.len() };
    let (start, end) = (start.min(all.len()).max(1), all.len());
    if start == end {
        return Err(Error::usage(
            format!("{continuation:?} adds no token to its context"),
            "give a longer continuation",
        ));
    }
    // Of a text that is too long the last tokens are kept.
    let begin = end.saturating_sub(longest.saturating_add(1));
    let targets = all[start.max(begin + 1)..].to_vec();
    Ok(vec![Scored { row: all[begin..end - 1].to_vec(), targets, text }])
}

/// Splits a text so that every token is scored once, with as much context as fits.
fn windows(first: u32, tokens: &[u32], longest: usize, text: usize) -> Vec<Scored> {
    let with_first: Vec<u32> = std::iter::once(first).chain(tokens.iter().copied()).collect();
    let mut windows = Vec::new();
    let mut scored = 0;
    while scored < tokens.len() {
        let end = tokens.len().min(scored.saturating_add(longest));
        // The last window reaches back as far as the context allows.
        let row = with_first[end.saturating_sub(longest)..end].to_vec();
        windows.push(Scored { row, targets: tokens[scored..end].to_vec(), text });
        scored = end;
    }
    windows
}

/// Runs rows and adds their log-likelihoods to the scores of their texts.
fn run(
    loaded: &LoadedModel,
    variant: &Variant,
    batch: &[Scored],
    interrupt: Option<&Interrupt>,
    scores: &mut [Score],
) -> Result<()> {
    // The engine polls during long runs only.
    if interrupt.is_some_and(|interrupt| interrupt.0()) {
        return Err(Error::from(pellucid_engine::Error::Interrupted));
    }
    let rows: Vec<Vec<u32>> = batch.iter().map(|scored| scored.row.clone()).collect();
    let edits = prepare(variant.plan.clone(), &variant.directory, &rows, loaded.tokenizer.as_deref())?;
    let targets: Vec<(usize, Vec<u32>)> =
        batch.iter().map(|scored| (scored.row.len() - scored.targets.len(), scored.targets.clone())).collect();
    let found = Arc::new(Mutex::new(Vec::new()));
    let sink = found.clone();
    // A callback sees the logits of each pass and keeps one number per token.
    let callback = Callback(Arc::new(move |selected: &mut [SelectedRow]| {
        for part in selected.iter() {
            let (first, targets) = &targets[part.row];
            for (&position, logits) in part.positions.iter().zip(part.values.chunks_exact(part.width)) {
                let (log_likelihood, greedy) = log_softmax_at(logits, targets[position - first] as usize);
                if let Ok(mut found) = sink.lock() {
                    found.push((part.row, log_likelihood, greedy));
                }
            }
        }
    }));
    let tap = |(row, scored): (usize, &Scored)| {
        let positions = (scored.row.len() - scored.targets.len()..scored.row.len()).map(|at| at as i64).collect();
        Tap::new("logits", Action::Call(callback.clone())).rows([row]).positions(Positions::List(positions))
    };
    let plan = edits.then(Plan::of(batch.iter().enumerate().map(tap)));
    let options = RunOptions { chunk: Some(CHUNK), interrupt: interrupt.cloned(), ..RunOptions::default() };
    loaded.model.run(&rows, &plan, &options)?;
    let found = found.lock().map(|found| found.clone()).unwrap_or_default();
    for (row, log_likelihood, greedy) in found {
        let score = &mut scores[batch[row].text];
        score.log_likelihood += log_likelihood;
        score.greedy &= greedy;
        score.tokens += 1;
    }
    Ok(())
}

/// The log-probability of a token, and whether it is the most likely one.
fn log_softmax_at(logits: &[f32], token: usize) -> (f64, bool) {
    let softmax = LogSoftmax::of(logits);
    let greedy = logits.iter().position(|&logit| logit == softmax.best()) == Some(token);
    (softmax.at(logits[token]), greedy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_score_every_token_once_with_as_much_context_as_fits() {
        let tokens: Vec<u32> = (1..=10).collect();
        for longest in 1..=12 {
            let all = windows(0, &tokens, longest, 0);
            let scored: Vec<u32> = all.iter().flat_map(|window| window.targets.clone()).collect();
            assert_eq!(scored, tokens, "{longest}");
            for window in &all {
                assert!(window.row.len() <= longest && window.row.len() >= window.targets.len());
                // Each target follows the token before it.
                let before = &window.row[window.row.len() - window.targets.len()..];
                assert!(before.iter().zip(&window.targets).all(|(a, b)| a + 1 == *b));
                assert!(window.row.len() == longest || window.row[0] == 0);
            }
        }
    }

    #[test]
    fn the_log_softmax_is_exact() {
        let (log_likelihood, greedy) = log_softmax_at(&[1.0, 3.0, 2.0], 1);
        let expected = -(1.0 + (-1.0_f64).exp() + (-2.0_f64).exp()).ln();
        assert!((log_likelihood - expected).abs() < 1e-12 && greedy);
        assert!(!log_softmax_at(&[1.0, 3.0, 2.0], 2).1);
    }
}
