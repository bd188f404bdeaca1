//! Recurrences as data: what stands in attention's place in state-space and linear-attention models.

use super::Norm;
use pellucid_kernels::activation::Activation;

/// A sublayer that carries a state from token to token.
#[derive(Clone, Debug, PartialEq)]
pub enum Recurrence {
    /// Mamba: a selective scan with a decay for each channel and coordinate of the state.
    Mamba(Mamba),
    /// Mamba 2: a selective scan by heads, each with one decay.
    Mamba2(Mamba2),
    /// The gated delta rule: a linear attention that writes only what its state does not know yet.
    DeltaRule(DeltaRule),
    /// Linear attention with a fixed decay for each head.
    LinearAttention(LinearAttention),
    /// A gated convolution over a few tokens.
    ShortConv(ShortConv),
    /// A real-gated linear recurrent unit.
    Lru(Lru),
    /// RWKV's time mixing, of this width.
    Rwkv(usize),
}

/// Mamba.
#[derive(Clone, Debug, PartialEq)]
pub struct Mamba {
    /// Channels.
    pub width: usize,
    /// Coordinates of a channel's state.
    pub state: usize,
    /// Width of the compressed time step.
    pub rank: usize,
    /// Tokens that the convolution sees.
    pub kernel: usize,
    /// Whether the convolution has a bias.
    pub conv_bias: bool,
    /// Whether the projections have biases.
    pub bias: bool,
    /// The activation of the convolution and of the gate.
    pub activation: Activation,
    /// A norm of the compressed time step and of the vectors that write and read the state.
    pub inner_norm: Option<Norm>,
}

/// Mamba 2.
#[derive(Clone, Debug, PartialEq)]
pub struct Mamba2 {
    /// Heads.
    pub heads: usize,
    /// Channels of a head.
    pub head_dim: usize,
    /// Coordinates of a channel's state.
    pub state: usize,
    /// Groups of heads that share the vectors that write and read the state.
    pub groups: usize,
    /// Tokens that the convolution sees.
    pub kernel: usize,
    /// Whether the convolution has a bias.
    pub conv_bias: bool,
    /// Whether the projection in has a bias.
    pub bias: bool,
    /// Whether the projection out has one.
    pub out_bias: bool,
    /// The activation of the convolution.
    pub activation: Activation,
    /// The time step is kept within these.
    pub step_limits: (f32, f32),
    /// A norm of the channels.
    pub norm: Option<GroupedNorm>,
    /// What its input is multiplied by.
    pub in_scale: Option<f32>,
    /// What gate, channels, writing vectors, reading vectors and time steps are multiplied by.
    pub multipliers: Option<[f32; 5]>,
}

/// A norm over groups of channels, beside a gate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GroupedNorm {
    /// The norm.
    pub norm: Norm,
    /// How many groups.
    pub groups: usize,
    /// The gate multiplies after the norm instead of before.
    pub before_gate: bool,
}

/// The gated delta rule.
#[derive(Clone, Debug, PartialEq)]
pub struct DeltaRule {
    /// Heads of queries and keys.
    pub key_heads: usize,
    /// Heads of values; each key head serves several.
    pub value_heads: usize,
    /// Width of a query and of a key.
    pub key_dim: usize,
    /// Width of a value.
    pub value_dim: usize,
    /// Tokens that the convolution sees.
    pub kernel: usize,
    /// The convolution's activation.
    pub activation: Activation,
    /// What the state decays by.
    pub decay: Decay,
    /// What the writing strength, a sigmoid, is multiplied by.
    pub strength: f32,
    /// The norm of each head's output.
    pub norm: Norm,
    /// The activation of the gate on it.
    pub gate: Activation,
    /// The gate's projection goes through this width.
    pub gate_rank: Option<usize>,
}

/// What a state decays by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decay {
    /// One number a head.
    Head,
    /// One number for each coordinate of a key, projected through this width.
    Key(usize),
}

/// Linear attention with a fixed decay.
#[derive(Clone, Debug, PartialEq)]
pub struct LinearAttention {
    /// Heads.
    pub heads: usize,
    /// Width of a query, a key and a value.
    pub head_dim: usize,
    /// The activation of all three.
    pub activation: Activation,
    /// What each head's state is multiplied by at each token.
    pub decay: Vec<f32>,
    /// The norm of all heads' outputs together.
    pub norm: Norm,
}

/// A gated convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShortConv {
    /// Tokens that it sees.
    pub kernel: usize,
    /// Whether convolution and projections have biases.
    pub bias: bool,
}

/// A real-gated linear recurrent unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lru {
    /// Channels.
    pub width: usize,
    /// Blocks of the gates' block-diagonal projections.
    pub blocks: usize,
    /// Tokens that the convolution sees.
    pub kernel: usize,
    /// The gate's activation.
    pub activation: Activation,
}
