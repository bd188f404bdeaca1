//! Checks across taps and values: shapes of edits, and differentiability of every path that a
//! requested gradient takes.

use super::compile_value::{CompiledValues, OpRange, selection_shape};
use super::compiled::{CompiledTap, Lengths};
use crate::error::{Error, Result};
use crate::plan::{CompiledAction, ValueId};
use crate::program::{EdgeId, Op, OpKind, Program};
use crate::remedy::Remedy;
use std::collections::{BTreeMap, HashSet};

/// Rejects a plan whose gradients would flow through a non-differentiable action (`cap`, `call`, an
/// edit with a condition, an opaque function).
pub(super) fn check_differentiable(program: &Program, entries: &[CompiledTap], values: &CompiledValues) -> Result<()> {
    let producer = |entry: &CompiledTap| program.edge(entry.edge).producer;
    let sites = entries.iter().filter(|entry| entry.on_gradient()).map(producer);
    let reads = |op: &Op| values.weight_grads.iter().any(|request| op.kind.weights().contains(&request.weight));
    let weights = program.ops().iter().position(|op| !values.weight_grads.is_empty() && reads(op));
    let Some(first) = sites.chain(weights).min() else { return Ok(()) };
    check_weight_reused_by_metric(program, entries, values)?;
    check_metric_depends(program, entries, values)?;
    let blocked = values.metrics.iter().find(|&&metric| values.opaque[metric]);
    if let Some(&metric) = blocked {
        return Err(Error::Value {
            value: values.name(metric),
            problem: "the metric depends on an opaque function, which has no gradient".into(),
            remedy: "build the metric from recorded operations, or detach the function's result".into(),
        });
    }
    let blocks = |entry: &&CompiledTap| {
        let by_value = entry.value().is_some_and(|value| values.opaque[value]);
        producer(entry) >= first && (by_value || !entry.is_differentiable())
    };
    match entries.iter().find(blocks) {
        None => Ok(()),
        Some(entry) => Err(Error::Plan {
            tap: entry.tap,
            site: entry.site.to_string(),
            problem: "gradients cannot flow through `cap`, `call`, an edit with `when` or an opaque function".into(),
            remedy: "ask for gradients only at sites computed after this edit, or detach the function's result".into(),
        }),
    }
}

/// Rejects a gradient that would be zero everywhere by mistake: the metric reads the same site in
/// an earlier tap of the list, or depends on none of the sites whose gradients the plan returns.
fn check_metric_depends(program: &Program, entries: &[CompiledTap], values: &CompiledValues) -> Result<()> {
    // An edit that writes another activation can make an earlier site of one row depend on a later
    // one of another.
    if entries.iter().any(|entry| entry.source().is_some() || entry.value().is_some()) {
        return Ok(());
    }
    for (metric, &value) in values.metrics.iter().enumerate() {
        let reads: Vec<usize> = values.reads[value].iter().filter_map(|&read| values.bound_by[read]).collect();
        // For each read the ops that its activation is computed by.
        let ancestors: Vec<HashSet<usize>> = reads.iter().map(|&read| ancestors(program, entries[read].edge)).collect();
        let reaches = |index: usize| {
            let entry = &entries[index];
            reads.iter().zip(&ancestors).any(|(&read, ancestors)| match entry.edge == entries[read].edge {
                true => (entry.site.layer, index) < (entries[read].site.layer, read),
                false => {
                    ancestors.contains(&program.edge(entry.edge).producer)
                        && program.order_of(entry.edge) < program.order_of(entries[read].edge)
                }
            })
        };
        let taps: BTreeMap<usize, Vec<usize>> =
            entries.iter().enumerate().fold(BTreeMap::new(), |mut taps, (i, entry)| {
                // An edit of a gradient that is zero anyway does no harm: freezes list every site.
                let returns = |action: &CompiledAction| action.is_read_only();
                if matches!(&entry.action, CompiledAction::Grad { metric: of, action } if *of == metric && returns(action)) {
                    taps.entry(entry.tap).or_insert_with(Vec::new).push(i);
                }
                taps
            });
        let none_reaches = !taps.values().flatten().any(|&index| reaches(index));
        for (tap, sites) in taps {
            let entry = &entries[sites[0]];
            let same = reads.iter().any(|&read| entries[read].edge == entry.edge);
            // Among gradients at many sites, as of all layers, those of later sites may be zero.
            if sites.iter().any(|&index| reaches(index)) || !(same || none_reaches) {
                continue;
            }
            return Err(Error::Plan {
                tap,
                site: entry.site.to_string(),
                problem: format!("the gradient would be zero: {} does not depend on this site", values.name(value)),
                remedy: match same {
                    true => "list the tap with `grad` before the tap that the metric reads".into(),
                    false => "take the metric from a later site, or the gradient at an earlier one".into(),
                },
            });
        }
    }
    Ok(())
}

