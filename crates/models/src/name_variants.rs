//! Known variants of tensor names (wrappers, legacy suffixes, fused projections). Every match is
//! counted and reported.
//!
//! Training and export tools change names. Wrapper modules add a prefix or an inner component
//! (`WRAPPERS`, `INNER_WRAPPERS`), early TensorFlow ports call a norm's parameters `gamma` and
//! `beta` (`LEGACY_SUFFIXES`), and projections with the same input are fused by some tools and
//! separate in others (`FUSED`). Only these variants are tried: any other tensor is reported as
//! unexpected, any other weight as missing, and two tensors that match the same weight are an
//! error.

use crate::names::{Names, Rows, StoredPart, WeightSource};
use pellucid_engine::{Program, WeightSpec};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;

/// Prefix components that wrappers add to all tensor names: DataParallel (`module`), torch.compile
/// (`_orig_mod`), PEFT (`base_model.model`), multimodal models (`language_model`), and the
/// backbone's own prefix (`model`, `transformer`), which may be doubled or missing.
const WRAPPERS: &[&str] = &["module", "_orig_mod", "base_model", "model", "language_model", "transformer"];

/// Components that wrappers of single layers insert into a name.
const INNER_WRAPPERS: &[&str] = &["_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"];

/// Legacy suffixes and their current names.
const LEGACY_SUFFIXES: &[(&str, &str)] = &[("gamma", "weight"), ("beta", "bias")];

/// Projections with the same input, which may be fused.
struct ProjectionGroup {
    /// For each projection its module in the engine and its stored name when unfused.
    parts: &'static [(&'static str, &'static str)],
    /// Names of fused matrices: the projections concatenated along the rows, in this order.
    fused: &'static [&'static str],
}

const FUSED: &[ProjectionGroup] = &[
    ProjectionGroup { parts: &[("q", "q_proj"), ("k", "k_proj"), ("v", "v_proj")], fused: &["qkv_proj", "W_pack"] },
    ProjectionGroup { parts: &[("gate", "gate_proj"), ("up", "up_proj")], fused: &["gate_up_proj"] },
];

/// Fused matrices with a row order specific to their family, so only that family can read them.
const FUSED_OTHER_LAYOUT: &[&str] = &["query_key_value", "Wqkv"];

/// A variant that was found in a checkpoint: the rule, and the tensors that it matched.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NameVariant {
    /// The rule that matched.
    pub rule: NameRule,
    /// The name component in the checkpoint.
    pub stored: String,
    /// The name component that the family expects.
    pub read_as: String,
    /// Number of stored tensors that matched.
    pub tensors: usize,
    /// Name of the first of them.
    pub example: String,
}

/// Kind of name variant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum NameRule {
    /// A prefix other than the family's.
    Prefix,
    /// A wrapper's component inside the name.
    Wrapper,
    /// A legacy suffix.
    #[serde(rename = "ending")]
    Suffix,
    /// One fused matrix where the family has separate projections.
    Fused,
    /// Separate projections where the family has one fused matrix.
    #[serde(rename = "apart")]
    Unfused,
}

impl fmt::Display for NameVariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NameVariant { rule, stored, read_as, tensors, example } = self;
        let plural = if *tensors == 1 { "" } else { "s" };
        write!(f, "{tensors} tensor{plural} ({example}{}): ", if *tensors == 1 { "" } else { ", …" })?;
        match rule {
            NameRule::Prefix if stored.is_empty() => write!(f, "no prefix where the family has `{read_as}`"),
            NameRule::Prefix if read_as.is_empty() => write!(f, "the prefix `{stored}` is left out"),
            NameRule::Prefix => write!(f, "the prefix `{stored}` is read as `{read_as}`"),
            NameRule::Wrapper => write!(f, "`{stored}` inside the name is left out"),
            NameRule::Suffix => write!(f, "`{stored}` is read as `{read_as}`"),
            NameRule::Fused => write!(f, "{read_as} are rows of the fused `{stored}`"),
            NameRule::Unfused => write!(f, "the fused `{read_as}` is stored as {stored}"),
        }
    }
}

/// A rule, the name component in the checkpoint, and the one that the family expects.
type Match = (NameRule, String, String);

/// A possible source of a weight, and the rule that leads to it.
struct Candidate {
    source: WeightSource,
    rule: Option<Match>,
}

/// Finds weights under variants of their names, and records which rules matched.
pub(crate) struct NameResolver<'a> {
    /// Stored names by their canonical form.
    by_canonical: HashMap<String, Vec<&'a str>>,
    specs: HashMap<&'a str, &'a WeightSpec>,
    /// The stored tensors that each rule matched.
    matches: BTreeMap<Match, BTreeSet<String>>,
}

/// Result of looking for a weight that is not stored under its family's name.
pub(crate) enum Resolution {
    /// Exactly one source matches.
    Found(WeightSource),
    /// Several tensors match; the message lists them.
    Ambiguous(String),
    /// No rule matches.
    Missing,
}

