//! Repeats a stored session from its recorded tokens and compares every bit.

use super::init::load_model;
use super::{Event, Observer, Session, check_chain, concept_of};
use crate::config::{ConfigSource, OpsConfig, read_config};
use crate::dataset::Example;
use crate::ops::Registry;
use crate::phases::PhaseClock;
use crate::store::{ColumnDifference, Store, TABLES, compare};
use crate::table::{Column, Table};
use pellucid_engine::Interrupt;
use pellucid_models::{Error, Result};
use serde::Serialize;

/// The result of a replay.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ReplayReport {
    /// Number of examples.
    pub examples: usize,
    /// Number of columns compared.
    pub columns: usize,
    /// Reasons why the results may differ: other weights, another version of an op.
    pub changes: Vec<String>,
    /// The first difference; `None` if all bits are equal.
    pub difference: Option<ReplayDifference>,
}

/// The first difference of a replay.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ReplayDifference {
    /// Number of the part.
    pub part: usize,
    /// The column, with its first row in the part.
    pub column: ColumnDifference,
}

/// Runs the session of a store again, on its recorded tokens, and compares the results. `settings`
/// override the recorded configuration, such as `model.path=…` on another machine.
pub fn replay(
    store: &Store,
    settings: &[String],
    registry: &Registry,
    interrupt: Option<Interrupt>,
    observer: &mut Observer<'_>,
) -> Result<ReplayReport> {
    store.verify()?;
    let manifest = store.manifest();
    let recorded = serde_json::to_value(&manifest.config)
        .map_err(|error| Error::from(pellucid_engine::Error::Internal(error.to_string())))?;
    let sources: Vec<ConfigSource> =
        std::iter::once(ConfigSource::Json(recorded)).chain(settings.iter().cloned().map(ConfigSource::Set)).collect();
    let mut config = read_config(&sources)?;
    config.config.ops = Some(OpsConfig::List(manifest.ops.iter().map(|op| op.name.clone()).collect()));
    let chain = check_chain(&config, registry)?;
    observer(Event::Phase("init"));
    let parts = load_model(&config, &chain, observer)?;
    let (debug, clock, output) = (None, PhaseClock::default(), store.path().to_path_buf());
    let examples = recorded_examples(store)?;
    let starts_with_bos = manifest.dataset.starts_with_bos;
    let concept = concept_of(&config, &chain, &parts)?;
    let session = Session { config, chain, parts, examples, starts_with_bos, concept, output, debug, clock };
    let changes = session.changes(store)?;
    observer(Event::Phase("run"));
    let mut report =
        ReplayReport { examples: session.examples.len(), columns: manifest.columns.len(), changes, difference: None };
    let mut rest = session.examples.as_slice();
    for (index, part) in manifest.parts.iter().enumerate() {
        let rows = part.files.get("examples").map_or(0, |file| file.rows).min(rest.len());
        let (own, others) = rest.split_at(rows);
        rest = others;
        let mut tables = [Table::default(), Table::default()];
        for batch in own.chunk_by(|a, b| a.batch == b.batch) {
            let (examples, latents) = session.compute_batch(batch, interrupt.clone())?;
            for (table, more) in tables.iter_mut().zip([examples, latents]) {
                table.append(more).map_err(|problem| Error::usage(problem, "correct the op"))?;
            }
        }
        report.difference = first_difference(store, index, &tables)?;
        if report.difference.is_some() {
            break;
        }
        observer(Event::Progress((session.examples.len() - rest.len()) as f32 / session.examples.len() as f32));
    }
    Ok(report)
}

fn first_difference(store: &Store, part: usize, tables: &[Table; 2]) -> Result<Option<ReplayDifference>> {
    for (name, table) in TABLES.iter().zip(tables) {
        for column in store.column_names(name) {
            let recorded = store.part_column(name, column, part)?;
            let fresh = table.get(column).cloned().unwrap_or_else(|| Column::empty(recorded.dtype()));
            if let Some(column) = compare(name, column, &recorded, &fresh) {
                return Ok(Some(ReplayDifference { part, column }));
            }
        }
    }
    Ok(None)
}

