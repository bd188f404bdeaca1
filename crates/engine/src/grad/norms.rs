//! Norms: through the gain, then through the division by the scale.

use super::walk::Walk;
use super::weights::add_products;
use crate::backend::KeptValues;
use crate::backend::cpu::in_parts;
use crate::error::Result;
use crate::program::OpKind;
use pellucid_kernels::elementwise::dot;
use pellucid_kernels::norm::{NormKind, gain, normalise, normalise_back};

pub(super) fn back(walk: &mut Walk, kept: &KeptValues, kind: &OpKind, mut gradient: Vec<f32>) -> Result<()> {
    let OpKind::Norm { x, norm, gain: weight, group, scale, normed, .. } = kind else {
        unreachable!("dispatched on the kind")
    };
    let (input, group) = (kept.value(*x), *group);
    if let Some(weight) = weight.filter(|&weight| walk.weight(weight).is_some()) {
        // What the gain multiplied: as the taps left it, where somebody looked.
        let mut values = kept.value(*normed).to_vec();
        if values.is_empty() {
            values = vec![0.0; input.len()];
            normalise(norm.kind, norm.eps, input, group, &mut values, &mut vec![0.0; input.len() / group]);
        }
        add_products(walk, weight, &values, &gradient);
    }
    let weight = weight.map(|w| walk.weights.vector(w));
    // Gains may differ between the groups of a token.
    let gains = weight.map_or(group, <[f32]>::len);
    // The plain arithmetic, where nobody looks inside and nobody did.
    if kept.value(*scale).is_empty() && !walk.touches(*scale) && !walk.touches(*normed) {
        in_parts(walk.pool, &mut gradient, gains, &|rows, part| {
            gain(part, weight, None, gains);
            normalise_back(norm.kind, norm.eps, &input[rows.start * gains..rows.end * gains], group, part);
        });
        walk.add(*x, gradient);
        return Ok(());
    }
    gain(&mut gradient, weight, None, gains);
    walk.meet(*normed, &mut gradient)?;
    // The scale as it comes from the values, and as the run has used it.
    let (mut values, mut own) = (walk.make(*normed), walk.make(*scale));
    normalise(norm.kind, norm.eps, input, group, &mut values, &mut own);
    let used = if kept.value(*scale).is_empty() { own.clone() } else { kept.value(*scale).to_vec() };
    // normed = centred / used, and centred = values · own.
    let mut by_scale = walk.make(*scale);
    let groups = gradient.chunks_exact_mut(group).zip(values.chunks_exact(group)).zip(own.iter().zip(&used));
    for (by_scale, ((gradient, values), (own, used))) in by_scale.iter_mut().zip(groups) {
        *by_scale = -dot(gradient, values) * own / (used * used);
        gradient.iter_mut().for_each(|g| *g /= used);
    }
    walk.meet(*scale, &mut by_scale)?;
    for ((gradient, values), by_scale) in
        gradient.chunks_exact_mut(group).zip(values.chunks_exact(group)).zip(&by_scale)
    {
        // The scale rises by its values' share: own' = centred / (own · group) = values / group.
        gradient.iter_mut().zip(values).for_each(|(g, value)| *g += by_scale * value / group as f32);
        if norm.kind == NormKind::Layer {
            let mean = gradient.iter().sum::<f32>() / group as f32;
            gradient.iter_mut().for_each(|g| *g -= mean);
        }
    }
    [values, own, by_scale].into_iter().for_each(|buffer| walk.give(buffer));
    walk.add(*x, gradient);
    Ok(())
}
