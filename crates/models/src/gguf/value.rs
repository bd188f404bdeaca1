//! The typed metadata values of a GGUF file, and the bounds-checked cursor that reads them.

use std::ops::Range;

/// Maximum nesting of arrays. Real files have no nested arrays; the limit keeps a hostile file from
/// overflowing the stack.
const MAX_DEPTH: usize = 4;

/// One metadata value.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Any of the unsigned integer types.
    Unsigned(u64),
    /// Any of the signed integer types.
    Signed(i64),
    /// An f32. Not widened to f64, because that turns 1e-5 into 9.999999747e-6.
    F32(f32),
    /// An f64.
    F64(f64),
    /// A boolean.
    Bool(bool),
    /// UTF-8 text.
    Text(String),
    /// An array; its elements stay in the file until they are read.
    List(List),
}

/// An array in the file: bounds-checked, not copied.
#[derive(Clone, Debug, PartialEq)]
pub struct List {
    /// Element type.
    pub kind: ValueKind,
    /// The number of elements.
    pub len: usize,
    /// Byte range of the elements in the file.
    pub(super) bytes: Range<usize>,
}

/// The value types of GGUF, in the order of their type numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum ValueKind {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    Text,
    List,
    U64,
    I64,
    F64,
}

impl ValueKind {
    fn from_number(number: u32) -> Option<ValueKind> {
        use ValueKind::*;
        [U8, I8, U16, I16, U32, I32, F32, Bool, Text, List, U64, I64, F64].get(number as usize).copied()
    }

    /// Bytes per value, if the type has a fixed size.
    fn size(self) -> Option<usize> {
        use ValueKind::*;
        match self {
            U8 | I8 | Bool => Some(1),
            U16 | I16 => Some(2),
            U32 | I32 | F32 => Some(4),
            U64 | I64 | F64 => Some(8),
            Text | List => None,
        }
    }
}

/// Reads the file sequentially. Errors contain the byte offset; the caller adds the context.
pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    pub(super) at: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8], at: usize) -> Self {
        Cursor { bytes, at }
    }

    fn rest(&self) -> usize {
        self.bytes.len().saturating_sub(self.at)
    }

    fn take(&mut self, count: usize, what: &str) -> Result<&'a [u8], String> {
        if count > self.rest() {
            return Err(format!(
                "{what} at byte {} takes {count} bytes, but the file ends {} later",
                self.at,
                self.rest()
            ));
        }
        let taken = &self.bytes[self.at..self.at + count];
        self.at += count;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N], String> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N, what)?);
        Ok(out)
    }

    pub(super) fn u32(&mut self, what: &str) -> Result<u32, String> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    pub(super) fn u64(&mut self, what: &str) -> Result<u64, String> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    /// Reads a length-prefixed string.
    pub(super) fn text(&mut self, what: &str) -> Result<&'a str, String> {
        let at = self.at;
        let bytes = self.text_bytes(what)?;
        std::str::from_utf8(bytes).map_err(|_| format!("{what} at byte {at} is not valid UTF-8"))
    }

    fn text_bytes(&mut self, what: &str) -> Result<&'a [u8], String> {
        let at = self.at;
        let len = self.u64(what)?;
        let fits = usize::try_from(len).ok().filter(|len| *len <= self.rest());
        let len = fits.ok_or_else(|| {
            format!("{what} at byte {at} claims {len} bytes, but only {} are left in the file", self.rest())
        })?;
        self.take(len, what)
    }

    fn kind(&mut self, what: &str) -> Result<ValueKind, String> {
        let at = self.at;
        let number = self.u32(what)?;
        ValueKind::from_number(number).ok_or_else(|| format!("{what} at byte {at} has the unknown type {number}"))
    }

    /// Reads a type number and a value of that type.
    pub(super) fn value(&mut self) -> Result<Value, String> {
        let kind = self.kind("the value")?;
        self.value_of(kind)
    }

    fn value_of(&mut self, kind: ValueKind) -> Result<Value, String> {
        let what = "the value";
        Ok(match kind {
            ValueKind::U8 => Value::Unsigned(self.array::<1>(what)?[0].into()),
            ValueKind::I8 => Value::Signed((self.array::<1>(what)?[0] as i8).into()),
            ValueKind::U16 => Value::Unsigned(u16::from_le_bytes(self.array(what)?).into()),
            ValueKind::I16 => Value::Signed(i16::from_le_bytes(self.array(what)?).into()),
            ValueKind::U32 => Value::Unsigned(self.u32(what)?.into()),
            ValueKind::I32 => Value::Signed(i32::from_le_bytes(self.array(what)?).into()),
            ValueKind::F32 => Value::F32(f32::from_le_bytes(self.array(what)?)),
            ValueKind::Bool => Value::Bool(self.array::<1>(what)?[0] != 0),
            ValueKind::Text => Value::Text(self.text(what)?.to_owned()),
            ValueKind::List => Value::List(self.list(1)?),
            ValueKind::U64 => Value::Unsigned(self.u64(what)?),
            ValueKind::I64 => Value::Signed(i64::from_le_bytes(self.array(what)?)),
            ValueKind::F64 => Value::F64(f64::from_le_bytes(self.array(what)?)),
        })
    }

    /// Skips over an array to check that it is inside the file; allocates nothing.
    fn list(&mut self, depth: usize) -> Result<List, String> {
        let at = self.at;
        if depth > MAX_DEPTH {
            return Err(format!("arrays are nested more than {MAX_DEPTH} deep at byte {at}"));
        }
        let kind = self.kind("the array")?;
        let len = self.u64("the array's length")?;
        // Every element takes at least one byte, so `len` cannot exceed the remaining bytes.
        let checked = usize::try_from(len).ok().filter(|len| *len <= self.rest());
        let len = checked.ok_or_else(|| {
            format!("the array at byte {at} claims {len} elements, but only {} bytes are left in the file", self.rest())
        })?;
        let start = self.at;
        match (kind, kind.size()) {
            (_, Some(size)) => {
                let bytes = len.checked_mul(size).ok_or_else(|| format!("the array at byte {at} is too long"))?;
                self.take(bytes, "the array")?;
            }
            (ValueKind::List, None) => {
                for _ in 0..len {
                    self.list(depth + 1)?;
                }
            }
            (_, None) => {
                for _ in 0..len {
                    self.text_bytes("a text of the array")?;
                }
            }
        }
        Ok(List { kind, len, bytes: start..self.at })
    }
}

impl List {
    /// The elements as strings borrowed from the file; `None` if they are not strings.
    pub(super) fn texts<'a>(&self, file: &'a [u8]) -> Option<Result<Vec<&'a str>, String>> {
        if self.kind != ValueKind::Text {
            return None;
        }
        let mut cursor = Cursor::new(file, self.bytes.start);
        // There are tens of thousands of strings, so the index is formatted only on error.
        let text = |i: usize| cursor.text("a text").map_err(|problem| format!("element {i} of the array: {problem}"));
        Some((0..self.len).map(text).collect())
    }

    /// The elements in order; empty for nested arrays, which no metadata in use needs.
    pub(super) fn values<'a>(&self, file: &'a [u8]) -> impl Iterator<Item = Value> + use<'a> {
        let mut cursor = Cursor::new(file, self.bytes.start);
        let (kind, len) = (self.kind, if self.kind == ValueKind::List { 0 } else { self.len });
        (0..len).map_while(move |_| cursor.value_of(kind).ok())
    }
}
