//! Tests with two small tokenizers (byte-level BPE and SentencePiece-style BPE) and with malformed
//! files.

use proptest::prelude::*;
use serde_json::json;

use super::*;

const METASPACE: char = '\u{2581}';

/// Byte-level BPE as in GPT-2: bytes as printable characters, no normalization.
fn byte_level_json() -> serde_json::Value {
    let mut vocab: Vec<String> = (0..=255u8).map(|byte| byte_to_char(byte).to_string()).collect();
    vocab.extend(["Ġthe", "th", "the", "Ġt"].map(String::from));
    let vocab: serde_json::Map<_, _> = vocab.into_iter().enumerate().map(|(id, token)| (token, json!(id))).collect();
    json!({
        "version": "1.0", "truncation": {"max_length": 3, "strategy": "LongestFirst", "stride": 0, "direction": "Right"},
        "padding": null, "normalizer": null,
        "added_tokens": [{"id": 260, "content": "<|end|>", "single_word": false, "lstrip": false, "rstrip": false,
                          "normalized": false, "special": true}],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "post_processor": null,
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "vocab": vocab, "merges": [["t", "h"], ["th", "e"], ["Ġ", "the"], ["Ġ", "t"]]},
    })
}

/// SentencePiece-style BPE as in Llama: prepended metaspace, byte fallback, bos from the
/// post-processor.
fn llama_json() -> serde_json::Value {
    let mut vocab = vec!["<unk>".to_owned(), "<s>".into(), "</s>".into()];
    vocab.extend((0..=255u8).map(|byte| format!("<0x{byte:02X}>")));
    vocab.extend(["▁", "a", "t", "h", "e", "th", "the", "▁the", "▁a", "."].map(String::from));
    let vocab: serde_json::Map<_, _> = vocab.into_iter().enumerate().map(|(id, token)| (token, json!(id))).collect();
    let added = |id: u32, content: &str| {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
               "normalized": false, "special": true})
    };
    json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": [added(0, "<unk>"), added(1, "<s>"), added(2, "</s>")],
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": METASPACE}, {"type": "Replace", "pattern": {"String": " "}, "content": METASPACE}]},
        "pre_tokenizer": null,
        "post_processor": {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}},
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": METASPACE}, "content": " "}, {"type": "ByteFallback"},
            {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true, "vocab": vocab,
                  "merges": [["t", "h"], ["th", "e"], ["▁", "the"], ["▁", "a"]]},
    })
}

fn build(json: &serde_json::Value, sidecars: &Sidecars<'_>) -> Result<Tokenizer> {
    Tokenizer::from_bytes(Path::new("dir"), json.to_string().as_bytes(), sidecars)
}

fn byte_level() -> Tokenizer {
    build(&byte_level_json(), &Sidecars::default()).expect("a valid tokenizer")
}

fn llama() -> Tokenizer {
    let config = br#"{"bos_token":{"content":"<s>"},"eos_token":"</s>","unk_token":"<unk>","pad_token":null}"#;
    build(&llama_json(), &Sidecars { tokenizer_config: Some(config), ..Sidecars::default() })
        .expect("a valid tokenizer")
}

#[test]
fn round_trips_and_never_truncates() {
    for tokenizer in [byte_level(), llama()] {
        for text in ["the the", "héllo €", "a\n\nthe  the", "", "日本語 the"] {
            let ids = tokenizer.encode(text, false).expect("encodes");
            assert_eq!(tokenizer.decode(&ids, false), text, "{tokenizer:?}");
        }
    }
    // The file has `truncation.max_length` 3.
    assert_eq!(byte_level().encode("the the the the the", false).expect("encodes").len(), 5);
}

#[test]
fn the_post_processor_decides_whether_bos_is_added() {
    assert_eq!(llama().encode("the", true).expect("encodes")[0], 1);
    assert!(llama().adds_bos() && !byte_level().adds_bos());
    assert_ne!(llama().encode("the", false).expect("encodes")[0], 1);
}

#[test]
fn token_text_is_the_text_in_context() {
    let (byte_level, llama) = (byte_level(), llama());
    let id = |tokenizer: &Tokenizer, piece: &str| tokenizer.inner.token_to_id(piece).expect("in the vocabulary");
    assert_eq!(byte_level.token_text(id(&byte_level, "Ġthe")), " the");
    assert_eq!(byte_level.token_text(id(&byte_level, "the")), "the");
    assert_eq!(byte_level.token_text(id(&byte_level, "Ċ")), "\n");
    assert_eq!(byte_level.token_text(id(&byte_level, &byte_to_char(0xE2).to_string())), "<0xE2>");
    assert_eq!(byte_level.token_text(260), "<|end|>");
    assert_eq!(llama.token_text(id(&llama, "▁the")), " the");
    assert_eq!(llama.token_text(id(&llama, "the")), "the");
    assert_eq!(llama.token_text(id(&llama, "▁")), " ");
    assert_eq!(llama.token_text(id(&llama, "<0xE2>")), "<0xE2>");
    assert_eq!(llama.token_text(id(&llama, "<0x0A>")), "\n");
    assert_eq!(llama.token_text(2), "</s>");
    assert_eq!(llama.token_text(9999), "");
}

#[test]
fn find_returns_the_token_of_a_string() {
    let (byte_level, llama) = (byte_level(), llama());
    for tokenizer in [&byte_level, &llama] {
        for text in [" the", "the", "a", "."] {
            let id = tokenizer.find(text).expect("one token");
            assert_eq!(tokenizer.token_text(id), text);
        }
        assert_eq!((tokenizer.find(""), tokenizer.find("the the")), (None, None));
    }
    assert_eq!(llama.find("</s>"), Some(2));
    assert_eq!(byte_level.find("<|end|>"), Some(260));
}

