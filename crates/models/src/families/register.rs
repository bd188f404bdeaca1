//! Model types that are a native family under another name: some that are built in, and those that the user registers.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{OnceLock, PoisonError, RwLock};

use serde::Deserialize;

use super::nearest;
use crate::error::{Error, Result};

/// Names the TOML file of architectures that is registered before anything is loaded or inspected.
pub const ARCHITECTURES_VARIABLE: &str = "PELLUCID_ARCHITECTURES";

/// Types that are known to be a native family under another name.
const BUILT_IN: &[(&str, &str)] = &[("agent_cpm", "qwen3"), ("step_robotics", "qwen3")];

/// What was registered. The names of families are those of the table of families, which live as long as the program.
static REGISTERED: RwLock<BTreeMap<String, &'static str>> = RwLock::new(BTreeMap::new());

/// Says that models of a type are of a native family. From then on they load as that family without `--assume`, if their configuration and all their
/// tensors fit it, and carry a warning that says so.
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
/// If there is no such family, if the type is native itself, or if it is registered as another family already.
pub fn register_architecture(model_type: &str, family: &str) -> Result<()> {
    add(&mut REGISTERED.write().unwrap_or_else(PoisonError::into_inner), model_type, family)
}

fn add(registered: &mut BTreeMap<String, &'static str>, model_type: &str, family: &str) -> Result<()> {
    if model_type.is_empty() || model_type.chars().any(char::is_control) {
        return Err(Error::usage(
            format!("`{}` is no model type", model_type.escape_debug()),
            "give the `model_type` of the model's config.json",
        ));
    }
    if native(model_type).is_some() {
        return Err(Error::usage(
            format!("`{model_type}` is native itself and cannot stand for `{family}`"),
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
            format!("`{model_type}` is registered as `{other}` already, and cannot be `{known}` too"),
            "register each type once in a process",
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
/// If the file cannot be read or says something else, or if one of its types cannot be registered; then none is.
pub fn register_file(path: &Path) -> Result<()> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct File {
        architectures: BTreeMap<String, String>,
    }
    let text = std::fs::read_to_string(path).map_err(Error::io(path))?;
    let file: File = toml::from_str(&text).map_err(|error| {
        Error::invalid(
            path,
            format!("not a list of architectures: {}", error.to_string().trim_end()),
            "write a table [architectures] with lines such as acme_llm = \"llama\"",
        )
    })?;
    // A file counts as a whole or not at all.
    let mut registered = REGISTERED.write().unwrap_or_else(PoisonError::into_inner);
    let mut all = registered.clone();
    for (model_type, family) in &file.architectures {
        add(&mut all, model_type, family).map_err(|error| {
            let remedy = error.remedy().unwrap_or_default().to_owned();
            Error::invalid(path, error.to_string(), remedy)
        })?;
    }
    *registered = all;
    Ok(())
}

/// The native family that models of a type are read as: the type's own, a built-in one or a registered one.
pub fn family_of(model_type: &str) -> Option<&'static str> {
    native(model_type).or_else(|| mapped_family(model_type))
}

/// The native family that a type which is not native itself is mapped to.
pub(crate) fn mapped_family(model_type: &str) -> Option<&'static str> {
    // A file that cannot be read is an error where models are loaded and inspected; here it only means that nothing more is known.
    let _ = register_environment();
    mapped(&REGISTERED.read().unwrap_or_else(PoisonError::into_inner), model_type)
}

/// All types that stand for a family, built in or registered, with it.
pub fn registered_architectures() -> Vec<(String, &'static str)> {
    let _ = register_environment();
    let registered = REGISTERED.read().unwrap_or_else(PoisonError::into_inner);
    let built_in = BUILT_IN.iter().map(|(model_type, family)| (model_type.to_string(), *family));
    let all: BTreeMap<String, &str> = built_in.chain(registered.iter().map(|(a, b)| (a.clone(), *b))).collect();
    all.into_iter().collect()
}

/// Registers the file that the environment names, once in a process.
pub(crate) fn register_environment() -> Result<()> {
    static DONE: OnceLock<std::result::Result<(), (String, String)>> = OnceLock::new();
    let outcome = DONE.get_or_init(|| {
        let Some(path) = std::env::var_os(ARCHITECTURES_VARIABLE).filter(|path| !path.is_empty()) else {
            return Ok(());
        };
        register_file(Path::new(&path))
            .map_err(|error| (error.to_string(), error.remedy().unwrap_or("correct the path").to_owned()))
    });
    outcome.clone().map_err(|(problem, remedy)| Error::usage(format!("{ARCHITECTURES_VARIABLE}: {problem}"), remedy))
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
            assert_eq!((family_of(own), mapped_family(own)), (Some(own), None), "native by itself");
        }
        assert_eq!(family_of("register_test"), None);
        register_architecture("register_test", "gemma2").expect("registered");
        register_architecture("register_test", "gemma2").expect("twice is once");
        assert_eq!(family_of("register_test"), Some("gemma2"));
        let fault = |model_type: &str, family: &str| {
            register_architecture(model_type, family).expect_err("refused").to_string()
        };
        assert!(fault("register_test", "llama").contains("registered as `gemma2` already"));
        assert!(fault("agent_cpm", "llama").contains("registered as `qwen3` already"));
        assert!(fault("llama", "gemma2").contains("native itself"));
        assert!(fault("register_other", "lama").contains("no native family `lama`"));
        assert!(fault("", "llama").contains("no model type"));
    }

    #[test]
    fn a_file_counts_as_a_whole_or_not_at_all() {
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
