//! Tensors under other names than their family's: known variants, each application of which is counted and told.
//!
//! Training and export leave traces in names. A wrapper puts its own before (or into) every name (`WRAPPERS`, `INSIDE`), early
//! TensorFlow ports call a norm's numbers `gamma` and `beta` (`ENDINGS`), and projections that read the same input are stored as one
//! matrix by some tools and apart by others (`FUSED`). These tables are all that is known; a tensor that they do not explain stays
//! unexpected, one that nobody stored stays missing, and two tensors that may both be the same weight are an error.

use crate::names::{Names, Part, Rows, Source};
use pellucid_engine::{Program, WeightSpec};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;

/// Modules around a model, whose names stand before all its tensors: DataParallel (`module`), torch.compile (`_orig_mod`), PEFT
/// (`base_model.model`), models that also see (`language_model`), and the trunk's own name once too often or not at all.
const WRAPPERS: &[&str] = &["module", "_orig_mod", "base_model", "model", "language_model", "transformer"];

/// Wrappers of single layers, whose names stand inside.
const INSIDE: &[&str] = &["_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"];

/// Old endings and what they are called now.
const ENDINGS: &[(&str, &str)] = &[("gamma", "weight"), ("beta", "bias")];

/// Projections of one input.
struct Group {
    /// As modules of the engine, and as they are called apart.
    parts: &'static [(&'static str, &'static str)],
    /// The names of matrices in which they lie under each other in this order.
    fused: &'static [&'static str],
}

const FUSED: &[Group] = &[
    Group { parts: &[("q", "q_proj"), ("k", "k_proj"), ("v", "v_proj")], fused: &["qkv_proj", "W_pack"] },
    Group { parts: &[("gate", "gate_proj"), ("up", "up_proj")], fused: &["gate_up_proj"] },
];

/// Other names of fused matrices: their rows lie in orders of their own, so only the family that expects one knows how to read it.
const FUSED_ELSEHOW: &[&str] = &["query_key_value", "Wqkv"];

/// A rule of the table at work.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Repair {
    /// Which rule.
    pub rule: Rule,
    /// What the checkpoint says.
    pub stored: String,
    /// What the family says.
    pub read_as: String,
    /// How many stored tensors were found by it.
    pub tensors: usize,
    /// The first of them.
    pub example: String,
}

/// The kinds of rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Rule {
    /// Another prefix.
    Prefix,
    /// A wrapper's name inside a name.
    Wrapper,
    /// An old ending.
    Ending,
    /// Projections that the family keeps apart, out of one matrix.
    Fused,
    /// Projections that the family keeps in one matrix, stored apart.
    Apart,
}

impl fmt::Display for Repair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Repair { rule, stored, read_as, tensors, example } = self;
        let plural = if *tensors == 1 { "" } else { "s" };
        write!(f, "{tensors} tensor{plural} ({example}{}): ", if *tensors == 1 { "" } else { ", …" })?;
        match rule {
            Rule::Prefix if stored.is_empty() => write!(f, "no prefix where the family has `{read_as}`"),
            Rule::Prefix if read_as.is_empty() => write!(f, "the prefix `{stored}` is left out"),
            Rule::Prefix => write!(f, "the prefix `{stored}` is read as `{read_as}`"),
            Rule::Wrapper => write!(f, "`{stored}` inside the name is left out"),
            Rule::Ending => write!(f, "`{stored}` is read as `{read_as}`"),
            Rule::Fused => write!(f, "{read_as} are taken out of the fused `{stored}`"),
            Rule::Apart => write!(f, "`{read_as}` is put together from {stored}"),
        }
    }
}

/// A rule, what the checkpoint says, and what the family says.
type Applied = (Rule, String, String);

/// A place where a weight may be, and the rule that reads it from there.
struct Variant {
    source: Source,
    rule: Option<Applied>,
}

/// The stored names of a checkpoint by what remains of them without wrappers and old endings.
pub(crate) struct Mender<'a> {
    by_core: HashMap<String, Vec<&'a str>>,
    specs: HashMap<&'a str, &'a WeightSpec>,
    applied: BTreeMap<Applied, BTreeSet<String>>,
}

/// What became of a weight that is not stored under its family's name.
pub(crate) enum Mended {
    /// It is this.
    Found(Source),
    /// It may be any of these.
    Ambiguous(String),
    /// No rule finds it.
    Missing,
}

