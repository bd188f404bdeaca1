//! LoRA adapters in PEFT's layout: merged into the base model's weights while those are loaded
//! (`merge.rs`), or read as updates that rows of a loaded model use unmerged (`unmerged.rs`).
//!
//! An adapter is a directory with `adapter_config.json` and `adapter_model.safetensors` (or the
//! older `adapter_model.bin`). For each adapted module it has
//! `base_model.model.<module>.lora_A.weight` `[rank, inputs]` and `….lora_B.weight` `[outputs,
//! rank]`. The merged weight is `W + scale · B A`, computed row by row in f32 while `W` is packed.
//! DoRA then rescales each row to a trained magnitude. Fully trained modules and biases replace
//! those of the base model.
//!
//! Every adapter tensor must belong to a weight; otherwise the load fails.

mod merge;
mod record;
mod settings;
mod unmerged;

pub(crate) use merge::Changes;
pub use record::AdapterRecord;
pub(crate) use settings::CONFIG;

use crate::checkpoint::{Checkpoint, Tensor};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::files::read_settings;
use crate::names::{Names, WeightSource};
use pellucid_engine::{Program, WeightSpec};
use settings::{LoraSettings, bad};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Files that may hold an adapter's weights; the first that exists is used, as in PEFT.
pub(crate) const WEIGHTS: [&str; 2] = ["adapter_model.safetensors", "adapter_model.bin"];
/// PEFT's prefix of the base model's module names.
const PREFIX: &str = "base_model.model.";

/// An adapter, its tensors grouped by module.
pub struct Adapter {
    path: PathBuf,
    checkpoint: Checkpoint,
    /// Low-rank updates by module: `model.layers.0.self_attn.q_proj`.
    deltas: BTreeMap<String, Delta>,
    /// Tensors that replace the base model's: the base model's name → the adapter's name.
    replacements: BTreeMap<String, String>,
    /// The embedding and the head stay tied (`ensure_weight_tying`).
    tied: bool,
}

/// The low-rank update of a module's weight.
struct Delta {
    a: Tensor,
    b: Tensor,
    /// The module is an embedding, whose factors are transposed.
    is_embedding: bool,
    scale: f32,
    /// DoRA's magnitude vector, `[outputs]`.
    magnitudes: Option<Tensor>,
    /// Update of the bias.
    bias: Option<Tensor>,
}

/// The base model that an adapter's configuration names, if any.
pub fn base_of(dir: &Path) -> Result<Option<String>> {
    let config = config(dir)?;
    Ok(config.text("base_model_name_or_path").filter(|name| !name.is_empty()).map(str::to_owned))
}

/// Files that hold a model's weights. Beside them, an adapter's configuration does not count.
const MODEL_WEIGHTS: [&str; 4] =
    ["model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json"];

/// Whether a directory is an adapter rather than a model. Trainers may save the base model's
/// `config.json` with an adapter, but not its weights.
pub fn is_adapter(dir: &Path) -> bool {
    is_adapter_with(&|file| dir.join(file).is_file())
}

/// Like [`is_adapter`], for a directory in which `has` finds a file by name.
pub(crate) fn is_adapter_with(has: &dyn Fn(&str) -> bool) -> bool {
    has(CONFIG) && !MODEL_WEIGHTS.iter().any(|file| has(file))
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
    Config::parse(&read_settings(&path)?, &path)
}

impl Adapter {
    /// Opens an adapter's directory.
    pub fn open(dir: &Path) -> Result<Adapter> {
        let settings = LoraSettings::read(&config(dir)?, &dir.join(CONFIG))?;
        let Some(path) = WEIGHTS.iter().map(|name| dir.join(name)).find(|path| path.is_file()) else {
            let problem = format!("there is neither {} nor {} here", WEIGHTS[0], WEIGHTS[1]);
            return Err(Error::invalid(dir, problem, "download the adapter again"));
        };
        let checkpoint = Checkpoint::open_file(&path)?;
        let (mut modules, mut replacements): (BTreeMap<String, ModuleTensors>, BTreeMap<_, _>) = Default::default();
        for tensor in checkpoint.tensors() {
            match TensorRole::parse(&tensor.name) {
                Some((module, role)) => role.put(modules.entry(module.to_owned()).or_default(), tensor.clone()),
                None => {
                    let name = tensor.name.strip_prefix(PREFIX).unwrap_or(&tensor.name);
                    // PEFT's wrappers name the wrapped module so.
                    let name = name.replace(".base_layer.", ".").replace(".modules_to_save.", ".");
                    replacements.insert(name, tensor.name.clone());
                }
            }
        }
        let mut deltas = BTreeMap::new();
        for (module, tensors) in modules {
            deltas.insert(module.clone(), tensors.into_delta(&module, &settings, &path)?);
        }
        Ok(Adapter { path, checkpoint, deltas, replacements, tied: settings.tied })
    }

    /// Opens several adapters, in their order.
    pub(crate) fn open_all(dirs: &[PathBuf]) -> Result<Vec<Adapter>> {
        dirs.iter().map(|dir| Adapter::open(dir)).collect()
    }

    /// Whether the adapter changes any of these tensors of the base model.
    fn changes_any(&self, tensors: &[WeightSource]) -> bool {
        tensors.iter().any(|source| {
            self.replacements.contains_key(&source.tensor) || self.deltas.contains_key(module_of(&source.tensor))
        })
    }
}

