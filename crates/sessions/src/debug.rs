//! The debug phase: perplexity, sample generations and shapes, to see that the model and the data
//! fit before a long run.

use crate::config::DebugConfig;
use crate::dataset::Example;
use pellucid_engine::{GenerateOptions, Interrupt, Plan, RunOptions, Tap};
use pellucid_models::{LoadedModel, Result, StopStrings};
use serde::{Deserialize, Serialize};

/// Results of the debug phase.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DebugReport {
    /// Perplexity of the prompts: the exponential of the mean loss of their tokens after the first.
    pub perplexity: f64,
    /// Fraction of these tokens that the model predicts.
    pub top1_accuracy: f64,
    /// Number of tokens predicted.
    pub tokens: usize,
    /// Lengths of all prompts of the session: shortest, longest.
    pub lengths: [usize; 2],
    /// Sizes of the model: layers, width, vocabulary.
    pub model: [usize; 3],
    /// Generations after the examined prompts.
    pub generations: Vec<DebugGeneration>,
}

/// A generation of the debug phase.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DebugGeneration {
    /// Index of the example.
    pub example: usize,
    /// End of its prompt.
    pub prompt_end: String,
    /// The greedy continuation.
    pub text: String,
}

/// Characters of a prompt that a report shows.
const PROMPT_END: usize = 60;

/// Runs the debug phase.
pub fn debug(
    model: &LoadedModel,
    examples: &[Example],
    config: &DebugConfig,
    interrupt: Option<Interrupt>,
) -> Result<DebugReport> {
    let examined = &examples[..config.examples.min(examples.len())];
    let (mut loss, mut hits, mut tokens) = (0.0, 0, 0);
    let options = RunOptions { interrupt: interrupt.clone(), ..RunOptions::default() };
    for example in examined {
        let run =
            model.model.run(std::slice::from_ref(&example.tokens), &Plan::of([Tap::capture("logits")]), &options)?;
        let logits = run.captures[0].array.values();
        let vocab = logits.len() / example.tokens.len();
        for (line, &next) in logits.chunks_exact(vocab).zip(&example.tokens[1..]) {
            let max = line.iter().fold(f32::NEG_INFINITY, |max, &x| max.max(x));
            let sum: f64 = line.iter().map(|&x| f64::from(x - max).exp()).sum();
            loss -= f64::from(line[next as usize] - max) - sum.ln();
            hits += usize::from(line[next as usize] == max);
            tokens += 1;
        }
    }
    let context = model.model.program().architecture().context.unwrap_or(usize::MAX);
    let mut generations = Vec::new();
    for example in examined {
        let max_new = config.max_new.min(context.saturating_sub(example.tokens.len()));
        let stops = StopStrings::default();
        let options =
            GenerateOptions { max_new, eos: model.eos.clone(), interrupt: interrupt.clone(), ..Default::default() };
        if max_new == 0 {
            continue;
        }
        let inputs = std::slice::from_ref(&example.tokens);
        let generation = model.generate(inputs, &Plan::default(), &options, &stops, &mut |_| {})?;
        let text = model.text(&generation.rows[0].tokens, &stops).unwrap_or_default();
        let start = example.prompt.char_indices().rev().nth(PROMPT_END - 1).map_or(0, |(at, _)| at);
        generations.push(DebugGeneration {
            example: example.index,
            prompt_end: example.prompt[start..].to_string(),
            text,
        });
    }
    let lengths = examples.iter().map(|example| example.tokens.len());
    let architecture = model.model.program().architecture();
    Ok(DebugReport {
        perplexity: (loss / tokens.max(1) as f64).exp(),
        top1_accuracy: hits as f64 / tokens.max(1) as f64,
        tokens,
        lengths: [lengths.clone().min().unwrap_or(0), lengths.max().unwrap_or(0)],
        model: [architecture.layers.len(), architecture.width, architecture.vocab],
        generations,
    })
}
