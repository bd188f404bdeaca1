//! Selects the family that reads a model.
//!
//! Every load, explanation (`inspect --explain`) and load error goes through [`select_family`]. It
//! returns the family, the strategy that led to it, warnings, and the outcome of each strategy. The
//! strategies, in their order:
//!
//! - a directory, by its `model_type`: its own family if native, else the family that the type is
//!   mapped to, else the one that the caller names; the last two only if the tensors fit (`fit`);
//! - an adapter is merged into its base model, whose family is selected in the same way;
//! - a GGUF file is read like the directory that it was converted from.
//!
//! If no strategy applies, the error lists the reason for each.

mod fit;

pub use fit::{Alternative, Suggestion};
pub(crate) use fit::{Fit, describe, find_fit, find_fit_as};

use crate::adapter::{self, Adapter};
use crate::attempt::{Attempt, AttemptOutcome, Strategy};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::families::{self, Family};
use crate::load::{self, LoadOptions};
use crate::name_variants::NameVariant;
use crate::source::ModelSource;
use pellucid_engine::Remedy;
use std::path::{Path, PathBuf};

/// A model whose family is selected, before its weights are read.
pub struct SelectedFamily {
    /// Source of its configuration and weights; for an adapter, its base model.
    pub source: ModelSource,
    /// The adapter's directory, if the path is an adapter.
    pub adapter: Option<PathBuf>,
    /// Its configuration.
    pub config: Config,
    /// The family: architecture and names.
    pub family: Family,
    /// The strategy that selected the family.
    pub strategy: Strategy,
    /// Warnings, such as that the model runs as a family other than its own type.
    pub warnings: Vec<String>,
    /// The strategies in order, each with its outcome. Empty for the built-in model.
    pub attempts: Vec<Attempt>,
    route: Route,
}

/// Selects the family of a directory, GGUF file, adapter or (if `path` is absent) the built-in
/// model, from its configuration. `assume` names the family for a type that is neither native nor
/// mapped. Tensor headers are read only for a type that is not native, to check that all tensors
/// fit the family.
///
/// # Errors
/// [`Error::Load`]: the error, and the outcome of each strategy.
pub fn select_family(path: Option<&Path>, assume: Option<&str>) -> Result<SelectedFamily> {
    let mut route = Route::of_path(path);
    match select(assume, &mut route) {
        Ok((source, config, family, warnings)) => Ok(SelectedFamily {
            adapter: path.filter(|path| adapter::is_adapter(path)).map(Path::to_path_buf),
            strategy: route.strategy.unwrap_or(Strategy::Native),
            attempts: route.attempts(Ok(format!("`{}`", family.architecture.family))),
            source,
            config,
            family,
            warnings,
            route,
        }),
        Err(error) => Err(route.failure(error)),
    }
}

/// Opens the path of `route` and reads its configuration. Updates `route`, even if no family is
/// found.
fn select(assume: Option<&str>, route: &mut Route) -> Result<(ModelSource, Config, Family, Vec<String>)> {
    let source = ModelSource::open(route.path.as_deref())?;
    let config = source.config()?;
    route.read_type(config.model_type().ok(), assume);
    let (family, warnings) = read_family(&config, assume, &source)?;
    Ok((source, config, family, warnings))
}

/// Builds the family of a configuration, by its type or by the caller's assumption; also returns
/// warnings.
fn read_family(config: &Config, assume: Option<&str>, source: &ModelSource) -> Result<(Family, Vec<String>)> {
    let own = config.model_type().ok();
    check_assumption(own, assume)?;
    families::register_environment()?;
    match family_of_type(own, assume) {
        Some((Strategy::Native, _)) => Ok((families::read(config)?, Vec::new())),
        Some((strategy, name)) => {
            let (family, unread) = fit::read_as(config, name, &source.tensors(config)?)?;
            let because = match strategy {
                Strategy::Mapped => "because the type is registered as that",
                _ => "because `assume` says so",
            };
            Ok((family, vec![fit::warning(own, name, because, &unread)]))
        }
        None => {
            families::check(config)?;
            // Without weights no family can be compared.
            let Ok(tensors) = source.tensors(config) else { return Err(families::unknown_type(config)) };
            Err(fit::refusal(config, &find_fit(config, &tensors)))
        }
    }
}