impl<'a> NameResolver<'a> {
    pub(crate) fn new(program: &'a Program, stored: &[&'a str]) -> NameResolver<'a> {
        let mut by_canonical: HashMap<String, Vec<&str>> = HashMap::new();
        stored.iter().for_each(|name| by_canonical.entry(canonical(name)).or_default().push(name));
        by_canonical.values_mut().for_each(|names| names.sort_unstable());
        let specs = program.weights().iter().map(|spec| (spec.name.as_str(), spec)).collect();
        NameResolver { by_canonical, specs, matches: BTreeMap::new() }
    }

    /// Looks for a weight under all variants of its names.
    pub(crate) fn find(&mut self, spec: &WeightSpec, names: &Names) -> Resolution {
        let sources: Vec<WeightSource> =
            names.prefixes.iter().flat_map(|prefix| names.sources(&spec.name, prefix)).collect();
        let own = sources.iter().map(|source| Candidate { source: source.clone(), rule: None });
        let fused = sources.iter().flat_map(|source| self.fused_candidates(spec, source));
        let unfused = sources.iter().filter_map(|source| self.unfused_candidate(spec, source));
        let candidates: Vec<Candidate> = own.chain(fused).chain(unfused).collect();
        // The family's own form first, so only tensors that match the same candidate are ambiguous.
        for Candidate { source, rule } in candidates {
            let Some(tensor) = self.stored(&source.tensor) else { continue };
            let more: Option<Vec<Vec<&str>>> = source.more_pieces.iter().map(|name| self.stored(name)).collect();
            let Some(more) = more else { continue };
            if let Some(several) = std::iter::once(&tensor).chain(&more).find(|several| several.len() > 1) {
                let all = several.iter().map(|name| name.to_string()).collect::<Vec<_>>().join(", ");
                return Resolution::Ambiguous(format!("{} may be any of {all}", source.tensor));
            }
            self.record_rules(&source.tensor, tensor[0]);
            source.more_pieces.iter().zip(&more).for_each(|(name, stored)| self.record_rules(name, stored[0]));
            if let Some((rule, stored, read_as)) = rule {
                self.matches.entry((rule, stored, read_as)).or_default().insert(tensor[0].to_owned());
            }
            let more = more.iter().map(|name| name[0].to_owned()).collect();
            return Resolution::Found(WeightSource { tensor: tensor[0].to_owned(), more_pieces: more, ..source });
        }
        Resolution::Missing
    }

    /// Returns the stored tensors that match a name of the family.
    fn stored(&self, name: &str) -> Option<Vec<&'a str>> {
        self.by_canonical.get(&canonical(name)).cloned()
    }

    /// Candidates for a projection as rows of a fused matrix.
    fn fused_candidates(&self, spec: &WeightSpec, source: &WeightSource) -> Vec<Candidate> {
        if source.part != StoredPart::default() || source.transposed || !source.more_pieces.is_empty() {
            return Vec::new();
        }
        let Some((group, which)) = group_of(spec) else { return Vec::new() };
        let (module, name) = group.parts[which];
        let rows = group
            .parts
            .iter()
            .map(|(other, _)| self.specs.get(replace_weight_module(&spec.name, module, other).as_str()));
        let rows: Option<Vec<usize>> = rows.map(|spec| spec.map(|spec| spec.shape[0])).collect();
        let Some(rows) = rows else { return Vec::new() };
        let part = StoredPart::rows(rows[..which].iter().sum(), rows.iter().sum());
        let candidate = |fused: &&str| {
            let tensor = replace_tensor_module(&source.tensor, name, fused)?;
            let rule = Some((NameRule::Fused, fused.to_string(), group.names()));
            Some(Candidate { source: WeightSource { tensor, part, ..source.clone() }, rule })
        };
        group.fused.iter().filter_map(candidate).collect()
    }

    /// Candidate for a projection as a matrix of its own, where the family expects a fused one.
    fn unfused_candidate(&self, spec: &WeightSpec, source: &WeightSource) -> Option<Candidate> {
        if source.part.rows == Rows::All || source.part.stack.is_some() || source.transposed {
            return None;
        }
        let (group, which) = group_of(spec)?;
        let name = group.parts[which].1;
        let mut fused = group.fused.iter().chain(FUSED_OTHER_LAYOUT);
        let (tensor, fused) =
            fused.find_map(|fused| Some((replace_tensor_module(&source.tensor, fused, name)?, *fused)))?;
        let rule = Some((NameRule::Unfused, group.names(), fused.to_string()));
        Some(Candidate { source: WeightSource { tensor, part: StoredPart::default(), ..source.clone() }, rule })
    }

    /// Records the rules by which a stored name matches a name of the family.
    fn record_rules(&mut self, name: &str, stored: &str) {
        let ((prefix, wrappers, _), (expected, _, _)) = (split_wrappers(stored), split_wrappers(name));
        let mut rules = Vec::new();
        if prefix != expected {
            rules.push((NameRule::Prefix, prefix, expected));
        }
        rules.extend(wrappers.into_iter().map(|wrapper| (NameRule::Wrapper, format!("{wrapper}."), String::new())));
        let suffix = |(old, new): &&(&str, &str)| ends_with_component(stored, old) && ends_with_component(name, new);
        rules.extend(
            LEGACY_SUFFIXES.iter().find(suffix).map(|(old, new)| (NameRule::Suffix, old.to_string(), new.to_string())),
        );
        for rule in rules {
            self.matches.entry(rule).or_default().insert(stored.to_owned());
        }
    }

    /// Returns the variants that were found.
    pub(crate) fn name_variants(self) -> Vec<NameVariant> {
        let variant = |((rule, stored, read_as), tensors): (Match, BTreeSet<String>)| NameVariant {
            rule,
            stored,
            read_as,
            tensors: tensors.len(),
            example: tensors.into_iter().next().unwrap_or_default(),
        };
        self.matches.into_iter().map(variant).collect()
    }
}

