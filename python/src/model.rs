//! The model class: loading, tokens, sites, weights.

use crate::array::{Array, to_engine};
use crate::chat::ChatPrompt;
use crate::errors::{ErrorKind, error, extract_count, from_engine, from_models, guarded};
use crate::hints;
use crate::plan::Plan;
use crate::remote::{from_client, run_remote};
use numpy::{PyArray, PyArrayDyn, PyArrayMethods};
use pellucid_client::{ConnectOptions, RemoteModel};
use pellucid_engine::program::Layout;
use pellucid_engine::{self as engine, Program, site};
use pellucid_kernels::attention::KvFormat;
use pellucid_kernels::{DType, Pool};
use pellucid_models::attach::SaeRecord;
use pellucid_models::chat::Conversation;
use pellucid_models::tokenizer::Tokenizer;
use pellucid_models::{LoadOptions, LoadedModel, Storage, builtin, locate, program_of, strategies, tokenizer_of};
use pyo3::prelude::*;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock};

/// A model with its tokenizer and chat template. Thread-safe.
#[pyclass(frozen, module = "pellucid._core")]
pub struct Model {
    name: String,
    path: Option<PathBuf>,
    options: LoadOptions,
    /// Program and tokenizer of a lazily opened model; `None` if the weights were loaded at once.
    outline: Option<Outline>,
    loaded: OnceLock<LoadedModel>,
    /// The model on a server that this is, instead of weights.
    remote: Option<RemoteModel>,
    /// Held while loading the weights, so that two threads do not load them twice.
    loading: Mutex<()>,
}

/// A model without its weights.
struct Outline {
    program: Program,
    tokenizer: Option<Tokenizer>,
    warnings: Vec<String>,
}

impl Model {
    /// The model with its weights; loads them on the first call.
    pub fn loaded(&self, py: Python<'_>) -> PyResult<&LoadedModel> {
        if let Some(loaded) = self.loaded.get() {
            return Ok(loaded);
        }
        if let Some(remote) = &self.remote {
            let problem = format!("this needs the weights of {}, which are at {}", self.name, remote.address());
            let hint = "trace, generate, run, sweep, scan and explain work on a model of a server, which attaches SAEs \
                        itself (--sae); for this call, load the model in this process: pellucid.load(…)";
            return Err(error(py, ErrorKind::Input, &problem, Some(hint)));
        }
        let load = || {
            let _guard = self.loading.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            if let Some(loaded) = self.loaded.get() {
                return Ok(loaded);
            }
            let loaded = LoadedModel::load(self.path.as_deref(), &self.options, &mut |_| {})?;
            Ok(self.loaded.get_or_init(|| loaded))
        };
        guarded(py, load)?.map_err(|fault| from_models(py, &fault))
    }

    /// The model on a server that this is.
    pub fn remote(&self) -> Option<&RemoteModel> {
        self.remote.as_ref()
    }

    /// The model for calls on text, plans and sites, which need no weights: without them if they
    /// are on a server, otherwise as [`loaded`](Self::loaded).
    pub fn parts(&self, py: Python<'_>) -> PyResult<&LoadedModel> {
        self.remote.as_ref().map_or_else(|| self.loaded(py), |remote| Ok(remote.local()))
    }

    /// The program. Does not load the weights.
    pub fn program(&self) -> &Program {
        match (self.present(), &self.outline) {
            (Some(loaded), _) => loaded.model.program(),
            (None, Some(outline)) => &outline.program,
            (None, None) => unreachable!("a model is opened with its weights or with its outline"),
        }
    }

    /// The model if its weights are loaded, or if they are on a server.
    fn present(&self) -> Option<&LoadedModel> {
        self.remote.as_ref().map(RemoteModel::local).or_else(|| self.loaded.get())
    }

    /// The tokenizer, if there is one. Does not load the weights.
    pub fn optional_tokenizer(&self) -> Option<&Tokenizer> {
        match self.present() {
            Some(loaded) => loaded.tokenizer.as_deref(),
            None => self.outline.as_ref().and_then(|outline| outline.tokenizer.as_ref()),
        }
    }

    /// The attached autoencoders; a model whose weights are not loaded has none.
    pub fn saes(&self) -> Vec<&SaeRecord> {
        self.loaded.get().map(LoadedModel::saes).unwrap_or_default()
    }

