//! Backward pass of attached autoencoders: through the decoders to the features, then through the
//! encoder. The error is a constant.
//!
//! The reconstruction of a layer by a cross-layer transcoder also has a gradient with respect to
//! the features of earlier layers. It is added to the gradient of their activations, which is
//! complete when the op of the earlier layer is reached.

use super::backward::BackwardPass;
use crate::backend::{RetainedValues, SaeOutput, SaeToken};
use crate::error::Result;
use crate::program::{EarlierFeatures, EdgeId, OpKind, TokenSet};
use pellucid_kernels::elementwise::add;

pub(super) fn backward(
    ctx: &mut BackwardPass,
    retained: &RetainedValues,
    kind: &OpKind,
    tokens: &[SaeToken],
    mut gradient: Vec<f32>,
) -> Result<()> {
    let OpKind::Sae { x, target, sae, ref earlier, pre, acts, recon, error, out, .. } = *kind else {
        unreachable!("dispatched on the kind")
    };
    if retained.value(pre).is_empty() {
        // No tap touches the autoencoder: it has not run.
        ctx.add_gradient(target.unwrap_or(x), gradient);
        return Ok(());
    }
    let (sae, pool) = (ctx.saes[sae].sae.clone(), ctx.pool);
    let width = sae.d_out();
    // The gradient of the reconstruction, and of the activation where it passes on unchanged.
    let mut d_recon = ctx.zeros(recon);
    let mut d_error = ctx.zeros(error);
    for token in tokens.iter().filter(|token| token.output != SaeOutput::Unchanged) {
        let line = token.index * width..(token.index + 1) * width;
        d_recon[line.clone()].copy_from_slice(&gradient[line.clone()]);
        if token.output == SaeOutput::ReconAndError {
            d_error[line.clone()].copy_from_slice(&gradient[line.clone()]);
        }
        gradient[line].fill(0.0);
    }
    ctx.visit(error, &mut d_error)?;
    ctx.visit(recon, &mut d_recon)?;
    earlier.iter().for_each(|features| earlier_backward(ctx, features, out, &d_recon));
    // The input may have tokens for which the last MLP does not run.
    let x_lines: Vec<usize> = ctx.pass.indices_in(ctx.token_set(x), ctx.token_set(out)).collect();
    let x_value = lines(retained.value(x), sae.d_in(), &x_lines);
    let pre_value = retained.value(pre);
    let scales = sae.token_scales(&x_value);
    let mut clean = pre_value.to_vec();
    sae.activate(pool, &mut clean);
    // A tap may read the gradient of features that are not active.
    let active_only = !ctx.wants(acts) && !ctx.wants(pre);
    let mut d_acts = ctx.alloc(acts);
    sae.decode_backward(pool, 0, &clean, &scales, &d_recon, active_only, &mut d_acts);
    if let Some(later) = ctx.take_gradient(acts) {
        add(&mut d_acts, &later);
        ctx.release(later);
    }
    ctx.visit(acts, &mut d_acts)?;
    let mut d_pre = ctx.alloc(pre);
    sae.activate_backward(pool, &clean, &d_acts, &mut d_pre);
    ctx.visit(pre, &mut d_pre)?;
    if ctx.requires_grad(x) {
        let mut d_x = vec![0.0; x_value.len()];
        sae.pre_backward(pool, &x_value, &scales, &d_pre, &mut d_x);
        sae.undo_backward(pool, 0, &x_value, retained.value(acts), &scales, &d_recon, &mut d_x);
        sae.skip_backward(pool, &d_recon, &mut d_x);
        let d_x = ctx.scatter_selected(x, out, &d_x);
        ctx.add_gradient(x, d_x);
    }
    [d_recon, d_error, d_acts, d_pre].into_iter().for_each(|buffer| ctx.release(buffer));
    ctx.add_gradient(target.unwrap_or(x), gradient);
    Ok(())
}

/// Adds the gradient of a reconstruction, on the tokens of edge `out`, to the activations of an
/// earlier layer's features.
fn earlier_backward(ctx: &mut BackwardPass, earlier: &EarlierFeatures, out: EdgeId, d_recon: &[f32]) {
    let EarlierFeatures { pre, acts, sae, decoder } = *earlier;
    if !ctx.differentiates_sae(acts) {
        return;
    }
    let sae = ctx.saes[sae].sae.clone();
    let mut d_acts = ctx.take_gradient_or_zeros(acts);
    let tokens: Vec<usize> = ctx.pass.indices_in(TokenSet::All, ctx.token_set(out)).collect();
    // The edges of earlier layers hold all tokens.
    debug_assert!(ctx.token_set(acts) == TokenSet::All);
    let wants_inactive = ctx.wants(acts) || ctx.wants(pre);
    if let Some(features) = ctx.features(acts) {
        let active = (!wants_inactive).then(|| features.unedited());
        sae.add_decoded_backward(ctx.pool, decoder, (&tokens, active), d_recon, &mut d_acts);
    }
    ctx.put_gradient(acts, d_acts);
}

/// The vectors of some tokens.
fn lines(value: &[f32], width: usize, lines: &[usize]) -> Vec<f32> {
    lines.iter().flat_map(|&line| &value[line * width..][..width]).copied().collect()
}
