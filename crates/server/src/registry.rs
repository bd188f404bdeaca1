//! The served models, each with its scheduler, and their aliases.

use crate::api_error::{ApiError, ApiResult};
use crate::error::{Error, Result};
use crate::ids::unix_time;
use crate::options::Alias;
use axum::http::StatusCode;
use pellucid_engine::{Scheduler, SchedulerOptions};
use pellucid_models::LoadedModel;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A model to serve.
pub struct ModelEntry {
    /// Its name in requests.
    pub id: String,
    /// The model.
    pub loaded: LoadedModel,
}

/// A model that is served.
pub struct ServedModel {
    pub id: String,
    pub loaded: LoadedModel,
    pub scheduler: Scheduler,
    /// When it was loaded, in seconds since 1970.
    pub created: u64,
}

impl ServedModel {
    /// The most positions that a row may have.
    pub fn context(&self) -> Option<usize> {
        self.loaded.model.program().architecture().context
    }
}

/// All served models by name.
pub struct Registry {
    /// In the order in which they were given; the first is the default.
    models: Vec<Arc<ServedModel>>,
    aliases: BTreeMap<String, Arc<ServedModel>>,
}

impl Registry {
    /// Starts a scheduler for each model.
    pub fn new(entries: Vec<ModelEntry>, aliases: &[Alias], options: &SchedulerOptions) -> Result<Registry> {
        let problem = |problem: String, remedy: &str| Error::Options { problem, remedy: remedy.into() };
        let mut models: Vec<Arc<ServedModel>> = Vec::with_capacity(entries.len());
        for ModelEntry { id, loaded } in entries {
            if models.iter().any(|model| model.id == id) {
                return Err(problem(format!("two models are named {id}"), "give each model once"));
            }
            let scheduler = Scheduler::new(&loaded.model, options.clone())?;
            models.push(Arc::new(ServedModel { id, loaded, scheduler, created: unix_time() }));
        }
        let Some(first) = models.first() else {
            return Err(problem("there is no model to serve".into(), "give --model M"));
        };
        let mut by_alias = BTreeMap::new();
        for Alias { name, model } in aliases {
            let target = match model {
                None => Some(first),
                Some(id) => models.iter().find(|model| model.id == *id),
            };
            let ids: Vec<&str> = models.iter().map(|model| model.id.as_str()).collect();
            let Some(target) = target else {
                let id = model.as_deref().unwrap_or_default();
                let remedy = format!("the models are {}", ids.join(", "));
                return Err(problem(format!("the alias {name} names the model {id}, which is not served"), &remedy));
            };
            if ids.contains(&name.as_str()) || by_alias.insert(name.clone(), target.clone()).is_some() {
                return Err(problem(format!("the name {name} is taken"), "give each alias another name"));
            }
        }
        Ok(Registry { models, aliases: by_alias })
    }

    /// The models.
    pub fn all(&self) -> &[Arc<ServedModel>] {
        &self.models
    }

    /// Every name with its model: the models, then the aliases.
    pub fn names(&self) -> impl Iterator<Item = (&str, &Arc<ServedModel>)> {
        let models = self.models.iter().map(|model| (model.id.as_str(), model));
        models.chain(self.aliases.iter().map(|(name, model)| (name.as_str(), model)))
    }

    /// Finds the model of a request; the first one if it names none.
    pub fn find(&self, name: Option<&str>) -> ApiResult<Arc<ServedModel>> {
        let Some(name) = name else { return Ok(self.models[0].clone()) };
        let found = self.models.iter().find(|model| model.id == name).or_else(|| self.aliases.get(name));
        found.cloned().ok_or_else(|| {
            let message = format!("the model `{name}` does not exist; GET /v1/models lists the models of this server");
            ApiError::new(StatusCode::NOT_FOUND, message).with_param("model").with_code("model_not_found")
        })
    }
}
