//! Activations of many prompts at a few sites: one vector per prompt and layer.

use pellucid_engine::{Interrupt, Plan, Point, Positions, Reduce, RunOptions, Site, Tap};
use pellucid_models::{Error, LoadedModel, Result, prepare};
use std::path::Path;

/// Tokens of one run: large enough for full matrix products, small enough that the activations of
/// a run stay far below the weights.
const TOKENS_PER_RUN: usize = 2048;

/// Activations of prompts at one layer, `[prompts, width]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Activations {
    width: usize,
    values: Vec<f32>,
}

impl Activations {
    /// Wraps the activations of prompts, one after the other; `width` divides their number.
    pub fn new(width: usize, values: Vec<f32>) -> Activations {
        assert!(width > 0 && values.len().is_multiple_of(width), "{} elements of width {width}", values.len());
        Activations { width, values }
    }

    /// Number of channels.
    pub fn width(&self) -> usize {
        self.width
    }

    /// The activation of each prompt, `[width]`.
    pub fn rows(&self) -> impl ExactSizeIterator<Item = &[f32]> + Clone {
        self.values.chunks_exact(self.width)
    }
}

/// What to read from each prompt.
pub(super) struct Reading<'a> {
    pub point: Point,
    pub layers: &'a [usize],
    /// Positions whose mean is read.
    pub positions: &'a Positions,
    pub interrupt: Option<Interrupt>,
}

/// Runs the prompts and returns their activations for each layer. `progress` receives the fraction
/// of prompts done. A prompt's activations do not depend on the other prompts of its batch.
pub(super) fn collect(
    loaded: &LoadedModel,
    prompts: &[Vec<u32>],
    reading: Reading,
    progress: &mut dyn FnMut(f32),
) -> Result<Vec<Activations>> {
    let taps = reading.layers.iter().map(|&layer| {
        let site = Site::layer(layer, reading.point).to_string();
        Tap::capture_reduced(site, Reduce::Mean).positions(reading.positions.clone())
    });
    let plan = Plan::of(taps);
    check_positions(loaded, prompts, reading.positions)?;
    let mut values: Vec<Vec<f32>> = vec![Vec::new(); reading.layers.len()];
    let mut start = 0;
    while start < prompts.len() {
        let mut tokens = 0;
        let fits = |row: &&Vec<u32>| {
            tokens += row.len();
            tokens <= TOKENS_PER_RUN
        };
        let end = start + prompts[start..].iter().take_while(fits).count().max(1);
        let batch = &prompts[start..end];
        let plan = prepare(plan.clone(), Path::new(""), batch, loaded.tokenizer.as_deref())?;
        let options = RunOptions { interrupt: reading.interrupt.clone(), ..RunOptions::default() };
        let run = loaded.model.run(batch, &plan, &options).map_err(|error| in_batch(error, start, batch.len()))?;
        for (values, &layer) in values.iter_mut().zip(reading.layers) {
            let mut of_layer: Vec<_> =
                run.captures.iter().filter(|capture| capture.site == Site::layer(layer, reading.point)).collect();
            of_layer.sort_by_key(|capture| capture.row);
            if let Some(row) = (0..batch.len()).find(|&row| of_layer.get(row).is_none_or(|capture| capture.row != row))
            {
                return Err(Error::usage(
                    format!("{} has none of the selected positions", name_prompt(start + row)),
                    "select positions that every prompt has, such as `last` or `all`",
                ));
            }
            of_layer.iter().for_each(|capture| values.extend(capture.array.values()));
        }
        start = end;
        progress(start as f32 / prompts.len() as f32);
    }
    let width = values.first().map_or(0, |values| values.len() / prompts.len().max(1));
    Ok(values.into_iter().map(|values| Activations::new(width, values)).collect())
}

/// Checks that every prompt has the positions. A run would report them by the row of its batch.
fn check_positions(loaded: &LoadedModel, prompts: &[Vec<u32>], positions: &Positions) -> Result<()> {
    for (index, prompt) in prompts.iter().enumerate() {
        let length = prompt.len() as i64;
        match positions {
            Positions::List(list) => {
                if let Some(position) = list.iter().find(|&&at| at >= length || at < -length) {
                    return Err(Error::usage(
                        format!("{} has {length} tokens, so no position {position}", name_prompt(index)),
                        "choose positions that every prompt has, or `last`",
                    ));
                }
            }
            Positions::Token(text) => {
                let tokenizer = loaded.tokenizer()?;
                let token = tokenizer.find(text);
                if !token.is_some_and(|token| prompt.contains(&token)) {
                    return Err(Error::usage(
                        format!("{} does not contain the token {text:?}", name_prompt(index)),
                        "choose a token that every prompt has, or give positions as numbers",
                    ));
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// Names a prompt by its pair, counted from 1: prompts are in the order positive, negative.
pub(super) fn name_prompt(index: usize) -> String {
    format!("the {} prompt of pair {}", if index.is_multiple_of(2) { "positive" } else { "negative" }, index / 2 + 1)
}

/// Adds the range of pairs to an error of a run, whose rows count from the start of the batch.
fn in_batch(error: pellucid_engine::Error, start: usize, rows: usize) -> Error {
    let remedy = error.remedy().cloned();
    match (&error, remedy) {
        (pellucid_engine::Error::Input { .. }, Some(remedy)) => {
            let (first, last) = (start / 2 + 1, (start + rows - 1) / 2 + 1);
            Error::usage(format!("in pairs {first} to {last}: {error}"), remedy)
        }
        _ => error.into(),
    }
}
