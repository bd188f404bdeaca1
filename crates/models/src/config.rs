//! `config.json`: typed access by key, with errors that name the key.
//!
//! A [`Config`] can track which keys are read. `select_family` uses this to list the keys of a
//! model that a family ignores.

use crate::error::{Error, Result};
use crate::json;
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// Reads a float. Infinity may be an object, `{"__float__": "Infinity"}`, because JSON has no word
/// for it.
fn number(value: &Value) -> Option<f32> {
    match value.get("__float__").and_then(Value::as_str) {
        Some("Infinity") => Some(f32::INFINITY),
        Some("-Infinity") => Some(f32::NEG_INFINITY),
        // A number that is infinite as f32 is out of range, not infinity.
        _ => value.as_f64().map(|x| x as f32).filter(|x| x.is_finite()),
    }
}

/// A model's configuration: a JSON object and the file that it came from.
#[derive(Clone, Debug)]
pub struct Config {
    /// The file's contents, shared between copies: families copy configurations to set defaults.
    value: Arc<Value>,
    /// Keys set later, which override those of the file; the last entry of a key counts.
    set: Vec<(String, Value)>,
    origin: Arc<Path>,
    reads: Option<ReadTracker>,
}

/// Largest size that is accepted; products of larger ones could overflow.
pub(crate) const MAX_DIMENSION: usize = 1 << 31;

/// Records which keys are read. Copies and parts of a configuration share one record.
#[derive(Clone, Debug, Default)]
struct ReadTracker {
    /// Paths of the keys: `hidden_size`, `rope_parameters.factor`; with a trailing dot for a part
    /// that was read with [`Config::part`].
    keys: Arc<Mutex<BTreeSet<String>>>,
    /// Path of this part of the configuration: `rope_parameters.`, or empty.
    path: String,
}

impl Config {
    /// Wraps a parsed configuration, which must be an object.
    pub fn new(value: impl Into<Arc<Value>>, origin: &Path) -> Result<Config> {
        let value = value.into();
        if !value.is_object() {
            return Err(Error::invalid(origin, "the configuration is not a JSON object", "download config.json again"));
        }
        Ok(Config { value, set: Vec::new(), origin: origin.into(), reads: None })
    }

    /// The configuration as JSON, without keys that were set later.
    pub(crate) fn value(&self) -> &Arc<Value> {
        &self.value
    }

    /// Parses a configuration.
    pub fn parse(bytes: &[u8], origin: &Path) -> Result<Config> {
        Config::new(json::parse_config(bytes, origin)?, origin)
    }

    /// The model type, which names the family.
    pub fn model_type(&self) -> Result<&str> {
        self.find("model_type").and_then(Value::as_str).ok_or_else(|| self.bad("model_type", "is missing"))
    }

    /// Returns a nested object as a configuration. A key that it lacks is not looked up in the
    /// outer one.
    pub fn part(&self, key: &str) -> Option<Config> {
        self.record_read(key);
        let value = self.find(key).filter(|value| value.is_object())?;
        let reads = self.reads.clone().map(|reads| ReadTracker { path: format!("{}{key}.", reads.path), ..reads });
        let part = Config { value: Arc::new(value.clone()), set: Vec::new(), origin: Arc::clone(&self.origin), reads };
        part.record_read("");
        Some(part)
    }

