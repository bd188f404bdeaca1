//! The keys of `config.json` that identify a model; all others are skipped while parsing.

use std::fmt;
use std::path::Path;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use crate::{Result, json};

/// The identifying keys. A value of an unexpected type counts as absent; a duplicate key is an
/// error.
#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct ConfigKeys {
    model_type: Scalar,
    architectures: FirstString,
    pub(crate) auto_map: Presence,
    pub(crate) quantization_config: Presence,
    pub(crate) talker_config: Presence,
    pub(crate) thinker_config: Presence,
    /// MiniCPM-o: whether speech output is enabled.
    pub(crate) init_tts: Scalar,
    /// Present in components of image pipelines.
    #[serde(rename = "_diffusers_version")]
    pub(crate) diffusers_version: Presence,
    /// Present in timm configurations, which have no `model_type`.
    pub(crate) pretrained_cfg: Presence,
    /// SAE settings: dictionary_learning has `trainer`, Gemma Scope 2 the next two, Llama Scope the
    /// last.
    pub(crate) trainer: Presence,
    pub(crate) hf_hook_point_in: Presence,
    pub(crate) width: Presence,
    pub(crate) hook_point_in: Presence,
}

impl ConfigKeys {
    pub(crate) fn read(bytes: &[u8], origin: &Path) -> Result<ConfigKeys> {
        let start = bytes.iter().find(|byte| !byte.is_ascii_whitespace());
        match start {
            // serde would accept an array as the fields in order.
            Some(b'{') => json::parse_as(bytes, origin),
            _ => json::parse(bytes, origin).and_then(|_| Err(json::not_an_object(origin))),
        }
    }

    /// Reads the keys of a parsed configuration.
    pub(crate) fn from_value(config: &Value, origin: &Path) -> Result<ConfigKeys> {
        match config.is_object().then(|| ConfigKeys::deserialize(config)) {
            Some(Ok(keys)) => Ok(keys),
            _ => Err(json::not_an_object(origin)),
        }
    }

    /// The `model_type`, if it is a non-empty string.
    pub(crate) fn model_type(&self) -> Option<&str> {
        match &self.model_type {
            Scalar::Text(text) if !text.is_empty() => Some(text),
            _ => None,
        }
    }

    /// The first entry of `architectures`.
    pub(crate) fn class(&self) -> Option<&str> {
        self.architectures.0.as_deref()
    }
}

/// Whether a key has a value, and of which kind.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Presence {
    /// Absent, null or false.
    #[default]
    Absent,
    /// An object or array.
    Container,
    /// A scalar.
    Value,
}

impl Presence {
    pub(crate) fn any(self) -> bool {
        self != Presence::Absent
    }
}

/// A string or `true`; everything else is `Other`.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) enum Scalar {
    #[default]
    Other,
    Text(String),
    True,
}

/// The first element of an array, if it is a string.
#[derive(Debug, Default, PartialEq)]
struct FirstString(Option<String>);

impl<'de> Deserialize<'de> for Presence {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Presence, D::Error> {
        deserializer.deserialize_any(JsonKindVisitor).map(|kind| match kind {
            JsonKind::Empty => Presence::Absent,
            JsonKind::Container(_) => Presence::Container,
            JsonKind::Text(_) | JsonKind::True | JsonKind::Number => Presence::Value,
        })
    }
}

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Scalar, D::Error> {
        deserializer.deserialize_any(JsonKindVisitor).map(|kind| match kind {
            JsonKind::Text(text) => Scalar::Text(text),
            JsonKind::True => Scalar::True,
            _ => Scalar::Other,
        })
    }
}

impl<'de> Deserialize<'de> for FirstString {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<FirstString, D::Error> {
        deserializer.deserialize_any(JsonKindVisitor).map(|kind| match kind {
            JsonKind::Container(first) => FirstString(first),
            _ => FirstString(None),
        })
    }
}

/// The kind of a JSON value; for an array, with its first string.
enum JsonKind {
    Empty,
    True,
    Number,
    Text(String),
    Container(Option<String>),
}

struct JsonKindVisitor;

impl<'de> Visitor<'de> for JsonKindVisitor {
    type Value = JsonKind;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, value: bool) -> std::result::Result<JsonKind, E> {
        Ok(if value { JsonKind::True } else { JsonKind::Empty })
    }

    fn visit_i64<E>(self, _: i64) -> std::result::Result<JsonKind, E> {
        Ok(JsonKind::Number)
    }

    fn visit_u64<E>(self, _: u64) -> std::result::Result<JsonKind, E> {
        Ok(JsonKind::Number)
    }

    fn visit_f64<E>(self, _: f64) -> std::result::Result<JsonKind, E> {
        Ok(JsonKind::Number)
    }

    fn visit_str<E>(self, text: &str) -> std::result::Result<JsonKind, E> {
        Ok(JsonKind::Text(text.to_owned()))
    }

    fn visit_unit<E>(self) -> std::result::Result<JsonKind, E> {
        Ok(JsonKind::Empty)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> std::result::Result<JsonKind, A::Error> {
        let first = list.next_element::<Scalar>()?;
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(JsonKind::Container(first.and_then(|first| if let Scalar::Text(text) = first { Some(text) } else { None })))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> std::result::Result<JsonKind, A::Error> {
        while entries.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(JsonKind::Container(None))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unexpected_types_count_as_absent_and_other_keys_are_skipped() {
        let read = |text: &str| ConfigKeys::read(text.as_bytes(), Path::new("config.json"));
        let keys = read(
            r#"{"model_type": "x", "architectures": ["A", "B"], "talker_config": {"a": [1]}, "other": 1e999, "width": 3}"#,
        )
        .expect("read");
        let parsed = serde_json::json!({"model_type": "x", "architectures": ["A", "B"], "talker_config": {"a": [1]}, "width": 3});
        assert_eq!(
            ConfigKeys::from_value(&parsed, Path::new("config.json")).expect("read"),
            keys,
            "parsed before or not"
        );
        assert_eq!((keys.model_type(), keys.class()), (Some("x"), Some("A")));
        assert_eq!(
            (keys.talker_config, keys.width, keys.thinker_config),
            (Presence::Container, Presence::Value, Presence::Absent)
        );
        let keys = read(r#"{"model_type": 3, "architectures": null, "talker_config": null}"#).expect("read");
        assert_eq!((keys.model_type(), keys.class(), keys.talker_config), (None, None, Presence::Absent));
        assert!(read(r#"{"model_type": "x", "model_type": "y"}"#).is_err());
        assert!(read("[1]").is_err() && read("").is_err());
    }
}
