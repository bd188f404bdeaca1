//! Generations that share passes.

use super::decoder::Decoder;
use super::{Control, GenerateOptions, Generation};
use crate::error::Result;
use crate::exec::{Executor, RowTokens};
use crate::interrupt::Watch;
use crate::job::Job;
use crate::model::Model;
use crate::plan::Plan;

/// A generation of a [`Batch`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(u64);

/// Generations that run in the same passes, each under its own plan and options. They join and leave between passes, and each gives
/// the bits that [`Model::generate`] would.
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
}

impl Batch {
    /// A batch with no generations yet.
    pub fn new(model: &Model) -> Batch {
        let executor = Executor::new(model, Watch::new(None));
        Batch { executor, running: Vec::new(), ended: Vec::new(), added: 0 }
    }

    /// Adds a generation: rows that share a plan. It takes part from the next pass on. Its `threads` and `interrupt` are the batch's.
    pub fn add(&mut self, inputs: &[Vec<u32>], plan: &Plan, options: &GenerateOptions) -> Result<RequestId> {
        let decoder = Decoder::new(self.executor.model(), inputs, plan, options)?;
        let id = RequestId(self.added);
        self.added += 1;
        self.running.push((id, decoder));
        Ok(id)
    }

    /// Generations that have not ended.
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

    /// Runs one pass of all generations: the next token of each row that decodes, and at most about `prompt_tokens` tokens of prompts,
    /// first come, first served. `watch` sees each new token of each row.
    pub fn pass(
        &mut self,
        prompt_tokens: usize,
        watch: &mut dyn FnMut(RequestId, usize, u32) -> Control,
    ) -> Result<()> {
        let Batch { executor, running, ended, .. } = self;
        // At least one, so that prompts always advance.
        let mut left = prompt_tokens.max(1);
        let mut chosen: Vec<&mut (RequestId, Decoder)> = Vec::with_capacity(running.len());
        for request in running.iter_mut() {
            let in_prompts = request.1.in_prompts();
            if in_prompts && left == 0 {
                continue;
            }
            let tokens = request.1.plan_pass(left);
            if in_prompts {
                left = left.saturating_sub(tokens);
            }
            chosen.push(request);
        }
        if chosen.is_empty() {
            return Ok(());
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
            // With one job in the pass, the failure is its own; the batch goes on.
            Err(error) if chosen.len() == 1 => {
                let id = chosen[0].0;
                ended.push((id, Err(error)));
                running.retain(|(running, _)| *running != id);
                return Ok(());
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
        Ok(())
    }
}
