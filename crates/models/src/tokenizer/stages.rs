//! The normalizer and the pre-tokenizer, with limits that the `tokenizers` crate does not have.
//!
//! A `tokenizer.json` is untrusted. Its normalizers can multiply a text (`Replace` of a letter by a
//! thousand), and its patterns can need exponential time. The crate also ends a split without an
//! error if its regular expression gives up, so the rest of a text would get wrong tokens. Here the
//! normalized text has a limit, and a pattern that gives up is an error.

use fancy_regex::{Regex, RegexBuilder};
use serde::de::{Deserialize, Deserializer, Error as _};
use serde::ser::{Serialize, Serializer};
use serde_json::{Value, json};
use std::sync::LazyLock;
use tokenizers::normalizers::NormalizerWrapper;
use tokenizers::pattern::{Invert, Pattern};
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::split::SplitPattern;
use tokenizers::{
    DecoderWrapper, ModelWrapper, NormalizedString, Normalizer, Offsets, PostProcessorWrapper, PreTokenizedString,
    PreTokenizer, Result, SplitDelimiterBehavior, TokenizerImpl,
};

/// The tokenizer of the `tokenizers` crate with the stages of this module.
pub(crate) type Pipeline =
    TokenizerImpl<ModelWrapper, BoundedNormalizer, CheckedPreTokenizer, PostProcessorWrapper, DecoderWrapper>;

/// Limit of a normalized text, as a multiple of the text's length. Unicode's own normalizations
/// need at most 18.
const MAX_GROWTH: usize = 32;
/// Normalized texts up to this length are always accepted.
const MIN_LIMIT: usize = 64 << 10;
/// Limit of the text that a decoder puts in place of another.
const MAX_DECODED_CONTENT: usize = 4096;
/// Backtracking steps of a pattern for one match. The crate's own limit is a tenth of it.
const BACKTRACK_LIMIT: usize = 10_000_000;

/// GPT-2's pattern, which `ByteLevel` uses.
static GPT2: LazyLock<std::result::Result<Regex, String>> = LazyLock::new(|| {
    let pattern = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
    compile(pattern).map_err(|error| error.to_string())
});

fn compile(pattern: &str) -> Result<Regex> {
    Ok(RegexBuilder::new(pattern).backtrack_limit(BACKTRACK_LIMIT).build()?)
}

/// A pattern whose failure is an error.
struct CheckedPattern<'a>(&'a Regex);

impl Pattern for CheckedPattern<'_> {
    fn find_matches(&self, inside: &str) -> Result<Vec<(Offsets, bool)>> {
        self.0.find_matches(inside).map_err(|error| gave_up(inside, error.to_string()))
    }
}

fn gave_up(text: &str, error: String) -> Box<dyn std::error::Error + Send + Sync> {
    let run = longest_space(text);
    format!(
        "the pattern that splits it gives up ({error}); the longest run of whitespace has {run} characters: shorten \
         such runs, or encode the text in parts"
    )
    .into()
}

fn longest_space(text: &str) -> usize {
    text.split(|c: char| !c.is_whitespace()).map(|run| run.chars().count()).max().unwrap_or(0)
}

/// A pre-tokenizer of `tokenizer.json`.
#[derive(Clone, Debug)]
pub(crate) enum CheckedPreTokenizer {
    Sequence(Vec<CheckedPreTokenizer>),
    Split {
        regex: Regex,
        behavior: SplitDelimiterBehavior,
        invert: bool,
    },
    /// `ByteLevel` with GPT-2's pattern.
    ByteLevel {
        add_prefix_space: bool,
    },
    /// Those without a regular expression of the file.
    Other(PreTokenizerWrapper),
}

