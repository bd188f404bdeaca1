//! A loaded model: program, weights, tokenizer, chat template, and the text-level calls that need them together.

use crate::adapter::{self, Adapter};
use crate::assume::{self, Read};
use crate::builtin;
use crate::chat::{ChatTemplate, Message};
use crate::checkpoint::Checkpoint;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::families;
use crate::gguf::{self, GgufFile};
use crate::load::{Storage, load};
use crate::quantised;
use crate::repair::Repair;
use crate::share;
use crate::strategy::Strategy;
use crate::tensors::Tensors;
use crate::tokenizer::{self, FORMS, Special, Tokenizer};
use pellucid_engine::{Control, Finish, GenerateOptions, Generation, Model, Plan, Program};
use pellucid_kernels::Pool;
use pellucid_kernels::attention::KvFormat;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// How to load.
#[derive(Clone, Default)]
pub struct LoadOptions {
    /// How matrices are kept in memory.
    pub storage: Storage,
    /// The threads that load and run; the shared ones where absent.
    pub pool: Option<Arc<Pool>>,
    /// How keys and values are kept between tokens.
    pub kv: KvFormat,
    /// Directories of LoRA adapters (PEFT's layout) that are merged into the weights, one after the other.
    pub adapters: Vec<PathBuf>,
    /// The family that a model is read as when its own type is not native. It has to fit completely, and the loaded model
    /// carries a warning; for a model whose own type is native and another, it is an error.
    pub assume: Option<String>,
}

/// A model with everything that came with it.
pub struct LoadedModel {
    /// What it is called, for people.
    pub name: String,
    /// The engine's model.
    pub model: Model,
    /// Its tokenizer, if it came with one.
    pub tokenizer: Option<Tokenizer>,
    /// Its chat template, if it came with one.
    pub chat: Option<ChatTemplate>,
    /// Tokens that end a text.
    pub eos: Vec<u32>,
    /// What the caller should be told before relying on its numbers: that it runs as a family which it does not name.
    pub warnings: Vec<String>,
    /// How it was loaded.
    pub strategy: Strategy,
    /// The known variants of names by which some of its weights were found: the names of its family are others.
    pub repairs: Vec<Repair>,
}

impl LoadedModel {
    /// Loads a directory or a GGUF file. `progress` hears the fraction of weights loaded.
    pub fn open(path: &Path, options: &LoadOptions, progress: &mut dyn FnMut(f32)) -> Result<LoadedModel> {
        if path.is_dir() {
            LoadedModel::from_dir(path, options, progress)
        } else {
            LoadedModel::from_gguf(path, options, progress)
        }
    }

    /// The model inside this program.
    pub fn builtin(options: &LoadOptions) -> Result<LoadedModel> {
        let origin = Path::new(builtin::NAME);
        let config = Config::parse(builtin::CONFIG, origin)?;
        let tensors = || Ok(Tensors::Checkpoint(Checkpoint::from_static(builtin::WEIGHTS, builtin::NAME)?));
        let read = assume::read(&config, options.assume.as_deref(), tensors)?;
        let parts = Parts { config, read, tokenizer: Some(builtin_tokenizer()?), chat: None };
        assemble(None, parts, tensors, options, &mut |_| {})
    }

    fn from_dir(dir: &Path, options: &LoadOptions, progress: &mut dyn FnMut(f32)) -> Result<LoadedModel> {
        if adapter::is_adapter(dir) {
            // The adapter's own base comes first, then it, then what else was asked for.
            let base = base_of_adapter(dir)?;
            let adapters = std::iter::once(dir.to_path_buf()).chain(options.adapters.iter().cloned()).collect();
            let mut loaded = LoadedModel::open(&base, &LoadOptions { adapters, ..options.clone() }, progress)?;
            (loaded.name, loaded.strategy) = (name_of(dir), Strategy::Adapter);
            return Ok(loaded);
        }
        let config = directory_config(dir)?;
        let tensors = || Tensors::from_checkpoint(Checkpoint::open(dir)?, &config, dir);
        // A family that cannot run is refused before gigabytes are looked at.
        let read = assume::read(&config, options.assume.as_deref(), tensors)?;
        let (tokenizer, chat) = (Tokenizer::from_dir(dir)?, ChatTemplate::from_dir(dir)?);
        assemble(Some(dir), Parts { config: config.clone(), read, tokenizer, chat }, tensors, options, progress)
    }

