//! Jinja templates over the fields of a document, with the settings that lm-eval uses.

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{AutoEscape, Environment, UndefinedBehavior};
use serde_json::{Map, Value};

/// Step limit of a template.
const FUEL: u64 = 10_000_000;

/// Renders templates of task files.
pub(super) struct Templates(Environment<'static>);

impl Templates {
    pub fn new() -> Templates {
        let mut environment = Environment::new();
        if let Ok(syntax) = SyntaxConfig::builder().keep_trailing_newline(true).build() {
            environment.set_syntax(syntax);
        }
        environment.set_auto_escape_callback(|_| AutoEscape::None);
        environment.set_undefined_behavior(UndefinedBehavior::Strict);
        environment.set_fuel(Some(FUEL));
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        Templates(environment)
    }

    /// The text of a template for a document.
    pub fn render(&self, template: &str, doc: &Map<String, Value>) -> Result<String, String> {
        self.0.render_str(template, Serde(doc)).map_err(|error| describe(&error))
    }

    /// The value of a template that is one expression, `{{ … }}`.
    pub fn value(&self, template: &str, doc: &Map<String, Value>) -> Result<Value, String> {
        let inner = template.trim().strip_prefix("{{").and_then(|rest| rest.strip_suffix("}}"));
        let inner = inner.filter(|inner| !inner.contains("{{")).ok_or("expected one expression {{ … }}")?;
        let expression = self.0.compile_expression(inner).map_err(|error| describe(&error))?;
        let value = expression.eval(Serde(doc)).map_err(|error| describe(&error))?;
        serde_json::to_value(&value).map_err(|error| error.to_string())
    }
}

fn describe(error: &minijinja::Error) -> String {
    error.detail().map_or_else(|| error.kind().to_string(), |detail| format!("{}: {detail}", error.kind()))
}
