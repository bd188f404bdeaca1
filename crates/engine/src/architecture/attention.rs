//! Attention as data.

use super::Norm;
use pellucid_kernels::activation::Activation;
use pellucid_kernels::rope::RopeStyle;
use std::borrow::Cow;

/// An attention sublayer.
#[derive(Clone, Debug, PartialEq)]
pub struct Attention {
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Width of a head's query and key.
    pub head_dim: usize,
    /// Width of a head's value.
    pub value_dim: usize,
    /// Queries, keys and values are made from compressed forms (multi-head latent attention).
    pub latent: Option<Latent>,
    /// Queries and outputs are made by experts that the token chose.
    pub experts: Option<AttentionExperts>,
    /// Queries, keys and values each have a second projection through this width, one for each layer that shares them.
    pub adapter: Option<usize>,
    /// Whether the query, key and value projections have biases.
    pub qkv_bias: bool,
    /// The key projection has none even so.
    pub unbiased_keys: bool,
    /// Whether the output projection has a bias.
    pub out_bias: bool,
    /// Values are multiplied by this.
    pub value_scale: Option<f32>,
    /// Queries, keys and values are clipped to plus or minus this.
    pub clip: Option<f32>,
    /// A norm of queries and keys.
    pub qk_norm: Option<Norm>,
    /// What that norm runs over.
    pub qk_norm_span: NormSpan,
    /// That norm follows the rotation.
    pub qk_norm_after_rope: bool,
    /// Which rotary embedding turns queries and keys.
    pub rope: Option<usize>,
    /// Queries grow with their position.
    pub temperature: Option<Temperature>,
    /// What products of queries and keys are multiplied by.
    pub scale: f32,
    /// `cap · tanh(score / cap)` on the scores.
    pub soft_cap: Option<f32>,
    /// Positions that a query sees, itself included; all earlier ones where absent.
    pub window: Option<usize>,
    /// A query sees only positions of its own chunk of this length.
    pub chunk: Option<usize>,
    /// Linear position biases.
    pub alibi: Option<Alibi>,
    /// A number for each key, computed from its value, is added to its scores.
    pub dynamic_mask: Option<DynamicMask>,
    /// Each head has one more logit in its softmax, whose share nobody receives.
    pub sinks: bool,
    /// Heads work in pairs, the second subtracted from the first; holds the weight it starts from.
    pub differential: Option<f32>,
    /// A norm of the heads' outputs, before the gate and the output projection.
    pub out_norm: Option<Norm>,
    /// The heads' outputs are multiplied by a gate computed from the sublayer's input.
    pub gate: Option<AttentionGate>,
}

/// Multi-head latent attention: what is small enough to cache for all heads together, and expanded for each.
///
/// A query or key is a part without position and a rotated part; the keys' rotated part is the same for all heads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Latent {
    /// Width of the compressed query; queries are projected directly where absent.
    pub query_rank: Option<usize>,
    /// Width of the compressed keys and values.
    pub kv_rank: usize,
    /// Rotated coordinates, the last of each query and key.
    pub rotated: usize,
    /// The norm of the compressed forms.
    pub norm: Norm,
    /// Whether the compressing projections have biases.
    pub bias: bool,
    /// What normed compressed queries are multiplied by.
    pub query_scale: Option<f32>,
    /// What normed compressed keys and values are multiplied by.
    pub kv_scale: Option<f32>,
}

/// Attention whose query and output projections are experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionExperts {
    /// How many.
    pub count: usize,
    /// How many a token uses; each brings as many heads as there are key heads.
    pub chosen: usize,
}

/// What a norm of queries and keys runs over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum NormSpan {
    /// Each head, with one gain for all heads.
    #[default]
    Head,
    /// Each head, with a gain for each.
    HeadGains,
    /// All heads together.
    All,
}

/// `1 + scale · ln(1 + ⌊(position + offset) / span⌋)`
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Temperature {
    /// How fast it grows.
    pub scale: f32,
    /// Positions of one step.
    pub span: f32,
    /// Added to the position.
    pub offset: f32,
}

/// Linear position biases.
#[derive(Clone, Debug, PartialEq)]
pub struct Alibi {
    /// One slope a head.
    pub slopes: Vec<f32>,
    /// Biases are rounded to bfloat16, then multiplied by this.
    pub rounded: Option<f32>,
}

/// A learned mask: `exp(a · softplus(dt · values))` is added to a key's scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DynamicMask {
    /// Whether the projection has a bias.
    pub bias: bool,
    /// Keys that a query keeps when there are more: those with the largest such numbers.
    pub kept: usize,
}

/// A gate on the heads' outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionGate {
    /// One number a head instead of one a coordinate.
    pub per_head: bool,
    /// Its activation function.
    pub activation: Activation,
    /// Whether its projection has a bias.
    pub bias: bool,
}

/// A rotary embedding.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// Which coordinates turn together.
    pub style: RopeStyle,
    /// Angle per position of each pair of coordinates.
    pub frequencies: Vec<f32>,
    /// What cosines and sines are multiplied by (YaRN).
    pub amplitude: f32,
    /// Other frequencies for long rows.
    pub long: Option<LongRope>,
}

/// The frequencies of rows that are longer than a model's first context.
#[derive(Clone, Debug, PartialEq)]
pub enum LongRope {
    /// Another set beyond a length.
    Beyond {
        /// The length.
        length: usize,
        /// The set.
        frequencies: Vec<f32>,
        /// What cosines and sines are multiplied by then.
        amplitude: f32,
    },
    /// A base that grows with the row's length.
    Dynamic {
        /// The length that the model was trained for.
        length: usize,
        /// The base at that length.
        base: f32,
        /// How fast it grows.
        factor: f32,
    },
}

impl Attention {
    /// Heads without biases, norms, positions, caps or windows; scores divided by the root of the head's width.
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
            unbiased_keys: false,
            out_bias: false,
            value_scale: None,
            clip: None,
            qk_norm: None,
            qk_norm_span: NormSpan::Head,
            qk_norm_after_rope: false,
            rope: None,
            temperature: None,
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
    /// The same frequencies for rows of any length.
    pub fn fixed(style: RopeStyle, frequencies: Vec<f32>, amplitude: f32) -> Rope {
        Rope { style, frequencies, amplitude, long: None }
    }

    /// The frequencies for a row of `length` tokens.
    pub fn at_length(&self, length: usize) -> Cow<'_, [f32]> {
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

    /// Whether a row of `length` tokens is past the first context, so that its angles depend on its length.
    pub fn is_stretched(&self, length: usize) -> bool {
        match &self.long {
            Some(LongRope::Beyond { length: limit, .. } | LongRope::Dynamic { length: limit, .. }) => length > *limit,
            None => false,
        }
    }

    /// What cosines and sines are multiplied by in a row of `length` tokens.
    pub fn amplitude_at(&self, length: usize) -> f32 {
        match self.long {
            Some(LongRope::Beyond { length: limit, amplitude, .. }) if length > limit => amplitude,
            _ => self.amplitude,
        }
    }
}