/// Returns the ops that an edge's value depends on, its producer included.
fn ancestors(program: &Program, edge: EdgeId) -> HashSet<usize> {
    let (mut ops, mut todo) = (HashSet::new(), vec![edge]);
    while let Some(edge) = todo.pop() {
        let producer = program.edge(edge).producer;
        if ops.insert(producer) {
            let kind = &program.ops()[producer].kind;
            todo.extend(kind.inputs());
            // A layer of a cross-layer transcoder decodes features of earlier layers.
            if let OpKind::Sae { earlier, .. } = kind {
                todo.extend(earlier.iter().map(|features| features.acts));
            }
        }
    }
    ops
}

/// Rejects the gradient of a weight that the metric uses a second time through `through` or
/// `unembed`: that use is not on the tape, so its contribution would be missing.
fn check_weight_reused_by_metric(program: &Program, entries: &[CompiledTap], values: &CompiledValues) -> Result<()> {
    let mut used: Vec<ValueId> =
        values.metrics.iter().copied().chain(entries.iter().filter_map(CompiledTap::value)).collect();
    let mut next = 0;
    while let Some(&value) = used.get(next) {
        let inputs = values.list[value].expr.inputs();
        used.extend(inputs.into_iter().filter(|input| !used.contains(input)).collect::<Vec<_>>());
        next += 1;
    }
    for request in &values.weight_grads {
        let uses_weight =
            |range: &OpRange| range.ops.iter().any(|&op| program.ops()[op].kind.weights().contains(&request.weight));
        if let Some(&through) = used.iter().find(|&&value| values.op_ranges[value].as_ref().is_some_and(uses_weight)) {
            return Err(Error::Value {
                value: values.name(request.value),
                problem: format!(
                    "{} uses `{}` a second time, and the gradient would miss that contribution",
                    values.name(through),
                    program.weight(request.weight).name
                ),
                remedy: "build the metric from sites of the run, not from `through` or `unembed`".into(),
            });
        }
    }
    Ok(())
}

/// Rejects edits whose value does not broadcast to their selection.
pub(super) fn check_edit_shapes(
    program: &Program,
    entries: &[CompiledTap],
    values: &CompiledValues,
    lengths: Lengths,
) -> Result<()> {
    for entry in entries {
        let Some(value) = entry.value() else { continue };
        let fail = |problem: String| Error::Plan {
            tap: entry.tap,
            site: entry.site.to_string(),
            problem,
            remedy: Remedy::SiteShapes("shapes broadcast as in numpy"),
        };
        if values.list.get(value).is_none() {
            return Err(fail(format!("there is no value {value}: the plan has {} values", values.list.len())));
        }
        if values.gradient_of[value].is_some() && !entry.on_gradient() {
            return Err(fail(format!(
                "{} depends on a gradient, which exists only after the forward pass",
                values.name(value)
            )));
        }
        for row in (0..lengths.prompts.len()).filter(|&row| entry.rows[row].is_some()) {
            let value_rows = values.rows[value].each();
            if value_rows.len() > 1 && !value_rows.contains(&Some(row)) {
                return Err(fail(format!("{} has no array for row {row}", values.name(value))));
            }
            let shapes = values.shape(value, Some(row)).zip(selection_shape(program, entry, lengths, row));
            if let Some((shape, selection)) = shapes {
                super::value_shape::check_broadcasts_to(shape, &selection)
                    .map_err(|problem| fail(format!("row {row}: {problem}")))?;
            }
        }
    }
    Ok(())
}
