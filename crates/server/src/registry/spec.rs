//! The models that a server is given: loaded ones, and files that it loads on demand.

use pellucid_models::adapter::Adapter;
use pellucid_models::attach::{AdapterRecord, SaeCheck};
use pellucid_models::chat::ChatTemplate;
use pellucid_models::sae::BUILTIN;
use pellucid_models::{Error, LoadOptions, LoadedModel, Result, forecast};
use std::path::{Path, PathBuf};

/// A loaded model to serve. It stays loaded.
pub struct ModelEntry {
    /// Its name in requests.
    pub id: String,
    /// The model.
    pub loaded: LoadedModel,
}

/// A model to serve that is loaded when a request names it, and again after it was unloaded.
#[derive(Clone)]
pub struct ModelFiles {
    /// Its name in requests.
    pub id: String,
    /// A directory or GGUF file; the built-in model if absent.
    pub path: Option<PathBuf>,
    /// How it is loaded.
    pub options: LoadOptions,
    /// Autoencoders to attach, each as `PATH[@SITE]`.
    pub saes: Vec<String>,
    /// Names and directories of LoRA adapters that requests choose by name.
    pub adapters: Vec<(String, PathBuf)>,
    /// A chat template instead of the model's own.
    pub chat: Option<ChatTemplate>,
}

/// A model to serve.
pub enum ModelSpec {
    /// A loaded model that stays loaded.
    Loaded(ModelEntry),
    /// A model that is loaded on demand.
    OnDemand(ModelFiles),
}

impl From<ModelEntry> for ModelSpec {
    fn from(entry: ModelEntry) -> ModelSpec {
        ModelSpec::Loaded(entry)
    }
}

impl From<ModelFiles> for ModelSpec {
    fn from(files: ModelFiles) -> ModelSpec {
        ModelSpec::OnDemand(files)
    }
}

impl ModelFiles {
    /// Loads the model with its autoencoders and adapters. `progress` receives the fraction of
    /// weights loaded. Warnings and notes go to the log.
    pub fn load(&self, progress: &mut dyn FnMut(f32)) -> Result<LoadedModel> {
        let mut loaded = LoadedModel::load(self.path.as_deref(), &self.options, progress)?;
        let id = self.id.as_str();
        loaded.name = id.to_owned();
        loaded.warnings.iter().for_each(|warning| tracing::warn!(model = id, "{warning}"));
        loaded.name_variants.iter().for_each(|variant| tracing::info!(model = id, "{variant}"));
        let slow = loaded.slow_formats();
        if !slow.is_empty() {
            let formats = slow.join(" and ");
            tracing::warn!(model = id, "{formats} weights have no fast kernels; --dtype q8 or bf16 is faster");
        }
        for sae in &self.saes {
            let records = loaded.attach_named_sae(sae, Path::new(""), false)?;
            let checks = records.iter().filter_map(|record| record.check.as_ref());
            checks.filter_map(SaeCheck::warning).for_each(|warning| tracing::warn!(model = id, "{warning}"));
        }
        for (name, directory) in &self.adapters {
            let AdapterRecord { rank, projections, bytes, .. } = loaded.attach_adapter(name, directory)?;
            tracing::info!(model = id, adapter = name, rank, projections, bytes, "attached an adapter");
        }
        if self.chat.is_some() {
            loaded.chat.clone_from(&self.chat);
        }
        Ok(loaded)
    }

    /// Describes the model from its configuration and headers.
    pub(super) fn describe(&self) -> Result<Description> {
        let forecast = forecast(self.path.as_deref(), &self.options)?;
        for (_, directory) in &self.adapters {
            Adapter::open(directory)?;
        }
        // Factors are stored in at most twice the bytes of the file (bf16 as f32), and so are the
        // matrices of autoencoders.
        let adapters = self.adapters.iter().map(|(_, directory)| directory.as_path());
        let mut attached: u64 = adapters.map(|path| 2 * weight_bytes(path)).sum();
        for sae in &self.saes {
            let path = match sae.rsplit_once('@') {
                Some((path, _)) if !Path::new(sae).exists() => Path::new(path),
                _ => Path::new(sae),
            };
            if path != Path::new(BUILTIN) {
                std::fs::metadata(path).map_err(|source| Error::Io { path: path.to_owned(), source })?;
            }
            attached += 2 * weight_bytes(path);
        }
        Ok(Description {
            family: forecast.family,
            layers: forecast.layers,
            context: forecast.context,
            storage: forecast.storage,
            bytes: forecast.weight_bytes.saturating_add(usize::try_from(attached).unwrap_or(usize::MAX)),
            adapters: self.adapters.iter().map(|(name, _)| name.clone()).collect(),
        })
    }
}

/// Bytes of a file, or of the weight files in a directory.
fn weight_bytes(path: &Path) -> u64 {
    let is_weights = |path: &Path| {
        let extension = path.extension().and_then(|extension| extension.to_str());
        extension.is_some_and(|extension| ["safetensors", "bin", "pt", "npz"].contains(&extension))
    };
    let size = |path: &Path| path.metadata().map_or(0, |file| file.len());
    match std::fs::read_dir(path) {
        Ok(entries) => {
            entries.flatten().map(|entry| entry.path()).filter(|path| is_weights(path)).map(|path| size(&path)).sum()
        }
        Err(_) => size(path),
    }
}

/// The properties of a model that are known before it is loaded.
#[derive(Clone, Debug)]
pub struct Description {
    pub family: String,
    pub layers: usize,
    /// The most positions that a row may have.
    pub context: Option<usize>,
    /// Storage formats of its weights.
    pub storage: String,
    /// Bytes of its weights, adapters and autoencoders: a prediction until it was loaded once.
    pub bytes: usize,
    /// Names of its adapters.
    pub adapters: Vec<String>,
}

impl Description {
    /// Describes a loaded model.
    pub(super) fn of(loaded: &LoadedModel) -> Description {
        let architecture = loaded.model.program().architecture();
        Description {
            family: architecture.family.clone(),
            layers: architecture.layers.len(),
            context: architecture.context,
            storage: loaded.storage(),
            bytes: bytes_of(loaded),
            adapters: loaded.adapters().iter().map(|adapter| adapter.name.clone()).collect(),
        }
    }
}

/// Bytes of the weights, adapters and autoencoders of a loaded model.
pub(super) fn bytes_of(loaded: &LoadedModel) -> usize {
    let adapters = loaded.adapters().iter().map(|adapter| adapter.bytes);
    let saes = loaded.model.saes().iter().map(|attached| attached.sae.bytes());
    adapters.chain(saes).fold(loaded.model.weights().bytes(), usize::saturating_add)
}
