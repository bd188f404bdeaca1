//! A plan's taps on the way back: each entry of an edge, last to first, says what a gradient behind it means before it.

use super::Cotangents;
use crate::array::Array;
use crate::error::{Error, Result};
use crate::job::{Pass, Segment, SharedStore};
use crate::model::Model;
use crate::plan::{Capture, Chosen, Columns, Compiled, CompiledAction, Entry, Given, Resolved};
use crate::program::{EdgeId, Layout, Program};
use crate::value::{Back, unspread};
use crate::weights::WeightId;
use std::collections::HashMap;
use std::ops::Range;

/// The gradients of one metric as the plan's taps see them.
pub(crate) struct TapsBack<'a> {
    model: &'a Model,
    compiled: &'a Compiled,
    metric: usize,
    back: Back,
    store: SharedStore,
    /// What edits that took another site's value owe to it, by source, row and place.
    owed: HashMap<(usize, usize, usize), Vec<f32>>,
    /// The gradients of the weights that somebody asked for.
    weights: HashMap<WeightId, Vec<f32>>,
    /// By entry.
    captures: Vec<(usize, Capture)>,
}

/// The numbers of a gradient that a tap selects of one row, in the selection's order.
struct Picked {
    shape: Vec<usize>,
    ranges: Vec<Range<usize>>,
    positions: Vec<usize>,
    /// For each position its place in the whole selection.
    places: Vec<usize>,
    /// `[heads, queries, keys]`, where a position's numbers are a line of each head; else they are neighbours.
    attention: bool,
}

impl Picked {
    fn gather(&self, gradient: &[f32]) -> Vec<f32> {
        self.ranges.iter().flat_map(|range| gradient[range.clone()].iter().copied()).collect()
    }

    fn change(&self, gradient: &mut [f32], with: &[f32], f: impl Fn(&mut f32, f32)) {
        let places = self.ranges.iter().flat_map(|range| range.clone());
        places.zip(with).for_each(|(place, &x)| f(&mut gradient[place], x));
    }

    /// The selected numbers of each position: neighbours, or one line of each head.
    fn lines(&self, numbers: &[f32]) -> Vec<Vec<f32>> {
        let count = self.positions.len();
        if !self.attention {
            let width = numbers.len() / count.max(1);
            return numbers.chunks_exact(width.max(1)).map(<[f32]>::to_vec).collect();
        }
        let keys = self.shape[2];
        let line = |query: usize| {
            (0..self.shape[0]).flat_map(move |head| numbers[(head * count + query) * keys..][..keys].iter().copied())
        };
        (0..count).map(|query| line(query).collect()).collect()
    }
}

