//! Settings files of autoencoders: typed access whose errors name the file and the key.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::listing::Listing;
use crate::{Error, Result};

/// A settings file, possibly absent.
pub(super) struct Settings {
    pub path: PathBuf,
    value: Value,
}

impl Settings {
    /// Reads a JSON object; an absent file has no keys.
    pub fn read(listing: &Listing, file: &str) -> Result<Settings> {
        let value = listing.json(file)?.unwrap_or(Value::Null);
        Ok(Settings { path: listing.dir.join(file), value })
    }

    /// Reads a JSON object that must exist.
    pub fn required(listing: &Listing, file: &str) -> Result<Settings> {
        let settings = Settings::read(listing, file)?;
        match settings.exists() {
            true => Ok(settings),
            false => Err(Error::invalid(
                settings.path,
                "the file is missing",
                "download it too: it says how to read the weights",
            )),
        }
    }

    pub fn exists(&self) -> bool {
        self.value.is_object()
    }

    /// Settings inside a key (`trainer`); empty if it is absent.
    pub fn inside(&self, key: &str) -> Settings {
        Settings { path: self.path.clone(), value: self.value.get(key).cloned().unwrap_or(Value::Null) }
    }

    /// An error about a key.
    pub fn wrong(&self, key: &str, problem: impl std::fmt::Display) -> Error {
        Error::invalid(&self.path, format!("`{key}`: {problem}"), "download the file again, or correct it")
    }

    /// The value of a key, unless it is null.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.value.get(key).filter(|value| !value.is_null())
    }

    /// The keys of the object.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.value.as_object().into_iter().flat_map(|map| map.keys().map(String::as_str))
    }

    fn typed<'a, T>(&'a self, key: &str, expected: &str, read: impl Fn(&'a Value) -> Option<T>) -> Result<Option<T>> {
        match self.get(key) {
            None => Ok(None),
            Some(value) => match read(value) {
                Some(value) => Ok(Some(value)),
                None => Err(self.wrong(key, format!("expected {expected}, not {value}"))),
            },
        }
    }

    pub fn text(&self, key: &str) -> Result<Option<&str>> {
        self.typed(key, "a string", Value::as_str)
    }

    pub fn flag(&self, key: &str) -> Result<Option<bool>> {
        self.typed(key, "true or false", Value::as_bool)
    }

    /// A non-negative integer; `32.0` counts as one.
    pub fn size(&self, key: &str) -> Result<Option<usize>> {
        self.typed(key, "a whole number", |value| {
            let whole = value.as_f64().filter(|x| x.fract() == 0.0 && (0.0..9e15).contains(x)).map(|x| x as usize);
            value.as_u64().and_then(|x| usize::try_from(x).ok()).or(whole)
        })
    }

    pub fn number(&self, key: &str) -> Result<Option<f64>> {
        self.typed(key, "a number", |value| value.as_f64().filter(|x| x.is_finite()))
    }

    pub fn required_size(&self, key: &str) -> Result<usize> {
        self.size(key)?.filter(|&size| size > 0).ok_or_else(|| self.wrong(key, "expected a positive whole number"))
    }

    /// Checks a size that a tensor has against the one that the settings declare, if any.
    pub fn check_size(&self, key: &str, actual: usize, what: &str) -> Result<()> {
        match self.size(key)? {
            Some(declared) if declared != actual => {
                Err(self.wrong(key, format!("it is {declared}, but the weights have {what} {actual}")))
            }
            _ => Ok(()),
        }
    }

    /// Rejects keys that are not in `known`: each could change the results.
    pub fn check_keys(&self, known: &[&str]) -> Result<()> {
        match self.keys().find(|key| !known.contains(key)) {
            None => Ok(()),
            Some(key) => Err(Error::unsupported(
                format!("{}: unknown setting `{key}`, which could change the results", self.path.display()),
                "this variant of the format is not supported; remove the setting if it belongs to training only",
            )),
        }
    }
}

/// The whole path of a directory, with links resolved: releases encode settings in its names.
pub(super) fn whole_path(dir: &Path) -> String {
    dir.canonicalize().unwrap_or_else(|_| dir.to_owned()).to_string_lossy().into_owned()
}

/// The parts of a path.
pub(super) fn path_parts(path: &str) -> impl DoubleEndedIterator<Item = &str> {
    path.split(['/', '\\']).filter(|part| !part.is_empty())
}

/// The number that follows `start` in one of the path's names: 12 for `layer_` in `layer_12_width`.
/// The innermost directory has precedence.
pub(super) fn number_after(path: &str, start: &str) -> Option<usize> {
    path_parts(path).rev().find_map(|part| digits(part.split_once(start)?.1))
}

/// The number at the start of a text.
pub(super) fn digits(text: &str) -> Option<usize> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    text[..end].parse().ok()
}

/// The value of a top-level key of a YAML file.
pub(super) fn yaml(listing: &Listing, file: &str, key: &str) -> Option<String> {
    let bytes = listing.settings(file).ok().flatten()?;
    let text = String::from_utf8_lossy(&bytes);
    let value = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?.trim();
    let bare = ['"', '\''].into_iter().find_map(|quote| value.strip_prefix(quote)?.strip_suffix(quote));
    Some(bare.unwrap_or(value)).filter(|value| !value.is_empty()).map(str::to_owned)
}

/// The first of these JSON pointers with a non-empty string.
pub(crate) fn text_at(value: &Value, pointers: &[&str]) -> Option<String> {
    let first = pointers.iter().find_map(|pointer| value.pointer(pointer)?.as_str());
    first.filter(|text| !text.is_empty()).map(str::to_owned)
}

/// JSON pointers to the base model's name.
pub(crate) const BASE_MODEL_KEYS: &[&str] = &["/model_name", "/metadata/model_name", "/trainer/lm_name", "/lm_name"];
