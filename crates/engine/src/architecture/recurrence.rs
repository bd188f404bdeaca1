//! Recurrences as data: the sublayers that replace attention in state-space and linear-attention
//! models.

use super::Norm;
use pellucid_kernels::activation::Activation;
use serde::{Deserialize, Serialize};

/// A sublayer with a recurrent state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Recurrence {
    /// Mamba: selective scan with a decay per channel and state element.
    Mamba(Mamba),
    /// Mamba 2: selective scan by heads, with one decay per head.
    Mamba2(Mamba2),
    /// Gated delta rule (Gated DeltaNet): linear attention that writes only the difference between
    /// a value and the state's prediction of it.
    DeltaRule(DeltaRule),
    /// Linear attention with a fixed decay per head (lightning attention).
    LinearAttention(LinearAttention),
    /// Gated short convolution (LFM2).
    ShortConv(ShortConv),
    /// Real-gated linear recurrent unit (RG-LRU, Griffin).
    Lru(Lru),
    /// RWKV time mixing with this many channels.
    Rwkv(usize),
}

/// Mamba.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Mamba {
    /// Number of channels (`d_inner`).
    pub inner_width: usize,
    /// SSM state size per channel (`d_state`, N in the paper).
    pub state_size: usize,
    /// Rank of the low-rank projection of dt (`dt_rank`).
    pub dt_rank: usize,
    /// Kernel size of the causal conv1d.
    pub conv_kernel: usize,
    /// Bias on the convolution.
    pub conv_bias: bool,
    /// Biases on the projections.
    pub bias: bool,
    /// Activation of the convolution and of the gate.
    pub activation: Activation,
    /// Norm applied to dt (before its up-projection), B and C (Jamba, Falcon-Mamba).
    pub inner_norm: Option<Norm>,
}

/// Mamba 2.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Mamba2 {
    /// Number of heads.
    pub heads: usize,
    /// Channels per head.
    pub head_dim: usize,
    /// SSM state size per channel (`d_state`).
    pub state_size: usize,
    /// Groups of heads that share B and C (`n_groups`).
    pub groups: usize,
    /// Kernel size of the causal conv1d.
    pub conv_kernel: usize,
    /// Bias on the convolution.
    pub conv_bias: bool,
    /// Bias on the input projection.
    pub bias: bool,
    /// Bias on the output projection.
    pub out_bias: bool,
    /// Activation of the convolution.
    pub activation: Activation,
    /// Minimum and maximum of dt (`time_step_limit`).
    #[serde(with = "limits")]
    pub dt_limits: (f32, f32),
    /// Norm of the scan's output.
    pub norm: Option<GroupedNorm>,
    /// Scale of the sublayer's input.
    pub in_scale: Option<f32>,
    /// Multipliers of the input projection's parts [z, x, B, C, dt] (Falcon-H1).
    pub in_proj_multipliers: Option<[f32; 5]>,
}

/// Gated group norm: a norm over groups of channels, before or after the gate.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct GroupedNorm {
    /// The norm.
    pub norm: Norm,
    /// Number of groups.
    pub groups: usize,
    /// Normalize before gating (`norm_before_gate`) instead of after.
    pub norm_before_gate: bool,
}

/// The gated delta rule.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeltaRule {
    /// Query and key heads.
    pub key_heads: usize,
    /// Value heads, a multiple of `key_heads`.
    pub value_heads: usize,
    /// Width of a query and a key.
    pub key_dim: usize,
    /// Width of a value.
    pub value_dim: usize,
    /// Kernel size of the causal conv1d.
    pub conv_kernel: usize,
    /// Activation of the convolution.
    pub activation: Activation,
    /// Granularity of the state's decay.
    pub decay: Decay,
    /// Scale of beta = `beta_scale` · sigmoid(x) (2 allows negative eigenvalues).
    pub beta_scale: f32,
    /// Norm of each head's output.
    pub norm: Norm,
    /// Activation of the gate on the normed output.
    pub gate_activation: Activation,
    /// Rank of the gate's low-rank projection; full rank if absent.
    pub gate_rank: Option<usize>,
}

/// Granularity of a state's decay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Decay {
    /// One decay per head.
    PerHead,
    /// One decay per key channel, from a low-rank projection (Kimi Delta Attention).
    PerKeyChannel {
        /// Rank of the projection.
        rank: usize,
    },
}

/// Linear attention with a fixed decay.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LinearAttention {
    /// Number of heads.
    pub heads: usize,
    /// Width of a query, a key and a value.
    pub head_dim: usize,
    /// Activation of q, k and v.
    pub activation: Activation,
    /// Decay factor per head and token, `[heads]`.
    pub decay: Vec<f32>,
    /// Norm over all heads' outputs together.
    pub norm: Norm,
}

/// Gated short convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShortConv {
    /// Kernel size of the causal conv1d.
    pub conv_kernel: usize,
    /// Biases on convolution and projections.
    pub bias: bool,
}

/// Real-gated linear recurrent unit (RG-LRU).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lru {
    /// Number of channels (`lru_width`).
    pub inner_width: usize,
    /// Blocks of the gates' block-diagonal projections.
    pub blocks: usize,
    /// Kernel size of the causal conv1d.
    pub conv_kernel: usize,
    /// Activation of the gate.
    pub activation: Activation,
}

/// Limits in JSON, which has no infinity: an absent upper limit is infinite.
mod limits {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub fn serialize<S: Serializer>(&(least, most): &(f32, f32), serializer: S) -> Result<S::Ok, S::Error> {
        (least, most.is_finite().then_some(most)).serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<(f32, f32), D::Error> {
        let (least, most) = <(f32, Option<f32>)>::deserialize(deserializer)?;
        Ok((least, most.unwrap_or(f32::INFINITY)))
    }
}
