//! Attention and rotary embeddings as data.

use super::Norm;
use pellucid_kernels::activation::Activation;
use pellucid_kernels::rope::RopeStyle;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// An attention sublayer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Attention {
    /// Query heads (`num_attention_heads`).
    pub heads: usize,
    /// Key/value heads (`num_key_value_heads`); divides `heads`.
    pub kv_heads: usize,
    /// Width of a query and a key.
    pub head_dim: usize,
    /// Width of a value.
    pub value_dim: usize,
    /// Multi-head latent attention: q, k and v are up-projections of low-rank vectors.
    pub latent: Option<Latent>,
    /// The query and output projections are experts selected per token.
    pub experts: Option<AttentionExperts>,
    /// Rank of the per-layer LoRA adapters on the q, k and v projections of a shared block.
    pub adapter: Option<usize>,
    /// Biases on the q, k and v projections.
    pub qkv_bias: bool,
    /// The key projection has no bias even if `qkv_bias` is set (Whisper).
    pub no_key_bias: bool,
    /// Bias on the output projection.
    pub out_bias: bool,
    /// Scale of the values.
    pub value_scale: Option<f32>,
    /// q, k and v are clamped to `[-clip, clip]`.
    pub clip: Option<f32>,
    /// Norm of queries and keys.
    pub qk_norm: Option<Norm>,
    /// Axis of the q/k norm.
    pub qk_norm_span: NormSpan,
    /// The q/k norm comes after RoPE instead of before.
    pub qk_norm_after_rope: bool,
    /// Index into [`Architecture::ropes`](super::Architecture::ropes); no RoPE if absent.
    pub rope: Option<usize>,
    /// Position-dependent scale of the queries.
    pub position_scale: Option<PositionScale>,
    /// Scale of the scores q·k.
    pub scale: f32,
    /// `cap · tanh(score / cap)` on the scores.
    pub soft_cap: Option<f32>,
    /// Sliding window: positions that a query attends to, itself included; unlimited if absent.
    pub window: Option<usize>,
    /// Chunked attention: a query attends only within its chunk of this length.
    pub chunk: Option<usize>,
    /// ALiBi: linear position biases.
    pub alibi: Option<Alibi>,
    /// Dynamic mask: a learned bias per key, computed from its value, is added to its scores.
    pub dynamic_mask: Option<DynamicMask>,
    /// Attention sinks: one extra softmax logit per head, whose weight is discarded.
    pub sinks: bool,
    /// Differential attention: heads work in pairs, the second subtracted from the first. Holds
    /// λ_init.
    pub differential: Option<f32>,
    /// Norm of the heads' outputs, before the gate and the output projection.
    pub out_norm: Option<Norm>,
    /// Gate on the heads' outputs, computed from the sublayer's input.
    pub gate: Option<AttentionGate>,
}

/// Multi-head latent attention (DeepSeek): keys and values are up-projected per head from one
/// low-rank vector.
///
/// A query or key is `[nope, rope]`: a part without position and a rotated part. All heads share
/// the rotated part of the key.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Latent {
    /// Rank of the query projection (`q_lora_rank`); full rank if absent.
    pub query_rank: Option<usize>,
    /// Rank of the key and value projections (`kv_lora_rank`).
    pub kv_rank: usize,
    /// Channels with RoPE (`qk_rope_head_dim`), the last of each query and key.
    pub rope_dim: usize,
    /// Norm of the low-rank vectors.
    pub norm: Norm,
    /// Biases on the down projections.
    pub bias: bool,
    /// Scale of the low-rank query, after its norm.
    pub query_scale: Option<f32>,
    /// Scale of the low-rank key/value vector, after its norm.
    pub kv_scale: Option<f32>,
}

/// Attention whose query and output projections are experts (JetMoE).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttentionExperts {
    /// Number of experts.
    pub count: usize,
    /// Experts per token; each contributes `kv_heads` query heads.
    pub top_k: usize,
}

/// Axis of the q/k norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum NormSpan {
    /// Per head; all heads share one gain `[head_dim]`.
    #[default]
    Head,
    /// Per head, with a gain per head `[heads, head_dim]`.
    HeadGains,
    /// Over all heads together, gain `[heads * head_dim]`.
    All,
}

/// Position-dependent scale `1 + scale · ln(1 + ⌊(position + offset) / span⌋)` (Llama 4's attention
/// temperature tuning).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PositionScale {
    /// Growth rate (`attn_scale`).
    pub scale: f32,
    /// Positions per step (`floor_scale`).
    pub span: f32,
    /// Added to the position.
    pub offset: f32,
}

