//! The ops of recurrences.

use super::Builder;
use crate::architecture::{Activation, Decay, DeltaRule, LinearAttention, Lru, Mamba, Mamba2, Recurrence, ShortConv};
use crate::point::Point;
use crate::program::{EdgeId, Layout, Linear, OpKind, StateDecay};
use crate::program::{WeightId, WeightKind};
use pellucid_kernels::recurrence::RecurrenceShape;

impl Builder {
    pub(super) fn recurrence(&mut self, width: usize, recurrence: &Recurrence, x: EdgeId) -> EdgeId {
        match recurrence {
            Recurrence::Mamba(mamba) => self.mamba(width, mamba, x),
            Recurrence::Mamba2(mamba) => self.mamba2(width, mamba, x),
            Recurrence::DeltaRule(rule) => self.delta_rule(width, rule, x),
            Recurrence::LinearAttention(linear) => self.linear_attention(width, linear, x),
            Recurrence::ShortConv(conv) => self.short_conv(width, *conv, x),
            Recurrence::Lru(lru) => self.lru(width, lru, x),
            Recurrence::Rwkv(channels) => self.rwkv(width, *channels, x),
        }
    }

    fn mamba(&mut self, width: usize, m: &Mamba, x: EdgeId) -> EdgeId {
        let channels = self.matmul(x, "mixer.in", m.width, m.bias, None);
        let gate = self.matmul(x, "mixer.gate", m.width, m.bias, Some(Point::MixerGate));
        let conv = self.convolve(channels, m.kernel, m.conv_bias, m.activation);
        let [mut step, mut write, mut read] =
            [("mixer.step_down", m.rank), ("mixer.write", m.state), ("mixer.read", m.state)]
                .map(|(name, units)| self.matmul(conv, name, units, false, None));
        if let Some(norm) = m.inner_norm {
            step = self.norm(step, "mixer.step_norm", norm, m.rank, [None; 3]);
            write = self.norm(write, "mixer.write_norm", norm, m.state, [None; 3]);
            read = self.norm(read, "mixer.read_norm", norm, m.state, [None; 3]);
        }
        let step = self.matmul(step, "mixer.step", m.width, true, None);
        let step = self.step(step, None, (0.0, f32::INFINITY));
        let rate = self.weight("mixer.rate", vec![m.width, m.state], WeightKind::Vector);
        let skip = Some(self.weight("mixer.skip", vec![m.width], WeightKind::Vector));
        // Each channel is a head with values of one number; all share the vectors that write and read.
        let shape = RecurrenceShape {
            heads: m.width,
            key_heads: 1,
            key_dim: m.state,
            value_dim: 1,
            query_scale: 1.0,
            unit: false,
            step_writes: true,
        };
        let y = self.recur(read, write, conv, StateDecay::Learned { step, rate }, None, skip, shape);
        let y = self.gate(gate, y, m.activation, None);
        self.matmul(y, "mixer.out", width, m.bias, Some(Point::MixerOut))
    }

    fn mamba2(&mut self, width: usize, m: &Mamba2, x: EdgeId) -> EdgeId {
        let (channels, vectors) = (m.heads * m.head_dim, m.groups * m.state);
        let x = m.in_scale.map_or(x, |by| self.scale(x, by, None));
        let mut gate = self.matmul(x, "mixer.gate", channels, m.bias, None);
        let mut parts =
            [("mixer.in", channels), ("mixer.write", vectors), ("mixer.read", vectors), ("mixer.step", m.heads)]
                .map(|(name, units)| self.matmul(x, name, units, m.bias, None));
        if let Some([by_gate, by @ ..]) = m.multipliers {
            gate = self.scale(gate, by_gate, None);
            parts = std::array::from_fn(|i| self.scale(parts[i], by[i], None));
        }
        self.site(Point::MixerGate, gate);
        let [channels_in, write, read, step] = parts;
        let joined = self.concat(&[channels_in, write, read], None);
        let conv = self.convolve(joined, m.kernel, m.conv_bias, m.activation);
        let (v, write, read) = (
            self.slice(conv, 0, channels),
            self.slice(conv, channels, vectors),
            self.slice(conv, channels + vectors, vectors),
        );
        let bias = self.weight("mixer.step_bias", vec![m.heads], WeightKind::Vector);
        let step = self.step(step, Some(bias), m.step_limits);
        let rate = self.weight("mixer.rate", vec![m.heads], WeightKind::Vector);
        let skip = Some(self.weight("mixer.skip", vec![m.heads], WeightKind::Vector));
        let shape = RecurrenceShape {
            heads: m.heads,
            key_heads: m.groups,
            key_dim: m.state,
            value_dim: m.head_dim,
            query_scale: 1.0,
            unit: false,
            step_writes: true,
        };
        let mut y = self.recur(read, write, v, StateDecay::Learned { step, rate }, None, skip, shape);
        let before = m.norm.filter(|norm| norm.before_gate);
        let after = m.norm.filter(|norm| !norm.before_gate);
        if let Some(norm) = before {
            y = self.norm_with_gains(y, "mixer.norm", norm.norm, channels / norm.groups, &[channels], [None; 3]);
        }
        y = self.gate(gate, y, Activation::Silu, None);
        if let Some(norm) = after {
            y = self.norm_with_gains(y, "mixer.norm", norm.norm, channels / norm.groups, &[channels], [None; 3]);
        }
        self.matmul(y, "mixer.out", width, m.out_bias, Some(Point::MixerOut))
    }

