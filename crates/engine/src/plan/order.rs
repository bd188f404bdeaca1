//! What a plan's taps demand of each other: rows that must run before others, layers that nobody enters.

use super::compile::{Entry, Lengths, Source};
use super::{Action, Plan};
use crate::error::{Error, Result};
use crate::point::Point;
use crate::program::Program;
use crate::site::Site;

/// A row that waits for another.
struct Wait {
    tap: usize,
    /// What the reader reads.
    site: Site,
    reader: usize,
    origin: usize,
    /// The origin has to be finished first, not only run alongside.
    before: bool,
}

/// Splits rows into groups that run one after the other, so that every source is there when it is read.
pub(super) fn row_groups(
    program: &Program,
    plan: &Plan,
    entries: &[Entry],
    sources: &[Source],
    rows: usize,
) -> Result<Vec<Vec<usize>>> {
    let mut waits = Vec::new();
    for entry in entries {
        let Some(source) = entry.source().map(|index| &sources[index]) else { continue };
        let made = |edge: usize| program.edge(edge).made_by;
        for (reader, origin) in
            source.read_by.iter().enumerate().filter_map(|(reader, origin)| Some((reader, (*origin)?)))
        {
            if reader == origin && (made(source.edge), source.edge) >= (made(entry.edge), entry.edge) {
                return Err(cannot(
                    plan,
                    entry.tap,
                    format!(
                        "row {reader} would need its own later value: `{}` is not computed before `{}`",
                        source.site, entry.site
                    ),
                ));
            }
            waits.push(Wait {
                tap: entry.tap,
                site: source.site,
                reader,
                origin,
                before: reader != origin && made(source.edge) >= made(entry.edge),
            });
        }
    }
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
                        plan,
                        wait.tap,
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
    for skip in entries.iter().filter(|entry| plan.taps[entry.tap].action == Action::Skip) {
        let Some(layer) = skip.site.layer else { continue };
        let passed = |row: usize| skip.rows[row].as_ref().is_some_and(|chosen| chosen.len() == lengths.limits[row]);
        let inside =
            |site: Site| site.layer == Some(layer) && !matches!(site.point, Point::ResidPre | Point::ResidPost);
        let looks = entries.iter().map(|entry| (entry.tap, entry.site, &entry.rows));
        let reads = entries
            .iter()
            .filter_map(|entry| entry.source().map(|source| (entry.tap, sources[source].site, &sources[source].rows)));
        for (tap, site, rows) in looks.chain(reads).filter(|(_, site, _)| inside(*site)) {
            if let Some(row) = (0..rows.len()).find(|&row| rows[row].is_some() && passed(row)) {
                return Err(cannot(
                    plan,
                    tap,
                    format!("`{site}` is never computed for row {row}, because tap {} skips layer {layer}", skip.tap),
                ));
            }
        }
        skipped[layer] |= skip.whole;
    }
    Ok(skipped)
}

fn cannot(plan: &Plan, tap: usize, problem: String) -> Error {
    let remedy = "read an earlier site, or another row";
    Error::Plan { tap, site: plan.taps[tap].site.clone(), problem, remedy: remedy.into() }
}
