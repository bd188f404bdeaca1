//! Generation: prefill, then one token at a time, with the plan active at every step.

use crate::error::{Error, Result};
use crate::exec::{Call, Model, Saved};
use crate::interrupt::{Interrupt, Watch};
use crate::plan::{Capture, Lengths, Plan};
use crate::sample::{Sampler, Sampling};
use crate::site::Site;
use std::time::{Duration, Instant};

/// Room that a row's cache has for new positions from the start; it grows when more are needed.
const RESERVED: usize = 1024;

/// How to generate.
#[derive(Clone, Debug)]
pub struct Generate {
    /// At most this many new tokens a row.
    pub max_new: usize,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// Tokens that end a row.
    pub eos: Vec<u32>,
    /// Prompt tokens of a row that go through at once.
    pub chunk: Option<usize>,
    /// Asked now and then whether to stop.
    pub interrupt: Option<Interrupt>,
}

impl Default for Generate {
    fn default() -> Generate {
        Generate { max_new: 64, sampling: Sampling::default(), eos: Vec::new(), chunk: None, interrupt: None }
    }
}

/// What the one who watches a generation says to each token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// Go on.
    Go,
    /// This row is done.
    Stop,
}

/// Why a row ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// An end-of-text token.
    Eos,
    /// As many new tokens as were asked for.
    Length,
    /// The watcher said so (a stop string).
    Stop,
}

/// A generated row.
#[derive(Clone, Debug)]
pub struct Generated {
    /// The new tokens, the end-of-text token included.
    pub tokens: Vec<u32>,
    /// Why it ended.
    pub finish: Finish,
}

/// What a generation gave back.
#[derive(Debug)]
pub struct Generation {
    /// One for each input.
    pub rows: Vec<Generated>,
    /// What the plan captured: `prompt + generated - 1` positions of each row.
    pub captures: Vec<Capture>,
    /// The values that the plan saves, step by step.
    pub saved: Vec<Saved>,
    /// Sites that patterns passed over.
    pub passed_over: Vec<Site>,
    /// Time in the prompts.
    pub prefill: Duration,
    /// Time in the steps after them.
    pub decode: Duration,
}

impl Model {
    /// Continues rows of tokens under a plan. `watch` sees each new token of each row as it comes.
    pub fn generate(
        &self,
        inputs: &[Vec<u32>],
        plan: &Plan,
        options: &Generate,
        watch: &mut dyn FnMut(usize, u32) -> Control,
    ) -> Result<Generation> {
        if let Some(problem) = options.sampling.problem() {
            return Err(Error::input(problem, "see `pellucid generate --help`"));
        }
        if options.max_new == 0 {
            return Err(Error::input("max_new is 0", "ask for at least one new token, or use run"));
        }
        self.check_inputs(inputs, options.max_new - 1, options.chunk)?;
        let prompts: Vec<usize> = inputs.iter().map(Vec::len).collect();
        // The last new token is never taken through, so a row comes to prompt + new - 1 positions.
        let limits: Vec<usize> = prompts.iter().map(|n| n + options.max_new - 1).collect();
        let compiled = self.compile(plan, Lengths { prompts: &prompts, limits: &limits }, true)?;
        if compiled.gradient_edges(self.program()).is_some() {
            return Err(Error::input(
                "gradients are of one run, not of a generation",
                "generate first, then run the whole text with the metric",
            ));
        }
        let mut call = Call::new(self, &compiled, &prompts, options.chunk, true);
        call.watch = Watch::new(options.interrupt.as_ref());
        (0..inputs.len()).for_each(|row| call.reserve(row, limits[row].min(prompts[row] + RESERVED)));
        let mut rows: Vec<Row> =
            inputs.iter().enumerate().map(|(row, tokens)| Row::new(row, tokens, &options.sampling)).collect();

        let started = Instant::now();
        for group in &compiled.groups {
            let mut logits = call.prefill(group, inputs, true)?;
            advance(&mut rows, group, &mut logits, options, watch);
        }
        call.collector.end_step(self, &compiled, &ended(&rows))?;
        let prefill = started.elapsed();
        let started = Instant::now();
        while rows.iter().any(|row| row.finish.is_none()) {
            for group in &compiled.groups {
                let alive: Vec<usize> = group.iter().copied().filter(|&row| rows[row].finish.is_none()).collect();
                if !alive.is_empty() {
                    let tokens: Vec<(usize, u32)> = alive.iter().map(|&row| (row, rows[row].last())).collect();
                    let mut logits = call.step(&tokens)?;
                    advance(&mut rows, &alive, &mut logits, options, watch);
                }
            }
            call.collector.end_step(self, &compiled, &ended(&rows))?;
        }
        let decode = started.elapsed();
        let lengths: Vec<usize> = call.rows.iter().map(|row| row.len).collect();
        for (row, (&length, prompt)) in rows.iter().zip(lengths.iter().zip(&prompts)) {
            assert_eq!(
                length,
                prompt + row.new_tokens().len() - 1,
                "each row computes prompt + generated - 1 positions"
            );
        }
        let saved = call.collector.take_saved();
        let captures = call.collector.finish(self.program(), &compiled, &lengths);
        let rows = rows
            .into_iter()
            .map(|row| Generated { tokens: row.new_tokens().to_vec(), finish: row.finish.unwrap_or(Finish::Length) });
        Ok(Generation {
            rows: rows.collect(),
            captures,
            saved,
            passed_over: compiled.passed_over.clone(),
            prefill,
            decode,
        })
    }
}

/// A row under way.
struct Row {
    index: usize,
    tokens: Vec<u32>,
    prompt: usize,
    sampler: Sampler,
    finish: Option<Finish>,
}

impl Row {
    fn new(index: usize, prompt: &[u32], sampling: &Sampling) -> Row {
        Row {
            index,
            tokens: prompt.to_vec(),
            prompt: prompt.len(),
            sampler: Sampler::new(sampling, index),
            finish: None,
        }
    }

    fn last(&self) -> u32 {
        self.tokens[self.tokens.len() - 1]
    }

    fn new_tokens(&self) -> &[u32] {
        &self.tokens[self.prompt..]
    }
}

/// The rows that have ended.
fn ended(rows: &[Row]) -> Vec<usize> {
    rows.iter().filter(|row| row.finish.is_some()).map(|row| row.index).collect()
}

/// Chooses the next token of each listed row from its logits and decides whether the row goes on.
fn advance(
    rows: &mut [Row],
    listed: &[usize],
    logits: &mut [f32],
    options: &Generate,
    watch: &mut dyn FnMut(usize, u32) -> Control,
) {
    let width = logits.len() / listed.len();
    for (&row, logits) in listed.iter().zip(logits.chunks_exact_mut(width)) {
        let row = &mut rows[row];
        let token = row.sampler.choose(logits, &row.tokens);
        row.tokens.push(token);
        let control = watch(row.index, token);
        row.finish = if options.eos.contains(&token) {
            Some(Finish::Eos)
        } else if control == Control::Stop {
            Some(Finish::Stop)
        } else if row.new_tokens().len() >= options.max_new {
            Some(Finish::Length)
        } else {
            None
        };
    }
}