/// `model.norm.weight` → `model.norm`.
fn module_of(tensor: &str) -> &str {
    tensor.strip_suffix(".weight").or_else(|| tensor.strip_suffix(".bias")).unwrap_or(tensor)
}

/// Role of a tensor in the low-rank update of a module.
enum TensorRole {
    A,
    B,
    EmbeddingA,
    EmbeddingB,
    Magnitudes,
    Bias,
}

impl TensorRole {
    /// Splits a tensor's name into its module and its role.
    fn parse(name: &str) -> Option<(&str, TensorRole)> {
        let name = name.strip_prefix(PREFIX).unwrap_or(name);
        let (module, end) = name.rsplit_once(".lora_")?;
        let role = match end {
            "A.weight" => TensorRole::A,
            "B.weight" => TensorRole::B,
            "B.bias" => TensorRole::Bias,
            "embedding_A" => TensorRole::EmbeddingA,
            "embedding_B" => TensorRole::EmbeddingB,
            "magnitude_vector" | "magnitude_vector.weight" => TensorRole::Magnitudes,
            _ => return None,
        };
        Some((module, role))
    }

    fn put(self, tensors: &mut ModuleTensors, tensor: Tensor) {
        let slot = match self {
            TensorRole::A => &mut tensors.a,
            TensorRole::B => &mut tensors.b,
            TensorRole::EmbeddingA => &mut tensors.embedding_a,
            TensorRole::EmbeddingB => &mut tensors.embedding_b,
            TensorRole::Magnitudes => &mut tensors.magnitudes,
            TensorRole::Bias => &mut tensors.bias,
        };
        *slot = Some(tensor);
    }
}

/// The tensors of a module.
#[derive(Default)]
struct ModuleTensors {
    a: Option<Tensor>,
    b: Option<Tensor>,
    embedding_a: Option<Tensor>,
    embedding_b: Option<Tensor>,
    magnitudes: Option<Tensor>,
    bias: Option<Tensor>,
}

impl ModuleTensors {
    fn into_delta(self, module: &str, settings: &LoraSettings, path: &Path) -> Result<Delta> {
        let (a, b, is_embedding) = match (self.a, self.b, self.embedding_a, self.embedding_b) {
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
                &format!("tensor {} is {:?} where the configuration gives rank {rank}", a.name, a.shape),
            ));
        }
        if settings.dora && (is_embedding || self.magnitudes.is_none()) {
            let what =
                if is_embedding { "DoRA on an embedding is not supported" } else { "DoRA without a magnitude vector" };
            return Err(bad(path, &format!("`{module}`: {what}")));
        }
        if !settings.dora && self.magnitudes.is_some() {
            return Err(bad(path, &format!("`{module}` has a magnitude vector, but `use_dora` is not set")));
        }
        Ok(Delta { a, b, is_embedding, scale: settings.scale(module), magnitudes: self.magnitudes, bias: self.bias })
    }
}

/// Whether adapters change the embedding or the head as separate weights, which unties a tied model
/// (as in PEFT).
pub(crate) fn untie(adapters: &[Adapter], names: &Names) -> bool {
    let changed = |adapter: &Adapter| {
        let tables =
            names.prefixes.iter().flat_map(|prefix| ["embed", "head"].map(|table| names.sources(table, prefix)));
        tables.into_iter().any(|sources| adapter.changes_any(&sources))
    };
    adapters.iter().any(|adapter| !adapter.tied && changed(adapter))
}

/// Returns the adapters' changes to each weight, in the program's order. An adapter tensor that
/// belongs to no weight is an error.
pub(crate) fn changes<'a>(adapters: &'a [Adapter], program: &Program, names: &Names) -> Result<Vec<Changes<'a>>> {
    let mut all: Vec<Changes> = program.weights().iter().map(|_| Changes::default()).collect();
    for adapter in adapters {
        let mut used: BTreeSet<&str> = BTreeSet::new();
        for (spec, changes) in program.weights().iter().zip(&mut all) {
            let mut sources: Vec<WeightSource> = Vec::new();
            for source in names.prefixes.iter().flat_map(|prefix| names.sources(&spec.name, prefix)) {
                // A module outside the backbone (the head) has the same name under every prefix.
                if !sources.contains(&source) {
                    adapter.change(spec, &source, changes, &mut used)?;
                    sources.push(source);
                }
            }
        }
        let names = adapter.checkpoint.tensors().map(|tensor| tensor.name.as_str());
        let left: Vec<&str> = names.filter(|name| !used.contains(name)).collect();
        if let Some(first) = left.first() {
            let more = if left.len() > 1 { format!(" (and {} more)", left.len() - 1) } else { String::new() };
            return Err(Error::invalid(
                &adapter.path,
                format!("tensor {first} belongs to no weight of this model{more}"),
                "check that the adapter was trained for this model; no part of an adapter is ignored",
            ));
        }
    }
    Ok(all)
}

impl Adapter {
    fn change<'a>(
        &'a self,
        spec: &WeightSpec,
        source: &WeightSource,
        changes: &mut Changes<'a>,
        used: &mut BTreeSet<&'a str>,
    ) -> Result<()> {
        // A vector stored in pieces has no module of its own.
        if !source.more_pieces.is_empty() {
            return Ok(());
        }
        if let Some(name) = self.replacements.get(&source.tensor) {
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
            [Some(&delta.a), Some(&delta.b), delta.magnitudes.as_ref()].into_iter().flatten().map(|t| t.name.as_str()),
        );
        changes.add(&self.checkpoint, &self.path, delta, spec, source)
    }
}
