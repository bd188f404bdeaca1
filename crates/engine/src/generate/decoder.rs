//! A generation as a job: chooses the tokens of each pass and samples new ones from the logits.

use super::row::{RESERVED, Row};
use super::{Control, Finish, GenerateOptions, GeneratedRow, Generation};
use crate::error::{Error, Result};
use crate::exec::RowTokens;
use crate::job::{CacheUse, Job, JobOptions, Pass};
use crate::logprobs::{LiveLogprobs, LogprobOptions};
use crate::memory::TransferStats;
use crate::model::Model;
use crate::needed_memory::{CallShape, check_call};
use crate::plan::{CompiledPlan, Lengths, Plan};
use crate::program::TokenSet;
use crate::remedy::Remedy;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A generation in progress.
pub(super) struct Decoder {
    pub job: Job,
    rows: Vec<Row>,
    options: GenerateOptions,
    reused: Vec<usize>,
    logprobs: Option<Arc<LiveLogprobs>>,
    /// Whether prompt lookup adds speculative tokens.
    speculates: bool,
    /// Index of the group that runs next. Groups of rows run one after the other in each step.
    group: usize,
    /// Prefill is not finished.
    in_prompts: bool,
    /// The next pass: rows, and the range of their tokens.
    parts: Vec<(usize, Range<usize>)>,
    /// Rows that have ended.
    ended: Vec<usize>,
    started: Instant,
    prefill: Duration,
}

impl Decoder {
    /// Checks inputs, plan and options, and reuses cached prefixes of the prompts.
    pub fn new(model: &Model, inputs: &[Vec<u32>], plan: &Plan, options: &GenerateOptions) -> Result<Decoder> {
        model.check_weights()?;
        let CheckedGeneration { compiled, limits, adapters } = check(model, inputs, plan, options)?;
        let (chunk, cache, captures) = (options.chunk, CacheUse::Decode, &options.captures);
        check_call(model, &compiled, &CallShape { limits: &limits, chunk, cache, captures })?;
        let speculates = model.can_speculate(&compiled, options.lookup);
        let job_options = JobOptions {
            chunk: options.chunk,
            captures: options.captures.clone(),
            adapters,
            ..JobOptions::new(model.kv(), CacheUse::Decode)
        };
        let mut job = Job::new(model.program(), compiled, job_options)?;
        job.demand.logits_at_ends = true;
        job.demand.logits_everywhere = options.logprobs.prompt.is_some();
        let reserved = |row: usize| limits[row].min(inputs[row].len() + RESERVED);
        (0..inputs.len()).for_each(|row| job.rows[row].capacity = reserved(row));
        // A position from the prefix cache has no logits.
        let prefixes = options.prefixes.as_ref().filter(|_| options.logprobs.prompt.is_none());
        let reused = model.reuse_prefixes(prefixes, inputs, &mut job)?;
        let records = options.logprobs != LogprobOptions::default();
        let logprobs = records.then(|| Arc::new(LiveLogprobs::new(inputs.len())));
        // The n-th copy of a prompt with the same adapter draws from the n-th random stream of the
        // seed, so that copies differ and a row does not depend on its place among other prompts.
        let same = |a: usize, b: usize| inputs[a] == inputs[b] && job.adapter(a) == job.adapter(b);
        let copy = |row: usize| (0..row).filter(|&earlier| same(earlier, row)).count();
        let new = |row: usize| Row::new(row, &inputs[row], copy(row), options, logprobs.clone());
        let rows = (0..inputs.len()).map(new).collect();
        Ok(Decoder {
            job,
            rows,
            options: options.clone(),
            reused,
            logprobs,
            speculates,
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

    /// Rows that have not ended.
    pub fn running_rows(&self) -> usize {
        self.rows.len() - self.ended.len()
    }

    /// The log-probabilities of its rows, if they are recorded.
    pub fn logprobs(&self) -> Option<Arc<LiveLogprobs>> {
        self.logprobs.clone()
    }

    /// Whether prefill is not finished.
    pub fn in_prompts(&self) -> bool {
        self.in_prompts
    }

    /// Prompt tokens that are not computed yet; 0 once it decodes.
    pub fn prompt_tokens_left(&self) -> usize {
        let rows = self.job.rows.iter().zip(&self.rows);
        if self.in_prompts { rows.map(|(state, row)| row.prompt.saturating_sub(state.len)).sum() } else { 0 }
    }

    /// Chooses the tokens of the next pass: the next prompt chunks of the group, or the pending
    /// tokens of its rows. Takes at most `budget` prompt tokens (at least one) if the plan allows
    /// splitting prompts. Returns the number of tokens.
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
                if self.speculates {
                    tokens.speculate(&self.options);
                }
                self.parts.push((row, state.len..tokens.tokens.len()));
            }
        }
        self.parts.iter().map(|(_, tokens)| tokens.len()).sum()
    }

    /// The job, and the tokens chosen by [`plan_pass`](Self::plan_pass), labeled as job `index` of
    /// a pass.
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

