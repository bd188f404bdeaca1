//! The ops: everything that a model computes, one variant per kind of computation.
//!
//! [`OpKind`] holds an op's operands. The `ops!` table below it lists, one row each, which edges
//! and weights the op reads and writes and which activations its backward pass needs. To add an op,
//! add a variant and its row; the compiler then asks for its forward and backward code.

use super::EdgeId;
use crate::architecture::{Activation, Alibi, Norm, PositionScale, Routing};
use crate::program::WeightId;
use pellucid_kernels::attention::AttentionShape;
use pellucid_kernels::recurrence::RecurrenceShape;

/// An op and its layer.
#[derive(Clone, Debug, PartialEq)]
pub struct Op {
    /// The computation.
    pub kind: OpKind,
    /// Layer; absent for embedding and unembedding ops.
    pub layer: Option<usize>,
}

/// A projection: a matrix and an optional bias.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Linear {
    /// The matrix.
    pub weight: WeightId,
    /// The bias.
    pub bias: Option<WeightId>,
}

/// The weights of one expert.
#[derive(Clone, Debug, PartialEq)]
pub struct Expert {
    /// Gate projection, if the expert is gated.
    pub gate: Option<Linear>,
    /// Up projection.
    pub up: Linear,
    /// Down projection.
    pub down: Linear,
}

/// Features of an earlier layer of a cross-layer transcoder that a later layer decodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EarlierFeatures {
    /// Edge of their pre-activations.
    pub pre: EdgeId,
    /// Edge of their activations.
    pub acts: EdgeId,
    /// Index of the earlier layer's weights in the model.
    pub sae: usize,
    /// The decoder of the earlier layer that writes the later one.
    pub decoder: usize,
}

/// Which row of an embedding table a token reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableRow {
    /// The row of its token id.
    Token,
    /// The row of its position plus this offset.
    Position(usize),
    /// The same row for every token.
    Fixed(usize),
}

impl TableRow {
    /// Returns the row index for a token id at a position.
    pub fn index(self, token: u32, position: usize) -> usize {
        match self {
            TableRow::Token => token as usize,
            TableRow::Position(offset) => position + offset,
            TableRow::Fixed(row) => row,
        }
    }
}

/// Decay factor of a recurrent state per token.
#[derive(Clone, Debug, PartialEq)]
pub enum StateDecay {
    /// A constant per head, `[heads]`.
    Fixed(Vec<f32>),
    /// `exp(-exp(rate) · step)`, per head or per key channel.
    Learned {
        /// Edge of the time step (dt).
        step: EdgeId,
        /// Log of the decay rate (`A_log`).
        rate: WeightId,
    },
}

