//! Decoding while tokens are still being generated.

use super::Tokenizer;

/// Turns tokens into text as they come.
///
/// A character whose bytes are spread over several tokens is held back until it is whole, and the space that many
/// tokens start with is kept, also on the first one: the pieces continue the prompt.
pub struct Stream<'a> {
    tokenizer: &'a Tokenizer,
    skip_special: bool,
    /// Bytes of a character that is not complete yet: at most three.
    pending: Vec<u8>,
}

impl<'a> Stream<'a> {
    pub(super) fn new(tokenizer: &'a Tokenizer, skip_special: bool) -> Stream<'a> {
        Stream { tokenizer, skip_special, pending: Vec::new() }
    }

    /// Takes the next token and gives the text that is certain now, if there is any.
    pub fn push(&mut self, id: u32) -> Option<String> {
        if self.skip_special && self.tokenizer.is_special(id) {
            return None;
        }
        self.pending.extend(self.tokenizer.token_bytes(id));
        let text = self.take_certain();
        (!text.is_empty()).then_some(text)
    }

    /// Ends the text: what is held back can no longer become a character, and is shown as `�`.
    pub fn flush(&mut self) -> Option<String> {
        let rest = std::mem::take(&mut self.pending);
        (!rest.is_empty()).then(|| String::from_utf8_lossy(&rest).into_owned())
    }

    /// Moves everything but an unfinished last character out of `pending`; bytes that can form none become `�`.
    fn take_certain(&mut self) -> String {
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