    /// Processes the logits of a pass, `[tokens of TokenSet::ForLogits, vocab]`, in which this is
    /// job `index`: rows whose prompt or step is complete sample their next tokens.
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
            if let Some(top) = self.options.logprobs.prompt.filter(|_| segment.position < row.prompt) {
                let lines = pass.range(TokenSet::ForLogits, segment);
                row.record_prompt(segment.position, &logits[lines.start * width..lines.end * width], width, top);
            }
            if segment.position + segment.count < row.prompt {
                continue;
            }
            let end = pass.range(TokenSet::ForLogits, segment).end;
            let lines = (end - row.pending()) * width..end * width;
            let next = &logits[lines.start..lines.start + width];
            if next[0].is_nan() && next.iter().all(|x| x.is_nan()) && !self.job.compiled.values.allow_nan {
                let (row, step) = (row.index, row.new_tokens().len());
                return Err(Error::input(
                    format!("row {row}: all logits of step {step} are NaN, so no token can be chosen"),
                    "an edit may be too large; capture the residual stream of a run to see where NaN begins",
                ));
            }
            row.advance(&mut logits[lines], &self.options, watch);
            if self.job.collector.is_stopped(segment.row) {
                row.finish.get_or_insert(Finish::Condition);
            }
            // Drop the KV cache entries of rejected speculative tokens.
            self.job.rows[segment.row].truncate(row.tokens.len() - 1);
        }
        self.end_group(model)
    }

    /// Advances to the next group, and after the last one to the next step.
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
            // Later requests with the same prompt need not wait for the end of this one.
            self.store_prefixes(model);
            self.prefill = self.started.elapsed();
            self.started = Instant::now();
        }
        self.skip_ended_groups();
        Ok(())
    }

    /// Adds the computed tokens of its rows to the prefix cache.
    fn store_prefixes(&self, model: &Model) {
        let computed = self.rows.iter().zip(&self.job.rows).map(|(row, state)| &row.tokens[..state.len]);
        model.store_prefixes(self.options.prefixes.as_ref(), &self.job, computed);
    }

    /// Skips groups whose rows have all ended.
    fn skip_ended_groups(&mut self) {
        let (groups, rows) = (&self.job.compiled.groups, &self.rows);
        let ended = |group: &Vec<usize>| group.iter().all(|&row| rows[row].finish.is_some());
        while groups.get(self.group).is_some_and(|group| !self.in_prompts && ended(group)) {
            self.group += 1;
        }
    }

    /// Returns the tokens, captures and saved values.
    pub fn finish(self, model: &Model) -> Result<Generation> {
        self.store_prefixes(model);
        let Decoder { mut job, rows, reused, started, prefill, logprobs, .. } = self;
        let decode = started.elapsed();
        let lengths: Vec<usize> = job.rows.iter().map(|row| row.len).collect();
        for (row, &length) in rows.iter().zip(&lengths) {
            let expected = row.prompt + row.new_tokens().len() - 1;
            if length != expected {
                return Err(Error::Internal(format!(
                    "row {} has computed {length} positions instead of prompt + generated - 1 = {expected}",
                    row.index
                )));
            }
        }
        let (saved, marks) = (job.collector.take_saved(), job.collector.take_marks());
        let compiled = job.compiled.clone();
        let memory = model.backend().memory();
        let mut moved = TransferStats::default();
        let captures = job.collector.finish(model.program(), &compiled, &lengths, memory, &mut moved)?;
        // Handles may still read the log-probabilities of the running request, so this is a copy.
        let of_row = |row: usize| logprobs.as_ref().map(|all| all.rows()[row].clone()).unwrap_or_default();
        let rows = rows.into_iter().map(|row| GeneratedRow {
            non_finite: row.is_non_finite(),
            tokens: row.new_tokens().to_vec(),
            logprobs: of_row(row.index),
            finish: row.finish.unwrap_or(Finish::Length),
            lookup: row.lookup,
        });
        let passed_over = compiled.passed_over.clone();
        Ok(Generation { rows: rows.collect(), captures, saved, marks, passed_over, reused, prefill, decode, moved })
    }
}

/// A generation whose inputs, plan and options are valid.
pub(crate) struct CheckedGeneration {
    pub compiled: Arc<CompiledPlan>,
    /// For each row the positions that it may come to.
    pub limits: Vec<usize>,
    /// For each row the index of its adapter; empty if no row has one.
    adapters: Vec<Option<usize>>,
}

/// Checks inputs, plan and options of a generation.
pub(crate) fn check(
    model: &Model,
    inputs: &[Vec<u32>],
    plan: &Plan,
    options: &GenerateOptions,
) -> Result<CheckedGeneration> {
    if model.program().logits_edge().is_none() {
        return Err(Error::input(
            "this model has no logits, so it cannot generate",
            "use run, which captures any site of the model",
        ));
    }
    if let Some(problem) = options.sampling.problem() {
        return Err(Error::input(problem, Remedy::GenerationOptions));
    }
    let vocab = model.program().architecture().vocab;
    if let Some((token, _)) = options.sampling.logit_bias.iter().find(|(token, _)| *token as usize >= vocab) {
        let problem = format!("logit_bias names token {token}, and the vocabulary has {vocab}");
        return Err(Error::input(problem, Remedy::GenerationOptions));
    }
    if options.max_new == 0 {
        return Err(Error::input("max_new is 0", "ask for at least one new token, or use run"));
    }
    model.check_rows(inputs, options.max_new - 1, options.chunk)?;
    let prompts: Vec<usize> = inputs.iter().map(Vec::len).collect();
    // The last new token is not run through the model, so a row has at most
    // prompt + max_new - 1 positions.
    let limits: Vec<usize> = prompts.iter().map(|n| n + options.max_new - 1).collect();
    let compiled = model.compile(plan, Lengths { prompts: &prompts, limits: &limits }, true)?;
    if compiled.gradient_edges(model.program()).is_some() {
        return Err(Error::input(
            "gradients are not available during generation",
            "generate first, then run the full text with the metric",
        ));
    }
    let adapters = model.row_adapters(&options.adapters, inputs.len())?;
    model.check_op_ranges(&compiled, &adapters)?;
    Ok(CheckedGeneration { compiled, limits, adapters })
}
