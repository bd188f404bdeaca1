//! Limits on what a chat template may make: depth and size of a value, and the work of a render.
//!
//! A template comes with the model and is untrusted. Steps alone do not bound it: one step can
//! double a string. So every value that a template makes is measured ([`Budget::accept`]). Its size
//! counts each element of a list or map and each byte of a string, as often as it occurs, because
//! that is the cost of printing or comparing it.

use super::namespace::Namespace;
use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};
use std::sync::atomic::{AtomicU64, Ordering};

/// Size limit of a value and of the rendered text, beside [`INPUT_FACTOR`] times the messages.
const MAX_VALUE_BYTES: u64 = 4 << 20;
/// The rendered text may repeat the messages this many times.
const INPUT_FACTOR: u64 = 4;
/// Limit of the bytes of all strings that a template makes, in units of the limit of one value.
const STRINGS: u64 = 64;
/// Limit of the work of a render: elements visited, or 64 bytes read.
const MAX_WORK: u64 = 32_000_000;
/// Size of an element of a list or map, beside its own bytes.
const ELEMENT_BYTES: u64 = 32;
/// Depth limit of lists and maps. JSON that a caller passes has at most 128 levels.
const MAX_DEPTH: usize = 200;

/// What a render may still use.
pub(super) struct Budget {
    value_bytes: u64,
    /// Bytes of new strings that are left.
    strings: AtomicU64,
    /// Work that is left.
    work: AtomicU64,
}

/// The size of a value.
#[derive(Default)]
struct Size {
    elements: u64,
    bytes: u64,
}

impl Budget {
    /// The budget of a render whose messages and variables have `input_bytes`.
    pub(super) fn new(input_bytes: usize) -> Budget {
        let value_bytes = MAX_VALUE_BYTES.saturating_add((input_bytes as u64).saturating_mul(INPUT_FACTOR));
        let strings = value_bytes.saturating_mul(STRINGS);
        Budget { value_bytes, strings: strings.into(), work: MAX_WORK.into() }
    }

    /// Checks the size that a string or list is about to have.
    pub(super) fn check_bytes(&self, bytes: u64) -> Result<(), Error> {
        if bytes > self.value_bytes {
            return Err(exceeded(format!("it makes a value of {bytes} bytes; the limit is {}", self.value_bytes)));
        }
        Ok(())
    }

    /// Checks the length that a list is about to have.
    pub(super) fn check_elements(&self, elements: u64) -> Result<(), Error> {
        self.check_bytes(elements.saturating_mul(ELEMENT_BYTES))
    }

    /// Charges the work of reading a value.
    pub(super) fn read(&self, value: &Value) -> Result<(), Error> {
        let size = self.measure(value)?;
        self.charge_work(size.elements + size.bytes / 64)
    }

    /// Charges a value that was made, and checks its size and depth.
    pub(super) fn accept(&self, value: &Value) -> Result<(), Error> {
        self.read(value)?;
        let bytes = value.as_str().map_or(0, str::len) as u64;
        charge(&self.strings, bytes).ok_or_else(|| exceeded("it makes too much text".into()))
    }

    fn charge_work(&self, work: u64) -> Result<(), Error> {
        charge(&self.work, work + 1).ok_or_else(|| exceeded("it takes too much work".into()))
    }

    fn measure(&self, value: &Value) -> Result<Size, Error> {
        let mut size = Size::default();
        self.add(value, 0, &mut size)?;
        Ok(size)
    }

    fn add(&self, value: &Value, depth: usize, size: &mut Size) -> Result<(), Error> {
        size.elements += 1;
        self.check_bytes(size.elements * ELEMENT_BYTES + size.bytes)?;
        if depth > MAX_DEPTH {
            return Err(exceeded(format!("its lists or maps are more than {MAX_DEPTH} levels deep")));
        }
        match value.kind() {
            ValueKind::String => size.bytes += value.as_str().map_or(0, str::len) as u64,
            ValueKind::Bytes => size.bytes += value.as_bytes().map_or(0, <[u8]>::len) as u64,
            ValueKind::Seq | ValueKind::Iterable => {
                for item in value.try_iter()? {
                    self.add(&item, depth + 1, size)?;
                }
            }
            // A namespace can change after it was stored, so that it contains itself.
            ValueKind::Map if depth > 0 && is_namespace(value) => {
                return Err(exceeded("it stores a namespace inside another value".into()));
            }
            ValueKind::Map if is_namespace(value) => {}
            ValueKind::Map => {
                for key in value.try_iter()? {
                    self.add(&key, depth + 1, size)?;
                    self.add(&value.get_item(&key)?, depth + 1, size)?;
                }
            }
            _ => {}
        }
        self.check_bytes(size.elements * ELEMENT_BYTES + size.bytes)
    }
}

/// Subtracts `amount` from what is left; `None` if that is not enough.
fn charge(left: &AtomicU64, amount: u64) -> Option<()> {
    left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(amount)).ok().map(drop)
}

/// Prefix of errors about a limit.
pub(super) const EXCEEDED: &str = "limit exceeded: ";

fn exceeded(problem: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("{EXCEEDED}{problem}"))
}

fn is_namespace(value: &Value) -> bool {
    value.downcast_object_ref::<Namespace>().is_some()
}
