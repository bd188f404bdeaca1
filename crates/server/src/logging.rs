//! Structured logs, and the middleware that logs, counts and names each request.

use crate::api_error::ErrorKind;
use crate::ids;
use crate::state::AppState;
use axum::extract::{MatchedPath, Request, State};
use axum::http::HeaderValue;
use axum::middleware::Next;
use axum::response::Response;
use std::time::Instant;
use tracing::Instrument;
use tracing_subscriber::EnvFilter;

/// The form of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object per line.
    Json,
}

/// Starts logging to stderr. `PELLUCID_LOG` selects the level (`info` by default), as in
/// `RUST_LOG`. A second call changes nothing.
pub fn start_logging(format: LogFormat) {
    let filter = EnvFilter::try_from_env("PELLUCID_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(false);
    // A subscriber that exists already stays.
    let _ = match format {
        LogFormat::Text => builder.with_ansi(false).try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
}

/// The header with the id of a request.
const REQUEST_ID: &str = "x-request-id";
/// Longest id of a client that is kept.
const MAX_ID: usize = 128;

/// Gives each request an id (that of the client, if it sends one), logs and counts it.
pub async fn record(State(state): State<AppState>, request: Request, next: Next) -> Response {
    let own = request.headers().get(REQUEST_ID).filter(|id| id.len() <= MAX_ID && id.to_str().is_ok()).cloned();
    let id = own.or_else(|| HeaderValue::from_str(&ids::new("req")).ok());
    let name = id.as_ref().and_then(|id| id.to_str().ok()).unwrap_or_default().to_owned();
    let (method, started) = (request.method().to_string(), Instant::now());
    // The template of the path, so that ids do not become labels of metrics.
    let route = request.extensions().get::<MatchedPath>().map_or("(none)".into(), |path| path.as_str().to_owned());
    let span = tracing::info_span!("request", id = %name, %method, path = %request.uri().path());
    let mut response = next.run(request).instrument(span.clone()).await;
    let (status, duration) = (response.status().as_u16(), started.elapsed());
    state.metrics.count_request(&method, &route, status, duration);
    if let Some(ErrorKind(kind)) = response.extensions().get::<ErrorKind>() {
        state.metrics.count_error(kind);
    }
    span.in_scope(|| tracing::info!(status, ms = duration.as_millis() as u64, "response"));
    if let Some(id) = id {
        response.headers_mut().insert(REQUEST_ID, id);
    }
    response
}
