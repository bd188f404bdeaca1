//! Attached sparse autoencoders and transcoders.
//!
//! Without a tap inside, the activation passes on unchanged. Otherwise the autoencoder runs for the
//! tokens that taps select, a few at a time, so that the activations of all features of a long
//! prompt need not exist at once.

use super::super::taps::{SaeOutput, SaeToken};
use crate::backend::{Frame, Taps};
use crate::error::Result;
use crate::job::Pass;
use crate::program::{EdgeId, OpKind};
use crate::sae::{Sae, TokenScales};

/// Maximum number of feature activations in memory at once, unless a tap needs all tokens together.
pub(crate) const MAX_ACTIVATIONS: usize = 16 << 20;

pub(super) fn run(index: usize, frame: &mut Frame, taps: &mut Taps) -> Result<()> {
    let program = frame.program;
    let kind = &program.ops()[index].kind;
    let OpKind::Sae { x, target, sae, pre, acts, recon, error, out, .. } = *kind else {
        unreachable!("dispatched on the kind")
    };
    let target = target.unwrap_or(x);
    let mut tokens = taps.sae_tokens(program, frame.pass, kind);
    if tokens.is_empty() {
        let value = frame.reuse(target, index, taps);
        return frame.put(out, value, taps);
    }
    if frame.retains(pre) {
        // The backward pass reads the pre-activations of all tokens.
        tokens = with_all(tokens, frame.tokens(out));
    }
    let sae = frame.saes[sae].sae.clone();
    let edges = [pre, acts, recon, error];
    let together = frame.retains(pre) || edges.iter().any(|&edge| taps.needs_tokens_together(edge));
    let chunk = if together { tokens.len() } else { (MAX_ACTIVATIONS / sae.n_features()).max(1) };
    let mut op = SaeOp { index, sae: &sae, x, target, pre, acts, recon, error };
    // Chunks read the inputs, so the output is a buffer of its own until the last one is done.
    let mut value = frame.copy(target);
    for tokens in tokens.chunks(chunk) {
        op.run_tokens(tokens, frame, taps, &mut value)?;
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
    pre: EdgeId,
    acts: EdgeId,
    recon: EdgeId,
    error: EdgeId,
}

/// The tokens of a chunk: all tokens of the edges, or a pass of its own.
enum Chunk {
    All,
    Some(Pass),
}

impl SaeOp<'_> {
    /// Runs the autoencoder for some tokens and writes their outputs.
    fn run_tokens(&mut self, tokens: &[SaeToken], frame: &mut Frame, taps: &mut Taps, value: &mut [f32]) -> Result<()> {
        let (sae, pool) = (self.sae, frame.pool);
        let indices: Vec<usize> = tokens.iter().map(|token| token.index).collect();
        let chunk = match indices.len() == frame.tokens(self.target) {
            true => Chunk::All,
            false => Chunk::Some(frame.pass.of_tokens(frame.program.edge(self.target).token_set, &indices)),
        };
        let x = gather(frame.value(self.x), sae.d_in(), &indices);
        let target = gather(frame.value(self.target), sae.d_out(), &indices);
        let changes = tokens.iter().any(|token| token.output != SaeOutput::Unchanged);
        let reconstructs = changes || taps.touches(self.recon) || taps.touches(self.error);
        let mut recon = frame.scratch(if reconstructs { target.len() } else { 0 });
        // The reconstruction before edits, if it differs.
        let mut clean: Option<Vec<f32>> = None;
        if !taps.touches(self.pre) && !taps.touches(self.acts) && !frame.retains(self.pre) {
            sae.reconstruct(pool, &x, &mut recon);
        } else {
            let (acts, scales) = self.encode(&chunk, &x, frame, taps, &mut clean, reconstructs)?;
            if let Some(acts) = acts {
                sae.decode(pool, 0, &acts, &scales, &x, &mut recon);
                frame.give_back(acts);
            }
        }
        if !reconstructs {
            return Ok(());
        }
        if taps.touches(self.recon) {
            if taps.edits(self.recon) && clean.is_none() {
                clean = Some(recon.clone());
            }
            recon = self.put(&chunk, self.recon, recon, frame, taps)?;
        }
        let mut error = None;
        if taps.touches(self.error) {
            let unedited = clean.as_ref().unwrap_or(&recon);
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
            match (token.output, &edited_error, &clean) {
                (SaeOutput::Unchanged, ..) => {}
                (SaeOutput::Recon, ..) => out.copy_from_slice(new),
                (SaeOutput::ReconAndError, Some(error), _) => {
                    out.iter_mut().zip(new.iter().zip(&error[line])).for_each(|(out, (new, e))| *out = new + e);
                }
                // Only the change of the reconstruction is added, so that a token whose features
                // are not edited keeps its bits.
                (SaeOutput::ReconAndError, None, Some(clean)) => {
                    let old = &clean[line];
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

    /// Computes the activations of the features after their taps, if `decodes`, and the
    /// reconstruction without edits, if a tap edits them.
    fn encode(
        &mut self,
        chunk: &Chunk,
        x: &[f32],
        frame: &mut Frame,
        taps: &mut Taps,
        clean: &mut Option<Vec<f32>>,
        decodes: bool,
    ) -> Result<(Option<Vec<f32>>, TokenScales)> {
        let (sae, pool) = (self.sae, frame.pool);
        let tokens = x.len() / sae.d_in();
        let mut values = frame.scratch(tokens * sae.n_features());
        let scales = sae.encode(pool, x, &mut values);
        if decodes && taps.edits(self.pre) {
            let mut unedited = vec![0.0; tokens * sae.d_out()];
            sae.reconstruct(pool, x, &mut unedited);
            *clean = Some(unedited);
        }
        if taps.touches(self.pre) || frame.retains(self.pre) {
            values = self.put(chunk, self.pre, values, frame, taps)?;
        }
        sae.activate(pool, &mut values);
        if decodes && taps.edits(self.acts) && clean.is_none() {
            let mut unedited = vec![0.0; tokens * sae.d_out()];
            sae.decode(pool, 0, &values, &scales, x, &mut unedited);
            *clean = Some(unedited);
        }
        if taps.touches(self.acts) || frame.retains(self.acts) {
            if !decodes && matches!(chunk, Chunk::All) {
                frame.put(self.acts, values, taps)?;
                return Ok((None, scales));
            }
            values = self.put(chunk, self.acts, values, frame, taps)?;
        }
        if decodes {
            return Ok((Some(values), scales));
        }
        frame.give_back(values);
        Ok((None, scales))
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
        match chunk {
            // A capture or a backward pass may take the buffer over.
            Chunk::All => {
                frame.put(edge, value, taps)?;
                Ok(frame.reuse(edge, self.index, taps))
            }
            Chunk::Some(pass) => {
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
