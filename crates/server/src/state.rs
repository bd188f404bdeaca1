//! The state that all handlers share.

use crate::inspection::{CaptureStore, StandingPlans};
use crate::metrics::Metrics;
use crate::options::ServerOptions;
use crate::registry::Registry;
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
