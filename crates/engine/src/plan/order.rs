//! What a plan's taps demand of each other: rows that must run before others, layers that nobody enters.

use super::compile_value::Values;
use super::compiled::{Entry, Lengths, Source};
use super::{Action, Plan};
use crate::error::{Error, Result};
use crate::ids::IdVec;
use crate::point::Point;
use crate::program::{EdgeId, Program};
use crate::site::Site;

/// What entries can reach.
pub(super) struct Reach<'a> {
    pub program: &'a Program,
    pub entries: &'a [Entry],
    pub at_edge: &'a IdVec<EdgeId, Vec<usize>>,
    pub sources: &'a [Source],
    pub values: &'a Values,
}

impl Reach<'_> {
    /// Every row that writes what another, or itself, has computed.
    fn waits(&self) -> Result<Vec<Wait>> {
        let mut waits = Vec::new();
        let made = |edge: EdgeId| self.program.edge(edge).made_by;
        for (index, entry) in self.entries.iter().enumerate().filter(|(_, entry)| !entry.on_gradient()) {
            let mut wait = |reader: usize, origin: usize, site: Site, edge: EdgeId, there: bool| {
                if reader == origin && !there {
                    let problem = format!(
                        "row {reader} would need its own later value: `{site}` is not computed before `{}`",
                        entry.site
                    );
                    return Err(cannot(entry, problem));
                }
                // Taps of one edge go tap by tap over all rows, so a tap may use what an earlier one read of any row.
                let alongside = made(edge) < made(entry.edge) || edge == entry.edge && there;
                let before = reader != origin && !alongside;
                waits.push(Wait { entry: index, site, reader, origin, before });
                Ok(())
            };
            if let Some(source) = entry.source().map(|source| &self.sources[source]) {
                let pairs = source.read_by.iter().enumerate();
                for (reader, origin) in pairs.filter_map(|(reader, origin)| Some((reader, (*origin)?))) {
                    let there = (made(source.edge), source.edge) < (made(entry.edge), entry.edge);
                    wait(reader, origin, source.site, source.edge, there)?;
                }
            }
            if let Some(value) = entry.value() {
                for reader in (0..entry.rows.len()).filter(|&row| entry.rows[row].is_some()) {
                    for (read, origin) in self.values.leaves(value, Some(reader)) {
                        let Some(bound_by) = self.values.bound_by[read] else { continue };
                        let read = &self.entries[bound_by];
                        wait(reader, origin, read.site, read.edge, self.comes_before(bound_by, index))?;
                    }
                }
            }
        }
        Ok(waits)
    }

    /// Whether one entry applies before another in the same row.
    fn comes_before(&self, first: usize, second: usize) -> bool {
        let (a, b) = (&self.entries[first], &self.entries[second]);
        if a.edge == b.edge {
            let place = |index: usize| self.at_edge[a.edge].iter().position(|&at| at == index);
            return place(first) < place(second);
        }
        let key = |entry: &Entry| (self.program.edge(entry.edge).made_by, entry.edge);
        key(a) < key(b)
    }
}

/// A row that waits for another.
struct Wait {
    entry: usize,
    /// What the reader reads.
    site: Site,
    reader: usize,
    origin: usize,
    /// The origin has to be finished first, not only run alongside.
    before: bool,
}

/// Splits rows into groups that run one after the other, so that everything is there when it is read.
pub(super) fn row_groups(reach: &Reach, rows: usize) -> Result<Vec<Vec<usize>>> {
    let waits = reach.waits()?;
    // Longest paths: with `rows` rows, a group number past `rows` means a circle.
    let mut group = vec![0; rows];
    loop {
        let mut settled = true;
        for wait in &waits {
            let least = group[wait.origin] + wait.before as usize;
            if group[wait.reader] < least {
                group[wait.reader] = least;
                settled = false;
                if least > rows {
                    return Err(cannot(
                        &reach.entries[wait.entry],
                        format!(
                            "rows {} and {} wait for each other: row {} reads `{}` of row {}",
                            wait.reader, wait.origin, wait.reader, wait.site, wait.origin
                        ),
                    ));
                }
            }
        }
        if settled {
            break;
        }
    }
    let last = group.iter().copied().max().unwrap_or(0);
    let groups = (0..=last).map(|g| (0..rows).filter(|&row| group[row] == g).collect::<Vec<_>>());
    Ok(groups.filter(|rows| !rows.is_empty()).collect())
}

/// Layers that no row enters at any position; and a refusal of taps and sources inside a layer that their row skips.
pub(super) fn skipped_layers(
    program: &Program,
    plan: &Plan,
    entries: &[Entry],
    sources: &[Source],
    lengths: Lengths,
) -> Result<Vec<bool>> {
    let mut skipped = vec![false; program.architecture().layers.len()];
    for skip in entries.iter().filter(|entry| matches!(plan.taps[entry.tap].action, Action::Skip(_))) {
        let Some(layer) = skip.site.layer else { continue };
        let passed = |row: usize| skip.rows[row].as_ref().is_some_and(|chosen| chosen.len() == lengths.limits[row]);
        let inside =
            |site: Site| site.layer == Some(layer) && !matches!(site.point, Point::ResidPre | Point::ResidPost);
        let looks = entries.iter().map(|entry| (entry, entry.site, &entry.rows));
        let reads = entries
            .iter()
            .filter_map(|entry| entry.source().map(|source| (entry, sources[source].site, &sources[source].rows)));
        for (entry, site, rows) in looks.chain(reads).filter(|(_, site, _)| inside(*site)) {
            if let Some(row) = (0..rows.len()).find(|&row| rows[row].is_some() && passed(row)) {
                return Err(cannot(
                    entry,
                    format!("`{site}` is never computed for row {row}, because tap {} skips layer {layer}", skip.tap),
                ));
            }
        }
        skipped[layer] |= skip.whole;
    }
    Ok(skipped)
}

fn cannot(entry: &Entry, problem: String) -> Error {
    let remedy = "read an earlier site, or another row";
    Error::Plan { tap: entry.tap, site: entry.site.to_string(), problem, remedy: remedy.into() }
}
