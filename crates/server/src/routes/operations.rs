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

/// Whether new requests are accepted: no shutdown has begun, and the queues are not full. Needs no
/// token.
#[utoipa::path(get, path = "/ready", responses((status = 200, body = Status), (status = 503, body = ErrorBody)))]
pub async fn ready(State(state): State<AppState>) -> ApiResult<Reply<Status>> {
    let is_full =
        state.models.all().iter().any(|model| model.scheduler.load().waiting >= state.options.scheduler.queue);
    match () {
        () if state.closing.load(Ordering::Relaxed) => {
            Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "the server is shutting down").with_code("closing"))
        }
        () if is_full => Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "the queue is full").with_code("busy")),
        () => Ok(Reply(OK)),
    }
}

/// Counters, gauges and histograms in the Prometheus text format.
#[utoipa::path(get, path = "/metrics", responses((status = 200, body = String, content_type = "application/openmetrics-text")))]
pub async fn metrics(State(state): State<AppState>) -> impl IntoResponse {
    const FORMAT: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(CONTENT_TYPE, FORMAT)], state.metrics.encode(&state.models, state.captures.bytes()))
}