    /// Checks prompt lengths as a run would: at least one row, 1 to `n_ctx` tokens each.
    pub fn check_lengths(&self, lengths: &[usize]) -> engine::Result<()> {
        let context = self.program().architecture().context.unwrap_or(usize::MAX);
        let problem = match lengths.iter().position(|&length| length == 0 || length > context) {
            Some(row) => format!("row {row} has {} tokens; this model takes 1 to {context}", lengths[row]),
            None if lengths.is_empty() => "there is no input".into(),
            None => return Ok(()),
        };
        Err(engine::Error::input(problem, "give at least one prompt, and none longer than the model's context"))
    }

    /// Wraps a model from the network builder; it has no files and no tokenizer.
    pub fn from_network(name: String, model: engine::Model) -> Model {
        let loaded = OnceLock::from(LoadedModel::without_files(name.clone(), model));
        Model {
            name,
            path: None,
            options: LoadOptions::default(),
            outline: None,
            loaded,
            remote: None,
            loading: Mutex::new(()),
        }
    }

    /// A copy of this model around other contents.
    pub fn with_loaded(&self, loaded: LoadedModel) -> Model {
        Model {
            name: self.name.clone(),
            path: self.path.clone(),
            options: self.options.clone(),
            outline: None,
            loaded: OnceLock::from(loaded),
            remote: None,
            loading: Mutex::new(()),
        }
    }

    fn tokenizer(&self, py: Python<'_>) -> PyResult<&Tokenizer> {
        self.optional_tokenizer().ok_or_else(|| {
            error(
                py,
                ErrorKind::Input,
                &format!("{} has no tokenizer (no tokenizer.json)", self.name),
                Some("pass token ids, or put the model's tokenizer.json next to its weights"),
            )
        })
    }
}

#[pymethods]
impl Model {
    /// Opens a directory, a GGUF file, a pulled model by name, or the built-in model (`None`). With
    /// `lazy`, the weights are loaded on first use.
    #[staticmethod]
    #[allow(clippy::too_many_arguments)] // one per Python argument
    fn open(
        py: Python<'_>,
        name: Option<String>,
        dtype: &str,
        #[pyo3(from_py_with = extract_count)] threads: Option<usize>,
        adapters: Vec<PathBuf>,
        assume: Option<String>,
        lazy: bool,
        kv: &str,
    ) -> PyResult<Model> {
        let kv = match kv {
            "f32" => KvFormat::F32,
            "bf16" => KvFormat::Bf16,
            _ => {
                let problem = format!("unknown dtype kv={kv:?} for the KV cache");
                return Err(error(py, ErrorKind::Input, &problem, Some("use f32 or bf16")));
            }
        };
        let storage = match dtype {
            "auto" => Storage::AsStored,
            "f32" => Storage::As(DType::F32),
            "bf16" => Storage::As(DType::Bf16),
            "f16" => Storage::As(DType::F16),
            "q8" => Storage::As(DType::Q8),
            _ => {
                let problem = format!("unknown dtype={dtype:?} for the weights");
                return Err(error(py, ErrorKind::Input, &problem, Some("use auto, f32, bf16, f16 or q8")));
            }
        };
        if threads == Some(0) {
            return Err(error(py, ErrorKind::Input, "threads is 0", Some("use at least one thread, or omit threads")));
        }
        let open = || {
            let path = locate(name.as_deref())?;
            let outline = lazy.then(|| outline(path.as_deref(), assume.as_deref())).transpose()?;
            let pool = threads.map(Pool::with_threads);
            let options = LoadOptions { storage, pool, kv, adapters, assume };
            let name = name.unwrap_or_else(|| builtin::NAME.into());
            Ok(Model { name, path, options, outline, loaded: OnceLock::new(), remote: None, loading: Mutex::new(()) })
        };
        let model = guarded(py, open)?.map_err(|fault| from_models(py, &fault))?;
        if !lazy {
            model.loaded(py)?;
        }
        Ok(model)
    }