/// A computation with its operands.
///
/// `out` is the result. Other output edges (`scores`, `probs`, `head_out`, `expert_out`, `scale`,
/// `normed`, `state`) are computed only if the plan taps them.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)] // the variants are documented, their fields are edges and weights named for their role
pub enum OpKind {
    /// Vectors supplied by the caller are written to `out`.
    Input { out: EdgeId },
    /// `out = table[row]`, as in `nn.Embedding`.
    Embed { table: WeightId, row: TableRow, out: EdgeId },
    /// Sinusoidal position embedding: sines, then cosines.
    Sinusoids { frequencies: Vec<f32>, offset: usize, out: EdgeId },
    /// `out = x Wᵀ + b`
    MatMul { x: EdgeId, linear: Linear, out: EdgeId },
    /// Product with a block-diagonal matrix, stored as `[blocks, inputs, outputs]`.
    BlockMatMul { x: EdgeId, linear: Linear, blocks: usize, out: EdgeId },
    /// Attention's output projection. `head_out` is each head's contribution to the sum.
    Project { z: EdgeId, linear: Linear, heads: usize, head_out: EdgeId, out: EdgeId },
    /// Normalizes each group of `group` channels, then applies gain and bias.
    Norm {
        x: EdgeId,
        norm: Norm,
        gain: Option<WeightId>,
        bias: Option<WeightId>,
        group: usize,
        scale: EdgeId,
        normed: EdgeId,
        out: EdgeId,
    },
    /// `out = a + b`
    Add { a: EdgeId, b: EdgeId, out: EdgeId },
    /// `out = x · by`
    Scale { x: EdgeId, by: f32, out: EdgeId },
    /// `out = x · gain`, with a learned gain per channel.
    Gain { x: EdgeId, gain: WeightId, out: EdgeId },
    /// `out = cap · tanh(x / cap)`
    SoftCap { x: EdgeId, cap: f32, out: EdgeId },
    /// `out = clamp(x, -by, by)`
    Clip { x: EdgeId, by: f32, out: EdgeId },
    /// `out = x[.., from..from + out.width]`
    Slice { x: EdgeId, from: usize, out: EdgeId },
    /// Concatenates the parts along the last axis.
    Concat { parts: Vec<EdgeId>, out: EdgeId },
    /// Appends `tail` to each head: a tail per head, or one tail shared by all heads.
    JoinHeads { x: EdgeId, tail: EdgeId, heads: usize, out: EdgeId },
    /// Appends a constant to each head.
    JoinConstant { x: EdgeId, constant: f32, heads: usize, out: EdgeId },
    /// Applies RoPE to each head, from channel `from` on.
    Rotate { x: EdgeId, rope: usize, heads: usize, from: usize, out: EdgeId },
    /// Multiplies by a scale that grows with the position.
    ScaleByPosition { x: EdgeId, scale: PositionScale, out: EdgeId },
    /// Appends k and v to the row's KV cache, then attends.
    Attention {
        q: EdgeId,
        k: EdgeId,
        v: EdgeId,
        shape: AttentionShape,
        alibi: Option<Alibi>,
        sinks: Option<WeightId>,
        /// Keys per query: beyond it only those with the largest last channel stay (dynamic mask).
        max_keys: Option<usize>,
        scores: EdgeId,
        probs: EdgeId,
        out: EdgeId,
    },
    /// Differential attention: concatenates each value head with its partner in the other half of
    /// the heads.
    PairValues { x: EdgeId, heads: usize, out: EdgeId },
    /// Differential attention: first half of the heads − λ · second half. `weights` are the four λ
    /// vectors q1, k1, q2, k2.
    HeadDifference { x: EdgeId, weights: [WeightId; 4], lambda_init: f32, out: EdgeId },
    /// `out = exp(rate · softplus(x))`
    KeyBias { x: EdgeId, rate: WeightId, out: EdgeId },
    /// `out = activation(x)`
    Activate { x: EdgeId, activation: Activation, out: EdgeId },
    /// xIELU with its two learned parameters.
    Xielu { x: EdgeId, positive: WeightId, negative: WeightId, out: EdgeId },
    /// `out = activation(gate) · linear`. A narrower gate is repeated for adjacent channels.
    Gate { gate: EdgeId, linear: EdgeId, activation: Activation, out: EdgeId },
    /// Selects the top-k experts from the router's logits.
    Route {
        logits: EdgeId,
        top_k: usize,
        routing: Routing,
        correction: Option<WeightId>,
        weights: EdgeId,
        indices: EdgeId,
    },
    /// Runs each token through its selected experts and sums their weighted outputs. `expert_out`
    /// is each expert's output before its weight; with `on_input` the weight scales its input.
    Experts {
        x: EdgeId,
        weights: EdgeId,
        indices: EdgeId,
        experts: Vec<Expert>,
        activation: Activation,
        on_input: bool,
        expert_out: EdgeId,
        out: EdgeId,
    },
    /// Query projection by the selected experts. Heads that share a key head are adjacent.
    RoutedMatMul { x: EdgeId, indices: EdgeId, experts: Vec<WeightId>, heads: usize, out: EdgeId },
    /// Output projection by the selected experts: weighted sum over experts, plus a bias.
    RoutedProject {
        z: EdgeId,
        weights: EdgeId,
        indices: EdgeId,
        experts: Vec<WeightId>,
        bias: WeightId,
        heads: usize,
        out: EdgeId,
    },
    /// Causal depthwise conv1d.
    Convolve { x: EdgeId, kernel: WeightId, bias: Option<WeightId>, activation: Activation, out: EdgeId },
    /// dt of a state-space model: `out = clamp(softplus(x + bias), limits)`
    TimeStep { x: EdgeId, bias: Option<WeightId>, limits: (f32, f32), out: EdgeId },
    /// Linear recurrence over a state `[heads, key_dim, value_dim]`: decay, write k ⊗ v, read with
    /// q. `beta` selects the delta rule.
    Recur {
        q: EdgeId,
        k: EdgeId,
        v: EdgeId,
        decay: StateDecay,
        beta: Option<EdgeId>,
        skip: Option<WeightId>,
        shape: RecurrenceShape,
        state: EdgeId,
        out: EdgeId,
    },
    /// Real-gated linear recurrent unit (RG-LRU).
    Lru { x: EdgeId, input_gate: EdgeId, recurrent_gate: EdgeId, rate: WeightId, state: EdgeId, out: EdgeId },
    /// RWKV's token shift: `mix · x[t] + (1 − mix) · x[t−1]`
    Shift { x: EdgeId, mix: WeightId, out: EdgeId },
    /// RWKV's WKV: exponentially weighted average of values.
    Wkv { k: EdgeId, v: EdgeId, decay: WeightId, first: WeightId, state: EdgeId, out: EdgeId },
    /// An attached sparse autoencoder or transcoder. It reads `x` and reconstructs `target`, which
    /// is `None` if both are the same edge. `out` is `target` itself except for tokens whose plan
    /// edits or splices the autoencoder.
    Sae {
        x: EdgeId,
        target: Option<EdgeId>,
        /// Index of its weights in the model.
        sae: usize,
        /// Its reconstructions depend on the scale of their token, apart from the features.
        scales_tokens: bool,
        /// Maximum number of active features of a token, if its kind has one.
        max_active: Option<usize>,
        /// Features of earlier layers that are decoded into this reconstruction, for a cross-layer
        /// transcoder.
        earlier: Vec<EarlierFeatures>,
        pre: EdgeId,
        acts: EdgeId,
        recon: EdgeId,
        error: EdgeId,
        out: EdgeId,
    },
    /// Keeps only the tokens of `out`'s [`TokenSet`](super::TokenSet).
    Select { x: EdgeId, out: EdgeId },
}

