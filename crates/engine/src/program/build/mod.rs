//! From an architecture to its ops: the one place that knows the order of a transformer.

mod attention;
mod check;
mod mlp;
mod network;
mod recurrence;

pub use network::{Network, Node};

use super::{Domain, Edge, EdgeId, Layout, Linear, Op, OpKind, Program, RowOf};
use crate::architecture::{AbsolutePositions, Activation, Architecture, Gain, Layer, Mlp, Norm, SharedBlock, Skip};
use crate::error::Result;
use crate::ids::IdVec;
use crate::point::Point;
use crate::point::Site;
use crate::program::{WeightId, WeightKind, WeightSpec};
use std::collections::BTreeMap;

/// The points of a norm: what it divides by, its value before the gain, its output.
type NormPoints = [Option<Point>; 3];

#[derive(Default)]
struct Builder {
    ops: Vec<Op>,
    edges: IdVec<EdgeId, Edge>,
    weights: IdVec<WeightId, WeightSpec>,
    sites: BTreeMap<Site, EdgeId>,
    layer: Option<usize>,
    /// The shared block that is being written and the adapter that the layer uses in it.
    shared: Option<(usize, usize)>,
    /// The stream before the first layer.
    embedded: Option<EdgeId>,
    domain: Domain,
}

pub(super) fn build(architecture: Architecture) -> Result<Program> {
    check::check(&architecture)?;
    let mut b = Builder::default();
    let table = b.weight(
        "embed",
        vec![architecture.vocab, architecture.embedding.table_width.unwrap_or(architecture.width)],
        WeightKind::Table,
    );
    let mut stream = b.embedding(&architecture, table);
    b.embedded = Some(stream);
    let mut layer_ops = Vec::new();
    for (index, layer) in architecture.layers.iter().enumerate() {
        let first = b.ops.len();
        b.layer = Some(index);
        stream = b.block(layer, stream, index + 1 == architecture.layers.len());
        layer_ops.push(first..b.ops.len());
    }
    b.layer = None;
    b.head(&architecture, table, stream);
    Ok(finish(b, architecture, layer_ops))
}

/// The program of what was built.
fn finish(b: Builder, architecture: Architecture, layer_ops: Vec<std::ops::Range<usize>>) -> Program {
    let mut last_use: IdVec<EdgeId, usize> = b.edges.iter().map(|edge| edge.made_by).collect();
    for (index, op) in b.ops.iter().enumerate() {
        op.kind.inputs().into_iter().for_each(|edge| last_use[edge] = index);
    }
    let mut dies_at = vec![Vec::new(); b.ops.len()];
    last_use.iter_with_ids().for_each(|(edge, &op)| dies_at[op].push(edge));
    Program {
        architecture,
        ops: b.ops,
        edges: b.edges,
        weights: b.weights,
        sites: b.sites,
        last_use,
        dies_at,
        layer_ops,
    }
}

impl Builder {
    fn embedding(&mut self, architecture: &Architecture, table: WeightId) -> EdgeId {
        let spec = &architecture.embedding;
        let table_width = spec.table_width.unwrap_or(architecture.width);
        let embed = self.edge(Some(Point::Embed), table_width, Layout::Flat);
        self.op(OpKind::Lookup { table, row: RowOf::Token, out: embed });
        let mut stream = embed;
        if let Some(by) = spec.scale {
            stream = self.scale(stream, by, None);
        }
        if spec.table_width.is_some() && !spec.projected_last {
            stream = self.matmul(stream, "embed.project", architecture.width, false, None);
        }
        let width = self.edges[stream].width;
        if let Some(positions) = &spec.positions {
            let rows = match positions {
                AbsolutePositions::Learned { rows, offset } => {
                    let table = self.weight("pos_embed", vec![*rows, width], WeightKind::Table);
                    let out = self.edge(Some(Point::PosEmbed), width, Layout::Flat);
                    self.op(OpKind::Lookup { table, row: RowOf::Position(*offset), out });
                    out
                }
                AbsolutePositions::Sinusoidal { frequencies, offset } => {
                    let out = self.edge(Some(Point::PosEmbed), width, Layout::Flat);
                    self.op(OpKind::Sinusoids { frequencies: frequencies.clone(), offset: *offset, out });
                    out
                }
            };
            stream = self.add(stream, rows, None);
        }
        if let Some(rows) = spec.segments {
            let table = self.weight("segment_embed", vec![rows, width], WeightKind::Table);
            let out = self.edge(None, width, Layout::Flat);
            self.op(OpKind::Lookup { table, row: RowOf::Fixed(0), out });
            stream = self.add(stream, out, None);
        }
        if let Some(norm) = spec.norm {
            stream = self.norm(stream, "embed.norm", norm, width, [None; 3]);
        }
        if spec.table_width.is_some() && spec.projected_last {
            stream = self.matmul(stream, "embed.project", architecture.width, true, None);
        }
        stream
    }

