//! The ops: everything a model does, one variant for each kind of mathematics.
//!
//! [`OpKind`] says what an op holds; the `ops!` table below it says, one row each, what the op reads, makes and needs on the way
//! back. Adding an op is adding a variant and its row; the compiler then asks for its forward and backward code.

use super::EdgeId;
use crate::architecture::{Activation, Alibi, Norm, Routing, Temperature};
use crate::program::WeightId;
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

/// Ids found in a field of an op: one, none or several.
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
    /// The edge of the time step of a learned decay.
    fn step(&self) -> Option<EdgeId> {
        match self {
            StateDecay::Learned { step, .. } => Some(*step),
            StateDecay::Fixed(_) => None,
        }
    }

    /// The rate of a learned decay.
    fn rate(&self) -> Option<WeightId> {
        match self {
            StateDecay::Learned { rate, .. } => Some(*rate),
            StateDecay::Fixed(_) => None,
        }
    }
}

/// Writes the methods of [`OpKind`] from the table of ops. A row names an op, the fields that it uses and its name in listings, then
///
/// - `reads`: the edges that it reads;
/// - `inside`: the edges within it, through which its output is made;
/// - `makes`: its output;
/// - `weights`: the weights that it reads;
/// - `needs`: the edges whose values the gradient of its inputs needs (none where it is linear in them), always among those
///   that it reads or has inside, since a tap may have changed what it made;
/// - `for weights`: the edges whose values the gradient of its weights needs, where these are not just those that it reads;
/// - `carries state`: it carries something from token to token besides the KV cache.
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
        #[allow(unused_variables, unused_mut)] // each method uses some of the fields that a row names
        impl OpKind {
            /// A short name for listings and profiles.
            pub fn name(&self) -> &'static str {
                match self {
                    $(OpKind::$op { .. } => $name,)+
                }
            }

            /// The edges that it reads.
            pub fn inputs(&self) -> Vec<EdgeId> {
                let mut ids = Vec::new();
                match self {
                    $(OpKind::$op { $($field,)* .. } => { $($($read.add_to(&mut ids);)*)? })+
                }
                ids
            }

            /// The edges within it, through which its output is made.
            pub fn inner(&self) -> Vec<EdgeId> {
                let mut ids = Vec::new();
                match self {
                    $(OpKind::$op { $($field,)* .. } => { $($($inner.add_to(&mut ids);)*)? })+
                }
                ids
            }

            /// The edge that other ops read from it. (A router's choice is read too, but it is not a quantity.)
            pub fn output(&self) -> EdgeId {
                match self {
                    $(OpKind::$op { $out, .. } => *$out,)+
                }
            }

            /// The weights that it reads.
            pub fn weights(&self) -> Vec<WeightId> {
                let mut ids = Vec::new();
                match self {
                    $(OpKind::$op { $($field,)* .. } => { $($($weight.add_to(&mut ids);)*)? })+
                }
                ids
            }

            /// The edges whose values the gradient of its inputs needs.
            pub fn needed_for_inputs(&self) -> Vec<EdgeId> {
                let mut ids = Vec::new();
                match self {
                    $(OpKind::$op { $($field,)* .. } => { $($need.add_to(&mut ids);)* })+
                }
                ids
            }

            /// The edges whose values the gradients of its inputs and weights need.
            pub fn needed_for_weights(&self) -> Vec<EdgeId> {
                let mut ids = self.inputs();
                match self {
                    $(OpKind::$op { $($field,)* .. } => { $(ids.clear(); $($weight_need.add_to(&mut ids);)*)? })+
                }
                ids
            }

            /// Whether it carries something from token to token besides the KV cache.
            pub fn carries(&self) -> bool {
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
    Lookup { table, out }: "lookup", makes out, weights [table], needs [];
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
    JoinNumber { x, out }: "join_number", reads [x], makes out, needs [];
    Rotate { x, out }: "rotate", reads [x], makes out, needs [];
    Temper { x, out }: "temper", reads [x], makes out, needs [];
    Attention { q, k, v, sinks, scores, probs, out }: "attention", reads [q, k, v], inside [scores, probs], makes out,
        weights [sinks], needs [q, k, v];
    PairValues { x, out }: "pair_values", reads [x], makes out, needs [];
    Differ { x, weights, out }: "differ", reads [x], makes out, weights [weights], needs [];
    KeyBias { x, rate, out }: "key_bias", reads [x], makes out, weights [rate], needs [x];
    Activate { x, out }: "activate", reads [x], makes out, needs [x];
    Xielu { x, positive, negative, out }: "xielu", reads [x], makes out, weights [positive, negative], needs [x];
    Gate { gate, linear, out }: "gate", reads [gate, linear], makes out, needs [gate, linear];
    Route { logits, correction, weights }: "route", reads [logits], makes weights, weights [correction], needs [logits];
    Experts { x, weights, indices, experts, out }: "experts", reads [x, weights, indices], makes out, weights [experts],
        needs [x, weights, indices];
    RoutedMatMul { x, indices, experts, out }: "routed_matmul", reads [x, indices], makes out, weights [experts],
        needs [indices];
    RoutedProject { z, weights, indices, experts, bias, out }: "routed_project", reads [z, weights, indices], makes out,
        weights [experts, bias], needs [z, weights, indices];
    // Without an activation function it is linear.
    Convolve { x, kernel, bias, activation, out }: "convolve", reads [x], makes out, weights [kernel, bias],
        needs [(*activation != Activation::Identity).then_some(x)], carries state;
    Step { x, bias, out }: "step", reads [x], makes out, weights [bias], needs [x];
    Recur { q, k, v, decay, strength, skip, out }: "recur", reads [q, k, v, decay.step(), strength], makes out,
        weights [decay.rate(), skip], needs [q, k, v, decay.step(), strength], carries state;
    Lru { x, input_gate, recurrent_gate, rate, out }: "lru", reads [x, input_gate, recurrent_gate], makes out,
        weights [rate], needs [x, input_gate, recurrent_gate], carries state;
    Shift { x, mix, out }: "shift", reads [x], makes out, weights [mix], needs [], carries state;
    Wkv { k, v, decay, first, out }: "wkv", reads [k, v], makes out, weights [decay, first], needs [k, v], carries state;
    Select { x, out }: "select", reads [x], makes out, needs [];
}

impl OpKind {
    /// The edges that it computes only where a tap touches them: its inner edges, and the copy of a recurrent op's state.
    pub fn tap_edges(&self) -> Vec<EdgeId> {
        let mut edges = self.inner();
        if let OpKind::Recur { state, .. } | OpKind::Lru { state, .. } | OpKind::Wkv { state, .. } = self {
            edges.push(*state);
        }
        edges
    }

    /// The edges that it always computes.
    pub fn outputs(&self) -> Vec<EdgeId> {
        match self {
            OpKind::Route { weights, indices, .. } => vec![*weights, *indices],
            kind => vec![kind.output()],
        }
    }
}
