//! JSON that came with a model, read as its author meant it or not at all.

use std::fmt;
use std::path::Path;

use serde::de::{Deserialize, DeserializeOwned, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use serde_json::map::Entry;

use crate::{Error, Result};

/// What a classifier calls its outputs. No way of running a model depends on it, and large configurations are large because of it.
const LABELS: [&str; 2] = ["id2label", "label2id"];

/// Parses what a model's author wrote: with the infinities of Python, and without keys that occur twice, of which nobody could say which counts.
pub(crate) fn parse(bytes: &[u8], origin: &Path) -> Result<Value> {
    parse_as(bytes, origin).map(|Strict(value)| value)
}

/// [`parse`] for a model's configuration, whose labels are passed over.
pub(crate) fn parse_config(bytes: &[u8], origin: &Path) -> Result<Value> {
    parse_as(bytes, origin).map(|Unlabelled(value)| value)
}

/// What is said of a file that holds another value than an object.
pub(crate) fn not_an_object(origin: &Path) -> Error {
    Error::invalid(origin, "not a JSON object", "get the file anew from where the model came from")
}

/// Parses only what is asked for. Keys that are not asked for are passed over, and may be anything.
pub(crate) fn parse_as<T: DeserializeOwned>(bytes: &[u8], origin: &Path) -> Result<T> {
    let parsed = serde_json::from_slice(bytes).or_else(|error| match with_infinities(bytes) {
        Some(text) => serde_json::from_str(&text).map_err(|_| error),
        None => Err(error),
    });
    parsed.map_err(|error| {
        let remedy = "get the file anew from where the model came from, or correct it there";
        Error::invalid(origin, format!("not valid JSON: {error}"), remedy)
    })
}

/// Python writes infinity as a bare word, which JSON does not know: the text with such words made objects.
fn with_infinities(bytes: &[u8]) -> Option<String> {
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
        deserializer.deserialize_any(StrictVisitor { passed_over: &[] }).map(Strict)
    }
}

/// The same without labels.
struct Unlabelled(Value);

impl<'de> Deserialize<'de> for Unlabelled {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Unlabelled, D::Error> {
        deserializer.deserialize_any(StrictVisitor { passed_over: &LABELS }).map(Unlabelled)
    }
}

struct StrictVisitor {
    /// Keys of the outermost object that are left out.
    passed_over: &'static [&'static str],
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
            if self.passed_over.contains(&key.as_str()) {
                entries.next_value::<IgnoredAny>()?;
                continue;
            }
            match object.entry(key) {
                Entry::Vacant(place) => {
                    let Strict(value) = entries.next_value()?;
                    place.insert(value);
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
