//! Templates of prompts: text with fields in braces.

use serde_json::{Map, Value};

/// A template such as `"{premise} Does it imply that {hypothesis}?"`. Doubled braces are braces.
#[derive(Clone, Debug, PartialEq)]
pub struct Template(Vec<Part>);

#[derive(Clone, Debug, PartialEq)]
enum Part {
    Text(String),
    Field(String),
}

impl Template {
    /// Parses a template.
    ///
    /// # Errors
    /// The brace that is not closed or not opened.
    pub fn parse(text: &str) -> Result<Template, String> {
        let (mut parts, mut own) = (Vec::new(), String::new());
        let mut rest = text;
        while let Some(at) = rest.find(['{', '}']) {
            own.push_str(&rest[..at]);
            let brace = &rest[at..at + 1];
            rest = &rest[at + 1..];
            if let Some(after) = rest.strip_prefix(brace) {
                own.push_str(brace);
                rest = after;
                continue;
            }
            let Some(end) = rest.find('}').filter(|_| brace == "{") else {
                return Err(format!("the template {text:?} has a single `{brace}`"));
            };
            parts.push(Part::Text(std::mem::take(&mut own)));
            parts.push(Part::Field(rest[..end].trim().to_string()));
            rest = &rest[end + 1..];
        }
        own.push_str(rest);
        parts.push(Part::Text(own));
        Ok(Template(parts))
    }

    /// Fills in the fields of a record.
    ///
    /// # Errors
    /// The name of a field that the record does not have.
    pub fn fill(&self, fields: &Map<String, Value>) -> Result<String, String> {
        let mut text = String::new();
        for part in &self.0 {
            match part {
                Part::Text(own) => text.push_str(own),
                Part::Field(name) => match fields.get(name) {
                    Some(Value::String(value)) => text.push_str(value),
                    Some(Value::Null) | None => return Err(name.clone()),
                    Some(value) => text.push_str(&value.to_string()),
                },
            }
        }
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn fields_and_braces_are_filled_in() {
        let fields = json!({"a": "x", "n": 3, "none": null});
        let fields = fields.as_object().expect("an object");
        let fill = |text: &str| Template::parse(text).expect("a template").fill(fields);
        assert_eq!(fill("{a}: {{{n}}} { a }"), Ok("x: {3} x".into()));
        assert_eq!(fill("{b}"), Err("b".into()));
        assert_eq!(fill("{none}"), Err("none".into()));
        assert!(Template::parse("{a").unwrap_err().contains("single `{`"));
        assert!(Template::parse("a}").unwrap_err().contains("single `}`"));
    }
}
