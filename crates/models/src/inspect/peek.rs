//! The few keys of a `config.json` that tell what a model is; everything else is passed over unread.

use std::fmt;
use std::path::Path;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use crate::{Result, json};

/// What tells. A key of an unexpected kind counts as absent, a key that occurs twice is an error.
#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Peek {
    model_type: Scalar,
    architectures: First,
    pub(crate) auto_map: Seen,
    pub(crate) quantization_config: Seen,
    pub(crate) talker_config: Seen,
    pub(crate) thinker_config: Seen,
    /// MiniCPM-o's switch for its voice.
    pub(crate) init_tts: Scalar,
    /// Parts of image pipelines name the library.
    #[serde(rename = "_diffusers_version")]
    pub(crate) diffusers_version: Seen,
    /// timm's configurations name no type and have this.
    pub(crate) pretrained_cfg: Seen,
    /// Autoencoders: dictionary_learning has the first, Gemma Scope 2 the next two, Llama Scope's distilled ones the last.
    pub(crate) trainer: Seen,
    pub(crate) hf_hook_point_in: Seen,
    pub(crate) width: Seen,
    pub(crate) hook_point_in: Seen,
}

impl Peek {
    pub(crate) fn read(bytes: &[u8], origin: &Path) -> Result<Peek> {
        let start = bytes.iter().find(|byte| !byte.is_ascii_whitespace());
        match start {
            // A list would be taken for the values of the keys in their order.
            Some(b'{') => json::parse_as(bytes, origin),
            _ => json::parse(bytes, origin).and_then(|_| Err(json::not_an_object(origin))),
        }
    }

    /// What tells in a configuration that has been parsed.
    pub(crate) fn of(config: &Value, origin: &Path) -> Result<Peek> {
        match config.is_object().then(|| Peek::deserialize(config)) {
            Some(Ok(peek)) => Ok(peek),
            _ => Err(json::not_an_object(origin)),
        }
    }

    /// The family, as the configuration names it.
    pub(crate) fn model_type(&self) -> Option<&str> {
        match &self.model_type {
            Scalar::Text(text) if !text.is_empty() => Some(text),
            _ => None,
        }
    }

    /// The first class that the configuration names.
    pub(crate) fn class(&self) -> Option<&str> {
        self.architectures.0.as_deref()
    }
}

/// Whether a key has a value.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Seen {
    /// It is absent, null or false.
    #[default]
    No,
    /// It is an object or a list.
    Part,
    /// It is something else.
    Value,
}

impl Seen {
    pub(crate) fn any(self) -> bool {
        self != Seen::No
    }
}

/// A text or a truth value.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) enum Scalar {
    #[default]
    Other,
    Text(String),
    True,
}

/// The first text of a list.
#[derive(Debug, Default, PartialEq)]
struct First(Option<String>);

impl<'de> Deserialize<'de> for Seen {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Seen, D::Error> {
        deserializer.deserialize_any(Looking).map(|found| match found {
            Found::Nothing => Seen::No,
            Found::Part(_) => Seen::Part,
            Found::Text(_) | Found::True | Found::Number => Seen::Value,
        })
    }
}

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Scalar, D::Error> {
        deserializer.deserialize_any(Looking).map(|found| match found {
            Found::Text(text) => Scalar::Text(text),
            Found::True => Scalar::True,
            _ => Scalar::Other,
        })
    }
}

impl<'de> Deserialize<'de> for First {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<First, D::Error> {
        deserializer.deserialize_any(Looking).map(|found| match found {
            Found::Part(first) => First(first),
            _ => First(None),
        })
    }
}

/// What a value turned out to be; of a list, its first text.
enum Found {
    Nothing,
    True,
    Number,
    Text(String),
    Part(Option<String>),
}

struct Looking;

impl<'de> Visitor<'de> for Looking {
    type Value = Found;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, value: bool) -> std::result::Result<Found, E> {
        Ok(if value { Found::True } else { Found::Nothing })
    }

    fn visit_i64<E>(self, _: i64) -> std::result::Result<Found, E> {
        Ok(Found::Number)
    }

    fn visit_u64<E>(self, _: u64) -> std::result::Result<Found, E> {
        Ok(Found::Number)
    }

    fn visit_f64<E>(self, _: f64) -> std::result::Result<Found, E> {
        Ok(Found::Number)
    }

    fn visit_str<E>(self, text: &str) -> std::result::Result<Found, E> {
        Ok(Found::Text(text.to_owned()))
    }

    fn visit_unit<E>(self) -> std::result::Result<Found, E> {
        Ok(Found::Nothing)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> std::result::Result<Found, A::Error> {
        let first = list.next_element::<Scalar>()?;
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Found::Part(first.and_then(|first| if let Scalar::Text(text) = first { Some(text) } else { None })))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> std::result::Result<Found, A::Error> {
        while entries.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Found::Part(None))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_other_kinds_count_as_absent_and_nothing_else_is_read() {
        let read = |text: &str| Peek::read(text.as_bytes(), Path::new("config.json"));
        let peek = read(
            r#"{"model_type": "x", "architectures": ["A", "B"], "talker_config": {"a": [1]}, "other": 1e999, "width": 3}"#,
        )
        .expect("read");
        let parsed = serde_json::json!({"model_type": "x", "architectures": ["A", "B"], "talker_config": {"a": [1]}, "width": 3});
        assert_eq!(Peek::of(&parsed, Path::new("config.json")).expect("read"), peek, "parsed before or not");
        assert_eq!((peek.model_type(), peek.class()), (Some("x"), Some("A")));
        assert_eq!((peek.talker_config, peek.width, peek.thinker_config), (Seen::Part, Seen::Value, Seen::No));
        let peek = read(r#"{"model_type": 3, "architectures": null, "talker_config": null}"#).expect("read");
        assert_eq!((peek.model_type(), peek.class(), peek.talker_config), (None, None, Seen::No));
        assert!(read(r#"{"model_type": "x", "model_type": "y"}"#).is_err());
        assert!(read("[1]").is_err() && read("").is_err());
    }
}
