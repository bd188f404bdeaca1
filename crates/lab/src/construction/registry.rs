//! The fixtures: objects that the engine and its tests construct. To add one, add a row to the
//! table.

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
use pellucid_models::tokenizer::{Sidecars, SpecialTokens, Tokenizer};
use pellucid_models::{Error, LoadOptions, LoadedModel, Storage, inspect, locate, program_of};
use std::any::Any;
use std::path::Path;

/// The published model; it must be pulled.
const REAL_MODEL: &str = "smollm2-135m";
/// Prompt for it, as token ids that every vocabulary has.
const PROMPT: [u32; 9] = [20, 57, 21, 58, 22, 59, 23, 60, 24];

type BuildResult = Result<Box<dyn Any>>;

/// A row of the table.
const fn fixture(
    name: &'static str,
    (scope, category, kind): (Scope, Category, Kind),
    model: Option<&'static str>,
    build: fn(&mut Phases) -> BuildResult,
) -> Fixture {
    Fixture { name, scope, category, kind, model, build }
}

const BUILTIN: Option<&str> = Some(builtin::NAME);

/// All fixtures, in the order of the report.
pub const FIXTURES: &[Fixture] = &[
    fixture("builtin_model", (Scope::Process, Category::Custom, Kind::Dynamic), BUILTIN, |phases| {
        boxed(load(phases, builtin::NAME, Storage::AsStored)?)
    }),
    fixture("opened_model", (Scope::Process, Category::Real, Kind::Dynamic), Some(REAL_MODEL), |phases| {
        let loaded = load(phases, REAL_MODEL, Storage::AsStored)?;
        first_token(phases, loaded)
    }),
    fixture("model_as_stored", (Scope::Suite, Category::Real, Kind::Dynamic), Some(REAL_MODEL), |phases| {
        boxed(load(phases, REAL_MODEL, Storage::AsStored)?)
    }),
    fixture("model_in_f32", (Scope::Suite, Category::Real, Kind::Dynamic), Some(REAL_MODEL), |phases| {
        boxed(load(phases, REAL_MODEL, Storage::As(DType::F32))?)
    }),
    fixture("model_in_bf16", (Scope::Suite, Category::Real, Kind::Dynamic), Some(REAL_MODEL), |phases| {
        boxed(load(phases, REAL_MODEL, Storage::As(DType::Bf16))?)
    }),
    fixture("decode_job", (Scope::Test, Category::Real, Kind::Dynamic), Some(REAL_MODEL), |phases| {
        let loaded = load(phases, REAL_MODEL, Storage::AsStored)?;
        generate(phases, loaded, PROMPT.to_vec())
    }),
    fixture("steer_job", (Scope::Test, Category::Real, Kind::Dynamic), Some(REAL_MODEL), |phases| {
        let loaded = load(phases, REAL_MODEL, Storage::AsStored)?;
        let plan = phases.prepare(|| {
            let architecture = loaded.model.program().architecture();
            let site = format!("layers.{}.resid_post", architecture.layers.len() / 2);
            let operand = Operand::Vector(vec![0.5; architecture.width]);
            Ok(Plan::capture(["logits"]).with(Tap::new(site, Action::Add { operand, scale: 1.0 })))
        })?;
        run_plan(phases, loaded, PROMPT.to_vec(), plan)
    }),
    fixture("gguf_header", (Scope::Test, Category::Config, Kind::Dynamic), Some(REAL_MODEL), |phases| {
        let path = phases.prepare(real_path)?;
        boxed(phases.load(|| Ok(GgufFile::open(&path)?))?)
    }),
    fixture("inspection", (Scope::Test, Category::Config, Kind::Dynamic), Some(REAL_MODEL), |phases| {
        let path = phases.prepare(real_path)?;
        boxed(phases.run(|| Ok(inspect(&path)?))?)
    }),
    fixture("configuration", (Scope::Test, Category::Config, Kind::Static), BUILTIN, |phases| {
        boxed(phases.load(|| Ok(Config::parse(builtin::CONFIG, Path::new(builtin::NAME))?))?)
    }),
    fixture("program_without_weights", (Scope::Suite, Category::Config, Kind::Dynamic), BUILTIN, |phases| {
        boxed(phases.load(|| Ok(program_of(None, None)?))?)
    }),
    fixture("capture_session", (Scope::Test, Category::Custom, Kind::Dynamic), BUILTIN, |phases| {
        let loaded = load(phases, builtin::NAME, Storage::AsStored)?;
        let (tokens, plan) = phases.prepare(|| Ok((loaded.encode(TEXT)?, Plan::capture(["layers.*.resid_post"]))))?;
        run_plan(phases, loaded, tokens, plan)
    }),
    fixture("generate_session", (Scope::Test, Category::Custom, Kind::Dynamic), BUILTIN, |phases| {
        let loaded = load(phases, builtin::NAME, Storage::AsStored)?;
        let tokens = phases.prepare(|| Ok(loaded.encode(TEXT)?))?;
        generate(phases, loaded, tokens)
    }),
    fixture("lens_session", (Scope::Test, Category::Custom, Kind::Dynamic), BUILTIN, |phases| {
        let loaded = load(phases, builtin::NAME, Storage::AsStored)?;
        let tokens = phases.prepare(|| Ok(loaded.encode(TEXT)?))?;
        let table = phases.run(|| Ok(lens::compute(&loaded, &tokens, &Plan::default())?))?;
        boxed((loaded, table))
    }),
    fixture("profile_session", (Scope::Test, Category::Custom, Kind::Dynamic), BUILTIN, |phases| {
        let loaded = load(phases, builtin::NAME, Storage::AsStored)?;
        let (tokens, model, profile) = phases.prepare(|| {
            let (model, profile) = loaded.model.profiled();
            Ok((loaded.encode(TEXT)?, model, profile))
        })?;
        let run = phases.run(|| {
            Ok(model.run(&[tokens], &Plan::capture(["logits"]), &RunOptions::default()).map_err(Error::from)?)
        })?;
        boxed((loaded, model, profile, run))
    }),
    fixture("tokenizer", (Scope::Suite, Category::Static, Kind::Static), BUILTIN, |phases| {
        let origin = Path::new(builtin::NAME);
        boxed(phases.load(|| Ok(Tokenizer::from_bytes(origin, builtin::TOKENIZER, &Sidecars::default())?))?)
    }),
    fixture("chat_template", (Scope::Test, Category::Static, Kind::Static), None, |phases| {
        let source = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}";
        let template = phases.load(|| Ok(ChatTemplate::new(source, Path::new("a template"))?))?;
        let messages = [Message::new("user", TEXT)];
        let text = phases.run(|| Ok(template.render(&messages, true, &SpecialTokens::default())?))?;
        boxed((template, text))
    }),
    fixture("plan_from_json", (Scope::Test, Category::Static, Kind::Static), None, |phases| {
        let text = r#"{"taps": [{"site": "layers.*.resid_post", "capture": true}]}"#;
        boxed(phases.prepare(|| {
            Plan::from_json(text).map_err(|error| Error::usage(error, "the plan of this fixture").into())
        })?)
    }),
    fixture("thread_pool", (Scope::Process, Category::Static, Kind::Static), None, |phases| {
        let pool = phases.prepare(|| Ok(Pool::new(2)))?;
        phases.run(|| {
            pool.run(2, &|_| {});
            Ok(())
        })?;
        boxed(pool)
    }),
];