impl<'a> Mender<'a> {
    pub(crate) fn new(program: &'a Program, stored: &[&'a str]) -> Mender<'a> {
        let mut by_core: HashMap<String, Vec<&str>> = HashMap::new();
        stored.iter().for_each(|name| by_core.entry(core(name)).or_default().push(name));
        by_core.values_mut().for_each(|names| names.sort_unstable());
        let specs = program.weights().iter().map(|spec| (spec.name.as_str(), spec)).collect();
        Mender { by_core, specs, applied: BTreeMap::new() }
    }

    /// Looks for a weight under the names that the rules know.
    pub(crate) fn find(&mut self, spec: &WeightSpec, names: &Names) -> Mended {
        let sources: Vec<Source> = names.prefixes.iter().flat_map(|prefix| names.sources(&spec.name, prefix)).collect();
        let own = sources.iter().map(|source| Variant { source: source.clone(), rule: None });
        let in_fused = sources.iter().flat_map(|source| self.in_fused(spec, source));
        let by_itself = sources.iter().filter_map(|source| self.by_itself(spec, source));
        let variants: Vec<Variant> = own.chain(in_fused).chain(by_itself).collect();
        // What is closest to the family's own way comes first; only names that compete for one place are ambiguous.
        for Variant { source, rule } in variants {
            let Some(tensor) = self.stored(&source.tensor) else { continue };
            let more: Option<Vec<Vec<&str>>> = source.more.iter().map(|name| self.stored(name)).collect();
            let Some(more) = more else { continue };
            if let Some(several) = std::iter::once(&tensor).chain(&more).find(|several| several.len() > 1) {
                let all = several.iter().map(|name| name.to_string()).collect::<Vec<_>>().join(", ");
                return Mended::Ambiguous(format!("{} may be any of {all}", source.tensor));
            }
            self.note(&source.tensor, tensor[0]);
            source.more.iter().zip(&more).for_each(|(name, stored)| self.note(name, stored[0]));
            if let Some((rule, stored, read_as)) = rule {
                self.applied.entry((rule, stored, read_as)).or_default().insert(tensor[0].to_owned());
            }
            let more = more.iter().map(|name| name[0].to_owned()).collect();
            return Mended::Found(Source { tensor: tensor[0].to_owned(), more, ..source });
        }
        Mended::Missing
    }

    /// The stored tensors that a name of the family may mean.
    fn stored(&self, name: &str) -> Option<Vec<&'a str>> {
        self.by_core.get(&core(name)).cloned()
    }

    /// The places of a projection in matrices in which it lies beside others.
    fn in_fused(&self, spec: &WeightSpec, source: &Source) -> Vec<Variant> {
        if source.part != Part::default() || source.transposed || !source.more.is_empty() {
            return Vec::new();
        }
        let Some((group, which)) = group_of(spec) else { return Vec::new() };
        let (module, name) = group.parts[which];
        let rows = group.parts.iter().map(|(other, _)| self.specs.get(renamed(&spec.name, module, other).as_str()));
        let rows: Option<Vec<usize>> = rows.map(|spec| spec.map(|spec| spec.shape[0])).collect();
        let Some(rows) = rows else { return Vec::new() };
        let part = Part::rows(rows[..which].iter().sum(), rows.iter().sum());
        let one = |fused: &&str| {
            let tensor = replaced(&source.tensor, name, fused)?;
            let rule = Some((Rule::Fused, fused.to_string(), group.names()));
            Some(Variant { source: Source { tensor, part, ..source.clone() }, rule })
        };
        group.fused.iter().filter_map(one).collect()
    }

    /// A projection by itself, where the family expects it in a matrix with others.
    fn by_itself(&self, spec: &WeightSpec, source: &Source) -> Option<Variant> {
        if source.part.rows == Rows::All || source.part.stack.is_some() || source.transposed {
            return None;
        }
        let (group, which) = group_of(spec)?;
        let name = group.parts[which].1;
        let mut fused = group.fused.iter().chain(FUSED_ELSEHOW);
        let (tensor, fused) = fused.find_map(|fused| Some((replaced(&source.tensor, fused, name)?, *fused)))?;
        let rule = Some((Rule::Apart, group.names(), fused.to_string()));
        Some(Variant { source: Source { tensor, part: Part::default(), ..source.clone() }, rule })
    }

    /// Writes down the rules by which a stored name is one of the family's.
    fn note(&mut self, name: &str, stored: &str) {
        let ((before, inside, _), (wanted, _, _)) = (taken_apart(stored), taken_apart(name));
        let mut rules = Vec::new();
        if before != wanted {
            rules.push((Rule::Prefix, before, wanted));
        }
        rules.extend(inside.into_iter().map(|wrapper| (Rule::Wrapper, format!("{wrapper}."), String::new())));
        let ending = |(old, new): &&(&str, &str)| ends(stored, old) && ends(name, new);
        rules.extend(ENDINGS.iter().find(ending).map(|(old, new)| (Rule::Ending, old.to_string(), new.to_string())));
        for rule in rules {
            self.applied.entry(rule).or_default().insert(stored.to_owned());
        }
    }

    /// The rules that were at work.
    pub(crate) fn repairs(self) -> Vec<Repair> {
        let told = |((rule, stored, read_as), tensors): (Applied, BTreeSet<String>)| Repair {
            rule,
            stored,
            read_as,
            tensors: tensors.len(),
            example: tensors.into_iter().next().unwrap_or_default(),
        };
        self.applied.into_iter().map(told).collect()
    }
}

