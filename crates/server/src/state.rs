//! The state that all handlers share.

use crate::error::Result;
use crate::inspection::{CaptureStore, StandingPlans};
use crate::metrics::Metrics;
use crate::options::ServerOptions;
use crate::registry::{ModelSpec, Registry};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use tokio::sync::Semaphore;

/// The state of a server.
pub type AppState = Arc<State>;

pub struct State {
    pub options: ServerOptions,
    pub models: Registry,
    pub metrics: Metrics,
    pub captures: CaptureStore,
    pub standing: StandingPlans,
    /// One direct call (`/v1/run`, …) runs at a time, beside the scheduler.
    pub direct: Arc<Semaphore>,
    /// A shutdown has begun: running requests finish, and new ones are refused.
    pub closing: AtomicBool,
}

impl State {
    /// Describes all models and starts a scheduler for each loaded one.
    pub fn new(models: Vec<ModelSpec>, mut options: ServerOptions) -> Result<State> {
        options.scheduler.capture_bytes = options.scheduler.capture_bytes.min(options.limits.capture_bytes);
        let metrics = Metrics::new();
        Ok(State {
            models: Registry::new(models, &options, metrics.residency.clone())?,
            metrics,
            captures: CaptureStore::new(options.limits.stored_bytes),
            standing: StandingPlans::default(),
            direct: Arc::new(Semaphore::new(1)),
            closing: AtomicBool::new(false),
            options,
        })
    }
}
