//! What edits write must fit, and gradients must be able to pass.

use super::compile_value::{Values, selection_shape};
use super::compiled::{CompiledAction, Entry, Lengths};
use crate::error::{Error, Result};
use crate::program::Program;

/// Refuses gradients that would have to pass through what has none.
pub(super) fn check_passable(program: &Program, entries: &[Entry], values: &Values) -> Result<()> {
    let made = |entry: &Entry| program.edge(entry.edge).made_by;
    let Some(first) = entries.iter().filter(|entry| entry.on_gradient()).map(made).min() else { return Ok(()) };
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
        made(entry) >= first && (by_value || matches!(entry.action, CompiledAction::Cap(..) | CompiledAction::Call(_)))
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
        if value >= values.list.len() {
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
                crate::value::shape::fits(shape, &selection)
                    .map_err(|problem| fail(format!("row {row}: {problem}")))?;
            }
        }
    }
    Ok(())
}
