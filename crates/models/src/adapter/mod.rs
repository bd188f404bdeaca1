//! Adapters: LoRA factors in PEFT's layout, merged into the base model's weights as those are loaded.
//!
//! A directory with `adapter_config.json` and `adapter_model.safetensors` (or `adapter_model.bin`, as PEFT wrote them at first) holds two thin
//! matrices for a module:
//! `base_model.model.<module>.lora_A.weight` `[rank, inputs]` and `….lora_B.weight` `[outputs, rank]`. The weight that runs is `W + scale · B A`,
//! computed row by row in f32 while `W` is packed; nothing remains of the adapter afterwards. DoRA's weight is that, with each row brought to a
//! length of its own. Modules that were trained whole, and biases, stand in the place of the base model's.
//!
//! Every tensor of an adapter has to find its weight, or the load is refused.

mod merge;
mod settings;

pub(crate) use merge::Changes;
pub(crate) use settings::CONFIG;

use crate::checkpoint::{Checkpoint, Tensor};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::names::{Names, Source};
use pellucid_engine::{Program, WeightSpec};
use settings::{Settings, bad};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The files that may hold an adapter's weights; the first that is there counts, as in PEFT.
pub(crate) const WEIGHTS: [&str; 2] = ["adapter_model.safetensors", "adapter_model.bin"];
/// What stands before the names of the base model's modules.
const PREFIX: &str = "base_model.model.";

/// An adapter, its tensors sorted by module.
pub struct Adapter {
    path: PathBuf,
    checkpoint: Checkpoint,
    /// By module: `model.layers.0.self_attn.q_proj`.
    deltas: BTreeMap<String, Delta>,
    /// Tensors that stand in the place of the base model's, by its name for them.
    whole: BTreeMap<String, String>,
    tied: bool,
}

/// What is added to a module's weight.
struct Delta {
    a: Tensor,
    b: Tensor,
    /// The factors are of a table of embeddings, which lies the other way.
    is_table: bool,
    scale: f32,
    /// DoRA's lengths of the rows.
    lengths: Option<Tensor>,
    /// What is added to the bias.
    bias: Option<Tensor>,
}

/// The base model that an adapter's configuration names, unless it names none.
pub fn base_of(dir: &Path) -> Result<Option<String>> {
    let config = config(dir)?;
    Ok(config.text("base_model_name_or_path").filter(|name| !name.is_empty()).map(str::to_owned))
}

/// Whether a directory is an adapter and not a model.
pub fn is_adapter(dir: &Path) -> bool {
    dir.join(CONFIG).is_file() && !dir.join("config.json").is_file()
}

fn config(dir: &Path) -> Result<Config> {
    let path = dir.join(CONFIG);
    if !path.is_file() {
        return Err(Error::invalid(
            dir,
            format!("there is no {CONFIG} here"),
            "give the directory of a LoRA adapter in PEFT's layout",
        ));
    }
    Config::parse(&std::fs::read(&path).map_err(Error::io(&path))?, &path)
}

impl Adapter {
    /// Opens an adapter's directory.
    pub fn open(dir: &Path) -> Result<Adapter> {
        let settings = Settings::read(&config(dir)?, &dir.join(CONFIG))?;
        let Some(path) = WEIGHTS.iter().map(|name| dir.join(name)).find(|path| path.is_file()) else {
            let problem = format!("there is neither {} nor {} here", WEIGHTS[0], WEIGHTS[1]);
            return Err(Error::invalid(dir, problem, "download the adapter again"));
        };
        let checkpoint = Checkpoint::open_file(&path)?;
        let (mut modules, mut whole): (BTreeMap<String, Parts>, BTreeMap<_, _>) = Default::default();
        for tensor in checkpoint.tensors() {
            match Part::of(&tensor.name) {
                Some((module, part)) => part.put(modules.entry(module.to_owned()).or_default(), tensor.clone()),
                None => {
                    let name = tensor.name.strip_prefix(PREFIX).unwrap_or(&tensor.name);
                    // Inside PEFT's wrappers the module itself has these names.
                    let name = name.replace(".base_layer.", ".").replace(".modules_to_save.", ".");
                    whole.insert(name, tensor.name.clone());
                }
            }
        }
        let mut deltas = BTreeMap::new();
        for (module, parts) in modules {
            deltas.insert(module.clone(), parts.delta(&module, &settings, &path)?);
        }
        Ok(Adapter { path, checkpoint, deltas, whole, tied: settings.tied })
    }

    /// Opens several, in their order.
    pub(crate) fn open_all(dirs: &[PathBuf]) -> Result<Vec<Adapter>> {
        dirs.iter().map(|dir| Adapter::open(dir)).collect()
    }

    /// Whether any of these tensors of the base model is changed.
    fn touches(&self, tensors: &[Source]) -> bool {
        tensors.iter().any(|source| {
            self.whole.contains_key(&source.tensor) || self.deltas.contains_key(module_of(&source.tensor))
        })
    }
}

/// `model.norm.weight` → `model.norm`.
fn module_of(tensor: &str) -> &str {
    tensor.strip_suffix(".weight").or_else(|| tensor.strip_suffix(".bias")).unwrap_or(tensor)
}

/// Which part of a module's factors a tensor is.
enum Part {
    A,
    B,
    TableA,
    TableB,
    Lengths,
    Bias,
}

