//! A pass: some tokens of some rows, packed without padding.

use crate::plan::Compiled;
use crate::program::{Domain, Program};
use pellucid_kernels::attention::{KvFormat, KvStore};

/// What a row has computed so far.
#[derive(Default)]
pub struct RowState {
    /// Positions computed.
    pub len: usize,
    /// Positions to make room for.
    pub capacity: usize,
    /// Keys and values, for each layer that has run.
    pub kv: Vec<Option<KvStore>>,
    /// How they are kept.
    pub format: KvFormat,
    /// Whether somebody goes on from them after the pass; else a layer's are let go as soon as it has attended.
    pub keeps_keys: bool,
    /// What recurrent ops carry on from token to token, for each op that has run.
    pub carried: Vec<Vec<f32>>,
    /// Tokens of its prompt.
    pub prompt: usize,
}

impl RowState {
    /// A row of which nothing is computed yet.
    pub(crate) fn new(prompt: usize, format: KvFormat) -> RowState {
        RowState { prompt, format, ..RowState::default() }
    }

    /// A copy of the state after the first `len` positions, with room for `capacity`. What recurrent ops carry is known after the last
    /// position only.
    pub(crate) fn beginning(&self, len: usize, capacity: usize, prompt: usize) -> RowState {
        let kv = self.kv.iter().map(|kv| kv.as_ref().map(|kv| kv.prefix(len, capacity))).collect();
        let carried = self.carried.clone();
        RowState { len, capacity, kv, format: self.format, keeps_keys: self.keeps_keys, carried, prompt }
    }

    /// Forgets the positions from `len` on. What recurrent ops carry cannot be taken back.
    pub(super) fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
        self.kv.iter_mut().flatten().for_each(|kv| kv.truncate(len));
    }
}

/// Adjacent tokens of one row.
#[derive(Clone, Debug, PartialEq)]
pub struct Segment {
    /// The row of the call.
    pub row: usize,
    /// Absolute position of its first token.
    pub position: usize,
    /// How many tokens.
    pub count: usize,
    /// Where its first token stands in the pass.
    pub token: usize,
}

impl Segment {
    /// Some of its tokens.
    pub fn part(&self, tokens: std::ops::Range<usize>) -> Segment {
        Segment {
            row: self.row,
            position: self.position + tokens.start,
            count: tokens.len(),
            token: self.token + tokens.start,
        }
    }
}

/// Tokens that go through the ops together.
#[derive(Clone, Debug, Default)]
pub struct Pass {
    /// Its rows.
    pub segments: Vec<Segment>,
    /// All tokens, segment after segment.
    pub tokens: Vec<u32>,
    /// Their absolute positions.
    pub positions: Vec<usize>,
    /// The tokens of [`Domain::Late`].
    pub late: Vec<usize>,
    /// The tokens of [`Domain::Read`], all of which are among the late ones.
    pub read: Vec<usize>,
}

/// Who wants to read the end of the model.
pub(crate) struct Wanted<'a> {
    pub compiled: &'a Compiled,
    pub program: &'a Program,
    pub prompts: &'a [usize],
    /// Also the last position of each prompt, and every later one.
    pub ends: bool,
    /// Also these positions of rows, in order.
    pub also: &'a [(usize, usize)],
    /// Also these, in order, but only what the last MLP makes.
    pub also_late: &'a [(usize, usize)],
    /// What the last MLP makes is computed for every token.
    pub late_everywhere: bool,
}

impl Wanted<'_> {
    fn reads(&self, row: usize, position: usize) -> bool {
        self.ends && position + 1 >= self.prompts[row]
            || self.also.binary_search(&(row, position)).is_ok()
            || self.compiled.reads(self.program, Domain::Read, row, position)
    }

    fn reads_late(&self, row: usize, position: usize) -> bool {
        self.late_everywhere
            || self.also_late.binary_search(&(row, position)).is_ok()
            || self.compiled.reads(self.program, Domain::Late, row, position)
    }
}

impl Pass {
    /// Makes this the pass of other tokens: those of the rows that come next.
    pub(super) fn fill<'t>(
        &mut self,
        parts: impl Iterator<Item = (usize, &'t [u32])>,
        rows: &[RowState],
        wanted: &Wanted,
    ) {
        self.segments.clear();
        self.tokens.clear();
        self.positions.clear();
        self.late.clear();
        self.read.clear();
        parts.for_each(|(row, tokens)| self.add(row, rows[row].len, tokens, wanted));
    }

    /// Adds tokens of a row, which stand at `position` and after it.
    pub(crate) fn add(&mut self, row: usize, position: usize, tokens: &[u32], wanted: &Wanted) {
        let token = self.tokens.len();
        self.segments.push(Segment { row, position, count: tokens.len(), token });
        self.tokens.extend_from_slice(tokens);
        self.positions.extend(position..position + tokens.len());
        for i in 0..tokens.len() {
            let read = wanted.reads(row, position + i);
            self.read.extend(read.then_some(token + i));
            self.late.extend((read || wanted.reads_late(row, position + i)).then_some(token + i));
        }
    }

    /// The tokens of a domain; none where it is all of them.
    fn of(&self, domain: Domain) -> Option<&[usize]> {
        match domain {
            Domain::All => None,
            Domain::Late => Some(&self.late),
            Domain::Read => Some(&self.read),
        }
    }

    /// For each token of a domain its place in a wider one.
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

    /// The places of a segment's tokens on an edge: `(place, position)`.
    pub fn places<'a>(&'a self, domain: Domain, segment: &'a Segment) -> impl Iterator<Item = (usize, usize)> + 'a {
        let (tokens, some) = (segment.token..segment.token + segment.count, self.of(domain));
        let places = match some {
            None => tokens,
            Some(some) => some.partition_point(|&t| t < tokens.start)..some.partition_point(|&t| t < tokens.end),
        };
        places.map(move |place| {
            let token = some.map_or(place, |some| some[place]);
            (place, segment.position + token - segment.token)
        })
    }

    /// The rows whose prompt or step this pass ends, with the place of their last token among those read.
    pub(super) fn ends<'a>(&'a self, prompts: &'a [usize]) -> impl Iterator<Item = (usize, usize)> + 'a {
        self.segments.iter().filter_map(move |segment| {
            let last = segment.token + segment.count - 1;
            let ended = segment.position + segment.count >= prompts[segment.row];
            self.read.binary_search(&last).ok().filter(|_| ended).map(|place| (segment.row, place))
        })
    }
}
