//! The routes: one file and one row of the table each.

pub mod branches;
mod captures;
mod chat;
mod completions;
pub mod direct;
mod embeddings;
mod lens;
mod models;
mod operations;
mod plans;
mod remote;
mod run;
pub mod sites;
mod tokenize;

use crate::api_error::{ApiError, ErrorBody};
use crate::inspection::examples;
use crate::logging;
pub use crate::reply::Reply;
use crate::security;
use crate::state::AppState;
use axum::Router;
use axum::http::header::CONTENT_TYPE;
use axum::http::{Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use std::any::Any;
use tower_http::catch_panic::CatchPanicLayer;
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// The description of the API, without its routes.
#[derive(OpenApi)]
#[openapi(
    info(title = "Pellucid", description = "The OpenAI API, with plans, captures and steering on every request.",),
    components(schemas(ErrorBody))
)]
struct Description;

/// The table of routes.
fn table() -> OpenApiRouter<AppState> {
    OpenApiRouter::with_openapi(Description::openapi())
        .routes(routes!(models::list))
        .routes(routes!(models::show))
        .routes(routes!(completions::create))
        .routes(routes!(chat::create, chat::list))
        .routes(routes!(embeddings::create))
        .routes(routes!(tokenize::tokenize))
        .routes(routes!(tokenize::detokenize))
        .routes(routes!(tokenize::info))
        .routes(routes!(run::run))
        .routes(routes!(run::explain))
        .routes(routes!(sites::list))
        .routes(routes!(lens::lens))
        .routes(routes!(lens::project))
        .routes(routes!(branches::create))
        .routes(routes!(captures::show, captures::delete))
        .routes(routes!(plans::create, plans::list))
        .routes(routes!(plans::show, plans::delete))
        .routes(routes!(remote::outline))
        .routes(routes!(remote::run))
        .routes(routes!(remote::generate))
        .routes(routes!(remote::branches))
        .routes(routes!(remote::weights))
        .routes(routes!(operations::health))
        .routes(routes!(operations::ready))
        .routes(routes!(operations::metrics))
}

/// The routes with their description.
fn describe() -> (Router<AppState>, utoipa::openapi::OpenApi) {
    let (router, mut api) = table().split_for_parts();
    examples::add_to(&mut api);
    // A parameter that may contain slashes is `{*id}` for axum and `{id}` in OpenAPI.
    let paths = std::mem::take(&mut api.paths.paths);
    api.paths.paths = paths.into_iter().map(|(path, item)| (path.replace("{*", "{"), item)).collect();
    (router, api)
}

/// Returns the OpenAPI description of the server, as JSON.
pub fn openapi() -> String {
    describe().1.to_pretty_json().unwrap_or_default()
}

/// All routes, `more` ones included, with the layers around them. The last layer is the outermost.
pub fn router(state: AppState, more: Router<AppState>) -> Router {
    let (router, api) = describe();
    let description = api.to_json().unwrap_or_default();
    let show = move || std::future::ready(([(CONTENT_TYPE, "application/json")], description.clone()));
    router
        .merge(more)
        .route("/openapi.json", get(show))
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(CatchPanicLayer::custom(panicked))
        .layer(axum::middleware::from_fn_with_state(state.clone(), security::check))
        .layer(axum::middleware::from_fn_with_state(state.clone(), logging::record))
        .with_state(state)
}

async fn not_found(uri: Uri) -> ApiError {
    let message = format!("there is no route {}; /openapi.json lists the routes", uri.path());
    ApiError::new(StatusCode::NOT_FOUND, message).with_code("route_not_found")
}

async fn method_not_allowed(method: Method, uri: Uri) -> ApiError {
    let message = format!("{} does not support {method}; /openapi.json lists the routes", uri.path());
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, message).with_code("method_not_allowed")
}

/// A panic is a fault of the server; it ends only its own request.
fn panicked(_: Box<dyn Any + Send>) -> Response {
    ApiError::internal().into_response()
}

/// Runs work that computes for more than a moment on a thread that may block.
pub async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    tokio::task::spawn_blocking(work).await.map_err(|_| ApiError::internal())?
}
