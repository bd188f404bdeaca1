//! The served models by name: loaded on demand, unloaded when others need their memory.
//!
//! `spec.rs` has the models that a server is given, `names.rs` their names, adapters and aliases.
//! `served.rs` is a loaded model with its scheduler; a request holds a [`ModelUse`], and a model in
//! use is never unloaded. `residency.rs` decides which models are in memory. `loading.rs` loads
//! them: one at a time, in the order of the requests, on a blocking thread, once for all requests
//! that wait for it.

mod loading;
mod metrics;
mod names;
mod residency;
mod served;
mod spec;

pub use metrics::{ModelLabels, ResidencyMetrics};
pub use served::ModelUse;
pub use spec::{Description, ModelEntry, ModelFiles, ModelSpec};

use crate::api_error::{ApiError, ApiResult};
use crate::error::{Error, Result};
use crate::ids::unix_time;
use crate::options::ServerOptions;
use axum::http::StatusCode;
use names::{Names, Target};
use pellucid_engine::Load;
use residency::{Residency, Slot};
use std::sync::Arc;

/// All served models by name.
pub struct Registry {
    names: Names,
    residency: Arc<Residency>,
    /// When the server began, in seconds since 1970.
    pub created: u64,
}

/// A name as `/v1/models` lists it.
pub struct ListedModel<'a> {
    /// A model's id, `MODEL:ADAPTER`, or an alias.
    pub name: &'a str,
    /// The id of its model.
    pub model: &'a str,
    pub adapter: Option<&'a str>,
    pub description: Description,
    pub is_loaded: bool,
}

impl ListedModel<'_> {
    /// The name that an alias stands for.
    pub fn root(&self) -> String {
        match self.adapter {
            Some(adapter) => format!("{}:{adapter}", self.model),
            None => self.model.to_owned(),
        }
    }
}

/// A model that is or is not in memory.
pub struct ModelState {
    pub id: String,
    /// Bytes in memory; 0 if it is not loaded.
    pub bytes: usize,
    /// The load of its scheduler; `None` if it is not loaded.
    pub load: Option<Load>,
}

impl Registry {
    /// Describes all models and starts a scheduler for each loaded one. The first model is the
    /// default.
    ///
    /// # Errors
    /// Paths that do not load, names that are taken, models that never fit into the memory for
    /// models.
    pub fn new(specs: Vec<ModelSpec>, options: &ServerOptions, metrics: ResidencyMetrics) -> Result<Registry> {
        if specs.is_empty() {
            return Err(Error::Options {
                problem: "there is no model to serve".into(),
                remedy: "give --model M".into(),
            });
        }
        let residency = Residency::new(specs, options, metrics)?;
        let (descriptions, slots) = (residency.descriptions(), residency.slots());
        let models: Vec<(&str, &Description)> = slots.iter().map(|slot| slot.id.as_str()).zip(&descriptions).collect();
        let names = Names::new(&models, &options.aliases)?;
        Ok(Registry { names, residency: Arc::new(residency), created: unix_time() })
    }

    /// Loads the first model before the server runs.
    pub fn preload(&self, progress: &mut dyn FnMut(f32)) -> Result<()> {
        self.residency.preload(0, progress)
    }

    /// The models with what is in memory.
    pub fn states(&self) -> Vec<ModelState> {
        self.residency.states()
    }

    /// Every listed name: the models, their adapters, the aliases.
    pub fn listed(&self) -> Vec<ListedModel<'_>> {
        let descriptions = self.residency.descriptions();
        let states = self.residency.states();
        let listed = self.names.listed();
        listed.map(|(name, target)| self.describe(name, target, &descriptions, &states)).collect()
    }

    /// One name.
    pub fn show<'a>(&'a self, name: &'a str) -> ApiResult<ListedModel<'a>> {
        let target = self.names.find(name).ok_or_else(|| unknown_model(name))?;
        Ok(self.describe(name, target, &self.residency.descriptions(), &self.residency.states()))
    }

    fn describe<'a>(
        &'a self,
        name: &'a str,
        target: &'a Target,
        descriptions: &[Description],
        states: &[ModelState],
    ) -> ListedModel<'a> {
        ListedModel {
            name,
            model: &self.slot(target).id,
            adapter: target.adapter.as_deref(),
            description: descriptions[target.model].clone(),
            is_loaded: states[target.model].load.is_some(),
        }
    }

    fn slot(&self, target: &Target) -> &Slot {
        &self.residency.slots()[target.model]
    }

    /// Finds the model of a request, the first one if it names none, and loads it if it is not in
    /// memory. `adapter` is an adapter of the model; without it, the one that the name includes.
    pub async fn acquire(&self, name: Option<&str>, adapter: Option<&str>) -> ApiResult<ModelUse> {
        let target = match name {
            None => Target { model: 0, adapter: None },
            Some(name) => self.names.find(name).cloned().ok_or_else(|| unknown_model(name))?,
        };
        let adapter = match (adapter, &target.adapter) {
            (Some(wanted), Some(named)) if wanted != named => {
                let message = format!("`model` names the adapter `{named}`, and `adapter` names `{wanted}`");
                return Err(ApiError::field("adapter", message));
            }
            (Some(wanted), _) => {
                self.check_adapter(&target, wanted)?;
                Some(wanted)
            }
            (None, named) => named.as_deref(),
        };
        Ok(self.residency.acquire(target.model).await?.with_adapter(adapter))
    }

    fn check_adapter(&self, target: &Target, wanted: &str) -> ApiResult<()> {
        let (id, adapters) = (&self.slot(target).id, &self.residency.descriptions()[target.model].adapters);
        if adapters.iter().any(|adapter| adapter == wanted) {
            return Ok(());
        }
        let remedy = match adapters.is_empty() {
            true => "it has none; start the server with --adapter NAME=DIR".into(),
            false => format!("it has {}", adapters.join(", ")),
        };
        let message = format!("the model `{id}` has no adapter `{wanted}`; {remedy}");
        Err(ApiError::new(StatusCode::NOT_FOUND, message).with_param("adapter").with_code("adapter_not_found"))
    }
}

fn unknown_model(name: &str) -> ApiError {
    let message = format!("the model `{name}` does not exist; GET /v1/models lists the models of this server");
    ApiError::new(StatusCode::NOT_FOUND, message).with_param("model").with_code("model_not_found")
}
