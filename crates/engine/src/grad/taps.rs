//! Backward pass through a plan's taps: the taps of an edge, last to first, turn the gradient after
//! a tap into the one before it.

use super::Cotangents;
use crate::array::Array;
use crate::error::{Error, Result};
use crate::job::{Pass, Segment, SharedStore};
use crate::model::Model;
use crate::plan::{
    Capture, Columns, CompiledAction, CompiledPlan, CompiledTap, Edit, EditSource, SelectedPositions, TokenOperand,
};
use crate::program::{EdgeId, Layout, Program};
use crate::value::{ValueGradients, sum_to_shape};
use crate::weights::WeightId;
use std::collections::HashMap;
use std::ops::Range;

/// Propagates the gradients of one metric through the plan's taps.
pub(crate) struct BackwardTaps<'a> {
    model: &'a Model,
    compiled: &'a CompiledPlan,
    metric: usize,
    value_gradients: ValueGradients,
    store: SharedStore,
    /// Gradients of source values, accumulated from the edits that wrote them: by source, row and
    /// index in the selection.
    source_gradients: HashMap<(usize, usize, usize), Vec<f32>>,
    /// The requested weight gradients.
    weights: HashMap<WeightId, Vec<f32>>,
    /// With the index of their tap.
    captures: Vec<(usize, Capture)>,
}

/// The elements of one row's gradient that a tap selects, in selection order.
struct PickedGradient {
    shape: Vec<usize>,
    ranges: Vec<Range<usize>>,
    positions: Vec<usize>,
    /// For each position its index in the whole selection.
    ranks: Vec<usize>,
    /// Whether the layout is `[heads, queries, keys]`. Otherwise the elements of a position are
    /// contiguous.
    attention: bool,
}

impl PickedGradient {
    fn gather(&self, gradient: &[f32]) -> Vec<f32> {
        self.ranges.iter().flat_map(|range| gradient[range.clone()].iter().copied()).collect()
    }

    fn update(&self, gradient: &mut [f32], with: &[f32], f: impl Fn(&mut f32, f32)) {
        let indices = self.ranges.iter().flat_map(|range| range.clone());
        indices.zip(with).for_each(|(index, &x)| f(&mut gradient[index], x));
    }

    /// Returns the elements of the `nth` position, in the slot whose columns begin at `shift`.
    fn slot(&self, nth: usize, shift: usize) -> PickedGradient {
        let count = self.ranges.len() / self.positions.len();
        let own = self.ranges[nth * count..][..count].iter();
        PickedGradient {
            shape: self.shape.iter().skip(1).copied().collect(),
            ranges: own.map(|range| range.start + shift..range.end + shift).collect(),
            positions: vec![self.positions[nth]],
            ranks: vec![self.ranks[nth]],
            attention: false,
        }
    }

    /// Splits the selected elements by position.
    fn lines(&self, elements: &[f32]) -> Vec<Vec<f32>> {
        let count = self.positions.len();
        if !self.attention {
            let width = elements.len() / count.max(1);
            return elements.chunks_exact(width.max(1)).map(<[f32]>::to_vec).collect();
        }
        let keys = self.shape[2];
        let line = |query: usize| {
            (0..self.shape[0]).flat_map(move |head| elements[(head * count + query) * keys..][..keys].iter().copied())
        };
        (0..count).map(|query| line(query).collect()).collect()
    }
}

