//! The fixtures: what the engine and its tests construct. A new one is a row of this table.

use super::child::Phases;
use super::{Category, Fixture, Kind, Scope};
use crate::Result;
use crate::worker::open;
use pellucid_analysis::lens;
use pellucid_engine::{Action, Control, GenerateOptions, Operand, Plan, RunOptions, Tap};
use pellucid_kernels::{DType, Pool};
use pellucid_models::builtin;
use pellucid_models::chat::{ChatTemplate, Message};
use pellucid_models::config::Config;
use pellucid_models::gguf::GgufFile;
use pellucid_models::tokenizer::{Sidecars, Special, Tokenizer};
use pellucid_models::{Error, LoadOptions, LoadedModel, Storage, inspect, locate, program_of};
use std::any::Any;
use std::path::Path;

/// The model that people use, where it is pulled.
const REAL: &str = "smollm2-135m";
/// What sessions on it begin with, as token ids that every vocabulary has.
const PROMPT: [u32; 9] = [20, 57, 21, 58, 22, 59, 23, 60, 24];

type Made = Result<Box<dyn Any>>;

/// A row of the table.
const fn row(
    name: &'static str,
    identifier: &'static str,
    (scope, category, kind): (Scope, Category, Kind),
    model: Option<&'static str>,
    build: fn(&mut Phases) -> Made,
) -> Fixture {
    Fixture { name, identifier, scope, category, kind, model, build }
}

const OWN: Option<&str> = Some(builtin::NAME);

/// All of them, in the order of the report's lists.
pub const FIXTURES: &[Fixture] = &[
    row("builtin_model", "LoadedModel::builtin", (Scope::Process, Category::Custom, Kind::Dynamic), OWN, |phases| {
        kept(load(phases, builtin::NAME, Storage::AsStored)?)
    }),
    row("opened_model", "LoadedModel::open", (Scope::Process, Category::Real, Kind::Dynamic), Some(REAL), |phases| {
        let loaded = load(phases, REAL, Storage::AsStored)?;
        first_token(phases, loaded)
    }),
    row("model_as_stored", "Storage::AsStored", (Scope::Suite, Category::Real, Kind::Dynamic), Some(REAL), |phases| {
        kept(load(phases, REAL, Storage::AsStored)?)
    }),
    row(
        "model_in_f32",
        "Storage::As(DType::F32)",
        (Scope::Suite, Category::Real, Kind::Dynamic),
        Some(REAL),
        |phases| kept(load(phases, REAL, Storage::As(DType::F32))?),
    ),
    row(
        "model_in_bf16",
        "Storage::As(DType::Bf16)",
        (Scope::Suite, Category::Real, Kind::Dynamic),
        Some(REAL),
        |phases| kept(load(phases, REAL, Storage::As(DType::Bf16))?),
    ),
    row("decode_job", "Job::Decode", (Scope::Test, Category::Real, Kind::Dynamic), Some(REAL), |phases| {
        let loaded = load(phases, REAL, Storage::AsStored)?;
        generated(phases, loaded, PROMPT.to_vec())
    }),
    row("steer_job", "Job::Steer", (Scope::Test, Category::Real, Kind::Dynamic), Some(REAL), |phases| {
        let loaded = load(phases, REAL, Storage::AsStored)?;
        let plan = phases.prepare(|| {
            let architecture = loaded.model.program().architecture();
            let site = format!("layers.{}.resid_post", architecture.layers.len() / 2);
            let operand = Operand::Vector(vec![0.5; architecture.width]);
            Ok(Plan::capture(["logits"]).with(Tap::new(site, Action::Add { operand, scale: 1.0 })))
        })?;
        captured(phases, loaded, PROMPT.to_vec(), plan)
    }),
    row("gguf_header", "GgufFile::open", (Scope::Test, Category::Config, Kind::Dynamic), Some(REAL), |phases| {
        let path = phases.prepare(real_path)?;
        kept(phases.load(|| Ok(GgufFile::open(&path)?))?)
    }),
    row("inspection", "inspect(", (Scope::Test, Category::Config, Kind::Dynamic), Some(REAL), |phases| {
        let path = phases.prepare(real_path)?;
        kept(phases.run(|| Ok(inspect(&path)?))?)
    }),
    row("configuration", "Config::parse", (Scope::Test, Category::Config, Kind::Static), OWN, |phases| {
        kept(phases.load(|| Ok(Config::parse(builtin::CONFIG, Path::new(builtin::NAME))?))?)
    }),
    row("program_without_weights", "program_of", (Scope::Suite, Category::Config, Kind::Dynamic), OWN, |phases| {
        kept(phases.load(|| Ok(program_of(None, None)?))?)
    }),
    row("capture_session", "Plan::capture", (Scope::Test, Category::Custom, Kind::Dynamic), OWN, |phases| {
        let loaded = load(phases, builtin::NAME, Storage::AsStored)?;
        let (tokens, plan) = phases.prepare(|| Ok((loaded.encode(TEXT)?, Plan::capture(["layers.*.resid_post"]))))?;
        captured(phases, loaded, tokens, plan)
    }),
    row("generate_session", ".generate(", (Scope::Test, Category::Custom, Kind::Dynamic), OWN, |phases| {
        let loaded = load(phases, builtin::NAME, Storage::AsStored)?;
        let tokens = phases.prepare(|| Ok(loaded.encode(TEXT)?))?;
        generated(phases, loaded, tokens)
    }),
    row("lens_session", "compute(", (Scope::Test, Category::Custom, Kind::Dynamic), OWN, |phases| {
        let loaded = load(phases, builtin::NAME, Storage::AsStored)?;
        let tokens = phases.prepare(|| Ok(loaded.encode(TEXT)?))?;
        let table = phases.run(|| Ok(lens::compute(&loaded, &tokens)?))?;
        kept((loaded, table))
    }),
    row("profile_session", "profiled", (Scope::Test, Category::Custom, Kind::Dynamic), OWN, |phases| {
        let loaded = load(phases, builtin::NAME, Storage::AsStored)?;
        let (tokens, model, profile) = phases.prepare(|| {
            let (model, profile) = loaded.model.profiled();
            Ok((loaded.encode(TEXT)?, model, profile))
        })?;
        let run = phases.run(|| {
            Ok(model.run(&[tokens], &Plan::capture(["logits"]), &RunOptions::default()).map_err(Error::from)?)
        })?;
        kept((loaded, model, profile, run))
    }),
    row("tokenizer", "Tokenizer::from_bytes", (Scope::Suite, Category::Static, Kind::Static), OWN, |phases| {
        let origin = Path::new(builtin::NAME);
        kept(phases.load(|| Ok(Tokenizer::from_bytes(origin, builtin::TOKENIZER, &Sidecars::default())?))?)
    }),
    row("chat_template", "ChatTemplate::new", (Scope::Test, Category::Static, Kind::Static), None, |phases| {
        let source = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}";
        let template = phases.load(|| Ok(ChatTemplate::new(source, Path::new("a template"))?))?;
        let messages = [Message::new("user", TEXT)];
        let text = phases.run(|| Ok(template.render(&messages, true, &Special::default())?))?;
        kept((template, text))
    }),
    row("plan_from_json", "Plan::from_json", (Scope::Test, Category::Static, Kind::Static), None, |phases| {
        let text = r#"{"taps": [{"site": "layers.*.resid_post", "capture": true}]}"#;
        kept(phases.prepare(|| {
            Plan::from_json(text).map_err(|error| Error::usage(error, "the plan of this fixture").into())
        })?)
    }),
    row("thread_pool", "Pool::new", (Scope::Process, Category::Static, Kind::Static), None, |phases| {
        let pool = phases.prepare(|| Ok(Pool::new(2)))?;
        phases.run(|| {
            pool.run(2, &|_| {});
            Ok(())
        })?;
        kept(pool)
    }),
];

