//! Tests with two small tokenizers (byte-level BPE and SentencePiece-style BPE) and with malformed
//! files.

use super::testing::{build, byte_level, llama, llama_json};
use super::*;
use proptest::prelude::*;
use serde_json::json;

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

/// Found by the fuzz target `tokenizer`: dropping the library's trie overflows the stack.
#[test]
fn a_unigram_token_of_29_kb_is_refused_instead_of_overflowing_the_stack() {
    let json = |length: usize| {
        json!({"version": "1.0", "added_tokens": [],
            "model": {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["a".repeat(length), -1.0]]}})
    };
    let read = move |length| build(&json(length), &Sidecars::default()).map(drop);
    // A quarter of the usual stack is enough for the longest token.
    let thread = std::thread::Builder::new().stack_size(512 << 10);
    let (longest, longer) =
        thread.spawn(move || (read(1024), read(29_000))).expect("a thread").join().expect("no panic");
    longest.expect("an ordinary token");
    assert!(longer.expect_err("too long").to_string().contains("token 1 is 29000 bytes long"));
}

/// Siblings of the above: what the library reads recursively.
#[test]
fn nested_stages_are_errors_or_tokenizers_in_reasonable_time() {
    let keys = [
        ("normalizer", "normalizers", json!({"type": "Lowercase"})),
        ("pre_tokenizer", "pretokenizers", json!({"type": "Whitespace"})),
        ("decoder", "decoders", json!({"type": "Fuse"})),
        (
            "post_processor",
            "processors",
            json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true}),
        ),
    ];
    for (stage, list, innermost) in keys {
        for (depth, typed, width) in [(20, true, 1), (60, true, 1), (60, false, 1), (5000, true, 1), (10, true, 2)] {
            let kind = if typed { r#""type":"Sequence","# } else { "" };
            let open = format!(r#"{{{kind}"{list}":["#);
            let mut text = innermost.to_string();
            for _ in 0..depth {
                text = match width {
                    1 => format!("{open}{text}]}}"),
                    _ => format!("{open}{text},{text}]}}"),
                };
            }
            let mut file = llama_json().to_string();
            let value = file.find(&format!("\"{stage}\":")).expect("the stage") + stage.len() + 3;
            file.insert_str(value, &format!(r#"{text},"x{stage}":"#));
            let start = std::time::Instant::now();
            if let Ok(tokenizer) = Tokenizer::from_bytes(Path::new("dir"), file.as_bytes(), &Sidecars::default()) {
                let tokens = tokenizer.encode("the €", true).unwrap_or_default();
                let _ = tokenizer.decode(&tokens, false);
            }
            assert!(start.elapsed().as_secs() < 10, "{stage} {depth}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

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
