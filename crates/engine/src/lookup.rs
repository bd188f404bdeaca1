//! Prompt lookup: what comes next is often what came after the same words before.
//!
//! The last few tokens of a row are looked for earlier in it. What followed them there is the draft; it goes through in one pass with the
//! row's last token, and is kept as far as it is what would have been chosen anyway.

use crate::model::Model;
use crate::plan::{Chosen, Compiled};

/// The longest and the shortest run of tokens that is looked for. A single token says too little about what follows it.
const LONGEST: usize = 4;
const SHORTEST: usize = 2;

/// What drafting came to in a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lookup {
    /// Passes after the prompt's in which the row might draft.
    pub passes: usize,
    /// Tokens drafted.
    pub drafted: usize,
    /// Drafted tokens that were right.
    pub accepted: usize,
}

/// Adds at most `most` drafted tokens to a row, and says how many.
pub(crate) fn draft(tokens: &mut Vec<u32>, most: usize) -> usize {
    let Some(from) = (SHORTEST..=LONGEST).rev().find_map(|run| follows(tokens, run)) else { return 0 };
    // Where the draft overtakes the row it goes on with itself, as a text that goes round in circles does.
    (from..from + most).for_each(|at| tokens.push(tokens[at]));
    most
}

/// What follows the latest earlier occurrence of a row's last `run` tokens.
fn follows(tokens: &[u32], run: usize) -> Option<usize> {
    let before = tokens.len().checked_sub(run)?;
    let wanted = &tokens[before..];
    (0..before).rev().find(|&at| &tokens[at..at + run] == wanted).map(|at| at + run)
}

impl Model {
    /// Whether rows may draft: nobody touches what is generated, and what was drafted wrong can be forgotten.
    pub(crate) fn drafts(&self, compiled: &Compiled, lookup: usize) -> bool {
        let generated = |rows: &[Option<Chosen>]| {
            let beyond = |(row, chosen): (usize, &Option<Chosen>)| {
                chosen.as_ref().is_some_and(|chosen| chosen.reaches(compiled.prompts[row]))
            };
            rows.iter().enumerate().any(beyond)
        };
        let touched = compiled.entries.iter().any(|entry| generated(&entry.rows))
            || compiled.sources.iter().any(|source| generated(&source.rows));
        lookup > 0 && !touched && !self.program().carries()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_run_of_the_latest_place_is_continued() {
        let drafted = |tokens: &[u32], most: usize| {
            let mut row = tokens.to_vec();
            let count = draft(&mut row, most);
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
