//! Encodes text to token ids and decodes them.
//!
//! A thin layer over the `tokenizers` crate. It adds the text of a single token in context
//! ([`Tokenizer::token_text`]), decoding of bytes that arrive in pieces (`partial_character`), the
//! token of a string
//! ([`Tokenizer::find`]), the special tokens, which Hugging Face spreads over five files
//! (`special`), limits on what a file can make of a text (`stages`) and on its vocabulary
//! (`vocabulary`), and the conversion of older tokenizer files (`convert`).

mod convert;
pub(crate) mod merges;
mod partial_character;
pub(crate) mod special;
pub(crate) mod stages;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
pub(crate) mod vocabulary;

use std::ops::Range;
use std::path::{Path, PathBuf};

use tokenizers::{DecoderWrapper, Model as _};

use crate::files::{FETCH_LFS, LFS_POINTER, MAX_SETTINGS_BYTES, MAX_VOCABULARY_BYTES, read_small_if_exists};
use crate::quiet::catch_quietly;
use crate::{Error, Result};
pub use convert::TOKENIZER_FILES;
pub(crate) use partial_character::PartialCharacter;
pub use special::{Sidecars, SpecialTokens};
use stages::{Pipeline, check_decoder};

const TOKENIZER_JSON: &str = "tokenizer.json";
const REDOWNLOAD: &str = "download tokenizer.json again, or save it again with `tokenizer.save_pretrained`";

/// A model's tokenizer with its special tokens.
pub struct Tokenizer {
    inner: Pipeline,
    special: SpecialTokens,
    /// The file it came from, for messages.
    origin: PathBuf,
    /// The base model whose tokenizer this is, if the model itself has none.
    base: Option<String>,
    byte_encoding: ByteEncoding,
    /// The suffix of pieces that end a word (GPT-1's `</w>`), if the vocabulary has one.
    word_suffix: Option<String>,
    /// A plain token and its text. Decoding `[anchor, id]` gives the text of `id` in context: some
    /// decoders strip the space of the first token.
    anchor: Option<(u32, String)>,
    adds_bos: bool,
}

/// How the vocabulary represents bytes that are not valid UTF-8 on their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ByteEncoding {
    /// Byte-level BPE (GPT-2): each byte is one printable character.
    ByteLevel,
    /// Byte fallback (Llama): a token `<0xE2>` for each byte.
    ByteFallback,
    /// No representation.
    None,
}

impl Tokenizer {
    /// Opens the tokenizer of a Hugging Face directory; `None` if it has none of the
    /// [`TOKENIZER_FILES`].
    pub fn from_dir(dir: &Path) -> Result<Option<Tokenizer>> {
        let json = read_small_if_exists(&dir.join(TOKENIZER_JSON), MAX_VOCABULARY_BYTES)?;
        let [tokenizer_config, special_tokens_map, generation_config, config] = sidecar_files(dir)?;
        let sidecars = Sidecars {
            tokenizer_config: tokenizer_config.as_deref(),
            special_tokens_map: special_tokens_map.as_deref(),
            generation_config: generation_config.as_deref(),
            config: config.as_deref(),
        };
        if let Some(json) = json {
            return Tokenizer::from_bytes(dir, &json, &sidecars).map(Some);
        }
        let Some(converted) = convert::from_dir(dir, &sidecars)? else { return Ok(None) };
        let sidecars = Sidecars { tokenizer_config: Some(&converted.tokenizer_config), ..sidecars };
        Tokenizer::read(dir, converted.file, &converted.json, &sidecars).map(Some)
    }

    /// Creates a tokenizer from the contents of its files; `dir` is only used in messages.
    pub fn from_bytes(dir: &Path, tokenizer_json: &[u8], sidecars: &Sidecars<'_>) -> Result<Tokenizer> {
        Tokenizer::read(dir, dir.join(TOKENIZER_JSON), tokenizer_json, sidecars)
    }