/// A field of an op that holds zero or more ids.
trait Ids<Id> {
    fn add_to(&self, ids: &mut Vec<Id>);
}

impl Ids<EdgeId> for EdgeId {
    fn add_to(&self, ids: &mut Vec<EdgeId>) {
        ids.push(*self);
    }
}

impl Ids<WeightId> for WeightId {
    fn add_to(&self, ids: &mut Vec<WeightId>) {
        ids.push(*self);
    }
}

impl<Id, T: Ids<Id>> Ids<Id> for &T {
    fn add_to(&self, ids: &mut Vec<Id>) {
        T::add_to(self, ids);
    }
}

impl<Id, T: Ids<Id>> Ids<Id> for Option<T> {
    fn add_to(&self, ids: &mut Vec<Id>) {
        self.iter().for_each(|one| one.add_to(ids));
    }
}

impl<Id, T: Ids<Id>> Ids<Id> for Vec<T> {
    fn add_to(&self, ids: &mut Vec<Id>) {
        self.iter().for_each(|one| one.add_to(ids));
    }
}

impl<Id, T: Ids<Id>, const N: usize> Ids<Id> for [T; N] {
    fn add_to(&self, ids: &mut Vec<Id>) {
        self.iter().for_each(|one| one.add_to(ids));
    }
}

impl Ids<WeightId> for Linear {
    fn add_to(&self, ids: &mut Vec<WeightId>) {
        self.weight.add_to(ids);
        self.bias.add_to(ids);
    }
}

impl Ids<WeightId> for Expert {
    fn add_to(&self, ids: &mut Vec<WeightId>) {
        self.gate.add_to(ids);
        self.up.add_to(ids);
        self.down.add_to(ids);
    }
}

impl StateDecay {
    /// Returns the time step's edge, if the decay is learned.
    fn step(&self) -> Option<EdgeId> {
        match self {
            StateDecay::Learned { step, .. } => Some(*step),
            StateDecay::Fixed(_) => None,
        }
    }

    /// Returns the rate's weight, if the decay is learned.
    fn rate(&self) -> Option<WeightId> {
        match self {
            StateDecay::Learned { rate, .. } => Some(*rate),
            StateDecay::Fixed(_) => None,
        }
    }
}

