//! Model types that are mapped to a native family: a few built-in ones, and those that the user
//! registers.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{OnceLock, PoisonError, RwLock};

use pellucid_engine::Remedy;
use serde::Deserialize;

use super::nearest;
use crate::error::{Error, Result};
use crate::files::{MAX_SETTINGS_BYTES, read_small};

/// Environment variable with the path of a TOML file of architectures, registered before the first
/// load or inspection.
pub const ARCHITECTURES_VARIABLE: &str = "PELLUCID_ARCHITECTURES";

/// Built-in mappings from a model type to a native family.
const BUILT_IN: &[(&str, &str)] = &[("agent_cpm", "qwen3"), ("step_robotics", "qwen3")];

/// Registered mappings. The family names are those of `FAMILIES`.
static REGISTERED: RwLock<BTreeMap<String, &'static str>> = RwLock::new(BTreeMap::new());

/// Maps a model type to a native family. Its models then load as that family without `--assume`,
/// with a warning, if their configuration and all their tensors fit.
///
/// ```
/// use pellucid_models::families;
/// families::register_architecture("acme_llm", "llama")?;
/// assert_eq!(families::family_of("acme_llm"), Some("llama"));
/// assert!(families::register_architecture("mistral", "llama").is_err());
/// # Ok::<(), pellucid_models::Error>(())
/// ```
///
/// # Errors
/// If there is no such family, if the type is itself native, or if it is already registered as
/// another family.
pub fn register_architecture(model_type: &str, family: &str) -> Result<()> {
    add(&mut REGISTERED.write().unwrap_or_else(PoisonError::into_inner), model_type, family)
}

fn add(registered: &mut BTreeMap<String, &'static str>, model_type: &str, family: &str) -> Result<()> {
    if model_type.is_empty() || model_type.chars().any(char::is_control) {
        return Err(Error::usage(
            format!("`{}` is not a model type", model_type.escape_debug()),
            "give the `model_type` of the model's config.json",
        ));
    }
    if native(model_type).is_some() {
        return Err(Error::usage(
            format!("`{model_type}` is itself native and cannot be registered as `{family}`"),
            "leave it out: models of this type are read by their own family; only other types can be registered",
        ));
    }
    let Some(known) = native(family) else {
        return Err(Error::usage(
            format!("there is no native family `{family}` for `{model_type}` to be registered as"),
            nearest(family),
        ));
    };
    match mapped(registered, model_type) {
        Some(other) if other != known => Err(Error::usage(
            format!("`{model_type}` is already registered as `{other}` and cannot be registered as `{known}`"),
            "register each type once per process",
        )),
        _ => {
            registered.insert(model_type.to_owned(), known);
            Ok(())
        }
    }
}

/// Registers every type of a TOML file:
///
/// ```toml
/// [architectures]
/// acme_llm = "llama"
/// ```
///
/// # Errors
/// If the file cannot be read or parsed, or if one of its types cannot be registered; then none is.
pub fn register_file(path: &Path) -> Result<()> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct File {
        architectures: BTreeMap<String, String>,
    }
    let text = String::from_utf8(read_small(path, MAX_SETTINGS_BYTES)?)
        .map_err(|_| Error::invalid(path, "the file is not UTF-8", "write it as UTF-8"))?;
    let file: File = toml::from_str(&text).map_err(|error| {
        Error::invalid(
            path,
            format!("not a list of architectures: {}", error.to_string().trim_end()),
            "write a table [architectures] with lines such as acme_llm = \"llama\"",
        )
    })?;
    // All or nothing: register into a copy first.
    let mut registered = REGISTERED.write().unwrap_or_else(PoisonError::into_inner);
    let mut all = registered.clone();
    for (model_type, family) in &file.architectures {
        add(&mut all, model_type, family).map_err(|error| {
            let remedy = error.remedy().cloned().unwrap_or_else(|| "correct the file".into());
            Error::invalid(path, error.to_string(), remedy)
        })?;
    }
    *registered = all;
    Ok(())
}

/// Returns the native family of a model type: its own, a built-in mapping or a registered one.
pub fn family_of(model_type: &str) -> Option<&'static str> {
    native(model_type).or_else(|| mapped_family(model_type))
}