/// Builds the family of a configuration by its own type. Does not check the weights, so that a
/// model with damaged or missing weights can be described.
pub(crate) fn read_by_type(config: &Config) -> Result<Family> {
    match family_of_type(config.model_type().ok(), None) {
        Some((Strategy::Native, _)) => families::read(config),
        Some((_, mapped)) => families::read_as(config, mapped).map(|(family, _)| family),
        None => Err(families::unknown_type(config)),
    }
}

/// Returns the family of a model type and the strategy: its own, the one it is mapped to, or the
/// one that the caller assumes. Does not check whether the model fits.
pub(crate) fn family_of_type<'a>(own: Option<&'a str>, assume: Option<&'a str>) -> Option<(Strategy, &'a str)> {
    if let Some(own) = own.filter(|own| families::is_native(own)) {
        return Some((Strategy::Native, own));
    }
    let mapped = own.and_then(families::mapped_family).map(|family| (Strategy::Mapped, family));
    mapped.or_else(|| assume.map(|family| (Strategy::Assumed, family)))
}

/// Rejects an assumed family that does not exist, or that differs from the family of the model's
/// own type.
pub(crate) fn check_assumption(own: Option<&str>, assume: Option<&str>) -> Result<()> {
    let Some(assumed) = assume else { return Ok(()) };
    if !families::is_native(assumed) {
        return Err(Error::usage(format!("there is no native type `{assumed}` to assume"), families::nearest(assumed)));
    }
    match family_of_type(own, None) {
        // Reading a native model as another family could only make it wrong.
        Some((Strategy::Native, family)) if family != assumed => Err(Error::usage(
            format!("this model's own type, `{family}`, is native, so it is not assumed to be `{assumed}`"),
            Remedy::DropAssume("; it is for models of a type that is not native"),
        )),
        Some((_, family)) if family != assumed => Err(Error::usage(
            format!("this model's type is mapped to `{family}`, so it is not assumed to be `{assumed}`"),
            Remedy::DropAssume(", or map the type to another family"),
        )),
        _ => Ok(()),
    }
}

/// Returns the outcome of each strategy for a path, from configurations and headers alone.
pub fn strategies(path: &Path, options: &LoadOptions) -> Vec<Attempt> {
    let selected = match select_family(Some(path), options.assume.as_deref()) {
        Ok(selected) => selected,
        Err(Error::Load { attempts, .. }) => return attempts,
        Err(_) => return Vec::new(),
    };
    let found = selected.find_weights(&options.adapters);
    selected.route.attempts(match (found, &selected.adapter) {
        (Ok(_), Some(_)) => Ok(format!("it fits its base model, {}", selected.source.origin().display())),
        (Ok(name_variants), None) => {
            let whole = format!("`{}`, and every weight is there", selected.family.architecture.family);
            Ok(name_variants.iter().fold(whole, |text, variant| format!("{text}; {variant}")))
        }
        (Err(error), _) => Err(error.to_string()),
    })
}

impl SelectedFamily {
    /// Wraps an error of a load that failed after the family was selected, with the outcome of each
    /// strategy.
    pub(crate) fn failure(&self, error: Error) -> Error {
        self.route.failure(error)
    }

    /// The adapters to merge: the path itself if it is one, then those that the caller names.
    pub fn adapters(&self, more: &[PathBuf]) -> Vec<PathBuf> {
        self.adapter.iter().chain(more).cloned().collect()
    }

    /// Checks that all weights are stored as the family expects and that every adapter tensor has a
    /// weight, reading headers only. Returns the name variants that were found.
    fn find_weights(&self, adapters: &[PathBuf]) -> Result<Vec<NameVariant>> {
        let adapters = Adapter::open_all(&self.adapters(adapters))?;
        let tensors = self.source.tensors(&self.config)?;
        Ok(load::find_weights(&self.family, &tensors, &adapters, self.source.origin())?.name_variants)
    }

    /// Checks that every adapter tensor has a weight in the base model, without opening that
    /// model's weights.
    pub(crate) fn check_adapter(&self) -> Result<()> {
        let adapters = Adapter::open_all(&self.adapters(&[]))?;
        load::match_adapters(&self.family, &adapters).map(drop)
    }
}

