//! What an architecture may say: numbers that contradict each other are refused before anything is sized by them.

use crate::architecture::{AbsolutePositions, Architecture, Attention, Decay, Dense, Layer, Mlp, Recurrence, Skip};
use crate::error::{Error, Result};

pub(super) fn check(architecture: &Architecture) -> Result<()> {
    let fail = |problem: String| Err(Error::Architecture { problem });
    if architecture.vocab == 0 || architecture.width == 0 {
        return fail(format!("a vocabulary of {} and a width of {}", architecture.vocab, architecture.width));
    }
    match &architecture.embedding.positions {
        Some(AbsolutePositions::Learned { rows, offset })
            if architecture.context.is_none_or(|context| context.saturating_add(*offset) > *rows) =>
        {
            return fail(format!("a context of {:?} positions over a table of {rows} rows", architecture.context));
        }
        Some(AbsolutePositions::Sinusoidal { frequencies, .. })
            if 2 * frequencies.len() > architecture.embedding.table_width.unwrap_or(architecture.width) =>
        {
            return fail(format!("{} sines and cosines in a narrower stream", 2 * frequencies.len()));
        }
        _ => {}
    }
    if architecture.embedding.table_width == Some(0) || architecture.head.table_width == Some(0) {
        return fail("embeddings without a coordinate".into());
    }
    if architecture.head.tied && architecture.head.table_width != architecture.embedding.table_width {
        return fail("a tied head of another width than the embedding".into());
    }
    for (index, layer) in architecture.layers.iter().enumerate() {
        let shared = layer.shared.as_ref().map(|shared| &shared.attention);
        let problem = layer.attention.as_ref().or(shared).and_then(|a| attention(architecture, a));
        let problem = problem.or_else(|| layer.recurrence.as_ref().and_then(recurrence));
        let problem = problem.or_else(|| layer.mlp.as_ref().and_then(mlp)).or_else(|| whole(layer));
        if let Some(problem) = problem {
            return fail(format!("layer {index} {problem}"));
        }
    }
    Ok(())
}

fn attention(architecture: &Architecture, a: &Attention) -> Option<String> {
    if a.heads == 0 || a.kv_heads == 0 || !a.heads.is_multiple_of(a.kv_heads) || a.head_dim == 0 || a.value_dim == 0 {
        return Some(format!("has {} heads of width {} over {} key heads", a.heads, a.head_dim, a.kv_heads));
    }
    let rotated = a.latent.map_or(a.head_dim, |latent| latent.rotated);
    let turns = |rope: usize| architecture.ropes.get(rope).is_some_and(|rope| rope.frequencies.len() * 2 <= rotated);
    if rotated > a.head_dim || a.rope.is_some_and(|rope| !turns(rope)) {
        return Some(format!("rotates more coordinates than its heads of {rotated} have"));
    }
    if a.window == Some(0) || a.chunk == Some(0) || a.alibi.as_ref().is_some_and(|alibi| alibi.slopes.len() != a.heads)
    {
        return Some("has an empty window or slopes for another number of heads".into());
    }
    if a.latent.is_some_and(|latent| latent.kv_rank == 0 || latent.query_rank == Some(0)) {
        return Some("compresses its keys to nothing".into());
    }
    // Clips, norms and scales belong to projected heads; those of latent attention are expanded.
    let projected = a.adapter.is_some()
        || a.clip.is_some()
        || a.qk_norm.is_some()
        || a.value_scale.is_some()
        || a.experts.is_some();
    if a.latent.is_some() && projected {
        return Some("clips, norms, scales or routes heads that are expanded from a compressed form".into());
    }
    if a.dynamic_mask.is_some_and(|mask| mask.kept == 0 || a.soft_cap.is_some()) {
        return Some("masks all keys, or caps what a mask adds to their scores".into());
    }
    if a.differential.is_some() && !a.kv_heads.is_multiple_of(2) {
        return Some(format!("pairs {} key heads", a.kv_heads));
    }
    if let Some(experts) = a.experts
        && (experts.chosen == 0 || experts.chosen > experts.count || a.heads != a.kv_heads * experts.chosen)
    {
        return Some(format!("chooses {} of {} experts for its {} heads", experts.chosen, experts.count, a.heads));
    }
    None
}

