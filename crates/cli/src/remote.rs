//! Models of commands that can run on a server (`--server`).

use crate::args::{DTypeArg, KvArg, ModelArgs, PlanArgs, ServerArgs};
use crate::failure::Failure;
use crate::models;
use pellucid_client::{ConnectOptions, RemoteGeneration, RemoteModel, RemoteRun};
use pellucid_engine::{GenerateOptions, Generation, NanOrigin, Plan, Run, RunOptions};
use pellucid_models::{LoadedModel, StopStrings, TextPiece};
use std::path::Path;

/// A model of this process or of a server.
pub enum ModelPlace {
    Here(&'static LoadedModel),
    Server(Box<RemoteModel>),
}

/// A run; of a server with the place of its first NaN, if it has some.
pub struct FinishedRun {
    pub run: Run,
    pub nan: Option<NanOrigin>,
}

/// A generation; of a server with its first activation that is not finite, in words.
pub struct FinishedGeneration {
    pub generation: Generation,
    pub non_finite: Option<String>,
}

/// Loads the model of the arguments, or connects to the server that has it. `saes` are the
/// autoencoders that plans name; a server has attached them.
pub fn open(args: &ModelArgs, server: &ServerArgs, saes: &[(&str, &Path)]) -> Result<ModelPlace, Failure> {
    let Some(url) = &server.server else { return Ok(ModelPlace::Here(models::load_with_saes(args, saes)?)) };
    refuse_local(args)?;
    let token = server.token_file.as_deref().map(read_token).transpose()?;
    let model = args.model.as_ref().map(|name| name.to_string_lossy().into_owned());
    let model = RemoteModel::connect(url, ConnectOptions { token, model })?;
    models::warn(&model.local().warnings);
    Ok(ModelPlace::Server(Box::new(model)))
}

/// Reads the token of a file: its first line.
pub fn read_token(path: &Path) -> Result<String, Failure> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| Failure::usage(format!("{}: {error}", path.display()), "check --token-file"))?;
    Ok(text.lines().next().unwrap_or_default().trim().to_owned())
}

/// Refuses options that say how a model is loaded.
fn refuse_local(args: &ModelArgs) -> Result<(), Failure> {
    let options = [
        ("--adapter", !args.adapter.is_empty()),
        ("--use-adapter", args.use_adapter.is_some()),
        ("--sae", !args.sae.is_empty()),
        ("--unchecked", args.unchecked),
        ("--assume", args.assume.assume.is_some()),
        ("--dtype", !matches!(args.dtype, DTypeArg::Auto)),
        ("--kv-dtype", !matches!(args.kv_dtype, KvArg::F32)),
        ("--threads", args.threads.is_some()),
    ];
    options.into_iter().filter(|(_, given)| *given).try_for_each(|(option, _)| refuse(option, "`pellucid serve`"))
}

/// Refuses options of captures that concern this machine.
pub fn check_plan(args: &PlanArgs, server: &ServerArgs) -> Result<(), Failure> {
    match server.server.is_some() && args.capture_memory.is_some() {
        true => refuse("--capture-memory", "commands without --server"),
        false => Ok(()),
    }
}

fn refuse(option: &str, owner: &str) -> Result<(), Failure> {
    Err(Failure::usage(
        format!("{option} concerns the process that runs the model, which is the server"),
        format!("leave out {option}; it is an option of {owner}"),
    ))
}

impl ModelPlace {
    /// The model for text, sites and plans; without weights if they are on a server.
    pub fn parts(&self) -> &LoadedModel {
        match self {
            ModelPlace::Here(loaded) => loaded,
            ModelPlace::Server(model) => model.local(),
        }
    }

    /// Runs rows.
    pub fn run(&self, rows: &[Vec<u32>], plan: &Plan, options: &RunOptions) -> Result<FinishedRun, Failure> {
        match self {
            ModelPlace::Here(loaded) => Ok(FinishedRun { run: loaded.model.run(rows, plan, options)?, nan: None }),
            ModelPlace::Server(model) => {
                let RemoteRun { run, nan, .. } = model.run(rows, plan, options, true)?;
                Ok(FinishedRun { run, nan })
            }
        }
    }

    /// Finds the first NaN of a run that has some; `found` is what the server has found.
    pub fn find_nan(
        &self,
        rows: &[Vec<u32>],
        plan: &Plan,
        options: &RunOptions,
        found: Option<NanOrigin>,
    ) -> Option<NanOrigin> {
        match self {
            // The search only explains: if it fails, the run goes without it.
            ModelPlace::Here(loaded) => loaded.model.find_nan(rows, plan, options).ok().flatten(),
            ModelPlace::Server(_) => found,
        }
    }

    /// Finds the first activation of a generation that is not finite, in words; `found` is what the
    /// server has found.
    pub fn find_non_finite(
        &self,
        rows: &[Vec<u32>],
        plan: &Plan,
        options: &GenerateOptions,
        found: Option<String>,
    ) -> Option<String> {
        match self {
            ModelPlace::Here(loaded) => {
                let first = loaded.model.find_non_finite_generating(rows, plan, options).ok().flatten();
                first.map(|first| first.to_string())
            }
            ModelPlace::Server(_) => found,
        }
    }

    /// Generates.
    pub fn generate(
        &self,
        rows: &[Vec<u32>],
        plan: &Plan,
        options: &GenerateOptions,
        stops: &StopStrings,
        watch: &mut dyn FnMut(TextPiece<'_>),
    ) -> Result<FinishedGeneration, Failure> {
        match self {
            ModelPlace::Here(loaded) => {
                let generation = loaded.generate(rows, plan, options, stops, watch)?;
                Ok(FinishedGeneration { generation, non_finite: None })
            }
            ModelPlace::Server(model) => {
                let RemoteGeneration { generation, non_finite } =
                    model.generate(rows, plan, options, stops, true, watch)?;
                Ok(FinishedGeneration { generation, non_finite })
            }
        }
    }
}

impl From<pellucid_client::Error> for Failure {
    fn from(error: pellucid_client::Error) -> Failure {
        match error {
            pellucid_client::Error::Call(error) => error.into(),
            pellucid_client::Error::Usage { problem, hint } | pellucid_client::Error::Server { problem, hint } => {
                Failure::usage(problem, hint)
            }
        }
    }
}