    fn block(&mut self, layer: &Layer, resid_pre: EdgeId, last: bool) -> EdgeId {
        self.site(Point::ResidPre, resid_pre);
        let width = self.edges[resid_pre].width;
        // A layer with nothing but an MLP has no first sublayer.
        let (middle, attn_in) = if layer.attention.is_some() || layer.recurrence.is_some() {
            self.mixing(layer, width, resid_pre)
        } else {
            (resid_pre, resid_pre)
        };
        let Some(mlp) = &layer.mlp else { return self.leave(layer, middle) };
        // After the last attention tokens do not meet any more, so the last MLP is computed where somebody reads on.
        let alone = !matches!(mlp, Mlp::ChannelMix { .. });
        let middle = if last && alone && !layer.parallel { self.select(Domain::Late, middle) } else { middle };
        let mlp_points = [Some(Point::MlpScale), Some(Point::MlpNormed), Some(Point::MlpIn)];
        let read = if layer.parallel { resid_pre } else { middle };
        let mlp_in = match layer.mlp_norm {
            Some(norm) => self.norm(read, "mlp.norm", norm, width, mlp_points),
            // A parallel block without a second norm hands both sublayers the same thing.
            None => self.alias(Point::MlpIn, if layer.parallel { attn_in } else { middle }),
        };
        let out = self.mlp(width, mlp, mlp_in);
        let post =
            self.contribution(out, "mlp.post_norm", layer.mlp_post_norm, layer.mlp_multiplier, Point::MlpOutPost);
        let skip = self.skipped(layer, middle, mlp_in, "mlp.skip", |(_, mlp)| mlp);
        let sum = self.add(skip, post, None);
        let sum = layer.mlp_stream_norm.map_or(sum, |norm| self.norm(sum, "mlp.stream_norm", norm, width, [None; 3]));
        self.leave(layer, sum)
    }

    /// The first sublayer: attention, a recurrence or both. Gives the stream after it and what it was handed.
    fn mixing(&mut self, layer: &Layer, width: usize, resid_pre: EdgeId) -> (EdgeId, EdgeId) {
        let points = [Some(Point::AttnScale), Some(Point::AttnNormed), None];
        let read = layer.shared.as_ref().map_or(resid_pre, |shared| self.shared_block(width, shared, resid_pre));
        let handed = layer.attn_norm.map_or(read, |norm| self.norm(read, "attn.norm", norm, width, points));
        let mut added = Vec::new();
        if let Some(recurrence) = &layer.recurrence {
            self.site(Point::MixerIn, handed);
            let out = self.recurrence(width, recurrence, handed);
            let (norm, by) = (layer.attn_post_norm, layer.mixer_multiplier);
            added.push(self.contribution(out, "attn.post_norm", norm, by, Point::MixerOutPost));
        }
        if let Some(attention) = &layer.attention {
            let scaled = layer.attn_in_scale.map_or(handed, |by| self.scale(handed, by, None));
            let attn_in = self.alias(Point::AttnIn, scaled);
            let out = self.attention(width, attention, attn_in);
            let (norm, by) = (layer.attn_post_norm, layer.attn_multiplier);
            added.push(self.contribution(out, "attn.post_norm", norm, by, Point::AttnOutPost));
        }
        let mut stream = self.skipped(layer, resid_pre, handed, "attn.skip", |(attn, _)| attn);
        for contribution in added {
            stream = self.add(stream, contribution, None);
        }
        if let Some(norm) = layer.attn_stream_norm {
            stream = self.norm(stream, "attn.stream_norm", norm, width, [None; 3]);
        }
        // Nothing lies between the sublayers of a parallel block, nor behind the only one.
        if !layer.parallel && layer.mlp.is_some() {
            self.site(Point::ResidMid, stream);
        }
        (stream, handed)
    }

