//! A model's architecture as plain data, built from `config.json` by the model's family.
//!
//! Nothing here computes. Every difference between model families is a field or a small enum.
//! [`crate::Program`] turns an architecture into ops, so no family has its own forward pass.

mod attention;
mod mlp;
mod recurrence;

pub use attention::{
    Alibi, Attention, AttentionExperts, AttentionGate, DynamicMask, Latent, LongRope, NormSpan, PositionScale, Rope,
};
pub use mlp::{Dense, ExpertGroups, ExpertWeights, Experts, LatentExperts, Mlp, Routing, Scores, Shared};
pub use pellucid_kernels::activation::Activation;
pub use pellucid_kernels::norm::NormKind;
pub use pellucid_kernels::rope::RopeStyle;
pub use recurrence::{Decay, DeltaRule, GroupedNorm, LinearAttention, Lru, Mamba, Mamba2, Recurrence, ShortConv};

use serde::{Deserialize, Serialize};

/// Everything that determines a model's ops and the shapes of its weights.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Architecture {
    /// Family name (`model_type` in `config.json`).
    pub family: String,
    /// Vocabulary size: the width of the logits.
    pub vocab: usize,
    /// Width of the residual stream (`hidden_size`).
    pub width: usize,
    /// Maximum number of positions; unlimited if absent.
    pub context: Option<usize>,
    /// Token and position embeddings.
    pub embedding: Embedding,
    /// The blocks, in forward order.
    pub layers: Vec<Layer>,
    /// Norm before the head.
    pub final_norm: Option<Norm>,
    /// Unembedding.
    pub head: Head,
    /// Rotary embeddings; layers refer to them by index.
    pub ropes: Vec<Rope>,
    /// Hugging Face module names, for site aliases.
    pub modules: Modules,
}

/// Embeddings: from tokens to the residual stream.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
pub struct Embedding {
    /// Width of the embedding table if it differs from the residual stream's; a projection follows.
    pub table_width: Option<usize>,
    /// Scale of the token embeddings.
    pub scale: Option<f32>,
    /// Absolute position embeddings, added to the token embeddings.
    pub positions: Option<AbsolutePositions>,
    /// Rows of the token-type table (`type_vocab_size`); row 0 is added to every token.
    pub segments: Option<usize>,
    /// Norm of the sum.
    pub norm: Option<Norm>,
    /// Positions, token types and norm use the table's width; the projection (with a bias) comes
    /// last.
    pub projected_last: bool,
}

/// Absolute position embeddings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum AbsolutePositions {
    /// A learned table.
    Learned {
        /// Rows of the table.
        rows: usize,
        /// Row of position 0.
        offset: usize,
    },
    /// Sinusoidal: all sines, then all cosines.
    Sinusoidal {
        /// Angle per position, for each sine/cosine pair.
        frequencies: Vec<f32>,
        /// Added to the position.
        offset: usize,
    },
}

/// One block.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Layer {
    /// Parallel block: attention and MLP both read the block's input.
    pub parallel: bool,
    /// Norm before attention and the recurrence.
    pub attn_norm: Option<Norm>,
    /// Softmax attention.
    pub attention: Option<Attention>,
    /// Recurrence in place of attention, or next to it in hybrid layers.
    pub recurrence: Option<Recurrence>,
    /// Post-norm: norm of the attention or recurrence output, before it is added to the residual
    /// stream.
    pub attn_post_norm: Option<Norm>,
    /// Norm of the residual stream after attention is added (the original transformer's order).
    pub attn_post_residual_norm: Option<Norm>,
    /// Scale of attention's input.
    pub attn_in_scale: Option<f32>,
    /// Scale of attention's output before it is added.
    pub attn_multiplier: Option<f32>,
    /// Scale of the recurrence's output before it is added.
    pub mixer_multiplier: Option<f32>,
    /// Norm before the MLP; a parallel block without one shares attention's.
    pub mlp_norm: Option<Norm>,
    /// The MLP sublayer.
    pub mlp: Option<Mlp>,
    /// Post-norm: norm of the MLP's output, before it is added to the residual stream.
    pub mlp_post_norm: Option<Norm>,
    /// Norm of the residual stream after the MLP is added.
    pub mlp_post_residual_norm: Option<Norm>,
    /// Scale of the MLP's output before it is added.
    pub mlp_multiplier: Option<f32>,
    /// Residual connection around each sublayer.
    pub skip: Skip,
    /// Transformer block shared by several layers (Zamba); its output is added to the recurrence's
    /// input.
    pub shared: Option<SharedBlock>,
    /// Scale of the layer's output.
    pub out_scale: Option<f32>,
}

