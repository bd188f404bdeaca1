//! What edits write must fit, and gradients must be able to pass.

use super::compile_value::{Stretch, Values, selection_shape};
use super::compiled::{Entry, Lengths};
use crate::error::{Error, Result};
use crate::plan::ValueId;
use crate::program::{Op, Program};

/// Refuses gradients that would have to pass through what has none.
pub(super) fn check_passable(program: &Program, entries: &[Entry], values: &Values) -> Result<()> {
    let made = |entry: &Entry| program.edge(entry.edge).made_by;
    let sites = entries.iter().filter(|entry| entry.on_gradient()).map(made);
    let reads = |op: &Op| values.weights.iter().any(|sought| op.kind.weights().contains(&sought.weight));
    let weights = program.ops().iter().position(|op| !values.weights.is_empty() && reads(op));
    let Some(first) = sites.chain(weights).min() else { return Ok(()) };
    check_own_use(program, entries, values)?;
    let blocked = values.metrics.iter().find(|&&metric| values.opaque[metric]);
    if let Some(&metric) = blocked {
        return Err(Error::Value {
            value: values.name(metric),
            problem: "as a metric it passes through a function of arrays, which has no gradient".into(),
            remedy: "build the metric from recorded operations, or detach what the function made".into(),
        });
    }
    let blocks = |entry: &&Entry| {
        let by_value = entry.value().is_some_and(|value| values.opaque[value]);
        made(entry) >= first && (by_value || !entry.action.passes_gradient())
    };
    match entries.iter().find(blocks) {
        None => Ok(()),
        Some(entry) => Err(Error::Plan {
            tap: entry.tap,
            site: entry.site.to_string(),
            problem: "no gradient passes through `cap`, `call` or a function of arrays".into(),
            remedy: "ask for gradients behind it, or detach what the function made".into(),
        }),
    }
}

/// Refuses the gradient of a weight that a metric also meets in `through` or `unembed`: only its part in the run would be seen.
fn check_own_use(program: &Program, entries: &[Entry], values: &Values) -> Result<()> {
    let mut used: Vec<ValueId> =
        values.metrics.iter().copied().chain(entries.iter().filter_map(Entry::value)).collect();
    let mut next = 0;
    while let Some(&value) = used.get(next) {
        let more = values.list[value].expr.inputs();
        used.extend(more.into_iter().filter(|input| !used.contains(input)).collect::<Vec<_>>());
        next += 1;
    }
    for sought in &values.weights {
        let meets =
            |stretch: &Stretch| stretch.ops.iter().any(|&op| program.ops()[op].kind.weights().contains(&sought.weight));
        if let Some(&through) = used.iter().find(|&&value| values.stretches[value].as_ref().is_some_and(meets)) {
            return Err(Error::Value {
                value: values.name(sought.value),
                problem: format!(
                    "{} runs `{}` once more, and the gradient would miss that part",
                    values.name(through),
                    program.weight(sought.weight).name
                ),
                remedy: "build the metric from sites of the run, not from `through` or `unembed`".into(),
            });
        }
    }
    Ok(())
}

/// Refuses edits whose value does not fit what they select.
pub(super) fn check_written(program: &Program, entries: &[Entry], values: &Values, lengths: Lengths) -> Result<()> {
    for entry in entries {
        let Some(value) = entry.value() else { continue };
        let fail = |problem: String| Error::Plan {
            tap: entry.tap,
            site: entry.site.to_string(),
            problem,
            remedy: "shapes broadcast as in numpy; `pellucid sites` shows each site's shape".into(),
        };
        if values.list.get(value).is_none() {
            return Err(fail(format!("there is no value {value}: the plan has {}", values.list.len())));
        }
        if values.gradient_of[value].is_some() && !entry.on_gradient() {
            return Err(fail(format!(
                "{} depends on a gradient, which is known only after the run",
                values.name(value)
            )));
        }
        for row in (0..lengths.prompts.len()).filter(|&row| entry.rows[row].is_some()) {
            let has = values.rows[value].each();
            if has.len() > 1 && !has.contains(&Some(row)) {
                return Err(fail(format!("{} has no array for row {row}", values.name(value))));
            }
            let shapes = values.shape(value, Some(row)).zip(selection_shape(program, entry, lengths, row));
            if let Some((shape, selection)) = shapes {
                super::value_shape::fits(shape, &selection).map_err(|problem| fail(format!("row {row}: {problem}")))?;
            }
        }
    }
    Ok(())
}
