//! The merges of a BPE vocabulary that is stored without them.
//!
//! SentencePiece and tiktoken store pieces with scores or ranks. Their merges are every split of a
//! piece into two pieces.

use std::cmp::Reverse;

/// Limit of a token's length. Real tokens have at most a few hundred bytes.
pub(crate) const MAX_TOKEN_BYTES: usize = 4096;

/// Limit of the sum of the squares of all lengths: finding the splits of a token takes time, and
/// its merges memory, quadratic in its length. Real vocabularies need 10⁷ to 10⁸.
const MAX_WORK: u64 = 1 << 30;

/// Checks the lengths of the tokens of a vocabulary before their merges are derived.
pub(crate) fn check_lengths(lengths: impl IntoIterator<Item = usize>) -> Result<(), String> {
    let mut work = 0u64;
    for (id, length) in lengths.into_iter().enumerate() {
        if length > MAX_TOKEN_BYTES {
            return Err(format!("token {id} is {length} bytes long; no token has more than {MAX_TOKEN_BYTES}"));
        }
        work += (length * length) as u64;
    }
    match work > MAX_WORK {
        true => Err("its tokens are too long: no real vocabulary has as many long tokens".into()),
        false => Ok(()),
    }
}

/// Derives the merges of SentencePiece's BPE, which merges the pair whose result has the best
/// score: every split of a piece into two pieces, best score first. Ties go to the longer left
/// part: merging from the left, as SentencePiece does, makes the left part longer. `id` returns the
/// id of a piece.
pub(crate) fn merges_by_score<'a>(
    pieces: impl IntoIterator<Item = (&'a str, f32)>,
    id: impl Fn(&str) -> Option<u32>,
) -> Vec<(&'a str, &'a str)> {
    let mut merges = Vec::new();
    for (piece, score) in pieces {
        let start = merges.len();
        for (at, _) in piece.char_indices().skip(1) {
            let (left, right) = piece.split_at(at);
            if let (Some(left_id), Some(right_id)) = (id(left), id(right)) {
                merges.push((score, left, right, (left_id, right_id)));
            }
        }
        merges[start..].sort_by_key(|(.., ids)| *ids);
    }
    let lengths = |left: &str, right: &str| Reverse((left.chars().count(), right.chars().count()));
    merges.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| lengths(a.1, a.2).cmp(&lengths(b.1, b.2))));
    merges.into_iter().map(|(_, left, right, _)| (left, right)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r2_merges_are_ordered_by_score_and_not_by_id() {
        // SentencePiece cuts "x▁▁▁▁y" by these scores into "x", "▁▁▁▁", "y": runs of spaces have
        // the best scores, though the highest ids.
        let pieces = [("▁", -9.0), ("y", -8.0), ("▁y", -3.0), ("▁▁", -1.0), ("▁▁▁▁", -2.0), ("▁▁▁", -2.0)];
        let id = |piece: &str| pieces.iter().position(|(known, _)| *known == piece).map(|id| id as u32);
        let wanted = [("▁", "▁"), ("▁▁▁", "▁"), ("▁▁", "▁▁"), ("▁▁", "▁"), ("▁", "▁▁▁"), ("▁", "▁▁"), ("▁", "y")];
        assert_eq!(merges_by_score(pieces, id), wanted);
    }

    #[test]
    fn f8_vocabularies_with_many_long_tokens_are_refused() {
        assert!(check_lengths(vec![8; 300_000]).is_ok());
        assert!(check_lengths(1..=1000).is_ok());
        assert!(check_lengths(1..=4096).expect_err("too long").contains("its tokens are too long"));
        assert!(check_lengths([5000]).expect_err("too long").contains("token 0 is 5000 bytes long"));
    }
}
