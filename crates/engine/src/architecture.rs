//! A model's architecture as plain data: what a family's function makes of `config.json`.
//!
//! Nothing here computes. Every true difference between model families is a field or a small enum; [`crate::Program`] turns
//! the whole into ops, and no family has a forward pass of its own.

pub use pellucid_kernels::activation::Activation;
pub use pellucid_kernels::norm::NormKind;
pub use pellucid_kernels::rope::RopeStyle;

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
    /// Learned absolute positions: rows of the table, and where position 0 stands in it.
    pub positions: Option<LearnedPositions>,
    /// A norm of the sum.
    pub norm: Option<Norm>,
}

/// A table of learned absolute positions.
#[derive(Clone, Debug, PartialEq)]
pub struct LearnedPositions {
    /// Rows of the table.
    pub rows: usize,
    /// The row of position 0.
    pub offset: usize,
}

/// One block.
#[derive(Clone, Debug, PartialEq)]
pub struct Layer {
    /// Attention and MLP both read the block's input, and their sum is added once.
    pub parallel: bool,
    /// The norm that attention reads through.
    pub attn_norm: Option<Norm>,
    /// The attention sublayer.
    pub attention: Attention,
    /// A norm of attention's output, before it is added to the stream.
    pub attn_post_norm: Option<Norm>,
    /// A norm of the stream after attention was added (the original transformer's order).
    pub attn_stream_norm: Option<Norm>,
    /// The norm that the MLP reads through; a parallel block without one shares attention's.
    pub mlp_norm: Option<Norm>,
    /// The MLP sublayer.
    pub mlp: Mlp,
    /// A norm of the MLP's output, before it is added to the stream.
    pub mlp_post_norm: Option<Norm>,
    /// A norm of the stream after the MLP was added.
    pub mlp_stream_norm: Option<Norm>,
    /// What each sublayer's output is multiplied by before it is added.
    pub residual_scale: Option<f32>,
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
    /// Whether the query, key and value projections have biases.
    pub qkv_bias: bool,
    /// Whether the output projection has a bias.
    pub out_bias: bool,
    /// A norm of queries and keys.
    pub qk_norm: Option<Norm>,
    /// That norm runs over all heads together instead of each head.
    pub qk_norm_flat: bool,
    /// Which rotary embedding turns queries and keys.
    pub rope: Option<usize>,
    /// What products of queries and keys are multiplied by.
    pub scale: f32,
    /// `cap · tanh(score / cap)` on the scores.
    pub soft_cap: Option<f32>,
    /// Positions that a query sees, itself included; all earlier ones where absent.
    pub window: Option<usize>,
    /// Slopes of linear position biases, one a head.
    pub alibi: Option<Vec<f32>>,
}

/// An MLP sublayer.
#[derive(Clone, Debug, PartialEq)]
pub enum Mlp {
    /// Up, activation, down.
    Plain {
        /// Neurons.
        width: usize,
        /// Their activation function.
        activation: Activation,
        /// Whether the projections have biases.
        bias: bool,
    },
    /// Gate and up, activation of the gate times up, down.
    Gated {
        /// Neurons.
        width: usize,
        /// The gate's activation function.
        activation: Activation,
        /// Whether the projections have biases.
        bias: bool,
    },
    /// A router and gated experts.
    Experts {
        /// How many experts.
        experts: usize,
        /// How many of them a token uses.
        chosen: usize,
        /// Neurons of each expert.
        width: usize,
        /// Their gate's activation function.
        activation: Activation,
        /// How scores become choices and weights.
        routing: Routing,
    },
}

/// How a router's scores become a choice of experts and their weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Routing {
    /// Softmax over all experts, choose the largest; weights as they are, or divided by their sum.
    SoftmaxThenChoose {
        /// Divide the chosen weights by their sum.
        renormalise: bool,
    },
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
    /// What the products are multiplied by.
    pub scale: Option<f32>,
    /// `cap · tanh(logit / cap)`
    pub soft_cap: Option<f32>,
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

impl Attention {
    /// Heads without biases, norms, positions, caps or windows; scores divided by the root of the head's width.
    pub fn plain(heads: usize, kv_heads: usize, head_dim: usize) -> Attention {
        Attention {
            heads,
            kv_heads,
            head_dim,
            value_dim: head_dim,
            qkv_bias: false,
            out_bias: false,
            qk_norm: None,
            qk_norm_flat: false,
            rope: None,
            scale: 1.0 / (head_dim.max(1) as f32).sqrt(),
            soft_cap: None,
            window: None,
            alibi: None,
        }
    }
}

impl Layer {
    /// Attention, then the MLP, each reading the stream through a norm and adding to it.
    pub fn pre_norm(norm: Norm, attention: Attention, mlp: Mlp) -> Layer {
        Layer {
            parallel: false,
            attn_norm: Some(norm),
            attention,
            attn_post_norm: None,
            attn_stream_norm: None,
            mlp_norm: Some(norm),
            mlp,
            mlp_post_norm: None,
            mlp_stream_norm: None,
            residual_scale: None,
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