/// ALiBi: linear position biases.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Alibi {
    /// Slope per head.
    pub slopes: Vec<f32>,
    /// If set, biases are rounded to bf16, then multiplied by this (Falcon).
    pub bf16_scale: Option<f32>,
}

/// Dynamic mask (Doge): `exp(a · softplus(dt · values))` is added to a key's scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DynamicMask {
    /// Bias on the projection.
    pub bias: bool,
    /// Keys per query (`keep_window_size`): beyond it only those with the largest bias stay.
    pub max_keys: usize,
}

/// A gate on the heads' outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttentionGate {
    /// One gate per head instead of one per channel.
    pub per_head: bool,
    /// Activation of the gate.
    pub activation: Activation,
    /// Bias on the gate's projection.
    pub bias: bool,
}

/// A rotary embedding.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rope {
    /// Which channels form a pair.
    pub style: RopeStyle,
    /// Angle per position, for each pair of channels.
    pub frequencies: Vec<f32>,
    /// Scale of cosines and sines (YaRN's attention factor).
    pub amplitude: f32,
    /// Frequencies of rows longer than the original context.
    pub long: Option<LongRope>,
}

/// Frequencies of rows longer than the model's original context.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum LongRope {
    /// LongRoPE: another set of frequencies beyond a length.
    Beyond {
        /// The original context length.
        length: usize,
        /// Frequencies of longer rows.
        frequencies: Vec<f32>,
        /// Scale of cosines and sines in longer rows.
        amplitude: f32,
    },
    /// Dynamic NTK: the base grows with the row's length.
    Dynamic {
        /// The original context length.
        length: usize,
        /// The base at that length.
        base: f32,
        /// Growth rate of the base.
        factor: f32,
    },
}

impl Attention {
    /// Returns attention without biases, norms, positions, caps or windows; scores are scaled by
    /// `1/√head_dim`.
    pub fn plain(heads: usize, kv_heads: usize, head_dim: usize) -> Attention {
        Attention {
            heads,
            kv_heads,
            head_dim,
            value_dim: head_dim,
            latent: None,
            experts: None,
            adapter: None,
            qkv_bias: false,
            no_key_bias: false,
            out_bias: false,
            value_scale: None,
            clip: None,
            qk_norm: None,
            qk_norm_span: NormSpan::Head,
            qk_norm_after_rope: false,
            rope: None,
            position_scale: None,
            scale: 1.0 / (head_dim.max(1) as f32).sqrt(),
            soft_cap: None,
            window: None,
            chunk: None,
            alibi: None,
            dynamic_mask: None,
            sinks: false,
            differential: None,
            out_norm: None,
            gate: None,
        }
    }
}

impl Rope {
    /// Returns an embedding with the same frequencies at every row length.
    pub fn fixed(style: RopeStyle, frequencies: Vec<f32>, amplitude: f32) -> Rope {
        Rope { style, frequencies, amplitude, long: None }
    }

    /// Returns the frequencies for a row of `length` tokens.
    pub fn frequencies_at(&self, length: usize) -> Cow<'_, [f32]> {
        match &self.long {
            Some(LongRope::Beyond { length: limit, frequencies, .. }) if length > *limit => frequencies.into(),
            Some(LongRope::Dynamic { length: limit, base, factor }) if length > *limit => {
                let dim = 2 * self.frequencies.len();
                let grown = factor * length as f32 / *limit as f32 - (factor - 1.0);
                let base = base * grown.powf(dim as f32 / (dim as f32 - 2.0));
                (0..dim / 2).map(|i| 1.0 / base.powf(2.0 * i as f32 / dim as f32)).collect()
            }
            _ => (&self.frequencies[..]).into(),
        }
    }

    /// Whether a row of `length` tokens exceeds the original context, so that its angles depend on
    /// its length.
    pub fn is_stretched(&self, length: usize) -> bool {
        match &self.long {
            Some(LongRope::Beyond { length: limit, .. } | LongRope::Dynamic { length: limit, .. }) => length > *limit,
            None => false,
        }
    }

    /// Returns the scale of cosines and sines for a row of `length` tokens.
    pub fn amplitude_at(&self, length: usize) -> f32 {
        match self.long {
            Some(LongRope::Beyond { length: limit, amplitude, .. }) if length > limit => amplitude,
            _ => self.amplitude,
        }
    }
}
