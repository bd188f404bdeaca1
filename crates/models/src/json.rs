//! Strict JSON parsing for model files: duplicate keys are errors, and Python's `Infinity` is
//! accepted.

use std::fmt;
use std::path::Path;

use serde::de::{Deserialize, DeserializeOwned, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use serde_json::map::Entry;

use crate::{Error, Result};

/// Label tables of classifiers. They are skipped: nothing uses them, and they can be very large.
const LABEL_KEYS: [&str; 2] = ["id2label", "label2id"];

/// Parses JSON. A duplicate key is an error, because readers disagree on which value counts.
pub(crate) fn parse(bytes: &[u8], origin: &Path) -> Result<Value> {
    parse_as(bytes, origin).map(|Strict(value)| value)
}

/// Like [`parse`], without the label tables of a configuration.
pub(crate) fn parse_config(bytes: &[u8], origin: &Path) -> Result<Value> {
    parse_as(bytes, origin).map(|WithoutLabels(value)| value)
}

/// The error for a file whose value is not an object.
pub(crate) fn not_an_object(origin: &Path) -> Error {
    Error::invalid(origin, "not a JSON object", "download the file again")
}

/// Parses JSON into a type, ignoring keys that the type does not have.
pub(crate) fn parse_as<T: DeserializeOwned>(bytes: &[u8], origin: &Path) -> Result<T> {
    let parsed = serde_json::from_slice(bytes).or_else(|error| match replace_infinities(bytes) {
        Some(text) => serde_json::from_str(&text).map_err(|_| error),
        None => Err(error),
    });
    parsed.map_err(|error| {
        let remedy = "download the file again, or correct it";
        Error::invalid(origin, format!("not valid JSON: {error}"), remedy)
    })
}

/// Replaces bare `Infinity` and `-Infinity`, as Python writes them, by `{"__float__": "Infinity"}`
/// objects. `None` if there are none.
fn replace_infinities(bytes: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(bytes).ok().filter(|text| text.contains("Infinity"))?;
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

/// A JSON value in which no object has a key twice.
struct Strict(Value);

impl<'de> Deserialize<'de> for Strict {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Strict, D::Error> {
        deserializer.deserialize_any(StrictVisitor { skipped: &[] }).map(Strict)
    }
}

/// Like [`Strict`], without label tables.
struct WithoutLabels(Value);

impl<'de> Deserialize<'de> for WithoutLabels {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<WithoutLabels, D::Error> {
        deserializer.deserialize_any(StrictVisitor { skipped: &LABEL_KEYS }).map(WithoutLabels)
    }
}

struct StrictVisitor {
    /// Keys of the outermost object to skip.
    skipped: &'static [&'static str],
}

impl<'de> Visitor<'de> for StrictVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, value: bool) -> std::result::Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> std::result::Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> std::result::Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> std::result::Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> std::result::Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E>(self, value: String) -> std::result::Result<Value, E> {
        Ok(value.into())
    }

    fn visit_unit<E>(self) -> std::result::Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> std::result::Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(Strict(value)) = list.next_element()? {
            values.push(value);
        }
        Ok(values.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> std::result::Result<Value, A::Error> {
        let mut object = serde_json::Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            if self.skipped.contains(&key.as_str()) {
                entries.next_value::<IgnoredAny>()?;
                continue;
            }
            match object.entry(key) {
                Entry::Vacant(slot) => {
                    let Strict(value) = entries.next_value()?;
                    slot.insert(value);
                }
                Entry::Occupied(first) => {
                    let key = first.key().escape_debug();
                    return Err(A::Error::custom(format!("the key \"{key}\" occurs twice")));
                }
            }
        }
        Ok(object.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_occurs_twice_is_an_error_at_any_depth() {
        let read = |text: &str| parse(text.as_bytes(), Path::new("config.json"));
        let same = r#"{"a": [1, -2, 3.5, null, true, "x\u00e9"], "b": {"a": 1}}"#;
        assert_eq!(read(same).expect("read"), serde_json::from_str::<Value>(same).expect("read"));
        for text in [r#"{"a": 1, "a": 1}"#, r#"{"b": [{"a": 1, "\u0061": 2}]}"#] {
            let fault = read(text).expect_err("refused").to_string();
            assert!(fault.contains("config.json: not valid JSON: the key \"a\" occurs twice"), "{fault}");
        }
        let labelled = r#"{"id2label": {"0": "x"}, "a": {"label2id": {"x": 0}}, "label2id": [1]}"#;
        let found = parse_config(labelled.as_bytes(), Path::new("config.json")).expect("read");
        assert_eq!(found, serde_json::json!({"a": {"label2id": {"x": 0}}}), "only the outermost are labels");
        assert!(read(r#"{"a": 1e999999}"#).is_err() && read(&"[".repeat(1 << 20)).is_err());
    }
}
