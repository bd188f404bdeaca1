//! [`LoadedModel`]: program, weights, tokenizer and chat template, with the calls on text.

use crate::adapter::Adapter;
use crate::attempt::Strategy;
use crate::builtin;
use crate::chat::{ChatTemplate, Message};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::load::{LoadOptions, load};
use crate::name_variants::NameVariant;
use crate::select_family::{SelectedFamily, select_family};
use crate::share;
use crate::tokenizer::{TOKENIZER_FILES, Tokenizer};
use pellucid_engine::{Control, Finish, GenerateOptions, Generation, Model, Plan, Program, Remedy};
use pellucid_kernels::Pool;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A model with its tokenizer and chat template.
pub struct LoadedModel {
    /// Name for display: the last component of its path.
    pub name: String,
    /// The engine's model.
    pub model: Model,
    /// Its tokenizer, if it came with one.
    pub tokenizer: Option<Tokenizer>,
    /// Its chat template, if it came with one.
    pub chat: Option<ChatTemplate>,
    /// End-of-text tokens.
    pub eos: Vec<u32>,
    /// Warnings, such as that the model runs as a family other than its own type.
    pub warnings: Vec<String>,
    /// The strategy that loaded it.
    pub strategy: Strategy,
    /// Variants of tensor names under which some of its weights were found.
    pub name_variants: Vec<NameVariant>,
}

impl LoadedModel {
    /// Loads a directory, an adapter's directory or a GGUF file. `progress` receives the fraction
    /// of weights loaded.
    ///
    /// # Errors
    /// [`Error::Load`]: the error, and the outcome of each strategy.
    pub fn open(path: &Path, options: &LoadOptions, progress: &mut dyn FnMut(f32)) -> Result<LoadedModel> {
        LoadedModel::load(Some(path), options, progress)
    }

    /// Loads the built-in model.
    pub fn builtin(options: &LoadOptions) -> Result<LoadedModel> {
        LoadedModel::load(None, options, &mut |_| {})
    }

    /// Loads the model at a path, as [`open`](Self::open) does, or the built-in model if `path` is
    /// absent.
    pub fn load(path: Option<&Path>, options: &LoadOptions, progress: &mut dyn FnMut(f32)) -> Result<LoadedModel> {
        // Rejects unsupported families before any weight is read.
        let selected = select_family(path, options.assume.as_deref())?;
        load_selected(&selected, options, progress).map_err(|error| selected.failure(error))
    }

    /// Encodes a text, with the special tokens that the tokenizer adds.
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

    /// Encodes a conversation with the chat template, ending with the start of the model's answer.
    pub fn encode_chat(&self, messages: &[Message]) -> Result<Vec<u32>> {
        let template = self
            .chat
            .as_ref()
            .ok_or_else(|| Error::usage(format!("{} has no chat template", self.name), Remedy::DropChat))?;
        let tokenizer = self.tokenizer()?;
        tokenizer.encode(&template.render(messages, true, tokenizer.special())?, false)
    }

    /// Returns the tokenizer, or an error that lists the files that would provide one.
    pub fn tokenizer(&self) -> Result<&Tokenizer> {
        self.tokenizer.as_ref().ok_or_else(|| {
            Error::usage(
                format!("{} came without a tokenizer (none of {})", self.name, TOKENIZER_FILES.join(", ")),
                Remedy::GiveTokenIds,
            )
        })
    }

    /// Generates. A row also ends when its text contains one of `stops`. `watch` is called with the
    /// row, each new token, and its text when complete.
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

    /// Decodes generated tokens, without the stop string that ended the row and the text after it.
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

/// Loads a model whose family is selected. Weights that this process still holds are shared.
fn load_selected(
    selected: &SelectedFamily,
    options: &LoadOptions,
    progress: &mut dyn FnMut(f32),
) -> Result<LoadedModel> {
    let SelectedFamily { source, config, family, .. } = selected;
    let (tokenizer, chat) = (source.tokenizer()?, source.chat_template()?);
    if let Some(tokenizer) = &tokenizer {
        tokenizer.check_fits(family.architecture.vocab)?;
    }
    let eos = match &tokenizer {
        Some(tokenizer) => tokenizer.special().eos.clone(),
        None => eos_of(config),
    };
    let pool = options.pool.clone().unwrap_or_else(Pool::global);
    let adapters = selected.adapters(&options.adapters);
    let key = share::LoadKey::new(source.path(), &adapters, options.storage, &family.architecture.family)?;
    let (model, name_variants) = share::get_or_load(key, || {
        let (adapters, tensors) = (Adapter::open_all(&adapters)?, Arc::new(source.tensors(config)?));
        load(family, tensors, &adapters, source.origin(), options.storage, &pool, progress)
    })?;
    Ok(LoadedModel {
        name: name_of(selected.adapter.as_deref().unwrap_or(source.origin())),
        model: model.with_pool(pool).with_kv(options.kv),
        tokenizer,
        chat,
        eos,
        warnings: selected.warnings.clone(),
        strategy: selected.strategy,
        name_variants,
    })
}

fn name_of(path: &Path) -> String {
    path.file_name().map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into_owned())
}

/// `eos_token_id`: an id or a list of ids.
fn eos_of(config: &Config) -> Vec<u32> {
    let ids = config.get("eos_token_id").map(|value| value.as_array().cloned().unwrap_or_else(|| vec![value.clone()]));
    ids.unwrap_or_default().iter().filter_map(|id| u32::try_from(id.as_u64()?).ok()).collect()
}

/// Builds the program of a directory, a GGUF file or (if `path` is absent) the built-in model from
/// its configuration alone; also returns the warnings. For a model whose own type is not native,
/// the headers of its tensors are read, too: see [`LoadOptions::assume`].
pub fn program_of(path: Option<&Path>, assume: Option<&str>) -> Result<(Program, Vec<String>)> {
    // Nothing is loaded, so the error does not list strategies.
    let selected = select_family(path, assume).map_err(Error::into_cause)?;
    Ok((Program::new(selected.family.architecture)?, selected.warnings))
}

/// Resolves a model's name to its path; `None` for the built-in model.
pub fn locate(name: Option<&str>) -> Result<Option<PathBuf>> {
    match name {
        None => Ok(None),
        Some(name) if name == builtin::NAME => Ok(None),
        Some(name) => crate::pull::resolve(name).map(Some),
    }
}
