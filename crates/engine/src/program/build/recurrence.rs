//! Builds the ops of recurrences.
//!
//! Weight names: `mixer.in` is x, `mixer.gate` is z, `mixer.write` is B, `mixer.read` is C,
//! `mixer.step` is dt, `mixer.rate` is `A_log`, `mixer.skip` is D and `mixer.strength` is beta.

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
        let channels = self.matmul(x, "mixer.in", m.inner_width, m.bias, None);
        let gate = self.matmul(x, "mixer.gate", m.inner_width, m.bias, Some(Point::MixerGate));
        let conv = self.convolve(channels, m.conv_kernel, m.conv_bias, m.activation);
        let [mut step, mut write, mut read] =
            [("mixer.step_down", m.dt_rank), ("mixer.write", m.state_size), ("mixer.read", m.state_size)]
                .map(|(name, units)| self.matmul(conv, name, units, false, None));
        if let Some(norm) = m.inner_norm {
            step = self.norm(step, "mixer.step_norm", norm, m.dt_rank, [None; 3]);
            write = self.norm(write, "mixer.write_norm", norm, m.state_size, [None; 3]);
            read = self.norm(read, "mixer.read_norm", norm, m.state_size, [None; 3]);
        }
        let step = self.matmul(step, "mixer.step", m.inner_width, true, None);
        let step = self.time_step(step, None, (0.0, f32::INFINITY));
        let rate = self.weight("mixer.rate", vec![m.inner_width, m.state_size], WeightKind::Vector);
        let skip = Some(self.weight("mixer.skip", vec![m.inner_width], WeightKind::Vector));
        // Each channel is a head with value_dim 1; all channels share B and C.
        let shape = RecurrenceShape {
            heads: m.inner_width,
            key_heads: 1,
            key_dim: m.state_size,
            value_dim: 1,
            query_scale: 1.0,
            qk_l2_norm: false,
            scale_values_by_dt: true,
        };
        let y = self.recur(read, write, conv, StateDecay::Learned { step, rate }, None, skip, shape);
        let y = self.gate(gate, y, m.activation, None);
        self.matmul(y, "mixer.out", width, m.bias, Some(Point::MixerOut))
    }

    fn mamba2(&mut self, width: usize, m: &Mamba2, x: EdgeId) -> EdgeId {
        let (channels, vectors) = (m.heads * m.head_dim, m.groups * m.state_size);
        let x = m.in_scale.map_or(x, |by| self.scale(x, by, None));
        let mut gate = self.matmul(x, "mixer.gate", channels, m.bias, None);
        let mut parts =
            [("mixer.in", channels), ("mixer.write", vectors), ("mixer.read", vectors), ("mixer.step", m.heads)]
                .map(|(name, units)| self.matmul(x, name, units, m.bias, None));
        if let Some([by_gate, by @ ..]) = m.in_proj_multipliers {
            gate = self.scale(gate, by_gate, None);
            parts = std::array::from_fn(|i| self.scale(parts[i], by[i], None));
        }
        self.site(Point::MixerGate, gate);
        let [channels_in, write, read, step] = parts;
        let joined = self.concat(&[channels_in, write, read], None);
        let conv = self.convolve(joined, m.conv_kernel, m.conv_bias, m.activation);
        let (v, write, read) = (
            self.slice(conv, 0, channels),
            self.slice(conv, channels, vectors),
            self.slice(conv, channels + vectors, vectors),
        );
        let bias = self.weight("mixer.step_bias", vec![m.heads], WeightKind::Vector);
        let step = self.time_step(step, Some(bias), m.dt_limits);
        let rate = self.weight("mixer.rate", vec![m.heads], WeightKind::Vector);
        let skip = Some(self.weight("mixer.skip", vec![m.heads], WeightKind::Vector));
        let shape = RecurrenceShape {
            heads: m.heads,
            key_heads: m.groups,
            key_dim: m.state_size,
            value_dim: m.head_dim,
            query_scale: 1.0,
            qk_l2_norm: false,
            scale_values_by_dt: true,
        };
        let mut y = self.recur(read, write, v, StateDecay::Learned { step, rate }, None, skip, shape);
        let before = m.norm.filter(|norm| norm.norm_before_gate);
        let after = m.norm.filter(|norm| !norm.norm_before_gate);
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
        let conv = self.convolve(joined, d.conv_kernel, false, d.activation);
        let (q, k, v) = (self.slice(conv, 0, keys), self.slice(conv, keys, keys), self.slice(conv, 2 * keys, values));
        let (step, steps) = match d.decay {
            Decay::PerHead => (self.matmul(x, "mixer.step", d.value_heads, false, None), d.value_heads),
            Decay::PerKeyChannel { rank } => {
                let low = self.matmul(x, "mixer.step_down", rank, false, None);
                (self.matmul(low, "mixer.step", keys, false, None), keys)
            }
        };
        let bias = self.weight("mixer.step_bias", vec![steps], WeightKind::Vector);
        let step = self.time_step(step, Some(bias), (0.0, f32::INFINITY));
        let rate = self.weight("mixer.rate", vec![d.value_heads], WeightKind::Vector);
        let beta = self.matmul(x, "mixer.strength", d.value_heads, false, None);
        let mut beta = self.activate(beta, Activation::Sigmoid, None);
        if d.beta_scale != 1.0 {
            beta = self.scale(beta, d.beta_scale, None);
        }
        let shape = RecurrenceShape {
            heads: d.value_heads,
            key_heads: d.key_heads,
            key_dim: d.key_dim,
            value_dim: d.value_dim,
            query_scale: 1.0 / (d.key_dim as f32).sqrt(),
            qk_l2_norm: true,
            scale_values_by_dt: false,
        };
        let y = self.recur(q, k, v, StateDecay::Learned { step, rate }, Some(beta), None, shape);
        let y = self.norm(y, "mixer.norm", d.norm, d.value_dim, [None; 3]);
        let low = d.gate_rank.map_or(x, |rank| self.matmul(x, "mixer.gate_down", rank, false, None));
        let gate = self.matmul(low, "mixer.gate", values, false, Some(Point::MixerGate));
        let y = self.gate(gate, y, d.gate_activation, None);
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
            qk_l2_norm: false,
            scale_values_by_dt: false,
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
        let conv = self.convolve(gated, c.conv_kernel, c.bias, Activation::Identity);
        let y = self.gate(gate, conv, Activation::Identity, None);
        self.matmul(y, "mixer.out", width, c.bias, Some(Point::MixerOut))
    }

    fn lru(&mut self, width: usize, l: &Lru, x: EdgeId) -> EdgeId {
        let gate = self.matmul(x, "mixer.gate", l.inner_width, true, Some(Point::MixerGate));
        let channels = self.matmul(x, "mixer.in", l.inner_width, true, None);
        let conv = self.convolve(channels, l.conv_kernel, true, Activation::Identity);
        let block = l.inner_width / l.blocks;
        let [input_gate, recurrent_gate] = ["mixer.input_gate", "mixer.recurrent_gate"].map(|name| {
            let weight = self.weight(name, vec![l.blocks, block, block], WeightKind::Vector);
            let bias = Some(self.weight(&format!("{name}.bias"), vec![l.blocks, block], WeightKind::Vector));
            let out = self.edge(None, l.inner_width, Layout::Flat);
            self.op(OpKind::BlockMatMul { x: conv, linear: Linear { weight, bias }, blocks: l.blocks, out });
            out
        });
        let rate = self.weight("mixer.rate", vec![l.inner_width], WeightKind::Vector);
        let state = self.state_edge(l.inner_width, Layout::Flat);
        let y = self.edge(Some(Point::MixerScan), l.inner_width, Layout::Flat);
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

    fn convolve(&mut self, x: EdgeId, kernel_size: usize, bias: bool, activation: Activation) -> EdgeId {
        let channels = self.edges[x].width;
        let kernel = self.weight("mixer.conv", vec![channels, kernel_size], WeightKind::Vector);
        let bias = bias.then(|| self.weight("mixer.conv.bias", vec![channels], WeightKind::Vector));
        let out = self.edge(Some(Point::ConvOut), channels, Layout::Flat);
        self.op(OpKind::Convolve { x, kernel, bias, activation, out });
        out
    }

    /// Adds the edge of the recurrent state after each token. Taps can only observe it.
    fn state_edge(&mut self, width: usize, layout: Layout) -> EdgeId {
        let state = self.edge(Some(Point::MixerState), width, layout);
        self.edges[state].observe_only = true;
        state
    }

    fn time_step(&mut self, x: EdgeId, bias: Option<WeightId>, limits: (f32, f32)) -> EdgeId {
        let out = self.edge(None, self.edges[x].width, Layout::Flat);
        self.op(OpKind::TimeStep { x, bias, limits, out });
        out
    }

    #[allow(clippy::too_many_arguments)] // every argument differs between the callers
    fn recur(
        &mut self,
        q: EdgeId,
        k: EdgeId,
        v: EdgeId,
        decay: StateDecay,
        beta: Option<EdgeId>,
        skip: Option<WeightId>,
        shape: RecurrenceShape,
    ) -> EdgeId {
        let (heads, head_state) = (shape.heads, shape.key_dim * shape.value_dim);
        let state = self.state_edge(heads * head_state, Layout::Heads(heads));
        let out = self.edge(Some(Point::MixerScan), heads * shape.value_dim, Layout::Heads(heads));
        self.op(OpKind::Recur { q, k, v, decay, beta, skip, shape, state, out });
        out
    }
}