    fn from_gguf(path: &Path, options: &LoadOptions, progress: &mut dyn FnMut(f32)) -> Result<LoadedModel> {
        let file = GgufFile::open(path)?;
        let config = Config::new(gguf::hf_config(&file)?, path)?;
        let again = || Tensors::from_gguf(GgufFile::open(path)?);
        let read = assume::read(&config, options.assume.as_deref(), again)?;
        let (tokenizer, chat) = gguf_tokenizer(&file, path)?;
        let parts = Parts { config, read, tokenizer, chat };
        let loaded = assemble(Some(path), parts, || Tensors::from_gguf(file), options, progress)?;
        Ok(LoadedModel { strategy: Strategy::Gguf, ..loaded })
    }

    /// Tokens of a text, with what the tokenizer adds around it.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let tokens = self.tokenizer()?.encode(text, true)?;
        if tokens.is_empty() {
            return Err(Error::usage(
                "the prompt is empty",
                "give at least one character; this model's tokenizer adds no start token",
            ));
        }
        Ok(tokens)
    }

    /// Tokens of a conversation that the model is to answer.
    pub fn encode_chat(&self, messages: &[Message]) -> Result<Vec<u32>> {
        let template = self.chat.as_ref().ok_or_else(|| {
            Error::usage(
                format!("{} has no chat template", self.name),
                "leave out --chat, or use an instruction-tuned model",
            )
        })?;
        let tokenizer = self.tokenizer()?;
        tokenizer.encode(&template.render(messages, true, tokenizer.special())?, false)
    }

    /// The tokenizer, or why there is none.
    pub fn tokenizer(&self) -> Result<&Tokenizer> {
        self.tokenizer.as_ref().ok_or_else(|| {
            Error::usage(
                format!("{} came without a tokenizer (none of {})", self.name, FORMS.join(", ")),
                "give token ids (--tokens 1,2,3), or put the model's tokenizer.json beside its weights",
            )
        })
    }

    /// Generates; a row also ends when its text contains one of `stops`. `watch` sees each row's new text as it comes.
    pub fn generate(
        &self,
        inputs: &[Vec<u32>],
        plan: &Plan,
        options: &GenerateOptions,
        stops: &[String],
        watch: &mut dyn FnMut(usize, u32, Option<&str>),
    ) -> Result<Generation> {
        if !stops.is_empty() {
            self.tokenizer()?;
        }
        if stops.iter().any(String::is_empty) {
            return Err(Error::usage("a stop string is empty", "give at least one character"));
        }
        let mut texts: Vec<_> =
            inputs.iter().map(|_| (self.tokenizer.as_ref().map(|t| t.stream(true)), String::new())).collect();
        let generation = self.model.generate(inputs, plan, options, &mut |row, token| {
            let (stream, text) = &mut texts[row];
            let piece = stream.as_mut().and_then(|stream| stream.push(token));
            text.push_str(piece.as_deref().unwrap_or_default());
            watch(row, token, piece.as_deref());
            if stops.iter().any(|stop| text.contains(stop)) { Control::Stop } else { Control::Go }
        })?;
        Ok(generation)
    }

    /// The text of generated tokens: cut before the stop string that ended it.
    pub fn text(&self, tokens: &[u32], finish: Finish, stops: &[String]) -> Option<String> {
        let mut text = self.tokenizer.as_ref()?.decode(tokens, true);
        if finish == Finish::Stop
            && let Some(at) = stops.iter().filter_map(|stop| text.find(stop)).min()
        {
            text.truncate(at);
        }
        Some(text)
    }
}

