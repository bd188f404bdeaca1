//! A model: loading, tokens, sites, weights.

use crate::array::{Array, to_engine};
use crate::errors::{Kind, count, error, from_engine, from_models, guarded};
use crate::record::Plan;
use numpy::{PyArray, PyArrayDyn, PyArrayMethods};
use pellucid_engine::program::Layout;
use pellucid_engine::{Program, WeightKind, site};
use pellucid_kernels::attention::KvFormat;
use pellucid_kernels::{DType, Pool};
use pellucid_models::chat::Message;
use pellucid_models::tokenizer::Tokenizer;
use pellucid_models::{
    LoadOptions, LoadedModel, Storage, Strategy, builtin, locate, program_of, strategies, tokenizer_of,
};
use pyo3::prelude::*;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock};

/// A model and everything that came with it. Threads may share it.
#[pyclass(frozen, module = "pellucid._core")]
pub struct Model {
    name: String,
    path: Option<PathBuf>,
    options: LoadOptions,
    /// What is known without weights; only of a model that was opened without them.
    outline: Option<Outline>,
    loaded: OnceLock<LoadedModel>,
    /// Held while the weights are loaded, so that two threads do not both load them.
    loading: Mutex<()>,
}

/// A model without its weights.
struct Outline {
    program: Program,
    tokenizer: Option<Tokenizer>,
    warnings: Vec<String>,
}

