//! Sessions: from a configuration to a store.
//!
//! The phases are `config` (files and settings, the chain of ops), `init` (model and autoencoders),
//! `prepare` (records and prompts), `setup` (tokens, content keys), optionally `debug`, then `run`
//! and `save`. [`Session::open`] does everything before the run, so errors appear before work
//! starts; [`Session::run`] computes the parts that are not there yet (`run.rs`) and completes the
//! store. `check.rs` estimates cost, `replay.rs` repeats a stored session and compares bits.

mod check;
mod init;
mod keys;
mod replay;
mod run;

pub use check::CheckReport;
pub use replay::{ReplayDifference, ReplayReport, replay};
pub use run::{Outcome, RunOptions};

use crate::config::{ConfigSource, LoadedConfig, Padding, read_config};
use crate::dataset::{Example, encode, read_dataset};
use crate::debug::{DebugReport, debug};
use crate::ops::{CONCEPT_DIRECTION, Chain, Concept, DatasetColumns, Hook, Registry};
use crate::phases::PhaseClock;
use init::{ModelParts, load_model};
use pellucid_engine::Interrupt;
use pellucid_models::{Error, Result};
use std::path::PathBuf;

/// Progress of a session, for its user.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A phase begins.
    Phase(&'static str),
    /// Fraction of the phase that is done.
    Progress(f32),
    /// A line of information, such as the test of an autoencoder.
    Note(String),
}

/// Receives the events of a session.
pub type Observer<'a> = dyn FnMut(Event) + 'a;

/// A session that is ready to run.
pub struct Session {
    config: LoadedConfig,
    chain: Chain,
    parts: ModelParts,
    examples: Vec<Example>,
    starts_with_bos: bool,
    concept: Option<Concept>,
    output: PathBuf,
    debug: Option<DebugReport>,
    clock: PhaseClock,
}

impl Session {
    /// Reads a session and prepares everything up to the run: model, autoencoders, examples. All
    /// checks that need no run happen here.
    pub fn open(
        sources: &[ConfigSource],
        registry: &Registry,
        interrupt: Option<Interrupt>,
        observer: &mut Observer<'_>,
    ) -> Result<Session> {
        let mut clock = PhaseClock::default();
        observer(Event::Phase("config"));
        let (config, chain, output) = clock.measure("config", || {
            let config = read_config(sources)?;
            let chain = check_chain(&config, registry)?;
            let output = config.config.output.path.clone().ok_or_else(|| {
                config.error(&["output"], "`output.path` is missing", "name the directory of the results")
            })?;
            Ok::<_, Error>((config, chain, output))
        })?;
        observer(Event::Phase("init"));
        let parts = clock.measure("init", || load_model(&config, &chain, observer))?;
        observer(Event::Phase("prepare"));
        let prompts = clock.measure("prepare", || read_dataset(&config))?;
        observer(Event::Phase("setup"));
        let (examples, concept) = clock.measure("setup", || {
            let examples = encode(&config, &parts.model, prompts)?;
            Ok::<_, Error>((examples, concept_of(&config, &chain, &parts)?))
        })?;
        let mut debugged = None;
        if let Some(settings) = &config.config.debug {
            observer(Event::Phase("debug"));
            debugged = Some(clock.measure("debug", || debug(&parts.model, &examples, settings, interrupt))?);
        }
        let bos = parts.model.tokenizer()?.special().bos;
        let first = |example: &Example| example.tokens.get(example.pads).copied();
        let starts_with_bos = bos.is_some() && examples.iter().all(|example| first(example) == bos);
        Ok(Session { config, chain, parts, examples, starts_with_bos, concept, output, debug: debugged, clock })
    }

    /// The merged configuration.
    pub fn config(&self) -> &LoadedConfig {
        &self.config
    }

    /// The chain of ops.
    pub fn chain(&self) -> &Chain {
        &self.chain
    }

    /// The examples.
    pub fn examples(&self) -> &[Example] {
        &self.examples
    }

    /// The autoencoders.
    pub fn hooks(&self) -> &[Hook] {
        &self.parts.hooks
    }

    /// The results of the debug phase, if the session has one.
    pub fn debug_report(&self) -> Option<&DebugReport> {
        self.debug.as_ref()
    }

    /// Time and memory of the phases so far.
    pub fn phases(&self) -> &[crate::phases::PhaseRecord] {
        self.clock.records()
    }

    fn stores_prompts(&self) -> bool {
        self.config.config.output.prompts.unwrap_or(true)
    }

    /// The columns of the store that come from the dataset.
    fn dataset_columns(&self) -> DatasetColumns {
        DatasetColumns {
            prompts: self.stores_prompts(),
            labels: self.examples.iter().any(|example| !example.labels.is_empty()),
            pads: self.config.config.dataset.padding == Some(Padding::HfArange),
        }
    }
}

/// The concept of a session whose chain needs one.
fn concept_of(config: &LoadedConfig, chain: &Chain, parts: &ModelParts) -> Result<Option<Concept>> {
    match chain.has(CONCEPT_DIRECTION) {
        true => Concept::resolve(config, &parts.model).map(Some),
        false => Ok(None),
    }
}

/// Finds the ops of a session and checks their composition, before anything is loaded.
fn check_chain(config: &LoadedConfig, registry: &Registry) -> Result<Chain> {
    let Some(ops) = &config.config.ops else {
        return Err(config.error(&["ops"], "`ops` is missing", "name a chain of ops, such as \"logit_diffs_base\""));
    };
    let dataset = &config.config.dataset;
    if dataset.labels.len() == 1 {
        return Err(config.error(&["dataset", "labels"], "there is one label", "give at least two labels"));
    }
    let has_labels = !dataset.labels.is_empty() || dataset.labels_field.is_some();
    let checked = Chain::parse(&ops.parts(), registry)
        .and_then(|chain| chain.check(has_labels, config.config.saes.len(), registry).map(|()| chain));
    checked.map_err(|error| {
        let remedy = error.remedy().map(|remedy| remedy.to_string()).unwrap_or_default();
        config.error(&["ops"], error, &remedy)
    })
}
