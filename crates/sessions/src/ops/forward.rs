//! Forward passes of a batch: plain, with latents cached, or with autoencoders spliced in.

use super::answers::AnswerRow;
use super::batch::{AnalysisBatch, OpContext};
use crate::table::Column;
use pellucid_engine::{Action, Base, Capture, Plan, Tap};
use pellucid_models::Result;

/// Taps that put every autoencoder's reconstruction in the place of its activation.
pub(super) fn splices(context: &OpContext<'_>) -> Plan {
    Plan::of(context.hooks.iter().map(|hook| Tap::new(hook.name(), Action::Splice(hook.splice))))
}

/// Taps that mask the pads of each row.
pub(super) fn mask_pads(rows: &[AnswerRow]) -> impl Iterator<Item = Tap> {
    rows.iter().enumerate().filter_map(|(index, row)| row.mask_pads(index))
}

/// Runs a row with autoencoders spliced in, and keeps the run for branches.
pub(super) fn spliced_base(context: &OpContext<'_>, row: &AnswerRow) -> Result<Base> {
    let mut plan = splices(context);
    plan.taps.extend(row.mask_pads(0));
    Ok(context.model.model.base_with(&row.tokens, &plan, context.interrupt.clone())?)
}

/// Taps that capture the latents of every autoencoder at the answer position of each example's
/// first row.
pub(super) fn capture_latents(context: &OpContext<'_>, rows: &[AnswerRow]) -> Vec<Tap> {
    let mut taps = Vec::new();
    for hook in context.hooks {
        for (row, answer) in first_rows(rows) {
            taps.push(Tap::capture(hook.acts()).rows([row]).positions(answer.first as i64));
        }
    }
    taps
}

/// The first row of each example, with its index in the run.
pub(super) fn first_rows(rows: &[AnswerRow]) -> impl Iterator<Item = (usize, &AnswerRow)> {
    let is_first = |index: usize| index == 0 || rows[index - 1].example != rows[index].example;
    rows.iter().enumerate().filter(move |(index, _)| is_first(*index))
}

/// Runs the rows of a batch; stores logits, answer positions and, with `cache`, latents. With
/// `splice` the model continues with reconstructions.
pub(super) fn forward(context: &OpContext<'_>, batch: &mut AnalysisBatch, splice: bool, cache: bool) -> Result<()> {
    let rows = AnswerRow::of_batch(context);
    let mut plan = if splice { splices(context) } else { Plan::default() };
    plan.taps.extend(mask_pads(&rows));
    plan.taps.extend(rows.iter().enumerate().map(|(index, row)| row.capture_logits(index)));
    if cache {
        plan.taps.extend(capture_latents(context, &rows));
    }
    let tokens: Vec<Vec<u32>> = rows.iter().map(|row| row.tokens.clone()).collect();
    let run = context.model.model.run(&tokens, &plan, &context.run_options())?;
    let (logits, latents) = run.captures.split_at(rows.len());
    store_logits(batch, &rows, logits)?;
    if cache {
        batch.memory.cache = by_hook(context, latents);
    }
    Ok(())
}

/// Runs the rows of a batch with autoencoders spliced in, and keeps each run for branches. Logits
/// and latents come from a branch that changes nothing: it computes one token, with the run's bits.
pub(super) fn forward_with_bases(context: &OpContext<'_>, batch: &mut AnalysisBatch) -> Result<()> {
    let rows = AnswerRow::of_batch(context);
    let (mut logits, mut latents) = (Vec::with_capacity(rows.len()), Vec::new());
    batch.memory.bases.clear();
    for row in &rows {
        let base = spliced_base(context, row)?;
        let at = |tap: Tap| tap.positions(row.first as i64);
        let mut plan = Plan::of(context.hooks.iter().map(|hook| at(Tap::scale(hook.acts(), 1.0))));
        plan.taps.push(row.capture_logits(0));
        plan.taps.extend(context.hooks.iter().map(|hook| at(Tap::capture(hook.acts()))));
        let mut captures = base.branch(&plan)?.captures.into_iter();
        logits.extend(captures.next());
        latents.push(captures.map(|capture| capture.array.values().to_vec()).collect::<Vec<_>>());
        batch.memory.bases.push(base);
    }
    store_logits(batch, &rows, &logits)?;
    let of_hook = |hook: usize| first_rows(&rows).map(|(row, _)| latents[row][hook].clone()).collect();
    batch.memory.cache = (0..context.hooks.len()).map(of_hook).collect();
    Ok(())
}

/// Stores the captured logits of each row, and the answer position of each example.
pub(super) fn store_logits(batch: &mut AnalysisBatch, rows: &[AnswerRow], captures: &[Capture]) -> Result<()> {
    batch.memory.logits = captures.iter().map(|capture| capture.array.values().to_vec()).collect();
    let mut joined: Vec<Vec<f32>> = Vec::new();
    for (row, logits) in rows.iter().zip(&batch.memory.logits) {
        match joined.get_mut(row.example) {
            Some(own) => own.extend(logits),
            None => joined.push(logits.clone()),
        }
    }
    batch.set_example("answer_logits", Column::Float32List(joined))?;
    let positions = first_rows(rows).map(|(_, row)| row.first as i64).collect();
    batch.set_example("answer_indices", Column::Int64(positions))
}

/// Sorts captures of latents by autoencoder, then example.
pub(super) fn by_hook(context: &OpContext<'_>, captures: &[Capture]) -> Vec<Vec<Vec<f32>>> {
    let each = context.examples.len();
    captures.chunks(each).map(|own| own.iter().map(|capture| capture.array.values().to_vec()).collect()).collect()
}
