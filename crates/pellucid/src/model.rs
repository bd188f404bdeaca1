//! [`Model`]: a loaded model with the calls that take prompts.

use crate::generate::{GenerateOptions, GeneratedText, Generation};
use pellucid_engine::{Array, GenerateOptions as EngineOptions, Plan, Program, Run, RunOptions};
use pellucid_models::attach::AdapterRecord;
use pellucid_models::chat::{ChatPrompt, Conversation, Message};
use pellucid_models::{LoadOptions, LoadedModel, Result, StopStrings, locate, prepare_chats};
use std::path::Path;

/// A model with its tokenizer, as [`load`](crate::load) returns it.
///
/// Prompts are texts or lists of tokens ([`Prompt`]). Several in one call run as one batch, without
/// padding, and give the same bits as alone. A [`Plan`] lists the captures and edits.
pub struct Model {
    loaded: LoadedModel,
}

/// A prompt: a text, tokens, or a conversation.
pub trait Prompt {
    /// Encodes the prompt for a model.
    fn tokens(&self, model: &Model) -> Result<Vec<u32>>;

    /// Encodes a conversation and locates its messages; `None` for other prompts.
    fn chat(&self, _: &Model) -> Result<Option<ChatPrompt>> {
        Ok(None)
    }
}

impl Prompt for &str {
    fn tokens(&self, model: &Model) -> Result<Vec<u32>> {
        model.encode(self)
    }
}

impl Prompt for String {
    fn tokens(&self, model: &Model) -> Result<Vec<u32>> {
        model.encode(self)
    }
}

impl Prompt for Vec<u32> {
    fn tokens(&self, _: &Model) -> Result<Vec<u32>> {
        Ok(self.clone())
    }
}

/// A conversation, encoded with the model's chat template.
impl Prompt for Vec<Message> {
    fn tokens(&self, model: &Model) -> Result<Vec<u32>> {
        model.loaded.encode_chat(self)
    }

    fn chat(&self, model: &Model) -> Result<Option<ChatPrompt>> {
        model.loaded.chat_prompt(&self.clone().into()).map(Some)
    }
}

/// A conversation with options, such as variables of the template.
impl Prompt for Conversation {
    fn tokens(&self, model: &Model) -> Result<Vec<u32>> {
        Ok(model.loaded.chat_prompt(self)?.tokens)
    }

    fn chat(&self, model: &Model) -> Result<Option<ChatPrompt>> {
        model.loaded.chat_prompt(self).map(Some)
    }
}

impl Model {
    /// Loads a model by name, as [`load`](crate::load) does, with options: dtype of the weights,
    /// threads, LoRA adapters.
    pub fn load_with(name: &str, options: &LoadOptions) -> Result<Model> {
        let loaded = match locate(Some(name))? {
            None => LoadedModel::builtin(options)?,
            Some(path) => LoadedModel::open(&path, options, &mut |_| {})?,
        };
        Ok(Model { loaded })
    }

    /// Loads the small model inside this library: six layers, trained on simple stories.
    pub fn builtin() -> Result<Model> {
        Ok(Model { loaded: LoadedModel::builtin(&LoadOptions::default())? })
    }

    /// Runs prompts once under a plan.
    ///
    /// ```
    /// use pellucid::{Model, Plan, Tap};
    /// let model = Model::builtin()?;
    /// let run = model.run(&["Tom saw a dog. The"], &Plan::of([Tap::capture("layers.3.resid_post").last()]))?;
    /// assert_eq!(run.captures[0].array.shape(), [1, 128]);
    /// # Ok::<(), pellucid::Error>(())
    /// ```
    pub fn run(&self, prompts: &[impl Prompt], plan: &Plan) -> Result<Run> {
        self.run_with(prompts, plan, &RunOptions::default())
    }

    /// Like [`run`](Self::run), with options: threads, chunked prefill, prefix cache, gradient
    /// checkpointing.
    pub fn run_with(&self, prompts: &[impl Prompt], plan: &Plan, options: &RunOptions) -> Result<Run> {
        let (rows, plan) = self.prepare(prompts, plan)?;
        Ok(self.loaded.model.run(&rows, &plan, options)?)
    }

