//! Taps on attention scores and probabilities, `[heads, queries, keys]` of each row.

use super::{AttentionRow, JobTaps};
use crate::array::Array;
use crate::error::Result;
use crate::job::AttentionLine;
use crate::plan::{Callback, CompiledAction, CompiledTap, SelectedPositions, SelectedRow};
use crate::program::EdgeId;

impl JobTaps<'_> {
    /// Applies the taps of an attention edge, each to all rows; then stashes the values that other
    /// taps read from it.
    pub(super) fn apply_attention(&mut self, edge: EdgeId, rows: &mut [AttentionRow]) -> Result<()> {
        let compiled = self.job.compiled.clone();
        for &index in &compiled.at_edge[edge] {
            let entry = &compiled.taps[index];
            if self.job.ignores(entry) {
                continue;
            }
            if let CompiledAction::Call(callback) = &entry.action {
                call(entry, callback, rows)?;
                continue;
            }
            for row in rows.iter_mut() {
                if let Some(lines) = AttentionSelection::of(entry, row) {
                    self.attention_row(index, entry, &lines, row)?;
                }
            }
        }
        for &index in compiled.sources_at[edge].iter().filter(|_| !self.job.replay) {
            let source = &compiled.sources[index];
            for row in rows.iter() {
                let Some(chosen) = &source.rows[row.segment.row] else { continue };
                for query in 0..row.segment.count {
                    if let Some(nth) = chosen.index_of(row.segment.position + query) {
                        let lines = source.heads.iter().flat_map(|&head| row.line(head, query).iter().copied());
                        self.job.collector.stash(index, row.segment.row, nth, chosen.len(), lines.collect());
                    }
                }
            }
        }
        Ok(())
    }

    /// Applies one tap that captures, reads or edits to one row.
    fn attention_row(
        &mut self,
        index: usize,
        entry: &CompiledTap,
        lines: &AttentionSelection,
        row: &mut AttentionRow,
    ) -> Result<()> {
        let of = row.segment.row;
        let shape = vec![entry.heads.len(), lines.queries.len(), lines.width];
        if matches!(entry.action, CompiledAction::Read) {
            let values = lines.gather(entry, row);
            self.job.bind(entry, of, Array::new(shape, values));
            return Ok(());
        }
        let computed = self.computed(entry, of, || shape.clone())?;
        for (rank, &(nth, query)) in lines.queries.iter().enumerate() {
            let mut picked = lines.of_query(entry, row, query);
            if let CompiledAction::Capture(_) = &entry.action {
                let line = AttentionLine { keys: row.keys(), values: picked };
                self.job.collector.collect_attention(index, of, nth, line);
                continue;
            }
            let line = computed.as_ref().map(|values| -> Vec<f32> {
                let heads = 0..entry.heads.len();
                let line = |head: usize| &values[(head * lines.queries.len() + rank) * lines.width..][..lines.width];
                heads.flat_map(|head| line(head).iter().copied()).collect()
            });
            self.edit(entry, (of, nth, 0), line.as_deref(), &mut picked)?;
            lines.put_query(entry, row, query, &picked);
        }
        Ok(())
    }
}

/// Calls a closure once with the selected values of all rows, `[heads, queries, keys]` each, and
/// writes the changed values back.
fn call(entry: &CompiledTap, callback: &Callback, rows: &mut [AttentionRow]) -> Result<()> {
    let mut selected: Vec<(usize, AttentionSelection)> = Vec::new();
    let mut gathered = Vec::new();
    for (index, row) in rows.iter().enumerate() {
        let Some(lines) = AttentionSelection::of(entry, row) else { continue };
        let positions = lines.queries.iter().map(|&(_, query)| row.segment.position + query).collect();
        let values = lines.gather(entry, row);
        gathered.push(SelectedRow { row: row.segment.row, positions, width: lines.width, values });
        selected.push((index, lines));
    }
    if gathered.is_empty() {
        return Ok(());
    }
    callback.call(entry, &mut gathered)?;
    for ((index, lines), gathered) in selected.iter().zip(&gathered) {
        let (queries, width) = (lines.queries.len(), lines.width);
        for (rank, &(_, query)) in lines.queries.iter().enumerate() {
            let heads = 0..entry.heads.len();
            let line = |head: usize| &gathered.values[(head * queries + rank) * width..][..width];
            let picked: Vec<f32> = heads.flat_map(|head| line(head).iter().copied()).collect();
            lines.put_query(entry, &mut rows[*index], query, &picked);
        }
    }
    Ok(())
}

