//! Numbers in JSON, those included that JSON has no word for: `"inf"`, `"-inf"` and `"nan"` stand for what is not finite, so that a file is
//! read back exactly as it was written. A null, which older files have in their place, is read as not a number.
//!
//! For fields: `#[serde(with = "number")]`, or `number::list` and `number::pairs` for lists of them.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// `f32` or `f64`.
pub trait Number: Copy + Serialize + DeserializeOwned + std::fmt::Display + std::str::FromStr {
    /// What is not a number.
    const NAN: Self;
    /// Whether JSON has a word for it.
    fn is_finite(self) -> bool;
}

impl Number for f32 {
    const NAN: f32 = f32::NAN;
    fn is_finite(self) -> bool {
        f32::is_finite(self)
    }
}

impl Number for f64 {
    const NAN: f64 = f64::NAN;
    fn is_finite(self) -> bool {
        f64::is_finite(self)
    }
}

/// A number as it stands in a file.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Written<T> {
    Finite(T),
    Named(String),
    Nothing(()),
}

impl<T: Number> Written<T> {
    fn of(number: T) -> Written<T> {
        match number.is_finite() {
            true => Written::Finite(number),
            false => Written::Named(number.to_string().to_lowercase()),
        }
    }

    fn read<E: serde::de::Error>(self) -> Result<T, E> {
        match self {
            Written::Finite(number) => Ok(number),
            Written::Nothing(()) => Ok(T::NAN),
            Written::Named(name) if ["inf", "-inf", "nan"].contains(&name.as_str()) => {
                name.parse().map_err(|_| E::custom(format!("{name:?} is no number")))
            }
            Written::Named(name) => Err(E::custom(format!("{name:?} is neither a number nor inf, -inf or nan"))),
        }
    }
}

/// Writes one number.
pub fn serialize<T: Number, S: Serializer>(number: &T, to: S) -> Result<S::Ok, S::Error> {
    Written::of(*number).serialize(to)
}

/// Reads one number.
pub fn deserialize<'de, T: Number, D: Deserializer<'de>>(from: D) -> Result<T, D::Error> {
    Written::deserialize(from)?.read()
}

/// Lists of numbers.
pub mod list {
    use super::*;

    /// Writes a list.
    pub fn serialize<T: Number, S: Serializer>(numbers: &[T], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(numbers.iter().map(|number| Written::of(*number)))
    }

    /// Reads a list.
    pub fn deserialize<'de, T: Number, D: Deserializer<'de>>(from: D) -> Result<Vec<T>, D::Error> {
        Vec::<Written<T>>::deserialize(from)?.into_iter().map(Written::read).collect()
    }
}

/// Lists of ids with a number each.
pub mod pairs {
    use super::*;

    /// Writes a list.
    pub fn serialize<T: Number, S: Serializer>(pairs: &[(u32, T)], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(pairs.iter().map(|(id, number)| (id, Written::of(*number))))
    }

    /// Reads a list.
    pub fn deserialize<'de, T: Number, D: Deserializer<'de>>(from: D) -> Result<Vec<(u32, T)>, D::Error> {
        let pairs = Vec::<(u32, Written<T>)>::deserialize(from)?;
        pairs.into_iter().map(|(id, number)| Ok((id, number.read()?))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Serialize, Deserialize)]
    struct Kept {
        #[serde(with = "super")]
        one: f64,
        #[serde(with = "super::list")]
        many: Vec<f32>,
        #[serde(with = "super::pairs")]
        with_ids: Vec<(u32, f32)>,
    }

    #[test]
    fn every_number_comes_back_bit_by_bit() {
        let many = vec![0.1f32, -0.0, f32::MIN_POSITIVE, f32::INFINITY, f32::NEG_INFINITY, f32::MAX];
        for one in [f64::INFINITY, f64::NEG_INFINITY, f64::NAN, 0.1 + 0.2, 5e-324, -0.0, f64::MAX] {
            let kept = Kept { one, with_ids: many.iter().map(|x| (7, *x)).collect(), many: many.clone() };
            let text = serde_json::to_string(&kept).expect("JSON");
            assert!(!text.contains("null"), "{text}");
            let back: Kept = serde_json::from_str(&text).expect("the same");
            assert_eq!(back.one.to_bits(), one.to_bits(), "{text}");
            assert!(back.many.iter().zip(&many).all(|(a, b)| a.to_bits() == b.to_bits()), "{text}");
            assert!(back.with_ids.iter().zip(&many).all(|(a, b)| a.1.to_bits() == b.to_bits()), "{text}");
        }
        let old: Kept = serde_json::from_str(r#"{"one": null, "many": [1, "-inf"], "with_ids": []}"#).expect("read");
        assert!(old.one.is_nan() && old.many == [1.0, f32::NEG_INFINITY]);
        let bad = serde_json::from_str::<Kept>(r#"{"one": "bananas", "many": [], "with_ids": []}"#);
        assert!(bad.expect_err("no number").to_string().contains("bananas"));
    }
}