    /// Connects to a model of a server.
    #[staticmethod]
    fn connect(py: Python<'_>, url: String, token: Option<String>, model: Option<String>) -> PyResult<Model> {
        let connect = || RemoteModel::connect(&url, ConnectOptions { token, model });
        let remote = guarded(py, connect)?.map_err(|fault| from_client(py, &fault))?;
        Ok(Model {
            name: remote.id().to_owned(),
            path: None,
            options: LoadOptions::default(),
            outline: None,
            loaded: OnceLock::new(),
            remote: Some(remote),
            loading: Mutex::new(()),
        })
    }

    /// The URL of the server that runs it; `None` for a model of this process.
    #[getter]
    fn server(&self) -> Option<String> {
        self.remote.as_ref().map(|remote| remote.address().to_string())
    }

    /// Loads the weights now.
    fn load(&self, py: Python<'_>) -> PyResult<()> {
        self.loaded(py).map(|_| ())
    }

    /// Whether the weights are loaded.
    #[getter]
    fn is_loaded(&self) -> bool {
        self.loaded.get().is_some()
    }

    /// The model's name.
    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    /// The model family.
    #[getter]
    fn family(&self) -> String {
        self.program().architecture().family.to_string()
    }

    /// `(n_layers, d_model, vocab_size, n_ctx)`.
    #[getter]
    fn dimensions(&self) -> (usize, usize, usize, Option<usize>) {
        let architecture = self.program().architecture();
        (architecture.layers.len(), architecture.width, architecture.vocab, architecture.context)
    }

    /// Warnings of the loader: reasons why results may differ from the original model.
    #[getter]
    fn warnings(&self) -> Vec<String> {
        match (self.present(), &self.outline) {
            (Some(loaded), _) => loaded.warnings.clone(),
            (None, outline) => outline.as_ref().map(|outline| outline.warnings.clone()).unwrap_or_default(),
        }
    }

