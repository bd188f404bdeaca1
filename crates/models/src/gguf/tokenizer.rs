//! Rebuilds the tokenizer from `tokenizer.ggml.*`.
//!
//! Two values of `tokenizer.ggml.model` are supported. `gpt2` is byte-level BPE: the file stores
//! vocabulary, merges and the name of the pre-tokenizer (`pre_tokenizer`). `llama` is SentencePiece
//! BPE: the file stores pieces with scores, and the merges follow from them, because SentencePiece
//! merges the pair whose result has the best score. Both become the `tokenizers::Tokenizer` that
//! the model's own `tokenizer.json` would give.

use std::borrow::Cow;
use std::collections::HashSet;

use tokenizers::decoders::DecoderWrapper;
use tokenizers::decoders::byte_fallback::ByteFallback;
use tokenizers::decoders::fuse::Fuse;
use tokenizers::decoders::sequence::Sequence as DecoderSequence;
use tokenizers::decoders::strip::Strip;
use tokenizers::models::bpe::{BPE, Merges, Vocab};
use tokenizers::normalizers::{NFC, NormalizerWrapper, Prepend, Replace, Sequence as NormalizerSequence};
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence as PreTokenizerSequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::processors::template::{SpecialToken, TemplateProcessing};
use tokenizers::{AddedToken, ModelWrapper, SplitDelimiterBehavior};

use super::pre_tokenizer::pre_tokenizer;
use super::special::{GgufSpecialTokens, special_tokens};
use super::{GgufFile, Value};
use crate::tokenizer::merges::{check_lengths, merges_by_score};
use crate::tokenizer::stages::{BoundedNormalizer, CheckedPreTokenizer, Pipeline};
use crate::{Error, Result};

/// SentencePiece's metaspace, which replaces the space inside pieces.
const METASPACE: &str = "\u{2581}";

/// Builds the file's tokenizer; `encode(text, true)` adds bos and eos if the file says so.
///
/// # Errors
/// If the file has no tokenizer, an unsupported one, or an inconsistent one.
pub(crate) fn tokenizer(file: &GgufFile) -> Result<Pipeline> {
    let special = special_tokens(file)?;
    let mut vocabulary = Vocabulary::read(file)?;
    let mut tokenizer = match file.text("tokenizer.ggml.model")? {
        Some("gpt2") => byte_level(file, &vocabulary)?,
        Some("llama") => {
            let prefix = file.flag("tokenizer.ggml.add_space_prefix")?.unwrap_or(true);
            if !prefix {
                vocabulary.restore_metaspaces();
            }
            sentence_piece(file, &vocabulary, &special, prefix)?
        }
        Some(other) => {
            let what = format!("{}: unsupported tokenizer {other:?} in tokenizer.ggml.model", file.path().display());
            let remedy = "gpt2 (byte-level BPE) and llama (SentencePiece) are supported; run the model on token ids";
            return Err(Error::unsupported(what, remedy));
        }
        None => {
            let what =
                format!("{}: the file has no tokenizer (tokenizer.ggml.model is missing)", file.path().display());
            return Err(Error::unsupported(what, "run the model on token ids"));
        }
    };
    tokenizer.add_tokens(vocabulary.added()).map_err(|error| broken(file, error))?;
    if let Some(template) = template(&special, &vocabulary).map_err(|error| broken(file, error))? {
        tokenizer.with_post_processor(Some(template));
    }
    Ok(tokenizer)
}

fn broken(file: &GgufFile, error: impl std::fmt::Display) -> Error {
    file.damaged(format!("the tokenizer cannot be built: {error}"))
}

/// The tokens and their types, by id.
struct Vocabulary<'a> {
    tokens: Vec<Cow<'a, str>>,
    kinds: Vec<Kind>,
    /// Whether user-defined tokens are matched in the normalized text.
    match_normalized: bool,
}

/// The token types of ggml that are treated differently.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    /// `<unk>`, which is matched as a special token, as in transformers and llama.cpp.
    Unknown,
    Control,
    UserDefined,
    Byte,
    Other,
}

