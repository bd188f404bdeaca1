//! Backward pass of norms: first through the gain, then through the division by the scale.

use super::backward::BackwardPass;
use super::weights::add_products;
use crate::backend::RetainedValues;
use crate::backend::cpu::parallel_rows;
use crate::error::Result;
use crate::program::OpKind;
use pellucid_kernels::elementwise::dot;
use pellucid_kernels::norm::{NormKind, apply_gain, normalize, normalize_backward};

pub(super) fn backward(
    ctx: &mut BackwardPass,
    retained: &RetainedValues,
    kind: &OpKind,
    mut gradient: Vec<f32>,
) -> Result<()> {
    let OpKind::Norm { x, norm, gain: weight, group, scale, normed, .. } = kind else {
        unreachable!("dispatched on the kind")
    };
    let (input, group) = (retained.value(*x), *group);
    if let Some(weight) = weight.filter(|&weight| ctx.weight(weight).is_some()) {
        // The gain's input: retained if a tap touched it, else recomputed.
        let mut values = retained.value(*normed).to_vec();
        if values.is_empty() {
            values = vec![0.0; input.len()];
            normalize(norm.kind, norm.eps, input, group, &mut values, &mut vec![0.0; input.len() / group]);
        }
        add_products(ctx, weight, &values, &gradient);
    }
    let weight = weight.map(|w| ctx.weights.vector(w));
    // Gains may differ between the groups of a token.
    let gains = weight.map_or(group, <[f32]>::len);
    // Fast path: no tap touches the inside of the norm, in either direction.
    if retained.value(*scale).is_empty() && !ctx.wants(*scale) && !ctx.wants(*normed) {
        parallel_rows(ctx.pool, &mut gradient, gains, &|rows, part| {
            apply_gain(part, weight, None, gains);
            normalize_backward(norm.kind, norm.eps, &input[rows.start * gains..rows.end * gains], group, part);
        });
        ctx.add_gradient(*x, gradient);
        return Ok(());
    }
    apply_gain(&mut gradient, weight, None, gains);
    ctx.visit(*normed, &mut gradient)?;
    // `own` is the scale computed from the input, `used` the one after taps.
    let (mut values, mut own) = (ctx.alloc(*normed), ctx.alloc(*scale));
    normalize(norm.kind, norm.eps, input, group, &mut values, &mut own);
    let used = if retained.value(*scale).is_empty() { own.clone() } else { retained.value(*scale).to_vec() };
    // normed = centered / used, and centered = values · own.
    let mut d_scale = ctx.alloc(*scale);
    let groups = gradient.chunks_exact_mut(group).zip(values.chunks_exact(group)).zip(own.iter().zip(&used));
    for (d_scale, ((gradient, values), (own, used))) in d_scale.iter_mut().zip(groups) {
        *d_scale = -dot(gradient, values) * own / (used * used);
        gradient.iter_mut().for_each(|g| *g /= used);
    }
    ctx.visit(*scale, &mut d_scale)?;
    for ((gradient, values), d_scale) in gradient.chunks_exact_mut(group).zip(values.chunks_exact(group)).zip(&d_scale)
    {
        // d own / d x = centered / (own · group) = values / group.
        gradient.iter_mut().zip(values).for_each(|(g, value)| *g += d_scale * value / group as f32);
        if norm.kind == NormKind::Layer {
            let mean = gradient.iter().sum::<f32>() / group as f32;
            gradient.iter_mut().for_each(|g| *g -= mean);
        }
    }
    [values, own, d_scale].into_iter().for_each(|buffer| ctx.release(buffer));
    ctx.add_gradient(*x, gradient);
    Ok(())
}
