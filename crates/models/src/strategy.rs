//! The ways to load a model, in their order, and what became of each.
//!
//! A directory of a native type is read by its own family; one of a type that is mapped to a family, by that; one of any other type,
//! by the family that the caller names, if it fits. An adapter is merged into its base model, and a GGUF file is made to look like a
//! directory. What none of them takes is refused, and the refusal lists why.

use crate::adapter;
use crate::assume;
use crate::checkpoint::Checkpoint;
use crate::compare::find_mended;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::families;
use crate::gguf::{self, GgufFile};
use crate::identify;
use crate::model::{LoadOptions, LoadedModel, directory_config, fitting_base};
use crate::tensors::Tensors;
use pellucid_engine::Program;
use schemars::JsonSchema;
use serde::Serialize;
use std::fmt;
use std::path::Path;

/// A way to load a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Strategy {
    /// By the family of its own type.
    Native,
    /// By the family that its type is mapped to.
    Mapped,
    /// By the family that the caller names.
    Assumed,
    /// As an adapter, merged into its base model.
    Adapter,
    /// As a GGUF file.
    Gguf,
}

impl Strategy {
    /// All of them, in the order in which they are tried.
    pub const ALL: [Strategy; 5] =
        [Strategy::Native, Strategy::Mapped, Strategy::Assumed, Strategy::Adapter, Strategy::Gguf];

    /// What it is called.
    pub fn name(self) -> &'static str {
        match self {
            Strategy::Native => "native family",
            Strategy::Mapped => "mapped custom type",
            Strategy::Assumed => "assumed family",
            Strategy::Adapter => "adapter merge",
            Strategy::Gguf => "GGUF",
        }
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// What became of a way to load a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It loads the model.
    Taken,
    /// It is not for this.
    Passed,
    /// It is for this, and cannot.
    Failed,
    /// An earlier one loads the model.
    NotNeeded,
}

impl Outcome {
    /// What it is called.
    pub fn name(self) -> &'static str {
        match self {
            Outcome::Taken => "taken",
            Outcome::Passed => "passed over",
            Outcome::Failed => "failed",
            Outcome::NotNeeded => "not needed",
        }
    }
}

/// A way to load a model, what became of it, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Attempt {
    /// The way.
    pub strategy: Strategy,
    /// What became of it.
    pub outcome: Outcome,
    /// Why.
    pub reason: String,
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.strategy, self.outcome.name())?;
        if self.outcome == Outcome::NotNeeded { Ok(()) } else { write!(f, ": {}", self.reason) }
    }
}

/// The attempts that were made, as the end of an error: up to the first that was for this model and failed.
pub(crate) fn listed(attempts: &[Attempt]) -> String {
    let failed = attempts.iter().position(|attempt| attempt.outcome == Outcome::Failed);
    let made = &attempts[..failed.map_or(attempts.len(), |failed| failed + 1)];
    made.iter().fold("\nways to load it that were tried:".to_owned(), |text, attempt| format!("{text}\n  {attempt}"))
}

/// Loads a directory or GGUF file by the first strategy that takes it; `progress` hears the fraction of weights loaded.
///
/// # Errors
/// As [`LoadedModel::open`], with what became of each strategy ([`Error::Load`]).
pub fn load_with_strategies(path: &Path, options: &LoadOptions, progress: &mut dyn FnMut(f32)) -> Result<LoadedModel> {
    LoadedModel::open(path, options, progress).map_err(|error| {
        let said = error.to_string();
        let mut attempts = strategies(path, options);
        for attempt in &mut attempts {
            // What looked well from the headers, or failed with the same words.
            if attempt.outcome == Outcome::Taken || attempt.reason == said {
                (attempt.outcome, attempt.reason) = (Outcome::Failed, "as said above".to_owned());
            }
        }
        Error::Load { error: Box::new(error), attempts }
    })
}

