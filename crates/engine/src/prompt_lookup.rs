//! Prompt lookup decoding: speculative tokens copied from earlier in the row.
//!
//! The last few tokens of a row are searched for earlier in it. The tokens that followed there run
//! in one pass together with the row's last token. Each is accepted if the sampler would have
//! chosen it anyway, so the output never changes.

use crate::model::Model;
use crate::plan::{CompiledPlan, SelectedPositions};

/// Lengths of the n-gram to match, longest first. A single token predicts its successor too poorly.
const MAX_MATCH: usize = 4;
const MIN_MATCH: usize = 2;

/// Statistics of the speculative tokens of a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LookupStats {
    /// Decode passes that could have speculative tokens.
    pub passes: usize,
    /// Speculative tokens that were run.
    pub drafted: usize,
    /// Speculative tokens that were accepted.
    pub accepted: usize,
}

/// Appends at most `most` speculative tokens to a row; returns their number.
pub(crate) fn speculate(tokens: &mut Vec<u32>, most: usize) -> usize {
    let Some(from) = (MIN_MATCH..=MAX_MATCH).rev().find_map(|run| continuation(tokens, run)) else { return 0 };
    // The copy may run into its own output, which continues a repeating text.
    (from..from + most).for_each(|at| tokens.push(tokens[at]));
    most
}

/// Index after the latest earlier occurrence of a row's last `run` tokens.
fn continuation(tokens: &[u32], run: usize) -> Option<usize> {
    let before = tokens.len().checked_sub(run)?;
    let wanted = &tokens[before..];
    (0..before).rev().find(|&at| &tokens[at..at + run] == wanted).map(|at| at + run)
}

impl Model {
    /// Whether decoding may use speculative tokens: no tap touches generated positions, and the
    /// model has no recurrent state, which could not be rolled back.
    pub(crate) fn can_speculate(&self, compiled: &CompiledPlan, lookup: usize) -> bool {
        let generated = |rows: &[Option<SelectedPositions>]| {
            let beyond = |(row, chosen): (usize, &Option<SelectedPositions>)| {
                chosen.as_ref().is_some_and(|chosen| chosen.reaches(compiled.prompts[row]))
            };
            rows.iter().enumerate().any(beyond)
        };
        let touched = compiled.taps.iter().any(|entry| generated(&entry.rows))
            || compiled.sources.iter().any(|source| generated(&source.rows));
        lookup > 0 && !touched && !self.program().is_recurrent()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_and_latest_match_is_continued() {
        let drafted = |tokens: &[u32], most: usize| {
            let mut row = tokens.to_vec();
            let count = speculate(&mut row, most);
            assert_eq!(row.len(), tokens.len() + count);
            row[tokens.len()..].to_vec()
        };
        assert_eq!(drafted(&[1, 2, 3, 9, 1, 2, 4, 5, 1, 2], 2), [4, 5]);
        assert_eq!(drafted(&[7, 1, 2, 3, 9, 1, 2, 4, 5, 7, 1, 2], 3), [3, 9, 1]);
        assert_eq!(drafted(&[1, 2, 3, 1], 5), [0u32; 0]);
        assert_eq!(drafted(&[1, 2, 1, 2], 5), [1, 2, 1, 2, 1]);
        assert_eq!(drafted(&[5], 8), [0u32; 0]);
        assert_eq!(drafted(&[1, 2, 3, 1, 2], 0), [0u32; 0]);
    }
}