impl Session {
    /// What differs between the recorded and the present model, autoencoders, ops and version.
    fn changes(&self, store: &Store) -> Result<Vec<String>> {
        let manifest = store.manifest();
        let mut changes = Vec::new();
        let fingerprints = self.parts.fingerprints()?;
        if fingerprints.model != manifest.model.fingerprint {
            changes.push(format!("the weights of {} are not the recorded ones", self.parts.model.name));
        }
        for (sae, recorded) in fingerprints.saes.iter().zip(&manifest.saes) {
            if sae.fingerprint != recorded.fingerprint || sae.site != recorded.site {
                changes.push(format!("the SAE at {} is not the recorded one", recorded.site));
            }
        }
        for (op, recorded) in self.chain.ops().iter().zip(&manifest.ops) {
            if op.spec().version != recorded.version.as_str() {
                let (now, then) = (&op.spec().version, &recorded.version);
                changes.push(format!("the op `{}` has version {now}; the store was made with {then}", recorded.name));
            }
        }
        if manifest.version != env!("CARGO_PKG_VERSION") {
            changes.push(format!("the store was written by version {}", manifest.version));
        }
        Ok(changes)
    }
}

/// The examples that a store records.
fn recorded_examples(store: &Store) -> Result<Vec<Example>> {
    let integers = |name: &str| -> Result<Vec<i64>> {
        Ok(store.column("examples", name)?.integers().unwrap_or_default().to_vec())
    };
    let lists = |name: &str| -> Result<Vec<Vec<i64>>> {
        match store.column("examples", name)? {
            Column::Int64List(lists) => Ok(lists),
            _ => Ok(Vec::new()),
        }
    };
    let (indices, batches, tokens) = (integers("example")?, integers("batch")?, lists("tokens")?);
    let pads = if store.has("examples", "pads") { integers("pads")? } else { vec![0; indices.len()] };
    let has_labels = store.has("examples", "label");
    let (labels, label_tokens, lengths) = match has_labels {
        true => (integers("label")?, lists("label_tokens")?, lists("label_lengths")?),
        false => (Vec::new(), Vec::new(), Vec::new()),
    };
    let prompts = match store.has("examples", "prompts") {
        true => store.column("examples", "prompts")?.texts().unwrap_or_default().to_vec(),
        false => vec![String::new(); indices.len()],
    };
    let ids = |tokens: &[i64]| tokens.iter().map(|&token| token as u32).collect::<Vec<u32>>();
    // A manifest may be edited by hand, so nothing about the columns is taken for granted.
    let example = |row: usize| {
        let mut rest = label_tokens.get(row).map_or(&[][..], Vec::as_slice);
        let mut own = Vec::new();
        for &length in lengths.get(row).into_iter().flatten() {
            let (label, others) = rest.split_at_checked(usize::try_from(length).ok()?)?;
            own.push(ids(label));
            rest = others;
        }
        let label = match has_labels {
            true => Some(usize::try_from(*labels.get(row)?).ok().filter(|&label| label < own.len())?),
            false => None,
        };
        let pads = usize::try_from(*pads.get(row)?).ok()?;
        let is_complete = tokens.get(row)?.len() > pads && own.iter().all(|label| !label.is_empty());
        is_complete.then_some(Example {
            index: usize::try_from(indices[row]).ok()?,
            batch: usize::try_from(*batches.get(row)?).ok()?,
            prompt: prompts.get(row)?.clone(),
            tokens: ids(tokens.get(row)?),
            pads,
            labels: own,
            label,
        })
    };
    (0..indices.len()).map(example).collect::<Option<Vec<_>>>().ok_or_else(|| {
        Error::invalid(store.path(), "its examples are not complete", "copy the store again, or run its session again")
    })
}
