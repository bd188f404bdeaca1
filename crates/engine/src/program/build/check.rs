//! Checks an architecture: rejects sizes that contradict each other before any buffer is sized by
//! them.

use crate::architecture::{AbsolutePositions, Architecture, Attention, Decay, Dense, Layer, Mlp, Recurrence, Skip};
use crate::error::{Error, Result};

pub(super) fn check(architecture: &Architecture) -> Result<()> {
    let fail = |problem: String| Err(Error::Architecture { problem });
    if architecture.vocab == 0 || architecture.width == 0 {
        return fail(format!("vocabulary size {} and width {}", architecture.vocab, architecture.width));
    }
    match &architecture.embedding.positions {
        Some(AbsolutePositions::Learned { rows, offset })
            if architecture.context.is_none_or(|context| context.saturating_add(*offset) > *rows) =>
        {
            return fail(format!(
                "context of {:?} positions with a position table of {rows} rows",
                architecture.context
            ));
        }
        Some(AbsolutePositions::Sinusoidal { frequencies, .. })
            if 2 * frequencies.len() > architecture.embedding.table_width.unwrap_or(architecture.width) =>
        {
            return fail(format!(
                "{} sinusoidal position channels in a narrower residual stream",
                2 * frequencies.len()
            ));
        }
        _ => {}
    }
    if architecture.embedding.table_width == Some(0) || architecture.head.table_width == Some(0) {
        return fail("embedding width of 0".into());
    }
    if architecture.head.tied && architecture.head.table_width != architecture.embedding.table_width {
        return fail("tied head with another width than the embedding".into());
    }
    for (index, layer) in architecture.layers.iter().enumerate() {
        let shared = layer.shared.as_ref().map(|shared| &shared.attention);
        let problem = layer.attention.as_ref().or(shared).and_then(|a| attention_problem(architecture, a));
        let problem = problem.or_else(|| layer.recurrence.as_ref().and_then(recurrence_problem));
        let problem = problem.or_else(|| layer.mlp.as_ref().and_then(mlp_problem)).or_else(|| layer_problem(layer));
        if let Some(problem) = problem {
            return fail(format!("layer {index} {problem}"));
        }
    }
    Ok(())
}

fn attention_problem(architecture: &Architecture, a: &Attention) -> Option<String> {
    if a.heads == 0 || a.kv_heads == 0 || !a.heads.is_multiple_of(a.kv_heads) || a.head_dim == 0 || a.value_dim == 0 {
        return Some(format!("has {} heads of width {} and {} key heads", a.heads, a.head_dim, a.kv_heads));
    }
    let rotated = a.latent.map_or(a.head_dim, |latent| latent.rope_dim);
    let rope_fits =
        |rope: usize| architecture.ropes.get(rope).is_some_and(|rope| rope.frequencies.len() * 2 <= rotated);
    if rotated > a.head_dim || a.rope.is_some_and(|rope| !rope_fits(rope)) {
        return Some(format!("rotates more channels than its heads have ({rotated})"));
    }
    if a.window == Some(0) || a.chunk == Some(0) || a.alibi.as_ref().is_some_and(|alibi| alibi.slopes.len() != a.heads)
    {
        return Some(
            "has an empty window, an empty chunk, or a number of ALiBi slopes that differs from its heads".into(),
        );
    }
    // `f32::clamp` panics if its bounds are reversed or NaN.
    if let Some(by) = a.clip.filter(|by| by.is_nan() || *by < 0.0) {
        return Some(format!("clips q, k and v to ±{by}; the bound must be 0 or more"));
    }
    if a.latent.is_some_and(|latent| latent.kv_rank == 0 || latent.query_rank == Some(0)) {
        return Some("has latent attention of rank 0".into());
    }
    // The builder applies these only to directly projected heads.
    let projected = a.adapter.is_some()
        || a.clip.is_some()
        || a.qk_norm.is_some()
        || a.value_scale.is_some()
        || a.experts.is_some();
    if a.latent.is_some() && projected {
        return Some(
            "combines latent attention with adapters, clipping, a q/k norm, a value scale or attention experts".into(),
        );
    }
    if a.dynamic_mask.is_some_and(|mask| mask.max_keys == 0 || a.soft_cap.is_some()) {
        return Some("has a dynamic mask that keeps 0 keys, or one together with a soft cap".into());
    }
    if a.differential.is_some() && !a.kv_heads.is_multiple_of(2) {
        return Some(format!("has differential attention with an odd number of key heads ({})", a.kv_heads));
    }
    if let Some(experts) = a.experts
        && (experts.top_k == 0 || experts.top_k > experts.count || a.heads != a.kv_heads * experts.top_k)
    {
        return Some(format!("selects {} of {} experts for its {} heads", experts.top_k, experts.count, a.heads));
    }
    None
}

