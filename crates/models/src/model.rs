//! [`LoadedModel`]: program, weights, tokenizer and chat template, with the calls on text.

use crate::adapter::{Adapter, AdapterRecord};
use crate::attempt::Strategy;
use crate::builtin;
use crate::chat::{ChatPrompt, ChatTemplate, Conversation, Message};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::load::{LoadOptions, load};
use crate::name_variants::NameVariant;
use crate::names::Names;
use crate::sae::SaeRecord;
use crate::select_family::{SelectedFamily, select_family};
use crate::share;
use crate::text::{RequestText, RowText, StopStrings};
use crate::tokenizer::{TOKENIZER_FILES, Tokenizer};
use crate::tuning;
use pellucid_engine::{Control, GenerateOptions, Generation, Model, Plan, Program, Remedy, RowToken};
use pellucid_kernels::Pool;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A model with its tokenizer and chat template. Clones share the weights.
#[derive(Clone)]
pub struct LoadedModel {
    /// Name for display: the last component of its path.
    pub name: String,
    /// The engine's model.
    pub model: Model,
    /// Its tokenizer, if it came with one.
    pub tokenizer: Option<Arc<Tokenizer>>,
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
    /// How it was tuned (`Instruct`, `Chat`), if its files say so.
    pub tuning: Option<String>,
    /// Autoencoders that were attached; [`saes`](Self::saes) has those that still are.
    pub(crate) sae_records: Vec<SaeRecord>,
    /// Table of stored names, for the tensors of adapters; absent without files.
    pub(crate) names: Option<Arc<Names>>,
    /// Adapters that are attached.
    pub(crate) adapter_records: Vec<AdapterRecord>,
    /// The fingerprint of a model without weights, which cannot be computed here.
    pub(crate) fingerprint: Option<String>,
}

impl LoadedModel {
    /// Wraps a model of the engine that has no files: no tokenizer and no chat template.
    pub fn without_files(name: String, model: Model) -> LoadedModel {
        LoadedModel {
            name,
            model,
            tokenizer: None,
            chat: None,
            eos: Vec::new(),
            warnings: Vec::new(),
            strategy: Strategy::Native,
            name_variants: Vec::new(),
            tuning: None,
            sae_records: Vec::new(),
            names: None,
            adapter_records: Vec::new(),
            fingerprint: None,
        }
    }

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
        check_environment()?;
        // Rejects unsupported families before any weight is read.
        let selected = select_family(path, options.assume.as_deref())?;
        load_selected(&selected, options, progress).map_err(|error| selected.failure(error))
    }

    /// Describes the weights: family, layers, width, storage formats and tuning, as in
    /// `llama, 30 layers, width 576, Q4_1, Instruct`.
    pub fn describe(&self) -> String {
        let architecture = self.model.program().architecture();
        let (family, layers, width) = (&architecture.family, architecture.layers.len(), architecture.width);
        let layers = if layers == 1 { "1 layer".into() } else { format!("{layers} layers") };
        let tuning = self.tuning.as_ref().map_or_else(String::new, |tuning| format!(", {tuning}"));
        format!("{family}, {layers}, width {width}, {}{tuning}", self.storage())
    }

    /// Names the storage formats of the weights that hold at least a tenth of their bytes, largest
    /// first, as in `Q4_K + Q6_K`.
    pub fn storage(&self) -> String {
        let weights = self.model.weights();
        let (formats, bytes) = (weights.formats(), weights.bytes());
        let large = formats.iter().filter(|(_, size)| size * 10 >= bytes).map(|(format, _)| format.as_str());
        large.collect::<Vec<_>>().join(" + ")
    }

    /// The stored formats without fast kernels, if they are a tenth or more of the weights: such a
    /// model runs several times faster as `q8` or `bf16` ([`Storage::As`](crate::Storage::As)),
    /// which takes more memory and rounds.
    pub fn slow_formats(&self) -> Vec<String> {
        let weights = self.model.weights();
        let slow = weights.slow_formats();
        let bytes: usize = slow.iter().map(|(_, bytes)| bytes).sum();
        let matters = 10 * bytes >= weights.bytes();
        slow.into_iter().filter(|_| matters).map(|(format, _)| format).collect()
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
        Ok(self.chat_prompt(&messages.to_vec().into())?.tokens)
    }

    /// Encodes a conversation with the chat template and its options, and locates its messages.
    pub fn chat_prompt(&self, conversation: &Conversation) -> Result<ChatPrompt> {
        let own = conversation.options.template.as_ref();
        let own = own.map(|source| ChatTemplate::new(source, Path::new("chat_template")));
        let template = own.as_ref().or(self.chat.as_ref());
        let template =
            template.ok_or_else(|| Error::usage(format!("{} has no chat template", self.name), Remedy::DropChat))?;
        ChatPrompt::new(template, self.tokenizer()?, &conversation.messages, &conversation.options)
    }

    /// Returns the tokenizer, or an error that lists the files that would provide one.
    pub fn tokenizer(&self) -> Result<&Arc<Tokenizer>> {
        self.tokenizer.as_ref().ok_or_else(|| {
            Error::usage(
                format!("{} came without a tokenizer (none of {})", self.name, TOKENIZER_FILES.join(", ")),
                Remedy::GiveTokenIds,
            )
        })
    }

    /// Generates. A row also ends when its text contains one of `stops`. `watch` is called with
    /// each new token and its text.
    pub fn generate(
        &self,
        inputs: &[Vec<u32>],
        plan: &Plan,
        options: &GenerateOptions,
        stops: &StopStrings,
        watch: &mut dyn FnMut(TextPiece<'_>),
    ) -> Result<Generation> {
        self.watch_text(inputs.len(), options, stops, watch, |on_token| {
            Ok(self.model.generate(inputs, plan, options, on_token)?)
        })
    }

    /// Calls `watch` as [`generate`](Self::generate) does, for a generation that `run` runs: it
    /// calls its argument with the row and each new token.
    pub fn watch_text<T, E: From<Error>>(
        &self,
        rows: usize,
        options: &GenerateOptions,
        stops: &StopStrings,
        watch: &mut dyn FnMut(TextPiece<'_>),
        run: impl FnOnce(&mut dyn FnMut(usize, u32) -> Control) -> std::result::Result<T, E>,
    ) -> std::result::Result<T, E> {
        let mut texts = match (&self.tokenizer, stops.is_empty()) {
            (None, true) => None,
            _ => Some(self.request_text(rows, stops)?),
        };
        let mut counts = vec![0; rows];
        let generation = run(&mut |row, token| {
            let Some(texts) = &mut texts else {
                watch(TextPiece { row, token: Some(token), text: "" });
                return Control::Go;
            };
            let mut text = texts.push(RowToken { row, token }).to_owned();
            counts[row] += 1;
            // The last token of a row brings the text that was held back.
            if texts.is_stopped(row) || options.eos.contains(&token) || counts[row] >= options.max_new {
                text += texts.finish(row);
            }
            watch(TextPiece { row, token: Some(token), text: &text });
            if texts.is_stopped(row) { Control::Stop } else { Control::Go }
        })?;
        // A row that ended for another reason, such as a condition of the plan, may have some left.
        for row in 0..rows {
            let rest = texts.as_mut().map_or("", |texts| texts.finish(row));
            if !rest.is_empty() {
                watch(TextPiece { row, token: None, text: rest });
            }
        }
        Ok(generation)
    }

    /// Starts the texts of a request with this many rows.
    pub fn request_text(&self, rows: usize, stops: &StopStrings) -> Result<RequestText> {
        Ok(RequestText::new(self.tokenizer()?, rows, stops))
    }

    /// Decodes the tokens of a generated row up to the first stop string; `None` without a
    /// tokenizer. This is the text of the pieces that [`generate`](Self::generate) reports.
    pub fn text(&self, tokens: &[u32], stops: &StopStrings) -> Option<String> {
        let mut text = RowText::new(self.tokenizer.as_ref()?, stops);
        for &token in tokens {
            text.push(token);
        }
        text.finish();
        Some(text.text().to_owned())
    }
}

/// A new token of a row and the text that it completes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextPiece<'a> {
    /// The row.
    pub row: usize,
    /// The token; `None` for text that was held back and follows after the last token.
    pub token: Option<u32>,
    /// The new text, which is empty while a character or a possible stop string is incomplete. The
    /// pieces of a row concatenate to its text.
    pub text: &'a str,
}

