//! The batch that ops work on: its examples, its tables, and arrays that stay in memory.

use super::concept::Concept;
use super::extract_top_features::ScoredFeature;
use crate::config::{AnswerMode, SessionConfig};
use crate::dataset::Example;
use crate::table::{Column, Table};
use pellucid_analysis::attribution_graph::AttributionGraph;
use pellucid_engine::{Base, Interrupt, RunOptions, SaePart, Site, Splice};
use pellucid_models::{Error, LoadedModel, Result};

/// An attached autoencoder, as ops see it.
#[derive(Clone, Debug, PartialEq)]
pub struct Hook {
    /// The site that it reconstructs.
    pub site: Site,
    /// Number of latents.
    pub n_latents: usize,
    /// The value with which a spliced model continues.
    pub splice: Splice,
}

impl Hook {
    /// Returns its name in tables: the site.
    pub fn name(&self) -> String {
        self.site.to_string()
    }

    /// Returns the site of its latents.
    pub fn acts(&self) -> String {
        self.site.sae(SaePart::Acts).to_string()
    }
}

/// Context of all ops: the model, its autoencoders and the examples of the batch.
pub struct OpContext<'a> {
    /// The model with its autoencoders.
    pub model: &'a LoadedModel,
    /// The autoencoders, in the order of the session.
    pub hooks: &'a [Hook],
    /// The examples of the batch.
    pub examples: &'a [Example],
    /// How labels are scored.
    pub answer: AnswerMode,
    /// The session, with the options of ops.
    pub options: &'a SessionConfig,
    /// The concept, if the chain has `concept_direction`.
    pub concept: Option<&'a Concept>,
    /// Whether a later op of the chain branches from the spliced runs.
    pub keeps_bases: bool,
    /// Ends a run early.
    pub interrupt: Option<Interrupt>,
}

impl OpContext<'_> {
    /// Options of a run.
    pub(super) fn run_options(&self) -> RunOptions {
        RunOptions { interrupt: self.interrupt.clone(), ..RunOptions::default() }
    }

    /// The concept of the session.
    pub(super) fn concept(&self) -> Result<&Concept> {
        self.concept.ok_or_else(|| absent("concept_direction"))
    }

    /// Index of the correct label of each example.
    pub(super) fn labels(&self) -> Result<Vec<usize>> {
        let label = |example: &Example| {
            example.label.ok_or_else(|| {
                Error::usage(format!("example {} has no label", example.index), "set `dataset.labels` in the session")
            })
        };
        self.examples.iter().map(label).collect()
    }
}

/// Which columns of a store come from the dataset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DatasetColumns {
    /// The prompts as text.
    pub prompts: bool,
    /// The labels.
    pub labels: bool,
    /// The number of pads, with `dataset.padding = "hf_arange"`.
    pub pads: bool,
}

/// A batch of examples with the fields that ops have added.
#[derive(Default)]
pub struct AnalysisBatch {
    /// One row per example.
    pub examples: Table,
    /// One row per example and active latent.
    pub latents: Table,
    pub(super) memory: Memory,
}

/// Arrays that later ops of the chain read and that are not stored.
#[derive(Default)]
pub(super) struct Memory {
    /// Logits of each answer row, `[positions, vocab]`.
    pub logits: Vec<Vec<f32>>,
    /// Activations of latents at the answer position: for each autoencoder and example.
    pub cache: Vec<Vec<Vec<f32>>>,
    /// The spliced run of each answer row, from which ablations branch.
    pub bases: Vec<Base>,
    /// Gradients of the sum of logit differences, in the form of `cache`.
    pub grad_cache: Vec<Vec<Vec<f32>>>,
    /// The attribution graph of each example.
    pub graphs: Vec<AttributionGraph>,
    /// The features of each graph that `extract_top_features` chose.
    pub top_features: Vec<Vec<ScoredFeature>>,
}

impl AnalysisBatch {
    /// Starts a batch with the columns that identify its examples.
    pub(crate) fn new(examples: &[Example], columns: DatasetColumns) -> Result<AnalysisBatch> {
        let mut batch = AnalysisBatch::default();
        let integers = |of: fn(&Example) -> usize| Column::Int64(examples.iter().map(|e| of(e) as i64).collect());
        batch.set_example("example", integers(|example| example.index))?;
        batch.set_example("batch", integers(|example| example.batch))?;
        if columns.prompts {
            let prompts = examples.iter().map(|example| example.prompt.clone()).collect();
            batch.set_example("prompts", Column::Text(prompts))?;
        }
        let tokens = |example: &Example| example.tokens.iter().map(|&token| i64::from(token)).collect();
        batch.set_example("tokens", Column::Int64List(examples.iter().map(tokens).collect()))?;
        if columns.pads {
            batch.set_example("pads", integers(|example| example.pads))?;
        }
        // The labels are part of the record, so that a store can be replayed without its dataset.
        if let Some(labels) = examples.iter().map(|example| example.label).collect::<Option<Vec<usize>>>() {
            batch.set_example("label", Column::Int64(labels.into_iter().map(|label| label as i64).collect()))?;
            let tokens = |example: &Example| example.labels.iter().flatten().map(|&token| i64::from(token)).collect();
            batch.set_example("label_tokens", Column::Int64List(examples.iter().map(tokens).collect()))?;
            let lengths = |example: &Example| example.labels.iter().map(|label| label.len() as i64).collect();
            batch.set_example("label_lengths", Column::Int64List(examples.iter().map(lengths).collect()))?;
        }
        Ok(batch)
    }

    /// Sets a column of the examples.
    pub fn set_example(&mut self, name: &str, column: Column) -> Result<()> {
        self.examples.set(name, column).map_err(|problem| wrong_rows(&problem))
    }

    /// Sets a column of the latents.
    pub fn set_latent(&mut self, name: &str, column: Column) -> Result<()> {
        self.latents.set(name, column).map_err(|problem| wrong_rows(&problem))
    }

    /// The floats of an example column.
    pub(super) fn example_floats(&self, name: &str) -> Result<&[f32]> {
        self.examples.get(name).and_then(Column::floats).ok_or_else(|| absent(name))
    }

    /// The rows of the latents: indices of the example in the batch and of the autoencoder, latent.
    pub(super) fn latent_rows(&self, context: &OpContext<'_>) -> Result<Vec<(usize, usize, usize)>> {
        let integers = |name| self.latents.get(name).and_then(Column::integers).ok_or_else(|| absent(name));
        let hooks = self.latents.get("hook").and_then(Column::texts).ok_or_else(|| absent("hook"))?;
        let names: Vec<String> = context.hooks.iter().map(Hook::name).collect();
        let rows = integers("example")?.iter().zip(hooks).zip(integers("latent")?).map(|((example, hook), latent)| {
            let example = context.examples.iter().position(|own| own.index as i64 == *example);
            let hook = names.iter().position(|own| own == hook);
            Some((example?, hook?, usize::try_from(*latent).ok()?))
        });
        rows.collect::<Option<Vec<_>>>().ok_or_else(|| absent("latents of this batch"))
    }
}

fn wrong_rows(problem: &str) -> Error {
    Error::usage(problem.to_string(), "an op returns one value for each row of its table")
}

/// The composition is checked before a run, so this is a fault of an op.
pub(super) fn absent(name: &str) -> Error {
    Error::from(pellucid_engine::Error::Internal(format!("the batch has no `{name}`")))
}
