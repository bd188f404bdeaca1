//! Compares stored tensors with the weights of a program: where each weight is, what is missing, what is left over.

use crate::error::{Error, Result};
use crate::gguf::RowOrder;
use crate::names::{Names, Source};
use crate::repair::{self, Mended, Mender, Repair};
use crate::tensors::Tensors;
use pellucid_engine::{Program, WeightSpec};
use std::collections::BTreeSet;
use std::path::Path;

/// Finds a source for each weight, and reports everything that is missing, of the wrong shape or left over, all at once; also returns the
/// known variants of names that were met.
pub(crate) fn find(
    program: &Program,
    names: &Names,
    tensors: &Tensors,
    origin: &Path,
) -> Result<(Vec<Source>, Vec<Repair>)> {
    let comparison = compare(program, names, tensors, true);
    if comparison.misfits() == 0 {
        return Ok((comparison.found, comparison.repairs));
    }
    Err(Error::invalid(
        origin,
        format!("the weights do not fit the configuration\n  {}", comparison.lines().join("\n  ")),
        "check that config.json and the weights belong together and that every file was downloaded; nothing is ever filled in",
    ))
}

/// The result of comparing stored tensors with the weights of a program.
pub(crate) struct Comparison {
    /// The sources of the weights that are stored, in the program's order.
    pub found: Vec<Source>,
    /// Known variants of names by which some of them were found.
    pub repairs: Vec<Repair>,
    missing: Vec<String>,
    ambiguous: Vec<String>,
    misshaped: Vec<String>,
    unexpected: Vec<String>,
}

impl Comparison {
    /// How many tensors are missing, ambiguous, of the wrong shape or left over.
    pub fn misfits(&self) -> usize {
        self.missing.len() + self.ambiguous.len() + self.misshaped.len() + self.unexpected.len()
    }

    /// What does not fit: a line for each kind, with the first names.
    pub fn lines(&self) -> Vec<String> {
        let report = [
            ("missing", &self.missing),
            ("ambiguous", &self.ambiguous),
            ("of the wrong shape", &self.misshaped),
            ("unexpected", &self.unexpected),
        ];
        let said = report.iter().filter(|(_, list)| !list.is_empty());
        said.map(|(what, list)| format!("{} {what}: {}", list.len(), shorten(list))).collect()
    }
}

/// Compares the stored tensors with what a program needs; reads none of their data. With `mend`, weights that are not stored under
/// their family's names are looked for under known variants.
pub(crate) fn compare(program: &Program, names: &Names, tensors: &Tensors, mend: bool) -> Comparison {
    let stored = tensors.names();
    let present = |source: &Source| tensors.get(&source.tensor).is_some();
    let prefix = best_prefix(program, names, present);
    // Most checkpoints need no variant of any name.
    let mut mender: Option<Mender> = None;
    let (mut found, mut missing, mut ambiguous, mut misshaped) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for spec in program.weights() {
        let sources = names.sources(&spec.name, prefix);
        let Some(first) = sources.first() else {
            missing.push(format!("{} (no name is known for it)", spec.name));
            continue;
        };
        let source = match sources.iter().find(|source| present(source)) {
            Some(source) => source.clone(),
            None if !mend => {
                missing.push(first.tensor.clone());
                continue;
            }
            None => match mender.get_or_insert_with(|| Mender::new(program, &stored)).find(spec, names) {
                Mended::Found(source) => source,
                Mended::Missing => {
                    missing.push(first.tensor.clone());
                    continue;
                }
                Mended::Ambiguous(which) => {
                    ambiguous.push(which);
                    continue;
                }
            },
        };
        match misfit(spec, &source, tensors) {
            None => {}
            Some(Misfit::Missing(name)) => missing.push(name),
            Some(Misfit::Shape(what)) => misshaped.push(what),
        }
        found.push(source);
    }
    let repairs = mender.map(Mender::repairs).unwrap_or_default();
    let unexpected = unexpected(&stored, &found, !repairs.is_empty(), program, names, prefix);
    Comparison { found, repairs, missing, ambiguous, misshaped, unexpected }
}

