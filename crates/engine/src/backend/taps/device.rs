//! Taps on values in device memory: selection and action are sent to the backend as data.

use super::{Device, JobTaps, SelectedToken, selected};
use crate::array::Array;
use crate::error::Result;
use crate::job::{Pass, Segment};
use crate::memory::{DeviceValue, EditOperand, Selection, TapEdit, TapWork};
use crate::plan::{Callback, Columns, CompiledAction, CompiledReduce, CompiledTap, Edit, EditSource, SelectedRow};
use crate::program::EdgeId;

impl JobTaps<'_> {
    /// Applies each tap of an edge to all segments of the job, then stashes the values at this edge
    /// that edits at other sites or rows use as their operand.
    pub(super) fn apply_on_device(
        &mut self,
        (pass, segments): (&Pass, &[Segment]),
        edge: EdgeId,
        handed_over: Option<usize>,
        value: &DeviceValue,
        choices: &[f32],
        device: &mut Device,
    ) -> Result<()> {
        let (compiled, spec) = (self.job.compiled.clone(), self.program.edge(edge));
        for &index in &compiled.at_edge[edge] {
            let entry = &compiled.taps[index];
            if Some(index) == handed_over || self.job.ignores(entry) {
                continue;
            }
            let tokens = |segment: &Segment| -> Vec<SelectedToken> {
                let chosen = entry.rows[segment.row].as_ref();
                chosen.map_or_else(Vec::new, |chosen| selected(pass, segment, spec.token_set, chosen).collect())
            };
            let rows: Vec<(usize, Vec<SelectedToken>)> = segments
                .iter()
                .map(|segment| (segment.row, tokens(segment)))
                .filter(|(_, own)| !own.is_empty())
                .collect();
            match &entry.action {
                CompiledAction::Call(callback) => self.call_with_device(entry, callback, &rows, value, device)?,
                CompiledAction::Capture(reduce) => {
                    for (row, tokens) in &rows {
                        match &entry.experts {
                            Some(_) => self.capture_experts(index, entry, *row, tokens, value, choices, device)?,
                            None => self.capture_on_device(index, entry, reduce, *row, tokens, value, device),
                        }
                    }
                }
                CompiledAction::Read => {
                    for (row, tokens) in &rows {
                        let mut tokens = tokens.clone();
                        tokens.sort_unstable_by_key(|&(_, _, nth)| nth);
                        let floats = self.fetch(entry, &tokens, value, device)?;
                        let shape = entry.columns.shape(spec, tokens.len());
                        self.job.bind(entry, *row, Array::new(shape, floats).with_integer(spec.integer));
                    }
                }
                CompiledAction::Edit(edit) => {
                    for (row, tokens) in &rows {
                        match &entry.experts {
                            Some(_) => self.edit_experts_on_host(entry, *row, tokens, value, choices, device)?,
                            None => self.edit_on_device(entry, edit, *row, tokens, value, device)?,
                        }
                    }
                }
                CompiledAction::Condition(condition) => {
                    for (row, tokens) in &rows {
                        let floats = self.fetch(entry, tokens, value, device)?;
                        for (floats, &(_, position, nth)) in floats.chunks_exact(spec.width).zip(tokens) {
                            self.job.collector.test(index, entry, condition, (*row, position, nth), floats);
                        }
                    }
                }
                CompiledAction::Grad { .. } | CompiledAction::Splice(_) => {}
            }
        }
        for &index in compiled.sources_at[edge].iter().filter(|_| !self.job.replay) {
            let source = &compiled.sources[index];
            for segment in segments {
                let Some(chosen) = &source.rows[segment.row] else { continue };
                let tokens: Vec<SelectedToken> = selected(pass, segment, spec.token_set, chosen).collect();
                if let Some(lines) = gather(&source.columns, spec.width, &tokens, value, device) {
                    let indices = tokens.iter().map(|&(_, _, nth)| nth);
                    self.job.collector.stash_on_device(index, segment.row, indices, chosen.len(), &lines);
                }
            }
        }
        Ok(())
    }

    #[allow(clippy::too_many_arguments)] // one arm of the function above
    fn capture_on_device(
        &mut self,
        index: usize,
        entry: &CompiledTap,
        reduce: &CompiledReduce,
        row: usize,
        tokens: &[SelectedToken],
        value: &DeviceValue,
        device: &mut Device,
    ) {
        // A mean is over all tokens, top-k needs a sort, projections a matrix, and the size of a
        // sparse line is not known before: the device only gathers, and the host reduces after the
        // download.
        let work = match reduce {
            CompiledReduce::Norm => TapWork::Norm,
            CompiledReduce::Dot(vector) => TapWork::Dot(vector),
            CompiledReduce::Whole
            | CompiledReduce::Mean
            | CompiledReduce::TopK { .. }
            | CompiledReduce::Project(_)
            | CompiledReduce::Sparse(_) => TapWork::Gather,
        };
        let applies = |&&(_, _, nth): &&SelectedToken| self.job.collector.applies(entry, row, nth);
        let tokens: Vec<SelectedToken> = tokens.iter().filter(applies).copied().collect();
        if tokens.is_empty() {
            return;
        }
        let width = self.program.edge(entry.edge).width;
        if let Some(lines) = tap(&entry.columns, width, &tokens, value, &work, device) {
            let indices = tokens.iter().map(|&(_, _, nth)| nth).collect();
            self.job.collector.collect_on_device(index, row, indices, lines);
        }
    }

    /// Downloads the selected floats.
    fn fetch(
        &self,
        entry: &CompiledTap,
        tokens: &[SelectedToken],
        value: &DeviceValue,
        device: &mut Device,
    ) -> Result<Vec<f32>> {
        let width = self.program.edge(entry.edge).width;
        let lines = gather(&entry.columns, width, tokens, value, device);
        let floats = match &lines {
            Some(lines) => device.memory.download(&[lines])?.pop().unwrap_or_default(),
            None => Vec::new(),
        };
        device.moved.waits += 1;
        device.moved.to_host += 4 * floats.len();
        Ok(floats)
    }

    fn edit_on_device(
        &mut self,
        entry: &CompiledTap,
        edit: &Edit,
        row: usize,
        tokens: &[SelectedToken],
        value: &DeviceValue,
        device: &mut Device,
    ) -> Result<()> {
        let spec = self.program.edge(entry.edge);
        let (width, count) = (spec.width, entry.columns.len());
        if edit.is_nonlinear() || entry.condition.is_some() || spec.integer {
            return self.edit_on_host(entry, row, tokens, value, device);
        }
        let write = |tokens: &[SelectedToken], written: EditOperand| {
            let work = match edit {
                Edit::Set(_) => TapEdit::Set(written),
                Edit::Add(_, scale) => TapEdit::Add(written, *scale),
                Edit::Scale(by) => TapEdit::Scale(*by),
                Edit::ProjectOut(direction, left) => TapEdit::ProjectOut(direction, *left),
                Edit::Cap(direction, min, max) => TapEdit::Cap(direction, *min, *max),
                Edit::Orthogonal(direction, component) => TapEdit::Cap(direction, *component, *component),
                Edit::Swap(mirror) => TapEdit::ProjectOut(mirror, -1.0),
                Edit::AddScaled(..) | Edit::NormMatch(_) | Edit::Inject(..) | Edit::Replace(_) => {
                    unreachable!("the host applies edits that are not linear, and edits of indices")
                }
            };
            tap(&entry.columns, width, tokens, value, &TapWork::Edit(work), device);
        };
        match edit.edit_source() {
            None => write(tokens, EditOperand::Number(0.0)),
            Some(EditSource::Number(number)) => write(tokens, EditOperand::Number(*number)),
            Some(EditSource::Vector(vector)) => write(tokens, EditOperand::Vector(vector)),
            Some(EditSource::Rows(rows)) => {
                let vectors: Vec<f32> = tokens.iter().flat_map(|&(_, _, nth)| rows[nth].iter().copied()).collect();
                write(tokens, EditOperand::Vectors(&vectors));
            }
            Some(EditSource::Value(_)) => {
                // A computed value has one vector per selected position of this pass, in selection
                // order.
                let computed =
                    self.computed(entry, row, || entry.columns.shape(spec, tokens.len()))?.unwrap_or_default();
                let mut ranks: Vec<usize> = tokens.iter().map(|&(_, _, nth)| nth).collect();
                ranks.sort_unstable();
                let line = |&(_, _, nth): &SelectedToken| {
                    let rank = ranks.binary_search(&nth).unwrap_or_default();
                    computed[rank * count..][..count].iter().copied()
                };
                let vectors: Vec<f32> = tokens.iter().flat_map(line).collect();
                write(tokens, EditOperand::Vectors(&vectors));
                device.moved.to_device += 4 * vectors.len();
            }
            Some(EditSource::Site(source)) => {
                let line = |&(_, _, nth): &SelectedToken| self.source_on_device(entry, *source, row, nth);
                let lines = tokens.iter().map(line).collect::<Result<Vec<(DeviceValue, usize)>>>()?;
                let mut done = 0;
                for lines in lines.chunk_by(|(a, _), (b, _)| a.is_same(b)) {
                    let indices: Vec<usize> = lines.iter().map(|&(_, line)| line).collect();
                    write(&tokens[done..][..lines.len()], EditOperand::Lines(&lines[0].0, &indices));
                    done += lines.len();
                }
            }
        }
        Ok(())
    }

    /// Applies an edit that no device has, or one with a condition: downloads the selected floats
    /// of a row, edits them and writes them back.
    fn edit_on_host(
        &mut self,
        entry: &CompiledTap,
        row: usize,
        tokens: &[SelectedToken],
        value: &DeviceValue,
        device: &mut Device,
    ) -> Result<()> {
        let (spec, count) = (self.program.edge(entry.edge), entry.columns.len());
        let mut floats = self.fetch(entry, tokens, value, device)?;
        let computed = self.computed(entry, row, || entry.columns.shape(spec, tokens.len()))?;
        let mut ranks: Vec<usize> = tokens.iter().map(|&(_, _, nth)| nth).collect();
        ranks.sort_unstable();
        for (picked, &(_, _, nth)) in floats.chunks_exact_mut(count).zip(tokens) {
            if !self.job.collector.applies(entry, row, nth) {
                continue;
            }
            let line = match (&computed, entry.source()) {
                (Some(values), _) => {
                    let rank = ranks.binary_search(&nth).unwrap_or_default();
                    Some(values[rank * count..][..count].to_vec())
                }
                (None, Some(source)) => {
                    let (lines, line) = self.source_on_device(entry, source, row, nth)?;
                    let lines = device.memory.download(&[&lines])?.pop().unwrap_or_default();
                    device.moved.waits += 1;
                    device.moved.to_host += 4 * lines.len();
                    Some(lines[line * count..][..count].to_vec())
                }
                (None, None) => None,
            };
            self.edit(entry, (row, nth, 0), line.as_deref(), picked)?;
        }
        device.moved.to_device += 4 * floats.len();
        let work = TapWork::Edit(TapEdit::Set(EditOperand::Vectors(&floats)));
        tap(&entry.columns, spec.width, tokens, value, &work, device);
        Ok(())
    }

    /// Captures experts: downloads the selected tokens whole and picks the slots of the experts.
    #[allow(clippy::too_many_arguments)] // one arm of the function above
    fn capture_experts(
        &mut self,
        index: usize,
        entry: &CompiledTap,
        row: usize,
        tokens: &[SelectedToken],
        value: &DeviceValue,
        choices: &[f32],
        device: &mut Device,
    ) -> Result<()> {
        let whole = Columns::All(self.program.edge(entry.edge).width);
        let (Some(lines), Some(experts)) = (gather(&whole, whole.len(), tokens, value, device), &entry.experts) else {
            return Ok(());
        };
        let floats = device.memory.download(&[&lines])?.pop().unwrap_or_default();
        device.moved.waits += 1;
        device.moved.to_host += 4 * floats.len();
        let mut picked = Vec::with_capacity(entry.captured_len());
        for (elements, &(token, _, nth)) in floats.chunks_exact(whole.len()).zip(tokens) {
            picked.clear();
            experts.gather(&entry.columns, choices, token, elements, &mut picked);
            self.job.collector.collect_experts((index, row), entry, nth, &picked);
        }
        Ok(())
    }

    /// Applies an edit by expert: downloads the selected tokens whole, edits them and writes them
    /// back.
    fn edit_experts_on_host(
        &mut self,
        entry: &CompiledTap,
        row: usize,
        tokens: &[SelectedToken],
        value: &DeviceValue,
        choices: &[f32],
        device: &mut Device,
    ) -> Result<()> {
        let whole = Columns::All(self.program.edge(entry.edge).width);
        let Some(lines) = gather(&whole, whole.len(), tokens, value, device) else { return Ok(()) };
        let mut floats = device.memory.download(&[&lines])?.pop().unwrap_or_default();
        device.moved.waits += 1;
        device.moved.to_host += 4 * floats.len();
        let slots = choices.len() / (value.len() / whole.len()).max(1);
        let own: Vec<f32> =
            tokens.iter().flat_map(|&(token, ..)| &choices[token * slots..][..slots]).copied().collect();
        let downloaded: Vec<SelectedToken> =
            tokens.iter().enumerate().map(|(index, &(_, position, nth))| (index, position, nth)).collect();
        self.apply_row(entry, row, &downloaded, &mut floats, &own)?;
        device.moved.to_device += 4 * floats.len();
        let work = TapWork::Edit(TapEdit::Set(EditOperand::Vectors(&floats)));
        tap(&whole, whole.len(), tokens, value, &work, device);
        Ok(())
    }

    /// Calls a closure once with the selected values of all rows, downloaded to the host, and
    /// writes the changed values back.
    fn call_with_device(
        &mut self,
        entry: &CompiledTap,
        callback: &Callback,
        rows: &[(usize, Vec<SelectedToken>)],
        value: &DeviceValue,
        device: &mut Device,
    ) -> Result<()> {
        let mut gathered = Vec::with_capacity(rows.len());
        for (row, tokens) in rows {
            let values = self.fetch(entry, tokens, value, device)?;
            let positions = tokens.iter().map(|&(_, position, _)| position).collect();
            gathered.push(SelectedRow { row: *row, positions, width: entry.columns.len(), values });
        }
        if gathered.is_empty() {
            return Ok(());
        }
        callback.0(&mut gathered);
        let width = self.program.edge(entry.edge).width;
        for ((_, tokens), gathered) in rows.iter().zip(&gathered) {
            device.moved.to_device += 4 * gathered.values.len();
            let work = TapWork::Edit(TapEdit::Set(EditOperand::Vectors(&gathered.values)));
            tap(&entry.columns, width, tokens, value, &work, device);
        }
        Ok(())
    }
}

/// Runs a tap's work on some tokens.
fn tap(
    columns: &Columns,
    width: usize,
    tokens: &[SelectedToken],
    value: &DeviceValue,
    work: &TapWork,
    device: &Device,
) -> Option<DeviceValue> {
    let tokens: Vec<usize> = tokens.iter().map(|&(token, ..)| token).collect();
    let columns = columns.ranges();
    device.memory.tap(value, &Selection { width, tokens: &tokens, columns: &columns }, work)
}

fn gather(
    columns: &Columns,
    width: usize,
    tokens: &[SelectedToken],
    value: &DeviceValue,
    device: &Device,
) -> Option<DeviceValue> {
    tap(columns, width, tokens, value, &TapWork::Gather, device)
}