/// Generates the methods of [`OpKind`] from the table of ops. A row names an op, the fields that it
/// uses and its name in listings, then
///
/// - `reads`: input edges;
/// - `inside`: intermediate edges, from which the output is computed;
/// - `makes`: output edge;
/// - `weights`: weights;
/// - `needs`: edges whose activations the input gradient needs (none if the op is linear in its
///   inputs). Only inputs and intermediates can be listed: a tap may have edited the output;
/// - `for weights`: edges whose activations the weight gradient needs, if not exactly the inputs;
/// - `carries state`: the op has a recurrent state (other than the KV cache).
macro_rules! ops {
    ($(
        $op:ident { $($field:ident),* }: $name:literal
        $(, reads [$($read:expr),*])?
        $(, inside [$($inner:expr),*])?
        , makes $out:ident
        $(, weights [$($weight:expr),*])?
        , needs [$($need:expr),*]
        $(, for weights [$($weight_need:expr),*])?
        $(, carries $state:ident)?
        ;
    )+) => {
        #[allow(unused_variables, unused_mut)] // each method uses some of a row's fields
        impl OpKind {
            /// Returns a short name for listings and profiles.
            pub fn name(&self) -> &'static str {
                match self {
                    $(OpKind::$op { .. } => $name,)+
                }
            }

            /// Returns the input edges.
            pub fn inputs(&self) -> Vec<EdgeId> {
                let mut ids = Vec::new();
                match self {
                    $(OpKind::$op { $($field,)* .. } => { $($($read.add_to(&mut ids);)*)? })+
                }
                ids
            }

            /// Returns the intermediate edges, from which the output is computed.
            pub fn inner(&self) -> Vec<EdgeId> {
                let mut ids = Vec::new();
                match self {
                    $(OpKind::$op { $($field,)* .. } => { $($($inner.add_to(&mut ids);)*)? })+
                }
                ids
            }

            /// Returns the output edge. (A router also outputs expert indices, which have no
            /// gradient.)
            pub fn output(&self) -> EdgeId {
                match self {
                    $(OpKind::$op { $out, .. } => *$out,)+
                }
            }

            /// Makes it write its output to another edge.
            pub(super) fn set_output(&mut self, edge: EdgeId) {
                match self {
                    $(OpKind::$op { $out, .. } => *$out = edge,)+
                }
            }

            /// Returns the weights.
            pub fn weights(&self) -> Vec<WeightId> {
                let mut ids = Vec::new();
                match self {
                    $(OpKind::$op { $($field,)* .. } => { $($($weight.add_to(&mut ids);)*)? })+
                }
                ids
            }

            /// Returns the edges whose activations the gradient of its inputs needs.
            pub fn needed_for_inputs(&self) -> Vec<EdgeId> {
                let mut ids = Vec::new();
                match self {
                    $(OpKind::$op { $($field,)* .. } => { $($need.add_to(&mut ids);)* })+
                }
                ids
            }

            /// Returns the edges whose activations the gradients of its inputs and weights need.
            pub fn needed_for_weights(&self) -> Vec<EdgeId> {
                let mut ids = self.inputs();
                match self {
                    $(OpKind::$op { $($field,)* .. } => { $(ids.clear(); $($weight_need.add_to(&mut ids);)*)? })+
                }
                ids
            }

            /// Whether it carries a state from token to token, other than the KV cache.
            pub fn is_recurrent(&self) -> bool {
                match self {
                    $(OpKind::$op { .. } => {
                        const STATE: &[&str] = &[$(stringify!($state))?];
                        !STATE.is_empty()
                    })+
                }
            }
        }
    };
}

