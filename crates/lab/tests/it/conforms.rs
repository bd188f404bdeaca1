//! A minimal JSON Schema validator: as much as the lab's schemas use.

use serde_json::{Map, Value, json};

/// Resolves a `$ref`.
fn resolved<'s>(root: &'s Value, part: &'s Value) -> &'s Value {
    match part.get("$ref").and_then(Value::as_str) {
        Some(path) => root.pointer(path.trim_start_matches('#')).unwrap_or_else(|| panic!("{path} does not resolve")),
        None => part,
    }
}

/// Collects the violations of a schema: properties, required names, items, choices.
pub fn problems(root: &Value, part: &Value, value: &Value, at: &str, found: &mut Vec<String>) {
    let part = resolved(root, part);
    if let Some(choices) = part.get("anyOf").or(part.get("oneOf")).and_then(Value::as_array) {
        let fits = |choice: &Value| {
            let mut inner = Vec::new();
            problems(root, choice, value, at, &mut inner);
            inner.is_empty()
        };
        if !choices.iter().any(fits) {
            found.push(format!("{at}: {value} matches no choice"));
        }
        return;
    }
    if let Some(constant) = part.get("const")
        && constant != value
    {
        found.push(format!("{at}: {value} is not {constant}"));
    }
    if let Some(names) = part.get("enum").and_then(Value::as_array)
        && !names.contains(value)
    {
        found.push(format!("{at}: {value} is not a known name"));
    }
    let kinds: Vec<&str> = match &part["type"] {
        Value::String(kind) => vec![kind],
        Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_u64() || number.is_i64() => "integer",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    if !kinds.is_empty() && !kinds.iter().any(|known| *known == kind || (*known == "number" && kind == "integer")) {
        found.push(format!("{at}: {kind} where {kinds:?} is expected"));
        return;
    }
    match value {
        Value::Object(fields) => {
            let none = Map::new();
            let known = part.get("properties").and_then(Value::as_object).unwrap_or(&none);
            for (name, inner) in fields {
                match known.get(name) {
                    Some(schema) => problems(root, schema, inner, &format!("{at}.{name}"), found),
                    None if part["additionalProperties"] == json!(false) => {
                        found.push(format!("{at}.{name} is unknown"))
                    }
                    None => {}
                }
            }
            for name in part["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
                if !fields.contains_key(name) {
                    found.push(format!("{at}.{name} is missing"));
                }
            }
        }
        Value::Array(items) => {
            let tuple = part["prefixItems"].as_array();
            for (index, item) in items.iter().enumerate() {
                let schema = tuple.and_then(|tuple| tuple.get(index)).or(part.get("items"));
                if let Some(schema) = schema {
                    problems(root, schema, item, &format!("{at}[{index}]"), found);
                }
            }
        }
        _ => {}
    }
}
