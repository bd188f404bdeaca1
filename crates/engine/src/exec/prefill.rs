//! Chunked prefill.

use super::{Executor, RowTokens};
use crate::error::Result;
use crate::job::Job;

impl Executor {
    /// Runs the unprocessed prompt tokens of `group`, rows of a job that run together, in chunks.
    /// Returns the logits of each row's last position, `[rows, vocab]`, if the job demands them;
    /// else nothing.
    pub fn prefill(&mut self, job: &mut Job, group: &[usize], inputs: &[Vec<u32>]) -> Result<Vec<f32>> {
        let width = self.model.program().architecture().vocab;
        let logits = job.demand.logits_at_ends;
        let mut ordered = vec![0.0; if logits { group.len() * width } else { 0 }];
        let left: Vec<(usize, &[u32])> = group.iter().map(|&row| (row, &inputs[row][job.rows[row].len..])).collect();
        let longest = left.iter().map(|(_, tokens)| tokens.len()).max().unwrap_or(0);
        let mut from = 0;
        while from < longest {
            let to = from.saturating_add(job.chunk()).min(longest);
            let parts = left.iter().filter(|(_, tokens)| tokens.len() > from);
            let parts =
                parts.map(|&(row, tokens)| RowTokens { job: 0, row, tokens: &tokens[from..to.min(tokens.len())] });
            let values = self.pass(&mut [job], parts, logits, None)?;
            if logits {
                // Rows end in different chunks; store each row's logits at its index in the group.
                for segment in &self.pass.segments {
                    let ended = segment.position + segment.count >= inputs[segment.row].len();
                    let Some(line) = self.pass.last_logits(segment).filter(|_| ended) else { continue };
                    let index = group.iter().position(|&row| row == segment.row).unwrap_or_default();
                    ordered[index * width..][..width].copy_from_slice(&values[line * width..][..width]);
                }
                self.arena.give(values);
            }
            from = to;
        }
        Ok(ordered)
    }
}