impl<'a> Vocabulary<'a> {
    fn read(file: &'a GgufFile) -> Result<Self> {
        let missing = || file.damaged("tokenizer.ggml.tokens is missing, so the file has no vocabulary");
        let tokens = file.texts("tokenizer.ggml.tokens")?.ok_or_else(missing)?;
        check_lengths(tokens.iter().map(|token| token.len())).map_err(|problem| file.damaged(problem))?;
        let kinds = match file.list("tokenizer.ggml.token_type", tokens.len())? {
            None => vec![Kind::Other; tokens.len()],
            Some(kinds) => kinds
                .iter()
                .map(|kind| match kind {
                    Value::Signed(2) | Value::Unsigned(2) => Kind::Unknown,
                    Value::Signed(3) | Value::Unsigned(3) => Kind::Control,
                    Value::Signed(4) | Value::Unsigned(4) => Kind::UserDefined,
                    Value::Signed(6) | Value::Unsigned(6) => Kind::Byte,
                    _ => Kind::Other,
                })
                .collect(),
        };
        let tokens = tokens.into_iter().map(Cow::Borrowed).collect();
        Ok(Vocabulary { tokens, kinds, match_normalized: false })
    }

    /// Replaces the spaces of user-defined tokens by metaspaces. Converters write Gemma's runs of
    /// metaspaces as spaces, but SentencePiece looks for user-defined pieces in the normalized
    /// text, so both forms of a run are that token. Not for texts with a prepended metaspace, which
    /// normalization would also prepend to the tokens.
    fn restore_metaspaces(&mut self) {
        let known: HashSet<String> = self.tokens.iter().map(|token| token.to_string()).collect();
        for (token, kind) in self.tokens.iter_mut().zip(&self.kinds) {
            let restored = token.replace(' ', METASPACE);
            if *kind == Kind::UserDefined && !known.contains(&restored) {
                *token = restored.into();
            }
        }
        self.match_normalized = true;
    }

    /// Ids by text. Duplicate texts are an error: one of the ids could never be produced.
    fn ids(&self, file: &GgufFile) -> Result<Vocab> {
        let mut ids = Vocab::default();
        ids.reserve(self.tokens.len());
        for (id, token) in self.tokens.iter().enumerate() {
            let id = u32::try_from(id).map_err(|_| file.damaged("the vocabulary has more than 2^32 tokens"))?;
            if let Some(first) = ids.insert(token.to_string(), id) {
                return Err(file.damaged(format!("tokens {first} and {id} of the vocabulary are both {token:?}")));
            }
        }
        Ok(ids)
    }

    /// Control and user-defined tokens, which are matched before normalization and splitting.
    fn added(&self) -> Vec<AddedToken> {
        let added = |(token, kind): (&Cow<str>, &Kind)| match kind {
            Kind::Other | Kind::Byte => None,
            Kind::UserDefined => Some(AddedToken::from(token.as_ref(), false).normalized(self.match_normalized)),
            Kind::Unknown | Kind::Control => Some(AddedToken::from(token.as_ref(), true).normalized(false)),
        };
        // An empty added token would match at every position.
        self.tokens.iter().zip(&self.kinds).filter(|(token, _)| !token.is_empty()).filter_map(added).collect()
    }

    fn token(&self, id: u32) -> Option<&str> {
        self.tokens.get(id as usize).map(Cow::as_ref)
    }
}

fn byte_level(file: &GgufFile, vocabulary: &Vocabulary) -> Result<Pipeline> {
    let pre = pre_tokenizer(file)?;
    let missing = || file.damaged("tokenizer.ggml.merges is missing, which byte-level BPE needs");
    let merges = file.texts("tokenizer.ggml.merges")?.ok_or_else(missing)?;
    let merges = merges.iter().enumerate().map(|(i, merge)| {
        // The left token may itself begin with a space.
        let space = merge.char_indices().skip(1).find(|(_, c)| *c == ' ').map(|(at, _)| at);
        let pair = space.map(|at| (merge[..at].to_owned(), merge[at + 1..].to_owned()));
        pair.ok_or_else(|| file.damaged(format!("merge {i} of tokenizer.ggml.merges, {merge:?}, is not two tokens")))
    });
    let builder = BPE::builder().vocab_and_merges(vocabulary.ids(file)?, merges.collect::<Result<Merges>>()?);
    let model = builder.ignore_merges(pre.ignore_merges).build().map_err(|error| broken(file, error))?;

    let mut steps: Vec<PreTokenizerWrapper> = Vec::new();
    for pattern in pre.patterns {
        let pattern = SplitPattern::Regex((*pattern).to_owned());
        let split =
            Split::new(pattern, SplitDelimiterBehavior::Isolated, false).map_err(|error| broken(file, error))?;
        steps.push(split.into());
    }
    steps.push(ByteLevel::new(false, true, false).into());

    let mut tokenizer = Pipeline::new(ModelWrapper::BPE(model));
    let steps = CheckedPreTokenizer::new(PreTokenizerSequence::new(steps).into());
    tokenizer.with_pre_tokenizer(Some(steps.map_err(|error| broken(file, error))?));
    tokenizer.with_decoder(Some(ByteLevel::new(false, true, false)));
    if pre.nfc {
        set_normalizer(&mut tokenizer, NFC.into()).map_err(|error| broken(file, error))?;
    }
    Ok(tokenizer)
}

