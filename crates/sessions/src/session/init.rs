//! The `init` phase: loads the model, attaches autoencoders, and starts to fingerprint the model.

use super::{Event, Observer};
use crate::config::{Dtype, KvDtype, LoadedConfig, ModelConfig, SaeConfig};
use crate::hash::{model_fingerprint, sae_fingerprint};
use crate::ops::{Chain, Hook};
use crate::store::SaeRecord;
use pellucid_engine::{Remedy, Splice};
use pellucid_kernels::attention::KvFormat;
use pellucid_kernels::{DType, Pool};
use pellucid_models::attach::{AttachOptions, SaeCheck};
use pellucid_models::sae::{BUILTIN, LoadedSae, read_layers, read_named_sae};
use pellucid_models::{Error, LoadOptions, LoadedModel, Result, Storage, locate};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// The model of a session, with its autoencoders.
pub(super) struct ModelParts {
    pub model: LoadedModel,
    pub hooks: Vec<Hook>,
    /// The autoencoders; [`ModelParts::fingerprints`] has their hashes.
    saes: Vec<SaeRecord>,
    /// Autoencoders that the session names and no op reads; they are not loaded.
    unread: Vec<SaeConfig>,
    pub threads: usize,
    hashes: Mutex<Hashes>,
}

/// Fingerprints of the model and of each autoencoder.
#[derive(Clone)]
pub(super) struct Fingerprints {
    pub model: String,
    pub saes: Vec<SaeRecord>,
}

/// Hashing large files takes seconds, so a thread does it while the session goes on.
enum Hashes {
    Running(Option<JoinHandle<Result<Vec<String>>>>),
    Known(Vec<String>),
}

impl ModelParts {
    /// The fingerprints of the model and the autoencoders; waits for them.
    pub fn fingerprints(&self) -> Result<Fingerprints> {
        let mut state = self.hashes.lock().unwrap_or_else(PoisonError::into_inner);
        let internal = || Error::from(pellucid_engine::Error::Internal("the model was not hashed".into()));
        if let Hashes::Running(thread) = &mut *state {
            let hashes = thread.take().map(JoinHandle::join);
            *state = Hashes::Known(hashes.and_then(std::result::Result::ok).ok_or_else(internal)??);
        }
        let Hashes::Known(hashes) = &*state else { return Err(internal()) };
        let (model, saes) = hashes.split_first().ok_or_else(internal)?;
        let record = |(sae, hash): (&SaeRecord, &String)| SaeRecord { fingerprint: hash.clone(), ..sae.clone() };
        Ok(Fingerprints { model: model.clone(), saes: self.saes.iter().zip(saes).map(record).collect() })
    }
}

/// Loads the model of a session, and its autoencoders if an op reads them.
pub(super) fn load_model(config: &LoadedConfig, chain: &Chain, observer: &mut Observer<'_>) -> Result<ModelParts> {
    let settings = &config.config.model;
    let path = locate(settings.path.as_deref()).map_err(|error| at(config, &["model", "path"], error))?;
    let mut model = LoadedModel::load(path.as_deref(), &load_options(settings), &mut |fraction| {
        observer(Event::Progress(fraction));
    })?;
    // A pulled model is shown under its name, not its file's.
    if let Some(name) = settings.path.as_ref().filter(|name| !std::path::Path::new(name).exists()) {
        model.name = name.clone();
    }
    model.warnings.iter().for_each(|warning| observer(Event::Note(format!("warning: {warning}"))));
    let (mut hooks, mut saes, mut files) = (Vec::new(), Vec::new(), Vec::new());
    let reads_saes = chain.reads_saes(&config.config);
    for sae in &config.config.saes {
        if !reads_saes {
            check_exists(sae).map_err(|error| at(config, &["saes", "path"], error))?;
            observer(Event::Note(format!("{}: not loaded, because no op of the chain reads it", sae.path)));
            continue;
        }
        let attached = attach(&mut model, sae, observer).map_err(|error| at(config, &["saes", "path"], error))?;
        for (hook, record, own) in attached {
            hooks.push(hook);
            saes.push(record);
            files.push(own);
        }
    }
    let adapters = settings.adapters.clone();
    let hashes = std::thread::spawn(move || {
        let model = model_fingerprint(path.as_deref(), &adapters);
        std::iter::once(model).chain(files.iter().map(|files| sae_fingerprint(files))).collect()
    });
    let unread = if reads_saes { Vec::new() } else { config.config.saes.clone() };
    let threads = settings.threads.filter(|&threads| threads > 0).map_or_else(|| Pool::global().threads(), usize::from);
    Ok(ModelParts { model, hooks, saes, unread, threads, hashes: Mutex::new(Hashes::Running(Some(hashes))) })
}

