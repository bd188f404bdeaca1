//! Continuous batching: generations that share passes.

use super::decoder::Decoder;
use super::{Control, GenerateOptions, Generation};
use crate::error::Result;
use crate::exec::{Executor, RowTokens};
use crate::interrupt::InterruptPoller;
use crate::job::{Job, LiveCapture};
use crate::logprobs::LiveLogprobs;
use crate::model::Model;
use crate::plan::Plan;
use std::sync::Arc;

/// The tokens of one generation in a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchShare {
    /// The generation.
    pub request: RequestId,
    /// Its prompt tokens in the pass.
    pub prompt_tokens: usize,
    /// Its generated tokens in the pass.
    pub decode_tokens: usize,
}

/// Identifies a generation of a [`Batch`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(u64);

/// Generations that run in the same passes, each with its own plan and options. They join and leave
/// between passes, and each gives results bit-identical to [`Model::generate`].
///
/// ```no_run
/// # fn example(model: &pellucid_engine::Model, prompt: Vec<u32>) -> pellucid_engine::Result<()> {
/// use pellucid_engine::{Batch, Control, GenerateOptions, Plan};
/// let mut batch = Batch::new(model);
/// let request = batch.add(&[prompt], &Plan::capture(["layers.0.resid_post"]), &GenerateOptions::default())?;
/// while batch.running() > 0 {
///     batch.pass(512, &mut |_request, _row, _token| Control::Go)?;
/// }
/// let generation = batch.take(request).expect("it has ended")?;
/// assert_eq!(generation.rows.len(), 1);
/// # Ok(())
/// # }
/// ```
pub struct Batch {
    executor: Executor,
    running: Vec<(RequestId, Decoder)>,
    ended: Vec<(RequestId, Result<Generation>)>,
    added: u64,
    passes: u64,
}

/// In every such pass the oldest prompt comes first, so that a stream of short prompts does not
/// stop a long one.
const OLDEST_FIRST: u64 = 4;

impl Batch {
    /// Creates an empty batch.
    pub fn new(model: &Model) -> Batch {
        let executor = Executor::new(model, InterruptPoller::new(None));
        Batch { executor, running: Vec::new(), ended: Vec::new(), added: 0, passes: 0 }
    }

    /// Adds a generation of rows that share a plan; it joins at the next pass. Its `threads` and
    /// `interrupt` options are ignored.
    pub fn add(&mut self, inputs: &[Vec<u32>], plan: &Plan, options: &GenerateOptions) -> Result<RequestId> {
        let decoder = Decoder::new(self.executor.model(), inputs, plan, options)?;
        let id = RequestId(self.added);
        self.added += 1;
        self.running.push((id, decoder));
        Ok(id)
    }

    /// The captures of a generation, to be read by other threads while it runs.
    pub(crate) fn live_captures(&self, request: RequestId) -> Option<Arc<[Arc<LiveCapture>]>> {
        let (_, decoder) = self.running.iter().find(|(id, _)| *id == request)?;
        Some(decoder.job.collector.live_captures())
    }

    /// The log-probabilities of a generation, to be read by other threads while it runs.
    pub(crate) fn live_logprobs(&self, request: RequestId) -> Option<Arc<LiveLogprobs>> {
        let (_, decoder) = self.running.iter().find(|(id, _)| *id == request)?;
        decoder.logprobs()
    }

    /// Number of generations that have not ended.
    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// Ends a generation now and frees its rows. Returns whether it was running.
    pub fn cancel(&mut self, id: RequestId) -> bool {
        let before = self.running.len();
        self.running.retain(|(running, _)| *running != id);
        self.running.len() < before
    }

    /// Takes the result of a generation that has ended.
    pub fn take(&mut self, id: RequestId) -> Option<Result<Generation>> {
        let index = self.ended.iter().position(|(ended, _)| *ended == id)?;
        Some(self.ended.swap_remove(index).1)
    }

    /// Takes the results of all generations that have ended.
    pub fn take_ended(&mut self) -> Vec<(RequestId, Result<Generation>)> {
        std::mem::take(&mut self.ended)
    }

    /// Runs one pass of all generations: the next token of each decoding row, and prompt tokens,
    /// together about `tokens`. The prompt with the fewest tokens left comes first, so that a short
    /// one does not wait for a long one; in every fourth pass it is the oldest. Prompts advance by
    /// at least one token.
    /// `watch` is called with each new token of each row. Returns the generations in the pass.
    pub fn pass(
        &mut self,
        tokens: usize,
        watch: &mut dyn FnMut(RequestId, usize, u32) -> Control,
    ) -> Result<Vec<BatchShare>> {
        let Batch { executor, running, ended, passes, .. } = self;
        *passes += 1;
        let decoding = running.iter().filter(|(_, decoder)| !decoder.in_prompts());
        let decoding: usize = decoding.map(|(_, decoder)| decoder.running_rows()).sum();
        let mut left = tokens.saturating_sub(decoding).max(1);
        let mut shares = Vec::with_capacity(running.len());
        let mut chosen: Vec<&mut (RequestId, Decoder)> = Vec::with_capacity(running.len());
        let mut queue: Vec<&mut (RequestId, Decoder)> = running.iter_mut().collect();
        if !passes.is_multiple_of(OLDEST_FIRST) {
            queue.sort_by_key(|(_, decoder)| decoder.prompt_tokens_left());
        }
        for request in queue {
            let in_prompts = request.1.in_prompts();
            if in_prompts && left == 0 {
                continue;
            }
            let tokens = request.1.plan_pass(left);
            let (prompt_tokens, decode_tokens) = if in_prompts { (tokens, 0) } else { (0, tokens) };
            left = left.saturating_sub(prompt_tokens);
            shares.push(BatchShare { request: request.0, prompt_tokens, decode_tokens });
            chosen.push(request);
        }
        if chosen.is_empty() {
            return Ok(shares);
        }
        let model = executor.model().clone();
        let mut jobs: Vec<&mut Job> = Vec::with_capacity(chosen.len());
        let mut parts: Vec<RowTokens> = Vec::with_capacity(chosen.len());
        for (index, (_, decoder)) in chosen.iter_mut().map(|request| &mut **request).enumerate() {
            let (job, own) = decoder.parts(index);
            jobs.push(job);
            parts.extend(own);
        }
        let passed = executor.pass(&mut jobs, parts.into_iter(), true, None);
        drop(jobs);
        let mut logits = match passed {
            Ok(logits) => logits,
            // With one job in the pass, the error belongs to it; the batch continues.
            Err(error) if chosen.len() == 1 => {
                let id = chosen[0].0;
                ended.push((id, Err(error)));
                running.retain(|(running, _)| *running != id);
                return Ok(shares);
            }
            Err(error) => return Err(error),
        };
        let mut failed = Vec::new();
        for (index, (id, decoder)) in chosen.into_iter().map(|request| &mut *request).enumerate() {
            let outcome = match decoder.job.failure.take() {
                Some(error) => Err(error),
                None => {
                    let watch = &mut |row, token| watch(*id, row, token);
                    decoder.receive(&model, executor.last_pass(), index, &mut logits, watch)
                }
            };
            if let Err(error) = outcome {
                failed.push((*id, error));
            }
        }
        executor.give_back(logits);
        for (id, error) in failed {
            ended.push((id, Err(error)));
            running.retain(|(running, _)| *running != id);
        }
        let (done, going): (Vec<_>, Vec<_>) = running.drain(..).partition(|(_, decoder)| decoder.is_done());
        *running = going;
        ended.extend(done.into_iter().map(|(id, decoder)| (id, decoder.finish(&model))));
        Ok(shares)
    }
}
