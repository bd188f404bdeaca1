//! UTF-8 decoding of bytes that arrive in pieces.

/// Bytes of a character that is not complete yet: at most three.
///
/// The text that `push` and `flush` append is `String::from_utf8_lossy` of all bytes, however they
/// are divided.
#[derive(Clone, Debug, Default)]
pub(crate) struct PartialCharacter {
    pending: Vec<u8>,
}

impl PartialCharacter {
    /// Adds bytes; appends the characters that are now complete to `text`. Invalid bytes become
    /// `�`.
    pub fn push(&mut self, bytes: &[u8], text: &mut String) {
        self.pending.extend_from_slice(bytes);
        loop {
            match std::str::from_utf8(&self.pending) {
                Ok(valid) => {
                    text.push_str(valid);
                    self.pending.clear();
                    return;
                }
                Err(error) => {
                    let (valid, rest) = self.pending.split_at(error.valid_up_to());
                    text.push_str(&String::from_utf8_lossy(valid));
                    let Some(bad) = error.error_len() else {
                        self.pending = rest.to_vec();
                        return;
                    };
                    text.push(char::REPLACEMENT_CHARACTER);
                    self.pending = rest[bad..].to_vec();
                }
            }
        }
    }

    /// Ends the bytes; an incomplete character becomes `�`.
    pub fn flush(&mut self, text: &mut String) {
        text.push_str(&String::from_utf8_lossy(&std::mem::take(&mut self.pending)));
    }
}
