//! Builds the ops of attention.

use super::Builder;
use crate::architecture::{Attention, AttentionExperts, DynamicMask, ExpertWeights, Latent, NormSpan, Routing, Scores};
use crate::point::Point;
use crate::program::WeightKind;
use crate::program::{EdgeId, Layout, OpKind};
use pellucid_kernels::attention::{AttentionShape, CausalMask};

/// Final q, k and v of attention.
struct Heads {
    q: EdgeId,
    k: EdgeId,
    v: EdgeId,
}

/// Edges of the selected attention experts: weights and indices.
type ExpertChoice = (EdgeId, EdgeId);

impl Builder {
    pub(super) fn attention(&mut self, width: usize, a: &Attention, x: EdgeId) -> EdgeId {
        let choice = a.experts.map(|experts| self.route_heads(experts, x));
        let Heads { mut q, mut k, mut v } = match a.latent {
            Some(latent) => self.latent_heads(a, latent, x),
            None => self.plain_heads(a, choice, x),
        };
        if let Some(scale) = a.position_scale {
            q = self.per_head(q, a.heads, |x, out| OpKind::ScaleByPosition { x, scale, out });
        }
        self.site(Point::RotQ, q);
        self.site(Point::RotK, k);
        let mut shape = AttentionShape {
            heads: a.heads,
            kv_heads: a.kv_heads,
            key_dim: a.head_dim,
            value_dim: a.value_dim,
            scale: a.scale,
            soft_cap: a.soft_cap,
            mask: CausalMask { window: a.window, chunk: a.chunk },
        };
        if let Some(mask) = a.dynamic_mask {
            (q, k) = self.with_key_bias(a, mask, q, k, v);
            shape.key_dim += 1;
        }
        if a.differential.is_some() {
            shape.value_dim *= 2;
            let out = self.edge(None, a.kv_heads * shape.value_dim, Layout::Heads(a.kv_heads));
            self.op(OpKind::PairValues { x: v, heads: a.kv_heads, out });
            v = out;
        }
        let sinks = a.sinks.then(|| self.weight("attn.sinks", vec![a.heads], WeightKind::Vector));
        let scores = self.edge(Some(Point::AttnScores), a.heads, Layout::QueryKey);
        let probs = self.edge(Some(Point::AttnProbs), a.heads, Layout::QueryKey);
        let mut z = self.edge(None, a.heads * shape.value_dim, Layout::Heads(a.heads));
        let max_keys = a.dynamic_mask.map(|mask| mask.max_keys);
        self.op(OpKind::Attention { q, k, v, shape, alibi: a.alibi.clone(), sinks, max_keys, scores, probs, out: z });
        if let Some(lambda_init) = a.differential {
            z = self.head_difference(a, lambda_init, z);
        } else if let Some(norm) = a.out_norm {
            z = self.norm(z, "attn.out_norm", norm, a.heads * a.value_dim, [None; 3]);
        }
        if let Some(gate) = a.gate {
            let units = if gate.per_head { a.heads } else { a.heads * a.value_dim };
            let raw = self.matmul(x, "attn.gate", units, gate.bias, Some(Point::AttnGate));
            self.edges[raw].layout = Layout::Heads(a.heads);
            z = self.gate(raw, z, gate.activation, None);
        }
        self.site(Point::Z, z);
        match choice {
            Some((weights, indices)) => {
                let count = a.experts.map_or(0, |experts| experts.count);
                let experts = (0..count)
                    .map(|e| {
                        let shape = vec![width, a.kv_heads * a.value_dim];
                        self.weight(&format!("attn.experts.{e}.out"), shape, WeightKind::Matrix)
                    })
                    .collect();
                let bias = self.weight("attn.out.bias", vec![width], WeightKind::Vector);
                let out = self.edge(Some(Point::AttnOut), width, Layout::Flat);
                self.op(OpKind::RoutedProject { z, weights, indices, experts, bias, heads: a.kv_heads, out });
                out
            }
            None => {
                let linear = self.linear("attn.out", width, a.heads * a.value_dim, a.out_bias);
                let head_out = self.edge(Some(Point::HeadOut), a.heads * width, Layout::Heads(a.heads));
                let out = self.edge(Some(Point::AttnOut), width, Layout::Flat);
                self.op(OpKind::Project { z, linear, heads: a.heads, head_out, out });
                out
            }
        }
    }

