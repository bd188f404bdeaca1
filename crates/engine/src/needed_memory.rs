//! The memory that a run or a generation will need, and the check that it may take it.
//!
//! The estimates are those of [`Plan::explain`](crate::Plan::explain). A call that needs more than
//! [`memory_limit`](crate::memory_limit) allows is refused before anything is allocated. Small
//! calls are not compared, so that they make no system call.

use crate::array::CaptureDtype;
use crate::backend::cpu::sae::MAX_ACTIVATIONS;
use crate::error::{Error, Result};
use crate::job::{CacheUse, CaptureOptions, spilled_bytes};
use crate::memory_limit::{MEMORY_LIMIT_VARIABLE, allowed_memory, format_bytes, is_checked, shape_bytes};
use crate::model::Model;
use crate::plan::{CompiledAction, CompiledPlan, CompiledReduce, CompiledTap};
use crate::program::{EdgeId, Layout, OpKind, Program, TokenSet};
use crate::sae::CHUNK_TOKENS;

/// Refuses a call that would need more memory than it may take. `purpose` names the call, such as
/// "this run".
///
/// # Errors
/// [`Error::Memory`], with all sizes.
pub fn check_memory(needed: usize, purpose: impl FnOnce() -> String) -> Result<()> {
    if !is_checked(needed) {
        return Ok(());
    }
    let allowed = allowed_memory()
        .map_err(|problem| Error::input(problem, format!("correct or unset {MEMORY_LIMIT_VARIABLE}")))?;
    match allowed.filter(|allowed| needed > allowed.bytes) {
        Some(allowed) => Err(Error::Memory { purpose: purpose(), needed, allowed }),
        None => Ok(()),
    }
}

/// How the rows of a call run, for the prediction of its memory.
pub(crate) struct CallShape<'a> {
    /// Positions that each row may reach.
    pub limits: &'a [usize],
    /// Tokens of a row in one pass.
    pub chunk: Option<usize>,
    pub cache: CacheUse,
    pub captures: &'a CaptureOptions,
}

/// Refuses a run or generation that would need more memory than it may take.
pub(crate) fn check_call(model: &Model, compiled: &CompiledPlan, call: &CallShape) -> Result<()> {
    let (program, limits) = (model.program(), call.limits);
    let positions: usize = limits.iter().sum();
    let captures = capture_bytes(compiled, program, limits, call.captures.dtype).saturating_sub(spilled_bytes(
        program,
        compiled,
        call.captures,
    ));
    let (unfused, values) = (unfused_bytes(program, compiled, &compiled.prompts), value_bytes(compiled));
    // More than the rest can be: no activation is freed, all are retained, every KV cache is kept.
    let width: usize = program.edges().iter().map(|edge| edge.width).sum();
    let bound = [positions.saturating_mul(12 * width), captures, unfused, values];
    if !is_checked(bound.into_iter().fold(0, usize::saturating_add)) {
        return Ok(());
    }
    let of_rows =
        |bytes: &dyn Fn(usize) -> usize| limits.iter().map(|&limit| bytes(limit)).fold(0, usize::saturating_add);
    let kv = match call.cache {
        // All layers share the memory of one.
        CacheUse::Discard => of_rows(&|limit| largest_kv(model, compiled, limit)),
        CacheUse::Keep | CacheUse::Decode => of_rows(&|limit| row_bytes(model, compiled, limit)),
    };
    let splits = compiled.sources.is_empty() && compiled.values.list.is_empty();
    let in_pass = |prompt: usize| call.chunk.filter(|_| splits).map_or(prompt, |chunk| prompt.min(chunk));
    let tokens: usize = compiled.prompts.iter().map(|&prompt| in_pass(prompt)).sum();
    let ends = if call.cache == CacheUse::Decode { compiled.prompts.len() } else { tokens };
    let activations = activation_bytes(program, compiled, |edge| match program.edge(edge).token_set {
        // Without a tap that reads them, the logits of the last positions only.
        TokenSet::ForLogits if compiled.taps.is_empty() => ends,
        _ => tokens,
    });
    let needed = [kv, activations, captures, unfused, values].into_iter().fold(0, usize::saturating_add);
    check_memory(needed, || {
        let what = if call.cache == CacheUse::Decode { "this generation" } else { "this run" };
        let parts = [("KV cache", kv), ("activations", activations.saturating_add(unfused)), ("captures", captures)];
        let parts = parts.into_iter().chain([("values", values)]).filter(|(_, bytes)| *bytes > 0);
        let parts: Vec<String> = parts.map(|(name, bytes)| format!("{name} {}", format_bytes(bytes))).collect();
        format!("{what} of {} rows and at most {positions} positions ({})", limits.len(), parts.join(", "))
    })
}

/// Bytes of the values of a plan that it does not save. A value is kept until the call ends.
pub(crate) fn value_bytes(compiled: &CompiledPlan) -> usize {
    let values = &compiled.values;
    let unsaved = values.shapes.iter_with_ids().filter(|(id, _)| !values.save.contains(id));
    unsaved.flat_map(|(_, shapes)| shapes).flatten().map(|shape| shape_bytes(shape)).fold(0, usize::saturating_add)
}