/// What the parts of a layer cannot be together.
fn whole(layer: &Layer) -> Option<String> {
    // A parallel block has one sum: there is no second place to skip to, and no middle.
    if layer.parallel && (layer.skip != Skip::Stream || layer.attn_stream_norm.is_some()) {
        return Some("runs in parallel and says what lies between its sublayers".into());
    }
    if let Some(shared) = &layer.shared {
        // A shared block feeds a recurrence, and its points are those of attention and MLP: a layer has them once.
        if layer.recurrence.is_none() || layer.attention.is_some() || layer.mlp.is_some() {
            return Some("uses a shared block without a recurrence, or beside sublayers of its own".into());
        }
        if let Some(problem) = mlp(&Mlp::Dense(shared.mlp)) {
            return Some(problem);
        }
    } else if layer.attention.as_ref().is_some_and(|a| a.adapter.is_some()) || adapted(layer.mlp.as_ref()) {
        return Some("has adapters, which belong to blocks that several layers share".into());
    }
    // One norm has one gain, and two outputs would need two.
    if layer.attn_post_norm.is_some() && layer.attention.is_some() && layer.recurrence.is_some() {
        return Some("norms the outputs of attention and a recurrence with one gain".into());
    }
    None
}

fn adapted(mlp: Option<&Mlp>) -> bool {
    matches!(mlp, Some(Mlp::Dense(dense)) if dense.adapter.is_some())
}

fn recurrence(recurrence: &Recurrence) -> Option<String> {
    let fits = match recurrence {
        Recurrence::Mamba(m) => m.width > 0 && m.state > 0 && m.rank > 0 && m.kernel > 0,
        Recurrence::Mamba2(m) => {
            let groups = m.groups > 0 && m.heads.is_multiple_of(m.groups);
            let normed = m.norm.is_none_or(|n| n.groups > 0 && (m.heads * m.head_dim).is_multiple_of(n.groups));
            m.heads > 0 && m.head_dim > 0 && m.state > 0 && m.kernel > 0 && groups && normed
        }
        Recurrence::DeltaRule(d) => {
            let heads = d.key_heads > 0 && d.value_heads > 0 && d.value_heads.is_multiple_of(d.key_heads);
            // A decay for each coordinate of a key belongs to that key head's one state.
            let decayed = d.decay == Decay::Head || (d.key_heads == d.value_heads && d.decay != Decay::Key(0));
            heads && decayed && d.key_dim > 0 && d.value_dim > 0 && d.kernel > 0 && d.gate_rank != Some(0)
        }
        Recurrence::LinearAttention(l) => l.heads > 0 && l.head_dim > 0 && l.decay.len() == l.heads,
        Recurrence::ShortConv(c) => c.kernel > 0,
        Recurrence::Lru(l) => l.width > 0 && l.blocks > 0 && l.width.is_multiple_of(l.blocks) && l.kernel > 0,
        Recurrence::Rwkv(width) => *width > 0,
    };
    (!fits).then(|| format!("has a recurrence whose numbers do not fit together: {recurrence:?}"))
}

fn mlp(mlp: &Mlp) -> Option<String> {
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
    let bent = |dense: &Dense| dense.gated && dense.xielu;
    let experts = match mlp {
        Mlp::Dense(dense) => return bent(dense).then(|| "gates an xIELU, which has no gate".into()),
        Mlp::ChannelMix { .. } => return None,
        Mlp::Experts(experts) => experts,
    };
    let e = &experts.expert;
    let inside = e.xielu || e.inner_norm.is_some() || e.gate_scale.is_some() || e.down_scale.is_some();
    let adapted = e.adapter.is_some() || experts.shared.is_some_and(|shared| shared.mlp.adapter.is_some());
    if inside || adapted || experts.shared.is_some_and(|shared| bent(&shared.mlp)) {
        return Some("has experts with an activation of their own, a norm, a scale or an adapter inside".into());
    }
    if experts.chosen == 0 || experts.chosen > experts.count {
        return Some(format!("chooses {} of {} experts", experts.chosen, experts.count));
    }
    let groups = experts.routing.groups?;
    let fits = groups.count > 0
        && experts.count.is_multiple_of(groups.count)
        && (1..=groups.count).contains(&groups.kept)
        && groups.kept * (experts.count / groups.count) >= experts.chosen
        && (!groups.by_best_two || experts.count / groups.count >= 2);
    (!fits).then(|| format!("keeps {} of {} groups of {} experts", groups.kept, groups.count, experts.count))
}
