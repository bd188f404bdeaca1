//! Causal attention over cached keys and values.
//!
//! [`KvStore`] keeps a row's keys and values as panels, so both products of attention run through the one tile of
//! [`crate::matmul`](mod@crate::matmul). [`attend`] is fused: it walks the keys in tiles fixed by absolute position with a running softmax
//! and never holds the score matrix. [`scores`] and [`mix`] are the same attention taken apart, for when somebody wants to see
//! or change what lies between. [`attend_back`], [`mix_back`] and [`scores_back`] are their gradients.

mod back;
mod explicit;
mod explicit_back;
mod fused;
mod numbers;
mod store;

pub use back::{Gradients, Run, attend_back, softmax_back};
pub use explicit::{mix, scores};
pub use explicit_back::{mix_back, scores_back};
pub use fused::attend;
pub use numbers::KvFormat;
pub use store::{KvLayout, KvStore};

/// What kind of attention a layer does.
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionShape {
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; each serves `heads / kv_heads` query heads.
    pub kv_heads: usize,
    /// Width of a query and of a key.
    pub key_dim: usize,
    /// Width of a value.
    pub value_dim: usize,
    /// What products of queries and keys are multiplied by.
    pub scale: f32,
    /// `cap · tanh(score / cap)`, before the mask.
    pub soft_cap: Option<f32>,
    /// Which keys a query sees.
    pub mask: CausalMask,
}

/// The keys that a query sees: its own position and earlier ones, all of them or the nearest. That no query sees a later position
/// is what KV caches, chunked prompts, prefixes, branches and generation stand on (ARCHITECTURE, "What follows from causality").
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CausalMask {
    /// Sliding window: a query sees this many positions, itself included.
    pub window: Option<usize>,
    /// Chunked attention: a query sees only positions of its own chunk of this length.
    pub chunk: Option<usize>,
}

impl CausalMask {
    /// The key positions that a query at `position` sees.
    pub fn visible(&self, position: usize) -> std::ops::Range<usize> {
        let windowed = self.window.map_or(0, |window| (position + 1).saturating_sub(window));
        let chunked = self.chunk.map_or(0, |chunk| position / chunk * chunk);
        windowed.max(chunked)..position + 1
    }
}

/// Numbers that some attention adds, one for each query head.
#[derive(Clone, Copy, Default)]
pub struct HeadTerms<'a> {
    /// ALiBi: slope times key position is added to a score.
    pub slopes: Option<Slopes<'a>>,
    /// One more logit in each softmax, whose share nobody receives.
    pub sinks: Option<&'a [f32]>,
}

/// The slopes of linear position biases.
#[derive(Clone, Copy)]
pub struct Slopes<'a> {
    /// One for each query head.
    pub each: &'a [f32],
    /// Slope, position and bias are each rounded to bfloat16, then the bias is multiplied by this.
    pub rounded: Option<f32>,
}

impl Slopes<'_> {
    /// What is added to a head's score of a key.
    fn bias(&self, head: usize, key: usize) -> f32 {
        let round = |x: f32| f32::from_bits(u32::from(numbers::rounded(x)) << 16);
        match self.rounded {
            None => self.each[head] * key as f32,
            Some(scale) => round(round(self.each[head]) * round(key as f32)) * scale,
        }
    }
}

/// A run of adjacent queries of one row.
#[derive(Clone, Copy)]
pub struct Queries<'a> {
    /// The row's keys and values, those of these queries' own positions included.
    pub kv: &'a KvStore,
    /// Absolute position of the first query.
    pub position: usize,
    /// How many queries.
    pub count: usize,
    /// Where the first query stands in the packed activations.
    pub token: usize,
}

impl AttentionShape {
    /// The key positions that a query at `position` sees.
    pub fn visible(&self, position: usize) -> std::ops::Range<usize> {
        self.mask.visible(position)
    }

    /// What its keys and values need to be kept.
    pub fn kv_layout(&self, format: KvFormat) -> KvLayout {
        KvLayout { kv_heads: self.kv_heads, key_dim: self.key_dim, value_dim: self.value_dim, format }
    }

    /// Query heads that share a key head.
    fn group(&self) -> usize {
        self.heads / self.kv_heads
    }
}

#[cfg(test)]
mod tests;