impl CheckedPreTokenizer {
    /// Converts a pre-tokenizer; fails if its pattern does not compile.
    pub(crate) fn new(wrapper: PreTokenizerWrapper) -> Result<CheckedPreTokenizer> {
        Ok(match wrapper {
            PreTokenizerWrapper::Sequence(steps) => {
                let steps = steps.into_iter().map(CheckedPreTokenizer::new);
                CheckedPreTokenizer::Sequence(steps.collect::<Result<_>>()?)
            }
            PreTokenizerWrapper::Split(split) => match &split.pattern {
                SplitPattern::Regex(pattern) => CheckedPreTokenizer::Split {
                    regex: compile(pattern)?,
                    behavior: split.behavior,
                    invert: split.invert,
                },
                SplitPattern::String(_) => CheckedPreTokenizer::Other(PreTokenizerWrapper::Split(split)),
            },
            PreTokenizerWrapper::ByteLevel(step) if step.use_regex => {
                CheckedPreTokenizer::ByteLevel { add_prefix_space: step.add_prefix_space }
            }
            other => CheckedPreTokenizer::Other(other),
        })
    }
}

impl PreTokenizer for CheckedPreTokenizer {
    fn pre_tokenize(&self, text: &mut PreTokenizedString) -> Result<()> {
        match self {
            CheckedPreTokenizer::Sequence(steps) => steps.iter().try_for_each(|step| step.pre_tokenize(text)),
            CheckedPreTokenizer::Split { regex, behavior, invert: false } => {
                text.split(|_, part| part.split(CheckedPattern(regex), *behavior))
            }
            CheckedPreTokenizer::Split { regex, behavior, invert: true } => {
                text.split(|_, part| part.split(Invert(CheckedPattern(regex)), *behavior))
            }
            CheckedPreTokenizer::ByteLevel { add_prefix_space } => {
                let regex = GPT2.as_ref().map_err(Clone::clone)?;
                text.split(|_, mut part| {
                    if *add_prefix_space && !part.get().starts_with(' ') {
                        part.prepend(" ");
                    }
                    part.split(CheckedPattern(regex), SplitDelimiterBehavior::Isolated)
                })?;
                ByteLevel::new(false, true, false).pre_tokenize(text)
            }
            CheckedPreTokenizer::Other(other) => other.pre_tokenize(text),
        }
    }
}

