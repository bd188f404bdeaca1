//! `config.json`, read by key with errors that name the key.

use crate::error::{Error, Result};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// A model's configuration: a JSON object and where it came from.
#[derive(Clone, Debug)]
pub struct Config {
    value: Value,
    origin: PathBuf,
}

impl Config {
    /// Takes a parsed configuration.
    pub fn new(value: Value, origin: &Path) -> Result<Config> {
        if !value.is_object() {
            return Err(Error::invalid(
                origin,
                "the configuration is not a JSON object",
                "get config.json anew from where the model came from",
            ));
        }
        Ok(Config { value, origin: origin.to_path_buf() })
    }

    /// Parses a configuration.
    pub fn parse(bytes: &[u8], origin: &Path) -> Result<Config> {
        let value = serde_json::from_slice(bytes).map_err(|error| {
            Error::invalid(
                origin,
                format!("not valid JSON: {error}"),
                "get config.json anew from where the model came from",
            )
        })?;
        Config::new(value, origin)
    }

    /// The family's name.
    pub fn model_type(&self) -> Result<&str> {
        self.value.get("model_type").and_then(Value::as_str).ok_or_else(|| self.bad("model_type", "is missing"))
    }

    /// A part of the configuration with its own keys; what it lacks is not looked up outside.
    pub fn part(&self, key: &str) -> Option<Config> {
        let value = self.value.get(key).filter(|value| value.is_object())?;
        Some(Config { value: value.clone(), origin: self.origin.clone() })
    }

    /// The value of a key, unless it is absent or null.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.value.get(key).filter(|value| !value.is_null())
    }

    /// A whole number that must be there.
    pub fn size(&self, key: &str) -> Result<usize> {
        self.size_maybe(key)?.ok_or_else(|| self.bad(key, "is missing"))
    }

    /// A whole number that may be absent or null.
    pub fn size_maybe(&self, key: &str) -> Result<Option<usize>> {
        // Dimensions beyond this are no model's, and products of them would overflow.
        const LARGEST: u64 = 1 << 31;
        self.get(key)
            .map(|value| {
                value
                    .as_u64()
                    .filter(|&n| n <= LARGEST)
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
        self.get(key)
            .map(|value| value.as_f64().map(|x| x as f32).ok_or_else(|| self.bad(key, "is not a number")))
            .transpose()
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
        let list = list.and_then(|list| list.iter().map(|n| n.as_f64().map(|n| n as f32)).collect());
        list.ok_or_else(|| self.bad(key, "is not a list of numbers"))
    }

    /// The configuration with one key set.
    pub fn with(&self, key: &str, value: Value) -> Config {
        let mut changed = self.clone();
        if let Value::Object(object) = &mut changed.value {
            object.insert(key.into(), value);
        }
        changed
    }

    /// The configuration with values for keys that it leaves out; a key that is null stays so.
    pub fn with_defaults<const N: usize>(&self, defaults: [(&str, Value); N]) -> Config {
        let mut filled = self.clone();
        if let Value::Object(object) = &mut filled.value {
            for (key, value) in defaults {
                object.entry(key).or_insert(value);
            }
        }
        filled
    }

    /// An error about a key.
    pub fn bad(&self, key: &str, problem: &str) -> Error {
        Error::invalid(
            &self.origin,
            format!("`{key}` {problem}"),
            "get config.json anew from where the model came from, or correct the key",
        )
    }
}
