//! Refuses JSON in which an object has the same key twice.
//!
//! serde refuses a repeated field of a struct, but in free-form parts, such as a plan, the last one
//! would win silently.

use crate::api_error::{ApiError, ApiResult};
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;

/// Checks a body. Syntax errors are left to the parser of the request.
pub fn check(bytes: &[u8]) -> ApiResult<()> {
    let mut json = serde_json::Deserializer::from_slice(bytes);
    match Value(&Path::Root).deserialize(&mut json) {
        Err(error) if error.is_data() => {
            let message = error.to_string();
            let path = message.strip_prefix(REPEATED).and_then(|rest| rest.split('`').next());
            let message = message.split(" at line ").next().unwrap_or(&message);
            Err(ApiError::field(path.unwrap_or_default(), message))
        }
        _ => Ok(()),
    }
}

/// Start of the message, before the path.
const REPEATED: &str = "duplicate field `";

/// Where a value is. Only the error renders it, so arrays of numbers cost no allocation.
enum Path<'a> {
    Root,
    Key(&'a Path<'a>, &'a str),
    Index(&'a Path<'a>, usize),
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Path::Root => Ok(()),
            Path::Key(Path::Root, key) => f.write_str(key),
            Path::Key(outer, key) => write!(f, "{outer}.{key}"),
            Path::Index(outer, index) => write!(f, "{outer}[{index}]"),
        }
    }
}

struct Value<'a>(&'a Path<'a>);

impl<'de> DeserializeSeed<'de> for Value<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<(), D::Error> {
        json.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Value<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut seen: HashSet<String> = HashSet::new();
        while let Some(key) = map.next_key::<Cow<'_, str>>()? {
            let path = Path::Key(self.0, &key);
            if seen.contains(key.as_ref()) {
                return Err(A::Error::custom(format!("{REPEATED}{path}`")));
            }
            map.next_value_seed(Value(&path))?;
            seen.insert(key.into_owned());
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        let mut index = 0;
        while list.next_element_seed(Value(&Path::Index(self.0, index)))?.is_some() {
            index += 1;
        }
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_keys_are_refused_at_any_depth_with_their_path() {
        let param = |text: &str| check(text.as_bytes()).err().map(|error| error.detail.param.unwrap_or_default());
        assert_eq!(param(r#"{"a": 1, "a": 2}"#).as_deref(), Some("a"));
        assert_eq!(
            param(r#"{"plan": {"taps": [{}, {"site": "x", "site": "y"}]}}"#).as_deref(),
            Some("plan.taps[1].site")
        );
        assert_eq!(param(r#"{"plan": {"a\u0062": 1, "ab": 2}}"#).as_deref(), Some("plan.ab"), "as JSON reads them");
        for fine in
            [r#"{"a": {"b": 1}, "b": [{"a": 1}, {"a": 2}]}"#, "{\"a\": ", "[1, 2.5, null, true, \"x\"]", "1e999"]
        {
            assert_eq!(param(fine), None, "{fine}");
        }
    }
}
