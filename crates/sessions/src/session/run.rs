//! The `run` and `save` phases.

use super::{Event, Observer, Session};
use crate::config::OutputFormat;
use crate::dataset::Example;
use crate::ops::{AnalysisBatch, OpContext};
use crate::phases::{PhaseRecord, PhaseStart};
use crate::store::{
    DatasetRecord, Found, Manifest, ModelRecord, OpRecord, PartRecord, SCHEMA, Store, StoreWriter, content_hash,
};
use crate::table::Table;
use pellucid_engine::Interrupt;
use pellucid_models::{Error, Result};
use std::time::{SystemTime, UNIX_EPOCH};

/// Options of a run.
#[derive(Clone, Debug, Default)]
pub struct RunOptions {
    /// Replace a store that holds other results. Its parts are reused where their keys are equal.
    pub replace: bool,
    /// Ends the run early; finished parts are kept.
    pub interrupt: Option<Interrupt>,
}

/// The result of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The store.
    pub store: Store,
    /// Number of parts.
    pub parts: usize,
    /// Parts that were there already.
    pub reused: usize,
    /// Time and memory of all phases of this call.
    pub phases: Vec<PhaseRecord>,
}

impl Session {
    /// Computes the parts that do not exist yet and completes the store.
    pub fn run(&self, options: &RunOptions, observer: &mut Observer<'_>) -> Result<Outcome> {
        let mut clock = self.clock.clone();
        let keys = self.part_keys()?;
        let writer = match StoreWriter::open(&self.output, &keys, options.replace)? {
            Found::UpToDate(store) => {
                let phases = clock.records().to_vec();
                return Ok(Outcome { store: *store, parts: keys.len(), reused: keys.len(), phases });
            }
            Found::Writer(writer) => *writer,
        };
        observer(Event::Phase("run"));
        let (mut parts, mut reused, mut done) = (Vec::with_capacity(keys.len()), 0, 0);
        clock.measure("run", || {
            for (index, (examples, key)) in self.part_examples().zip(&keys).enumerate() {
                let part = match writer.reuse(index, key)? {
                    Some(part) => {
                        reused += 1;
                        done += examples.len();
                        part
                    }
                    None => self.compute_part(&writer, index, key, examples, options, &mut done, observer)?,
                };
                parts.push(part);
                observer(Event::Progress(done as f32 / self.examples.len() as f32));
            }
            Ok::<_, Error>(())
        })?;
        observer(Event::Phase("save"));
        let started = PhaseStart::now();
        let mut manifest = self.manifest(parts)?;
        manifest.phases = clock.records().iter().cloned().chain([started.finish("save")]).collect();
        let with_arrays = self.config.config.output.formats.contains(&OutputFormat::Safetensors);
        let store = writer.finish(&manifest, with_arrays)?;
        clock.push(started.finish("save"));
        Ok(Outcome { store, parts: keys.len(), reused, phases: clock.records().to_vec() })
    }

    #[allow(clippy::too_many_arguments)] // the state of one loop
    fn compute_part(
        &self,
        writer: &StoreWriter,
        index: usize,
        key: &str,
        examples: &[Example],
        options: &RunOptions,
        done: &mut usize,
        observer: &mut Observer<'_>,
    ) -> Result<PartRecord> {
        let (mut all, mut latents) = (Table::default(), Table::default());
        for batch in examples.chunk_by(|a, b| a.batch == b.batch) {
            // The engine polls during long runs only.
            if options.interrupt.as_ref().is_some_and(|interrupt| interrupt.0()) {
                return Err(Error::from(pellucid_engine::Error::Interrupted));
            }
            let (more, more_latents) = self.compute_batch(batch, options.interrupt.clone())?;
            for (table, more) in [(&mut all, more), (&mut latents, more_latents)] {
                table.append(more).map_err(|problem| {
                    Error::usage(format!("batches have different columns: {problem}"), "correct the op")
                })?;
            }
            *done += batch.len();
            observer(Event::Progress(*done as f32 / self.examples.len() as f32));
        }
        writer.write_part(index, key, [&all, &latents])
    }

    /// Runs the chain on the examples of one batch.
    pub(super) fn compute_batch(&self, examples: &[Example], interrupt: Option<Interrupt>) -> Result<(Table, Table)> {
        let context = OpContext {
            model: &self.parts.model,
            hooks: &self.parts.hooks,
            examples,
            answer: self.config.config.dataset.answer.unwrap_or_default(),
            options: &self.config.config,
            concept: self.concept.as_ref(),
            keeps_bases: self.chain.has("model_ablation"),
            interrupt,
        };
        let mut batch = AnalysisBatch::new(examples, self.dataset_columns())?;
        for op in self.chain.ops() {
            op.run(&context, &mut batch).map_err(|error| in_op(&op.spec().name, error))?;
        }
        Ok((batch.examples, batch.latents))
    }

    fn manifest(&self, parts: Vec<PartRecord>) -> Result<Manifest> {
        let (config, fingerprints) = (&self.config.config, self.parts.fingerprints()?);
        let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        let op = |op: &std::sync::Arc<dyn crate::ops::Op>| OpRecord {
            name: op.spec().name.to_string(),
            version: op.spec().version.to_string(),
        };
        Ok(Manifest {
            schema: SCHEMA,
            name: config.name.clone().unwrap_or_else(|| "session".into()),
            created,
            version: env!("CARGO_PKG_VERSION").into(),
            model: ModelRecord {
                name: self.parts.model.name.clone(),
                fingerprint: fingerprints.model,
                threads: self.parts.threads,
            },
            saes: fingerprints.saes,
            dataset: DatasetRecord {
                path: config.dataset.path.clone().unwrap_or_default(),
                fingerprint: self.dataset_fingerprint(),
                examples: self.examples.len(),
                tokens: self.examples.iter().map(|example| example.tokens.len()).sum(),
                starts_with_bos: self.starts_with_bos,
            },
            ops: self.chain.ops().iter().map(op).collect(),
            columns: self.chain.columns(self.dataset_columns()),
            content_hash: content_hash(&parts),
            parts,
            phases: Vec::new(),
            debug: self.debug.clone(),
            config: config.clone(),
        })
    }
}

/// Names the op of an error. An interruption stays as it is.
fn in_op(name: &str, error: Error) -> Error {
    if matches!(error.cause(), Error::Engine(pellucid_engine::Error::Interrupted)) {
        return error;
    }
    let remedy = error.remedy().cloned().unwrap_or_else(|| "check the session".into());
    Error::usage(format!("op `{name}`: {error}"), remedy)
}
