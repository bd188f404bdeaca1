//! Backward pass of attached autoencoders: through the decoder to the features, then through the
//! encoder. The error is a constant.

use super::backward::BackwardPass;
use crate::backend::{RetainedValues, SaeOutput, SaeToken};
use crate::error::Result;
use crate::program::OpKind;

pub(super) fn backward(
    ctx: &mut BackwardPass,
    retained: &RetainedValues,
    kind: &OpKind,
    tokens: &[SaeToken],
    mut gradient: Vec<f32>,
) -> Result<()> {
    let OpKind::Sae { x, target, sae, pre, acts, recon, error, .. } = *kind else {
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
    let (x_value, pre_value) = (retained.value(x), retained.value(pre));
    let scales = sae.token_scales(x_value);
    let mut clean = pre_value.to_vec();
    sae.activate(pool, &mut clean);
    // A tap may read the gradient of features that are not active.
    let active_only = !ctx.wants(acts) && !ctx.wants(pre);
    let mut d_acts = ctx.alloc(acts);
    sae.decode_backward(pool, 0, &clean, &scales, &d_recon, active_only, &mut d_acts);
    ctx.visit(acts, &mut d_acts)?;
    let mut d_pre = ctx.alloc(pre);
    sae.activate_backward(pool, &clean, &d_acts, &mut d_pre);
    ctx.visit(pre, &mut d_pre)?;
    if ctx.requires_grad(x) {
        let mut d_x = ctx.zeros(x);
        sae.pre_backward(pool, x_value, &scales, &d_pre, &mut d_x);
        sae.undo_backward(pool, 0, x_value, retained.value(acts), &scales, &d_recon, &mut d_x);
        sae.skip_backward(pool, &d_recon, &mut d_x);
        ctx.add_gradient(x, d_x);
    }
    [d_recon, d_error, d_acts, d_pre].into_iter().for_each(|buffer| ctx.release(buffer));
    ctx.add_gradient(target.unwrap_or(x), gradient);
    Ok(())
}