    /// Projects q, k and v from the sublayer's input, then clips, norms and rotates them.
    fn plain_heads(&mut self, a: &Attention, choice: Option<ExpertChoice>, x: EdgeId) -> Heads {
        let (q_width, k_width, v_width) = (a.heads * a.head_dim, a.kv_heads * a.head_dim, a.kv_heads * a.value_dim);
        let mut q = match choice {
            Some((_, indices)) => self.routed_queries(a, x, indices),
            None => self.heads(x, "attn.q", q_width, a.qkv_bias, Point::Q, a.heads),
        };
        let mut k = self.heads(x, "attn.k", k_width, a.qkv_bias && !a.no_key_bias, Point::K, a.kv_heads);
        let mut v = self.heads(x, "attn.v", v_width, a.qkv_bias, Point::Value, a.kv_heads);
        if a.adapter.is_some() {
            q = self.adapt(q, x, "attn.q", a.adapter);
            k = self.adapt(k, x, "attn.k", a.adapter);
            v = self.adapt(v, x, "attn.v", a.adapter);
            self.site(Point::Q, q);
            self.site(Point::K, k);
            self.site(Point::Value, v);
        }
        if let Some(by) = a.value_scale {
            v = self.scale(v, by, Some(Point::Value));
        }
        if !a.qk_norm_after_rope {
            (q, k) = self.qk_norm(a, q, k);
        }
        if let Some(by) = a.clip {
            q = self.per_head(q, a.heads, |x, out| OpKind::Clip { x, by, out });
            k = self.per_head(k, a.kv_heads, |x, out| OpKind::Clip { x, by, out });
            v = self.per_head(v, a.kv_heads, |x, out| OpKind::Clip { x, by, out });
            self.site(Point::Value, v);
        }
        if let Some(rope) = a.rope {
            q = self.rotate(q, rope, a.heads, 0);
            k = self.rotate(k, rope, a.kv_heads, 0);
        }
        if a.qk_norm_after_rope {
            (q, k) = self.qk_norm(a, q, k);
        }
        Heads { q, k, v }
    }

    fn qk_norm(&mut self, a: &Attention, q: EdgeId, k: EdgeId) -> (EdgeId, EdgeId) {
        let Some(norm) = a.qk_norm else { return (q, k) };
        let mut norm_one = |x: EdgeId, name: &str, heads: usize, point: Point| {
            let (group, gains) = match a.qk_norm_span {
                NormSpan::Head => (a.head_dim, vec![a.head_dim]),
                NormSpan::HeadGains => (a.head_dim, vec![heads, a.head_dim]),
                NormSpan::All => (heads * a.head_dim, vec![heads * a.head_dim]),
            };
            self.norm_with_gains(x, name, norm, group, &gains, [None, None, Some(point)])
        };
        (norm_one(q, "attn.q_norm", a.heads, Point::QNormOut), norm_one(k, "attn.k_norm", a.kv_heads, Point::KNormOut))
    }

    /// Up-projects q, k and v from low-rank vectors (MLA). All heads share the rotated part of k.
    fn latent_heads(&mut self, a: &Attention, latent: Latent, x: EdgeId) -> Heads {
        let nope_dim = a.head_dim - latent.rope_dim;
        let compressed = match latent.query_rank {
            Some(rank) => {
                let low = self.matmul(x, "attn.q_down", rank, latent.bias, None);
                let low = self.norm(low, "attn.q_down_norm", latent.norm, rank, [None; 3]);
                latent.query_scale.map_or(low, |by| self.scale(low, by, None))
            }
            None => x,
        };
        let mut q = self.heads(compressed, "attn.q", a.heads * a.head_dim, false, Point::Q, a.heads);
        let low = self.matmul(x, "attn.kv_down", latent.kv_rank, latent.bias, None);
        let low = self.norm(low, "attn.kv_down_norm", latent.norm, latent.kv_rank, [None; 3]);
        let low = latent.kv_scale.map_or(low, |by| self.scale(low, by, None));
        let mut k_rope = self.matmul(x, "attn.k_rotated", latent.rope_dim, latent.bias, None);
        let k = self.matmul(low, "attn.k", a.kv_heads * nope_dim, false, None);
        let v = self.matmul(low, "attn.v", a.kv_heads * a.value_dim, false, None);
        if let Some(rope) = a.rope {
            q = self.rotate(q, rope, a.heads, nope_dim);
            k_rope = self.rotate(k_rope, rope, 1, 0);
        }
        let joined = self.edge(None, a.kv_heads * a.head_dim, Layout::Heads(a.kv_heads));
        self.op(OpKind::JoinHeads { x: k, tail: k_rope, heads: a.kv_heads, out: joined });
        Heads { q, k: joined, v }
    }

