//! The ops: everything a model does, one variant for each kind of mathematics.

use super::EdgeId;
use crate::architecture::{Activation, Alibi, Norm, Routing, Temperature};
use crate::weights::WeightId;
use pellucid_kernels::attention::AttentionShape;
use pellucid_kernels::recurrence::RecurrenceShape;

/// An op and where it stands.
#[derive(Clone, Debug, PartialEq)]
pub struct Op {
    /// What it does.
    pub kind: OpKind,
    /// The layer that it belongs to.
    pub layer: Option<usize>,
}

/// A projection: a matrix and perhaps a bias.
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
    /// Gate projection of a gated expert.
    pub gate: Option<Linear>,
    /// Up projection.
    pub up: Linear,
    /// Down projection.
    pub down: Linear,
}

/// Which row of a table a token looks up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowOf {
    /// Its own number's.
    Token,
    /// Its position's, counted from here.
    Position(usize),
    /// The same for all.
    Fixed(usize),
}

impl RowOf {
    /// The row that a token at a position looks up.
    pub fn of(self, token: u32, position: usize) -> usize {
        match self {
            RowOf::Token => token as usize,
            RowOf::Position(offset) => position + offset,
            RowOf::Fixed(row) => row,
        }
    }
}

/// What a recurrent state is multiplied by at each token.
#[derive(Clone, Debug, PartialEq)]
pub enum StateDecay {
    /// A number for each head.
    Fixed(Vec<f32>),
    /// `exp(-exp(rate) · step)`, each for a head or for each coordinate of its keys.
    Learned {
        /// The time step, on its edge.
        step: EdgeId,
        /// The rate.
        rate: WeightId,
    },
}

/// What an op reads, what it does, and what it makes. Fields named `out` are its results; the edges besides are made
/// only when a plan touches them.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)] // the variants are documented, their fields are edges and weights named for their role
pub enum OpKind {
    /// Nothing yet: what the caller gives is written here.
    Input { out: EdgeId },
    /// Looks up rows of a table.
    Lookup { table: WeightId, row: RowOf, out: EdgeId },
    /// Sines, then cosines, of the positions.
    Sinusoids { frequencies: Vec<f32>, offset: usize, out: EdgeId },
    /// `out = x Wᵀ + b`
    MatMul { x: EdgeId, linear: Linear, out: EdgeId },
    /// A product with a block-diagonal matrix; the blocks lie one under the other, each as inputs by outputs.
    BlockMatMul { x: EdgeId, linear: Linear, blocks: usize, out: EdgeId },
    /// The output projection of attention: a product whose share of each head can be told apart.
    Project { z: EdgeId, linear: Linear, heads: usize, head_out: EdgeId, out: EdgeId },
    /// Normalises each group of `group` values, then applies gain and bias.
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
    /// `out = x · gain`, a learned number for each coordinate.
    Gain { x: EdgeId, gain: WeightId, out: EdgeId },
    /// `out = cap · tanh(x / cap)`
    SoftCap { x: EdgeId, cap: f32, out: EdgeId },
    /// `out = x` within plus or minus `by`.
    Clip { x: EdgeId, by: f32, out: EdgeId },
    /// The coordinates from `from` on.
    Slice { x: EdgeId, from: usize, out: EdgeId },
    /// All parts one after the other.
    Concat { parts: Vec<EdgeId>, out: EdgeId },
    /// Puts `tail` behind each head: its own, or the same where there is only one.
    JoinHeads { x: EdgeId, tail: EdgeId, heads: usize, out: EdgeId },
    /// Puts a number behind each head.
    JoinNumber { x: EdgeId, number: f32, heads: usize, out: EdgeId },
    /// Turns each head by its token's position, from coordinate `from` on.
    Rotate { x: EdgeId, rope: usize, heads: usize, from: usize, out: EdgeId },
    /// Multiplies by a number that grows with the position.
    Temper { x: EdgeId, temperature: Temperature, out: EdgeId },
    /// Appends keys and values to the row's cache and attends.
    Attention {
        q: EdgeId,
        k: EdgeId,
        v: EdgeId,
        shape: AttentionShape,
        alibi: Option<Alibi>,
        sinks: Option<WeightId>,
        /// Keys that a query keeps when there are more, by the last coordinate of each.
        kept: Option<usize>,
        scores: EdgeId,
        probs: EdgeId,
        out: EdgeId,
    },
    /// Doubles each value head with its partner in the other half of the heads.
    PairValues { x: EdgeId, heads: usize, out: EdgeId },
    /// Subtracts the second half of the heads from the first, weighted by learned numbers.
    Differ { x: EdgeId, weights: [WeightId; 4], start: f32, out: EdgeId },
    /// `out = exp(rate · softplus(x))`
    KeyBias { x: EdgeId, rate: WeightId, out: EdgeId },
    /// `out = activation(x)`
    Activate { x: EdgeId, activation: Activation, out: EdgeId },
    /// xIELU with its learned numbers.
    Xielu { x: EdgeId, positive: WeightId, negative: WeightId, out: EdgeId },
    /// `out = activation(gate) · linear`; a narrower gate serves as many neighbours as fit.
    Gate { gate: EdgeId, linear: EdgeId, activation: Activation, out: EdgeId },
    /// Chooses experts from the router's scores.
    Route {
        logits: EdgeId,
        chosen: usize,
        routing: Routing,
        correction: Option<WeightId>,
        weights: EdgeId,
        indices: EdgeId,
    },
    /// Runs each token through its chosen experts and adds up their weighted outputs.
    Experts {
        x: EdgeId,
        weights: EdgeId,
        indices: EdgeId,
        experts: Vec<Expert>,
        activation: Activation,
        on_input: bool,
        out: EdgeId,
    },
    /// Each chosen expert's product, as heads: those that share a key head stand together.
    RoutedMatMul { x: EdgeId, indices: EdgeId, experts: Vec<WeightId>, heads: usize, out: EdgeId },
    /// The weighted sum of what each chosen expert makes of its heads, and a bias.
    RoutedProject {
        z: EdgeId,
        weights: EdgeId,
        indices: EdgeId,
        experts: Vec<WeightId>,
        bias: WeightId,
        heads: usize,
        out: EdgeId,
    },
    /// A causal convolution of each channel over its last tokens.
    Convolve { x: EdgeId, kernel: WeightId, bias: Option<WeightId>, activation: Activation, out: EdgeId },
    /// `out = softplus(x + bias)`, within limits.
    Step { x: EdgeId, bias: Option<WeightId>, limits: (f32, f32), out: EdgeId },
    /// A state of keys by values: decayed, written and read at each token.
    Recur {
        q: EdgeId,
        k: EdgeId,
        v: EdgeId,
        decay: StateDecay,
        strength: Option<EdgeId>,
        skip: Option<WeightId>,
        shape: RecurrenceShape,
        state: EdgeId,
        out: EdgeId,
    },
    /// A real-gated linear recurrent unit.
    Lru { x: EdgeId, input_gate: EdgeId, recurrent_gate: EdgeId, rate: WeightId, state: EdgeId, out: EdgeId },
    /// Blends each token with the one before it.
    Shift { x: EdgeId, mix: WeightId, out: EdgeId },
    /// RWKV's weighted average of values.
    Wkv { k: EdgeId, v: EdgeId, decay: WeightId, first: WeightId, state: EdgeId, out: EdgeId },
    /// Keeps only the tokens whose logits somebody reads.
    Select { x: EdgeId, out: EdgeId },
}