/// A transformer block that several layers share (Zamba).
///
/// Its input is `[residual stream, embeddings]` concatenated. Attention and MLP run in sequence,
/// without residual connections.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SharedBlock {
    /// Block id: the first layer that uses it.
    pub block: usize,
    /// LoRA adapter that this layer uses.
    pub adapter: usize,
    /// Norm of the concatenated input.
    pub norm: Norm,
    /// Its attention.
    pub attention: Attention,
    /// Norm between attention and MLP.
    pub mlp_norm: Norm,
    /// Its MLP.
    pub mlp: Dense,
}

/// Residual connection: the term to which a sublayer's output is added.
#[derive(Clone, Copy, Debug, PartialEq, Default, Serialize, Deserialize)]
pub enum Skip {
    /// The residual stream.
    #[default]
    Identity,
    /// The sublayer's normed input, scaled (BLOOM's `apply_residual_connection_post_layernorm`).
    Normed {
        /// Scale around attention or the recurrence.
        attn: f32,
        /// Scale around the MLP.
        mlp: f32,
    },
    /// The residual stream times a learned gain per channel (Doge).
    LearnedGain,
}

/// A norm and its learned parameters.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Norm {
    /// RMS norm or layer norm.
    pub kind: NormKind,
    /// Added to the variance.
    pub eps: f32,
    /// Learned gain.
    pub gain: Gain,
    /// Learned bias.
    pub bias: bool,
}

/// How a norm's gain is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Gain {
    /// No gain.
    None,
    /// The weight itself.
    Weight,
    /// One plus the weight (Gemma).
    OnePlusWeight,
}

/// Unembedding: from the residual stream to logits.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
pub struct Head {
    /// The unembedding shares the embedding table (`tie_word_embeddings`).
    pub tied: bool,
    /// Bias on the unembedding.
    pub bias: bool,
    /// Width of the unembedding if it differs from the residual stream's; a projection precedes.
    pub table_width: Option<usize>,
    /// Projection, activation and norm before the unembedding.
    pub transform: Option<HeadTransform>,
    /// Scale of the logits.
    pub scale: Option<f32>,
    /// `cap · tanh(logit / cap)`
    pub soft_cap: Option<f32>,
}

/// Layer before the unembedding (BERT's `cls.predictions.transform`), as wide as the unembedding.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct HeadTransform {
    /// Bias on the projection.
    pub bias: bool,
    /// Activation after the projection.
    pub activation: Activation,
    /// Norm after the activation.
    pub norm: Norm,
}

/// Hugging Face module names of a family, for site aliases. A name is set only if the module's
/// tensor is exactly the site's.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
pub struct Modules {
    /// The list of blocks, such as `model.layers`.
    pub layers: String,
    /// The attention module inside a block.
    pub attention: Option<String>,
    /// The MLP module inside a block.
    pub mlp: Option<String>,
    /// The token embedding.
    pub embedding: Option<String>,
    /// The final norm.
    pub final_norm: Option<String>,
    /// The unembedding.
    pub head: Option<String>,
}

impl Layer {
    /// Returns a pre-norm block: attention, then the MLP, each behind a norm and a residual
    /// connection.
    pub fn pre_norm(norm: Norm, attention: Attention, mlp: Mlp) -> Layer {
        Layer { attention: Some(attention), mlp: Some(mlp), mlp_norm: Some(norm), ..Layer::empty(norm) }
    }

    /// Returns a layer that has a first norm and no sublayers yet.
    pub fn empty(norm: Norm) -> Layer {
        Layer {
            parallel: false,
            attn_norm: Some(norm),
            attention: None,
            recurrence: None,
            attn_post_norm: None,
            attn_post_residual_norm: None,
            attn_in_scale: None,
            attn_multiplier: None,
            mixer_multiplier: None,
            mlp_norm: None,
            mlp: None,
            mlp_post_norm: None,
            mlp_post_residual_norm: None,
            mlp_multiplier: None,
            skip: Skip::Identity,
            shared: None,
            out_scale: None,
        }
    }
}

impl Norm {
    /// Returns an RMS norm with a gain.
    pub fn rms(eps: f32) -> Norm {
        Norm { kind: NormKind::Rms, eps, gain: Gain::Weight, bias: false }
    }

    /// Returns a layer norm with gain and bias.
    pub fn layer(eps: f32) -> Norm {
        Norm { kind: NormKind::Layer, eps, gain: Gain::Weight, bias: true }
    }
}
