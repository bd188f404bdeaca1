//! A generation as a job: which tokens go through next, and what their logits give.

use super::row::{RESERVED, Row};
use super::{Control, Finish, GenerateOptions, Generated, Generation};
use crate::error::{Error, Result};
use crate::exec::RowTokens;
use crate::job::{CacheUse, Job, Pass};
use crate::memory::Moved;
use crate::model::Model;
use crate::plan::{Lengths, Plan};
use crate::program::Domain;
use std::ops::Range;
use std::time::{Duration, Instant};

/// A generation under way.
pub(super) struct Decoder {
    pub job: Job,
    rows: Vec<Row>,
    options: GenerateOptions,
    reused: Vec<usize>,
    /// Whether tokens are drafted by prompt lookup.
    drafts: bool,
    /// Rows run in groups, one after the other in each step: the group that runs next.
    group: usize,
    /// Prompts are not through yet.
    in_prompts: bool,
    /// The next pass: rows, and which of their tokens.
    parts: Vec<(usize, Range<usize>)>,
    /// Rows that have ended.
    ended: Vec<usize>,
    started: Instant,
    prefill: Duration,
}

impl Decoder {
    /// Checks inputs, plan and options, and takes over what a prefix cache holds of the prompts.
    pub fn new(model: &Model, inputs: &[Vec<u32>], plan: &Plan, options: &GenerateOptions) -> Result<Decoder> {
        if let Some(problem) = options.sampling.problem() {
            return Err(Error::input(problem, "see `pellucid generate --help`"));
        }
        if options.max_new == 0 {
            return Err(Error::input("max_new is 0", "ask for at least one new token, or use run"));
        }
        model.check_inputs(inputs, options.max_new - 1, options.chunk)?;
        let prompts: Vec<usize> = inputs.iter().map(Vec::len).collect();
        // The last new token is never run through the model, so a row comes to prompt + new - 1 positions.
        let limits: Vec<usize> = prompts.iter().map(|n| n + options.max_new - 1).collect();
        let compiled = model.compile(plan, Lengths { prompts: &prompts, limits: &limits }, true)?;
        if compiled.gradient_edges(model.program()).is_some() {
            return Err(Error::input(
                "gradients are not available during generation",
                "generate first, then run the full text with the metric",
            ));
        }
        let drafts = model.drafts(&compiled, options.lookup);
        let mut job = Job::new(compiled, model.kv(), options.chunk, CacheUse::Decode, false);
        job.demand.logits_at_ends = true;
        (0..inputs.len()).for_each(|row| job.rows[row].capacity = limits[row].min(prompts[row] + RESERVED));
        let reused = model.take_over(options.prefixes.as_ref(), inputs, &mut job)?;
        let rows = inputs.iter().enumerate().map(|(row, tokens)| Row::new(row, tokens, options)).collect();
        Ok(Decoder {
            job,
            rows,
            options: options.clone(),
            reused,
            drafts,
            group: 0,
            in_prompts: true,
            parts: Vec::with_capacity(inputs.len()),
            ended: Vec::with_capacity(inputs.len()),
            started: Instant::now(),
            prefill: Duration::ZERO,
        })
    }

    /// Whether every row has ended.
    pub fn is_done(&self) -> bool {
        self.ended.len() == self.rows.len()
    }

    /// Whether prompt tokens are still to be run.
    pub fn in_prompts(&self) -> bool {
        self.in_prompts
    }

    /// Chooses the tokens of the next pass: the next chunks of the group's prompts, or the pending tokens of its rows. At most
    /// `budget` prompt tokens are taken where the plan allows prompts to be split, but always some. Returns how many tokens.
    pub fn plan_pass(&mut self, budget: usize) -> usize {
        self.parts.clear();
        let mut left = budget;
        for &row in &self.job.compiled.groups[self.group] {
            let (state, tokens) = (&self.job.rows[row], &mut self.rows[row]);
            if tokens.finish.is_some() {
                continue;
            }
            if self.in_prompts && tokens.tokens.len() == tokens.prompt {
                let chunk = if self.job.may_split() { self.job.chunk().min(left.max(1)) } else { usize::MAX };
                let end = state.len.saturating_add(chunk).min(tokens.prompt);
                if state.len < end && (left > 0 || self.parts.is_empty()) {
                    left = left.saturating_sub(end - state.len);
                    self.parts.push((row, state.len..end));
                }
            } else if !self.in_prompts {
                if self.drafts {
                    tokens.draft(&self.options);
                }
                self.parts.push((row, state.len..tokens.tokens.len()));
            }
        }
        self.parts.iter().map(|(_, tokens)| tokens.len()).sum()
    }

