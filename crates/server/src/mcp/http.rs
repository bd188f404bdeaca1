//! `/mcp`: the protocol over HTTP ("streamable HTTP").
//!
//! There are no sessions: each POST is a request of its own, which is answered with JSON, or with
//! server-sent events if it asks for progress. So nothing is kept for clients that vanish, and
//! closing the connection cancels the call. Host, Origin and token are checked as for every route
//! (`security.rs`), size and content type as for every body.

use super::handler::Handler;
use crate::api_error::{ApiError, ApiResult};
use crate::body::read_json;
use crate::state::AppState;
use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, Method};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use http_body_util::BodyExt;
use rmcp::transport::streamable_http_server::session::never::NeverSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use std::sync::Arc;

type Service = StreamableHttpService<Handler, NeverSessionManager>;

/// The route.
pub fn router(state: &AppState) -> Router<AppState> {
    let handler = Handler::new(state.clone());
    let config = StreamableHttpServerConfig::default()
        .with_legacy_session_mode(false)
        .with_json_response(true)
        .with_max_request_body_bytes(state.options.limits.body_bytes)
        // `security.rs` has checked them before.
        .disable_allowed_hosts()
        .disable_allowed_origins();
    let service = Service::new(move || Ok(handler.clone()), Arc::new(NeverSessionManager::default()), config);
    Router::new().route("/mcp", any(move |state, request| handle(state, service.clone(), request)))
}

async fn handle(State(state): State<AppState>, service: Service, request: Request) -> ApiResult<Response> {
    let request = match *request.method() {
        Method::POST => {
            let (parts, body) = request.into_parts();
            let body = read_json(Request::from_parts(parts.clone(), body), &state).await?;
            Request::from_parts(parts, Body::from(body))
        }
        _ => request,
    };
    let response = service.handle(request).await;
    let json = HeaderValue::from_static("application/json");
    if !response.status().is_client_error() || response.headers().get(CONTENT_TYPE) == Some(&json) {
        return Ok(response.map(Body::new).into_response());
    }
    // Errors before the protocol are texts; here they get the shape of all errors.
    let (parts, body) = response.into_parts();
    let text = body
        .collect()
        .await
        .map_or_else(|_| String::new(), |body| String::from_utf8_lossy(&body.to_bytes()).into_owned());
    let message = match parts.status.as_u16() {
        405 => "/mcp takes POST only: it has no sessions and no stream of its own".into(),
        _ => text,
    };
    Err(ApiError::new(parts.status, message))
}
