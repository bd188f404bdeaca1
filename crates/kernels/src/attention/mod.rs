//! Causal attention over a KV cache.
//!
//! [`KvCache`] stores keys and values as panels, so both products of attention use the tile of
//! [`crate::matmul`](mod@crate::matmul). [`attend`] is fused: it goes through the keys in tiles
//! fixed by absolute position, with an online softmax, and never stores the score matrix.
//! [`scores`] and [`weighted_values`] are the unfused version, for taps that read or change scores
//! or attention weights. [`attend_backward`], [`weighted_values_backward`] and [`scores_backward`]
//! are their backward passes.

mod backward;
mod fused;
mod kv_cache;
mod kv_format;
mod unfused;
mod unfused_backward;

pub use backward::{AttentionGradients, TokenRun, attend_backward, softmax_backward};
pub use fused::attend;
pub use kv_cache::{KvCache, KvLayout};
pub use kv_format::KvFormat;
pub use unfused::{scores, weighted_values};
pub use unfused_backward::{scores_backward, weighted_values_backward};

/// Shape and settings of a layer's attention.
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionShape {
    /// Number of query heads.
    pub heads: usize,
    /// Number of KV heads; each serves `heads / kv_heads` query heads.
    pub kv_heads: usize,
    /// Query and key dimension per head.
    pub key_dim: usize,
    /// Value dimension per head.
    pub value_dim: usize,
    /// Scale of the q·k products, usually `1 / sqrt(key_dim)`.
    pub scale: f32,
    /// `cap · tanh(score / cap)`, before the mask.
    pub soft_cap: Option<f32>,
    /// Which keys a query sees.
    pub mask: CausalMask,
}

/// The keys that a query sees: its own position and earlier ones, or the nearest of these. No query
/// sees a later position; KV caches, chunked prefill, prefixes, branches and generation rely on
/// that (ARCHITECTURE, "What follows from causality").
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CausalMask {
    /// Sliding window: a query sees this many positions, itself included.
    pub window: Option<usize>,
    /// Chunked attention: a query sees only positions of its own chunk of this length.
    pub chunk: Option<usize>,
}

impl CausalMask {
    /// Key positions visible to a query at `position`.
    pub fn visible(&self, position: usize) -> std::ops::Range<usize> {
        let windowed = self.window.map_or(0, |window| (position + 1).saturating_sub(window));
        let chunked = self.chunk.map_or(0, |chunk| position / chunk * chunk);
        windowed.max(chunked)..position + 1
    }
}

/// Per-head terms that some models add to the scores.
#[derive(Clone, Copy, Default)]
pub struct HeadBiases<'a> {
    /// ALiBi: slope times key position is added to each score.
    pub slopes: Option<AlibiSlopes<'a>>,
    /// Attention sinks: one extra softmax logit per head, whose weight is discarded.
    pub sinks: Option<&'a [f32]>,
}

/// ALiBi slopes.
#[derive(Clone, Copy)]
pub struct AlibiSlopes<'a> {
    /// One slope per query head.
    pub per_head: &'a [f32],
    /// If set, slope, position and bias are each rounded to bfloat16, then the bias is multiplied
    /// by this scale.
    pub bf16_scale: Option<f32>,
}

impl AlibiSlopes<'_> {
    /// Bias of a head's score of a key.
    fn bias(&self, head: usize, key: usize) -> f32 {
        let round = |x: f32| f32::from_bits(u32::from(kv_format::round_to_bf16(x)) << 16);
        match self.bf16_scale {
            None => self.per_head[head] * key as f32,
            Some(scale) => round(round(self.per_head[head]) * round(key as f32)) * scale,
        }
    }
}

/// A run of adjacent queries of one sequence.
#[derive(Clone, Copy)]
pub struct Queries<'a> {
    /// KV cache of the sequence, which already contains the positions of these queries.
    pub kv: &'a KvCache,
    /// Absolute position of the first query.
    pub position: usize,
    /// Number of queries.
    pub count: usize,
    /// Index of the first query in the packed activations.
    pub packed_offset: usize,
}

impl AttentionShape {
    /// Key positions visible to a query at `position`.
    pub fn visible(&self, position: usize) -> std::ops::Range<usize> {
        self.mask.visible(position)
    }

    /// Layout of the KV cache for this attention.
    pub fn kv_layout(&self, format: KvFormat) -> KvLayout {
        KvLayout { kv_heads: self.kv_heads, key_dim: self.key_dim, value_dim: self.value_dim, format }
    }

    /// Query heads per KV head.
    fn group(&self) -> usize {
        self.heads / self.kv_heads
    }
}

#[cfg(test)]
mod tests;