    /// Returns the value of a key; `None` if it is absent or null.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.record_read(key);
        self.find(key).filter(|value| !value.is_null())
    }

    /// Returns every key of the file with its value, then those that were set later.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (&str, &Value)> {
        let own = self.value.as_object().into_iter().flatten().map(|(key, value)| (key.as_str(), value));
        own.chain(self.set.iter().map(|(key, value)| (key.as_str(), value)))
    }

    /// Returns the current value of a key, without recording the read.
    fn find(&self, key: &str) -> Option<&Value> {
        let set = self.set.iter().rev().find(|(name, _)| name == key).map(|(_, value)| value);
        set.or_else(|| self.value.get(key))
    }

    /// Returns a required size.
    pub fn size(&self, key: &str) -> Result<usize> {
        self.size_maybe(key)?.ok_or_else(|| self.bad(key, "is missing"))
    }

    /// Returns a size that may be absent or null.
    pub fn size_maybe(&self, key: &str) -> Result<Option<usize>> {
        self.get(key)
            .map(|value| {
                value
                    .as_u64()
                    .filter(|&n| n <= MAX_DIMENSION as u64)
                    .map(|n| n as usize)
                    .ok_or_else(|| self.bad(key, "is not an integer in range"))
            })
            .transpose()
    }

    /// Returns a size, or its default.
    pub fn size_or(&self, key: &str, default: usize) -> Result<usize> {
        Ok(self.size_maybe(key)?.unwrap_or(default))
    }

    /// Returns a required float.
    pub fn number(&self, key: &str) -> Result<f32> {
        self.number_maybe(key)?.ok_or_else(|| self.bad(key, "is missing"))
    }

    /// Returns a float that may be absent or null.
    pub fn number_maybe(&self, key: &str) -> Result<Option<f32>> {
        self.get(key)
            .map(|value| number(value).ok_or_else(|| self.bad(key, "is not a number in the range of f32")))
            .transpose()
    }

    /// Returns a float, or its default.
    pub fn number_or(&self, key: &str, default: f32) -> Result<f32> {
        Ok(self.number_maybe(key)?.unwrap_or(default))
    }

    /// Returns a boolean, or its default.
    pub fn flag_or(&self, key: &str, default: bool) -> Result<bool> {
        match self.get(key) {
            None => Ok(default),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(_) => Err(self.bad(key, "is neither true nor false")),
        }
    }

    /// Returns a string; `None` if it is absent or not a string.
    pub fn text(&self, key: &str) -> Option<&str> {
        self.get(key).and_then(Value::as_str)
    }

    /// Returns a list of strings, which may be absent.
    pub fn texts(&self, key: &str) -> Result<Option<Vec<&str>>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let list = value.as_array().and_then(|list| list.iter().map(Value::as_str).collect());
        list.map(Some).ok_or_else(|| self.bad(key, "is not a list of strings"))
    }

    /// Returns a list of sizes; empty if absent.
    pub fn sizes(&self, key: &str) -> Result<Vec<usize>> {
        let Some(value) = self.get(key) else { return Ok(Vec::new()) };
        let list = value.as_array().and_then(|list| list.iter().map(|n| n.as_u64().map(|n| n as usize)).collect());
        list.ok_or_else(|| self.bad(key, "is not a list of integers"))
    }

    /// Returns a required list of floats.
    pub fn numbers(&self, key: &str) -> Result<Vec<f32>> {
        let list = self.get(key).and_then(Value::as_array);
        let list = list.and_then(|list| list.iter().map(number).collect());
        list.ok_or_else(|| self.bad(key, "is not a list of numbers"))
    }

    /// Returns a copy with one key set.
    pub fn with(&self, key: &str, value: Value) -> Config {
        let mut changed = self.clone();
        changed.set.push((key.into(), value));
        changed
    }

    /// Returns a copy that records which of its keys are read.
    pub(crate) fn track_reads(&self) -> Config {
        Config { reads: Some(ReadTracker::default()), ..self.clone() }
    }

    /// Returns the paths of the keys with a value that were not read; empty without
    /// [`track_reads`](Self::track_reads).
    pub(crate) fn unread_keys(&self) -> Vec<String> {
        let Some(reads) = &self.reads else { return Vec::new() };
        let keys = reads.keys.lock().unwrap_or_else(PoisonError::into_inner);
        let mut unread = Vec::new();
        collect_unread(&self.value, &reads.path, &keys, &mut unread);
        unread
    }

    fn record_read(&self, key: &str) {
        if let Some(reads) = &self.reads {
            let mut keys = reads.keys.lock().unwrap_or_else(PoisonError::into_inner);
            keys.insert(format!("{}{key}", reads.path));
        }
    }

    /// The file that the configuration came from.
    pub(crate) fn origin(&self) -> &Path {
        &self.origin
    }

    /// Returns a copy with values for absent keys. A key that is null stays null.
    pub fn with_defaults<const N: usize>(&self, defaults: [(&str, Value); N]) -> Config {
        let mut filled = self.clone();
        for (key, value) in defaults {
            if filled.find(key).is_none() {
                filled.set.push((key.into(), value));
            }
        }
        filled
    }

    /// Returns an error about a key: "`key` problem".
    pub fn bad(&self, key: &str, problem: &str) -> Error {
        Error::invalid(&*self.origin, format!("`{key}` {problem}"), "download config.json again, or correct the key")
    }
}

fn collect_unread(value: &Value, parent: &str, read: &BTreeSet<String>, unread: &mut Vec<String>) {
    for (key, value) in value.as_object().into_iter().flatten().filter(|(_, value)| !value.is_null()) {
        let path = format!("{parent}{key}");
        let inside = format!("{path}.");
        if read.contains(&inside) {
            collect_unread(value, &inside, read, unread);
        } else if !read.contains(&path) {
            unread.push(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_tracked_configuration_lists_the_keys_that_were_not_read() {
        let value = json!({"width": 8, "depth": null, "other": null, "extra": 1, "rope": {"base": 1e4, "factor": 2.0},
            "whole": {"a": 1}, "list": [1]});
        let config = Config::new(value, Path::new("config.json")).expect("an object").track_reads();
        assert_eq!(config.size("width").expect("a number"), 8);
        assert_eq!(config.size_maybe("depth").expect("absent"), None);
        // Reads through copies and parts count; a key that the reader sets itself is not listed.
        let changed = config.with("set", 1.into());
        assert_eq!(changed.sizes("list").expect("a list"), [1]);
        assert_eq!(changed.part("rope").expect("a part").number("base").expect("a number"), 1e4);
        assert!(config.get("whole").is_some(), "reading a value reads all keys inside it");
        assert_eq!(config.unread_keys(), ["extra", "rope.factor"]);
        assert_eq!(config.track_reads().unread_keys().len(), 5, "a new record is empty");
    }

    #[test]
    fn infinity_is_read_in_both_spellings() {
        let read = |text: &str| Config::parse(text.as_bytes(), Path::new("config.json"));
        for text in [
            r#"{"limit": [0.0, Infinity], "say": "Infinity \" Infinity"}"#,
            r#"{"limit": [0.0, {"__float__": "Infinity"}], "say": "Infinity \" Infinity"}"#,
        ] {
            let config = read(text).expect("a configuration");
            assert_eq!(config.numbers("limit").expect("numbers"), [0.0, f32::INFINITY]);
            assert_eq!(config.text("say"), Some("Infinity \" Infinity"));
        }
        let low = read(r#"{"x": -Infinity}"#).expect("a configuration");
        assert_eq!(low.number("x").expect("a number"), f32::NEG_INFINITY);
        assert!(read(r#"{"limit": [0.0, infinity]}"#).is_err());
    }
}
