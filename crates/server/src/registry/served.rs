//! A loaded model with its scheduler, and its use by a request.

use crate::error::Result;
use pellucid_engine::{RowAdapters, Scheduler, SchedulerOptions};
use pellucid_models::LoadedModel;
use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::Notify;

/// A loaded model.
pub struct ServedModel {
    /// All its adapters run on one scheduler, in shared passes.
    pub scheduler: Scheduler,
    id: String,
    loaded: Arc<LoadedModel>,
    /// The model with each adapter as that of all rows, by its name. They share the weights.
    adapted: BTreeMap<String, Arc<LoadedModel>>,
    users: Arc<Users>,
}

impl ServedModel {
    /// Starts the scheduler of a model. `idle` is notified when the last user has gone.
    pub fn new(id: &str, loaded: LoadedModel, options: &SchedulerOptions, idle: Arc<Notify>) -> Result<ServedModel> {
        let scheduler = Scheduler::new(&loaded.model, options.clone())?;
        let mut adapted = BTreeMap::new();
        for record in loaded.adapters() {
            let mut with_adapter = loaded.clone();
            with_adapter.model = loaded.model.with_adapter(Some(&record.name))?;
            adapted.insert(record.name.clone(), Arc::new(with_adapter));
        }
        let users = Arc::new(Users { count: AtomicUsize::new(0), idle });
        Ok(ServedModel { scheduler, id: id.into(), loaded: Arc::new(loaded), adapted, users })
    }

    /// Number of requests that use it.
    pub fn users(&self) -> usize {
        self.users.count.load(Ordering::Acquire)
    }

    /// Begins a use of the model.
    pub fn begin_use(self: &Arc<ServedModel>) -> ModelUse {
        let guard = UseGuard::new(&self.users);
        ModelUse {
            id: self.id.clone(),
            loaded: self.loaded.clone(),
            adapter: None,
            served: self.clone(),
            _guard: guard,
        }
    }
}

/// A model in the hands of a request: while this exists, the model is not unloaded.
#[derive(Clone)]
pub struct ModelUse {
    /// Its name in answers: `MODEL`, or `MODEL:ADAPTER`.
    pub id: String,
    /// The model; the request's adapter is that of rows which name none.
    pub loaded: Arc<LoadedModel>,
    adapter: Option<String>,
    served: Arc<ServedModel>,
    // The last field, so that the model is not in use once its references are dropped.
    _guard: UseGuard,
}

impl ModelUse {
    /// The same model with an adapter that it has.
    pub fn with_adapter(self, adapter: Option<&str>) -> ModelUse {
        let Some((name, loaded)) = adapter.and_then(|name| self.served.adapted.get_key_value(name)) else {
            return self;
        };
        let id = format!("{}:{name}", self.served.id);
        ModelUse { id, adapter: Some(name.clone()), loaded: loaded.clone(), ..self }
    }

    /// The adapter of the rows of a request of the scheduler.
    pub fn row_adapters(&self) -> RowAdapters {
        RowAdapters::All(self.adapter.clone())
    }

    /// The most positions that a row may have.
    pub fn context(&self) -> Option<usize> {
        self.loaded.model.program().architecture().context
    }
}

impl Deref for ModelUse {
    type Target = ServedModel;

    fn deref(&self) -> &ServedModel {
        &self.served
    }
}

/// The users of a model.
struct Users {
    count: AtomicUsize,
    idle: Arc<Notify>,
}

/// Counts a user while it exists.
struct UseGuard(Arc<Users>);

impl UseGuard {
    fn new(users: &Arc<Users>) -> UseGuard {
        users.count.fetch_add(1, Ordering::AcqRel);
        UseGuard(users.clone())
    }
}

impl Clone for UseGuard {
    fn clone(&self) -> UseGuard {
        UseGuard::new(&self.0)
    }
}

impl Drop for UseGuard {
    fn drop(&mut self) {
        if self.0.count.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.idle.notify_one();
        }
    }
}