/// Prompt for the built-in model.
const TEXT: &str = "One day, Tom saw a dog";

/// Returns a fixture by name.
pub fn find(name: &str) -> Option<&'static Fixture> {
    FIXTURES.iter().find(|fixture| fixture.name == name)
}

fn boxed<T: Any>(value: T) -> BuildResult {
    Ok(Box::new(value))
}

fn load(phases: &mut Phases, model: &str, storage: Storage) -> Result<LoadedModel> {
    phases.load(|| open(Path::new(model), &LoadOptions { storage, ..LoadOptions::default() }))
}

fn real_path() -> Result<std::path::PathBuf> {
    let path = locate(Some(REAL_MODEL))?;
    Ok(path.ok_or_else(|| {
        Error::usage(format!("{REAL_MODEL} has no file"), format!("run `pellucid pull {REAL_MODEL}`"))
    })?)
}

fn first_token(phases: &mut Phases, loaded: LoadedModel) -> BuildResult {
    run_plan(phases, loaded, PROMPT.to_vec(), Plan::capture(["logits"]))
}

fn run_plan(phases: &mut Phases, loaded: LoadedModel, tokens: Vec<u32>, plan: Plan) -> BuildResult {
    let run = phases.run(|| Ok(loaded.model.run(&[tokens], &plan, &RunOptions::default()).map_err(Error::from)?))?;
    boxed((loaded, run))
}

fn generate(phases: &mut Phases, loaded: LoadedModel, tokens: Vec<u32>) -> BuildResult {
    let options = GenerateOptions { max_new: 16, ..GenerateOptions::default() };
    let value = phases.run(|| {
        let plan = Plan::default();
        Ok(loaded.model.generate(&[tokens], &plan, &options, &mut |_, _| Control::Go).map_err(Error::from)?)
    })?;
    boxed((loaded, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique() {
        for (i, fixture) in FIXTURES.iter().enumerate() {
            for other in &FIXTURES[..i] {
                assert_ne!(fixture.name, other.name);
            }
            assert_ne!(fixture.name, super::super::NONE);
        }
    }
}