    /// Adds a bias per key as one more channel: the bias in k, `1/scale` in q, so that the scaled
    /// dot product contains it.
    fn with_key_bias(&mut self, a: &Attention, mask: DynamicMask, q: EdgeId, k: EdgeId, v: EdgeId) -> (EdgeId, EdgeId) {
        let raw = self.matmul(v, "attn.mask", a.kv_heads, mask.bias, None);
        let rate = self.weight("attn.mask_rate", vec![a.kv_heads], WeightKind::Vector);
        let bias = self.edge(None, a.kv_heads, Layout::Flat);
        self.op(OpKind::KeyBias { x: raw, rate, out: bias });
        let wider = self.edge(None, a.heads * (a.head_dim + 1), Layout::Heads(a.heads));
        self.op(OpKind::JoinConstant { x: q, constant: 1.0 / a.scale, heads: a.heads, out: wider });
        let keys = self.edge(None, a.kv_heads * (a.head_dim + 1), Layout::Heads(a.kv_heads));
        self.op(OpKind::JoinHeads { x: k, tail: bias, heads: a.kv_heads, out: keys });
        (wider, keys)
    }

    /// Subtracts the second half of the heads from the first, then normalizes and scales.
    fn head_difference(&mut self, a: &Attention, lambda_init: f32, z: EdgeId) -> EdgeId {
        let weights = ["q1", "k1", "q2", "k2"]
            .map(|name| self.weight(&format!("attn.lambda_{name}"), vec![a.head_dim], WeightKind::Vector));
        // z [tokens, heads, 2 * value_dim] → out [tokens, heads / 2, 2 * value_dim]
        let pairs = a.heads / 2;
        let mut out = self.edge(None, a.heads * a.value_dim, Layout::Heads(pairs));
        self.op(OpKind::HeadDifference { x: z, weights, lambda_init, out });
        if let Some(norm) = a.out_norm {
            out = self.norm(out, "attn.out_norm", norm, 2 * a.value_dim, [None; 3]);
        }
        let out = self.scale(out, 1.0 - lambda_init, None);
        self.edges[out].layout = Layout::Heads(a.heads);
        out
    }

    /// Builds the router of attention experts.
    fn route_heads(&mut self, experts: AttentionExperts, x: EdgeId) -> ExpertChoice {
        let logits = self.matmul(x, "attn.router", experts.count, false, None);
        let (weights, indices) =
            (self.edge(None, experts.top_k, Layout::Flat), self.edge(None, experts.top_k, Layout::Flat));
        let routing = Routing::new(Scores::Raw, ExpertWeights::Softmax);
        self.op(OpKind::Route { logits, top_k: experts.top_k, routing, correction: None, weights, indices });
        (weights, indices)
    }

    fn routed_queries(&mut self, a: &Attention, x: EdgeId, indices: EdgeId) -> EdgeId {
        let (count, inputs) = (a.experts.map_or(0, |experts| experts.count), self.edges[x].width);
        let experts = (0..count)
            .map(|e| {
                let shape = vec![a.kv_heads * a.head_dim, inputs];
                self.weight(&format!("attn.experts.{e}.q"), shape, WeightKind::Matrix)
            })
            .collect();
        let out = self.edge(Some(Point::Q), a.heads * a.head_dim, Layout::Heads(a.heads));
        self.op(OpKind::RoutedMatMul { x, indices, experts, heads: a.kv_heads, out });
        out
    }

    fn heads(&mut self, x: EdgeId, name: &str, outputs: usize, bias: bool, point: Point, heads: usize) -> EdgeId {
        let out = self.matmul(x, name, outputs, bias, Some(point));
        self.edges[out].layout = Layout::Heads(heads);
        out
    }

    fn rotate(&mut self, x: EdgeId, rope: usize, heads: usize, from: usize) -> EdgeId {
        self.per_head(x, heads, |x, out| OpKind::Rotate { x, rope, heads, from, out })
    }

    fn per_head(&mut self, x: EdgeId, heads: usize, op: impl Fn(EdgeId, EdgeId) -> OpKind) -> EdgeId {
        let out = self.edge(None, self.edges[x].width, Layout::Heads(heads));
        self.op(op(x, out));
        out
    }
}