/// What sessions on the built-in model begin with.
const TEXT: &str = "One day, Tom saw a dog";

/// A fixture by its name.
pub fn named(name: &str) -> Option<&'static Fixture> {
    FIXTURES.iter().find(|fixture| fixture.name == name)
}

fn kept<T: Any>(made: T) -> Made {
    Ok(Box::new(made))
}

fn load(phases: &mut Phases, model: &str, storage: Storage) -> Result<LoadedModel> {
    phases.load(|| open(Path::new(model), &LoadOptions { storage, ..LoadOptions::default() }))
}

fn real_path() -> Result<std::path::PathBuf> {
    let path = locate(Some(REAL))?;
    Ok(path.ok_or_else(|| Error::usage(format!("{REAL} has no file"), format!("run `pellucid pull {REAL}`")))?)
}

fn first_token(phases: &mut Phases, loaded: LoadedModel) -> Made {
    captured(phases, loaded, PROMPT.to_vec(), Plan::capture(["logits"]))
}

fn captured(phases: &mut Phases, loaded: LoadedModel, tokens: Vec<u32>, plan: Plan) -> Made {
    let run = phases.run(|| Ok(loaded.model.run(&[tokens], &plan, &RunOptions::default()).map_err(Error::from)?))?;
    kept((loaded, run))
}

fn generated(phases: &mut Phases, loaded: LoadedModel, tokens: Vec<u32>) -> Made {
    let options = GenerateOptions { max_new: 16, ..GenerateOptions::default() };
    let made = phases.run(|| {
        let plan = Plan::default();
        Ok(loaded.model.generate(&[tokens], &plan, &options, &mut |_, _| Control::Go).map_err(Error::from)?)
    })?;
    kept((loaded, made))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_identifiers_are_unique() {
        for (i, one) in FIXTURES.iter().enumerate() {
            for other in &FIXTURES[..i] {
                assert!(one.name != other.name && one.identifier != other.identifier, "{}", one.name);
            }
            assert_ne!(one.name, super::super::NONE);
        }
    }
}
