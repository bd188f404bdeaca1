//! Builds the op list of an architecture. The order of a transformer's ops is defined here and
//! nowhere else.

mod attention;
mod check;
mod mlp;
mod network;
mod recurrence;

pub use network::{Network, Node};

use super::{Edge, EdgeId, Layout, Linear, Op, OpKind, Program, TableRow, TokenSet};
use crate::architecture::{AbsolutePositions, Activation, Architecture, Gain, Layer, Mlp, Norm, SharedBlock, Skip};
use crate::error::Result;
use crate::ids::IdVec;
use crate::point::Point;
use crate::point::Site;
use crate::program::{WeightId, WeightKind, WeightSpec};
use std::collections::BTreeMap;

/// Points of a norm: its divisor, the normalized value before the gain, its output.
type NormPoints = [Option<Point>; 3];

/// A program under construction.
#[derive(Default)]
struct Builder {
    ops: Vec<Op>,
    edges: IdVec<EdgeId, Edge>,
    weights: IdVec<WeightId, WeightSpec>,
    sites: BTreeMap<Site, EdgeId>,
    layer: Option<usize>,
    /// The shared block being built and the adapter that the current layer uses in it.
    shared: Option<(usize, usize)>,
    /// The residual stream before the first layer.
    embedded: Option<EdgeId>,
    token_set: TokenSet,
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

/// Computes edge lifetimes and assembles the program.
fn finish(b: Builder, architecture: Architecture, layer_ops: Vec<std::ops::Range<usize>>) -> Program {
    let (last_use, dead_after) = lifetimes(&b.ops, &b.edges);
    Program {
        architecture,
        ops: b.ops,
        edges: b.edges,
        weights: b.weights,
        sites: b.sites,
        last_use,
        dead_after,
        layer_ops,
    }
}

/// Returns for each edge the last op that reads it, or its producer; and for each op the edges that
/// are dead after it.
pub(super) fn lifetimes(ops: &[Op], edges: &IdVec<EdgeId, Edge>) -> (IdVec<EdgeId, usize>, Vec<Vec<EdgeId>>) {
    let mut last_use: IdVec<EdgeId, usize> = edges.iter().map(|edge| edge.producer).collect();
    for (index, op) in ops.iter().enumerate() {
        op.kind.inputs().into_iter().for_each(|edge| last_use[edge] = index);
    }
    let mut dead_after = vec![Vec::new(); ops.len()];
    last_use.iter_with_ids().for_each(|(edge, &op)| dead_after[op].push(edge));
    (last_use, dead_after)
}

impl Builder {
    fn embedding(&mut self, architecture: &Architecture, table: WeightId) -> EdgeId {
        let spec = &architecture.embedding;
        let table_width = spec.table_width.unwrap_or(architecture.width);
        let embed = self.edge(Some(Point::Embed), table_width, Layout::Flat);
        self.op(OpKind::Embed { table, row: TableRow::Token, out: embed });
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
                    self.op(OpKind::Embed { table, row: TableRow::Position(*offset), out });
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
            self.op(OpKind::Embed { table, row: TableRow::Fixed(0), out });
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
        // A layer that consists of an MLP only has no first sublayer.
        let (middle, attn_in) = if layer.attention.is_some() || layer.recurrence.is_some() {
            self.mixer(layer, width, resid_pre)
        } else {
            (resid_pre, resid_pre)
        };
        let Some(mlp) = &layer.mlp else { return self.layer_output(layer, middle) };
        // Tokens do not interact after the last attention, so the last MLP runs only for tokens
        // whose output is used. (RWKV's channel mixing reads the previous token.)
        let per_token = !matches!(mlp, Mlp::ChannelMix { .. });
        let middle =
            if last && per_token && !layer.parallel { self.select(TokenSet::ForLastMlp, middle) } else { middle };
        let mlp_points = [Some(Point::MlpScale), Some(Point::MlpNormed), Some(Point::MlpIn)];
        let mlp_source = if layer.parallel { resid_pre } else { middle };
        let mlp_in = match layer.mlp_norm {
            Some(norm) => self.norm(mlp_source, "mlp.norm", norm, width, mlp_points),
            // A parallel block without a second norm gives both sublayers the same input.
            None => self.alias(Point::MlpIn, if layer.parallel { attn_in } else { middle }),
        };
        let out = self.mlp(width, mlp, mlp_in);
        let post =
            self.contribution(out, "mlp.post_norm", layer.mlp_post_norm, layer.mlp_multiplier, Point::MlpOutPost);
        let skip = self.skip_term(layer, middle, mlp_in, "mlp.skip", |(_, mlp)| mlp);
        let sum = self.add(skip, post, None);
        let sum =
            layer.mlp_post_residual_norm.map_or(sum, |norm| self.norm(sum, "mlp.stream_norm", norm, width, [None; 3]));
        self.layer_output(layer, sum)
    }

