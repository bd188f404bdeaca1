//! From an architecture to its ops: the one place that knows the order of a transformer.

use super::{Domain, Edge, EdgeId, Expert, Layout, Op, OpKind, Program};
use crate::architecture::{Architecture, Attention, Gain, Layer, Mlp, Norm};
use crate::error::{Error, Result};
use crate::point::Point;
use crate::site::Site;
use crate::weights::{WeightId, WeightKind, WeightSpec};
use pellucid_kernels::attention::AttentionShape;
use std::collections::BTreeMap;

/// The points of a norm: what it divides by, its value before the gain, its output.
type NormPoints = [Option<Point>; 3];

struct Builder {
    ops: Vec<Op>,
    edges: Vec<Edge>,
    weights: Vec<WeightSpec>,
    sites: BTreeMap<Site, EdgeId>,
    layer: Option<usize>,
    domain: Domain,
}

pub(super) fn build(architecture: Architecture) -> Result<Program> {
    check(&architecture)?;
    let mut b = Builder {
        ops: vec![],
        edges: vec![],
        weights: vec![],
        sites: BTreeMap::new(),
        layer: None,
        domain: Domain::All,
    };
    let table = b.weight(
        "embed",
        vec![architecture.vocab, architecture.embedding.table_width.unwrap_or(architecture.width)],
        WeightKind::Table,
    );
    let mut stream = b.embedding(&architecture, table);
    let mut layer_ops = Vec::new();
    for (index, layer) in architecture.layers.iter().enumerate() {
        let first = b.ops.len();
        b.layer = Some(index);
        stream = b.block(architecture.width, layer, stream);
        layer_ops.push(first..b.ops.len());
    }
    b.layer = None;
    b.head(&architecture, table, stream);

    let mut last_use: Vec<usize> = b.edges.iter().map(|edge| edge.made_by).collect();
    for (index, op) in b.ops.iter().enumerate() {
        op.kind.inputs().into_iter().for_each(|edge| last_use[edge] = index);
    }
    let mut dies_at = vec![Vec::new(); b.ops.len()];
    last_use.iter().enumerate().for_each(|(edge, &op)| dies_at[op].push(edge));
    Ok(Program {
        architecture,
        ops: b.ops,
        edges: b.edges,
        weights: b.weights,
        sites: b.sites,
        last_use,
        dies_at,
        layer_ops,
    })
}

/// Refuses numbers that contradict each other before anything is sized by them.
fn check(architecture: &Architecture) -> Result<()> {
    let fail = |problem: String| Err(Error::Architecture { problem });
    if architecture.vocab == 0 || architecture.width == 0 {
        return fail(format!("a vocabulary of {} and a width of {}", architecture.vocab, architecture.width));
    }
    if let Some(positions) = &architecture.embedding.positions
        && architecture.context.is_none_or(|context| context.saturating_add(positions.offset) > positions.rows)
    {
        return fail(format!(
            "a context of {:?} positions over a table of {} rows",
            architecture.context, positions.rows
        ));
    }
    if architecture.head.tied && architecture.head.table_width != architecture.embedding.table_width {
        return fail("a tied head of another width than the embedding".into());
    }
    for (index, layer) in architecture.layers.iter().enumerate() {
        let a = &layer.attention;
        if a.heads == 0 || a.kv_heads == 0 || a.heads % a.kv_heads != 0 || a.head_dim == 0 || a.value_dim == 0 {
            return fail(format!(
                "layer {index} has {} heads of width {} over {} key heads",
                a.heads, a.head_dim, a.kv_heads
            ));
        }
        if let Some(rope) = a.rope {
            match architecture.ropes.get(rope) {
                Some(rope) if rope.frequencies.len() * 2 <= a.head_dim => {}
                _ => {
                    return fail(format!(
                        "layer {index} rotates more coordinates than its heads of {} have",
                        a.head_dim
                    ));
                }
            }
        }
        if a.window == Some(0) || a.alibi.as_ref().is_some_and(|slopes| slopes.len() != a.heads) {
            return fail(format!("layer {index} has an empty window or slopes for another number of heads"));
        }
        if let Mlp::Experts { experts, chosen, .. } = layer.mlp
            && (chosen == 0 || chosen > experts)
        {
            return fail(format!("layer {index} chooses {chosen} of {experts} experts"));
        }
    }
    Ok(())
}

