//! Loads a model: frees memory, reads its files on a blocking thread, hands it to all that wait.

use super::residency::{Fit, LoadResult, Residency, serve};
use super::served::ServedModel;
use crate::api_error::{ApiError, ApiResult};
use axum::http::StatusCode;
use pellucid_models::Error;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch::Sender;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout_at};

/// How long new requests for other models wait at most while a load waits for memory.
const HOLD: Duration = Duration::from_secs(5);

/// Starts a load in a task of its own, which goes on when its clients disconnect.
pub fn start(residency: Arc<Residency>, index: usize, to: Sender<LoadResult>) {
    tokio::spawn(async move {
        let turn = residency.turn.lock().await;
        let loaded = load(&residency, index).await;
        let result = residency.end_load(index, loaded);
        drop(turn);
        // Its clients may have gone.
        let _ = to.send(Some(result));
    });
}

async fn load(residency: &Arc<Residency>, index: usize) -> ApiResult<(ServedModel, usize)> {
    free_memory(residency, index).await?;
    let own = residency.clone();
    let work = spawn_blocking(move || {
        let slot = &own.slots()[index];
        let files = slot.files.as_ref().ok_or_else(ApiError::internal)?;
        let started = Instant::now();
        let loaded = files.load(&mut |_| {}).map_err(|error| failure(&slot.id, error))?;
        let served = serve(&own, &slot.id, loaded).map_err(|error| {
            tracing::error!(model = slot.id, %error, "a model was not loaded");
            ApiError::internal()
        })?;
        let seconds = started.elapsed().as_secs_f64();
        tracing::info!(model = slot.id, seconds, bytes = served.1, "loaded a model");
        own.metrics.count_load(&slot.id, seconds);
        Ok(served)
    });
    work.await.map_err(|_| ApiError::internal())?
}

/// Unloads idle models until this one fits; waits for models in use.
async fn free_memory(residency: &Arc<Residency>, index: usize) -> ApiResult<()> {
    let started = Instant::now();
    loop {
        match residency.fit(index) {
            Fit::Fits => return Ok(()),
            // Its scheduler's thread ends, and its weights are freed.
            Fit::Unloaded(model) => _ = spawn_blocking(move || drop(model)).await,
            Fit::TooLarge(error) => return Err(error),
            Fit::Busy(error) => {
                residency.hold(started + HOLD.min(residency.wait));
                if timeout_at(started + residency.wait, residency.idle.notified()).await.is_err() {
                    return Err(error);
                }
            }
        }
    }
}

/// The error of a load, for clients: without paths of the server's files, which the log has.
fn failure(id: &str, error: Error) -> ApiError {
    tracing::error!(model = id, error = %error.cause(), "a model was not loaded");
    match error.cause() {
        Error::Engine(error @ pellucid_engine::Error::Memory { .. }) => {
            ApiError::unavailable(format!("the model `{id}` was not loaded: {error}"), "model_too_large")
        }
        _ => {
            let message =
                format!("the model `{id}` could not be loaded from its files; the log of the server says why");
            ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message).with_param("model").with_code("model_load_failed")
        }
    }
}