/// A name without wrappers and with today's ending: what is compared.
pub(crate) fn core(name: &str) -> String {
    let (_, _, rest) = taken_apart(name);
    match ENDINGS.iter().find(|(old, _)| ends(&rest, old)) {
        Some((old, new)) => format!("{}{new}", rest.strip_suffix(old).unwrap_or(&rest)),
        None => rest,
    }
}

/// What wraps a name before it, the wrappers inside it, and the rest.
fn taken_apart(name: &str) -> (String, Vec<&str>, String) {
    let mut rest = name;
    while let Some((first, behind)) = rest.split_once('.')
        && WRAPPERS.contains(&first)
    {
        rest = behind;
    }
    let before = name[..name.len() - rest.len()].to_owned();
    let (inside, kept): (Vec<&str>, Vec<&str>) = rest.split('.').partition(|part| INSIDE.contains(part));
    (before, inside, kept.join("."))
}

/// Whether a name's last part is this.
fn ends(name: &str, part: &str) -> bool {
    name.strip_suffix(part).is_some_and(|before| before.ends_with('.'))
}

impl Group {
    /// What its projections are called apart.
    fn names(&self) -> String {
        self.parts.iter().map(|(_, name)| *name).collect::<Vec<_>>().join(", ")
    }
}

/// The group of projections that a weight belongs to, and which of them it is.
fn group_of(spec: &WeightSpec) -> Option<(&'static Group, usize)> {
    let module = spec.name.strip_suffix(".bias").unwrap_or(&spec.name).rsplit('.').next()?;
    let which = |group: &&'static Group| group.parts.iter().position(|(name, _)| *name == module);
    FUSED.iter().find_map(|group| Some((group, which(&group)?)))
}

/// The weight's name with another module: `layers.0.attn.q.bias` → `layers.0.attn.k.bias`.
fn renamed(weight: &str, module: &str, other: &str) -> String {
    let (whole, bias) = weight.strip_suffix(".bias").map_or((weight, ""), |whole| (whole, ".bias"));
    format!("{}{other}{bias}", whole.strip_suffix(module).unwrap_or(whole))
}

/// A tensor's name with another module: `x.q_proj.weight` → `x.qkv_proj.weight`. `None` if it is not of this module.
fn replaced(tensor: &str, module: &str, other: &str) -> Option<String> {
    let (path, end) = tensor.rsplit_once('.')?;
    let parent = path.strip_suffix(module).filter(|parent| parent.is_empty() || parent.ends_with('.'))?;
    Some(format!("{parent}{other}.{end}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_compared_has_no_wrappers_and_no_old_endings() {
        for name in [
            "model.layers.0.norm.weight",
            "module.model.layers.0.norm.weight",
            "base_model.model.model.layers.0.norm.weight",
            "_orig_mod.model.layers.0._orig_mod.norm.weight",
            "language_model.model.layers.0.norm.gamma",
            "layers.0.norm.weight",
        ] {
            assert_eq!(core(name), "layers.0.norm.weight", "{name}");
        }
        // A name that only begins like a wrapper is none, and a name is never eaten up.
        assert_eq!(core("modules.x.weight"), "modules.x.weight");
        assert_eq!(core("model"), "model");
        assert_eq!(core("x.stagbeta"), "x.stagbeta");
    }

    #[test]
    fn modules_are_exchanged_whole() {
        assert_eq!(replaced("a.q_proj.weight", "q_proj", "qkv_proj").as_deref(), Some("a.qkv_proj.weight"));
        assert_eq!(replaced("a.seq_proj.weight", "q_proj", "qkv_proj"), None);
        assert_eq!(renamed("layers.0.attn.q.bias", "q", "k"), "layers.0.attn.k.bias");
    }
}
