//! Reads session files and settings, and merges them.

use super::SessionConfig;
use super::lines::line_of;
use pellucid_models::{Error, Result};
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};

const KEYS: &str = "docs/sessions.md lists the keys of a session";

/// A source of settings. Later sources override earlier ones.
#[derive(Clone, Debug, PartialEq)]
pub enum ConfigSource {
    /// A TOML (`.toml`) or YAML (`.yaml`, `.yml`) file. Its relative paths of inputs are relative
    /// to its directory.
    File(PathBuf),
    /// `key=value` with a dotted key and a TOML value; a value that is no TOML is a text.
    Set(String),
    /// Settings as JSON, such as the arguments of a call.
    Json(Value),
}

/// A merged configuration that knows where its keys were set.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LoadedConfig {
    /// The configuration.
    pub config: SessionConfig,
    texts: Vec<SourceText>,
}

#[derive(Clone, Debug, PartialEq)]
struct SourceText {
    name: String,
    text: String,
    kind: TextKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TextKind {
    Toml,
    Yaml,
    /// One `key=value`, whose line is not worth a mention.
    Setting,
}

impl LoadedConfig {
    /// Returns where a key is set, such as `session.toml, line 4`; the name of the first source if
    /// none sets it.
    pub fn place(&self, path: &[&str]) -> String {
        let lines = self.texts.iter().rev().filter_map(|source| {
            let line = line_of(&source.text, path, source.kind != TextKind::Yaml)?;
            let is_setting = source.kind == TextKind::Setting;
            Some(if is_setting { source.name.clone() } else { format!("{}, line {line}", source.name) })
        });
        let first = || self.texts.first().map(|source| source.name.clone());
        lines.into_iter().next().or_else(first).unwrap_or_else(|| format!("`{}`", path.join(".")))
    }

    /// Returns an error about the value of a key.
    pub fn error(&self, path: &[&str], problem: impl std::fmt::Display, remedy: &str) -> Error {
        Error::usage(format!("{}: {problem}", self.place(path)), remedy.to_string())
    }
}

/// Reads and merges sources: tables are merged key by key, lists and scalars are replaced.
///
/// ```
/// use pellucid_sessions::config::{ConfigSource, read_config};
/// let loaded = read_config(&[
///     ConfigSource::Json(serde_json::json!({"ops": "logit_diffs_base", "dataset": {"limit": 4}})),
///     ConfigSource::Set("dataset.limit=2".into()),
/// ]).unwrap();
/// assert_eq!(loaded.config.dataset.limit, Some(2));
/// ```
pub fn read_config(sources: &[ConfigSource]) -> Result<LoadedConfig> {
    let mut merged = Value::Object(Map::new());
    let mut texts = Vec::new();
    let mut name = None;
    for source in sources {
        let value = match source {
            ConfigSource::File(path) => {
                let (text, value) = read_file(path)?;
                name = path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
                texts.push(text);
                value
            }
            ConfigSource::Set(setting) => {
                let name = format!("`{setting}`");
                texts.push(SourceText { name, text: setting.clone(), kind: TextKind::Setting });
                parse_setting(setting)?
            }
            ConfigSource::Json(value) => {
                typed::<serde_json::Error>("the settings", serde_json::from_value(value.clone()), |_| None)?;
                value.clone()
            }
        };
        merge(&mut merged, value);
    }
    let mut config: SessionConfig =
        serde_json::from_value(merged).map_err(|error| Error::usage(format!("the session: {error}"), KEYS))?;
    config.name = config.name.or(name);
    Ok(LoadedConfig { config, texts })
}

fn read_file(path: &Path) -> Result<(SourceText, Value)> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| Error::usage(format!("{}: {error}", path.display()), "give a session file in TOML or YAML"))?;
    let name = path.display().to_string();
    let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
    let is_toml = match extension {
        "toml" => true,
        "yaml" | "yml" => false,
        _ => {
            return Err(Error::usage(
                format!("{name} is not a session file by its name"),
                "session files end in .toml, .yaml or .yml",
            ));
        }
    };
    let mut value = if is_toml {
        let line = |error: &toml::de::Error| error.span().map(|span| line_at(&text, span.start));
        let shown = |error: toml::de::Error| (line(&error), error.message().to_string());
        typed_text(&name, toml::from_str(&text).map_err(shown))?;
        toml::from_str(&text).map_err(|error| Error::usage(format!("{name}: {}", error.message()), KEYS))?
    } else {
        let line = |error: &serde_saphyr::Error| error.location().map(|location| location.line() as usize);
        let shown = |error: serde_saphyr::Error| (line(&error), error.without_snippet().to_string());
        typed_text(&name, serde_saphyr::from_str(&text).map_err(shown))?;
        serde_saphyr::from_str(&text).map_err(|error| Error::usage(format!("{name}: {error}"), KEYS))?
    };
    resolve_paths(&mut value, path.parent().unwrap_or(Path::new("")));
    let kind = if is_toml { TextKind::Toml } else { TextKind::Yaml };
    Ok((SourceText { name, text, kind }, value))
}