    /// Creates a tokenizer from `tokenizer.json` contents, read or converted from the file
    /// `origin`.
    fn read(dir: &Path, origin: PathBuf, tokenizer_json: &[u8], sidecars: &Sidecars<'_>) -> Result<Tokenizer> {
        if tokenizer_json.starts_with(LFS_POINTER) {
            return Err(Error::invalid(origin, "this is a Git LFS pointer, not the tokenizer", FETCH_LFS));
        }
        let inner = parse(tokenizer_json)
            .map_err(|problem| Error::invalid(&origin, format!("not a valid tokenizer: {problem}"), REDOWNLOAD))?;
        let special = SpecialTokens::read(dir, sidecars, &inner)?;
        Tokenizer::assemble(inner, special, origin)
    }

    /// Returns it as the contents of a `tokenizer.json`; [`from_json`](Self::from_json) reads it.
    pub fn to_json(&self) -> Result<String> {
        self.inner.to_string(false).map_err(|error| {
            Error::invalid(&self.origin, format!("the tokenizer cannot be written: {error}"), REDOWNLOAD)
        })
    }

    /// Creates a tokenizer from the contents of a `tokenizer.json` and its special tokens; `origin`
    /// is used in messages.
    pub fn from_json(json: &str, special: SpecialTokens, origin: &Path) -> Result<Tokenizer> {
        let inner = parse(json.as_bytes())
            .map_err(|problem| Error::invalid(origin, format!("not a valid tokenizer: {problem}"), REDOWNLOAD))?;
        Tokenizer::assemble(inner, special, origin.to_owned())
    }

    /// Wraps a tokenizer built elsewhere, such as from the GGUF file `origin` (used in messages).
    pub(crate) fn from_parts(inner: Pipeline, special: SpecialTokens, origin: &Path) -> Result<Tokenizer> {
        Tokenizer::assemble(inner, special, origin.to_owned())
    }

    fn assemble(mut inner: Pipeline, mut special: SpecialTokens, origin: PathBuf) -> Result<Tokenizer> {
        special.pad_as_eos(&inner);
        // Files keep the truncation and padding used in training; a prompt must never be truncated
        // or padded.
        inner
            .with_truncation(None)
            .map_err(|error| Error::invalid(&origin, format!("cannot switch truncation off: {error}"), REDOWNLOAD))?
            .with_padding(None);
        if let Some(Err(problem)) = inner.get_decoder().map(check_decoder) {
            return Err(Error::invalid(&origin, format!("not a usable tokenizer: {problem}"), REDOWNLOAD));
        }
        let byte_encoding = inner.get_decoder().map_or(ByteEncoding::None, byte_encoding);
        let word_suffix = inner.get_decoder().and_then(word_suffix);
        let anchor = find_anchor(&inner, &special);
        // Encoding once exposes an inconsistent file here instead of at the first prompt.
        let empty = encode(&inner, "", true)
            .map_err(|problem| Error::invalid(&origin, format!("not a usable tokenizer: {problem}"), REDOWNLOAD))?;
        let adds_bos = special.bos.is_some() && special.bos == empty.first().copied();
        Ok(Tokenizer { inner, special, origin, base: None, byte_encoding, word_suffix, anchor, adds_bos })
    }

    /// Encodes a text; with `add_special`, the post-processor's tokens (often bos) are added.
    ///
    /// Special tokens written out in the text are recognized either way, as chat templates require.
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>> {
        encode(&self.inner, text, add_special).map_err(|problem| {
            Error::invalid(&self.origin, format!("the text cannot be encoded: {problem}"), REDOWNLOAD)
        })
    }