impl Builder {
    fn embedding(&mut self, architecture: &Architecture, table: WeightId) -> EdgeId {
        let spec = &architecture.embedding;
        let embed = self.edge(Some(Point::Embed), spec.table_width.unwrap_or(architecture.width), Layout::Flat);
        self.op(OpKind::Embed { table, out: embed });
        let mut stream = embed;
        if let Some(by) = spec.scale {
            stream = self.scale(stream, by, None);
        }
        if let Some(width) = spec.table_width {
            stream = self.matmul(stream, "embed.project", architecture.width, width, false, None);
        }
        if let Some(positions) = &spec.positions {
            let table = self.weight("pos_embed", vec![positions.rows, architecture.width], WeightKind::Table);
            let rows = self.edge(Some(Point::PosEmbed), architecture.width, Layout::Flat);
            self.op(OpKind::Positions { table, offset: positions.offset, out: rows });
            stream = self.add(stream, rows, None);
        }
        if let Some(norm) = spec.norm {
            stream = self.norm(stream, "embed.norm", norm, architecture.width, [None; 3]);
        }
        stream
    }

    fn block(&mut self, width: usize, layer: &Layer, resid_pre: EdgeId) -> EdgeId {
        self.site(Point::ResidPre, resid_pre);
        let attn_in = match layer.attn_norm {
            Some(norm) => self.norm(
                resid_pre,
                "attn.norm",
                norm,
                width,
                [Some(Point::AttnScale), Some(Point::AttnNormed), Some(Point::AttnIn)],
            ),
            None => self.alias(Point::AttnIn, resid_pre),
        };
        let attn_out = self.attention(width, &layer.attention, attn_in);
        let attn_post = self.contribution(
            width,
            attn_out,
            "attn.post_norm",
            layer.attn_post_norm,
            layer.residual_scale,
            Point::AttnOutPost,
        );

        let resid_mid = if layer.parallel {
            None
        } else {
            let mid = self.add_then_norm(
                width,
                resid_pre,
                attn_post,
                "attn.stream_norm",
                layer.attn_stream_norm,
                Point::ResidMid,
            );
            Some(mid)
        };
        let mlp_points = [Some(Point::MlpScale), Some(Point::MlpNormed), Some(Point::MlpIn)];
        let mlp_in = match (layer.mlp_norm, resid_mid) {
            (Some(norm), mid) => self.norm(mid.unwrap_or(resid_pre), "mlp.norm", norm, width, mlp_points),
            (None, Some(mid)) => self.alias(Point::MlpIn, mid),
            // A parallel block without a second norm hands both sublayers the same thing.
            (None, None) => self.alias(Point::MlpIn, attn_in),
        };
        let mlp_out = self.mlp(width, &layer.mlp, mlp_in);
        let mlp_post = self.contribution(
            width,
            mlp_out,
            "mlp.post_norm",
            layer.mlp_post_norm,
            layer.residual_scale,
            Point::MlpOutPost,
        );
        let before = resid_mid.unwrap_or_else(|| self.add(resid_pre, attn_post, None));
        self.add_then_norm(width, before, mlp_post, "mlp.stream_norm", layer.mlp_stream_norm, Point::ResidPost)
    }

    /// What a sublayer adds to the stream: its output after any norm and multiplier, the same edge where there is neither.
    fn contribution(
        &mut self,
        width: usize,
        out: EdgeId,
        name: &str,
        norm: Option<Norm>,
        by: Option<f32>,
        point: Point,
    ) -> EdgeId {
        let mut edge = out;
        if let Some(norm) = norm {
            edge = self.norm(edge, name, norm, width, [None; 3]);
        }
        if let Some(by) = by {
            edge = self.scale(edge, by, None);
        }
        self.alias(point, edge)
    }

    fn add_then_norm(
        &mut self,
        width: usize,
        a: EdgeId,
        b: EdgeId,
        name: &str,
        norm: Option<Norm>,
        point: Point,
    ) -> EdgeId {
        let sum = self.add(a, b, None);
        let edge = norm.map_or(sum, |norm| self.norm(sum, name, norm, width, [None; 3]));
        self.alias(point, edge)
    }