impl Part {
    /// The module and the part that a name tells.
    fn of(name: &str) -> Option<(&str, Part)> {
        let name = name.strip_prefix(PREFIX).unwrap_or(name);
        let (module, end) = name.rsplit_once(".lora_")?;
        let part = match end {
            "A.weight" => Part::A,
            "B.weight" => Part::B,
            "B.bias" => Part::Bias,
            "embedding_A" => Part::TableA,
            "embedding_B" => Part::TableB,
            "magnitude_vector" | "magnitude_vector.weight" => Part::Lengths,
            _ => return None,
        };
        Some((module, part))
    }

    fn put(self, parts: &mut Parts, tensor: Tensor) {
        let place = match self {
            Part::A => &mut parts.a,
            Part::B => &mut parts.b,
            Part::TableA => &mut parts.table_a,
            Part::TableB => &mut parts.table_b,
            Part::Lengths => &mut parts.lengths,
            Part::Bias => &mut parts.bias,
        };
        *place = Some(tensor);
    }
}

/// The tensors of a module.
#[derive(Default)]
struct Parts {
    a: Option<Tensor>,
    b: Option<Tensor>,
    table_a: Option<Tensor>,
    table_b: Option<Tensor>,
    lengths: Option<Tensor>,
    bias: Option<Tensor>,
}

impl Parts {
    fn delta(self, module: &str, settings: &Settings, path: &Path) -> Result<Delta> {
        let (a, b, is_table) = match (self.a, self.b, self.table_a, self.table_b) {
            (Some(a), Some(b), None, None) => (a, b, false),
            (None, None, Some(a), Some(b)) => (a, b, true),
            (None, _, None, _) => return Err(bad(path, &format!("`{module}` has no factor A"))),
            _ => return Err(bad(path, &format!("`{module}` has no factor B, or factors of two kinds"))),
        };
        let rank = settings.rank(module);
        let stored = a.shape.first().copied().unwrap_or_default();
        if stored != rank || rank == 0 {
            return Err(bad(
                path,
                &format!("tensor {} is {:?} where the configuration makes its rank {rank}", a.name, a.shape),
            ));
        }
        if settings.dora && (is_table || self.lengths.is_none()) {
            let what = if is_table {
                "DoRA on a table of embeddings is not merged here"
            } else {
                "DoRA without a magnitude vector"
            };
            return Err(bad(path, &format!("`{module}`: {what}")));
        }
        if !settings.dora && self.lengths.is_some() {
            return Err(bad(
                path,
                &format!("`{module}` has a magnitude vector, and the configuration does not say `use_dora`"),
            ));
        }
        Ok(Delta { a, b, is_table, scale: settings.scale(module), lengths: self.lengths, bias: self.bias })
    }
}

/// Whether adapters treat the embedding and the head of a model that ties them as two tables, as PEFT trains them.
pub(crate) fn untie(adapters: &[Adapter], names: &Names) -> bool {
    let changed = |adapter: &Adapter| {
        let tables =
            names.prefixes.iter().flat_map(|prefix| ["embed", "head"].map(|table| names.sources(table, prefix)));
        tables.into_iter().any(|sources| adapter.touches(&sources))
    };
    adapters.iter().any(|adapter| !adapter.tied && changed(adapter))
}

/// What adapters make of each weight of a program, in the program's order. A tensor of an adapter that no weight uses is an error.
pub(crate) fn changes<'a>(adapters: &'a [Adapter], program: &Program, names: &Names) -> Result<Vec<Changes<'a>>> {
    let mut all: Vec<Changes> = program.weights().iter().map(|_| Changes::default()).collect();
    for adapter in adapters {
        let mut used: BTreeSet<&str> = BTreeSet::new();
        for (spec, changes) in program.weights().iter().zip(&mut all) {
            for source in names.prefixes.iter().flat_map(|prefix| names.sources(&spec.name, prefix)) {
                adapter.change(spec, &source, changes, &mut used)?;
            }
        }
        let names = adapter.checkpoint.tensors().map(|tensor| tensor.name.as_str());
        let left: Vec<&str> = names.filter(|name| !used.contains(name)).collect();
        if let Some(first) = left.first() {
            let more = if left.len() > 1 { format!(" (and {} more)", left.len() - 1) } else { String::new() };
            return Err(Error::invalid(
                &adapter.path,
                format!("tensor {first} belongs to no weight of this model{more}"),
                "check that the adapter was made for this model; nothing of it is ever left out",
            ));
        }
    }
    Ok(all)
}

impl Adapter {
    fn change<'a>(
        &'a self,
        spec: &WeightSpec,
        source: &Source,
        changes: &mut Changes<'a>,
        used: &mut BTreeSet<&'a str>,
    ) -> Result<()> {
        // A vector that is stored in pieces is no module's.
        if !source.more.is_empty() {
            return Ok(());
        }
        if let Some(name) = self.whole.get(&source.tensor) {
            used.insert(name);
            changes.replace(&self.checkpoint, name, spec, source)?;
        }
        let Some(delta) = self.deltas.get(module_of(&source.tensor)) else { return Ok(()) };
        if source.tensor.ends_with(".bias") {
            if let Some(bias) = &delta.bias {
                used.insert(&bias.name);
                changes.add_bias(&self.checkpoint, &self.path, bias, delta.scale, spec, source)?;
            }
            return Ok(());
        }
        used.extend(
            [Some(&delta.a), Some(&delta.b), delta.lengths.as_ref()].into_iter().flatten().map(|t| t.name.as_str()),
        );
        changes.add(&self.checkpoint, &self.path, delta, spec, source)
    }
}