impl<'a> TapsBack<'a> {
    /// Begins at a metric, whose value the store has or finds.
    pub fn new(model: &'a Model, compiled: &'a Compiled, metric: usize, store: SharedStore) -> Result<TapsBack<'a>> {
        let value = store.lock().get(model, compiled, compiled.values.metrics[metric], None)?;
        if value.values().len() != 1 {
            return Err(Error::Value {
                value: compiled.values.name(compiled.values.metrics[metric]),
                problem: format!("as a metric it has shape {:?}", value.shape()),
                remedy: "a metric is one number: sum or average it, over rows too".into(),
            });
        }
        let back = Back::new(compiled, metric, &value);
        let sought = compiled.values.weights.iter().filter(|sought| sought.metric == metric);
        let numbers = |id: WeightId| model.program().weight(id).shape.iter().product();
        let weights = sought.map(|sought| (sought.weight, vec![0.0; numbers(sought.weight)])).collect();
        Ok(TapsBack { model, compiled, metric, back, store, owed: HashMap::new(), weights, captures: Vec::new() })
    }

    /// Makes the weights' gradients values, now that all rows have given their share; gives what was captured on the way.
    pub fn end(self) -> Vec<(usize, Capture)> {
        let shape = |id: WeightId| self.model.program().weight(id).shape.clone();
        let arrays: HashMap<WeightId, Array> =
            self.weights.into_iter().map(|(id, sum)| (id, Array::new(shape(id), sum))).collect();
        for sought in self.compiled.values.weights.iter().filter(|sought| sought.metric == self.metric) {
            self.store.lock().know(sought.value, arrays[&sought.weight].clone());
        }
        self.captures
    }

    /// All entries of an edge in one row, last to first.
    fn row(
        &mut self,
        edge: EdgeId,
        row: usize,
        gradient: &mut [f32],
        pick: &dyn Fn(&Chosen, &Selects) -> Picked,
    ) -> Result<()> {
        let compiled = self.compiled;
        for &index in &compiled.sources_at[edge] {
            let source = &compiled.sources[index];
            let Some(chosen) = &source.rows[row] else { continue };
            let picked = pick(chosen, &Selects { columns: &source.columns, heads: &source.heads, keys: None });
            let zeros = vec![0.0; picked.gather(gradient).len()];
            let lines = picked.lines(&zeros).into_iter().zip(&picked.places);
            let owed = lines.map(|(zeros, &place)| self.owed.remove(&(index, row, place)).unwrap_or(zeros)).collect();
            picked.change(gradient, &interleaved(&picked, owed), |sum, g| *sum += g);
        }
        for &index in compiled.back_at_edge[edge].iter().rev() {
            let entry = &compiled.entries[index];
            let Some(chosen) = &entry.rows[row] else { continue };
            let keys = entry.keys.as_ref().map(|keys| keys[row].as_slice());
            let picked = pick(chosen, &Selects { columns: &entry.columns, heads: &entry.heads, keys });
            if !picked.positions.is_empty() {
                self.entry(index, entry, row, &picked, gradient)?;
            }
        }
        Ok(())
    }

    /// From the gradient after an entry to the gradient before it.
    fn entry(&mut self, index: usize, entry: &Entry, row: usize, picked: &Picked, gradient: &mut [f32]) -> Result<()> {
        match &entry.action {
            CompiledAction::Capture(_) => {}
            CompiledAction::Grad { metric, action } => {
                if *metric == self.metric {
                    self.on_gradient(index, entry, action, row, picked, gradient)?;
                }
            }
            CompiledAction::Read => {
                for &read in &entry.binds {
                    let store = &mut self.store.lock();
                    if let Some(share) = self.back.take(self.model, self.compiled, store, read, row)? {
                        picked.change(gradient, share.values(), |sum, g| *sum += g);
                    }
                }
            }
            CompiledAction::Edit(edit) => {
                let mut numbers = picked.gather(gradient);
                let written = edit.backward(&mut numbers).map_err(|problem| self.fail(entry, &problem))?;
                if let (Some(given), Some(written)) = (edit.given(), written) {
                    self.give(given, entry, row, picked, &written)?;
                }
                picked.change(gradient, &numbers, |g, before| *g = before);
            }
            CompiledAction::Call(_) => return Err(self.fail(entry, "no gradient passes through `cap` and `call`")),
        }
        Ok(())
    }

    /// What the plan does to the gradient itself.
    fn on_gradient(
        &mut self,
        index: usize,
        entry: &Entry,
        action: &CompiledAction,
        row: usize,
        picked: &Picked,
        gradient: &mut [f32],
    ) -> Result<()> {
        let numbers = picked.gather(gradient);
        match action {
            CompiledAction::Capture(_) => {
                let array = Array::new(picked.shape.clone(), numbers);
                let (site, tap, positions) = (entry.site, entry.tap, picked.positions.clone());
                self.captures.push((index, Capture { site, tap, row, positions, array, units: None }));
            }
            CompiledAction::Read => {
                let array = Array::new(picked.shape.clone(), numbers);
                for &read in &entry.binds {
                    self.store.lock().bind(&self.compiled.values, read, row, array.clone());
                }
            }
            CompiledAction::Edit(edit) => {
                let mut numbers = numbers;
                let given =
                    edit.given().map(|given| self.given(given, entry, row, picked, numbers.len())).transpose()?;
                edit.apply(&mut numbers, given.as_deref().map_or(Resolved::Nothing, Resolved::Each));
                picked.change(gradient, &numbers, |g, new| *g = new);
            }
            CompiledAction::Grad { .. } | CompiledAction::Call(_) => {
                return Err(self.fail(entry, "a gradient can be captured, read and edited"));
            }
        }
        Ok(())
    }

    /// The numbers that a gradient is set to, or that are added to it.
    fn given(&self, given: &Given, entry: &Entry, row: usize, picked: &Picked, count: usize) -> Result<Vec<f32>> {
        match given {
            Given::Number(x) => Ok(vec![*x; count]),
            Given::Vector(vector) => Ok(vector.iter().copied().cycle().take(count).collect()),
            Given::Rows(rows) => Ok(picked.places.iter().flat_map(|&place| rows[place].iter().copied()).collect()),
            Given::Computed(value) => {
                let array = self.store.lock().get(self.model, self.compiled, *value, Some(row))?;
                array.broadcast(&picked.shape).ok_or_else(|| {
                    self.fail(entry, &format!("a value of shape {:?} does not fit {:?}", array.shape(), picked.shape))
                })
            }
            Given::Source(_) => Err(self.fail(entry, "a gradient takes numbers, lists and values, not `from`")),
        }
    }

    /// Gives what an edit wrote its share of the gradient.
    fn give(&mut self, given: &Given, entry: &Entry, row: usize, picked: &Picked, numbers: &[f32]) -> Result<()> {
        match given {
            Given::Number(_) | Given::Vector(_) | Given::Rows(_) => {}
            Given::Computed(value) => {
                let written = self.store.lock().get(self.model, self.compiled, *value, Some(row))?;
                let share = unspread(&Array::new(picked.shape.clone(), numbers.to_vec()), written.shape());
                self.back.add(self.compiled, *value, Some(row), share);
            }
            Given::Source(index) => {
                let source = &self.compiled.sources[*index];
                let origin = source.read_by[row].unwrap_or(row);
                let one = source.rows[origin].as_ref().is_some_and(|chosen| chosen.len() == 1);
                for (line, &place) in picked.lines(numbers).into_iter().zip(&picked.places) {
                    let owed = self.owed.entry((*index, origin, if one { 0 } else { place }));
                    let sum = owed.or_insert_with(|| vec![0.0; line.len()]);
                    if sum.len() != line.len() {
                        return Err(self.fail(entry, "rows of different length feed each other's attention"));
                    }
                    sum.iter_mut().zip(line).for_each(|(sum, g)| *sum += g);
                }
            }
        }
        Ok(())
    }

    fn fail(&self, entry: &Entry, problem: &str) -> Error {
        let remedy = "docs/plans.md says what gradients pass through";
        Error::Plan { tap: entry.tap, site: entry.site.to_string(), problem: problem.into(), remedy: remedy.into() }
    }
}

