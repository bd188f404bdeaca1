//! `config.json`, read by key with errors that name the key.

use crate::error::{Error, Result};
use crate::json;
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// A number, infinity being written as an object by those who care about JSON.
fn number(value: &Value) -> Option<f32> {
    match value.get("__float__").and_then(Value::as_str) {
        Some("Infinity") => Some(f32::INFINITY),
        Some("-Infinity") => Some(f32::NEG_INFINITY),
        _ => value.as_f64().map(|x| x as f32),
    }
}

/// A model's configuration: a JSON object and where it came from.
#[derive(Clone, Debug)]
pub struct Config {
    /// As the file has it. Families copy configurations to fill in defaults, so copies share it.
    value: Arc<Value>,
    /// The keys that were set since, over those of the file.
    set: Vec<(String, Value)>,
    origin: Arc<Path>,
    watch: Option<Watch>,
}

/// Dimensions beyond this are no model's, and products of them would overflow.
pub(crate) const LARGEST: usize = 1 << 31;

/// Remembers which keys were asked for. Copies and parts of a configuration share one memory.
#[derive(Clone, Debug, Default)]
struct Watch {
    /// Keys by their path: `hidden_size`, `rope_parameters.factor`; with a point at the end where a part was taken out.
    asked: Arc<Mutex<BTreeSet<String>>>,
    /// Where this part of the configuration lies: `rope_parameters.`
    place: String,
}

impl Config {
    /// Takes a parsed configuration.
    pub fn new(value: impl Into<Arc<Value>>, origin: &Path) -> Result<Config> {
        let value = value.into();
        if !value.is_object() {
            return Err(Error::invalid(
                origin,
                "the configuration is not a JSON object",
                "get config.json anew from where the model came from",
            ));
        }
        Ok(Config { value, set: Vec::new(), origin: origin.into(), watch: None })
    }

    /// Parses a configuration.
    pub fn parse(bytes: &[u8], origin: &Path) -> Result<Config> {
        Config::new(json::parse_config(bytes, origin)?, origin)
    }

    /// The family's name.
    pub fn model_type(&self) -> Result<&str> {
        self.find("model_type").and_then(Value::as_str).ok_or_else(|| self.bad("model_type", "is missing"))
    }

    /// A part of the configuration with its own keys; what it lacks is not looked up outside.
    pub fn part(&self, key: &str) -> Option<Config> {
        self.note(key);
        let value = self.find(key).filter(|value| value.is_object())?;
        let watch = self.watch.clone().map(|watch| Watch { place: format!("{}{key}.", watch.place), ..watch });
        let part = Config { value: Arc::new(value.clone()), set: Vec::new(), origin: Arc::clone(&self.origin), watch };
        part.note("");
        Some(part)
    }

