//! Rows of tokens that answer an example, and the scores of its labels.
//!
//! With one token per label, an example is one row: its prompt, whose last position has the logits
//! of all labels. With several tokens per label, it is one row per label: the prompt and all but
//! the last token of the label.

use super::batch::OpContext;
use crate::config::AnswerMode;
use crate::dataset::Example;
use pellucid_engine::plan::{Combine, Expr, Pick, ValueId};
use pellucid_engine::{Action, Plan, Tap};
use std::ops::Range;

/// A row of tokens with the labels that its logits score.
pub(super) struct AnswerRow {
    /// Index of the example in the batch.
    pub example: usize,
    pub tokens: Vec<u32>,
    /// Leading tokens that are masked.
    pads: usize,
    /// The answer position: the last position of the prompt.
    pub first: usize,
    /// Number of positions whose logits are read.
    pub count: usize,
    /// Labels with their tokens.
    labels: Vec<(usize, Vec<u32>)>,
}

impl AnswerRow {
    /// The rows of a batch.
    pub fn of_batch(context: &OpContext<'_>) -> Vec<AnswerRow> {
        let examples = context.examples.iter().enumerate();
        examples.flat_map(|(index, example)| AnswerRow::of_example(index, example, context.answer)).collect()
    }

    fn of_example(index: usize, example: &Example, answer: AnswerMode) -> Vec<AnswerRow> {
        let (first, pads) = (example.tokens.len() - 1, example.pads);
        let labels = example.labels.iter().cloned().enumerate();
        if answer == AnswerMode::Sequence && !example.labels.is_empty() {
            return labels
                .map(|(label, tokens)| {
                    let given = &tokens[..tokens.len() - 1];
                    let row = example.tokens.iter().chain(given).copied().collect();
                    let (count, labels) = (tokens.len(), vec![(label, tokens)]);
                    AnswerRow { example: index, tokens: row, pads, first, count, labels }
                })
                .collect();
        }
        let tokens = example.tokens.clone();
        vec![AnswerRow { example: index, tokens, pads, first, count: 1, labels: labels.collect() }]
    }

    /// A tap that masks its pads, as row `row` of a run; `None` if it has none.
    pub fn mask_pads(&self, row: usize) -> Option<Tap> {
        let pads = self.pads as i64;
        let mask = || Tap::set("layers.*.attn_scores").with(f32::NEG_INFINITY).rows([row]).positions(pads..);
        (pads > 0).then(|| mask().keys(0..pads))
    }

    /// Positions whose logits are read.
    pub fn positions(&self) -> Range<i64> {
        self.first as i64..(self.first + self.count) as i64
    }

    /// A tap that captures its logits, as row `row` of a run.
    pub fn capture_logits(&self, row: usize) -> Tap {
        Tap::capture("logits").rows([row]).positions(self.positions())
    }

    /// Adds the scores of its labels to a plan, each with its label.
    pub fn add_scores(&self, plan: &mut Plan, row: usize, answer: AnswerMode) -> Vec<(usize, ValueId)> {
        let mut logits = plan.read(Tap::new("logits", Action::Read).rows([row]).positions(self.positions()));
        if answer == AnswerMode::Sequence {
            logits = plan.value(Expr::Softmax { of: logits, axis: -1, log: true });
        }
        let mut scores = Vec::with_capacity(self.labels.len());
        for (label, tokens) in &self.labels {
            let mut sum: Option<ValueId> = None;
            for (position, &token) in tokens.iter().enumerate() {
                let picks = vec![Pick::At(position as i64), Pick::At(i64::from(token))];
                let one = plan.value(Expr::Index { of: logits, picks });
                sum = Some(sum.map_or(one, |sum| plan.value(Expr::Combine(Combine::Add, sum, one))));
            }
            // A value of one row, so that it can be combined with those of other rows.
            scores.extend(sum.map(|sum| (*label, plan.value(Expr::Row { of: sum, row }))));
        }
        scores
    }
}

/// Scores of the labels of an example.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Scores {
    /// For each label its logit, or the log-probability of its tokens.
    pub labels: Vec<f32>,
    /// Cross-entropy of the correct label over the whole vocabulary.
    pub loss: f32,
}