impl<'a> BackwardTaps<'a> {
    /// Starts at a metric, which must be a scalar.
    pub fn new(
        model: &'a Model,
        compiled: &'a CompiledPlan,
        metric: usize,
        store: SharedStore,
    ) -> Result<BackwardTaps<'a>> {
        let value = store.lock().get(model, compiled, compiled.values.metrics[metric], None)?;
        if value.values().len() != 1 {
            return Err(Error::Value {
                value: compiled.values.name(compiled.values.metrics[metric]),
                problem: format!("as a metric it has shape {:?}", value.shape()),
                remedy: "a metric is one number: sum or average it, over rows too".into(),
            });
        }
        let value_gradients = ValueGradients::new(compiled, metric, &value);
        let request = compiled.values.weight_grads.iter().filter(|request| request.metric == metric);
        let len = |id: WeightId| model.program().weight(id).shape.iter().product();
        let weights = request.map(|request| (request.weight, vec![0.0; len(request.weight)])).collect();
        Ok(BackwardTaps {
            model,
            compiled,
            metric,
            value_gradients,
            store,
            source_gradients: HashMap::new(),
            weights,
            captures: Vec::new(),
        })
    }

    /// Stores the weight gradients as values of the plan; returns the captured gradients. Call it
    /// after all rows.
    pub fn end(self) -> Vec<(usize, Capture)> {
        let shape = |id: WeightId| self.model.program().weight(id).shape.clone();
        let arrays: HashMap<WeightId, Array> =
            self.weights.into_iter().map(|(id, sum)| (id, Array::new(shape(id), sum))).collect();
        for request in self.compiled.values.weight_grads.iter().filter(|request| request.metric == self.metric) {
            self.store.lock().insert(request.value, arrays[&request.weight].clone());
        }
        self.captures
    }

    /// Runs the taps of an edge backward in one row, last to first.
    fn row_backward(
        &mut self,
        edge: EdgeId,
        row: usize,
        gradient: &mut [f32],
        pick: &dyn Fn(&SelectedPositions, &InnerSelection) -> PickedGradient,
    ) -> Result<()> {
        let compiled = self.compiled;
        for &index in &compiled.sources_at[edge] {
            let source = &compiled.sources[index];
            let Some(chosen) = &source.rows[row] else { continue };
            let picked = pick(chosen, &InnerSelection { columns: &source.columns, heads: &source.heads, keys: None });
            let zeros = vec![0.0; picked.gather(gradient).len()];
            let lines = picked.lines(&zeros).into_iter().zip(&picked.ranks);
            let source_gradients = lines
                .map(|(zeros, &rank)| self.source_gradients.remove(&(index, row, rank)).unwrap_or(zeros))
                .collect();
            picked.update(gradient, &join_lines(&picked, source_gradients), |sum, g| *sum += g);
        }
        for &index in compiled.backward_at_edge[edge].iter().rev() {
            let entry = &compiled.taps[index];
            let Some(chosen) = &entry.rows[row] else { continue };
            let keys = entry.keys.as_ref().map(|keys| keys[row].as_slice());
            let picked = pick(chosen, &InnerSelection { columns: &entry.columns, heads: &entry.heads, keys });
            if !picked.positions.is_empty() {
                self.tap_backward(index, entry, row, &picked, gradient)?;
            }
        }
        Ok(())
    }

    /// Turns the gradient after a tap into the gradient before it.
    fn tap_backward(
        &mut self,
        index: usize,
        entry: &CompiledTap,
        row: usize,
        picked: &PickedGradient,
        gradient: &mut [f32],
    ) -> Result<()> {
        match &entry.action {
            // The op of an autoencoder applies `splice` itself.
            CompiledAction::Capture(_) | CompiledAction::Condition(_) | CompiledAction::Splice(_) => {}
            CompiledAction::Grad { metric, action } => {
                if *metric == self.metric {
                    self.on_gradient(index, entry, action, row, picked, gradient)?;
                }
            }
            CompiledAction::Read => {
                for &read in &entry.binds {
                    let store = &mut self.store.lock();
                    if let Some(share) = self.value_gradients.take(self.model, self.compiled, store, read, row)? {
                        picked.update(gradient, share.values(), |sum, g| *sum += g);
                    }
                }
            }
            CompiledAction::Edit(edit) if entry.experts.is_some() => {
                self.expert_edit_backward(edit, entry, row, picked, gradient)?;
            }
            CompiledAction::Edit(edit) => {
                let mut elements = picked.gather(gradient);
                let written = if edit.is_nonlinear() {
                    self.nonlinear_backward(edit, entry, row, picked, &mut elements)
                } else {
                    edit.backward(&mut elements)
                };
                let written = written.map_err(|problem| self.fail(entry, &problem))?;
                if let (Some(given), Some(written)) = (edit.edit_source(), written) {
                    self.add_operand_gradient(given, entry, row, picked, &written)?;
                }
                picked.update(gradient, &elements, |g, before| *g = before);
            }
            CompiledAction::Call(_) => return Err(self.fail(entry, "no gradient passes through `cap` and `call`")),
        }
        Ok(())
    }

    /// Backward pass of an edit that is not linear, position by position, with the activations that
    /// the forward pass recorded. Returns the gradient of the operand, if there is one.
    fn nonlinear_backward(
        &self,
        edit: &Edit,
        entry: &CompiledTap,
        row: usize,
        picked: &PickedGradient,
        elements: &mut [f32],
    ) -> std::result::Result<Option<Vec<f32>>, String> {
        let store = self.store.lock();
        let width = entry.columns.len();
        let mut written: Option<Vec<f32>> = None;
        for (line, &rank) in elements.chunks_exact_mut(width).zip(&picked.ranks) {
            let at = store.edit_input((entry.tap, entry.site, row, rank, 0));
            let at = at.ok_or("the forward pass has not recorded the activation that this edit changed")?;
            if let Some(own) = edit.backward_at(line, at) {
                written.get_or_insert_default().extend(own);
            }
        }
        Ok(written)
    }

    /// Backward pass of an edit by expert: of the slots that the forward pass has recorded.
    fn expert_edit_backward(
        &mut self,
        edit: &Edit,
        entry: &CompiledTap,
        row: usize,
        picked: &PickedGradient,
        gradient: &mut [f32],
    ) -> Result<()> {
        let Some(experts) = &entry.experts else { return Ok(()) };
        let width = entry.columns.len();
        // All slots of a position have the same operand.
        let mut written = vec![0.0; picked.ranks.len() * width];
        for (nth, &rank) in picked.ranks.iter().enumerate() {
            for slot in 0..experts.slots {
                let store = self.store.lock();
                let Some(at) = store.edit_input((entry.tap, entry.site, row, rank, slot)) else { continue };
                let own = picked.slot(nth, slot * experts.width);
                let mut elements = own.gather(gradient);
                let of_operand = match edit.is_nonlinear() {
                    true => Ok(edit.backward_at(&mut elements, at)),
                    false => edit.backward(&mut elements),
                };
                let of_operand = of_operand.map_err(|problem| self.fail(entry, &problem))?;
                let sums = written[nth * width..][..width].iter_mut();
                sums.zip(of_operand.iter().flatten()).for_each(|(sum, g)| *sum += g);
                own.update(gradient, &elements, |g, before| *g = before);
            }
        }
        match edit.edit_source() {
            Some(given) => self.add_operand_gradient(given, entry, row, picked, &written),
            None => Ok(()),
        }
    }

    /// Applies a `grad` tap: captures, reads or edits the gradient itself.
    fn on_gradient(
        &mut self,
        index: usize,
        entry: &CompiledTap,
        action: &CompiledAction,
        row: usize,
        picked: &PickedGradient,
        gradient: &mut [f32],
    ) -> Result<()> {
        let elements = picked.gather(gradient);
        match action {
            CompiledAction::Capture(_) => {
                let array = Array::new(picked.shape.clone(), elements);
                let (site, tap, positions) = (entry.site, entry.tap, picked.positions.clone());
                self.captures.push((index, Capture { site, tap, row, positions, array, units: None, sparse: None }));
            }
            CompiledAction::Read => {
                let array = Array::new(picked.shape.clone(), elements);
                for &read in &entry.binds {
                    self.store.lock().bind(&self.compiled.values, read, row, array.clone());
                }
            }
            CompiledAction::Edit(edit) => {
                let mut elements = elements;
                let given = edit
                    .edit_source()
                    .map(|given| self.gradient_operand(given, entry, row, picked, elements.len()))
                    .transpose()?;
                edit.apply(&mut elements, given.as_deref().map_or(TokenOperand::None, TokenOperand::Each));
                picked.update(gradient, &elements, |g, new| *g = new);
            }
            CompiledAction::Grad { .. }
            | CompiledAction::Call(_)
            | CompiledAction::Condition(_)
            | CompiledAction::Splice(_) => {
                return Err(self.fail(entry, "a gradient can be captured, read and edited"));
            }
        }
        Ok(())
    }

    /// The operand of an edit of the gradient, one float per selected element.
    fn gradient_operand(
        &self,
        given: &EditSource,
        entry: &CompiledTap,
        row: usize,
        picked: &PickedGradient,
        count: usize,
    ) -> Result<Vec<f32>> {
        match given {
            EditSource::Number(x) => Ok(vec![*x; count]),
            EditSource::Vector(vector) => Ok(vector.iter().copied().cycle().take(count).collect()),
            EditSource::Rows(rows) => Ok(picked.ranks.iter().flat_map(|&rank| rows[rank].iter().copied()).collect()),
            EditSource::Value(value) => {
                let array = self.store.lock().get(self.model, self.compiled, *value, Some(row))?;
                array.broadcast(&picked.shape).ok_or_else(|| {
                    self.fail(entry, &format!("a value of shape {:?} does not fit {:?}", array.shape(), picked.shape))
                })
            }
            EditSource::Site(_) => Err(self.fail(entry, "a gradient takes numbers, lists and values, not `from`")),
        }
    }

    /// Adds the gradient of an edit's operand to where the operand came from.
    fn add_operand_gradient(
        &mut self,
        given: &EditSource,
        entry: &CompiledTap,
        row: usize,
        picked: &PickedGradient,
        elements: &[f32],
    ) -> Result<()> {
        match given {
            EditSource::Number(_) | EditSource::Vector(_) | EditSource::Rows(_) => {}
            EditSource::Value(value) => {
                let written = self.store.lock().get(self.model, self.compiled, *value, Some(row))?;
                let share = sum_to_shape(&Array::new(picked.shape.clone(), elements.to_vec()), written.shape());
                self.value_gradients.add(self.compiled, *value, Some(row), share);
            }
            EditSource::Site(index) => {
                let source = &self.compiled.sources[*index];
                let origin = source.read_by[row].unwrap_or(row);
                let one = source.rows[origin].as_ref().is_some_and(|chosen| chosen.len() == 1);
                for (line, &rank) in picked.lines(elements).into_iter().zip(&picked.ranks) {
                    let source_gradients = self.source_gradients.entry((*index, origin, if one { 0 } else { rank }));
                    let sum = source_gradients.or_insert_with(|| vec![0.0; line.len()]);
                    if sum.len() != line.len() {
                        return Err(self.fail(entry, "rows of different length feed each other's attention"));
                    }
                    sum.iter_mut().zip(line).for_each(|(sum, g)| *sum += g);
                }
            }
        }
        Ok(())
    }

    fn fail(&self, entry: &CompiledTap, problem: &str) -> Error {
        let remedy = "docs/plans.md lists what gradients pass through";
        Error::Plan { tap: entry.tap, site: entry.site.to_string(), problem: problem.into(), remedy: remedy.into() }
    }
}

