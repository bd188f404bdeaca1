//! Builds the ops of MLPs and mixtures of experts.

use super::Builder;
use crate::architecture::{Activation, Dense, Experts, Mlp};
use crate::point::Point;
use crate::program::WeightKind;
use crate::program::{EdgeId, Expert, Layout, OpKind, Routed};

impl Builder {
    pub(super) fn mlp(&mut self, width: usize, mlp: &Mlp, x: EdgeId) -> EdgeId {
        match mlp {
            Mlp::Dense(dense) => self.dense(width, dense, "mlp", x, true),
            Mlp::Experts(experts) => self.experts(width, experts, x),
            Mlp::ChannelMix { width: neurons } => self.channel_mix(width, *neurons, x),
        }
    }

    /// Builds one MLP. `has_sites` is false for a shared expert, whose neurons are not sites.
    fn dense(&mut self, width: usize, dense: &Dense, name: &str, x: EdgeId, has_sites: bool) -> EdgeId {
        let point = |point: Point| has_sites.then_some(point);
        let part = |part: &str| format!("{name}.{part}");
        let argument = if dense.gated { "gate" } else { "up" };
        let mut pre = self.matmul(x, &part(argument), dense.width, dense.bias, None);
        pre = self.adapt(pre, x, &part(argument), dense.adapter);
        if let Some(by) = dense.gate_scale {
            pre = self.scale(pre, by, None);
        }
        if has_sites {
            self.site(Point::MlpPre, pre);
        }
        let mut act = if dense.gated {
            let linear = self.matmul(x, &part("up"), dense.width, dense.bias, None);
            let linear = self.adapt(linear, x, &part("up"), dense.adapter);
            if has_sites {
                self.site(Point::MlpPreLinear, linear);
            }
            self.gate(pre, linear, dense.activation, None)
        } else if dense.xielu {
            let [positive, negative] = ["positive", "negative"]
                .map(|sign| self.weight(&part(&format!("xielu_{sign}")), vec![1], WeightKind::Vector));
            let out = self.edge(None, dense.width, Layout::Flat);
            self.op(OpKind::Xielu { x: pre, positive, negative, out });
            out
        } else {
            self.activate(pre, dense.activation, None)
        };
        if let Some(norm) = dense.inner_norm {
            act = self.norm(act, &part("inner_norm"), norm, dense.width, [None; 3]);
        }
        if has_sites {
            self.site(Point::MlpAct, act);
        }
        let out = self.matmul(act, &part("down"), width, dense.down_bias, point(Point::MlpOut));
        dense.down_scale.map_or(out, |by| self.scale(out, by, point(Point::MlpOut)))
    }

    fn experts(&mut self, width: usize, spec: &Experts, x: EdgeId) -> EdgeId {
        let logits = self.matmul(x, "mlp.router", spec.count, spec.routing.bias, None);
        let logits = match spec.routing.soft_cap {
            Some(cap) => {
                let out = self.edge(None, spec.count, Layout::Flat);
                self.op(OpKind::SoftCap { x: logits, cap, out });
                out
            }
            None => logits,
        };
        self.site(Point::RouterLogits, logits);
        let weights = self.edge(Some(Point::ExpertWeights), spec.top_k, Layout::Flat);
        let indices = self.edge(Some(Point::ExpertIndices), spec.top_k, Layout::Flat);
        self.edges[indices].integer = true;
        let routed = Some(Routed { indices, slots: spec.top_k, experts: spec.count });
        (self.edges[weights].routed, self.edges[indices].routed) = (routed, routed);
        let correction =
            spec.routing.correction.then(|| self.weight("mlp.correction", vec![spec.count], WeightKind::Vector));
        let (top_k, routing) = (spec.top_k, spec.routing);
        self.op(OpKind::Route { logits, top_k, routing, correction, weights, indices });

        let read = spec.latent.map_or(x, |latent| self.matmul(x, "mlp.latent_in", latent.width, latent.bias, None));
        let inner = self.edges[read].width;
        let experts = (0..spec.count).map(|e| self.expert(inner, &spec.expert, e)).collect();
        // [tokens, slots, inner]
        let expert_out = self.edge(Some(Point::ExpertOut), spec.top_k * inner, Layout::Heads(spec.top_k));
        self.edges[expert_out].routed = routed;
        let mut out = self.edge(None, inner, Layout::Flat);
        let (activation, on_input) = (spec.expert.activation, spec.routing.on_input);
        self.op(OpKind::Experts { x: read, weights, indices, experts, activation, on_input, expert_out, out });
        if let Some(latent) = spec.latent {
            out = self.matmul(out, "mlp.latent_out", width, latent.bias, None);
        }
        if spec.sum_bias {
            let table = self.weight("mlp.sum_bias", vec![1, width], WeightKind::Table);
            let bias = self.edge(None, width, Layout::Flat);
            self.op(OpKind::Embed { table, row: crate::program::TableRow::Fixed(0), out: bias });
            out = self.add(out, bias, None);
        }
        if let Some(shared) = spec.shared {
            let mut shared_out = self.dense(width, &shared.mlp, "mlp.shared", x, false);
            if shared.gated {
                let gate = self.matmul(x, "mlp.shared_gate", 1, false, None);
                shared_out = self.gate(gate, shared_out, Activation::Sigmoid, None);
            }
            out = self.add(out, shared_out, None);
        }
        if let Some(by) = spec.scale {
            out = self.scale(out, by, None);
        }
        self.alias(Point::MlpOut, out)
    }

    fn expert(&mut self, width: usize, spec: &Dense, index: usize) -> Expert {
        let mut linear = |part: &str, outputs: usize, inputs: usize, bias: bool| {
            self.linear(&format!("mlp.experts.{index}.{part}"), outputs, inputs, bias)
        };
        Expert {
            gate: spec.gated.then(|| linear("gate", spec.width, width, spec.bias)),
            up: linear("up", spec.width, width, spec.bias),
            down: linear("down", width, spec.width, spec.down_bias),
        }
    }

    /// Builds RWKV's channel mixing: token-shifted input, squared ReLU, gated output.
    fn channel_mix(&mut self, width: usize, neurons: usize, x: EdgeId) -> EdgeId {
        let mixed = self.shift(x, "mlp.mix_up");
        let pre = self.matmul(mixed, "mlp.up", neurons, false, Some(Point::MlpPre));
        let act = self.activate(pre, Activation::ReluSquared, Some(Point::MlpAct));
        let value = self.matmul(act, "mlp.down", width, false, None);
        let mixed = self.shift(x, "mlp.mix_gate");
        let gate = self.matmul(mixed, "mlp.out_gate", width, false, None);
        self.gate(gate, value, Activation::Sigmoid, Some(Point::MlpOut))
    }

    pub(super) fn shift(&mut self, x: EdgeId, name: &str) -> EdgeId {
        let width = self.edges[x].width;
        let mix = self.weight(name, vec![width], WeightKind::Vector);
        let out = self.edge(None, width, Layout::Flat);
        self.op(OpKind::Shift { x, mix, out });
        out
    }
}