    /// The job, and the tokens that [`plan_pass`](Self::plan_pass) chose, as those of job `index` of a pass.
    pub fn parts(&mut self, index: usize) -> (&mut Job, impl Iterator<Item = RowTokens<'_>>) {
        let (job, rows) = (&mut self.job, &self.rows[..]);
        let part = move |(row, range): &(usize, Range<usize>)| RowTokens {
            job: index,
            row: *row,
            tokens: &rows[*row].tokens[range.clone()],
        };
        let parts = self.parts.iter().map(part);
        (job, parts)
    }

    /// Takes the logits of a pass, `[tokens of Domain::Read, vocab]`, in which this is job `index`: rows whose prompt or step has
    /// ended choose their next tokens.
    pub fn receive(
        &mut self,
        model: &Model,
        pass: &Pass,
        index: usize,
        logits: &mut [f32],
        watch: &mut dyn FnMut(usize, u32) -> Control,
    ) -> Result<()> {
        let width = model.program().architecture().vocab;
        for segment in pass.segments_of(index) {
            let row = &mut self.rows[segment.row];
            if segment.position + segment.count < row.prompt {
                continue;
            }
            let end = pass.range(Domain::Read, segment).end;
            let lines = (end - row.pending()) * width..end * width;
            row.advance(&mut logits[lines], &self.options, watch);
            // Rejected draft tokens: drop their KV cache entries.
            self.job.rows[segment.row].truncate(row.tokens.len() - 1);
        }
        self.end_group(model)
    }

    /// Goes on to the next group, and after the last to the next step.
    fn end_group(&mut self, model: &Model) -> Result<()> {
        let group = &self.job.compiled.groups[self.group];
        if self.in_prompts && group.iter().any(|&row| self.rows[row].tokens.len() == self.rows[row].prompt) {
            return Ok(());
        }
        self.group += 1;
        self.skip_ended_groups();
        if self.group < self.job.compiled.groups.len() {
            return Ok(());
        }
        self.group = 0;
        self.ended.clear();
        self.ended.extend(self.rows.iter().filter(|row| row.finish.is_some()).map(|row| row.index));
        self.job.end_step(model, &self.ended)?;
        if self.in_prompts {
            self.in_prompts = false;
            self.prefill = self.started.elapsed();
            self.started = Instant::now();
        }
        self.skip_ended_groups();
        Ok(())
    }

    /// Passes over groups all of whose rows have ended.
    fn skip_ended_groups(&mut self) {
        let (groups, rows) = (&self.job.compiled.groups, &self.rows);
        let ended = |group: &Vec<usize>| group.iter().all(|&row| rows[row].finish.is_some());
        while groups.get(self.group).is_some_and(|group| !self.in_prompts && ended(group)) {
            self.group += 1;
        }
    }

    /// The tokens, captures and saved values.
    pub fn finish(self, model: &Model) -> Result<Generation> {
        let Decoder { mut job, rows, options, reused, started, prefill, .. } = self;
        let decode = started.elapsed();
        let lengths: Vec<usize> = job.rows.iter().map(|row| row.len).collect();
        for (row, &length) in rows.iter().zip(&lengths) {
            let expected = row.prompt + row.new_tokens().len() - 1;
            assert_eq!(length, expected, "each row computes prompt + generated - 1 positions");
        }
        model.learn(options.prefixes.as_ref(), &job, rows.iter().map(|row| row.tokens.as_slice()));
        let (saved, compiled) = (job.collector.take_saved(), job.compiled.clone());
        let memory = model.backend().memory();
        let captures = job.collector.finish(model.program(), &compiled, &lengths, memory)?;
        let rows = rows.into_iter().map(|row| Generated {
            tokens: row.new_tokens().to_vec(),
            finish: row.finish.unwrap_or(Finish::Length),
            lookup: row.lookup,
        });
        let passed_over = compiled.passed_over.clone();
        Ok(Generation {
            rows: rows.collect(),
            captures,
            saved,
            passed_over,
            reused,
            prefill,
            decode,
            moved: Moved::default(),
        })
    }
}
