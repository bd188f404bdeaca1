//! A pass: tokens of rows of one or several jobs, packed without padding.

use super::Job;
use crate::program::{Domain, Program};
use std::ops::Range;

/// Adjacent tokens of one row.
#[derive(Clone, Debug, PartialEq)]
pub struct Segment {
    /// Index of the job among those of the pass.
    pub job: usize,
    /// Row of the job.
    pub row: usize,
    /// Index of the row's state among those of the pass ([`Frame::rows`](crate::backend::Frame::rows)).
    pub slot: usize,
    /// Absolute position of its first token.
    pub position: usize,
    /// How many tokens.
    pub count: usize,
    /// Index of its first token in the pass.
    pub token: usize,
}

impl Segment {
    /// Some of its tokens.
    pub fn part(&self, tokens: Range<usize>) -> Segment {
        Segment {
            position: self.position + tokens.start,
            count: tokens.len(),
            token: self.token + tokens.start,
            ..self.clone()
        }
    }
}

/// Tokens that go through the ops together.
#[derive(Clone, Debug, Default)]
pub struct Pass {
    /// One segment for each row, job after job.
    pub segments: Vec<Segment>,
    /// All tokens, segment after segment.
    pub tokens: Vec<u32>,
    /// Their absolute positions.
    pub positions: Vec<usize>,
    /// The tokens of [`Domain::Late`].
    pub late: Vec<usize>,
    /// The tokens of [`Domain::Read`], all of which are among the late ones.
    pub read: Vec<usize>,
    /// For each job the range of its segments.
    jobs: Vec<Range<usize>>,
}

impl Pass {
    /// A pass of `count` tokens of one row, all of which go through every op.
    pub(crate) fn of_all(count: usize) -> Pass {
        let mut pass = Pass { tokens: vec![0; count], positions: (0..count).collect(), ..Pass::default() };
        pass.late.extend(0..count);
        pass.read.extend(0..count);
        pass.push_segment(Segment { job: 0, row: 0, slot: 0, position: 0, count, token: 0 });
        pass
    }

    /// Empties the pass, keeping its memory.
    pub(crate) fn clear(&mut self) {
        self.segments.clear();
        self.tokens.clear();
        self.positions.clear();
        self.late.clear();
        self.read.clear();
        self.jobs.clear();
    }

    /// Adds tokens of a row of job `index`, at `position` and after it. The segments of a job must be added one after the other.
    pub(crate) fn add(
        &mut self,
        program: &Program,
        (index, job): (usize, &Job),
        row: usize,
        position: usize,
        tokens: &[u32],
    ) {
        let (token, slot) = (self.tokens.len(), self.segments.len());
        self.push_segment(Segment { job: index, row, slot, position, count: tokens.len(), token });
        self.tokens.extend_from_slice(tokens);
        self.positions.extend(position..position + tokens.len());
        for i in 0..tokens.len() {
            let read = job.needs_logits(program, row, position + i);
            self.read.extend(read.then_some(token + i));
            self.late.extend((read || job.needs_last_mlp(program, row, position + i)).then_some(token + i));
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

    /// The tokens of a domain; `None` if it is all of them.
    fn of(&self, domain: Domain) -> Option<&[usize]> {
        match domain {
            Domain::All => None,
            Domain::Late => Some(&self.late),
            Domain::Read => Some(&self.read),
        }
    }

    /// For each token of a domain its index in a wider one.
    pub fn picks(&self, from: Domain, to: Domain) -> impl Iterator<Item = usize> + '_ {
        let (wider, tokens) = (self.of(from), self.of(to));
        (0..self.len(to)).map(move |place| {
            let token = tokens.map_or(place, |tokens| tokens[place]);
            wider.map_or(token, |wider| wider.partition_point(|&t| t < token))
        })
    }

    /// Tokens of an edge's domain.
    pub fn len(&self, domain: Domain) -> usize {
        self.of(domain).map_or(self.tokens.len(), <[usize]>::len)
    }

    /// Indices of a segment's tokens on an edge: `(index, position)`.
    pub fn places<'a>(&'a self, domain: Domain, segment: &'a Segment) -> impl Iterator<Item = (usize, usize)> + 'a {
        let some = self.of(domain);
        self.range(domain, segment).map(move |place| {
            let token = some.map_or(place, |some| some[place]);
            (place, segment.position + token - segment.token)
        })
    }

    /// The range of a segment's tokens on an edge.
    pub fn range(&self, domain: Domain, segment: &Segment) -> Range<usize> {
        let tokens = segment.token..segment.token + segment.count;
        match self.of(domain) {
            None => tokens,
            Some(some) => some.partition_point(|&t| t < tokens.start)..some.partition_point(|&t| t < tokens.end),
        }
    }

    /// The index of a segment's last token among those with logits, if it has logits.
    pub(crate) fn last_logits(&self, segment: &Segment) -> Option<usize> {
        self.read.binary_search(&(segment.token + segment.count - 1)).ok()
    }
}
