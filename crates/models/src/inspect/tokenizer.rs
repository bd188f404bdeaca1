//! Checks the tokenizer by scanning its files; building it would take longer than all other checks.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use super::report::{Report, TokenizerReport, TokenizerState};
use super::vocabulary_scan;
use crate::Result;
use crate::chat::ChatTemplate;
use crate::gguf::{self, GgufFile};
use crate::listing::Listing;
use crate::source::gguf_tokenizer;
use crate::tokenizer::{Sidecars, Tokenizer, special, vocabulary};

const TOKENIZER_JSON: &str = "tokenizer.json";

/// Limit of tokenizer.json; the largest real ones have about 30 MB.
const MAX_BYTES: u64 = 256 << 20;

/// Reports the tokenizer and chat template of a directory.
pub(super) fn inspect_directory(listing: &Listing, report: &mut Report) {
    let sidecars = Sidecars::NAMES.map(|name| listing.json(name));
    let has_broken_sidecar = sidecars.iter().any(Result::is_err);
    let sidecars = sidecars.map(|file| file.ok().flatten());
    report.tokenizer = match listing.map_file(TOKENIZER_JSON, MAX_BYTES) {
        Ok(None) => inspect_older_form(listing, report.vocab),
        Ok(Some(json)) => {
            scan(&json, &sidecars, report.vocab).unwrap_or_else(|note| damaged(format!("{TOKENIZER_JSON}: {note}")))
        }
        Err(error) => damaged(error.to_string()),
    };
    let is_suspicious = match report.tokenizer.state {
        TokenizerState::Missing => false,
        TokenizerState::DoesNotFit | TokenizerState::Damaged => true,
        // Loading reads the sidecars only with a tokenizer; config.json is reported elsewhere.
        TokenizerState::Present | TokenizerState::Rebuilt => has_broken_sidecar,
    };
    if is_suspicious {
        refuse_if_not_built(Tokenizer::from_dir(&listing.dir), report);
    }
    match chat_template(listing) {
        Ok(present) => report.chat_template = present,
        Err(error) => report.refuse_for(&error),
    }
}

/// Reports the error of building the tokenizer, if any. The scan is only an approximation: if it
/// finds a fault, building decides.
fn refuse_if_not_built(built: Result<Option<Tokenizer>>, report: &mut Report) {
    let checked = built.and_then(|tokenizer| match (&tokenizer, report.vocab) {
        (Some(tokenizer), Some(rows)) => tokenizer.check_fits(rows).map(drop),
        _ => Ok(()),
    });
    match checked {
        Err(error) => report.refuse_for(&error),
        Ok(()) => (report.tokenizer.state, report.tokenizer.note) = (TokenizerState::Present, None),
    }
}

fn chat_template(listing: &Listing) -> Result<bool> {
    let exists = |name: &&str| listing.has(name);
    if !["chat_template.jinja", "chat_template.json", "tokenizer_config.json"].iter().any(exists) {
        return Ok(false);
    }
    ChatTemplate::from_dir(&listing.dir).map(|template| template.is_some())
}

fn damaged(note: String) -> TokenizerReport {
    TokenizerReport::with_state(TokenizerState::Damaged, Some(note))
}

/// Builds an older form of tokenizer, because scanning its files is not enough.
fn inspect_older_form(listing: &Listing, rows: Option<usize>) -> TokenizerReport {
    match Tokenizer::from_dir(&listing.dir) {
        Ok(Some(tokenizer)) => describe_built(&tokenizer, rows, origin_note(&tokenizer)),
        Ok(None) => {
            let note = format!("no {TOKENIZER_JSON} or older form; the model runs on token ids");
            TokenizerReport::with_state(TokenizerState::Missing, Some(note))
        }
        Err(error) => damaged(error.to_string()),
    }
}

fn origin_note(tokenizer: &Tokenizer) -> String {
    let file = tokenizer.origin().file_name().unwrap_or_default();
    format!("rebuilt from {}", file.to_string_lossy())
}