/// Lines of positions in the order of a selection's numbers.
fn interleaved(picked: &Picked, lines: Vec<Vec<f32>>) -> Vec<f32> {
    if !picked.attention {
        return lines.concat();
    }
    // For each head the lines of all queries.
    let (heads, keys) = (picked.shape[0], picked.shape[2]);
    (0..heads).flat_map(|head| lines.iter().flat_map(move |line| line[head * keys..][..keys].iter().copied())).collect()
}

/// What a tap selects besides rows and positions.
struct Selects<'a> {
    columns: &'a Columns,
    heads: &'a [usize],
    keys: Option<&'a [usize]>,
}

impl Cotangents for TapsBack<'_> {
    fn weight(&mut self, id: WeightId) -> Option<&mut Vec<f32>> {
        self.weights.get_mut(&id)
    }

    fn touches(&self, edge: EdgeId) -> bool {
        !self.compiled.back_at_edge[edge].is_empty() || !self.compiled.sources_at[edge].is_empty()
    }

    fn touches_row(&self, edge: EdgeId, row: usize) -> bool {
        let compiled = self.compiled;
        compiled.back_at_edge[edge].iter().any(|&i| compiled.entries[i].rows[row].is_some())
            || compiled.sources_at[edge].iter().any(|&i| compiled.sources[i].rows[row].is_some())
    }

    fn meet(&mut self, program: &Program, pass: &Pass, edge: EdgeId, gradient: &mut [f32]) -> Result<()> {
        let spec = program.edge(edge);
        for segment in &pass.segments {
            let pick = |chosen: &Chosen, selects: &Selects| {
                let there = pass.places(spec.domain, segment);
                let mut there: Vec<(usize, usize, usize)> =
                    there.filter_map(|(at, position)| Some((chosen.place(position)?, at, position))).collect();
                there.sort_unstable();
                let ranges = there.iter().flat_map(|&(_, at, _)| {
                    let shift = move |range: Range<usize>| at * spec.width + range.start..at * spec.width + range.end;
                    selects.columns.ranges().into_iter().map(shift)
                });
                Picked {
                    shape: selects.columns.shape(spec, there.len()),
                    ranges: ranges.collect(),
                    positions: there.iter().map(|&(_, _, position)| position).collect(),
                    places: there.iter().map(|&(place, ..)| place).collect(),
                    attention: false,
                }
            };
            self.row(edge, segment.row, gradient, &pick)?;
        }
        Ok(())
    }

    fn meet_attention(
        &mut self,
        program: &Program,
        segment: &Segment,
        edge: EdgeId,
        gradient: &mut [f32],
    ) -> Result<()> {
        debug_assert_eq!(program.edge(edge).layout, Layout::QueryKey);
        let length = segment.position + segment.count;
        let pick = |chosen: &Chosen, selects: &Selects| {
            let mut there: Vec<(usize, usize)> =
                (0..segment.count).filter_map(|query| Some((chosen.place(segment.position + query)?, query))).collect();
            there.sort_unstable();
            let line = |head: usize, query: usize| (head * segment.count + query) * length;
            let ranges: Vec<Range<usize>> = match selects.keys {
                None => selects
                    .heads
                    .iter()
                    .flat_map(|&head| {
                        there.iter().map(move |&(_, query)| line(head, query)..line(head, query) + length)
                    })
                    .collect(),
                Some(keys) => selects
                    .heads
                    .iter()
                    .flat_map(|&head| there.iter().map(move |&(_, query)| line(head, query)))
                    .flat_map(|start| {
                        keys.iter().filter(|&&key| key < length).map(move |key| start + key..start + key + 1)
                    })
                    .collect(),
            };
            let keys = selects.keys.map_or(length, |keys| keys.iter().filter(|&&key| key < length).count());
            Picked {
                shape: vec![selects.heads.len(), there.len(), keys],
                ranges,
                positions: there.iter().map(|&(_, query)| segment.position + query).collect(),
                places: there.iter().map(|&(place, _)| place).collect(),
                attention: true,
            }
        };
        self.row(edge, segment.row, gradient, &pick)
    }
}