/// Bytes of the scores and probabilities of unfused attention, of the layer that needs most.
pub(crate) fn unfused_bytes(program: &Program, compiled: &CompiledPlan, lengths: &[usize]) -> usize {
    let on_attention = |entry: &&CompiledTap| program.edge(entry.edge).layout == Layout::QueryKey;
    let bytes = |entry: &CompiledTap| {
        let heads = program.edge(entry.edge).width;
        let rows = lengths.iter().zip(&entry.rows).filter(|(_, chosen)| chosen.is_some());
        rows.map(|(&length, _)| shape_bytes(&[2, heads, length, length])).fold(0, usize::saturating_add)
    };
    compiled.taps.iter().filter(on_attention).map(bytes).max().unwrap_or(0)
}

/// Bytes of the largest KV cache of one layer for a row of `positions` positions, and of all
/// recurrent states.
fn largest_kv(model: &Model, compiled: &CompiledPlan, positions: usize) -> usize {
    let ops = model.program().ops()[..compiled.ops].iter().map(|op| &op.kind);
    let (mut largest, mut states) = (0, 0);
    for op in ops {
        match op {
            OpKind::Attention { shape, .. } => largest = largest.max(shape.kv_layout(model.kv()).bytes(positions)),
            _ if op.is_recurrent() => states += 4 * state_floats(model, op),
            _ => {}
        }
    }
    largest + states
}

/// Bytes of the KV caches and recurrent states of one row of `positions` positions.
pub(crate) fn row_bytes(model: &Model, compiled: &CompiledPlan, positions: usize) -> usize {
    let ops = model.program().ops()[..compiled.ops].iter();
    let entered = ops.filter(|op| op.layer.is_none_or(|layer| !compiled.skipped[layer]));
    let bytes = |op: &OpKind| match op {
        OpKind::Attention { shape, .. } => shape.kv_layout(model.kv()).bytes(positions),
        _ if op.is_recurrent() => 4 * state_floats(model, op),
        _ => 0,
    };
    entered.map(|op| bytes(&op.kind)).sum()
}

/// Floats of the state that a recurrent op carries from token to token.
fn state_floats(model: &Model, op: &OpKind) -> usize {
    let width = model.program().edge(op.output()).width;
    match op {
        // The inputs of the last kernel_size − 1 tokens.
        OpKind::Convolve { kernel, .. } => model.weights().vector(*kernel).len() - width,
        OpKind::Recur { shape, .. } => shape.heads * shape.key_dim * shape.value_dim,
        // Numerator, denominator and running maximum of each channel.
        OpKind::Wkv { .. } => 3 * width,
        _ => width,
    }
}

/// Returns the most bytes of edges that exist at once. A backward pass retains the edges from the
/// first one whose gradient is needed.
pub(crate) fn activation_bytes(
    program: &Program,
    compiled: &CompiledPlan,
    positions_of: impl Fn(EdgeId) -> usize,
) -> usize {
    let ops = &program.ops()[..compiled.ops];
    // Inner edges of an op exist only where a tap needs them.
    let is_inner = |edge: EdgeId| ops[program.edge(edge).producer].kind.inner().contains(&edge);
    let edges: Vec<EdgeId> =
        program.edge_ids().filter(|&edge| program.edge(edge).producer < ops.len() && !is_inner(edge)).collect();
    let bytes = |edge: EdgeId| 4 * program.edge(edge).width * positions_of(edge);
    // For each op the bytes that it adds and those that are freed after it.
    let (mut added, mut freed) = (vec![0usize; ops.len()], vec![0usize; ops.len() + 1]);
    for &edge in &edges {
        added[program.edge(edge).producer] += bytes(edge);
        freed[program.last_use(edge).min(ops.len())] += bytes(edge);
    }
    let (mut alive, mut forward) = (0usize, 0);
    for (added, freed) in added.iter().zip(&freed) {
        alive += added;
        forward = forward.max(alive);
        alive -= freed;
    }
    let Some(needed) = compiled.gradient_edges(program) else { return forward };
    let first = program.edge_ids().filter(|&edge| needed[edge]).map(|edge| program.edge(edge).producer).min();
    let retained = |&&edge: &&EdgeId| first.is_some_and(|first| program.edge(edge).producer >= first);
    forward + edges.iter().filter(retained).map(|&edge| bytes(edge)).sum::<usize>()
}