/// Returns a name without wrappers and with the current suffix. Names are compared in this form.
pub(crate) fn canonical(name: &str) -> String {
    let (_, _, rest) = split_wrappers(name);
    match LEGACY_SUFFIXES.iter().find(|(old, _)| ends_with_component(&rest, old)) {
        Some((old, new)) => format!("{}{new}", rest.strip_suffix(old).unwrap_or(&rest)),
        None => rest,
    }
}

/// Splits a name into its wrapper prefix, the wrappers inside it, and the rest.
fn split_wrappers(name: &str) -> (String, Vec<&str>, String) {
    let mut rest = name;
    while let Some((first, behind)) = rest.split_once('.')
        && WRAPPERS.contains(&first)
    {
        rest = behind;
    }
    let prefix = name[..name.len() - rest.len()].to_owned();
    let (wrappers, components): (Vec<&str>, Vec<&str>) =
        rest.split('.').partition(|part| INNER_WRAPPERS.contains(part));
    (prefix, wrappers, components.join("."))
}

/// Whether `part` is the last component of a name.
fn ends_with_component(name: &str, part: &str) -> bool {
    name.strip_suffix(part).is_some_and(|before| before.ends_with('.'))
}

impl ProjectionGroup {
    /// Stored names of the projections when unfused, as a list.
    fn names(&self) -> String {
        self.parts.iter().map(|(_, name)| *name).collect::<Vec<_>>().join(", ")
    }
}

/// Returns the group of projections that a weight belongs to, and its index there.
fn group_of(spec: &WeightSpec) -> Option<(&'static ProjectionGroup, usize)> {
    let module = spec.name.strip_suffix(".bias").unwrap_or(&spec.name).rsplit('.').next()?;
    let which = |group: &&'static ProjectionGroup| group.parts.iter().position(|(name, _)| *name == module);
    FUSED.iter().find_map(|group| Some((group, which(&group)?)))
}

/// Replaces the module in a weight's name: `layers.0.attn.q.bias` → `layers.0.attn.k.bias`.
fn replace_weight_module(weight: &str, module: &str, other: &str) -> String {
    let (whole, bias) = weight.strip_suffix(".bias").map_or((weight, ""), |whole| (whole, ".bias"));
    format!("{}{other}{bias}", whole.strip_suffix(module).unwrap_or(whole))
}

/// Replaces the module in a tensor's name: `x.q_proj.weight` → `x.qkv_proj.weight`. `None` if the
/// tensor does not belong to `module`.
fn replace_tensor_module(tensor: &str, module: &str, other: &str) -> Option<String> {
    let (path, end) = tensor.rsplit_once('.')?;
    let parent = path.strip_suffix(module).filter(|parent| parent.is_empty() || parent.ends_with('.'))?;
    Some(format!("{parent}{other}.{end}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_canonical_name_has_no_wrappers_and_no_legacy_suffix() {
        for name in [
            "model.layers.0.norm.weight",
            "module.model.layers.0.norm.weight",
            "base_model.model.model.layers.0.norm.weight",
            "_orig_mod.model.layers.0._orig_mod.norm.weight",
            "language_model.model.layers.0.norm.gamma",
            "layers.0.norm.weight",
        ] {
            assert_eq!(canonical(name), "layers.0.norm.weight", "{name}");
        }
        // Only whole components are removed, and never the last one.
        assert_eq!(canonical("modules.x.weight"), "modules.x.weight");
        assert_eq!(canonical("model"), "model");
        assert_eq!(canonical("x.stagbeta"), "x.stagbeta");
    }

    #[test]
    fn modules_are_replaced_as_whole_components() {
        assert_eq!(
            replace_tensor_module("a.q_proj.weight", "q_proj", "qkv_proj").as_deref(),
            Some("a.qkv_proj.weight")
        );
        assert_eq!(replace_tensor_module("a.seq_proj.weight", "q_proj", "qkv_proj"), None);
        assert_eq!(replace_weight_module("layers.0.attn.q.bias", "q", "k"), "layers.0.attn.k.bias");
    }
}
