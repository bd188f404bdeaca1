//! Which models are in memory.
//!
//! A model takes the bytes of its weights, adapters and autoencoders. They must fit into the memory
//! for models: `--model-memory`, or what the process may take. A model that does not fit waits
//! until idle ones are unloaded, least recently used first. Models that have no files to load them
//! from stay loaded.

use super::metrics::ResidencyMetrics;
use super::served::{ModelUse, ServedModel};
use super::spec::{Description, ModelFiles, ModelSpec, bytes_of};
use super::{ModelState, loading};
use crate::api_error::{ApiError, ApiResult, MODELS_BUSY};
use crate::error::{Error, Result};
use crate::options::ServerOptions;
use pellucid_engine::SchedulerOptions;
use pellucid_engine::memory_limit::{allowed_memory, format_bytes};
use pellucid_models::LoadedModel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Mutex as AsyncMutex, Notify, watch};
use tokio::time::Instant;

/// The result of a load; `None` while it goes on.
pub type LoadResult = Option<ApiResult<ModelUse>>;

/// A model, loaded or not.
pub struct Slot {
    pub id: String,
    /// How it is loaded; `None` for a model that stays loaded.
    pub files: Option<Arc<ModelFiles>>,
}

/// The state that changes while the server runs.
struct SlotState {
    description: Description,
    served: Option<Arc<ServedModel>>,
    /// Counts up with each use of any model.
    last_used: u64,
    /// A load that goes on.
    load: Option<watch::Receiver<LoadResult>>,
}

#[derive(Default)]
struct State {
    slots: Vec<SlotState>,
    uses: u64,
    /// While a load waits for memory, new requests for other models wait, too, until this time.
    held_until: Option<Instant>,
}

/// The models and those of them that are in memory.
pub struct Residency {
    slots: Vec<Slot>,
    state: Mutex<State>,
    /// Bytes for all models; what the process may take if absent.
    budget: Option<usize>,
    /// How long a load waits for memory.
    pub wait: Duration,
    pub scheduler: SchedulerOptions,
    pub metrics: ResidencyMetrics,
    /// One load at a time, in the order of the requests.
    pub turn: AsyncMutex<()>,
    /// A model has become idle.
    pub idle: Arc<Notify>,
    /// Requests need not wait for a load of another model any longer.
    released: Notify,
}

/// Whether a model fits into the memory.
pub enum Fit {
    Fits,
    /// This idle model was taken out of memory; drop it and ask again.
    Unloaded(Arc<ServedModel>),
    /// The models that hold the memory are in use.
    Busy(ApiError),
    /// It does not fit even alone.
    TooLarge(ApiError),
}

/// How a request gets its model.
enum Attempt {
    Use(ModelUse),
    /// Another load waits for memory until this time at most.
    Held(Instant),
    Load(watch::Receiver<LoadResult>),
}

