//! Metrics of a task, with bootstrap confidence intervals.

use super::{Item, Score, Task, TaskKind};
use serde::Serialize;

/// Resamples of a bootstrap.
const RESAMPLES: usize = 2000;

/// A metric with its 95 % confidence interval.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Metric {
    /// Its name, as lm-eval calls it.
    pub name: &'static str,
    /// The value over all items.
    pub value: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
}

/// A metric as a ratio: `finish(Σ numerator / Σ denominator)` over items.
struct Ratio {
    name: &'static str,
    terms: Vec<(f64, f64)>,
    finish: fn(f64) -> f64,
}

impl Ratio {
    fn of(&self, items: impl Iterator<Item = usize>) -> f64 {
        let (above, below) = items.fold((0.0, 0.0), |(above, below), item| {
            let (numerator, denominator) = self.terms[item];
            (above + numerator, below + denominator)
        });
        (self.finish)(above / below)
    }
}

/// The metrics of a variant.
pub(super) fn metrics(task: &Task, scores: &[Vec<Score>], seed: u64) -> Vec<Metric> {
    let interval = |ratio: Ratio| {
        let count = ratio.terms.len();
        bootstrap(ratio.name, count, seed, &|items| ratio.of(items.iter().copied()))
    };
    ratios(task, scores).into_iter().map(interval).collect()
}

/// The differences between a variant and the plain model, over the same items.
pub(super) fn changes(task: &Task, clean: &[Vec<Score>], scores: &[Vec<Score>], seed: u64) -> Vec<Metric> {
    let pairs = ratios(task, clean).into_iter().zip(ratios(task, scores));
    let interval = |(clean, variant): (Ratio, Ratio)| {
        bootstrap(clean.name, clean.terms.len(), seed, &|items| {
            variant.of(items.iter().copied()) - clean.of(items.iter().copied())
        })
    };
    pairs.map(interval).collect()
}

fn ratios(task: &Task, scores: &[Vec<Score>]) -> Vec<Ratio> {
    let items = || task.items.iter().zip(scores);
    let identity: fn(f64) -> f64 = |x| x;
    let mean = |name, value: &dyn Fn(&Item, &[Score]) -> f64| Ratio {
        name,
        terms: items().map(|(item, scores)| (value(item, scores), 1.0)).collect(),
        finish: identity,
    };
    let per = |name, size: &dyn Fn(&Item, &[Score]) -> f64, finish| Ratio {
        name,
        terms: items().map(|(item, scores)| (-scores[0].log_likelihood, size(item, scores))).collect(),
        finish,
    };
    match task.kind {
        TaskKind::Pairs => vec![mean("acc", &|item, scores| is_right(item, scores, false))],
        TaskKind::Choices => vec![
            mean("acc", &|item, scores| is_right(item, scores, false)),
            mean("acc_norm", &|item, scores| is_right(item, scores, true)),
        ],
        TaskKind::Target => vec![
            mean("acc", &|_, scores| f64::from(u8::from(scores[0].greedy))),
            per("perplexity", &|_, _| 1.0, f64::exp),
        ],
        TaskKind::Text => vec![
            per("token_perplexity", &|_, scores| scores[0].tokens as f64, f64::exp),
            per("word_perplexity", &|item, _| words(item), f64::exp),
            per("byte_perplexity", &|item, _| bytes(item), f64::exp),
            per("bits_per_byte", &|item, _| bytes(item), |nats| nats / std::f64::consts::LN_2),
        ],
    }
}

/// 1 if the right choice is the most likely one, the first of equals; `by_length` compares
/// log-likelihoods per character.
fn is_right(item: &Item, scores: &[Score], by_length: bool) -> f64 {
    let Item::Choices { choices, answer, .. } = item else { return 0.0 };
    let value = |index: usize| match by_length {
        true => scores[index].log_likelihood / choices[index].characters.max(1) as f64,
        false => scores[index].log_likelihood,
    };
    let best = (0..scores.len()).fold(0, |best, index| if value(index) > value(best) { index } else { best });
    f64::from(u8::from(best == *answer))
}

/// The number of parts between white space, as lm-eval counts words.
fn words(item: &Item) -> f64 {
    let Item::Text(text) = item else { return 1.0 };
    let inner = text.split_whitespace().count();
    // White space at an end adds an empty part.
    let ends = [text.starts_with(char::is_whitespace), text.ends_with(char::is_whitespace)];
    (inner + ends.iter().filter(|&&end| end).count()) as f64
}

fn bytes(item: &Item) -> f64 {
    let Item::Text(text) = item else { return 1.0 };
    text.len() as f64
}

/// The value over all items, and the 2.5 % and 97.5 % quantiles over resampled items.
fn bootstrap(name: &'static str, count: usize, seed: u64, statistic: &dyn Fn(&[usize]) -> f64) -> Metric {
    let all: Vec<usize> = (0..count).collect();
    let mut state = seed;
    let mut below = || {
        // splitmix64
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) % count.max(1) as u64) as usize
    };
    let mut resampled = vec![0; count];
    let mut values: Vec<f64> = (0..RESAMPLES)
        .map(|_| {
            resampled.iter_mut().for_each(|item| *item = below());
            statistic(&resampled)
        })
        .collect();
    values.sort_by(f64::total_cmp);
    let quantile = |share: f64| values[((RESAMPLES - 1) as f64 * share).round() as usize];
    Metric { name, value: statistic(&all), low: quantile(0.025), high: quantile(0.975) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_of_a_mean_is_that_of_the_normal_distribution() {
        // 400 items, half of them right: the standard error is 0.025.
        let right = |item: usize| f64::from(u8::from(item.is_multiple_of(2)));
        let metric = bootstrap("acc", 400, 7, &|items| items.iter().map(|&item| right(item)).sum::<f64>() / 400.0);
        assert_eq!(metric.value, 0.5);
        assert!((metric.low - 0.451).abs() < 0.006 && (metric.high - 0.549).abs() < 0.006, "{metric:?}");
    }

    #[test]
    fn words_are_counted_as_lm_eval_does() {
        for (text, count) in [("a b", 2.0), (" a  b\n", 4.0), ("a", 1.0)] {
            assert_eq!(words(&Item::Text(text.into())), count, "{text:?}");
        }
    }
}