    /// Encodes a text without special tokens; also returns the bytes of the text that each token
    /// comes from. Tokens of one character share its range, and whitespace may be left out.
    pub fn encode_with_offsets(&self, text: &str) -> Result<(Vec<u32>, Vec<Range<usize>>)> {
        let encoding = catch_quietly(|| self.inner.encode(text, false))
            .ok_or_else(|| INCONSISTENT.to_owned())
            .and_then(|encoding| encoding.map_err(|error| error.to_string()));
        let encoding = encoding.map_err(|problem| {
            Error::invalid(&self.origin, format!("the text cannot be encoded: {problem}"), REDOWNLOAD)
        })?;
        let offsets = encoding.get_offsets().iter().map(|&(start, end)| start..end).collect();
        Ok((encoding.get_ids().to_vec(), offsets))
    }

    /// Decodes tokens. Ids outside the vocabulary give no text, invalid UTF-8 gives `�`.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        // Some decoders fail on an empty list.
        let is_shown = |&id: &u32| !(skip_special && self.is_special(id)) && self.inner.id_to_token(id).is_some();
        if !ids.iter().any(is_shown) {
            return String::new();
        }
        self.decode_with_library(ids, skip_special).unwrap_or_else(|| {
            // If the decoder fails on the sequence, concatenate the texts of the tokens.
            ids.iter().filter(|&&id| !(skip_special && self.is_special(id))).map(|&id| self.token_text(id)).collect()
        })
    }

    /// Decodes with the library; `None` if it fails or panics, as it does on some damaged files.
    fn decode_with_library(&self, ids: &[u32], skip_special: bool) -> Option<String> {
        catch_quietly(|| self.inner.decode(ids, skip_special))?.ok()
    }

    /// The text of one token in the middle of a text: with its leading space, and bytes that are
    /// not valid UTF-8 on their own as `<0xE2>`.
    pub fn token_text(&self, id: u32) -> String {
        let mut text = String::new();
        for chunk in self.token_bytes(id).utf8_chunks() {
            text.push_str(chunk.valid());
            chunk.invalid().iter().for_each(|byte| text.push_str(&format!("<0x{byte:02X}>")));
        }
        text
    }

    /// The bytes of a token in the middle of a text; empty for an id outside the vocabulary.
    pub fn token_bytes(&self, id: u32) -> Vec<u8> {
        let Some(piece) = self.inner.id_to_token(id) else { return Vec::new() };
        if self.is_special(id) {
            return piece.into_bytes();
        }
        let bytes = match self.byte_encoding {
            // An added token is decoded like the others if all its characters stand for bytes.
            ByteEncoding::ByteLevel => piece.chars().map(char_to_byte).collect(),
            ByteEncoding::ByteFallback => fallback_byte(&piece).map(|byte| vec![byte]),
            ByteEncoding::None => None,
        };
        bytes.unwrap_or_else(|| self.text_after_anchor(id).into_bytes())
    }

    /// The text that the decoder adds for `id` after the anchor token.
    fn text_after_anchor(&self, id: u32) -> String {
        let alone = |id| self.decode_with_library(&[id], false).unwrap_or_default();
        let Some((anchor, text)) = &self.anchor else { return alone(id) };
        let both = self.decode_with_library(&[*anchor, id], false).unwrap_or_default();
        both.strip_prefix(text.as_str()).map_or_else(|| alone(id), str::to_owned)
    }

    /// The bytes of a token after other tokens of its row. `word_ended` is whether they end a word,
    /// which matters only to vocabularies that mark the end of words: there the space between two
    /// words belongs to neither token.
    pub(crate) fn bytes_after(&self, id: u32, word_ended: &mut bool) -> Vec<u8> {
        let Some(suffix) = self.word_suffix.as_deref().filter(|_| !self.is_added(id)) else {
            return self.token_bytes(id);
        };
        let piece = self.inner.id_to_token(id).unwrap_or_default();
        let space = if *word_ended { " " } else { "" };
        *word_ended = piece.ends_with(suffix);
        format!("{space}{}", piece.strip_suffix(suffix).unwrap_or(&piece)).into_bytes()
    }

    /// Returns the single token for this text, including a leading space.
    pub fn find(&self, text: &str) -> Option<u32> {
        if text.is_empty() {
            return None;
        }
        // The vocabulary may contain the text as is, with metaspaces or in byte-level form; the
        // token must decode to the text.
        let byte_level: String = text.bytes().map(byte_to_char).collect();
        let spellings =
            [text, &text.replace(' ', "\u{2581}"), &byte_level].map(|spelling| self.inner.token_to_id(spelling));
        if let Some(id) = spellings.into_iter().flatten().find(|&id| self.token_bytes(id) == text.as_bytes()) {
            return Some(id);
        }
        match self.encode(text, false).ok()?.as_slice() {
            &[id] if Some(id) != self.special.unk => Some(id),
            _ => None,
        }
    }

    /// Vocabulary size, including added tokens.
    pub fn vocab_size(&self) -> usize {
        self.inner.get_vocab_size(true)
    }

    /// The special tokens.
    pub fn special(&self) -> &SpecialTokens {
        &self.special
    }

    /// The file that the tokenizer was read from.
    pub fn origin(&self) -> &Path {
        &self.origin
    }

    /// Marks this tokenizer as taken from the base model `base`.
    pub(crate) fn with_base(self, base: String) -> Tokenizer {
        Tokenizer { base: Some(base), ..self }
    }

    /// The base model whose tokenizer this is, if the requested model has none of its own.
    pub fn base(&self) -> Option<&str> {
        self.base.as_deref()
    }

    /// Whether a token is special (a marker rather than text).
    pub fn is_special(&self, id: u32) -> bool {
        self.inner.get_added_vocabulary().get_added_tokens_decoder().get(&id).is_some_and(|token| token.special)
    }

    fn is_added(&self, id: u32) -> bool {
        self.inner.get_added_vocabulary().get_added_tokens_decoder().contains_key(&id)
    }

    /// Whether [`Tokenizer::encode`] with `add_special` prepends bos.
    pub fn adds_bos(&self) -> bool {
        self.adds_bos
    }

    /// The text of the first token that [`Tokenizer::encode`] with `add_special` prepends.
    pub(crate) fn prepends(&self) -> Option<String> {
        encode(&self.inner, "", true).ok()?.first().map(|&id| self.token_text(id))
    }

    /// Checks that all token ids are below `vocab_rows`, the rows of the embedding.
    ///
    /// Returns the added tokens that are not: some real models have a few (image markers in a
    /// text-only model), which matter only to prompts that use them.
    ///
    /// # Errors
    /// If an ordinary token is not: then the tokenizer belongs to another model.
    pub fn check_fits(&self, vocab_rows: usize) -> Result<Vec<String>> {
        let beyond = |id: &u32| *id as usize >= vocab_rows;
        let (model, added) = (self.inner.get_model(), self.inner.get_added_vocabulary().get_vocab());
        // get_vocab() copies the vocabulary; skip that if the ids are contiguous from 0.
        let size = model.get_vocab_size();
        let fits = size <= vocab_rows && (0..size as u32).all(|id| model.id_to_token(id).is_some());
        let vocabulary = if fits { Default::default() } else { model.get_vocab() };
        let mut ordinary: Vec<(u32, String)> = vocabulary.into_iter().map(|(token, id)| (id, token)).collect();
        ordinary.retain(|(id, token)| beyond(id) && !added.contains_key(token));
        if let Some((id, token)) = ordinary.iter().min() {
            return Err(Error::invalid(
                &self.origin,
                format!("token {id} (`{token}`) is beyond the model's embedding, which has {vocab_rows} rows"),
                "the tokenizer belongs to another model: use the one that came with the weights",
            ));
        }
        let mut outside: Vec<(u32, String)> =
            added.iter().filter(|(_, id)| beyond(id)).map(|(token, &id)| (id, token.clone())).collect();
        outside.sort();
        Ok(outside.into_iter().map(|(_, token)| token).collect())
    }
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Omits the vocabulary, which is too long.
        f.debug_struct("Tokenizer")
            .field("origin", &self.origin)
            .field("special", &self.special)
            .finish_non_exhaustive()
    }
}

