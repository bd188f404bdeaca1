//! Serializes floats to JSON, including non-finite values as `"inf"`, `"-inf"` and `"nan"`, so that
//! a file is read back bit for bit. A null, which older files have in their place, is read as NaN.
//!
//! For fields: `#[serde(with = "json_float")]`, or `json_float::list` and `json_float::pairs` for
//! lists.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// `f32` or `f64`.
pub trait Float: Copy + Serialize + DeserializeOwned + std::fmt::Display + std::str::FromStr {
    /// NaN.
    const NAN: Self;
    /// Whether JSON can represent the value as a number.
    fn is_finite(self) -> bool;
}

impl Float for f32 {
    const NAN: f32 = f32::NAN;
    fn is_finite(self) -> bool {
        f32::is_finite(self)
    }
}

impl Float for f64 {
    const NAN: f64 = f64::NAN;
    fn is_finite(self) -> bool {
        f64::is_finite(self)
    }
}

/// The JSON form of a float.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum JsonFloat<T> {
    Finite(T),
    Named(String),
    Null(()),
}

impl<T: Float> JsonFloat<T> {
    fn of(number: T) -> JsonFloat<T> {
        match number.is_finite() {
            true => JsonFloat::Finite(number),
            false => JsonFloat::Named(number.to_string().to_lowercase()),
        }
    }

    fn read<E: serde::de::Error>(self) -> Result<T, E> {
        match self {
            JsonFloat::Finite(number) => Ok(number),
            JsonFloat::Null(()) => Ok(T::NAN),
            JsonFloat::Named(name) if ["inf", "-inf", "nan"].contains(&name.as_str()) => {
                name.parse().map_err(|_| E::custom(format!("{name:?} is not a number")))
            }
            JsonFloat::Named(name) => Err(E::custom(format!("{name:?} is neither a number nor inf, -inf or nan"))),
        }
    }
}

/// Serializes one float.
pub fn serialize<T: Float, S: Serializer>(number: &T, to: S) -> Result<S::Ok, S::Error> {
    JsonFloat::of(*number).serialize(to)
}

/// Deserializes one float.
pub fn deserialize<'de, T: Float, D: Deserializer<'de>>(from: D) -> Result<T, D::Error> {
    JsonFloat::deserialize(from)?.read()
}

/// Lists of floats.
pub mod list {
    use super::*;

    /// Writes a list.
    pub fn serialize<T: Float, S: Serializer>(numbers: &[T], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(numbers.iter().map(|number| JsonFloat::of(*number)))
    }

    /// Reads a list.
    pub fn deserialize<'de, T: Float, D: Deserializer<'de>>(from: D) -> Result<Vec<T>, D::Error> {
        Vec::<JsonFloat<T>>::deserialize(from)?.into_iter().map(JsonFloat::read).collect()
    }
}

/// Lists of (id, float).
pub mod pairs {
    use super::*;

    /// Writes a list.
    pub fn serialize<T: Float, S: Serializer>(pairs: &[(u32, T)], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(pairs.iter().map(|(id, number)| (id, JsonFloat::of(*number))))
    }

    /// Reads a list.
    pub fn deserialize<'de, T: Float, D: Deserializer<'de>>(from: D) -> Result<Vec<(u32, T)>, D::Error> {
        let pairs = Vec::<(u32, JsonFloat<T>)>::deserialize(from)?;
        pairs.into_iter().map(|(id, number)| Ok((id, number.read()?))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Serialize, Deserialize)]
    struct Sample {
        #[serde(with = "super")]
        single: f64,
        #[serde(with = "super::list")]
        list: Vec<f32>,
        #[serde(with = "super::pairs")]
        with_ids: Vec<(u32, f32)>,
    }

    #[test]
    fn every_float_is_read_back_bit_for_bit() {
        let list = vec![0.1f32, -0.0, f32::MIN_POSITIVE, f32::INFINITY, f32::NEG_INFINITY, f32::MAX];
        for single in [f64::INFINITY, f64::NEG_INFINITY, f64::NAN, 0.1 + 0.2, 5e-324, -0.0, f64::MAX] {
            let sample = Sample { single, with_ids: list.iter().map(|x| (7, *x)).collect(), list: list.clone() };
            let text = serde_json::to_string(&sample).expect("JSON");
            assert!(!text.contains("null"), "{text}");
            let back: Sample = serde_json::from_str(&text).expect("the same");
            assert_eq!(back.single.to_bits(), single.to_bits(), "{text}");
            assert!(back.list.iter().zip(&list).all(|(a, b)| a.to_bits() == b.to_bits()), "{text}");
            assert!(back.with_ids.iter().zip(&list).all(|(a, b)| a.1.to_bits() == b.to_bits()), "{text}");
        }
        let old: Sample =
            serde_json::from_str(r#"{"single": null, "list": [1, "-inf"], "with_ids": []}"#).expect("read");
        assert!(old.single.is_nan() && old.list == [1.0, f32::NEG_INFINITY]);
        let bad = serde_json::from_str::<Sample>(r#"{"single": "bananas", "list": [], "with_ids": []}"#);
        assert!(bad.expect_err("not a float").to_string().contains("bananas"));
    }
}
