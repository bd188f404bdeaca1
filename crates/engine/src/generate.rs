//! Generation: prefill, then one token at a time, with the plan active at every step.

use crate::error::{Error, Result};
use crate::exec::{After, Call, Model, Saved};
use crate::interrupt::{Interrupt, Watch};
use crate::lookup::{self, Lookup};
use crate::plan::{Capture, Lengths, Plan};
use crate::prefix::PrefixCache;
use crate::sample::{Sampler, Sampling};
use crate::site::Site;
use std::time::{Duration, Instant};

/// Room that a row's cache has for new positions from the start; it grows when more are needed.
const RESERVED: usize = 1024;

/// How to generate.
#[derive(Clone, Debug)]
pub struct GenerateOptions {
    /// At most this many new tokens a row.
    pub max_new: usize,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// Tokens that end a row.
    pub eos: Vec<u32>,
    /// Prompt tokens of a row that go through at once.
    pub chunk: Option<usize>,
    /// At most this many tokens are drafted from what the row has said before, and checked in one pass; 0 drafts none. It never
    /// changes a token. Plans that touch what is generated, and models that carry a state from token to token, run without.
    pub lookup: usize,
    /// At most this many of the model's threads; all of them where absent. It never changes a token.
    pub threads: Option<usize>,
    /// Kept beginnings of rows, which need not be computed again where the plan touches nothing of them. It never changes a token.
    pub prefixes: Option<PrefixCache>,
    /// Asked now and then whether to stop.
    pub interrupt: Option<Interrupt>,
}

impl Default for GenerateOptions {
    fn default() -> GenerateOptions {
        GenerateOptions {
            max_new: 64,
            sampling: Sampling::default(),
            eos: Vec::new(),
            chunk: None,
            lookup: 0,
            threads: None,
            prefixes: None,
            interrupt: None,
        }
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
    /// What drafting came to.
    pub lookup: Lookup,
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
    /// For each row how many of its tokens were taken over from kept prefixes.
    pub reused: Vec<usize>,
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
        options: &GenerateOptions,
        watch: &mut dyn FnMut(usize, u32) -> Control,
    ) -> Result<Generation> {
        self.on_threads(options.threads)?.generate_all(inputs, plan, options, watch)
    }

    fn generate_all(
        &self,
        inputs: &[Vec<u32>],
        plan: &Plan,
        options: &GenerateOptions,
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
        let mut call = Call::new(self, &compiled, &prompts, options.chunk, After::Steps);
        call.watch = Watch::new(options.interrupt.as_ref());
        (0..inputs.len()).for_each(|row| call.reserve(row, limits[row].min(prompts[row] + RESERVED)));
        let reused = self.take_over(options.prefixes.as_ref(), &compiled, inputs, &mut call)?;
        let mut rows: Vec<Row> =
            inputs.iter().enumerate().map(|(row, tokens)| Row::new(row, tokens, options)).collect();

        let started = Instant::now();
        for group in &compiled.groups {
            let mut logits = call.prefill(group, inputs, true)?;
            advance(&mut rows, group, &mut logits, options, watch);
        }
        // Lists of the loop below; a step allocates nothing.
        let (mut alive, mut ended) = (Vec::with_capacity(rows.len()), Vec::with_capacity(rows.len()));
        list_ended(&rows, &mut ended);
        call.collector.end_step(self, &compiled, &ended)?;
        call.end_prefill();
        let prefill = started.elapsed();
        let started = Instant::now();
        let drafts = self.drafts(&compiled, options.lookup);
        while ended.len() < rows.len() {
            for group in &compiled.groups {
                alive.clear();
                alive.extend(group.iter().copied().filter(|&row| rows[row].finish.is_none()));
                if alive.is_empty() {
                    continue;
                }
                if drafts {
                    alive.iter().for_each(|&row| rows[row].draft(options));
                }
                let mut logits = call.step(alive.iter().map(|&row| (row, rows[row].pending())))?;
                advance(&mut rows, &alive, &mut logits, options, watch);
                call.give_back(logits);
                // What was drafted wrong was computed for nothing.
                alive.iter().for_each(|&row| call.truncate(row, rows[row].tokens.len() - 1));
            }
            list_ended(&rows, &mut ended);
            call.collector.end_step(self, &compiled, &ended)?;
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
        self.learn(options.prefixes.as_ref(), &compiled, &call, rows.iter().map(|row| row.tokens.as_slice()));
        let saved = call.collector.take_saved();
        let captures = call.collector.finish(self.program(), &compiled, &lengths);
        let rows = rows.into_iter().map(|row| Generated {
            tokens: row.new_tokens().to_vec(),
            finish: row.finish.unwrap_or(Finish::Length),
            lookup: row.lookup,
        });
        Ok(Generation {
            rows: rows.collect(),
            captures,
            saved,
            passed_over: compiled.passed_over.clone(),
            reused,
            prefill,
            decode,
        })
    }
}

/// A row under way.
struct Row {
    index: usize,
    /// The row so far, and behind it what is drafted.
    tokens: Vec<u32>,
    /// How many of the tokens are drafts.
    drafted: usize,
    prompt: usize,
    sampler: Sampler,
    finish: Option<Finish>,
    lookup: Lookup,
}

impl Row {
    fn new(index: usize, prompt: &[u32], options: &GenerateOptions) -> Row {
        // Drafts included: none reaches past the last new token.
        let mut tokens = Vec::with_capacity(prompt.len() + options.max_new.min(RESERVED));
        tokens.extend_from_slice(prompt);
        let sampler = Sampler::new(&options.sampling, index);
        Row { index, tokens, drafted: 0, prompt: prompt.len(), sampler, finish: None, lookup: Lookup::default() }
    }

