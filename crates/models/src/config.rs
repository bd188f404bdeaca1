//! `config.json`, read by key with errors that name the key.

use crate::error::{Error, Result};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// A number, infinity being written as an object by those who care about JSON.
fn number(value: &Value) -> Option<f32> {
    match value.get("__float__").and_then(Value::as_str) {
        Some("Infinity") => Some(f32::INFINITY),
        Some("-Infinity") => Some(f32::NEG_INFINITY),
        _ => value.as_f64().map(|x| x as f32),
    }
}

/// Python writes infinity as a bare word, which JSON does not know: the text with such words made objects.
fn with_infinities(bytes: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(bytes).ok()?;
    let mut out = String::with_capacity(text.len());
    let (mut in_text, mut escaped) = (false, false);
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let word = ["-Infinity", "Infinity"].into_iter().find(|word| !in_text && rest.starts_with(word));
        if let Some(word) = word {
            out.push_str(&format!("{{\"__float__\": \"{word}\"}}"));
            rest = &rest[word.len()..];
            continue;
        }
        in_text ^= c == '"' && !escaped;
        escaped = in_text && c == '\\' && !escaped;
        out.push(c);
        rest = &rest[c.len_utf8()..];
    }
    (out.len() != text.len()).then_some(out)
}

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
        let parsed = serde_json::from_slice(bytes).or_else(|error| match with_infinities(bytes) {
            Some(text) => serde_json::from_str(&text).map_err(|_| error),
            None => Err(error),
        });
        let value = parsed.map_err(|error| {
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
        if let Value::Object(object) = &mut changed.value {
            object.insert(key.into(), value);
        }
        changed
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

#[cfg(test)]
mod tests {
    use super::*;

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