/// Returns the native family that a model type is mapped to, if it is not itself native.
pub(crate) fn mapped_family(model_type: &str) -> Option<&'static str> {
    // Loading and inspecting report an unreadable file; here it only adds no mappings.
    let _ = register_environment();
    mapped(&REGISTERED.read().unwrap_or_else(PoisonError::into_inner), model_type)
}

/// Returns all mapped types, built-in and registered, with their families.
pub fn registered_architectures() -> Vec<(String, &'static str)> {
    let _ = register_environment();
    let registered = REGISTERED.read().unwrap_or_else(PoisonError::into_inner);
    let built_in = BUILT_IN.iter().map(|(model_type, family)| (model_type.to_string(), *family));
    let all: BTreeMap<String, &str> = built_in.chain(registered.iter().map(|(a, b)| (a.clone(), *b))).collect();
    all.into_iter().collect()
}

/// Registers the file of `PELLUCID_ARCHITECTURES`, once per process.
pub(crate) fn register_environment() -> Result<()> {
    static DONE: OnceLock<std::result::Result<(), (String, Remedy)>> = OnceLock::new();
    let result = DONE.get_or_init(|| {
        let Some(path) = std::env::var_os(ARCHITECTURES_VARIABLE).filter(|path| !path.is_empty()) else {
            return Ok(());
        };
        register_file(Path::new(&path))
            .map_err(|error| (error.to_string(), error.remedy().cloned().unwrap_or_else(|| "correct the path".into())))
    });
    result.clone().map_err(|(problem, remedy)| Error::usage(format!("{ARCHITECTURES_VARIABLE}: {problem}"), remedy))
}

fn mapped(registered: &BTreeMap<String, &'static str>, model_type: &str) -> Option<&'static str> {
    let built_in = || BUILT_IN.iter().find(|(name, _)| *name == model_type).and_then(|(_, family)| native(family));
    registered.get(model_type).copied().or_else(built_in)
}

fn native(name: &str) -> Option<&'static str> {
    super::native().find(|family| *family == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_registered_once_and_never_over_native_ones() {
        for (model_type, family) in [("agent_cpm", "qwen3"), ("step_robotics", "qwen3")] {
            assert_eq!(family_of(model_type), Some(family));
        }
        for own in ["qwen3", "glm4_moe_lite"] {
            assert_eq!((family_of(own), mapped_family(own)), (Some(own), None), "native");
        }
        assert_eq!(family_of("register_test"), None);
        register_architecture("register_test", "gemma2").expect("registered");
        register_architecture("register_test", "gemma2").expect("the same mapping again");
        assert_eq!(family_of("register_test"), Some("gemma2"));
        let fault = |model_type: &str, family: &str| {
            register_architecture(model_type, family).expect_err("refused").to_string()
        };
        assert!(fault("register_test", "llama").contains("already registered as `gemma2`"));
        assert!(fault("agent_cpm", "llama").contains("already registered as `qwen3`"));
        assert!(fault("llama", "gemma2").contains("itself native"));
        assert!(fault("register_other", "lama").contains("no native family `lama`"));
        assert!(fault("", "llama").contains("not a model type"));
    }

    #[test]
    fn a_file_is_registered_completely_or_not_at_all() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = |text: &str| {
            let path = dir.path().join("architectures.toml");
            std::fs::write(&path, text).expect("written");
            register_file(&path)
        };
        file("[architectures]\nfile_one = \"llama\"\nfile_two = \"gpt2\"\n").expect("registered");
        assert_eq!((family_of("file_one"), family_of("file_two")), (Some("llama"), Some("gpt2")));
        let fault = file("[architectures]\nfile_a = \"llama\"\nfile_b = \"nothing\"\n").expect_err("refused");
        assert!(fault.to_string().contains("architectures.toml: there is no native family `nothing`"), "{fault}");
        assert_eq!(family_of("file_a"), None);
        assert!(file("architectures = 3").expect_err("refused").to_string().contains("not a list of architectures"));
        assert!(register_file(&dir.path().join("none.toml")).is_err());
    }
}
