//! Examples in the prompt: which ones, and how they are written.

use super::python_random::PythonRandom;
use std::path::PathBuf;

/// The seed with which lm-eval chooses examples.
pub const FEWSHOT_SEED: u64 = 1234;

/// Text after an example.
pub(super) const DELIMITER: &str = "\n\n";

/// Examples in the prompt of each item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fewshot {
    /// Number of examples; `None` is the task file's number, or 0.
    pub count: Option<usize>,
    /// JSONL file of examples in the form of the task's items; `None` is the task file's split, or
    /// the other items of the task.
    pub file: Option<PathBuf>,
    /// Seed of the choice.
    pub seed: u64,
}

impl Default for Fewshot {
    fn default() -> Fewshot {
        Fewshot { count: None, file: None, seed: FEWSHOT_SEED }
    }
}

/// Chooses examples for one item after the other, as lm-eval's samplers do.
pub(super) enum Sampler {
    /// Others for each item, at random.
    Random(Box<PythonRandom>),
    /// The first ones for every item.
    First,
}

impl Sampler {
    /// Chooses `count` of `pool`. `own` is the item itself if the pool may contain it; it is never
    /// chosen.
    pub fn choose<'a, T: PartialEq>(
        &mut self,
        pool: &'a [T],
        count: usize,
        own: Option<&T>,
    ) -> Result<Vec<&'a T>, String> {
        let is_other = |example: &&T| own.is_none_or(|own| *example != own);
        let others = || pool.iter().filter(is_other);
        if others().count() < count {
            return Err(format!("`num_fewshot` is {count}, but there are {} examples", others().count()));
        }
        let mut chosen: Vec<&T> = match self {
            Sampler::First => others().take(count).collect(),
            Sampler::Random(random) => {
                // One more than needed, in case the item itself is drawn.
                let drawn = random.sample(pool.len(), count + usize::from(own.is_some()));
                drawn.into_iter().map(|index| &pool[index]).filter(is_other).take(count).collect()
            }
        };
        // The item was drawn more than once.
        if let (true, Sampler::Random(random)) = (chosen.len() < count, self) {
            let others: Vec<&T> = others().collect();
            chosen = random.sample(others.len(), count).into_iter().map(|index| others[index]).collect();
        }
        Ok(chosen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn examples_never_contain_the_item_and_do_not_repeat() {
        let pool: Vec<usize> = (0..6).chain([2, 2]).collect();
        for mut sampler in [Sampler::First, Sampler::Random(Box::new(PythonRandom::new(FEWSHOT_SEED)))] {
            for round in 0..50 {
                let own = round % 6;
                let chosen = sampler.choose(&pool, 4, Some(&own)).unwrap();
                assert_eq!(chosen.len(), 4);
                assert!(!chosen.contains(&&own));
                let mut places: Vec<_> = chosen.iter().map(|example| std::ptr::from_ref(*example)).collect();
                places.sort_unstable();
                places.dedup();
                assert_eq!(places.len(), 4, "an example was chosen twice");
            }
            let problem = sampler.choose(&pool, 6, Some(&2)).unwrap_err();
            assert_eq!(problem, "`num_fewshot` is 6, but there are 5 examples");
        }
    }
}