impl OpKind {
    /// Whether it carries something from token to token besides keys and values.
    pub fn carries(&self) -> bool {
        use OpKind::*;
        matches!(self, Convolve { .. } | Recur { .. } | Lru { .. } | Shift { .. } | Wkv { .. })
    }

    /// The edges that it reads.
    pub fn inputs(&self) -> Vec<EdgeId> {
        use OpKind::*;
        match self {
            Input { .. } | Lookup { .. } | Sinusoids { .. } => vec![],
            MatMul { x, .. }
            | BlockMatMul { x, .. }
            | Norm { x, .. }
            | Scale { x, .. }
            | Gain { x, .. }
            | SoftCap { x, .. }
            | Clip { x, .. }
            | Slice { x, .. }
            | JoinNumber { x, .. }
            | Rotate { x, .. }
            | Temper { x, .. }
            | PairValues { x, .. }
            | Differ { x, .. }
            | KeyBias { x, .. }
            | Activate { x, .. }
            | Xielu { x, .. }
            | Convolve { x, .. }
            | Step { x, .. }
            | Shift { x, .. }
            | Select { x, .. } => vec![*x],
            Project { z, .. } => vec![*z],
            Add { a, b, .. } => vec![*a, *b],
            Concat { parts, .. } => parts.clone(),
            JoinHeads { x, tail, .. } => vec![*x, *tail],
            Attention { q, k, v, .. } => vec![*q, *k, *v],
            Gate { gate, linear, .. } => vec![*gate, *linear],
            Route { logits, .. } => vec![*logits],
            Experts { x, weights, indices, .. } => vec![*x, *weights, *indices],
            RoutedMatMul { x, indices, .. } => vec![*x, *indices],
            RoutedProject { z, weights, indices, .. } => vec![*z, *weights, *indices],
            Recur { q, k, v, decay, strength, .. } => {
                let step = match decay {
                    StateDecay::Learned { step, .. } => Some(*step),
                    StateDecay::Fixed(_) => None,
                };
                [*q, *k, *v].into_iter().chain(step).chain(*strength).collect()
            }
            Lru { x, input_gate, recurrent_gate, .. } => vec![*x, *input_gate, *recurrent_gate],
            Wkv { k, v, .. } => vec![*k, *v],
        }
    }