/// The report on a tokenizer that was built.
fn describe_built(tokenizer: &Tokenizer, rows: Option<usize>, note: String) -> TokenizerReport {
    let misfit = rows.and_then(|rows| tokenizer.check_fits(rows).err());
    TokenizerReport {
        state: if misfit.is_some() { TokenizerState::DoesNotFit } else { TokenizerState::Rebuilt },
        vocab: Some(tokenizer.vocab_size()),
        adds_bos: Some(tokenizer.adds_bos()),
        prepends: tokenizer.prepends(),
        pad_from_eos: Some(tokenizer.special().pad_from_eos),
        note: Some(misfit.map_or(note, |error| error.to_string())),
    }
}

/// The parts of `tokenizer.json` that the report needs.
#[derive(Deserialize)]
struct TokenizerFile {
    #[serde(default)]
    added_tokens: Vec<AddedToken>,
    #[serde(default)]
    post_processor: Option<Value>,
    model: Option<ModelSection>,
}

/// Reads these parts and the ids: with a fast scan if the file has the usual form, else with a
/// parser.
fn read(json: &[u8]) -> serde_json::Result<(TokenizerFile, Vec<u32>)> {
    if let Some(scanned) = vocabulary_scan::scan(json)
        && let Ok(file) = serde_json::from_slice::<TokenizerFile>(&scanned.head)
        && scanned.head.windows(16).any(|key| key == b"\"post_processor\"")
    {
        return Ok((file, scanned.ids));
    }
    vocabulary::check(json).map_err(serde_json::Error::custom)?;
    let mut file: TokenizerFile = serde_json::from_slice(json)?;
    let model = file.model.take().ok_or_else(|| serde_json::Error::custom("it has no model"))?;
    Ok((file, model.vocab.0))
}

#[derive(Deserialize)]
struct AddedToken {
    id: u32,
}

#[derive(Deserialize)]
struct ModelSection {
    vocab: Ids,
}

/// The ids of a vocabulary, without the texts.
struct Ids(Vec<u32>);

impl<'de> Deserialize<'de> for Ids {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        deserializer.deserialize_any(IdsVisitor).map(Ids)
    }
}

struct IdsVisitor;

impl<'de> Visitor<'de> for IdsVisitor {
    type Value = Vec<u32>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map from tokens to ids, or a list of tokens")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Self::Value, A::Error> {
        let mut ids = Vec::new();
        while let Some((IgnoredAny, id)) = map.next_entry()? {
            ids.push(id);
        }
        Ok(ids)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> std::result::Result<Self::Value, A::Error> {
        let mut ids = Vec::new();
        while let Some(IgnoredAny) = list.next_element()? {
            ids.push(ids.len() as u32);
        }
        Ok(ids)
    }
}

/// Reports on `tokenizer.json`; the error is the reason why it is invalid.
fn scan(
    json: &[u8],
    sidecars: &[Option<Value>; 4],
    rows: Option<usize>,
) -> std::result::Result<TokenizerReport, String> {
    let (file, mut ids) = read(json).map_err(|error| format!("not a valid tokenizer: {error}"))?;
    ids.sort_unstable();
    let mut added: Vec<u32> = file.added_tokens.iter().map(|token| token.id).collect();
    added.sort_unstable();
    added.dedup();
    let vocab = ids.len() + added.iter().filter(|id| ids.binary_search(id).is_err()).count();
    // Added tokens beyond the embedding are image markers and the like; an ordinary one means a
    // wrong tokenizer.
    let beyond = rows.and_then(|rows| ids.iter().find(|id| **id as usize >= rows && added.binary_search(id).is_err()));
    let post_processor = file.post_processor.as_ref().unwrap_or(&Value::Null);
    let adds_bos = Some(adds_bos(post_processor, sidecars));
    let prepends = first_token(post_processor).map(|(text, _)| text.to_owned());
    let beyond = beyond.zip(rows);
    Ok(TokenizerReport {
        state: if beyond.is_some() { TokenizerState::DoesNotFit } else { TokenizerState::Present },
        vocab: Some(vocab),
        adds_bos,
        prepends,
        pad_from_eos: Some(special::pads_with_eos(sidecars)),
        note: beyond.map(|(id, rows)| {
            format!("{TOKENIZER_JSON}: token {id} is beyond the model's embedding, which has {rows} rows")
        }),
    })
}

