//! A model's architecture as plain data: what a family's function makes of `config.json`.
//!
//! Nothing here computes. Every true difference between model families is a field or a small enum; [`crate::Program`] turns
//! the whole into ops, and no family has a forward pass of its own.

mod attention;
mod mlp;
mod recurrence;

pub use attention::{
    Alibi, Attention, AttentionExperts, AttentionGate, DynamicMask, Latent, LongRope, NormSpan, Rope, Temperature,
};
pub use mlp::{Dense, ExpertGroups, ExpertWeights, Experts, LatentExperts, Mlp, Routing, Scores, Shared};
pub use pellucid_kernels::activation::Activation;
pub use pellucid_kernels::norm::NormKind;
pub use pellucid_kernels::rope::RopeStyle;
pub use recurrence::{Decay, DeltaRule, GroupedNorm, LinearAttention, Lru, Mamba, Mamba2, Recurrence, ShortConv};

/// Everything that determines a model's ops and the shapes of its weights.
#[derive(Clone, Debug, PartialEq)]
pub struct Architecture {
    /// The family's name, as in `config.json`'s `model_type`.
    pub family: String,
    /// Tokens in the vocabulary: the width of the logits.
    pub vocab: usize,
    /// Width of the residual stream.
    pub width: usize,
    /// Positions that the model can address, where something limits them.
    pub context: Option<usize>,
    /// From tokens to the first layer.
    pub embedding: Embedding,
    /// The blocks, each with its own description.
    pub layers: Vec<Layer>,
    /// The norm before the head.
    pub final_norm: Option<Norm>,
    /// From the last layer to logits.
    pub head: Head,
    /// The rotary embeddings that layers refer to by index.
    pub ropes: Vec<Rope>,
    /// What Hugging Face calls the modules, for aliases.
    pub modules: Modules,
}

/// From tokens to the residual stream.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Embedding {
    /// Width of the table where it differs from the stream: a projection follows.
    pub table_width: Option<usize>,
    /// What the table's rows are multiplied by.
    pub scale: Option<f32>,
    /// Absolute positions that are added.
    pub positions: Option<AbsolutePositions>,
    /// Segment types: rows of their table, whose first is added to every token.
    pub segments: Option<usize>,
    /// A norm of the sum.
    pub norm: Option<Norm>,
    /// Positions, segments and norm have the table's width, and the projection (with a bias) comes last.
    pub projected_last: bool,
}

/// Absolute positions.
#[derive(Clone, Debug, PartialEq)]
pub enum AbsolutePositions {
    /// A learned table.
    Learned {
        /// Rows of the table.
        rows: usize,
        /// The row of position 0.
        offset: usize,
    },
    /// Sines and cosines of the position, computed: all sines, then all cosines.
    Sinusoidal {
        /// Angle per position, one for each pair of sine and cosine.
        frequencies: Vec<f32>,
        /// The angle's position of position 0.
        offset: usize,
    },
}

/// One block.
#[derive(Clone, Debug, PartialEq)]
pub struct Layer {
    /// The mixer and the MLP both read the block's input, and their sum is added once.
    pub parallel: bool,
    /// The norm that attention (and the recurrence) reads through.
    pub attn_norm: Option<Norm>,
    /// Softmax attention.
    pub attention: Option<Attention>,
    /// A recurrence in attention's place, or beside it where a layer has both.
    pub recurrence: Option<Recurrence>,
    /// A norm of the mixer's output, before it is added to the stream.
    pub attn_post_norm: Option<Norm>,
    /// A norm of the stream after the mixer was added (the original transformer's order).
    pub attn_stream_norm: Option<Norm>,
    /// What attention's input is multiplied by.
    pub attn_in_scale: Option<f32>,
    /// What attention's output is multiplied by before it is added.
    pub attn_multiplier: Option<f32>,
    /// What the recurrence's output is multiplied by before it is added.
    pub mixer_multiplier: Option<f32>,
    /// The norm that the MLP reads through; a parallel block without one shares attention's.
    pub mlp_norm: Option<Norm>,
    /// The MLP sublayer.
    pub mlp: Option<Mlp>,
    /// A norm of the MLP's output, before it is added to the stream.
    pub mlp_post_norm: Option<Norm>,
    /// A norm of the stream after the MLP was added.
    pub mlp_stream_norm: Option<Norm>,
    /// What the MLP's output is multiplied by before it is added.
    pub mlp_multiplier: Option<f32>,
    /// What the sublayers' outputs are added to.
    pub skip: Skip,
    /// A transformer block that several layers share, whose output is added to what the recurrence reads.
    pub shared: Option<SharedBlock>,
    /// What leaves the layer is multiplied by this.
    pub out_scale: Option<f32>,
}