/// Facts about a path that decide which strategy applies, and explain why the others do not.
struct Route {
    path: Option<PathBuf>,
    /// The strategy that applies to the path, whether it succeeds or not.
    strategy: Option<Strategy>,
    /// `model_type` of the configuration; the outer `None` until the configuration is read.
    own_type: Option<Option<String>>,
    /// Whether the caller names a family.
    assumes: bool,
}

impl Route {
    fn of_path(path: Option<&Path>) -> Route {
        let strategy = match path {
            Some(path) if adapter::is_adapter(path) => Some(Strategy::Adapter),
            Some(path) if path.is_file() => Some(Strategy::Gguf),
            Some(path) if !path.join("config.json").is_file() => None,
            _ => Some(Strategy::Native),
        };
        Route { path: path.map(Path::to_path_buf), strategy, own_type: None, assumes: false }
    }

    /// Sets the strategy of a directory from its model type.
    fn read_type(&mut self, own: Option<&str>, assume: Option<&str>) {
        (self.own_type, self.assumes) = (Some(own.map(str::to_owned)), assume.is_some());
        if self.strategy == Some(Strategy::Native) {
            self.strategy = family_of_type(own, assume).map(|(strategy, _)| strategy);
        }
    }

    /// Whether a strategy applies to the path. For a mapped type, assuming the same family has the
    /// same result, so both strategies apply.
    fn applies(&self, strategy: Strategy) -> bool {
        let assumes_mapped = self.strategy == Some(Strategy::Mapped) && self.assumes;
        self.strategy == Some(strategy) || (strategy == Strategy::Assumed && assumes_mapped)
    }

    /// Returns each strategy with its outcome. `result` is that of the strategy that applies: a
    /// reason, or an error.
    fn attempts(&self, result: std::result::Result<String, String>) -> Vec<Attempt> {
        let Some(path) = &self.path else { return Vec::new() };
        let mut taken = false;
        let attempt = |strategy: Strategy| {
            let (outcome, reason) = match &result {
                _ if taken => (AttemptOutcome::NotNeeded, "an earlier strategy loads the model".to_owned()),
                _ if !self.applies(strategy) => (AttemptOutcome::Passed, self.why_passed(strategy, path)),
                Ok(reason) => (AttemptOutcome::Taken, reason.clone()),
                Err(error) => (AttemptOutcome::Failed, error.clone()),
            };
            taken |= outcome == AttemptOutcome::Taken;
            Attempt { strategy, outcome, reason }
        };
        Strategy::ALL.into_iter().map(attempt).collect()
    }

    /// Adds the attempts to an error. The built-in model has none.
    fn failure(&self, error: Error) -> Error {
        match self.path {
            Some(_) => Error::Load { attempts: self.attempts(Err(error.to_string())), error: Box::new(error) },
            None => error,
        }
    }

    /// Why a strategy does not apply to the path.
    fn why_passed(&self, strategy: Strategy, path: &Path) -> String {
        match strategy {
            Strategy::Adapter => format!("there is no {} without a config.json", adapter::CONFIG),
            Strategy::Gguf if path.is_dir() => match gguf_file_in(path) {
                Some(file) => format!("this is a directory; {} in it can be given itself", file.display()),
                None => "this is a directory".to_owned(),
            },
            Strategy::Gguf => "there is no such file".to_owned(),
            Strategy::Native | Strategy::Mapped | Strategy::Assumed => self.why_not_by_family(strategy, path),
        }
    }

    fn why_not_by_family(&self, strategy: Strategy, path: &Path) -> String {
        let reason = match (strategy, &self.own_type) {
            _ if !path.exists() => "there is nothing at this path",
            _ if !path.is_dir() => "this is a file, not a directory",
            _ if !path.join("config.json").is_file() => "there is no config.json",
            (_, None) => "the configuration cannot be read",
            (Strategy::Native, Some(Some(own))) => return format!("`{}` is not a native type", own.escape_debug()),
            (Strategy::Native, Some(None)) => "config.json does not say its type",
            _ if self.strategy == Some(Strategy::Native) => "the type is native",
            (Strategy::Mapped, _) => "the type is mapped to no family",
            _ => "no family was named (`assume`)",
        };
        reason.to_owned()
    }
}

