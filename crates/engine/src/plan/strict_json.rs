//! JSON values of a plan, read strictly: a key may occur once in an object, and a number must fit
//! into f32. `serde_json::Value` keeps the last of equal keys, and a cast to f32 makes 1e39
//! infinite: both would run another plan than the one that was written.

use serde::Serialize;
use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use std::fmt;

/// Parses a JSON object that contains plans strictly, as
/// [`Plan::from_json`](super::Plan::from_json) does: an error for a repeated key, or a number
/// beyond f32, anywhere in it.
pub fn parse_strict(text: &[u8]) -> Result<Map<String, Value>, serde_json::Error> {
    serde_json::from_slice::<StrictMap>(text).map(|map| map.0)
}

/// A JSON value without repeated keys and numbers beyond f32.
#[derive(Serialize)]
#[serde(transparent)]
pub(super) struct StrictValue(pub Value);

/// A JSON object without repeated keys and numbers beyond f32.
#[derive(Serialize)]
#[serde(transparent)]
pub(super) struct StrictMap(pub Map<String, Value>);

impl<'de> Deserialize<'de> for StrictValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<StrictValue, D::Error> {
        deserializer.deserialize_any(ValueVisitor).map(StrictValue)
    }
}

impl<'de> Deserialize<'de> for StrictMap {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<StrictMap, D::Error> {
        deserializer.deserialize_map(MapVisitor).map(StrictMap)
    }
}

struct MapVisitor;

impl<'de> Visitor<'de> for MapVisitor {
    type Value = Map<String, Value>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Map<String, Value>, A::Error> {
        let mut map = Map::new();
        while let Some(key) = access.next_key::<String>()? {
            let value: StrictValue = access.next_value()?;
            if map.contains_key(&key) {
                return Err(de::Error::custom(format!("the key `{key}` occurs twice")));
            }
            map.insert(key, value.0);
        }
        Ok(map)
    }
}

struct ValueVisitor;

impl<'de> Visitor<'de> for ValueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Value, E> {
        match Number::from_f64(value).filter(|_| (value as f32).is_finite()) {
            Some(number) => Ok(Value::Number(number)),
            None => Err(de::Error::custom(format!("the number {value:e} is beyond the range of f32"))),
        }
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_string<E: de::Error>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_unit<E: de::Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E: de::Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        StrictValue::deserialize(deserializer).map(|value| value.0)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(value) = access.next_element::<StrictValue>()? {
            list.push(value.0);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, access: A) -> Result<Value, A::Error> {
        MapVisitor.visit_map(access).map(Value::Object)
    }
}

#[cfg(test)]
mod tests {
    use crate::Plan;

    fn refused(tap: &str) -> String {
        let text = format!(r#"{{"taps": [{{"site": "layers.0.z", {tap}}}]}}"#);
        Plan::from_json(&text).expect_err("a refusal")
    }

    #[test]
    fn f16_a_key_may_occur_once() {
        assert!(refused(r#""scale": 2, "scale": 3"#).contains("`scale` occurs twice"));
        assert!(refused(r#""add": {"vector": [1, 2], "scale": 3, "scale": 4}"#).contains("`scale` occurs twice"));
        assert!(refused(r#""rows": [0], "rows": [1], "zero": true"#).contains("duplicate field `rows`"));
        let value = r#"{"taps": [], "values": [{"name": "a", "name": "b", "constant": 1}]}"#;
        assert!(Plan::from_json(value).is_err_and(|problem| problem.contains("`name` occurs twice")));
    }

    #[test]
    fn f16_a_number_beyond_f32_is_refused() {
        for tap in
            [r#""set": 1e39"#, r#""scale": -1e39"#, r#""set": [1, 1e300]"#, r#""add": {"vector": [1], "scale": 1e39}"#]
        {
            assert!(refused(tap).contains("beyond the range of f32"), "{tap}");
        }
        let constant = r#"{"taps": [], "values": [{"name": "a", "constant": [[1e39]]}]}"#;
        assert!(Plan::from_json(constant).is_err_and(|problem| problem.contains("beyond the range of f32")));
        assert!(Plan::from_json(r#"{"taps": [{"site": "layers.0.z", "set": 3.4e38}]}"#).is_ok());
    }
}
