//! Matches the weights of a program with the stored tensors of a checkpoint, reading headers only.
//!
//! Everything that does not match is collected and reported at once: missing, ambiguous, wrongly
//! shaped and unexpected tensors.

use crate::error::{Error, Result};
use crate::gguf::RowOrder;
use crate::name_variants::{self, NameResolver, NameVariant, Resolution};
use crate::names::{Names, WeightSource};
use crate::tensors::Tensors;
use pellucid_engine::{Program, WeightSpec};
use std::collections::BTreeSet;
use std::path::Path;

/// Finds the source of each weight, in the program's order, and the name variants that were used.
///
/// # Errors
/// Lists every missing, ambiguous, wrongly shaped and unexpected tensor.
pub(crate) fn find_sources(
    program: &Program,
    names: &Names,
    tensors: &Tensors,
    origin: &Path,
) -> Result<(Vec<WeightSource>, Vec<NameVariant>)> {
    let comparison = compare(program, names, tensors, true);
    if comparison.misfits() == 0 {
        return Ok((comparison.found, comparison.name_variants));
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
    pub found: Vec<WeightSource>,
    /// Name variants under which some of them were found.
    pub name_variants: Vec<NameVariant>,
    missing: Vec<String>,
    ambiguous: Vec<String>,
    misshaped: Vec<String>,
    unexpected: Vec<String>,
}

impl Comparison {
    /// Number of missing, ambiguous, wrongly shaped and unexpected tensors.
    pub fn misfits(&self) -> usize {
        self.missing.len() + self.ambiguous.len() + self.misshaped.len() + self.unexpected.len()
    }

    /// Describes the misfits: one line per kind, with the first names.
    pub fn lines(&self) -> Vec<String> {
        let report = [
            ("missing", &self.missing),
            ("ambiguous", &self.ambiguous),
            ("of the wrong shape", &self.misshaped),
            ("unexpected", &self.unexpected),
        ];
        let present = report.iter().filter(|(_, list)| !list.is_empty());
        present.map(|(what, list)| format!("{} {what}: {}", list.len(), shorten(list))).collect()
    }
}

/// Matches the weights of a program with stored tensors, without reading their data. With
/// `try_variants`, a weight that is not stored under its family's name is looked for under the
/// known variants of that name.
pub(crate) fn compare(program: &Program, names: &Names, tensors: &Tensors, try_variants: bool) -> Comparison {
    let stored = tensors.names();
    let present = |source: &WeightSource| tensors.get(&source.tensor).is_some();
    let prefix = best_prefix(program, names, present);
    // Created on demand: most checkpoints need no variants.
    let mut resolver: Option<NameResolver> = None;
    let (mut found, mut missing, mut ambiguous, mut misshaped) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for spec in program.weights() {
        let sources = names.sources(&spec.name, prefix);
        let Some(first) = sources.first() else {
            missing.push(format!("{} (no name is known for it)", spec.name));
            continue;
        };
        let source = match sources.iter().find(|source| present(source)) {
            Some(source) => source.clone(),
            None if !try_variants => {
                missing.push(first.tensor.clone());
                continue;
            }
            None => match resolver.get_or_insert_with(|| NameResolver::new(program, &stored)).find(spec, names) {
                Resolution::Found(source) => source,
                Resolution::Missing => {
                    missing.push(first.tensor.clone());
                    continue;
                }
                Resolution::Ambiguous(which) => {
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
    // Weights that are parts of one stored tensor share its name.
    let mut named = BTreeSet::new();
    missing.retain(|name| named.insert(name.clone()));
    let name_variants = resolver.map(NameResolver::name_variants).unwrap_or_default();
    let unexpected = unexpected(&stored, &found, !name_variants.is_empty(), program, names, prefix);
    Comparison { found, name_variants, missing, ambiguous, misshaped, unexpected }
}

/// Returns the prefix under which most of the first weights are stored; on a tie, the table's
/// first.
fn best_prefix(program: &Program, names: &Names, present: impl Fn(&WeightSource) -> bool) -> &'static str {
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

/// Checks that a stored tensor exists and has the shape of the weight.
fn misfit(spec: &WeightSpec, source: &WeightSource, tensors: &Tensors) -> Option<Misfit> {
    let Some(stored) = tensors.get(&source.tensor) else { return Some(Misfit::Missing(source.tensor.clone())) };
    if source.more_pieces.is_empty() {
        let transposed = source.transposed && stored.order != RowOrder::Transposed;
        let expected = source.part.stored_shape(&spec.shape, transposed);
        let what = || format!("{} is {:?} where the configuration expects {expected:?}", source.tensor, stored.shape);
        return (!same_shape(stored.shape, &expected)).then(|| Misfit::Shape(what()));
    }
    match count_elements(source, tensors) {
        Ok(elements) if elements == spec.shape.iter().product::<usize>() => None,
        Ok(elements) => Some(Misfit::Shape(format!(
            "{} and {} more hold {elements} elements where the configuration expects {:?}",
            source.tensor,
            source.more_pieces.len(),
            spec.shape
        ))),
        Err(name) => Some(Misfit::Missing(name)),
    }
}

/// Returns the stored tensors that no weight uses and that the family does not ignore.
fn unexpected(
    stored: &[&str],
    found: &[WeightSource],
    variants_used: bool,
    program: &Program,
    names: &Names,
    prefix: &str,
) -> Vec<String> {
    let used: BTreeSet<&str> = found.iter().flat_map(WeightSource::tensors).collect();
    // A tied head may be stored as well, as a copy of the embedding.
    let heads = if program.architecture().head.tied { names.sources("head", prefix) } else { Vec::new() };
    let ignored = |name: &str, prefix: &str, starts: &dyn Fn(&str) -> bool| {
        names.ignored_suffixes.iter().any(|suffix| name.ends_with(suffix))
            || names.ignored_prefixes.iter().any(|start| starts(start))
            || names.ignored_infixes.iter().any(|infix| name.contains(infix))
            || names.is_mtp_layer(name, prefix)
    };
    let harmless = |name: &str| {
        let head = |source: &WeightSource| {
            source.tensor == name
                || (variants_used && name_variants::canonical(&source.tensor) == name_variants::canonical(name))
        };
        if heads.iter().any(head) || ignored(name, prefix, &|start| name.starts_with(start)) {
            return true;
        }
        // A wrapper renames the ignored tensors, too.
        let canonical = name_variants::canonical(name);
        variants_used && ignored(&canonical, "", &|start| canonical.starts_with(&name_variants::canonical(start)))
    };
    let left = stored.iter().filter(|name| !used.contains(*name) && !harmless(name));
    let mut unexpected: Vec<String> = left.map(|name| name.to_string()).collect();
    unexpected.sort_unstable();
    unexpected
}

/// Counts the elements of a vector stored in pieces; the error is the name of a missing piece.
fn count_elements(source: &WeightSource, tensors: &Tensors) -> std::result::Result<usize, String> {
    let elements = |name: &str| tensors.get(name).map(|stored| stored.shape.iter().product::<usize>());
    source.tensors().map(|name| elements(name).ok_or_else(|| name.to_string())).sum()
}

/// Compares shapes without their axes of length one.
fn same_shape(stored: &[usize], expected: &[usize]) -> bool {
    let is_axis = |n: &&usize| **n != 1;
    stored.iter().filter(is_axis).eq(expected.iter().filter(is_axis))
}

fn shorten(list: &[String]) -> String {
    const SHOWN: usize = 6;
    let shown = list.iter().take(SHOWN).map(String::as_str).collect::<Vec<_>>().join(", ");
    if list.len() > SHOWN { format!("{shown} and {} more", list.len() - SHOWN) } else { shown }
}