    /// The edge that other ops read from it. (A router's choice is read too, but it is no quantity.)
    pub fn output(&self) -> EdgeId {
        use OpKind::*;
        match self {
            Input { out }
            | Lookup { out, .. }
            | Sinusoids { out, .. }
            | MatMul { out, .. }
            | BlockMatMul { out, .. }
            | Project { out, .. }
            | Norm { out, .. }
            | Add { out, .. }
            | Scale { out, .. }
            | Gain { out, .. }
            | SoftCap { out, .. }
            | Clip { out, .. }
            | Slice { out, .. }
            | Concat { out, .. }
            | JoinHeads { out, .. }
            | JoinNumber { out, .. }
            | Rotate { out, .. }
            | Temper { out, .. }
            | Attention { out, .. }
            | PairValues { out, .. }
            | Differ { out, .. }
            | KeyBias { out, .. }
            | Activate { out, .. }
            | Xielu { out, .. }
            | Gate { out, .. }
            | Experts { out, .. }
            | RoutedMatMul { out, .. }
            | RoutedProject { out, .. }
            | Convolve { out, .. }
            | Step { out, .. }
            | Recur { out, .. }
            | Lru { out, .. }
            | Shift { out, .. }
            | Wkv { out, .. }
            | Select { out, .. } => *out,
            Route { weights, .. } => *weights,
        }
    }

    /// The weights that it reads.
    pub fn weights(&self) -> Vec<WeightId> {
        use OpKind::*;
        let of = |linear: &Linear| std::iter::once(linear.weight).chain(linear.bias);
        match self {
            Lookup { table, .. } => vec![*table],
            MatMul { linear, .. } | BlockMatMul { linear, .. } | Project { linear, .. } => of(linear).collect(),
            Norm { gain, bias, .. } => gain.iter().chain(bias).copied().collect(),
            Gain { gain, .. } => vec![*gain],
            Attention { sinks, .. } => sinks.iter().copied().collect(),
            Differ { weights, .. } => weights.to_vec(),
            KeyBias { rate, .. } | Lru { rate, .. } => vec![*rate],
            Xielu { positive, negative, .. } => vec![*positive, *negative],
            Route { correction, .. } => correction.iter().copied().collect(),
            Experts { experts, .. } => experts
                .iter()
                .flat_map(|Expert { gate, up, down }| gate.iter().chain([up, down]).flat_map(of).collect::<Vec<_>>())
                .collect(),
            RoutedMatMul { experts, .. } => experts.clone(),
            RoutedProject { experts, bias, .. } => experts.iter().chain([bias]).copied().collect(),
            Convolve { kernel, bias, .. } => std::iter::once(*kernel).chain(*bias).collect(),
            Step { bias, .. } => bias.iter().copied().collect(),
            Recur { decay, skip, .. } => {
                let rate = match decay {
                    StateDecay::Learned { rate, .. } => Some(*rate),
                    StateDecay::Fixed(_) => None,
                };
                rate.into_iter().chain(*skip).collect()
            }
            Shift { mix, .. } => vec![*mix],
            Wkv { decay, first, .. } => vec![*decay, *first],
            Input { .. }
            | Sinusoids { .. }
            | Add { .. }
            | Scale { .. }
            | SoftCap { .. }
            | Clip { .. }
            | Slice { .. }
            | Concat { .. }
            | JoinHeads { .. }
            | JoinNumber { .. }
            | Rotate { .. }
            | Temper { .. }
            | PairValues { .. }
            | Activate { .. }
            | Gate { .. }
            | Select { .. } => vec![],
        }
    }

    /// The edges within it, through which its output is made.
    pub fn inner(&self) -> Vec<EdgeId> {
        match self {
            OpKind::Project { head_out, .. } => vec![*head_out],
            OpKind::Norm { scale, normed, .. } => vec![*scale, *normed],
            OpKind::Attention { scores, probs, .. } => vec![*scores, *probs],
            _ => vec![],
        }
    }

    /// A short name for listings and profiles.
    pub fn name(&self) -> &'static str {
        use OpKind::*;
        match self {
            Input { .. } => "input",
            Lookup { .. } => "lookup",
            Sinusoids { .. } => "sinusoids",
            MatMul { .. } => "matmul",
            BlockMatMul { .. } => "block_matmul",
            Project { .. } => "project",
            Norm { .. } => "norm",
            Add { .. } => "add",
            Scale { .. } => "scale",
            Gain { .. } => "gain",
            SoftCap { .. } => "soft_cap",
            Clip { .. } => "clip",
            Slice { .. } => "slice",
            Concat { .. } => "concat",
            JoinHeads { .. } => "join_heads",
            JoinNumber { .. } => "join_number",
            Rotate { .. } => "rotate",
            Temper { .. } => "temper",
            Attention { .. } => "attention",
            PairValues { .. } => "pair_values",
            Differ { .. } => "differ",
            KeyBias { .. } => "key_bias",
            Activate { .. } => "activate",
            Xielu { .. } => "xielu",
            Gate { .. } => "gate",
            Route { .. } => "route",
            Experts { .. } => "experts",
            RoutedMatMul { .. } => "routed_matmul",
            RoutedProject { .. } => "routed_project",
            Convolve { .. } => "convolve",
            Step { .. } => "step",
            Recur { .. } => "recur",
            Lru { .. } => "lru",
            Shift { .. } => "shift",
            Wkv { .. } => "wkv",
            Select { .. } => "select",
        }
    }
}