    /// The value of a key, unless it is absent or null.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.note(key);
        self.find(key).filter(|value| !value.is_null())
    }

    /// Every key of the file with its value, then those that were set since.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (&str, &Value)> {
        let own = self.value.as_object().into_iter().flatten().map(|(key, value)| (key.as_str(), value));
        own.chain(self.set.iter().map(|(key, value)| (key.as_str(), value)))
    }

    /// The value of a key, as it was set last.
    fn find(&self, key: &str) -> Option<&Value> {
        let set = self.set.iter().rev().find(|(name, _)| name == key).map(|(_, value)| value);
        set.or_else(|| self.value.get(key))
    }

    /// A whole number that must be there.
    pub fn size(&self, key: &str) -> Result<usize> {
        self.size_maybe(key)?.ok_or_else(|| self.bad(key, "is missing"))
    }

    /// A whole number that may be absent or null.
    pub fn size_maybe(&self, key: &str) -> Result<Option<usize>> {
        self.get(key)
            .map(|value| {
                value
                    .as_u64()
                    .filter(|&n| n <= LARGEST as u64)
                    .map(|n| n as usize)
                    .ok_or_else(|| self.bad(key, "is not a sensible whole number"))
            })
            .transpose()
    }

    /// A whole number with a default.
    pub fn size_or(&self, key: &str, default: usize) -> Result<usize> {
        Ok(self.size_maybe(key)?.unwrap_or(default))
    }

    /// A number that must be there.
    pub fn number(&self, key: &str) -> Result<f32> {
        self.number_maybe(key)?.ok_or_else(|| self.bad(key, "is missing"))
    }

    /// A number that may be absent or null.
    pub fn number_maybe(&self, key: &str) -> Result<Option<f32>> {
        self.get(key).map(|value| number(value).ok_or_else(|| self.bad(key, "is not a number"))).transpose()
    }

    /// A number with a default.
    pub fn number_or(&self, key: &str, default: f32) -> Result<f32> {
        Ok(self.number_maybe(key)?.unwrap_or(default))
    }

    /// A truth value with a default.
    pub fn flag_or(&self, key: &str, default: bool) -> Result<bool> {
        match self.get(key) {
            None => Ok(default),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(_) => Err(self.bad(key, "is neither true nor false")),
        }
    }

    /// A text that may be absent.
    pub fn text(&self, key: &str) -> Option<&str> {
        self.get(key).and_then(Value::as_str)
    }

    /// A list of texts that may be absent.
    pub fn texts(&self, key: &str) -> Result<Option<Vec<&str>>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let list = value.as_array().and_then(|list| list.iter().map(Value::as_str).collect());
        list.map(Some).ok_or_else(|| self.bad(key, "is not a list of texts"))
    }

    /// A list of whole numbers; empty where absent.
    pub fn sizes(&self, key: &str) -> Result<Vec<usize>> {
        let Some(value) = self.get(key) else { return Ok(Vec::new()) };
        let list = value.as_array().and_then(|list| list.iter().map(|n| n.as_u64().map(|n| n as usize)).collect());
        list.ok_or_else(|| self.bad(key, "is not a list of whole numbers"))
    }

    /// A list of numbers that must be there.
    pub fn numbers(&self, key: &str) -> Result<Vec<f32>> {
        let list = self.get(key).and_then(Value::as_array);
        let list = list.and_then(|list| list.iter().map(number).collect());
        list.ok_or_else(|| self.bad(key, "is not a list of numbers"))
    }

    /// The configuration with one key set.
    pub fn with(&self, key: &str, value: Value) -> Config {
        let mut changed = self.clone();
        changed.set.push((key.into(), value));
        changed
    }

    /// A copy that remembers which keys it is asked for, from now on.
    pub(crate) fn watched(&self) -> Config {
        Config { watch: Some(Watch::default()), ..self.clone() }
    }

    /// The keys with a value that nobody has asked a watched configuration for, by their path.
    pub(crate) fn unread(&self) -> Vec<String> {
        let Some(watch) = &self.watch else { return Vec::new() };
        let asked = watch.asked.lock().unwrap_or_else(PoisonError::into_inner);
        let mut unread = Vec::new();
        unread_in(&self.value, &watch.place, &asked, &mut unread);
        unread
    }

    fn note(&self, key: &str) {
        if let Some(watch) = &self.watch {
            let mut asked = watch.asked.lock().unwrap_or_else(PoisonError::into_inner);
            asked.insert(format!("{}{key}", watch.place));
        }
    }

    /// The file that it came from.
    pub(crate) fn origin(&self) -> &Path {
        &self.origin
    }

    /// The configuration with values for keys that it leaves out; a key that is null stays so.
    pub fn with_defaults<const N: usize>(&self, defaults: [(&str, Value); N]) -> Config {
        let mut filled = self.clone();
        for (key, value) in defaults {
            if filled.find(key).is_none() {
                filled.set.push((key.into(), value));
            }
        }
        filled
    }

    /// An error about a key.
    pub fn bad(&self, key: &str, problem: &str) -> Error {
        Error::invalid(
            &*self.origin,
            format!("`{key}` {problem}"),
            "get config.json anew from where the model came from, or correct the key",
        )
    }
}

fn unread_in(value: &Value, place: &str, asked: &BTreeSet<String>, unread: &mut Vec<String>) {
    for (key, value) in value.as_object().into_iter().flatten().filter(|(_, value)| !value.is_null()) {
        let path = format!("{place}{key}");
        let inside = format!("{path}.");
        if asked.contains(&inside) {
            unread_in(value, &inside, asked, unread);
        } else if !asked.contains(&path) {
            unread.push(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_watched_configuration_tells_what_nobody_asked_for() {
        let value = json!({"width": 8, "depth": null, "other": null, "extra": 1, "rope": {"base": 1e4, "factor": 2.0},
            "whole": {"a": 1}, "list": [1]});
        let config = Config::new(value, Path::new("config.json")).expect("an object").watched();
        assert_eq!(config.size("width").expect("a number"), 8);
        assert_eq!(config.size_maybe("depth").expect("absent"), None);
        // Copies and parts tell, too; a key that a reader sets itself is nobody's.
        let changed = config.with("set", 1.into());
        assert_eq!(changed.sizes("list").expect("a list"), [1]);
        assert_eq!(changed.part("rope").expect("a part").number("base").expect("a number"), 1e4);
        assert!(config.get("whole").is_some(), "who takes a value has all of it");
        assert_eq!(config.unread(), ["extra", "rope.factor"]);
        assert_eq!(config.watched().unread().len(), 5, "a new watch begins anew");
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
