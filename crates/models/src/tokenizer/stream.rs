//! Streaming decoding of generated tokens.

use super::Tokenizer;

/// Decodes tokens as they arrive.
///
/// A character whose bytes span several tokens is held back until it is complete. The leading space
/// of a token is kept even on the first one, because the text continues the prompt.
pub struct DecodeStream<'a> {
    tokenizer: &'a Tokenizer,
    skip_special: bool,
    /// Bytes of a character that is not complete yet: at most three.
    pending: Vec<u8>,
}

impl<'a> DecodeStream<'a> {
    pub(super) fn new(tokenizer: &'a Tokenizer, skip_special: bool) -> DecodeStream<'a> {
        DecodeStream { tokenizer, skip_special, pending: Vec::new() }
    }

    /// Adds a token and returns the text that is now complete, if any.
    pub fn push(&mut self, id: u32) -> Option<String> {
        if self.skip_special && self.tokenizer.is_special(id) {
            return None;
        }
        self.pending.extend(self.tokenizer.token_bytes(id));
        let text = self.take_complete();
        (!text.is_empty()).then_some(text)
    }

    /// Ends the text; an incomplete character becomes `�`.
    pub fn flush(&mut self) -> Option<String> {
        let rest = std::mem::take(&mut self.pending);
        (!rest.is_empty()).then(|| String::from_utf8_lossy(&rest).into_owned())
    }

    /// Takes everything but an incomplete last character out of `pending`; invalid bytes become
    /// `�`.
    fn take_complete(&mut self) -> String {
        let mut text = String::new();
        loop {
            match std::str::from_utf8(&self.pending) {
                Ok(valid) => {
                    text.push_str(valid);
                    self.pending.clear();
                    return text;
                }
                Err(error) => {
                    let (valid, rest) = self.pending.split_at(error.valid_up_to());
                    text.push_str(&String::from_utf8_lossy(valid));
                    let Some(bad) = error.error_len() else {
                        self.pending = rest.to_vec();
                        return text;
                    };
                    text.push(char::REPLACEMENT_CHARACTER);
                    self.pending = rest[bad..].to_vec();
                }
            }
        }
    }
}
