//! Pieces, whole text and stop strings on every kind of tokenizer.

use super::*;
use crate::tokenizer::testing::{byte_level, llama, unigram, word_suffix, wordpiece};
use proptest::prelude::*;

/// One tokenizer of each kind: byte-level BPE, SentencePiece's BPE with byte fallback and its
/// Unigram, WordPiece, and BPE with a suffix at the end of words.
fn kinds() -> [Arc<Tokenizer>; 5] {
    [byte_level(), llama(), unigram(), wordpiece(), word_suffix()].map(Arc::new)
}

fn stops(strings: &[&str]) -> StopStrings {
    StopStrings::new(strings.iter().map(|stop| stop.to_string()).collect::<Vec<_>>()).expect("not empty")
}

/// The pieces of a row that ends at its stop string or after the last token, and the row.
fn decode(tokenizer: &Arc<Tokenizer>, tokens: &[u32], stops: &StopStrings) -> (Vec<String>, RowText) {
    let mut row = RowText::new(tokenizer, stops);
    let mut pieces = Vec::new();
    for &token in tokens {
        pieces.push(row.push(token).to_owned());
        if row.is_stopped() {
            break;
        }
    }
    pieces.push(row.finish().to_owned());
    (pieces, row)
}

/// Ids of pieces of the vocabulary.
fn ids(tokenizer: &Tokenizer, texts: &[&str]) -> Vec<u32> {
    texts.iter().map(|text| tokenizer.find(text).unwrap_or_else(|| panic!("{text:?} is not one token"))).collect()
}

#[test]
fn r1_a_row_keeps_its_leading_space_and_every_character() {
    let llama = Arc::new(llama());
    let tokens = ids(&llama, &[" the", " a", "the", "."]);
    let (pieces, row) = decode(&llama, &tokens, &stops(&["zzz"]));
    assert_eq!((pieces.concat().as_str(), row.text()), (" the athe.", " the athe."));
    // Decoding alone drops the space, so it cannot be a row's text.
    assert_eq!(llama.decode(&tokens, true), "the athe.");
    let (pieces, row) = decode(&llama, &tokens, &stops(&[" a"]));
    assert_eq!((pieces.concat().as_str(), row.text(), row.is_stopped()), (" the", " the", true));
}

#[test]
fn stop_strings_end_the_text_wherever_tokens_split_them() {
    let llama = Arc::new(llama());
    let text = |texts: &[&str], strings: &[&str]| {
        let (pieces, row) = decode(&llama, &ids(&llama, texts), &stops(strings));
        assert_eq!(pieces.concat(), row.text());
        (row.text().to_owned(), row.is_stopped())
    };
    let stopped = |text: &str| (text.to_owned(), true);
    // Across tokens, at the first token, and inside one token.
    assert_eq!(text(&[" a", "t", "h", "e", "."], &["the"]), stopped(" a"));
    assert_eq!(text(&[" the", "a"], &[" the"]), stopped(""));
    assert_eq!(text(&[" the", "a"], &["h"]), stopped(" t"));
    // Of overlapping stop strings the one that is complete first counts; of two, the longer one.
    assert_eq!(text(&["e", "a", "t"], &["t", "at"]), stopped("e"));
    assert_eq!(text(&["e", "a", "t", "h"], &["ath", "t"]), stopped("ea"));
    assert_eq!(text(&["e", "a", "th"], &["ath", "t"]), stopped("ea"));
    // A start that does not become the stop string is not lost, even if it starts again inside.
    assert_eq!(text(&["a", "a", "t"], &["aath"]), ("aat".to_owned(), false));
    assert_eq!(text(&["a", "a", "a", "t", "."], &["aat."]), stopped("a"));
}

#[test]
fn characters_in_several_tokens_are_held_back_until_they_are_complete() {
    let llama = Arc::new(llama());
    let mut tokens = llama.encode("a €", false).expect("encodes");
    let (pieces, row) = decode(&llama, &tokens, &StopStrings::default());
    assert_eq!((pieces.as_slice(), row.text()), (&[" a", " ", "", "", "€", ""].map(String::from)[..], " a €"));
    // The stop string is complete with its last byte.
    let (pieces, row) = decode(&llama, &tokens, &stops(&["€"]));
    assert_eq!((pieces.concat().as_str(), row.text(), row.is_stopped()), (" a ", " a ", true));
    // A stop string that starts with other bytes does not end the text.
    assert!(!decode(&llama, &tokens, &stops(&["₭"])).1.is_stopped());
    tokens.pop();
    assert_eq!(decode(&llama, &tokens, &StopStrings::default()).1.text(), " a \u{FFFD}");
}