    /// The stream with what a shared block makes of it beside the embeddings.
    fn shared_block(&mut self, width: usize, shared: &SharedBlock, resid_pre: EdgeId) -> EdgeId {
        self.shared = Some((shared.block, shared.adapter));
        let embedded = self.embedded.expect("the embedding comes before every layer");
        let joined = self.concat(&[resid_pre, embedded], None);
        let both = self.edges[joined].width;
        let attn_in = self.norm(joined, "attn.norm", shared.norm, both, [None, None, Some(Point::AttnIn)]);
        let out = self.attention(width, &shared.attention, attn_in);
        let points = [Some(Point::MlpScale), Some(Point::MlpNormed), Some(Point::MlpIn)];
        let mlp_in = self.norm(out, "mlp.norm", shared.mlp_norm, width, points);
        let out = self.mlp(width, &Mlp::Dense(shared.mlp), mlp_in);
        self.shared = None;
        let out = self.matmul(out, "shared_out", width, false, None);
        self.add(resid_pre, out, None)
    }

    /// What a sublayer's output is added to.
    fn skipped(
        &mut self,
        layer: &Layer,
        stream: EdgeId,
        normed: EdgeId,
        gain: &str,
        own: impl Fn((f32, f32)) -> f32,
    ) -> EdgeId {
        match layer.skip {
            Skip::Stream => stream,
            Skip::Normed { attn, mlp } => match own((attn, mlp)) {
                1.0 => normed,
                by => self.scale(normed, by, None),
            },
            Skip::Gained => {
                let width = self.edges[stream].width;
                let gain = self.weight(gain, vec![width], WeightKind::Vector);
                let out = self.edge(None, width, Layout::Flat);
                self.op(OpKind::Gain { x: stream, gain, out });
                out
            }
        }
    }

    /// The stream as it leaves a layer.
    fn leave(&mut self, layer: &Layer, stream: EdgeId) -> EdgeId {
        let stream = layer.out_scale.map_or(stream, |by| self.scale(stream, by, None));
        self.alias(Point::ResidPost, stream)
    }

    /// What a sublayer adds to the stream: its output after any norm and multiplier, the same edge where there is neither.
    fn contribution(&mut self, out: EdgeId, name: &str, norm: Option<Norm>, by: Option<f32>, point: Point) -> EdgeId {
        let width = self.edges[out].width;
        let mut edge = out;
        if let Some(norm) = norm {
            edge = self.norm(edge, name, norm, width, [None; 3]);
        }
        if let Some(by) = by {
            edge = self.scale(edge, by, None);
        }
        self.alias(point, edge)
    }

