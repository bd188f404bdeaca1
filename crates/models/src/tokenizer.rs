//! Text to token ids and back.
//!
//! A thin layer over the `tokenizers` crate that adds what an engine showing single tokens needs: how one token reads
//! where it stands ([`Tokenizer::token_text`]), a decoder for tokens as they are generated ([`Stream`]), the token of
//! a string ([`Tokenizer::find`]), the special tokens, which Hugging Face spreads over five files (`special`), the older forms of
//! tokenizers (`convert`).

mod convert;
pub(crate) mod special;
mod stream;
#[cfg(test)]
mod tests;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use serde::de::IgnoredAny;
use tokenizers::{DecoderWrapper, Model as _};

use crate::checkpoint::{LFS_POINTER, LFS_REMEDY};
use crate::{Error, Result};
pub use convert::FORMS;
pub use special::{Sidecars, Special};
pub use stream::Stream;

const FILE: &str = "tokenizer.json";
const AGAIN: &str = "download tokenizer.json again, or save it again with `tokenizer.save_pretrained`";

/// A model's tokenizer with its special tokens.
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    special: Special,
    /// The file it came from, for messages.
    origin: PathBuf,
    /// The base model that it was taken from.
    base: Option<String>,
    bytes: ByteForm,
    /// A token, and its text, to put before another so that the other reads as it does inside a text.
    anchor: Option<(u32, String)>,
    adds_bos: bool,
}

/// How the vocabulary spells bytes that are not text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ByteForm {
    /// GPT-2's alphabet: each byte is one printable character.
    Level,
    /// Llama's: a token `<0xE2>` for each byte.
    Fallback,
    /// Not at all.
    None,
}

impl Tokenizer {
    /// The tokenizer of a Hugging Face directory, or `None` where it has none in any form that is known ([`FORMS`]).
    pub fn from_dir(dir: &Path) -> Result<Option<Tokenizer>> {
        let json = read_optional(&dir.join(FILE))?;
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

    /// A tokenizer from the contents of its files; `dir` stands for their directory in messages.
    pub fn from_bytes(dir: &Path, tokenizer_json: &[u8], sidecars: &Sidecars<'_>) -> Result<Tokenizer> {
        Tokenizer::read(dir, dir.join(FILE), tokenizer_json, sidecars)
    }

    /// Reads what `tokenizer.json` holds, or would hold had `origin` been one.
    fn read(dir: &Path, origin: PathBuf, tokenizer_json: &[u8], sidecars: &Sidecars<'_>) -> Result<Tokenizer> {
        if tokenizer_json.starts_with(LFS_POINTER) {
            return Err(Error::invalid(origin, "this is a Git LFS pointer, not the tokenizer", LFS_REMEDY));
        }
        let inner = parse(tokenizer_json)
            .map_err(|problem| Error::invalid(&origin, format!("not a valid tokenizer: {problem}"), AGAIN))?;
        let special = Special::read(dir, sidecars, &inner)?;
        Tokenizer::assemble(inner, special, origin)
    }

    /// A tokenizer built by other means, such as from a GGUF file; `origin` is that file, for messages.
    pub fn from_parts(inner: tokenizers::Tokenizer, special: Special, origin: &Path) -> Result<Tokenizer> {
        Tokenizer::assemble(inner, special, origin.to_owned())
    }

    fn assemble(mut inner: tokenizers::Tokenizer, mut special: Special, origin: PathBuf) -> Result<Tokenizer> {
        special.pad_as_eos(&inner);
        // Files keep the settings of whoever trained them; a prompt must never be cut or filled up in silence.
        inner
            .with_truncation(None)
            .map_err(|error| Error::invalid(&origin, format!("cannot switch truncation off: {error}"), AGAIN))?
            .with_padding(None);
        let bytes = inner.get_decoder().map_or(ByteForm::None, byte_form);
        let anchor = find_anchor(&inner, &special);
        // A file whose parts contradict each other shows it now, and not at the first prompt.
        let around = encode(&inner, "", true)
            .map_err(|problem| Error::invalid(&origin, format!("not a usable tokenizer: {problem}"), AGAIN))?;
        let adds_bos = special.bos.is_some() && special.bos == around.first().copied();
        Ok(Tokenizer { inner, special, origin, base: None, bytes, anchor, adds_bos })
    }

    /// The tokens of a text; `add_special` adds what the tokenizer puts around a text (often a start token).
    ///
    /// Special tokens written out in the text are recognised either way, as chat templates need.
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>> {
        encode(&self.inner, text, add_special)
            .map_err(|problem| Error::invalid(&self.origin, format!("the text cannot be encoded: {problem}"), AGAIN))
    }

    /// The text of tokens. Ids that the vocabulary lacks read as nothing, bytes that form no character as `�`.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        // Some decoders cannot take a text of no tokens.
        let is_shown = |&id: &u32| !(skip_special && self.is_special(id)) && self.inner.id_to_token(id).is_some();
        if !ids.iter().any(is_shown) {
            return String::new();
        }
        self.inner.decode(ids, skip_special).unwrap_or_else(|_| {
            // A decoder that fails on the whole can still show the pieces.
            ids.iter().filter(|&&id| !(skip_special && self.is_special(id))).map(|&id| self.token_text(id)).collect()
        })
    }