/// A transformer block that several layers share.
///
/// It reads the stream beside the embeddings, each through its norms, one sublayer after the other, and adds nothing itself.
#[derive(Clone, Debug, PartialEq)]
pub struct SharedBlock {
    /// Which block, by the first layer that uses it.
    pub block: usize,
    /// Which of its adapters this layer uses.
    pub adapter: usize,
    /// The norm of stream and embeddings together.
    pub norm: Norm,
    /// Its attention.
    pub attention: Attention,
    /// The norm between attention and MLP.
    pub mlp_norm: Norm,
    /// Its MLP.
    pub mlp: Dense,
}

/// What a sublayer's output is added to.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub enum Skip {
    /// The stream.
    #[default]
    Stream,
    /// The stream as the sublayer's norm left it, times one number for the mixer and one for the MLP.
    Normed {
        /// The mixer's.
        attn: f32,
        /// The MLP's.
        mlp: f32,
    },
    /// The stream times a learned gain.
    Gained,
}

/// A norm with what is learned in it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Norm {
    /// Which moments it removes.
    pub kind: NormKind,
    /// Added to the variance.
    pub eps: f32,
    /// The learned gain.
    pub gain: Gain,
    /// Whether a bias follows.
    pub bias: bool,
}

/// How a norm's gain is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gain {
    /// No gain.
    None,
    /// The weight itself.
    Weight,
    /// One plus the weight (Gemma).
    OnePlusWeight,
}

/// From the stream to logits.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Head {
    /// The unembedding is the embedding table.
    pub tied: bool,
    /// Whether the unembedding has a bias.
    pub bias: bool,
    /// Width of the unembedding where it differs from the stream: a projection precedes.
    pub table_width: Option<usize>,
    /// A layer between the stream and the unembedding: a projection, an activation and a norm.
    pub transform: Option<HeadTransform>,
    /// What the products are multiplied by.
    pub scale: Option<f32>,
    /// `cap · tanh(logit / cap)`
    pub soft_cap: Option<f32>,
}

/// A layer before the unembedding, as wide as the unembedding.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HeadTransform {
    /// Whether the projection has a bias.
    pub bias: bool,
    /// Its activation function.
    pub activation: Activation,
    /// The norm after it.
    pub norm: Norm,
}

/// What Hugging Face calls the modules of a family; a name is given only where the module's tensor is exactly the site's.
#[derive(Clone, Debug, PartialEq, Default)]
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
    /// Attention, then the MLP, each reading the stream through a norm and adding to it.
    pub fn pre_norm(norm: Norm, attention: Attention, mlp: Mlp) -> Layer {
        Layer { attention: Some(attention), mlp: Some(mlp), mlp_norm: Some(norm), ..Layer::empty(norm) }
    }

    /// A norm with nothing behind it yet.
    pub fn empty(norm: Norm) -> Layer {
        Layer {
            parallel: false,
            attn_norm: Some(norm),
            attention: None,
            recurrence: None,
            attn_post_norm: None,
            attn_stream_norm: None,
            attn_in_scale: None,
            attn_multiplier: None,
            mixer_multiplier: None,
            mlp_norm: None,
            mlp: None,
            mlp_post_norm: None,
            mlp_stream_norm: None,
            mlp_multiplier: None,
            skip: Skip::Stream,
            shared: None,
            out_scale: None,
        }
    }
}

impl Norm {
    /// A root-mean-square norm with a plain gain.
    pub fn rms(eps: f32) -> Norm {
        Norm { kind: NormKind::Rms, eps, gain: Gain::Weight, bias: false }
    }

    /// A layer norm with gain and bias.
    pub fn layer(eps: f32) -> Norm {
        Norm { kind: NormKind::Layer, eps, gain: Gain::Weight, bias: true }
    }
}
