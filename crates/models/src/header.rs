//! Reads the header of a safetensors file only, so that a file with truncated data can be
//! inspected.

use std::borrow::Cow;
use std::fmt;
use std::io::Read;
use std::path::Path;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};

use crate::checkpoint::StoredType;
use crate::files::{LFS_POINTER, open_regular};

/// Limit of the reference implementation.
const MAX_HEADER_BYTES: u64 = 100_000_000;

/// Description of a tensor in the header.
pub(crate) struct HeaderEntry<'a> {
    pub(crate) name: &'a str,
    pub(crate) dtype: &'static str,
    pub(crate) elements: u64,
}

/// Message about a damaged file.
pub(crate) type Fault = String;

/// Calls `visit` for every tensor of a file, in the order of the header.
pub(crate) fn scan(path: &Path, visit: &mut dyn FnMut(&HeaderEntry<'_>)) -> Result<(), Fault> {
    let message = |error: std::io::Error| error.to_string();
    let mut file = open_regular(path).map_err(|error| error.to_string())?;
    // One read fetches the length and, if it is small, the whole header.
    let mut start = [0; 8192];
    let mut read = 0;
    while read < 8 {
        match file.read(&mut start[read..]).map_err(message)? {
            0 => return Err("the file is too short for a safetensors header".into()),
            more => read += more,
        }
    }
    let (length, rest) = start[..read].split_at(8);
    if LFS_POINTER.starts_with(length) {
        return Err("this is a Git LFS pointer, not the weights".into());
    }
    let length = u64::from_le_bytes(length.try_into().map_err(|_| "no length".to_owned())?);
    if length > MAX_HEADER_BYTES {
        return Err(format!("the header claims {length} bytes: this is not a safetensors file"));
    }
    if let Some(json) = rest.get(..length as usize) {
        return parse_entries(json, visit);
    }
    let mut json = Vec::with_capacity(length as usize);
    json.extend_from_slice(rest);
    file.take(length - rest.len() as u64).read_to_end(&mut json).map_err(message)?;
    parse_entries(&json, visit)
}

fn parse_entries(json: &[u8], visit: &mut dyn FnMut(&HeaderEntry<'_>)) -> Result<(), Fault> {
    let mut deserializer = serde_json::Deserializer::from_slice(json);
    Header(visit).deserialize(&mut deserializer).map_err(|error| format!("the header is not valid: {error}"))
}

struct Header<'v>(&'v mut dyn FnMut(&HeaderEntry<'_>));

impl<'de> DeserializeSeed<'de> for Header<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

#[derive(Deserialize)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

#[derive(Deserialize)]
struct Info<'a> {
    #[serde(borrow)]
    dtype: Cow<'a, str>,
    shape: Elements,
}

/// Number of elements of a shape.
struct Elements(u64);

impl<'de> Deserialize<'de> for Elements {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Elements, D::Error> {
        struct Product;
        impl<'de> Visitor<'de> for Product {
            type Value = Elements;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of sizes")
            }

            fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut sizes: A) -> Result<Elements, A::Error> {
                let mut product = 1u64;
                while let Some(size) = sizes.next_element::<u64>()? {
                    let next = product.checked_mul(size);
                    product = next.ok_or_else(|| A::Error::custom("the product of a shape overflows"))?;
                }
                Ok(Elements(product))
            }
        }
        deserializer.deserialize_seq(Product)
    }
}

impl<'de> Visitor<'de> for Header<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(Name(name)) = map.next_key()? {
            if name == "__metadata__" {
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            let info: Info<'_> =
                map.next_value().map_err(|error| A::Error::custom(format!("tensor `{name}`: {error}")))?;
            let known = StoredType::from_name(&info.dtype).ok_or_else(|| {
                A::Error::custom(format!("tensor `{name}`: unknown format {}", info.dtype.escape_debug()))
            })?;
            (self.0)(&HeaderEntry { name: &name, dtype: known.name(), elements: info.shape.0 });
        }
        Ok(())
    }
}
