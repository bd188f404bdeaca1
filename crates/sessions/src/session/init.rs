//! The `init` phase: loads the model, attaches autoencoders, and starts to fingerprint the model.

use super::{Event, Observer};
use crate::config::{Dtype, KvDtype, LoadedConfig, ModelConfig, SaeConfig};
use crate::hash::{model_fingerprint, sae_fingerprint};
use crate::ops::Hook;
use crate::store::SaeRecord;
use pellucid_engine::Splice;
use pellucid_kernels::attention::KvFormat;
use pellucid_kernels::{DType, Pool};
use pellucid_models::attach::{AttachOptions, SaeCheck};
use pellucid_models::sae::{read_layers, read_named_sae};
use pellucid_models::{Error, LoadOptions, LoadedModel, Result, Storage, locate};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;

/// The model of a session, with its autoencoders.
pub(super) struct ModelParts {
    pub model: LoadedModel,
    pub hooks: Vec<Hook>,
    /// The autoencoders; [`ModelParts::fingerprints`] has their hashes.
    saes: Vec<SaeRecord>,
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

pub(super) fn load_model(config: &LoadedConfig, observer: &mut Observer<'_>) -> Result<ModelParts> {
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
    for sae in &config.config.saes {
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
    let threads = settings.threads.filter(|&threads| threads > 0).map_or_else(|| Pool::global().threads(), usize::from);
    Ok(ModelParts { model, hooks, saes, threads, hashes: Mutex::new(Hashes::Running(Some(hashes))) })
}

/// Names the line of the setting that an error is about.
fn at(config: &LoadedConfig, path: &[&str], error: Error) -> Error {
    let remedy = error.remedy().cloned().unwrap_or_else(|| "check the path".into());
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
    if config.path.is_empty() {
        return Err(Error::usage("an SAE has no `path`", "give its directory or file, or `builtin`"));
    }
    let options = AttachOptions { site: config.site.clone(), unchecked: config.unchecked };
    let before = model.model.saes().len();
    let (layers, checks) = match read_layers(Path::new(&config.path))? {
        Some(layers) => {
            let checks = model.attach_cross_layer(&layers, &options)?;
            (layers, checks)
        }
        None => {
            let sae = read_named_sae(&config.path)?;
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

fn describe(check: &SaeCheck) -> String {
    format!("explained variance {:.2}, {:.1} active", check.explained_variance, check.l0)
}