/// Rejects invalid settings in the environment, which would otherwise be ignored.
pub(crate) fn check_environment() -> Result<()> {
    let threads = pellucid_kernels::pool::check_environment();
    let memory = pellucid_engine::memory_limit().map(drop);
    threads.and(memory).map_err(|problem| Error::usage(problem, "correct or unset the variable"))
}

/// Loads a model whose family is selected. Weights that this process still holds are shared.
fn load_selected(
    selected: &SelectedFamily,
    options: &LoadOptions,
    progress: &mut dyn FnMut(f32),
) -> Result<LoadedModel> {
    let SelectedFamily { source, config, family, .. } = selected;
    let (tokenizer, chat) = selected.read_text_parts()?;
    let eos = match &tokenizer {
        Some(tokenizer) => tokenizer.special().eos.clone(),
        None => eos_of(config),
    };
    let pool = options.pool.clone().unwrap_or_else(Pool::global);
    let adapters = selected.adapters(&options.adapters);
    let key = share::LoadKey::new(source.path(), &adapters, options.storage, &family.architecture.family)?;
    let (model, name_variants) = share::get_or_load(key, || {
        let (adapters, tensors) = (Adapter::open_all(&adapters)?, selected.tensors()?);
        load(family, tensors, &adapters, source.origin(), options.storage, &pool, progress)
    })?;
    Ok(LoadedModel {
        name: name_of(selected.adapter.as_deref().unwrap_or(source.origin())),
        model: model.with_pool(pool).with_kv(options.kv),
        tokenizer: tokenizer.map(Arc::new),
        chat,
        eos,
        warnings: selected.warnings.clone(),
        strategy: selected.strategy,
        name_variants,
        tuning: tuning::of(source, config),
        sae_records: Vec::new(),
        names: Some(Arc::new(family.names.clone())),
        adapter_records: Vec::new(),
        fingerprint: None,
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