fn set_normalizer(tokenizer: &mut Pipeline, normalizer: NormalizerWrapper) -> tokenizers::Result<()> {
    tokenizer.with_normalizer(Some(BoundedNormalizer::new(normalizer)?)).map(drop)
}

fn sentence_piece(
    file: &GgufFile,
    vocabulary: &Vocabulary,
    special: &GgufSpecialTokens,
    prefix: bool,
) -> Result<Pipeline> {
    let missing = || file.damaged("tokenizer.ggml.scores is missing, which SentencePiece needs");
    let scores = file.list("tokenizer.ggml.scores", vocabulary.tokens.len())?.ok_or_else(missing)?;
    let scores = scores.iter().map(|score| match score {
        Value::F32(score) => Ok(*score),
        other => Err(file.damaged(format!("tokenizer.ggml.scores holds {other:?}, which is not an f32"))),
    });
    let scores = scores.collect::<Result<Vec<_>>>()?;
    let ids = vocabulary.ids(file)?;
    let is_mergeable = |kind: &Kind| matches!(kind, Kind::Other | Kind::UserDefined);
    let pieces = vocabulary.tokens.iter().map(Cow::as_ref).zip(scores).zip(&vocabulary.kinds);
    let pieces = pieces.filter(|(_, kind)| is_mergeable(kind)).map(|(piece, _)| piece);
    let merges = merges_by_score(pieces, |piece| ids.get(piece).copied());
    let merges: Merges = merges.into_iter().map(|(left, right)| (left.to_owned(), right.to_owned())).collect();
    let mut builder = BPE::builder().vocab_and_merges(ids, merges).byte_fallback(true).fuse_unk(true);
    if let Some(unk) = special.unk.and_then(|id| vocabulary.token(id)) {
        builder = builder.unk_token(unk.to_owned());
    }
    let mut tokenizer = Pipeline::new(ModelWrapper::BPE(builder.build().map_err(|error| broken(file, error))?));

    let replace = |from: &str, to: &str| Replace::new(from, to).map_err(|error| broken(file, error));
    let mut normalizers: Vec<NormalizerWrapper> = Vec::new();
    let mut decoders: Vec<DecoderWrapper> =
        vec![replace(METASPACE, " ")?.into(), ByteFallback::new().into(), Fuse::new().into()];
    if prefix {
        normalizers.push(Prepend::new(METASPACE.to_owned()).into());
        decoders.push(Strip::new(' ', 1, 0).into());
    }
    normalizers.push(replace(" ", METASPACE)?.into());
    set_normalizer(&mut tokenizer, NormalizerSequence::new(normalizers).into()).map_err(|error| broken(file, error))?;
    tokenizer.with_decoder(Some(DecoderSequence::new(decoders)));
    Ok(tokenizer)
}

/// The post-processor that adds bos and eos, if the file asks for them.
fn template(
    special: &GgufSpecialTokens,
    vocabulary: &Vocabulary,
) -> std::result::Result<Option<TemplateProcessing>, Box<dyn std::error::Error + Send + Sync>> {
    let token_if =
        |wanted: bool, id: Option<u32>| id.filter(|_| wanted).and_then(|id| Some((id, vocabulary.token(id)?)));
    let bos = token_if(special.add_bos, special.bos);
    let eos = token_if(special.add_eos, special.eos);
    let mut pieces = vec!["$A"];
    let mut tokens = Vec::new();
    if let Some((id, text)) = bos {
        pieces.insert(0, "bos");
        tokens.push(SpecialToken::new("bos".into(), vec![id], vec![text.into()])?);
    }
    if let Some((id, text)) = eos {
        pieces.push("eos");
        tokens.push(SpecialToken::new("eos".into(), vec![id], vec![text.into()])?);
    }
    if tokens.is_empty() {
        return Ok(None);
    }
    Ok(Some(TemplateProcessing::builder().try_single(pieces)?.special_tokens(tokens).build()?))
}

#[cfg(test)]
mod tests {
    use super::super::testing::Writer;
    use super::*;

    fn parse(file: &Writer) -> GgufFile {
        GgufFile::parse(file.bytes(), "x.gguf").unwrap()
    }

    fn ids(file: &Writer, text: &str) -> Vec<u32> {
        tokenizer(&parse(file)).unwrap().encode(text, true).unwrap().get_ids().to_vec()
    }

    fn error_of(file: &Writer) -> String {
        tokenizer(&parse(file)).unwrap_err().to_string()
    }