/// Whether the first token that the post-processor adds is the bos token of the sidecar files.
fn adds_bos(post_processor: &Value, sidecars: &[Option<Value>; 4]) -> bool {
    let Some((first_text, first_id)) = first_token(post_processor) else { return false };
    let texts = sidecars[..2].iter().flatten().find_map(|file| file.get("bos_token"));
    let text = texts.and_then(|token| token.as_str().or_else(|| token.get("content")?.as_str()));
    match text {
        Some(text) => first_text == text,
        None => {
            let id = sidecars[2..].iter().flatten().find_map(|file| file.get("bos_token_id")?.as_u64());
            id.is_some() && id == first_id
        }
    }
}

/// The text and id of the first token that a post-processor adds.
fn first_token(processor: &Value) -> Option<(&str, Option<u64>)> {
    match processor.get("type")?.as_str()? {
        "TemplateProcessing" => {
            let name = processor.pointer("/single/0/SpecialToken/id")?.as_str()?;
            let token = processor.get("special_tokens").and_then(|tokens| tokens.get(name));
            let text = token.and_then(|token| token.pointer("/tokens/0")?.as_str()).unwrap_or(name);
            Some((text, token.and_then(|token| token.pointer("/ids/0")?.as_u64())))
        }
        "BertProcessing" | "RobertaProcessing" => {
            Some((processor.pointer("/cls/0")?.as_str()?, processor.pointer("/cls/1").and_then(Value::as_u64)))
        }
        "Sequence" => processor.get("processors")?.as_array()?.iter().find_map(first_token),
        _ => None,
    }
}

/// Reports the tokenizer of a GGUF file.
pub(super) fn inspect_gguf(file: &GgufFile, report: &mut Report) {
    let tokens = match file.value("tokenizer.ggml.tokens") {
        Some(gguf::Value::List(list)) => Some(list.len),
        _ => None,
    };
    let kind = file.text("tokenizer.ggml.model").ok().flatten();
    let Some(kind) = kind else {
        report.tokenizer.note = Some("the file has no tokenizer; the model runs on token ids".into());
        return;
    };
    let build = || gguf_tokenizer(file);
    let special = match gguf::special_tokens(file) {
        Ok(special) => special,
        Err(error) => {
            report.tokenizer = damaged(error.to_string());
            return refuse_if_not_built(build(), report);
        }
    };
    report.chat_template = special.chat_template.is_some();
    report.tokenizer = TokenizerReport {
        state: TokenizerState::Rebuilt,
        vocab: tokens,
        adds_bos: Some(special.add_bos && special.bos.is_some()),
        prepends: None,
        pad_from_eos: Some(special.pad.is_none() && special.eos.is_some()),
        note: None,
    };
    if !["gpt2", "llama"].contains(&kind) {
        let note = format!("unsupported tokenizer {kind:?} in tokenizer.ggml.model");
        (report.tokenizer.state, report.tokenizer.note) = (TokenizerState::Damaged, Some(note));
        refuse_if_not_built(build(), report);
    } else if let (Some(tokens), Some(rows)) = (tokens, report.vocab)
        && has_ordinary_token_beyond(file, tokens, rows)
    {
        let note = format!("the tokenizer has {tokens} tokens and the model's embedding {rows} rows");
        (report.tokenizer.state, report.tokenizer.note) = (TokenizerState::DoesNotFit, Some(note));
        refuse_if_not_built(build(), report);
    }
}

/// Whether an ordinary token (neither control nor user-defined) is beyond the embedding.
fn has_ordinary_token_beyond(file: &GgufFile, tokens: usize, rows: usize) -> bool {
    use gguf::Value::{Signed, Unsigned};
    if tokens <= rows {
        return false;
    }
    match file.list("tokenizer.ggml.token_type", tokens) {
        Ok(Some(kinds)) => kinds.iter().skip(rows).any(|kind| !matches!(kind, Signed(3 | 4) | Unsigned(3 | 4))),
        _ => true,
    }
}