fn gguf_file_in(dir: &Path) -> Option<PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).find(|path| path.extension().is_some_and(|end| end == "gguf"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LoadedModel, inspect};
    use serde_json::{Value, json};
    use std::fs;

    /// Writes a copy of the built-in model with another type, and an adapter for it.
    fn adapter_of(model_type: &str) -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("a directory");
        let (base, adapter) = (root.path().join("base"), root.path().join("adapter"));
        [&base, &adapter].iter().for_each(|dir| fs::create_dir(dir).expect("created"));
        for file in ["model.safetensors", "tokenizer.json"] {
            fs::copy(Path::new(env!("CARGO_MANIFEST_DIR")).join("builtin").join(file), base.join(file))
                .expect("copied");
        }
        let mut config: Value = serde_json::from_slice(crate::builtin::CONFIG).expect("JSON");
        config["model_type"] = json!(model_type);
        fs::write(base.join("config.json"), config.to_string()).expect("written");
        let settings = json!({"peft_type": "LORA", "r": 1, "lora_alpha": 1, "base_model_name_or_path": "base",
                              "target_modules": ["q_proj"]});
        fs::write(adapter.join(adapter::CONFIG), settings.to_string()).expect("written");
        let source = ModelSource::Builtin;
        let tensors = source.tensors(&source.config().expect("a configuration")).expect("tensors");
        let shape = tensors.get("model.layers.0.self_attn.q_proj.weight").expect("a projection").shape.to_vec();
        let (a, b) = (vec![0; 4 * shape[1]], vec![0; 4 * shape[0]]);
        let factor =
            |data, shape| safetensors::tensor::TensorView::new(safetensors::Dtype::F32, shape, data).expect("a tensor");
        let module = "base_model.model.model.layers.0.self_attn.q_proj";
        let factors = [
            (format!("{module}.lora_A.weight"), factor(&a, vec![1, shape[1]])),
            (format!("{module}.lora_B.weight"), factor(&b, vec![shape[0], 1])),
        ];
        let bytes = safetensors::serialize(factors, None).expect("a file");
        fs::write(adapter.join(adapter::WEIGHTS[0]), bytes).expect("written");
        root
    }

    #[test]
    fn loading_explaining_and_inspecting_an_adapter_of_a_mapped_type_agree() {
        families::register_architecture("select_family_test", "llama").expect("registered");
        let root = adapter_of("select_family_test");
        let path = root.path().join("adapter");
        let options = LoadOptions::default();
        let loaded = LoadedModel::open(&path, &options, &mut |_| {}).expect("a model");
        assert_eq!((loaded.name.as_str(), loaded.strategy), ("adapter", Strategy::Adapter));
        assert!(loaded.warnings[0].contains("`select_family_test`"), "{:?}", loaded.warnings);
        let attempt = &strategies(&path, &options)[3];
        assert_eq!((attempt.outcome, attempt.strategy), (AttemptOutcome::Taken, Strategy::Adapter), "{attempt}");
        assert!(attempt.reason.starts_with("it fits its base model, "), "{attempt}");
        assert!(inspect(&path).expect("a report").runs());

        // Loading, which reads the base model's weights, and explaining give the same error.
        fs::remove_file(root.path().join("base/model.safetensors")).expect("removed");
        let error = LoadedModel::open(&path, &options, &mut |_| {}).map(|_| ()).expect_err("no weights");
        let Error::Load { error, attempts } = error else { panic!("{error} lists no attempts") };
        assert_eq!(attempts, strategies(&path, &options));
        assert_eq!((attempts[3].outcome, &attempts[3].reason), (AttemptOutcome::Failed, &error.to_string()));
    }

    #[test]
    fn a_mapped_type_is_not_assumed_to_be_another_family() {
        families::register_architecture("select_family_other", "llama").expect("registered");
        let root = adapter_of("select_family_other");
        let base = root.path().join("base");
        let error = select_family(Some(&base), Some("qwen3")).map(|_| ()).expect_err("two families");
        let report = crate::inspect_as(&base, Some("qwen3")).expect("a report");
        assert!(!report.runs());
        assert_eq!(report.problems[0].what, error.cause().to_string());
        assert!(select_family(Some(&base), Some("llama")).is_ok());
    }
}
