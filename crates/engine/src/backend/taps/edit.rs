//! Applies one tap to the selected tokens of one row.

use super::{JobTaps, SelectedToken};
use crate::array::Array;
use crate::error::{Error, Result};
use crate::memory::DeviceValue;
use crate::plan::{CompiledAction, CompiledTap, EditInput, EditSource, TokenOperand, check_expert};

/// A token or slot that is edited: its row, its index in the selection, its slot (0 without
/// `experts`).
type EditedAt = (usize, usize, usize);

impl JobTaps<'_> {
    /// Applies a tap that reads or edits to the selected tokens of one row. `choices` are the
    /// chosen experts of all tokens, if the edge has a slot for each.
    pub(super) fn apply_row(
        &mut self,
        entry: &CompiledTap,
        row: usize,
        tokens: &[SelectedToken],
        value: &mut [f32],
        choices: &[f32],
    ) -> Result<()> {
        if tokens.is_empty() {
            return Ok(());
        }
        let width = self.program.edge(entry.edge).width;
        if matches!(entry.action, CompiledAction::Read) {
            let mut order = tokens.to_vec();
            order.sort_unstable_by_key(|&(_, _, nth)| nth);
            let mut values = Vec::with_capacity(tokens.len() * entry.columns.len());
            order.iter().for_each(|&(token, ..)| entry.columns.gather(&value[token * width..][..width], &mut values));
            let edge = self.program.edge(entry.edge);
            let array = Array::new(entry.columns.shape(edge, tokens.len()), values).with_integer(edge.integer);
            self.job.bind(entry, row, array);
            return Ok(());
        }
        // A computed value has one vector per selected position of this pass, in selection order.
        let edge = self.program.edge(entry.edge);
        let computed = self.computed(entry, row, || entry.columns.shape(edge, tokens.len()))?;
        let mut ranks: Vec<usize> = tokens.iter().map(|&(_, _, nth)| nth).collect();
        ranks.sort_unstable();
        let mut picked = Vec::with_capacity(entry.columns.len());
        for &(token, _, nth) in tokens {
            if !self.job.collector.applies(entry, row, nth) {
                continue;
            }
            let line = computed.as_ref().map(|values| {
                let rank = ranks.binary_search(&nth).unwrap_or_default();
                &values[rank * entry.columns.len()..][..entry.columns.len()]
            });
            let elements = &mut value[token * width..][..width];
            match &entry.experts {
                None => self.edit_columns(entry, (row, nth, 0), line, elements, &mut picked)?,
                Some(experts) => {
                    for slot in experts.slots_of(choices, token) {
                        let elements = experts.slot_mut(elements, slot);
                        self.edit_columns(entry, (row, nth, slot), line, elements, &mut picked)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Edits the selected columns of one token, or of one of its slots.
    fn edit_columns(
        &self,
        entry: &CompiledTap,
        at: EditedAt,
        line: Option<&[f32]>,
        elements: &mut [f32],
        picked: &mut Vec<f32>,
    ) -> Result<()> {
        picked.clear();
        entry.columns.gather(elements, picked);
        self.edit(entry, at, line, picked)?;
        entry.columns.scatter(picked, elements);
        Ok(())
    }

    /// The computed value that a tap writes, if any, broadcast to the shape of its selection.
    pub(super) fn computed(
        &mut self,
        entry: &CompiledTap,
        row: usize,
        shape: impl FnOnce() -> Vec<usize>,
    ) -> Result<Option<Vec<f32>>> {
        let Some(value) = entry.value() else { return Ok(None) };
        let array = self.job.value(self.ops, value, Some(row))?;
        let shape = shape();
        let wide = array.broadcast(&shape).ok_or_else(|| {
            let problem = format!("a value of shape {:?} does not fit a selection of shape {shape:?}", array.shape());
            self.at_run_time(entry, problem, "shapes broadcast as in numpy")
        })?;
        if !self.job.compiled.values.allow_nan && wide.iter().any(|x| x.is_nan()) {
            let problem =
                format!("{} has NaN, which would spread to everything after it", self.job.compiled.values.name(value));
            return Err(self.at_run_time(entry, problem, "find where it comes from, or set allow_nan"));
        }
        Ok(Some(wide))
    }

    /// Edits the selected floats of one token (or of one query's attention); `line` is the computed
    /// value for them, or the downloaded activation of a source in device memory.
    pub(super) fn edit(
        &self,
        entry: &CompiledTap,
        (row, nth, slot): EditedAt,
        line: Option<&[f32]>,
        picked: &mut [f32],
    ) -> Result<()> {
        let CompiledAction::Edit(edit) = &entry.action else { return Ok(()) };
        let operand = self.operand(entry, edit.edit_source(), row, nth, line, picked.len())?;
        // The record of an edit by expert also tells the backward pass which slots it has changed.
        let recorded = edit.is_nonlinear() || entry.experts.is_some();
        if recorded && self.job.compiled.has_gradients() && !self.job.replay {
            let operand = if let TokenOperand::Each(values) = operand { values.to_vec() } else { Vec::new() };
            let input = EditInput { input: picked.to_vec(), operand };
            self.job.collector.store().lock().record_input((entry.tap, entry.site, row, nth, slot), input);
        }
        edit.apply(picked, operand);
        let edge = self.program.edge(entry.edge);
        if let Some(routed) = edge.routed.filter(|_| edge.integer) {
            // An index out of range would leave the experts' weights.
            let checked = picked.iter().try_for_each(|&expert| check_expert(expert, routed.experts));
            checked.map_err(|problem| self.at_run_time(entry, problem, "write whole numbers of existing experts"))?;
        }
        Ok(())
    }

    /// The operand of an edit at one token with `count` selected floats.
    fn operand<'a>(
        &'a self,
        entry: &CompiledTap,
        given: Option<&'a EditSource>,
        row: usize,
        nth: usize,
        line: Option<&'a [f32]>,
        count: usize,
    ) -> Result<TokenOperand<'a>> {
        let values = match given {
            None => return Ok(TokenOperand::None),
            Some(EditSource::Number(number)) => return Ok(TokenOperand::Number(*number)),
            Some(EditSource::Vector(vector)) => vector.as_slice(),
            Some(EditSource::Rows(rows)) => rows[nth].as_slice(),
            Some(EditSource::Site(source)) => match line {
                Some(downloaded) => downloaded,
                None => self.source(entry, *source, row, nth)?,
            },
            Some(EditSource::Value(_)) => line.unwrap_or_default(),
        };
        if values.len() != count {
            let problem = format!("the source has {} values, but row {row} has {count}", values.len());
            let remedy = "attention can be copied only between rows of equal length";
            return Err(self.at_run_time(entry, problem, remedy));
        }
        Ok(TokenOperand::Each(values))
    }

    fn source(&self, entry: &CompiledTap, index: usize, row: usize, nth: usize) -> Result<&[f32]> {
        let origin = self.job.compiled.sources[index].read_by[row].unwrap_or(row);
        self.job.collector.stashed(index, origin, nth).ok_or_else(|| self.not_computed(entry, origin, row))
    }

    /// The line of a source that a token reads, in device memory.
    pub(super) fn source_on_device(
        &self,
        entry: &CompiledTap,
        index: usize,
        row: usize,
        nth: usize,
    ) -> Result<(DeviceValue, usize)> {
        let origin = self.job.compiled.sources[index].read_by[row].unwrap_or(row);
        let line = self.job.collector.stashed_on_device(index, origin, nth);
        line.ok_or_else(|| self.not_computed(entry, origin, row))
    }

    fn not_computed(&self, entry: &CompiledTap, origin: usize, row: usize) -> Error {
        let problem = format!(
            "row {origin} has not computed the value that row {row} reads (it ended earlier, or lies later in the text)"
        );
        let remedy = "choose positions that the source row reaches no later than the row that reads it";
        self.at_run_time(entry, problem, remedy)
    }

    fn at_run_time(&self, entry: &CompiledTap, problem: String, remedy: &str) -> Error {
        Error::Plan { tap: entry.tap, site: entry.site.to_string(), problem, remedy: remedy.into() }
    }
}