    /// Byte-level BPE over a few letters, digits, the space and the newline.
    fn byte_level(pre: &str) -> Writer {
        let mut file = Writer::default();
        file.text("general.architecture", "llama").text("tokenizer.ggml.model", "gpt2").text("tokenizer.ggml.pre", pre);
        let tokens = ["<end>", "a", "b", "Ġ", "1", "2", "Ċ", "ab", "Ġab", "12", "Ġ1", "<fim>", "abab"];
        file.texts("tokenizer.ggml.tokens", &tokens);
        file.i32s("tokenizer.ggml.token_type", &[3, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 4, 1]);
        file.texts("tokenizer.ggml.merges", &["a b", "Ġ ab", "1 2", "Ġ 1"]);
        file.u32("tokenizer.ggml.bos_token_id", 0).u32("tokenizer.ggml.eos_token_id", 0);
        file
    }

    #[test]
    fn byte_level_bpe_merges_within_the_pieces_of_its_pre_tokenizer() {
        assert_eq!(ids(&byte_level("gpt-2"), "ab ab12"), [7, 8, 9]);
        assert_eq!(ids(&byte_level("smollm"), "ab ab12"), [7, 8, 4, 5]);
        assert_eq!(ids(&byte_level("qwen2"), " 12\n"), [3, 4, 5, 6]);
        // Llama 3 adds bos and has `ignore_merges`.
        assert_eq!(ids(&byte_level("llama-bpe"), "abab"), [0, 12]);
        assert_eq!(ids(&byte_level("gpt-2"), "abab"), [7, 7]);
    }

    #[test]
    fn special_tokens_are_matched_first_and_decode_back() {
        let file = byte_level("gpt-2");
        assert_eq!(ids(&file, "a<end>b<fim> ab"), [1, 0, 2, 11, 8]);
        let tokenizer = tokenizer(&parse(&file)).unwrap();
        assert_eq!(tokenizer.decode(&[1, 0, 2, 11, 8], false).unwrap(), "a<end>b<fim> ab");
        assert_eq!(tokenizer.decode(&[1, 0, 2, 11, 8], true).unwrap(), "ab<fim> ab");
    }

    #[test]
    fn bos_and_eos_are_added_as_the_file_says() {
        let mut file = byte_level("gpt-2");
        file.flag("tokenizer.ggml.add_bos_token", true).flag("tokenizer.ggml.add_eos_token", true);
        file.text("tokenizer.chat_template", "{{ x }}").u32("tokenizer.ggml.eot_token_id", 11);
        file.raw("tokenizer.ggml.padding_token_id", 5, &(-1i32).to_le_bytes());
        assert_eq!(ids(&file, "ab"), [0, 7, 0]);
        let special = special_tokens(&parse(&file)).unwrap();
        let wanted = GgufSpecialTokens {
            bos: Some(0),
            eos: Some(0),
            eot: Some(11),
            add_bos: true,
            add_eos: true,
            chat_template: Some("{{ x }}".into()),
            ..GgufSpecialTokens::default()
        };
        assert_eq!(special, wanted);
        file.u32("tokenizer.ggml.unknown_token_id", 13);
        assert!(error_of(&file).contains("unknown_token_id is 13, but the vocabulary has 13 tokens"));
    }

    /// SentencePiece with a few letters, and byte tokens for one character that is in no piece.
    fn sentence_piece() -> Writer {
        let mut file = Writer::default();
        file.text("general.architecture", "llama").text("tokenizer.ggml.model", "llama");
        let tokens = ["<unk>", "<s>", "<0xC3>", "<0xA9>", "▁", "a", "b", "ab", "▁a", "ba", "▁ab", "  "];
        file.texts("tokenizer.ggml.tokens", &tokens);
        file.i32s("tokenizer.ggml.token_type", &[2, 3, 6, 6, 1, 1, 1, 1, 1, 1, 1, 4]);
        file.f32s("tokenizer.ggml.scores", &[0., 0., 0., 0., -9., -8., -7., -2., -3., -1., -4., -1000.]);
        file.u32("tokenizer.ggml.bos_token_id", 1).u32("tokenizer.ggml.unknown_token_id", 0);
        file
    }

    #[test]
    fn sentence_piece_merges_the_best_score_first() {
        // "▁abab": "ba" in the middle has the best score and is merged first, which leaves "▁a" and
        // "b".
        assert_eq!(ids(&sentence_piece(), "abab"), [1, 8, 9, 6]);
        assert_eq!(ids(&sentence_piece(), "ab"), [1, 10]);
        let mut file = sentence_piece();
        file.flag("tokenizer.ggml.add_space_prefix", false).flag("tokenizer.ggml.add_bos_token", false);
        assert_eq!(ids(&file, "ab é"), [7, 4, 2, 3]);
        // A user-defined token is matched, however its spaces are written.
        assert_eq!(ids(&file, "a  b"), [5, 11, 6]);
    }