#[test]
fn a_stream_holds_back_partial_utf8_and_keeps_spaces() {
    let llama = llama();
    let ids = llama.encode("the €", false).expect("encodes");
    let mut stream = llama.stream(true);
    let pieces: Vec<_> = ids.iter().map(|&id| stream.push(id)).collect();
    let texts: Vec<&str> = pieces.iter().flatten().map(String::as_str).collect();
    assert_eq!(texts, [" the", " ", "€"]);
    assert_eq!(stream.flush(), None);
    assert_eq!(stream.push(2), None, "special tokens are skipped");
    let partial = llama.inner.token_to_id("<0xE2>").expect("there");
    assert_eq!(stream.push(partial), None);
    assert_eq!(stream.push(llama.find("a").expect("there")).as_deref(), Some("\u{FFFD}a"));
    assert_eq!((stream.push(partial), stream.flush().as_deref()), (None, Some("\u{FFFD}")));
}

#[test]
fn special_tokens_come_from_the_sidecar_files_in_order() {
    let special = llama().special;
    assert_eq!((special.bos, special.eos.as_slice(), special.unk), (Some(1), &[2][..], Some(0)));
    assert_eq!((special.pad, special.pad_from_eos), (Some(2), true));
    assert_eq!(special.texts["bos_token"], "<s>");
    let read = |generation: &[u8], config: &[u8]| {
        let sidecars = Sidecars { generation_config: Some(generation), config: Some(config), ..Sidecars::default() };
        build(&llama_json(), &sidecars).map(|tokenizer| tokenizer.special.eos)
    };
    assert_eq!(read(br#"{"eos_token_id":[2,7]}"#, br#"{"eos_token_id":3}"#).expect("valid"), [2, 7]);
    assert_eq!(read(b"{}", br#"{"eos_token_id":3}"#).expect("valid"), [3]);
    assert_eq!(read(br#"{"eos_token_id":-1}"#, br#"{"text_config":{"eos_token_id":4}}"#).expect("valid"), [4]);
    let error = read(br#"{"eos_token_id":"</s>"}"#, b"{}").expect_err("not an id");
    assert_eq!(
        error.to_string().replace('\\', "/"),
        "dir/generation_config.json: `eos_token_id` is \"</s>\", which is neither a token id nor a list of them"
    );
    assert!(read(b"[", b"{}").expect_err("not JSON").to_string().contains("generation_config.json: not valid JSON"));
    assert!(read(b"[]", b"{}").expect_err("not an object").to_string().contains("not a JSON object"));
}

#[test]
fn a_vocabulary_larger_than_the_embedding_is_refused() {
    let byte_level = byte_level();
    assert_eq!(byte_level.vocab_size(), 261);
    assert!(byte_level.check_fits(261).expect("fits").is_empty());
    assert_eq!(byte_level.check_fits(260).expect("only an added token is outside"), ["<|end|>"]);
    let error = byte_level.check_fits(257).expect_err("ordinary tokens are outside");
    assert!(error.to_string().contains("token 257 (`th`) is beyond the model's embedding, which has 257 rows"));
}

#[test]
fn a_directory_is_read_with_its_sidecar_files() {
    let dir = tempfile::tempdir().expect("a directory");
    assert!(Tokenizer::from_dir(dir.path()).expect("nothing wrong").is_none());
    let put = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).expect("written");
    put("tokenizer.json", &llama_json().to_string());
    put("special_tokens_map.json", r#"{"bos_token":"<s>"}"#);
    put("config.json", r#"{"eos_token_id":2}"#);
    let tokenizer = Tokenizer::from_dir(dir.path()).expect("valid").expect("there");
    assert_eq!((tokenizer.special.bos, tokenizer.special.eos.as_slice()), (Some(1), &[2][..]));
    put("tokenizer.json", "{\"model\":");
    let error = Tokenizer::from_dir(dir.path()).expect_err("truncated");
    assert!(error.to_string().contains("tokenizer.json: not a valid tokenizer"), "{error}");
    put("tokenizer.json", "version https://git-lfs.github.com/spec/v1");
    assert!(Tokenizer::from_dir(dir.path()).expect_err("a pointer").to_string().contains("Git LFS pointer"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// A stream gives the text of `decode`, except that it keeps the first token's leading space.
    #[test]
    fn a_stream_agrees_with_decode(text in "[the €日é\n.]{0,20}") {
        for tokenizer in [byte_level(), llama()] {
            let ids = tokenizer.encode(&text, false).expect("encodes");
            let mut stream = tokenizer.stream(true);
            let mut streamed: String = ids.iter().filter_map(|&id| stream.push(id)).collect();
            streamed.extend(stream.flush());
            let whole = tokenizer.decode(&ids, true);
            prop_assert!(streamed == whole || streamed.strip_prefix(' ') == Some(&whole), "{:?} and {:?}", streamed, whole);
        }
    }

    /// A mutated file either fails with an error or gives a tokenizer that does not panic.
    #[test]
    fn no_mutation_panics(flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4), cut in 0usize..40) {
        let mut json = llama_json().to_string().into_bytes();
        for (at, byte) in flips {
            let at = at.index(json.len());
            json[at] = byte;
        }
        json.truncate(json.len().saturating_sub(cut.saturating_sub(30)));
        if let Ok(tokenizer) = Tokenizer::from_bytes(Path::new("dir"), &json, &Sidecars::default()) {
            let _ = tokenizer.encode("the €", true);
            let _ = tokenizer.token_text(5);
        }
    }
}