impl Residency {
    pub fn new(specs: Vec<ModelSpec>, options: &ServerOptions, metrics: ResidencyMetrics) -> Result<Residency> {
        let idle = Arc::new(Notify::new());
        let (mut slots, mut states) = (Vec::new(), Vec::new());
        for spec in specs {
            let (id, files, description, served) = match spec {
                ModelSpec::Loaded(entry) => {
                    let description = Description::of(&entry.loaded);
                    let served = ServedModel::new(&entry.id, entry.loaded, &options.scheduler, idle.clone())?;
                    (entry.id, None, description, Some(Arc::new(served)))
                }
                ModelSpec::OnDemand(files) => {
                    let description = files.describe().map_err(|error| Error::Model(Box::new(error)))?;
                    (files.id.clone(), Some(Arc::new(files)), description, None)
                }
            };
            if let Some(budget) = options.model_memory.filter(|budget| description.bytes > *budget) {
                let (needed, budget) = (format_bytes(description.bytes), format_bytes(budget));
                return Err(Error::Options {
                    problem: format!("the model {id} needs {needed}, more than the {budget} for models"),
                    remedy: "raise --model-memory, or load it smaller with --dtype q8".into(),
                });
            }
            states.push(SlotState { description, served, last_used: 0, load: None });
            slots.push(Slot { id, files });
        }
        Ok(Residency {
            slots,
            state: Mutex::new(State { slots: states, uses: 0, held_until: None }),
            budget: options.model_memory,
            wait: options.limits.load_wait,
            scheduler: options.scheduler.clone(),
            metrics,
            turn: AsyncMutex::default(),
            idle,
            released: Notify::new(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn slots(&self) -> &[Slot] {
        &self.slots
    }

    pub fn descriptions(&self) -> Vec<Description> {
        self.lock().slots.iter().map(|state| state.description.clone()).collect()
    }

    pub fn states(&self) -> Vec<ModelState> {
        let state = self.lock();
        let of = |(slot, state): (&Slot, &SlotState)| ModelState {
            id: slot.id.clone(),
            bytes: if state.served.is_some() { state.description.bytes } else { 0 },
            load: state.served.as_ref().map(|served| served.scheduler.load()),
        };
        self.slots.iter().zip(&state.slots).map(of).collect()
    }

    /// Uses a model; loads it first if it is not in memory.
    pub async fn acquire(self: &Arc<Residency>, index: usize) -> ApiResult<ModelUse> {
        loop {
            let released = self.released.notified();
            match self.attempt(index) {
                Attempt::Use(model) => return Ok(model),
                Attempt::Held(until) => _ = tokio::time::timeout_at(until, released).await,
                Attempt::Load(mut result) => {
                    // The sender is dropped without a result only if the load panics.
                    return match result.wait_for(Option::is_some).await {
                        Ok(result) => result.clone().unwrap_or_else(|| Err(ApiError::internal())),
                        Err(_) => Err(ApiError::internal()),
                    };
                }
            }
        }
    }

    fn attempt(self: &Arc<Residency>, index: usize) -> Attempt {
        let mut state = self.lock();
        state.uses += 1;
        let (uses, held_until) = (state.uses, state.held_until);
        let slot = &mut state.slots[index];
        if let Some(served) = &slot.served {
            // Otherwise a steady load on one model would keep it in memory forever.
            if let Some(until) = held_until.filter(|until| self.slots[index].files.is_some() && Instant::now() < *until)
            {
                return Attempt::Held(until);
            }
            slot.last_used = uses;
            return Attempt::Use(served.begin_use());
        }
        slot.last_used = uses;
        let running = slot.load.as_ref().filter(|load| load.has_changed().is_ok());
        Attempt::Load(running.cloned().unwrap_or_else(|| {
            let (to, from) = watch::channel(None);
            slot.load = Some(from.clone());
            loading::start(self.clone(), index, to);
            from
        }))
    }

    /// Unloads the least recently used idle model if this one does not fit.
    pub fn fit(&self, index: usize) -> Fit {
        let mut state = self.lock();
        let (id, needed) = (&self.slots[index].id, state.slots[index].description.bytes);
        let loaded = |slot: &&SlotState| slot.served.is_some();
        let (allowed, limit) = match self.budget {
            Some(budget) => {
                let used: usize = state.slots.iter().filter(loaded).map(|slot| slot.description.bytes).sum();
                (budget.saturating_sub(used), format!("{} are for models (--model-memory)", format_bytes(budget)))
            }
            None => match allowed_memory() {
                Ok(Some(allowed)) => (allowed.bytes, allowed.to_string()),
                // Not limited, or not known; the load itself reports a malformed limit.
                Ok(None) | Err(_) => return Fit::Fits,
            },
        };
        if needed <= allowed {
            return Fit::Fits;
        }
        let can_go = |other: &usize| *other != index && self.slots[*other].files.is_some();
        let mut others: Vec<usize> = (0..self.slots.len()).filter(can_go).collect();
        others.retain(|&other| state.slots[other].served.is_some());
        others.sort_by_key(|&other| state.slots[other].last_used);
        let is_idle = |other: &usize| state.slots[*other].served.as_ref().is_some_and(|served| served.users() == 0);
        if let Some(other) = others.iter().copied().find(is_idle)
            && let Some(served) = state.slots[other].served.take()
        {
            let unloaded = &self.slots[other].id;
            tracing::info!(model = unloaded, needed_by = id, "unloaded a model that was idle");
            self.metrics.count_unload(unloaded);
            return Fit::Unloaded(served);
        }
        let needs = format!("the model `{id}` needs {}; {limit}", format_bytes(needed));
        match others.is_empty() {
            true => {
                let message = format!("{needs}; raise --model-memory or --memory-limit, or serve fewer models");
                Fit::TooLarge(ApiError::unavailable(message, "model_too_large"))
            }
            false => {
                let of = |&other: &usize| {
                    let bytes = format_bytes(state.slots[other].description.bytes);
                    format!("`{}` ({bytes})", self.slots[other].id)
                };
                let busy: Vec<String> = others.iter().map(of).collect();
                let message = format!("{needs}, and the models in memory are in use: {}; try again", busy.join(", "));
                Fit::Busy(ApiError::unavailable(message, MODELS_BUSY))
            }
        }
    }

    /// Loads a model before the server runs.
    pub fn preload(&self, index: usize, progress: &mut dyn FnMut(f32)) -> Result<()> {
        let slot = &self.slots[index];
        let Some(files) = &slot.files else { return Ok(()) };
        let loaded = files.load(progress).map_err(|error| Error::Model(Box::new(error)))?;
        let loaded = serve(self, &slot.id, loaded)?;
        // The use ends at once.
        drop(self.end_load(index, Ok(loaded)));
        Ok(())
    }

    /// Lets new requests for other models wait until this time at most.
    pub fn hold(&self, until: Instant) {
        self.lock().held_until.get_or_insert(until);
    }

    /// Ends a load: requests that were held go on.
    pub fn end_load(&self, index: usize, loaded: ApiResult<(ServedModel, usize)>) -> ApiResult<ModelUse> {
        let mut state = self.lock();
        state.held_until = None;
        let slot = &mut state.slots[index];
        slot.load = None;
        let result = loaded.map(|(served, bytes)| {
            slot.description.bytes = bytes;
            slot.served.insert(Arc::new(served)).begin_use()
        });
        drop(state);
        self.released.notify_waiters();
        result
    }
}

/// A loaded model with its bytes.
pub fn serve(residency: &Residency, id: &str, loaded: LoadedModel) -> Result<(ServedModel, usize)> {
    let bytes = bytes_of(&loaded);
    Ok((ServedModel::new(id, loaded, &residency.scheduler, residency.idle.clone())?, bytes))
}
