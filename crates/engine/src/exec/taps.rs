//! Taps at work: each value put on an edge is shown to the entries there, in order.

use super::Model;
use super::collect::{Collector, Line};
use super::pass::{Pass, Segment};
use crate::array::Array;
use crate::error::{Error, Result};
use crate::plan::{Compiled, CompiledAction, CompiledReduce, Entry, Given, Resolved, Selected};
use crate::program::{EdgeId, Program};

/// A compiled plan with what it has collected.
pub struct Taps<'a> {
    pub(crate) model: &'a Model,
    pub(crate) compiled: &'a Compiled,
    pub(crate) collector: &'a mut Collector,
    /// These ops have run before: edits apply again, and nothing is collected twice.
    pub(crate) again: bool,
    /// Taps before this one have had their effect on what is shown now.
    pub(crate) first_tap: usize,
}

impl Taps<'_> {
    /// Whether any tap reads or changes an edge.
    pub fn touches(&self, edge: EdgeId) -> bool {
        !self.compiled.back_at_edge[edge].is_empty() || !self.compiled.sources_at[edge].is_empty()
    }

    /// Whether a tap reads or changes an edge in a row.
    pub fn touches_row(&self, edge: EdgeId, row: usize) -> bool {
        let compiled = self.compiled;
        compiled.back_at_edge[edge].iter().any(|&i| compiled.entries[i].rows[row].is_some())
            || compiled.sources_at[edge].iter().any(|&i| compiled.sources[i].rows[row].is_some())
    }

    /// Whether a tap changes an edge in a row.
    pub fn edits_row(&self, edge: EdgeId, row: usize) -> bool {
        let edits = |entry: &Entry| !entry.looks() && entry.rows[row].is_some();
        self.compiled.at_edge[edge].iter().any(|&i| edits(&self.compiled.entries[i]))
    }

    /// Whether an edge's buffer will be handed over, so that nobody may write into it.
    pub(super) fn keeps(&self, edge: EdgeId) -> bool {
        self.whole_capture(edge).is_some()
    }

    /// The entry that takes an edge's whole buffer: a whole capture after which nothing changes the value.
    fn whole_capture(&self, edge: EdgeId) -> Option<usize> {
        let last = *self.compiled.at_edge[edge].last().filter(|_| !self.again)?;
        let entry = &self.compiled.entries[last];
        let whole = entry.whole && matches!(entry.action, CompiledAction::Capture(CompiledReduce::Whole));
        (whole && self.collector.takes_buffers()).then_some(last)
    }

    /// Gives a dying value to its whole capture; gives it back when there is none.
    pub(super) fn hand_over(
        &mut self,
        program: &Program,
        pass: &Pass,
        edge: EdgeId,
        value: Vec<f32>,
    ) -> Option<Vec<f32>> {
        match self.whole_capture(edge) {
            Some(index) => {
                self.collector.hand_over(index, &self.compiled.entries[index], program.edge(edge), pass, value);
                None
            }
            None => Some(value),
        }
    }

    /// Applies the taps of an edge to its value, `[tokens, width]`.
    pub fn apply(&mut self, program: &Program, pass: &Pass, edge: EdgeId, value: &mut [f32]) -> Result<()> {
        let (compiled, spec) = (self.compiled, program.edge(edge));
        let taken = self.whole_capture(edge);
        for &index in &compiled.at_edge[edge] {
            let entry = &compiled.entries[index];
            if Some(index) == taken || self.passes_over(entry) {
                continue;
            }
            for segment in &pass.segments {
                let Some(chosen) = &entry.rows[segment.row] else { continue };
                let places = pass
                    .places(spec.domain, segment)
                    .filter_map(|(place, position)| Some((place, position, chosen.place(position)?)));
                if let CompiledAction::Capture(reduce) = &entry.action {
                    let tokens = places.map(|(place, _, nth)| (&value[place * spec.width..][..spec.width], nth));
                    self.collector.collect(index, segment.row, entry, reduce, tokens);
                    continue;
                }
                let places: Vec<(usize, usize, usize)> = places.collect();
                self.apply_row(index, segment.row, &places, spec.width, value)?;
            }
        }
        for &index in compiled.sources_at[edge].iter().filter(|_| !self.again) {
            let source = &compiled.sources[index];
            for segment in &pass.segments {
                let Some(chosen) = &source.rows[segment.row] else { continue };
                for (place, position) in pass.places(spec.domain, segment) {
                    if let Some(nth) = chosen.place(position) {
                        let mut values = Vec::with_capacity(source.columns.len());
                        source.columns.gather(&value[place * spec.width..][..spec.width], &mut values);
                        self.collector.stash(index, segment.row, nth, chosen.len(), values);
                    }
                }
            }
        }
        Ok(())
    }

    /// Whether an entry has done its work already.
    fn passes_over(&self, entry: &Entry) -> bool {
        entry.tap < self.first_tap || self.again && entry.looks()
    }

    /// One entry that is no capture on the chosen tokens of one row: `(place in the value, position, place in the selection)`.
    fn apply_row(
        &mut self,
        index: usize,
        row: usize,
        places: &[(usize, usize, usize)],
        width: usize,
        value: &mut [f32],
    ) -> Result<()> {
        let entry = &self.compiled.entries[index];
        if places.is_empty() {
            return Ok(());
        }
        if matches!(entry.action, CompiledAction::Read) {
            let mut order = places.to_vec();
            order.sort_unstable_by_key(|&(_, _, nth)| nth);
            let mut values = Vec::with_capacity(places.len() * entry.columns.len());
            order.iter().for_each(|&(place, ..)| entry.columns.gather(&value[place * width..][..width], &mut values));
            let edge = self.model.program().edge(entry.edge);
            let array = Array::new(entry.columns.shape(edge, places.len()), values).with_integer(edge.integer);
            self.collector.bind(self.compiled, entry, row, array);
            return Ok(());
        }
        if let CompiledAction::Call(callback) = &entry.action {
            let positions: Vec<usize> = places.iter().map(|&(_, position, _)| position).collect();
            let mut values = Vec::with_capacity(places.len() * entry.columns.len());
            places.iter().for_each(|&(place, ..)| entry.columns.gather(&value[place * width..][..width], &mut values));
            callback.0(&mut Selected { row, positions: &positions, width: entry.columns.len(), values: &mut values });
            for (&(place, ..), values) in places.iter().zip(values.chunks_exact(entry.columns.len())) {
                entry.columns.scatter(values, &mut value[place * width..][..width]);
            }
            return Ok(());
        }
        // A computed value has a line for each selected position of this pass, in the order of the selection.
        let edge = self.model.program().edge(entry.edge);
        let computed = self.computed(entry, row, || entry.columns.shape(edge, places.len()))?;
        let mut ranks: Vec<usize> = places.iter().map(|&(_, _, nth)| nth).collect();
        ranks.sort_unstable();
        let mut picked = Vec::with_capacity(entry.columns.len());
        for &(place, _, nth) in places {
            let line = computed.as_ref().map(|values| {
                let rank = ranks.binary_search(&nth).unwrap_or_default();
                &values[rank * entry.columns.len()..][..entry.columns.len()]
            });
            let token = &mut value[place * width..][..width];
            picked.clear();
            entry.columns.gather(token, &mut picked);
            self.edit(entry, row, nth, line, &mut picked)?;
            entry.columns.scatter(&picked, token);
        }
        Ok(())
    }

    /// What an entry writes where that is computed, in the shape of its selection.
    fn computed(&mut self, entry: &Entry, row: usize, shape: impl FnOnce() -> Vec<usize>) -> Result<Option<Vec<f32>>> {
        let Some(value) = entry.value() else { return Ok(None) };
        let array = self.collector.value(self.model, self.compiled, value, Some(row))?;
        let shape = shape();
        let wide = array.broadcast(&shape).ok_or_else(|| {
            let problem = format!("a value of shape {:?} does not fit a selection of shape {shape:?}", array.shape());
            self.at_run_time(entry, problem, "shapes broadcast as in numpy")
        })?;
        if !self.compiled.values.allow_nan && wide.iter().any(|x| x.is_nan()) {
            let problem =
                format!("{} has NaN, which would spread to everything after it", self.compiled.values.name(value));
            return Err(self.at_run_time(entry, problem, "find where it comes from, or set allow_nan"));
        }
        Ok(Some(wide))
    }

    /// Changes the selected numbers of one token (or of one query's lines of attention); `line` is what is computed for them.
    fn edit(&self, entry: &Entry, row: usize, nth: usize, line: Option<&[f32]>, picked: &mut [f32]) -> Result<()> {
        let CompiledAction::Edit(edit) = &entry.action else { return Ok(()) };
        edit.apply(picked, self.resolved(entry, edit.given(), row, nth, line, picked.len())?);
        Ok(())
    }

    /// What an edit writes at one token of `count` selected numbers.
    fn resolved<'a>(
        &'a self,
        entry: &Entry,
        given: Option<&'a Given>,
        row: usize,
        nth: usize,
        line: Option<&'a [f32]>,
        count: usize,
    ) -> Result<Resolved<'a>> {
        let values = match given {
            None => return Ok(Resolved::Nothing),
            Some(Given::Number(number)) => return Ok(Resolved::Number(*number)),
            Some(Given::Vector(vector)) => vector.as_slice(),
            Some(Given::Rows(rows)) => rows[nth].as_slice(),
            Some(Given::Source(source)) => self.source(entry, *source, row, nth)?,
            Some(Given::Computed(_)) => line.unwrap_or_default(),
        };
        if values.len() != count {
            let problem = format!("the source has {} numbers where row {row} has {count}", values.len());
            return Err(self.at_run_time(
                entry,
                problem,
                "attention can be taken over only between rows of equal length",
            ));
        }
        Ok(Resolved::Each(values))
    }

    fn source(&self, entry: &Entry, index: usize, row: usize, nth: usize) -> Result<&[f32]> {
        let origin = self.compiled.sources[index].read_by[row].unwrap_or(row);
        self.collector.stashed(index, origin, nth).ok_or_else(|| {
            let problem = format!("row {origin} has not computed the value that row {row} reads (it ended earlier, or lies later in the text)");
            self.at_run_time(entry, problem, "choose positions that the source row reaches no later than the row that reads it")
        })
    }

    fn at_run_time(&self, entry: &Entry, problem: String, remedy: &str) -> Error {
        Error::Plan { tap: entry.tap, site: entry.site.to_string(), problem, remedy: remedy.into() }
    }

    /// Applies the taps of an attention edge to one segment's `[heads, queries, keys]`.
    pub fn apply_attention(
        &mut self,
        program: &Program,
        segment: &Segment,
        edge: EdgeId,
        value: &mut [f32],
    ) -> Result<()> {
        let (compiled, heads) = (self.compiled, program.edge(edge).width);
        let keys = segment.position + segment.count;
        let line = |head: usize, query: usize| {
            (head * segment.count + query) * keys..(head * segment.count + query + 1) * keys
        };
        debug_assert_eq!(value.len(), heads * segment.count * keys);
        for &index in &compiled.at_edge[edge] {
            let entry = &compiled.entries[index];
            let Some(chosen) = entry.rows[segment.row].as_ref().filter(|_| !self.passes_over(entry)) else { continue };
            let columns = entry
                .keys
                .as_ref()
                .map(|keys_of| keys_of[segment.row].iter().copied().filter(|&key| key < keys).collect::<Vec<_>>());
            let mut queries: Vec<usize> =
                (0..segment.count).filter_map(|query| chosen.place(segment.position + query)).collect();
            queries.sort_unstable();
            if queries.is_empty() {
                continue;
            }
            let width = columns.as_ref().map_or(keys, Vec::len);
            let shape = vec![entry.heads.len(), queries.len(), width];
            let computed = self.computed(entry, segment.row, || shape.clone())?;
            let reads = matches!(entry.action, CompiledAction::Read);
            let mut read = if reads { vec![0.0; shape.iter().product()] } else { Vec::new() };
            for query in 0..segment.count {
                let position = segment.position + query;
                let Some(nth) = chosen.place(position) else { continue };
                let mut picked = Vec::with_capacity(entry.heads.len() * keys);
                for &head in &entry.heads {
                    let line = &value[line(head, query)];
                    match &columns {
                        None => picked.extend_from_slice(line),
                        Some(columns) => picked.extend(columns.iter().map(|&key| line[key])),
                    }
                }
                let rank = queries.binary_search(&nth).unwrap_or_default();
                let lines =
                    |head: usize| (head * queries.len() + rank) * width..(head * queries.len() + rank + 1) * width;
                match &entry.action {
                    CompiledAction::Read => {
                        for (head, values) in picked.chunks_exact(width.max(1)).enumerate() {
                            read[lines(head)].copy_from_slice(values);
                        }
                        continue;
                    }
                    CompiledAction::Capture(_) => {
                        self.collector.collect_attention(
                            index,
                            segment.row,
                            nth,
                            Line { position, keys, values: picked },
                        );
                        continue;
                    }
                    CompiledAction::Call(callback) => {
                        callback.0(&mut Selected {
                            row: segment.row,
                            positions: &[position],
                            width,
                            values: &mut picked,
                        });
                    }
                    CompiledAction::Edit(_) | CompiledAction::Grad { .. } => {
                        let of_query = |values: &Vec<f32>| -> Vec<f32> {
                            (0..entry.heads.len()).flat_map(|head| values[lines(head)].iter().copied()).collect()
                        };
                        let line = computed.as_ref().map(of_query);
                        self.edit(entry, segment.row, nth, line.as_deref(), &mut picked)?
                    }
                }
                for (&head, picked) in entry.heads.iter().zip(picked.chunks_exact(width.max(1))) {
                    let line = &mut value[line(head, query)];
                    match &columns {
                        None => line.copy_from_slice(picked),
                        Some(columns) => columns.iter().zip(picked).for_each(|(&key, &x)| line[key] = x),
                    }
                }
            }
            if reads {
                self.collector.bind(compiled, entry, segment.row, Array::new(shape, read));
            }
        }
        for &index in compiled.sources_at[edge].iter().filter(|_| !self.again) {
            let source = &compiled.sources[index];
            let Some(chosen) = &source.rows[segment.row] else { continue };
            for query in 0..segment.count {
                if let Some(nth) = chosen.place(segment.position + query) {
                    let values =
                        source.heads.iter().flat_map(|&head| value[line(head, query)].iter().copied()).collect();
                    self.collector.stash(index, segment.row, nth, chosen.len(), values);
                }
            }
        }
        Ok(())
    }
}