/// Checks combinations of a layer's parts.
fn layer_problem(layer: &Layer) -> Option<String> {
    // A parallel block has one residual connection and no `resid_mid`.
    if layer.parallel && (layer.skip != Skip::Identity || layer.attn_post_residual_norm.is_some()) {
        return Some("is a parallel block with a `skip` or a norm between its sublayers".into());
    }
    if let Some(shared) = &layer.shared {
        // A shared block feeds the recurrence and uses the points of attention and MLP, so the
        // layer cannot have its own.
        if layer.recurrence.is_none() || layer.attention.is_some() || layer.mlp.is_some() {
            return Some("uses a shared block without a recurrence, or together with its own attention or MLP".into());
        }
        if let Some(problem) = mlp_problem(&Mlp::Dense(shared.mlp)) {
            return Some(problem);
        }
    } else if layer.attention.as_ref().is_some_and(|a| a.adapter.is_some()) || has_adapter(layer.mlp.as_ref()) {
        return Some("has adapters, which only shared blocks can have".into());
    }
    // `attn_post_norm` has one gain; two outputs would need two.
    if layer.attn_post_norm.is_some() && layer.attention.is_some() && layer.recurrence.is_some() {
        return Some("has one post-norm for the outputs of both attention and a recurrence".into());
    }
    None
}

fn has_adapter(mlp: Option<&Mlp>) -> bool {
    matches!(mlp, Some(Mlp::Dense(dense)) if dense.adapter.is_some())
}

fn recurrence_problem(recurrence: &Recurrence) -> Option<String> {
    let fits = match recurrence {
        Recurrence::Mamba(m) => m.inner_width > 0 && m.state_size > 0 && m.dt_rank > 0 && m.conv_kernel > 0,
        Recurrence::Mamba2(m) => {
            let groups = m.groups > 0 && m.heads.is_multiple_of(m.groups);
            let normed = m.norm.is_none_or(|n| n.groups > 0 && (m.heads * m.head_dim).is_multiple_of(n.groups));
            m.heads > 0 && m.head_dim > 0 && m.state_size > 0 && m.conv_kernel > 0 && groups && normed
        }
        Recurrence::DeltaRule(d) => {
            let heads = d.key_heads > 0 && d.value_heads > 0 && d.value_heads.is_multiple_of(d.key_heads);
            // A decay per key channel requires one state per key head.
            let decayed = d.decay == Decay::PerHead
                || (d.key_heads == d.value_heads && d.decay != (Decay::PerKeyChannel { rank: 0 }));
            heads && decayed && d.key_dim > 0 && d.value_dim > 0 && d.conv_kernel > 0 && d.gate_rank != Some(0)
        }
        Recurrence::LinearAttention(l) => l.heads > 0 && l.head_dim > 0 && l.decay.len() == l.heads,
        Recurrence::ShortConv(c) => c.conv_kernel > 0,
        Recurrence::Lru(l) => {
            l.inner_width > 0 && l.blocks > 0 && l.inner_width.is_multiple_of(l.blocks) && l.conv_kernel > 0
        }
        Recurrence::Rwkv(width) => *width > 0,
    };
    (!fits).then(|| format!("has a recurrence with inconsistent sizes: {recurrence:?}"))
}

fn mlp_problem(mlp: &Mlp) -> Option<String> {
    let empty = match mlp {
        Mlp::Dense(dense) => dense.width == 0,
        Mlp::Experts(experts) => {
            experts.expert.width == 0 || experts.shared.is_some_and(|shared| shared.mlp.width == 0)
        }
        Mlp::ChannelMix { width } => *width == 0,
    };
    if empty {
        return Some("has an MLP without neurons".into());
    }
    let gated_xielu = |dense: &Dense| dense.gated && dense.xielu;
    let experts = match mlp {
        Mlp::Dense(dense) => return gated_xielu(dense).then(|| "has a gated xIELU MLP, which is not supported".into()),
        Mlp::ChannelMix { .. } => return None,
        Mlp::Experts(experts) => experts,
    };
    let e = &experts.expert;
    let inside = e.xielu || e.inner_norm.is_some() || e.gate_scale.is_some() || e.down_scale.is_some();
    let adapted = e.adapter.is_some() || experts.shared.is_some_and(|shared| shared.mlp.adapter.is_some());
    if inside || adapted || experts.shared.is_some_and(|shared| gated_xielu(&shared.mlp)) {
        return Some("has experts with xIELU, an inner norm, a scale or an adapter, which is not supported".into());
    }
    if experts.top_k == 0 || experts.top_k > experts.count {
        return Some(format!("selects {} of {} experts", experts.top_k, experts.count));
    }
    let groups = experts.routing.groups?;
    let fits = groups.count > 0
        && experts.count.is_multiple_of(groups.count)
        && (1..=groups.count).contains(&groups.top_groups)
        && groups.top_groups * (experts.count / groups.count) >= experts.top_k
        && (!groups.by_top_two || experts.count / groups.count >= 2);
    (!fits)
        .then(|| format!("selects from {} of {} groups of {} experts", groups.top_groups, groups.count, experts.count))
}