impl Scores {
    /// Scores an example from the logits of its rows.
    pub fn new<'a>(
        rows: impl IntoIterator<Item = (&'a AnswerRow, &'a [f32])>,
        example: &Example,
        answer: AnswerMode,
    ) -> Scores {
        let mut scores = Scores { labels: vec![0.0; example.labels.len()], loss: 0.0 };
        for (row, logits) in rows {
            let vocab = logits.len() / row.count;
            for (label, tokens) in &row.labels {
                let lines = logits.chunks_exact(vocab).zip(tokens);
                let logprob: f64 = lines.clone().map(|(line, &token)| log_probability(line, token)).sum();
                scores.labels[*label] = match answer {
                    AnswerMode::Sequence => logprob as f32,
                    _ => lines.map(|(line, &token)| line[token as usize]).sum(),
                };
                if Some(*label) == example.label {
                    scores.loss = -logprob as f32;
                }
            }
        }
        scores
    }

    /// Score of the correct label minus the best score of the others.
    pub fn difference(&self, label: usize) -> f32 {
        let others = self.labels.iter().enumerate().filter(|(other, _)| *other != label);
        self.labels[label] - others.fold(f32::NEG_INFINITY, |max, (_, &score)| max.max(score))
    }

    /// The label with the highest score; the first of equal ones.
    pub fn prediction(&self) -> usize {
        (0..self.labels.len()).rev().max_by(|&a, &b| self.labels[a].total_cmp(&self.labels[b])).unwrap_or(0)
    }
}

fn log_probability(logits: &[f32], token: u32) -> f64 {
    let max = logits.iter().fold(f32::NEG_INFINITY, |max, &x| max.max(x));
    let sum: f64 = logits.iter().map(|&x| f64::from(x - max).exp()).sum();
    f64::from(logits[token as usize] - max) - sum.ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example(labels: Vec<Vec<u32>>, label: usize) -> Example {
        Example { index: 0, batch: 0, prompt: String::new(), tokens: vec![5, 6], pads: 0, labels, label: Some(label) }
    }

    #[test]
    fn single_tokens_are_scored_by_logits_and_losses_by_the_vocabulary() {
        let example = example(vec![vec![1], vec![2]], 1);
        let rows = AnswerRow::of_example(0, &example, AnswerMode::SingleToken);
        assert_eq!((rows.len(), rows[0].positions()), (1, 1..2));
        let logits = [0.0, 3.0, 1.0, 0.0];
        let scores = Scores::new([(&rows[0], &logits[..])], &example, AnswerMode::SingleToken);
        assert_eq!(scores.labels, [3.0, 1.0]);
        assert_eq!((scores.difference(1), scores.prediction()), (-2.0, 0));
        let partition: f64 = [0.0_f64, 3.0, 1.0, 0.0].iter().map(|x| x.exp()).sum();
        assert!((f64::from(scores.loss) - (partition.ln() - 1.0)).abs() < 1e-6);
    }

    #[test]
    fn sequences_are_scored_by_the_sum_of_log_probabilities() {
        let example = example(vec![vec![1, 0], vec![2]], 0);
        let rows = AnswerRow::of_example(0, &example, AnswerMode::Sequence);
        assert_eq!(rows.iter().map(|row| row.tokens.clone()).collect::<Vec<_>>(), [vec![5, 6, 1], vec![5, 6]]);
        let (two, one) = ([0.0, 2.0, 0.0, 1.0, 0.0, 0.0], [0.0, 2.0, 0.0]);
        let scores = Scores::new([(&rows[0], &two[..]), (&rows[1], &one[..])], &example, AnswerMode::Sequence);
        let log = |line: [f64; 3], at: usize| line[at] - line.iter().map(|x| x.exp()).sum::<f64>().ln();
        let expected = [log([0.0, 2.0, 0.0], 1) + log([1.0, 0.0, 0.0], 0), log([0.0, 2.0, 0.0], 2)];
        for (score, expected) in scores.labels.iter().zip(expected) {
            assert!((f64::from(*score) - expected).abs() < 1e-6);
        }
        assert!((scores.loss + scores.labels[0]).abs() < 1e-6);
    }
}