    fn attention(&mut self, width: usize, a: &Attention, x: EdgeId) -> EdgeId {
        let (q_width, k_width, v_width) = (a.heads * a.head_dim, a.kv_heads * a.head_dim, a.kv_heads * a.value_dim);
        let mut q = self.matmul_heads(x, "attn.q", q_width, width, a.qkv_bias, Point::Q, a.heads);
        let mut k = self.matmul_heads(x, "attn.k", k_width, width, a.qkv_bias, Point::K, a.kv_heads);
        let v = self.matmul_heads(x, "attn.v", v_width, width, a.qkv_bias, Point::Value, a.kv_heads);
        if let Some(norm) = a.qk_norm {
            let group = |width: usize| if a.qk_norm_flat { width } else { a.head_dim };
            q = self.norm(q, "attn.q_norm", norm, group(q_width), [None, None, Some(Point::QNormOut)]);
            k = self.norm(k, "attn.k_norm", norm, group(k_width), [None, None, Some(Point::KNormOut)]);
        }
        let (q, k) = match a.rope {
            Some(rope) => (self.rotate(q, rope, a.heads, Point::RotQ), self.rotate(k, rope, a.kv_heads, Point::RotK)),
            None => (self.alias(Point::RotQ, q), self.alias(Point::RotK, k)),
        };
        let shape = AttentionShape {
            heads: a.heads,
            kv_heads: a.kv_heads,
            key_dim: a.head_dim,
            value_dim: a.value_dim,
            scale: a.scale,
            soft_cap: a.soft_cap,
            window: a.window,
        };
        let scores = self.edge(Some(Point::AttnScores), a.heads, Layout::QueryKey);
        let probs = self.edge(Some(Point::AttnProbs), a.heads, Layout::QueryKey);
        let z = self.edge(Some(Point::Z), a.heads * a.value_dim, Layout::Heads(a.heads));
        self.op(OpKind::Attention { q, k, v, shape, slopes: a.alibi.clone(), scores, probs, out: z });

        let weight = self.weight("attn.out", vec![width, a.heads * a.value_dim], WeightKind::Matrix);
        let bias = a.out_bias.then(|| self.weight("attn.out.bias", vec![width], WeightKind::Vector));
        let head_out = self.edge(Some(Point::HeadOut), a.heads * width, Layout::Heads(a.heads));
        let out = self.edge(Some(Point::AttnOut), width, Layout::Flat);
        self.op(OpKind::Project { z, weight, bias, heads: a.heads, head_out, out });
        out
    }

    fn mlp(&mut self, width: usize, mlp: &Mlp, x: EdgeId) -> EdgeId {
        match *mlp {
            Mlp::Plain { width: neurons, activation, bias } => {
                let pre = self.matmul(x, "mlp.up", neurons, width, bias, Some(Point::MlpPre));
                let act = self.edge(Some(Point::MlpAct), neurons, Layout::Flat);
                self.op(OpKind::Activate { x: pre, activation, out: act });
                self.matmul(act, "mlp.down", width, neurons, bias, Some(Point::MlpOut))
            }
            Mlp::Gated { width: neurons, activation, bias } => {
                let gate = self.matmul(x, "mlp.gate", neurons, width, bias, Some(Point::MlpPre));
                let linear = self.matmul(x, "mlp.up", neurons, width, bias, Some(Point::MlpPreLinear));
                let act = self.edge(Some(Point::MlpAct), neurons, Layout::Flat);
                self.op(OpKind::Gate { gate, linear, activation, out: act });
                self.matmul(act, "mlp.down", width, neurons, bias, Some(Point::MlpOut))
            }
            Mlp::Experts { experts, chosen, width: neurons, activation, routing } => {
                let logits = self.matmul(x, "mlp.router", experts, width, false, Some(Point::RouterLogits));
                let weights = self.edge(Some(Point::ExpertWeights), chosen, Layout::Flat);
                let indices = self.edge(Some(Point::ExpertIndices), chosen, Layout::Flat);
                self.edges[indices].integer = true;
                self.op(OpKind::Route { logits, chosen, routing, weights, indices });
                let experts = (0..experts)
                    .map(|e| Expert {
                        gate: self.weight(&format!("mlp.experts.{e}.gate"), vec![neurons, width], WeightKind::Matrix),
                        up: self.weight(&format!("mlp.experts.{e}.up"), vec![neurons, width], WeightKind::Matrix),
                        down: self.weight(&format!("mlp.experts.{e}.down"), vec![width, neurons], WeightKind::Matrix),
                    })
                    .collect();
                let out = self.edge(Some(Point::MlpOut), width, Layout::Flat);
                self.op(OpKind::Experts { x, weights, indices, experts, activation, out });
                out
            }
        }
    }