    /// Generates text from prompts, with the plan active at every step.
    ///
    /// ```
    /// use pellucid::{GenerateOptions, Model, Plan};
    /// let model = Model::builtin()?;
    /// let mut streamed = String::new();
    /// let options = GenerateOptions {
    ///     max_new: 30,
    ///     stop: vec![".".into()],
    ///     on_text: Some(&mut |_row, piece| streamed.push_str(piece)),
    ///     ..GenerateOptions::default()
    /// };
    /// let generation = model.generate(&["Tom saw a dog. The"], &Plan::default(), options)?;
    /// let text = &generation.rows[0].text;
    /// assert!(text.starts_with(" dog") && !text.contains('.') && streamed == *text);
    /// # Ok::<(), pellucid::Error>(())
    /// ```
    pub fn generate(&self, prompts: &[impl Prompt], plan: &Plan, options: GenerateOptions) -> Result<Generation> {
        let (rows, plan) = self.prepare(prompts, plan)?;
        let GenerateOptions {
            max_new,
            sampling,
            stop,
            eos,
            on_text,
            chunk,
            lookup,
            threads,
            prefixes,
            interrupt,
            captures,
            adapters,
        } = options;
        let eos = eos.unwrap_or_else(|| self.loaded.eos.clone());
        let options = EngineOptions {
            max_new,
            sampling,
            eos,
            chunk,
            lookup,
            threads,
            prefixes,
            interrupt,
            captures,
            adapters,
            ..EngineOptions::default()
        };
        let mut on_text = on_text;
        let stop = StopStrings::new(stop)?;
        let generation = self.loaded.generate(&rows, &plan, &options, &stop, &mut |piece| {
            if let Some(on_text) = on_text.as_mut().filter(|_| !piece.text.is_empty()) {
                on_text(piece.row, piece.text);
            }
        })?;
        let texts = rows.into_iter().zip(generation.rows).map(|(prompt, row)| GeneratedText {
            text: self.loaded.text(&row.tokens, &stop).unwrap_or_default(),
            prompt,
            tokens: row.tokens,
            finish: row.finish,
            lookup: row.lookup,
        });
        Ok(Generation {
            rows: texts.collect(),
            captures: generation.captures,
            saved: generation.saved,
            marks: generation.marks,
            absent: generation.passed_over,
            prefill: generation.prefill,
            decode: generation.decode,
        })
    }

    /// Attaches a LoRA adapter (a PEFT directory) under a name, without merging it: rows use it if
    /// their call names it ([`RunOptions::adapters`], [`GenerateOptions::adapters`]). All rows
    /// share the weights.
    pub fn attach_adapter(&mut self, name: &str, directory: impl AsRef<Path>) -> Result<AdapterRecord> {
        self.loaded.attach_adapter(name, directory.as_ref())
    }

    /// Detaches an adapter.
    pub fn detach_adapter(&mut self, name: &str) -> Result<()> {
        self.loaded.detach_adapter(name)
    }

    /// Encodes a text, with the special tokens that the tokenizer adds.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        self.loaded.encode(text)
    }

    /// Decodes tokens.
    pub fn decode(&self, tokens: &[u32]) -> Result<String> {
        Ok(self.loaded.tokenizer()?.decode(tokens, false))
    }

    /// Checks a plan for these prompts and returns all problems; if there are none, it will run.
    pub fn check(&self, prompts: &[impl Prompt], plan: &Plan) -> Result<Vec<pellucid_engine::Error>> {
        let (rows, plan) = self.prepare(prompts, plan)?;
        let lengths: Vec<usize> = rows.iter().map(Vec::len).collect();
        Ok(plan.check(self.program(), &lengths))
    }

    /// Returns this model with other values for some weights, by name; the rest is shared.
    ///
    /// ```
    /// use pellucid::{Array, Model, Plan};
    /// let model = Model::builtin()?;
    /// // Ablate the MLP of layer 2: its output projection is [d_model, d_mlp].
    /// let zeros = Array::new(vec![128, 384], vec![0.0; 128 * 384]);
    /// let ablated = model.with_weights(&[("layers.2.mlp.down", zeros)])?;
    /// let run = ablated.run(&["Tom saw a dog. The"], &Plan::capture(["layers.2.mlp_out"]))?;
    /// assert!(run.captures[0].array.values().iter().all(|x| *x == 0.0));
    /// # Ok::<(), pellucid::Error>(())
    /// ```
    ///
    /// # Errors
    /// An unknown or repeated name, another shape, or an element that is NaN or infinite.
    pub fn with_weights(&self, weights: &[(&str, Array)]) -> Result<Model> {
        let mut loaded = self.loaded.clone();
        loaded.model = loaded.model.with_weights(weights)?;
        Ok(Model { loaded })
    }

    /// The model's ops and sites.
    pub fn program(&self) -> &Program {
        self.loaded.model.program()
    }

    /// The loaded model with its tokenizer, chat template, end-of-text tokens and warnings.
    pub fn loaded(&self) -> &LoadedModel {
        &self.loaded
    }

    /// Encodes the prompts, and resolves the files and tokens that the plan refers to.
    fn prepare(&self, prompts: &[impl Prompt], plan: &Plan) -> Result<(Vec<Vec<u32>>, Plan)> {
        let chats = prompts.iter().map(|prompt| prompt.chat(self)).collect::<Result<Vec<_>>>()?;
        let rows = prompts.iter().zip(&chats).map(|(prompt, chat)| match chat {
            Some(chat) => Ok(chat.tokens.clone()),
            None => prompt.tokens(self),
        });
        let rows = rows.collect::<Result<Vec<_>>>()?;
        let plan = prepare_chats(plan.clone(), Path::new(""), &rows, &chats, self.loaded.tokenizer.as_deref())?;
        Ok((rows, plan))
    }
}

impl From<LoadedModel> for Model {
    fn from(loaded: LoadedModel) -> Model {
        Model { loaded }
    }
}

/// Loads a model: a Hugging Face directory, a GGUF file, the name of a pulled model, or `builtin`.
///
/// ```
/// let model = pellucid::load("builtin")?;
/// assert_eq!(model.program().architecture().layers.len(), 6);
/// assert!(pellucid::load("no/such/directory").is_err());
/// # Ok::<(), pellucid::Error>(())
/// ```
pub fn load(name: &str) -> Result<Model> {
    Model::load_with(name, &LoadOptions::default())
}