/// The prefix under which most of the first weights are found, of several the one that the table names first.
fn best_prefix(program: &Program, names: &Names, present: impl Fn(&Source) -> bool) -> &'static str {
    let first = &program.weights()[..program.weights().len().min(64)];
    let (mut best, mut most) = (names.prefixes.first().copied().unwrap_or_default(), 0);
    for prefix in &names.prefixes {
        let found = first.iter().filter(|spec| names.sources(&spec.name, prefix).iter().any(&present)).count();
        if found > most {
            (best, most) = (prefix, found);
        }
        if most == first.len() {
            break;
        }
    }
    best
}

enum Misfit {
    Missing(String),
    Shape(String),
}

/// Why a stored tensor is not the weight, if it is not.
fn misfit(spec: &WeightSpec, source: &Source, tensors: &Tensors) -> Option<Misfit> {
    let Some(stored) = tensors.get(&source.tensor) else { return Some(Misfit::Missing(source.tensor.clone())) };
    if source.more.is_empty() {
        let transposed = source.transposed && stored.order != RowOrder::Transposed;
        let expected = source.part.stored_shape(&spec.shape, transposed);
        let what = || format!("{} is {:?} where the configuration makes it {expected:?}", source.tensor, stored.shape);
        return (!same_shape(stored.shape, &expected)).then(|| Misfit::Shape(what()));
    }
    match pieces(source, tensors) {
        Ok(numbers) if numbers == spec.shape.iter().product::<usize>() => None,
        Ok(numbers) => Some(Misfit::Shape(format!(
            "{} and {} more hold {numbers} numbers where the configuration makes them {:?}",
            source.tensor,
            source.more.len(),
            spec.shape
        ))),
        Err(name) => Some(Misfit::Missing(name)),
    }
}

/// The stored tensors that nobody needs and that are not known to be superfluous.
fn unexpected(
    stored: &[&str],
    found: &[Source],
    mended: bool,
    program: &Program,
    names: &Names,
    prefix: &str,
) -> Vec<String> {
    let used: BTreeSet<&str> = found.iter().flat_map(Source::tensors).collect();
    // A tied head may be stored once more; it is the same table.
    let heads = if program.architecture().head.tied { names.sources("head", prefix) } else { Vec::new() };
    let known = |name: &str, prefix: &str, starts: &dyn Fn(&str) -> bool| {
        names.ignored.iter().any(|end| name.ends_with(end))
            || names.other_parts.iter().any(|start| starts(start))
            || names.other_places.iter().any(|place| name.contains(place))
            || names.guesses(name, prefix)
    };
    let harmless = |name: &str| {
        let head =
            |source: &Source| source.tensor == name || (mended && repair::core(&source.tensor) == repair::core(name));
        if heads.iter().any(head) || known(name, prefix, &|start| name.starts_with(start)) {
            return true;
        }
        // Under a wrapper's name, what is not needed has it too.
        let core = repair::core(name);
        mended && known(&core, "", &|start| core.starts_with(&repair::core(start)))
    };
    let left = stored.iter().filter(|name| !used.contains(*name) && !harmless(name));
    let mut unexpected: Vec<String> = left.map(|name| name.to_string()).collect();
    unexpected.sort_unstable();
    unexpected
}

/// How many numbers the pieces of a vector hold, or which of them is missing.
fn pieces(source: &Source, tensors: &Tensors) -> std::result::Result<usize, String> {
    let numbers = |name: &str| tensors.get(name).map(|stored| stored.shape.iter().product::<usize>());
    source.tensors().map(|name| numbers(name).ok_or_else(|| name.to_string())).sum()
}

/// Axes of length one say nothing.
fn same_shape(stored: &[usize], expected: &[usize]) -> bool {
    let is_axis = |n: &&usize| **n != 1;
    stored.iter().filter(is_axis).eq(expected.iter().filter(is_axis))
}

fn shorten(list: &[String]) -> String {
    const SHOWN: usize = 6;
    let shown = list.iter().take(SHOWN).map(String::as_str).collect::<Vec<_>>().join(", ");
    if list.len() > SHOWN { format!("{shown} and {} more", list.len() - SHOWN) } else { shown }
}
