//! How a model was tuned, as its files say: `Instruct`, `Chat`.
//!
//! A base model and its instruction-tuned form have the same architecture, so nothing else tells
//! them apart.

use crate::config::Config;
use crate::source::ModelSource;
use std::path::Path;

/// Words of model names that say how a model was tuned, in lower case and as they are shown.
const TUNINGS: [(&str, &str); 3] = [("instruct", "Instruct"), ("chat", "Chat"), ("it", "Instruct")];

/// Longest text of a file that is shown.
const MAX_LEN: usize = 32;

/// Returns the tuning: a word of `general.finetune` of a GGUF file, of the model's name in its
/// files or of the file's own name; without one the text of `general.finetune`.
pub(crate) fn of(source: &ModelSource, config: &Config) -> Option<String> {
    let gguf = |key: &str| match source {
        ModelSource::Gguf(file) => file.text(key).ok().flatten(),
        ModelSource::Builtin | ModelSource::Directory(_) => None,
    };
    let declared = gguf("general.finetune").map(str::trim).filter(|text| is_shown(text));
    let name = gguf("general.name").or_else(|| config.get("_name_or_path")?.as_str());
    let file = source.path().and_then(Path::file_name).and_then(|name| name.to_str());
    of_texts(declared, name, file)
}

/// Chooses from what a file declares, the model's name and the name of its file.
fn of_texts(declared: Option<&str>, name: Option<&str>, file: Option<&str>) -> Option<String> {
    let known = [declared, name, file].into_iter().flatten().find_map(in_name);
    known.or(declared).map(str::to_owned)
}

fn is_shown(text: &str) -> bool {
    (1..=MAX_LEN).contains(&text.len())
        && text.chars().all(|letter| letter.is_alphanumeric() || " -_.".contains(letter))
}

/// Finds the tuning in a model's name, such as `SmolLM2-135M-Instruct`.
fn in_name(name: &str) -> Option<&'static str> {
    let mut words = name.split(|letter: char| !letter.is_alphanumeric());
    words.find_map(|word| TUNINGS.iter().find(|(known, _)| word.eq_ignore_ascii_case(known)).map(|(_, shown)| *shown))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_how_a_model_was_tuned() {
        assert_eq!(in_name("SmolLM2-135M-Instruct.Q4_1.gguf"), Some("Instruct"));
        assert_eq!(in_name("google/gemma-3-270m-it"), Some("Instruct"));
        assert_eq!(in_name("TinyLlama_v1.1_chat"), Some("Chat"));
        assert_eq!(in_name("Qwen2.5-0.5B"), None);
        assert_eq!(in_name("Chatty-Itinerary-7B"), None, "only whole words count");
    }

    #[test]
    fn a_known_word_comes_before_the_name_of_a_training_run() {
        let file = Some("SmolLM2-135M-Instruct.Q4_1.gguf");
        assert_eq!(of_texts(Some("8k-lc100k-mix1-ep2"), Some("Smollm2 135M"), file).as_deref(), Some("Instruct"));
        assert_eq!(of_texts(Some("8k-lc100k-mix1-ep2"), None, None).as_deref(), Some("8k-lc100k-mix1-ep2"));
        assert_eq!(of_texts(None, Some("gemma-3-270m-it"), None).as_deref(), Some("Instruct"));
        assert_eq!(of_texts(None, Some("gemma-3-270m"), None), None);
    }

    #[test]
    fn text_of_a_file_is_shown_only_if_it_is_short_and_plain() {
        assert!(is_shown("Instruct") && is_shown("v1.5-chat"));
        assert!(!is_shown("") && !is_shown("\u{1b}[31mred") && !is_shown(&"x".repeat(MAX_LEN + 1)));
    }
}