impl Model {
    /// The model with its weights, which are loaded now if they were not before.
    pub fn loaded(&self, py: Python<'_>) -> PyResult<&LoadedModel> {
        if let Some(loaded) = self.loaded.get() {
            return Ok(loaded);
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

    /// Its program, which needs no weights.
    pub fn program(&self) -> &Program {
        match (self.loaded.get(), &self.outline) {
            (Some(loaded), _) => loaded.model.program(),
            (None, Some(outline)) => &outline.program,
            (None, None) => unreachable!("a model is opened with its weights or with its outline"),
        }
    }

    /// Its tokenizer, if it has one.
    pub fn optional_tokenizer(&self) -> Option<&Tokenizer> {
        match self.loaded.get() {
            Some(loaded) => loaded.tokenizer.as_ref(),
            None => self.outline.as_ref().and_then(|outline| outline.tokenizer.as_ref()),
        }
    }

    /// Refuses prompts that a run would refuse for their lengths.
    pub fn check_lengths(&self, lengths: &[usize]) -> pellucid_engine::Result<()> {
        let context = self.program().architecture().context.unwrap_or(usize::MAX);
        let problem = match lengths.iter().position(|&length| length == 0 || length > context) {
            Some(row) => format!("row {row} has {} tokens, and this model takes 1 to {context}", lengths[row]),
            None if lengths.is_empty() => "there is no input".into(),
            None => return Ok(()),
        };
        Err(pellucid_engine::Error::input(
            problem,
            "give at least one prompt, and none longer than the model's context",
        ))
    }

    /// A network built by hand, which came from nowhere and has no tokenizer.
    pub fn of_network(name: String, model: pellucid_engine::Model) -> Model {
        let (chat, tokenizer, eos, warnings) = (None, None, Vec::new(), Vec::new());
        let (strategy, repairs) = (Strategy::Native, Vec::new());
        let loaded = OnceLock::from(LoadedModel {
            name: name.clone(),
            model,
            tokenizer,
            chat,
            eos,
            warnings,
            strategy,
            repairs,
        });
        Model { name, path: None, options: LoadOptions::default(), outline: None, loaded, loading: Mutex::new(()) }
    }

    fn tokenizer(&self, py: Python<'_>) -> PyResult<&Tokenizer> {
        self.optional_tokenizer().ok_or_else(|| {
            error(
                py,
                Kind::Input,
                &format!("{} came without a tokenizer (no tokenizer.json)", self.name),
                Some("give token ids, or put the model's tokenizer.json beside its weights"),
            )
        })
    }
}

#[pymethods]
impl Model {
    /// Opens a directory, a GGUF file, a pulled name, or the built-in model. With `lazy` its weights are loaded when they are first
    /// needed.
    #[staticmethod]
    #[allow(clippy::too_many_arguments)] // what Python hands over, one by one
    fn open(
        py: Python<'_>,
        name: Option<String>,
        dtype: &str,
        #[pyo3(from_py_with = count)] threads: Option<usize>,
        adapters: Vec<PathBuf>,
        assume: Option<String>,
        lazy: bool,
        kv: &str,
    ) -> PyResult<Model> {
        let kv = match kv {
            "f32" => KvFormat::F32,
            "bf16" => KvFormat::Bf16,
            _ => {
                let problem = format!("kv {kv:?} is none that keys and values can be kept in");
                return Err(error(py, Kind::Input, &problem, Some("take f32 or bf16")));
            }
        };
        let storage = match dtype {
            "auto" => Storage::AsStored,
            "f32" => Storage::As(DType::F32),
            "bf16" => Storage::As(DType::Bf16),
            "f16" => Storage::As(DType::F16),
            "q8" => Storage::As(DType::Q8),
            _ => {
                let problem = format!("dtype {dtype:?} is none that weights can be kept in");
                return Err(error(py, Kind::Input, &problem, Some("take auto, f32, bf16, f16 or q8")));
            }
        };
        if threads == Some(0) {
            return Err(error(py, Kind::Input, "threads is 0", Some("take at least one thread, or leave threads out")));
        }
        let open = || {
            let path = locate(name.as_deref())?;
            let outline = lazy.then(|| outline(path.as_deref(), assume.as_deref())).transpose()?;
            let pool = threads.map(Pool::of);
            let options = LoadOptions { storage, pool, kv, adapters, assume };
            let name = name.unwrap_or_else(|| builtin::NAME.into());
            Ok(Model { name, path, options, outline, loaded: OnceLock::new(), loading: Mutex::new(()) })
        };
        let model = guarded(py, open)?.map_err(|fault| from_models(py, &fault))?;
        if !lazy {
            model.loaded(py)?;
        }
        Ok(model)
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

    /// What it is called.
    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    /// Its family.
    #[getter]
    fn family(&self) -> String {
        self.program().architecture().family.to_string()
    }

    /// `(layers, width, vocabulary, context)`.
    #[getter]
    fn dimensions(&self) -> (usize, usize, usize, Option<usize>) {
        let architecture = self.program().architecture();
        (architecture.layers.len(), architecture.width, architecture.vocab, architecture.context)
    }

    /// What is to be known before relying on its numbers.
    #[getter]
    fn warnings(&self) -> Vec<String> {
        match (self.loaded.get(), &self.outline) {
            (Some(loaded), _) => loaded.warnings.clone(),
            (None, outline) => outline.as_ref().map(|outline| outline.warnings.clone()).unwrap_or_default(),
        }
    }

    /// How it was loaded; it is, with its weights, when this returns.
    #[getter]
    fn strategy(&self, py: Python<'_>) -> PyResult<&'static str> {
        Ok(self.loaded(py)?.strategy.name())
    }

    /// The known variants of names by which some of its weights were found.
    #[getter]
    fn repairs(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        Ok(self.loaded(py)?.repairs.iter().map(ToString::to_string).collect())
    }

    /// Bytes of its weights, and the formats they are kept in.
    fn storage(&self, py: Python<'_>) -> PyResult<Vec<(String, usize)>> {
        Ok(self.loaded(py)?.model.weights().formats())
    }

    /// Every site: its address, kind, shape without tokens, meaning and aliases.
    #[allow(clippy::type_complexity)] // a row of a table that Python unpacks at once
    fn sites(&self) -> Vec<(String, &'static str, Vec<usize>, &'static str, Vec<String>)> {
        let program = self.program();
        let described = program.sites().filter_map(|site| {
            let edge = program.edge(program.edge_of(site)?);
            let (kind, shape) = match edge.layout {
                Layout::Flat => ("flat", vec![edge.width]),
                Layout::Heads(heads) => ("heads", vec![heads, edge.width / heads]),
                Layout::QueryKey => ("attention", vec![edge.width]),
            };
            Some((site.to_string(), kind, shape, site.point.info().meaning, site::aliases(program, site)))
        });
        described.collect()
    }

    /// The addresses that a name, pattern or alias means.
    fn find(&self, py: Python<'_>, text: &str) -> PyResult<Vec<String>> {
        let matches = site::find(self.program(), text).map_err(|fault| from_engine(py, &fault))?;
        Ok(matches.sites.iter().map(|site| site.to_string()).collect())
    }

    /// The tokens of a text; `special` adds what the tokenizer puts before a text.
    fn encode(&self, py: Python<'_>, text: &str, special: bool) -> PyResult<Vec<u32>> {
        self.tokenizer(py)?.encode(text, special).map_err(|fault| from_models(py, &fault))
    }

    /// The tokens of a conversation that the model is to answer: pairs of role and content.
    fn encode_chat(&self, py: Python<'_>, messages: Vec<(String, String)>) -> PyResult<Vec<u32>> {
        let messages: Vec<Message> = messages.iter().map(|(role, content)| Message::new(role, content)).collect();
        self.loaded(py)?.encode_chat(&messages).map_err(|fault| from_models(py, &fault))
    }

    /// The text of tokens.
    fn decode(&self, py: Python<'_>, tokens: Vec<u32>, skip_special: bool) -> PyResult<String> {
        Ok(self.tokenizer(py)?.decode(&tokens, skip_special))
    }

    /// How one token reads where it stands.
    fn token_text(&self, py: Python<'_>, token: u32) -> PyResult<String> {
        Ok(self.tokenizer(py)?.token_text(token))
    }

    /// The one token that reads as this text.
    fn find_token(&self, py: Python<'_>, text: &str) -> PyResult<Option<u32>> {
        Ok(self.tokenizer(py)?.find(text))
    }

    /// Tokens that end a text.
    #[getter]
    fn eos(&self, py: Python<'_>) -> PyResult<Vec<u32>> {
        Ok(self.loaded(py)?.eos.clone())
    }

    /// The token that begins a text, if the model has one.
    #[getter]
    fn bos(&self) -> Option<u32> {
        self.optional_tokenizer().and_then(|tokenizer| tokenizer.special().bos)
    }

    /// Whether it has a tokenizer.
    #[getter]
    fn has_tokenizer(&self) -> bool {
        self.optional_tokenizer().is_some()
    }

    /// Logits of vectors of the stream, `[n, width]` to `[n, vocabulary]`.
    fn unembed(&self, py: Python<'_>, stream: &Bound<'_, PyAny>) -> PyResult<Array> {
        let (loaded, stream) = (self.loaded(py)?, to_engine(stream)?);
        let logits = guarded(py, || loaded.model.unembed(stream.values()))?;
        let logits = logits.map_err(|fault| from_engine(py, &fault))?;
        let vocab = self.program().architecture().vocab;
        Ok(Array(pellucid_engine::Array::new(vec![logits.len() / vocab, vocab], logits)))
    }

    /// The weight of the op that makes a site, and its bias.
    fn weight_of(&self, py: Python<'_>, site: &str) -> PyResult<(Array, Option<Array>)> {
        let found = site::find(self.program(), site).map_err(|fault| from_engine(py, &fault))?;
        let [site] = found.sites[..] else {
            return Err(error(py, Kind::Site, &format!("{site:?} names several sites"), Some("ask for one at a time")));
        };
        let loaded = self.loaded(py)?;
        let made = guarded(py, || loaded.model.weight_of(site))?.map_err(|fault| from_engine(py, &fault))?;
        Ok((Array(made.0), made.1.map(Array)))
    }

    /// What is wrong with a plan for prompts of these lengths: problem and remedy of each.
    fn check(&self, plan: &Plan, lengths: Vec<usize>) -> Vec<(String, Option<String>)> {
        let problems = plan.inner.check(self.program(), &lengths);
        problems.iter().map(|problem| (problem.to_string(), problem.remedy().map(str::to_string))).collect()
    }

    /// What a plan would do and cost for prompts of these lengths: for people, and as JSON.
    fn explain(&self, py: Python<'_>, plan: &Plan, lengths: Vec<usize>) -> PyResult<(String, String)> {
        let loaded = self.loaded(py)?;
        let told = guarded(py, || plan.inner.explain(&loaded.model, &lengths))?;
        let told = told.map_err(|fault| from_engine(py, &fault))?;
        let json = told.to_json().map_err(|problem| error(py, Kind::Plan, &problem, None))?;
        Ok((told.to_string(), json))
    }

    /// Keeps compiled plans from now on, or lets go of them.
    fn keep_plans(&self, py: Python<'_>, on: bool) -> PyResult<()> {
        self.loaded(py)?.model.keep_plans(on);
        Ok(())
    }

    /// How many compiled plans are kept.
    #[getter]
    fn cached_plans(&self) -> usize {
        self.loaded.get().map_or(0, |loaded| loaded.model.cached_plans())
    }

    /// The weights' names and shapes.
    fn weights(&self) -> Vec<(String, Vec<usize>)> {
        self.program().weights().iter().map(|spec| (spec.name.clone(), spec.shape.clone())).collect()
    }

    /// A weight as f32, whatever it is stored as: `[outputs, inputs]`, a table's rows, or a vector.
    fn weight<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyArrayDyn<f32>>> {
        let program = self.program();
        let Some(id) = program.weight_named(name) else {
            let hint = "model.weights lists their names";
            return Err(error(py, Kind::Input, &format!("no weight is called {name:?}"), Some(hint)));
        };
        let (spec, weights) = (program.weight(id), self.loaded(py)?.model.weights());
        let values = guarded(py, || match spec.kind {
            WeightKind::Vector => weights.vector(id).to_vec(),
            WeightKind::Matrix | WeightKind::Table => {
                let matrix = weights.matrix(id);
                let mut values = vec![0.0; matrix.rows() * matrix.cols()];
                let rows = values.chunks_exact_mut(matrix.cols().max(1));
                rows.enumerate().for_each(|(row, out)| matrix.row(row, out));
                values
            }
        })?;
        PyArray::from_vec(py, values).reshape(spec.shape.clone())
    }
}

/// What each way to load a model would do: its name, what became of it, and why.
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
    let told =
        attempts.into_iter().map(|attempt| (attempt.strategy.name(), attempt.outcome.name().into(), attempt.reason));
    Ok(told.collect())
}

/// Fetches a model by name, where it is not here yet, and gives its path.
#[pyfunction]
pub fn pull(py: Python<'_>, name: &str) -> PyResult<PathBuf> {
    let fetch = || pellucid_models::pull::pull(name, &pellucid_models::pull::cache_dir()?, &mut |_| {});
    guarded(py, fetch)?.map_err(|fault| from_models(py, &fault))
}

fn outline(path: Option<&Path>, assume: Option<&str>) -> pellucid_models::Result<Outline> {
    let (program, warnings) = program_of(path, assume)?;
    Ok(Outline { program, tokenizer: tokenizer_of(path)?, warnings })
}