    fn delta_rule(&mut self, width: usize, d: &DeltaRule, x: EdgeId) -> EdgeId {
        let (keys, values) = (d.key_heads * d.key_dim, d.value_heads * d.value_dim);
        let [q, k, v] = [("mixer.q", keys), ("mixer.k", keys), ("mixer.v", values)]
            .map(|(name, units)| self.matmul(x, name, units, false, None));
        let joined = self.concat(&[q, k, v], None);
        let conv = self.convolve(joined, d.kernel, false, d.activation);
        let (q, k, v) = (self.slice(conv, 0, keys), self.slice(conv, keys, keys), self.slice(conv, 2 * keys, values));
        let (step, steps) = match d.decay {
            Decay::Head => (self.matmul(x, "mixer.step", d.value_heads, false, None), d.value_heads),
            Decay::Key(rank) => {
                let low = self.matmul(x, "mixer.step_down", rank, false, None);
                (self.matmul(low, "mixer.step", keys, false, None), keys)
            }
        };
        let bias = self.weight("mixer.step_bias", vec![steps], WeightKind::Vector);
        let step = self.step(step, Some(bias), (0.0, f32::INFINITY));
        let rate = self.weight("mixer.rate", vec![d.value_heads], WeightKind::Vector);
        let strength = self.matmul(x, "mixer.strength", d.value_heads, false, None);
        let mut strength = self.activate(strength, Activation::Sigmoid, None);
        if d.strength != 1.0 {
            strength = self.scale(strength, d.strength, None);
        }
        let shape = RecurrenceShape {
            heads: d.value_heads,
            key_heads: d.key_heads,
            key_dim: d.key_dim,
            value_dim: d.value_dim,
            query_scale: 1.0 / (d.key_dim as f32).sqrt(),
            unit: true,
            step_writes: false,
        };
        let y = self.recur(q, k, v, StateDecay::Learned { step, rate }, Some(strength), None, shape);
        let y = self.norm(y, "mixer.norm", d.norm, d.value_dim, [None; 3]);
        let low = d.gate_rank.map_or(x, |rank| self.matmul(x, "mixer.gate_down", rank, false, None));
        let gate = self.matmul(low, "mixer.gate", values, false, Some(Point::MixerGate));
        let y = self.gate(gate, y, d.gate, None);
        self.matmul(y, "mixer.out", width, false, Some(Point::MixerOut))
    }

    fn linear_attention(&mut self, width: usize, l: &LinearAttention, x: EdgeId) -> EdgeId {
        let units = l.heads * l.head_dim;
        let [q, k, v] = ["mixer.q", "mixer.k", "mixer.v"].map(|name| {
            let raw = self.matmul(x, name, units, false, None);
            self.activate(raw, l.activation, None)
        });
        let shape = RecurrenceShape {
            heads: l.heads,
            key_heads: l.heads,
            key_dim: l.head_dim,
            value_dim: l.head_dim,
            query_scale: 1.0,
            unit: false,
            step_writes: false,
        };
        let y = self.recur(q, k, v, StateDecay::Fixed(l.decay.clone()), None, None, shape);
        let y = self.norm(y, "mixer.norm", l.norm, units, [None; 3]);
        let gate = self.matmul(x, "mixer.gate", units, false, Some(Point::MixerGate));
        let y = self.gate(gate, y, Activation::Sigmoid, None);
        self.matmul(y, "mixer.out", width, false, Some(Point::MixerOut))
    }