/// The contents of the sidecar files, in the order of [`Sidecars::NAMES`].
fn sidecar_files(dir: &Path) -> Result<[Option<Vec<u8>>; 4]> {
    let [a, b, c, d] = Sidecars::NAMES.map(|name| read_small_if_exists(&dir.join(name), MAX_SETTINGS_BYTES));
    Ok([a?, b?, c?, d?])
}

/// The problem of a file on which the library panics.
const INCONSISTENT: &str = "its parts are inconsistent";

/// Parses `tokenizer.json`.
fn parse(json: &[u8]) -> std::result::Result<Pipeline, String> {
    // The library panics on some truncated JSON, so the syntax is checked first.
    vocabulary::check(json)?;
    // It also panics on some well-formed but inconsistent files; that becomes an error.
    catch_quietly(|| Pipeline::from_bytes(json)).ok_or(INCONSISTENT)?.map_err(|error| error.to_string())
}

/// Encodes a text; a panic of the library on an inconsistent file becomes an error.
fn encode(inner: &Pipeline, text: &str, add_special: bool) -> std::result::Result<Vec<u32>, String> {
    catch_quietly(|| inner.encode_fast(text, add_special))
        .ok_or(INCONSISTENT)?
        .map(|encoding| encoding.get_ids().to_vec())
        .map_err(|error| error.to_string())
}