    /// The strategy that loaded it. Loads the weights.
    #[getter]
    fn strategy(&self, py: Python<'_>) -> PyResult<&'static str> {
        Ok(self.parts(py)?.strategy.name())
    }

    /// Known variants of tensor names under which weights were found, one sentence per rule.
    #[getter]
    fn name_variants(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        if let Some(remote) = &self.remote {
            return Ok(remote.outline().name_variants.clone());
        }
        Ok(self.loaded(py)?.name_variants.iter().map(ToString::to_string).collect())
    }

    /// Storage formats of the weights, with the bytes in each.
    fn storage(&self, py: Python<'_>) -> PyResult<Vec<(String, usize)>> {
        if let Some(remote) = &self.remote {
            return Ok(remote.outline().storage.clone());
        }
        Ok(self.loaded(py)?.model.weights().formats())
    }

    /// Every site: `(address, kind, shape without tokens, meaning, aliases)`.
    #[allow(clippy::type_complexity)] // unpacked by the caller
    fn sites(&self) -> Vec<(String, &'static str, Vec<usize>, &'static str, Vec<String>)> {
        let program = self.program();
        let described = program.sites().filter_map(|site| {
            let edge = program.edge(program.edge_of(site)?);
            let (kind, shape) = match edge.layout {
                Layout::Flat => ("flat", vec![edge.width]),
                Layout::Heads(heads) => ("heads", vec![heads, edge.width / heads]),
                Layout::QueryKey => ("attention", vec![edge.width]),
            };
            Some((site.to_string(), kind, shape, site.meaning(), site::aliases(program, site)))
        });
        described.collect()
    }

    /// The addresses that a name, pattern or alias matches.
    fn find(&self, py: Python<'_>, text: &str) -> PyResult<Vec<String>> {
        let matches = site::find(self.program(), text).map_err(|fault| from_engine(py, &fault))?;
        Ok(matches.sites.iter().map(|site| site.to_string()).collect())
    }

    /// Encodes a text; `special` adds the special tokens of the tokenizer's template (such as BOS).
    fn encode(&self, py: Python<'_>, text: &str, special: bool) -> PyResult<Vec<u32>> {
        self.tokenizer(py)?.encode(text, special).map_err(|fault| from_models(py, &fault))
    }

    /// Encodes a conversation (JSON: messages and options) with the chat template.
    fn chat(&self, py: Python<'_>, conversation: &str) -> PyResult<ChatPrompt> {
        let hint = "a message is {\"role\": \"user\", \"content\": \"text\"}";
        let conversation = Conversation::from_json(conversation)
            .map_err(|problem| error(py, ErrorKind::Input, &problem, Some(hint)))?;
        let prompt = self.parts(py)?.chat_prompt(&conversation);
        prompt.map(ChatPrompt).map_err(|fault| from_models(py, &fault))
    }

    /// Decodes tokens to text.
    fn decode(&self, py: Python<'_>, tokens: Vec<u32>, skip_special: bool) -> PyResult<String> {
        Ok(self.tokenizer(py)?.decode(&tokens, skip_special))
    }

    /// The text of one token inside a longer text (leading space included).
    fn token_text(&self, py: Python<'_>, token: u32) -> PyResult<String> {
        Ok(self.tokenizer(py)?.token_text(token))
    }

    /// The single token with this text, if there is one.
    fn find_token(&self, py: Python<'_>, text: &str) -> PyResult<Option<u32>> {
        Ok(self.tokenizer(py)?.find(text))
    }

    /// The end-of-text tokens.
    #[getter]
    fn eos(&self, py: Python<'_>) -> PyResult<Vec<u32>> {
        Ok(self.parts(py)?.eos.clone())
    }

    /// The beginning-of-text token, if the model has one.
    #[getter]
    fn bos(&self) -> Option<u32> {
        self.optional_tokenizer().and_then(|tokenizer| tokenizer.special().bos)
    }

    /// Whether it has a tokenizer.
    #[getter]
    fn has_tokenizer(&self) -> bool {
        self.optional_tokenizer().is_some()
    }

    /// Final norm and unembedding: residual stream `[n, d_model]` → logits `[n, vocab_size]`.
    fn unembed(&self, py: Python<'_>, resid: &Bound<'_, PyAny>) -> PyResult<Array> {
        let resid = to_engine(resid)?;
        if let Some(remote) = &self.remote {
            return run_remote(py, || remote.unembed(&resid)).map(Array);
        }
        let loaded = self.loaded(py)?;
        let logits = guarded(py, || loaded.model.unembed(resid.values()))?;
        let logits = logits.map_err(|fault| from_engine(py, &fault))?;
        let vocab = self.program().architecture().vocab;
        Ok(Array(engine::Array::new(vec![logits.len() / vocab, vocab], logits)))
    }

    /// The weight and bias of the op whose output is `site`.
    fn weight_of(&self, py: Python<'_>, site: &str) -> PyResult<(Array, Option<Array>)> {
        let matches = site::find(self.program(), site).map_err(|fault| from_engine(py, &fault))?;
        let [site] = matches.sites[..] else {
            return Err(error(
                py,
                ErrorKind::Site,
                &format!("{site:?} names several sites"),
                Some("ask for one at a time"),
            ));
        };
        if let Some(remote) = &self.remote {
            let (weight, bias) = run_remote(py, || remote.weight_of(site))?;
            return Ok((Array(weight), bias.map(Array)));
        }
        let loaded = self.loaded(py)?;
        let (weight, bias) = guarded(py, || loaded.model.weight_of(site))?.map_err(|fault| from_engine(py, &fault))?;
        Ok((Array(weight), bias.map(Array)))
    }

    /// Checks a plan for prompts of these lengths; returns `(problem, remedy)` of each problem.
    fn check(&self, plan: &Plan, lengths: Vec<usize>) -> Vec<(String, Option<String>)> {
        let problems = plan.inner.check(self.program(), &lengths);
        problems.iter().map(|problem| (problem.to_string(), problem.remedy().map(hints::word))).collect()
    }

    /// Explains what a plan does and costs for prompts of these lengths, as text and as JSON.
    fn explain(&self, py: Python<'_>, plan: &Plan, lengths: Vec<usize>) -> PyResult<(String, String)> {
        if let Some(remote) = &self.remote {
            let explained = run_remote(py, || remote.explain(&plan.inner, &lengths))?;
            return Ok((explained.text, explained.explanation.get().to_owned()));
        }
        let loaded = self.loaded(py)?;
        let explanation = guarded(py, || plan.inner.explain(&loaded.model, &lengths))?;
        let explanation = explanation.map_err(|fault| from_engine(py, &fault))?;
        let json = explanation.to_json().map_err(|problem| error(py, ErrorKind::Plan, &problem, None))?;
        Ok((explanation.to_string(), json))
    }

    /// Turns the cache of compiled plans on or off; turning it off drops them.
    fn keep_plans(&self, py: Python<'_>, on: bool) -> PyResult<()> {
        self.loaded(py)?.model.keep_plans(on);
        Ok(())
    }

    /// The number of cached compiled plans.
    #[getter]
    fn cached_plans(&self) -> usize {
        self.loaded.get().map_or(0, |loaded| loaded.model.cached_plans())
    }

    /// Names and shapes of the weights.
    fn weights(&self) -> Vec<(String, Vec<usize>)> {
        self.program().weights().iter().map(|spec| (spec.name.clone(), spec.shape.clone())).collect()
    }

    /// A weight converted to f32: matrix `[outputs, inputs]`, table `[rows, width]`, or vector. The
    /// array is read-only: it is a copy, so a write to it would not change the model.
    fn weight<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyArrayDyn<f32>>> {
        let program = self.program();
        let Some(id) = program.weight_named(name) else {
            let hint = match program.nearest_weight(name) {
                Some(nearest) => format!("did you mean `{nearest}`? `model.weights` lists their names"),
                None => "this model has no weights".into(),
            };
            return Err(error(py, ErrorKind::Input, &format!("there is no weight {name:?}"), Some(&hint)));
        };
        let floats = match &self.remote {
            Some(remote) => run_remote(py, || remote.weight(name))?.values().to_vec(),
            None => {
                let weights = self.loaded(py)?.model.weights();
                guarded(py, || weights.floats(id))?
            }
        };
        let array = PyArray::from_vec(py, floats).reshape(program.weight(id).shape.clone())?;
        drop(array.try_readwrite()?.make_nonwriteable());
        Ok(array)
    }

    /// A copy of this model with other values for some weights; the others are shared.
    fn with_weights(&self, py: Python<'_>, weights: Vec<(String, Bound<'_, PyAny>)>) -> PyResult<Model> {
        let arrays: Vec<engine::Array> = weights.iter().map(|(_, array)| to_engine(array)).collect::<PyResult<_>>()?;
        let replaced: Vec<(&str, engine::Array)> = weights.iter().map(|(name, _)| name.as_str()).zip(arrays).collect();
        let mut loaded = self.loaded(py)?.clone();
        let model = guarded(py, || loaded.model.with_weights(&replaced))?;
        loaded.model = model.map_err(|fault| from_engine(py, &fault))?;
        Ok(self.with_loaded(loaded))
    }

