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

use fit::Fit;
pub use fit::{Alternative, Suggestion};

use crate::adapter;
use crate::attempt::{Attempt, AttemptOutcome, Strategy};
use crate::chat::ChatTemplate;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::families::{self, Family};
use crate::name_variants::NameVariant;
use crate::source::{ModelSource, PathKind, UnknownType};
use crate::tensors::Tensors;
use crate::tokenizer::Tokenizer;
use pellucid_engine::Remedy;
use std::path::{Path, PathBuf};
use std::sync::Arc;

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
    /// The tensors, if selecting the family has opened them.
    opened: Option<Arc<Tensors>>,
    route: Route,
}

/// The parts of a model that were read before its family was selected or refused.
#[derive(Default)]
pub(crate) struct PartialModel {
    /// Source of its configuration and weights; for an adapter, its base model.
    pub source: Option<ModelSource>,
    /// Its configuration.
    pub config: Option<Config>,
    /// Its tensors, which are opened for a type that is not native.
    pub tensors: Option<Arc<Tensors>>,
    /// A native family that fits a model of a non-native type.
    pub suggestion: Option<Suggestion>,
    /// The native family with the fewest misfits, if none fits.
    pub nearest: Option<&'static str>,
}

/// Selects the family of a directory, GGUF file, adapter or (if `path` is absent) the built-in
/// model, from its configuration. `assume` names the family for a type that is neither native nor
/// mapped. Tensor headers are read only for a type that is not native, to check that all tensors
/// fit the family.
///
/// # Errors
/// [`Error::Load`]: the error, and the outcome of each strategy.
pub fn select_family(path: Option<&Path>, assume: Option<&str>) -> Result<SelectedFamily> {
    select_and_keep(path, assume, &mut PartialModel::default())
}

/// Like [`select_family`], keeping in `partial` what was read, so that a model whose family is
/// refused can still be described.
pub(crate) fn select_and_keep(
    path: Option<&Path>,
    assume: Option<&str>,
    partial: &mut PartialModel,
) -> Result<SelectedFamily> {
    let kind = path.map(PathKind::of);
    let mut route = Route::new(path, kind.as_ref());
    let is_adapter = kind == Some(PathKind::Adapter);
    match select(path.zip(kind), assume, &mut route, partial) {
        Ok((source, config, family, warnings)) => Ok(SelectedFamily {
            adapter: path.filter(|_| is_adapter).map(Path::to_path_buf),
            strategy: route.strategy.unwrap_or(Strategy::Native),
            attempts: route.attempts(Ok(format!("`{}`", family.architecture.family))),
            opened: partial.tensors.clone(),
            source,
            config,
            family,
            warnings,
            route,
        }),
        Err(error) => Err(route.failure(error)),
    }
}

/// Opens a path (`None` for the built-in model), reads its configuration and selects the family.
/// Updates `route` and `partial`, even if no family is found.
fn select(
    path: Option<(&Path, PathKind)>,
    assume: Option<&str>,
    route: &mut Route,
    partial: &mut PartialModel,
) -> Result<(ModelSource, Config, Family, Vec<String>)> {
    let source = path.map_or(Ok(ModelSource::Builtin), |(path, kind)| ModelSource::open_kind(path, kind))?;
    partial.source = Some(source.clone());
    let config = source.config()?;
    partial.config = Some(config.clone());
    families::register_environment()?;
    route.read_type(config.model_type().ok(), assume);
    let (family, warnings) = read_family(&config, assume, &source, partial)?;
    Ok((source, config, family, warnings))
}

/// Builds the family of a configuration, by its type or by the caller's assumption; also returns
/// warnings.
fn read_family(
    config: &Config,
    assume: Option<&str>,
    source: &ModelSource,
    partial: &mut PartialModel,
) -> Result<(Family, Vec<String>)> {
    let own = config.model_type().ok();
    check_assumption(own, assume)?;
    match family_of_type(own, assume) {
        Some((Strategy::Native, _)) => Ok((families::read(config)?, Vec::new())),
        Some((strategy, name)) => {
            let tensors = partial.tensors.insert(Arc::new(source.tensors(config)?));
            let (family, unread) = fit::read_as(config, name, tensors)?;
            let because = match strategy {
                Strategy::Mapped => "because the type is registered as that",
                _ => "because `assume` says so",
            };
            let warning = fit::warning(own, name, because, &unread);
            if strategy == Strategy::Assumed {
                partial.suggestion = Some(Suggestion::only(name, unread));
            }
            Ok((family, vec![warning]))
        }
        None => Err(refuse_type(config, UnknownType::read(source, config), Some((source, partial)))),
    }
}