impl<'de> Deserialize<'de> for CheckedPreTokenizer {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        CheckedPreTokenizer::new(PreTokenizerWrapper::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

impl Serialize for CheckedPreTokenizer {
    /// Writes it as `tokenizer.json` has it.
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        match self {
            CheckedPreTokenizer::Sequence(steps) => {
                json!({ "type": "Sequence", "pretokenizers": steps }).serialize(serializer)
            }
            CheckedPreTokenizer::Split { regex, behavior, invert } => {
                let pattern = json!({ "Regex": regex.as_str() });
                json!({ "type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert })
                    .serialize(serializer)
            }
            CheckedPreTokenizer::ByteLevel { add_prefix_space } => {
                PreTokenizerWrapper::ByteLevel(ByteLevel::new(*add_prefix_space, true, true)).serialize(serializer)
            }
            CheckedPreTokenizer::Other(other) => other.serialize(serializer),
        }
    }
}

/// A normalizer of `tokenizer.json`.
#[derive(Clone, Debug)]
pub(crate) enum BoundedNormalizer {
    Sequence(Vec<BoundedNormalizer>),
    Replace {
        regex: Regex,
        content: String,
    },
    Prepend(String),
    /// Those whose result is at most a few times longer than the text.
    Other(Box<NormalizerWrapper>),
}

impl BoundedNormalizer {
    /// Converts a normalizer; fails if its pattern does not compile.
    pub(crate) fn new(wrapper: NormalizerWrapper) -> Result<BoundedNormalizer> {
        Ok(match wrapper {
            NormalizerWrapper::Sequence(steps) => {
                let steps = steps.into_iter().map(BoundedNormalizer::new);
                BoundedNormalizer::Sequence(steps.collect::<Result<_>>()?)
            }
            NormalizerWrapper::Prepend(step) => BoundedNormalizer::Prepend(step.prepend),
            NormalizerWrapper::Replace(step) => {
                // The pattern is private, but serialized.
                let value = serde_json::to_value(&step)?;
                let pattern = match (value.pointer("/pattern/Regex"), value.pointer("/pattern/String")) {
                    (Some(Value::String(pattern)), _) => pattern.clone(),
                    (_, Some(Value::String(text))) => fancy_regex::escape(text).into_owned(),
                    _ => return Err("a Replace without a pattern".into()),
                };
                BoundedNormalizer::Replace { regex: compile(&pattern)?, content: step.content }
            }
            other => BoundedNormalizer::Other(Box::new(other)),
        })
    }
}

impl Normalizer for BoundedNormalizer {
    fn normalize(&self, text: &mut NormalizedString) -> Result<()> {
        match self {
            BoundedNormalizer::Sequence(steps) => steps.iter().try_for_each(|step| step.normalize(text)),
            BoundedNormalizer::Prepend(prefix) if !text.is_empty() => {
                check_length(text, text.len() + prefix.len())?;
                text.prepend(prefix);
                Ok(())
            }
            BoundedNormalizer::Prepend(_) => Ok(()),
            BoundedNormalizer::Replace { regex, content } => {
                // Counted first, so that a result beyond the limit is never made.
                let mut count = 0;
                for found in regex.find_iter(text.get()) {
                    found.map_err(|error| gave_up(text.get(), error.to_string()))?;
                    count += 1;
                }
                check_length(text, text.len().saturating_add(content.len().saturating_mul(count)))?;
                text.replace(CheckedPattern(regex), content)
            }
            BoundedNormalizer::Other(other) => {
                other.normalize(text)?;
                check_length(text, text.len())
            }
        }
    }
}

impl<'de> Deserialize<'de> for BoundedNormalizer {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        BoundedNormalizer::new(NormalizerWrapper::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

impl Serialize for BoundedNormalizer {
    /// Writes it as `tokenizer.json` has it.
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        match self {
            BoundedNormalizer::Sequence(steps) => {
                json!({ "type": "Sequence", "normalizers": steps }).serialize(serializer)
            }
            BoundedNormalizer::Replace { regex, content } => {
                let pattern = json!({ "Regex": regex.as_str() });
                json!({ "type": "Replace", "pattern": pattern, "content": content }).serialize(serializer)
            }
            BoundedNormalizer::Prepend(prefix) => json!({ "type": "Prepend", "prepend": prefix }).serialize(serializer),
            BoundedNormalizer::Other(other) => other.serialize(serializer),
        }
    }
}

/// Checks the length that a normalized text has, or is about to have.
fn check_length(text: &NormalizedString, length: usize) -> Result<()> {
    let original = text.len_original();
    let limit = original.saturating_mul(MAX_GROWTH).max(MIN_LIMIT);
    match length > limit {
        true => Err(format!(
            "its normalizer makes more than {limit} bytes of a text of {original}, so the tokenizer is damaged"
        )
        .into()),
        false => Ok(()),
    }
}

/// Checks that the decoder does not multiply texts.
pub(super) fn check_decoder(decoder: &DecoderWrapper) -> std::result::Result<(), String> {
    match decoder {
        DecoderWrapper::Sequence(steps) => steps.get_decoders().iter().try_for_each(check_decoder),
        DecoderWrapper::Replace(step) if step.content.len() > MAX_DECODED_CONTENT => {
            let length = step.content.len();
            Err(format!("its decoder replaces texts by {length} bytes; the limit is {MAX_DECODED_CONTENT}"))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use crate::tokenizer::testing::byte_level;

    #[test]
    fn f22_a_pattern_that_gives_up_is_an_error_and_not_wrong_tokens() {
        let tokenizer = byte_level();
        let spaces = |count: usize| format!("the{}the the", " ".repeat(count));
        // The last space belongs to the next word.
        let ids = tokenizer.encode(&spaces(200_000), false).expect("encodes");
        assert_eq!(tokenizer.decode(&ids, false), spaces(200_000));
        let (last, the) = (tokenizer.find(" the").expect("one token"), &ids[ids.len() - 2..]);
        assert_eq!(the, [last, last]);
        let error = tokenizer.encode(&spaces(3_000_000), false).expect_err("gives up").to_string();
        assert!(error.contains("the longest run of whitespace has 3000000 characters"), "{error}");
    }
}