    /// Family, layers, width, storage formats and tuning; without the last two if the weights are
    /// not loaded.
    fn describe(&self) -> String {
        if let Some(remote) = &self.remote {
            return remote.outline().description.clone();
        }
        match self.loaded.get() {
            Some(loaded) => loaded.describe(),
            None => {
                let architecture = self.program().architecture();
                let (layers, width) = (architecture.layers.len(), architecture.width);
                format!("{}, {layers} layers, width {width}, weights not loaded", architecture.family)
            }
        }
    }
}

/// The loading strategies for a model: `(strategy, outcome, reason)` of each.
#[pyfunction(name = "strategies")]
pub fn strategies_of(
    py: Python<'_>,
    name: &str,
    assume: Option<String>,
) -> PyResult<Vec<(&'static str, String, String)>> {
    let look = || -> pellucid_models::Result<_> {
        let path = locate(Some(name))?.unwrap_or_else(|| PathBuf::from(name));
        Ok(strategies(&path, &LoadOptions { assume, ..LoadOptions::default() }))
    };
    let attempts = guarded(py, look)?.map_err(|fault| from_models(py, &fault))?;
    let rows =
        attempts.into_iter().map(|attempt| (attempt.strategy.name(), attempt.outcome.name().into(), attempt.reason));
    Ok(rows.collect())
}

/// Downloads a model by name unless it is cached, and returns its path.
#[pyfunction]
pub fn pull(py: Python<'_>, name: &str) -> PyResult<PathBuf> {
    let fetch = || pellucid_models::pull::pull(name, &pellucid_models::pull::cache_dir()?, &mut |_| {});
    guarded(py, fetch)?.map_err(|fault| from_models(py, &fault))
}

fn outline(path: Option<&Path>, assume: Option<&str>) -> pellucid_models::Result<Outline> {
    let (program, warnings) = program_of(path, assume)?;
    Ok(Outline { program, tokenizer: tokenizer_of(path)?, warnings })
}