    fn short_conv(&mut self, width: usize, c: ShortConv, x: EdgeId) -> EdgeId {
        let [input_gate, gate, channels] =
            [("mixer.in_gate", None), ("mixer.gate", Some(Point::MixerGate)), ("mixer.in", None)]
                .map(|(name, point)| self.matmul(x, name, width, c.bias, point));
        let gated = self.gate(input_gate, channels, Activation::Identity, None);
        let conv = self.convolve(gated, c.kernel, c.bias, Activation::Identity);
        let y = self.gate(gate, conv, Activation::Identity, None);
        self.matmul(y, "mixer.out", width, c.bias, Some(Point::MixerOut))
    }

    fn lru(&mut self, width: usize, l: &Lru, x: EdgeId) -> EdgeId {
        let gate = self.matmul(x, "mixer.gate", l.width, true, Some(Point::MixerGate));
        let channels = self.matmul(x, "mixer.in", l.width, true, None);
        let conv = self.convolve(channels, l.kernel, true, Activation::Identity);
        let block = l.width / l.blocks;
        let [input_gate, recurrent_gate] = ["mixer.input_gate", "mixer.recurrent_gate"].map(|name| {
            let weight = self.weight(name, vec![l.blocks, block, block], WeightKind::Vector);
            let bias = Some(self.weight(&format!("{name}.bias"), vec![l.blocks, block], WeightKind::Vector));
            let out = self.edge(None, l.width, Layout::Flat);
            self.op(OpKind::BlockMatMul { x: conv, linear: Linear { weight, bias }, blocks: l.blocks, out });
            out
        });
        let rate = self.weight("mixer.rate", vec![l.width], WeightKind::Vector);
        let state = self.state_edge(l.width, Layout::Flat);
        let y = self.edge(Some(Point::MixerScan), l.width, Layout::Flat);
        self.op(OpKind::Lru { x: conv, input_gate, recurrent_gate, rate, state, out: y });
        let y = self.gate(gate, y, l.activation, None);
        self.matmul(y, "mixer.out", width, true, Some(Point::MixerOut))
    }

    fn rwkv(&mut self, width: usize, channels: usize, x: EdgeId) -> EdgeId {
        let [k, v, gate] = [("k", None), ("v", None), ("gate", Some(Point::MixerGate))].map(|(name, point)| {
            let mixed = self.shift(x, &format!("mixer.mix_{name}"));
            self.matmul(mixed, &format!("mixer.{name}"), channels, false, point)
        });
        let decay = self.weight("mixer.rate", vec![channels], WeightKind::Vector);
        let first = self.weight("mixer.first", vec![channels], WeightKind::Vector);
        let state = self.state_edge(3 * channels, Layout::Heads(channels));
        let y = self.edge(Some(Point::MixerScan), channels, Layout::Flat);
        self.op(OpKind::Wkv { k, v, decay, first, state, out: y });
        let y = self.gate(gate, y, Activation::Sigmoid, None);
        self.matmul(y, "mixer.out", width, false, Some(Point::MixerOut))
    }

    fn convolve(&mut self, x: EdgeId, taps: usize, bias: bool, activation: Activation) -> EdgeId {
        let channels = self.edges[x].width;
        let kernel = self.weight("mixer.conv", vec![channels, taps], WeightKind::Vector);
        let bias = bias.then(|| self.weight("mixer.conv.bias", vec![channels], WeightKind::Vector));
        let out = self.edge(Some(Point::ConvOut), channels, Layout::Flat);
        self.op(OpKind::Convolve { x, kernel, bias, activation, out });
        out
    }

    /// The state after each token, which the op keeps to itself.
    fn state_edge(&mut self, width: usize, layout: Layout) -> EdgeId {
        let state = self.edge(Some(Point::MixerState), width, layout);
        self.edges[state].aside = true;
        state
    }

    fn step(&mut self, x: EdgeId, bias: Option<WeightId>, limits: (f32, f32)) -> EdgeId {
        let out = self.edge(None, self.edges[x].width, Layout::Flat);
        self.op(OpKind::Step { x, bias, limits, out });
        out
    }

    #[allow(clippy::too_many_arguments)] // what is read, what is written, how it fades: each differs at every call
    fn recur(
        &mut self,
        q: EdgeId,
        k: EdgeId,
        v: EdgeId,
        decay: StateDecay,
        strength: Option<EdgeId>,
        skip: Option<WeightId>,
        shape: RecurrenceShape,
    ) -> EdgeId {
        let (heads, each) = (shape.heads, shape.key_dim * shape.value_dim);
        let state = self.state_edge(heads * each, Layout::Heads(heads));
        let out = self.edge(Some(Point::MixerScan), heads * shape.value_dim, Layout::Heads(heads));
        self.op(OpKind::Recur { q, k, v, decay, strength, skip, shape, state, out });
        out
    }
}
