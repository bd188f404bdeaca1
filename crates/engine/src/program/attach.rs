//! Adds sparse autoencoders to a program: one op each, whose inner edges are sites.
//!
//! The op stands directly after the op that computes the activation. That op now writes to a new
//! edge, which keeps the site; the old edge becomes the output of the autoencoder, so that all its
//! readers continue with it. Without a tap inside the autoencoder, its op passes the buffer on.

use super::build::lifetimes;
use super::{EarlierFeatures, Edge, EdgeId, Layout, Op, OpKind, Program};
use crate::error::{Error, Result};
use crate::point::{Point, SaePart, Site};
use serde::{Deserialize, Serialize};

/// Where an autoencoder is attached, and its sizes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SaeAttachment {
    /// The site that it reads.
    pub read: Site,
    /// The site that it reconstructs: the same, or the output of an MLP for a transcoder.
    pub write: Site,
    /// Width of the activations that it reads.
    pub d_in: usize,
    /// Width of the activations that it reconstructs.
    pub d_out: usize,
    /// Number of features.
    pub n_features: usize,
    /// Its reconstructions depend on the scale of their token, apart from the features.
    pub scales_tokens: bool,
    /// Maximum number of active features of a token, if its kind has one.
    pub max_active: Option<usize>,
    /// Sites of the earlier layers of a cross-layer transcoder, each with the index of its weights
    /// and of its decoder for this layer.
    pub earlier: Vec<(Site, usize, usize)>,
}