/// What each strategy would do with a path, told from configurations and headers alone.
pub fn strategies(path: &Path, options: &LoadOptions) -> Vec<Attempt> {
    let mut attempts: Vec<Attempt> = Vec::with_capacity(Strategy::ALL.len());
    for strategy in Strategy::ALL {
        let taken = attempts.iter().any(|attempt| attempt.outcome == Outcome::Taken);
        let (outcome, reason) = match strategy {
            _ if taken => (Outcome::NotNeeded, "an earlier one loads the model".to_owned()),
            Strategy::Native | Strategy::Mapped | Strategy::Assumed => by_family(strategy, path, options),
            Strategy::Adapter => adapted(path),
            Strategy::Gguf => as_gguf(path, options),
        };
        attempts.push(Attempt { strategy, outcome, reason });
    }
    attempts
}

fn passed(reason: impl Into<String>) -> (Outcome, String) {
    (Outcome::Passed, reason.into())
}

fn verdict(outcome: Result<String>) -> (Outcome, String) {
    match outcome {
        Ok(reason) => (Outcome::Taken, reason),
        Err(error) => (Outcome::Failed, error.to_string()),
    }
}

/// The three ways to read a directory by a family.
fn by_family(strategy: Strategy, path: &Path, options: &LoadOptions) -> (Outcome, String) {
    if !path.is_dir() {
        return passed(if path.exists() { "this is a file, not a directory" } else { "there is nothing at this path" });
    }
    if !path.join("config.json").is_file() {
        return passed("there is no config.json");
    }
    let config = match directory_config(path) {
        Ok(config) => config,
        Err(error) if strategy == Strategy::Native => return (Outcome::Failed, error.to_string()),
        Err(_) => return passed("the configuration cannot be read"),
    };
    let assume = options.assume.as_deref();
    let own = config.model_type().ok();
    let native = own.filter(|own| families::native().any(|family| family == *own));
    let is_for = match strategy {
        Strategy::Native => native.map(str::to_owned).ok_or_else(|| match own {
            Some(own) => format!("`{}` is not a native type", own.escape_debug()),
            None => "config.json does not say its type".to_owned(),
        }),
        _ if native.is_some() => Err("the type is native".to_owned()),
        Strategy::Mapped => own
            .and_then(identify::stand_in)
            .map(str::to_owned)
            .ok_or_else(|| "the type is mapped to no family".to_owned()),
        _ => assume.map(str::to_owned).ok_or_else(|| "no family was named (--assume)".to_owned()),
    };
    match is_for {
        Ok(_) => {
            verdict(fits(&config, assume, || Tensors::from_checkpoint(Checkpoint::open(path)?, &config, path), path))
        }
        Err(reason) => passed(reason),
    }
}

/// Whether the family by which a configuration is read finds all its weights.
fn fits(config: &Config, assume: Option<&str>, tensors: impl Fn() -> Result<Tensors>, origin: &Path) -> Result<String> {
    let read = assume::read(config, assume, &tensors)?;
    let (program, names) = (Program::new(read.family.architecture)?, read.family.names);
    let (_, repairs) = find_mended(&program, &names, &tensors()?, origin)?;
    let family = format!("`{}`, and every weight is there", program.architecture().family);
    Ok(repairs.iter().fold(family, |text, repair| format!("{text}; {repair}")))
}

fn adapted(path: &Path) -> (Outcome, String) {
    if !adapter::is_adapter(path) {
        return passed(format!("there is no {} without a config.json", adapter::CONFIG));
    }
    verdict(fitting_base(path).map(|base| format!("it fits its base model, {}", base.display())))
}

fn as_gguf(path: &Path, options: &LoadOptions) -> (Outcome, String) {
    if path.is_dir() {
        let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
        let mut inside =
            entries.map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|end| end == "gguf"));
        return passed(match inside.next() {
            Some(file) => format!("this is a directory; {} in it can be given itself", file.display()),
            None => "this is a directory".to_owned(),
        });
    }
    if !path.is_file() {
        return passed("there is no such file");
    }
    verdict((|| {
        let config = Config::new(gguf::hf_config(&GgufFile::open(path)?)?, path)?;
        fits(&config, options.assume.as_deref(), || Tensors::from_gguf(GgufFile::open(path)?), path)
    })())
}
