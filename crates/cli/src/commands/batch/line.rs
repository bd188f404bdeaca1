//! A line of the batch file: one request.

use crate::failure::Failure;
use pellucid_engine::plan::parse_strict;
use pellucid_models::chat::Message;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

/// Longest file name, in bytes, that common file systems allow, less the suffix.
const MAX_NAME: usize = 240;

/// Names a request: text or a whole number. Ids with the same text are the same id.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum RequestName {
    Text(String),
    Number(u64),
}

impl RequestName {
    /// Reads an id; a line without one is named by its number.
    fn read(value: Option<Value>, line: u64) -> Result<RequestName, Failure> {
        let name = match value {
            None => return Ok(RequestName::Number(line)),
            Some(Value::String(text)) if !text.is_empty() => RequestName::Text(text),
            Some(Value::Number(number)) if number.is_u64() => RequestName::Number(number.as_u64().unwrap_or(line)),
            Some(other) => {
                return Err(Failure::usage(
                    format!("`id` is {other}"),
                    "an id is a text that is not empty, or a whole number",
                ));
            }
        };
        if name.file_stem().len() > MAX_NAME {
            return Err(Failure::usage("`id` is too long for the name of a file", "take at most 80 characters"));
        }
        Ok(name)
    }

    /// The id as text, which decides whether two ids are the same.
    pub fn key(&self) -> String {
        match self {
            RequestName::Text(text) => text.clone(),
            RequestName::Number(number) => number.to_string(),
        }
    }

    /// Returns a file name for the id: bytes other than letters, digits, `_`, `-` and inner dots
    /// become `%XX`, so that different ids give different names inside one directory.
    pub fn file_stem(&self) -> String {
        let key = self.key();
        let plain =
            |(at, byte): (usize, u8)| byte.is_ascii_alphanumeric() || b"_-".contains(&byte) || (byte == b'.' && at > 0);
        let spell = |(at, byte)| if plain((at, byte)) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
        key.bytes().enumerate().map(spell).collect()
    }
}

/// A request as written. A key that is absent takes the value of the flag.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RequestLine {
    pub prompt: Option<String>,
    pub messages: Option<Vec<Message>>,
    pub tokens: Option<Vec<u32>>,
    pub max_new: Option<usize>,
    pub temperature: Option<f32>,
    pub top_k: Option<usize>,
    pub top_p: Option<f32>,
    pub min_p: Option<f32>,
    pub repetition_penalty: Option<f32>,
    pub seed: Option<u64>,
    pub stop: Option<OneOrMany>,
    pub ignore_eos: Option<bool>,
    pub prompt_lookup: Option<usize>,
    /// Name of an attached adapter; null for the model without one.
    #[serde(default, deserialize_with = "present")]
    pub adapter: Option<Option<String>>,
    /// A plan, or the path of one.
    pub plan: Option<Value>,
    pub capture: Option<Vec<Value>>,
    /// Steering vectors as in `--steer`, or a steering spec.
    pub steer: Option<Steering>,
}

/// Reads a key that may be null, which differs from a key that is absent.
fn present<'de, D: Deserializer<'de>>(value: D) -> Result<Option<Option<String>>, D::Error> {
    Option::deserialize(value).map(Some)
}

/// `FILE[@SCALE][:LAYERS]`, a list of these, or a steering spec.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged, expecting = "`steer` is FILE[@SCALE][:LAYERS], a list of these, or a steering spec")]
pub enum Steering {
    Files(OneOrMany),
    Spec(Map<String, Value>),
}

/// A text or a list of texts.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged, expecting = "`stop` is a text or a list of texts")]
pub enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

impl OneOrMany {
    pub fn into_list(self) -> Vec<String> {
        match self {
            OneOrMany::One(text) => vec![text],
            OneOrMany::Many(texts) => texts,
        }
    }
}

/// Reads a line. The id is returned as soon as it is known, so that an error can name it.
pub fn read(text: &[u8], line: u64) -> (Option<RequestName>, Result<RequestLine, Failure>) {
    const FORM: &str = "a line is one JSON object such as {\"id\": \"a\", \"prompt\": \"One day,\", \"max_new\": 20}";
    let mut object: Map<String, Value> = match parse_strict(text) {
        Ok(object) => object,
        Err(error) => {
            // Each line is a document of its own, so only the column helps.
            let problem = error.to_string();
            let problem = problem.split(" at line ").next().unwrap_or_default();
            return (None, Err(Failure::usage(format!("not a request: {problem} (column {})", error.column()), FORM)));
        }
    };
    let name = match RequestName::read(object.remove("id"), line) {
        Ok(name) => name,
        Err(failure) => return (None, Err(failure)),
    };
    let request = serde_json::from_value(Value::Object(object)).map_err(|error| {
        Failure::usage(error.to_string(), "docs/batching.md lists the keys of a request and their values")
    });
    (Some(name), request)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_names_are_safe_and_differ() {
        let name = |text: &str| RequestName::Text(text.into()).file_stem();
        assert_eq!(name("a-b_c.1"), "a-b_c.1");
        assert_eq!(name("../x"), "%2E.%2Fx");
        assert_eq!(name("a b/ü%"), "a%20b%2F%C3%BC%25");
        assert_eq!(RequestName::Number(7).file_stem(), "7");
        assert_ne!(name("a%2F"), name("a/"));
    }

    #[test]
    fn broken_lines_name_the_problem_and_the_id_if_it_is_known() {
        let message = |text: &str| {
            let (name, request) = read(text.as_bytes(), 3);
            let failure = request.expect_err("it is broken");
            (name.map(|name| name.key()), failure.message().to_owned())
        };
        let (name, problem) = message(r#"{"id": "a", "prompt": "#);
        assert_eq!((name, problem.contains("column 22")), (None, true), "{problem}");
        let (name, problem) = message(r#"{"id": "a", "promt": "x"}"#);
        assert_eq!((name.as_deref(), problem.contains("`promt`")), (Some("a"), true), "{problem}");
        assert!(message("[1]").1.contains("not a request"));
        assert!(message(r#"{"id": 1.5}"#).1.contains("`id` is 1.5"));
        assert!(message(r#"{"id": ""}"#).1.contains("`id` is \"\""));
        assert!(message(&format!(r#"{{"id": "{}"}}"#, "ü".repeat(100))).1.contains("too long"));
        assert!(message(r#"{"max_new": "ten"}"#).1.contains("ten"));
        assert!(message(r#"{"stop": 5}"#).1.contains("`stop`"));
    }
}