ops! {
    Input { out }: "input", makes out, needs [];
    Embed { table, out }: "lookup", makes out, weights [table], needs [];
    Sinusoids { out }: "sinusoids", makes out, needs [];
    MatMul { x, linear, out }: "matmul", reads [x], makes out, weights [linear], needs [];
    BlockMatMul { x, linear, out }: "block_matmul", reads [x], makes out, weights [linear], needs [];
    Project { z, linear, head_out, out }: "project", reads [z], inside [head_out], makes out, weights [linear], needs [];
    Norm { x, gain, bias, scale, normed, out }: "norm", reads [x], inside [scale, normed], makes out, weights [gain, bias],
        needs [x, scale], for weights [x, scale, normed];
    Add { a, b, out }: "add", reads [a, b], makes out, needs [];
    Scale { x, out }: "scale", reads [x], makes out, needs [];
    Gain { x, gain, out }: "gain", reads [x], makes out, weights [gain], needs [];
    SoftCap { x, out }: "soft_cap", reads [x], makes out, needs [x];
    Clip { x, out }: "clip", reads [x], makes out, needs [x];
    Slice { x, out }: "slice", reads [x], makes out, needs [];
    Concat { parts, out }: "concat", reads [parts], makes out, needs [];
    JoinHeads { x, tail, out }: "join_heads", reads [x, tail], makes out, needs [];
    JoinConstant { x, out }: "join_number", reads [x], makes out, needs [];
    Rotate { x, out }: "rotate", reads [x], makes out, needs [];
    ScaleByPosition { x, out }: "temper", reads [x], makes out, needs [];
    Attention { q, k, v, sinks, scores, probs, out }: "attention", reads [q, k, v], inside [scores, probs], makes out,
        weights [sinks], needs [q, k, v];
    PairValues { x, out }: "pair_values", reads [x], makes out, needs [];
    HeadDifference { x, weights, out }: "differ", reads [x], makes out, weights [weights], needs [];
    KeyBias { x, rate, out }: "key_bias", reads [x], makes out, weights [rate], needs [x];
    Activate { x, out }: "activate", reads [x], makes out, needs [x];
    Xielu { x, positive, negative, out }: "xielu", reads [x], makes out, weights [positive, negative], needs [x];
    Gate { gate, linear, out }: "gate", reads [gate, linear], makes out, needs [gate, linear];
    Route { logits, correction, weights }: "route", reads [logits], makes weights, weights [correction], needs [logits];
    Experts { x, weights, indices, experts, expert_out, out }: "experts", reads [x, weights, indices],
        inside [expert_out], makes out, weights [experts], needs [x, weights, indices, expert_out],
        for weights [x, weights, indices, expert_out];
    RoutedMatMul { x, indices, experts, out }: "routed_matmul", reads [x, indices], makes out, weights [experts],
        needs [indices];
    RoutedProject { z, weights, indices, experts, bias, out }: "routed_project", reads [z, weights, indices], makes out,
        weights [experts, bias], needs [z, weights, indices];
    // Linear, and so without `needs`, if there is no activation function.
    Convolve { x, kernel, bias, activation, out }: "convolve", reads [x], makes out, weights [kernel, bias],
        needs [(*activation != Activation::Identity).then_some(x)], carries state;
    TimeStep { x, bias, out }: "step", reads [x], makes out, weights [bias], needs [x];
    Recur { q, k, v, decay, beta, skip, out }: "recur", reads [q, k, v, decay.step(), beta], makes out,
        weights [decay.rate(), skip], needs [q, k, v, decay.step(), beta], carries state;
    Lru { x, input_gate, recurrent_gate, rate, out }: "lru", reads [x, input_gate, recurrent_gate], makes out,
        weights [rate], needs [x, input_gate, recurrent_gate], carries state;
    Shift { x, mix, out }: "shift", reads [x], makes out, weights [mix], needs [], carries state;
    Wkv { k, v, decay, first, out }: "wkv", reads [k, v], makes out, weights [decay, first], needs [k, v], carries state;
    Sae { x, target, scales_tokens, pre, acts, recon, error, out }: "sae", reads [x, target],
        inside [pre, acts, recon, error], makes out, needs [x, pre, scales_tokens.then_some(acts)];
    Select { x, out }: "select", reads [x], makes out, needs [];
}

impl OpKind {
    /// Returns the edges that it computes only if they are tapped: its intermediate edges and the
    /// copy of a recurrent op's state.
    pub fn tap_edges(&self) -> Vec<EdgeId> {
        let mut edges = self.inner();
        if let OpKind::Recur { state, .. } | OpKind::Lru { state, .. } | OpKind::Wkv { state, .. } = self {
            edges.push(*state);
        }
        edges
    }

    /// Returns the edges that it always computes.
    pub fn outputs(&self) -> Vec<EdgeId> {
        match self {
            // Indices first: taps on the weights may select by expert.
            OpKind::Route { weights, indices, .. } => vec![*indices, *weights],
            kind => vec![kind.output()],
        }
    }
}
