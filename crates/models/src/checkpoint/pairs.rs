//! Deserializes a JSON object as a list of pairs and rejects duplicate keys.
//!
//! A map type silently keeps the last of two equal keys, so a tensor described twice would go
//! unnoticed.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};

/// A string borrowed from the input, or owned if it contains escapes.
#[derive(serde::Deserialize)]
pub(super) struct Text<'a>(#[serde(borrow)] pub Cow<'a, str>);

/// The pairs of a JSON object in file order; duplicate keys are an error.
pub(super) struct Pairs<'a, T>(pub Vec<(Cow<'a, str>, T)>);

/// Deserializes the value of a key.
pub(super) trait ReadValue<'de>: Sized {
    fn read<A: MapAccess<'de>>(key: &str, map: &mut A) -> Result<Self, A::Error>;
}

impl<'de: 'a, 'a> ReadValue<'de> for Text<'a> {
    fn read<A: MapAccess<'de>>(key: &str, map: &mut A) -> Result<Self, A::Error> {
        map.next_value().map_err(|error| A::Error::custom(format!("\"{key}\": {error}")))
    }
}

impl<'de: 'a, 'a, T: ReadValue<'de>> Deserialize<'de> for Pairs<'a, T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(PairsVisitor(PhantomData)).map(Pairs)
    }
}

struct PairsVisitor<T>(PhantomData<T>);

impl<'de, T: ReadValue<'de>> Visitor<'de> for PairsVisitor<T> {
    type Value = Vec<(Cow<'de, str>, T)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut entries = Vec::new();
        while let Some(Text(key)) = map.next_key()? {
            let value = T::read(&key, &mut map)?;
            entries.push((key, value));
        }
        let mut seen = HashSet::with_capacity(entries.len());
        match entries.iter().find(|(key, _)| !seen.insert(key.as_ref())) {
            Some((key, _)) => Err(A::Error::custom(format!("the key \"{key}\" occurs twice"))),
            None => Ok(entries),
        }
    }
}
