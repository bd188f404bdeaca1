//! The Jinja environment that templates written for transformers expect.

use std::io;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Kwargs;
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Value};
use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};

/// Step limit of a template; a long conversation takes tens of thousands.
const FUEL: u64 = 20_000_000;
/// Prefix of errors raised by the template with `raise_exception`.
pub(super) const REFUSED: &str = "raise_exception: ";

/// Builds the environment, without templates.
pub(super) fn build() -> Environment<'static> {
    let mut environment = Environment::new();
    if let Ok(syntax) = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build() {
        environment.set_syntax(syntax);
    }
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_fuel(Some(FUEL));
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.add_function("raise_exception", |reason: String| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, format!("{REFUSED}{reason}")))
    });
    environment.add_function("strftime_now", strftime_now);
    environment.add_filter("tojson", tojson);
    environment
}

/// Formats the local time with Python's format codes; templates use it in system messages.
fn strftime_now(format: String) -> Result<String, Error> {
    let now = jiff::Zoned::now();
    jiff::fmt::strtime::format(&format, &now)
        .map_err(|error| Error::new(ErrorKind::InvalidOperation, format!("strftime_now({format:?}): {error}")))
}

/// Python's `json.dumps(value, ensure_ascii=False, indent=…)`; Jinja's own filter escapes for HTML.
fn tojson(value: Value, indent: Option<usize>, kwargs: Kwargs) -> Result<String, Error> {
    let indent = indent.or(kwargs.get("indent")?);
    // Accepted because templates pass it; the output is not ASCII-escaped either way in
    // transformers.
    let _: Option<bool> = kwargs.get("ensure_ascii")?;
    kwargs.assert_all_used()?;
    match indent {
        // Limited because the template is untrusted.
        Some(indent) => write_json(&value, PrettyFormatter::with_indent(" ".repeat(indent.min(16)).as_bytes())),
        None => write_json(&value, PythonFormatter),
    }
}

fn write_json(value: &Value, formatter: impl Formatter) -> Result<String, Error> {
    let failed = |error: String| Error::new(ErrorKind::BadSerialization, error);
    let mut bytes = Vec::new();
    value
        .serialize(&mut Serializer::with_formatter(&mut bytes, formatter))
        .map_err(|error| failed(error.to_string()))?;
    String::from_utf8(bytes).map_err(|error| failed(error.to_string()))
}

/// `{"a": 1, "b": [2, 3]}`: a space after commas and colons.
struct PythonFormatter;

impl Formatter for PythonFormatter {
    fn begin_array_value<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b": ")
    }
}

/// Replaces `{% generation %}`, a transformers tag around assistant text that Jinja does not have,
/// with `{% if true %}`. That keeps the text and the whitespace control of the tags.
pub(super) fn without_generation_tags(source: &str) -> String {
    let mut result = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start);
        result.push_str(before);
        let end = tag.find("%}").map_or(tag.len(), |end| end + 2);
        let (tag, after) = tag.split_at(end);
        let word = tag.trim_start_matches("{%").trim_end_matches("%}").trim_matches(['-', '+']).trim();
        match word {
            "generation" => result.push_str(&tag.replacen("generation", "if true", 1)),
            "endgeneration" => result.push_str(&tag.replacen("endgeneration", "endif", 1)),
            _ => result.push_str(tag),
        }
        rest = after;
    }
    result.push_str(rest);
    result
}