#[test]
fn special_tokens_have_no_text_but_may_be_stop_strings() {
    let llama = Arc::new(llama());
    let tokens = [ids(&llama, &["a"]), vec![2], ids(&llama, &["t"])].concat();
    assert_eq!(decode(&llama, &tokens, &StopStrings::default()).1.text(), "at");
    let (pieces, row) = decode(&llama, &tokens, &stops(&["</s>"]));
    assert_eq!((pieces.concat().as_str(), row.text(), row.is_stopped()), ("a", "a", true));
}

#[test]
fn words_are_separated_as_the_decoder_separates_them() {
    let (wordpiece, suffix) = (Arc::new(wordpiece()), Arc::new(word_suffix()));
    let text = |tokenizer: &Arc<Tokenizer>, text: &str| {
        let tokens = tokenizer.encode(text, false).expect("encodes");
        decode(tokenizer, &tokens, &StopStrings::default()).1.text().to_owned()
    };
    assert_eq!(text(&wordpiece, "the dog the."), " the dog the.");
    assert_eq!(text(&suffix, "the ah the ."), " the ah the .");
}

#[test]
fn empty_stop_strings_are_refused() {
    let error = StopStrings::new([String::new()]).expect_err("empty");
    assert_eq!(error.to_string(), "a stop string is empty");
}

/// A stop string of at most four characters that a text of random tokens is likely to contain.
fn any_stop() -> impl Strategy<Value = String> {
    "[the a.€é]{1,4}"
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Pieces concatenate to the text; it is the text without stop strings, up to the first one,
    /// and does not depend on how the bytes are divided into tokens.
    #[test]
    fn pieces_text_and_stops_agree_on_every_kind_of_tokenizer(
        picks in prop::collection::vec(any::<prop::sample::Index>(), 0..24),
        strings in prop::collection::vec(any_stop(), 0..3),
    ) {
        let stops = StopStrings::new(strings.clone()).expect("not empty");
        for tokenizer in kinds() {
            let tokens: Vec<u32> = picks.iter().map(|pick| pick.index(tokenizer.vocab_size()) as u32).collect();
            let (_, whole) = decode(&tokenizer, &tokens, &StopStrings::default());
            let (pieces, row) = decode(&tokenizer, &tokens, &stops);
            prop_assert_eq!(pieces.concat(), row.text());
            prop_assert!(strings.iter().all(|stop| !row.text().contains(stop.as_str())));
            // The definition, character by character over the whole text.
            let ends = whole.text().char_indices().map(|(at, character)| at + character.len_utf8());
            let stop_at = |end: usize| {
                let longest = strings.iter().filter(|stop| whole.text()[..end].ends_with(stop.as_str())).map(String::len).max();
                longest.map(|longest| end - longest)
            };
            let first = ends.into_iter().find_map(stop_at);
            prop_assert_eq!(row.text(), &whole.text()[..first.unwrap_or(whole.text().len())]);
            prop_assert_eq!(row.is_stopped(), first.is_some());
        }
    }

    /// Nothing is lost or added: the text of random tokens is what the tokenizer's own decoder
    /// makes of them after other tokens.
    #[test]
    fn the_text_of_random_tokens_is_what_the_decoder_adds(
        picks in prop::collection::vec(any::<prop::sample::Index>(), 0..24),
    ) {
        for tokenizer in kinds() {
            let all: Vec<u32> = picks.iter().map(|pick| pick.index(tokenizer.vocab_size()) as u32).collect();
            let tokens: Vec<u32> = all.into_iter().filter(|&token| !tokenizer.is_special(token)).collect();
            // A word of its own, so that the decoder has nothing to strip or join.
            let before = tokenizer.encode("a", false).expect("encodes");
            let both = tokenizer.decode(&[&before[..], &tokens].concat(), true);
            let before = tokenizer.decode(&before, true);
            let row = decode(&tokenizer, &tokens, &StopStrings::default()).1;
            // For invalid UTF-8 the library writes another number of `\u{FFFD}` than Rust.
            if !row.text().contains(char::REPLACEMENT_CHARACTER) {
                prop_assert_eq!(row.text(), both.strip_prefix(before.as_str()).expect("the prompt"), "{:?}", tokens);
            }
        }
    }

    /// The text is the end of the decoded row: prompt and new tokens, without the prompt.
    #[test]
    fn a_rows_text_is_what_decoding_the_whole_row_adds(text in "[the €日é\n.]{0,20}") {
        for tokenizer in [byte_level(), llama(), unigram()].map(Arc::new) {
            let prompt = tokenizer.encode("a", false).expect("encodes");
            let tokens = tokenizer.encode(&text, false).expect("encodes");
            let row = decode(&tokenizer, &tokens, &StopStrings::default()).1;
            let both = tokenizer.decode(&[prompt, tokens].concat(), true);
            prop_assert_eq!(row.text(), both.strip_prefix('a').expect("the prompt"));
        }
    }
}
