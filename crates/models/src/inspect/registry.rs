//! Every model type and class that `transformers` knows, with its category: tables made by `registry/make.py`.
//!
//! The tables are text inside the program, sorted without regard to case. A question is a binary search over their lines, so there is nothing to set
//! up and the first question of a process costs no more than the next.

use std::cmp::Ordering;

use super::report::Category;

const TYPES: &str = include_str!("../../registry/types.tsv");
const CLASSES: &str = include_str!("../../registry/classes.tsv");

/// What is known about a `model_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TypeInfo {
    /// The type, as `transformers` spells it.
    pub model_type: &'static str,
    /// What kind of model it belongs to.
    pub category: Category,
    /// Whether it has a causal language model.
    pub causal: bool,
    /// Whether it gives more than one kind of output, or thinks and speaks.
    pub omni: bool,
    parts: &'static str,
}

impl TypeInfo {
    /// The keys of its configuration that hold another configuration: `vision_config`, `talker_config`.
    pub fn parts(&self) -> impl Iterator<Item = &'static str> + use<> {
        self.parts.split(',').filter(|part| *part != "-")
    }
}

/// What is known about a class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClassInfo {
    /// The class, as `transformers` spells it.
    pub class: &'static str,
    /// What kind of model it is.
    pub category: Category,
    /// The type whose configuration it is built from; nothing for classes that people ask for and `transformers` does not have.
    pub model_type: Option<&'static str>,
}

/// Looks up a `model_type`, without regard to case and to `-` or `_`.
///
/// ```
/// use pellucid_models::inspect::registry;
/// assert!(registry::by_type("Llama").is_some_and(|info| info.causal && info.model_type == "llama"));
/// assert!(registry::by_type("nothing_of_the_kind").is_none());
/// ```
pub fn by_type(model_type: &str) -> Option<TypeInfo> {
    find(TYPES, model_type).and_then(type_info)
}

/// Looks up a class, without regard to case.
pub fn by_class(class: &str) -> Option<ClassInfo> {
    find(CLASSES, class).and_then(class_info)
}

/// Every type.
pub fn types() -> impl Iterator<Item = TypeInfo> {
    lines(TYPES).filter_map(type_info)
}

/// Every class.
pub fn classes() -> impl Iterator<Item = ClassInfo> {
    lines(CLASSES).filter_map(class_info)
}

fn type_info(line: &'static str) -> Option<TypeInfo> {
    let mut columns = line.split('\t');
    let (model_type, category) = (columns.next()?, Category::from_name(columns.next()?)?);
    let (marks, parts) = (columns.next()?, columns.next()?);
    Some(TypeInfo { model_type, category, causal: marks.contains('c'), omni: marks.contains('o'), parts })
}

fn class_info(line: &'static str) -> Option<ClassInfo> {
    let mut columns = line.split('\t');
    let (class, category) = (columns.next()?, Category::from_name(columns.next()?)?);
    Some(ClassInfo { class, category, model_type: columns.next().filter(|name| *name != "-") })
}

fn lines(table: &'static str) -> impl Iterator<Item = &'static str> {
    table.lines().filter(|line| !line.starts_with('#'))
}

/// The line that begins with a key: halves the text, and steps back to where a line begins.
fn find(table: &'static str, key: &str) -> Option<&'static str> {
    let bytes = table.as_bytes();
    let (mut low, mut high) = (0, bytes.len());
    while low < high {
        let middle = low + (high - low) / 2;
        let start = bytes[low..middle].iter().rposition(|b| *b == b'\n').map_or(low, |at| low + at + 1);
        let end = bytes[start..].iter().position(|b| *b == b'\n').map_or(bytes.len(), |at| start + at);
        let line = &table[start..end];
        // The first line is the comment, which comes before everything.
        let first = line.split('\t').next().unwrap_or_default();
        match if line.starts_with('#') { Ordering::Less } else { compare(first, key) } {
            Ordering::Equal => return Some(line),
            Ordering::Less => low = end + 1,
            Ordering::Greater => high = start,
        }
    }
    None
}

fn compare(a: &str, b: &str) -> Ordering {
    let plain = |byte: u8| if byte == b'-' { b'_' } else { byte.to_ascii_lowercase() };
    a.bytes().map(plain).cmp(b.bytes().map(plain))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_is_found_by_its_key_in_any_case() {
        let (mut found_types, mut found_classes) = (0, 0);
        for info in types() {
            assert_eq!(by_type(info.model_type), Some(info));
            assert_eq!(by_type(&info.model_type.to_uppercase().replace('_', "-")), Some(info));
            found_types += 1;
        }
        for info in classes() {
            assert_eq!(by_class(&info.class.to_lowercase()), Some(info));
            found_classes += 1;
        }
        assert_eq!((found_types, found_classes), (lines(TYPES).count(), lines(CLASSES).count()));
        assert!(found_types > 780 && types().filter(|info| info.causal).count() > 180);
    }

    #[test]
    fn what_is_not_there_is_not_found() {
        for key in ["", "#", "a", "zzzz", "llam", "llama ", "llamaa", "#\t", "\n", "é"] {
            assert!(by_type(key).is_none() && by_class(key).is_none(), "{key:?}");
        }
    }

    #[test]
    fn parts_are_the_keys_of_other_configurations() {
        let omni = by_type("qwen2_5_omni").expect("known");
        assert!(omni.omni && omni.parts().eq(["talker_config", "thinker_config", "token2wav_config"]));
        assert_eq!(by_type("llama").expect("known").parts().count(), 0);
    }
}
