//! A pass: tokens of rows of one or several jobs, packed without padding.

use super::Job;
use crate::program::{Program, TokenSet};
use std::ops::Range;

/// Adjacent tokens of one row.
#[derive(Clone, Debug, PartialEq)]
pub struct Segment {
    /// Index of the job among those of the pass.
    pub job: usize,
    /// Row of the job.
    pub row: usize,
    /// Index of the row's state among those of the pass
    /// ([`Frame::rows`](crate::backend::Frame::rows)).
    pub slot: usize,
    /// Absolute position of its first token.
    pub position: usize,
    /// Number of tokens.
    pub count: usize,
    /// Index of its first token in the pass.
    pub token: usize,
    /// Index of the row's adapter among those of the model.
    pub adapter: Option<usize>,
}

impl Segment {
    /// The part of the segment that covers `tokens`, counted from its first.
    pub fn part(&self, tokens: Range<usize>) -> Segment {
        Segment {
            position: self.position + tokens.start,
            count: tokens.len(),
            token: self.token + tokens.start,
            ..self.clone()
        }
    }
}

/// Tokens that run through the ops together.
#[derive(Clone, Debug, Default)]
pub struct Pass {
    /// One segment for each row, job after job.
    pub segments: Vec<Segment>,
    /// All tokens, segment after segment.
    pub tokens: Vec<u32>,
    /// Their absolute positions.
    pub positions: Vec<usize>,
    /// Indices of the tokens of [`TokenSet::ForLastMlp`], ascending.
    pub last_mlp_tokens: Vec<usize>,
    /// Indices of the tokens of [`TokenSet::ForLogits`], ascending; a subset of `last_mlp_tokens`.
    pub logit_tokens: Vec<usize>,
    /// For each job the range of its segments.
    jobs: Vec<Range<usize>>,
}

impl Pass {
    /// A pass of `count` tokens of one row, all of which run through every op, with this adapter.
    pub(crate) fn of_all(count: usize, adapter: Option<usize>) -> Pass {
        let mut pass = Pass { tokens: vec![0; count], positions: (0..count).collect(), ..Pass::default() };
        pass.last_mlp_tokens.extend(0..count);
        pass.logit_tokens.extend(0..count);
        pass.push_segment(Segment { job: 0, row: 0, slot: 0, position: 0, count, token: 0, adapter });
        pass
    }

    /// A pass of some tokens of this one, given by their ascending indices on an edge of a token
    /// set. All its tokens are in every token set.
    pub(crate) fn of_tokens(&self, token_set: TokenSet, indices: &[usize]) -> Pass {
        let mut part = Pass::default();
        let mut chosen = indices.iter().copied().peekable();
        for segment in &self.segments {
            let mut run: Option<Segment> = None;
            for (index, position) in self.segment_tokens(token_set, segment) {
                if chosen.next_if_eq(&index).is_none() {
                    continue;
                }
                let token = part.tokens.len();
                part.tokens.push(self.tokens[segment.token + position - segment.position]);
                part.positions.push(position);
                match &mut run {
                    Some(run) if run.position + run.count == position => run.count += 1,
                    _ => {
                        run.take().into_iter().for_each(|run| part.push_segment(run));
                        run = Some(Segment { position, count: 1, token, ..segment.clone() });
                    }
                }
            }
            run.into_iter().for_each(|run| part.push_segment(run));
        }
        part.last_mlp_tokens.extend(0..indices.len());
        part.logit_tokens.extend(0..indices.len());
        part
    }

    /// Empties the pass, keeping its allocations.
    pub(crate) fn clear(&mut self) {
        self.segments.clear();
        self.tokens.clear();
        self.positions.clear();
        self.last_mlp_tokens.clear();
        self.logit_tokens.clear();
        self.jobs.clear();
    }

    /// Adds tokens of a row of job `index`, starting at `position`. The segments of a job must be
    /// added one after the other.
    pub(crate) fn add(
        &mut self,
        program: &Program,
        (index, job): (usize, &Job),
        row: usize,
        position: usize,
        tokens: &[u32],
    ) {
        let (token, slot) = (self.tokens.len(), self.segments.len());
        let adapter = job.adapter(row);
        self.push_segment(Segment { job: index, row, slot, position, count: tokens.len(), token, adapter });
        self.tokens.extend_from_slice(tokens);
        self.positions.extend(position..position + tokens.len());
        for i in 0..tokens.len() {
            let logits = job.needs_logits(program, row, position + i);
            self.logit_tokens.extend(logits.then_some(token + i));
            self.last_mlp_tokens
                .extend((logits || job.needs_last_mlp(program, row, position + i)).then_some(token + i));
        }
    }

    fn push_segment(&mut self, segment: Segment) {
        let (job, slot) = (segment.job, self.segments.len());
        if self.jobs.len() <= job {
            self.jobs.resize(job + 1, slot..slot);
        }
        debug_assert!(self.jobs[job].is_empty() || self.jobs[job].end == slot, "segments of a job are neighbors");
        let start = if self.jobs[job].is_empty() { slot } else { self.jobs[job].start };
        self.jobs[job] = start..slot + 1;
        self.segments.push(segment);
    }

    /// The segments of a job.
    pub fn segments_of(&self, job: usize) -> &[Segment] {
        self.jobs.get(job).map_or(&[], |range| &self.segments[range.clone()])
    }

    /// Indices of the tokens of a set; `None` for all tokens.
    fn tokens_of(&self, token_set: TokenSet) -> Option<&[usize]> {
        match token_set {
            TokenSet::All => None,
            TokenSet::ForLastMlp => Some(&self.last_mlp_tokens),
            TokenSet::ForLogits => Some(&self.logit_tokens),
        }
    }

    /// For each token of set `to` its index in the larger set `from`.
    pub fn indices_in(&self, from: TokenSet, to: TokenSet) -> impl Iterator<Item = usize> + '_ {
        let (wider, tokens) = (self.tokens_of(from), self.tokens_of(to));
        (0..self.len(to)).map(move |index| {
            let token = tokens.map_or(index, |tokens| tokens[index]);
            wider.map_or(token, |wider| wider.partition_point(|&t| t < token))
        })
    }

    /// Number of tokens in a set.
    pub fn len(&self, token_set: TokenSet) -> usize {
        self.tokens_of(token_set).map_or(self.tokens.len(), <[usize]>::len)
    }

    /// The tokens of a segment on an edge with this token set: `(index on the edge, position in the
    /// row)`.
    pub fn segment_tokens<'a>(
        &'a self,
        token_set: TokenSet,
        segment: &'a Segment,
    ) -> impl Iterator<Item = (usize, usize)> + 'a {
        let some = self.tokens_of(token_set);
        self.range(token_set, segment).map(move |index| {
            let token = some.map_or(index, |some| some[index]);
            (index, segment.position + token - segment.token)
        })
    }

    /// The index range of a segment's tokens on an edge with this token set.
    pub fn range(&self, token_set: TokenSet, segment: &Segment) -> Range<usize> {
        let tokens = segment.token..segment.token + segment.count;
        match self.tokens_of(token_set) {
            None => tokens,
            Some(some) => some.partition_point(|&t| t < tokens.start)..some.partition_point(|&t| t < tokens.end),
        }
    }

    /// The index of a segment's last token among those with logits, if it has logits.
    pub(crate) fn last_logits(&self, segment: &Segment) -> Option<usize> {
        self.logit_tokens.binary_search(&(segment.token + segment.count - 1)).ok()
    }
}