    fn head(&mut self, architecture: &Architecture, table: WeightId, stream: EdgeId) {
        let mut x = self.select(Domain::Read, stream);
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
        if let Some(transform) = head.transform {
            x = self.matmul(x, "head.transform", width, transform.bias, None);
            x = self.activate(x, transform.activation, None);
            x = self.norm(x, "head.norm", transform.norm, width, [None; 3]);
        } else if head.table_width.is_some() {
            x = self.matmul(x, "head.project", width, false, None);
        }
        let weight =
            if head.tied { table } else { self.weight("head", vec![architecture.vocab, width], WeightKind::Matrix) };
        let bias = head.bias.then(|| self.weight("head.bias", vec![architecture.vocab], WeightKind::Vector));
        let mut logits = self.edge(Some(Point::LmHead), architecture.vocab, Layout::Flat);
        self.op(OpKind::MatMul { x, linear: Linear { weight, bias }, out: logits });
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

    /// From here on only the tokens of a domain.
    fn select(&mut self, domain: Domain, x: EdgeId) -> EdgeId {
        self.domain = domain;
        let out = self.edge(None, self.edges[x].width, Layout::Flat);
        self.op(OpKind::Select { x, out });
        out
    }

    fn op(&mut self, kind: OpKind) {
        self.ops.push(Op { kind, layer: self.layer });
    }

    /// A new edge, made by the next op.
    fn edge(&mut self, point: Option<Point>, width: usize, layout: Layout) -> EdgeId {
        let id = self.edges.push(Edge {
            width,
            layout,
            domain: self.domain,
            integer: false,
            aside: false,
            made_by: self.ops.len(),
        });
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
        let name = match (self.shared, self.layer) {
            (Some((block, _)), _) => format!("shared.{block}.{name}"),
            (None, Some(layer)) => format!("layers.{layer}.{name}"),
            (None, None) => name.to_string(),
        };
        // Layers that share a block share its weights.
        if let Some(known) = self.shared.and_then(|_| self.weights.ids().find(|&id| self.weights[id].name == name)) {
            return known;
        }
        self.weights.push(WeightSpec { name, shape, kind })
    }

    /// A projection by its name: its matrix and, if it has one, its bias.
    fn linear(&mut self, name: &str, outputs: usize, inputs: usize, bias: bool) -> Linear {
        let weight = self.weight(name, vec![outputs, inputs], WeightKind::Matrix);
        let bias = bias.then(|| self.weight(&format!("{name}.bias"), vec![outputs], WeightKind::Vector));
        Linear { weight, bias }
    }

    fn matmul(&mut self, x: EdgeId, name: &str, outputs: usize, bias: bool, point: Option<Point>) -> EdgeId {
        let linear = self.linear(name, outputs, self.edges[x].width, bias);
        let out = self.edge(point, outputs, Layout::Flat);
        self.op(OpKind::MatMul { x, linear, out });
        out
    }

    /// Adds a second projection of `x` through `rank` to a first one, by the adapter that the layer uses.
    fn adapt(&mut self, first: EdgeId, x: EdgeId, name: &str, rank: Option<usize>) -> EdgeId {
        let (Some(rank), Some((_, adapter))) = (rank, self.shared) else { return first };
        let low = self.matmul(x, &format!("{name}.adapters.{adapter}.down"), rank, false, None);
        let second = self.matmul(low, &format!("{name}.adapters.{adapter}.up"), self.edges[first].width, false, None);
        let layout = self.edges[first].layout;
        let out = self.add(first, second, None);
        self.edges[out].layout = layout;
        out
    }

    /// A norm of groups of `group` values, with one gain for all groups.
    fn norm(&mut self, x: EdgeId, name: &str, norm: Norm, group: usize, points: NormPoints) -> EdgeId {
        self.norm_with_gains(x, name, norm, group, &[group], points)
    }

    /// A norm of groups of `group` values, with learned gains of a shape.
    fn norm_with_gains(
        &mut self,
        x: EdgeId,
        name: &str,
        norm: Norm,
        group: usize,
        gains: &[usize],
        points: NormPoints,
    ) -> EdgeId {
        let (width, layout) = (self.edges[x].width, self.edges[x].layout);
        let gain =
            (norm.gain != Gain::None).then(|| self.weight(&format!("{name}.gain"), gains.to_vec(), WeightKind::Vector));
        let bias = norm.bias.then(|| self.weight(&format!("{name}.bias"), gains.to_vec(), WeightKind::Vector));
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
        let out = self.edge(point, self.edges[x].width, self.edges[x].layout);
        self.op(OpKind::Scale { x, by, out });
        out
    }

    fn gate(&mut self, gate: EdgeId, linear: EdgeId, activation: Activation, point: Option<Point>) -> EdgeId {
        let out = self.edge(point, self.edges[linear].width, self.edges[linear].layout);
        self.op(OpKind::Gate { gate, linear, activation, out });
        out
    }

    fn activate(&mut self, x: EdgeId, activation: Activation, point: Option<Point>) -> EdgeId {
        let out = self.edge(point, self.edges[x].width, self.edges[x].layout);
        self.op(OpKind::Activate { x, activation, out });
        out
    }

    fn slice(&mut self, x: EdgeId, from: usize, width: usize) -> EdgeId {
        let out = self.edge(None, width, Layout::Flat);
        self.op(OpKind::Slice { x, from, out });
        out
    }

    fn concat(&mut self, parts: &[EdgeId], point: Option<Point>) -> EdgeId {
        let out = self.edge(point, parts.iter().map(|&part| self.edges[part].width).sum(), Layout::Flat);
        self.op(OpKind::Concat { parts: parts.to_vec(), out });
        out
    }
}
