//! Attached sparse autoencoders and transcoders.
//!
//! Without a tap inside, the activation passes on unchanged. Otherwise the autoencoder runs for the
//! tokens that taps select, a few at a time, so that the activations of all features of a long
//! prompt need not exist at once. The layers of a cross-layer transcoder keep the active features
//! of these tokens for the reconstructions of later layers.

use super::super::taps::{SaeOutput, SaeToken};
use crate::backend::{Frame, Taps};
use crate::error::Result;
use crate::job::Pass;
use crate::program::{EarlierFeatures, EdgeId, OpKind, TokenSet};
use crate::sae::{ActiveFeatures, LayerFeatures, Sae, TokenScales, features_of_dense};

/// Maximum number of feature activations in memory at once, unless a tap needs all tokens together.
pub(crate) const MAX_ACTIVATIONS: usize = 16 << 20;

pub(super) fn run(index: usize, frame: &mut Frame, taps: &mut Taps) -> Result<()> {
    let program = frame.program;
    let OpKind::Sae { x, target, sae, ref earlier, pre, acts, recon, error, out, .. } = program.ops()[index].kind
    else {
        unreachable!("dispatched on the kind")
    };
    let target = target.unwrap_or(x);
    let mut tokens = taps.sae_tokens(program, frame.pass, index);
    if tokens.is_empty() {
        return frame.pass_on(target, out, index, taps);
    }
    if frame.retains(pre) {
        // The backward pass reads the pre-activations of all tokens.
        tokens = with_all(tokens, frame.tokens(out));
    }
    let features = taps.feeds_later_layers(sae).then(|| {
        let edited = taps.edits(pre) || taps.edits(acts);
        LayerFeatures::new(frame.pass.tokens.len(), edited)
    });
    let sae = frame.saes[sae].sae.clone();
    let edges = [pre, acts, recon, error];
    let together = frame.retains(pre) || edges.iter().any(|&edge| taps.needs_tokens_together(edge));
    let chunk = if together { tokens.len() } else { (MAX_ACTIVATIONS / sae.n_features()).max(1) };
    let mut op = SaeOp { index, sae: &sae, x, target, earlier, pre, acts, recon, error, features };
    // Chunks read the inputs, so the output is a buffer of its own until the last one is done.
    let mut value = frame.copy(target);
    for tokens in tokens.chunks(chunk) {
        op.run_tokens(tokens, frame, taps, &mut value)?;
    }
    if let Some(features) = op.features {
        frame.put_features(acts, features);
    }
    frame.put(out, value, taps)
}

/// Adds the tokens that no tap selects.
fn with_all(tokens: Vec<SaeToken>, count: usize) -> Vec<SaeToken> {
    let mut selected = tokens.into_iter().peekable();
    let other = |index| SaeToken { index, output: SaeOutput::Unchanged };
    (0..count).map(|index| selected.next_if(|token| token.index == index).unwrap_or(other(index))).collect()
}

/// The op of an autoencoder during a pass.
struct SaeOp<'a> {
    index: usize,
    sae: &'a Sae,
    x: EdgeId,
    target: EdgeId,
    earlier: &'a [EarlierFeatures],
    pre: EdgeId,
    acts: EdgeId,
    recon: EdgeId,
    error: EdgeId,
    /// Receives the features, if later layers decode them.
    features: Option<LayerFeatures>,
}

/// The tokens of a chunk.
struct Chunk {
    /// Their own pass; `None` if they are all tokens of the edges.
    pass: Option<Pass>,
    /// Their indices among all tokens of the pass.
    in_pass: Vec<usize>,
}

/// The reconstructions of a chunk.
struct Reconstruction {
    recon: Vec<f32>,
    /// Before edits of features, if they are edited.
    unedited: Option<Vec<f32>>,
}

