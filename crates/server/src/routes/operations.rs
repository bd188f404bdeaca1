//! `/health`, `/ready` and `/metrics`, for supervisors and dashboards.

use super::Reply;
use crate::api_error::{ApiError, ApiResult, ErrorBody};
use crate::state::AppState;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use serde::Serialize;
use std::sync::atomic::Ordering;
use utoipa::ToSchema;

/// The state of the server.
#[derive(Debug, Serialize, ToSchema)]
pub struct Status {
    /// `ok`.
    status: &'static str,
    /// The version of Pellucid.
    version: &'static str,
}

const OK: Status = Status { status: "ok", version: env!("CARGO_PKG_VERSION") };

/// Whether the process answers. Needs no token.
#[utoipa::path(get, path = "/health", responses((status = 200, body = Status)))]
pub async fn health() -> Reply<Status> {
    Reply(OK)
}

/// Whether the server accepts requests, and which models are in memory.
#[derive(Debug, Serialize, ToSchema)]
pub struct Readiness {
    #[serde(flatten)]
    status: Status,
    /// Number of models.
    models: usize,
    /// Number of models in memory; the others are loaded by the first request that names them.
    loaded_models: usize,
}

/// Whether new requests are accepted: no shutdown has begun, and the queues are not full. Needs no
/// token.
#[utoipa::path(get, path = "/ready", responses((status = 200, body = Readiness), (status = 503, body = ErrorBody)))]
pub async fn ready(State(state): State<AppState>) -> ApiResult<Reply<Readiness>> {
    let models = state.models.states();
    let loads = models.iter().filter_map(|model| model.load);
    let is_full = loads.clone().any(|load| load.waiting >= state.options.scheduler.queue);
    match () {
        () if state.closing.load(Ordering::Relaxed) => {
            Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "the server is shutting down").with_code("closing"))
        }
        () if is_full => Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "the queue is full").with_code("busy")),
        () => Ok(Reply(Readiness { status: OK, models: models.len(), loaded_models: loads.count() })),
    }
}

/// Counters, gauges and histograms in the Prometheus text format.
#[utoipa::path(get, path = "/metrics", responses((status = 200, body = String, content_type = "application/openmetrics-text")))]
pub async fn metrics(State(state): State<AppState>) -> impl IntoResponse {
    const FORMAT: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(CONTENT_TYPE, FORMAT)], state.metrics.encode(&state.models, state.captures.bytes()))
}
