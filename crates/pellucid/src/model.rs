//! A loaded model, and the calls that take prompts.

use crate::generate::{GenerateOptions, GeneratedText, Generation};
use pellucid_engine::{GenerateOptions as EngineOptions, Plan, Program, Run, RunOptions};
use pellucid_models::chat::Message;
use pellucid_models::{LoadOptions, LoadedModel, Result, locate, prepare};
use std::path::Path;

/// A model with its tokenizer: what [`load`](crate::load) gives.
///
/// Prompts are texts or lists of tokens ([`Prompt`]); several in one call run together, without padding, and give the same bits as
/// alone. A [`Plan`] says what to see and what to change.
pub struct Model {
    loaded: LoadedModel,
}

/// A prompt: a text, or the tokens themselves.
pub trait Prompt {
    /// The prompt's tokens, as a model reads them.
    fn tokens(&self, model: &Model) -> Result<Vec<u32>>;
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

/// A conversation: the model's chat template makes the prompt.
impl Prompt for Vec<Message> {
    fn tokens(&self, model: &Model) -> Result<Vec<u32>> {
        model.loaded.encode_chat(self)
    }
}

impl Model {
    /// Loads a model by name, as [`load`](crate::load) does, with options: number format of the weights, threads, LoRA adapters.
    pub fn load_with(name: &str, options: &LoadOptions) -> Result<Model> {
        let loaded = match locate(Some(name))? {
            None => LoadedModel::builtin(options)?,
            Some(path) => LoadedModel::open(&path, options, &mut |_| {})?,
        };
        Ok(Model { loaded })
    }

    /// The small model inside this library: six layers, trained on simple stories.
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

    /// Like [`run`](Self::run), with options: threads, chunks, prefixes, memory of gradients.
    pub fn run_with(&self, prompts: &[impl Prompt], plan: &Plan, options: &RunOptions) -> Result<Run> {
        let (rows, plan) = self.ready(prompts, plan)?;
        Ok(self.loaded.model.run(&rows, &plan, options)?)
    }

    /// Continues prompts, with the plan active at every step.
    ///
    /// ```
    /// use pellucid::{GenerateOptions, Model, Plan};
    /// let model = Model::builtin()?;
    /// let mut heard = String::new();
    /// let options = GenerateOptions {
    ///     max_new: 30,
    ///     stop: vec![".".into()],
    ///     on_text: Some(&mut |_row, piece| heard.push_str(piece)),
    ///     ..GenerateOptions::default()
    /// };
    /// let generation = model.generate(&["Tom saw a dog. The"], &Plan::default(), options)?;
    /// let text = &generation.rows[0].text;
    /// assert!(text.starts_with(" dog") && !text.contains('.') && heard.starts_with(text.as_str()));
    /// # Ok::<(), pellucid::Error>(())
    /// ```
    pub fn generate(&self, prompts: &[impl Prompt], plan: &Plan, options: GenerateOptions) -> Result<Generation> {
        let (rows, plan) = self.ready(prompts, plan)?;
        let GenerateOptions { max_new, sampling, stop, eos, on_text, chunk, lookup, threads, prefixes, interrupt } =
            options;
        let eos = eos.unwrap_or_else(|| self.loaded.eos.clone());
        let options = EngineOptions { max_new, sampling, eos, chunk, lookup, threads, prefixes, interrupt };
        let mut on_text = on_text;
        let made = self.loaded.generate(&rows, &plan, &options, &stop, &mut |row, _token, text| {
            if let (Some(on_text), Some(text)) = (&mut on_text, text) {
                on_text(row, text);
            }
        })?;
        let texts = rows.into_iter().zip(made.rows).map(|(prompt, row)| GeneratedText {
            text: self.loaded.text(&row.tokens, row.finish, &stop).unwrap_or_default(),
            prompt,
            tokens: row.tokens,
            finish: row.finish,
            lookup: row.lookup,
        });
        Ok(Generation {
            rows: texts.collect(),
            captures: made.captures,
            saved: made.saved,
            absent: made.passed_over,
            prefill: made.prefill,
            decode: made.decode,
        })
    }

    /// The tokens of a text, with what the tokenizer adds around it.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        self.loaded.encode(text)
    }

    /// The text of tokens.
    pub fn decode(&self, tokens: &[u32]) -> Result<String> {
        Ok(self.loaded.tokenizer()?.decode(tokens, false))
    }

    /// Every problem of a plan for these prompts; an empty list means that it will run.
    pub fn check(&self, prompts: &[impl Prompt], plan: &Plan) -> Result<Vec<pellucid_engine::Error>> {
        let (rows, plan) = self.ready(prompts, plan)?;
        let lengths: Vec<usize> = rows.iter().map(Vec::len).collect();
        Ok(plan.check(self.program(), &lengths))
    }

    /// The model's ops and sites.
    pub fn program(&self) -> &Program {
        self.loaded.model.program()
    }

    /// Everything else that came with the model: its tokenizer, chat template, end-of-text tokens, warnings.
    pub fn loaded(&self) -> &LoadedModel {
        &self.loaded
    }

    /// The rows of a call, and its plan with files read and tokens looked up in these rows.
    fn ready(&self, prompts: &[impl Prompt], plan: &Plan) -> Result<(Vec<Vec<u32>>, Plan)> {
        let rows = prompts.iter().map(|prompt| prompt.tokens(self)).collect::<Result<Vec<_>>>()?;
        let plan = prepare(plan.clone(), Path::new(""), &rows, self.loaded.tokenizer.as_ref())?;
        Ok((rows, plan))
    }
}

impl From<LoadedModel> for Model {
    fn from(loaded: LoadedModel) -> Model {
        Model { loaded }
    }
}

/// Loads a model: a directory as Hugging Face lays it out, a GGUF file, a name that was pulled, or `builtin`.
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