/// What a model is put together from, besides its tensors.
struct Parts {
    config: Config,
    read: Read,
    tokenizer: Option<Tokenizer>,
    chat: Option<ChatTemplate>,
}

/// Puts a model together: that of a path, or (where there is none) the built-in one. `tensors` is called unless somebody has its
/// weights already.
fn assemble(
    path: Option<&Path>,
    parts: Parts,
    tensors: impl FnOnce() -> Result<Tensors>,
    options: &LoadOptions,
    progress: &mut dyn FnMut(f32),
) -> Result<LoadedModel> {
    let Parts { config, read: Read { family, warnings, strategy }, tokenizer, chat } = parts;
    if let Some(tokenizer) = &tokenizer {
        tokenizer.check_fits(family.architecture.vocab)?;
    }
    let eos = match &tokenizer {
        Some(tokenizer) => tokenizer.special().eos.clone(),
        None => eos_of(&config),
    };
    let pool = options.pool.clone().unwrap_or_else(Pool::global);
    let origin = path.unwrap_or(Path::new(builtin::NAME));
    let key = share::Key::new(path, &options.adapters, options.storage, &family.architecture.family)?;
    let (model, repairs) = share::model(key, || {
        let adapters = options.adapters.iter().map(|dir| Adapter::open(dir)).collect::<Result<Vec<Adapter>>>()?;
        load(family, Arc::new(tensors()?), &adapters, origin, options.storage, &pool, progress)
    })?;
    let (name, model) = (name_of(origin), model.with_pool(pool).with_kv(options.kv));
    Ok(LoadedModel { name, model, tokenizer, chat, eos, warnings, strategy, repairs })
}

fn name_of(path: &Path) -> String {
    path.file_name().map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into_owned())
}

/// The base model of an adapter, where it is at hand: a path as the adapter has it, a directory beside it, a pulled or cached name.
fn base_of_adapter(dir: &Path) -> Result<PathBuf> {
    let base = adapter::base_of(dir)?;
    if let Some(base) = &base {
        // A path may be meant from where the adapter is, or from here. An adapter of an adapter would go in circles.
        let near = tokenizer::places(dir, base).into_iter().find(|place| place.join("config.json").is_file());
        let found = near.or_else(|| crate::pull::resolve(base).ok());
        if let Some(found) = found.filter(|found| !adapter::is_adapter(found)) {
            return Ok(found);
        }
    }
    let whose = base.as_deref().map_or_else(|| "a model that it does not name".into(), |base| format!("`{base}`"));
    Err(Error::usage(
        format!("{} is an adapter for {whose}, not a model", dir.display()),
        format!(
            "give its base model, and the adapter beside it: --model {} --adapter {}",
            base.as_deref().unwrap_or("BASE"),
            dir.display()
        ),
    ))
}

/// `eos_token_id`: a number or a list.
fn eos_of(config: &Config) -> Vec<u32> {
    let ids = config.get("eos_token_id").map(|value| value.as_array().cloned().unwrap_or_else(|| vec![value.clone()]));
    ids.unwrap_or_default().iter().filter_map(|id| u32::try_from(id.as_u64()?).ok()).collect()
}

pub(crate) fn gguf_tokenizer(file: &GgufFile, path: &Path) -> Result<(Option<Tokenizer>, Option<ChatTemplate>)> {
    if file.value(gguf::TOKENIZER_MODEL).is_none() {
        return Ok((None, None));
    }
    let special = gguf::special_tokens(file)?;
    let inner = gguf::tokenizer(file)?;
    let mut texts = std::collections::BTreeMap::new();
    for (name, id) in
        [("bos_token", special.bos), ("eos_token", special.eos), ("pad_token", special.pad), ("unk_token", special.unk)]
    {
        if let Some(text) = id.and_then(|id| inner.id_to_token(id)) {
            texts.insert(name.to_string(), text);
        }
    }
    let mut eos: Vec<u32> = special.eos.into_iter().chain(special.eot).collect();
    eos.dedup();
    let chat = special.chat_template.as_deref().map(|source| ChatTemplate::new(source, path)).transpose()?;
    let special = Special { bos: special.bos, eos, pad: special.pad, pad_from_eos: false, unk: special.unk, texts };
    Ok((Some(Tokenizer::from_parts(inner, special, path)?), chat))
}