impl Program {
    /// Returns the sites at which autoencoders are attached, in the order of the ops.
    pub fn saes(&self) -> impl Iterator<Item = Site> + '_ {
        let attached = self.ops.iter().filter_map(|op| match op.kind {
            OpKind::Sae { acts, .. } => Some(acts),
            _ => None,
        });
        attached.filter_map(|acts| self.site_of(acts)).map(|site| Site { sae: None, ..site })
    }

    /// Returns a site of an edge, if it has one.
    pub(crate) fn site_of(&self, edge: EdgeId) -> Option<Site> {
        self.sites.iter().find(|(_, other)| **other == edge).map(|(site, _)| *site)
    }

    /// Returns the ops of the later layers of a cross-layer transcoder, which decode the features
    /// of the edge `acts`.
    pub(crate) fn later_layers(&self, acts: EdgeId) -> impl Iterator<Item = &Op> {
        let decodes = move |op: &&Op| match &op.kind {
            OpKind::Sae { earlier, .. } => earlier.iter().any(|features| features.acts == acts),
            _ => false,
        };
        self.ops[self.edges[acts].producer..].iter().filter(decodes)
    }

    /// Returns the edges that a layer reads and writes: `resid_pre`, after an autoencoder attached
    /// there, and `resid_post`.
    pub(crate) fn layer_ends(&self, layer: usize) -> (EdgeId, EdgeId) {
        let edge = |point| self.edge_of(Site::layer(layer, point)).expect("every layer has resid_pre and resid_post");
        (self.after_sae(edge(Point::ResidPre)), edge(Point::ResidPost))
    }

    /// Returns the output of the autoencoder that reconstructs an edge, or the edge itself.
    fn after_sae(&self, edge: EdgeId) -> EdgeId {
        let replaces = |op: &Op| match op.kind {
            OpKind::Sae { x, target, out, .. } if target.unwrap_or(x) == edge => Some(out),
            _ => None,
        };
        self.ops.iter().find_map(replaces).unwrap_or(edge)
    }

    /// Returns this program with an autoencoder; `sae` is the index of its weights in the model.
    pub(crate) fn attach(&self, at: &SaeAttachment, sae: usize) -> Result<Program> {
        let refuse = |problem: String, remedy: &str| Error::site(problem, remedy);
        let edge_of = |site: Site| {
            self.edge_of(site).ok_or_else(|| {
                let family = &self.architecture.family;
                refuse(format!("this {family} model has no site `{site}`"), "attach the SAE at another site")
            })
        };
        let (read, write) = (edge_of(at.read)?, edge_of(at.write)?);
        if self.edge_of(at.write.sae(SaePart::Acts)).is_some() {
            return Err(refuse(
                format!("an SAE is already attached at `{}`", at.write),
                "detach it first, or attach this one at another site",
            ));
        }
        for (site, edge, width, verb) in
            [(at.read, read, at.d_in, "reads"), (at.write, write, at.d_out, "reconstructs")]
        {
            let found = &self.edges[edge];
            if found.width != width || found.layout == Layout::QueryKey || found.integer || found.observe_only {
                return Err(refuse(
                    format!("the SAE {verb} activations of width {width}, but `{site}` has width {}", found.width),
                    "is this SAE made for another model, or for another site?",
                ));
            }
        }
        let producer = self.edges[write].producer;
        if self.edges[read].producer > producer {
            return Err(refuse(
                format!("the SAE reads `{}`, which is computed after `{}`", at.read, at.write),
                "an SAE reconstructs the activation that it reads, or a later one",
            ));
        }
        if self.ops[producer].kind.output() != write {
            return Err(refuse(
                format!("no SAE can be attached at `{}`: it is computed inside an op", at.write),
                "attach it at the output of a sublayer, at z, or at the residual stream",
            ));
        }
        let mut earlier = Vec::with_capacity(at.earlier.len());
        for &(site, sae, decoder) in &at.earlier {
            let inner = |part| self.edge_of(site.sae(part));
            let (Some(pre), Some(acts)) = (inner(SaePart::Pre), inner(SaePart::Acts)) else {
                return Err(refuse(
                    format!("no transcoder is attached at `{site}`"),
                    "attach the layers of a cross-layer transcoder from first to last",
                ));
            };
            if self.edges[acts].producer > producer {
                return Err(refuse(
                    format!("`{site}` is computed after `{}`", at.write),
                    "attach the layers of a cross-layer transcoder from first to last",
                ));
            }
            earlier.push(EarlierFeatures { pre, acts, sae, decoder });
        }
        Ok(self.insert_sae(at, sae, (read, write), earlier))
    }

    fn insert_sae(
        &self,
        at: &SaeAttachment,
        sae: usize,
        (read, write): (EdgeId, EdgeId),
        earlier: Vec<EarlierFeatures>,
    ) -> Program {
        let mut program = self.clone();
        let producer = self.edges[write].producer;
        // The autoencoder of a layer's output stands between two layers, so that it also runs if
        // the layer is skipped.
        let ends_layer = self.layer_ops.iter().any(|ops| ops.end == producer + 1);
        let layer = self.ops[producer].layer.filter(|_| !ends_layer);
        let index = producer + 1;
        for edge in program.edges.iter_mut().filter(|edge| edge.producer >= index) {
            edge.producer += 1;
        }
        for ops in &mut program.layer_ops {
            let within = |op: usize, end: bool| op + usize::from(op > index || op == index && (!end || !ends_layer));
            *ops = within(ops.start, false)..within(ops.end, true);
        }
        let spec = self.edges[write].clone();
        let mut add = |width: usize, layout: Layout, producer: usize| {
            program.edges.push(Edge { width, layout, producer, integer: false, observe_only: false, ..spec.clone() })
        };
        let raw = add(spec.width, spec.layout, producer);
        let [pre, acts] = [0; 2].map(|_| add(at.n_features, Layout::Flat, index));
        let [recon, error] = [0; 2].map(|_| add(at.d_out, spec.layout, index));
        program.edges[write].producer = index;
        program.ops[producer].kind.set_output(raw);
        let (x, target) = if read == write { (raw, None) } else { (read, Some(raw)) };
        let SaeAttachment { scales_tokens, max_active, .. } = *at;
        let out = write;
        let kind = OpKind::Sae { x, target, sae, scales_tokens, max_active, earlier, pre, acts, recon, error, out };
        program.ops.insert(index, Op { kind, layer });
        // Sites up to the attachment keep the raw activation; later names of the edge, such as
        // `resid_pre` of the next layer, are its value after the autoencoder.
        for (site, edge) in &mut program.sites {
            if *edge == write && (site.layer, site.point) <= (at.write.layer, at.write.point) {
                *edge = raw;
            }
        }
        let parts = [pre, acts, recon, error, write];
        program.sites.extend(SaePart::ALL.into_iter().zip(parts).map(|(part, edge)| (at.write.sae(part), edge)));
        (program.last_use, program.dead_after) = lifetimes(&program.ops, &program.edges);
        program
    }
}