    fn head(&mut self, architecture: &Architecture, table: WeightId, stream: EdgeId) {
        self.domain = Domain::Read;
        let selected = self.edge(None, architecture.width, Layout::Flat);
        self.op(OpKind::Select { x: stream, out: selected });
        let mut x = selected;
        if let Some(norm) = architecture.final_norm {
            x = self.norm(
                x,
                "final_norm",
                norm,
                architecture.width,
                [Some(Point::FinalScale), Some(Point::FinalNormed), Some(Point::FinalNorm)],
            );
        }
        let head = &architecture.head;
        let width = head.table_width.unwrap_or(architecture.width);
        if head.table_width.is_some() {
            x = self.matmul(x, "head.project", width, architecture.width, false, None);
        }
        let weight =
            if head.tied { table } else { self.weight("head", vec![architecture.vocab, width], WeightKind::Matrix) };
        let bias = head.bias.then(|| self.weight("head.bias", vec![architecture.vocab], WeightKind::Vector));
        let mut logits = self.edge(Some(Point::LmHead), architecture.vocab, Layout::Flat);
        self.op(OpKind::MatMul { x, weight, bias, out: logits });
        if let Some(by) = head.scale {
            logits = self.scale(logits, by, None);
        }
        if let Some(cap) = head.soft_cap {
            let out = self.edge(None, architecture.vocab, Layout::Flat);
            self.op(OpKind::SoftCap { x: logits, cap, out });
            logits = out;
        }
        self.alias(Point::Logits, logits);
    }

    // The small pieces.

    fn op(&mut self, kind: OpKind) {
        self.ops.push(Op { kind, layer: self.layer });
    }

    /// A new edge, made by the next op.
    fn edge(&mut self, point: Option<Point>, width: usize, layout: Layout) -> EdgeId {
        let id = self.edges.len();
        self.edges.push(Edge { width, layout, domain: self.domain, integer: false, made_by: self.ops.len() });
        if let Some(point) = point {
            self.site(point, id);
        }
        id
    }

    fn site(&mut self, point: Point, edge: EdgeId) {
        self.sites.insert(Site { layer: self.layer, point }, edge);
    }

    fn alias(&mut self, point: Point, edge: EdgeId) -> EdgeId {
        self.site(point, edge);
        edge
    }

    fn weight(&mut self, name: &str, shape: Vec<usize>, kind: WeightKind) -> WeightId {
        let name = self.layer.map_or_else(|| name.to_string(), |layer| format!("layers.{layer}.{name}"));
        self.weights.push(WeightSpec { name, shape, kind });
        self.weights.len() - 1
    }

    fn matmul(
        &mut self,
        x: EdgeId,
        name: &str,
        outputs: usize,
        inputs: usize,
        bias: bool,
        point: Option<Point>,
    ) -> EdgeId {
        let weight = self.weight(name, vec![outputs, inputs], WeightKind::Matrix);
        let bias = bias.then(|| self.weight(&format!("{name}.bias"), vec![outputs], WeightKind::Vector));
        let out = self.edge(point, outputs, Layout::Flat);
        self.op(OpKind::MatMul { x, weight, bias, out });
        out
    }

    #[allow(clippy::too_many_arguments)] // a product's name, shape, bias and place: each differs at every call
    fn matmul_heads(
        &mut self,
        x: EdgeId,
        name: &str,
        outputs: usize,
        inputs: usize,
        bias: bool,
        point: Point,
        heads: usize,
    ) -> EdgeId {
        let out = self.matmul(x, name, outputs, inputs, bias, Some(point));
        self.edges[out].layout = Layout::Heads(heads);
        out
    }

    fn norm(&mut self, x: EdgeId, name: &str, norm: Norm, group: usize, points: NormPoints) -> EdgeId {
        let (width, layout) = (self.edges[x].width, self.edges[x].layout);
        let gain =
            (norm.gain != Gain::None).then(|| self.weight(&format!("{name}.gain"), vec![group], WeightKind::Vector));
        let bias = norm.bias.then(|| self.weight(&format!("{name}.bias"), vec![group], WeightKind::Vector));
        let scale = self.edge(points[0], width / group, Layout::Flat);
        let normed = self.edge(points[1], width, layout);
        let out = self.edge(points[2], width, layout);
        self.op(OpKind::Norm { x, norm, gain, bias, group, scale, normed, out });
        out
    }

    fn add(&mut self, a: EdgeId, b: EdgeId, point: Option<Point>) -> EdgeId {
        let out = self.edge(point, self.edges[a].width, Layout::Flat);
        self.op(OpKind::Add { a, b, out });
        out
    }

    fn scale(&mut self, x: EdgeId, by: f32, point: Option<Point>) -> EdgeId {
        let out = self.edge(point, self.edges[x].width, Layout::Flat);
        self.op(OpKind::Scale { x, by, out });
        out
    }

    fn rotate(&mut self, x: EdgeId, rope: usize, heads: usize, point: Point) -> EdgeId {
        let out = self.edge(Some(point), self.edges[x].width, Layout::Heads(heads));
        self.op(OpKind::Rotate { x, rope, heads, out });
        out
    }
}