    /// The tokens that go through next: the last, and the drafts after it.
    fn pending(&self) -> &[u32] {
        &self.tokens[self.tokens.len() - self.drafted - 1..]
    }

    fn new_tokens(&self) -> &[u32] {
        &self.tokens[self.prompt..]
    }

    /// Drafts what may follow, no further than the row may come.
    fn draft(&mut self, options: &GenerateOptions) {
        let most = options.lookup.min(options.max_new - self.new_tokens().len() - 1);
        self.drafted = lookup::draft(&mut self.tokens, most);
        self.lookup.passes += 1;
        self.lookup.drafted += self.drafted;
    }

    /// Chooses tokens from the logits of the pending ones: as many as were drafted right, and one more. Each is chosen as it would be
    /// without drafts, since a token's logits have the same bits alone and among others.
    fn advance(&mut self, logits: &mut [f32], options: &GenerateOptions, watch: &mut dyn FnMut(usize, u32) -> Control) {
        let lines = self.drafted + 1;
        let first = self.tokens.len() - self.drafted;
        let width = logits.len() / lines;
        self.drafted = 0;
        for (sure, logits) in (first..).zip(logits.chunks_exact_mut(width)) {
            let token = self.sampler.choose(logits, &self.tokens[..sure]);
            let right = self.tokens.get(sure) == Some(&token);
            if right {
                self.lookup.accepted += 1;
            } else {
                self.tokens.truncate(sure);
                self.tokens.push(token);
            }
            let control = watch(self.index, token);
            self.finish = if options.eos.contains(&token) {
                Some(Finish::Eos)
            } else if control == Control::Stop {
                Some(Finish::Stop)
            } else if sure + 1 - self.prompt >= options.max_new {
                Some(Finish::Length)
            } else {
                None
            };
            if !right || self.finish.is_some() {
                self.tokens.truncate(sure + 1);
                return;
            }
        }
    }
}

/// The rows that have ended.
fn list_ended(rows: &[Row], ended: &mut Vec<usize>) {
    ended.clear();
    ended.extend(rows.iter().filter(|row| row.finish.is_some()).map(|row| row.index));
}

/// Takes each listed row on, by the logits of its pending tokens.
fn advance(
    rows: &mut [Row],
    listed: &[usize],
    mut logits: &mut [f32],
    options: &GenerateOptions,
    watch: &mut dyn FnMut(usize, u32) -> Control,
) {
    let lines: usize = listed.iter().map(|&row| rows[row].pending().len()).sum();
    let width = logits.len() / lines;
    for &row in listed {
        let (own, rest) = logits.split_at_mut(rows[row].pending().len() * width);
        rows[row].advance(own, options, watch);
        logits = rest;
    }
}
