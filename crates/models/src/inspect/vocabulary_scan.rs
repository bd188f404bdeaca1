//! A fast scan of `tokenizer.json` up to the end of its vocabulary.
//!
//! The file has megabytes, most of them merges after the vocabulary, which are not needed to count
//! tokens. The scan supports only the usual form of these files and returns `None` for anything
//! else; the caller then uses a JSON parser.

use crate::tokenizer::vocabulary::MAX_UNIGRAM_BYTES;

/// The result of the scan.
pub(super) struct ScannedVocabulary {
    /// The keys before `model`, as a JSON object.
    pub(super) head: Vec<u8>,
    /// The ids, in the order of the file.
    pub(super) ids: Vec<u32>,
}

/// Scans a file up to the end of its vocabulary.
pub(super) fn scan(json: &[u8]) -> Option<ScannedVocabulary> {
    // A truncated file does not end with `}`.
    if json.iter().rev().find(|byte| !byte.is_ascii_whitespace()) != Some(&b'}') {
        return None;
    }
    let mut cursor = Cursor { json, at: 0 };
    let model = cursor.seek_key(b"model")?;
    let mut head = json[..model].trim_ascii_end().to_vec();
    if head.last() == Some(&b',') {
        head.pop();
    }
    head.push(b'}');
    cursor.seek_key(b"vocab")?;
    let ids = if cursor.peek()? == b'[' { cursor.list() } else { cursor.map() }?;
    Some(ScannedVocabulary { head, ids })
}

struct Cursor<'a> {
    json: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    /// The next byte that is not whitespace.
    fn peek(&mut self) -> Option<u8> {
        while self.json.get(self.at)?.is_ascii_whitespace() {
            self.at += 1;
        }
        self.json.get(self.at).copied()
    }

    fn eat(&mut self, byte: u8) -> Option<()> {
        (self.peek()? == byte).then(|| self.at += 1)
    }

    /// Reads a string, without resolving escapes.
    fn string(&mut self) -> Option<&'a [u8]> {
        self.eat(b'"')?;
        let start = self.at;
        loop {
            match self.json.get(self.at)? {
                b'"' => break,
                b'\\' => self.at += 2,
                _ => self.at += 1,
            }
        }
        self.at += 1;
        Some(&self.json[start..self.at - 1])
    }

    /// Enters an object and stops before the value of `wanted`; returns the offset of the key.
    fn seek_key(&mut self, wanted: &[u8]) -> Option<usize> {
        self.eat(b'{')?;
        loop {
            self.peek()?;
            let start = self.at;
            let key = self.string()?;
            self.eat(b':')?;
            if key == wanted {
                return Some(start);
            }
            self.skip_value()?;
            self.eat(b',')?;
        }
    }

    /// Skips a value of any type.
    fn skip_value(&mut self) -> Option<()> {
        let mut depth = 0usize;
        loop {
            match self.peek()? {
                b'"' => {
                    self.string()?;
                }
                b'{' | b'[' => {
                    depth += 1;
                    self.at += 1;
                    continue;
                }
                b'}' | b']' => {
                    depth = depth.checked_sub(1)?;
                    self.at += 1;
                }
                // Numbers and literals; inside containers, also separators.
                _ => self.at += 1,
            }
            let ended = depth == 0 && matches!(self.peek()?, b',' | b'}' | b']');
            if ended {
                return Some(());
            }
        }
    }

    /// `{"token": id, …}`
    fn map(&mut self) -> Option<Vec<u32>> {
        self.eat(b'{')?;
        let mut ids = Vec::new();
        if self.peek()? == b'}' {
            return Some(ids);
        }
        loop {
            self.string()?;
            self.eat(b':')?;
            self.peek()?;
            let mut id = 0u32;
            let start = self.at;
            while let Some(digit) = self.json.get(self.at).filter(|byte| byte.is_ascii_digit()) {
                id = id.checked_mul(10)?.checked_add(u32::from(digit - b'0'))?;
                self.at += 1;
            }
            if start == self.at {
                return None;
            }
            ids.push(id);
            match self.peek()? {
                b',' => self.at += 1,
                b'}' => return Some(ids),
                _ => return None,
            }
        }
    }

    /// `[["token", score], …]`; `None` also for a token that may be too long.
    fn list(&mut self) -> Option<Vec<u32>> {
        self.eat(b'[')?;
        let mut ids = Vec::new();
        if self.peek()? == b']' {
            return Some(ids);
        }
        loop {
            self.peek()?;
            let start = self.at;
            self.skip_value()?;
            if self.at - start > MAX_UNIGRAM_BYTES {
                return None;
            }
            ids.push(u32::try_from(ids.len()).ok()?);
            match self.peek()? {
                b',' => self.at += 1,
                _ => return Some(ids),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::scan;

    #[test]
    fn ids_are_found_without_reading_the_rest() {
        let found = |json: &str| {
            scan(json.as_bytes()).map(|scanned| (String::from_utf8(scanned.head).expect("text"), scanned.ids))
        };
        let head = r#"{"added_tokens": [{"id": 3, "content": "\"model\": {"}], "post_processor": null"#;
        let bpe = r#""model": {"type": "BPE", "dropout": null, "vocab": {"a\"": 0, "b\\": 12 , "{": 7}, "merges": ["#;
        assert_eq!(found(&format!("{head}, {bpe} nothing valid }}")), Some((format!("{head}}}"), vec![0, 12, 7])));
        let unigram = r#"{ "model": {"unk_id": 0, "x": {"y": [1, {}]}, "vocab": [["<unk>", 0.0], ["]", -1.5e-3]]}}"#;
        assert_eq!(found(unigram), Some(("{}".into(), vec![0, 1])));
        assert_eq!(found(r#"{"model": {"vocab": {}}}"#), Some(("{}".into(), vec![])));
        for other in [
            "",
            "{",
            "}",
            "{}",
            r#"{"model": {"vocab": {"a": -1}}}"#,
            r#"{"model": {"vocab": {"a": 4294967296}}}"#,
            r#"{"model": {"vocab": {"a" 1}}}"#,
            r#"{"model": {"vocab": {"a": 1"#,
            r#"{"model": 3}"#,
            r#"{"a": "\"#,
        ] {
            assert!(found(other).is_none(), "{other}");
        }
    }
}
