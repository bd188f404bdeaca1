//! Contrastive pairs: two prompts that differ in the property to steer.

use pellucid_models::chat::Message;
use pellucid_models::{Error, LoadedModel, Result};
use serde::Deserialize;
use std::path::Path;

/// A prompt that has the property, and one that lacks it.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pair {
    /// Prompt with the property.
    pub positive: Prompt,
    /// Prompt without it, or with its opposite.
    pub negative: Prompt,
}

/// A prompt of a pair.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged, expecting = "a prompt is a text, a list of messages or a list of token ids")]
pub enum Prompt {
    /// Text, encoded with the special tokens that the tokenizer adds.
    Text(String),
    /// A conversation, rendered by the model's chat template.
    Messages(Vec<Message>),
    /// Token ids.
    Tokens(Vec<u32>),
}

/// Parses a JSONL file of pairs: `{"positive": …, "negative": …}` on each line. `path` names the
/// file in errors.
pub fn parse_pairs(text: &str, path: &Path) -> Result<Vec<Pair>> {
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let pairs = lines.map(|(index, line)| {
        serde_json::from_str(line).map_err(|error| {
            // serde counts lines from the start of this one.
            let reason = error.to_string();
            let reason = reason.split(" at line ").next().unwrap_or_default();
            Error::invalid(
                path,
                format!("line {}: not a pair of prompts: {reason}", index + 1),
                "each line is {\"positive\": \"…\", \"negative\": \"…\"}; a prompt may also be a list of messages",
            )
        })
    });
    let pairs: Vec<Pair> = pairs.collect::<Result<_>>()?;
    if pairs.is_empty() {
        return Err(Error::invalid(path, "the file has no pairs", "write one pair per line"));
    }
    Ok(pairs)
}

impl Pair {
    /// Encodes both prompts: positive, then negative.
    pub fn encode(&self, loaded: &LoadedModel) -> Result<[Vec<u32>; 2]> {
        Ok([self.positive.encode(loaded)?, self.negative.encode(loaded)?])
    }
}

impl Prompt {
    fn encode(&self, loaded: &LoadedModel) -> Result<Vec<u32>> {
        match self {
            Prompt::Text(text) => loaded.encode(text),
            Prompt::Messages(_) if loaded.chat.is_none() => Err(Error::usage(
                format!("{} has no chat template", loaded.name),
                "give the prompts as text, or use an instruction-tuned model",
            )),
            Prompt::Messages(messages) => loaded.encode_chat(messages),
            Prompt::Tokens(tokens) => Ok(tokens.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broken_line_is_named_by_its_number() {
        let parse = |text: &str| parse_pairs(text, Path::new("pairs.jsonl")).map_err(|error| error.to_string());
        let two = "{\"positive\": \"a\", \"negative\": \"b\"}\n\n{\"positive\": [1, 2], \"negative\": [3]}\n";
        assert_eq!(parse(two).unwrap()[1].positive, Prompt::Tokens(vec![1, 2]));
        let chat = r#"{"positive": [{"role": "user", "content": "a"}], "negative": "b"}"#;
        assert_eq!(parse(chat).unwrap()[0].positive, Prompt::Messages(vec![Message::new("user", "a")]));
        assert!(parse("\n").unwrap_err().contains("the file has no pairs"));
        for broken in [
            "{\"positive\": \"a\"}",
            "{\"positive\": \"a\", \"negative\": 1}",
            "x",
            "{\"positive\": \"a\", \"negative\": \"b\", \"c\": 1}",
        ] {
            let error = parse(&format!("{two}{broken}")).unwrap_err();
            assert!(error.starts_with("pairs.jsonl: line 4: not a pair of prompts"), "{error}");
            assert!(!error.contains("line 1") && !error.contains("untagged"), "{error}");
        }
    }
}