impl ModelParts {
    /// Loads and attaches the autoencoders that no op reads, for a check of the session, to a copy
    /// of the model; returns where they belong.
    pub fn check_unread(&self, config: &LoadedConfig) -> Result<Vec<Hook>> {
        let (mut model, mut hooks) = (self.model.clone(), Vec::new());
        for sae in &self.unread {
            let attached = attach(&mut model, sae, &mut |_| {});
            let attached = attached.map_err(|error| at(config, &["saes", "path"], error))?;
            hooks.extend(attached.into_iter().map(|(hook, ..)| hook));
        }
        Ok(hooks)
    }
}

/// Checks the path of an autoencoder that is not loaded.
fn check_exists(sae: &SaeConfig) -> Result<()> {
    check_named(sae)?;
    if sae.path == BUILTIN || Path::new(&sae.path).exists() {
        return Ok(());
    }
    Err(Error::usage(
        format!("{}: no such file or directory", sae.path),
        "give the directory or the weights of an SAE, or `builtin`",
    ))
}

fn check_named(sae: &SaeConfig) -> Result<()> {
    match sae.path.is_empty() {
        true => Err(Error::usage("an SAE has no `path`", "give its directory or file, or `builtin`")),
        false => Ok(()),
    }
}

/// Names the line of the setting that an error is about.
fn at(config: &LoadedConfig, path: &[&str], error: Error) -> Error {
    let remedy = match error.remedy() {
        // Other front ends have a flag for it.
        Some(Remedy::Unchecked) => "`unchecked = true` in its [[saes]] table attaches it all the same".into(),
        Some(remedy) => remedy.clone(),
        None => "check the path".into(),
    };
    Error::usage(format!("{}: {error}", config.place(path)), remedy)
}

fn load_options(config: &ModelConfig) -> LoadOptions {
    let storage = match config.dtype {
        None | Some(Dtype::Auto) => Storage::AsStored,
        Some(Dtype::F32) => Storage::As(DType::F32),
        Some(Dtype::Bf16) => Storage::As(DType::Bf16),
        Some(Dtype::F16) => Storage::As(DType::F16),
        Some(Dtype::Q8) => Storage::As(DType::Q8),
    };
    let kv = match config.kv_dtype {
        Some(KvDtype::Bf16) => KvFormat::Bf16,
        _ => KvFormat::F32,
    };
    let pool = config.threads.filter(|&threads| threads > 0).map(|threads| Pool::with_threads(threads.into()));
    LoadOptions { storage, pool, kv, assume: config.assume.clone(), adapters: config.adapters.clone() }
}

/// Attaches an autoencoder, or all layers of a cross-layer transcoder; also returns the weight
/// files of each.
fn attach(
    model: &mut LoadedModel,
    config: &SaeConfig,
    observer: &mut Observer<'_>,
) -> Result<Vec<(Hook, SaeRecord, Vec<PathBuf>)>> {
    check_named(config)?;
    let options = AttachOptions { site: config.site.clone(), unchecked: config.unchecked };
    let before = model.model.saes().len();
    let (layers, checks) = match read_layers(Path::new(&config.path))? {
        Some(mut layers) => {
            layers.iter_mut().for_each(save_memory);
            let checks = model.attach_cross_layer(&layers, &options)?;
            (layers, checks)
        }
        None => {
            let mut sae = read_named_sae(&config.path)?;
            save_memory(&mut sae);
            let check = model.attach_sae(&sae, &options)?;
            (vec![sae], check.into_iter().collect())
        }
    };
    let splice = if config.error_term { Splice::ReconAndError } else { Splice::Recon };
    let mut attached = Vec::with_capacity(layers.len());
    for (index, (own, layer)) in model.model.saes()[before..].iter().zip(&layers).enumerate() {
        let (site, n_latents) = (own.write, own.sae.n_features());
        let check: Option<&SaeCheck> = checks.get(index);
        let quality = check.map_or("not tested".into(), describe);
        observer(Event::Note(format!("{}: {n_latents} latents at {site}, {quality}", config.path)));
        if let Some(warning) = check.and_then(SaeCheck::warning) {
            observer(Event::Note(format!("warning: {warning}")));
        }
        let record = SaeRecord {
            path: config.path.clone(),
            site: site.to_string(),
            n_latents,
            error_term: config.error_term,
            fingerprint: String::new(),
        };
        attached.push((Hook { site, n_latents, splice }, record, layer.info.files.clone()));
    }
    Ok(attached)
}

/// Few features are active at a time, so a session does not keep whole decoders in memory.
fn save_memory(loaded: &mut LoadedSae) {
    if let Some(sae) = Arc::get_mut(&mut loaded.sae) {
        sae.read_decoders_on_demand();
    }
}

fn describe(check: &SaeCheck) -> String {
    format!("explained variance {:.2}, {:.1} active", check.explained_variance, check.l0)
}