    #[test]
    fn r4_the_unknown_token_is_recognized_in_a_text() {
        assert_eq!(ids(&sentence_piece(), "a<unk>b"), [1, 8, 0, 4, 6]);
    }

    #[test]
    fn r5_a_run_of_metaspaces_is_the_token_of_a_run_of_spaces() {
        let mut file = sentence_piece();
        file.flag("tokenizer.ggml.add_space_prefix", false).flag("tokenizer.ggml.add_bos_token", false);
        assert_eq!(ids(&file, "a▁▁b"), [5, 11, 6]);
        assert_eq!(ids(&file, "a ▁ b"), [5, 11, 4, 6]);
        let tokenizer = tokenizer(&parse(&file)).unwrap();
        assert_eq!(tokenizer.decode(&[5, 11, 6], true).unwrap(), "a  b");
    }

    #[test]
    fn f8_vocabularies_whose_merges_would_take_gigabytes_are_refused() {
        let mut file = Writer::default();
        file.text("general.architecture", "llama").text("tokenizer.ggml.model", "llama");
        let tokens: Vec<String> = (1..=4096).map(|length| "a".repeat(length)).collect();
        file.texts("tokenizer.ggml.tokens", &tokens.iter().map(String::as_str).collect::<Vec<_>>());
        file.f32s("tokenizer.ggml.scores", &vec![0.0; tokens.len()]);
        assert!(error_of(&file).contains("its tokens are too long"), "{}", error_of(&file));
    }

    #[test]
    fn sentence_piece_decodes_back() {
        for (prefix, text) in [(true, "ab é ba"), (false, " ab é  ba")] {
            let mut file = sentence_piece();
            file.flag("tokenizer.ggml.add_space_prefix", prefix);
            let tokenizer = tokenizer(&parse(&file)).unwrap();
            let ids = tokenizer.encode(text, false).unwrap().get_ids().to_vec();
            assert_eq!(tokenizer.decode(&ids, true).unwrap(), text, "{ids:?}");
        }
    }

    #[test]
    fn invalid_tokenizers_are_refused_with_the_reason() {
        let mut file = Writer::default();
        file.text("general.architecture", "llama");
        assert_eq!(error_of(&file), "x.gguf: tokenizer.ggml.tokens is missing, so the file has no vocabulary");
        file.texts("tokenizer.ggml.tokens", &["a", "b", "a"]);
        assert!(error_of(&file).contains("the file has no tokenizer"));
        let kind = |kind: &str| {
            let mut file = file.clone();
            file.text("tokenizer.ggml.model", kind).text("tokenizer.ggml.pre", "gpt-2");
            file
        };
        assert_eq!(error_of(&kind("t5")), "x.gguf: unsupported tokenizer \"t5\" in tokenizer.ggml.model");
        assert!(error_of(&kind("llama")).contains("tokenizer.ggml.scores is missing"));
        assert!(error_of(&kind("gpt2")).contains("tokenizer.ggml.merges is missing"));
        let mut twice = kind("gpt2");
        twice.texts("tokenizer.ggml.merges", &[]);
        assert!(error_of(&twice).contains("tokens 0 and 2 of the vocabulary are both \"a\""));
        let mut short = kind("llama");
        short.f32s("tokenizer.ggml.scores", &[0.0]);
        assert!(error_of(&short).contains("tokenizer.ggml.scores must hold 3 values; it holds 1"));
        let mut merges = Writer::default();
        merges.text("general.architecture", "gpt2").text("tokenizer.ggml.model", "gpt2");
        merges.texts("tokenizer.ggml.tokens", &["a", "b"]).texts("tokenizer.ggml.merges", &["ab"]);
        assert!(error_of(&merges).contains("merge 0 of tokenizer.ggml.merges, \"ab\", is not two tokens"));
        assert!(error_of(&byte_level("martian")).contains("unknown pre-tokenizer \"martian\""));
    }

    #[test]
    fn an_overlong_token_is_refused() {
        let mut file = Writer::default();
        file.text("general.architecture", "llama").text("tokenizer.ggml.model", "llama");
        file.texts("tokenizer.ggml.tokens", &["a", &"b".repeat(5000)]);
        assert!(error_of(&file).contains("token 1 is 5000 bytes long; no token has more than 4096"));
    }
}
