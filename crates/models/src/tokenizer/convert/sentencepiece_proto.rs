//! Parses the fields of SentencePiece's `ModelProto` that a tokenizer needs.

use std::collections::HashMap;

/// The parsed SentencePiece model.
#[derive(Debug, Default)]
pub(super) struct SentencePieceModel {
    pub pieces: Vec<Piece>,
    /// `model_type`: 1 is unigram, 2 is BPE.
    pub algorithm: u64,
    pub byte_fallback: bool,
    /// Id and text of `<unk>`, `<s>` and `</s>`; a negative id means none.
    pub unk: (i64, String),
    pub bos: (i64, String),
    pub eos: (i64, String),
    /// `precompiled_charsmap` of the normalizer.
    pub charsmap: Vec<u8>,
}

#[derive(Debug, Default)]
pub(super) struct Piece {
    pub text: String,
    pub score: f32,
    /// 1 is a normal piece, 2 the unknown one, 3 a control token, 4 a user-defined one, 6 a byte.
    pub kind: u64,
}

impl SentencePieceModel {
    pub(super) fn ids(&self) -> HashMap<String, u32> {
        (0..).zip(&self.pieces).map(|(id, piece)| (piece.text.clone(), id)).collect()
    }

    pub(super) fn scored(&self) -> impl Iterator<Item = (String, f32)> + '_ {
        self.pieces.iter().map(|piece| (piece.text.clone(), piece.score))
    }

    /// The pieces that merges can make, with their scores: neither bytes nor control tokens.
    pub(super) fn mergeable(&self) -> impl Iterator<Item = (&str, f32)> {
        let pieces = self.pieces.iter().filter(|piece| !matches!(piece.kind, 2 | 3 | 6));
        pieces.map(|piece| (piece.text.as_str(), piece.score))
    }

    /// Control and user-defined tokens, which are matched before normalization and splitting.
    pub(super) fn added(&self) -> Vec<(String, bool)> {
        let added = self.pieces.iter().filter(|piece| matches!(piece.kind, 3 | 4));
        added.map(|piece| (piece.text.clone(), piece.kind == 3)).collect()
    }

    /// Parses a model and skips unknown fields; `None` if it is malformed or has no pieces.
    pub(super) fn read(bytes: &[u8]) -> Option<SentencePieceModel> {
        let mut model = SentencePieceModel {
            algorithm: 1,
            unk: (0, "<unk>".into()),
            bos: (1, "<s>".into()),
            eos: (2, "</s>".into()),
            ..SentencePieceModel::default()
        };
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).ok();
        for field in Fields(bytes) {
            match field? {
                (1, Wire::Bytes(piece)) => {
                    let mut parsed = Piece { kind: 1, ..Piece::default() };
                    for field in Fields(piece) {
                        match field? {
                            (1, Wire::Bytes(bytes)) => parsed.text = text(bytes)?,
                            (2, Wire::Fixed32(bits)) => parsed.score = f32::from_bits(bits),
                            (3, Wire::Varint(kind)) => parsed.kind = kind,
                            _ => {}
                        }
                    }
                    model.pieces.push(parsed);
                }
                (2, Wire::Bytes(trainer)) => {
                    for field in Fields(trainer) {
                        match field? {
                            (3, Wire::Varint(algorithm)) => model.algorithm = algorithm,
                            (35, Wire::Varint(flag)) => model.byte_fallback = flag != 0,
                            (40, Wire::Varint(id)) => model.unk.0 = id as i64,
                            (41, Wire::Varint(id)) => model.bos.0 = id as i64,
                            (42, Wire::Varint(id)) => model.eos.0 = id as i64,
                            (45, Wire::Bytes(bytes)) => model.unk.1 = text(bytes)?,
                            (46, Wire::Bytes(bytes)) => model.bos.1 = text(bytes)?,
                            (47, Wire::Bytes(bytes)) => model.eos.1 = text(bytes)?,
                            _ => {}
                        }
                    }
                }
                (3, Wire::Bytes(normalizer)) => {
                    for field in Fields(normalizer) {
                        if let (2, Wire::Bytes(charsmap)) = field? {
                            model.charsmap = charsmap.to_vec();
                        }
                    }
                }
                _ => {}
            }
        }
        (!model.pieces.is_empty()).then_some(model)
    }
}

/// A protobuf field value, by wire type.
enum Wire<'a> {
    Varint(u64),
    Fixed32(u32),
    Fixed64,
    Bytes(&'a [u8]),
}

/// Iterates over the fields of a message as (number, value); yields `None` once if it is malformed.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn field(&mut self) -> Option<(u64, Wire<'a>)> {
        let tag = self.varint()?;
        let value = match tag & 7 {
            0 => Wire::Varint(self.varint()?),
            1 => self.take(8).map(|_| Wire::Fixed64)?,
            2 => {
                let length = usize::try_from(self.varint()?).ok()?;
                Wire::Bytes(self.take(length)?)
            }
            5 => Wire::Fixed32(u32::from_le_bytes(self.take(4)?.try_into().ok()?)),
            _ => return None,
        };
        Some((tag >> 3, value))
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = *self.take(1)?.first()?;
            value |= u64::from(byte & 0x7F) << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(head)
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Option<(u64, Wire<'a>)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_none() {
            self.0 = &[];
        }
        Some(field)
    }
}