pub(crate) fn directory_config(dir: &Path) -> Result<Config> {
    let file = dir.join("config.json");
    if !file.exists() {
        return Err(Error::invalid(
            dir,
            "there is no config.json here",
            "give a Hugging Face model directory or a .gguf file; `pellucid inspect` says what a directory is",
        ));
    }
    let config = Config::parse(&std::fs::read(&file).map_err(Error::io(&file))?, &file)?;
    Ok(match quantised::sidecar(dir) {
        Some(part) if config.get("quantization_config").is_none() => config.with("quantization_config", part),
        _ => config,
    })
}

/// The program of a directory, GGUF file or (where absent) the built-in model, from its configuration alone, with what to warn of.
/// Only for a model whose own type is not native are the headers of its tensors read, too: see [`LoadOptions::assume`].
pub fn program_of(path: Option<&Path>, assume: Option<&str>) -> Result<(Program, Vec<String>)> {
    let base = path.filter(|path| adapter::is_adapter(path)).map(base_of_adapter).transpose()?;
    let path = base.as_deref().or(path);
    let config = match path {
        None => Config::parse(builtin::CONFIG, Path::new(builtin::NAME))?,
        Some(path) => config_of(path)?,
    };
    let tensors = || match path {
        None => Ok(Tensors::Checkpoint(Checkpoint::from_static(builtin::WEIGHTS, builtin::NAME)?)),
        Some(path) if path.is_dir() => Tensors::from_checkpoint(Checkpoint::open(path)?, &config, path),
        Some(path) => Tensors::from_gguf(GgufFile::open(path)?),
    };
    let read = assume::read(&config, assume, tensors)?;
    Ok((Program::new(read.family.architecture)?, read.warnings))
}

/// The tokenizer of a directory, GGUF file or (where absent) the built-in model, if it has one, without its weights.
pub fn tokenizer_of(path: Option<&Path>) -> Result<Option<Tokenizer>> {
    let base = path.filter(|path| adapter::is_adapter(path)).map(base_of_adapter).transpose()?;
    match base.as_deref().or(path) {
        None => builtin_tokenizer().map(Some),
        Some(path) if path.is_dir() => Tokenizer::from_dir(path),
        Some(path) => Ok(gguf_tokenizer(&GgufFile::open(path)?, path)?.0),
    }
}

fn builtin_tokenizer() -> Result<Tokenizer> {
    Tokenizer::from_bytes(Path::new(builtin::NAME), builtin::TOKENIZER, &builtin::sidecars())
}

fn config_of(path: &Path) -> Result<Config> {
    if path.is_dir() { directory_config(path) } else { Config::new(gguf::hf_config(&GgufFile::open(path)?)?, path) }
}

/// The base model of an adapter, after checking from both headers that the adapter fits it.
pub(crate) fn fitting_base(dir: &Path) -> Result<PathBuf> {
    let base = base_of_adapter(dir)?;
    let (adapters, mut family) = ([Adapter::open(dir)?], families::read(&config_of(&base)?)?);
    family.architecture.head.tied &= !adapter::untie(&adapters, &family.names);
    adapter::plan(&adapters, &Program::new(family.architecture)?, &family.names)?;
    Ok(base)
}

/// The path of a model by name, or `None` for the built-in one.
pub fn locate(name: Option<&str>) -> Result<Option<PathBuf>> {
    match name {
        None => Ok(None),
        Some(name) if name == builtin::NAME => Ok(None),
        Some(name) => crate::pull::resolve(name).map(Some),
    }
}