/// The queries and keys that a tap selects in one row's attention.
struct AttentionSelection {
    /// `(index in the selection, query of the segment)`, sorted.
    queries: Vec<(usize, usize)>,
    /// The selected keys; `None` selects all.
    keys: Option<Vec<usize>>,
    /// Number of selected keys.
    width: usize,
}

impl AttentionSelection {
    fn of(entry: &CompiledTap, row: &AttentionRow) -> Option<AttentionSelection> {
        let (segment, length) = (&row.segment, row.keys());
        let chosen: &SelectedPositions = entry.rows[segment.row].as_ref()?;
        let query = |query: usize| Some((chosen.index_of(segment.position + query)?, query));
        let mut queries: Vec<(usize, usize)> = (0..segment.count).filter_map(query).collect();
        queries.sort_unstable();
        let keys: Option<Vec<usize>> =
            entry.keys.as_ref().map(|keys| keys[segment.row].iter().copied().filter(|&key| key < length).collect());
        let width = keys.as_ref().map_or(length, Vec::len);
        (!queries.is_empty()).then_some(AttentionSelection { queries, keys, width })
    }

    /// The selected values of one query, `[heads, keys]`.
    fn of_query(&self, entry: &CompiledTap, row: &AttentionRow, query: usize) -> Vec<f32> {
        let mut picked = Vec::with_capacity(entry.heads.len() * self.width);
        for &head in &entry.heads {
            let line = row.line(head, query);
            match &self.keys {
                None => picked.extend_from_slice(line),
                Some(keys) => picked.extend(keys.iter().map(|&key| line[key])),
            }
        }
        picked
    }

    /// Writes the selected values of one query, `[heads, keys]`.
    fn put_query(&self, entry: &CompiledTap, row: &mut AttentionRow, query: usize, picked: &[f32]) {
        for (&head, picked) in entry.heads.iter().zip(picked.chunks_exact(self.width.max(1))) {
            let line = row.line_mut(head, query);
            match &self.keys {
                None => line.copy_from_slice(picked),
                Some(keys) => keys.iter().zip(picked).for_each(|(&key, &x)| line[key] = x),
            }
        }
    }

    /// All selected values, `[heads, queries, keys]`, in the order of the selection.
    fn gather(&self, entry: &CompiledTap, row: &AttentionRow) -> Vec<f32> {
        let mut values = Vec::with_capacity(entry.heads.len() * self.queries.len() * self.width);
        for &head in &entry.heads {
            for &(_, query) in &self.queries {
                let line = row.line(head, query);
                match &self.keys {
                    None => values.extend_from_slice(line),
                    Some(keys) => values.extend(keys.iter().map(|&key| line[key])),
                }
            }
        }
        values
    }
}

impl AttentionRow {
    /// Number of keys per query.
    pub fn keys(&self) -> usize {
        self.segment.position + self.segment.count
    }

    fn start(&self, head: usize, query: usize) -> usize {
        (head * self.segment.count + query) * self.keys()
    }

    /// One query's values of a head, `[keys]`.
    pub fn line(&self, head: usize, query: usize) -> &[f32] {
        &self.values[self.start(head, query)..][..self.keys()]
    }

    fn line_mut(&mut self, head: usize, query: usize) -> &mut [f32] {
        let (start, keys) = (self.start(head, query), self.keys());
        &mut self.values[start..][..keys]
    }
}
