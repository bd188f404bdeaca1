//! The Jinja environment that templates written for transformers expect.

use std::io;
use std::sync::Arc;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Kwargs;
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Value, tests};
use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};

use super::budget::Budget;
use super::namespace::Namespace;
use super::{compile, filters};

/// Step limit of a template; a long conversation takes tens of thousands.
const FUEL: u64 = 20_000_000;
/// Prefix of errors raised by the template with `raise_exception`.
pub(super) const REFUSED: &str = "raise_exception: ";

/// The syntax of transformers' templates.
pub(super) fn syntax() -> SyntaxConfig {
    SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build().unwrap_or_default()
}

/// Builds the environment of one render, which charges `budget`.
pub(super) fn build(budget: &Arc<Budget>) -> Environment<'static> {
    let mut environment = Environment::empty();
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_fuel(Some(FUEL));
    let own = |function: fn(&Budget, &Value) -> Result<(), Error>| {
        let budget = Arc::clone(budget);
        move |value: Value| function(&budget, &value).map(|()| value)
    };
    environment.add_function(compile::ACCEPT, own(Budget::accept));
    environment.add_function(compile::READ, own(Budget::read));
    environment.add_function(
        compile::READ_TEXT,
        own(|budget, value| if value.as_str().is_some() { budget.read(value) } else { Ok(()) }),
    );
    let shared = Arc::clone(budget);
    environment
        .add_function(compile::MULTIPLY, move |left: Value, right: Value| filters::multiply(&shared, &left, &right));
    let shared = Arc::clone(budget);
    environment.add_function(compile::SET_ATTRIBUTE, move |value: Value, target: Value, name: String| {
        Namespace::set_attribute(&shared, value, &target, &name)
    });
    let shared = Arc::clone(budget);
    environment.add_function("namespace", move |defaults: Option<Value>, kwargs: Kwargs| {
        Namespace::create(&shared, defaults, kwargs)
    });
    environment.add_global(compile::ONE, Value::from(1));
    environment.add_function("range", minijinja::functions::range);
    environment.add_function("dict", minijinja::functions::dict);
    environment.add_function("raise_exception", |reason: String| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, format!("{REFUSED}{reason}")))
    });
    environment.add_function("strftime_now", strftime_now);
    add_tests(&mut environment);
    filters::add_all(&mut environment, budget);
    let shared = Arc::clone(budget);
    environment.set_unknown_method_callback(move |state, value, method, args| {
        filters::call_method(&shared, state, value, method, args)
    });
    let shared = Arc::clone(budget);
    environment.set_formatter(move |out, state, value| {
        shared.accept(value)?;
        minijinja::escape_formatter(out, state, value)
    });
    environment
}

/// Formats the local time with Python's format codes; templates use it in system messages.
fn strftime_now(format: String) -> Result<String, Error> {
    let now = jiff::Zoned::now();
    jiff::fmt::strtime::format(&format, &now)
        .map_err(|error| Error::new(ErrorKind::InvalidOperation, format!("strftime_now({format:?}): {error}")))
}

/// Python's `json.dumps(value, ensure_ascii=False, indent=…)`; Jinja's own filter escapes for HTML.
pub(super) fn tojson(budget: &Budget, value: Value, indent: Option<usize>, kwargs: Kwargs) -> Result<String, Error> {
    let indent = indent.or(kwargs.get("indent")?);
    // Accepted because templates pass it; the output is not ASCII-escaped either way in
    // transformers.
    let _: Option<bool> = kwargs.get("ensure_ascii")?;
    kwargs.assert_all_used()?;
    match indent {
        // Limited because the template is untrusted.
        Some(indent) => write_json(budget, &value, PrettyFormatter::with_indent(" ".repeat(indent.min(16)).as_bytes())),
        None => write_json(budget, &value, PythonFormatter),
    }
}

fn write_json(budget: &Budget, value: &Value, formatter: impl Formatter) -> Result<String, Error> {
    let failed = |error: String| Error::new(ErrorKind::BadSerialization, error);
    budget.read(value)?;
    let mut out = BoundedWriter { bytes: Vec::new(), budget, exceeded: None };
    let written = value.serialize(&mut Serializer::with_formatter(&mut out, formatter));
    if let Some(error) = out.exceeded {
        return Err(error);
    }
    written.map_err(|error| failed(error.to_string()))?;
    String::from_utf8(out.bytes).map_err(|error| failed(error.to_string()))
}

/// Collects bytes up to the size limit of a value: indentation can multiply the size.
struct BoundedWriter<'a> {
    bytes: Vec<u8>,
    budget: &'a Budget,
    exceeded: Option<Error>,
}

impl io::Write for BoundedWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Err(error) = self.budget.check_bytes((self.bytes.len() + bytes.len()) as u64) {
            self.exceeded = Some(error);
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Registers the tests of minijinja (`is defined`, `is string`, …).
fn add_tests(environment: &mut Environment<'static>) {
    macro_rules! add {
        ($($name:literal $function:ident),* $(,)?) => { $(environment.add_test($name, tests::$function);)* };
    }
    add!(
        "undefined" is_undefined, "defined" is_defined, "none" is_none, "safe" is_safe, "escaped" is_safe,
        "boolean" is_boolean, "odd" is_odd, "even" is_even, "divisibleby" is_divisibleby, "number" is_number,
        "integer" is_integer, "int" is_integer, "float" is_float, "string" is_string, "sequence" is_sequence,
        "iterable" is_iterable, "mapping" is_mapping, "startingwith" is_startingwith, "endingwith" is_endingwith,
        "lower" is_lower, "upper" is_upper, "sameas" is_sameas, "eq" is_eq, "equalto" is_eq, "==" is_eq,
        "ne" is_ne, "!=" is_ne, "lt" is_lt, "lessthan" is_lt, "<" is_lt, "le" is_le, "<=" is_le,
        "gt" is_gt, "greaterthan" is_gt, ">" is_gt, "ge" is_ge, ">=" is_ge, "in" is_in, "true" is_true,
        "false" is_false, "filter" is_filter, "test" is_test,
    );
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