fn byte_encoding(decoder: &DecoderWrapper) -> ByteEncoding {
    match decoder {
        DecoderWrapper::ByteLevel(_) => ByteEncoding::ByteLevel,
        DecoderWrapper::ByteFallback(_) => ByteEncoding::ByteFallback,
        DecoderWrapper::Sequence(sequence) => {
            let forms = sequence.get_decoders().iter().map(byte_encoding);
            forms.into_iter().find(|&form| form != ByteEncoding::None).unwrap_or(ByteEncoding::None)
        }
        _ => ByteEncoding::None,
    }
}

/// The suffix of pieces that end a word.
fn word_suffix(decoder: &DecoderWrapper) -> Option<String> {
    match decoder {
        DecoderWrapper::BPE(decoder) => Some(decoder.suffix.clone()).filter(|suffix| !suffix.is_empty()),
        DecoderWrapper::Sequence(sequence) => sequence.get_decoders().iter().find_map(word_suffix),
        _ => None,
    }
}

/// Finds a plain token that decodes to its own text.
fn find_anchor(inner: &Pipeline, special: &SpecialTokens) -> Option<(u32, String)> {
    ["a", "e", "the", "."].into_iter().find_map(|text| {
        let id = *encode(inner, text, false).ok()?.last()?;
        let decoded = catch_quietly(|| inner.decode(&[id], false))?.ok()?;
        (Some(id) != special.unk && decoded == text).then_some((id, decoded))
    })
}

/// The byte of a piece like `<0xE2>`.
fn fallback_byte(piece: &str) -> Option<u8> {
    let digits = piece.strip_prefix("<0x")?.strip_suffix('>')?;
    (digits.len() == 2).then(|| u8::from_str_radix(digits, 16).ok())?
}

/// GPT-2's byte alphabet: printable Latin-1 bytes are themselves, the others are numbered from
/// U+0100.
fn byte_to_char(byte: u8) -> char {
    if is_visible(byte) {
        return char::from(byte);
    }
    let number = (0..byte).filter(|&other| !is_visible(other)).count() as u32;
    char::from_u32(256 + number).unwrap_or(char::REPLACEMENT_CHARACTER)
}

/// Inverse of [`byte_to_char`].
fn char_to_byte(char: char) -> Option<u8> {
    match u32::from(char) {
        code @ 0..256 => u8::try_from(code).ok().filter(|&byte| is_visible(byte)),
        code => (0..=255u8).filter(|&byte| !is_visible(byte)).nth((code - 256) as usize),
    }
}

fn is_visible(byte: u8) -> bool {
    matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF)
}