/// Joins the elements of each position, the inverse of `PickedGradient::lines`.
fn join_lines(picked: &PickedGradient, lines: Vec<Vec<f32>>) -> Vec<f32> {
    if !picked.attention {
        return lines.concat();
    }
    // [queries][heads, keys] → [heads, queries, keys]
    let (heads, keys) = (picked.shape[0], picked.shape[2]);
    (0..heads).flat_map(|head| lines.iter().flat_map(move |line| line[head * keys..][..keys].iter().copied())).collect()
}

/// The selection within a position: columns, or heads and keys of attention.
struct InnerSelection<'a> {
    columns: &'a Columns,
    heads: &'a [usize],
    keys: Option<&'a [usize]>,
}

impl Cotangents for BackwardTaps<'_> {
    fn weight(&mut self, id: WeightId) -> Option<&mut Vec<f32>> {
        self.weights.get_mut(&id)
    }

    fn wants(&self, edge: EdgeId) -> bool {
        !self.compiled.backward_at_edge[edge].is_empty() || !self.compiled.sources_at[edge].is_empty()
    }

    fn wants_row(&self, edge: EdgeId, row: usize) -> bool {
        let compiled = self.compiled;
        compiled.backward_at_edge[edge].iter().any(|&i| compiled.taps[i].rows[row].is_some())
            || compiled.sources_at[edge].iter().any(|&i| compiled.sources[i].rows[row].is_some())
    }

    fn visit(&mut self, program: &Program, pass: &Pass, edge: EdgeId, gradient: &mut [f32]) -> Result<()> {
        let spec = program.edge(edge);
        for segment in &pass.segments {
            let pick = |chosen: &SelectedPositions, selects: &InnerSelection| {
                let present = pass.segment_tokens(spec.token_set, segment);
                let mut present: Vec<(usize, usize, usize)> =
                    present.filter_map(|(at, position)| Some((chosen.index_of(position)?, at, position))).collect();
                present.sort_unstable();
                let ranges = present.iter().flat_map(|&(_, at, _)| {
                    let shift = move |range: Range<usize>| at * spec.width + range.start..at * spec.width + range.end;
                    selects.columns.ranges().into_iter().map(shift)
                });
                PickedGradient {
                    shape: selects.columns.shape(spec, present.len()),
                    ranges: ranges.collect(),
                    positions: present.iter().map(|&(_, _, position)| position).collect(),
                    ranks: present.iter().map(|&(rank, ..)| rank).collect(),
                    attention: false,
                }
            };
            self.row_backward(edge, segment.row, gradient, &pick)?;
        }
        Ok(())
    }

    fn visit_attention(
        &mut self,
        program: &Program,
        segment: &Segment,
        edge: EdgeId,
        gradient: &mut [f32],
    ) -> Result<()> {
        debug_assert_eq!(program.edge(edge).layout, Layout::QueryKey);
        let length = segment.position + segment.count;
        let pick = |chosen: &SelectedPositions, selects: &InnerSelection| {
            let mut present: Vec<(usize, usize)> = (0..segment.count)
                .filter_map(|query| Some((chosen.index_of(segment.position + query)?, query)))
                .collect();
            present.sort_unstable();
            let line = |head: usize, query: usize| (head * segment.count + query) * length;
            let ranges: Vec<Range<usize>> = match selects.keys {
                None => selects
                    .heads
                    .iter()
                    .flat_map(|&head| {
                        present.iter().map(move |&(_, query)| line(head, query)..line(head, query) + length)
                    })
                    .collect(),
                Some(keys) => selects
                    .heads
                    .iter()
                    .flat_map(|&head| present.iter().map(move |&(_, query)| line(head, query)))
                    .flat_map(|start| {
                        keys.iter().filter(|&&key| key < length).map(move |key| start + key..start + key + 1)
                    })
                    .collect(),
            };
            let keys = selects.keys.map_or(length, |keys| keys.iter().filter(|&&key| key < length).count());
            PickedGradient {
                shape: vec![selects.heads.len(), present.len(), keys],
                ranges,
                positions: present.iter().map(|&(_, query)| segment.position + query).collect(),
                ranks: present.iter().map(|&(rank, _)| rank).collect(),
                attention: true,
            }
        };
        self.row_backward(edge, segment.row, gradient, &pick)
    }
}