/// Builds the family of a configuration by its own type, without opening the weights: a model with
/// damaged or missing weights has a family, too. `unknown` describes a model of another type.
///
/// # Errors
/// As [`select_family`], without the comparison of native families with the tensors.
pub(crate) fn read_by_type(config: &Config, unknown: impl FnOnce() -> Result<UnknownType>) -> Result<Family> {
    match family_of_type(config.model_type().ok(), None) {
        Some((Strategy::Native, _)) => families::read(config),
        Some((_, mapped)) => families::read_as(config, mapped).map(|(family, _)| family),
        None => Err(refuse_type(config, unknown(), None)),
    }
}

/// The error for a model whose type is not native. With `source`, the native families are compared
/// with its tensors, if it is a language model.
fn refuse_type(
    config: &Config,
    unknown: Result<UnknownType>,
    source: Option<(&ModelSource, &mut PartialModel)>,
) -> Error {
    if let Err(error) = families::check(config) {
        return error;
    }
    let unknown = match unknown {
        Ok(unknown) => unknown,
        Err(error) => return error,
    };
    let opened = source.filter(|_| unknown.is_text()).map(|(source, partial)| (source.tensors(config), partial));
    // Without weights no family can be compared.
    let Some((Ok(tensors), partial)) = opened else { return fit::refusal(config, &unknown, None) };
    let fit = fit::find_fit(config, partial.tensors.insert(Arc::new(tensors)));
    let error = fit::refusal(config, &unknown, Some(&fit));
    match fit {
        Fit::Fits(suggestion) => partial.suggestion = Some(suggestion),
        Fit::Nothing { nearest, .. } => partial.nearest = Some(nearest),
    }
    error
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

    /// Opens the tensors, if selecting the family has not done so.
    pub(crate) fn tensors(&self) -> Result<Arc<Tensors>> {
        self.opened.clone().map_or_else(|| self.source.tensors(&self.config).map(Arc::new), Ok)
    }

    /// Loads the tokenizer and the chat template, if there are any. The tokenizer must fit the
    /// model's vocabulary.
    pub(crate) fn read_text_parts(&self) -> Result<(Option<Tokenizer>, Option<ChatTemplate>)> {
        let tokenizer = self.source.tokenizer()?;
        if let Some(tokenizer) = &tokenizer {
            tokenizer.check_fits(self.family.architecture.vocab)?;
        }
        Ok((tokenizer, self.source.chat_template()?))
    }

    /// The outcome of each strategy after the weights were looked for: `found` are the name
    /// variants, or the error.
    pub(crate) fn attempts_after(&self, found: std::result::Result<&[NameVariant], String>) -> Vec<Attempt> {
        self.route.attempts(match (found, &self.adapter) {
            (Ok(_), Some(_)) => Ok(format!("it fits its base model, {}", self.source.origin().display())),
            (Ok(name_variants), None) => {
                let whole = format!("`{}`, and every weight is there", self.family.architecture.family);
                Ok(name_variants.iter().fold(whole, |text, variant| format!("{text}; {variant}")))
            }
            (Err(error), _) => Err(error),
        })
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
    fn new(path: Option<&Path>, kind: Option<&PathKind>) -> Route {
        let strategy = match kind {
            Some(PathKind::Adapter) => Some(Strategy::Adapter),
            Some(PathKind::Gguf(_)) => Some(Strategy::Gguf),
            Some(PathKind::NoModel) => None,
            Some(PathKind::Directory) | None => Some(Strategy::Native),
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
        let reason = match strategy {
            Strategy::Adapter if path.join(adapter::CONFIG).is_file() => "the directory has a model's weights",
            Strategy::Adapter => return format!("there is no {}", adapter::CONFIG),
            Strategy::Gguf if path.join("config.json").is_file() => "the directory has a config.json",
            Strategy::Gguf if path.is_dir() => "the directory does not contain exactly one GGUF file",
            Strategy::Gguf if path.exists() => "this is not a GGUF file",
            Strategy::Gguf => "there is no such file",
            Strategy::Native | Strategy::Mapped | Strategy::Assumed => return self.why_not_by_family(strategy, path),
        };
        reason.to_owned()
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LoadOptions, LoadedModel, inspect, strategies};
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