    /// Builds the first sublayer: attention, a recurrence or both. Returns the residual stream
    /// after it and the sublayer's input.
    fn mixer(&mut self, layer: &Layer, width: usize, resid_pre: EdgeId) -> (EdgeId, EdgeId) {
        let points = [Some(Point::AttnScale), Some(Point::AttnNormed), None];
        let read = layer.shared.as_ref().map_or(resid_pre, |shared| self.shared_block(width, shared, resid_pre));
        let mixer_in = layer.attn_norm.map_or(read, |norm| self.norm(read, "attn.norm", norm, width, points));
        let mut contributions = Vec::new();
        if let Some(recurrence) = &layer.recurrence {
            self.site(Point::MixerIn, mixer_in);
            let out = self.recurrence(width, recurrence, mixer_in);
            let (norm, by) = (layer.attn_post_norm, layer.mixer_multiplier);
            contributions.push(self.contribution(out, "attn.post_norm", norm, by, Point::MixerOutPost));
        }
        if let Some(attention) = &layer.attention {
            let scaled = layer.attn_in_scale.map_or(mixer_in, |by| self.scale(mixer_in, by, None));
            let attn_in = self.alias(Point::AttnIn, scaled);
            let out = self.attention(width, attention, attn_in);
            let (norm, by) = (layer.attn_post_norm, layer.attn_multiplier);
            contributions.push(self.contribution(out, "attn.post_norm", norm, by, Point::AttnOutPost));
        }
        let mut stream = self.skip_term(layer, resid_pre, mixer_in, "attn.skip", |(attn, _)| attn);
        for contribution in contributions {
            stream = self.add(stream, contribution, None);
        }
        if let Some(norm) = layer.attn_post_residual_norm {
            stream = self.norm(stream, "attn.stream_norm", norm, width, [None; 3]);
        }
        // `resid_mid` exists only between two sequential sublayers.
        if !layer.parallel && layer.mlp.is_some() {
            self.site(Point::ResidMid, stream);
        }
        (stream, mixer_in)
    }

    /// Adds a shared block's output to the residual stream; its input is the stream concatenated
    /// with the embeddings.
    fn shared_block(&mut self, width: usize, shared: &SharedBlock, resid_pre: EdgeId) -> EdgeId {
        self.shared = Some((shared.block, shared.adapter));
        let embedded = self.embedded.expect("the embedding comes before every layer");
        let joined = self.concat(&[resid_pre, embedded], None);
        let joined_width = self.edges[joined].width;
        let attn_in = self.norm(joined, "attn.norm", shared.norm, joined_width, [None, None, Some(Point::AttnIn)]);
        let out = self.attention(width, &shared.attention, attn_in);
        let points = [Some(Point::MlpScale), Some(Point::MlpNormed), Some(Point::MlpIn)];
        let mlp_in = self.norm(out, "mlp.norm", shared.mlp_norm, width, points);
        let out = self.mlp(width, &Mlp::Dense(shared.mlp), mlp_in);
        self.shared = None;
        let out = self.matmul(out, "shared_out", width, false, None);
        self.add(resid_pre, out, None)
    }

    /// Returns the term to which a sublayer's output is added; `own` picks the sublayer's scale of
    /// [`Skip::Normed`].
    fn skip_term(
        &mut self,
        layer: &Layer,
        stream: EdgeId,
        normed: EdgeId,
        gain: &str,
        own: impl Fn((f32, f32)) -> f32,
    ) -> EdgeId {
        match layer.skip {
            Skip::Identity => stream,
            Skip::Normed { attn, mlp } => match own((attn, mlp)) {
                1.0 => normed,
                by => self.scale(normed, by, None),
            },
            Skip::LearnedGain => {
                let width = self.edges[stream].width;
                let gain = self.weight(gain, vec![width], WeightKind::Vector);
                let out = self.edge(None, width, Layout::Flat);
                self.op(OpKind::Gain { x: stream, gain, out });
                out
            }
        }
    }

    /// Applies the layer's output scale and names the result `resid_post`.
    fn layer_output(&mut self, layer: &Layer, stream: EdgeId) -> EdgeId {
        let stream = layer.out_scale.map_or(stream, |by| self.scale(stream, by, None));
        self.alias(Point::ResidPost, stream)
    }

    /// Returns a sublayer's contribution to the residual stream: its output after post-norm and
    /// multiplier, or the same edge if it has neither.
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
        let mut x = self.select(TokenSet::ForLogits, stream);
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

    // Single ops.

    /// Restricts all following edges to a set of tokens.
    fn select(&mut self, token_set: TokenSet, x: EdgeId) -> EdgeId {
        self.token_set = token_set;
        let out = self.edge(None, self.edges[x].width, Layout::Flat);
        self.op(OpKind::Select { x, out });
        out
    }

    fn op(&mut self, kind: OpKind) {
        self.ops.push(Op { kind, layer: self.layer });
    }

    /// Adds an edge, the output of the next op.
    fn edge(&mut self, point: Option<Point>, width: usize, layout: Layout) -> EdgeId {
        let id = self.edges.push(Edge {
            width,
            layout,
            token_set: self.token_set,
            integer: false,
            routed: None,
            observe_only: false,
            producer: self.ops.len(),
        });
        if let Some(point) = point {
            self.site(point, id);
        }
        id
    }

    fn site(&mut self, point: Point, edge: EdgeId) {
        self.sites.insert(Site { layer: self.layer, point, sae: None }, edge);
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

    /// Adds a projection's matrix and optional bias.
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

    /// Adds the output of the layer's LoRA adapter on projection `name` to that projection's
    /// output.
    fn adapt(&mut self, first: EdgeId, x: EdgeId, name: &str, rank: Option<usize>) -> EdgeId {
        let (Some(rank), Some((_, adapter))) = (rank, self.shared) else { return first };
        let low = self.matmul(x, &format!("{name}.adapters.{adapter}.down"), rank, false, None);
        let second = self.matmul(low, &format!("{name}.adapters.{adapter}.up"), self.edges[first].width, false, None);
        let layout = self.edges[first].layout;
        let out = self.add(first, second, None);
        self.edges[out].layout = layout;
        out
    }

    /// Adds a norm over groups of `group` channels, with one gain `[group]` for all groups.
    fn norm(&mut self, x: EdgeId, name: &str, norm: Norm, group: usize, points: NormPoints) -> EdgeId {
        self.norm_with_gains(x, name, norm, group, &[group], points)
    }

    /// Adds a norm over groups of `group` channels, with gains of shape `gains`.
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