/// Reports a source that is not a session, with the line of its error.
fn typed_text(name: &str, parsed: std::result::Result<SessionConfig, (Option<usize>, String)>) -> Result<()> {
    typed(name, parsed.map_err(|(line, problem)| Located { line, problem }), |error: &Located| error.line)
}

struct Located {
    line: Option<usize>,
    problem: String,
}

impl std::fmt::Display for Located {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.problem)
    }
}

fn typed<E: std::fmt::Display>(
    name: &str,
    parsed: std::result::Result<SessionConfig, E>,
    line: impl Fn(&E) -> Option<usize>,
) -> Result<()> {
    parsed.map(drop).map_err(|error| {
        let at = line(&error).map_or(String::new(), |line| format!(", line {line}"));
        Error::usage(format!("{name}{at}: {error}"), KEYS)
    })
}

fn line_at(text: &str, offset: usize) -> usize {
    text.as_bytes().iter().take(offset).filter(|&&byte| byte == b'\n').count() + 1
}

/// Parses `dataset.limit=4`.
fn parse_setting(setting: &str) -> Result<Value> {
    let remedy = "write key=value with a dotted key, such as dataset.limit=4";
    let Some((key, value)) = setting.split_once('=').filter(|(key, _)| !key.trim().is_empty()) else {
        return Err(Error::usage(format!("`{setting}` is not a setting"), remedy));
    };
    let (key, value) = (key.trim(), value.trim());
    let parsed = toml::from_str::<Value>(&format!("value = {value}")).ok().and_then(|mut table| {
        table.as_object_mut().filter(|table| table.len() == 1).and_then(|table| table.remove("value"))
    });
    let mut nested = parsed.unwrap_or_else(|| Value::String(value.to_string()));
    for part in key.rsplit('.') {
        nested = Value::Object(Map::from_iter([(part.trim().to_string(), nested)]));
    }
    typed::<serde_json::Error>(&format!("`{setting}`"), serde_json::from_value(nested.clone()), |_| None)?;
    Ok(nested)
}

/// Makes the paths of inputs in a file relative to the file's directory. A name of a model or an
/// autoencoder that is no such path stays as it is.
fn resolve_paths(value: &mut Value, directory: &Path) {
    let join = |value: &mut Value, only_existing: bool| {
        let Some(text) = value.as_str() else { return };
        let joined = directory.join(text);
        if !only_existing || joined.exists() {
            *value = Value::String(joined.to_string_lossy().into_owned());
        }
    };
    if let Some(path) = value.pointer_mut("/dataset/path") {
        join(path, false);
    }
    if let Some(path) = value.pointer_mut("/concept/store") {
        join(path, true);
    }
    if let Some(path) = value.pointer_mut("/model/path") {
        join(path, true);
    }
    for adapter in value.pointer_mut("/model/adapters").and_then(Value::as_array_mut).into_iter().flatten() {
        join(adapter, false);
    }
    for sae in value.get_mut("saes").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(path) = sae.get_mut("path") {
            join(path, true);
        }
    }
}

fn merge(target: &mut Value, value: Value) {
    match (target, value) {
        (Value::Object(target), Value::Object(more)) => {
            for (key, value) in more {
                merge(target.entry(key).or_insert(Value::Null), value);
            }
        }
        (target, value) => *target = value,
    }
}