    /// How one token reads in the middle of a text: with its leading space, and bytes that are no character on their
    /// own as `<0xE2>`.
    pub fn token_text(&self, id: u32) -> String {
        let mut text = String::new();
        for chunk in self.token_bytes(id).utf8_chunks() {
            text.push_str(chunk.valid());
            chunk.invalid().iter().for_each(|byte| text.push_str(&format!("<0x{byte:02X}>")));
        }
        text
    }

    /// The bytes that a token stands for in the middle of a text; none for an id that the vocabulary lacks.
    pub fn token_bytes(&self, id: u32) -> Vec<u8> {
        let Some(piece) = self.inner.id_to_token(id) else { return Vec::new() };
        if self.is_added(id) {
            return piece.into_bytes();
        }
        let bytes = match self.bytes {
            ByteForm::Level => piece.chars().map(level_byte).collect(),
            ByteForm::Fallback => fallback_byte(&piece).map(|byte| vec![byte]),
            ByteForm::None => None,
        };
        bytes.unwrap_or_else(|| self.text_after_anchor(id).into_bytes())
    }

    /// What the decoder adds to a text when the token follows it.
    fn text_after_anchor(&self, id: u32) -> String {
        let alone = |id| self.inner.decode(&[id], false).unwrap_or_default();
        let Some((anchor, text)) = &self.anchor else { return alone(id) };
        let both = self.inner.decode(&[*anchor, id], false).unwrap_or_default();
        both.strip_prefix(text.as_str()).map_or_else(|| alone(id), str::to_owned)
    }

    /// A decoder for tokens that arrive one at a time.
    pub fn stream(&self, skip_special: bool) -> Stream<'_> {
        Stream::new(self, skip_special)
    }

    /// The one token that reads as this text, leading space included.
    pub fn find(&self, text: &str) -> Option<u32> {
        if text.is_empty() {
            return None;
        }
        // The vocabulary spells a space in its own way; a spelling counts only if the token then reads as the text.
        let level: String = text.bytes().map(level_char).collect();
        let spellings = [text, &text.replace(' ', "\u{2581}"), &level].map(|spelling| self.inner.token_to_id(spelling));
        if let Some(id) = spellings.into_iter().flatten().find(|&id| self.token_bytes(id) == text.as_bytes()) {
            return Some(id);
        }
        match self.encode(text, false).ok()?.as_slice() {
            &[id] if Some(id) != self.special.unk => Some(id),
            _ => None,
        }
    }

    /// How many tokens the vocabulary has, added ones included.
    pub fn vocab_size(&self) -> usize {
        self.inner.get_vocab_size(true)
    }

    /// The special tokens.
    pub fn special(&self) -> &Special {
        &self.special
    }

    /// The file that it came from.
    pub fn origin(&self) -> &Path {
        &self.origin
    }

    /// The same tokenizer, as taken from the base model `base`.
    pub(crate) fn of_base(self, base: String) -> Tokenizer {
        Tokenizer { base: Some(base), ..self }
    }

    /// The base model whose tokenizer this is, where the path that was asked for belongs to another model and has none of its own.
    pub fn base(&self) -> Option<&str> {
        self.base.as_deref()
    }

    /// Whether a token is a marker rather than text.
    pub fn is_special(&self, id: u32) -> bool {
        self.inner.get_added_vocabulary().get_added_tokens_decoder().get(&id).is_some_and(|token| token.special)
    }

    fn is_added(&self, id: u32) -> bool {
        self.inner.get_added_vocabulary().get_added_tokens_decoder().contains_key(&id)
    }

    /// Whether [`Tokenizer::encode`] with `add_special` puts the start token first.
    pub fn adds_bos(&self) -> bool {
        self.adds_bos
    }

    /// Checks that the vocabulary fits an embedding of `vocab_rows` rows.
    ///
    /// Returns the added tokens that lie beyond it: some real models have a few (markers of images in a text-only
    /// model), and only a prompt that uses one is wrong. An ordinary token beyond it means the wrong tokenizer.
    pub fn check_fits(&self, vocab_rows: usize) -> Result<Vec<String>> {
        let beyond = |id: &u32| *id as usize >= vocab_rows;
        let (model, added) = (self.inner.get_model(), self.inner.get_added_vocabulary().get_vocab());
        // The tokenizer shows its vocabulary only by copying it, which is not needed where its ids are the first ones without a gap.
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
        // The vocabulary would fill the screen.
        f.debug_struct("Tokenizer")
            .field("origin", &self.origin)
            .field("special", &self.special)
            .finish_non_exhaustive()
    }
}