/// Returns the number of positions for which an autoencoder runs under a plan.
pub(crate) fn sae_positions(program: &Program, compiled: &CompiledPlan, kind: &OpKind) -> usize {
    let OpKind::Sae { sae, acts, ref earlier, .. } = *kind else { return 0 };
    let used = compiled.sae_uses[sae];
    if !used.runs {
        return 0;
    }
    // Layers of a cross-layer transcoder also run where earlier features change, and where later
    // layers decode theirs.
    let changed = earlier.iter().flat_map(|features| [features.pre, features.acts]);
    let later: Vec<&OpKind> = match used.feeds_later {
        true => program.later_layers(acts).map(|op| &op.kind).collect(),
        false => Vec::new(),
    };
    let outputs: Vec<EdgeId> = std::iter::once(kind).chain(later.iter().copied()).map(OpKind::output).collect();
    let inner = later.iter().flat_map(|kind| kind.inner()).chain(kind.inner());
    let edges: Vec<EdgeId> = inner.chain(changed).chain(outputs.iter().copied()).collect();
    let uses =
        |entry: &&CompiledTap| !outputs.contains(&entry.edge) || matches!(entry.action, CompiledAction::Splice(_));
    let taps = compiled.taps.iter().filter(|entry| edges.contains(&entry.edge)).filter(uses).map(|entry| &entry.rows);
    let sources = compiled.sources.iter().filter(|source| edges.contains(&source.edge)).map(|source| &source.rows);
    let selections: Vec<_> = taps.chain(sources).collect();
    (0..compiled.prompts.len())
        .map(|row| {
            let chosen = selections.iter().filter_map(|rows| rows[row].as_ref()).flat_map(|chosen| chosen.positions());
            chosen.collect::<std::collections::BTreeSet<usize>>().len()
        })
        .sum()
}

/// Whether a tap needs the dense activations of features: one inside the autoencoder that is not a
/// sparse capture.
pub(crate) fn keeps_dense(compiled: &CompiledPlan, kind: &OpKind) -> bool {
    let OpKind::Sae { pre, acts, .. } = *kind else { return false };
    let is_sparse = |entry: &CompiledTap| matches!(entry.action, CompiledAction::Capture(CompiledReduce::Sparse(_)));
    let taps = compiled.taps.iter().any(|entry| entry.edge == pre || entry.edge == acts && !is_sparse(entry));
    taps || compiled.sources.iter().any(|source| source.edge == pre || source.edge == acts)
}

/// Returns the bytes of feature activations that exist at once. A backward pass keeps the
/// pre-activations of all tokens; otherwise tokens run a few at a time.
pub(crate) fn sae_memory(n_features: usize, positions: usize, gradients: bool, dense: bool) -> usize {
    let all = n_features * positions;
    4 * match (gradients, dense) {
        (true, _) => 3 * all,
        (false, true) => all.min(MAX_ACTIVATIONS.max(n_features)),
        (false, false) => all.min(CHUNK_TOKENS * n_features),
    }
}

/// Bytes of the captures and saved values of a plan; rows have `lengths` positions, and whole
/// captures are stored as `dtype`.
pub(crate) fn capture_bytes(
    compiled: &CompiledPlan,
    program: &Program,
    lengths: &[usize],
    dtype: CaptureDtype,
) -> usize {
    let of = |entry: &CompiledTap, action: &CompiledAction| {
        let edge = program.edge(entry.edge);
        let rows = entry.rows.iter().enumerate().filter_map(|(row, chosen)| Some((row, chosen.as_ref()?.len())));
        let bytes = |row: usize, positions: usize| match action {
            CompiledAction::Capture(_) if edge.layout == Layout::QueryKey => {
                4 * entry.heads.len() * positions * lengths[row]
            }
            CompiledAction::Capture(CompiledReduce::Whole) => {
                let dtype = if edge.integer { CaptureDtype::F32 } else { dtype };
                dtype.bytes() * positions * entry.captured_len()
            }
            CompiledAction::Capture(CompiledReduce::Mean) => 4 * entry.columns.len(),
            CompiledAction::Capture(CompiledReduce::TopK { k, .. }) => 8 * positions * k,
            CompiledAction::Capture(CompiledReduce::Project(matrix)) => 4 * positions * matrix.rows(),
            CompiledAction::Capture(CompiledReduce::Norm | CompiledReduce::Dot(_)) => 4 * positions,
            // An index and a value for each element, and the offset of each position.
            CompiledAction::Capture(CompiledReduce::Sparse(size)) => positions * (8 * size.per_position + 8),
            CompiledAction::Read
            | CompiledAction::Grad { .. }
            | CompiledAction::Edit(_)
            | CompiledAction::Call(_)
            | CompiledAction::Splice(_)
            | CompiledAction::Condition(_) => 0,
        };
        rows.map(|(row, positions)| bytes(row, positions)).sum::<usize>()
    };
    let captures = compiled.taps.iter().map(|entry| match &entry.action {
        CompiledAction::Grad { action, .. } => of(entry, action),
        CompiledAction::Capture(_) => of(entry, &entry.action),
        CompiledAction::Read
        | CompiledAction::Edit(_)
        | CompiledAction::Call(_)
        | CompiledAction::Condition(_)
        | CompiledAction::Splice(_) => 0,
    });
    let saved = compiled.values.save.iter().flat_map(|&value| &compiled.values.shapes[value]).flatten();
    saved.map(|shape| shape_bytes(shape)).fold(captures.sum::<usize>(), usize::saturating_add)
}