impl SaeOp<'_> {
    /// Runs the autoencoder for some tokens and writes their outputs.
    fn run_tokens(&mut self, tokens: &[SaeToken], frame: &mut Frame, taps: &mut Taps, value: &mut [f32]) -> Result<()> {
        let sae = self.sae;
        let indices: Vec<usize> = tokens.iter().map(|token| token.index).collect();
        let chunk = self.chunk(&indices, frame);
        let x = gather(
            frame.value(self.x),
            sae.d_in(),
            &self.indices_in(frame.program.edge(self.x).token_set, &indices, frame),
        );
        let target = gather(frame.value(self.target), sae.d_out(), &indices);
        let changes = tokens.iter().any(|token| token.output != SaeOutput::Unchanged);
        let reconstructs = changes || taps.touches(self.recon) || taps.touches(self.error);
        let own = self.reconstruct(&chunk, &x, frame, taps, reconstructs)?;
        if !reconstructs {
            return Ok(());
        }
        let Reconstruction { mut recon, mut unedited } = self.add_earlier_layers(&chunk, frame, own);
        if taps.touches(self.recon) {
            if taps.edits(self.recon) && unedited.is_none() {
                unedited = Some(recon.clone());
            }
            recon = self.put(&chunk, self.recon, recon, frame, taps)?;
        }
        let mut error = None;
        if taps.touches(self.error) {
            let unedited = unedited.as_ref().unwrap_or(&recon);
            let mut difference = frame.scratch(target.len());
            difference.iter_mut().zip(target.iter().zip(unedited)).for_each(|(e, (x, recon))| *e = x - recon);
            error = Some(self.put(&chunk, self.error, difference, frame, taps)?);
        }
        let edited_error = error.filter(|_| taps.edits(self.error));
        let width = sae.d_out();
        for (nth, token) in tokens.iter().enumerate() {
            let line = nth * width..(nth + 1) * width;
            let out = &mut value[token.index * width..][..width];
            let new = &recon[line.clone()];
            match (token.output, &edited_error, &unedited) {
                (SaeOutput::Unchanged, ..) => {}
                (SaeOutput::Recon, ..) => out.copy_from_slice(new),
                (SaeOutput::ReconAndError, Some(error), _) => {
                    out.iter_mut().zip(new.iter().zip(&error[line])).for_each(|(out, (new, e))| *out = new + e);
                }
                // Only the change of the reconstruction is added, so that a token whose features
                // are not edited keeps its bits.
                (SaeOutput::ReconAndError, None, Some(unedited)) => {
                    let old = &unedited[line];
                    if new != old {
                        out.iter_mut().zip(new.iter().zip(old)).for_each(|(out, (new, old))| *out += new - old);
                    }
                }
                (SaeOutput::ReconAndError, None, None) => {}
            }
        }
        frame.give_back(recon);
        Ok(())
    }

    fn chunk(&self, indices: &[usize], frame: &Frame) -> Chunk {
        let all = indices.len() == frame.tokens(self.target);
        let pass = (!all).then(|| frame.pass.of_tokens(frame.program.edge(self.target).token_set, indices));
        Chunk { pass, in_pass: self.indices_in(TokenSet::All, indices, frame) }
    }

    /// Converts indices on the edge of the target to indices in a larger token set.
    fn indices_in(&self, token_set: TokenSet, indices: &[usize], frame: &Frame) -> Vec<usize> {
        let own = frame.program.edge(self.target).token_set;
        if own == token_set {
            return indices.to_vec();
        }
        let all: Vec<usize> = frame.pass.indices_in(token_set, own).collect();
        indices.iter().map(|&index| all[index]).collect()
    }

    /// Runs encoder, taps of the features and, if it `decodes`, the decoder of the own layer.
    fn reconstruct(
        &mut self,
        chunk: &Chunk,
        x: &[f32],
        frame: &mut Frame,
        taps: &mut Taps,
        decodes: bool,
    ) -> Result<Reconstruction> {
        let (sae, pool) = (self.sae, frame.pool);
        let mut recon = frame.scratch(if decodes { chunk.in_pass.len() * sae.d_out() } else { 0 });
        if taps.touches(self.pre) || !taps.captures_sparse_only(self.acts) || frame.retains(self.pre) {
            return self.reconstruct_from_dense(chunk, x, frame, taps, decodes, recon);
        }
        if !taps.touches(self.acts) && self.features.is_none() {
            sae.reconstruct(pool, x, &mut recon);
            return Ok(Reconstruction { recon, unedited: None });
        }
        let (active, scales) = sae.active_features(pool, x);
        taps.collect_active(frame.program, chunk.pass.as_ref().unwrap_or(frame.pass), self.acts, &active);
        if decodes {
            sae.decode_active(pool, 0, &active, &scales, x, &mut recon);
        }
        self.keep_features(chunk, active);
        Ok(Reconstruction { recon, unedited: None })
    }

    /// Like [`reconstruct`](Self::reconstruct), with the dense activations that taps need.
    fn reconstruct_from_dense(
        &mut self,
        chunk: &Chunk,
        x: &[f32],
        frame: &mut Frame,
        taps: &mut Taps,
        decodes: bool,
        mut recon: Vec<f32>,
    ) -> Result<Reconstruction> {
        let (sae, pool) = (self.sae, frame.pool);
        let n = sae.n_features();
        let mut values = frame.scratch(chunk.in_pass.len() * n);
        let scales = sae.encode(pool, x, &mut values);
        let mut unedited = None;
        let edits_pre = taps.edits(self.pre);
        if edits_pre {
            let (active, _) = sae.active_features(pool, x);
            unedited = self.keep_unedited(chunk, active, &scales, x, frame, decodes);
        }
        if taps.touches(self.pre) || frame.retains(self.pre) {
            values = self.put(chunk, self.pre, values, frame, taps)?;
        }
        sae.activate(pool, &mut values);
        if taps.edits(self.acts) && !edits_pre {
            unedited = self.keep_unedited(chunk, features_of_dense(&values, n), &scales, x, frame, decodes);
        }
        if taps.touches(self.acts) || frame.retains(self.acts) {
            if !decodes && chunk.pass.is_none() {
                // A capture may take the buffer over.
                frame.put(self.acts, values, taps)?;
                if self.features.is_some() {
                    self.keep_features(chunk, features_of_dense(frame.value(self.acts), n));
                }
                return Ok(Reconstruction { recon, unedited: None });
            }
            values = self.put(chunk, self.acts, values, frame, taps)?;
        }
        if decodes {
            sae.decode(pool, 0, &values, &scales, x, &mut recon);
        }
        if self.features.is_some() {
            self.keep_features(chunk, features_of_dense(&values, n));
        }
        frame.give_back(values);
        Ok(Reconstruction { recon, unedited })
    }

    /// Adds the decoded features of earlier layers, for a cross-layer transcoder.
    fn add_earlier_layers(&self, chunk: &Chunk, frame: &Frame, own: Reconstruction) -> Reconstruction {
        let Reconstruction { mut recon, mut unedited } = own;
        let earlier = || self.earlier.iter().filter_map(|earlier| Some((earlier, frame.features(earlier.acts)?)));
        if unedited.is_none() && earlier().any(|(_, features)| features.unedited.is_some()) {
            unedited = Some(recon.clone());
        }
        for (earlier, features) in earlier() {
            let sae = &frame.saes[earlier.sae].sae;
            let add = |active: &[ActiveFeatures], recon: &mut [f32]| {
                let of_tokens: Vec<_> = chunk.in_pass.iter().map(|&token| active.get(token)).collect();
                sae.add_decoded(frame.pool, earlier.decoder, &of_tokens, recon);
            };
            add(&features.active, &mut recon);
            if let Some(unedited) = &mut unedited {
                add(features.unedited(), unedited);
            }
        }
        Reconstruction { recon, unedited }
    }

    /// Keeps the features of the tokens of a chunk for later layers.
    fn keep_features(&mut self, chunk: &Chunk, active: Vec<ActiveFeatures>) {
        let Some(features) = &mut self.features else { return };
        chunk.in_pass.iter().zip(active).for_each(|(&token, active)| features.active[token] = active);
    }

    /// Keeps the features before edits for later layers; returns the reconstruction from them, if
    /// it `decodes`.
    fn keep_unedited(
        &mut self,
        chunk: &Chunk,
        active: Vec<ActiveFeatures>,
        scales: &TokenScales,
        x: &[f32],
        frame: &Frame,
        decodes: bool,
    ) -> Option<Vec<f32>> {
        let decoded = decodes.then(|| {
            let mut recon = vec![0.0; active.len() * self.sae.d_out()];
            self.sae.decode_active(frame.pool, 0, &active, scales, x, &mut recon);
            recon
        });
        if let Some(unedited) = self.features.as_mut().and_then(|features| features.unedited.as_mut()) {
            chunk.in_pass.iter().zip(active).for_each(|(&token, active)| unedited[token] = active);
        }
        decoded
    }

    /// Applies the taps of an inner edge to its value and returns it.
    fn put(
        &self,
        chunk: &Chunk,
        edge: EdgeId,
        mut value: Vec<f32>,
        frame: &mut Frame,
        taps: &mut Taps,
    ) -> Result<Vec<f32>> {
        match &chunk.pass {
            // A capture or a backward pass may take the buffer over.
            None => {
                frame.put(edge, value, taps)?;
                Ok(frame.reuse(edge, self.index, taps))
            }
            Some(pass) => {
                taps.apply(frame.program, pass, edge, &mut value, &[])?;
                Ok(value)
            }
        }
    }
}

/// The vectors of some tokens.
fn gather(value: &[f32], width: usize, indices: &[usize]) -> Vec<f32> {
    indices.iter().flat_map(|&index| &value[index * width..][..width]).copied().collect()
}