/// The contents of the files that a tokenizer may need beside its own, in the order of [`Sidecars::NAMES`].
fn sidecar_files(dir: &Path) -> Result<[Option<Vec<u8>>; 4]> {
    let [a, b, c, d] = Sidecars::NAMES.map(|name| read_optional(&dir.join(name)));
    Ok([a?, b?, c?, d?])
}

/// A file's contents, or `None` where there is no such file.
pub(crate) fn read_optional(path: &Path) -> Result<Option<Vec<u8>>> {
    match std::fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::io(path)(error)),
    }
}

/// Reads `tokenizer.json`.
fn parse(json: &[u8]) -> std::result::Result<tokenizers::Tokenizer, String> {
    // The library panics on JSON that breaks off in some places, so the syntax is checked before it sees the file.
    serde_json::from_slice::<IgnoredAny>(json).map_err(|error| error.to_string())?;
    // What well-formed nonsense may still trip over in there is an error about the file, and not the end of the program.
    catch_unwind(|| tokenizers::Tokenizer::from_bytes(json))
        .map_err(|_| "its parts contradict each other".to_owned())?
        .map_err(|error| error.to_string())
}

/// Encodes; contradictions in the file on which the library panics come back as a problem too.
fn encode(inner: &tokenizers::Tokenizer, text: &str, add_special: bool) -> std::result::Result<Vec<u32>, String> {
    catch_unwind(AssertUnwindSafe(|| inner.encode_fast(text, add_special)))
        .map_err(|_| "its parts contradict each other".to_owned())?
        .map(|encoding| encoding.get_ids().to_vec())
        .map_err(|error| error.to_string())
}

fn byte_form(decoder: &DecoderWrapper) -> ByteForm {
    match decoder {
        DecoderWrapper::ByteLevel(_) => ByteForm::Level,
        DecoderWrapper::ByteFallback(_) => ByteForm::Fallback,
        DecoderWrapper::Sequence(sequence) => {
            let forms = sequence.get_decoders().iter().map(byte_form);
            forms.into_iter().find(|&form| form != ByteForm::None).unwrap_or(ByteForm::None)
        }
        _ => ByteForm::None,
    }
}

/// A plain token that decodes to something, if the vocabulary has one.
fn find_anchor(inner: &tokenizers::Tokenizer, special: &Special) -> Option<(u32, String)> {
    ["a", "e", "the", "."].into_iter().find_map(|text| {
        let id = *encode(inner, text, false).ok()?.last()?;
        let read = inner.decode(&[id], false).ok()?;
        (Some(id) != special.unk && read == text).then_some((id, read))
    })
}

/// The byte of a piece like `<0xE2>`.
fn fallback_byte(piece: &str) -> Option<u8> {
    let digits = piece.strip_prefix("<0x")?.strip_suffix('>')?;
    (digits.len() == 2).then(|| u8::from_str_radix(digits, 16).ok())?
}

/// GPT-2 writes bytes that are visible in Latin-1 as themselves and numbers the others from U+0100 upwards.
fn level_char(byte: u8) -> char {
    if is_visible(byte) {
        return char::from(byte);
    }
    let number = (0..byte).filter(|&other| !is_visible(other)).count() as u32;
    char::from_u32(256 + number).unwrap_or(char::REPLACEMENT_CHARACTER)
}

/// The inverse of [`level_char`].
fn level_byte(char: char) -> Option<u8> {
    match u32::from(char) {
        code @ 0..256 => u8::try_from(code).ok().filter(|&byte| is_visible(byte)),
        code => (0..=255u8).filter(|&byte| !is_visible(byte)).nth((code - 256) as usize),
    }
}

fn is_visible(byte: u8) -> bool {
    matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF)
}
