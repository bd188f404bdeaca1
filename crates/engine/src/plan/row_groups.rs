//! Dependencies between rows and layers of a plan.
//!
//! An edit can write an activation of another row. If that activation is computed later in the op
//! list, the other row must run first: `row_groups` splits rows into groups that run one after the
//! other. `skipped_layers` finds layers that no row enters.

use super::compile_value::CompiledValues;
use super::compiled::{CompiledTap, Lengths, Source};
use super::{Action, Plan};
use crate::error::{Error, Result};
use crate::ids::IdVec;
use crate::point::Point;
use crate::program::{EdgeId, Program};
use crate::site::Site;

/// The parts of a compiled plan that determine dependencies between rows.
pub(super) struct RowDependencies<'a> {
    pub program: &'a Program,
    pub taps: &'a [CompiledTap],
    pub at_edge: &'a IdVec<EdgeId, Vec<usize>>,
    pub sources: &'a [Source],
    pub values: &'a CompiledValues,
}

impl RowDependencies<'_> {
    /// Returns every dependency: a row whose edit reads an activation of another row, or its own.
    fn collect(&self) -> Result<Vec<RowDependency>> {
        let mut dependencies = Vec::new();
        let producer = |edge: EdgeId| self.program.edge(edge).producer;
        for (index, entry) in self.taps.iter().enumerate().filter(|(_, entry)| !entry.on_gradient()) {
            let mut add = |reader: usize, origin: usize, site: Site, edge: EdgeId, is_computed: bool| {
                if reader == origin && !is_computed {
                    let problem = format!(
                        "row {reader} would need its own later value: `{site}` is not computed before `{}`",
                        entry.site
                    );
                    return Err(dependency_error(entry, problem));
                }
                // Each tap of an edge is applied to all rows before the next tap, so a tap can use
                // what an earlier tap of the same edge read from any row.
                let same_pass = producer(edge) < producer(entry.edge) || edge == entry.edge && is_computed;
                let before = reader != origin && !same_pass;
                dependencies.push(RowDependency { tap: index, site, reader, origin, before });
                Ok(())
            };
            if let Some(source) = entry.source().map(|source| &self.sources[source]) {
                let pairs = source.read_by.iter().enumerate();
                for (reader, origin) in pairs.filter_map(|(reader, origin)| Some((reader, (*origin)?))) {
                    let is_computed = self.program.order_of(source.edge) < self.program.order_of(entry.edge);
                    add(reader, origin, source.site, source.edge, is_computed)?;
                }
            }
            if let Some(value) = entry.value() {
                for reader in (0..entry.rows.len()).filter(|&row| entry.rows[row].is_some()) {
                    for (read, origin) in self.values.leaves(value, Some(reader)) {
                        let Some(bound_by) = self.values.bound_by[read] else { continue };
                        let read = &self.taps[bound_by];
                        add(reader, origin, read.site, read.edge, self.comes_before(bound_by, index))?;
                    }
                }
            }
        }
        Ok(dependencies)
    }

    /// Rejects a tap whose condition is tested after it.
    fn check_conditions(&self) -> Result<()> {
        for (index, entry) in self.taps.iter().enumerate() {
            let Some(condition) = entry.condition.filter(|&condition| !self.comes_before(condition, index)) else {
                continue;
            };
            let tested = self.taps[condition].site;
            return Err(Error::Plan {
                tap: entry.tap,
                site: entry.site.to_string(),
                problem: format!(
                    "the condition is tested too late: `{tested}` is not computed before `{}`",
                    entry.site
                ),
                remedy: "test an earlier site, or act at a later one".into(),
            });
        }
        Ok(())
    }

    /// Whether one tap applies before another in the same row.
    fn comes_before(&self, first: usize, second: usize) -> bool {
        let (a, b) = (&self.taps[first], &self.taps[second]);
        if a.edge == b.edge {
            let order = |index: usize| self.at_edge[a.edge].iter().position(|&at| at == index);
            return order(first) < order(second);
        }
        self.program.order_of(a.edge) < self.program.order_of(b.edge)
    }
}

/// Row `reader` uses an activation of row `origin`.
struct RowDependency {
    /// Index of the compiled tap.
    tap: usize,
    /// The site that is read.
    site: Site,
    reader: usize,
    origin: usize,
    /// `origin` must finish before `reader` starts; otherwise both can run in one pass.
    before: bool,
}

/// Splits rows into groups that run one after the other, so that every activation is computed
/// before it is read.
pub(super) fn row_groups(plan: &RowDependencies, rows: usize) -> Result<Vec<Vec<usize>>> {
    plan.check_conditions()?;
    let dependencies = plan.collect()?;
    // Longest paths: with `rows` rows, a group index above `rows` means a cycle.
    let mut group = vec![0; rows];
    loop {
        let mut settled = true;
        for dependency in &dependencies {
            let RowDependency { reader, origin, .. } = *dependency;
            let least = group[origin] + dependency.before as usize;
            if group[reader] < least {
                group[reader] = least;
                settled = false;
                if least > rows {
                    return Err(dependency_error(
                        &plan.taps[dependency.tap],
                        format!(
                            "rows {reader} and {origin} wait for each other: row {reader} reads `{}` of row {origin}",
                            dependency.site
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

/// Returns for each layer whether all rows skip it at all positions. Rejects taps and sources
/// inside a layer that their row skips.
pub(super) fn skipped_layers(
    program: &Program,
    plan: &Plan,
    entries: &[CompiledTap],
    sources: &[Source],
    lengths: Lengths,
) -> Result<Vec<bool>> {
    let mut skipped = vec![false; program.architecture().layers.len()];
    for skip in entries.iter().filter(|entry| matches!(plan.taps[entry.tap].action, Action::Skip(_))) {
        let Some(layer) = skip.site.layer else { continue };
        let skips_row = |row: usize| skip.rows[row].as_ref().is_some_and(|chosen| chosen.len() == lengths.limits[row]);
        let inside =
            |site: Site| site.layer == Some(layer) && !matches!(site.point, Point::ResidPre | Point::ResidPost);
        let tapped = entries.iter().map(|entry| (entry, entry.site, &entry.rows));
        let reads = entries
            .iter()
            .filter_map(|entry| entry.source().map(|source| (entry, sources[source].site, &sources[source].rows)));
        for (entry, site, rows) in tapped.chain(reads).filter(|(_, site, _)| inside(*site)) {
            if let Some(row) = (0..rows.len()).find(|&row| rows[row].is_some() && skips_row(row)) {
                return Err(dependency_error(
                    entry,
                    format!("`{site}` is never computed for row {row}, because tap {} skips layer {layer}", skip.tap),
                ));
            }
        }
        skipped[layer] |= skip.whole;
    }
    Ok(skipped)
}

fn dependency_error(entry: &CompiledTap, problem: String) -> Error {
    let remedy = "read an earlier site, or another row";
    Error::Plan { tap: entry.tap, site: entry.site.to_string(), problem, remedy: remedy.into() }
}
